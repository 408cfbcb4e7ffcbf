"""Edits of ONNX graphs. Each part that an edit is meant for must come out changed, or the saboteur does not compile."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Edit = Callable[[Any], None]
Op = tuple[str, tuple[str, ...], dict[str, Any]]
"""An operator to insert: its type, further inputs, attributes."""
DECODER = ("first", "step")


def edited(edit: Edit, *parts: str) -> Callable[[str, Any], None]:
    """A graph hook that applies ``edit`` to the named parts (all of them when none is named)."""

    def hook(part: str, model: Any) -> None:
        if parts and part not in parts:
            return
        before = model.SerializeToString()
        edit(model)
        assert model.SerializeToString() != before, f"the edit changed nothing in {part}: the saboteur is honest"

    return hook


def both(*edits: Edit) -> Edit:
    def edit(model: Any) -> None:
        for one in edits:
            one(model)

    return edit


def node(model: Any, name: str) -> Any:
    found = [one for one in model.graph.node if one.name == name]
    assert len(found) == 1, f"{len(found)} nodes are called {name}"
    return found[0]


def epsilon(value: float, within: str = "") -> Edit:
    """Another layer-norm eps, in the fused operator or in the Add before the square root."""

    def edit(model: Any) -> None:
        roots = {one.input[0] for one in model.graph.node if one.op_type == "Sqrt"}
        added = {
            name for one in model.graph.node if one.op_type == "Add" and one.output[0] in roots for name in one.input
        }
        for one in model.graph.node:
            if within not in one.name:
                continue
            if one.op_type == "LayerNormalization":
                next(item for item in one.attribute if item.name == "epsilon").f = value
            elif one.op_type == "Constant" and one.output[0] in added:
                one.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(value, np.float32)))

    return edit


def weight(fragment: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """Change every stored tensor whose name holds ``fragment``; each must really change."""

    def edit(model: Any) -> None:
        found = [tensor for tensor in model.graph.initializer if fragment in tensor.name]
        assert found, f"no weight is called {fragment}"
        for tensor in found:
            old = numpy_helper.to_array(tensor)
            new = np.ascontiguousarray(change(old.copy())).astype(old.dtype)
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))

    return edit


def constant(name: str, value: Any) -> Edit:
    """Another value in a Constant node, of the same type."""

    def edit(model: Any) -> None:
        attribute = node(model, name).attribute[0]
        old = numpy_helper.to_array(attribute.t)
        attribute.t.CopyFrom(numpy_helper.from_array(np.array(value, old.dtype)))

    return edit


def rewired(*wires: tuple[str, int, str]) -> Edit:
    """(node, input index, tensor): what each node reads instead. All are read before any is set, so two can be swapped."""

    def edit(model: Any) -> None:
        for name, index, tensor in wires:
            node(model, name).input[index] = tensor

    return edit


def replaced(name: str, op: str, *inputs: str, **attributes: Any) -> Edit:
    """Another operator in a node's place, with the same output."""

    def edit(model: Any) -> None:
        old = node(model, name)
        new = helper.make_node(op, list(inputs), list(old.output), name=name, **attributes)
        old.CopyFrom(new)

    return edit


def stored(name: str, value: np.ndarray) -> Edit:
    """A new stored tensor, for inserted nodes to read."""

    def edit(model: Any) -> None:
        model.graph.initializer.append(numpy_helper.from_array(value, name))

    return edit


def after(tensor: str, *ops: Op, readers: tuple[str, ...] = ()) -> Edit:
    """Put a chain of operators behind a tensor: each (operator, further inputs, attributes). What read the tensor (or
    only ``readers``, by node name) reads the end of the chain."""

    def edit(model: Any) -> None:
        graph = model.graph
        takers = [one for one in graph.node if tensor in one.input and (not readers or one.name in readers)]
        assert takers, f"nothing reads {tensor}"
        made, name = [], tensor
        for number, (op, more, attributes) in enumerate(ops):
            given = f"{tensor}/saboteur_{number}"
            made.append(helper.make_node(op, [name, *more], [given], name=f"saboteur{tensor}/{number}", **attributes))
            name = given
        for one in takers:
            for index, taken in enumerate(one.input):
                if taken == tensor:
                    one.input[index] = name
        place = next((index + 1 for index, one in enumerate(graph.node) if tensor in one.output), 0)
        for number, one in enumerate(made):
            graph.node.insert(place + number, one)

    return edit


