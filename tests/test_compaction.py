"""Damage, crashes and company while nights are compacted: no row is lost."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.core import rowfiles, rows
from harness.core.errors import UserError
from reports import compaction
from tests import nights
from tests.stores import compact, listing, load


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def _newer(path: Path) -> None:
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"conform"])
    pq.write_table(table.replace_schema_metadata({"conform": json.dumps({**about, "schema": 2})}), path)


@pytest.mark.parametrize(
    "damage, words",
    [
        (_flip, "damaged Parquet"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged Parquet"),
        (lambda path: path.write_bytes(b""), "damaged Parquet"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), path), "Parquet, but not of rows; take it out"),
        (_newer, "rows of schema 2, this checkout reads schema 1; update this checkout"),
    ],
    ids=["a byte", "cut short", "empty", "foreign", "newer schema"],
)
def test_damaged_parquet_is_one_line_and_no_verdict(tmp_path: Path, damage: Any, words: str) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    nights.write(tmp_path, 1, *nights.cell())
    compact(tmp_path, nights.day(1), delete=True)
    (piece,) = tmp_path.glob("*.parquet")
    damage(piece)
    with pytest.raises(UserError) as caught:
        load([tmp_path])
    assert str(caught.value).startswith(f"{piece}: {words}")
    assert "\n" not in str(caught.value)


def test_a_crash_leaves_every_row_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    was = listing(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(compaction.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(tmp_path, delete=True)
    now = listing(tmp_path)
    assert was.items() <= now.items()
    assert [name for name in now if name.endswith(".parquet")] == []
    assert len(load([tmp_path])) == 10
    compact(tmp_path, delete=True)
    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"], "the draft is gone too"


def test_a_piece_that_does_not_read_back_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, honest = nights.write(tmp_path, 0, *nights.cell()), pq.write_table
    monkeypatch.setattr(
        compaction.pq, "write_table", lambda table, *rest, **more: honest(table.slice(1), *rest, **more)
    )
    with pytest.raises(UserError, match="does not read back as written"):
        compact(tmp_path, delete=True)
    assert path.exists()
    assert not list(tmp_path.glob("*.parquet"))


def test_a_file_that_grows_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, honest = nights.write(tmp_path, 0, *nights.cell()), compaction._write

    def slow(*arguments: Any) -> None:
        honest(*arguments)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(rows.to_json(nights.row(run=path.stem, time=f"{nights.day(0)}T05:00:00Z")) + "\n")

    monkeypatch.setattr(compaction, "_write", slow)
    compact(tmp_path, delete=True)
    assert path.exists()
    assert len(load([tmp_path])) == 11


def test_a_run_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    writer = rowfiles.Writer(str(tmp_path), {})
    writer.write(nights.row())
    assert compact(tmp_path, "2999-01-01", delete=True) == [
        f"{writer.path}: still being written; left for the next time"
    ]
    writer.close()
    assert len(compact(tmp_path, "2999-01-01", delete=True)) == 2


def test_one_compaction_at_a_time(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another compaction is at work"):
        compact(tmp_path)
    os.close(handle)
    assert len(compact(tmp_path)) == 1
