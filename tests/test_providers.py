"""``ort:PROVIDER``: real providers in environments of their own, and that the CPU never passes for one of them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.contract import Probe
from harness.core import verdict
from harness.core.rows import Identity, Origin, Row
from harness.core.selectors import parse
from harness.golden.record import record
from harness.run.outcome import elements
from harness.run.process import Limits
from harness.run.targets import Target
from harness.run.worker import Presence, Worker
from reports import matrix, matrix_page
from tests import environments, faked, helpers

ONE_CELL = ("--opset=17", "--layout=split")


@pytest.fixture(scope="module")
def openvino(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    results = tmp_path_factory.mktemp("openvino") / "results"
    return _run("openvino", results, *ONE_CELL), results


def _run(name: str, results: Path, *options: str, provider: str = "") -> subprocess.CompletedProcess[str]:
    python = f"--backend-python={environments.python(name)}"
    return helpers.conformance(results, f"--backend=ort:{provider or name}", python, *options)


def test_openvino_is_a_column_with_proved_placement(openvino: Any) -> None:
    run, results = openvino
    assert run.returncode == 0, run.stdout[-3000:]
    rows = {row["check"]: row for row in helpers.rows_in(results)}
    assert set(rows) == set(verdict.CHECKS)
    assert {row["status"] for row in rows.values()} == {"PASS"}
    assert {row["cell"] for row in rows.values()} == {"ort:openvino@1.24.1/openvino-cpu/torchscript/split/fp32/op17"}
    detail = rows["placement"]["detail"]
    assert detail.pop("precision") == {"requested": "fp32", "effective": ["fp32"]}
    for part, evidence in detail.items():
        assert evidence.startswith("assignment info: OpenVINOExecutionProvider "), (part, evidence)
        assert "INFERENCE_PRECISION_HINT" in evidence
        assert "CPUExecutionProvider" not in evidence
    assert "ort:openvino@1.24.1" in run.stdout


def test_openvinos_fault_is_seen_through_the_provider_and_its_knob_named(tmp_path: Path) -> None:
    run = _run("openvino", tmp_path, "--opset=17", "--layout=unified", "-k", "kv_values or placement")
    rows = {row["check"]: row for row in helpers.rows_in(tmp_path)}
    assert rows["placement"]["status"] == "PASS"
    assert rows["kv_values"]["status"] == "XFAIL", run.stdout[-3000:]
    assert rows["kv_values"]["step"] in (7, 15)
    assert (rows["kv_values"]["blame"], rows["kv_values"]["knob"]) == ("runtime", "CPU_RUNTIME_CACHE_CAPACITY=0")


def test_cann_that_cannot_be_loaded_is_never_green(tmp_path: Path) -> None:
    """The package lists its provider, cannot load it, and gives the work to the CPU: a real silent fallback."""
    run = _run("cann", tmp_path / "results", *ONE_CELL)
    assert run.returncode == 4
    assert "onnxruntime lists CANNExecutionProvider and cannot create it on this box" in run.stderr + run.stdout
    [row] = helpers.rows_in(tmp_path / "results")
    assert (row["status"], row["compared"]) == ("ABSENT", 0)
    silent = _in("cann", _BARE.format(provider="CANNExecutionProvider", path=_step()))
    assert silent == ["['CPUExecutionProvider']"], (
        "onnxruntime-cann no longer falls back silently; test another package"
    )


def test_without_the_probe_compiling_refuses_too() -> None:
    """Even where the probe is skipped, compiling refuses rather than run on the CPU."""
    script = _COMPILE.format(provider="cann", path=_step(), before="backend.other.name = 'CANNExecutionProvider'")
    assert _in("cann", script) == ["refused load"]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an fp16 floor: what the emulated NPU computes in."""
    bundle = tmp_path_factory.mktemp("half") / "half.bundle"
    record(
        helpers.MODEL,
        _few_rows(bundle.parent),
        bundle,
        exporters=("torchscript",),
        opsets=(17,),
        layouts=("split",),
        precisions=("fp32", "fp16"),
        traced_steps=40,
        progress=False,
    )
    return bundle


def _few_rows(folder: Path) -> Path:
    lines = helpers.CORPUS.read_text(encoding="utf-8").splitlines(keepends=True)
    corpus = folder / "few.tsv"
    corpus.write_text("".join(lines[:13]), encoding="utf-8")
    return corpus


def test_qnn_refuses_what_it_does_not_take_and_says_what(tmp_path: Path, half: Path) -> None:
    run = _run("qnn", tmp_path, f"--bundle={half}")
    rows = [row for row in helpers.rows_in(tmp_path) if row["check"] != "artifact"]
    assert run.returncode == 1
    assert {row["device"] for row in rows} == {"simulator-qnn-htp"}
    assert {(row["status"], row["stage"], row["kind"]) for row in rows} == {("UNSUPPORTED", "load", "operator")}
    assert "QNNExecutionProvider leaves 74 nodes: 19 Add, 16 MatMul" in rows[0]["message"]


