"""``conform report``: a static site over rows. No network and no server; every word of a row is escaped."""

import hashlib
import multiprocessing
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from harness.core import verdict
from harness.core.errors import UserError
from harness.core.files import whole_folder
from harness.core.rows import Row
from harness.core.stages import staged
from reports import nights
from reports.matrix import Entry, alike, build, in_common, reason
from reports.nights import Past, SiteColumn
from reports.pieces import STAMP
from reports.sidecars import Sidecars

MARKER = ".conform-site"
"""A file that says that a folder is a site of ours, which may be replaced."""
NIGHTS = 60
"""Newest nights that a strip shows; "since when" looks at all."""
FEW = 50
"""Pages that are not worth another process."""
TEMPLATES = Path(__file__).parent / "templates"
WORDS = verdict.WORDS


def write(out: Path, past: Past, sidecars: Sidecars, stale_days: float, now: datetime) -> str:
    """Write the site whole or not at all. Returns a line that says where. ``now``: UTC. Raises what `check_target` raises,
    and OSError."""
    check_target(out)
    site = Site(past, sidecars, stale_days, now)
    with whole_folder(out) as folder:
        site.render(folder)
        (folder / MARKER).write_text("written by `conform report`, which replaces this folder\n", encoding="utf-8")
    return f"{len(site.pages)} cells, {len(site.every_night)} nights: open {out / 'index.html'}"


def check_target(out: Path) -> None:
    """Raises UserError unless a site may be written there: nothing but a site is ever replaced."""
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent}: no such directory; make it first")
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir()):
        raise UserError(f"{out}: is there and is no folder; give another path")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise UserError(f"{out}: is there and is no report, so it is left alone; give another path")


class Page(NamedTuple):
    """A cell and its page. ``word``: see nights.word_of; ``changes``: versions between which its status differs;
    ``old``: it was not in the newest night."""

    opset: int
    column: SiteColumn
    entry: Entry
    file: str
    word: str
    since: nights.Since
    changes: list[tuple[nights.Night, nights.Night]]
    old: bool

    @property
    def row(self) -> Row:
        return self.entry.row


class ColumnChange(NamedTuple):
    """Cells of one column that were something else before the newest night."""

    before: nights.Night
    pages: list[Page]


