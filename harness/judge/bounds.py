"""How far a runtime may stand from float64: stated multiples of PyTorch's own measured noise.

Two statistics an output. The *tail* is the largest gap of any step against the largest gap of the floor: it sees a
fault in one step of one sentence. The *bulk* is the median over steps of gap over floor: it sees a bias too small for
any tail. It is taken over all steps, and over each batch and the late steps, where a fault of theirs is not diluted.
"""

from typing import NamedTuple

import numpy as np

# Each limit stands between the widest honest runtime measured (tail 3.2, bulk 2.1, of a part 2.5) and a layer-norm eps
# of 1e-6 for 1e-5, the smallest fault worth catching (tail 13, bulk 10): docs/bounds.md has the distributions.
TAIL = 4.0
BULK = 3.0
BULK_PART = 5.0
"""Limit for the bulk of one batch or of late steps only: fewer steps, so a wider honest spread."""
BULK_STEPS = 16
"""A median of fewer steps than this says nothing; the row notes it."""

EPSILON = {"fp32": float(np.finfo(np.float32).eps), "fp16": float(np.finfo(np.float16).eps), "bf16": 2.0**-7}


class Bound(NamedTuple):
    """``tail`` in units of the output; ``floor``: PyTorch's own largest gap; ``ulp`` at the output's magnitude."""

    tail: float
    floor: float
    ulp: float


def bound(floor: np.ndarray, peak: float, precision: str) -> Bound:
    """The bound of one output. ``floor``: PyTorch's own gaps, any shape; ``peak``: largest absolute golden value."""
    ulp = EPSILON[precision] * 2.0 ** np.floor(np.log2(peak)) if peak > 0 else float(np.finfo(np.float32).tiny)
    largest = float(floor.max()) if floor.size else 0.0
    if not np.isfinite([largest, ulp]).all():
        raise ValueError(f"no bound can be made of a floor of {largest} and a peak of {peak}")
    return Bound(max(TAIL * largest, ulp), largest, ulp)
