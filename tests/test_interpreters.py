"""mnn, tract and iree, the real ones: they decode like PyTorch, say why they refuse, and planted mistakes are caught."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from backends import contract
from backends.engines import Slot
from tests import faked, helpers
from tests.saboteurs import frame

NAMES = ("iree", "mnn", "tract")
CHECKS = ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement")

MISTAKES = {
    # It keeps the shapes of the first step: the second one's cache is another.
    "mnn": ("if shapes != self.shapes:", "if not self.shapes:", "kv_shape"),
    "tract": ("zip(self.outputs, tensors)", "zip(self.outputs, tensors[:1] + tensors[:0:-1])", "kv_values"),
    # Keys and values as the runtime holds them, which it writes over.
    "iree": ("np.array(result.to_host())", "np.array(result.to_host())[..., ::-1]", "logits"),
}
"""What is right in the adapter, what is put in its place, and the check that must fail."""


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of engines."""
    monkeypatch.setenv("CONFORM_ENGINES", str(tmp_path / "engines"))


def backend(name: str) -> contract.Backend:
    """Asked what it is, as every backend is first."""
    adapter: contract.Backend = importlib.import_module(f"backends.{name}").Backend()
    adapter.probe()
    return adapter


@pytest.mark.parametrize("layout", ["split", "unified"])
@pytest.mark.parametrize("name", NAMES)
def test_it_decodes_like_pytorch_on_the_cpu(name: str, layout: str) -> None:
    rows = helpers.judge(backend(name), layout, checks=CHECKS, of=frame.brief())
    assert {check: (row.status, row.message) for check, row in rows.items() if row.status != "PASS"} == {}
    assert rows["placement"].detail["precision"] == {"requested": "fp32", "effective": ["fp32"]}
    assert all(row.compared for row in rows.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    right, wrong, check = MISTAKES[name]
    mistaken = faked.adapter(name, {right: wrong}).Backend()
    assert helpers.judge(mistaken, checks=(check,), of=frame.brief())[check].status == "FAIL"


def model(folder: Path, operator: str, opset: int = 17, **attributes: Any) -> contract.Part:
    """One operator on [n, 2], as a part."""
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    taken = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([node], "g", [given], [taken]), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    onnx.save(proto, folder / f"{operator}.onnx")
    ports = [contract.Port(port, "float32", ("n", 2)) for port in ("x", "y")]
    return contract.Part("node", str(folder / f"{operator}.onnx"), (ports[0],), (ports[1],))


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_that_does_not_exist_is_refused_as_one(name: str, tmp_path: Path) -> None:
    adapter, part = backend(name), model(tmp_path, "Nonexistent")
    with pytest.raises(contract.StageError) as refused:
        adapter.compile(part, {})
    assert refused.value.kind == "operator"
    assert refused.value.stage in ("parse", "build", "load")
    assert "Nonexistent" in refused.value.message
    assert "\n" not in refused.value.message, "no stack, no source"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_no_graph_is_refused_where_it_is_read(name: str, tmp_path: Path) -> None:
    part = model(tmp_path, "Relu")
    Path(part.path).write_bytes(b"no graph")
    adapter = backend(name)
    with pytest.raises(contract.StageError) as refused:
        adapter.compile(part, {})
    assert (refused.value.stage, refused.value.kind) == ("parse", "other")


@pytest.mark.parametrize("name", NAMES)
def test_sizes_move_from_run_to_run_down_to_none(name: str, tmp_path: Path) -> None:
    program = backend(name).compile(model(tmp_path, "Relu"), {})
    assert program.run({"x": np.float32([[-1, 2]])})["y"].tolist() == [[0, 2]]
    assert program.run({"x": np.zeros((0, 2), np.float32)})["y"].shape == (0, 2)
    assert program.run({"x": np.ones((3, 2), np.float32)})["y"].shape == (3, 2)
    program.close()


def test_an_engine_of_iree_is_the_processors_that_it_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = "model name\t: Xeon\nflags\t: avx2 avx512f\ncpu MHz\t: {}\n"
    part = helpers.golden().bundle.graphs[0].part("encoder")
    monkeypatch.setattr(importlib.import_module("backends.iree"), "CPUINFO", str(tmp_path / "cpuinfo"))

    def key(text: str) -> str:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
        adapter = backend("iree")
        return Slot(adapter._recipe(part, {})).path

    assert key(cpuinfo.format(2400)) == key(cpuinfo.format(3100)), "how fast it is at the moment is of no matter"
    assert key(cpuinfo.format(2400)) != key(cpuinfo.format(2400).replace(" avx512f", ""))
    assert key(cpuinfo.format(2400)) != key(cpuinfo.format(2400).replace("Xeon", "EPYC"))


def test_iree_refuses_what_its_importer_does_not_know() -> None:
    rows = helpers.judge(backend("iree"), opset=12, checks=("logits",))
    assert (rows["logits"].status, rows["logits"].stage, rows["logits"].kind) == ("UNSUPPORTED", "build", "operator")
    assert "onnx.Unsqueeze" in rows["logits"].message


def test_mnn_takes_no_id_that_it_would_cut() -> None:
    program = backend("mnn").compile(helpers.golden().bundle.graphs[0].part("encoder"), {})
    ids = np.array([[2**40]])
    with pytest.raises(contract.StageError, match="32 bits") as refused:
        program.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert refused.value.kind == "dtype"
