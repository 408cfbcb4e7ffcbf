"""TensorRT-RTX, the real package: it parses and builds without a GPU. Where there is one, what was built runs too."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.contract import LAYOUTS
from harness.run import envs
from tests import environments, helpers

SETUP = f"""
import gc
from dataclasses import replace
import tensorrt_rtx as trt
from backends import contract, staged, tensorrt, tensorrt_rtx
from harness.core.bundle import Bundle
bundle = Bundle({str(helpers.EMBEDDED)!r}, verify=False)
part = next(graph for graph in bundle.graphs if graph.id == "torchscript/unified/fp32/op17").part("step")

def outcome(backend, part=part, **options):
    try:
        backend.compile(part, options).close()
    except contract.StageError as error:
        return f"{{error.stage}} {{error.kind}} {{error.message}}"
    except staged.Reached as reached:
        return f"reached {{reached.stage}}"
    return "ran"
"""


def script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "CONFORM_ENGINES": str(tmp_path / "engines")}
    command = [environments.python("tensorrt-rtx"), "-c", SETUP + text]
    return subprocess.run(command, cwd=helpers.ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Exit code, output and rows of the same run twice: opsets 10 and 11, both layouts."""
    folder, python = tmp_path_factory.mktemp("rtx"), environments.python("tensorrt-rtx")
    options = ("--backend=tensorrt_rtx", f"--backend-python={python}", "--opset=10-11", "-k", "artifact or encoder")
    done = [
        helpers.conformance(folder / name, *options, CONFORM_ENGINES=str(folder / "engines")) for name in ("one", "two")
    ]
    return [
        (process.returncode, process.stdout, helpers.rows_in(folder / name))
        for process, name in zip(done, ("one", "two"), strict=True)
    ]


def _stages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for row in rows for record in row["detail"].get("stages", [])]


def test_every_layout_is_built(runs: Any, valid: Any) -> None:
    code, output, rows = runs[0]
    valid(rows)
    by_graph = {(row["opset"], row["layout"]): row for row in rows if row["check"] == "encoder"}
    for layout in ("split", "unified"):
        refused = by_graph[(10, layout)]
        assert (refused["status"], refused["stage"], refused["kind"]) == ("UNSUPPORTED", "parse", "operator")
    for layout in LAYOUTS:
        built = by_graph[(11, layout)]
        if built["device"] != "no-gpu":
            assert (built["status"], code) == ("PASS", 0)
            continue
        assert (built["status"], built["stage"], built["kind"], built["compared"]) == ("ABSENT", "build", "built", 0)
        assert "not run: " in built["message"]
        assert code == 4
        assert "🔨" in output
        assert "tensorrt_rtx was built and not run: " in output
    sizes = [record["bytes"] for record in _stages(rows) if record["stage"] == "build"]
    assert len(sizes) == 3 + 2 + 4 + 4
    assert min(sizes) > 1_000_000
    assert any("Engine generation completed" in line for record in _stages(rows) for line in record.get("log", []))


def test_a_second_run_builds_nothing(runs: Any) -> None:
    first, second = (_stages([row for row in run[2] if row["opset"] == 11]) for run in runs)
    # The step part of both dynamic layouts is one file, as is each encoder of both static ones: built once.
    assert [record.get("cached", False) for record in first if record["stage"] == "build"].count(True) == 1 + 2
    assert {record["stage"] for record in second} <= {"build", "load", "run"}
    assert all(record["cached"] for record in second if record["stage"] == "build")
    took = [sum(record["seconds"] for record in run if record["stage"] == "build") for run in (first, second)]
    assert took[1] < took[0] / 2


NO_ENGINE = """
backend = tensorrt_rtx.Backend()
here = backend.probe().device
backend.capabilities = replace(backend.capabilities, deepest_stage="run")
print("fresh", outcome(backend))
print("kept", outcome(backend))
backend.build = lambda *_: b"no engine"
print("no engine", outcome(backend, other=1))
print(here)
"""


