"""Fakes of runtimes that build: an engine is the graph's bytes behind a mark, and ONNX Runtime is what runs it."""

import os
from dataclasses import replace
from typing import Any

import numpy as np

from backends import contract, engines, ort, staged

MARK = b"fake engine of "
GONE = contract.Absent("no fake board is plugged in", "plug one in")


class Runs(staged.Staged):
    """Builds, loads and runs. ``did``: the stages that were called, each with its part."""

    device, version = "fake", "1.0-fake"

    def probe(self) -> contract.Probe:
        self.did: list[tuple[str, str]] = []
        self.probed = contract.Probe(
            self.version, self.device, "fp32", "simulator" if self.device.startswith("simulator-") else "device"
        )
        return self.probed

    def parse(self, part: contract.Part, options: dict[str, Any]) -> bytes:
        self.did.append(("parse", part.name))
        with open(part.path, "rb") as stream:
            return stream.read()

    def build(self, parsed: bytes, part: contract.Part, options: dict[str, Any]) -> bytes:
        self.did.append(("build", part.name))
        for number in range(20):
            self.note(f"layer {number}")
        return MARK + parsed

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: dict[str, Any]
    ) -> contract.Program:
        self.did.append(("load", part.name))
        with open(engine.path, "rb") as stream:
            if not stream.read().startswith(MARK):
                raise contract.StageError("load", "other", "this is no engine")
        return _Placed(ort.Backend().compile(part, {"threads": 1}), self.device)


class _Placed(contract.Program):
    precision = "fp32"

    def __init__(self, inner: contract.Program, device: str) -> None:
        self.inner, self.device = inner, device

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.inner.run(feeds)

    def placement(self) -> contract.Placement:
        return contract.Placement(self.device, self.precision, "reported by the fake")

    def close(self) -> None:
        self.inner.close()


class Simulates(Runs):
    """Runs on a simulator."""

    device = "simulator-fake"


class Builds(Runs):
    """There is no device to run on."""

    missing = GONE
    capabilities = replace(Runs.capabilities, deepest_stage="build")


class Parses(Runs):
    """There is no compiler here either."""

    missing = GONE
    capabilities = replace(Runs.capabilities, deepest_stage="parse")


class RefusesStep(Builds):
    """The encoder is built, and then the step part is refused."""

    def build(self, parsed: bytes, part: contract.Part, options: dict[str, Any]) -> bytes:
        if part.name == "step":
            raise contract.StageError("build", "operator", "no kernel for Where")
        return super().build(parsed, part, options)


class Lowers(Runs):
    """Claims to compute in float32, and does not."""

    def load(self, *arguments: Any) -> contract.Program:
        program = super().load(*arguments)
        program.precision = "fp16"  # type: ignore[attr-defined]
        return program


class DiesInBuild(Runs):
    def build(self, parsed: bytes, part: contract.Part, options: dict[str, Any]) -> bytes:
        os._exit(9)
