"""tract, sonos' inference engine in Rust, on its CPU runtime. Source: sonos.github.io/tract, the package's own docstrings.

It reads dynamic dimensions as symbols and builds nothing that could be kept. No setting of it changes results: it computes
on one thread, in the types of the graph.
"""

import json
from typing import Any, Dict, List

import numpy as np

from backends import contract

REFUSALS = [
    ("unimplemented", "operator"),
    ("no translation", "operator"),
    ("unsupported operator", "operator"),
    ("opset", "opset"),
    ("datum type", "dtype"),
    ("incorrect dtype or shape", "shape"),
    ("clashing resolution", "shape"),
    ("impossible to unify", "shape"),
    ("shape", "shape"),
    ("rank", "shape"),
]


class Backend(contract.Backend):
    """The runtime that tract calls ``cpu``; its others, ``cuda`` and ``metal``, are not used."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"})
    )

    def probe(self) -> contract.Probe:
        try:
            import tract
        except ImportError as error:
            raise contract.not_imported("tract", error) from error
        return contract.Probe(tract.version(), "cpu", "fp32")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        import tract

        runtime, stage = tract.runtime_for_name("default"), "parse"
        try:
            graph = tract.onnx().load(part.path)
            inputs = [graph.input_name(index) for index in range(graph.input_count())]
            stage = "load"
            return _Program(part, inputs, runtime.prepare(graph.into_model()), runtime.name())
        except tract.TractError as error:
            raise contract.refusal(stage, [_cause(error)], REFUSALS) from error


def _cause(error: Exception) -> str:
    """The message on one line, without the stack trace that follows it."""
    return "; ".join(line.strip() for line in str(error).split("Stack backtrace:")[0].splitlines() if line.strip())


class _Program(contract.Program):
    def __init__(self, part: contract.Part, inputs: List[str], runnable: Any, runtime: str) -> None:
        self.inputs, self.runnable, self.runtime = inputs, runnable, runtime
        self.outputs = [port.name for port in part.outputs]  # tract names an output after the node that computes it
        if runnable.output_count() != len(self.outputs):
            message = f"{runnable.output_count()} outputs, the graph declares {len(self.outputs)}"
            raise contract.StageError("load", "shape", message)

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        from tract import TractError

        try:
            tensors = self.runnable.run([feeds[name] for name in self.inputs])
            return {name: tensor.to_numpy() for name, tensor in zip(self.outputs, tensors)}
        except TractError as error:
            raise contract.refusal("run", [_cause(error)], REFUSALS) from error

    def placement(self) -> contract.Placement:
        """By the runtime's own name, and by the types in its profile of what each operator costs."""
        nodes = json.loads(self.runnable.profile_json(None))["nodes"]
        costs = sorted({cost for node in nodes for cost in node.get("cost", ()) if not cost.startswith("Params")})
        half = any("F16" in cost for cost in costs)
        evidence = f"runtime {self.runtime}, {len(nodes)} operators, costs: {', '.join(costs) or 'none reported'}"
        return contract.Placement(self.runtime, "fp16" if half else "fp32", evidence)

    def close(self) -> None:
        self.runnable = None