def test_what_cannot_be_loaded_is_a_load_error_and_not_a_crash(tmp_path: Path) -> None:
    """Deserializing gives None where there is no GPU, and for bytes that are no engine."""
    done = script(tmp_path, NO_ENGINE)
    assert done.returncode == 0, done.stderr[-2000:]
    fresh, kept, no_engine, device = done.stdout.splitlines()
    if device == "no-gpu":
        assert fresh.startswith("fresh load other IRuntime::deserializeCudaEngine")
        assert "to build it again" not in fresh
        assert kept.startswith("kept load other IRuntime::deserializeCudaEngine")
        assert "the engine was kept by an earlier run, delete " in kept
    else:
        assert (fresh, kept) == ("fresh ran", "kept ran")
    assert no_engine.startswith("no engine load other ")


NO_PROFILE = """
backend = tensorrt_rtx.Backend()
backend.probe()
fixed = tuple(replace(port, shape=(1,) * len(port.shape)) for port in part.inputs)
print(outcome(backend))  # the library uses only the first logger that it was given
print(outcome(backend, replace(part, inputs=fixed)))
"""


def test_a_network_without_a_profile_is_a_build_error(tmp_path: Path) -> None:
    done = script(tmp_path, NO_PROFILE)
    assert "\nbuild shape " in done.stdout, done.stdout + done.stderr[-2000:]
    assert "no optimization profile has been defined" in done.stdout


def test_a_network_that_was_refused_once_can_be_built(tmp_path: Path) -> None:
    """Falling back to longer caches does not parse again."""
    done = script(
        tmp_path,
        """
backend = tensorrt_rtx.Backend()
backend.probe()
plan, tries = backend._plan, []
def first_refused(builder, network, part, options, sizes):
    tries.append(sizes["past"][0])
    return plan(builder, network, replace(part, inputs=()) if len(tries) == 1 else part, options, sizes)
backend._plan = first_refused
print(outcome(backend), tries, "no optimization profile" in " ".join(backend.log.errors))
""",
    )
    assert done.stdout.splitlines() in (["reached build [0, 1] True"], ["ran [0, 1] True"]), done.stderr[-2000:]


REFUSED_ONCE = """
for mode in tensorrt_rtx.Backend.modes:
    backend = tensorrt_rtx.Backend(mode)
    print(mode, backend.probe().precision, outcome(backend))
"""


def test_supported_and_unsupported_precisions(tmp_path: Path) -> None:
    done = script(tmp_path, REFUSED_ONCE)
    fp32, tf32, fp16 = done.stdout.splitlines()
    for line, mode in ((fp32, "fp32"), (tf32, "tf32")):
        assert line in (f"{mode} {mode} reached build", f"{mode} {mode} ran"), done.stderr[-2000:]
    assert fp16.startswith("fp16 fp16 build dtype ")
    assert "the graph sets the precision" in fp16


EVERY_MODE = """
log = trt.Logger(trt.ILogger.Severity.ERROR)
parser = trt.OnnxParser(trt.Builder(log).create_network(0), log)
gc.collect()
parser.parse_from_file(part.path)
"""

PARSER_OUTLIVES = """
gc.set_threshold(1)
backend = tensorrt_rtx.Backend()
backend.probe()
print(outcome(backend))
"""


def test_the_parser_outlives_no_network(tmp_path: Path) -> None:
    """Using a parser without its network is a segmentation fault; the adapter's network lives long enough."""
    trap = script(tmp_path, EVERY_MODE)
    assert trap.returncode == -11, "no segfault any more: this test and the adapter's comment on it can go"
    done = script(tmp_path, PARSER_OUTLIVES)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() in ("reached build", "ran")


def test_its_environment_is_in_the_registry() -> None:
    (entry,) = envs.matching("tensorrt_rtx@1.7.1")
    wanted = [f"{entry.package}=={entry.version}", *entry.pins]
    assert f"tensorrt-rtx-cu12=={entry.version}" in environments.PACKAGES["tensorrt-rtx"]
    # Its package asks for these two by hand, of the same version.
    for name in ("bindings", "libs"):
        assert f"tensorrt-rtx-cu12-{name}=={entry.version}" in wanted
