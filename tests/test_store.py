"""The store: rows of many boxes and nights, JSONL and Parquet alike, each row once and none lost."""

import gzip
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import store as benchmark
from conform import cli
from harness.core import rows, verdict
from harness.core.errors import UserError
from reports import folders, matrix, store
from tests import helpers, nights
from tests.stores import LATER, compact, identity, listing, load, odd_rows


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *odd_rows())
    was = sorted(rows.to_json(row) for _, row in folders.read_all([tmp_path]))
    compact(tmp_path, delete=True)
    assert not list(tmp_path.glob("*.jsonl"))
    assert sorted(rows.to_json(row) for row in store.Store([tmp_path]).newest_rows()) == was


def test_a_real_run_comes_back_as_it_was(ort_run: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(ort_run[1], results)
    was = [rows.to_json(row) for _, row in folders.read_all([results])]
    compact(results, "2999-01-01", delete=True)
    assert sorted(rows.to_json(row) for _, row in folders.read_all([results])) == sorted(was)
    assert [path.suffix for path in results.glob("*.*") if path.is_file() and path.suffix != ".md"] == [".parquet"]
    assert list(results.glob("*/*.tokens.npz")), "sidecar files stay"


def test_jsonl_and_parquet_load_alike(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *odd_rows())
    nights.write(tmp_path, 1, *nights.cell())
    before = load([tmp_path])
    compact(tmp_path, nights.day(1), delete=True)
    after = load([tmp_path])
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".parquet", ".jsonl"]
    order = ["night", "box", "cell", "check"]
    plain = [frame.astype(dict.fromkeys(order, str)).sort_values(order) for frame in (before, after)]
    for name in before.columns:
        assert list(map(str, plain[0][name])) == list(map(str, plain[1][name])), name
    for frame in (before, after):
        for name in ("cell", "check", "status", "box", "message", "night"):
            assert isinstance(frame[name].dtype, pd.CategoricalDtype), name
        assert str(frame["time"].dtype) == "datetime64[ms, UTC]"
    assert list(load([tmp_path], ("cell", "night"), [nights.day(0)]).columns) == ["cell", "night"]
    assert len(load([tmp_path], ("cell",), [nights.day(0)])) == len(odd_rows())


def test_the_newest_row_is_the_matrix_newest(tmp_path: Path) -> None:
    for folder, night, hour, status in (
        ("a", 0, 2, "FAIL"),
        ("a", 0, 3, "PASS"),
        ("b", 1, 2, "CRASH"),
        ("b", 2, 2, "PASS"),
    ):
        nights.write(tmp_path / folder, night, *nights.cell(status=status), hour=hour)
    nights.write(tmp_path / "a", 1, nights.row(status="FAIL"), nights.row(status="FLAKY", attempt=2), tag="b")
    nights.write(tmp_path / "a", 2, *nights.cell(box="other", status="FAIL"), nights.absent("tensorrt", "other"))
    places = [tmp_path / "a", tmp_path / "b"]
    expected = matrix.newest(row for _, row in folders.read_all(places))
    compact(tmp_path / "a", nights.day(2))
    found = store.Store(places).newest_rows()
    assert sorted(map(rows.to_json, found)) == sorted(map(rows.to_json, expected))


