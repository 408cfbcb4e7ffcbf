"""Operator columns: real runtimes, known-bad ones, and what is kept for the next run."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from conform import cli
from conform.commands import expectations as expect
from harness.core.bundle import Bundle
from harness.core.rowfiles import box_name
from harness.core.rows import Row, to_json
from harness.run import node_tests, operators
from harness.run.node_tests import NodeTest
from harness.run.process import Limits
from reports import matrix
from reports.folders import filled, read_all
from tests import helpers

GATHER, LOSS = "GatherElements", "SoftmaxCrossEntropyLoss"
ORT = onnxruntime.__version__
STRUCK = "test_gather_elements_1-op12"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own for this file, with some operators prepared."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        node_tests.collection([GATHER, LOSS, "Softmax", "Range", "Mod"])
    return folder


@pytest.fixture(autouse=True)
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def conform(*arguments: object) -> Any:
    return helpers.run("conform.cli", *map(str, arguments))


def fill(
    results: Path,
    *backends: str,
    names: tuple[str, ...] = (GATHER,),
    opsets: tuple[int, ...] = (12,),
    silence: float = 60,
    again: bool = False,
) -> tuple[list[dict[str, Any]], str]:
    """Every row that is in the folder afterwards, and the lines of progress."""
    notes: list[str] = []
    request = operators.Request([results], names, opsets, backends, again, Limits(silence))
    known = [row for _, row in read_all([results])] if filled(results) else []
    columns = operators.Columns(request, node_tests.collection(names), known, notes.append)
    try:
        columns.fill()
    finally:
        columns.close()
    return helpers.rows_in(results), "\n".join(notes)


def test_three_runtimes_at_opset_12(tmp_path: Path, valid: Callable[[Iterable[dict[str, Any]]], None]) -> None:
    results = tmp_path / "results"
    asked = (results, f"--ops={GATHER},{LOSS}", "--opset=11-12")
    done = conform("operators", *asked, "--backend=ort,openvino,reference")
    assert done.returncode == 0, done.stderr
    rows = helpers.rows_in(results)
    valid(rows)
    seen = {(row["backend"], row["layout"], row["opset"]): row for row in rows}
    assert len(seen) == len(rows) == 9
    for backend in ("ort", "openvino", "reference"):
        assert (backend, LOSS, 11) not in seen, "it is new in 12: there is nothing to be refused"
        for operator, opset, count in ((GATHER, 11, 3), (GATHER, 12, 3), (LOSS, 12, 34)):
            row = seen[backend, operator, opset]
            assert (row["status"], row["value"], row["detail"]["passed"]) == ("PASS", 0, count), row["message"]
            assert (row["check"], row["exporter"], row["bundle"]) == ("operator", "operator", "")
            assert row["cell"] == f"{backend}@{row['version']}/cpu/operator/{operator}/fp32/op{opset}"
    # 2 × 2 and twice 2 × 3 gathered values
    assert seen["ort", GATHER, 12]["compared"] == 4 + 6 + 6
    assert f"{LOSS}: ONNX has no node test of it at opset 11, so there is no row" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.split()[:1] in (["11"], ["12"])]
    assert lines == [["11", "✅", "·"], ["12", "✅", "✅"]] * 3
    again = conform("operators", *asked)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert again.stderr.count(" 0 rows to run, 3 known (--again runs those too)") == 3
    assert helpers.rows_in(results) == rows


def test_rows_stand_for_their_version_collection_and_box_only(tmp_path: Path) -> None:
    (row,), _ = fill(tmp_path, "ort")
    (file,) = tmp_path.glob("*.jsonl")
    others = [
        {**row, "version": "1.11.0", "cell": row["cell"].replace(ORT, "1.11.0")},
        {**row, "box": "another"},
        {**row, "detail": {**row["detail"], "collection": "onnx 1.0"}},
        {**row, "status": "ERROR"},
    ]
    for other in others:
        file.write_text(json.dumps(other) + "\n", encoding="utf-8")
        rows, notes = fill(tmp_path, "ort")
        assert "1 rows to run, 0 known" in notes
        assert len(rows) == 2
        next(path for path in tmp_path.glob("*.jsonl") if path != file).unlink()
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert "0 rows to run, 1 known" in fill(tmp_path, "ort")[1]
    rows, notes = fill(tmp_path, "ort", again=True)
    assert "1 rows to run, 0 known" in notes
    assert len(rows) == 2


def test_a_runtime_of_the_rows_that_is_not_here_is_a_remark(tmp_path: Path) -> None:
    (row,), _ = fill(tmp_path, "ort")
    (file,) = tmp_path.glob("*.jsonl")
    old = {**row, "version": "1.11.0", "cell": row["cell"].replace(ORT, "1.11.0")}
    strange = {
        **row,
        "backend": "gone.away:Backend",
        "cell": "gone.away:Backend@1/cpu/operator/GatherElements/fp32/op12",
    }
    file.write_text("".join(json.dumps(line) + "\n" for line in (row, old, strange)), encoding="utf-8")
    rows, notes = fill(tmp_path)
    assert len(rows) == 3
    assert f"ort@1.11.0: not run here: version 1.11.0 was asked for, {ORT} is installed" in notes
    assert "gone.away:Backend: not run here" in notes
    assert f"ort@{ORT}: 0 rows to run, 1 known" in notes


def test_a_runtime_that_is_asked_for_and_not_here_is_absent(tmp_path: Path) -> None:
    done = conform("operators", tmp_path / "results", f"--ops={GATHER}", "--opset=12", "--backend=ort@1.11")
    assert done.returncode == 1, done.stderr
    (row,) = helpers.rows_in(tmp_path / "results")
    assert (row["check"], row["status"], row["backend"], row["version"]) == ("probe", "ABSENT", "ort", "1.11")
    assert "⬜ ort@1.11: version 1.11 was asked for" in done.stdout
    assert "✅" not in done.stdout


FAULTS = [
    ("NodeWrong", "FAIL", "compare", "", "1 of 3 node tests wrong as shipped: test_gather_elements_1: y[1,2] is "),
    ("NodeWide", "FAIL", "compare", "", "y is float64, expected float32"),
    ("NodeMute", "FAIL", "compare", "", "outputs none, expected y"),
    ("NodeLate", "FAIL", "run", "operator", "test_gather_elements_1: no kernel after all"),
    ("NodeRaises", "ERROR", "run", "other", "the adapter raised RuntimeError: a fault of the adapter's own"),
    ("NodeKilled", "CRASH", "run", "signal", "1 of 3 node tests crashed: test_gather_elements_1: died of signal 11"),
    ("NodeHangs", "TIMEOUT", "run", "hang", "1 of 3 node tests timed out: test_gather_elements_1: no sign of life"),
    (
        "NodeRefuses",
        "UNSUPPORTED",
        "load",
        "operator",
        "1 of 3 node tests refused: test_gather_elements_1: no kernel; model test_gather_elements_1.onnx",
    ),
]


@pytest.mark.parametrize("fault, status, stage, kind, words", FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_caught_and_the_next_test_goes_on(
    fault: str, status: str, stage: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_NODE", STRUCK)
    rows, _ = fill(tmp_path, f"tests.faults:{fault}", opsets=(12, 13), silence=6)
    struck, after = rows
    assert (struck["status"], struck["stage"], struck["kind"]) == (status, stage, kind), struck["message"]
    assert words in struck["message"]
    assert struck["detail"]["passed"] == 2, "the tests before and after it pass"
    assert list(struck["detail"]["others"]) == ["test_gather_elements_1"]
    assert struck["value"] == (0 if status == "UNSUPPORTED" else 1)
    assert (after["opset"], after["status"], after["compared"]) == (13, "PASS", 16)


@pytest.mark.parametrize("fault, status", [("NodeElsewhere", "FAIL"), ("NodeUnproven", "UNVERIFIED")])
def test_right_numbers_of_an_unproven_device_do_not_pass(fault: str, status: str, tmp_path: Path) -> None:
    (row,), _ = fill(tmp_path, f"tests.faults:{fault}")
    assert (row["status"], row["detail"]["passed"]) == (status, 0), row["message"]


def test_what_refuses_everything_never_passes(tmp_path: Path) -> None:
    rows, _ = fill(tmp_path, "tests.faults:Refuses", names=(GATHER, LOSS), opsets=(12, 17))
    assert len(rows) == 4
    for row in rows:
        assert (row["status"], row["kind"], row["compared"]) == ("UNSUPPORTED", "operator", 0)
        count = row["detail"]["tests"]
        assert row["message"].startswith(f"{count} of {count} node tests refused: ")


def test_a_backend_that_dies_when_probed(tmp_path: Path) -> None:
    (row,), _ = fill(tmp_path, "tests.faults:KilledAtProbe")
    assert (row["check"], row["status"], row["kind"]) == ("probe", "CRASH", "signal")


def test_a_dtype_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    (row,), _ = fill(tmp_path, "ort", names=("Range",), opsets=(27,))
    assert (row["status"], row["kind"], row["detail"]["passed"]) == ("UNSUPPORTED", "dtype", 3)
    assert "1 of 4 node tests refused, all of those with dtypes that no test passes with (bfloat16): " in row["message"]


def answers(*given: tuple[str, str, str]) -> Row:
    """The row over tests of (status, kind, dtype)."""
    tests = [NodeTest(f"test_{number}", "Pow", (17,), (dtype,), ()) for number, (*_, dtype) in enumerate(given)]
    results = [
        Row("operator", status, kind=kind, message="so", compared=5 if status == "PASS" else 0)
        for status, kind, _ in given
    ]
    return operators.conclude(tests, results)


def test_a_missing_dtype_is_distinguished_from_a_missing_operator() -> None:
    row = answers(("PASS", "", "float32"), ("UNSUPPORTED", "operator", "uint32"), ("UNSUPPORTED", "operator", "uint64"))
    assert (row.status, row.kind) == ("UNSUPPORTED", "dtype")
    assert (
        "2 of 3 node tests refused, all of those with dtypes that no test passes with (uint32, uint64)" in row.message
    )
    row = answers(("PASS", "", "float32"), ("UNSUPPORTED", "operator", "uint32"), ("UNSUPPORTED", "shape", "float32"))
    assert (row.status, row.kind) == ("UNSUPPORTED", "shape"), "one that no dtype explains decides"
    assert "1 of those with dtypes" in row.message
    assert "test_2: so" in row.message
    row = answers(("UNSUPPORTED", "opset", "float32"), ("UNSUPPORTED", "opset", "uint32"))
    assert (row.kind, row.message) == ("opset", "2 of 2 node tests refused: test_0: so")


def test_the_worst_test_decides() -> None:
    row = answers(("PASS", "", "f"), ("UNSUPPORTED", "shape", "f"), ("FAIL", "", "f"), ("CRASH", "signal", "f"))
    assert (row.status, row.kind, row.value, row.compared) == ("CRASH", "signal", 2, 5)
    assert row.message == "1 of 4 node tests crashed, 1 wrong as shipped, 1 refused: test_3: so"


def test_a_run_that_compared_nothing_does_not_pass() -> None:
    tests = [NodeTest("test_empty", "Pow", (17,), ("float32",), ())]
    assert operators.conclude(tests, [Row("operator", "PASS")]).status == "ERROR"


def test_graph_means_the_operators_of_the_bundle() -> None:
    used = operators.used_by(Bundle(str(helpers.EMBEDDED)))
    assert {"MatMul", "LayerNormalization", "Gather", "NonZero"} <= set(used)
    assert GATHER not in used


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--ops=GatherElement", "--backend=ort"), "no node test of 'GatherElement' in onnx "),
        (("--ops=", "--backend=ort"), "--ops= names no operator"),
        (("--ops=Pov", "--backend=ort"), "did you mean Pow?"),
        ((f"--ops={GATHER}", "--backend=orrt"), "did you mean 'ort'?"),
        ((f"--ops={GATHER}", "--backend=ort", "--opset=99"), "has opsets 9-"),
        ((f"--ops={GATHER}",), "cannot be read as rows"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["operators", str(tmp_path / "results"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "results").exists(), "nothing was run, so nothing is written"


def test_the_older_form_still_works_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = str(tmp_path / "results")
    assert cli.main(["matrix", results, f"--ops={GATHER}", "--opset=12", "--backend=ort"]) == 0
    older = capsys.readouterr()
    assert older.err.splitlines()[0] == "note: conform matrix --ops is now conform operators RESULTS --ops"
    assert cli.main(["operators", results, f"--ops={GATHER}", "--opset=12"]) == 0
    assert capsys.readouterr().out == older.out
    assert cli.main(["matrix", results, "--backend=ort"]) == 2
    assert "use conform operators RESULTS --ops=graph" in capsys.readouterr().err


def test_rows_are_written_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(to_json(Row("probe", "ABSENT", backend="ort")) + "\n", encoding="utf-8")
    assert cli.main(["operators", str(file), f"--ops={GATHER}", "--backend=ort"]) == 2
    assert "give a folder" in capsys.readouterr().err


def test_a_damaged_cache_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    (real,) = (cache / "seq2seq-conformance").iterdir()
    copy = tmp_path / "seq2seq-conformance" / real.name
    copy.mkdir(parents=True)
    (copy / "collection.json").write_text("{", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["operators", str(tmp_path / "results"), f"--ops={GATHER}", "--backend=ort"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{copy}: damaged" in line
    assert "delete this folder" in line


def operator_row(status: str, **fields: Any) -> Row:
    cell = f"ort@{ORT}/cpu/operator/{GATHER}/fp32/op12"
    known = {"exporter": "operator", "layout": GATHER, "box": box_name(), "run": "run", "cell": cell, "opset": 12}
    runtime = {"backend": "ort", "runtime": "ort", "version": ORT, "device": "cpu", "precision": "fp32"}
    return Row("operator", status, **{**runtime, **known, **fields})


def test_an_operator_that_passes_is_complete() -> None:
    cell = Row("logits", "PASS", backend="ort", version=ORT, device="cpu", precision="fp32", opset=12, box=box_name())
    graph = {"exporter": "torchscript", "layout": "unified", "bundle": "toy@0123456789ab", "cell": "some"}
    cell = dataclasses.replace(cell, compared=1, **graph)
    built = matrix.build([operator_row("PASS", compared=1), cell])
    symbols = {column.layout: entry.symbol for (_, column), entry in built.entries.items()}
    assert symbols == {GATHER: "✅", "unified": "◐"}
    assert {column.difference for column in built.columns} == {""}, "rows of no bundle do not make a second one"


def test_an_operator_is_no_expectation() -> None:
    """Expectations speak of cells of a bundle; a proposal about an operator could not be read back."""
    assert not expect.proposals([operator_row("FAIL", message="wrong")])


def test_no_row_is_lost_to_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    honest = operators.Worker.run_test

    def interrupted(worker: operators.Worker, test: dict[str, str]) -> Row:
        asked.append(test["name"])
        if len(asked) == 5:
            raise KeyboardInterrupt
        return honest(worker, test)

    monkeypatch.setattr(operators.Worker, "run_test", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, "ort", opsets=(11, 12))
    assert [(row["opset"], row["status"]) for row in helpers.rows_in(tmp_path)] == [(11, "PASS")]
    (note,) = tmp_path.glob("*/run.json")
    assert json.loads(note.read_text(encoding="utf-8"))["finished"] is False
    assert os.listdir(tmp_path)
