"""The safetensors format, written and read with numpy alone: workers on a lab box have nothing else.

Eight bytes (little endian) hold the length of a JSON header, which gives each tensor's dtype, shape and place in the bytes
that follow. Source: github.com/huggingface/safetensors, README.
"""

import json
import os
import shutil
import tempfile
from typing import Any, BinaryIO, Dict, List

import numpy as np

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}
DTYPES = {**FLOATS, **INTEGERS}
CODES = {np.dtype(name): code for code, name in DTYPES.items()}
LONGEST_HEADER = 100 << 20
"""Bytes; the reference implementation reads no longer header either."""


class TensorWriter:
    """Writes one file, tensor after tensor; ``close`` puts the header before them. Until then nothing is at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._header: Dict[str, Any] = {}
        self._data: BinaryIO = tempfile.TemporaryFile(dir=os.path.dirname(path))  # noqa: SIM115 - closed by close()
        self._end = 0

    def add(self, name: str, array: np.ndarray) -> None:
        """Raises KeyError for a dtype that the format has not."""
        code = CODES[array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype]
        data = np.ascontiguousarray(array).tobytes()
        begin, self._end = self._end, self._end + len(data)
        self._header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, self._end]}
        self._data.write(data)

    def close(self) -> None:
        header = json.dumps(self._header, separators=(",", ":")).encode("utf-8")
        header += b" " * (-len(header) % 8)
        draft = self.path + ".part"
        with open(draft, "wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            self._data.seek(0)
            shutil.copyfileobj(self._data, stream, 1 << 20)
        self._data.close()
        os.replace(draft, self.path)


def read(path: str) -> Dict[str, np.ndarray]:
    """The tensors of a file, memory-mapped read-only. Raises OSError, and ValueError for a file that is damaged."""
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise ValueError(f"its header of {length} bytes does not fit into {size} bytes")
        header = json.loads(stream.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.zeros(0, np.uint8)
    return {name: _tensor(name, entry, data) for name, entry in header.items()}


def _tensor(name: str, entry: Any, data: np.ndarray) -> np.ndarray:
    try:
        dtype = np.dtype(DTYPES[entry["dtype"]])
        shape: List[int] = [int(size) for size in entry["shape"]]
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} has no dtype, shape and offsets that can be read ({error!r})") from error
    count = 1
    for size in shape:
        count *= size
    if min([0, *shape]) < 0 or not 0 <= begin <= end <= len(data) or end - begin != count * dtype.itemsize:
        raise ValueError(f"{name} is said to be {entry['dtype']} {shape} in bytes {begin} to {end} of {len(data)}")
    return np.asarray(data[begin:end]).view(dtype).reshape(shape)
