"""What a port of a part is for. Loops and judge go by roles; what a file calls its ports is the file's own business.

| role | dtype, shape of the whole tensor |
|---|---|
| ``source.ids``, ``source.mask`` | [batch, source] int64 |
| ``encoder.hidden`` | [batch, source, d_model] |
| ``tokens`` | [batch, 1] int64: what a decoder step is fed |
| ``position`` | [1] int64: the slot that a step of a static graph writes |
| ``decoder.mask``, ``use_cache`` | as the family or layout defines them |
| ``logits`` | [batch, 1, vocabulary] |
| ``self.L.key``, ``self.L.value`` | layer L's own cache: [batch, heads, past, head_dim] in, past + 1 out |
| ``cross.L.key``, ``cross.L.value`` | [batch, heads, source, head_dim] |
"""

import re
from functools import lru_cache
from typing import Dict, NamedTuple, Optional

SOURCE_IDS, SOURCE_MASK, HIDDEN = "source.ids", "source.mask", "encoder.hidden"
TOKENS, POSITION, LOGITS = "tokens", "position", "logits"
ROLES = (SOURCE_IDS, SOURCE_MASK, "source.features", HIDDEN, TOKENS, POSITION, "decoder.mask", "use_cache", LOGITS)
"""Every role but those of caches."""
SIDES = ("key", "value")
_CACHE = re.compile(r"(self|cross)\.(\d+)\.(key|value)\Z")
_OPTIMUM = re.compile(r"(?:past_key_values|present)\.(\d+)\.(decoder|encoder)\.(key|value)\Z")
_NAMES: Dict[str, str] = {
    "last_hidden_state": HIDDEN,
    "encoder_hidden_states": HIDDEN,
    "encoder_attention_mask": SOURCE_MASK,
    "attention_mask": SOURCE_MASK,
    "position": POSITION,
    "logits": LOGITS,
}


class Cache(NamedTuple):
    """What a cache port holds: decoder layer, own or cross attention, and 0 for K, 1 for V."""

    layer: int
    cross: bool
    side: int


@lru_cache(maxsize=None)
def cache_of(role: str) -> Optional[Cache]:
    """The cache tensor that a role names, None for any other role."""
    match = _CACHE.match(role)
    return Cache(int(match[2]), match[1] == "cross", SIDES.index(match[3])) if match else None


def cache_role(layer: int, cross: bool, side: int) -> str:
    """``self.0.key``: the role of a cache tensor; ``side`` 0 is K, 1 is V."""
    return f"{'cross' if cross else 'self'}.{layer}.{SIDES[side]}"


def is_own(role: str) -> bool:
    """Whether a role is of the decoder's own cache, which grows or is written at every step."""
    return role.startswith("self.")


def is_cross(role: str) -> bool:
    """Whether a role is of the cross-attention cache, which stays as it is."""
    return role.startswith("cross.")


def is_known(role: str) -> bool:
    return role in ROLES or cache_of(role) is not None


def optimum_role(part: str, name: str) -> str:
    """The role of a port by the name that Optimum gives it; empty for any other name.

    ``part``: the part's name. Manifests of schema 1 and 2 name ports so, and do not say roles.
    """
    match = _OPTIMUM.match(name)
    if match:
        return f"{'cross' if match[2] == 'encoder' else 'self'}.{match[1]}.{match[3]}"
    if name == "input_ids":
        return SOURCE_IDS if part.startswith("encoder") else TOKENS
    return _NAMES.get(name, "")
