"""``conform expectations``: what the rows say the expectation files should be, as a diff, and written with ``--update``."""

import argparse
import difflib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.core import verdict
from harness.core.rows import Row, newest
from harness.core.selectors import ROOT, names
from harness.run import expectations

HELP = "show how rows would change the files of expected failures"
EXAMPLE = "conform expectations results --update"

FOLDER = Path(ROOT) / "backends" / "expectations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="*", type=Path, default=[Path("results")], help="folders or files (default: results)"
    )
    parser.add_argument("--update", action="store_true", help="write the files too")


def run(options: argparse.Namespace) -> int:
    from reports.folders import read_all

    changes = proposals(newest(row for _, row in read_all(options.results)))
    for path, (old, new) in changes.items():
        print(diff(path, old, new), end="")
        if options.update:
            path.write_text(new, encoding="utf-8")
    if not changes:
        print("the expectations fit these rows")
    elif not options.update:
        print("nothing written; add --update to write this")
    return 0


def proposals(rows: Iterable[Row]) -> dict[Path, tuple[str, str]]:
    """Old and new text of each backend's file that should change. Only adapters of this checkout own one.

    An entry that only met passes goes; a failure that no entry covers gets one, whose reason is the row's own message.
    """
    changes: dict[Path, tuple[str, str]] = {}
    known = set(names())
    ordered = sorted(
        (row for row in rows if row.check in verdict.CHECKS and row.backend in known), key=lambda row: row.backend
    )
    for backend, group in groupby(ordered, key=lambda row: row.backend):
        path = FOLDER / f"{backend}.toml"
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = _updated(old, backend, list(group))
        if new != old:
            changes[path] = (old, new)
    return changes


def _updated(old: str, backend: str, rows: list[Row]) -> str:
    import tomlkit

    document = tomlkit.parse(old)
    entries: Any = document.get("expect", tomlkit.aot())
    loaded = expectations.load(backend)
    for index in reversed(range(len(loaded))):
        met = [row for row in rows if loaded[index].covers(row) and row.status not in ("UNSUPPORTED", "ABSENT")]
        if met and all(row.status in ("PASS", "XPASS") for row in met):
            del entries[index]
    bare = [row for row in rows if verdict.STATUSES[row.status].outcome == "fail" and row.status != "XPASS"]
    bare = [row for row in bare if not any(entry.covers(row) for entry in loaded)]

    def alike(row: Row) -> tuple[str, str, str, str]:
        return row.version, row.layout, row.status, row.check

    for (version, layout, status, check), group in groupby(sorted(bare, key=alike), key=alike):
        same = list(group)
        opsets = sorted({row.opset for row in same if row.opset is not None})
        entry = tomlkit.table()
        entry.update({"checks": [check], "status": status, "version": f"=={version}", "layout": layout})
        entry["opset"] = f"{opsets[0]}-{opsets[-1]}" if len(opsets) > 1 else str(opsets[0])
        entry["reason"] = f"not yet explained: {same[0].message}"[:200]
        entry["link"] = f"results: {same[0].run}"
        entries.append(entry)
    if len(entries):
        document["expect"] = entries
    elif "expect" in document:
        del document["expect"]
    return tomlkit.dumps(document)


def diff(path: Path, old: str, new: str) -> str:
    name = str(path.relative_to(ROOT))
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, name))
