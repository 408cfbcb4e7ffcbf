"""What each night said of each cell: since when it is as it is, what changed with a version, who has gone silent.

A night is the UTC date on which a run began, so a run across midnight is one. A *line* is a cell at any runtime version
and bundle: what a release manager means by "it used to work".
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import pandas
from packaging.version import InvalidVersion, Version

from harness.bundle import Bundle
from harness.judge import verdict
from harness.merge import complete
from harness.rows import Row, RowsError, is_simulated, seen_status


class Column(NamedTuple):
    """What one line of the site's table is of: cells that differ in their opset only."""

    backend: str
    version: str
    device: str
    exporter: str
    precision: str
    layout: str
    box: str
    bundle: str


COLUMN = list(Column._fields)
LINE = ["backend", "device", "exporter", "layout", "precision", "opset", "box"]
FORM = "%Y-%m-%dT%H:%M:%SZ"
"""How rows write a time."""
_KEPT = [*COLUMN, "cell", "check", "status", "kind", "run", "time"]


class History(NamedTuple):
    """``frame``: a line a row of every run, with the columns of a row that tell its cell, check, run and time, its
    ``status``, the status ``seen`` under an expectation, and its ``night``. ``rows``: at least the newest of each cell and
    check and of each absent backend."""

    frame: pandas.DataFrame
    rows: list[Row]


def history(places: Iterable[Path], bundle: Bundle) -> History:
    """Raises RowsError when there is no row, or one that cannot be read."""
    rows = complete(places, Path(bundle.path))
    return History(table(rows), rows)


def table(rows: list[Row]) -> pandas.DataFrame:
    """See History."""
    frame = pandas.DataFrame({name: [getattr(row, name) for row in rows] for name in _KEPT})
    frame["opset"] = [row.opset or 0 for row in rows]
    frame["seen"] = [seen_status(row) for row in rows]
    odd = pandas.to_datetime(frame["time"], format=FORM, errors="coerce").isna()
    if odd.any():
        row = rows[int(odd.argmax())]
        raise RowsError(f"run {row.run}: the time {row.time!r} is none that a run writes; copy its rows again")
    frame["night"] = frame.groupby("run")["time"].transform("min").str[:10]
    return frame


class Night(NamedTuple):
    """A cell on one night, by its newest rows then: its worst status as seen, and the word of ``word_of``."""

    night: str
    version: str
    bundle: str
    status: str
    word: str
    symbol: str
    time: str


def word_of(status: str, words: Iterable[str], called: str) -> str:
    """What a cell is called (`verdict.called`); but XFAIL when every failure was expected, XPASS when only such a pass is
    wrong. ``words``: its rows' own statuses."""
    found = set(words)
    if any(verdict.STATUSES[word].outcome == "fail" for word in found - {"XPASS"}):
        return status
    return next((word for word in ("XPASS", "XFAIL") if word in found), called)


def nightly(frame: pandas.DataFrame) -> dict[tuple[object, ...], list[Night]]:
    """The nights of each line (the values of LINE), oldest first."""
    cells = frame[frame["cell"] != ""].sort_values(["time", "run"], kind="stable")
    place = [*LINE, "version", "bundle", "night"]
    newest = cells.drop_duplicates([*place, "check"], keep="last")
    newest = newest.assign(
        rank=newest["seen"].map(verdict.SEVERITY.index),
        built=(newest["seen"] == "ABSENT") & (newest["kind"] == "built"),
    )
    found: dict[tuple[object, ...], list[Night]] = {}
    grouped = newest.groupby(place, sort=False).agg(
        rank=("rank", "min"), words=("status", "unique"), checks=("check", "nunique"), time=("time", "max"),
        built=("built", "any"),
    )  # fmt: skip
    for key, rank, words, checks, time, built in grouped.itertuples(name=None):
        *line, version, bundle, night = key
        status = verdict.SEVERITY[rank]
        simulated = is_simulated(line[LINE.index("device")])
        called = verdict.called(status, "built" if built else "", checks < len(verdict.CHECKS), simulated)
        word = word_of(status, words, called)
        symbol = verdict.WORDS[called].symbol
        found.setdefault(tuple(line), []).append(Night(night, version, bundle, status, word, symbol, time))
    for nights in found.values():
        nights.sort()
    return found


