"""What changed between two states of the rows: newly failing and passing, drifted, flaky, missing, stale, expectations.

A change for the worse is one that a run would not want to wake up to: a check that is more severe than it was, a cell or a
box that is silent, an expectation that no longer fits. The other changes are told and cost nobody an exit code.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from packaging.version import InvalidVersion, Version

from harness.core import verdict
from harness.core.cell import Cell, spans
from harness.core.errors import UserError
from reports import drift
from reports.store import KEY, History, Store, night_named, note, place

WINDOW = 30
"""Earlier nights that drift and flakiness are judged by."""
CHANGES = 3
"""A check whose status changed so often within the window is flaky, whatever it is tonight."""
LINES = 60

GROUPS = {
    "failing": "Newly failing",
    "missing": "Missing: were there, are not",
    "stale": "Stale boxes",
    "expectations": "Expectations changed",
    "flaky": "Flaky",
    "drifted": "Drifted inside the bounds",
    "passing": "Newly passing",
    "changed": "Fails less severely",
    "columns": "New columns",
    "cells": "New cells in known columns",
}
"""Kinds of change, the worst first, as JSON and Markdown name them."""

COLUMNS = (
    *KEY, "backend", "version", "device", "exporter", "layout", "precision", "opset", "status", "seen", "reason", "step",
    "kind", "message", "metric", "value", "bound", "compared", "command", "night",
)  # fmt: skip
COLUMN = ("backend", "version", "device", "exporter", "layout", "precision", "box")
LOW_IS_WORSE = "BLEU"
"""The one metric of a bound that a check stays above; its loss fails at once, so it has no drift."""


@dataclass(frozen=True)
class Change:
    """One thing that changed. ``cell`` is a box's or a column's name where the change is of one; ``worse`` counts."""

    group: str
    cell: str
    box: str
    said: str
    worse: bool = False
    checks: tuple[str, ...] = ()
    since: str = ""
    command: str = ""


@dataclass
class Report:
    """``changes`` in the order of GROUPS; ``facts`` are lines about what was compared with what."""

    old: str
    new: str
    cells: int
    boxes: int
    changes: list[Change] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        return any(change.worse for change in self.changes)


class Side(NamedTuple):
    """One side of the comparison. ``night`` is None for the newest row of every cell."""

    store: Store
    night: str | None
    text: str

    @property
    def last(self) -> str:
        return self.night or self.store.nights[-1]

    def rows(self) -> pd.DataFrame:
        """Raises UserError when there is no row of a cell."""
        found = self.store.newest(COLUMNS, None if self.night is None else [self.night])
        if not len(found):
            raise UserError(f"{self.text}: no cell has a row; nothing can be compared")
        for name in found.columns:
            if isinstance(found[name].dtype, pd.CategoricalDtype):
                found[name] = found[name].astype(str)
        return found


def sides(old: str, new: str, say: Callable[[str], None] = note) -> tuple[Side, Side]:
    """Both sides from the words of a command line; a folder named twice is read once. Raises UserError."""
    stores: dict[Path, Store] = {}
    made = []
    for text in (old, new):
        folder, word = place(text)
        key = folder.resolve()
        if key not in stores:
            stores[key] = Store([folder], detail=False, say=say)
        night = word and night_named(stores[key], word)
        made.append(Side(stores[key], night, f"{folder}@{night}" if night else str(folder)))
    return made[0], made[1]


def compare(old: Side, new: Side, across_versions: bool = False) -> Report:
    """``across_versions``: a cell of a version that OLD lacks is compared with the nearest older one. Raises UserError."""
    before, after = old.rows(), new.rows()
    report = Report(old.text, new.text, after[list(KEY[:3])].drop_duplicates().shape[0], after["box"].nunique())
    before = _same_bundle(before, after, report)
    if across_versions:
        before = _nearest_versions(before, after, report)
    past = _past(old, new)
    pairs = before.merge(after, on=list(KEY), how="outer", suffixes=("_old", ""), indicator="where")
    both = pairs[pairs["where"] == "both"]
    last_seen = _last_nights(before, after, past)
    found = [
        *_verdicts(both, past),
        *_missing(before, pairs[pairs["where"] == "left_only"], after),
        *_stale(before, set(after["box"]), new.last, last_seen),
        *_flaky(after, past),
        *_new(before, pairs[pairs["where"] == "right_only"]),
        *_drifted(both, past, report),
    ]
    rank = list(GROUPS)
    report.changes = sorted(found, key=lambda one: (rank.index(one.group), not one.worse))
    return report


def _past(old: Side, new: Side) -> History:
    """The earlier nights of NEW's folder; where it has none, those of OLD's."""
    nights = [night for night in new.store.nights if night < new.last][-WINDOW:]
    if nights:
        return new.store.history(nights)
    return old.store.history([night for night in old.store.nights if night <= old.last][-WINDOW:])


def _same_bundle(before: pd.DataFrame, after: pd.DataFrame, report: Report) -> pd.DataFrame:
    """A bundle recorded again under its name is compared with the one before it, and said."""
    before = before.copy()

    def digests(rows: pd.DataFrame) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for box, bundle in rows[["box", "bundle"]].drop_duplicates().itertuples(index=False):
            found.setdefault((box, bundle.partition("@")[0]), set()).add(bundle)
        return found

    now = digests(after)
    for (box, name), was in digests(before).items():
        its = now.get((box, name), set())
        if len(was) == len(its) == 1 and was != its:
            (old,), (new,) = was, its
            before.loc[(before["box"] == box) & (before["bundle"] == old), "bundle"] = new
            report.facts.append(f"{box} replays another recording of the bundle: {old} -> {new}")
    return before


def _nearest_versions(before: pd.DataFrame, after: pd.DataFrame, report: Report) -> pd.DataFrame:
    """OLD's rows, those of the nearest older version renamed to the cell that NEW has instead."""
    like = ["box", "bundle", "backend", "device", "exporter", "layout", "precision", "opset"]
    cells = [
        frame.drop_duplicates(list(KEY[:3]))[[*like, "version", "cell"]].astype({"opset": "Int64"})
        for frame in (before, after)
    ]
    known = set(map(tuple, cells[0][list(KEY[:3])].to_numpy()))
    candidates = cells[1][[tuple(key) not in known for key in cells[1][list(KEY[:3])].to_numpy()]]
    pairs = candidates.merge(cells[0], on=like, suffixes=("", "_old"))
    pairs = pairs[[_older(old, new) for old, new in zip(pairs["version_old"], pairs["version"], strict=True)]]
    if not len(pairs):
        return before
    pairs["order"] = [Version(version) for version in pairs["version_old"]]
    nearest = pairs.sort_values("order").drop_duplicates(list(KEY[:3]), keep="last")
    for (backend, was, its), count in Counter(
        zip(nearest["backend"], nearest["version_old"], nearest["version"], strict=True)
    ).items():
        report.facts.append(f"{count} cells of {backend}@{its} are compared with {backend}@{was}")
    renamed = before.merge(
        nearest[["box", "bundle", "cell_old", "cell"]].rename(columns={"cell_old": "cell", "cell": "now"}),
        on=["box", "bundle", "cell"],
    )
    replaced = set(map(tuple, renamed[list(KEY[:3])].to_numpy()))
    there = set(map(tuple, after[list(KEY[:3])].to_numpy()))
    kept = before[[tuple(key) not in replaced - there for key in before[list(KEY[:3])].to_numpy()]]
    return pd.concat([kept, renamed.assign(cell=renamed["now"]).drop(columns="now")], ignore_index=True)


