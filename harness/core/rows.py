"""A row is the answer to one check of one cell. Its dataclasses list the fields; schema and reports derive from them.

``Row`` = ``Answer`` (what the judge or a worker said) + ``Identity`` (of which cell) + ``Origin`` (which run, box and time).
The shape of ``detail`` for each check stands in ``harness.core.details``.
"""

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Dict, Iterable, List, Optional, Tuple

from harness.core import verdict
from harness.core.cell import SIMULATOR

SCHEMA = 1
EXECUTIONS = ("device", "simulator", "fake")
"""What did the work: the device itself, a simulator of it, or a stand-in of a test, which is no evidence at all."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Answer:
    """What was said to one check.

    ``value``, ``bound`` and ``floor`` are in units of ``metric``; ``compared`` counts elements; ``step`` and ``sentence``
    are the first that are wrong; ``kind`` narrows a refusal or a mistake down; ``seconds`` since the cell was begun;
    ``series`` is a sidecar file's path from the results folder on.
    """

    check: str
    status: str
    stage: str = "compare"
    kind: str = ""
    tensor: str = ""
    metric: str = ""
    value: Optional[float] = None
    bound: Optional[float] = None
    floor: Optional[float] = None
    compared: int = 0
    step: Optional[int] = None
    sentence: str = ""
    blame: str = ""
    knob: str = ""
    message: str = ""
    seconds: float = 0.0
    detail: Dict[str, Any] = field(default_factory=dict)
    series: str = ""


@dataclass(frozen=True)
class Identity:
    """Which cell an answer is of; of a backend that is not here, only which backend. ``execution``: one of EXECUTIONS."""

    backend: str = ""
    runtime: str = ""
    version: str = ""
    device: str = ""
    execution: str = ""
    bundle: str = ""
    exporter: str = ""
    layout: str = ""
    precision: str = ""
    opset: Optional[int] = None
    cell: str = ""

    def __post_init__(self) -> None:
        if not self.execution:  # rows of earlier releases said it with the names of version and device alone
            simulated = "simulator" if self.device.startswith(SIMULATOR) else "device"
            execution = "fake" if self.version.endswith("-fake") else simulated
            object.__setattr__(self, "execution", execution)


@dataclass(frozen=True)
class Origin:
    """Where a row comes from. ``command`` asks the same again; ``time`` is UTC, as in 2026-11-30T02:00:00Z."""

    command: str = ""
    attempt: int = 1
    schema: int = SCHEMA
    run: str = ""
    time: str = ""
    box: str = ""


@dataclass(frozen=True)
class Row(Origin, Identity, Answer):
    """One row of a results file. Non-finite numbers become strings on disk (``"inf"``, ``"nan"``)."""

    @classmethod
    def of(cls, answer: Answer, identity: Identity, origin: Origin) -> "Row":
        return cls(**vars(answer), **vars(identity), **vars(origin))

    @property
    def answer(self) -> Answer:
        return Answer(**{item.name: getattr(self, item.name) for item in fields(Answer)})

    @property
    def identity(self) -> Identity:
        return Identity(**{item.name: getattr(self, item.name) for item in fields(Identity)})

    @property
    def simulated(self) -> bool:
        """Whether a simulator did the work: what it says is never said of the device."""
        return self.execution == "simulator"

    @property
    def fake(self) -> bool:
        """Whether a test's stand-in for a vendor library did the work: it is no evidence."""
        return self.execution == "fake"


FIELDS = tuple(item.name for item in fields(Row))
_KINDS: Dict[Any, Any] = {
    str: str,
    int: int,
    float: (int, float),
    Dict[str, Any]: dict,
    Optional[float]: (int, float, type(None)),
    Optional[int]: (int, type(None)),
}
TYPES = {item.name: _KINDS[item.type] for item in fields(Row)}


def seen_status(row: Row) -> str:
    """The status that was seen: an expected failure is still a failure in the table."""
    return str(row.detail["expected"]["seen"]) if row.status in ("XFAIL", "XPASS") else row.status


def contradiction(row: Row) -> str:
    """Why a row that says PASS is none by its own figures; empty when it is one, or says something else. No run writes
    such a row, but a file can be edited."""
    if seen_status(row) != "PASS":
        return ""
    if row.compared <= 0:
        return f"{row.check} says PASS and compared nothing"
    if row.value is not None and not math.isfinite(row.value):
        return f"{row.check} says PASS with the value {row.value}"
    if row.value is not None and row.bound is not None and row.value > row.bound:
        return f"{row.check} says PASS with the value {row.value:.3g} over its bound {row.bound:.3g}"
    return ""