class Site:
    """Everything that the pages show, worked out once."""

    def __init__(self, past: Past, sidecars: Sidecars, stale_days: float, now: datetime) -> None:
        self.past, self.sidecars, self.now, self.stale_days = past, sidecars, now, stale_days
        self.every_night = self.past.nights[::-1]
        self.matrix = build(self.past.rows)
        self.columns: dict[SiteColumn, list[Page]] = {}
        # What has been replaced comes last, and counts no more.
        entries: dict[SiteColumn, list[Entry]] = {}
        for _, entry in sorted(self.matrix.entries.items(), key=lambda item: (item[0][1].order, item[0][0])):
            column = SiteColumn(*(getattr(entry.row, name) for name in SiteColumn._fields))
            entries.setdefault(column, []).append(entry)
        rows = {column: [row for entry in of_column for row in entry.rows] for column, of_column in entries.items()}
        self.sights = {sight.column: sight for sight in nights.sights(self.past, rows, now, stale_days)}
        for column in sorted(entries, key=lambda column: bool(self.sights[column].replaced)):
            self.columns[column] = [self._page(column, entry) for entry in entries[column]]
        self.pages = [page for pages in self.columns.values() for page in pages]
        self.current = [page for page in self.pages if not self.sights[page.column].replaced]
        self.costs: dict[tuple[object, ...], list[tuple[Page, dict[str, Any]]]] = {}
        for page in self.pages:
            timed = [row.detail for row in page.entry.rows if "step_p50_seconds" in row.detail]
            self.costs.setdefault(_comparable(page), []).extend((page, figures) for figures in timed)

    def _page(self, column: SiteColumn, entry: Entry) -> Page:
        line, own = self.past.line(entry.row), self.past.track(entry.row)
        word = nights.word_of(entry.status, (row.status for row in entry.rows), entry.called)
        changes = nights.version_changes(line, column.bundle)
        opset, file = entry.row.opset or 0, file_name(entry.row)
        return Page(opset, column, entry, file, word, own.since, changes, bool(own.status[-1] < 0))

    def render(self, folder: Path) -> None:
        """Write every page into an empty folder."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.ChainableUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(
            number=_number, milliseconds=_milliseconds, mebibytes=_mebibytes, age=self._age, clock=_clock
        )
        environment.globals.update(
            words=WORDS,
            called=_called,
            checks=verdict.CHECKS,
            built=self.now.strftime(STAMP),
            stale_days=self.stale_days,
        )
        for name in ("site.css", "site.js"):
            shutil.copyfile(TEMPLATES / name, folder / name)
        front = environment.get_template("index.html").render(root="", **self._front())
        (folder / "index.html").write_text(front, encoding="utf-8")
        (folder / "cells").mkdir()
        template = environment.get_template("cell.html")
        parts = np.array_split(
            np.arange(len(self.pages)), min(len(os.sched_getaffinity(0)), len(self.pages) // FEW + 1)
        )
        # Forked, so that what the pages are made of is shared; neighbours stay together, because they share drawings.
        context = multiprocessing.get_context("fork")
        others = [context.Process(target=self._write_cells, args=(template, folder, part)) for part in parts[1:]]
        for process in others:
            process.start()
        self._write_cells(template, folder, parts[0])
        for process in others:
            process.join()
            if process.exitcode:
                raise UserError(
                    f"a process that wrote pages ended with {process.exitcode}; see its output, and try again"
                )

    def _write_cells(self, template: jinja2.Template, folder: Path, numbers: Iterable[int]) -> None:
        for page in map(self.pages.__getitem__, numbers):
            (folder / "cells" / page.file).write_text(template.render(root="../", **self._cell(page)), encoding="utf-8")

    def _age(self, time: str) -> str:
        hours = (self.now - nights.moment(time)).total_seconds() / 3600
        if hours < -1:
            return "in the future: is its clock right?"
        return f"{max(hours, 0):.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"

    def _front(self) -> dict[str, Any]:
        counts = Counter(page.word for page in self.current)
        columns = list(self.columns)
        return {
            "columns": {column: {page.opset: page for page in pages} for column, pages in self.columns.items()},
            "opsets": sorted({page.opset for page in self.pages}),
            "absent": self.matrix.absent,
            "sight": self.sights.__getitem__,
            "sights": sorted(self.sights.values(), key=lambda sight: sight.time),
            "silent_boxes": self._silent_boxes(),
            "counts": [(word, counts[word]) for word in WORDS if counts[word]],
            "unexpected": sum(count for word, count in counts.items() if WORDS[word].outcome == "fail"),
            "cells": len(self.current),
            "changes": self._changes(),
            "reasons": _reasons(self.current),
            "facets": {
                facet: sorted({getattr(column, facet) for column in columns})
                for facet in ("backend", "layout", "precision", "exporter", "box")
            },
            "bundles": sorted({column.bundle for column in columns}),
            "telling": [
                name
                for name in ("device", "exporter", "precision", "box", "bundle")
                if len({getattr(column, name) for column in columns}) > 1
            ],
            "nights": self.every_night,
            "compared": sum(row.compared for page in self.current for row in page.entry.rows),
            "last": max((page.row.time for page in self.pages), default=""),
        }

    def _silent_boxes(self) -> dict[str, tuple[bool, list[nights.Sight]]]:
        """Box to whether all of it is silent, and its silent columns."""
        boxes = {}
        for box in dict.fromkeys(column.box for column in self.sights):
            due = [sight for sight in self.sights.values() if sight.column.box == box and not sight.replaced]
            silent = [sight for sight in due if sight.silent]
            if silent:
                boxes[box] = (len(silent) == len(due), silent)
        return boxes

    def _changes(self) -> list[ColumnChange]:
        changes: dict[tuple[object, ...], ColumnChange] = {}
        for page in self.current:
            if page.since.night != self.every_night[0]:
                continue
            before = page.since.before
            if before is None:  # a version or bundle seen for the first time is held against what was there before it
                before = nights.before(self.past.line(page.row), page.since.night)
                before = before if before and before.status != page.entry.status else None
            if before is not None:
                key = (page.column, page.word, before.word, before.version, before.bundle, before.night)
                changes.setdefault(key, ColumnChange(before, [])).pages.append(page)
        return list(changes.values())

    def _cell(self, page: Page) -> dict[str, Any]:
        rows = {row.check: row for row in sorted(page.entry.rows, key=lambda row: _order(row.check))}
        cost = rows.get("cost")
        return {
            "page": page,
            "rows": rows,
            "reason": "" if page.word == "PASS" else reason(page.entry),
            "evidence": next((row.detail for row in rows.values() if row.detail.get("evidence")), None),
            "strip": nights.strip(self.past.line(page.row), NIGHTS),
            "strip_nights": self.every_night[:NIGHTS],
            "nights": len(self.every_night),
            "stages": staged(rows.values()),
            "plots": self.sidecars.plots(rows),
            "tensors": [item for row in rows.values() for item in row.detail.get("tensors", {}).items()],
            "divergences": self.sidecars.divergences(rows.get("tokens")),
            "scores": self.sidecars.scores(rows.get("tokens")),
            "timed": cost.detail if cost and "step_p50_seconds" in cost.detail else None,
            "costs": self.costs[_comparable(page)],
            "bundle_known": self.sidecars.known(page.row),
        }


def _called(row: Row) -> str:
    return verdict.called(row.status, row.kind, simulated=row.simulated)


def _comparable(page: Page) -> tuple[object, ...]:
    """Figures of another box, opset or bundle do not compare."""
    return page.opset, page.column.box, page.column.bundle


def _reasons(pages: Iterable[Page]) -> list[tuple[str, list[list[Page]]]]:
    """Why cells do not pass, worst first: a reason, and its cells, those of one column and one history together."""
    by_reason: dict[tuple[str, ...], dict[tuple[object, ...], list[Page]]] = {}
    for page in pages:
        if page.word != "PASS":
            before, changes = page.since.before, [(old.version, new.version) for old, new in page.changes]
            history = (page.column, page.since.night, before and (before.word, before.night), *changes)
            why = (page.word, alike(page.entry), page.row.blame, page.row.knob)
            by_reason.setdefault(why, {}).setdefault(history, []).append(page)
    order = list(WORDS)
    return [
        (
            in_common([reason(page.entry) for pages in by_reason[why].values() for page in pages]),
            list(by_reason[why].values()),
        )
        for why in sorted(by_reason, key=lambda why: order.index(why[0]))
    ]


def file_name(row: Row) -> str:
    """File name of a cell's page: readable, in the safest characters, and no two alike."""
    identity = "\0".join((row.cell, row.box, row.bundle))
    readable = re.sub(r"[^a-z0-9.]+", "-", row.cell.lower()).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}.html"


def _order(check: str) -> int:
    return verdict.CHECKS.index(check) if check in verdict.CHECKS else len(verdict.CHECKS)


def _number(value: float | None) -> str:
    """Three digits of a figure; all of a count, thousands apart; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _clock(time: str) -> str:
    return time.replace("T", " ").replace("Z", " UTC")
