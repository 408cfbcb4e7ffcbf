"""A row is the answer to one check of one cell. Its dataclass lists the fields; schema and reports derive from it."""

import json
import math
import os
import platform
import re
import socket
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Tuple

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
    return Row(**values)


def box_name() -> str:
    """This box in a file name's characters."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname() or platform.node()).strip("-") or "box"


class Writer:
    """Appends rows to ``<results>/<box>-<utc>-<pid>.jsonl``; every row is on disk before the next is asked for."""

    def __init__(self, results: str) -> None:
        os.makedirs(results, exist_ok=True)
        self.box = box_name()
        self.run = f"{self.box}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        self.path = os.path.join(results, self.run + ".jsonl")
        self.series = os.path.join(results, self.run)
        # "x": two runs never share a file, and nothing is overwritten.
        self._stream: IO[str] = open(self.path, "x", encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def write(self, row: Row) -> None:
        row.run, row.box = self.run, self.box
        row.time = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._stream.write(to_json(row) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def read(path: str) -> Iterator[Row]:
    """The rows of one file. A last line cut short by a crash is left out; any other damage raises RowsError."""
    try:
        with open(path, encoding="utf-8") as stream:
            lines: List[str] = stream.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RowsError(
            f"{path}: cannot be read as rows ({error}); give a .jsonl file written by pytest --backend"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield from_dict(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines):
                return
            raise RowsError(
                f"{path}, line {number}: not a row ({error}); take the line out or copy the file again"
            ) from error


def read_all(places: Iterable[Any]) -> List[Tuple[Path, Row]]:
    """Every row of the files and of the folders' ``.jsonl`` files, with the folder that its sidecar path starts from.

    Raises RowsError for what cannot be read, and when there is no row at all.
    """
    paths = [Path(place) for place in places]
    found: List[Tuple[Path, Row]] = []
    for place in paths:
        for path in sorted(place.glob("*.jsonl")) if place.is_dir() else [place]:
            found += [(path.parent, row) for row in read(str(path))]
    if not found:
        raise RowsError(f"{', '.join(map(str, paths))}: no rows; run pytest --backend=NAME --results DIR first")
    return found


FIELDS = tuple(item.name for item in fields(Row))
