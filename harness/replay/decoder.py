"""The one decode loop: it feeds what the parts declare and keeps the cache that the runtime gave it.

Forced replays, free replays, the cost measurement and the witness at record time all run through here.
"""

from typing import Dict, Mapping

import numpy as np

from backends.contract import Part, Program, StageError
from harness.core.graph import Dims, Graph, slots_of
from harness.core.roles import kv_of
from harness.judge.compare import dtype_name
from harness.replay.static import fill_cross, fill_rows, fill_source, filling


class ContractError(Exception):
    """The harness was about to feed what the part does not declare. A runtime might accept it silently."""


class Stopped(Exception):
    """The decode cannot go on, because the runtime did not give the tensor that the next step needs."""

    def __init__(self, tensor: str, message: str) -> None:
        super().__init__(message)
        self.tensor = tensor


def check_feeds(part: Part, feeds: Mapping[str, np.ndarray]) -> None:
    """Raise ContractError unless names, dtypes, ranks and fixed sizes are those that the part declares.

    Cache tensors are the runtime's own output: there a difference is its fault and raises Stopped. Their sizes are
    left to the kv_shape check, so that a cache in another layout can still show whether it decodes.
    """
    declared = {port.name: port for port in part.inputs}
    if set(feeds) != set(declared):
        wrong = sorted(set(feeds) ^ set(declared))
        raise ContractError(f"{part.name}: feeds and declared inputs differ in {', '.join(wrong)}")
    for name, array in feeds.items():
        port = declared[name]
        cache = kv_of(name) is not None
        if dtype_name(array.dtype) != port.dtype:
            problem = f"is {array.dtype.name}, the graph declares {port.dtype}"
        elif array.ndim != len(port.shape):
            problem = f"has rank {array.ndim}, the graph declares {len(port.shape)}"
        elif not cache and any(isinstance(dim, int) and dim != size for dim, size in zip(port.shape, array.shape)):
            problem = f"has shape {list(array.shape)}, the graph declares {list(port.shape)}"
        else:
            continue
        if cache:
            raise Stopped(name, f"{part.name}: {name}, which the runtime gave, {problem}")
        raise ContractError(f"{part.name}: {name} {problem}")


class AdapterError(Exception):
    """The adapter raised what the contract does not know. The cause is chained."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the adapter raised {type(error).__name__}: {error}")


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
        self._held: Dict[str, np.ndarray] = {}

    def part(self) -> Part:
        """The part that the next step runs."""
        name = "first" if self.graph.layout == "split" and self.position == 0 else "step"
        return self.graph.part(name, self._source)

    def encoder(self, source: int) -> Part:
        """The part that encodes a source of that many ids. Raises ContractError where there is none."""
        try:
            return self.graph.part("encoder", source)
        except KeyError as error:
            raise ContractError(error.args[0]) from error

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Dict[str, np.ndarray]:
        """Start a batch. ``ids``, ``mask``: [batch, source] int64. Returns the encoder part's outputs by name."""
        part = self.encoder(ids.shape[1])
        if self.graph.static:
            shape = [int(size) for size in part.inputs[0].shape]
            if len(ids) > shape[0]:
                raise ContractError(f"{part.name} takes {shape[0]} rows, the batch has {len(ids)}")
            ids, mask = fill_source(ids, mask, shape, self.turn)
        self._rows, self._source = ids.shape
        outputs = self._run(part, {"input_ids": ids, "attention_mask": mask})
        if "last_hidden_state" not in outputs:
            raise Stopped("last_hidden_state", "the encoder gave no last_hidden_state")
        self.position = 0
        self._held = {"encoder_hidden_states": outputs["last_hidden_state"], "encoder_attention_mask": mask}
        self._keep(outputs)
        for port in self.part().inputs:
            kind = kv_of(port.name)
            if kind is None:
                continue
            if not kind.cross and self.graph.static:
                self._held[port.name] = filling([int(size) for size in port.shape], port.dtype, self.turn)
            elif not kind.cross:
                self._held[port.name] = np.zeros((len(ids), self.dims.heads, 0, self.dims.head_dim), port.dtype)
            elif self.graph.static and port.name in self._held and self._held[port.name].shape == port.shape:
                self._held[port.name] = fill_cross(self._held[port.name], mask, self.turn)
        return outputs

    def step(self, tokens: np.ndarray) -> Dict[str, np.ndarray]:
        """Decode one token a row. ``tokens``: [batch] int64. Returns the part's outputs by name; the cache moves on."""
        part = self.part()
        if self.graph.static and self.position >= slots_of(part):
            raise ContractError(f"{part.name} has room for {self.position} entries, and all are written")
        fed = fill_rows(tokens, self._rows)[:, None]
        outputs = self._run(part, {**self._held, "input_ids": fed, "position": np.array([self.position])})
        self._keep(outputs)
        self.position += 1
        return outputs

    def scores(self, tokens: np.ndarray) -> np.ndarray:
        """As ``step``; returns the newest logits, [batch, vocabulary]. Raises Stopped where they are not usable."""
        step, logits = self.position, self.step(tokens).get("logits")
        if logits is None or logits.ndim != 3 or len(logits) != self._rows or not logits.shape[1]:
            shape = "none" if logits is None else list(logits.shape)
            raise Stopped("logits", f"no usable logits at step {step}: {shape}")
        return logits[: len(tokens), -1]

    def cache(self) -> Dict[str, np.ndarray]:
        """The cache that the next step will be fed, by input name."""
        return {name: array for name, array in self._held.items() if kv_of(name)}

    def has(self, name: str) -> bool:
        """Whether an earlier part gave what that input needs."""
        return name in self._held

    def resume(self, position: int, cache: Mapping[str, np.ndarray]) -> None:
        """Go on from a cache of ``position`` entries that something else made."""
        self.position = position
        for name, array in cache.items():
            if self.graph.static:
                rows, _, entries, _ = array.shape
                self._held[name][:rows, :, :entries] = array
            else:
                self._held[name] = array

    def _run(self, part: Part, known: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        feeds = {}
        for port in part.inputs:
            if port.name not in known:
                raise Stopped(port.name, f"{part.name} needs {port.name}, which no earlier part gave")
            feeds[port.name] = known[port.name]
        check_feeds(part, feeds)
        try:
            outputs = self.programs[part.name].run(feeds)
            # numpy gives a scalar, which is no array, where an array has lost its last axis.
            kinds = (np.ndarray, np.generic)
            if not isinstance(outputs, Mapping) or not all(isinstance(one, kinds) for one in outputs.values()):
                raise TypeError(f"{part.name}: run() must give numpy arrays by name")
        except StageError:
            raise
        except Exception as error:
            raise AdapterError(error) from error
        return {name: np.asarray(one) for name, one in outputs.items()}

    def _keep(self, outputs: Mapping[str, np.ndarray]) -> None:
        for name in [name for name in self._held if (kind := kv_of(name)) and not kind.cross]:
            del self._held[name]  # an own cache that this run did not give would be stale
        for name, array in outputs.items():
            if kv_of(name):
                self._held[name.replace("present.", "past_key_values.", 1)] = array
