"""Who is to blame for a failed check, from evidence; and what kind of mistake its pattern looks like."""

from typing import Mapping, NamedTuple, Optional

import numpy as np

from harness.judge.compare import Series


class Evidence(NamedTuple):
    """``golden``: the golden contradicts itself; ``witness``: the specification's own evaluation of the graph is wrong too;
    ``forced``: the forced replay is wrong; ``knob``: the setting that clears it, if one does."""

    golden: bool
    witness: bool
    forced: bool
    knob: Optional[str]


def culprit(check: str, seen: Evidence) -> str:
    """One word for the row's ``blame``. What other runtimes say is no evidence: two of them can share a fault."""
    if seen.golden:
        return "golden"
    if seen.witness:
        return "export"
    if seen.knob:
        return "optimizer" if seen.knob.startswith("optimizer") else "runtime"
    if check == "tokens" and not seen.forced:
        return "decode loop"
    return "runtime"


def pattern(series: Mapping[str, Series]) -> str:
    """What the places that are wrong have in common, in words; empty where it is nothing known."""
    logits = series["logits"]
    cache = {name: one for name, one in series.items() if ".decoder." in name}
    if logits.misses and not any(one.misses for one in cache.values()) and logits.uniform:
        return "the gap is the same vector at every step: output bias missing"
    if logits.misses and any("NaN" in miss.message for miss in logits.misses) and logits.whole_row_nan:
        return "whole rows are NaN, as a fully masked attention row gives"
    first = [_wrong_steps(one) for name, one in cache.items() if name.startswith("present.0.")]
    if first and all(steps.size and not steps.any() for steps in first):
        return "only the first step writes wrong K and V in layer 0: the decoder was started with another token"
    if first and all(steps.size and 0 not in steps for steps in first) and first[0].min() == 1:
        return "layer 0 writes wrong K and V from step 1 on, step 0 is right: position frozen, or tokens fed late"
    return ""


def _wrong_steps(series: Series) -> np.ndarray:
    """Steps at which anything was outside the tail bound."""
    with np.errstate(invalid="ignore"):
        return np.unique(series.where[series.gap > series.limit.tail, 1])