def line_of(row: Row) -> tuple[object, ...]:
    """The line that a row's cell is on."""
    return tuple(getattr(row, name) or 0 if name == "opset" else getattr(row, name) for name in LINE)


class Since(NamedTuple):
    """Since which night a cell is as it is; ``before``: the night before that, None where none is on record."""

    night: str
    before: Night | None


def since(nights: Iterable[Night], version: str, bundle: str) -> Since:
    """Of the nights of one line, those of that version and bundle."""
    own = [night for night in nights if (night.version, night.bundle) == (version, bundle)]
    first = len(own) - 1
    while first and own[first - 1].status == own[-1].status:
        first -= 1
    return Since(own[first].night, own[first - 1] if first else None)


def version_changes(nights: Iterable[Night], bundle: str) -> list[tuple[Night, Night]]:
    """Pairs of neighbouring versions of one line, each by its newest night with that bundle, that differ in status."""
    newest = {night.version: night for night in nights if night.bundle == bundle}
    versions = sorted(newest, key=_order)
    pairs = itertools.pairwise(versions)
    return [(newest[old], newest[new]) for old, new in pairs if newest[old].status != newest[new].status]


def _order(version: str) -> tuple[int, Version | str]:
    try:
        return 1, Version(version)
    except InvalidVersion:
        return 0, version


@dataclass
class Sight:
    """When a column was last seen. ``missing``: others ran in the newest night and it did not; ``stale``: it is too old, or
    from the future; ``replaced``: what took its place on that box, which is why its absence is no alarm."""

    column: Column
    first: str
    last: str
    time: str
    nights: int
    missing: bool = False
    stale: bool = False
    replaced: str = ""

    @property
    def silent(self) -> bool:
        return (self.missing or self.stale) and not self.replaced


def sights(frame: pandas.DataFrame, now: datetime, stale_days: float) -> list[Sight]:
    """Every column on record, in the matrix's order. ``now``: UTC."""
    cells = frame[frame["cell"] != ""]
    seen = cells.groupby(COLUMN).agg(
        first=("night", "min"), last=("night", "max"), time=("time", "max"), nights=("night", "nunique")
    )
    found = [Sight(Column(*key), *rest) for key, *rest in seen.itertuples(name=None)]
    newest = max((sight.last for sight in found), default="")
    for sight in found:
        sight.missing = sight.last < newest
        sight.stale = not timedelta(days=-1) <= now - moment(sight.time) <= timedelta(days=stale_days)
        sight.replaced = _successor(sight, found)
    return found


def _successor(sight: Sight, found: Iterable[Sight]) -> str:
    """The version or bundle that came to the same box after the column's last night; empty when there is none."""

    def place(one: Sight) -> tuple[str, ...]:
        return tuple(value for name, value in one.column._asdict().items() if name not in ("version", "bundle"))

    later = [one for one in found if place(one) == place(sight) and one.first > sight.last]
    if not later:
        return ""
    column = max(later, key=lambda one: one.time).column
    return column.version if column.version != sight.column.version else column.bundle


def moment(time: str) -> datetime:
    """A row's time, in UTC."""
    return datetime.strptime(time, FORM).replace(tzinfo=timezone.utc)


def strip(nights: Iterable[Night], every: list[str]) -> Mapping[str, list[Night | None]]:
    """Version (with its bundle where there are several) to that line's answer on each of the nights ``every``."""
    nights = list(nights)
    several = len({night.bundle for night in nights}) > 1
    shown: dict[str, dict[str, Night]] = {}
    for night in sorted(nights, key=lambda one: (_order(one.version), one.bundle), reverse=True):
        shown.setdefault(f"{night.version} {night.bundle if several else ''}".strip(), {})[night.night] = night
    return {name: [found.get(night) for night in every] for name, found in shown.items()}
