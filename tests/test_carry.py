"""The bundle carried to a box whose only Python is 3.8: numpy and one old runtime, the checkout's files, nothing else."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.core.verdict import NUMERIC
from tests import helpers

RUNTIME = "1.10.0"
CARRIED = ("backends", "harness", "reports", "conftest.py", "pyproject.toml")
"""What the box gets of the checkout. The suite and the reports lie there unused."""
PORTABLE = ["harness.core.bundle", "harness.core.rows", "harness.core.cell", "backends.contract"]
FOLDERS = ("harness/replay", "harness/judge", "backends")
LEAST, MOST = 12, 17
TAKES = 15
"""The newest opset that this runtime takes."""
LAYOUTS = {**dict.fromkeys(("split", "unified", "static"), range(LEAST, MOST + 1)), "static-scatter": (13, 16)}
"""Opsets of the embedded bundle's graphs among those."""
CELLS = [(layout, opset) for layout, opsets in LAYOUTS.items() for opset in opsets]


def old_python() -> str:
    """A CPython 3.8, from PATH or from pyenv; skips when there is none."""
    candidates = [shutil.which("python3.8")]
    pyenv = shutil.which("pyenv") or os.path.expanduser("~/.pyenv/bin/pyenv")
    if os.path.exists(pyenv):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        candidates += [str(place) for place in sorted(Path(root).glob("versions/3.8*/bin/python3.8"))]
    for candidate in filter(None, candidates):
        # A shim of pyenv is there even when the version is not chosen.
        found = subprocess.run([candidate, "-c", "import sys, venv; print(sys.version_info[:2])"], capture_output=True)
        if found.returncode == 0 and b"(3, 8)" in found.stdout:
            return candidate
    pytest.skip("no Python 3.8 on PATH or in pyenv: what runs on an old box is not tested here")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a 3.8 environment with numpy and an old ONNX Runtime; kept in .tox, because it takes a minute."""
    made_from = old_python()
    place = helpers.ROOT / ".tox" / f"carry-py38-ort{RUNTIME}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([made_from, "-m", "venv", str(place)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy<2"]
        done = subprocess.run([*install, f"onnxruntime=={RUNTIME}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (place / "complete").touch()
    return python


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is carried: tracked and new files of the checkout, and the bundle."""
    place = tmp_path_factory.mktemp("box")
    for name in CARRIED:
        if (helpers.ROOT / name).is_dir():
            shutil.copytree(helpers.ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(helpers.ROOT / name, place / name)
    shutil.copytree(helpers.EMBEDDED, place / "carried.bundle")
    return place


def on_box(python: Path, box: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run on the box: its folder, its interpreter, no variable of ours but the locale's."""
    return subprocess.run(
        [str(python), *command],
        cwd=box,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "LANG": os.environ.get("LANG", "C.UTF-8"), "PYTHONUTF8": "1"},
    )


@pytest.fixture(scope="module")
def replayed(environment: Path, box: Path) -> "subprocess.CompletedProcess[str]":
    return on_box(
        environment,
        box,
        "-m",
        "harness.replay",
        "carried.bundle",
        "--backend",
        "ort",
        "--opset",
        f"{LEAST}-{MOST}",
        "--results",
        "results",
    )


def test_the_environment_is_bare(environment: Path, box: Path) -> None:
    code = "import sys, numpy, onnxruntime; print(sys.version_info[:2], onnxruntime.__version__)\nimport onnx"
    done = on_box(environment, box, "-c", code)
    assert done.stdout.split("\n")[0] == f"(3, 8) {RUNTIME}"
    assert "No module named 'onnx'" in done.stderr


def test_every_module_of_the_worker_imports_there(environment: Path, box: Path) -> None:
    names = list(PORTABLE)
    for folder in FOLDERS:
        stems = (place.stem for place in sorted((helpers.ROOT / folder).glob("*.py")))
        names += [f"{folder.replace('/', '.')}.{stem}" for stem in stems if stem not in ("__init__", "__main__")]
    names.append("harness.replay.__main__")
    assert len(names) > 20
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "foreign = {name.split('.')[0] for name in sys.modules} & {'onnx', 'torch', 'pytest', 'packaging', 'onnxruntime'}\n"
        "print(len(sys.argv) - 1, sorted(foreign))"
    )
    done = on_box(environment, box, "-c", code, *names)
    assert done.stdout.strip() == f"{len(names)} []", done.stderr