def test_what_the_cpu_does_beside_a_provider_is_in_the_device(tmp_path: Path, half: Path) -> None:
    run = _run("qnn", tmp_path, f"--bundle={half}", "-k", "kv_values or logits or placement", provider="qnn_mixed")
    rows = {row["check"]: row for row in helpers.rows_in(tmp_path)}
    assert run.returncode == 0, run.stdout[-3000:]
    assert {row["status"] for row in rows.values()} == {"PASS"}
    assert {row["cell"] for row in rows.values()} == {
        "ort:qnn_mixed@1.32.0/simulator-qnn-htp+cpu/torchscript/split/fp16/op17"
    }
    assert rows["kv_values"]["compared"] > 10_000
    detail = rows["placement"]["detail"]
    assert detail.pop("precision") == {"requested": "fp16", "effective": ["fp16"]}
    for evidence in detail.values():
        assert "CPUExecutionProvider" in evidence
        assert "QNNExecutionProvider" in evidence


def test_a_part_of_fixed_sizes_runs_whole_on_the_emulated_npu(tmp_path: Path) -> None:
    """QNN runs a whole graph without dynamic dimensions: no node is left to the CPU, and the numbers are those of fp16."""
    graph = next(graph for graph in helpers.golden().bundle.graphs if graph.id == "torchscript/split/fp32/op17")
    part = helpers.fixed(graph.part("encoder"), tmp_path, batch=2, source=7)
    device, evidence, gap = _in("qnn", _FIXED.format(path=part.path))
    assert device == "simulator-qnn-htp"
    assert evidence.startswith("simulator-qnn-htp assignment info: QNNExecutionProvider ")
    assert "CPUExecutionProvider" not in evidence
    assert 1e-5 < float(gap) < 0.02, "below the lower bound it would be float32"


@pytest.mark.parametrize("name, provider", [("openvino", "openvino"), ("qnn", "qnn_mixed")])
def test_a_profile_proves_what_old_versions_do_not_report(name: str, provider: str) -> None:
    """Before 1.24 a session has no assignment info; a profile must come to the same providers."""
    compiled = _COMPILE.format(provider=provider, path=_step(), before="backend.probe()")
    by_info, by_profile = _in(name, compiled + _PLACED + _PROFILED)[-2:]
    assert by_info.split()[0] == by_profile.split()[0]
    assert "profile of a session with equal settings" in by_profile


def test_a_provider_that_nobody_has_is_absent_with_its_package(tmp_path: Path) -> None:
    run = helpers.conformance(tmp_path / "results", "--backend=ort:vitisai", *ONE_CELL)
    assert run.returncode == 4
    assert "this onnxruntime has no provider 'vitisai', it has " in run.stderr
    assert "pip install onnxruntime-vitisai, in an environment of its own" in run.stderr
    cuda = helpers.conformance(tmp_path / "cuda", "--backend=ort:cuda", *ONE_CELL)
    assert "pip install onnxruntime-gpu" in cuda.stderr
    mistyped = helpers.conformance(tmp_path / "mistyped", "--backend=ort:cudda", *ONE_CELL)
    assert mistyped.returncode == 4
    assert "did you mean 'cuda'?" in mistyped.stderr
    assert "pip install" not in mistyped.stderr, "no package of a name that somebody mistyped"


BOXES = [
    ("tensorrt", "tensorrt cannot be imported", "pip install tensorrt"),
    ("cann", "pyACL cannot be imported", "set_env.sh"),
]


@pytest.mark.parametrize("backend, reason, remedy", BOXES, ids=["tensorrt", "cann"])
def test_a_box_without_the_hardware_says_so_at_once(tmp_path: Path, backend: str, reason: str, remedy: str) -> None:
    run = helpers.conformance(tmp_path / "results", f"--backend={backend}")
    assert run.returncode == 4
    assert reason in run.stderr
    assert remedy in run.stderr
    beside = helpers.conformance(
        tmp_path / "beside", f"--backend=ort,{backend}", *ONE_CELL, "--allow-absent", "-k", "encoder"
    )
    assert beside.returncode == 0, beside.stdout[-2000:]
    assert f"⬜ {backend}: {reason}" in " ".join(beside.stdout.split())


MODES = [
    ("tensorrt:int4", "its modes: fp32, tf32, fp16"),
    ("cann:foo", "its modes: fp32, force_fp32, fp16, mixed"),
    ("reference:cpu", "it has none"),
]


