"""What ``pytest --backend`` collects, and what it says of bad input."""

import re
from pathlib import Path

import pytest

from harness.core import verdict
from tests import helpers
from tests.runs import ONE_CELL, error_line, statuses


@pytest.mark.parametrize(
    "options, words",
    [
        (["--backend=orrt"], "did you mean 'ort'? known: "),
        (["--backend=openvno@2025.0"], "did you mean 'openvino'?"),
        (["--backend=nothere:Adapter"], "no module of that name"),
        (["--backend=nothere.deeper:Adapter"], "no module of that name"),
        (["--backend=ort:"], "unknown backend"),
        (["--backend=,"], "no backend"),
        (["--backend=contract"], "unknown backend"),
        (["--backend=ort", "--opset=99"], "--opset 9-"),
        (["--backend=ort", "--precision=fp8"], "fp32"),
        (["--opset=seventeen"], "'seventeen' is not an opset or a range such as 12-17"),
        (["--layout=unified,fixed"], "'fixed' is not a layout; there are split, unified, static, static-scatter"),
        (["--opset=12-"], "'12-' is not an opset or a range such as 12-17"),
        (["--backend-python=/no/such/python"], "/no/such/python: no such interpreter"),
        (["--cell-timeout=soon"], "soon"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_4(tmp_path: Path, options: list[str], words: str) -> None:
    done = helpers.conformance(tmp_path / "results", *options)
    assert done.returncode == 4, done.stdout
    assert words in error_line(done)
    assert not list(tmp_path.glob("results/*.jsonl"))


def test_a_filter_that_leaves_nothing_is_no_success(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, *ONE_CELL, "-k", "nosuchcheck")
    assert done.returncode == 5
    assert helpers.rows_in(tmp_path) == []


def test_collecting_runs_and_writes_nothing(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path / "results", *ONE_CELL, "--collect-only", "-q")
    assert done.returncode == 0
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(ids) == len(verdict.CHECKS)
    for line, check in zip(ids, verdict.CHECKS, strict=True):
        assert line.startswith("harness/suite/test_conformance.py::test_")
        assert re.search(rf"\[ort@[\d.]+/cpu/torchscript/unified/fp32/op17-{check}\]$", line)
    assert "compatibility matrix" not in done.stdout
    assert not list(tmp_path.glob("results/*.jsonl"))


def test_one_test_id_runs_that_check_alone(tmp_path: Path) -> None:
    import onnxruntime

    cell = f"ort@{onnxruntime.__version__}/cpu/torchscript/unified/fp32/op17"
    done = helpers.conformance(
        tmp_path, "--opset=17", f"harness/suite/test_conformance.py::test_decodes_like_pytorch[{cell}-kv_shape]"
    )
    assert done.returncode == 0, done.stdout
    assert statuses(tmp_path) == {"unified/op17 kv_shape": "PASS"}


def test_plain_pytest_collects_the_suite_and_nothing_else(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--collect-only", "-q")
    places = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert places == {"harness/suite/test_conformance.py"}


def test_the_harness_own_tests_see_no_conformance_hooks(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path / "results", "tests", "--collect-only", "-q", "--backend=orrt")
    assert done.returncode == 0, done.stdout
    assert "tests/test_run.py::" in done.stdout
    assert "compatibility matrix" not in done.stdout
    assert "test_decodes_like_pytorch" not in done.stdout
    assert not (tmp_path / "results").exists()


def test_layouts_are_given_with_commas(tmp_path: Path) -> None:
    done = helpers.conformance(
        tmp_path, "--opset=16", "--layout=static,static-scatter", "--collect-only", "-q", "-k", "logits"
    )
    layouts = re.findall(r"torchscript/([\w-]+)/fp32/op16", done.stdout)
    assert sorted(layouts) == ["static", "static-scatter"], done.stdout


def test_one_runtime_asked_for_twice(tmp_path: Path) -> None:
    """By name and by the version that is here: one cell, and nobody is said to have compared nothing."""
    import onnxruntime

    done = helpers.conformance(tmp_path, f"--backend=ort,ort@{onnxruntime.__version__}", *ONE_CELL, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert "compared nothing" not in done.stdout


def test_version_that_is_here(tmp_path: Path) -> None:
    import onnxruntime

    major = ".".join(onnxruntime.__version__.split(".")[:2])
    done = helpers.conformance(tmp_path, f"--backend=ort@{major}", *ONE_CELL, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert helpers.rows_in(tmp_path)[0]["version"] == onnxruntime.__version__
