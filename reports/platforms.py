"""Which box kinds have been run: platform × runtime, how far each got, on which box, and when; ⬜ where nothing ran.

A row does not name its platform: the device of a cell does, and for a CPU the instructions that the cost row lists.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tabulate import tabulate

from harness.judge import verdict
from harness.rows import Row, seen_status
from reports.matrix import newest

JETSONS = ("orin", "xavier", "thor", "tegra", "jetson")
X86, GPU, JETSON, RK3588, ARM64, ASCEND, FPGA, OTHER = (
    "x86-64", "NVIDIA GPU", "Jetson", "RK3588 NPU", "RK3399 and other ARM64", "Ascend", "FPGA", "other",
)  # fmt: skip
PLATFORMS = (X86, GPU, JETSON, RK3588, ARM64, ASCEND, FPGA)


class Reached(NamedTuple):
    """One runtime on one platform: its deepest stage, cells by status, boxes, and the time of its newest row."""

    platform: str
    runtime: str
    depth: str
    cells: str
    boxes: str
    last_run: str


def platform(rows: Iterable[Row]) -> str:
    """Where the rows of one cell were made."""
    rows = list(rows)
    device = rows[0].device
    if device.startswith(("ascend", "cann")):
        return ASCEND
    if device.startswith(("rk", "rknpu")):
        return RK3588
    if device.startswith(("vitisai", "fpga")):
        return FPGA
    if any(word in device for word in JETSONS):
        return JETSON
    if rows[0].runtime == "tensorrt" or device.startswith(("cuda", "tensorrt")):
        return GPU
    flags = next((row.detail["cpu"] for row in rows if row.check == "cost" and "cpu" in row.detail), [])
    if any(flag.startswith(("avx", "amx")) for flag in flags):
        return X86
    return ARM64 if any(flag.startswith(("asimd", "sve")) for flag in flags) else OTHER


def reached(rows: Iterable[Row]) -> list[Reached]:
    """A line for each runtime that ran on a platform, platforms in their order."""
    cells: dict[tuple[str, str, str], list[Row]] = {}
    for row in newest(rows):
        if row.cell:
            cells.setdefault((row.cell, row.box, row.bundle), []).append(row)
    groups: dict[tuple[str, str], list[list[Row]]] = {}
    for found in cells.values():
        groups.setdefault((platform(found), f"{found[0].backend}@{found[0].version}"), []).append(found)
    order = {name: number for number, name in enumerate((*PLATFORMS, OTHER))}
    return [_line(*place, groups[place]) for place in sorted(groups, key=lambda place: (order[place[0]], place[1]))]


def _line(place: str, runtime: str, cells: list[list[Row]]) -> Reached:
    rows = [row for cell in cells for row in cell if row.check != "artifact"]
    stages = [row.stage for row in rows if row.status not in ("ABSENT", "UNSUPPORTED")]
    refused = [row.stage for row in rows if row.status == "UNSUPPORTED"]
    # A refusal names the stage that refused; only what compared has run to the end.
    deepest = max(stages, key=verdict.STAGES.index, default="")
    depth = "ran" if deepest in ("run", "compare") else deepest
    if not stages and refused:
        depth = f"refused at {max(refused, key=verdict.STAGES.index)}"
    counts: dict[str, int] = {}
    for cell in cells:
        symbol = verdict.STATUSES[verdict.worst(seen_status(row) for row in cell)].symbol
        counts[symbol] = counts.get(symbol, 0) + 1
    words = " ".join(f"{count} {symbol}" for symbol, count in sorted(counts.items()))
    boxes = ", ".join(sorted({row.box for row in rows}))
    return Reached(place, runtime, depth, words, boxes, max(row.time for row in rows)[:10])


def table(rows: Iterable[Row], style: str = "simple") -> str:
    """Every platform, with its runtimes, or ⬜ where nothing ran. ``style``: tabulate's."""
    found = reached(rows)
    body = [list(line) for line in found]
    body += [
        [name, "⬜", "nothing ran", "", "", ""] for name in PLATFORMS if name not in {line.platform for line in found}
    ]
    order = {name: number for number, name in enumerate((*PLATFORMS, OTHER))}
    body.sort(key=lambda line: order[str(line[0])])
    return tabulate(body, headers=["platform", "runtime", "depth", "cells", "box", "last run"], tablefmt=style)
