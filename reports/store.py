"""Rows of many boxes and nights as one table, whether they lie in rows files or in Parquet."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from harness.core import verdict
from harness.core.errors import UserError
from harness.core.rowfiles import files_in
from harness.core.rows import FIELDS, Row
from reports.pieces import (
    COLUMNS,
    KEY,
    STAMP,
    WORD,
    Loose,
    distinct,
    inspect,
    nights_of,
    only_runs,
    read_loose,
    read_piece,
    with_night,
)
from reports.series import History, Keys, among, looked_up, share, union


def note(line: str) -> None:
    """What a reader should know and no verdict depends on."""
    print(f"note: {line}", file=sys.stderr)


class Store:
    """The rows of files and folders. What is JSONL is read once and kept; what is Parquet is read when it is asked for.

    ``detail=False`` leaves the rows' ``detail`` out, the larger part of them. ``say`` gets a line for what was cut short.
    Raises UserError for what cannot be read, and when there is no row at all.
    """

    def __init__(self, paths: Iterable[Any], detail: bool = True, say: Callable[[str], None] = note) -> None:
        self.paths = [Path(path) for path in paths]
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
                self._loose.setdefault(night, []).append(with_night(table, night))
        self.nights = sorted({piece.night for piece in self.pieces} | set(self._loose))
        if not self.nights:
            raise UserError(
                f"{', '.join(map(str, self.paths))}: no rows; run pytest --backend=NAME --results DIR first"
            )

    def _files(self) -> tuple[list[Path], list[Path]]:
        """Pieces, and files of JSON lines. Pieces of equal name hold equal rows, wherever they lie: one of them is read."""
        pieces: dict[str, Path] = {}
        lines = []
        for path in self.paths:
            if not path.exists():
                raise UserError(f"{path}: no such folder or file; give a results folder")
            files = files_in(path)
            lines += files.lines
            for piece in files.pieces:
                pieces.setdefault(piece.name, piece)
        return list(pieces.values()), lines

    @cached_property
    def _overlapping(self) -> set[str]:
        """Nights in which two pieces or files share a run."""
        overlapping = set()
        for night in self.nights:
            known: set[str] = set()
            of_files: list[Iterable[str]] = [piece.runs for piece in self.pieces if piece.night == night]
            of_files += [table["run"].unique().to_pylist() for table in self._loose.get(night, [])]
            for runs in of_files:
                if known.intersection(runs):
                    overlapping.add(night)
                known.update(runs)
        return overlapping

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
            raise UserError(f"{', '.join(map(str, self.paths))}: no rows of these nights; {self.span()}")
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
        keys, known, parts = Keys(), np.zeros(0, np.int64), []
        nobody: set[tuple[str, ...]] = set()
        for night in reversed(chosen):
            table = self.table(night, [*KEY, "time", "run", "attempt"])
            codes = keys.codes(table)
            fresh = np.flatnonzero((codes >= 0) & ~among(codes, known))
            order = table.select(["time", "run", "attempt"]).take(fresh).to_pandas()
            order["run"] = order["run"].astype(str)
            order["code"], order["at"] = codes[fresh], fresh
            last = order.sort_values(["time", "run", "attempt"], kind="stable").drop_duplicates("code", keep="last")
            taken = last["at"].tolist()
            if absent and (codes < 0).any():
                of_no_cell = np.flatnonzero(codes < 0)
                asked = self.table(night, ["box", "backend", "version"]).take(of_no_cell).to_pylist()
                here = {tuple(who.values()): at for who, at in zip(asked, of_no_cell.tolist(), strict=True)}
                taken += [at for who, at in here.items() if who not in nobody]
                nobody |= here.keys()
            if taken:
                parts.append(self.table(night, columns).take(sorted(taken)))
                known = union(known, codes[fresh])
        return pa.concat_tables(parts) if parts else self.table(self.nights[-1], columns).slice(0, 0)

    def history(self, nights: Iterable[str] | None = None) -> History:
        """Every series over the nights, of each night the latest row. Costs 6 bytes a series and night."""
        chosen = self.nights if nights is None else sorted(set(nights) & set(self.nights))
        keys, known = Keys(), np.zeros(0, np.int64)
        columns: list[tuple[np.ndarray, ...]] = []
        for night in chosen:
            table = self.table(night, [*KEY, "seen", "status", "value", "bound", "time"])
            codes = keys.codes(table)
            seen = looked_up(table["seen"], verdict.SEVERITY.index, np.int8)
            expected = looked_up(table["status"], ("XFAIL", "XPASS").__contains__, np.bool_)
            order = np.arange(len(codes))
            # In one piece the rows of a check stand in order of time.
            if table["time"].num_chunks > 1 or night in self._overlapping:
                order = np.argsort(table["time"].to_numpy(), kind="stable")
            order = order[codes[order] >= 0]
            codes = codes[order]
            if columns and np.array_equal(codes, columns[-1][0]):
                codes = columns[-1][0]  # the same cells as the night before: kept once
            elif not among(codes, known).all():
                known = union(known, codes)
            columns.append((codes, *(column[order] for column in (seen, expected, share(table)))))
        shape = (len(chosen), len(known))
        empty = np.full(shape, -1, np.int8), np.zeros(shape, np.bool_), np.full(shape, np.nan, np.float32)
        tables: list[np.ndarray] = list(empty)
        for number, (codes, *values) in enumerate(columns):
            if not number or codes is not columns[number - 1][0]:
                at = np.searchsorted(known, codes)
            for table, value in zip(tables, values, strict=True):
                table[number, at] = value
        status, expected, used = (table.T for table in tables)
        return History(keys.frame(known), chosen, status, expected, used)


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
        values: list[Any] = column.to_pylist()
        return values
    words = [chunk.dictionary.to_pylist() for chunk in column.chunks]
    return [own[at] for own, chunk in zip(words, column.chunks, strict=True) for at in chunk.indices.to_pylist()]
