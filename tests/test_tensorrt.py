"""The TensorRT adapter on a named fake: every version's API, absences, refusals, and planted mistakes."""

import gc
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as make

from backends import contract
from backends import tensorrt as adapter
from harness.core import verdict
from harness.core.rows import Row
from tests import environments, faked, helpers

pytestmark = pytest.mark.usefixtures("engine_cache")

VERSIONS = ("8.4.1", "8.5.3", "8.6.1", "10.3.0", "11.4.0")


@pytest.mark.parametrize("layout", ["unified", "split"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_api_is_used_as_documented(version: str, layout: str) -> None:
    with faked.fakes(VERSION=version) as device:
        rows, faults = faked.replay(device, adapter, layout=layout)
    assert not faults
    assert {check: row.status for check, row in rows.items()} == dict.fromkeys(faked.CHECKS, "PASS")
    assert all(row.compared for row in rows.values())
    assert "built for caches of 0 to 512" in rows["placement"].detail["step"]


def test_a_whole_cell_passes() -> None:
    checks = ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "invariance", "cost")
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter, checks=checks)
    assert not faults
    assert {check: row.status for check, row in rows.items()} == dict.fromkeys(checks, "PASS")


def _builds(rows: dict[str, Row]) -> list[dict[str, Any]]:
    stages = next(row.detail["stages"] for row in rows.values() if "stages" in row.detail)
    return [record for record in stages if record["stage"] == "build"]


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("version", ["8.4.1", "8.5.3", "11.4.0"])
def test_a_second_run_builds_nothing(version: str, least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with faked.fakes(VERSION=version, REFUSES_EMPTY=bool(least)) as device:
        first, _ = faked.replay(device, adapter, layout="split")
        import tensorrt

        monkeypatch.delattr(tensorrt.Builder, "create_network")
        second, faults = faked.replay(device, adapter, layout="split")
    assert not faults
    for rows, cached in ((first, False), (second, True)):
        assert {check: row.status for check, row in rows.items()} == dict.fromkeys(faked.CHECKS, "PASS")
        assert f"built for caches of {least} to 512" in rows["placement"].detail["step"]
        assert [record.get("cached", False) for record in _builds(rows)] == [cached] * 3
    for one, again in zip(_builds(first), _builds(second), strict=True):
        assert one["log"][-1] == "info: Engine generation completed in 0.1 seconds."
        assert Path(one["artifact"]).is_relative_to(tmp_path / "engines")
        assert (one["artifact"], one["bytes"]) == (again["artifact"], again["bytes"])


def test_an_engine_serves_its_own_version_gpu_precision_and_options_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def artifact(provider: str | None = None, **options: int) -> str:
        backend = adapter.Backend(provider)
        backend.probe()
        backend.compile(_part("encoder"), options).close()
        return str(backend.stages[-2]["artifact"])

    with faked.fakes(VERSION="8.6.1"):
        from cuda.bindings import runtime

        assert artifact() == artifact(threads=1)
        artifacts = [artifact(), artifact("tf32"), artifact("fp16"), artifact(level=0)]
        monkeypatch.setattr(runtime, "GPUS", ["Another"])
        artifacts.append(artifact())
    with faked.fakes(VERSION="8.5.3"):
        artifacts.append(artifact())
    assert len(set(artifacts)) == 6


def test_an_engine_that_the_runtime_does_not_take_is_a_load_error() -> None:
    with faked.fakes():
        backend = adapter.Backend()
        backend.probe()
        backend.build = lambda *_: b"no engine"  # type: ignore[method-assign]
        with pytest.raises(contract.StageError, match="no engine of this version") as caught:
            backend.compile(_part("encoder"), {})
    assert (caught.value.stage, caught.value.kind) == ("load", "other")


def test_pycuda_serves_as_well() -> None:
    with faked.fakes(hidden=("cuda",), VERSION="8.4.1") as device:
        rows, faults = faked.replay(device, adapter)
    assert not faults
    assert {row.status for row in rows.values()} == {"PASS"}


def test_the_cache_is_not_uploaded_again() -> None:
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter)
        uploads = device.DEVICE.uploads
    assert not faults
    steps = 96 + 25  # of the two batches
    # Twelve tensors go into a step; only the token and the source mask come from the host.
    assert 2 * steps <= uploads <= 2 * steps + 2 * 2
    assert rows["kv_values"].compared > 500_000


@pytest.mark.parametrize("provider, precision", [(None, "fp32"), ("tf32", "tf32"), ("fp16", "fp16")])
def test_the_effective_precision_is_the_inspectors(provider: str | None, precision: str) -> None:
    with faked.fakes(VERSION="8.6.1") as device:
        device.reset()
        backend = adapter.Backend(provider)
        assert backend.probe() == contract.Probe("8.6.1-fake", "fake-orin", precision, "fake")
        program = backend.compile(_part("encoder"), {})
        placed = program.placement()
        program.close()
        assert placed is not None
        assert (placed.device, placed.precision) == ("fake-orin", precision)
        assert "engine inspector" in placed.evidence


