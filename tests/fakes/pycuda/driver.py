"""FAKE of pycuda.driver, for tests: memory and streams are objects that end with their last reference."""

from fake_device import DEVICE

__fake__ = True
STATE = {"init": False, "context": False}


def init() -> None:
    STATE["init"] = True


class Device:
    def __init__(self, number: int) -> None:
        if not STATE["init"]:
            DEVICE.fault("Device: init() was not called")

    @staticmethod
    def count() -> int:
        return 1

    def name(self) -> str:
        return "Fake Orin"


class DeviceAllocation:
    def __init__(self, address: int) -> None:
        self.address: int | None = address

    def __int__(self) -> int:
        if self.address is None:
            DEVICE.fault("DeviceAllocation: use after free")
        assert self.address is not None
        return self.address

    def free(self) -> None:
        DEVICE.free(int(self))
        self.address = None

    def __del__(self) -> None:
        if self.address in DEVICE.blocks:
            DEVICE.free(self.address)


def mem_alloc(size: int) -> DeviceAllocation:
    if not STATE["context"]:
        DEVICE.fault("mem_alloc: no context is current")
    address = DEVICE.malloc(size)
    if not address:
        raise RuntimeError("cuMemAlloc failed: out of memory")
    return DeviceAllocation(address)


def memcpy_htod(to, source) -> None:  # type: ignore[no-untyped-def]
    DEVICE.upload(int(to), source, source.nbytes)


def memcpy_dtoh(to, source) -> None:  # type: ignore[no-untyped-def]
    DEVICE.download(to, int(source), to.nbytes)


class Stream:
    def __init__(self) -> None:
        self.handle = DEVICE.new_stream()

    def synchronize(self) -> None:
        DEVICE.synchronize(self.handle)

    def __del__(self) -> None:
        if self.handle in DEVICE.streams:
            DEVICE.destroy(self.handle)
