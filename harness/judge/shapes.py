"""The check ``kv_shape``: every run gives exactly the declared outputs, of the declared dtypes, ranks and sizes."""

from typing import List, Optional

import numpy as np

from backends.contract import Part
from harness.core.batch import Batch
from harness.core.graph import Graph
from harness.core.observations import Encoded, Outputs, Stepped
from harness.judge.compare import Miss, shape_problem

UNDECLARED = "?"
"""What an output is keyed with that the part does not declare."""


class ShapeJudge:
    """Holds the outputs of one replay against what the graph declares. ``compared`` counts outputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.compared = 0
        self.misses: List[Miss] = []

    def see(self, batch: Batch, seen: "Encoded | Stepped") -> None:
        part = self.part(seen.part)
        step = seen.step if isinstance(seen, Stepped) else None
        rows, source = self.graph.rows or len(batch.rows), batch.ids.shape[1]
        sizes = {"batch": rows, "source": source, "past": step or 0, "total": (step or 0) + 1}
        declared = {port.role: port for port in part.outputs}
        for role in sorted(set(declared) - set(seen.outputs), key=lambda role: declared[role].name):
            self.miss(declared[role].name, step, batch, f"{part.name} output {declared[role].name} is missing")
        for name in sorted(role[1:] for role in seen.outputs if role.startswith(UNDECLARED)):
            self.miss(name, step, batch, f"{part.name} output {name} is not declared")
        for role, port in declared.items():
            if role in seen.outputs:
                self.compared += 1
                shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in port.shape)
                self._look(batch, step, port.name, seen.outputs, role, port.dtype, shape)

    def _look(
        self,
        batch: Batch,
        step: Optional[int],
        name: str,
        outputs: Outputs,
        role: str,
        dtype: str,
        shape: "tuple[int, ...]",
    ) -> None:
        output = outputs[role]
        problem = shape_problem(name, output.dtype, output.shape, dtype, shape)
        if problem:
            if is_swapped(output.shape, shape):
                problem += ": laid out batch, length, heads, head_dim"
            self.miss(name, step, batch, problem + ("" if step is None else f" at step {step}"))

    def part(self, name: str) -> Part:
        """The part of exactly that name."""
        return next(part for part in self.graph.parts if part.name == name)

    def miss(self, name: str, step: Optional[int], batch: Batch, message: str) -> None:
        """Note the first problem of an output."""
        if not any(miss.tensor == name for miss in self.misses):
            self.misses.append(Miss(name, "shape", np.inf, 0.0, 0.0, step, batch.rows[0], message))


def is_swapped(shape: "tuple[int, ...]", expected: "tuple[int, ...]") -> bool:
    """Whether a cache is laid out [batch, length, heads, head_dim] instead of [batch, heads, length, head_dim]."""
    return len(expected) == 4 and shape != expected and shape == expected[:1] + expected[2:0:-1] + expected[3:]