def test_fixed_sizes_need_no_profile() -> None:
    """As in the static layout: the size of a fixed dimension is the only one that is accepted."""
    part = _part("encoder")
    fixed = {"batch": 2, "source": 7}
    with faked.fakes() as device, tempfile.TemporaryDirectory() as folder:
        device.reset()
        backend = adapter.Backend()
        backend.probe()
        program = backend.compile(helpers.fixed(part, Path(folder), **fixed), {})
        assert not program.owned[1].plan.profile
        feeds = {name: np.ones((2, 7), np.int64) for name in ("input_ids", "attention_mask")}
        assert program.run(feeds)["last_hidden_state"].shape[:2] == (2, 7)
        with pytest.raises(contract.StageError, match="outside of the optimization profile"):
            program.run({name: array[:1] for name, array in feeds.items()})
        program.close()
        assert not any("leak" in fault and "blocks" in fault for fault in device.DEVICE.faults)


def test_a_mode_that_a_version_lost_is_refused() -> None:
    with faked.fakes(VERSION="11.4.0"):
        backend = adapter.Backend("fp16")
        backend.probe()
        with pytest.raises(contract.StageError, match="types networks strongly") as caught:
            backend.compile(_part("encoder"), {})
    assert (caught.value.stage, caught.value.kind) == ("build", "dtype")


@pytest.mark.parametrize("word", ["tf32", "fp16"])
def test_a_precision_that_the_gpu_lacks_is_unsupported(word: str) -> None:
    """A builder takes the flag all the same, and builds in float32."""
    with faked.fakes(VERSION="8.5.3", PRECISIONS={"tf32", "fp16"} - {word}):
        backend = adapter.Backend(word)
        backend.probe()
        with pytest.raises(contract.StageError, match=f"fake-orin has no {word}") as caught:
            backend.compile(_part("encoder"), {})
    assert verdict.of_refusal(caught.value.stage, caught.value.kind) == "UNSUPPORTED"


def test_a_builder_that_refuses_an_empty_cache_builds_for_longer_ones() -> None:
    with faked.fakes(REFUSES_EMPTY=True) as device:
        split, faults = faked.replay(device, adapter, layout="split")
        assert not faults
        assert {row.status for row in split.values()} == {"PASS"}
        assert "built for caches of 1 to 512" in split["placement"].detail["step"]
        unified, _ = faked.replay(device, adapter, layout="unified")
    assert unified["kv_values"].status == "FAIL"
    assert "outside of the optimization profile, built for caches of 1 to 512" in unified["kv_values"].message


@pytest.mark.parametrize("version", ["8.4.1", "10.3.0"])
def test_every_error_of_the_parser_is_reported(tmp_path: Path, version: str) -> None:
    part = _foreign(tmp_path)
    with faked.fakes(VERSION=version, NO_IMPORTER={"Foo", "Bar"}):
        backend = adapter.Backend()
        backend.probe()
        with pytest.raises(contract.StageError) as caught:
            backend.compile(part, {})
    assert (caught.value.stage, caught.value.kind) == ("parse", "operator")
    for word in ("Foo", "Bar", *(("strange", "stranger") if version == "10.3.0" else ("node 0", "node 1"))):
        assert word in caught.value.message


ABSENCES = [
    (("tensorrt",), "tensorrt cannot be imported", "pip install tensorrt"),
    (("cuda", "pycuda"), "neither cuda-bindings nor pycuda is here", "pip install cuda-bindings"),
]


@pytest.mark.parametrize("hidden, reason, remedy", ABSENCES)
def test_absent_packages_are_told_apart(hidden: tuple[str, ...], reason: str, remedy: str) -> None:
    with faked.fakes(hidden=hidden), pytest.raises(contract.Absent, match=reason) as caught:
        adapter.Backend().probe()
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("gpus, code, reason", [([], 0, "finds no GPU"), ([], 35, "driver is not here, or too old")])
def test_no_driver_is_not_no_gpu(monkeypatch: pytest.MonkeyPatch, gpus: list[str], code: int, reason: str) -> None:
    with faked.fakes():
        from cuda.bindings import runtime

        monkeypatch.setattr(runtime, "GPUS", gpus)
        if code:
            monkeypatch.setattr(runtime, "cudaGetDeviceCount", lambda: (code, None))
        with pytest.raises(contract.Absent, match=reason):
            adapter.Backend().probe()


@pytest.mark.parametrize("fail_at", [1, 4, 30])
@pytest.mark.parametrize("hidden", [(), ("cuda",)], ids=["cuda-bindings", "pycuda"])
def test_a_full_device_is_a_clear_failure_and_leaks_nothing(hidden: tuple[str, ...], fail_at: int) -> None:
    with faked.fakes(hidden=hidden) as device:
        rows, faults = faked.replay(device, adapter, fail_at=fail_at)
    assert not faults
    assert rows["kv_values"].status == "FAIL"
    messages = " ".join(row.message for row in rows.values())
    assert "cudaErrorMemoryAllocation" in messages or "out of memory" in messages


