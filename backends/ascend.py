"""pyACL for an adapter: return codes checked and named, whatever was made given back in reverse order. No adapter.

Source: hiascend.com, pyACL reference of CANN 7 and 8. A call gives its code, or (value, code); 0 is success.
"""

import contextlib
import os
import re
from typing import Any, Callable, List, Tuple

CODES = {
    100000: "INVALID_PARAM", 100001: "UNINITIALIZE", 100002: "REPEAT_INITIALIZE", 100003: "INVALID_FILE",
    107000: "RT_PARAM_INVALID", 107001: "RT_INVALID_DEVICEID", 107002: "RT_CONTEXT_NULL", 200000: "BAD_ALLOC",
    200001: "API_NOT_SUPPORT", 200002: "INVALID_DEVICE", 200006: "FEATURE_UNSUPPORTED", 207001: "RT_MEMORY_ALLOCATION",
    300000: "STORAGE_OVER_LIMIT", 500000: "INTERNAL_ERROR", 500001: "FAILURE", 500002: "GE_FAILURE", 500003: "RT_FAILURE",
    507011: "RT_MODEL_EXECUTE",
}  # fmt: skip
ALREADY_INITIALIZED = 100002
TO_DEVICE, TO_HOST = 1, 2


def named(code: int) -> str:
    return f"ACL_ERROR_{CODES[code]} ({code})" if code in CODES else f"code {code}"


def toolkit() -> str:
    """The toolkit's version from the file it brings; pyACL tells only that of its own interface."""
    for name in ("opp/version.info", "compiler/version.info", "version.cfg"):
        place = os.path.join(os.environ.get("ASCEND_TOOLKIT_HOME", "/usr/local/Ascend/ascend-toolkit/latest"), name)
        with contextlib.suppress(OSError), open(place, encoding="utf-8") as stream:
            found = re.search(r"version\D*=\W*([\w.]*\d[\w.]*)", stream.read(), re.IGNORECASE)
            if found:
                return found[1]
    return "unknown"


def check(acl: Any, call: str, code: int) -> None:
    """Raises RuntimeError that names the call and the code, with what the library says of it."""
    if code:
        raise RuntimeError(f"{call}: {named(code)}: {acl.get_recent_err_msg() or 'no further word'}")


class Owned:
    """What one model has of the device. ``close`` gives all of it back, the newest first, and may be called twice."""

    def __init__(self, acl: Any) -> None:
        self.acl, self.stack = acl, contextlib.ExitStack()

    def check(self, call: str, code: int) -> None:
        check(self.acl, call, code)

    def holds(self, made: Any, call: str, release: Callable[[Any], int]) -> Any:
        """``made``, which ``release`` gives back; a code it then returns is checked when the rest has gone as well."""
        self.stack.callback(lambda: self.check(call, release(made)))
        return made

    def made(self, call: str, answer: Tuple[Any, int], undo: str, release: Callable[[Any], int]) -> Any:
        """The value of a call that also gave a code, held."""
        self.check(call, answer[1])
        return self.holds(answer[0], undo, release)

    def dataset(self, desc: int, count: int, size_of: Callable[[int, int], int]) -> Tuple[Any, List[Tuple[Any, int]]]:
        """A dataset with a buffer on the device for each input or output: (dataset, [(address, bytes)])."""
        acl, buffers = self.acl, []
        dataset = self.holds(acl.mdl.create_dataset(), "acl.mdl.destroy_dataset", acl.mdl.destroy_dataset)
        for at in range(count):
            size = size_of(desc, at)
            memory = self.made("acl.rt.malloc", acl.rt.malloc(size, 0), "acl.rt.free", acl.rt.free)
            data = acl.create_data_buffer(memory, size)
            self.holds(data, "acl.destroy_data_buffer", acl.destroy_data_buffer)
            self.check("acl.mdl.add_dataset_buffer", acl.mdl.add_dataset_buffer(dataset, data)[1])
            buffers.append((memory, size))
        return dataset, buffers

    def upload(self, what: str, memory: Tuple[int, int], raw: bytes) -> None:
        """Copy an input into its buffer, given as (address, bytes)."""
        address, room = memory
        source = self.acl.util.bytes_to_ptr(raw)
        self.check(f"acl.rt.memcpy {what}", self.acl.rt.memcpy(address, room, source, len(raw), TO_DEVICE))

    def staging(self, size: int) -> None:
        """Have host memory that outputs of up to ``size`` bytes come back through."""
        room = self.acl.rt.malloc_host(size)
        self.host = self.made("acl.rt.malloc_host", room, "acl.rt.free_host", self.acl.rt.free_host)

    def download(self, what: str, address: int, size: int) -> bytes:
        self.check(f"acl.rt.memcpy {what}", self.acl.rt.memcpy(self.host, size, address, size, TO_HOST))
        return self.acl.util.ptr_to_bytes(self.host, size)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Raises RuntimeError when something could not be given back."""
        self.stack.close()
