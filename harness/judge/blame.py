"""Who is to blame for a failed check, from evidence; and what kind of mistake its pattern looks like."""

from typing import Mapping, NamedTuple, Optional

import numpy as np

from harness.judge import bounds
from harness.judge.compare import Series

FEW = 8


class Evidence(NamedTuple):
    """``golden``: the golden contradicts itself; ``witness``: the specification's own evaluation of the graph is
    wrong too; ``numbers``: logits, caches or shapes are wrong where the golden's tokens were fed; ``knob``: the setting
    that clears it, if one does, and ``knob_culprit`` whose it is."""

    golden: bool
    witness: bool
    numbers: bool
    knob: Optional[str]
    knob_culprit: str = "runtime"


def culprit(check: str, seen: Evidence) -> str:
    """One word for the row's ``blame``. What other runtimes say is no evidence: two of them can share a fault."""
    if seen.golden:
        return "golden"
    if seen.witness:
        return "export"
    if seen.knob:
        return seen.knob_culprit
    if check == "tokens" and not seen.numbers:
        return "decode loop"
    return "runtime"


def pattern(series: Mapping[str, Series]) -> str:
    """What the places that are wrong have in common, in words; empty where it is nothing known."""
    logits, encoder = series["logits"], series["last_hidden_state"]
    cache = {name: one for name, one in series.items() if ".decoder." in name}
    if logits.misses and any(one.whole_row_nan for one in (logits, *cache.values())):
        return "whole rows are NaN, as a fully masked attention row gives"
    if logits.misses and not any(one.misses for one in cache.values()) and logits.uniform:
        every = logits.wrong >= bounds.BULK_STEPS and logits.wrong == int((~np.isnan(logits.gap)).sum())
        if every and logits.columns is not None and logits.columns.size <= FEW:
            ids = ", ".join(str(column) for column in logits.columns)
            return f"the gap is the same at every step: only the logits of token {ids} are off"
        if every:
            return "the gap is the same vector at every step: output bias missing"
    if encoder.misses or not cache:
        return ""
    first = [_wrong_steps(one) for name, one in cache.items() if name.startswith("present.0.")]
    late = _wrong_steps(logits)
    if all(steps.size and not steps.any() for steps in first) and 0 in late:
        return "only the first step writes wrong K and V in layer 0: the decoder was started with another token"
    if all(steps.size and steps.min() == 1 for steps in first) and late.size and late.min() == 1:
        return (
            "layer 0 writes wrong K and V from step 1 on, step 0 is right: position frozen, tokens fed late, or an "
            "embedding off (the start token's is zero)"
        )
    return ""


def _wrong_steps(series: Series) -> np.ndarray:
    """Steps at which anything was outside the tail bound."""
    with np.errstate(invalid="ignore"):
        return np.unique(series.where[series.gap > series.limit.tail, 1])
