"""Memory of a GPU for the tensors of a run. No adapter: adapters use it."""

import re
import weakref
from typing import Any, Callable, Dict, Tuple

import numpy as np


class Device:
    """A GPU as the runs of a backend share it: one stream, and the memory of outputs, which is kept as long as their host
    copies live. A cache that is fed back is therefore not uploaded again. Its host copy is made read-only, so that the two
    stay equal.
    """

    stream: Any = None

    def __init__(self, api: Any) -> None:
        """``api``: what ``cuda.find`` returned."""
        self.api = api
        self.name = re.sub("[^a-z0-9]+", "-", api.gpu.lower()).strip("-")
        self.outputs: Dict[int, Any] = {}  # memory, by the id of the host copy
        self.stream = api.stream()

    def __del__(self) -> None:
        if self.stream is not None:
            self.api.end(self.stream)

    def memory_of(self, array: np.ndarray, dtype: str) -> Any:
        """The memory of the output that ``array`` is the host copy of; None when it is none, or when dtypes differ."""
        return self.outputs.get(id(array)) if array.dtype == dtype else None

    def keep(self, array: np.ndarray, memory: Any) -> None:
        """Keep the memory of an output until the last reference to ``array``, its host copy, is gone."""
        outputs, free, key = self.outputs, self.api.free, id(array)
        array.setflags(write=False)
        outputs[key] = memory
        weakref.finalize(array, lambda: free(outputs.pop(key))).atexit = False


class Buffers:
    """Device memory of one run's tensors: ``memory`` by name. Leaving the context frees all but what the device keeps."""

    def __init__(self, device: Device) -> None:
        self.device, self.api = device, device.api
        self.memory: Dict[str, Any] = {}
        self.own: Dict[str, Any] = {}
        self.arrays: Dict[str, np.ndarray] = {}

    def __enter__(self) -> "Buffers":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for memory in self.own.values():
            try:
                self.api.free(memory)
            except RuntimeError:  # after a failed run every call fails; the run's own error is the one to report
                if error is None:
                    raise

    def feed(self, name: str, array: np.ndarray, dtype: str) -> None:
        """Put an input on the device as ``dtype``, unless it is there already."""
        kept = self.device.memory_of(array, dtype)
        if kept is None:
            array = np.ascontiguousarray(array, dtype)
            self.api.upload(self._new(name, array.nbytes), array)
        else:
            self.memory[name] = kept

    def allocate(self, name: str, shape: Tuple[int, ...], dtype: str) -> None:
        """Allocate memory for an output."""
        array = self.arrays[name] = np.empty(shape, dtype)
        self._new(name, array.nbytes)

    def run(self, execute: Callable[[Dict[str, int], int], bool]) -> bool:
        """Call ``execute`` with the addresses by name and the stream, wait for the stream, and return its result."""
        addresses = {name: int(memory) for name, memory in self.memory.items()}
        success = execute(addresses, self.api.handle(self.device.stream))
        self.api.synchronize(self.device.stream)
        return success

    def fetch(self, name: str) -> np.ndarray:
        """The host copy of an output that was computed."""
        array = self.arrays[name]
        self.api.download(array, self.own[name])
        self.device.keep(array, self.own.pop(name))
        return array

    def _new(self, name: str, size: int) -> Any:
        self.own[name] = self.memory[name] = self.api.malloc(max(size, 1))  # an empty tensor needs an address too
        return self.own[name]
