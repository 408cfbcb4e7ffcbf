"""What the sidecar files of a cell's rows add to its page: plots, both token strings, BLEU with an interval.

A sidecar that did not come along with its rows, or is damaged, adds nothing; the rows still say what was found.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from harness.bundle import Bundle
from harness.rows import Row
from harness.text import Scorer, detokenise
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


class Score(NamedTuple):
    """BLEU and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class Side(NamedTuple):
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
    sides: list[Side]


class Sidecars:
    """Those of the rows in the given folders. Cells with the same numbers or the same text share drawings and scores."""

    def __init__(self, folders: Iterable[Path], bundle: Bundle) -> None:
        self.folders = list(dict.fromkeys(folders))
        self.bundle = bundle
        self.scorer = Scorer(bundle)
        self._drawn: dict[str, Markup] = {}
        self._scored: dict[tuple[str, ...], Score] = {}

    def known(self, row: Row) -> bool:
        """Whether the bundle at hand is that of the row."""
        return row.bundle == self.bundle.short

    @cached_property
    def _places(self) -> dict[str, int]:
        return {line.id: number for number, line in enumerate(self.bundle.rows)}

    def _arrays(self, row: Row | None) -> Mapping[str, np.ndarray]:
        for folder in self.folders if row is not None and row.series else ():
            try:
                with np.load(folder / row.series, allow_pickle=False) as saved:
                    return dict(saved)
            except (OSError, ValueError, EOFError, zipfile.BadZipFile):
                continue
        return {}

    def plots(self, rows: Mapping[str, Row]) -> list[Plot]:
        """The plots that a cell has numbers for. ``rows``: by check."""
        numeric = [rows[check] for check in ("logits", "kv_values", "encoder") if check in rows]
        series = self._arrays(numeric[0]) if numeric else {}
        stats = {name: one for row in numeric for name, one in row.detail.get("tensors", {}).items()}
        if not len(series.get("steps", ())):
            return []
        found = []
        if "logits" in stats and "logits.gap" in series:
            found += self._of_logits(rows["logits"], series, stats["logits"]["tail_bound"])
        own = {
            f"layer {name.split('.')[1]} {'V' if name.endswith('value') else 'K'}":
                (series[f"{name}.gap"], stats[name]["tail_bound"])
            for name in stats if ".decoder." in name and f"{name}.gap" in series
        }  # fmt: skip
        if own:
            largest = (f"{label} {np.fmax.reduce(gap / bound, initial=0):.3g}" for label, (gap, bound) in own.items())
            words = f"Largest gap in bounds: {', '.join(largest)}."
            drawn = self._draw(plots.drift, series["steps"], own, rows["kv_values"].step)
            found.append(Plot("KV cache: drift per layer", words, drawn))
        return found

    def _of_logits(self, row: Row, series: Mapping[str, np.ndarray], bound: float) -> list[Plot]:
        at, gap, floor = series["steps"], series["logits.gap"], series["logits.floor"]
        names = {place: name for name, place in self._places.items()} if self.known(row) else {}
        largest = np.fmax.reduce(gap, initial=0)
        words = f"Largest gap {largest:.3g}, bound {bound:.3g}, PyTorch's own {floor.max():.3g}."
        sentences, wrong = (list(dict.fromkeys(rows.tolist())) for rows in (at[:, 0], at[gap > bound, 0]))
        first = ", ".join(names.get(place, f"row {place}") for place in wrong[:NAMED])
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        out = f"{len(wrong)} of {len(sentences)} sentences leave the bound{': ' if wrong else ''}{first}{more}."
        return [
            Plot("Logits: gap against decode step", words, self._draw(plots.gaps, at, gap, floor, bound, row.step)),
            Plot("Logits: sentence by step", out, self._draw(plots.heat, at, gap, bound, names)),
        ]

    def _draw(self, plot: Callable[..., str], *values: Any) -> Markup:
        digest = hashlib.sha256(plot.__name__.encode())
        for value in _leaves(values):
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        key = digest.hexdigest()
        if key not in self._drawn:
            self._drawn[key] = Markup(plot(*values))  # matplotlib has escaped every word in it
        return self._drawn[key]

    def divergences(self, row: Row | None) -> list[Divergence]:
        """The first sentences of a tokens row that left PyTorch."""
        notable = row.detail.get("notable", [])[:DIVERGENCES] if row is not None else []
        ids = self._hypotheses(row)
        return [Divergence(*one, *self._strings(ids, one[0], one[2])) for one in notable]

    def _hypotheses(self, row: Row | None) -> list[np.ndarray]:
        """Ids of every sentence; empty without the sidecar, or with another bundle than the row's."""
        saved = self._arrays(row) if row is not None and self.known(row) else {}
        if not {"tokens", "token_starts"} <= saved.keys() or len(saved["token_starts"]) != len(self.bundle.rows) + 1:
            return []
        return np.split(saved["tokens"], saved["token_starts"][1:-1])

    def _strings(self, ids: Sequence[np.ndarray], sentence: str, step: int | None) -> tuple[str, list[Side]]:
        if not ids or step is None or sentence not in self._places:
            return "", []
        place = self._places[sentence]
        sides = [
            self._side(who, one, step)
            for who, one in (("PyTorch", self.bundle.tokens(place)), ("this backend", ids[place]))
        ]
        return self.bundle.rows[place].source, sides

    def _side(self, who: str, ids: np.ndarray, step: int) -> Side:
        table = self.bundle.pieces
        pieces = [table[token] if 0 <= token < len(table) else f"⟨{token}⟩" for token in ids.tolist()]
        at, token = (pieces[step], int(ids[step])) if step < len(ids) else (None, None)
        return Side(who, pieces[:step], at, token, pieces[step + 1 :])

    def scores(self, row: Row | None) -> dict[str, Score]:
        """BLEU of PyTorch and of the hypotheses of a tokens row."""
        ids = self._hypotheses(row)
        if row is None or not ids:
            return {}
        theirs = self.scorer.without_ties([detokenise(self.bundle, one) for one in ids], row.detail.get("ties", []))
        return {"PyTorch": self._score(self.scorer.golden), "this backend": self._score(theirs)}

    def _score(self, hypotheses: list[str]) -> Score:
        key = tuple(hypotheses)
        if key not in self._scored:
            self._scored[key] = Score(*self.scorer.interval(hypotheses))
        return self._scored[key]


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.items())
        elif isinstance(value, tuple):
            yield from _leaves(value)
        else:
            yield value
