"""What tests of the store have in common."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core import rows
from reports import compaction, store
from reports.pieces import COLUMNS
from tests import nights

LATER = nights.day(300)


def compact(folder: Path, before: str = LATER, **options: Any) -> list[str]:
    said: list[str] = []
    compaction.compact(folder, before, say=said.append, **options)
    return said


def load(
    paths: list[Path], columns: tuple[str, ...] = (*COLUMNS, "night"), nights: list[str] | None = None, **say: Any
) -> pd.DataFrame:
    """The rows of folders as one frame."""
    return store.Store(paths, detail="detail" in columns, **say).frame(columns, nights)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def identity(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(zip(frame["run"], frame["cell"], frame["check"], frame["attempt"], strict=True))


def odd_rows() -> list[rows.Row]:
    """Whatever a row may hold."""
    return [
        nights.row(value=math.inf, bound=-math.inf, floor=math.nan, step=None, message="阀门 | <b>\u2028 \ud7ff"),
        nights.row("tokens", "FAIL", step=7, value=None, detail={"a": ["inf", {"b": None}], "中": 1.5}),
        nights.row("text", "XFAIL", reason="known"),
        nights.row("kv_shape", attempt=2, compared=2**40, seconds=0.1 + 0.2),
        nights.row("cost", opset=9),
        nights.row(opset=9, box="other", bundle="another@0"),
    ]
