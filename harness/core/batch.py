"""Rows that are decoded together: padding, order and selection."""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

PADDING = 5
"""Columns of padding that `more_padding` adds; with them no length is a multiple of a vector register."""


class Trace:
    """Trace order of one batch: rows are sorted by falling ``steps``; ``start`` is the batch's first index in it."""

    def __init__(self, steps: Sequence[int], start: int) -> None:
        self.steps = tuple(steps)
        self.start = start
        self._active = [sum(length > step for length in self.steps) for step in range(max(self.steps) + 1)]
        self._starts = start + np.concatenate([[0], np.cumsum(self._active[:-1])]).astype(np.int64)

    def active(self, step: int) -> int:
        """How many rows are still decoding at this step: they are the first ones."""
        return self._active[min(step, len(self._active) - 1)]

    def starts(self) -> np.ndarray:
        """[steps of the longest row + 1] int64: where each step begins."""
        return self._starts


class Batch(NamedTuple):
    """Rows that are replayed together. Padding stands on the right.

    ``ids``, ``mask``: [batch, source] int64. ``tokens``: [batch, longest row's steps] int64, golden output, then pad.
    ``trace`` and ``source_start`` (first index in ``trace_encoder``) are set on the traced batches only.
    """

    rows: Tuple[int, ...]
    steps: Tuple[int, ...]
    ids: np.ndarray
    mask: np.ndarray
    tokens: np.ndarray
    trace: Optional[Trace] = None
    source_start: int = 0


def pad_rows(rows: Sequence[np.ndarray], pad: int) -> Tuple[np.ndarray, np.ndarray]:
    """Right-padded ids and their mask, both [rows, longest] int64."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), pad, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return ids, mask


def select_rows(batch: Batch, rows: Tuple[int, ...]) -> Batch:
    """Some rows of a batch, its padding cut to the longest of them."""
    index = list(rows)
    source = int(batch.mask[index].sum(axis=1).max())
    return batch._replace(
        rows=tuple(batch.rows[row] for row in rows),
        steps=tuple(batch.steps[row] for row in rows),
        ids=np.ascontiguousarray(batch.ids[index, :source]),
        mask=np.ascontiguousarray(batch.mask[index, :source]),
        tokens=np.ascontiguousarray(batch.tokens[index, : max(batch.steps[row] for row in rows)]),
        trace=None,
    )


def more_padding(batch: Batch, pad: int) -> Batch:
    """The same batch with PADDING more columns in its source."""
    wider = ((0, 0), (0, PADDING))
    return batch._replace(ids=np.pad(batch.ids, wider, constant_values=pad), mask=np.pad(batch.mask, wider))


def split_rows(batches: Sequence[Batch], rows: int) -> List[Batch]:
    """The batches cut to ``rows`` rows each; 0: as they are."""
    if not rows:
        return list(batches)
    return [
        select_rows(batch, tuple(range(start, min(start + rows, len(batch.rows)))))
        for batch in batches
        for start in range(0, len(batch.rows), rows)
    ]


def trace_order(batch: Batch) -> List[Tuple[int, int]]:
    """(index in the batch, step) of every entry, in trace order."""
    return [
        (index, step)
        for step in range(max(batch.steps))
        for index in range(sum(length > step for length in batch.steps))
    ]
