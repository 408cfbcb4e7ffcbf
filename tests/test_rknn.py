"""rknn: the real simulator in an environment of its own, on one small graph; what boards need, without a board."""

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
told = []
for target, path, shapes in json.loads(sys.argv[1]):
    backend = rknn.Backend(target)
    found = backend.probe()
    inputs = tuple(contract.Port(name, dtype, tuple(shape)) for name, dtype, shape in shapes)
    part = contract.Part("step", path, inputs, (contract.Port("scores", "float32", (2, 4, 3, 8)),))
    one = {"device": found.device, "precision": found.precision, "version": found.version}
    try:
        program = backend.compile(part, {})
        rng = np.random.default_rng(0)
        feeds = {name: rng.standard_normal(shape).astype(np.float32) if dtype == "float32" else np.ones(shape, dtype)
                 for name, dtype, shape in shapes}
        feeds["mask"][:, -1:] = 0
        one["scores"] = [float(x) for x in program.run(feeds)["scores"].ravel()]
        one["feeds"] = {name: array.ravel().tolist() for name, array in feeds.items()}
        one["placement"] = vars(program.placement())
        program.close()
    except contract.StageError as error:
        one["refused"] = [error.stage, error.kind, error.message]
    except staged.Reached as reached:
        one["refused"] = ["reached", reached.stage, str(reached.absent)]
    one["stages"] = [stage["stage"] for stage in backend.stages]
    told.append(one)
print("told " + json.dumps(told))
"""
PORTS = (("query", "float32", (2, 4, 3, 5)), ("key", "float32", (2, 4, 8, 5)), ("mask", "int64", (2, 8)))


def graph(place: Path, opset: int = 17, masked: float = -1e4, batch: "int | str" = 2) -> str:
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
    given = [helper.make_tensor_value_info(name, kinds[dtype], [batch, *shape[1:]]) for name, dtype, shape in PORTS]
    taken = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 4, 3, 8])
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    made = helper.make_graph(nodes, "scores", given, [taken], weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), place)
    return str(place)


@cache
def interpreter() -> Path:
    (entry,) = envs.matching(f"rknn@{VERSION}")
    try:
        envs.create(entry)
    except UserError as error:
        pytest.skip(f"the environment of rknn-toolkit2 cannot be made here: {error}")
    return entry.interpreter


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of each case, all in one process: the toolkit takes ten seconds to be imported."""
    place = tmp_path_factory.mktemp("graphs")
    cases = [
        (None, graph(place / "right.onnx"), PORTS),
        ("rk3566", graph(place / "right.onnx"), PORTS),
        (None, graph(place / "new.onnx", opset=20), PORTS),
        (None, graph(place / "moving.onnx", batch="n"), PORTS),
        (None, graph(place / "loud.onnx", masked=-1e9), PORTS),
        ("rk3588_board", graph(place / "right.onnx"), PORTS),
    ]
    command = [interpreter(), "-c", SCRIPT, json.dumps(cases)]
    around = {**os.environ, "PYTHONPATH": str(helpers.ROOT), "CONFORM_ENGINES": str(place / "engines")}
    done = subprocess.run(command, capture_output=True, text=True, env=around, cwd=place)
    line = next((line for line in done.stdout.splitlines() if line.startswith("told ")), None)
    assert line, done.stdout[-2000:] + done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(line.removeprefix("told "))
    return found


def test_two_targets_are_simulated_and_right_in_fp16(told: list[dict[str, Any]]) -> None:
    for one, target in zip(told, ("rk3588", "rk3566"), strict=False):
        assert (one["device"], one["precision"], one["version"]) == (f"simulator-{target}", "fp16", VERSION)
        feeds = {name: np.array(one["feeds"][name]).reshape(shape) for name, _, shape in PORTS}
        raw = feeds["query"] @ feeds["key"].swapaxes(2, 3) + (1 - feeds["mask"])[:, None, None] * -1e4
        right = np.exp(raw - raw.max(-1, keepdims=True))
        right /= right.sum(-1, keepdims=True)
        gap = np.abs(np.array(one["scores"]).reshape(right.shape) - right).max()
        assert 1e-6 < gap < 5e-3, "not what float32 gives, and no further off than half precision"
        assert one["placement"]["device"] == f"simulator-{target}"
        assert "use simulator" in one["placement"]["evidence"], "its own words"
        assert one["stages"] == ["parse", "build", "load"]


def test_an_opset_above_19_is_refused_in_its_own_words(told: list[dict[str, Any]]) -> None:
    assert told[2]["refused"] == ["parse", "opset", "Unsupport onnx opset 20, need <= 19!"]


def test_sizes_that_move_are_refused_without_a_traceback(told: list[dict[str, Any]]) -> None:
    stage, kind, message = told[3]["refused"]
    assert (stage, kind) == ("parse", "shape")
    assert message.startswith("The input shape ['n', 4, 3, 5] of 'query' is not support!")
    assert "\n" not in message


def test_a_mask_that_fp16_cannot_hold_is_no_number(told: list[dict[str, Any]]) -> None:
    assert np.isnan(told[4]["scores"]).any(), "preflight looks for such constants, and the judge calls NaN a failure"


def test_without_a_board_it_is_built_and_goes_no_further(told: list[dict[str, Any]]) -> None:
    assert told[5]["device"] == "rk3588"
    assert told[5]["refused"] == ["reached", "build", "no rk3588 is connected"]
    assert told[5]["stages"] == ["parse", "build"]


class Toolkit:
    """The toolkit on a PC with one board, whose library has ``DRIVER`` for a version; every step succeeds."""

    DRIVER = VERSION

    def __init__(self, verbose: bool = False) -> None:
        self.ran_on = ""

    def list_devices(self) -> tuple[list[str], list[str]]:
        return ["0123456789"], []

    def config(self, **_: Any) -> int:
        return 0

    load_onnx = build = load_rknn = lambda self, *_, **__: 0

    def export_rknn(self, place: str) -> int:
        Path(place).write_bytes(b"built")
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


def test_a_board_with_another_runtime_version_says_what_to_put_there(
    board: type[Toolkit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toolkit, "DRIVER", "1.5.2")
    with pytest.raises(contract.StageError, match=r"not of the toolkit's version.*put librknnrt\.so 2\.5") as refused:
        on_board(tmp_path)
    assert (refused.value.stage, refused.value.kind) == ("load", "other")