def _older(old: str, new: str) -> bool:
    try:
        return Version(old) < Version(new)
    except InvalidVersion:
        return False


def _last_nights(before: pd.DataFrame, after: pd.DataFrame, past: History) -> dict[str, str]:
    """Of each box the last night on which it said anything."""
    last = dict(pd.concat([before, after]).groupby("box")["night"].max())
    boxes = past.keys["box"].astype(str).to_numpy()
    for box in np.unique(boxes):
        seen = np.flatnonzero((past.status[boxes == box] >= 0).any(axis=0))
        if len(seen):
            last[box] = max(last.get(box, ""), past.nights[seen[-1]])
    return last


def _verdicts(both: pd.DataFrame, past: History) -> Iterable[Change]:
    """Checks whose status, or whose expectation, is another than it was."""
    differ = (both["seen"] != both["seen_old"]) | (both["status"] != both["status_old"])
    differ |= both["reason"] != both["reason_old"]
    began = _since(past)
    passed = both["seen"] == "PASS"
    nothing = passed & (both["compared"] <= 0) & (differ | (both["compared_old"] > 0))
    over = passed & (both["value"] > both["bound"]).fillna(False)
    for row in both[nothing | over].itertuples():
        said = f"PASS with the value {row.value:.3g} over its bound {row.bound:.3g}"
        if row.compared <= 0:
            said = f"PASS over nothing, {row.compared_old:,} elements were compared"
        yield Change("failing", row.cell, row.box, said, True, (row.check,), command=row.command)
    differ &= ~(nothing | over)
    for row in both[differ].itertuples():
        group, worse = _kind(row)
        said = f"{_called(row.status_old, row.kind_old)} → {_called(row.status, row.kind)}"
        if row.status in ("XFAIL", "XPASS") or group == "expectations":
            said += f" ({row.reason or 'was expected: ' + row.reason_old})"
        if group == "failing":
            said += f", first at step {row.step}" if pd.notna(row.step) else f": {row.message}" if row.message else ""
        since = began((row.box, row.bundle, row.cell, row.check), row.seen, row.night) if group == "failing" else ""
        yield Change(group, row.cell, row.box, said, worse, (row.check,), since, row.command)


