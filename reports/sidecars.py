"""What the sidecar files of a cell's rows add to its page: plots, both token strings, BLEU with an interval.

A sidecar that did not come along with its rows, or is damaged, adds nothing; the rows still say what was found.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from harness.core.rows import Row
from harness.core.texts import Interval, Texts, token_ids
from reports import plots

DIVERGENCES = 3
"""Sentences whose token strings a page shows."""
NAMED = 8
"""Sentences that the words beside a heat map name."""


class Plot(NamedTuple):
    """``words`` say what the drawing shows to who cannot see it."""

    title: str
    words: str
    svg: Markup


class TokenString(NamedTuple):
    """One token string around the step at which two part; ``at`` and ``id`` are None where it has ended before."""

    who: str
    before: list[str]
    at: str | None
    id: int | None
    after: list[str]


class Divergence(NamedTuple):
    """A sentence that left PyTorch. ``sides`` is empty where the bundle is not at hand."""

    sentence: str
    word: str
    step: int | None
    message: str
    source: str
    sides: list[TokenString]


class Sidecars:
    """Those of the rows in the given folders. Cells with the same numbers or the same text share drawings and scores."""

    def __init__(self, folders: Iterable[Path], texts: Texts) -> None:
        """``folders``: where sidecar paths start; ``texts`` answers for the bundle at hand."""
        self.folders = list(dict.fromkeys(folders))
        self.texts, self.bundle = texts, texts.bundle
        self._made: dict[tuple[str, bytes, str], Any] = {}

    def known(self, row: Row) -> bool:
        """Whether the bundle at hand is that of the row."""
        return row.bundle == self.bundle.short

    @cached_property
    def _row_numbers(self) -> dict[str, int]:
        return {line.id: number for number, line in enumerate(self.bundle.rows)}

    def _content(self, row: Row | None) -> bytes:
        """The sidecar file of a row as it lies on disk; empty where there is none."""
        if row is None or not row.series:
            return b""
        for folder in self.folders:
            try:
                return (folder / row.series).read_bytes()
            except OSError:
                continue
        return b""

    def _once(self, make: Callable[..., Any], content: bytes, *facts: Any) -> Any:
        """What is made of a sidecar and of what rows say of it; made once for all cells that are alike in both."""
        key = (make.__name__, hashlib.sha256(content).digest(), repr(facts))
        if key not in self._made:
            self._made[key] = make(content, *facts)
        return self._made[key]

    def plots(self, rows: Mapping[str, Row]) -> list[Plot]:
        """The plots that a cell has numbers for. ``rows``: by check."""
        numeric = [rows[check] for check in ("logits", "kv_values", "encoder") if check in rows]
        content = self._content(numeric[0]) if numeric else b""
        tensors = [item for row in numeric for item in row.detail.get("tensors", {}).items()]
        bounds = {name: figures["tail_bound"] for name, figures in tensors}
        first = {check: rows[check].step for check in ("logits", "kv_values") if check in rows}
        if not content:
            return []
        drawn: list[Plot] = self._once(self._drawn, content, bounds, first, self.known(numeric[0]))
        return drawn

    def _drawn(
        self, content: bytes, bounds: Mapping[str, float], first: Mapping[str, int | None], known: bool
    ) -> list[Plot]:
        series = _arrays(content)
        if not len(series.get("steps", ())):
            return []
        drawn = []
        if "logits" in bounds and "logits.gap" in series:
            names = {number: name for name, number in self._row_numbers.items()} if known else {}
            drawn += _of_logits(series, bounds["logits"], first["logits"], names)
        own = {
            f"layer {name.split('.')[1]} {'V' if name.endswith('value') else 'K'}": (series[f"{name}.gap"], bound)
            for name, bound in bounds.items()
            if ".decoder." in name and f"{name}.gap" in series
        }
        if own:
            largest = (f"{label} {np.fmax.reduce(gap / bound, initial=0):.3g}" for label, (gap, bound) in own.items())
            words = f"Largest gap in bounds: {', '.join(largest)}."
            drawing = plots.drift(series["steps"], own, first["kv_values"])
            drawn.append(_plot("KV cache: drift per layer", words, drawing))
        return drawn

    def divergences(self, row: Row | None) -> list[Divergence]:
        """The first sentences of a tokens row that left PyTorch."""
        notable = row.detail.get("notable", [])[:DIVERGENCES] if row is not None else []
        ids = self._hypotheses(row)
        return [
            Divergence(sentence, word, step, message, *self._strings(ids, sentence, step))
            for sentence, word, step, message in notable
        ]

    def _hypotheses(self, row: Row | None) -> list[np.ndarray]:
        """Ids of every sentence; empty without the sidecar, or with another bundle than the row's."""
        if row is None or not self.known(row):
            return []
        ids: list[np.ndarray] = self._once(self._split, self._content(row))
        return ids

    def _split(self, content: bytes) -> list[np.ndarray]:
        try:
            return token_ids(content, len(self.bundle.rows))
        except ValueError:
            return []

    def _strings(self, ids: Sequence[np.ndarray], sentence: str, step: int | None) -> tuple[str, list[TokenString]]:
        if not ids or step is None or sentence not in self._row_numbers:
            return "", []
        number = self._row_numbers[sentence]
        both = {"PyTorch": self.bundle.tokens(number), "this backend": ids[number]}
        return self.bundle.rows[number].source, [self._string(who, own, step) for who, own in both.items()]

    def _string(self, who: str, ids: np.ndarray, step: int) -> TokenString:
        table = self.bundle.pieces
        pieces = [table[token] if 0 <= token < len(table) else f"⟨{token}⟩" for token in ids.tolist()]
        at, token = (pieces[step], int(ids[step])) if step < len(ids) else (None, None)
        return TokenString(who, pieces[:step], at, token, pieces[step + 1 :])

    def scores(self, row: Row | None) -> dict[str, Interval]:
        """BLEU of PyTorch and of the hypotheses of a tokens row."""
        if row is None or not self._hypotheses(row):
            return {}
        scores: dict[str, Interval] = self._once(self._scores, self._content(row), row.detail.get("ties", []))
        return scores

    def _scores(self, content: bytes, ties: Sequence[str]) -> dict[str, Interval]:
        hypotheses = self.texts.spell(self._once(self._split, content), ties)
        both = {"PyTorch": self.texts.golden, "this backend": hypotheses}
        return {who: self._once(self._score, "\0".join(texts).encode(), texts) for who, texts in both.items()}

    def _score(self, _: bytes, hypotheses: list[str]) -> Interval:
        return self.texts.interval(hypotheses)


def _arrays(content: bytes) -> Mapping[str, np.ndarray]:
    """What a sidecar holds; nothing where it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            return dict(saved)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def _of_logits(
    series: Mapping[str, np.ndarray], bound: float, first: int | None, names: Mapping[int, str]
) -> list[Plot]:
    at, gap, floor = series["steps"], series["logits.gap"], series["logits.floor"]
    largest = np.fmax.reduce(gap, initial=0)
    words = f"Largest gap {largest:.3g}, bound {bound:.3g}, PyTorch's own {floor.max():.3g}."
    sentences, wrong = (list(dict.fromkeys(rows.tolist())) for rows in (at[:, 0], at[gap > bound, 0]))
    named = ", ".join(names.get(row, f"row {row}") for row in wrong[:NAMED])
    more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    out = f"{len(wrong)} of {len(sentences)} sentences leave the bound{': ' if wrong else ''}{named}{more}."
    return [
        _plot("Logits: gap against decode step", words, plots.gaps(at, gap, floor, bound, first)),
        _plot("Logits: sentence by step", out, plots.heat(at, gap, bound, names)),
    ]


def _plot(title: str, words: str, drawing: str) -> Plot:
    return Plot(title, words, Markup(drawing))  # matplotlib has escaped every word in it
