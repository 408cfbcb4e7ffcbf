"""Which box kinds have been run: platform × runtime, how far each got, on which box, and when; ⬜ where nothing ran.

A row does not name its platform: the device of a cell does, and for a CPU the instructions that the cost row lists.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tabulate import tabulate

from harness.core import verdict
from harness.core.rows import Row, depth, named, newest, seen_status

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
    device = rows[0].device.replace("simulator-", "", 1)
    if device.startswith(("ascend", "cann")):
        return ASCEND
    if device.startswith(("rk", "rknpu")):
        return RK3588
    if device.startswith(("vitisai", "fpga")):
        return FPGA
    if any(word in device for word in JETSONS):
        return JETSON
    if rows[0].runtime.startswith("tensorrt") or device.startswith(("cuda", "tensorrt")):
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
    groups: dict[tuple[str, str, bool], list[list[Row]]] = {}
    for found in cells.values():
        simulated = found[0].simulated  # never on the line of the device itself
        groups.setdefault((platform(found), named(found[0].backend, found[0].version), simulated), []).append(found)
    order = {name: number for number, name in enumerate((*PLATFORMS, OTHER))}
    return [
        _line(*place[:2], groups[place]) for place in sorted(groups, key=lambda place: (order[place[0]], *place[1:]))
    ]


def _line(place: str, runtime: str, cells: list[list[Row]]) -> Reached:
    rows = [row for cell in cells for row in cell]
    counts: dict[str, int] = {}
    for cell in cells:
        status = verdict.worst(seen_status(row) for row in cell)
        kind = next(row.kind for row in cell if seen_status(row) == status)
        symbol = verdict.WORDS[verdict.called(status, kind, simulated=cell[0].simulated)].symbol
        counts[symbol] = counts.get(symbol, 0) + 1
    words = " ".join(f"{count} {symbol}" for symbol, count in sorted(counts.items()))
    boxes = ", ".join(sorted({row.box for row in rows}))
    return Reached(place, runtime, depth(rows), words, boxes, max(row.time for row in rows)[:10])


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
