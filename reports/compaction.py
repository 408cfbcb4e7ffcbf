"""``conform compact``: finished nights of a folder's JSONL files as Parquet pieces, none of them ever rewritten."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.core.errors import UserError
from harness.core.rows import SCHEMA
from reports.pieces import (
    KEY,
    WORD,
    Loose,
    Piece,
    distinct,
    inspect,
    nights_of,
    only_runs,
    read_loose,
    read_piece,
)


def today() -> str:
    """The UTC day."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def compact(folder: Path, before: str, delete: bool = False, say: Callable[[str], None] = print) -> bool:
    """Write the finished nights, those before the day ``before``, of a folder's JSONL files as pieces; a line for each
    and for what is left alone. Returns whether every file could be read. Files that are wholly in pieces are deleted only
    when asked. A crash leaves every row where it was. Raises UserError for damaged pieces, and when there is no row."""
    with _alone(folder):
        for draft in folder.glob("*.parquet.part"):
            draft.unlink()  # of a compaction that was killed
        pieces = [inspect(path) for path in sorted(folder.glob("*.parquet"))]
        covered = {item for piece in pieces for item in piece.sources.items()}
        files, readable, going = [], True, False
        for path in sorted(folder.glob("*.jsonl")):
            if (path.name, path.stat().st_size) in covered and not delete:
                continue
            if _being_written(path):
                say(f"{path}: still being written; left for the next time")
                going = True
                continue
            try:
                file = read_loose(path, detail=False)
            except UserError as error:
                say(f"{error}; left as it is")
                readable = False
                continue
            # A backlog may be larger than memory: what is kept of a file until its night's turn is small.
            files.append(file._replace(table=file.table.select(["run", "time", "id"])))
        if readable and not (files or pieces or going):
            raise UserError(f"{folder}: no rows; run pytest --backend=NAME --results DIR first")
        nights = nights_of(files, pieces)
        for night in sorted({night for night in nights.values() if night < before}):
            runs = {run for run, its in nights.items() if its == night}
            its_files = [read_loose(file.path, detail=True) for file in files if file.runs & runs]
            piece = _compact_night(folder, night, its_files, runs, pieces, say)
            pieces += [piece] if piece else []
        for file in files:
            if file.cut:
                say(
                    f"{file.path}: the last line is cut short; its {len(file.table)} whole rows are read, the file is kept"
                )
            elif delete:
                _delete(file, pieces, say)
        return readable


def _compact_night(
    folder: Path, night: str, files: list[Loose], runs: set[str], pieces: list[Piece], say: Callable[[str], None]
) -> Piece | None:
    """One piece of the runs that the pieces do not hold in full; None when there is none."""
    if not files:
        return None
    table = distinct(pa.concat_tables([only_runs(file.table, runs) for file in files]))
    kept = _ids(piece for piece in pieces if piece.runs & runs)
    new = ~np.isin(table["id"].to_numpy(), kept)
    if not new.any():
        return None
    # Whole runs, even where a part of one was compacted before: then a piece alone says which files it covers.
    fresh = set(table.filter(pa.array(new))["run"].unique().to_pylist())
    table = only_runs(table, fresh)
    # Rows of one check side by side compress best, and stand in order of time.
    order = pa.table({name: _plain(table)[name] for name in (*KEY, "time", "run", "attempt")})
    table = table.unify_dictionaries().take(
        pc.sort_indices(order, [(name, "ascending") for name in order.column_names])
    )
    sources = {file.path.name: file.stat[0] for file in files if file.runs <= fresh and not file.cut}
    digest = hashlib.sha256(np.sort(table["id"].to_numpy()).tobytes()).hexdigest()[:12]
    path = folder / f"{night}-{digest}.parquet"
    about = {"schema": SCHEMA, "night": night, "runs": sorted(fresh), "sources": sources}
    _write(table.replace_schema_metadata({"conform": json.dumps(about)}), path)
    late = f", {int(new.sum())} of them late" if any(piece.night == night for piece in pieces) else ""
    say(f"{night}: {len(table)} rows of {len(fresh)} runs{late} -> {path}")
    return Piece(path, night, frozenset(fresh), sources)


def _write(table: pa.Table, path: Path) -> None:
    """On disk under its name only when it is whole and reads back equal."""
    draft = path.with_name(path.name + ".part")
    pq.write_table(table, draft, compression="zstd", write_page_checksum=True)
    with draft.open("rb") as stream:
        os.fsync(stream.fileno())
    # Compared in text: two dictionaries may list equal words in another order.
    if not _plain(pq.read_table(draft)).equals(_plain(table)):
        raise UserError(f"{draft}: does not read back as written; look at the disk, nothing was deleted")
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _plain(table: pa.Table) -> pa.Table:
    schema = pa.schema([(item.name, pa.string() if item.type == WORD else item.type) for item in table.schema])
    table = table.cast(schema)
    # A NaN equals no NaN, not even its own copy.
    for number, item in enumerate(schema):
        if item.type == pa.float64():
            table = table.set_column(number, item.name, pc.cast(table[item.name], pa.string()))
    return table.combine_chunks()


def _ids(pieces: Iterable[Piece]) -> np.ndarray:
    ids = [read_piece(piece, ["id"])["id"].to_numpy() for piece in pieces]
    return np.concatenate(ids) if ids else np.zeros(0, np.int64)


def _delete(file: Loose, pieces: list[Piece], say: Callable[[str], None]) -> None:
    """Take a JSONL file away when the pieces, read again from disk, hold its every row."""
    kept = _ids(piece for piece in pieces if piece.runs & file.runs)
    stat = file.path.stat()
    if not np.isin(file.table["id"].to_numpy(), kept).all() or (stat.st_size, stat.st_mtime_ns) != file.stat:
        return
    file.path.unlink()
    say(f"{file.path}: deleted, its {len(file.table)} rows are in Parquet")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One compaction at a time. Raises UserError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{folder}: not a results folder ({error.strerror}); give one") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder}: another compaction is at work in it; wait for it") from error
        yield
    finally:
        os.close(handle)


def _being_written(path: Path) -> bool:
    """Whether a run on this machine holds the file."""
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
