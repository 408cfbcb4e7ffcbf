"""NVIDIA TensorRT-RTX from 1.4 on: TensorRT 11's API, on GeForce and RTX GPUs of compute capability 7.5 and later.

It parses and builds without a GPU, for any of them; a GPU is needed from there on. It does not take a Jetson's GPU, so its
rows are no evidence for one: that is ``tensorrt``. Networks are typed strongly: a graph says its precision, and
``tensorrt_rtx:tf32`` alone lets the builder choose a faster one. Source: docs.nvidia.com/deeplearning/tensorrt-rtx.
"""

from dataclasses import replace
from typing import Any, Dict

from backends import contract, cuda, staged, tensorrt

INSTALL = "pip install tensorrt-rtx-cu12 cuda-bindings, or conform envs create tensorrt_rtx@1.7.1"


class Backend(staged.Staged, tensorrt.Backend):
    """The first GPU; without one, what the builder says."""

    def probe(self) -> contract.Probe:
        try:
            import tensorrt_rtx as trt
        except ImportError as error:
            raise contract.Absent(f"tensorrt_rtx cannot be imported: {error}", INSTALL) from error
        self.trt, device = trt, "no-gpu"
        self.log = _log(self)  # one for all parts, as in ``tensorrt``
        try:
            self.gpu = cuda.Device(cuda.find())
            device = self.gpu.name
        except contract.Absent as absent:
            self.missing = absent
            self.capabilities = replace(self.capabilities, deepest_stage="build")
        self.found = contract.Probe(contract.version_of(trt), device, self.provider or "fp32")
        return self.found

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> Any:
        """Refusals alone: ``build`` reads the file again, a hundredth of its work, in the code of ``tensorrt``. Both hold
        the network for as long as its parser: one without it segfaults."""
        self.log.said.clear()
        builder = self.trt.Builder(self.log)
        network = builder.create_network(0)
        tensorrt._parse(self.trt, network, part.path, self.log)

    def build(self, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> bytes:
        plan = self._plan(part, options, self.log, tensorrt.SIZES)
        if plan is None:
            raise contract.refusal("build", self.log.said, tensorrt.REFUSALS)
        return bytes(plan)

    def load(
        self, engine: staged.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        self.log.said.clear()
        runtime = self.trt.Runtime(self.log)
        with open(engine.path, "rb") as stream:
            made = runtime.deserialize_cuda_engine(stream.read())  # None where there is no GPU, or not this engine's
        context = made and made.create_execution_context()
        if not context:
            raise contract.refusal("load", self.log.said, tensorrt.REFUSALS)
        least, _, most = tensorrt.SIZES["past"]
        return tensorrt._Program(self, [context, made, runtime, self.log], f", built for caches of {least} to {most}")


def _log(backend: Backend) -> Any:
    """The logger of ``tensorrt``, whose every line but the chatter is kept with the stage that is going on."""
    made = tensorrt._log(backend.trt)

    class Log(type(made)):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            super().log(severity, message)
            if severity != backend.trt.ILogger.Severity.VERBOSE:
                backend.note(f"{severity.name.lower()}: {message}")

    return Log()
