"""Results folders as the commands take them: rows in JSONL, and nights that `conform compact` put into Parquet."""

from collections.abc import Sequence
from pathlib import Path

from harness.core import rowfiles, rows


def filled(place: Path) -> bool:
    """Whether a place is, or has, a file of rows."""
    return place.is_file() or any(any(place.glob(f"*{suffix}")) for suffix in (".jsonl", ".jsonl.gz", ".parquet"))


def read_all(places: Sequence[Path]) -> list[tuple[Path, rows.Row]]:
    """Every row in JSONL, and of each folder's Parquet the newest row of each check of each cell; each with the folder that
    its sidecar path starts from. Raises UserError for what cannot be read, and when there is no row at all."""
    compacted = {place: pieces for place in places if (pieces := sorted(place.glob("*.parquet")))}
    plain = [place for place in places if place not in compacted or any(place.glob("*.jsonl*"))]
    found = rowfiles.read_all(plain) if plain or not compacted else []
    if compacted:
        from reports.store import Store  # slow to import, and of no use on a box

        found += [(place, row) for place, pieces in compacted.items() for row in Store(pieces).newest_rows()]
    return found
