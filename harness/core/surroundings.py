"""What a process runs in: interpreter, packages, processor."""

import contextlib
import os
import sys
from typing import List


def cpu_flags() -> List[str]:
    """The vector instruction sets of this CPU, which decide how some kernels round or saturate; empty where unknown."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            line = next((line for line in stream if line.startswith(("flags", "Features"))), "")
    except OSError:
        return []
    known = (
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "amx_int8",
        "amx_bf16",
        "asimd",
        "asimddp",
        "sve",
    )
    return sorted(set(line.split()) & set(known))


def surroundings() -> str:
    """Interpreter, packages by their folders' names (which hold the version) and processor."""
    packages = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            packages |= {name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))}
    return "\n".join([sys.version, os.uname().machine, *cpu_flags(), *sorted(packages)])
