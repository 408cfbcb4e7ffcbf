"""What each night said of each cell: since when it is as it is, what changed with a version, who has gone silent.

A night is the UTC date on which a run began, so a run across midnight is one. A *line* is a cell at any runtime version
and bundle: what a release manager means by "it used to work".
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import numpy as np
from packaging.version import InvalidVersion, Version

from harness.core import verdict
from harness.core.rows import Row, seen_status
from reports.pieces import KEY, STAMP
from reports.store import Store


class SiteColumn(NamedTuple):
    """What one line of the site's table is of: cells that differ in their opset only."""

    backend: str
    version: str
    device: str
    exporter: str
    precision: str
    layout: str
    box: str
    bundle: str


_WORDS = list(verdict.WORDS)
_LEAST_FAILURE = max(
    number for number, status in enumerate(verdict.SEVERITY) if verdict.STATUSES[status].outcome == "fail"
)


def word_of(status: str, words: Iterable[str], called: str) -> str:
    """What a cell is called (`verdict.called`); but XFAIL when every failure was expected, XPASS when only such a pass is
    wrong. ``words``: its rows' own statuses."""
    own = set(words)
    if any(verdict.STATUSES[word].outcome == "fail" for word in own - {"XPASS"}):
        return status
    return next((word for word in ("XPASS", "XFAIL") if word in own), called)


class Night(NamedTuple):
    """A cell on one night: its worst status as seen, and what it is called."""

    night: str
    version: str
    bundle: str
    status: str
    word: str

    @property
    def symbol(self) -> str:
        return verdict.WORDS[self.status if self.word in verdict.STATUSES else self.word].symbol


class Since(NamedTuple):
    """Since which night a cell is as it is; ``before``: the night before that, None where none is on record."""

    night: str
    before: Night | None


class Track(NamedTuple):
    """One cell over the nights that the store knows. ``status``: [nights] index in ``verdict.SEVERITY`` of its worst row,
    -1 where it was not run; ``word``: [nights] index in ``verdict.WORDS`` of what it is called."""

    version: str
    bundle: str
    nights: Sequence[str]
    status: np.ndarray
    word: np.ndarray

    @property
    def ran(self) -> np.ndarray:
        """Numbers of the nights on which it ran, the oldest first."""
        return np.flatnonzero(self.status >= 0)

    def at(self, number: int) -> Night:
        status, word = verdict.SEVERITY[self.status[number]], _WORDS[self.word[number]]
        return Night(self.nights[number], self.version, self.bundle, status, word)

    @property
    def since(self) -> Since:
        ran = self.ran
        changes = np.flatnonzero(np.diff(self.status[ran]))
        first = changes[-1] + 1 if changes.size else 0
        return Since(self.nights[ran[first]], self.at(ran[first - 1]) if first else None)


class Past:
    """Every cell over every night. ``rows``: the newest of each check of each cell, and of absent backends."""

    def __init__(self, store: Store, rows: Sequence[Row], answers: Sequence[Row] = ()) -> None:
        """``rows``: the store's newest; ``answers``: rows of checks that a box without pytest left out; such an answer
        counts for the night of its run."""
        self.nights, self.rows = store.nights, [*rows, *answers]
        keys, status, expected = _with_answers(store, answers)
        order = np.lexsort(keys[:3])
        keys, status, expected = [key[order] for key in keys], status[order], expected[order]
        new = np.append(True, np.any([key[1:] != key[:-1] for key in keys[:3]], axis=0))
        starts = np.flatnonzero(new[: len(order)])
        of_bundle = np.isin(keys[3], verdict.CHECKS)
        self._index = {key: at for at, key in enumerate(zip(*(key[starts] for key in keys[:3]), strict=True))}
        built, simulated = (np.zeros((len(starts), 1), np.bool_) for _ in range(2))
        self._lines: dict[tuple[object, ...], dict[tuple[str, ...], Row]] = {}
        for row in self.rows:
            if row.cell and not row.fake:
                key = (row.box, row.bundle, row.cell)
                built[self._index[key]] |= row.status == "ABSENT" and row.kind == "built"
                simulated[self._index[key]] |= row.simulated
                self._lines.setdefault(_line(row), {})[key] = row
        self._status, self._word = _cells(status, expected, of_bundle, starts, (built, simulated))

    def track(self, row: Row) -> Track:
        """Of a row's cell."""
        at = self._index[(row.box, row.bundle, row.cell)]
        return Track(row.version, row.bundle, self.nights, self._status[at], self._word[at])

    def line(self, row: Row) -> list[Track]:
        """Of every version and bundle of a row's cell."""
        return [self.track(kin) for kin in self._lines[_line(row)].values()]


