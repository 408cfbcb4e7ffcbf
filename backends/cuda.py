"""Device memory and streams of the first GPU, through cuda-bindings or pycuda, whichever is here.

No adapter: adapters use it. Sources: nvidia.github.io/cuda-python and documen.tician.de/pycuda. Copies are
the synchronous ones of the default stream.
"""

import re
import weakref
from typing import Any, Callable, Dict, Tuple

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
        """It ends with its last reference."""


class Device:
    """The GPU as the runs of a backend share it: one stream, and the memory of outputs, held as long as their host copies
    live. A cache that is fed again is not uploaded again; its host copy cannot be written to, so the two stay equal.
    """

    stream: Any = None

    def __init__(self, api: Any) -> None:
        """``api``: what ``find`` gave."""
        self.api = api
        self.name = re.sub("[^a-z0-9]+", "-", api.gpu.lower()).strip("-")
        self.held: Dict[int, Any] = {}  # by the id of the host copy
        self.stream = api.stream()

    def __del__(self) -> None:
        if self.stream is not None:
            self.api.end(self.stream)

    def memory_of(self, array: np.ndarray, dtype: str) -> Any:
        """The memory that holds the very numbers of an array, in that dtype; None where there is none."""
        return self.held.get(id(array)) if array.dtype == dtype else None

    def hold(self, array: np.ndarray, memory: Any) -> None:
        """``memory`` is freed when the last reference to ``array``, its host copy, goes."""
        held, free, key = self.held, self.api.free, id(array)
        array.setflags(write=False)
        held[key] = memory
        weakref.finalize(array, lambda: free(held.pop(key))).atexit = False


class Buffers:
    """Device memory of one run's tensors: ``memory`` by name. Leaving it frees all but what outputs hold."""

    def __init__(self, device: Device) -> None:
        self.device, self.api = device, device.api
        self.memory: Dict[str, Any] = {}
        self.own: Dict[str, Any] = {}
        self.arrays: Dict[str, np.ndarray] = {}

    def __enter__(self) -> "Buffers":
        return self

    def __exit__(self, kind: Any, failed: Any, trace: Any) -> None:
        for memory in self.own.values():
            try:
                self.api.free(memory)
            except RuntimeError:  # after a failed run every call fails: the first one's words are those to tell
                if failed is None:
                    raise

    def feed(self, name: str, array: np.ndarray, dtype: str) -> None:
        """Have an input on the device, in that dtype."""
        held = self.device.memory_of(array, dtype)
        if held is None:
            array = np.ascontiguousarray(array, dtype)
            self.api.upload(self._new(name, array.nbytes), array)
        else:
            self.memory[name] = held

    def room(self, name: str, shape: Tuple[int, ...], dtype: str) -> None:
        """Have memory for an output."""
        array = self.arrays[name] = np.empty(shape, dtype)
        self._new(name, array.nbytes)

    def run(self, execute: Callable[[Dict[str, int], int], bool]) -> bool:
        """Call ``execute`` with addresses by name and the stream, wait for the stream, and give its answer."""
        addresses = {name: int(memory) for name, memory in self.memory.items()}
        done = execute(addresses, self.api.handle(self.device.stream))
        self.api.synchronize(self.device.stream)
        return done

    def taken(self, name: str) -> np.ndarray:
        """The host copy of an output that was computed."""
        array = self.arrays[name]
        self.api.download(array, self.own[name])
        self.device.hold(array, self.own.pop(name))
        return array

    def _new(self, name: str, size: int) -> Any:
        self.own[name] = self.memory[name] = self.api.malloc(max(size, 1))  # an empty tensor needs an address too
        return self.own[name]
