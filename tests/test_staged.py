"""Runtimes that build, on fakes: what each stage leaves in the rows, and what falls short of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import contract, staged
from conform.commands import backends as here
from harness.core import verdict
from harness.replay import node
from harness.run.worker import Presence
from tests import compilers, helpers
from tests.saboteurs import frame

pytestmark = pytest.mark.usefixtures("engine_cache")
ONE = ("--opset=17", "--layout=unified")
NOTHING_RAN = dict.fromkeys(
    ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "invariance", "cost"), 0
)


def test_a_cell_says_what_each_stage_took(engine_cache: Path) -> None:
    backend = compilers.Runs()
    rows = helpers.judge(backend, of=frame.brief())
    assert {row.status for row in rows.values()} == {"PASS"}
    staged_rows = [row for row in rows.values() if "stages" in row.detail]
    assert len(staged_rows) == 1, "the stages are in one row of a cell"
    stages = staged_rows[0].detail["stages"]
    parts = [(one.get("part", ""), one["stage"]) for one in stages]
    assert parts == [(part, stage) for part in ("encoder", "step") for stage in ("parse", "build", "load")] + [
        ("", "run")
    ]
    assert all(one["seconds"] >= 0 for one in stages)
    build = stages[1]
    assert build["log"] == [f"layer {number}" for number in range(20 - staged.LOG_LINES, 20)]
    assert Path(build["artifact"]).stat().st_size == build["bytes"]
    assert Path(build["artifact"]).is_relative_to(engine_cache)
    assert rows["cost"].detail["load_seconds"] > 0


def test_a_second_run_takes_the_engines_of_the_first() -> None:
    first = helpers.judge(compilers.Runs(), of=frame.brief(), checks=("placement",))
    again = compilers.Runs()
    rows = helpers.judge(again, of=frame.brief(), checks=("placement",))
    assert again.did == [("load", "encoder"), ("load", "step")]
    assert rows["placement"].status == "PASS"
    stages = rows["placement"].detail["stages"]
    assert [(one["stage"], one.get("cached", False)) for one in stages] == [("build", True), ("load", False)] * 2
    built = [one for one in first["placement"].detail["stages"] if one["stage"] == "build"]
    for name in ("build_seconds", "bytes", "artifact"):
        assert [one[name] for one in stages if one["stage"] == "build"] == [one[name] for one in built]


def test_an_interpreter_loads_and_does_nothing_else() -> None:
    from backends import ort

    rows = helpers.judge(ort.Backend(), of=frame.brief(), checks=("kv_shape",))
    stages = [(one.get("part", ""), one["stage"]) for one in rows["kv_shape"].detail["stages"]]
    assert stages == [("encoder", "load"), ("step", "load"), ("", "run")]


@pytest.mark.parametrize(
    "make, status, effective", [(compilers.Runs, "PASS", "fp32"), (compilers.Lowers, "FAIL", "fp16")]
)
def test_the_placement_row_says_what_was_requested_and_what_it_was(make: Any, status: str, effective: str) -> None:
    row = helpers.judge(make(), of=frame.brief(), checks=("placement",))["placement"]
    assert row.status == status
    assert row.detail["precision"] == {"requested": "fp32", "effective": [effective]}


def test_a_precision_that_the_adapter_lacks_is_refused_with_those_it_has() -> None:
    backend = compilers.Runs()
    backend.capabilities = replace(backend.capabilities, dtypes=frozenset({"float16", "int64"}))
    row = helpers.judge(backend, of=frame.brief(), checks=("logits",))["logits"]
    assert (row.status, row.kind, backend.did) == ("UNSUPPORTED", "dtype", [])
    assert row.message.endswith(" is float32; the adapter takes float16, int64")


@pytest.mark.parametrize(
    "make, stage, kind", [(compilers.Builds, "build", "built"), (compilers.Parses, "parse", "parsed")]
)
def test_built_is_not_ran(make: Any, stage: str, kind: str) -> None:
    rows = helpers.judge(make(), of=frame.brief())
    assert {check: row.compared for check, row in rows.items()} == NOTHING_RAN
    assert {(row.status, row.stage, row.kind) for row in rows.values()} == {("ABSENT", stage, kind)}
    assert rows["logits"].message.startswith(f"{kind} in ")
    assert rows["logits"].message.endswith("not run: no fake board is plugged in; plug one in")
    assert ("MiB" in rows["logits"].message) == (kind == "built")


def test_a_refused_part_is_a_refusal_whatever_was_built_before_it() -> None:
    rows = helpers.judge(compilers.RefusesStep(), of=frame.brief(), checks=("logits", "tokens"))
    assert {(row.status, row.stage, row.kind) for row in rows.values()} == {("UNSUPPORTED", "build", "operator")}
    stages = rows["logits"].detail["stages"]
    assert [(one["part"], one["stage"]) for one in stages if one.get("failed")] == [("step", "build")]


def test_a_node_test_that_was_built_is_not_run(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "data.npz", **{"in:x": np.ones(2, np.float32), "out:y": np.ones(2, np.float32)})
    (tmp_path / "model.onnx").write_bytes(b"graph")
    backend = compilers.Builds()
    test = {"name": "test_one", "model": str(tmp_path / "model.onnx"), "data": str(tmp_path / "data.npz")}
    row = node.run_test(backend, backend.probe(), test)
    assert (row.status, row.kind, row.compared) == ("ABSENT", "built", 0)


WISHES = {
    "built alone": (["tests.compilers:Builds"], [], 4),
    "built alone, allowed": (["tests.compilers:Builds"], ["--allow-absent"], 1),
    "built beside ort": (["tests.compilers:Builds", "ort"], [], 4),
    "built beside ort, allowed": (["tests.compilers:Builds", "ort"], ["--allow-absent"], 0),
    "parsed": (["tests.compilers:Parses"], [], 4),
    "refused is not built": (["tests.compilers:RefusesStep"], ["--allow-absent"], 1),
}


@pytest.mark.parametrize("name", WISHES)
def test_a_run_that_only_built_exits_like_one_of_an_absent_backend(tmp_path: Path, name: str, valid: Any) -> None:
    backends, more, code = WISHES[name]
    done = helpers.conformance(tmp_path, f"--backend={','.join(backends)}", *ONE, "-k", "kv_shape or artifact", *more)
    assert done.returncode == code, done.stdout
    valid(helpers.rows_in(tmp_path))
    lines = [line for line in done.stdout.splitlines() if "and not run:" in line]
    if name == "refused is not built":
        assert "tests.compilers:RefusesStep was asked for and compared nothing" in done.stdout
        assert not lines
    else:
        (line,) = lines
        kind = "parsed" if "Parses" in backends[0] else "built"
        assert line == f"{backends[0]} was {kind} and not run: no fake board is plugged in; plug one in"
        assert "compared nothing" not in done.stdout


def test_without_pytest_it_ends_like_an_absent_backend_too(tmp_path: Path) -> None:
    arguments = ("--backend", "tests.compilers:Builds", *ONE, "--results", str(tmp_path))
    done = helpers.run("harness.replay", str(helpers.EMBEDDED), *arguments)
    assert done.returncode == 2
    assert done.stderr == (
        "error: tests.compilers:Builds goes no further than build: no fake board is plugged in; plug one in\n"
    )
    assert {(row["status"], row["kind"]) for row in helpers.rows_in(tmp_path)} == {("ABSENT", "built")}


def test_processes_that_share_a_run_agree_that_it_only_built(tmp_path: Path) -> None:
    arguments = ("--backend=tests.compilers:Builds,ort", "--opset=17", "-k", "kv_shape", "--allow-absent", "-n", "2")
    done = helpers.conformance(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("was built and not run") == 1


def test_a_compiler_that_dies_while_it_builds_is_a_crash(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path, "--backend=tests.compilers:DiesInBuild", *ONE, "-k", "kv_shape")
    assert done.returncode == 1
    assert {row["status"] for row in helpers.rows_in(tmp_path)} == {"CRASH"}


def test_explain_shows_the_stages_once(tmp_path: Path) -> None:
    cell = "tests.compilers:Builds@1.0-fake/fake/torchscript/unified/fp32/op17"
    done = helpers.run("conform.cli", "explain", cell)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "🔨 logits" in done.stdout
    assert done.stdout.count("not run: no fake board") == 1
    for word in ("encoder  parse ", "encoder  build ", "step     build ", "layer 19", str(tmp_path / "engines")):
        assert word in done.stdout


@pytest.mark.parametrize(
    "answer, line, note",
    [
        (
            Presence(
                probe=contract.Probe("1.0", "npu", "fp16"),
                depth="build",
                missing={"reason": "no npu", "remedy": "plug"},
            ),
            "toy        present  1.0        npu fp16  built",
            "toy is built, and goes no deeper: no npu\n    plug",
        ),
        (
            Presence(probe=contract.Probe("1.0", "simulator-npu", "fp16", "simulator")),
            "toy        present  1.0        simulator-npu fp16  simulated",
            "",
        ),
        (Presence(probe=contract.Probe("1.0", "npu", "fp16")), "toy        present  1.0        npu fp16  ran", ""),
        (
            Presence(absent={"reason": "it is not here", "remedy": "pip install toy"}),
            "toy        absent   -          -         -",
            "toy is absent: it is not here\n    pip install toy",
        ),
    ],
)
def test_backends_say_how_deep_they_go(monkeypatch: pytest.MonkeyPatch, answer: Presence, line: str, note: str) -> None:
    monkeypatch.setattr(here.selectors, "names", lambda: ["toy"])
    monkeypatch.setattr(here, "_ask", lambda name, python: answer)
    _, _, shown, *notes = here.page(None).splitlines()
    assert shown.split() == line.split()
    assert "\n".join(notes) == note


def test_words_of_what_was_not_run_on_a_device() -> None:
    assert verdict.called("ABSENT", "built") == "BUILT"
    assert verdict.called("ABSENT", "parsed") == "ABSENT"
    assert verdict.called("PASS", simulated=True) == "SIMULATED"
    assert verdict.called("PASS", partial=True, simulated=True) == "PARTIAL"
    assert verdict.called("FAIL", simulated=True) == "FAIL"
