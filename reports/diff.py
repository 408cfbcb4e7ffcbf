"""What changed between two states of the rows: newly failing and passing, drifted, flaky, missing, stale, expectations.

A change for the worse makes `conform diff` exit 1: a check that fails more severely, a cell or a box without rows, an
expectation that no longer fits. The other changes are listed and have no part in the exit code.
"""

from collections import Counter

import numpy as np
import pandas as pd
from packaging.version import InvalidVersion, Version

from harness.core.errors import UserError
from reports import differences
from reports.changes import GROUPS, Report
from reports.pieces import KEY
from reports.selection import Selection
from reports.series import History

WINDOW = 30
"""Earlier nights that drift and flakiness are judged by."""
COLUMNS = (
    *KEY,
    *("backend", "version", "device", "exporter", "layout", "precision", "opset", "night"),
    *("status", "seen", "reason", "step", "kind", "message", "metric", "value", "bound", "compared", "command"),
)


def compare(old: Selection, new: Selection, across_versions: bool = False) -> Report:
    """``across_versions``: a cell of a version that OLD lacks is compared with the nearest older one. Raises UserError."""
    before, after = _rows(old), _rows(new)
    report = Report(old.text, new.text, after[list(KEY[:3])].drop_duplicates().shape[0], after["box"].nunique())
    before = _same_bundle(before, after, report)
    if across_versions:
        before = _nearest_versions(before, after, report)
    past = _past(old, new)
    pairs = before.merge(after, on=list(KEY), how="outer", suffixes=("_old", ""), indicator="where")
    both = pairs[pairs["where"] == "both"]
    last_seen = _last_nights(before, after, past)
    changes = [
        *differences.verdicts(both, past),
        *differences.missing(pairs[pairs["where"] == "left_only"], after),
        *differences.stale(before, set(after["box"]), new.last, last_seen),
        *differences.flaky(after, past),
        *differences.new(before, pairs[pairs["where"] == "right_only"]),
        *differences.drifted(both, past, report),
    ]
    rank = list(GROUPS)
    report.changes = sorted(changes, key=lambda change: (rank.index(change.group), not change.worse))
    return report


def _rows(selection: Selection) -> pd.DataFrame:
    """The newest rows, words as strings. Raises UserError when there is no row of a cell."""
    rows = selection.store.newest(COLUMNS, selection.nights)
    if not len(rows):
        raise UserError(f"{selection.text}: no cell has a row; nothing can be compared")
    for name in rows.columns:
        if isinstance(rows[name].dtype, pd.CategoricalDtype):
            rows[name] = rows[name].astype(str)
    return rows


def _past(old: Selection, new: Selection) -> History:
    """The earlier nights of NEW's folder; where it has none, those of OLD's."""
    nights = [night for night in new.store.nights if night < new.last][-WINDOW:]
    if nights:
        return new.store.history(nights)
    return old.store.history([night for night in old.store.nights if night <= old.last][-WINDOW:])


def _same_bundle(before: pd.DataFrame, after: pd.DataFrame, report: Report) -> pd.DataFrame:
    """A bundle recorded again under its name is compared with the recording before it, and a fact says so."""
    before = before.copy()

    def digests(rows: pd.DataFrame) -> dict[tuple[str, str], set[str]]:
        recordings: dict[tuple[str, str], set[str]] = {}
        for box, bundle in rows[["box", "bundle"]].drop_duplicates().itertuples(index=False):
            recordings.setdefault((box, bundle.partition("@")[0]), set()).add(bundle)
        return recordings

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
    """Of each box the last night of which it has rows."""
    last = dict(pd.concat([before, after]).groupby("box")["night"].max())
    boxes = past.keys["box"].astype(str).to_numpy()
    for box in np.unique(boxes):
        seen = np.flatnonzero((past.status[boxes == box] >= 0).any(axis=0))
        if len(seen):
            last[box] = max(last.get(box, ""), past.nights[seen[-1]])
    return last
