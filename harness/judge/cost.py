"""The check ``cost``: what a decode takes, and whether its memory grows."""

from typing import Any, Dict, Optional, Union

import numpy as np

from harness.core.observations import COST, Measured, Observation, Stopped
from harness.core.rows import Answer
from harness.judge.check import Cell, Check

LEAK = 256 * 1024
"""Bytes by which every identical replay may not outgrow the one before, four times in a row. Allocators settle after two."""


class CostCheck(Check):
    """Keeps the measurement, or how the timed replay stopped."""

    name, phase = "cost", COST

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._seen: Optional[Union[Measured, Stopped]] = None

    def see(self, observation: Observation) -> None:
        if isinstance(observation, Measured) or (isinstance(observation, Stopped) and observation.phase == COST):
            self._seen = observation

    def answer(self) -> Answer:
        if self._seen is None:
            return Answer("cost", "ERROR", message="nothing was measured")
        return judge_cost(self._seen)


def judge_cost(seen: "Measured | Stopped") -> Answer:
    """FAIL for a leak, or where the timed replay stopped. Without figures where other workers ran beside."""
    if isinstance(seen, Stopped):
        return Answer("cost", "FAIL", message=f"the timed replay stopped: {seen.message}")
    p50, p95 = (float(np.percentile(seen.steps, rank)) for rank in (50, 95))
    speed = seen.tokens / sum(seen.steps)
    detail: Dict[str, Any] = {
        "batch": seen.rows,
        "file_bytes": seen.file_bytes,
        "load_seconds": seen.load,
        "encoder_seconds": seen.encoder,
        "step_p50_seconds": p50,
        "step_p95_seconds": p95,
        "tokens_per_second": speed,
        "peak_memory_bytes": seen.peak,
        "repeat_memory_bytes": list(seen.memory),
        "threads": seen.threads,
        "cpu": list(seen.cpu),
        "unit": "timed steps",
    }
    value, message = p50, f"{p50 * 1e3:.2f} ms a step of {seen.rows}, {speed:.0f} tokens/s"
    if not seen.alone:
        value, message = None, "no figures: other workers ran beside this one"  # type: ignore[assignment]
        detail = {name: known for name, known in detail.items() if "second" not in name}
    growth = float(np.diff(seen.memory)[-4:].min())
    if growth > LEAK:
        message = f"leak: memory grows by at least {growth / 2**20:.1f} MiB with every identical replay"
        grown: Dict[str, Any] = {"metric": "bytes grown a replay", "value": growth, "bound": float(LEAK)}
        return Answer("cost", "FAIL", compared=len(seen.steps), message=message, detail=detail, **grown)
    metric = "p50 seconds a step"
    return Answer("cost", "PASS", metric=metric, value=value, compared=len(seen.steps), message=message, detail=detail)
