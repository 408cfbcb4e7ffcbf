"""What speaks against a cell in its rows: their verdicts, their age, how much they compared, and what did the work."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from harness.core import verdict
from harness.core.rows import Row, contradiction, seen_status
from reports.pieces import STAMP
from reports.policy import Require
from reports.ruling import Reason

WHAT = {"UNVERIFIED": "unverified", "XFAIL": "expected", "UNSUPPORTED": "refused", "ABSENT": "uncompared"}
"""A policy's word for a status that is no pass; any other is ``failed``."""
FAST_CLOCK = timedelta(hours=1)
"""What a box's clock may be ahead."""


class CellRules(NamedTuple):
    """``overruled``: see `Results`; ``max_age_hours``: 0 for any age; ``now``: UTC."""

    overruled: Mapping[tuple[str, ...], str]
    max_age_hours: float
    now: datetime

    def reasons(self, need: Require, checks: Mapping[str, Row]) -> Iterator[Reason]:
        """The reasons against one cell. ``checks``: its rows by check."""
        some = next(iter(checks.values()))
        for check in need.checks:
            row = checks.get(check)
            if row is None:
                yield no_row(check, some)
                continue
            yield from _of_status(row)
            overruled = self.overruled.get((row.box, row.bundle, row.cell, check))
            if overruled:
                yield Reason("unstable", check, overruled, row.command)
        if self.max_age_hours:
            required = [row for row in checks.values() if row.check in need.checks]
            yield from self._of_age(min(required, key=lambda row: row.time, default=some))
        compared = sum(row.compared for row in checks.values() if row.check in verdict.OF_PYTORCH)
        if compared < need.compared:
            message = f"{compared:,} elements compared, {need.compared:,} are required"
            yield Reason("compared", "", message, some.command)
        for name in ("device", "precision"):
            asked, did = getattr(need, name), getattr(some, name)
            if asked and asked != did:
                yield Reason("placement", "placement", f"{name} {asked} is required, {did} did the work", some.command)

    def _of_age(self, oldest: Row) -> Iterator[Reason]:
        age = self.now - datetime.strptime(oldest.time, STAMP).replace(tzinfo=timezone.utc)
        if age < -FAST_CLOCK:
            message = f"it is of {oldest.time}, which is in the future; set the clock of its box"
            yield Reason("stale", oldest.check, message, oldest.command)
        elif age > timedelta(hours=self.max_age_hours):
            message = f"{age / timedelta(hours=1):.0f} hours old, {self.max_age_hours:g} are allowed"
            yield Reason("stale", oldest.check, message, oldest.command)


def no_row(check: str, other: Row) -> Reason:
    """``other``: a row of the same cell, whose command runs that cell."""
    return Reason("missing", check, f"no {check} row", other.command)


def _of_status(row: Row) -> Iterator[Reason]:
    """What a row's own status says against its cell."""
    where = "" if row.step is None else f", first at step {row.step}"
    if row.status == "XFAIL":
        expected = row.detail["expected"]
        message = f"{row.check} {seen_status(row)}{where}, expected: {expected['reason']} ({expected['link']})"
    else:
        message = f"{row.check} {row.status}{where}: {row.message}".removesuffix(": ")
    if row.status != "PASS":
        yield Reason(WHAT.get(row.status, "failed"), row.check, message, row.command)
    why = contradiction(row)
    if row.compared <= 0 and row.status in ("PASS", "XFAIL"):
        yield Reason("uncompared", row.check, f"{row.check} compared nothing", row.command)
    elif why or (row.status == "PASS" and row.stage != "compare"):
        message = why or f"{row.check} claims PASS at stage {row.stage}; PASS requires stage compare"
        yield Reason("failed", row.check, message, row.command)
