"""The golden side of every compared tensor, with its bound: worked out once a worker, not once a cell."""

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

from harness.core import roles
from harness.core.batch import trace_order
from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.judge import bounds
from harness.judge.compare import Series

LATE = (32, 64)
"""Steps from which on late entries are judged on their own: a fault of long caches is diluted among all."""
BLOCK = 64
"""Entries that are read at once, so that a large golden need not be held in memory."""


class Tensor(NamedTuple):
    """``golden`` [n, ...] float64 and ``floor`` [n], in trace order or in source order; ``limit`` of its gaps."""

    golden: np.ndarray
    floor: np.ndarray
    limit: bounds.Bound


class Golden:
    """What a cell that computes in ``precision`` is judged by. ``tensors`` by role, nearest to the source first."""

    def __init__(self, bundle: Bundle, precision: str) -> None:
        if precision not in bundle.precisions:
            precision = bundle.precisions[0]  # such a cell is refused, which needs a golden all the same
        self.bundle = bundle
        self.precision = precision
        self.batches = bundle.batches("forced")
        self.free = bundle.batches("free")
        steps = [(batch.rows[index], step) for batch in self.batches for index, step in trace_order(batch)]
        places = [
            (row, place)
            for batch in self.batches
            for row, mask in zip(batch.rows, batch.mask)
            for place in range(int(mask.sum()))
        ]
        self.steps = np.array(steps, np.int64).reshape(-1, 2)
        self.places = np.array(places, np.int64).reshape(-1, 2)
        self._step_groups = [np.arange(len(self.steps))]
        self._place_groups = [np.arange(len(self.places))]
        for batch in self.batches:
            assert batch.trace is not None
            self._step_groups.append(np.arange(batch.trace.start, batch.trace.start + sum(batch.steps)))
            self._place_groups.append(np.arange(batch.source_start, batch.source_start + int(batch.mask.sum())))
        self._step_groups += [np.flatnonzero(self.steps[:, 1] >= late) for late in LATE]
        self.tensors: Dict[str, Tensor] = {}
        sides = [(layer, side) for layer in range(bundle.dims.layers) for side in (0, 1)]
        self._add(roles.HIDDEN, "encoder", ())
        for layer, side in sides:
            self._add(roles.cache_role(layer, True, side), "cross", (layer, side))
        self._add(roles.LOGITS, "logits", ())
        for layer, side in sides:
            self._add(roles.cache_role(layer, False, side), "self", (layer, side))

    def _add(self, role: str, output: str, index: Tuple[int, ...]) -> None:
        golden = self.bundle.array(f"trace_{output}")[index]
        floor = self.bundle.floor(self.precision, output)[index]
        peak = 0.0
        for start in range(0, len(golden), BLOCK):
            block = golden[start : start + BLOCK]
            peak = max(peak, float(block.max()), -float(block.min()))
            self.bundle.release()
        self.tensors[role] = Tensor(golden, floor, bounds.bound(floor, peak, self.precision))

    @property
    def logits(self) -> Tensor:
        return self.tensors[roles.LOGITS]

    def series(self, graph: Graph) -> Dict[str, Series]:
        """Fresh series for one cell, by role, each named as the graph names its output."""
        return {
            role: Series(graph.output_name(role), tensor.golden, tensor.floor, *self._order(role), tensor.limit)
            for role, tensor in self.tensors.items()
        }

    def _order(self, role: str) -> Tuple[np.ndarray, str]:
        by_source = role == roles.HIDDEN or roles.is_cross(role)
        return (self.places, "source position") if by_source else (self.steps, "step")

    def groups(self, role: str) -> List[np.ndarray]:
        """Entries over which a bulk is taken: all, each batch, and late steps."""
        return self._place_groups if self._order(role)[0] is self.places else self._step_groups

    def check_of(self, role: str) -> str:
        """The check that judges the tensor of that role."""
        if self._order(role)[0] is self.places:
            return "encoder"
        return "logits" if role == roles.LOGITS else "kv_values"
