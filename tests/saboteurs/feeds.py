"""Backends that compute the right graph on the wrong input: what a wrong loop or binding around a runtime does."""

from typing import Any

import numpy as np

from tests.mutant import Feeds
from tests.saboteurs.frame import Saboteur, bad, brief, changed, feeding, first_fed, only, pair, rare_token, since


def _feeds(name: str, case: int, hook: Any, fails: Any, **more: Any) -> Saboteur:
    return Saboteur(name, case, bad(feeds=hook), fails, **more)


def _in_encoder(change: Any) -> Any:
    def hook(part: str, step: int, feeds: Feeds) -> Feeds:
        if part == "encoder":
            change(feeds)
        return feeds

    return hook


def _all_ones(feeds: Feeds) -> None:
    feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])


def _inverted(feeds: Feeds) -> None:
    feeds["attention_mask"] = 1 - feeds["attention_mask"]


def _last_token_masked(feeds: Feeds) -> None:
    mask = feeds["attention_mask"].copy()
    mask[np.arange(len(mask)), mask.sum(axis=1) - 1] = 0
    feeds["attention_mask"] = mask


def _without_eos(feeds: Feeds) -> None:
    ids = feeds["input_ids"].copy()
    ids[np.arange(len(ids)), feeds["attention_mask"].sum(axis=1) - 1] = brief().bundle.decode.pad
    feeds["input_ids"] = ids


def _row_shifted(feeds: Feeds) -> None:
    ids = feeds["input_ids"].copy()
    row = min(1, len(ids) - 1)
    ids[row] = np.roll(ids[row], 1)
    feeds["input_ids"] = ids


def _cut_at_64(feeds: Feeds) -> None:
    mask = feeds["attention_mask"].copy()
    mask[:, 64:] = 0
    feeds["attention_mask"] = mask


def _clipped(limit: int) -> Any:
    """Ids from ``limit`` on become the unknown token, as a smaller vocabulary would make them; the start token stays."""
    return changed(lambda ids: np.where((ids >= limit) & (ids != brief().bundle.decode.start), 1, ids), "input_ids")


