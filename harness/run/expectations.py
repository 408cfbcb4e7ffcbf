"""Expected failures: data beside the adapter that owns them, ``backends/expectations/<name>.toml``, each with a reason.

An entry names ``checks``, ``status``, ``reason`` and ``link``, and may narrow to ``version`` (a PEP 440 specifier),
``opset`` (``12`` or ``12-17``), ``layout``, ``device`` and ``step`` (the first wrong one, or a list of the possible ones).
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    path = os.path.join(ROOT, "backends", "expectations", f"{backend}.toml")
    if not os.path.exists(path):
        return []
    try:
        with open(path, "rb") as stream:
            entries = tomllib.load(stream)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not TOML ({error}); correct or delete the file") from error
    if set(entries) - {"expect"}:
        raise UserError(f"{path}: unknown table {sorted(set(entries) - {'expect'})}; entries are [[expect]]")
    listed = entries.get("expect", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise UserError(f"{path}: expect is not a list of tables; entries are [[expect]]")
    return [_entry(path, number, entry) for number, entry in enumerate(listed, 1)]


def _entry(path: str, number: int, entry: Any) -> Expectation:
    where = f"{path}, entry {number}"
    _check_words(where, entry)
    steps = entry.get("step", ())
    fields = {name: value for name, value in entry.items() if name not in ("checks", "step")}
    try:
        if "version" in fields:
            fields["version"] = SpecifierSet(fields["version"])
        if "opset" in fields:
            fields["opset"] = _opsets(fields["opset"])
    except (InvalidSpecifier, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
    return Expectation(**fields, checks=tuple(entry["checks"]), steps=tuple(_listed(steps)))


def _check_words(where: str, entry: Any) -> None:
    """Raises UserError for an entry with a word or value that there is none of."""
    missing, unknown = REQUIRED - set(entry), set(entry) - REQUIRED - OPTIONAL
    if missing or unknown:
        problem = (
            f"lacks {', '.join(sorted(missing))}" if missing else f"has the unknown word {', '.join(sorted(unknown))}"
        )
        raise UserError(f"{where} {problem}; words are {', '.join(sorted(REQUIRED | OPTIONAL))}")
    texts = [entry[name] for name in entry if name not in ("checks", "step")]
    checks, steps = entry["checks"], _listed(entry.get("step", ()))
    if (
        not isinstance(checks, list)
        or not all(isinstance(text, str) for text in (*texts, *checks))
        or not all(isinstance(step, int) for step in steps)
    ):
        raise UserError(
            f"{where}: checks is a list of words, step a number or a list of numbers, everything else is text"
        )
    if entry.get("layout", "split") not in LAYOUTS:
        raise UserError(f"{where}: unknown layout {entry['layout']!r}; layouts are {', '.join(LAYOUTS)}")
    if set(checks) - set(verdict.CHECKS) or verdict.STATUSES.get(entry["status"], verdict.MISSING).outcome != "fail":
        raise UserError(f"{where}: checks are {', '.join(verdict.CHECKS)}; status is one that fails")


def _listed(steps: Any) -> Sequence[Any]:
    return steps if isinstance(steps, (list, tuple)) else [steps]


def _opsets(text: str) -> range:
    """``12`` or ``12-17``. Raises ValueError."""
    low, _, high = text.partition("-")
    opsets = range(int(low), int(high or low) + 1)
    if not opsets:
        raise ValueError(f"opset {text!r} is an empty range")
    return opsets


def apply(row: Row, expected: Sequence[Expectation]) -> Row:
    """The row, as XFAIL where its failure was expected, and XPASS where it passed all the same; it keeps what was seen."""
    entry = next((entry for entry in expected if entry.covers(row)), None)
    if entry is None or row.status in ("UNSUPPORTED", "ABSENT"):
        return row
    seen = {"seen": row.status, "reason": entry.reason, "link": entry.link}
    detail = {**row.detail, "expected": seen}
    if row.status == "PASS":
        message = f"was expected to be {entry.status}, and passed: {entry.reason}"
        return replace(row, status="XPASS", detail=detail, message=message)
    if row.status == entry.status and (not entry.steps or row.step in entry.steps):
        return replace(row, status="XFAIL", detail=detail)
    return row
