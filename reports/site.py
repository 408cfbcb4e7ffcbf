"""``conform report``: a static site over rows. No network and no server; every word of a row is escaped."""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup

from harness.bundle import Bundle
from harness.judge import verdict
from harness.rows import Row
from harness.text import Scorer, detokenise
from reports import nights, plots
from reports.matrix import Column, Entry, build, reason

MARKER = ".conform-site"
"""A file that says that a folder is a site of ours, which may be replaced."""
NIGHTS = 60
"""Newest nights that a strip shows; "since when" looks at all."""
DIVERGENCES = 3
TEMPLATES = Path(__file__).parent / "templates"


class SiteError(Exception):
    """A folder that may not be written: one line that says what, where, and what to do."""


def write(places: Sequence[Path], out: Path, bundle: Path, stale_days: float, now: datetime) -> str:
    """Write the site whole or not at all. Returns a line that says what it shows.

    Raises RowsError without rows, BundleError, and SiteError when ``out`` is there and is no site. ``now``: UTC.
    """
    _check_target(out)
    site = Site(places, bundle, stale_days, now)
    with _growing(out) as folder:
        count = site.render(folder)
    return f"{count} cells: open {out / 'index.html'}"


def _check_target(out: Path) -> None:
    if not out.absolute().parent.is_dir():
        raise SiteError(f"{out.absolute().parent}: no such directory; make it first")
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir()):
        raise SiteError(f"{out}: is there and is no folder; give another place")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise SiteError(f"{out}: is there and is no report, so it is left alone; give another place")


