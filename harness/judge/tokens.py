"""What became of a free greedy decode: MATCH, TIE or DIVERGED at step k, and what kind of wrong it is."""

from typing import NamedTuple, Optional, Sequence

import numpy as np

WORDS = ("MATCH", "TIE", "DIVERGED")


class Choice(NamedTuple):
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
) -> Choice:
    """One row. ``chosen``, ``golden``: [steps] int64 ids; ``top_ids``, ``top_logits``: [steps, k], the golden's best.

    ``tie``: how far apart two golden logits may be and still change places by rounding, twice the bound on logits.
    ``forbidden``: steps at which a token that may never be chosen had the largest logit; the golden has none there.
    """
    shared = min(len(chosen), len(golden))
    differ = np.flatnonzero(chosen[:shared] != golden[:shared])
    step = int(differ[0]) if differ.size else shared
    if forbidden and forbidden[0] <= step:
        return Choice("DIVERGED", forbidden[0], f"a forbidden token has the largest logit at step {forbidden[0]}")
    if not differ.size:
        if len(chosen) == len(golden):
            return Choice("MATCH", None, "")
        word = "runaway" if len(chosen) > len(golden) else "early stop"
        return Choice("DIVERGED", shared, f"{word}: {len(chosen)} steps, PyTorch has {len(golden)}")
    below = gap(step, int(chosen[step]), golden, top_ids, top_logits)
    message = f"token {int(chosen[step])} at step {step}, PyTorch has {int(golden[step])}"
    if abs(below) <= tie:
        return Choice("TIE", step, f"{message}: a tie, {below:.3g} apart in PyTorch")
    if chosen[step] == eos:
        message = f"early stop at step {step}, PyTorch goes on with {int(golden[step])}"
    elif golden[step] == eos:
        word = "goes on" if eos in chosen[step:] else "runaway: never stops"
        message = f"{word} at step {step}, where PyTorch stops"
    return Choice("DIVERGED", step, message)


def gap(step: int, token: int, golden: np.ndarray, top_ids: np.ndarray, top_logits: np.ndarray) -> float:
    """How far below its own choice the golden puts that token; infinite when it is not among its best."""
    if token == golden[step]:
        return 0.0
    logits = dict(zip(top_ids[step].tolist(), top_logits[step].tolist()))
    if token not in logits or int(golden[step]) not in logits:
        return float("inf")
    return float(logits[int(golden[step])] - logits[token])
