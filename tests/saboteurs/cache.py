"""Backends that give back a wrong cache: stale, lost, moved, rounded, or laid out in another way."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.mutant import Feeds
from tests.saboteurs import edits
from tests.saboteurs.frame import Saboteur, bad, changed, giving, only, pair, since

KV = ".decoder."
Change = Callable[[np.ndarray], np.ndarray]


def _cache(name: str, change: Change, when: Any, fails: Any, *, of: str = KV, **more: Any) -> Saboteur:
    return Saboteur(name, more.pop("case", 5), bad(outputs=giving(changed(change, of), when)), fails, **more)


def _write_lost(array: np.ndarray) -> np.ndarray:
    """The new entry is the one before it."""
    array[:, :, -1] = array[:, :, -2]
    return array


def _write_zeroed(array: np.ndarray) -> np.ndarray:
    array[:, :, -1] = 0
    return array


def _oldest_zeroed(array: np.ndarray) -> np.ndarray:
    array[:, :, 0] = 0
    return array


def _middle_overwritten(array: np.ndarray) -> np.ndarray:
    """One old entry of the first row gets its neighbour's values."""
    array[0, :, 10] = array[0, :, 11]
    return array


def _middle_nudged(array: np.ndarray) -> np.ndarray:
    array[0, 0, 10, 0] += 1e-3
    return array


def _two_exchanged(array: np.ndarray) -> np.ndarray:
    """Attention does not see the order of entries, so the logits stay right."""
    array[:, :, [9, 10]] = array[:, :, [10, 9]]
    return array


def _moved(array: np.ndarray) -> np.ndarray:
    return np.roll(array, 1, axis=2)


def _rows_exchanged(array: np.ndarray) -> np.ndarray:
    return np.roll(array, 1, axis=0)


def _one_row_late(array: np.ndarray) -> np.ndarray:
    row = min(1, len(array) - 1)
    array[row, :, -1] = array[row, :, -2]
    return array


def _ring_of_64(array: np.ndarray) -> np.ndarray:
    """A buffer of 64 entries that starts over: the new entry lands on an old one, the place at the end stays empty."""
    size = array.shape[2]
    if size > 64:
        array[:, :, (size - 1) % 64] = array[:, :, -1]
        array[:, :, 64:] = 0
    return array


def _int8(array: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(array).max(axis=-1, keepdims=True), 1e-9) / 127
    rounded: np.ndarray = np.round(array / scale) * scale
    return rounded.astype(np.float32)


def _bthd(*names: str) -> dict[str, Any]:
    """The cache in the layout batch, length, heads, head_dim: given so, and taken back so."""

    def turn(arrays: Feeds) -> Feeds:
        return {
            name: np.ascontiguousarray(array.transpose(0, 2, 1, 3)) if any(part in name for part in names) else array
            for name, array in arrays.items()
        }

    def feeds(part: str, step: int, given: Feeds) -> Feeds:
        # The empty cache comes from the loop, in the declared layout.
        return {
            name: turn({name: array})[name] if array.ndim == 4 and array.shape[2] and name.startswith("past") else array
            for name, array in given.items()
        }

    def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
        return turn(given)

    return {"feeds": feeds, "outputs": outputs}


def _bthd_backend(*names: str) -> Callable[[], Any]:
    hooks = _bthd(*names)

    def feeds(part: str, step: int, given: Feeds) -> Feeds:
        turned = hooks["feeds"](part, step, given)
        return {name: turned[name] if any(one in name for one in names) else given[name] for name in given}

    return bad(feeds=feeds, outputs=hooks["outputs"])


def _dtype(name: str, dtype: Any) -> Any:
    def apply(step: int, outputs: Feeds) -> None:
        outputs[name] = outputs[name].astype(dtype)

    return apply


def _not_grown(array: np.ndarray) -> np.ndarray:
    return array[:, :, :-1]


def _grown_twice(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, array[:, :, -1:]], axis=2)


def _preallocated(array: np.ndarray) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, 0), (0, max(0, 160 - array.shape[2])), (0, 0)))


def _flat_heads(array: np.ndarray) -> np.ndarray:
    rows, heads, length, size = array.shape
    return array.reshape(rows * heads, length, size)


QUIET = ("encoder", "kv_shape")


def _then(step: int) -> dict[str, int]:
    """The cache is wrong at this step, the logits at the next one."""
    return {"kv_values": step, "logits": step + 1}


