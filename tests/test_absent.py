"""Backends that are absent, that refuse everything, or that fail when they are probed."""

from pathlib import Path
from typing import Any

import pytest

from tests import helpers
from tests.runs import ONE_CELL, error_line


def test_a_module_without_that_class_is_an_error_row(tmp_path: Path, valid: Any) -> None:
    (tmp_path / "empty_adapter.py").write_text("", encoding="utf-8")
    done = helpers.conformance(
        tmp_path / "results", "--backend=empty_adapter:Nothing", *ONE_CELL, PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 1
    rows = helpers.rows_in(tmp_path / "results")
    valid(rows)
    assert {(row["check"], row["status"], row["stage"]) for row in rows} == {("probe", "ERROR", "probe")}
    assert "has no attribute 'Nothing'" in rows[0]["message"]


@pytest.mark.parametrize("options", [["-k", "kv_shape"], ["-k", "kv_shape", "--allow-absent"]], ids=["", "allowed"])
def test_absent_beside_present(tmp_path: Path, options: list[str], valid: Any) -> None:
    """The others run, one row says so, and the exit code is 4 unless that was allowed."""
    done = helpers.conformance(tmp_path, "--backend=tests.faults:Missing,ort@1.0,ort", *ONE_CELL, *options)
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert sorted((row["backend"], row["check"], row["status"]) for row in rows) == [
        ("ort", "kv_shape", "PASS"),
        ("ort", "probe", "ABSENT"),
        ("tests.faults:Missing", "probe", "ABSENT"),
    ]
    assert done.returncode == (0 if "--allow-absent" in options else 4), done.stdout
    assert "⬜ tests.faults:Missing: no such device on this box; plug one in" in done.stdout
    assert "⬜ ort@1.0: version 1.0 was asked for" in done.stdout
    assert "⬜ not run here" in done.stdout
    assert "⬜ tests.faults:Missing" in (tmp_path / "matrix.md").read_text(encoding="utf-8")


def test_all_absent_ends_at_once(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(tmp_path, "--backend=ort@1.0,tests.faults:Missing")
    assert done.returncode == 4
    line = error_line(done)
    assert "ort@1.0 is absent: version 1.0 was asked for" in line
    assert "tests.faults:Missing is absent: no such device" in line
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert [row["status"] for row in rows] == ["ABSENT", "ABSENT"]


def test_each_absent_version_has_its_row(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=ort@1.0,ort@1.1")
    assert done.returncode == 4
    rows = helpers.rows_in(tmp_path)
    assert [(row["backend"], row["version"], row["status"]) for row in rows] == [
        ("ort", "1.0", "ABSENT"),
        ("ort", "1.1", "ABSENT"),
    ]


def test_all_absent_is_no_success_even_if_allowed(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=tests.faults:Missing", "--allow-absent")
    assert done.returncode == 1
    assert "⬜ tests.faults:Missing" in done.stdout


def test_a_backend_that_refuses_everything_compared_nothing(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(
        tmp_path, "--backend=tests.faults:Refuses,ort", *ONE_CELL, "-k", "logits or tokens or text"
    )
    assert done.returncode == 1
    assert "tests.faults:Refuses was asked for and compared nothing" in done.stdout
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    refused = [row for row in rows if row["backend"] != "ort"]
    assert {(row["check"], row["status"], row["kind"]) for row in refused} == {
        (check, "UNSUPPORTED", "operator") for check in ("logits", "tokens", "text")
    }
    assert {row["status"] for row in rows if row["backend"] == "ort"} == {"PASS"}
    assert "🚫" in done.stdout
    assert "no kernel for MatMul on this device" in done.stdout


@pytest.mark.parametrize("fault", ["KilledAtProbe", "RaisesAtProbe"])
def test_a_backend_that_fails_to_answer_the_probe(tmp_path: Path, fault: str, valid: Any) -> None:
    done = helpers.conformance(tmp_path, f"--backend=tests.faults:{fault},ort", *ONE_CELL, "-k", "kv_shape")
    assert done.returncode == 1
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert {row["check"]: row["status"] for row in rows} == {
        "probe": {"KilledAtProbe": "CRASH", "RaisesAtProbe": "ERROR"}[fault],
        "kv_shape": "PASS",
    }
