"""What must not change: cache entries once written, slots not yet written, the cross cache, memory that was given away."""

from typing import Dict, List, Mapping

import numpy as np

from harness.core import roles
from harness.core.batch import Batch
from harness.core.observations import Encoded, Output, Stepped
from harness.judge.compare import Miss, Series, careful_gap

MISPLACED = "misplaced"


class HistoryJudge:
    """Remembers one batch at a time, bit for bit, as it was first given. ``compared`` counts elements."""

    def __init__(self, series: Mapping[str, Series]) -> None:
        self.series = series
        self.compared = 0
        self.misses: List[Miss] = []
        self._written: Dict[str, np.ndarray] = {}  # [steps, rows, heads, head_dim] of each own cache
        self._fill: Mapping[str, np.ndarray] = {}
        self._cross: Dict[str, np.ndarray] = {}

    def start(self, seen: Encoded) -> None:
        """A batch begins: nothing of another one is held against it."""
        self._written, self._fill = {}, seen.fill
        self._cross = {role: output.value for role, output in seen.outputs.items() if self._is_cross(role, output)}  # type: ignore[misc]

    def release(self) -> None:
        """The replay is over: let go of what it gave, which may hold a runtime's whole arena."""
        self._written, self._fill, self._cross = {}, {}, {}

    def knows(self, role: str) -> bool:
        """Whether an earlier part of this batch gave that cross cache."""
        return role in self._cross

    def _is_cross(self, role: str, output: Output) -> bool:
        return roles.is_cross(role) and output.value is not None

    def see(self, batch: Batch, seen: Stepped) -> None:
        for role, given in seen.overwritten:
            if role in self.series:
                when = "by the encoder" if given < 0 else f"at step {given}"
                name = self.series[role].name
                message = f"{name}, given {when}, was changed by a later run: its memory is not its own"
                self._miss(role, "overwritten", np.inf, seen.step, batch.rows[0], message)
        for role, output in seen.outputs.items():
            if self._is_cross(role, output):
                self._see_cross(batch, seen.step, role, output)
            elif roles.is_own(role) and role in self.series:
                self._see_own(batch, seen.step, role, output)

    def _see_cross(self, batch: Batch, step: int, role: str, output: Output) -> None:
        assert output.value is not None
        if role not in self._cross:  # the first step of the split layout makes them
            self._cross[role] = output.value
            return
        self.compared += output.value.size
        if not np.array_equal(self._cross[role], output.value):
            name = self.series[role].name
            message = f"{name} at step {step}: the cross-attention cache is not the one that was fed"
            self._miss(role, "constant", np.inf, step, batch.rows[0], message)

    def _see_own(self, batch: Batch, step: int, role: str, output: Output) -> None:
        entry = output.value
        if entry is None:
            self._written.pop(role, None)  # what comes later has nothing to be held against
            return
        if step == 0:
            self._written[role] = np.empty((max(batch.steps), *entry.shape), entry.dtype)
        written = self._written.get(role)
        if written is None or written.shape[2:] != entry.shape[1:] or written.dtype != entry.dtype:
            return
        if step:
            self._check_older(batch, step, role, output, written[:step, : len(entry)])
        if role in self._fill:
            self._check_unwritten(batch, step, role, output)
        written[step, : len(entry)] = entry

    def _check_older(self, batch: Batch, step: int, role: str, output: Output, written: np.ndarray) -> None:
        """Hold older entries against what was written, [step, active, heads, head_dim]: all where the whole cache is there,
        else the first and the last."""
        places = list(range(step))
        if output.whole is not None:
            older = output.whole[:, :, :step].transpose(2, 0, 1, 3)
            same = np.array_equal(written, older)
        else:
            edges = {0: output.first, step - 1: output.last}
            places = sorted(place for place, seen in edges.items() if seen is not None)
            if not places:
                return
            same = all(written[place].tobytes() == edges[place].tobytes() for place in places)  # type: ignore[union-attr]
            if not same:
                older = np.stack([edges[place] for place in places])  # type: ignore[misc]
        self.compared += written[:1].size * len(places)
        if not same:
            self._name_moved(batch, step, role, older, written[places], places)

    def _name_moved(
        self, batch: Batch, step: int, role: str, older: np.ndarray, written: np.ndarray, places: List[int]
    ) -> None:
        """Note the first row of which an entry has other bits than were written."""
        assert batch.trace is not None
        series, starts = self.series[role], batch.trace.starts()[places]
        for index in range(older.shape[1]):
            moved = (written[:, index] != older[:, index]).any(axis=(1, 2))
            if moved.any():
                place = int(np.argmax(moved))
                gaps = careful_gap(older[:, index], series.golden[starts + index])
                row = int(series.where[starts[place] + index][0])
                message = f"{series.name} at step {step}: the entry written at step {places[place]} has changed since"
                self._miss(role, "history", float(gaps.max()), step, row, message)
                return

    def _check_unwritten(self, batch: Batch, step: int, role: str, output: Output) -> None:
        """Hold the slots that wait for later steps against what filled them before the first step."""
        assert output.value is not None
        fill = self._fill[role][: len(output.value)]
        if output.whole is not None:
            before, after = fill[:, :, step + 1 :], output.whole[:, :, step + 1 :]
        elif output.next is not None:
            before, after = fill[:, :, step + 1 : step + 2], output.next[:, :, None]
        else:
            return
        self.compared += before.size
        changed = (before != after).any(axis=(1, 3))
        if not changed.any():
            return
        index, slot = (int(at[0]) for at in np.nonzero(changed))
        metric = "history"
        name = self.series[role].name
        message = f"{name} at step {step}: slot {step + 1 + slot}, which waits for a later step, has changed"
        if np.array_equal(fill[index, :, step], output.value[index]):
            metric, message = MISPLACED, f"{message}, and slot {step} has not: the new entry is in the wrong place"
        self._miss(role, metric, np.inf, step, batch.rows[index], message)

    def _miss(self, role: str, metric: str, value: float, step: int, row: int, message: str) -> None:
        name = self.series[role].name
        if not any(miss.tensor == name for miss in self.misses):
            self.misses.append(Miss(name, metric, value, 0.0, 0.0, step, row, message))
