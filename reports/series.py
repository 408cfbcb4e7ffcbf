"""Series of verdicts over nights, and numbers for the keys that they are told apart by."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from harness.core.errors import UserError
from reports.pieces import KEY


class History(NamedTuple):
    """Series of verdicts over nights. ``keys``: frame of [series] with the columns KEY; ``status``: [series, nights]
    int8, the index in ``verdict.SEVERITY`` of what was seen, -1 without a row; ``expected``: [series, nights], whether an
    expectation said something of it; ``used``: [series, nights] float32, value over bound, NaN without; ``bundle`` is a
    part of the key, so that a series has one golden."""

    keys: pd.DataFrame
    nights: list[str]
    status: np.ndarray
    expected: np.ndarray
    used: np.ndarray


def among(codes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each code is among the sorted known ones. (np.isin hashes, and these codes hash into few buckets.)"""
    at = np.searchsorted(known, codes)
    there: np.ndarray = np.append(known, -1)[at] == codes
    return there


def union(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The codes of both, sorted, each once."""
    both = np.sort(np.concatenate([known, codes]))
    distinct: np.ndarray = both[np.append(True, both[1:] != both[:-1])[: len(both)]]
    return distinct


class Keys:
    """Numbers KEY across tables that have dictionaries of their own."""

    BITS = (10, 10, 30, 8)

    def __init__(self) -> None:
        self.words: list[dict[str, int]] = [{} for _ in KEY]

    def codes(self, table: pa.Table) -> np.ndarray:
        """[rows] int64; -1 for what is of no cell."""
        total = np.zeros(len(table), np.int64)
        for name, words, bits in zip(KEY, self.words, self.BITS, strict=True):
            column = table[name].combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            own = np.array([words.setdefault(word, len(words)) for word in column.dictionary.to_pylist()], np.int64)
            if len(words) > 1 << bits:
                raise UserError(f"more than {1 << bits} of {name}; give fewer folders")
            part = own[column.indices.to_numpy()] if len(own) else np.zeros(0, np.int64)
            total = (total << bits) | part
            if name == "cell" and "" in words:
                total[part == words[""]] = -1
        codes: np.ndarray = np.where(total < 0, -1, total)
        return codes

    def frame(self, codes: np.ndarray) -> pd.DataFrame:
        columns = {}
        for name, words, bits in reversed(list(zip(KEY, self.words, self.BITS, strict=True))):
            columns[name] = pd.Categorical.from_codes(
                (codes & ((1 << bits) - 1)).astype(np.int32), categories=list(words)
            )
            codes = codes >> bits
        return pd.DataFrame({name: columns[name] for name in KEY})


def looked_up(column: pa.ChunkedArray, of: Callable[[str], Any], kind: type) -> np.ndarray:
    """What a function gives for each word of a column."""
    column = column.combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    values: np.ndarray = np.array([of(word) for word in column.dictionary.to_pylist()], kind)[column.indices.to_numpy()]
    return values


def share(table: pa.Table) -> np.ndarray:
    """[rows] float32: how much of its bound each value uses; NaN without a bound."""
    value, bound = (table[name].to_numpy().astype(np.float64) for name in ("value", "bound"))
    with np.errstate(divide="ignore", invalid="ignore"):
        used: np.ndarray = np.where(bound > 0, value / bound, np.nan).astype(np.float32)
    return used
