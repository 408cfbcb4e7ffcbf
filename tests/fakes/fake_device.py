"""FAKE device memory and streams, which all fakes share; every misuse is noticed.

Work on a stream is done when the stream is synchronized, never earlier. Memory that a stream still uses may be neither read,
written nor freed. Some drivers are less strict, but all of them document this.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np


class Misuse(AssertionError):
    """The program broke a documented rule of the API. ``DEVICE.faults`` has it too, in case the exception is caught."""


class Block:
    """One allocation: ``written`` bytes of it hold something; ``stream`` is the one that still uses it, or 0."""

    def __init__(self, size: int) -> None:
        self.data, self.written, self.stream = bytearray(b"\xa5" * size), 0, 0


class Device:
    """All memory and all streams of one run. ``fail_at`` makes that allocation (from 1) fail as a full device does."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.blocks: dict[int, Block] = {}
        self.freed: set[int] = set()
        self.streams: dict[int, list[Callable[[], None]]] = {}
        self.handles: dict[int, Any] = {}
        self.fail_at = self.allocations = self.uploads = 0
        self._numbers = itertools.count(0x7F00_0000_0000, 0x1_0000)

    def fault(self, message: str) -> None:
        """Note a misuse and raise it."""
        self.faults.append(message)
        raise Misuse(message)

    def block(self, address: int, use: str) -> Block:
        if not isinstance(address, int) or isinstance(address, bool):
            self.fault(f"{use}: {address!r} is no address")
        if address in self.freed:
            self.fault(f"{use}: use after free")
        if address not in self.blocks:
            self.fault(f"{use}: {address} is not device memory")
        return self.blocks[address]

    def malloc(self, size: int) -> int:
        """The address, or 0 when the device is full."""
        if not isinstance(size, int) or size <= 0:
            self.fault(f"malloc: {size!r} is no size")
        self.allocations += 1
        if self.allocations == self.fail_at:
            return 0
        address = next(self._numbers)
        self.blocks[address] = Block(size)
        return address

    def free(self, address: int) -> None:
        if address in self.freed:
            self.fault("free: double free")
        if self.block(address, "free").stream:
            self.fault("free: a stream still uses this memory")
        del self.blocks[address]
        self.freed.add(address)

    def _copied(self, address: int, array: np.ndarray, size: int, use: str) -> Block:
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            self.fault(f"{use}: the host side is no contiguous array")
        block = self.block(address, use)
        if size != array.nbytes:
            self.fault(f"{use}: {size} bytes of an array of {array.nbytes}")
        if size > len(block.data):
            self.fault(f"{use}: {size} bytes, {len(block.data)} are allocated")
        if block.stream:
            self.fault(f"{use}: the stream that uses this memory was not synchronized")
        return block

    def upload(self, address: int, array: np.ndarray, size: int) -> None:
        block = self._copied(address, array, size, "copy to the device")
        block.data[:size] = array.tobytes()
        block.written = size
        self.uploads += 1

    def download(self, array: np.ndarray, address: int, size: int) -> None:
        block = self._copied(address, array, size, "copy to the host")
        if size > block.written:
            self.fault(f"copy to the host: {size} bytes, {block.written} were ever written")
        if not array.flags.writeable:
            self.fault("copy to the host: the array is read-only")
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(bytes(block.data[:size]), np.uint8)

    def handle(self, resource: Any) -> int:
        """A number for an object of the library; ``taken`` gives the object back."""
        number = next(self._numbers)
        self.handles[number] = resource
        return number

    def taken(self, number: int, kind: type, use: str) -> Any:
        resource = self.handles.get(number)
        if type(resource) is not kind:
            self.fault(f"{use}: {number!r} is no {kind.__name__}, or no longer one")
        return resource

    def new_stream(self) -> int:
        stream = next(self._numbers)
        self.streams[stream] = []
        return stream

    def queue(self, stream: int, work: Callable[[], None], addresses: list[int]) -> None:
        """Give a stream work that uses memory."""
        if stream not in self.streams:
            self.fault(f"execute: {stream!r} is no stream of this device")
        for address in addresses:
            block = self.block(address, "execute")
            if block.stream not in (0, stream):
                self.fault("execute: another stream still uses this memory")
            block.stream = stream
        self.streams[stream].append(work)

    def synchronize(self, stream: int) -> None:
        if stream not in self.streams:
            self.fault(f"synchronize: {stream!r} is no stream of this device")
        work, self.streams[stream] = self.streams[stream], []
        for item in work:
            item()
        for block in self.blocks.values():
            if block.stream == stream:
                block.stream = 0

    def destroy(self, stream: int) -> None:
        if self.streams.get(stream):
            self.fault("destroy: the stream still has work")
        if self.streams.pop(stream, None) is None:
            self.fault("destroy: no such stream")

    def close(self) -> list[str]:
        """All faults, and one for each kind of resource that was never released."""
        left = [
            (len(self.blocks), "blocks of device memory"),
            (len(self.streams), "streams"),
            (len(self.handles), "handles"),
        ]
        return self.faults + [f"leak: {count} {what} were never released" for count, what in left if count]


DEVICE = Device()


def reset() -> Device:
    """A new device, with nothing on it."""
    DEVICE.__init__()  # type: ignore[misc]  # the fakes hold this very object
    return DEVICE