def _called(status: str, kind: str) -> str:
    """A status, and of what was not run how far it came."""
    return f"{status} ({kind})" if status == "ABSENT" and kind else status


def _kind(row: Any) -> tuple[str, bool]:
    """Group of a changed check, and whether the change is for the worse."""
    rank, was = verdict.SEVERITY.index(row.seen), verdict.SEVERITY.index(row.seen_old)
    fails = verdict.STATUSES[row.status].outcome == "fail"
    failed = verdict.STATUSES[row.status_old].outcome == "fail"
    if row.status == "XPASS":
        return "expectations", row.status_old != "XPASS"
    if rank < was:
        return "failing", True
    if rank > was:
        return ("passing" if row.seen == "PASS" else "changed"), fails and not failed
    return "expectations", fails and not failed


def _since(past: History) -> Callable[[tuple[str, ...], str, str], str]:
    """A function of (key, status, night): the first night of the unbroken run of nights with that status."""
    place = {key: number for number, key in enumerate(zip(*(past.keys[name] for name in KEY), strict=True))}

    def since(key: tuple[str, ...], seen: str, night: str) -> str:
        first = night
        if key in place:
            for status, earlier in zip(past.status[place[key]][::-1], past.nights[::-1], strict=True):
                if earlier >= night or status < 0:
                    continue
                if verdict.SEVERITY[status] != seen:
                    break
                first = earlier
        return first

    return since


def _missing(before: pd.DataFrame, gone: pd.DataFrame, after: pd.DataFrame) -> Iterable[Change]:
    boxes = set(after["box"])
    there = set(zip(after["box"], after["bundle"], after["cell"], strict=True))
    for key, rows in gone[gone["box"].isin(boxes)].groupby(list(KEY[:3]), sort=False):
        box, _, cell = key
        checks = tuple(rows["check"])
        said = f"{len(checks)} checks of the cell are" if key in there else "the cell is"
        said = f"{said} not there; last {rows['night_old'].max()}"
        yield Change(
            "missing", cell, box, said, True, checks if key in there else (), command=rows["command_old"].iloc[0]
        )


def _stale(before: pd.DataFrame, here: set[str], tonight: str, last: dict[str, str]) -> Iterable[Change]:
    """Boxes that say nothing in NEW, be it of the same night."""
    cells = before.groupby("box")["cell"].nunique()
    for box, night in sorted(last.items()):
        if night < tonight or box not in here:
            yield Change("stale", box, box, f"silent since {night} ({cells.get(box, 0)} cells)", True)


def _flaky(after: pd.DataFrame, past: History) -> Iterable[Change]:
    for row in after[after["seen"] == "FLAKY"].itertuples():
        yield Change("flaky", row.cell, row.box, row.message, checks=(row.check,), command=row.command)
    now = after.set_index(list(KEY))
    known = past.status >= 0  # a night without a row is skipped, it is no change
    for number in np.flatnonzero((np.diff(past.status, axis=1) != 0).sum(axis=1) >= CHANGES - 1):
        key = tuple(past.keys.iloc[number])
        if key not in now.index or now.at[key, "seen"] == "FLAKY":
            continue
        nights = [*past.status[number][known[number]], verdict.SEVERITY.index(now.at[key, "seen"])]
        changes = int(np.count_nonzero(np.diff(nights)))
        if changes >= CHANGES:
            counts = Counter(verdict.SEVERITY[status] for status in nights)
            words = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            yield Change("flaky", key[2], key[0], f"changed {changes} times in {len(nights)} nights: {words}",
                         checks=(key[3],), command=now.at[key, "command"])  # fmt: skip


def _new(before: pd.DataFrame, fresh: pd.DataFrame) -> Iterable[Change]:
    """Columns that OLD lacks, one line each; cells that it lacks of columns it has."""
    known = set(map(tuple, before[list(COLUMN)].to_numpy()))
    cells_before = set(zip(before["box"], before["bundle"], before["cell"], strict=True))
    for column, rows in fresh.groupby(list(COLUMN), sort=True):
        worst = {key: _worst(its) for key, its in rows.groupby(list(KEY[:3]))}
        new = {key: status for key, status in worst.items() if key not in cells_before}
        if not new:
            continue
        words = ", ".join(f"{count} {status}" for status, count in Counter(new.values()).most_common())
        name = "{}@{}/{}/{}/{}/{}".format(*column)
        if column in known:
            opsets = spans(int(opset) for opset in rows["opset"].dropna().unique())
            yield Change("cells", f"{name}/op{opsets}", column[-1], f"{len(new)} cells: {words}")
        else:
            yield Change("columns", name, column[-1], f"{len(new)} cells: {words}")


