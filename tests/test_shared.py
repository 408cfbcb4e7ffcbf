"""Cells shared out to the processes of pytest-xdist, ``pytest -n``."""

from pathlib import Path
from typing import Any

from tests import helpers
from tests.runs import OFFSET, ONE_CELL, error_line


def test_cells_are_shared_out_under_xdist(tmp_path: Path, valid: Any) -> None:
    page = tmp_path / "junit.xml"
    done = helpers.conformance(
        tmp_path / "results",
        "--backend=ort",
        "--opset=16-17",
        "-n",
        "2",
        f"--junitxml={page}",
        "-k",
        "encoder or tokens or text or cost",
    )
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(tmp_path / "results")
    valid(rows)
    assert len(rows) == 4 * 7
    by_cell: dict[str, set[str]] = {}
    for row in rows:
        assert row["status"] == "PASS"
        by_cell.setdefault(row["cell"], set()).add(row["run"])
    assert all(len(runs) == 1 for runs in by_cell.values()), "a cell is one process's"
    for cost in (row for row in rows if row["check"] == "cost"):
        assert (cost["value"], "no figures" in cost["message"]) == (None, True)
        assert not any("second" in name for name in cost["detail"])
    assert "compatibility matrix" in done.stdout
    assert "28 rows: 28 PASS" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert text.count('<property name="cell" value="ort@') == 28
    assert '<property name="blame" value=""' in text


def test_what_is_wrong_for_every_process_is_said_once(tmp_path: Path) -> None:
    for options, words in (
        (["--backend=orrt"], "did you mean 'ort'"),
        ([f"--bundle={tmp_path}"], "manifest.json"),
        (["--resume"], "leave -n out"),
    ):
        done = helpers.conformance(tmp_path / "results", *ONE_CELL, "-n", "2", *options)
        assert done.returncode == 4, done.stdout
        assert words in error_line(done)
    done = helpers.conformance(
        tmp_path / "results", *ONE_CELL, "-n", "2", "--backend=ort,ort@1.2", "-k", "encoder or probe"
    )
    assert done.returncode == 4, done.stdout
    assert done.stdout.count("ort@1.2 is absent") == 1


def test_a_failure_is_a_failure_under_xdist(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(OFFSET, encoding="utf-8")
    done = helpers.conformance(
        tmp_path / "results", *ONE_CELL, "--backend=bad:Offset", "-n", "2", "-k", "logits", PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 1, done.stdout
    assert "blame: " in done.stdout
    assert "❌" in done.stdout
