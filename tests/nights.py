"""Rows of made-up boxes and nights, for what reads rows and runs nothing."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from harness.core import verdict
from harness.core.rows import Row, to_json

FIRST = date(2026, 11, 1)
BUNDLE = "toy@0123456789ab"


def day(number: int) -> str:
    """The day of night ``number``, from 0."""
    return (FIRST + timedelta(days=number)).isoformat()


def row(
    check: str = "logits",
    status: str = "PASS",
    box: str = "lab",
    backend: str = "ort",
    version: str = "1.32.0",
    layout: str = "unified",
    opset: int = 17,
    reason: str = "",
    **fields: Any,
) -> Row:
    """A row of a cell; ``reason`` is that of the expectation of an XFAIL or XPASS."""
    detail: dict[str, Any] = {}
    if check == "tokens":
        detail["rows"] = {"MATCH": 100, "TIE": 0, "DIVERGED": 0}
    if status in ("XFAIL", "XPASS"):
        detail["expected"] = {"seen": "FAIL" if status == "XFAIL" else "PASS", "reason": reason, "link": "a link"}
    values: dict[str, Any] = {
        "backend": backend,
        "runtime": backend,
        "version": version,
        "device": "cpu",
        "exporter": "torchscript",
        "layout": layout,
        "precision": "fp32",
        "opset": opset,
        "bundle": BUNDLE,
        "box": box,
        "cell": f"{backend}@{version}/cpu/torchscript/{layout}/fp32/op{opset}",
        "command": f"pytest --backend={backend} --opset={opset} --layout={layout} -k {check}",
        "compared": 1000 if status in ("PASS", "FAIL", "XFAIL", "XPASS") else 0,
        "detail": detail,
    }
    if check == "logits":
        values.update(metric="tail", value=1e-5, bound=4e-5, floor=1e-5)
    return Row(check, status, **{**values, **fields})


def cell(**fields: Any) -> list[Row]:
    """A row of every check."""
    return [row(check, **fields) for check in verdict.CHECKS]


def absent(backend: str, box: str = "lab") -> Row:
    return Row("probe", "ABSENT", "probe", backend=backend, box=box, message="it is not installed; pip install it")


def write(folder: Path, night: int, *rows: Row, hour: int = 2, tag: str = "") -> Path:
    """A rows file of one run of the first row's box on that night."""
    folder.mkdir(parents=True, exist_ok=True)
    box, stamp = rows[0].box, day(night)
    run = f"{box}-{stamp.replace('-', '')}T{hour:02}0000Z-1{tag}"
    times = [f"{stamp}T{hour:02}:{number // 60 % 60:02}:{number % 60:02}Z" for number in range(len(rows))]
    written = [replace(row, run=run, time=time) for row, time in zip(rows, times, strict=True)]
    path = folder / f"{run}.jsonl"
    path.write_text("".join(to_json(row) + "\n" for row in written), encoding="utf-8")
    return path