def before_output(output: str, *ops: Op) -> Edit:
    """Put a chain of operators between the node that gives a graph output and that output."""

    def edit(model: Any) -> None:
        graph = model.graph
        maker = next(one for one in graph.node if output in one.output)
        name = f"{output}/honest"
        maker.output[list(maker.output).index(output)] = name
        for number, (op, more, attributes) in enumerate(ops):
            given = output if number == len(ops) - 1 else f"{output}/saboteur_{number}"
            graph.node.append(
                helper.make_node(op, [name, *more], [given], name=f"saboteur/{output}/{number}", **attributes)
            )
            name = given

    return edit


def activation(op: Callable[[str, str], list[Any]], within: str = "") -> Edit:
    """Another activation for swish (Mul of x and its Sigmoid): ``op(x, output)`` gives the nodes."""

    def edit(model: Any) -> None:
        graph = model.graph
        gates = {one.output[0]: one for one in graph.node if one.op_type == "Sigmoid" and within in one.name}
        for one in list(graph.node):
            if one.op_type == "Mul" and any(name in gates for name in one.input):
                taken = next(name for name in one.input if name not in gates)
                place = list(graph.node).index(one)
                graph.node.remove(one)
                for number, new in enumerate(op(taken, one.output[0])):
                    graph.node.insert(place + number, new)

    return edit


def relu(taken: str, given: str) -> list[Any]:
    return [helper.make_node("Relu", [taken], [given])]


def attribute(name: str, key: str, value: Any) -> Edit:
    def edit(model: Any) -> None:
        one = node(model, name)
        kept = [item for item in one.attribute if item.name != key]
        del one.attribute[:]
        one.attribute.extend([*kept, helper.make_attribute(key, value)])

    return edit


def stamped(opset: int = 0, ir: int = 0, domain: str = "") -> Edit:
    """Another opset or IR version on the same graph, or one more operator domain."""

    def edit(model: Any) -> None:
        if opset:
            model.opset_import[0].version = opset
        if ir:
            model.ir_version = ir
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return edit


def fixed(size: int, *inputs: str, axis: int = 2) -> Edit:
    """Fix one dimension of the graph's inputs whose name holds one of ``inputs``."""

    def edit(model: Any) -> None:
        for value in model.graph.input:
            if any(name in value.name for name in inputs):
                value.type.tensor_type.shape.dim[axis].dim_value = size

    return edit


def baked(shape: tuple[int, ...], axis: int) -> Edit:
    """Bake one entry of every Reshape's target (those that a Concat puts together) to ``shape[0]``."""

    def edit(model: Any) -> None:
        graph = model.graph
        targets = {one.input[1] for one in graph.node if one.op_type == "Reshape"}
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), "saboteur_baked"))
        for one in graph.node:
            if one.op_type == "Concat" and one.output[0] in targets:
                one.input[axis] = "saboteur_baked"

    return edit


def bf16(array: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to nearest even, kept in float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return rounded.astype(np.uint32).view(np.float32).reshape(array.shape)


def fp16(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def quantised(bits: int, channels: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Symmetric weight quantisation and back, per output channel or per tensor; vectors are left alone."""
    top = 2 ** (bits - 1) - 1

    def change(array: np.ndarray) -> np.ndarray:
        if array.ndim < 2:
            return array
        scale = np.abs(array).max(axis=0 if channels else None, keepdims=True) / top
        rounded: np.ndarray = np.round(array / np.where(scale == 0, 1, scale)) * scale
        return rounded

    return change


FLOAT16, FLOAT, INT32, INT64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
ROUND_TRIP: tuple[Op, ...] = (("Cast", (), {"to": FLOAT16}), ("Cast", (), {"to": FLOAT}))
