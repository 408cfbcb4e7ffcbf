"""Rows of many boxes and nights as one table: JSONL as written, and finished nights compacted into Parquet.

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
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.core import verdict
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
LAST_GOOD = "last-good"
"""File in a results folder that names the last night that passed its gate; `conform gate --good` writes it."""
FAULTS = (pa.ArrowException, OSError, KeyError, ValueError, TypeError)


def note(line: str) -> None:
    """What a reader should know and no verdict depends on."""
    print(f"note: {line}", file=sys.stderr)


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


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


class History(NamedTuple):
    """Series of verdicts over nights. ``keys``: frame of [series] with the columns KEY; ``status``: [series, nights]
    int8, the index in ``verdict.SEVERITY`` of what was seen, -1 without a row; ``expected``: [series, nights], whether an
    expectation said something of it; ``used``: [series, nights] float32, value over bound, NaN without; ``bundle`` is a
    part of the key, so that a series has one golden."""

    keys: pd.DataFrame
    nights: list[str]
    status: np.ndarray
    expected: np.ndarray
    used: np.ndarray


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
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{path}: damaged Parquet ({said}); delete it and copy or compact it again")


def read_piece(piece: Piece, columns: Sequence[str]) -> pa.Table:
    try:
        file = pq.ParquetFile(piece.path, page_checksum_verification=True)
        table = file.read([name for name in columns if name != "night"])
    except FAULTS as error:
        raise _damaged(piece.path, error) from error
    return _with_night(table, piece.night) if "night" in columns else table


def _with_night(table: pa.Table, night: str) -> pa.Table:
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


class Store:
    """The rows of files and folders. What is JSONL is read once and kept; what is Parquet is read when it is asked for.

    ``detail=False`` leaves the rows' ``detail`` out, the larger part of them. ``say`` gets a line for what was cut short.
    Raises UserError for what cannot be read, and when there is no row at all.
    """

    def __init__(self, places: Iterable[Any], detail: bool = True, say: Callable[[str], None] = note) -> None:
        self.places = [Path(place) for place in places]
        loose: list[Loose] = []
        pieces, lines = self._files()
        self.pieces = [inspect(path) for path in pieces]
        covered = {(piece.path.parent, *item) for piece in self.pieces for item in piece.sources.items()}
        for path in lines:
            if path.is_file() and (path.parent, path.name, path.stat().st_size) in covered:
                continue
            loose.append(read_loose(path, detail))
            if loose[-1].cut:
                say(f"{path}: the last line is cut short; {len(loose[-1].table)} rows before it are read")
        self.night_of = nights_of(loose, self.pieces)
        self._loose: dict[str, list[pa.Table]] = {}
        for file in loose:
            for night in sorted({self.night_of[run] for run in file.runs}):
                table = only_runs(file.table, (run for run in file.runs if self.night_of[run] == night))
                self._loose.setdefault(night, []).append(_with_night(table, night))
        self.nights = sorted({piece.night for piece in self.pieces} | set(self._loose))
        if not self.nights:
            raise UserError(
                f"{', '.join(map(str, self.places))}: no rows; run pytest --backend=NAME --results DIR first"
            )

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Pieces, and files of JSON lines. Pieces of equal name hold equal rows, wherever they lie: one of them is read."""
        pieces: dict[str, Path] = {}
        lines = []
        for place in self.places:
            if not place.exists():
                raise UserError(f"{place}: no such folder or file; give a results folder")
            for path in sorted(place.iterdir()) if place.is_dir() else [place]:
                if path.suffix == ".parquet":
                    pieces.setdefault(path.name, path)
                elif path is place or path.name.endswith((".jsonl", ".jsonl.gz")):
                    lines.append(path)
        return list(pieces.values()), lines

    @cached_property
    def _overlapping(self) -> set[str]:
        """Nights in which two pieces or files share a run."""
        found = set()
        for night in self.nights:
            runs: set[str] = set()
            sets = [piece.runs for piece in self.pieces if piece.night == night]
            sets += [set(table["run"].unique().to_pylist()) for table in self._loose.get(night, [])]
            for one in sets:
                if runs & one:
                    found.add(night)
                runs |= one
        return found

    def table(self, night: str, columns: Sequence[str]) -> pa.Table:
        """The rows of one night, those that are there twice once."""
        overlap = night in self._overlapping
        wanted = list(dict.fromkeys([*columns, *(["id"] if overlap else [])]))
        tables = [read_piece(piece, wanted) for piece in self.pieces if piece.night == night]
        tables += [table.select(wanted) for table in self._loose.get(night, [])]
        table = pa.concat_tables([table.select(wanted) for table in tables])
        return (distinct(table) if overlap else table).select(list(columns))

    def frame(self, columns: Sequence[str] = (*COLUMNS, "night"), nights: Iterable[str] | None = None) -> pd.DataFrame:
        """Rows as a frame: words are categoricals, ``time`` is UTC, ``detail`` is JSON text."""
        chosen = self.nights if nights is None else [night for night in self.nights if night in set(nights)]
        if not chosen:
            raise UserError(f"{', '.join(map(str, self.places))}: no rows of these nights; {self.span()}")
        return _to_frame(pa.concat_tables([self.table(night, columns) for night in chosen]))

    def span(self) -> str:
        return f"there are {len(self.nights)} nights, {self.nights[0]} to {self.nights[-1]}"

    def failures(self, night: str) -> pd.DataFrame:
        """Every row of a night in which a runtime failed, whatever a later row says: KEY, status, message and run."""
        table = self.table(night, [*KEY, "status", "message", "run"])
        return _to_frame(table.filter(pc.is_in(table["status"].cast(pa.string()), pa.array(verdict.OF_RUNTIME))))

    def newest(self, columns: Sequence[str] = (*COLUMNS, "night"), nights: Iterable[str] | None = None) -> pd.DataFrame:
        """The last row of each check of each cell, box and bundle: the latest night's, and of that night the latest. Rows
        of backends that were absent are of no cell, and are not among them. May be empty."""
        return _to_frame(self._newest(columns, nights))

    def newest_rows(self, nights: Iterable[str] | None = None) -> list[Row]:
        """What `newest` gives, as rows, and the last row of each backend that was absent on a box."""
        return _to_rows(self._newest(FIELDS, nights, absent=True))

    def _newest(self, columns: Sequence[str], nights: Iterable[str] | None, absent: bool = False) -> pa.Table:
        chosen = self.nights if nights is None else sorted(set(nights) & set(self.nights))
        keys, known, parts = _Keys(), np.zeros(0, np.int64), []
        nobody: set[tuple[str, ...]] = set()
        for night in reversed(chosen):
            found = self.table(night, [*KEY, "time", "run", "attempt"])
            codes = keys.codes(found)
            fresh = np.flatnonzero((codes >= 0) & ~_among(codes, known))
            order = found.select(["time", "run", "attempt"]).take(fresh).to_pandas()
            order["run"] = order["run"].astype(str)
            order["code"], order["at"] = codes[fresh], fresh
            last = order.sort_values(["time", "run", "attempt"], kind="stable").drop_duplicates("code", keep="last")
            taken = last["at"].tolist()
            if absent and (codes < 0).any():
                places = np.flatnonzero(codes < 0)
                asked = self.table(night, ["box", "backend", "version"]).take(places).to_pylist()
                here = {tuple(who.values()): at for who, at in zip(asked, places.tolist(), strict=True)}
                taken += [at for who, at in here.items() if who not in nobody]
                nobody |= here.keys()
            if taken:
                parts.append(self.table(night, columns).take(sorted(taken)))
                known = _union(known, codes[fresh])
        return pa.concat_tables(parts) if parts else self.table(self.nights[-1], columns).slice(0, 0)

    def history(self, nights: Iterable[str] | None = None) -> History:
        """Every series over the nights, of each night the latest row. Costs 6 bytes a series and night."""
        chosen = self.nights if nights is None else sorted(set(nights) & set(self.nights))
        keys, known, columns = _Keys(), np.zeros(0, np.int64), []
        for night in chosen:
            table = self.table(night, [*KEY, "seen", "status", "value", "bound", "time"])
            codes = keys.codes(table)
            values = (_looked_up(table["seen"], verdict.SEVERITY.index, np.int8),
                      _looked_up(table["status"], ("XFAIL", "XPASS").__contains__, np.bool_), _used(table))  # fmt: skip
            order = np.arange(len(codes))
            # In one piece the rows of a check stand in order of time.
            if table["time"].num_chunks > 1 or night in self._overlapping:
                order = np.argsort(table["time"].to_numpy(), kind="stable")
            order = order[codes[order] >= 0]
            codes = codes[order]
            if columns and np.array_equal(codes, columns[-1][0]):
                codes = columns[-1][0]  # the same cells as the night before: kept once
            elif not _among(codes, known).all():
                known = _union(known, codes)
            columns.append((codes, *(value[order] for value in values)))
        shape = (len(chosen), len(known))
        status, expected = np.full(shape, -1, np.int8), np.zeros(shape, np.bool_)
        used = np.full(shape, np.nan, np.float32)
        for number, (codes, *values) in enumerate(columns):
            if not number or codes is not columns[number - 1][0]:
                at = np.searchsorted(known, codes)
            status[number, at], expected[number, at], used[number, at] = values
        return History(keys.frame(known), chosen, status.T, expected.T, used.T)


