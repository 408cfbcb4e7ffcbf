"""FAKE of cuda.bindings.runtime, for tests: return codes first, as documented. ``GPUS`` is what it finds."""

import enum
from types import SimpleNamespace
from typing import Any

from fake_device import DEVICE

__fake__ = True
GPUS = ["Fake Orin"]


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorNoDevice = 100
    cudaErrorIllegalAddress = 700


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStream_t:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __int__(self) -> int:
        return self.handle


OK = cudaError_t.cudaSuccess


def cudaGetDeviceCount() -> tuple[cudaError_t, Any]:
    return (OK, len(GPUS)) if GPUS else (cudaError_t.cudaErrorNoDevice, None)


def cudaGetDeviceProperties(device: int) -> tuple[cudaError_t, Any]:
    return OK, SimpleNamespace(name=GPUS[device].encode())


def cudaMalloc(size: int) -> tuple[cudaError_t, Any]:
    address = DEVICE.malloc(size)
    return (OK, address) if address else (cudaError_t.cudaErrorMemoryAllocation, None)


def cudaFree(address: int) -> tuple[cudaError_t]:
    DEVICE.free(address)
    return (OK,)


def cudaMemcpy(to: Any, source: Any, size: int, kind: cudaMemcpyKind) -> tuple[cudaError_t]:
    if kind is cudaMemcpyKind.cudaMemcpyHostToDevice:
        DEVICE.upload(to, source, size)
    else:
        DEVICE.download(to, source, size)
    return (OK,)


def cudaStreamCreate() -> tuple[cudaError_t, cudaStream_t]:
    return OK, cudaStream_t(DEVICE.new_stream())


def cudaStreamSynchronize(stream: cudaStream_t) -> tuple[cudaError_t]:
    DEVICE.synchronize(int(stream))
    return (OK,)


def cudaStreamDestroy(stream: cudaStream_t) -> tuple[cudaError_t]:
    DEVICE.destroy(int(stream))
    return (OK,)
