"""Files of rows as Arrow tables: rows files, and the Parquet files that finished nights are compacted into.

A *night* is the UTC day on which a run began; all rows of the run belong to it. A *piece* is one Parquet file,
``<night>-<digest of its rows>.parquet``, of whole runs. Its name follows from its content, so that equal pieces of two
folders are one file once they are merged by copying, and nothing is ever rewritten: a box that brings last week's rows
adds a piece to last week. Parquet by pyarrow, rather than a database file: a piece is copied like any other file, no
process owns it, dictionary and run-length encoding make the rows that do not change from night to night nearly free, and
a reader takes only the columns that it needs.

Rows are told apart by a digest of their line. Pieces and files that share no run share no row; where runs overlap (a file
copied twice, a run copied before it had ended) equal rows are dropped, so that nothing is lost and nothing counts twice.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.core.errors import UserError
from harness.core.rowfiles import read_lines
from harness.core.rows import FIELDS, SCHEMA, Row, seen_status

WORD = pa.dictionary(pa.int32(), pa.string())
_TYPES = {str: WORD, int: pa.int64(), float: pa.float64(), int | None: pa.int64(), float | None: pa.float64()}
_HINTS = get_type_hints(Row)
_NARROW = {"step": pa.int32(), "opset": pa.int16(), "attempt": pa.int16(), "schema": pa.int16()}
COLUMNS = {
    **{item.name: _NARROW.get(item.name) or _TYPES.get(_HINTS[item.name], pa.string()) for item in fields(Row)},
    "time": pa.timestamp("ms", tz="UTC"),
    "seen": WORD,  # the status underneath an expectation
    "reason": WORD,  # of the expectation
    "id": pa.int64(),  # digest of the row's line
}
"""Arrow types of a piece's columns; ``detail`` is JSON text. ``night`` is added on reading."""
KEY = ("box", "bundle", "cell", "check")
"""What one verdict is about: what another box or bundle says does not replace it."""
STAMP = "%Y-%m-%dT%H:%M:%SZ"
FAULTS = (pa.ArrowException, OSError, KeyError, ValueError, TypeError)


class Piece(NamedTuple):
    """One Parquet file. ``sources``: names and sizes in bytes of the JSONL files of which it holds every row."""

    path: Path
    night: str
    runs: frozenset[str]
    sources: dict[str, int]


class Loose(NamedTuple):
    """The rows of one JSONL file. ``stat``: its size and time of change when it was read; ``cut``: its last line was."""

    path: Path
    table: pa.Table
    runs: frozenset[str]
    stat: tuple[int, int]
    cut: bool


def inspect(path: Path) -> Piece:
    """Raises UserError."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except FAULTS as error:
        raise _damaged(path, error) from error
    if b"conform" not in metadata:
        raise UserError(f"{path}: Parquet, but not of rows; take it out of the folder")
    try:
        about = json.loads(metadata[b"conform"])
        if about["schema"] > SCHEMA:
            raise UserError(
                f"{path}: rows of schema {about['schema']}, this checkout reads schema {SCHEMA}; update this checkout"
            )
        return Piece(path, about["night"], frozenset(about["runs"]), about["sources"])
    except FAULTS as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{path}: damaged Parquet ({message}); delete it and copy or compact it again")


def read_piece(piece: Piece, columns: Sequence[str]) -> pa.Table:
    try:
        file = pq.ParquetFile(piece.path, page_checksum_verification=True)
        table = file.read([name for name in columns if name != "night"])
        if "execution" in columns and "execution" not in file.schema_arrow.names:
            # Of an earlier release: a row without a word about it knows by its version and device.
            table = table.append_column("execution", pa.array([""] * len(table), WORD))
    except FAULTS as error:
        raise _damaged(piece.path, error) from error
    return with_night(table, piece.night) if "night" in columns else table


def with_night(table: pa.Table, night: str) -> pa.Table:
    codes = pa.array(np.zeros(len(table), np.int32))
    return table.append_column("night", pa.DictionaryArray.from_arrays(codes, pa.array([night])))


def read_loose(path: Path, detail: bool) -> Loose:
    """Raises UserError."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    stat = path.stat()
    for line, row in read_lines(str(path)):
        for name in FIELDS:
            columns[name].append(getattr(row, name))
        columns["detail"][-1] = json.dumps(row.detail, ensure_ascii=False) if detail else None
        columns["seen"].append(seen_status(row))
        columns["reason"].append(row.detail["expected"]["reason"] if "expected" in row.detail else "")
        columns["id"].append(
            int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little", signed=True)
        )
    with path.open("rb") as stream:
        stream.seek(-1 if stat.st_size else 0, os.SEEK_END)
        cut = path.suffix != ".gz" and stream.read() not in (b"\n", b"")
    times = pc.strptime(pa.array(columns.pop("time"), pa.string()), STAMP, "ms", error_is_null=True)
    if times.null_count:
        raise UserError(f"{path}: a row's time is not UTC such as 2026-11-30T02:00:00Z; mend it or copy the file again")
    arrays = {name: pa.array(values, COLUMNS[name]) for name, values in columns.items()}
    arrays["time"] = times.cast(COLUMNS["time"])
    table = pa.table({name: arrays[name] for name in COLUMNS})
    return Loose(path, table, frozenset(columns["run"]), (stat.st_size, stat.st_mtime_ns), cut)


def nights_of(loose: Iterable[Loose], pieces: Iterable[Piece]) -> dict[str, str]:
    """Night of each run: the day of its first row."""
    nights = {run: piece.night for piece in pieces for run in piece.runs}
    for file in loose:
        first = file.table.select(["run", "time"]).group_by("run").aggregate([("time", "min")])
        for run, time in zip(first["run"].to_pylist(), first["time_min"].to_pylist(), strict=True):
            day = time.strftime("%Y-%m-%d")
            nights[run] = min(nights.get(run, day), day)
    return nights


def only_runs(table: pa.Table, runs: Iterable[str]) -> pa.Table:
    return table.filter(pc.is_in(table["run"].cast(pa.string()), pa.array(sorted(runs), pa.string())))


def distinct(table: pa.Table) -> pa.Table:
    """Without rows that are there twice, order kept."""
    _, first = np.unique(table["id"].to_numpy(), return_index=True)
    return table if len(first) == len(table) else table.take(np.sort(first))
