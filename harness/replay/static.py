"""The fixed sizes of a static graph: real rows, source ids and cache entries stand first, and something fills the rest.

What fills is hostile, so that a graph or runtime that reads it shows: idle rows are real rows again, padding of the
source holds real ids, and its cross K/V and the slots not yet written hold values far outside what a model computes. They
stay small enough that the mask of a static graph (-1e4) hides them in fp16 too: ``turn`` 1 has them the other way round.
"""

from functools import lru_cache
from typing import Sequence, Tuple

import numpy as np

HOSTILE = 32.0


def filling(shape: Sequence[int], dtype: str, turn: int) -> np.ndarray:
    """An array that the caller may change: HOSTILE in size, of signs without a pattern."""
    signs = _signs(tuple(shape), dtype)
    return -signs if turn else signs.copy()


@lru_cache(maxsize=8)
def _signs(shape: Tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).choice(np.array([-HOSTILE, HOSTILE], dtype), shape)


def fill_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """The first axis filled up to ``rows``, with the rows again."""
    return np.ascontiguousarray(array[np.arange(rows) % len(array)])


def fill_source(ids: np.ndarray, mask: np.ndarray, shape: Sequence[int], turn: int) -> Tuple[np.ndarray, np.ndarray]:
    """``ids`` and ``mask`` filled up to the shape that the encoder declares."""
    rows, length = shape
    wider = ((0, 0), (0, length - ids.shape[1]))
    ids, mask = (fill_rows(np.pad(array, wider), rows) for array in (ids, mask))
    real = ids[mask == 1]
    return np.where(mask == 1, ids, np.resize(real[::-1] if turn else real, ids.shape)), mask


def fill_cross(array: np.ndarray, mask: np.ndarray, turn: int) -> np.ndarray:
    """A cross-attention cache [batch, heads, source, head_dim] with its padding filled."""
    return np.where(mask[:, None, :, None] == 1, array, filling(array.shape, array.dtype.name, turn))
