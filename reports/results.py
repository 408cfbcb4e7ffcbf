"""Rows as a gate judges them: the newest of each check, by cell, box and bundle."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UserError
from harness.core.rows import Row, newest
from reports.pieces import KEY
from reports.selection import Selection
from reports.store import Store, note


class Judged(NamedTuple):
    """What is judged as one: a cell on a box with a bundle. Of what is missing, the patterns that were asked for."""

    cell: str
    box: str
    bundle: str

    @property
    def lasting(self) -> tuple[str, str, str]:
        """Without what a new runtime, or a new recording of the bundle, changes."""
        return re.sub(r"@[^/]*", "", self.cell, count=1), self.box, unrecorded(self.bundle)


class Results(NamedTuple):
    """``cells``: the newest rows by check; ``night``: the newest that they are of; ``folder``: where sidecar paths start;
    ``overruled``: why a passing row, by KEY, is not stable: it passed after a failure of the same night."""

    folder: Path
    text: str
    cells: dict[Judged, dict[str, Row]]
    night: str
    overruled: dict[tuple[str, ...], str]


def unrecorded(bundle: str) -> str:
    """The name that all recordings of a bundle share."""
    return bundle.partition("@")[0]


def cells_of(selection: Selection) -> list[tuple[Path, Row]]:
    """The newest rows of cells, each with the folder that its sidecar path starts from."""
    rows = selection.store.newest_rows(selection.nights)
    return [(selection.folder, row) for row in rows if row.cell and not row.fake]


def collect(selection: Selection, rows: Iterable[Row], say: Callable[[str], None] = note) -> Results:
    """The rows of a selection, with those that were answered for it, to be judged. Of two recordings of one bundle the
    newest counts; ``say`` is told. Raises UserError when there is no row."""
    # What is answered where rows are merged is as old as the tokens that it is answered from: a row written later stands.
    rows = newest(rows)
    if not rows:
        raise UserError(f"{selection.text}: no cell has a row; nothing can be judged")
    cells: dict[Judged, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(Judged(row.cell, row.box, row.bundle), {})[row.check] = row
    recordings: dict[Judged, str] = {}
    for key, checks in cells.items():
        kin = key._replace(bundle=unrecorded(key.bundle))
        if kin not in recordings or _last(cells[kin._replace(bundle=recordings[kin])]) < _last(checks):
            recordings[kin] = key.bundle
    kept = {
        key: checks
        for key, checks in cells.items()
        if recordings[key._replace(bundle=unrecorded(key.bundle))] == key.bundle
    }
    if len(kept) < len(cells):
        say(f"{len(cells) - len(kept)} cells of an older recording of their bundle are not judged")
    night_of = selection.store.night_of
    night = max(night_of[row.run] for checks in kept.values() for row in checks.values())
    return Results(selection.folder, selection.text, kept, night, _overruled(selection.store, rows))


def _overruled(store: Store, rows: list[Row]) -> dict[tuple[str, ...], str]:
    """Failures that a later run of the same night replaced by a pass: what is run until it passes is not stable."""
    passed = {(store.night_of[row.run], *(getattr(row, name) for name in KEY)) for row in rows if row.status == "PASS"}
    overruled: dict[tuple[str, ...], str] = {}
    for night in sorted({key[0] for key in passed}):
        for row in store.failures(night).itertuples():
            key = tuple(getattr(row, name) for name in KEY)
            if (night, *key) in passed:
                failure = f"{row.status} in run {row.run} of the same night: {row.message}"
                overruled[key] = f"{row.check} passes, and was {failure}".removesuffix(": ")
    return overruled


def _last(checks: dict[str, Row]) -> str:
    return max(row.time for row in checks.values())
