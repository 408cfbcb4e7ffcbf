"""The artifact check: a graph that is not what the manifest says reaches no runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from harness.core.bundle import Bundle
from harness.run import preflight
from tests import helpers
from tests.conftest import Draft
from tests.test_bundle import GRAPH, STEP


def _outside(model: Any, location: str) -> Any:
    """The first weight of a model that lies in a file, to be moved."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL)
    next(entry for entry in tensor.external_data if entry.key == "location").value = location
    return tensor


def _constant(model: Any, location: str) -> Any:
    """A constant of the graph, moved to a file: no initializer, yet external data."""
    tensor = onnx.TensorProto(name="sly", dims=[4], data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["sly"], value=tensor))
    return tensor


@pytest.mark.parametrize("point", [_outside, _constant], ids=["weight", "constant"])
@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/secret.bin", "notthere.bin", ""])
def test_external_data_stays_in_the_bundle(draft: Draft, location: str, point: Callable[[Any, str], Any]) -> None:
    (draft.path.parent / "secret.bin").write_bytes(bytes(1 << 20))
    model = onnx.load(str(draft.path / STEP), load_external_data=False)
    tensor = point(model, location)
    draft.put(STEP, model.SerializeToString())
    draft.reseal()
    bundle = Bundle(str(draft.path))
    row = preflight.check(bundle, next(graph for graph in bundle.graphs if graph.id == GRAPH))
    assert row.status == "FAIL"
    assert tensor.name in row.message
    assert repr(location) in row.message or "not a plain file" in row.message


def test_external_data_that_leaves_the_bundle_reaches_no_runtime(draft: Draft, tmp_path: Path, valid: Any) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(1 << 20))
    model = onnx.load(str(draft.path / STEP), load_external_data=False)
    _outside(model, "../secret.bin")
    draft.put(STEP, model.SerializeToString())
    draft.reseal()
    done = helpers.conformance(
        tmp_path / "results", f"--bundle={draft.path}", "--opset=16-17", "--layout=unified", "-k", "artifact or logits"
    )
    assert done.returncode == 1
    rows = helpers.rows_in(tmp_path / "results")
    valid(rows)
    assert {(row["opset"], row["check"], row["status"]) for row in rows} == {
        (16, "artifact", "PASS"),
        (16, "logits", "PASS"),
        (17, "artifact", "FAIL"),
        (17, "logits", "ERROR"),
    }
    assert [row["compared"] for row in rows if row["check"] == "logits" and row["opset"] == 17] == [0]


def test_graph_that_is_not_what_the_manifest_says(draft: Draft) -> None:
    model = onnx.load(str(draft.path / STEP), load_external_data=False)
    model.opset_import[0].version, model.ir_version = 12, 3
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    model.graph.node.add(op_type="FusedGelu", domain="com.vendor", input=["logits"], output=["x"])
    draft.put(STEP, model.SerializeToString())
    draft.reseal()
    bundle = Bundle(str(draft.path))
    row = preflight.check(bundle, next(graph for graph in bundle.graphs if graph.id == GRAPH))
    problems = " ".join(row.detail["problems"])
    assert row.status == "FAIL"
    for words in ("opset 12", "IR version 3", "com.vendor", "logits is float64"):
        assert words in problems


def test_ids_outside_the_vocabulary_fail_the_artifact(draft: Draft) -> None:
    ids = np.load(draft.path / "source_ids.npy")
    ids[7] = 10_000_000
    (draft.path / "source_ids.npy").unlink()
    np.save(draft.path / "source_ids.npy", ids)
    draft.reseal()
    bundle = Bundle(str(draft.path))
    row = preflight.check(bundle, bundle.graphs[0])
    assert row.status == "FAIL"
    assert "source_ids: id 10000000 is outside the vocabulary" in row.message
