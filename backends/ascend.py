"""pyACL for an adapter: checks and names return codes, and releases resources in reverse order. No adapter.

Source: hiascend.com, pyACL reference of CANN 7 and 8. A call returns a code, or (value, code); 0 is success.
"""

import contextlib
import os
import re
from typing import Any, Callable, List, Tuple

CODES = {
    100000: "INVALID_PARAM",
    100001: "UNINITIALIZE",
    100002: "REPEAT_INITIALIZE",
    100003: "INVALID_FILE",
    107000: "RT_PARAM_INVALID",
    107001: "RT_INVALID_DEVICEID",
    107002: "RT_CONTEXT_NULL",
    200000: "BAD_ALLOC",
    200001: "API_NOT_SUPPORT",
    200002: "INVALID_DEVICE",
    200006: "FEATURE_UNSUPPORTED",
    207001: "RT_MEMORY_ALLOCATION",
    300000: "STORAGE_OVER_LIMIT",
    500000: "INTERNAL_ERROR",
    500001: "FAILURE",
    500002: "GE_FAILURE",
    500003: "RT_FAILURE",
    507011: "RT_MODEL_EXECUTE",
}
ALREADY_INITIALIZED = 100002
TO_DEVICE, TO_HOST = 1, 2


def named(code: int) -> str:
    """A code with its name, where it has one."""
    return f"ACL_ERROR_{CODES[code]} ({code})" if code in CODES else f"code {code}"


def toolkit() -> str:
    """The toolkit's version, from a file that it installs: pyACL reports only the version of its own interface."""
    for name in ("opp/version.info", "compiler/version.info", "version.cfg"):
        path = os.path.join(os.environ.get("ASCEND_TOOLKIT_HOME", "/usr/local/Ascend/ascend-toolkit/latest"), name)
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
            version = re.search(r"version\D*=\W*([\w.]*\d[\w.]*)", stream.read(), re.IGNORECASE)
            if version:
                return version[1]
    return "unknown"


def check(acl: Any, call: str, code: int) -> None:
    """Raises RuntimeError with the call, the code and the library's message, unless the code is 0."""
    if code:
        raise RuntimeError(f"{call}: {named(code)}: {acl.get_recent_err_msg() or 'no message'}")


class Owned:
    """The resources of one model on the device. ``close`` releases them, the newest first, and may be called twice."""

    def __init__(self, acl: Any) -> None:
        self.acl, self.stack = acl, contextlib.ExitStack()

    def check(self, call: str, code: int) -> None:
        check(self.acl, call, code)

    def own(self, resource: Any, call: str, release: Callable[[Any], int]) -> Any:
        """Release ``resource`` at the end. A code of ``release``, the function named ``call``, does not stop the others."""
        self.stack.callback(lambda: self.check(call, release(resource)))
        return resource

    def checked(self, call: str, result: Tuple[Any, int], release_call: str, release: Callable[[Any], int]) -> Any:
        """The value of a call that returned (value, code), owned. Raises RuntimeError for a code."""
        self.check(call, result[1])
        return self.own(result[0], release_call, release)

    def dataset(self, desc: int, count: int, size_of: Callable[[int, int], int]) -> Tuple[Any, List[Tuple[Any, int]]]:
        """A dataset with a buffer on the device for each input or output: (dataset, [(address, bytes)])."""
        acl, buffers = self.acl, []
        dataset = self.own(acl.mdl.create_dataset(), "acl.mdl.destroy_dataset", acl.mdl.destroy_dataset)
        for index in range(count):
            size = size_of(desc, index)
            memory = self.checked("acl.rt.malloc", acl.rt.malloc(size, 0), "acl.rt.free", acl.rt.free)
            data = acl.create_data_buffer(memory, size)
            self.own(data, "acl.destroy_data_buffer", acl.destroy_data_buffer)
            self.check("acl.mdl.add_dataset_buffer", acl.mdl.add_dataset_buffer(dataset, data)[1])
            buffers.append((memory, size))
        return dataset, buffers

    def upload(self, name: str, buffer: Tuple[int, int], raw: bytes) -> None:
        """Copy an input into its buffer, which is (address, bytes)."""
        address, size = buffer
        source = self.acl.util.bytes_to_ptr(raw)
        self.check(f"acl.rt.memcpy {name}", self.acl.rt.memcpy(address, size, source, len(raw), TO_DEVICE))

    def allocate_host(self, size: int) -> None:
        """Allocate the host memory through which outputs of up to ``size`` bytes are copied."""
        result = self.acl.rt.malloc_host(size)
        self.host = self.checked("acl.rt.malloc_host", result, "acl.rt.free_host", self.acl.rt.free_host)

    def download(self, name: str, address: int, size: int) -> bytes:
        """Copy an output of ``size`` bytes from the device."""
        self.check(f"acl.rt.memcpy {name}", self.acl.rt.memcpy(self.host, size, address, size, TO_HOST))
        return self.acl.util.ptr_to_bytes(self.host, size)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Raises RuntimeError when a resource could not be released; the others are."""
        self.stack.close()
