"""How much memory a process holds, and held at most."""

import os
import resource
import sys
from typing import Union


def resident(pid: Union[int, str]) -> int:
    """Bytes of memory that a process holds, by id or ``self``; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def peak() -> int:
    """Bytes of memory that this process held at most."""
    # ru_maxrss is in KiB on Linux, in bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
