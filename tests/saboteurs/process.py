"""Adapters that fail as a process or before the first replay. Run as ``module:Class`` backends in one conformance run,
beside an honest one whose rows must all be there."""

from dataclasses import dataclass, replace
from typing import Any

from backends import contract, ort

OPSETS = (16, 17)
"""The two cells of the run: faults strike at 17, and 16 must stay intact."""
NUMPY = "numpy.core.multiarray failed to import: a module compiled against NumPy 1.x cannot be run in NumPy 2.4.6"


@dataclass(frozen=True)
class Trial:
    """One backend of the run. ``statuses``: what its logits rows say per opset, or its probe row (opset 0).

    ``says``: must stand in the message of the last of them.
    """

    name: str
    case: int
    selector: str
    statuses: dict[int, str]
    says: str = ""
    kind: str = ""


class WrongNumpy(ort.Backend):
    """A runtime's wheel that was built against another numpy."""

    def probe(self) -> contract.Probe:
        raise ImportError(NUMPY)


class ClaimsFp8(ort.Backend):
    """Computes in fp8, for which this bundle has no golden floor."""

    def probe(self) -> contract.Probe:
        return replace(super().probe(), precision="fp8")


class SegfaultsAtLoad(ort.Backend):
    """Dies while it loads the newer opset, as OpenVINO 2022.3 does."""

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        if f"-op{OPSETS[1]}-" in part.path:
            import ctypes

            ctypes.string_at(0)
        return super().compile(part, options)


BOTH = {16: "PASS", 17: "PASS"}
HERE = "tests.saboteurs.process"

TRIALS: list[Trial] = [
    Trial("honest", 43, "ort", BOTH),
    Trial("segfault-at-load", 30, f"{HERE}:SegfaultsAtLoad", {16: "PASS", 17: "CRASH"}, "signal 11", "signal"),
    Trial("segfault-in-a-run", 43, "tests.faults:Segfault", {16: "PASS", 17: "CRASH"}, "signal 11", "signal"),
    Trial("killed", 43, "tests.faults:Killed", {16: "PASS", 17: "CRASH"}, "signal 9", "signal"),
    Trial("exits", 43, "tests.faults:Exits", {16: "PASS", 17: "CRASH"}, "exit code 7", "exit"),
    Trial("hangs", 43, "tests.faults:Hangs", {16: "PASS", 17: "TIMEOUT"}, "no sign of life", "hang"),
    Trial("over-limit", 43, "tests.faults:OverLimit", {16: "PASS", 17: "ERROR"}, "the limit is", "memory"),
    Trial("loud", 44, "tests.faults:Loud", BOTH),
    Trial("raises-in-the-probe", 47, "tests.faults:RaisesAtProbe", {0: "ERROR"}, "driver 3 is too old"),
    Trial("syntax-error", 47, "broken_adapter:Backend", {0: "ERROR"}, "SyntaxError"),
    Trial("no-such-class", 47, "tests.faults:Nowhere", {0: "ERROR"}, "Nowhere"),
    Trial("built-against-another-numpy", 31, f"{HERE}:WrongNumpy", {0: "ERROR"}, "numpy<2"),
    Trial("fp8-without-a-floor", 41, f"{HERE}:ClaimsFp8", {16: "UNSUPPORTED", 17: "UNSUPPORTED"}, "fp8"),
]
