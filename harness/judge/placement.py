"""The check ``placement``: the device and precision that the cell's name says did the work, in the runtime's own words."""

from typing import Any, Dict, List, Sequence

from backends.contract import Probe
from harness.core.observations import PLACEMENT, Observation, Placed
from harness.core.rows import Answer
from harness.judge.check import Cell, Check


class PlacementCheck(Check):
    """Collects what did the work of each part."""

    name, phase = "placement", PLACEMENT

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._placed: List[Placed] = []

    def see(self, observation: Observation) -> None:
        if isinstance(observation, Placed):
            self._placed.append(observation)

    def answer(self) -> Answer:
        return judge_placement(self.cell.probe, self._placed)


def judge_placement(probe: Probe, placed: Sequence[Placed]) -> Answer:
    """``placed``: one of each part. UNVERIFIED where a part gives no proof, FAIL where something else did the work."""
    detail: Dict[str, Any] = {}
    elsewhere: List[Placed] = []
    for part in placed:
        if not part.device:
            message = f"{part.part}: the runtime gives no proof of what did the work"
            return _answer("UNVERIFIED", placed, float(len(elsewhere)), message, detail)
        detail[part.part] = part.evidence
        if (part.device, part.precision) != (probe.device, probe.precision):
            elsewhere.append(part)
    effective = sorted({part.precision for part in placed})
    detail["precision"] = {"requested": probe.precision, "effective": effective}
    message = ""
    if elsewhere:
        last = elsewhere[-1]
        asked = f"asked for {probe.device} in {probe.precision}"
        message = f"{last.part} ran on {last.device} in {last.precision}, {asked}"
    return _answer("FAIL" if elsewhere else "PASS", placed, float(len(elsewhere)), message, detail)


def _answer(status: str, placed: Sequence[Placed], value: float, message: str, detail: Dict[str, Any]) -> Answer:
    return Answer(
        "placement",
        status,
        metric="parts elsewhere",
        value=value,
        bound=0.0,
        compared=len(placed),
        message=message,
        detail=detail,
    )
