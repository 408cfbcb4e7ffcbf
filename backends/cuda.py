"""Device memory and streams of the first GPU, through cuda-bindings or pycuda, whichever is here.

No adapter: adapters use it. Sources: nvidia.github.io/cuda-python and documen.tician.de/pycuda. Copies are
the synchronous ones of the default stream.
"""

from typing import Any

import numpy as np

from backends import contract

DRIVER = "install NVIDIA's driver, or let this container see it; nvidia-smi must work"


def find() -> Any:
    """One of the two classes below, made. Raises Absent when there is no binding, no driver or no GPU."""
    failed = []
    for library in (Bindings, PyCuda):
        try:
            found = library()
        except ImportError as error:
            failed.append(str(error))
            continue
        if found.gpu:
            return found
        raise contract.Absent("the CUDA driver finds no GPU", "plug one in, or let this container see it")
    if any("libcuda.so" in words for words in failed):
        raise contract.Absent(f"the CUDA driver is not here: {'; '.join(failed)}", DRIVER)
    raise contract.Absent(
        "neither cuda-bindings nor pycuda is here", "pip install cuda-bindings, or pip install pycuda"
    )


class Bindings:
    """cuda-bindings, or cuda-python as it was before 12. Memory is an address."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError:
            from cuda import cudart as runtime
        self.api = runtime
        code, count = runtime.cudaGetDeviceCount()
        if int(code) == 35:  # cudaErrorInsufficientDriver: too old, and also where there is none
            raise contract.Absent("the CUDA driver is not here, or too old", DRIVER)
        self.gpu = "" if int(code) == 100 or not count else self._call("cudaGetDeviceProperties", 0).name.decode()

    def _call(self, name: str, *given: Any) -> Any:
        code, *answer = getattr(self.api, name)(*given)
        if int(code):
            raise RuntimeError(f"{name}: {code.name} ({int(code)})")
        return answer[0] if answer else None

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
    """pycuda on the primary context, which TensorRT uses too. Memory is a DeviceAllocation."""

    def __init__(self) -> None:
        import pycuda.driver as api

        api.init()
        self.gpu = api.Device(0).name() if api.Device.count() else ""
        if self.gpu:
            import pycuda.autoprimaryctx  # noqa: F401 - makes the context current
        self.malloc, self.upload, self.download, self.stream = (
            api.mem_alloc,
            api.memcpy_htod,
            api.memcpy_dtoh,
            api.Stream,
        )

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
        """It ends with its last reference."""
