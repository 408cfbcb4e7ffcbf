"""What the fakes compute with: ONNX Runtime on one thread, and the sizes that an ONNX file declares."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnxruntime


@cache
def session(path: str) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def shape_of(port: Any) -> list[int | str]:
    """Sizes of a declared port; names where they are dynamic."""
    return [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]


def shape(graph: Any, output: str, inputs: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """What an output's shape becomes, once all inputs have theirs."""
    sizes: dict[int | str, int] = {}
    for port in graph.input:
        if port.name not in inputs:
            return None
        sizes.update(zip(shape_of(port), inputs[port.name], strict=True))
    if "past" in sizes:
        sizes["total"] = sizes["past"] + 1
    port = next(port for port in graph.output if port.name == output)
    return tuple(size if isinstance(size, int) else sizes[size] for size in shape_of(port))