class _Late:
    """From step ``first`` on, feed the token of the step before."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = np.zeros(0, np.int64)

    def __call__(self, part: str, step: int, feeds: Feeds) -> Feeds:
        if step < 0:
            return feeds
        now = feeds["input_ids"]
        if step >= self.first and len(self.last) == len(now):
            feeds["input_ids"] = self.last
        self.last = now.copy()
        return feeds


def _unwritten(step: int, feeds: Feeds) -> None:
    """The newest entry of the cache that is fed is the one before it: its write was lost."""
    for name in [name for name in feeds if ".decoder." in name]:
        array = feeds[name].copy()
        array[:, :, -1] = array[:, :, -2]
        feeds[name] = array


def _mixed(step: int, feeds: Feeds) -> None:
    for name in [name for name in feeds if ".encoder." in name]:
        feeds[name] = np.roll(feeds[name], 1, axis=0)


def _one_head_zeroed(array: np.ndarray) -> np.ndarray:
    array[0, 2] = 0
    return array


def _zeroed_first_row(array: np.ndarray) -> np.ndarray:
    array[0] = 0
    return array


def _rare_tokens() -> set[int]:
    """Ids of the upper tenth that the traced rows feed."""
    rules = brief().bundle.decode
    return set(range(_limit(), brief().bundle.dims.vocab)) - {rules.start}


def _limit() -> int:
    """An id such that it and the ones above are fed, but not at once."""
    return max(rare_token() - 1, brief().bundle.dims.vocab // 2)


def _first_rare(golden: Any) -> int:
    return first_fed(golden, _rare_tokens())


def _own_start() -> int:
    return brief().bundle.decode.eos


NUMBERS = ("logits", "kv_values")


def _from(step: int) -> dict[str, int]:
    return dict.fromkeys(NUMBERS, step)


SABOTEURS: list[Saboteur] = [
    # the start token
    *pair(
        _feeds(
            "starts-with-eos",
            8,
            feeding(changed(lambda ids: np.full_like(ids, _own_start()), "input_ids"), only(0)),
            _from(0),
            passes=("encoder", "kv_shape"),
            says="started with another token",
        )
    ),
    _feeds(
        "starts-with-unknown",
        8,
        feeding(changed(np.ones_like, "input_ids"), only(0)),
        {**_from(0), "tokens": None},
        passes=("encoder",),
        says="started with another token",
    ),
    # tokens
    *pair(
        Saboteur(
            "token-fed-late", 0, lambda: bad(feeds=_Late(1))(), _from(1), passes=("encoder",), says="tokens fed late"
        )
    ),
    Saboteur("token-fed-late-from-7", 0, lambda: bad(feeds=_Late(7))(), _from(7), passes=("encoder",)),
    Saboteur("token-fed-late-from-40", 0, lambda: bad(feeds=_Late(40))(), _from(40), passes=("encoder", "kv_shape")),
    _feeds(
        "token-ids-off-by-one-from-20",
        11,
        feeding(changed(lambda ids: (ids + 1) % 1000, "input_ids"), since(20)),
        _from(20),
        passes=("encoder",),
    ),
    _feeds(
        "token-ids-off-by-one",
        11,
        feeding(changed(lambda ids: (ids + 1) % 1000, "input_ids")),
        _from(0),
        passes=("encoder",),
    ),
    _feeds(
        "tokens-of-the-row-before-at-7",
        0,
        feeding(changed(lambda ids: np.roll(ids, 1, axis=0), "input_ids"), only(7)),
        _from(7),
        passes=("encoder",),
    ),
    Saboteur(
        "rare-ids-unknown",
        0,
        lambda: bad(feeds=feeding(_clipped(_limit())))(),
        dict.fromkeys(NUMBERS, _first_rare),
        passes=("encoder",),
    ),
    # the source
    *pair(_feeds("mask-all-ones", 12, _in_encoder(_all_ones), {"encoder": 0, "logits": 0})),
    _feeds("mask-inverted", 12, _in_encoder(_inverted), {"encoder": 0}),
    _feeds("mask-one-short", 12, _in_encoder(_last_token_masked), {"encoder": 0}),
    _feeds("source-cut-at-64", 0, _in_encoder(_cut_at_64), {"encoder": 0, "logits": 0}),
    _feeds("source-end-token-missing", 0, _in_encoder(_without_eos), {"encoder": 0, "logits": 0}),
    _feeds("source-ids-shifted-in-one-row", 11, _in_encoder(_row_shifted), {"encoder": 0, "logits": 0}),
    *pair(
        _feeds(
            "cross-mask-all-ones",
            12,
            feeding(changed(np.ones_like, "encoder_attention_mask")),
            {"logits": 0, "invariance": 0},
            passes=("encoder",),
        )
    ),
    _feeds(
        "cross-mask-all-ones-from-7",
        12,
        feeding(changed(np.ones_like, "encoder_attention_mask"), since(7)),
        {"logits": 7},
        passes=("encoder",),
    ),
    # the cache
    *[
        _feeds(
            f"stale-cache-fed-at-{step}",
            5,
            feeding(_unwritten, only(step)),
            _from(step),
            passes=("encoder", "kv_shape"),
        )
        for step in (2, 7, 20, 40)
    ],
    _feeds(
        "zeroed-cache-fed-at-20",
        5,
        feeding(changed(np.zeros_like, ".decoder."), only(20)),
        _from(20),
        passes=("encoder", "kv_shape"),
    ),
    _feeds(
        "zeroed-cache-fed-in-row-0-at-40",
        5,
        feeding(changed(_zeroed_first_row, "1.decoder.value"), only(40)),
        _from(40),
        passes=("encoder",),
        says="logits at step 40",
    ),
    _feeds(
        "one-head-zeroed-at-40",
        5,
        feeding(changed(_one_head_zeroed, "past_key_values.1.decoder.key"), only(40)),
        _from(40),
        passes=("encoder", "kv_shape"),
    ),
    _feeds(
        "key-cache-one-head-zeroed-at-1",
        5,
        feeding(changed(_one_head_zeroed, "past_key_values.0.decoder.key"), only(1)),
        {"kv_values": 1},
        passes=("encoder", "kv_shape"),
        says="present.0.decoder.key",
    ),
    _feeds(
        "cross-cache-of-the-next-row-from-7",
        5,
        feeding(_mixed, since(7)),
        {"logits": 7, "kv_values": 7},
        passes=("encoder",),
    ),
    _feeds(
        "cross-cache-zeroed-at-33",
        5,
        feeding(changed(np.zeros_like, ".encoder."), only(33)),
        {"logits": 33},
        passes=("encoder",),
    ),
    _feeds(
        "cross-value-zeroed-in-last-layer",
        5,
        feeding(changed(np.zeros_like, "1.encoder.value"), since(1)),
        {"logits": 1},
        layout="split",
        passes=("encoder", "kv_values"),
    ),
]