@contextlib.contextmanager
def _growing(out: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``out`` when the block ends well, and otherwise goes without a trace."""
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    try:
        new = beside / "new"
        new.mkdir()
        yield new
        (new / MARKER).write_text("written by `conform report`, which replaces this folder\n", encoding="utf-8")
        if out.exists():
            out.rename(beside / "old")
        try:
            new.rename(out)
        except OSError:
            if (beside / "old").exists():
                (beside / "old").rename(out)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


class Page(NamedTuple):
    """A cell and where its page is. ``word``: status, or PARTIAL, XFAIL (every failure expected) or XPASS."""

    opset: int
    column: Column
    entry: Entry
    name: str
    word: str
    since: nights.Since
    changes: list[tuple[nights.Night, nights.Night]]
    old: bool
    """Whether it was not in the newest night."""

    @property
    def row(self) -> Row:
        return self.entry.row


@dataclass(frozen=True)
class Text:
    """BLEU of a cell's hypotheses with a 95 % interval of sacrebleu's bootstrap, and the golden's."""

    score: float
    low: float
    high: float


class Site:
    """Everything that the pages show, worked out once."""

    def __init__(self, places: Sequence[Path], bundle: Path, stale_days: float, now: datetime) -> None:
        self.folders = list(dict.fromkeys(place if place.is_dir() else place.parent for place in places))
        self.now, self.stale_days, self.bundle_path = now, stale_days, bundle
        frame = nights.history(places, bundle)
        self.matrix = build(frame["row"])
        self.lines = nights.nightly(frame)
        self.every_night = sorted({night.night for line in self.lines.values() for night in line}, reverse=True)
        self.sights = nights.sights(frame, now, stale_days) if self.lines else []
        self.pages = [self._page(*place) for place in sorted(self.matrix.entries, key=lambda at: (at[1], at[0]))]
        self._plots: dict[str, Markup] = {}
        self._scores: dict[str, Text] = {}

    def _page(self, opset: int, column: Column) -> Page:
        entry = self.matrix.entries[(opset, column)]
        line = self.line(entry.row)
        own = nights.since(line, column.version, column.bundle)
        last = max(night.night for night in line if (night.version, night.bundle) == (column.version, column.bundle))
        changes = nights.version_changes(line, column.bundle)
        return Page(opset, column, entry, slug(entry.row), word(entry), own, changes, last < self.every_night[0])

    def line(self, row: Row) -> list[nights.Night]:
        return self.lines[tuple(getattr(row, name) for name in nights.LINE)]

    def render(self, folder: Path) -> int:
        """Write every page. Returns the number of cells."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.ChainableUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        environment.filters.update(number=number, bytes=mebibytes, age=self.age, milliseconds=milliseconds)
        environment.globals.update(
            words={**verdict.STATUSES, "PARTIAL": verdict.PARTIAL, "MISSING": verdict.MISSING},
            built=self.now.strftime("%Y-%m-%dT%H:%M:%SZ"), checks=verdict.CHECKS, stale_days=self.stale_days,
        )  # fmt: skip
        for name in ("site.css", "site.js"):
            shutil.copyfile(TEMPLATES / name, folder / name)
        (folder / "index.html").write_text(
            environment.get_template("index.html").render(root="", **self.index()), encoding="utf-8"
        )
        (folder / "cells").mkdir()
        template = environment.get_template("cell.html")
        for page in self.pages:
            (folder / "cells" / page.name).write_text(template.render(root="../", **self.cell(page)), encoding="utf-8")
        return len(self.pages)

    def age(self, time: str) -> str:
        """How long ago a row's time is, in words."""
        hours = (self.now - nights.moment(time)).total_seconds() / 3600
        return f"{hours:.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"

    # the front page

    def index(self) -> dict[str, Any]:
        """What the front page shows."""
        columns = {column: [page for page in self.pages if page.column == column] for column in self.matrix.columns}
        counts = Counter(page.word for page in self.pages)
        order = [*verdict.STATUSES, "PARTIAL"]
        facets = {
            "family": {page.column.backend for page in self.pages},
            "layout": {page.column.layout for page in self.pages},
            "precision": {page.column.precision for page in self.pages},
            "exporter": {page.column.exporter for page in self.pages},
            "box": {page.column.box for page in self.pages},
        }
        return {
            "counts": sorted(counts.items(), key=lambda item: order.index(item[0])),
            "facets": {name: sorted(values) for name, values in facets.items()},
            "opsets": self.matrix.opsets,
            "columns": columns,
            "sights": {sight.column._replace(told=""): sight for sight in self.sights},
            "silent_boxes": self._silent_boxes(),
            "absent": self.matrix.absent,
            "unexpected": sum(count for name, count in counts.items() if verdict.STATUSES.get(name, verdict.PARTIAL).outcome == "fail"),
            "news": self._news(),
            "reasons": self._reasons(),
            "boxes": {page.column.box for page in self.pages},
            "bundles": {page.column.bundle for page in self.pages},
            "compared": sum(row.compared for page in self.pages for row in page.entry.rows),
            "last": max((page.row.time for page in self.pages), default=""),
            "newest": self.every_night[:1],
            "nights": len(self.every_night),
        }

    def _silent_boxes(self) -> dict[str, list[nights.Sight]]:
        """Boxes with silent columns; all of them where the box as a whole has gone."""
        found: dict[str, list[nights.Sight]] = {}
        for sight in self.sights:
            if sight.silent:
                found.setdefault(sight.column.box, []).append(sight)
        return found

    def _news(self) -> list[tuple[nights.Night, Page, list[Page]]]:
        """Changes in the newest night, a line a column: what was before, one of the cells now, all of them."""
        found: dict[tuple[object, ...], tuple[nights.Night, Page, list[Page]]] = {}
        for page in self.pages:
            before = page.since.before
            if page.since.night != self.every_night[0]:
                continue
            if before is None:  # a new version or bundle: hold it against what the line said the night before
                earlier = [night for night in self.line(page.row) if night.night < page.since.night]
                before = earlier[-1] if earlier and earlier[-1].status != page.entry.status else None
            if before is not None:
                key = (page.column, before.status, page.word, before.version)
                found.setdefault(key, (before, page, []))[2].append(page)
        return list(found.values())

    def _reasons(self) -> list[tuple[Page, str, list[Page]]]:
        """Cells that do not pass, those with one reason together, unexpected ones first."""
        found: dict[tuple[str, str], list[Page]] = {}
        for page in self.pages:
            if page.word not in ("PASS",):
                found.setdefault((page.word, reason(page.entry)), []).append(page)
        order = [*verdict.STATUSES, "PARTIAL"]
        groups = sorted(found.items(), key=lambda item: order.index(item[0][0]))
        return [(pages[0], text, pages) for (_, text), pages in groups]

    # a cell's page

    def cell(self, page: Page) -> dict[str, Any]:
        """What a cell's page shows."""
        rows = sorted(page.entry.rows, key=lambda row: _place(row.check))
        of = {row.check: row for row in rows}
        evidence = next((row for row in rows if row.detail.get("evidence")), None)
        cost = of.get("cost")
        return {
            "page": page,
            "rows": rows,
            "of": of,
            "reason": "" if page.word == "PASS" else reason(page.entry),
            "evidence": evidence,
            "strip": nights.strip(self.line(page.row), self.every_night[:NIGHTS]),
            "strip_nights": self.every_night[:NIGHTS],
            "nights": len(self.every_night),
            "plots": self.drawn(of),
            "tensors": [item for row in rows for item in row.detail.get("tensors", {}).items()],
            "divergences": self.divergences(of.get("tokens")),
            "scores": self.scores(of.get("tokens")),
            "cost": cost.detail if cost and "step_p50_seconds" in cost.detail else None,
            "costs": self.costs(page),
            "text_note": "" if self._matches(page.row) else f"built without the bundle {page.row.bundle}: give it with --bundle",
        }

    @cached_property
    def bundle(self) -> Bundle:
        return Bundle(str(self.bundle_path))

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.bundle)

    def _matches(self, row: Row) -> bool:
        return row.bundle == self.bundle.short

    def arrays(self, row: Row | None) -> dict[str, np.ndarray]:
        """The sidecar's arrays; empty where the row has none, or the file did not come along or is damaged."""
        if row is None or not row.series:
            return {}
        for folder in self.folders:
            with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                with np.load(folder / row.series, allow_pickle=False) as saved:
                    return dict(saved)
        return {}

    def drawn(self, of: Mapping[str, Row]) -> list[tuple[str, str, Markup]]:
        """(title, words for who cannot see it, SVG) of each plot that this cell has numbers for."""
        logits = of.get("logits")
        series = self.arrays(logits or of.get("kv_values") or of.get("encoder"))
        at = series.get("steps")
        if at is None or not len(at):
            return []
        found = []
        bounds = {name: stats["tail_bound"] for row in of.values() for name, stats in row.detail.get("tensors", {}).items()}
        if logits and "logits" in bounds and "logits.gap" in series:
            gap, bound = series["logits.gap"], bounds["logits"]
            seen = gap[~np.isnan(gap)]
            said = f"Largest gap {seen.max(initial=0):.3g}, bound {bound:.3g}, PyTorch's own {series['logits.floor'].max():.3g}."
            names = {row: line.id for row, line in enumerate(self.bundle.rows)} if self._matches(logits) else {}
            found.append(("Logits: gap against decode step", said, self._svg(plots.gaps, at, gap, series["logits.floor"], bound, logits.step)))
            over = sorted({names.get(row, f"row {row}") for row in at[gap > bound, 0].tolist()})
            said = f"{len(over)} of {len(set(at[:, 0].tolist()))} sentences leave the bound" + (f": {', '.join(over[:8])}" if over else "")
            found.append(("Logits: sentence by step", said + ".", self._svg(plots.heat, at, gap, bound, names)))
        layers = {
            f"layer {name.split('.')[1]} {'V' if name.endswith('value') else 'K'}": (series[f"{name}.gap"], bounds[name])
            for name in bounds
            if ".decoder." in name and f"{name}.gap" in series
        }
        if layers:
            worst = {label: float(np.nan_to_num(gap / bound).max()) for label, (gap, bound) in layers.items()}
            said = "Largest gap in bounds: " + ", ".join(f"{label} {value:.3g}" for label, value in worst.items()) + "."
            step = of["kv_values"].step if "kv_values" in of else None
            found.append(("KV cache: drift per layer", said, self._svg(plots.drift, at, layers, step)))
        return found

    def _svg(self, draw: Any, *values: Any) -> Markup:
        """A plot; cells with the same numbers share the drawing."""
        digest = hashlib.sha256(draw.__name__.encode())
        for value in _flat(values):
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        key = digest.hexdigest()
        if key not in self._plots:
            self._plots[key] = Markup(draw(*values))  # noqa: S704: matplotlib escapes what it is given
        return self._plots[key]

    def divergences(self, row: Row | None) -> list[dict[str, Any]]:
        """The first sentences that left PyTorch, each with both token strings and where they part."""
        saved = self.arrays(row)
        if row is None or not {"tokens", "token_starts"} <= saved.keys():
            return []
        matches = self._matches(row)
        place = {line.id: number for number, line in enumerate(self.bundle.rows)} if matches else {}
        found = []
        for name, verdict_word, step, message in row.detail.get("notable", [])[:DIVERGENCES]:
            shown = {"name": name, "word": verdict_word, "step": step, "message": message, "sides": [], "source": ""}
            if name in place and step is not None:
                number = place[name]
                theirs = saved["tokens"][slice(*saved["token_starts"][number : number + 2])]
                shown["source"] = self.bundle.rows[number].source
                shown["sides"] = [
                    (who, self._pieces(ids[:step]), self._pieces(ids[step : step + 1]), self._pieces(ids[step + 1 :]), ids[step : step + 1].tolist())
                    for who, ids in (("PyTorch", self.bundle.tokens(number)), ("this backend", theirs))
                ]
            found.append(shown)
        return found

    def _pieces(self, ids: np.ndarray) -> list[str]:
        pieces = self.bundle.pieces
        return [pieces[token] if 0 <= token < len(pieces) else f"⟨{token}⟩" for token in ids.tolist()]

    def scores(self, row: Row | None) -> dict[str, Text]:
        """BLEU with its interval, of PyTorch and of this cell; equal hypotheses are scored once."""
        saved = self.arrays(row)
        if row is None or not self._matches(row) or not {"tokens", "token_starts"} <= saved.keys():
            return {}
        ids = np.split(saved["tokens"], saved["token_starts"][1:-1])
        if len(ids) != len(self.bundle.rows):
            return {}
        theirs = self.scorer.settled([detokenise(self.bundle, one) for one in ids], row.detail.get("ties", []))
        return {"PyTorch": self._interval(self.scorer.golden), "this backend": self._interval(theirs)}

    def _interval(self, hypotheses: list[str]) -> Text:
        key = "\0".join(hypotheses)
        if key not in self._scores:
            self._scores[key] = Text(*self.scorer.interval(hypotheses))
        return self._scores[key]

    def costs(self, page: Page) -> list[tuple[Page, dict[str, Any]]]:
        """Figures of every column of this opset, box and bundle: those of another box do not compare."""
        found = []
        for other in self.pages:
            if (other.opset, other.column.box, other.column.bundle) == (page.opset, page.column.box, page.column.bundle):
                found += [(other, row.detail) for row in other.entry.rows if "step_p50_seconds" in row.detail]
        return found


def slug(row: Row) -> str:
    """File name of a cell's page: readable, in the safest characters, and no two alike."""
    identity = "\0".join((row.cell, row.box, row.bundle))
    readable = re.sub(r"[^a-z0-9.]+", "-", row.cell.lower()).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.html"


def word(entry: Entry) -> str:
    """The cell's status, told apart as the matrix's symbol does: PARTIAL, XFAIL when every failure was expected, XPASS."""
    statuses = {row.status for row in entry.rows}
    if any(verdict.STATUSES[status].outcome == "fail" for status in statuses - {"XPASS"}):
        return entry.status
    if "XPASS" in statuses:
        return "XPASS"
    if "XFAIL" in statuses:
        return "XFAIL"
    return "PARTIAL" if entry.symbol == verdict.PARTIAL.symbol else entry.status


def _place(check: str) -> int:
    return verdict.CHECKS.index(check) if check in verdict.CHECKS else len(verdict.CHECKS)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from _flat(value.items())
        elif isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def number(value: float | int | None) -> str:
    """Three digits of a figure; thousands of a count apart; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