def _among(codes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each code is among the sorted known ones. (np.isin hashes, and these codes hash into few buckets.)"""
    at = np.searchsorted(known, codes)
    return np.append(known, -1)[at] == codes


def _union(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    both = np.sort(np.concatenate([known, codes]))
    return both[np.append(True, both[1:] != both[:-1])[: len(both)]]


class _Keys:
    """Numbers KEY across tables that have dictionaries of their own."""

    BITS = (10, 10, 30, 8)

    def __init__(self) -> None:
        self.words: list[dict[str, int]] = [{} for _ in KEY]

    def codes(self, table: pa.Table) -> np.ndarray:
        """[rows] int64; -1 for what is of no cell."""
        total = np.zeros(len(table), np.int64)
        for name, words, bits in zip(KEY, self.words, self.BITS, strict=True):
            column = table[name].combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            own = np.array([words.setdefault(word, len(words)) for word in column.dictionary.to_pylist()], np.int64)
            if len(words) > 1 << bits:
                raise UserError(f"more than {1 << bits} of {name}; give fewer folders")
            part = own[column.indices.to_numpy()] if len(own) else np.zeros(0, np.int64)
            total = (total << bits) | part
            if name == "cell" and "" in words:
                total[part == words[""]] = -1
        return np.where(total < 0, -1, total)

    def frame(self, codes: np.ndarray) -> pd.DataFrame:
        columns = {}
        for name, words, bits in reversed(list(zip(KEY, self.words, self.BITS, strict=True))):
            columns[name] = pd.Categorical.from_codes(
                (codes & ((1 << bits) - 1)).astype(np.int32), categories=list(words)
            )
            codes = codes >> bits
        return pd.DataFrame({name: columns[name] for name in KEY})


def _looked_up(column: pa.ChunkedArray, of: Callable[[str], Any], kind: type) -> np.ndarray:
    """What a function gives for each word of a column."""
    column = column.combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return np.array([of(word) for word in column.dictionary.to_pylist()], kind)[column.indices.to_numpy()]


def _used(table: pa.Table) -> np.ndarray:
    value, bound = (table[name].to_numpy().astype(np.float64) for name in ("value", "bound"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bound > 0, value / bound, np.nan).astype(np.float32)


def _to_frame(table: pa.Table) -> pd.DataFrame:
    kinds = {pa.int32(): pd.Int32Dtype(), pa.int16(): pd.Int16Dtype()}
    return table.unify_dictionaries().to_pandas(types_mapper=kinds.get, split_blocks=True, self_destruct=True)


def _to_rows(table: pa.Table) -> list[Row]:
    columns = {name: _values(table[name]) for name in FIELDS if name not in ("detail", "time")}
    columns["detail"] = [json.loads(text) if text else {} for text in table["detail"].to_pylist()]
    columns["time"] = pc.strftime(table["time"].cast(pa.timestamp("s", tz="UTC")), STAMP).to_pylist()
    return [Row(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """A word that many rows share is one string."""
    if column.type != WORD:
        return column.to_pylist()  # type: ignore[no-any-return]
    words = [chunk.dictionary.to_pylist() for chunk in column.chunks]
    return [own[at] for own, chunk in zip(words, column.chunks, strict=True) for at in chunk.indices.to_pylist()]


def load(
    places: Iterable[Any],
    columns: Sequence[str] = (*COLUMNS, "night"),
    nights: Iterable[str] | None = None,
    say: Callable[[str], None] = note,
) -> pd.DataFrame:
    """Rows of files and folders, JSONL and Parquet alike, each once: see `Store.frame`. Raises UserError."""
    return Store(places, "detail" in columns, say).frame(columns, nights)


def place(text: str) -> tuple[Path, str | None]:
    """``DIR`` or ``DIR@NIGHT`` as folder and word: a day, ``newest``, or ``last-good``. Raises UserError."""
    folder, at, night = text.rpartition("@")
    if not at or Path(text).exists():
        if not Path(text).exists():
            raise UserError(f"{text}: no such folder or file; give results, or one night of them as DIR@2026-11-30")
        return Path(text), None
    if not Path(folder).exists():
        raise UserError(f"{folder}: no such folder or file; give results, or one night of them as DIR@2026-11-30")
    if not night:  # an empty variable of a script must not widen the question to every night
        raise UserError(f"{text}: names no night after @; give DIR@2026-11-30, DIR@newest, or DIR for every night")
    return Path(folder), night


def night_named(store: Store, word: str) -> str:
    """The night that a word after ``@`` means. Raises UserError."""
    folder = store.places[0]
    if word == "newest":
        return store.nights[-1]
    if word == LAST_GOOD:
        try:
            word = (folder / LAST_GOOD).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserError(
                f"{folder}@{LAST_GOOD}: no night has passed a gate yet; "
                f"conform gate {folder}@newest --policy nightly --good"
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{folder / LAST_GOOD}: names no night ({error}); write a day such as 2026-11-30"
            ) from error
    if word not in store.nights:
        raise UserError(f"{folder}@{word}: no rows of that night; {store.span()}")
    return word
