"""A backend that is honest ONNX Runtime but for one thing: the frame of every saboteur."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from backends import contract, ort

Feeds = dict[str, np.ndarray]


class Mutant(contract.Backend):
    """ONNX Runtime with hooks. ``graph(part name, model)`` edits the ONNX model in place; ``feeds(part name, step, feeds)``
    and ``outputs(part name, step, feeds, outputs)`` return what is really fed and given. ``step`` is -1 in the encoder. The
    name of a static part comes without its source length.
    """

    capabilities = ort.Backend.capabilities

    def __init__(
        self,
        provider: str | None = None,
        *,
        graph: Callable[[str, Any], None] | None = None,
        feeds: Callable[[str, int, Feeds], Feeds] | None = None,
        outputs: Callable[[str, int, Feeds, Feeds], Feeds] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(provider)
        self.inner = ort.Backend()
        self.graph, self.feeds, self.outputs, self.options = graph, feeds, outputs, options or {}

    def probe(self) -> contract.Probe:
        return self.inner.probe()

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        options = {**options, **self.options}
        if self.graph is None:
            return _Mutated(self, part, self.inner.compile(part, options))
        model = onnx.load(part.path)
        self.graph(part.name.partition("-")[0], model)
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "mutant.onnx")
            onnx.save(model, place)
            changed = contract.Part(part.name, place, part.inputs, part.outputs)
            return _Mutated(self, part, self.inner.compile(changed, options))


class _Mutated(contract.Program):
    def __init__(self, mutant: Mutant, part: contract.Part, inner: contract.Program) -> None:
        self.mutant, self.name, self.inner = mutant, part.name.partition("-")[0], inner

    def run(self, feeds: Feeds) -> Feeds:
        step = self._step(feeds)
        if self.mutant.feeds:
            feeds = self.mutant.feeds(self.name, step, dict(feeds))
        outputs = self.inner.run(feeds)
        if self.mutant.outputs:
            outputs = self.mutant.outputs(self.name, step, feeds, dict(outputs))
        return outputs

    def _step(self, feeds: Feeds) -> int:
        if self.name == "encoder":
            return -1
        if "position" in feeds:
            return int(feeds["position"][0])
        return next((array.shape[2] for name, array in feeds.items() if ".decoder." in name), 0)

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()
