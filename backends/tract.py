"""tract, sonos' inference engine in Rust, on its CPU runtime. Source: sonos.github.io/tract, the package's own docstrings.

It reads a graph with its dimensions as symbols and builds nothing that could be kept. It has no setting that would change
results: it computes on one thread, in the types of the graph.
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
    """The runtime that tract calls ``cpu``; ``cuda`` and ``metal`` are others, which are never asked."""

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
            inputs = [graph.input_name(at) for at in range(graph.input_count())]
            stage = "load"
            return _Program(part, inputs, runtime.prepare(graph.into_model()), runtime.name())
        except tract.TractError as error:
            raise contract.refusal(stage, [_cause(error)], REFUSALS) from error


def _cause(error: Exception) -> str:
    """What it says, on one line, without the stack of the library that follows."""
    return "; ".join(line.strip() for line in str(error).split("Stack backtrace:")[0].splitlines() if line.strip())


class _Program(contract.Program):
    def __init__(self, part: contract.Part, inputs: List[str], runnable: Any, runtime: str) -> None:
        self.inputs, self.runnable, self.runtime = inputs, runnable, runtime
        self.outputs = [port.name for port in part.outputs]  # tract names an output after the node that computes it
        if runnable.output_count() != len(self.outputs):
            words = f"{runnable.output_count()} outputs, the graph declares {len(self.outputs)}"
            raise contract.StageError("load", "shape", words)

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        from tract import TractError

        try:
            found = self.runnable.run([feeds[name] for name in self.inputs])
            return {name: one.to_numpy() for name, one in zip(self.outputs, found)}
        except TractError as error:
            raise contract.refusal("run", [_cause(error)], REFUSALS) from error

    def placement(self) -> contract.Placement:
        """The runtime's own name, and the types in which it counts what each operator costs."""
        nodes = json.loads(self.runnable.profile_json(None))["nodes"]
        costs = sorted({cost for node in nodes for cost in node.get("cost", ()) if not cost.startswith("Params")})
        half = any("F16" in cost for cost in costs)
        said = (
            f"runtime {self.runtime}, {len(nodes)} operators, computing {', '.join(costs) or 'nothing that it counts'}"
        )
        return contract.Placement(self.runtime, "fp16" if half else "fp32", said)

    def close(self) -> None:
        self.runnable = None
