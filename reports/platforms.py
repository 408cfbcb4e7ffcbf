"""Which box kinds have been run: platform × runtime, how far each got, on which box, and when; ⬜ where nothing ran.

A row does not name its platform: the device of a cell does, and for a CPU the instructions that the cost row lists.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tabulate import tabulate

from harness.core import verdict
from harness.core.cell import SIMULATOR
from harness.core.rows import Row, depth, named, newest, seen_status

JETSONS = ("orin", "xavier", "thor", "tegra", "jetson")
X86, GPU, JETSON, RK3588 = "x86-64", "NVIDIA GPU", "Jetson", "RK3588 NPU"
ARM64, ASCEND, FPGA, OTHER = "RK3399 and other ARM64", "Ascend", "FPGA", "other"
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
    device = rows[0].device.replace(SIMULATOR, "", 1)
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
    flags: list[str] = next((row.detail["cpu"] for row in rows if row.check == "cost" and "cpu" in row.detail), [])
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
    for cell in cells.values():
        simulated = cell[0].simulated  # never on the line of the device itself
        groups.setdefault((platform(cell), named(cell[0].backend, cell[0].version), simulated), []).append(cell)
    order = {name: number for number, name in enumerate((*PLATFORMS, OTHER))}
    return [_line(*key[:2], groups[key]) for key in sorted(groups, key=lambda key: (order[key[0]], *key[1:]))]


def _line(on: str, runtime: str, cells: list[list[Row]]) -> Reached:
    rows = [row for cell in cells for row in cell]
    counts: dict[str, int] = {}
    for cell in cells:
        status = verdict.worst(seen_status(row) for row in cell)
        kind = next(row.kind for row in cell if seen_status(row) == status)
        symbol = verdict.WORDS[verdict.called(status, kind, simulated=cell[0].simulated)].symbol
        counts[symbol] = counts.get(symbol, 0) + 1
    words = " ".join(f"{count} {symbol}" for symbol, count in sorted(counts.items()))
    boxes = ", ".join(sorted({row.box for row in rows}))
    return Reached(on, runtime, depth(rows), words, boxes, max(row.time for row in rows)[:10])


def table(rows: Iterable[Row], style: str = "simple") -> str:
    """Every platform, with its runtimes, or ⬜ where nothing ran. ``style``: tabulate's."""
    lines = reached(rows)
    body = [list(line) for line in lines]
    run = {line.platform for line in lines}
    body += [[name, "⬜", "nothing ran", "", "", ""] for name in PLATFORMS if name not in run]
    order = {name: number for number, name in enumerate((*PLATFORMS, OTHER))}
    body.sort(key=lambda line: order[str(line[0])])
    page: str = tabulate(body, headers=["platform", "runtime", "depth", "cells", "box", "last run"], tablefmt=style)
    return page
