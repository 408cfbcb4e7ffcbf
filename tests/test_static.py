"""The static layout: what its graphs may hold, how batches are made to fit them, and which adapters are given them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from backends import contract
from harness.core.batch import Batch, split_rows
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import Graph, slots_of
from harness.replay.decoder import ContractError, Decoder
from harness.replay.static import HOSTILE, fill_cross, fill_rows, fill_source, filling
from harness.run import preflight
from tests import helpers
from tests.mutant import Mutant
from tests.saboteurs.frame import bad, brief, spoilt

OPSETS = {"static": range(11, 20), "static-scatter": (11, 13, 16, 18)}


def graph_of(layout: str = "static", opset: int = 17, of: Bundle | None = None) -> Graph:
    bundle = of or helpers.golden().bundle
    return next(graph for graph in bundle.graphs if graph.id == f"torchscript/{layout}/fp32/op{opset}")


def operators(graph: Graph) -> set[str]:
    return {node.op_type for part in graph.parts for node in onnx.load(part.path, load_external_data=False).graph.node}


def test_static_graphs_are_of_fixed_sizes_and_a_compilers_operators() -> None:
    bundle = helpers.golden().bundle
    found = [graph for graph in bundle.graphs if graph.static]
    assert {(graph.layout, graph.opset) for graph in found} == {
        (layout, opset) for layout, opsets in OPSETS.items() for opset in opsets
    }
    for graph in found:
        ports = [port for part in graph.parts for port in (*part.inputs, *part.outputs)]
        assert all(isinstance(size, int) and size > 0 for port in ports for size in port.shape), graph.id
        scatter = {name for name in operators(graph) if name.startswith("Scatter")}
        assert scatter == ({"ScatterElements"} if graph.layout == "static-scatter" else set()), graph.id
        assert "Shape" not in operators(graph), graph.id
        sizes = [(part.name, part.inputs[0].shape[0], slots_of(part)) for part in graph.parts]
        assert sizes == [("encoder-48", 8, 0), ("encoder-224", 8, 0), ("step-48", 8, 54), ("step-224", 8, 128)]


def test_static_graphs_add_few_weights_of_their_own() -> None:
    bundle = helpers.golden().bundle
    theirs = {name for graph in bundle.graphs if not graph.static for name in bundle.weights(graph)}
    own = {name for graph in bundle.graphs if graph.static for name in bundle.weights(graph)} - theirs
    assert sum(bundle.files[name]["size"] for name in own) < 200_000


def test_a_batch_is_cut_and_filled_to_what_a_graph_takes() -> None:
    free = helpers.golden().free
    cut = split_rows(free, graph_of().rows)
    assert [row for batch in cut for row in batch.rows] == [row for batch in free for row in batch.rows]
    assert max(len(batch.rows) for batch in cut) == 8
    assert split_rows(free, graph_of("unified").rows) == free
    ids, mask = fill_source(np.array([[5, 6, 9], [7, 9, 9]]), np.array([[1, 1, 0], [1, 0, 0]]), (4, 5), 0)
    assert mask.tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]] * 2
    assert (ids[mask == 1] == [5, 6, 7] * 2).all()
    assert set(ids[mask == 0].tolist()) <= {5, 6, 7}, "padding holds what would be read, were it seen"
    assert fill_rows(np.array([3, 4, 5]), 4).tolist() == [3, 4, 5, 3]


def test_what_fills_the_rest_is_far_off_and_the_other_way_round_in_its_turn() -> None:
    first, second = (filling((2, 3, 4, 5), "float32", turn) for turn in (0, 1))
    assert set(np.abs(first).ravel().tolist()) == {HOSTILE}
    assert (first == -second).all()
    assert 0 < (first > 0).sum() < first.size
    first[:] = 0
    assert np.abs(filling((2, 3, 4, 5), "float32", 0)).min() == HOSTILE, "one caller's array is not the next one's"
    cross = fill_cross(np.ones((1, 2, 3, 4), np.float32), np.array([[1, 1, 0]]), 0)
    assert (cross[:, :, :2] == 1).all()
    assert (np.abs(cross[:, :, 2]) == HOSTILE).all()
    assert np.abs(helpers.golden().bundle.array("trace_self")).max() * 2 < HOSTILE


def decoder_of(graph: Graph) -> Decoder:
    backend = bad()()
    programs = {part.name: backend.compile(part, {}) for part in graph.parts}
    return Decoder(programs, graph, brief().bundle.dims)


def test_what_does_not_fit_is_not_fed() -> None:
    graph = graph_of()
    decoder = decoder_of(graph)
    with pytest.raises(ContractError, match="has no encoder for a source of 225 ids"):
        decoder.encode(np.ones((1, 225), np.int64), np.ones((1, 225), np.int64))
    with pytest.raises(ContractError, match="encoder-48 takes 8 rows, the batch has 9"):
        decoder.encode(np.ones((9, 40), np.int64), np.ones((9, 40), np.int64))
    decoder.encode(np.ones((1, 48), np.int64), np.ones((1, 48), np.int64))
    for _ in range(54):
        decoder.step(np.zeros(1, np.int64))
    with pytest.raises(ContractError, match="step-48 has room for 54 entries"):
        decoder.step(np.zeros(1, np.int64))


class Fixed(Mutant):
    """A compiler that wants every size before it builds."""

    capabilities = replace(Mutant.capabilities, dynamic_dims=False, zero_length_dims=False, knobs={})

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        assert all(isinstance(size, int) for port in (*part.inputs, *part.outputs) for size in port.shape)
        return super().compile(part, options)


def test_a_compiler_of_fixed_sizes_is_given_static_graphs_alone() -> None:
    rows = {
        layout: helpers.judge(Fixed(), layout, 17, ("encoder",), brief())["encoder"] for layout in contract.LAYOUTS[:3]
    }
    assert {layout: row.status for layout, row in rows.items()} == {
        "split": "UNSUPPORTED",
        "unified": "UNSUPPORTED",
        "static": "PASS",
    }
    assert "dynamic dimensions" in rows["split"].message


def spoil_constant(folder: Path, manifest: dict[str, Any]) -> None:
    """-1e4, the mask of every static part, becomes -1e9."""
    for place in folder.glob("*static*.onnx"):
        model = onnx.load(str(place), load_external_data=False)
        for node in model.graph.node:
            if node.op_type == "Constant" and numpy_helper.to_array(node.attribute[0].t).min() == -1e4:
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(-1e9, np.float32)))
        onnx.save(model, str(place))


def test_a_constant_that_fp16_does_not_hold_is_a_fault_of_the_file(tmp_path: Path) -> None:
    assert preflight.check(brief().bundle, graph_of(of=brief().bundle)).status == "PASS"
    bundle = Bundle(str(spoilt(tmp_path, spoil_constant)))
    row = preflight.check(bundle, graph_of(of=bundle))
    assert row.status == "FAIL"
    assert "holds 1e+09, fp16 ends at 65504" in row.message
    assert preflight.check(bundle, graph_of("unified", of=bundle)).status == "PASS"


def model_of(op: str, value: float) -> Any:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("x", "y")]
    stored = numpy_helper.from_array(np.array(value, np.float32), "stored")
    return helper.make_model(
        helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", ports[:1], ports[1:], [stored])
    )


@pytest.mark.parametrize(
    "op, value, avoids, says",
    [
        ("Shape", 0, ("Shape", "Scatter"), "must not have Shape"),
        ("ScatterND", 0, ("Shape", "Scatter"), "must not have ScatterND"),
        ("Relu", -1e9, ("Shape",), "must not have constant stored holds 1e"),
        ("Relu", -np.inf, ("Shape",), "holds inf"),
        ("ScatterElements", -1e4, ("Shape",), ""),
        ("Shape", -1e9, (), ""),
    ],
)
def test_recording_refuses_what_a_compiler_cannot_take(
    op: str, value: float, avoids: tuple[str, ...], says: str
) -> None:
    pytest.importorskip("torch")
    from harness.golden import export
    from harness.golden.parts import Traceable

    part = Traceable("step-4", None, (), (), (), avoids=avoids)
    if not says:
        return export._check_operators(model_of(op, value), part, "a.onnx")
    with pytest.raises(UserError, match="a static graph must not have") as refused:
        export._check_operators(model_of(op, value), part, "a.onnx")
    assert says in str(refused.value)


def test_batches_of_the_static_replay_are_whole_rows() -> None:
    batch: Batch = split_rows(helpers.golden().free, graph_of().rows)[1]
    assert batch.ids.shape == batch.mask.shape == (8, int(batch.mask.sum(axis=1).max()))
    assert batch.tokens.shape == (8, max(batch.steps))
