"""``pytest`` as a user runs it: what is selected, what is shown, and the exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.core import verdict
from harness.core.bundle import Bundle
from tests import helpers

ONE = ("--opset=17", "--layout=unified")
OFFSET = '''
"""ONNX Runtime, wrong by one in one logit from step 5 on."""

from backends import ort


class Offset(ort.Backend):
    def compile(self, part, options):
        program = super().compile(part, options)
        if part.name == "step":
            honest = program.run

            def run(feeds):
                outputs = honest(feeds)
                if feeds["past_key_values.0.decoder.key"].shape[2] >= 5:
                    outputs["logits"][..., 3] += 1.0
                return outputs

            program.run = run
        return program
'''
Done = subprocess.CompletedProcess


def error_line(done: "Done[str]") -> str:
    """The one line of a usage error; what pytest's own parser says of an option stands under its usage."""
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if re.match(r"(ERROR|.*pytest.*: error): (?!usage: )", line)]
    assert len(lines) == 1, said
    return lines[0]


def statuses(results: Path) -> dict[str, str]:
    """Last status of each cell and check, keyed ``unified/op17 logits``."""
    return {
        f"{row['layout']}/op{row['opset']} {row['check']}" if row["cell"] else f"{row['backend']} {row['check']}": row[
            "status"
        ]
        for row in helpers.rows_in(results)
    }


def test_ort_passes_and_shows_the_matrix(ort_run: Any, valid: Any) -> None:
    done, results = ort_run
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(results)
    valid(rows)
    assert len(rows) == 3 * len(verdict.CHECKS)
    for row in rows:
        assert row["status"] == "PASS"
        assert row["compared"] > 0
        assert row["attempt"] == 1
    assert "compatibility matrix" in done.stdout
    assert re.search(r"opset +ort@[\d.]+\n +split +static +unified\n[- ]+\n +17 +✅ +✅ +✅\n", done.stdout)
    assert "30 PASS" in done.stdout
    page = (results / "matrix.md").read_text(encoding="utf-8")
    assert re.search(r"\| 17 +\| \[✅\]\(.*\.jsonl\) +\|", page)


def test_sidecar_files_hold_the_gaps_of_every_step(ort_run: Any) -> None:
    import numpy as np

    _, results = ort_run
    bundle = Bundle(str(helpers.EMBEDDED), verify=False)
    for row in helpers.rows_in(results):
        if row["check"] == "logits":
            with np.load(results / row["series"], allow_pickle=False) as saved:
                assert len(saved["logits.gap"]) == len(saved["steps"]) == len(bundle.array("trace_logits"))
                assert saved["logits.gap"].max() == pytest.approx(row["detail"]["tensors"]["logits"]["tail"])


