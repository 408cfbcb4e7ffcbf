"""Rows of earlier runs that would come out the same, for ``--reuse``; without it every check is run again.

A run notes, for each runtime, the *condition* of its answers: a hash of the bundle, of the harness and the adapters, and of
interpreter, packages and processor of the worker and of the host, which checks the files and scores the text. What pip does
not know is not in it: drivers, and libraries of the system.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.core.rowfiles import box_name, read
from harness.core.rows import Row, contradiction, named
from harness.core.selectors import ROOT

SETTLED = ("PASS", "FAIL", "UNSUPPORTED", "UNVERIFIED", "XFAIL", "XPASS")
"""What a runtime answered. A crash, a hang, a fault of the box or attempts that differ are asked again."""


def sources() -> str:
    """SHA-256 of whatever in this checkout decides about a row: harness, adapters, expectations."""
    digest = hashlib.sha256()
    walks = (os.walk(os.path.join(ROOT, folder)) for folder in ("harness", "backends"))
    paths = [os.path.join(where, name) for where, _, names in itertools.chain(*walks) for name in names]
    for path in sorted(path for path in paths if path.endswith((".py", ".toml"))):
        with open(path, "rb") as stream:
            digest.update(path[len(ROOT) :].encode() + b"\n" + stream.read())
    return digest.hexdigest()


def condition(*parts: str) -> str:
    """One hash for all that must be equal. ``parts``: bundle, sources, surroundings of worker and host."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def settled(results: Path, conditions: Mapping[str, str]) -> Iterator[Row]:
    """The rows, of this box's runs in the folder, of cells that were settled under the same condition, and whose sidecar
    files are still there; of a cell the newest run counts, even if it settled nothing. Raises UserError."""
    cells: dict[str, list[Row]] = {}
    for note in sorted(results.glob(f"{box_name()}-*/run.json"), key=lambda path: path.stat().st_mtime):
        cells.update(_cells_of(note, conditions))
    for answers in cells.values():
        last = {row.check: row for row in answers}.values()
        if all(_is_settled(row) and (not row.series or (results / row.series).is_file()) for row in last):
            yield from last


def _cells_of(note: Path, conditions: Mapping[str, str]) -> dict[str, list[Row]]:
    """The rows of one run, by cell, of the runtimes whose condition is the same today. ``note``: the run's run.json."""
    try:
        noted = json.loads(note.read_text(encoding="utf-8")).get("conditions", {})
    except (OSError, ValueError, AttributeError):
        return {}  # damaged or gone: not a run to rely on
    same = {name for name, condition in noted.items() if condition and condition == conditions.get(name)}
    rows = note.parent.parent / f"{note.parent.name}.jsonl"
    cells: dict[str, list[Row]] = {}
    for row in read(str(rows)) if same and rows.exists() else ():
        if row.cell and row.box == box_name() and named(row.backend, row.version) in same:
            cells.setdefault(row.cell, []).append(row)
    return cells


def _is_settled(row: Row) -> bool:
    confirmed = row.status != "FAIL" or row.attempt > 1  # a run may have been killed between the two attempts
    return row.status in SETTLED and confirmed and not contradiction(row)
