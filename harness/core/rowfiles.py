"""Rows files: one a run, appended as answers come; and how a folder of them is read."""

import codecs
import fcntl
import gzip
import itertools
import json
import os
import re
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from harness.core.errors import UserError
from harness.core.files import write_whole
from harness.core.rows import SCHEMA, TIME, Row, from_dict, printable, to_json


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
        # ASCII, so that a folder's name in another encoding than UTF-8 comes back as it was.
        write_whole(os.path.join(self.series, "run.json"), json.dumps({**self.note, "finished": finished}, indent=1))

    def write(self, row: Row) -> Row:
        """Append a row; returns it as it was written, with run, box and time."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        row = replace(row, run=self.run, box=self.box, time=now)
        self._stream.write(to_json(row) + "\n")
        self._stream.flush()
        return row

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


def _noted(path: Path) -> Dict[str, Any]:
    """What a run noted of itself. Raises OSError, ValueError and TypeError for a damaged note."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _unfinished(results: str, wanted: Dict[str, Any]) -> str:
    """Name of the newest run that asked the same under the same conditions, has not finished, and is not going on; empty
    when there is none."""
    notes = sorted(Path(results).glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in notes:
        rows = Path(results) / (path.parent.name + ".jsonl")
        try:
            note = _noted(path)
            if note["finished"] or any(note[name] != value for name, value in wanted.items()):
                continue
            with open(rows, encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged, gone, or held by a run that is still going on
        return path.parent.name
    return ""


def read(path: str) -> Iterator[Row]:
    """The rows of one file, ``.gz`` or not. A last line cut short by a crash is left out; other damage raises UserError."""
    return (row for _, row in read_lines(path))


def read_lines(path: str) -> Iterator[Tuple[str, Row]]:
    """The rows of one file, each with its line; see `read`."""
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream:
            lines: List[bytes] = stream.read().split(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read as rows ({getattr(error, 'strerror', None) or error}); "
            "give a results folder, or a .jsonl file written by pytest --backend"
        ) from error
    for number, content in enumerate(lines, 1):
        if not content:
            continue
        advice = "take the line out or copy the file again"
        try:
            # A crash may cut the last line anywhere, inside a character too.
            line = codecs.getincrementaldecoder("utf-8")().decode(content, final=number < len(lines))
            values = json.loads(line)
            if "\\u" in line:
                values = printable(values)
            if isinstance(values.get("schema"), int) and values["schema"] > SCHEMA:
                advice = "update this checkout"
            row = from_dict(values)
            if not TIME.fullmatch(row.time):  # of equal questions the newest answer counts
                raise ValueError(f"its time is {row.time!r}, not UTC such as 2026-11-30T02:00:00Z")
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return
            raise UserError(f"{path}, line {number}: not a row ({error}); {advice}") from error
        yield line, row


class Files(NamedTuple):
    """Files of rows. ``lines``: rows files; ``pieces``: nights that `conform compact` put into Parquet."""

    lines: List[Path]
    pieces: List[Path]


def files_in(path: Path) -> Files:
    """The files of rows in a results folder; a path that is no folder is one rows file, or one piece."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    pieces = [path for path in paths if path.suffix == ".parquet"]
    if not path.is_dir():
        return Files([path for path in paths if path not in pieces], pieces)
    return Files([path for path in paths if path.name.endswith((".jsonl", ".jsonl.gz"))], pieces)
