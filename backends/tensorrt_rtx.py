"""NVIDIA TensorRT-RTX from 1.4 on: TensorRT 11's API, on GeForce and RTX GPUs of compute capability 7.5 and later.

It parses and builds without a GPU, for any of them; a GPU is needed from there on. It does not take a Jetson's GPU, so its
rows are no evidence for one: that is ``tensorrt``. Networks are typed strongly: a graph says its precision, and
``tensorrt_rtx:tf32`` alone lets the builder choose a faster one. Source: docs.nvidia.com/deeplearning/tensorrt-rtx.
"""

from dataclasses import replace

from backends import contract, cuda, tensorrt, words

INSTALL = "pip install tensorrt-rtx-cu12 cuda-bindings, or conform envs create tensorrt_rtx@1.7.1"


class Backend(tensorrt.Backend):
    """The first GPU; without one, what the builder says."""

    def probe(self) -> contract.Probe:
        try:
            import tensorrt_rtx as trt
        except ImportError as error:
            raise contract.Absent(f"tensorrt_rtx cannot be imported: {error}", INSTALL) from error
        self.trt, self.log, device = trt, words.logger(trt, self.note), "no-gpu"
        try:
            self.gpu = cuda.Device(cuda.find())
            device = self.gpu.name
        except contract.Absent as absent:
            self.missing = absent
            self.capabilities = replace(self.capabilities, deepest_stage="build")
        self.found = contract.Probe(
            contract.version_of(trt), device, self.provider or "fp32", contract.execution_of(trt)
        )
        return self.found
