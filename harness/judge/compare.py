"""Comparison of a forced replay with the golden trace, step by step, in one pass over each array."""

from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from harness.judge import bounds


class Miss(NamedTuple):
    """One thing found wrong. ``step`` and ``row`` (corpus index) are None where the check has none."""

    tensor: str
    metric: str
    value: float
    bound: float
    floor: float
    step: Optional[int]
    row: Optional[int]
    message: str


class Series:
    """The gaps of one tensor over the trace, against its floor.

    ``golden``: [n, ...] float64 and ``floor``: [n] in one order (trace order or source order); ``where``: [n, 2] of
    corpus row and step (or source position). ``gap[i]`` is NaN until entry i has been compared.
    """

    def __init__(
        self, name: str, golden: np.ndarray, floor: np.ndarray, where: np.ndarray, unit: str, limit: bounds.Bound
    ) -> None:
        self.name = name
        self.golden = golden
        self.floor = floor
        self.where = where
        self.limit = limit
        self.unit = unit
        self.gap = np.full(len(floor), np.nan)
        self.compared = 0
        self.wrong = 0
        self.uniform = True  # whether every entry outside the bound was off by the same vector
        self.columns: Optional[np.ndarray] = None  # and where that vector is not zero
        self.whole_row_nan = False
        self._offset: Optional[np.ndarray] = None
        # Fresh memory for each step's differences would cost ten times what the differences do.
        self._scratch = np.empty(0)
        self.misses: List[Miss] = []

    def add(self, start: int, values: np.ndarray, count: int) -> None:
        """Compare ``values`` [count, ...] with the golden entries from ``start`` on."""
        stop = start + count
        golden = self.golden[start:stop]
        if values.shape != golden.shape:
            self._miss(start, "shape", np.inf, f"shape {list(values.shape)}, expected {list(golden.shape)}")
            return
        if self._scratch.size < values.size:
            self._scratch = np.empty(values.size)
        apart = self._scratch[: values.size].reshape(values.shape)
        with np.errstate(invalid="ignore"):
            np.abs(np.subtract(values, golden, out=apart), out=apart)
        gap = apart.reshape(len(values), -1).max(axis=1)
        self.gap[start:stop] = gap
        self.compared += values.size
        if gap.max(initial=0.0) <= self.limit.tail:  # false where anything is not finite
            return
        if not np.isfinite(gap).all():
            self.gap[start:stop] = gap = careful_gap(values, golden)
        wrong = np.flatnonzero(gap > self.limit.tail)
        if wrong.size:
            self._look(values[wrong], golden[wrong])
            if not any(miss.metric == "tail" for miss in self.misses):
                first = int(wrong[0])
                self._miss(start + first, "tail", float(gap[first]), describe(values[first], golden[first]))

    def _look(self, values: np.ndarray, golden: np.ndarray) -> None:
        """Learn what the entries outside the bound have in common, for blame.pattern."""
        with np.errstate(invalid="ignore"):
            flat = (values - golden).reshape(len(values), -1)
        self.whole_row_nan |= bool(np.isnan(values).reshape(len(values), -1).all(axis=1).any())
        self.wrong += len(flat)
        if self._offset is None:
            self._offset = flat[0].copy()
            self.columns = np.flatnonzero(np.abs(self._offset) > self.limit.tail)
        with np.errstate(invalid="ignore"):
            self.uniform &= bool(np.abs(flat - self._offset).max() <= 2 * self.limit.tail)

    def _miss(self, index: int, metric: str, value: float, message: str) -> None:
        row, step = (int(number) for number in self.where[index])
        self.misses.append(
            Miss(
                self.name,
                metric,
                value,
                self.limit.tail,
                self.limit.floor,
                step,
                row,
                f"{self.name} at {self.unit} {step}: {message}",
            )
        )

    def stopped(self, index: int, message: str) -> None:
        """Say that the replay ended before entry ``index`` could be compared."""
        self._miss(index, "steps", np.inf, message)

    def judge(self, groups: Sequence[np.ndarray] = ()) -> Tuple[List[Miss], Dict[str, Any]]:
        """What is wrong, and the statistics: largest gap, bulk, floor, bound, entries compared.

        ``groups``: indices of the entries that a bulk is taken over, all of them first, then parts.
        """
        done = ~np.isnan(self.gap)
        stats: Dict[str, Any] = {
            "tail": float(self.gap[done].max()) if done.any() else None,
            "tail_bound": self.limit.tail,
            "floor": self.limit.floor,
            "bulk": None,
            "bulk_bound": bounds.BULK,
            "bulk_part": None,
            "bulk_part_bound": bounds.BULK_PART,
            "entries": int(done.sum()),
        }
        misses = list(self.misses)
        ratio = self.gap / np.maximum(self.floor, self.limit.ulp / 2)
        for number, group in enumerate(groups or [np.arange(len(done))]):
            kept = group[done[group]]
            if kept.size < bounds.BULK_STEPS:
                continue
            key, limit = ("bulk_part", bounds.BULK_PART) if number else ("bulk", bounds.BULK)
            bulk = float(np.median(ratio[kept]))
            stats[key] = max(bulk, stats[key] or 0.0)
            if bulk > limit and not any(miss.metric == "bulk" for miss in misses):
                misses.append(
                    self._bulk_miss(bulk, limit, kept[ratio[kept] > limit], "of a part" if number else "of all")
                )
        if stats["bulk"] is None:
            stats["note"] = f"{int(done.sum())} {self.unit}s are too few for a bulk ({bounds.BULK_STEPS})"
        if not done.all() and not misses:
            left = int((~done).sum())
            self._miss(int(np.argmin(done)), "steps", np.inf, f"{left} of {len(done)} entries were never compared")
            misses = list(self.misses)
        return misses, stats

    def _bulk_miss(self, value: float, limit: float, over: np.ndarray, which: str) -> Miss:
        row, step = (int(number) for number in self.where[over[np.argmin(self.where[over, 1])]])
        message = (
            f"{self.name}: the median {self.unit} {which} stands {value:.3g} times as far from float64 as PyTorch does "
            f"(limit {limit:g}): a small bias everywhere, first at {self.unit} {step}"
        )
        return Miss(self.name, "bulk", value, limit, 1.0, step, row, message)


