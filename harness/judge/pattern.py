"""What the entries that are wrong have in common: a hint at the mistake, beside the culprit."""

from typing import List, Mapping, NamedTuple

import numpy as np

from harness.core import roles
from harness.judge import bounds
from harness.judge.compare import Series

FEW = 8
"""As many token ids as a message lists."""


class Pattern(NamedTuple):
    """``kind``: the mistake in a few words, for a row's field of that name; ``message``: what was seen, and it."""

    kind: str
    message: str


UNKNOWN = Pattern("", "")


def of(series: Mapping[str, Series]) -> Pattern:
    """The pattern of one cell's traced entries, by role; UNKNOWN where it is none that is known."""
    logits, encoder = series[roles.LOGITS], series[roles.HIDDEN]
    cache = {role: item for role, item in series.items() if roles.is_own(role)}
    if logits.misses and any(item.whole_row_nan for item in (logits, *cache.values())):
        return _plain("whole rows are NaN, as a fully masked attention row gives")
    if logits.misses and not any(item.misses for item in cache.values()) and logits.uniform:
        everywhere = logits.wrong >= bounds.BULK_STEPS and logits.wrong == int((~np.isnan(logits.gap)).sum())
        if everywhere and logits.columns is not None and logits.columns.size <= FEW:
            ids = ", ".join(str(column) for column in logits.columns)
            return _named("the gap is the same at every step", f"only the logits of token {ids} are off")
        if everywhere:
            return _named("the gap is the same vector at every step", "output bias missing")
    if encoder.misses or not cache:
        return UNKNOWN
    return _of_steps([_wrong_steps(cache[role]) for role in cache if role.startswith("self.0.")], _wrong_steps(logits))


def _of_steps(first_layer: List[np.ndarray], logits: np.ndarray) -> Pattern:
    """From the steps at which K and V of layer 0, and the logits, are wrong."""
    if all(steps.size and not steps.any() for steps in first_layer) and 0 in logits:
        return _named(
            "only the first step writes wrong K and V in layer 0", "the decoder was started with another token"
        )
    if all(steps.size and steps.min() == 1 for steps in first_layer) and logits.size and logits.min() == 1:
        mistake = "position frozen, tokens fed late, or an embedding off (the start token's is zero)"
        return _named("layer 0 writes wrong K and V from step 1 on, step 0 is right", mistake)
    return UNKNOWN


def _plain(words: str) -> Pattern:
    return Pattern(words, words)


def _named(seen: str, mistake: str) -> Pattern:
    return Pattern(mistake, f"{seen}: {mistake}")


def _wrong_steps(series: Series) -> np.ndarray:
    """Steps at which anything was outside the tail bound."""
    with np.errstate(invalid="ignore"):
        return np.unique(series.where[series.gap > series.limit.tail, 1])
