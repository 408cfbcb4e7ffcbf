"""A release policy: data in TOML that says what must be there, how good it must be, and what is let pass until when.

Patterns are matched part by part of a cell's name. ``*`` and ``?`` stand for whatever there is; a class ``[2-7]``, a list
``{split,unified}`` and a range ``{12..17}`` are promises: each of their members must be there.
"""

import itertools
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness.core import verdict
from harness.core.cell import SIMULATOR
from harness.core.errors import UserError
from harness.core.texts import METHODS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

READY = Path(__file__).with_name("policies")
WAIVABLE = (
    "missing",
    "stale",
    "unverified",
    "uncompared",
    "expected",
    "refused",
    "unstable",
    "logits",
    "flips",
    "text",
)
"""What a waiver may name. A failure that nobody expected, too few elements and a wrong placement have no waiver."""
COSTS = {
    "file_bytes": 1,
    "load_seconds": 1,
    "encoder_seconds": 1,
    "step_p50_seconds": 1,
    "step_p95_seconds": 1,
    "peak_memory_bytes": 1,
    "tokens_per_second": -1,
}
"""Figures of a cost row that may have a budget: 1 where more is worse, -1 where less is."""
MOST = 1000
"""Members of a range: more is a slip of the hand, and would take minutes to look for."""
FORM = "ort@*/cpu/torchscript/{split,unified}/fp32/op{12..17}"


@dataclass(frozen=True)
class Require:
    """Cells that must be there, and what of them. ``bundle``: pattern of the bundle that they are cells of, such as
    ``opus-mt-en-zh@*``. ``compared``: least number of elements held against PyTorch."""

    cells: tuple[str, ...]
    boxes: tuple[str, ...] = ("*",)
    checks: tuple[str, ...] = verdict.CHECKS
    bundle: str = "*"
    compared: int = 1
    device: str = ""
    precision: str = ""


@dataclass(frozen=True)
class Waiver:
    """What is let pass of which cells, why, and until which day (that day included)."""

    cells: tuple[str, ...]
    what: tuple[str, ...]
    reason: str
    expires: date
    boxes: tuple[str, ...] = ("*",)
    checks: tuple[str, ...] = ()
    bundle: str = "*"

    def covers(self, cell: str, box: str, bundle: str, what: str, check: str) -> bool:
        """``cell``, ``box`` and ``bundle`` may be the patterns of what is missing."""
        return (
            what in self.what
            and any(matches(pattern, cell) for pattern in self.cells)
            and any(fnmatchcase(box, pattern) for pattern in self.boxes)
            and fnmatchcase(bundle, self.bundle)
            and (not self.checks or check in self.checks)
        )


@dataclass(frozen=True)
class Text:
    """``loss``: BLEU that each precision may lose against the golden's hypotheses; a larger loss fails when the paired test
    of sacrebleu, of that many samples, calls it real at that confidence."""

    loss: dict[str, float]
    method: str = "bootstrap"
    samples: int = 1000
    confidence: float = 0.95


@dataclass(frozen=True)
class Policy:
    """``logits``: share of their bound that logits of a precision may use; ``flips``: share of sentences whose decode may
    leave the golden's, ties included; ``cost``: how many times as costly as on the baseline, by COSTS."""

    name: str
    require: tuple[Require, ...]
    waive: tuple[Waiver, ...] = ()
    max_age_hours: float = 0.0
    text: Text | None = None
    logits: dict[str, float] = field(default_factory=dict)
    flips: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)


def matches(pattern: str, cell: str) -> bool:
    """Whether a cell's name fits a pattern, part by part. A simulator is no device: only a pattern that says so fits it."""
    patterns, parts = pattern.split("/"), cell.split("/")
    if len(patterns) != len(parts):
        return False
    if any(part.startswith(SIMULATOR) for part in parts[1:2]) and not patterns[1].startswith(SIMULATOR):
        return False
    return all(map(fnmatchcase, parts, patterns))


def expand(pattern: str) -> list[str]:
    """Patterns without classes, lists and ranges: one for each of their members."""
    pieces = re.split(r"(\[[^\]!]+\]|\{[^{}]+\})", pattern)
    return ["".join(chosen) for chosen in itertools.product(*map(_members, pieces))]


def _members(piece: str) -> list[str]:
    if piece.startswith("["):
        signs = re.sub(
            r"(.)-(.)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), piece[1:-1]
        )
        return list(dict.fromkeys(signs))
    if not piece.startswith("{"):
        return [piece]
    span = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", piece)
    return [str(number) for number in range(int(span[1]), int(span[2]) + 1)] if span else piece[1:-1].split(",")


def find(text: str) -> Path:
    """The file that ``--policy`` names: a path, or the name of a ready policy. Raises UserError."""
    if Path(text).is_file():
        return Path(text)
    ready = sorted(path.stem for path in READY.glob("*.toml"))
    if text in ready:
        return READY / f"{text}.toml"
    listed = f"the ready ones are {', '.join(ready)}"
    raise UserError(f"{text}: no such policy{_meant(text, ready)}; give a .toml file; {listed}")