def careful_gap(values: np.ndarray, golden: np.ndarray) -> np.ndarray:
    """[m] gaps where something is not finite: equal infinities match, anything else is infinitely far."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(values - golden)
    gap[values == golden] = 0
    gap[~np.isfinite(gap)] = np.inf
    return np.asarray(gap.reshape(len(values), -1).max(axis=1))


def describe(values: np.ndarray, golden: np.ndarray) -> str:
    """What is wrong with one entry, read only when it is: degenerate output, or the worst element."""
    if np.isnan(values).any():
        return f"{int(np.isnan(values).sum())} of {values.size} values are NaN"
    if not values.any():
        return "every value is zero"
    if values.size > 1 and values.min() == values.max():
        return f"every value is {values.flat[0]:.6g}"
    with np.errstate(invalid="ignore"):
        gap = np.abs(values - golden)
    gap[values == golden] = 0
    worst = int(np.nan_to_num(gap, nan=np.inf).argmax())
    index = ",".join(str(int(axis)) for axis in np.unravel_index(worst, values.shape))
    return f"[{index}] is {values.flat[worst]:.7g}, PyTorch has {golden.flat[worst]:.7g}"


@lru_cache(maxsize=None)
def dtype_name(dtype: np.dtype) -> str:
    """The dtype's name, which numpy spells anew each time that it is asked."""
    return dtype.name


def shape_problem(
    name: str, dtype: str, shape: Tuple[int, ...], declared: str, expected: Tuple[int, ...]
) -> Optional[str]:
    """Why an output of that dtype and shape is not what was declared: dtype, rank, then size. None when it is."""
    if dtype != declared:
        return f"{name} is {dtype}, expected {declared}"
    if len(shape) != len(expected):
        return f"{name} has rank {len(shape)} {list(shape)}, expected {len(expected)} {list(expected)}"
    if shape != expected:
        return f"{name} has shape {list(shape)}, expected {list(expected)}"
    return None
