"""Feeds the parts of a graph what they declare, by role, and keeps the cache that the runtime gave."""

import time
from typing import Dict, Mapping, NamedTuple

import numpy as np

from backends.contract import Part, Program, StageError
from harness.core import roles
from harness.core.graph import Dims, Graph, slots_of
from harness.judge.compare import dtype_name
from harness.judge.shapes import UNDECLARED
from harness.replay.static import fill_cross, fill_rows, fill_source, filling

Arrays = Dict[str, np.ndarray]


class ContractError(Exception):
    """The harness was about to feed what the part does not declare. A runtime might accept it silently."""


class CannotGoOn(Exception):
    """The decode cannot go on, because the runtime did not give the tensor that the next step needs."""


class AdapterError(Exception):
    """The adapter raised what the contract does not know. The cause is chained."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the adapter raised {type(error).__name__}: {error}")


class Ran(NamedTuple):
    """One run of a part: ``outputs`` by role, by ``?NAME`` where undeclared; ``seconds`` in the runtime."""

    part: Part
    outputs: Arrays
    seconds: float


def check_feeds(part: Part, feeds: Mapping[str, np.ndarray]) -> None:
    """Raise ContractError unless names, dtypes, ranks and fixed sizes are those that the part declares. ``feeds``: by name.

    Cache tensors are the runtime's own output: there a difference is its fault and raises CannotGoOn. Their sizes are
    left to the kv_shape check, so that a cache in another layout can still show whether it decodes.
    """
    declared = {port.name: port for port in part.inputs}
    if set(feeds) != set(declared):
        wrong = sorted(set(feeds) ^ set(declared))
        raise ContractError(f"{part.name}: feeds and declared inputs differ in {', '.join(wrong)}")
    for name, array in feeds.items():
        port = declared[name]
        cache = roles.cache_of(port.role) is not None
        if dtype_name(array.dtype) != port.dtype:
            problem = f"is {array.dtype.name}, the graph declares {port.dtype}"
        elif array.ndim != len(port.shape):
            problem = f"has rank {array.ndim}, the graph declares {len(port.shape)}"
        elif not cache and any(isinstance(dim, int) and dim != size for dim, size in zip(port.shape, array.shape)):
            problem = f"has shape {list(array.shape)}, the graph declares {list(port.shape)}"
        else:
            continue
        if cache:
            raise CannotGoOn(f"{part.name}: {name}, which the runtime gave, {problem}")
        raise ContractError(f"{part.name}: {name} {problem}")


class Decoder:
    """Decodes one batch after another on compiled parts. ``programs`` maps a part's name to its program.

    A static graph's parts get and give their fixed sizes, the batch's own rows, ids and entries first; ``turn`` says what
    fills the rest.
    """

    def __init__(self, programs: Mapping[str, Program], graph: Graph, dims: Dims, turn: int = 0) -> None:
        self.programs = programs
        self.graph = graph
        self.dims = dims
        self.turn = turn
        self.position = 0
        self._rows = self._source = 0
        self._held: Arrays = {}

    def part(self) -> Part:
        """The part that the next step runs."""
        name = "first" if self.graph.layout == "split" and self.position == 0 else "step"
        return self.graph.part(name, self._source)

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Ran:
        """Start a batch. ``ids``, ``mask``: [batch, source] int64."""
        try:
            part = self.graph.part("encoder", ids.shape[1])
        except KeyError as error:
            raise ContractError(error.args[0]) from error
        if self.graph.static:
            shape = [int(size) for size in part.inputs[0].shape]
            if len(ids) > shape[0]:
                raise ContractError(f"{part.name} takes {shape[0]} rows, the batch has {len(ids)}")
            ids, mask = fill_source(ids, mask, shape, self.turn)
        self._rows, self._source = ids.shape
        ran = self._run(part, {roles.SOURCE_IDS: ids, roles.SOURCE_MASK: mask})
        if roles.HIDDEN not in ran.outputs:
            name = self.graph.output_name(roles.HIDDEN)
            raise CannotGoOn(f"the encoder gave no {name}")
        self.position = 0
        self._held = {roles.HIDDEN: ran.outputs[roles.HIDDEN], roles.SOURCE_MASK: mask}
        self._keep(ran.outputs)
        self._fill(mask)
        return ran

    def _fill(self, mask: np.ndarray) -> None:
        """Give the first step an own cache: empty, or of a static graph filled; and fill the cross cache's padding."""
        for port in self.part().inputs:
            if roles.is_own(port.role) and self.graph.static:
                self._held[port.role] = filling([int(size) for size in port.shape], port.dtype, self.turn)
            elif roles.is_own(port.role):
                self._held[port.role] = np.zeros((len(mask), self.dims.heads, 0, self.dims.head_dim), port.dtype)
            elif roles.is_cross(port.role) and self.graph.static:
                held = self._held.get(port.role)
                if held is not None and held.shape == port.shape:
                    self._held[port.role] = fill_cross(held, mask, self.turn)

    def step(self, tokens: np.ndarray) -> Ran:
        """Decode one token a row. ``tokens``: [batch] int64. The cache moves on."""
        part = self.part()
        if self.graph.static and self.position >= slots_of(part):
            raise ContractError(f"{part.name} has room for {self.position} entries, and all are written")
        fed = fill_rows(tokens, self._rows)[:, None]
        ran = self._run(part, {**self._held, roles.TOKENS: fed, roles.POSITION: np.array([self.position])})
        self._keep(ran.outputs)
        self.position += 1
        return ran

    def scores(self, ran: Ran, rows: int) -> np.ndarray:
        """The newest logits of the first ``rows`` rows of the step just run, [rows, vocabulary]. Raises CannotGoOn where
        they are not usable."""
        logits = ran.outputs.get(roles.LOGITS)
        if logits is None or logits.ndim != 3 or len(logits) != self._rows or not logits.shape[1]:
            shape = "none" if logits is None else list(logits.shape)
            raise CannotGoOn(f"no usable {self.graph.output_name(roles.LOGITS)} at step {self.position - 1}: {shape}")
        return logits[:rows, -1]

    def own_cache(self) -> Arrays:
        """The decoder's own cache that the next step will be fed, by role."""
        return {role: array for role, array in self._held.items() if roles.is_own(role)}

    def has(self, role: str) -> bool:
        """Whether an earlier part gave what an input of that role needs."""
        return role in self._held

    def resume(self, position: int, cache: Mapping[str, np.ndarray]) -> None:
        """Go on from a cache of ``position`` entries, by role, that something else made."""
        self.position = position
        for role, array in cache.items():
            if self.graph.static:
                rows, _, entries, _ = array.shape
                self._held[role][:rows, :, :entries] = array
            else:
                self._held[role] = array

    def _run(self, part: Part, known: Mapping[str, np.ndarray]) -> Ran:
        feeds = {}
        for port in part.inputs:
            if port.role not in known:
                raise CannotGoOn(f"{part.name} needs {port.name}, which no earlier part gave")
            feeds[port.name] = known[port.role]
        check_feeds(part, feeds)
        began = time.perf_counter()
        try:
            outputs = self.programs[part.name].run(feeds)
            seconds = time.perf_counter() - began
            # numpy gives a scalar, which is no array, where an array has lost its last axis.
            kinds = (np.ndarray, np.generic)
            if not isinstance(outputs, Mapping) or not all(isinstance(item, kinds) for item in outputs.values()):
                raise TypeError(f"{part.name}: run() must give numpy arrays by name")
        except StageError:
            raise
        except Exception as error:
            raise AdapterError(error) from error
        declared = {port.name: port.role for port in part.outputs}
        named = {declared.get(name, UNDECLARED + name): np.asarray(item) for name, item in outputs.items()}
        return Ran(part, named, seconds)

    def _keep(self, outputs: Mapping[str, np.ndarray]) -> None:
        for role in [role for role in self._held if roles.is_own(role)]:
            del self._held[role]  # an own cache that this run did not give would be stale
        self._held.update({role: array for role, array in outputs.items() if roles.cache_of(role)})
