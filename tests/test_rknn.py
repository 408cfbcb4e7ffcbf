"""rknn: the real simulator in an environment of its own, on one small graph; boards are replaced by a fake toolkit."""

import json
import os
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from backends import contract, rknn
from harness.core.errors import UserError
from harness.run import envs
from tests import helpers

VERSION = "2.5.0"
SCRIPT = """
import json, sys
import numpy as np
from backends import contract, rknn, staged
outcomes = []
for target, path, shapes in json.loads(sys.argv[1]):
    backend = rknn.Backend(target)
    probe = backend.probe()
    inputs = tuple(contract.Port(name, dtype, tuple(shape)) for name, dtype, shape in shapes)
    part = contract.Part("step", path, inputs, (contract.Port("scores", "float32", (2, 4, 3, 8)),))
    outcome = {"device": probe.device, "precision": probe.precision, "version": probe.version}
    try:
        program = backend.compile(part, {})
        rng = np.random.default_rng(0)
        feeds = {name: rng.standard_normal(shape).astype(np.float32) if dtype == "float32" else np.ones(shape, dtype)
                 for name, dtype, shape in shapes}
        feeds["mask"][:, -1:] = 0
        outcome["scores"] = [float(x) for x in program.run(feeds)["scores"].ravel()]
        outcome["feeds"] = {name: array.ravel().tolist() for name, array in feeds.items()}
        outcome["placement"] = vars(program.placement())
        program.close()
    except contract.StageError as error:
        outcome["refused"] = [error.stage, error.kind, error.message]
    except staged.Reached as reached:
        outcome["refused"] = ["reached", reached.stage, str(reached.absent)]
    outcome["stages"] = [stage["stage"] for stage in backend.stages]
    outcomes.append(outcome)
print("outcomes " + json.dumps(outcomes))
"""
PORTS = (("query", "float32", (2, 4, 3, 5)), ("key", "float32", (2, 4, 8, 5)), ("mask", "int64", (2, 8)))