def test_ort_and_the_embedded_bundle_are_the_default(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(tmp_path, *ONE, "-k", "logits")
    assert done.returncode == 0, done.stdout
    (row,) = helpers.rows_in(tmp_path)
    valid([row])
    assert (row["runtime"], row["check"], row["status"]) == ("ort", "logits", "PASS")
    assert row["bundle"] == Bundle(str(helpers.EMBEDDED), verify=False).short


def test_openvino_fails_as_expected_and_reference_passes(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(
        tmp_path, "--backend=openvino,reference", "--opset=17", "-k", "logits or kv_shape or kv_values",
        ONEDNN_MAX_CPU_ISA="AVX2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    found = {(row["runtime"], row["layout"], row["check"]): row for row in rows}
    assert len(found) == len(rows) == 18
    failed = found.pop(("openvino", "unified", "logits"))
    assert (failed["status"], failed["step"]) == ("XFAIL", 7), "eight entries fill a register of AVX2"
    assert failed["detail"]["expected"]["seen"] == "FAIL"
    assert "vector register" in failed["detail"]["expected"]["reason"]
    assert failed["blame"] == "runtime"
    assert failed["knob"] in ("CPU_RUNTIME_CACHE_CAPACITY=0", "SNIPPETS_MODE=DISABLE")
    assert found.pop(("openvino", "unified", "kv_values"))["status"] == "XFAIL"
    assert {row["status"] for row in found.values()} == {"PASS"}
    assert "❌[1]" in done.stdout
    assert "logits FAIL, first at step 7" in done.stdout
    assert "(expected: the CPU" in " ".join(done.stdout.split())


def test_invariance_on_openvino_is_expected_to_fail_too(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=openvino", *ONE, "-k", "invariance")
    (row,) = helpers.rows_in(tmp_path)
    assert row["status"] == "XFAIL", row["message"]
    assert done.returncode == 0


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


def test_an_adapter_of_ones_own(tmp_path: Path) -> None:
    """A failure says first step, sentence, tensor, value, bound and a command; and that very command shows it again."""
    (tmp_path / "offset_adapter.py").write_text(OFFSET, encoding="utf-8")
    results = tmp_path / "results"
    asked = ["--backend=offset_adapter:Offset", *ONE]
    done = helpers.conformance(results, *asked, "-k", "logits or kv_shape", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert statuses(results) == {"unified/op17 logits": "FAIL", "unified/op17 kv_shape": "PASS"}
    bundle = Bundle(str(helpers.EMBEDDED), verify=False)
    message = done.stdout.split("FAILURES")[1].split("compatibility matrix")[0]
    first = re.search(r"first: step 5, sentence (\S+), tensor logits\n", message)
    assert first
    assert first[1] in {row.id for row in bundle.rows}
    measured = re.search(r"tail ([\d.e+-]+), bound ([\d.e+-]+), PyTorch's own floor ([\d.e+-]+)\n", message)
    assert measured
    value, bound, floor = map(float, measured.groups())
    assert value == pytest.approx(1, rel=1e-3)
    assert 0 < floor < bound < 1e-2
    assert re.search(r"logits at step 5: \[3\] is [-\d.]+, PyTorch has [-\d.]+", message)
    (command,) = re.findall(r"again: (pytest .+)\n", message)
    again = subprocess.run(
        shlex.split(command), cwd=helpers.ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path),
             "PYTEST_ADDOPTS": f"--results={tmp_path / 'again'} -p no:cacheprovider"},
    )  # fmt: skip
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"step 5, sentence {first[1]}, tensor logits" in again.stdout
    assert statuses(tmp_path / "again") == {"unified/op17 logits": "FAIL"}


def test_an_adapter_in_the_current_folder(tmp_path: Path) -> None:
    """The checkout is elsewhere: pytest is told where the suite is."""
    (tmp_path / "offset_adapter.py").write_text(OFFSET, encoding="utf-8")
    done = helpers.run(
        "pytest", "-c", str(helpers.ROOT / "pyproject.toml"), f"--rootdir={helpers.ROOT}",
        str(helpers.ROOT / "harness" / "suite"), "--backend=offset_adapter:Offset", *ONE, "-k", "logits", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert statuses(tmp_path / "results") == {"unified/op17 logits": "FAIL"}


def test_a_module_without_that_class_is_an_error_row(tmp_path: Path, valid: Any) -> None:
    (tmp_path / "empty_adapter.py").write_text("", encoding="utf-8")
    done = helpers.conformance(tmp_path / "results", "--backend=empty_adapter:Nothing", *ONE, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    rows = helpers.rows_in(tmp_path / "results")
    valid(rows)
    assert {(row["check"], row["status"], row["stage"]) for row in rows} == {("probe", "ERROR", "probe")}
    assert "has no attribute 'Nothing'" in rows[0]["message"]


def test_version_that_is_here(tmp_path: Path) -> None:
    import onnxruntime

    major = ".".join(onnxruntime.__version__.split(".")[:2])
    done = helpers.conformance(tmp_path, f"--backend=ort@{major}", *ONE, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert helpers.rows_in(tmp_path)[0]["version"] == onnxruntime.__version__


@pytest.mark.parametrize("wish", [["-k", "kv_shape"], ["-k", "kv_shape", "--allow-absent"]], ids=["", "allowed"])
def test_absent_beside_present(tmp_path: Path, wish: list[str], valid: Any) -> None:
    """The others run, one row says so, and the exit code is 4 unless that was allowed."""
    done = helpers.conformance(tmp_path, "--backend=tests.faults:Missing,ort@1.0,ort", *ONE, *wish)
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert sorted((row["backend"], row["check"], row["status"]) for row in rows) == [
        ("ort", "kv_shape", "PASS"), ("ort", "probe", "ABSENT"), ("tests.faults:Missing", "probe", "ABSENT"),
    ]  # fmt: skip
    assert done.returncode == (0 if "--allow-absent" in wish else 4), done.stdout
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


def test_one_runtime_asked_for_twice(tmp_path: Path) -> None:
    """By name and by the version that is here: one cell, and nobody is said to have compared nothing."""
    import onnxruntime

    done = helpers.conformance(tmp_path, f"--backend=ort,ort@{onnxruntime.__version__}", *ONE, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert "compared nothing" not in done.stdout


def test_all_absent_is_no_success_even_if_allowed(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=tests.faults:Missing", "--allow-absent")
    assert done.returncode == 1
    assert "⬜ tests.faults:Missing" in done.stdout


def test_a_filter_that_leaves_nothing_is_no_success(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, *ONE, "-k", "nosuchcheck")
    assert done.returncode == 5
    assert helpers.rows_in(tmp_path) == []


def test_a_backend_that_refuses_everything_compared_nothing(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(tmp_path, "--backend=tests.faults:Refuses,ort", *ONE, "-k", "logits or tokens or text")
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
    done = helpers.conformance(tmp_path, f"--backend=tests.faults:{fault},ort", *ONE, "-k", "kv_shape")
    assert done.returncode == 1
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert {row["check"]: row["status"] for row in rows} == {
        "probe": {"KilledAtProbe": "CRASH", "RaisesAtProbe": "ERROR"}[fault],
        "kv_shape": "PASS",
    }


@pytest.mark.parametrize(
    "fault, options, status",
    [
        ("Hangs", ["--cell-timeout=6"], "TIMEOUT"),
        ("Hungry", ["--memory-limit=1"], "ERROR"),
        ("Segfault", [], "CRASH"),
    ],
)
def test_the_rest_of_a_run_goes_on(tmp_path: Path, fault: str, options: list[str], status: str, valid: Any) -> None:
    done = helpers.conformance(
        tmp_path, f"--backend=tests.faults:{fault}", "--opset=16-17", "--layout=unified", *options,
        "-k", "encoder or logits", FAULT_AT="op16",
    )  # fmt: skip
    assert done.returncode == 1
    valid(helpers.rows_in(tmp_path))
    assert statuses(tmp_path) == {
        "unified/op16 encoder": status,
        "unified/op16 logits": status,
        "unified/op17 encoder": "PASS",
        "unified/op17 logits": "PASS",
    }
    assert verdict.STATUSES[status].symbol in done.stdout
    assert "2 failed, 2 passed" in done.stdout


def test_an_interrupt_keeps_the_rows(tmp_path: Path, valid: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", f"--results={tmp_path}", "-p", "no:cacheprovider",
         "--backend=tests.faults:Hangs", "--opset=16-17", "--layout=unified", "-k", "encoder or logits"],
        cwd=helpers.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "FAULT_AT": "op17"},
        # Under nohup or `&` SIGINT is ignored, and Python would then leave it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        limit = time.monotonic() + 60
        while len(helpers.rows_in(tmp_path)) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
        time.sleep(2)  # into the cell that hangs
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "KeyboardInterrupt" in said
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert statuses(tmp_path) == {"unified/op16 encoder": "PASS", "unified/op16 logits": "PASS"}
    assert workers
    assert not [worker for worker in workers if worker.is_running()]
    assert "◐" in (tmp_path / "matrix.md").read_text(encoding="utf-8")


def test_an_interrupted_run_is_resumed(tmp_path: Path, valid: Any) -> None:
    """Rows already there are not asked again; the rest is added to the same file."""
    asked = ["--opset=16-17", "--layout=unified", "-k", "kv_shape or placement"]
    assert helpers.conformance(tmp_path, *asked).returncode == 0
    (place,) = tmp_path.glob("*.jsonl")
    lines = place.read_text(encoding="utf-8").splitlines(keepends=True)
    note = tmp_path / place.stem / "run.json"
    note.write_text(note.read_text(encoding="utf-8").replace('"finished": true', '"finished": false'), encoding="utf-8")
    place.write_text("".join(lines[:2]) + lines[2][:50], encoding="utf-8")
    other = helpers.conformance(tmp_path, "--resume", "--opset=16", "--layout=unified", "-k", "kv_shape")
    assert other.returncode == 0
    assert "nothing to resume" in other.stdout, "other arguments are another run"
    text = note.read_text(encoding="utf-8")
    note.write_text(re.sub(r'("ort@[^"]+": ")[0-9a-f]', r"\1x", text), encoding="utf-8")
    other = helpers.conformance(tmp_path, "--resume", *asked)
    assert "nothing to resume" in other.stdout, "answers of another harness, adapter or package are another run's"
    note.write_text(text, encoding="utf-8")
    done = helpers.conformance(tmp_path, "--resume", *asked)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    now = place.read_text(encoding="utf-8").splitlines(keepends=True)
    assert now[:2] == lines[:2]
    rows = [json.loads(line) for line in now]
    valid(rows)
    assert [(row["opset"], row["check"]) for row in rows] == [
        (opset, check) for opset in (16, 17) for check in ("kv_shape", "placement")
    ]


def test_collecting_runs_and_writes_nothing(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path / "results", *ONE, "--collect-only", "-q")
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
    found = re.findall(r"torchscript/([\w-]+)/fp32/op16", done.stdout)
    assert sorted(found) == ["static", "static-scatter"], done.stdout


def test_matrix_page_keeps_earlier_runs(tmp_path: Path) -> None:
    for opset in (16, 17):
        assert helpers.conformance(tmp_path, f"--opset={opset}", "--layout=unified", "-k", "kv_shape").returncode == 0
    page = (tmp_path / "matrix.md").read_text(encoding="utf-8")
    assert re.search(r"\| 16 +\| \[◐\]", page)
    assert re.search(r"\| 17 +\| \[◐\]", page)


def test_a_damaged_rows_file_beside_does_not_lose_the_run(tmp_path: Path) -> None:
    (tmp_path / "matrix.md").write_text("kept\n", encoding="utf-8")
    (tmp_path / "other.jsonl").write_text("{\n{\n", encoding="utf-8")
    done = helpers.conformance(tmp_path, *ONE, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert "not rewritten" in done.stdout
    assert "other.jsonl, line 1" in done.stdout
    assert (tmp_path / "matrix.md").read_text(encoding="utf-8") == "kept\n"
    assert (tmp_path / "other.jsonl").read_text(encoding="utf-8") == "{\n{\n"


def test_cells_are_shared_out_under_xdist(tmp_path: Path, valid: Any) -> None:
    page = tmp_path / "junit.xml"
    done = helpers.conformance(
        tmp_path / "results", "--backend=ort", "--opset=16-17", "-n", "2",
        f"--junitxml={page}", "-k", "encoder or tokens or text or cost",
    )  # fmt: skip
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
        done = helpers.conformance(tmp_path / "results", *ONE, "-n", "2", *options)
        assert done.returncode == 4, done.stdout
        assert words in error_line(done)
    done = helpers.conformance(tmp_path / "results", *ONE, "-n", "2", "--backend=ort,ort@1.2", "-k", "encoder or probe")
    assert done.returncode == 4, done.stdout
    assert done.stdout.count("ort@1.2 is absent") == 1


def test_a_failure_is_a_failure_under_xdist(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(OFFSET, encoding="utf-8")
    done = helpers.conformance(
        tmp_path / "results", *ONE, "--backend=bad:Offset", "-n", "2", "-k", "logits", PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 1, done.stdout
    assert "blame: " in done.stdout
    assert "❌" in done.stdout


def test_quiet_is_quiet(ort_run: Any, tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, *ONE, "-q", "-k", "kv_shape")
    assert done.returncode == 0
    assert "matrix ===" not in done.stdout
    assert len(done.stdout.strip().splitlines()) <= 6


def test_what_is_settled_and_unchanged_is_not_asked_again(tmp_path: Path, valid: Any) -> None:
    """Same bundle, harness, packages and processor: the answer stands, with its own time. Anything else is asked again."""
    asked = ["--opset=16-17", "--layout=unified", "-k", "kv_shape or placement"]
    assert helpers.conformance(tmp_path, *asked).returncode == 0
    (first,) = tmp_path.glob("*.jsonl")
    rows = helpers.rows_in(tmp_path)
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert "4 of them are answers of earlier runs" in done.stdout
    assert helpers.rows_in(tmp_path) == rows, "nothing was written twice"
    assert f"last run {rows[-1]['time']}" in done.stdout

    traces = {row["opset"]: tmp_path / row["series"] for row in rows if row["series"]}
    kept = traces[16].rename(tmp_path / "kept")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "2 of them are answers of earlier runs" in done.stdout, "whose figures are gone is asked again"
    kept.rename(traces[16])
    for other in set(tmp_path.glob("*.jsonl")) - {first}:
        other.unlink()

    text = first.read_text(encoding="utf-8")
    spoilt = [{**row, "status": "CRASH"} if row["opset"] == 17 else row for row in rows]
    first.write_text("".join(json.dumps(row) + "\n" for row in spoilt), encoding="utf-8")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "2 of them are answers of earlier runs" in done.stdout, "a crash is asked again"
    valid(helpers.rows_in(tmp_path))
    for change in ({"status": "FAIL"}, {"compared": 0}, {"box": rows[0]["box"] + "-2"}):
        first.write_text("".join(json.dumps({**row, **change}) + "\n" for row in rows), encoding="utf-8")
        for other in set(tmp_path.glob("*.jsonl")) - {first}:
            other.unlink()
        done = helpers.conformance(tmp_path, "--reuse", *asked)
        assert "answers of earlier runs" not in done.stdout, "no second attempt; no comparison; another box"

    first.write_text(text, encoding="utf-8")
    for note in tmp_path.glob("*/run.json"):
        changed = re.sub(r'("ort@[^"]+": ")[0-9a-f]', r"\1x", note.read_text(encoding="utf-8"))
        note.write_text(changed, encoding="utf-8")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "answers of earlier runs" not in done.stdout, "another harness, bundle or environment"
    assert done.returncode == 0


def test_a_foreign_adapter_is_always_asked(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(OFFSET, encoding="utf-8")
    asked = (*ONE, "--reuse", "--backend=bad:Offset", "-k", "logits")
    for _ in range(2):
        done = helpers.conformance(tmp_path / "results", *asked, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1, done.stdout
        assert "answers of earlier runs" not in done.stdout
