"""Rows of one cell each, and the matrix that they make."""

import itertools
from dataclasses import replace
from typing import Any

from harness.core.rows import Row
from reports import matrix, matrix_page

CLOCK = itertools.count()


def row(
    status: str = "PASS",
    check: str = "logits",
    backend: str = "ort",
    version: str = "1.32.0",
    layout: str = "unified",
    opset: int = 17,
    **fields: Any,
) -> Row:
    """A row of a cell, later than every row made before it."""
    minutes, seconds = divmod(next(CLOCK), 60)
    values = {
        "backend": backend,
        "runtime": backend,
        "version": version,
        "device": "cpu",
        "exporter": "torchscript",
        "layout": layout,
        "precision": "fp32",
        "opset": opset,
        "bundle": "toy@0123456789ab",
        "cell": f"{backend}@{version}/cpu/torchscript/{layout}/fp32/op{opset}",
        "compared": 5 if status == "PASS" else 0,
        "run": "run",
        "time": f"2026-01-01T{minutes // 60:02}:{minutes % 60:02}:{seconds:02}Z",
    }
    return Row(check, status, **{**values, **fields})


def absent(backend: str, **fields: Any) -> Row:
    values = {"version": "", "stage": "probe", "message": "it is not installed; pip install it", **fields}
    return replace(row("ABSENT", "probe", backend, **values), cell="", opset=None)


def expected(**fields: Any) -> Row:
    detail = {"expected": {"seen": "FAIL", "reason": "a known fault", "link": "docs/live-fault.md"}}
    return row("XFAIL", step=7, message="logits at step 7", detail=detail, **fields)


def entry(*rows: Row) -> matrix.Entry:
    (found,) = matrix.build(rows).entries.values()
    return found


def lines_of(*rows: Row) -> list[str]:
    return matrix_page.terminal(matrix.build(rows)).splitlines()