def load(path: Path) -> Policy:
    """Raises UserError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not a policy in TOML ({error}); mend the file") from error
    read = _Reader(path)
    read.words(values, "", {"require", "waive", "max_age_hours", "text", "logits", "flips", "cost"}, {"require"})
    policy = Policy(
        path.stem,
        tuple(read.require(entry, f"require {number}") for number, entry in read.tables(values, "require")),
        tuple(read.waiver(entry, f"waive {number}") for number, entry in read.tables(values, "waive")),
        read.number(values.get("max_age_hours", 0), "max_age_hours"),
        read.text(values["text"]) if "text" in values else None,
        **{name: read.budgets(values.get(name, {}), name) for name in ("logits", "flips", "cost")},
    )
    read.among(policy.cost, COSTS, "cost")
    return policy


class _Reader:
    """Turns TOML values into the dataclasses; says which word of which table is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, where: str, message: str) -> UserError:
        return UserError(f"{self.path}{', ' if where else ''}{where}: {message}")

    def words(self, table: Any, where: str, known: set[str], required: set[str]) -> None:
        if not isinstance(table, dict):
            raise self.wrong(where, "is no table")
        for word in table:
            if word not in known:
                message = f"unknown word {word!r}{_meant(word, known)}; words are {', '.join(sorted(known))}"
                raise self.wrong(where, message)
        if required - set(table):
            raise self.wrong(where, f"lacks {', '.join(sorted(required - set(table)))}")

    def tables(self, values: dict[str, Any], name: str) -> Iterator[tuple[int, Any]]:
        listed = values.get(name, [])
        if not isinstance(listed, list) or (name == "require" and not listed):
            raise self.wrong(name, f"entries are written [[{name}]]")
        return enumerate(listed, 1)

    def require(self, table: Any, where: str) -> Require:
        self.words(table, where, {"cells", "boxes", "checks", "bundle", "compared", "device", "precision"}, {"cells"})
        values = dict(table, cells=self.cells(table, where))
        values |= {name: self.strings(table[name], where, name) for name in ("boxes", "checks") if name in table}
        self.among(values.get("checks", ()), verdict.CHECKS, where)
        if not isinstance(values.get("compared", 1), int) or values.get("compared", 1) < 1:
            raise self.wrong(where, f"compared is {values['compared']!r}; give a whole number of 1 or more")
        for name in ("bundle", "device", "precision"):
            self.string(values.get(name, ""), where, name)
        return Require(**values)

    def waiver(self, table: Any, where: str) -> Waiver:
        needed = {"cells", "what", "reason", "expires"}
        self.words(table, where, {*needed, "boxes", "checks", "bundle"}, needed)
        values = dict(table, cells=self.cells(table, where), what=self.strings(table["what"], where, "what"))
        values |= {name: self.strings(table[name], where, name) for name in ("boxes", "checks") if name in table}
        self.among(values["what"], WAIVABLE, where)
        self.among(values.get("checks", ()), verdict.CHECKS, where)
        for name in ("reason", "bundle"):
            self.string(values.get(name, ""), where, name)
        if type(values["expires"]) is not date:
            raise self.wrong(where, f"expires is {values['expires']!r}; write a day without quotes, such as 2026-12-31")
        if not values["reason"].strip():
            raise self.wrong(where, "reason is empty; say why this may pass")
        return Waiver(**values)

    def text(self, table: Any) -> Text:
        self.words(table, "text", {"loss", "method", "samples", "confidence"}, {"loss"})
        values = dict(table, loss=self.budgets(table["loss"], "text loss"))
        self.among([values.get("method", "bootstrap")], METHODS, "text method")
        if not isinstance(values.get("samples", 1000), int) or values.get("samples", 1000) < 100:
            raise self.wrong("text", f"samples is {values['samples']!r}; give a whole number of 100 or more")
        if not 0 < self.number(values.get("confidence", 0.95), "text confidence") < 1:
            raise self.wrong("text", f"confidence is {values['confidence']!r}; give a number between 0 and 1")
        return Text(**values)

    def cells(self, table: dict[str, Any], where: str) -> tuple[str, ...]:
        patterns = self.strings(table["cells"], where, "cells")
        for pattern in patterns:
            if pattern.count("/") != FORM.count("/"):
                raise self.wrong(where, f"{pattern!r} is no pattern of cells; their form is {FORM}")
            if any(int(last) - int(first) >= MOST for first, last in re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)):
                raise self.wrong(where, f"{pattern!r} promises more than {MOST} cells; give a smaller range")
            if not expand(pattern):
                raise self.wrong(where, f"{pattern!r} names no cell: a range goes from the lower number to the higher")
        return tuple(itertools.chain.from_iterable(map(expand, patterns)))

    def budgets(self, table: Any, where: str) -> dict[str, float]:
        if not isinstance(table, dict):
            raise self.wrong(where, "is no table of numbers")
        return {name: self.number(value, f"{where} {name}") for name, value in table.items()}

    def number(self, value: Any, where: str) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise self.wrong(where, f"{value!r} is no number of 0 or more")
        return float(value)

    def strings(self, value: Any, where: str, name: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
            raise self.wrong(where, f"{name} is {value!r}; give a list of words in quotes")
        return tuple(value)

    def string(self, value: Any, where: str, name: str) -> None:
        if not isinstance(value, str):
            raise self.wrong(where, f"{name} is {value!r}; give text in quotes")

    def among(self, words: Any, known: Any, where: str) -> None:
        for word in words:
            if word not in known:
                raise self.wrong(where, f"unknown word {word!r}{_meant(word, known)}; words are {', '.join(known)}")


def _meant(word: Any, known: Any) -> str:
    near = get_close_matches(str(word), list(known), 1)
    return f", did you mean {near[0]!r}?" if near else ""