def graph(path: Path, opset: int = 17, masked: float = -1e4, batch: "int | str" = 2) -> str:
    """Masked attention scores: softmax(query·keyᵀ + (1 - mask)·masked), as a decoder step has them. Returns its path."""
    nodes = [
        helper.make_node("Transpose", ["key"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "keys"], ["raw"]),
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "real"], ["idle"]),
        helper.make_node("Mul", ["idle", "masked"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "axes"], ["bias"]),
        helper.make_node("Add", ["raw", "bias"], ["biased"]),
        helper.make_node("Softmax", ["biased"], ["scores"], axis=-1),
    ]
    stored = {"one": np.float32([1]), "masked": np.float32([masked]), "axes": np.array([1, 2])}
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(name, kinds[dtype], [batch, *shape[1:]]) for name, dtype, shape in PORTS]
    output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 4, 3, 8])
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    proto = helper.make_graph(nodes, "scores", inputs, [output], weights)
    onnx.save(helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return str(path)


@cache
def interpreter() -> Path:
    (entry,) = envs.matching(f"rknn@{VERSION}")
    try:
        envs.create(entry)
    except UserError as error:
        pytest.skip(f"the environment of rknn-toolkit2 cannot be made here: {error}")
    return entry.interpreter


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcome of each case, all in one process: the toolkit takes ten seconds to import."""
    folder = tmp_path_factory.mktemp("graphs")
    cases = [
        (None, graph(folder / "right.onnx"), PORTS),
        ("rk3566", graph(folder / "right.onnx"), PORTS),
        (None, graph(folder / "new.onnx", opset=20), PORTS),
        (None, graph(folder / "moving.onnx", batch="n"), PORTS),
        (None, graph(folder / "loud.onnx", masked=-1e9), PORTS),
        ("rk3588_board", graph(folder / "right.onnx"), PORTS),
    ]
    command = [interpreter(), "-c", SCRIPT, json.dumps(cases)]
    environment = {**os.environ, "PYTHONPATH": str(helpers.ROOT), "CONFORM_ENGINES": str(folder / "engines")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    line = next((line for line in done.stdout.splitlines() if line.startswith("outcomes ")), None)
    assert line, done.stdout[-2000:] + done.stderr[-2000:]
    outcomes: list[dict[str, Any]] = json.loads(line.removeprefix("outcomes "))
    return outcomes


def test_two_targets_are_simulated_and_right_in_fp16(outcomes: list[dict[str, Any]]) -> None:
    for outcome, target in zip(outcomes, ("rk3588", "rk3566"), strict=False):
        assert (outcome["device"], outcome["precision"], outcome["version"]) == (f"simulator-{target}", "fp16", VERSION)
        feeds = {name: np.array(outcome["feeds"][name]).reshape(shape) for name, _, shape in PORTS}
        raw = feeds["query"] @ feeds["key"].swapaxes(2, 3) + (1 - feeds["mask"])[:, None, None] * -1e4
        right = np.exp(raw - raw.max(-1, keepdims=True))
        right /= right.sum(-1, keepdims=True)
        gap = np.abs(np.array(outcome["scores"]).reshape(right.shape) - right).max()
        assert 1e-6 < gap < 5e-3, "half precision: neither float32 nor worse"
        assert outcome["placement"]["device"] == f"simulator-{target}"
        assert "use simulator" in outcome["placement"]["evidence"]
        assert outcome["stages"] == ["parse", "build", "load"]


def test_an_opset_above_19_is_refused_with_the_toolkits_message(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[2]["refused"] == ["parse", "opset", "Unsupport onnx opset 20, need <= 19!"]


def test_dynamic_sizes_are_refused_without_a_traceback(outcomes: list[dict[str, Any]]) -> None:
    stage, kind, message = outcomes[3]["refused"]
    assert (stage, kind) == ("parse", "shape")
    assert message.startswith("The input shape ['n', 4, 3, 5] of 'query' is not support!")
    assert "\n" not in message


def test_a_mask_that_fp16_cannot_represent_gives_nan(outcomes: list[dict[str, Any]]) -> None:
    assert np.isnan(outcomes[4]["scores"]).any(), "preflight reports such constants, and the judge fails NaN"


def test_without_a_board_it_is_built_and_goes_no_further(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[5]["device"] == "rk3588"
    assert outcomes[5]["refused"] == ["reached", "build", "no rk3588 is connected"]
    assert outcomes[5]["stages"] == ["parse", "build"]


class Toolkit:
    """The toolkit on a PC with one board whose library is of version ``DRIVER``; every step succeeds."""

    DRIVER = VERSION

    def __init__(self, verbose: bool = False) -> None:
        self.ran_on = ""

    def list_devices(self) -> tuple[list[str], list[str]]:
        return ["0123456789"], []

    def config(self, **_: Any) -> int:
        return 0

    load_onnx = build = load_rknn = lambda self, *_, **__: 0

    def export_rknn(self, path: str) -> int:
        Path(path).write_bytes(b"built")
        return 0

    def init_runtime(self, target: str = "") -> int:
        self.ran_on = target
        return 0

    def get_sdk_version(self) -> str:
        return f"RKNN VERSION:\n  API: {VERSION} (be611e2c)\n  DRV: rknn_server: {VERSION}\n  DRV: rknnrt: {self.DRIVER} (x)"


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Toolkit]:
    module = types.ModuleType("rknn.api")
    module.RKNN = Toolkit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rknn", types.ModuleType("rknn"))
    monkeypatch.setitem(sys.modules, "rknn.api", module)
    monkeypatch.setattr(rknn.metadata, "version", lambda _: VERSION)
    monkeypatch.setattr(Toolkit, "DRIVER", VERSION)
    monkeypatch.setenv("CONFORM_ENGINES", str(tmp_path / "engines"))
    return Toolkit


def on_board(tmp_path: Path) -> contract.Program:
    backend = rknn.Backend("rk3566_board")
    assert backend.probe().device == "rk3566"
    ports = tuple(contract.Port(name, dtype, shape) for name, dtype, shape in PORTS)
    return backend.compile(contract.Part("step", graph(tmp_path / "right.onnx"), ports, ()), {})


def test_a_board_is_another_device_than_its_simulator(board: type[Toolkit], tmp_path: Path) -> None:
    program = on_board(tmp_path)
    placement = program.placement()
    assert placement is not None
    assert placement.device == "rk3566"
    assert f"rknnrt: {VERSION}" in placement.evidence
    assert program.rknn.ran_on == "rk3566"  # type: ignore[attr-defined]


def test_a_board_with_another_runtime_version_says_which_to_install(
    board: type[Toolkit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toolkit, "DRIVER", "1.5.2")
    with pytest.raises(contract.StageError, match=r"not of the toolkit's version.*put librknnrt\.so 2\.5") as refused:
        on_board(tmp_path)
    assert (refused.value.stage, refused.value.kind) == ("load", "other")
