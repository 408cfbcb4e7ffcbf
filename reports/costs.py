"""Whether the cells of a box have become dearer than a budget allows, beyond their own spread."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.rows import Row
from reports.policy import COSTS
from reports.ruling import Case, Reason

FEWEST = 3
"""Cells without which a median of cost ratios has no spread."""

Pair = tuple[Row, Row]
"""The cost rows of one cell: now, and in the baseline."""


def judge(budgets: Mapping[str, float], pairs: Mapping[str, Sequence[Pair]]) -> tuple[list[Case], list[str]]:
    """A case for each box, and facts about what is within its budget. ``budgets``: how many times as costly, by COSTS;
    ``pairs``: by box."""
    cases, facts = [], []
    for box, rows in sorted(pairs.items()):
        case = Case("cost", box)
        for name, budget in budgets.items():
            answer = _cost(name, budget, box, rows)
            if isinstance(answer, Reason):
                case.reasons.append(answer)
            else:
                facts.append(answer)
        cases.append(case)
    return cases, facts


def _cost(name: str, budget: float, box: str, rows: Sequence[Pair]) -> Reason | str:
    """A reason against a box, or a fact."""
    # Workers beside each other measure no seconds, and leave those figures out.
    rows = [pair for pair in rows if all(_measured(row.detail.get(name)) for row in pair)]
    if len(rows) < FEWEST:
        message = f"{name}: {len(rows)} cells of {box} have a cost in the baseline too, {FEWEST} are needed"
        return Reason("cost", "cost", message)
    logs = COSTS[name] * np.log([new.detail[name] / old.detail[name] for new, old in rows])
    middle = float(np.median(logs))
    # Standard error of a median, from the median absolute deviation of the cells themselves.
    error = 1.2533 * 1.4826 * float(np.median(np.abs(logs - middle))) / np.sqrt(len(logs))
    low, high = np.exp(middle - 1.96 * error), np.exp(middle + 1.96 * error)
    message = (
        f"{name} on {box}: {np.exp(middle):.3g} times the baseline's, median of {len(rows)} cells, 95 % between "
        f"{low:.3g} and {high:.3g}; budget {budget:g}"
    )
    if low > budget:
        worst = max(zip(logs, rows, strict=True), key=lambda pair: pair[0])[1][0]
        return Reason("cost", "cost", f"{message}; dearest {worst.cell}", worst.command)
    return message


def _measured(figure: Any) -> bool:
    return isinstance(figure, (int, float)) and 0 < figure < math.inf
