"""``pytest`` as a user runs it: what is run, what is shown, and the exit code."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core import verdict
from harness.core.bundle import Bundle
from tests import helpers
from tests.runs import OFFSET, ONE_CELL, statuses


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
    done = helpers.conformance(tmp_path, *ONE_CELL, "-k", "logits")
    assert done.returncode == 0, done.stdout
    (row,) = helpers.rows_in(tmp_path)
    valid([row])
    assert (row["runtime"], row["check"], row["status"]) == ("ort", "logits", "PASS")
    assert row["bundle"] == Bundle(str(helpers.EMBEDDED), verify=False).short


def test_openvino_fails_as_expected_and_reference_passes(tmp_path: Path, valid: Any) -> None:
    done = helpers.conformance(
        tmp_path,
        "--backend=openvino,reference",
        "--opset=17",
        "-k",
        "logits or kv_shape or kv_values",
        ONEDNN_MAX_CPU_ISA="AVX2",
    )
    assert done.returncode == 0, done.stdout
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    by_check = {(row["runtime"], row["layout"], row["check"]): row for row in rows}
    assert len(by_check) == 18
    assert len(rows) == 20, "the two expected failures are written again when they are explained"
    failed = by_check.pop(("openvino", "unified", "logits"))
    assert (failed["status"], failed["step"]) == ("XFAIL", 7), "eight entries fill a register of AVX2"
    assert failed["detail"]["expected"]["seen"] == "FAIL"
    assert "vector register" in failed["detail"]["expected"]["reason"]
    assert failed["blame"] == "runtime"
    assert failed["knob"] in ("CPU_RUNTIME_CACHE_CAPACITY=0", "SNIPPETS_MODE=DISABLE")
    assert by_check.pop(("openvino", "unified", "kv_values"))["status"] == "XFAIL"
    assert {row["status"] for row in by_check.values()} == {"PASS"}
    assert "❌[1]" in done.stdout
    assert "logits FAIL, first at step 7" in done.stdout
    assert "(expected: the CPU" in " ".join(done.stdout.split())


def test_invariance_on_openvino_is_expected_to_fail_too(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=openvino", *ONE_CELL, "-k", "invariance")
    verdict_row, explained = helpers.rows_in(tmp_path)
    for row in (verdict_row, explained):
        assert (row["check"], row["status"], row["attempt"]) == ("invariance", "XFAIL", 1), row["message"]
    assert not verdict_row["blame"]
    assert explained["blame"] == "runtime"
    assert done.returncode == 0


def test_outputs_are_kept_where_asked(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, *ONE_CELL, "--keep-outputs", "-k", "logits")
    assert done.returncode == 0, done.stdout
    (row,) = helpers.rows_in(tmp_path)
    folder = tmp_path / row["run"] / row["cell"].replace("/", "_").replace(":", "_")
    assert (folder / "observations.json").is_file()
    size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
    assert f"outputs kept of 1 cells, {size:.1f} MiB a cell on average" in done.stdout


def test_an_adapter_of_ones_own(tmp_path: Path) -> None:
    """A failure says first step, sentence, tensor, value, bound and a command; and that very command shows it again."""
    (tmp_path / "offset_adapter.py").write_text(OFFSET, encoding="utf-8")
    results = tmp_path / "results"
    asked = ["--backend=offset_adapter:Offset", *ONE_CELL]
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
        shlex.split(command),
        cwd=helpers.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(tmp_path),
            "PYTEST_ADDOPTS": f"--results={tmp_path / 'again'} -p no:cacheprovider",
        },
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"step 5, sentence {first[1]}, tensor logits" in again.stdout
    assert statuses(tmp_path / "again") == {"unified/op17 logits": "FAIL"}


def test_an_adapter_in_the_current_folder(tmp_path: Path) -> None:
    """The checkout is elsewhere: pytest is told where the suite is."""
    (tmp_path / "offset_adapter.py").write_text(OFFSET, encoding="utf-8")
    done = helpers.run(
        "pytest",
        "-c",
        str(helpers.ROOT / "pyproject.toml"),
        f"--rootdir={helpers.ROOT}",
        str(helpers.ROOT / "harness" / "suite"),
        "--backend=offset_adapter:Offset",
        *ONE_CELL,
        "-k",
        "logits",
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert statuses(tmp_path / "results") == {"unified/op17 logits": "FAIL"}


def test_matrix_page_keeps_earlier_runs(tmp_path: Path) -> None:
    for opset in (16, 17):
        assert helpers.conformance(tmp_path, f"--opset={opset}", "--layout=unified", "-k", "kv_shape").returncode == 0
    page = (tmp_path / "matrix.md").read_text(encoding="utf-8")
    assert re.search(r"\| 16 +\| \[◐\]", page)
    assert re.search(r"\| 17 +\| \[◐\]", page)


def test_a_damaged_rows_file_beside_does_not_lose_the_run(tmp_path: Path) -> None:
    (tmp_path / "matrix.md").write_text("kept\n", encoding="utf-8")
    (tmp_path / "other.jsonl").write_text("{\n{\n", encoding="utf-8")
    done = helpers.conformance(tmp_path, *ONE_CELL, "-k", "kv_shape")
    assert done.returncode == 0, done.stdout
    assert "not rewritten" in done.stdout
    assert "other.jsonl, line 1" in done.stdout
    assert (tmp_path / "matrix.md").read_text(encoding="utf-8") == "kept\n"
    assert (tmp_path / "other.jsonl").read_text(encoding="utf-8") == "{\n{\n"


def test_quiet_is_quiet(ort_run: Any, tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, *ONE_CELL, "-q", "-k", "kv_shape")
    assert done.returncode == 0
    assert "matrix ===" not in done.stdout
    assert len(done.stdout.strip().splitlines()) <= 6