SABOTEURS: list[Saboteur] = [
    *[_cache(f"write-lost-at-{step}", _write_lost, only(step), _then(step), passes=QUIET) for step in (1, 7, 20, 40)],
    *pair(_cache("write-lost-always", _write_lost, since(1), _then(1), passes=QUIET)),
    _cache("write-lost-in-row-1-at-20", _one_row_late, only(20), _then(20), passes=QUIET),
    _cache("first-write-zeroed", _write_zeroed, only(0), _then(0), passes=QUIET),
    _cache(
        "value-write-zeroed-in-layer-1-at-7",
        _write_zeroed,
        only(7),
        _then(7),
        of="present.1.decoder.value",
        passes=QUIET,
        says="present.1.decoder.value at step 7",
    ),
    _cache("zeroed-at-20", np.zeros_like, only(20), _then(20), passes=QUIET),
    _cache("zeroed-at-64", np.zeros_like, only(64), _then(64), passes=QUIET),
    _cache("zeroed-always", np.zeros_like, since(0), _then(0), passes=QUIET),
    _cache("oldest-zeroed-at-7", _oldest_zeroed, only(7), _then(7), passes=QUIET, says="written at step 0 has changed"),
    _cache(
        "oldest-zeroed-at-40", _oldest_zeroed, only(40), _then(40), passes=QUIET, says="written at step 0 has changed"
    ),
    _cache(
        "middle-overwritten-at-20",
        _middle_overwritten,
        only(20),
        _then(20),
        of="present.1.decoder.key",
        passes=QUIET,
        says="written at step 10 has changed",
    ),
    _cache(
        "middle-overwritten-at-40",
        _middle_overwritten,
        only(40),
        _then(40),
        passes=QUIET,
        says="written at step 10 has changed",
    ),
    _cache(
        "middle-nudged-at-20",
        _middle_nudged,
        only(20),
        {"kv_values": 20},
        of="present.1.decoder.value",
        passes=QUIET,
        says="written at step 10 has changed",
    ),
    # The same order in K and V: attention cannot tell, so logits, tokens and text stay right.
    _cache(
        "two-entries-exchanged-at-20",
        _two_exchanged,
        only(20),
        {"kv_values": 20},
        passes=("logits", "tokens", "text", *QUIET),
    ),
    *pair(_cache("shifted-at-20", _moved, only(20), {"kv_values": 20}, passes=("logits", "tokens", "text", *QUIET))),
    _cache("shifted-always", _moved, since(1), {"kv_values": 1}, passes=("logits", "tokens", *QUIET)),
    _cache("keys-shifted-at-7", _moved, only(7), _then(7), of="decoder.key", passes=QUIET),
    _cache("rows-exchanged-at-7", _rows_exchanged, only(7), _then(7), passes=QUIET),
    _cache("rows-exchanged-at-40", _rows_exchanged, only(40), _then(40), passes=QUIET),
    _cache("ring-of-64", _ring_of_64, since(0), _then(64), passes=QUIET),
    # rounded
    *pair(
        _cache(
            "fp16", edits.fp16, since(0), {"kv_values": 0, "logits": None}, case=7, passes=("tokens", "text", *QUIET)
        )
    ),
    _cache("bf16", edits.bf16, since(0), {"kv_values": 0, "logits": 1}, case=7, passes=QUIET),
    _cache("int8", _int8, since(0), {"kv_values": 0, "logits": 1}, case=7, passes=QUIET),
    _cache(
        "fp16-values-of-layer-1",
        edits.fp16,
        since(0),
        {"kv_values": 0},
        case=7,
        of="present.1.decoder.value",
        passes=("tokens", *QUIET),
        says="present.1.decoder.value",
    ),
    _cache("fp16-from-step-40", edits.fp16, since(40), {"kv_values": 40}, case=7, passes=("tokens", *QUIET)),
    _cache(
        "cross-fp16",
        edits.fp16,
        only(-1),
        {"encoder": None, "logits": None},
        case=7,
        of=".encoder.",
        passes=("kv_shape", "tokens"),
        says="present.0.encoder.key",
    ),
    # laid out in another way
    *pair(
        Saboteur(
            "bthd",
            6,
            _bthd_backend(KV),
            {"kv_shape": None},
            passes=("encoder", "logits", "kv_values", "tokens"),
            says="laid out batch, length, heads, head_dim",
        )
    ),
    *pair(
        Saboteur(
            "bthd-cross-too",
            6,
            _bthd_backend(KV, ".encoder."),
            {"kv_shape": None},
            passes=("encoder", "logits", "kv_values", "tokens"),
            says="laid out batch, length, heads, head_dim",
        )
    ),
    _cache(
        "heads-folded-into-batch", _flat_heads, since(0), {"kv_shape": 0}, case=6, passes=("encoder",), says="rank 3"
    ),
    _cache("not-grown-at-7", _not_grown, only(7), {"kv_shape": 7}, case=5, passes=("encoder",), says="4, 7, 32]"),
    _cache("grown-twice-at-7", _grown_twice, only(7), {"kv_shape": 7}, case=5, passes=("encoder",), says="4, 9, 32]"),
    _cache("preallocated", _preallocated, since(0), {"kv_shape": 0}, case=5, passes=("encoder",), says="4, 160, 32]"),
    _cache(
        "truncated-to-32",
        lambda array: array[:, :, -32:],
        since(0),
        {"kv_shape": 32, "logits": 33},
        case=5,
        passes=("encoder",),
        says="4, 32, 32]",
    ),
    Saboteur(
        "given-as-fp16",
        23,
        bad(outputs=giving(_dtype("present.0.decoder.key", np.float16))),
        {"kv_shape": 0},
        passes=("encoder",),
        says="present.0.decoder.key is float16",
    ),
    Saboteur(
        "given-as-fp64-from-7",
        23,
        bad(outputs=giving(_dtype("present.1.decoder.value", np.float64), since(7))),
        {"kv_shape": 7},
        passes=("encoder",),
        says="present.1.decoder.value is float64",
    ),
]
