"""What this processor can do."""

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