def test_replay_there_answers_every_numeric_check(replayed: Any, box: Path, valid: Any) -> None:
    rows = helpers.rows_in(box / "results")
    valid(rows)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert len(rows) == len(CELLS) * len(NUMERIC)
    for row in rows:
        assert row["version"] == RUNTIME
        if row["opset"] <= TAKES:
            assert (row["status"], row["compared"] > 0) == ("PASS", True), (row["cell"], row["check"], row["message"])
        else:
            assert (row["status"], row["kind"], row["compared"]) == ("UNSUPPORTED", "opset", 0), row["message"]
    assert {(row["layout"], row["opset"]) for row in rows} == set(CELLS)


def test_its_rows_are_completed_where_they_are_merged(replayed: Any, box: Path, ort_run: Any) -> None:
    before = {place: place.read_bytes() for place in (box / "results").glob("*.jsonl")}
    done = helpers.run("conform.cli", "matrix", str(box / "results"), str(ort_run[1]), "--format", "json")
    assert done.returncode == 0, done.stderr
    cells = {(cell["version"], cell["layout"], cell["opset"]): cell for cell in json.loads(done.stdout)}
    assert len(cells) == len(CELLS) + 3, "and those of the other run"
    for (version, _, opset), cell in cells.items():
        expected = "UNSUPPORTED" if version == RUNTIME and opset > TAKES else "PASS"
        assert cell["status"] == expected, cell
        assert (expected == "PASS") == (cell["compared"] > 0)
    assert {place: place.read_bytes() for place in (box / "results").glob("*.jsonl")} == before
    table = helpers.run("conform.cli", "matrix", str(box / "results"), str(ort_run[1])).stdout
    assert RUNTIME in table
    assert "🚫" in table


def test_text_and_artifact_are_answered_at_the_merge(replayed: Any, box: Path) -> None:
    from conform.texts import scorer_of
    from harness.run.complete import answers
    from reports.folders import read_all

    made = answers(read_all([box / "results"]), scorer_of(None))
    passed = [(row.check, row.layout, row.opset) for row in made if row.status == "PASS" and row.compared]
    assert sorted(passed) == sorted(
        (check, layout, opset) for check in ("text", "artifact") for layout, opset in CELLS if opset <= TAKES
    )
    assert {row.version for row in made} == {RUNTIME}


def test_wrong_tokens_carried_home_fail_the_text(replayed: Any, box: Path, tmp_path: Path) -> None:
    """The text check at the merge reads what the box decoded, not what it should have."""
    import numpy as np

    from conform.texts import scorer_of
    from harness.run.complete import answers
    from reports.folders import read_all

    results = tmp_path / "results"
    shutil.copytree(box / "results", results)
    (place,) = results.glob("*/*unified_fp32_op12.tokens.npz")
    with np.load(place) as saved:
        arrays = dict(saved)
    arrays["tokens"][:] = arrays["tokens"][::-1]
    np.savez_compressed(place, **arrays)
    texts = [row for row in answers(read_all([results]), scorer_of(None)) if row.check == "text"]
    assert {(row.layout, row.opset) for row in texts if row.status == "FAIL"} == {("unified", 12)}


def test_the_old_box_says_what_is_wrong(environment: Path, box: Path) -> None:
    for arguments, words in (
        (["nowhere.bundle"], "no readable manifest.json"),
        (["carried.bundle", "--backend", "openvino"], "openvino is absent: "),
        (["carried.bundle", "--backend", "orrt"], "did you mean 'ort'?"),
        (["carried.bundle", "--opset", "99"], "has no such graph"),
    ):
        done = on_box(environment, box, "-m", "harness.replay", *arguments, "--results", "other")
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


def test_pytest_here_runs_the_old_runtime_there(environment: Path, tmp_path: Path) -> None:
    done = helpers.conformance(
        tmp_path,
        f"--backend=ort@{RUNTIME}",
        f"--backend-python={environment}",
        "--opset=15-16",
        "--layout=unified",
        "-k",
        "logits or text",
    )
    assert done.returncode == 0, done.stdout
    found = {
        (row["opset"], row["check"]): row["status"] for row in helpers.rows_in(tmp_path) if row["check"] != "tokens"
    }
    assert found == {
        (15, "logits"): "PASS",
        (15, "text"): "PASS",
        (16, "logits"): "UNSUPPORTED",
        (16, "text"): "UNSUPPORTED",
    }
    rows = helpers.rows_in(tmp_path)
    assert {row["version"] for row in rows} == {RUNTIME}
    assert str(environment) in rows[0]["command"]
