"""NVIDIA TensorRT-RTX from 1.4 on: TensorRT 11's API, on GeForce and RTX GPUs of compute capability 7.5 and later.

It parses and builds without a GPU, and needs one to load. It does not support a Jetson's GPU, so its rows say nothing about
one: that is ``tensorrt``. Networks are strongly typed: the graph sets the precision, and only ``tensorrt_rtx:tf32`` lets the
builder choose a faster one. Source: docs.nvidia.com/deeplearning/tensorrt-rtx.
"""

from dataclasses import replace

from backends import contract, cuda, cuda_memory, logs, tensorrt

INSTALL = "pip install tensorrt-rtx-cu12 cuda-bindings, or conform envs create tensorrt_rtx@1.7.1"


class Backend(tensorrt.Backend):
    """The first GPU; without one, the builder alone."""

    def probe(self) -> contract.Probe:
        try:
            import tensorrt_rtx as trt
        except ImportError as error:
            raise contract.Absent(f"tensorrt_rtx cannot be imported: {error}", INSTALL) from error
        self.trt, self.log = trt, logs.tensorrt_logger(trt, self.note)
        try:
            self.gpu = cuda_memory.Device(cuda.find())
        except contract.Absent as absent:
            self.missing = absent
            self.capabilities = replace(self.capabilities, deepest_stage="build")
            return self._probe("no-gpu")
        return self._probe(self.gpu.name)
