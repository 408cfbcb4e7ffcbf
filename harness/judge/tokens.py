"""Verdicts on a free greedy decode: MATCH, TIE or DIVERGED at step k, and what kind of wrong it is."""

from typing import NamedTuple, Optional, Sequence

import numpy as np

WORDS = ("MATCH", "TIE", "DIVERGED")


class Verdict(NamedTuple):
    """``word``: one of WORDS; ``step``: the first that differs, None for a match."""

    word: str
    step: Optional[int]
    message: str


def judge_row(
    chosen: np.ndarray,
    golden: np.ndarray,
    top_ids: np.ndarray,
    top_logits: np.ndarray,
    tie: float,
    eos: int,
    forbidden: Sequence[int],
) -> Verdict:
    """One row. ``chosen``, ``golden``: [steps] int64 ids; ``top_ids``, ``top_logits``: [steps, k], the golden's best.

    ``tie``: how far apart two golden logits may be and still change places by rounding, twice the bound on logits.
    ``forbidden``: steps at which a token that may never be chosen had the largest logit; the golden has none there.
    """
    shared = min(len(chosen), len(golden))
    differ = np.flatnonzero(chosen[:shared] != golden[:shared])
    step = int(differ[0]) if differ.size else shared
    if forbidden and forbidden[0] <= step:
        return Verdict("DIVERGED", forbidden[0], f"a forbidden token has the largest logit at step {forbidden[0]}")
    if not differ.size:
        if len(chosen) == len(golden):
            return Verdict("MATCH", None, "")
        return Verdict("DIVERGED", shared, f"{len(chosen)} steps, PyTorch has {len(golden)}")
    best = float(top_logits[step][list(top_ids[step]).index(golden[step])])
    place = np.flatnonzero(top_ids[step] == chosen[step])
    gap = best - float(top_logits[step][place[0]]) if place.size else np.inf
    said = f"token {int(chosen[step])} at step {step}, PyTorch has {int(golden[step])}"
    if gap <= tie:
        return Verdict("TIE", step, f"{said}: a tie, {gap:.3g} apart in PyTorch")
    if chosen[step] == eos:
        said = f"early stop at step {step}, PyTorch goes on with {int(golden[step])}"
    elif golden[step] == eos:
        word = "goes on" if eos in chosen[step:] else "runaway: never stops"
        said = f"{word} at step {step}, where PyTorch stops"
    return Verdict("DIVERGED", step, said)
