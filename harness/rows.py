"""A row is the answer to one check of one cell. Its dataclass lists the fields; schema and reports derive from it."""

import fcntl
import gzip
import itertools
import json
import math
import os
import re
import time
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Tuple

from harness.judge import verdict

SCHEMA = 1


class RowsError(Exception):
    """A rows file that cannot be read: one line that says what, where, and what to do."""


@dataclass
class Row:
    """One row of a results file. Non-finite numbers become strings on disk (``"inf"``, ``"nan"``)."""

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
    command: str = ""
    attempt: int = 1
    seconds: float = 0.0
    detail: Dict[str, Any] = field(default_factory=dict)
    series: str = ""
    backend: str = ""
    runtime: str = ""
    version: str = ""
    device: str = ""
    bundle: str = ""
    exporter: str = ""
    layout: str = ""
    precision: str = ""
    opset: Optional[int] = None
    cell: str = ""
    schema: int = SCHEMA
    run: str = ""
    time: str = ""
    box: str = ""


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def is_fake(version: str) -> bool:
    """Whether a row of that runtime version is a test's fake speaking (`contract.version_of`): it is no evidence."""
    return version.endswith("-fake")


def is_simulated(device: str) -> bool:
    """Whether a row's device is a simulator of one: what it says is never said of the device."""
    return device.startswith("simulator-")


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
        return "simulated" if is_simulated(rows[0].device) else "ran"
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
        if is_fake(row.version):
            said = "a test's fake, left out: its rows are no evidence"
            row = Row("probe", "ABSENT", "probe", message=said, backend=row.backend, version=row.version)
        # A verdict holds for its box and its bundle: what another one says does not replace it.
        place = (row.cell, row.box, row.bundle) if row.cell else (named(row.backend, row.version),)
        latest[(*place, row.check)] = row
    found = [row for row in latest.values() if row.cell]
    known = {row.backend for row in found} | {named(row.backend, row.version) for row in found}
    return [row for row in latest.values() if row.cell or named(row.backend, row.version) not in known]


def named(backend: str, version: str) -> str:
    """A backend at a version, as columns and notes name it; of a backend that is not here the version may be unknown."""
    return f"{backend}@{version}" if version else backend