def test_a_stream_that_cannot_be_created_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with faked.fakes():
        from cuda.bindings import runtime

        monkeypatch.setattr(runtime, "cudaStreamCreate", lambda: (runtime.cudaError_t.cudaErrorMemoryAllocation, None))
        with pytest.raises(RuntimeError, match="cudaStreamCreate: cudaErrorMemoryAllocation"):
            adapter.Backend().probe()
        gc.collect()  # the incomplete device must be released without another error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_run_is_reported_though_nothing_can_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the device is sticky: every later call fails as well, and the first error is the one to report."""
    with faked.fakes() as device:
        from cuda.bindings import runtime

        lost = runtime.cudaError_t.cudaErrorIllegalAddress
        monkeypatch.setattr(runtime, "cudaStreamSynchronize", lambda stream: (lost,))
        monkeypatch.setattr(runtime, "cudaFree", lambda memory: (lost,))
        rows, _ = faked.replay(device, adapter)
    assert "cudaStreamSynchronize: cudaErrorIllegalAddress (700)" in rows["encoder"].message


def test_the_real_api_takes_the_adapters_calls(tmp_path: Path) -> None:
    """TensorRT-RTX shares TensorRT 11's API and parses and builds without a GPU, which it needs from there on."""
    bad = _foreign(tmp_path)
    script = f"""
import sys, tensorrt_rtx
sys.modules["tensorrt"] = tensorrt_rtx
from backends import contract, tensorrt as adapter, logs, tensorrt_engine
from harness.core.bundle import Bundle
bundle = Bundle({str(helpers.EMBEDDED)!r}, verify=False)
part = next(graph for graph in bundle.graphs if graph.id == "torchscript/unified/fp32/op17").part("step")
backend = adapter.Backend()
try:
    print("probe", backend.probe())
except contract.Absent as absent:
    print("absent", absent.reason)
backend.trt, backend.log = tensorrt_rtx, logs.tensorrt_logger(tensorrt_rtx, backend.note)
backend.probed = contract.Probe("1", "any", "fp32")
print("plan", len(backend.build(backend.parse(part, {{}}), part, {{"level": 0}})) > 1000000)
for each in (part, contract.Part("step", {bad.path!r}, (), ())):
    try:
        backend.compile(each, {{"level": 0}})
    except contract.StageError as error:
        print(error.stage, error.kind, error.message)

import re, numpy as np
from backends import cuda
source = open(adapter.__file__).read() + open(tensorrt_engine.__file__).read()
real = [tensorrt_rtx.ICudaEngine, tensorrt_rtx.IExecutionContext, tensorrt_rtx.EngineInspector]
used = set(re.findall(r"\\b(?:engine|loaded|context|inspector|create_engine_inspector\\(\\))\\.(\\w+)", source)) - {{"path"}}
print("unknown", sorted(name for name in used if not any(hasattr(one, name) for one in real)))
bindings = object.__new__(cuda.Bindings)
from cuda.bindings import runtime
bindings.api = runtime
array = np.zeros(3, np.float32)
array.setflags(write=False)
for name, arguments in (("malloc", (4,)), ("upload", (4096, array)), ("download", (array.copy(), 4096))):
    try:
        getattr(bindings, name)(*arguments)
    except RuntimeError as error:
        print("called", error)
"""
    python = environments.python("tensorrt-rtx")
    done = subprocess.run([python, "-c", script], cwd=helpers.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    if not lines[0].startswith("probe"):
        assert lines[0].startswith("absent the CUDA driver is not here"), lines
        assert lines[2].startswith("load other IRuntime::deserializeCudaEngine"), lines
    assert lines[1] == "plan True"
    [parse] = [line for line in lines if line.startswith("parse operator")]
    assert parse.startswith("parse operator strange (Foo): INVALID_NODE"), lines
    assert "stranger (Bar)" in parse
    # All others are calls of versions before 8.5.
    [unknown] = [line for line in lines if line.startswith("unknown")]
    old = (
        "execute_async_v2",
        "get_binding_dtype",
        "get_binding_name",
        "get_binding_shape",
        "get_profile_shape",
        "num_bindings",
        "set_binding_shape",
    )
    assert unknown == f"unknown {list(old)}"
    if not lines[0].startswith("probe"):
        assert sum("cudaErrorInsufficientDriver" in line for line in lines if line.startswith("called")) == 3, lines


def _part(name: str) -> contract.Part:
    from tests.saboteurs import frame

    graph = next(graph for graph in frame.brief().bundle.graphs if graph.id == "torchscript/unified/fp32/op17")
    return graph.part(name)


def _foreign(folder: Path) -> contract.Part:
    """A model of two operators that do not exist."""
    ports = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch"]) for name in "xz"]
    nodes = [make.make_node("Foo", ["x"], ["y"], name="strange"), make.make_node("Bar", ["y"], ["z"], name="stranger")]
    model = make.make_model(
        make.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=[make.make_opsetid("", 13)], ir_version=7
    )
    onnx.save(model, folder / "foreign.onnx")
    port = contract.Port("x", "float32", ("batch",))
    return contract.Part("encoder", str(folder / "foreign.onnx"), (port,), ())