def depth(rows: Iterable[Row]) -> str:
    """The deepest stage that cells of one device reached: parsed, built, simulated or ran; else where they were refused."""
    rows = [row for row in rows if row.check != "artifact"]
    stages = [row.stage for row in rows if row.status not in ("ABSENT", "UNSUPPORTED")]
    deepest = max(stages, key=verdict.STAGES.index, default="")
    if deepest in ("run", "compare"):
        return "simulated" if rows[0].simulated else "ran"
    # A refusal names the stage that refused; what was short of running names the stage that was done.
    short = [row for row in rows if row.status == "ABSENT"] or [row for row in rows if row.status == "UNSUPPORTED"]
    last = max(short, key=lambda row: verdict.STAGES.index(row.stage), default=None)
    if deepest or last is None:
        return deepest
    return last.kind if last.status == "ABSENT" else f"refused at {last.stage}"


def newest(rows: Iterable[Row]) -> List[Row]:
    """The last row of each cell and check; absent backends keep one row each, unless some run found them."""
    latest: Dict[Tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (row.time, row.run)):
        if row.fake:
            message = "a test's fake, left out: its rows are no evidence"
            row = Row("probe", "ABSENT", "probe", message=message, backend=row.backend, version=row.version)
        # A verdict holds for its box and its bundle: what another one says does not replace it.
        owner = (row.cell, row.box, row.bundle) if row.cell else (named(row.backend, row.version),)
        latest[(*owner, row.check)] = row
    cells = [row for row in latest.values() if row.cell]
    known = {row.backend for row in cells} | {named(row.backend, row.version) for row in cells}
    return [row for row in latest.values() if row.cell or named(row.backend, row.version) not in known]


def named(backend: str, version: str) -> str:
    """A backend at a version, as columns and notes name it; of a backend that is not here the version may be unknown."""
    return f"{backend}@{version}" if version else backend


def to_json(row: Answer) -> str:
    """One line of a rows file; of a bare Answer, one line on the wire between worker and host."""
    values = printable({name: _plain(value) for name, value in asdict(row).items()})
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def printable(value: Any) -> Any:
    """A value of JSON, with each lone surrogate in its texts as the six characters ``\\udcff``.

    Bytes that are no UTF-8, such as a runtime's message or a folder's name in GBK, become lone surrogates in Python, and
    no file and no console can be given one.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def answer_from(values: Dict[str, Any]) -> Answer:
    """The answer that a worker sent. Raises ValueError or TypeError on what is none."""
    answer = Answer(**_numbers(values))
    _check(answer)
    return answer


def from_dict(values: Dict[str, Any]) -> Row:
    """Raises ValueError or TypeError on what is not a row of this schema."""
    if values.get("schema") != SCHEMA:
        raise ValueError(f"schema {values.get('schema')!r}, this checkout reads schema {SCHEMA}")
    row = Row(**_numbers(values))
    _check(row)
    if row.execution not in EXECUTIONS:
        raise ValueError(f"unknown execution: {row.execution}")
    if row.status in ("XFAIL", "XPASS"):
        expected = row.detail.get("expected")
        if not isinstance(expected, dict) or expected.get("seen") not in verdict.SEVERITY or "reason" not in expected:
            raise ValueError(f"{row.status} without what was seen and the reason")
    return row


def _numbers(values: Dict[str, Any]) -> Dict[str, Any]:
    text = {name: float(values[name]) for name in ("value", "bound", "floor") if isinstance(values.get(name), str)}
    return {**values, **text}


def _check(answer: Answer) -> None:
    if (
        answer.status not in verdict.STATUSES
        or answer.check not in (*verdict.OTHER_CHECKS, *verdict.CHECKS)
        or answer.stage not in verdict.STAGES
    ):
        raise ValueError(f"unknown status, check or stage: {answer.status} {answer.check} {answer.stage}")
    for item in fields(answer):
        if not isinstance(getattr(answer, item.name), TYPES[item.name]):
            raise TypeError(f"{item.name} is {getattr(answer, item.name)!r}")
    if ".." in answer.series or answer.series.startswith("/"):
        raise ValueError(f"series {answer.series!r} leaves the results folder")