def to_json(row: Row) -> str:
    return json.dumps({name: _plain(value) for name, value in asdict(row).items()}, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def from_dict(values: Dict[str, Any]) -> Row:
    """Raises ValueError or TypeError on what is not a row of this schema."""
    if values.get("schema") != SCHEMA:
        raise ValueError(f"schema {values.get('schema')!r}, this checkout reads schema {SCHEMA}")
    values = dict(values)
    for name in ("value", "bound", "floor"):
        if isinstance(values.get(name), str):
            values[name] = float(values[name])
    row = Row(**values)
    if (
        row.status not in verdict.STATUSES
        or row.check not in (*verdict.OTHER_CHECKS, *verdict.CHECKS)
        or row.stage not in verdict.STAGES
    ):
        raise ValueError(f"unknown status, check or stage: {row.status} {row.check} {row.stage}")
    for name, kinds in TYPES.items():
        if not isinstance(getattr(row, name), kinds):
            raise TypeError(f"{name} is {getattr(row, name)!r}")
    if row.status in ("XFAIL", "XPASS"):
        expected = row.detail.get("expected")
        if not isinstance(expected, dict) or expected.get("seen") not in verdict.SEVERITY or "reason" not in expected:
            raise ValueError(f"{row.status} without what was seen and the reason")
    if ".." in row.series or row.series.startswith("/"):
        raise ValueError(f"series {row.series!r} leaves the results folder")
    return row


def box_name() -> str:
    """This box in a file name's characters."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", os.uname().nodename).strip("-") or "box"


class Writer:
    """Appends rows to ``<results>/<box>-<utc>-<pid>.jsonl``; every row is on disk before the next is asked for.

    ``<run>/run.json`` beside it says what was asked and whether it was finished; sidecar files lie in the same folder.
    """

    def __init__(
        self, results: str, asked: Dict[str, Any], resume: bool = False, conditions: Optional[Dict[str, str]] = None
    ) -> None:
        """``asked``: arguments and bundle in plain JSON. ``conditions``: what the answers of each runtime depend on, for
        runs to come that reuse them. ``resume``: go on with the newest unfinished run of equal ones."""
        os.makedirs(results, exist_ok=True)
        self.box = box_name()
        self.note = {"asked": asked, "conditions": conditions or {}}
        self.resumed = _unfinished(results, self.note) if resume else ""
        if self.resumed:
            self.run, self.path, self._stream = self.resumed, *_reopened(results, self.resumed)
        else:
            self.run, self.path, self._stream = _new_file(results, self.box)
        # A run that is still going on holds this lock, so that no other takes it for unfinished.
        fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.series = os.path.join(results, self.run)
        self._note(finished=False)

    def _note(self, finished: bool) -> None:
        os.makedirs(self.series, exist_ok=True)
        draft = os.path.join(self.series, "run.json.part")
        with open(draft, "w", encoding="utf-8") as stream:
            json.dump({**self.note, "finished": finished}, stream, ensure_ascii=False, indent=1)
        os.replace(draft, os.path.join(self.series, "run.json"))

    def write(self, row: Row) -> None:
        row.run, row.box = self.run, self.box
        row.time = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._stream.write(to_json(row) + "\n")
        self._stream.flush()

    def close(self, finished: bool = True) -> None:
        self._note(finished)
        self._stream.close()


def _new_file(results: str, box: str) -> Tuple[str, str, IO[str]]:
    """A rows file that nobody else has: two hosts may share the folder, the second and even the process id."""
    stem = f"{box}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    for number in itertools.count():
        run = f"{stem}-{number}" if number else stem
        path = os.path.join(results, run + ".jsonl")
        try:
            return run, path, open(path, "x", encoding="utf-8")
        except FileExistsError:
            continue
    raise AssertionError("itertools.count ended")


def _reopened(results: str, run: str) -> Tuple[str, IO[str]]:
    """The rows file of an unfinished run, a line cut short by its death taken off."""
    path = os.path.join(results, run + ".jsonl")
    with open(path, "rb+") as raw:
        raw.truncate(raw.read().rfind(b"\n") + 1)
    return path, open(path, "a", encoding="utf-8")


def _noted(place: Path) -> Dict[str, Any]:
    """What a run noted of itself. Raises OSError, ValueError and TypeError for a damaged note."""
    return dict(json.loads(place.read_text(encoding="utf-8")))


def _unfinished(results: str, wanted: Dict[str, Any]) -> str:
    """Name of the newest run that asked the same under the same conditions, has not finished, and is not going on; empty
    when there is none."""
    notes = sorted(Path(results).glob("*/run.json"), key=lambda place: place.stat().st_mtime, reverse=True)
    for place in notes:
        rows = Path(results) / (place.parent.name + ".jsonl")
        try:
            note = _noted(place)
            if note["finished"] or any(note[name] != value for name, value in wanted.items()):
                continue
            with open(rows, encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged, gone, or held by a run that is still going on
        return place.parent.name
    return ""


def read(path: str) -> Iterator[Row]:
    """The rows of one file, ``.gz`` or not. A last line cut short by a crash is left out; other damage raises RowsError."""
    return (row for _, row in read_lines(path))


def read_lines(path: str) -> Iterator[Tuple[str, Row]]:
    """The rows of one file, each with its line; see `read`."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
        ) as stream:
            lines: List[str] = stream.read().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RowsError(
            f"{path}: cannot be read as rows ({getattr(error, 'strerror', None) or error}); "
            "give a results folder, or a .jsonl file written by pytest --backend"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        advice = "take the line out or copy the file again"
        try:
            values = json.loads(line)
            if isinstance(values.get("schema"), int) and values["schema"] > SCHEMA:
                advice = "update this checkout"
            row = from_dict(values)
            if not TIME.fullmatch(row.time):  # of equal questions the newest answer counts
                raise ValueError(f"its time is {row.time!r}, not UTC such as 2026-11-30T02:00:00Z")
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return
            raise RowsError(f"{path}, line {number}: not a row ({error}); {advice}") from error
        yield line, row


def read_all(places: Iterable[Any]) -> List[Tuple[Path, Row]]:
    """Every row of the files and of the folders' ``.jsonl`` and ``.jsonl.gz`` files, with the folder that its sidecar path
    starts from. (Nights in Parquet: `reports.folders`.)

    Raises RowsError for what cannot be read, and when there is no row at all.
    """
    paths = [Path(place) for place in places]
    found: List[Tuple[Path, Row]] = []
    for place in paths:
        for path in sorted([*place.glob("*.jsonl"), *place.glob("*.jsonl.gz")]) if place.is_dir() else [place]:
            found += [(path.parent, row) for row in read(str(path))]
    if not found:
        raise RowsError(f"{', '.join(map(str, paths))}: no rows; run pytest --backend=NAME --results DIR first")
    return found


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
