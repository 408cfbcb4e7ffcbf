"""Expected failures: data beside the adapter that owns them, ``backends/expectations/<name>.toml``, each with a reason.

An entry names ``checks``, ``status``, ``reason`` and ``link``, and may narrow to ``version`` (a PEP 440 specifier),
``opset`` (``12`` or ``12-17``), ``layout``, ``device`` and ``step`` (the first wrong one, or a list of the possible ones).
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from backends.contract import LAYOUTS
from harness.core import verdict
from harness.core.errors import UserError
from harness.core.rows import Row
from harness.core.selectors import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REQUIRED = {"checks", "status", "reason", "link"}
OPTIONAL = {"version", "opset", "layout", "device", "step"}


@dataclass(frozen=True)
class Expectation:
    """One expected failure. Conditions left out match everything."""

    checks: tuple[str, ...]
    status: str
    reason: str
    link: str
    version: SpecifierSet | None = None
    opset: range | None = None
    layout: str | None = None
    device: str | None = None
    steps: tuple[int, ...] = ()

    def applies(self, version: str, device: str) -> bool:
        """Whether this entry speaks of that runtime on that device at all."""
        try:
            return self.device in (None, device) and (
                self.version is None or self.version.contains(version, prereleases=True)
            )
        except InvalidVersion:
            return False

    def covers(self, row: Row) -> bool:
        """Whether this entry speaks of that row's check and cell."""
        return (
            row.check in self.checks
            and self.applies(row.version, row.device)
            and (self.opset is None or row.opset in self.opset)
            and self.layout in (None, row.layout)
        )

    def words(self) -> str:
        """The entry in a few words, for a message."""
        return f"{self.status} of {', '.join(self.checks)} ({self.layout or 'any layout'}, version {self.version or 'any'})"


def load(backend: str) -> list[Expectation]:
    """The expectations of one adapter; none when it has no file. Raises UserError."""
    place = os.path.join(ROOT, "backends", "expectations", f"{backend}.toml")
    if not os.path.exists(place):
        return []
    try:
        with open(place, "rb") as stream:
            entries = tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{place}: not TOML ({error}); mend or delete the file") from error
    if set(entries) - {"expect"}:
        raise UserError(f"{place}: unknown table {sorted(set(entries) - {'expect'})}; entries are [[expect]]")
    listed = entries.get("expect", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise UserError(f"{place}: expect is no list of tables; entries are [[expect]]")
    return [_entry(place, number, entry) for number, entry in enumerate(listed, 1)]


def _entry(place: str, number: int, entry: Any) -> Expectation:
    where = f"{place}, entry {number}"
    missing, unknown = REQUIRED - set(entry), set(entry) - REQUIRED - OPTIONAL
    if missing or unknown:
        word = (
            f"lacks {', '.join(sorted(missing))}" if missing else f"has the unknown word {', '.join(sorted(unknown))}"
        )
        raise UserError(f"{where} {word}; words are {', '.join(sorted(REQUIRED | OPTIONAL))}")
    steps = entry.get("step", [])
    steps = steps if isinstance(steps, list) else [steps]
    words = [entry[name] for name in entry if name not in ("checks", "step")]
    if (
        not isinstance(entry["checks"], list)
        or not all(isinstance(word, str) for word in (*words, *entry["checks"]))
        or not all(isinstance(step, int) for step in steps)
    ):
        raise UserError(f"{where}: checks is a list of words, step a number or a list, all else is text")
    if entry.get("layout", "split") not in LAYOUTS:
        raise UserError(f"{where}: unknown layout {entry['layout']!r}; layouts are {', '.join(LAYOUTS)}")
    bad = [check for check in entry["checks"] if check not in verdict.CHECKS]
    if bad or verdict.STATUSES.get(entry["status"], verdict.MISSING).outcome != "fail":
        raise UserError(f"{where}: checks are {', '.join(verdict.CHECKS)}; status is one that fails")
    fields = dict(entry, checks=tuple(entry["checks"]))
    fields.pop("step", None)
    fields["steps"] = tuple(steps)
    try:
        if "version" in fields:
            fields["version"] = SpecifierSet(fields["version"])
        if "opset" in fields:
            low, _, high = str(fields["opset"]).partition("-")
            fields["opset"] = range(int(low), int(high or low) + 1)
            if not fields["opset"]:
                raise ValueError(f"opset {entry['opset']!r} is an empty range")
    except (InvalidSpecifier, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
    return Expectation(**fields)


def apply(row: Row, expected: list[Expectation]) -> None:
    """Turn an expected failure into XFAIL, and one that passed into XPASS; the row keeps what was seen."""
    entry = next((entry for entry in expected if entry.covers(row)), None)
    if entry is None or row.status in ("UNSUPPORTED", "ABSENT"):
        return
    seen = {"seen": row.status, "reason": entry.reason, "link": entry.link}
    if row.status == "PASS":
        row.status, row.detail["expected"] = "XPASS", seen
        row.message = f"was expected to be {entry.status}, and passed: {entry.reason}"
    elif row.status == entry.status and (not entry.steps or row.step in entry.steps):
        row.status, row.detail["expected"] = "XFAIL", seen