def test_history_is_the_last_status_of_each_night(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    nights.write(tmp_path, 1, *nights.cell(status="FAIL"), hour=2)
    nights.write(tmp_path, 1, *nights.cell(status="CRASH"), hour=1)
    nights.write(tmp_path, 3, nights.row(status="XFAIL", reason="known", value=3e-5), nights.absent("tensorrt"))
    compact(tmp_path, nights.day(2))
    found = store.Store([tmp_path]).history()
    assert found.nights == [nights.day(0), nights.day(1), nights.day(3)]
    assert len(found.keys) == 10
    (at,) = np.flatnonzero(found.keys["check"] == "logits")
    assert tuple(found.keys.iloc[at]) == ("lab", nights.BUNDLE, nights.row().cell, "logits")
    words = [verdict.SEVERITY[status] if status >= 0 else None for status in found.status[at]]
    assert words == ["PASS", "FAIL", "FAIL"]
    assert found.used[at] == pytest.approx([0.25, 0.25, 0.75])
    (other,) = np.flatnonzero(found.keys["check"] == "cost")
    assert found.status[other, 2] == -1
    assert np.isnan(found.used[other]).all()


def test_only_finished_nights_are_compacted_and_nothing_is_touched(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    nights.write(tmp_path, 1, *nights.cell())
    was = listing(tmp_path)
    (said,) = compact(tmp_path, nights.day(1))
    assert said.startswith(f"{nights.day(0)}: 10 rows of 1 runs -> ")
    now = listing(tmp_path)
    assert {name: now.get(name) for name in was} == was
    assert len(now) == 3
    assert len(load([tmp_path])) == 20, "nothing counts twice"


def test_compacting_twice_changes_nothing(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    compact(tmp_path)
    was = listing(tmp_path)
    assert compact(tmp_path) == []
    assert listing(tmp_path) == was
    assert compact(tmp_path, delete=True)[0].endswith("deleted, its 10 rows are in Parquet")
    assert compact(tmp_path, delete=True) == []
    assert len(load([tmp_path])) == 10


def test_a_run_over_midnight_is_one_night(tmp_path: Path) -> None:
    path = nights.write(tmp_path, 0, *nights.cell(), hour=23)
    path.write_text(path.read_text(encoding="utf-8").replace(f"{nights.day(0)}T23:00:09", f"{nights.day(1)}T00:00:01"))
    assert store.Store([tmp_path]).nights == [nights.day(0)]
    assert compact(tmp_path, nights.day(0)) == []
    assert len(compact(tmp_path, nights.day(1))) == 1


def test_the_same_file_copied_twice_counts_once(tmp_path: Path) -> None:
    path = nights.write(tmp_path, 0, *nights.cell())
    shutil.copy(path, tmp_path / "copy (1).jsonl")
    assert len(load([tmp_path])) == 10
    assert len(compact(tmp_path)) == 1
    assert len(load([tmp_path])) == 10
    compact(tmp_path, delete=True)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(load([tmp_path])) == 10


def test_pieces_of_two_folders_merge_by_copying(tmp_path: Path) -> None:
    """One folder compacted a run while it was half copied, the other the whole of it."""
    half, whole, merged = tmp_path / "half", tmp_path / "whole", tmp_path / "merged"
    path = nights.write(whole, 0, *nights.cell())
    half.mkdir()
    (half / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    nights.write(half, 0, *nights.cell(box="other"))
    merged.mkdir()
    for folder in (half, whole):
        compact(folder, delete=True)
        for piece in folder.glob("*.parquet"):
            shutil.copy(piece, merged)
    assert len(list(merged.iterdir())) == 2
    assert identity(load([merged])) == identity(load([whole, half]))
    assert len(load([merged])) == 20
    assert store.Store([merged]).history().status.shape == (20, 1)
    nights.write(merged, 0, *nights.cell())
    assert len(load([merged])) == 20
    assert compact(merged) == [], "all of it is there already"


def test_equal_pieces_have_equal_names(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        nights.write(tmp_path / folder, 0, *nights.cell())
        compact(tmp_path / folder)
    names = [{path.name for path in (tmp_path / folder).glob("*.parquet")} for folder in ("a", "b")]
    assert names[0] == names[1]
    assert len(load([tmp_path / "a", tmp_path / "b"])) == 10


def test_late_rows_add_a_piece(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    compact(tmp_path, delete=True)
    was = listing(tmp_path)
    nights.write(tmp_path, 0, *nights.cell(box="slow"))
    (said, gone) = compact(tmp_path, delete=True)
    assert "10 rows of 1 runs, 10 of them late -> " in said
    assert "deleted" in gone
    now = listing(tmp_path)
    assert len(now) == 2
    assert was.items() <= now.items()
    assert sorted(set(load([tmp_path])["box"])) == ["lab", "slow"]


def test_a_run_that_grew_after_it_was_compacted_is_whole(tmp_path: Path) -> None:
    path = nights.write(tmp_path, 0, *nights.cell())
    text = path.read_text()
    path.write_text("".join(text.splitlines(keepends=True)[:6]))
    compact(tmp_path)
    path.write_text(text)
    assert len(load([tmp_path])) == 10
    assert "4 of them late" in compact(tmp_path, delete=True)[0]
    assert len(load([tmp_path])) == 10


def test_a_last_line_cut_short_is_said_and_the_file_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = nights.write(tmp_path, 0, *nights.cell())
    path.write_text(path.read_text()[:-30])
    assert len(load([tmp_path])) == 9
    assert capsys.readouterr().err == f"note: {path}: the last line is cut short; 9 rows before it are read\n"
    said = compact(tmp_path, delete=True)
    assert said[-1] == f"{path}: the last line is cut short; its 9 whole rows are read, the file is kept"
    assert path.exists()
    assert len(load([tmp_path], say=said.append)) == 9


def test_compressed_rows_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = nights.write(tmp_path, 0, *nights.cell())
    was = identity(load([tmp_path]))
    (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert identity(load([tmp_path])) == was
    path.unlink()
    assert identity(load([tmp_path])) == was
    assert capsys.readouterr().err == "", "and whole"


def test_a_newer_schema_is_left_alone_and_stops_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    newer = nights.write(tmp_path, 0, *nights.cell(box="modern"))
    newer.write_text(newer.read_text().replace('"schema": 1', '"schema": 2'))
    was = newer.read_bytes()
    assert cli.main(["compact", str(tmp_path), "--delete", "--before", LATER]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        f"{newer}, line 1: not a row (schema 2, this checkout reads schema 1); update this checkout"
    )
    assert len(lines) == 3
    assert newer.read_bytes() == was
    with pytest.raises(UserError, match="update this checkout"):
        load([tmp_path])


def test_compacted_nights_are_in_the_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    nights.write(tmp_path, 1, *nights.cell(opset=9, status="CRASH"))
    shown = []
    for _ in range(2):
        assert cli.main(["matrix", str(tmp_path), "--format", "csv"]) == 0
        shown.append(capsys.readouterr().out)
        compact(tmp_path, nights.day(1), delete=True)
    assert shown[0].count("\n") == 3
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("compact", "nowhere"), "nowhere: not a results folder"),
        (("compact", "empty"), "empty: no rows; run pytest"),
        (("diff", "nowhere", "full"), "nowhere: no such folder or file"),
        (("diff", "nowhere@2026-11-01", "full"), "nowhere: no such folder or file"),
        (("diff", "full@2026-12-01", "full"), "full@2026-12-01: no rows of that night; there are 1 nights, 2026-11-01"),
        (
            ("diff", "full@last-good", "full"),
            "full@last-good: no night has passed a gate yet; conform gate full@newest --policy nightly --good",
        ),
        (("diff", "full", "empty"), "empty: no rows; run pytest"),
        (("diff", "absent", "full"), "absent: no cell has a row; nothing can be compared"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nights.write(Path("full"), 0, *nights.cell())
    nights.write(Path("absent"), 0, nights.absent("tensorrt"))
    Path("empty").mkdir()
    assert cli.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


def test_a_time_that_is_none_is_named(tmp_path: Path) -> None:
    path = nights.write(tmp_path, 0, *nights.cell())
    path.write_text(path.read_text().replace(f"{nights.day(0)}T02", "yesterday"))
    with pytest.raises(UserError, match="not UTC such as"):
        load([tmp_path])


@pytest.mark.parametrize("code", ["import conform.plugin, reports.matrix", "from conform import cli; cli._parser()"])
def test_pandas_is_not_loaded_by_a_run_or_by_help(code: str) -> None:
    code += "; import sys; sys.exit(bool({'pandas', 'pyarrow'} & set(sys.modules)))"
    assert helpers.subprocess.run([sys.executable, "-c", code], cwd=helpers.ROOT).returncode == 0


def test_the_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    benchmark.fill(tmp_path, nights=2, columns=2, cells=2)
    assert "newly failing 1" in benchmark.compare_nights(tmp_path)
    assert benchmark.report(tmp_path) == "4 cells, 3 nights"


def test_a_piece_of_an_earlier_release_knows_its_execution_by_device_and_version(tmp_path: Path) -> None:
    nights.write(tmp_path, 0, nights.row(), nights.row("tokens", device="simulator-npu"))
    compact(tmp_path, delete=True)
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["execution"]), path)
    rows = store.Store([tmp_path]).newest_rows()
    assert {row.check: row.execution for row in rows} == {"logits": "device", "tokens": "simulator"}
