"""The reader of results folders and rows files, of JSONL and Parquet alike."""

from collections.abc import Iterable
from pathlib import Path

from harness.core import rowfiles
from harness.core.errors import UserError
from harness.core.rows import Row


def filled(path: Path) -> bool:
    """Whether a path is, or has, a file of rows."""
    return path.is_file() or (path.is_dir() and any(rowfiles.files_in(path)))


def read_all(paths: Iterable[Path]) -> list[tuple[Path, Row]]:
    """Every row in JSONL, and of each folder's Parquet the newest row of each check of each cell; each with the folder that
    its sidecar path starts from. Raises UserError for what cannot be read, and when there is no row at all."""
    paths = [Path(path) for path in paths]
    rows: list[tuple[Path, Row]] = []
    for path in paths:
        folder, files = path if path.is_dir() else path.parent, rowfiles.files_in(path)
        rows += [(folder, row) for file in files.lines for row in rowfiles.read(str(file))]
        if files.pieces:
            from reports.store import Store  # slow to import, and of no use on a box

            rows += [(folder, row) for row in Store(files.pieces).newest_rows()]
    if not rows:
        raise UserError(f"{', '.join(map(str, paths))}: no rows; run pytest --backend=NAME --results DIR first")
    return rows
