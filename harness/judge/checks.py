"""The checks that stand on their own, each a file of this folder. A new one is one more line here, one more name in
`harness.core.verdict.CHECKS`, and the shape of its row's detail in `harness.core.details` (docs/architecture.md)."""

from typing import Tuple, Type

from harness.core import observations, verdict
from harness.judge.check import Check
from harness.judge.cost import CostCheck
from harness.judge.invariance import InvarianceCheck
from harness.judge.placement import PlacementCheck

CHECKS: Tuple[Type[Check], ...] = (PlacementCheck, InvarianceCheck, CostCheck)
_PHASES = {
    **dict.fromkeys(verdict.FORCED, observations.FORCED),
    "logits": observations.FREE,  # the free replays have seen more of them than the traced rows
    "tokens": observations.FREE,
    **{check.name: check.phase for check in CHECKS},
}


def phases(checks: "set[str]") -> "set[str]":
    """The phases that must be replayed for those checks. The forced replay comes before whatever else is compared."""
    needed = {_PHASES[check] for check in checks if check in _PHASES}
    return needed | ({observations.FORCED} if needed & {observations.FREE, observations.WAYS} else set())