def _worst(rows: pd.DataFrame) -> str:
    """A cell's status from its rows, as it is told."""
    status = verdict.worst(rows["seen"])
    return _called(status, rows["kind"][rows["seen"] == status].iloc[0])


def _drifted(both: pd.DataFrame, past: History, report: Report) -> Iterable[Change]:
    passing = both[(both["seen"] == "PASS") & (both["seen_old"] == "PASS") & (both["metric"] != LOW_IS_WORSE)]
    rows, facts = drift.judged(passing, past)
    report.facts += facts
    for row in rows.itertuples():
        yield Change("drifted", row.cell, row.box, row.said, checks=(row.check,), command=row.command)


def to_json(report: Report) -> str:
    counts = Counter(change.group for change in report.changes)
    about = {
        "old": report.old, "new": report.new, "cells": report.cells, "boxes": report.boxes, "worse": report.worse,
        "counts": {group: counts[group] for group in GROUPS}, "facts": report.facts,
        "changes": [asdict(change) for change in report.changes],
    }  # fmt: skip
    return json.dumps(about, ensure_ascii=False, indent=1) + "\n"


def markdown(report: Report) -> str:
    """At most LINES lines, for a chat or a pull request: what does not fit is counted."""
    grouped = {
        group: _lines(change for change in report.changes if change.group == group)
        for group in GROUPS
    }  # fmt: skip
    grouped = {group: lines for group, lines in grouped.items() if lines}
    counts = Counter(change.group for change in report.changes)
    word = "❌ worse" if report.worse else "✅ nothing worse"
    page = [
        f"## {word}: {escaped(report.old)} → {escaped(report.new)}",
        "",
        ", ".join(f"{GROUPS[group].split(':')[0].lower()} {counts[group]}" for group in grouped) or "nothing changed",
        "",
        *(
            f"- {escaped(fact)}"
            for fact in [f"{report.cells} cells on {report.boxes} boxes compared", *report.facts][:6]
        ),
    ]
    room = _allot([len(lines) for lines in grouped.values()], LINES - len(page) - 3 * len(grouped))
    for (group, lines), count in zip(grouped.items(), room, strict=True):
        page += ["", f"### {GROUPS[group]} ({counts[group]})", *lines[:count]]
        if len(lines) > count:
            page.append(f"- and {len(lines) - count} more")
    return "\n".join(page) + "\n"


def _allot(sizes: list[int], room: int) -> list[int]:
    """Lines of each group, the first groups served first once each has two."""
    given = [min(size, 2) for size in sizes]
    for number, size in enumerate(sizes):
        given[number] += min(size - given[number], max(0, room - sum(given)))
    return given


def _lines(changes: Iterable[Change]) -> list[str]:
    """A line for all checks and opsets to which the same happened."""
    merged: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    commands: dict[tuple[Any, ...], str] = {}
    by_cell: dict[tuple[Any, ...], list[str]] = {}
    for change in changes:
        what = (change.cell, change.box, change.said, change.since)
        by_cell.setdefault(what, []).extend(change.checks)
        commands.setdefault(what, change.command)
    for (cell, box, said, since), checks in by_cell.items():
        try:
            parsed = Cell.parse(cell)
            head, opset = cell.rpartition("/")[0], str(parsed.opset)
        except ValueError:
            head, opset = cell, ""
        merged.setdefault((head, box, said, since, tuple(checks)), {}).setdefault(opset, []).append(cell)
    lines = []
    for (head, box, said, since, checks), opsets in merged.items():
        name = f"{head}/op{spans(map(int, opsets))}" if "" not in opsets else head
        where = f" on {escaped(box)}" if box != head else ""
        what = f" {', '.join(checks)}:" if checks else ":"
        began = f", since {since}" if since else ""
        first = next(iter(opsets.values()))[0]
        command = commands[(first, box, said, since)]
        shown = f" · `{_code(command)}`" if command else ""
        lines.append(f"- `{_code(name)}`{where}{what} {escaped(said)}{began}{shown}")
    return lines


def escaped(text: str) -> str:
    """A runtime's words, on one line and with nothing in them that Markdown would act on."""
    return re.sub(r"([\\`*<|\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    return text.replace("`", "'")
