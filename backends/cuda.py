"""The CUDA runtime of the first GPU, through cuda-bindings or pycuda, whichever is installed. No adapter: adapters use it.

Sources: nvidia.github.io/cuda-python and documen.tician.de/pycuda. Copies are the synchronous ones of the default stream.
A failed call raises RuntimeError.
"""

from typing import Any

import numpy as np

from backends import contract

DRIVER = "install NVIDIA's driver, or make it visible in this container; nvidia-smi must work"
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100  # cudaError_t; the first: the driver is too old, or there is none


def find() -> Any:
    """A Bindings or a PyCuda. Raises Absent when there is no binding, no driver or no GPU."""
    errors = []
    for library in (Bindings, PyCuda):
        try:
            api: Any = library()
        except ImportError as error:
            errors.append(str(error))
            continue
        if api.gpu:
            return api
        raise contract.Absent("the CUDA driver finds no GPU", "plug one in, or make it visible in this container")
    if any("libcuda.so" in error for error in errors):
        raise contract.Absent(f"the CUDA driver is not here: {'; '.join(errors)}", DRIVER)
    install = "pip install cuda-bindings, or pip install pycuda"
    raise contract.Absent("neither cuda-bindings nor pycuda is here", install)


class Bindings:
    """cuda-bindings, or cuda-python before 12. Memory is an address. ``gpu``: the GPU's name, empty when there is none."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError:
            from cuda import cudart as runtime
        self.api = runtime
        code, count = runtime.cudaGetDeviceCount()
        if int(code) == INSUFFICIENT_DRIVER:
            raise contract.Absent("the CUDA driver is not here, or too old", DRIVER)
        self.gpu = ""
        if int(code) != NO_DEVICE and count:
            self.gpu = self._call("cudaGetDeviceProperties", 0).name.decode()

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *values = getattr(self.api, name)(*arguments)
        if int(code):
            raise RuntimeError(f"{name}: {code.name} ({int(code)})")
        return values[0] if values else None

    def malloc(self, size: int) -> Any:
        return self._call("cudaMalloc", size)

    def free(self, memory: Any) -> None:
        self._call("cudaFree", memory)

    def upload(self, memory: Any, array: np.ndarray) -> None:
        if array.nbytes:
            kind = self.api.cudaMemcpyKind.cudaMemcpyHostToDevice
            self._call("cudaMemcpy", memory, array, array.nbytes, kind)

    def download(self, array: np.ndarray, memory: Any) -> None:
        if array.nbytes:
            kind = self.api.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self._call("cudaMemcpy", array, memory, array.nbytes, kind)

    def stream(self) -> Any:
        return self._call("cudaStreamCreate")

    def handle(self, stream: Any) -> int:
        return int(stream)

    def synchronize(self, stream: Any) -> None:
        self._call("cudaStreamSynchronize", stream)

    def end(self, stream: Any) -> None:
        self._call("cudaStreamDestroy", stream)


class PyCuda:
    """pycuda on the primary context, which TensorRT uses too. Memory is a DeviceAllocation. ``gpu``: as in Bindings."""

    def __init__(self) -> None:
        import pycuda.driver as api

        api.init()
        self.api, self.malloc, self.stream = api, api.mem_alloc, api.Stream
        self.gpu = api.Device(0).name() if api.Device.count() else ""
        if self.gpu:
            import pycuda.autoprimaryctx  # noqa: F401 - makes the context current

    def free(self, memory: Any) -> None:
        memory.free()

    def upload(self, memory: Any, array: np.ndarray) -> None:
        if array.nbytes:
            self.api.memcpy_htod(memory, array)

    def download(self, array: np.ndarray, memory: Any) -> None:
        if array.nbytes:
            self.api.memcpy_dtoh(array, memory)

    def handle(self, stream: Any) -> int:
        return int(stream.handle)

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()

    def end(self, stream: Any) -> None:
        """pycuda ends a stream with its last reference."""