@pytest.mark.parametrize("backend, has", MODES)
def test_a_mode_that_an_adapter_does_not_have_is_bad_input(tmp_path: Path, backend: str, has: str) -> None:
    """It is not an absence: neither hardware nor --allow-absent would help."""
    message = f"--backend={backend}: there is no mode {backend.partition(':')[2]!r}; {has}"
    run = helpers.conformance(tmp_path / "results", f"--backend={backend}", "--allow-absent")
    assert (run.returncode, message in run.stderr) == (4, True), run.stderr
    assert not (tmp_path / "results").exists()
    alone = helpers.run(
        "harness.replay", str(helpers.EMBEDDED), "--backend", backend, "--results", str(tmp_path / "rows")
    )
    assert (alone.returncode, alone.stderr) == (2, f"error: {message}\n")


def test_rows_of_a_fake_enter_no_matrix() -> None:
    from backends import tensorrt as adapter

    with faked.fakes() as device:
        rows, _ = faked.replay(device, adapter, layout="split")
    identity = Identity(
        backend="tensorrt",
        version="8.5.3-fake",
        execution="fake",
        cell="tensorrt@8.5.3-fake/fake-orin/torchscript/split/fp32/op17",
        opset=17,
    )
    fakes = [Row.of(row.answer, identity, Origin()) for row in rows.values()]
    page = matrix_page.terminal(matrix.build([*fakes, *_honest()]))
    assert "✅" not in page.replace("✅ pass", "").replace("     17  ✅", "")
    assert "⬜ tensorrt@8.5.3-fake: a test's fake, left out: its rows are no evidence" in page
    assert matrix.records(matrix.build(fakes)) == []


def test_a_run_of_a_fake_compared_nothing() -> None:
    for version, compared in (("8.5.3", 7), ("8.5.3-fake", 0)):
        selector = parse("tensorrt")
        found = Presence(Probe(version, "orin", "fp32"))
        target = Target(selector, Worker(str(helpers.EMBEDDED), selector, Limits()), found)
        row = Row("logits", "PASS", compared=7, backend="tensorrt", version=version)
        assert elements([row], target) == compared


def test_conform_prints_the_table_of_platforms(openvino: Any) -> None:
    page = helpers.run("conform.cli", "matrix", str(openvino[1]), "--table=platforms")
    assert page.returncode == 0, page.stderr
    assert "ort:openvino@1.24.1" in page.stdout
    assert "⬜" in page.stdout
    wrong = helpers.run("conform.cli", "matrix", str(openvino[1]), "--table=platforms", "--format", "csv")
    assert (wrong.returncode, "terminal or md" in wrong.stderr) == (2, True)


def _honest() -> Iterator[Row]:
    for check in verdict.CHECKS:
        yield Row(
            check,
            "PASS",
            compared=1,
            backend="ort",
            version="1",
            device="cpu",
            exporter="torchscript",
            layout="split",
            precision="fp32",
            opset=17,
            cell="ort@1/cpu/torchscript/split/fp32/op17",
        )


def _step() -> str:
    return str(helpers.EMBEDDED / "torchscript-fp32-op17-step.onnx")


def _in(name: str, script: str) -> list[str]:
    """Lines that a script prints in an environment, run in the checkout."""
    command = [environments.python(name), "-c", script]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        line
        for line in done.stdout.splitlines()
        if not line.startswith((" # LIBNATIVE", "****", "EP Error", " when", "Falling"))
    ]


_BARE = """
import onnxruntime
print(onnxruntime.InferenceSession({path!r}, providers=[{provider!r}]).get_providers())
"""
_COMPILE = """
import numpy as np
from backends import contract, ort, providers
from harness.core.bundle import Bundle
bundle = Bundle("corpora/tiny-marian-en-zh.bundle", verify=False)
part = next(graph for graph in bundle.graphs if graph.id == "torchscript/split/fp32/op17").part("step")
backend = ort.Backend({provider!r})
{before}
try:
    program = backend.compile(part, {{}})
except contract.StageError as error:
    print("refused", error.stage)
    error_message = error.message.replace(chr(10), " ")
"""
_FIXED = """
import numpy as np, onnxruntime
from backends import contract, ort
backend = ort.Backend("qnn")
print(backend.probe().device)
program = backend.compile(contract.Part("encoder", {path!r}, (), ()), {{}})
feeds = {{"input_ids": np.arange(14).reshape(2, 7) + 5, "attention_mask": np.ones((2, 7), np.int64)}}
given = program.run(feeds)["last_hidden_state"]
placement = program.placement()
print(placement.device, placement.evidence)
right = onnxruntime.InferenceSession({path!r}, providers=["CPUExecutionProvider"]).run(["last_hidden_state"], feeds)[0]
print(np.abs(given - right).max())
"""
_PLACED = """
sizes = {"batch": 2, "source": 5, "past": 3}
program.run({port.name: np.ones([sizes.get(size, size) for size in port.shape], port.dtype) for port in part.inputs})
placement = program.placement()
print(placement.device, placement.evidence)
"""
_PROFILED = """
providers.assigned = lambda session: {}
placement = program.placement()
print(placement.device, placement.evidence)
"""
