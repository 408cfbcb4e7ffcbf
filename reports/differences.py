"""Finds the changes of each kind between two frames of rows, with the earlier nights at hand."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from harness.core import verdict
from harness.core.cell import spans
from reports import drift
from reports.changes import Change, Report
from reports.pieces import KEY
from reports.series import History

CHANGES = 3
"""A check whose status changed so often within the window is flaky, whatever it is tonight."""
COLUMN = ("backend", "version", "device", "exporter", "layout", "precision", "box")
LOW_IS_WORSE = "BLEU"
"""The one metric of a bound that a check stays above; its loss fails at once, so it has no drift."""


def verdicts(both: pd.DataFrame, past: History) -> Iterable[Change]:
    """Checks whose status, or whose expectation, is another than it was."""
    differ = (both["seen"] != both["seen_old"]) | (both["status"] != both["status_old"])
    differ |= both["reason"] != both["reason_old"]
    began = _since(past)
    passed = both["seen"] == "PASS"
    nothing = passed & (both["compared"] <= 0) & (differ | (both["compared_old"] > 0))
    over = passed & (both["value"] > both["bound"]).fillna(False)
    for row in both[nothing | over].itertuples():
        message = f"PASS with the value {row.value:.3g} over its bound {row.bound:.3g}"
        if row.compared <= 0:
            message = f"PASS over nothing, {row.compared_old:,} elements were compared"
        yield Change("failing", row.cell, row.box, message, True, (row.check,), command=row.command)
    differ &= ~(nothing | over)
    for row in both[differ].itertuples():
        group, worse = _kind(row)
        message = f"{_called(row.status_old, row.kind_old)} → {_called(row.status, row.kind)}"
        if row.status in ("XFAIL", "XPASS") or group == "expectations":
            message += f" ({row.reason or 'was expected: ' + row.reason_old})"
        if group == "failing":
            message += (
                f", first at step {row.step}" if pd.notna(row.step) else f": {row.message}" if row.message else ""
            )
        since = began((row.box, row.bundle, row.cell, row.check), row.seen, row.night) if group == "failing" else ""
        yield Change(group, row.cell, row.box, message, worse, (row.check,), since, row.command)


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
    number_of = {key: number for number, key in enumerate(zip(*(past.keys[name] for name in KEY), strict=True))}

    def since(key: tuple[str, ...], seen: str, night: str) -> str:
        first = night
        if key in number_of:
            for status, earlier in zip(past.status[number_of[key]][::-1], past.nights[::-1], strict=True):
                if earlier >= night or status < 0:
                    continue
                if verdict.SEVERITY[status] != seen:
                    break
                first = earlier
        return first

    return since


def missing(gone: pd.DataFrame, after: pd.DataFrame) -> Iterable[Change]:
    boxes = set(after["box"])
    there = set(zip(after["box"], after["bundle"], after["cell"], strict=True))
    for key, rows in gone[gone["box"].isin(boxes)].groupby(list(KEY[:3]), sort=False):
        box, _, cell = key
        checks = tuple(rows["check"])
        message = f"{len(checks)} checks of the cell are" if key in there else "the cell is"
        message = f"{message} not there; last {rows['night_old'].max()}"
        yield Change(
            "missing", cell, box, message, True, checks if key in there else (), command=rows["command_old"].iloc[0]
        )


def stale(before: pd.DataFrame, here: set[str], tonight: str, last: dict[str, str]) -> Iterable[Change]:
    """Boxes that say nothing in NEW, be it of the same night."""
    cells = before.groupby("box")["cell"].nunique()
    for box, night in sorted(last.items()):
        if night < tonight or box not in here:
            yield Change("stale", box, box, f"silent since {night} ({cells.get(box, 0)} cells)", True)


def flaky(after: pd.DataFrame, past: History) -> Iterable[Change]:
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
            message = f"changed {changes} times in {len(nights)} nights: {words}"
            yield Change("flaky", key[2], key[0], message, checks=(key[3],), command=now.at[key, "command"])


def new(before: pd.DataFrame, fresh: pd.DataFrame) -> Iterable[Change]:
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


def drifted(both: pd.DataFrame, past: History, report: Report) -> Iterable[Change]:
    passing = both[(both["seen"] == "PASS") & (both["seen_old"] == "PASS") & (both["metric"] != LOW_IS_WORSE)]
    rows, facts = drift.judged(passing, past)
    report.facts += facts
    for row in rows.itertuples():
        yield Change("drifted", row.cell, row.box, row.shift, checks=(row.check,), command=row.command)