def _with_answers(store: Store, answers: Sequence[Row]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The columns KEY, [series, nights] status and [series, nights] expected of the store's history and of the answers; see
    `History`."""
    history = store.history()
    keys = [history.keys[name].astype(str).to_numpy() for name in KEY]
    if not answers:
        return keys, history.status, history.expected
    status = np.full((len(answers), len(store.nights)), -1, np.int8)
    for number, row in enumerate(answers):
        status[number, store.nights.index(store.night_of[row.run])] = verdict.SEVERITY.index(seen_status(row))
    keys = [np.append(key, [getattr(row, name) for row in answers]) for key, name in zip(keys, KEY, strict=True)]
    expected = np.zeros_like(status, np.bool_)
    return keys, np.vstack([history.status, status]), np.vstack([history.expected, expected])


def _line(row: Row) -> tuple[object, ...]:
    return row.backend, row.device, row.exporter, row.layout, row.precision, row.opset, row.box


def _cells(
    status: np.ndarray, expected: np.ndarray, of_bundle: np.ndarray, starts: np.ndarray, short: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """[cells, nights] worst status and word, of the [series, nights] between ``starts``; see Track. ``short``: [cells, 1]
    whether a cell was built only, and whether it is a simulator's."""

    def any_of(mask: np.ndarray) -> np.ndarray:
        return np.logical_or.reduceat(mask, starts, axis=0)

    ran, passed, nothing = status >= 0, verdict.SEVERITY.index("PASS"), len(verdict.SEVERITY)
    worst = np.minimum.reduceat(np.where(ran, status, np.int8(nothing)), starts, axis=0)
    few = np.add.reduceat(ran.astype(np.int8), starts, axis=0) < len(verdict.CHECKS)
    unexpected = any_of(ran & (status <= _LEAST_FAILURE) & ~expected)
    xpass, xfail = (any_of(ran & expected & mask) for mask in (status == passed, status != passed))
    partial = (worst == passed) & few & any_of(ran & of_bundle[:, None])
    # The few combinations that there are, each named once.
    codes = worst.astype(np.int16)
    for fact in (unexpected, xpass, xfail, partial, *short):
        codes = codes * 2 + fact
    names = np.full(64 * (nothing + 1), -1, np.int8)
    for code in np.flatnonzero(np.bincount(codes.ravel(), minlength=len(names))[: 64 * nothing]):
        seen = verdict.SEVERITY[code // 64]
        words = [word for bit, word in ((32, seen), (16, "XPASS"), (8, "XFAIL")) if code & bit]
        called = verdict.called(seen, "built" if code & 2 else "", bool(code & 4), bool(code & 1))
        names[code] = _WORDS.index(word_of(seen, words, called))
    return np.where(worst < nothing, worst, np.int8(-1)), names[codes]


def before(line: Iterable[Track], night: str) -> Night | None:
    """The last of a line's nights before that one; None where none is on record."""
    last = [track.at(ran[-1]) for track in line if (ran := [at for at in track.ran if track.nights[at] < night])]
    return max(last, default=None)


def version_changes(line: Iterable[Track], bundle: str) -> list[tuple[Night, Night]]:
    """Pairs of neighbouring versions of one line, each by its newest night with that bundle, that differ in status."""
    newest = [track.at(track.ran[-1]) for track in line if track.bundle == bundle]
    newest.sort(key=lambda night: _order(night.version))
    return [(old, new) for old, new in itertools.pairwise(newest) if old.status != new.status]


def _order(version: str) -> tuple[int, Version | str]:
    try:
        return 1, Version(version)
    except InvalidVersion:
        return 0, version


def strip(line: Sequence[Track], count: int) -> Mapping[str, list[Night | None]]:
    """Version (with its bundle where there are several) to that line's answer on each of the last ``count`` nights, the
    newest first; versions without an answer on any of them are left out."""
    several = len({track.bundle for track in line}) > 1
    shown = {}
    for track in sorted(line, key=lambda track: (_order(track.version), track.bundle), reverse=True):
        newest = range(len(track.nights))[: -count - 1 : -1]
        answers = [track.at(at) if track.status[at] >= 0 else None for at in newest]
        if any(answers):
            shown[f"{track.version} {track.bundle if several else ''}".strip()] = answers
    return shown


@dataclass
class Sight:
    """When a column was last seen. ``missing``: others ran in the newest night and it did not; ``stale``: it is too old, or
    from the future; ``replaced``: what took its place on that box, which is why its absence is no alarm."""

    column: SiteColumn
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


def sights(past: Past, columns: Mapping[SiteColumn, Sequence[Row]], now: datetime, stale_days: float) -> list[Sight]:
    """When each column was seen, by the newest rows of its cells. ``now``: UTC."""
    seen = []
    for column, rows in columns.items():
        time = max(row.time for row in rows)
        cells = {row.cell: row for row in rows}.values()
        ran = np.flatnonzero(np.any([past.track(row).status >= 0 for row in cells], axis=0))
        sight = Sight(column, past.nights[ran[0]], past.nights[ran[-1]], time, len(ran))
        sight.missing = sight.last < past.nights[-1]
        sight.stale = not timedelta(days=-1) <= now - moment(time) <= timedelta(days=stale_days)
        seen.append(sight)
    for sight in seen:
        sight.replaced = _successor(sight, seen)
    return seen


def _successor(sight: Sight, sights: Iterable[Sight]) -> str:
    """The version or bundle that came to the same box after the column's last night; empty when there is none."""
    lasting = sight.column._replace(version="", bundle="")
    later = [
        other
        for other in sights
        if other.column._replace(version="", bundle="") == lasting and other.first > sight.last
    ]
    if not later:
        return ""
    column = max(later, key=lambda other: other.time).column
    return column.version if column.version != sight.column.version else column.bundle


def moment(time: str) -> datetime:
    """A row's time, in UTC."""
    return datetime.strptime(time, STAMP).replace(tzinfo=timezone.utc)
