"""The judge of one cell's forced replay: it sees each output once, as it comes, and answers four checks at the end."""

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from backends.contract import Part
from harness.core import verdict
from harness.core.batch import Batch
from harness.core.bundle import Bundle
from harness.core.graph import Graph, slots_of
from harness.core.roles import kv_of
from harness.core.rows import Row
from harness.judge import blame, bounds
from harness.judge.compare import Miss, Series, careful_gap, shape_problem

if TYPE_CHECKING:
    from harness.replay.free import Tally

CHECKS = ("encoder", "logits", "kv_shape", "kv_values")
LATE = (32, 64)
MISPLACED = "misplaced"
ORDER = {"best": 1, "bulk": 2}  # metrics that speak only where no single traced step does


class Golden:
    """The golden side of every compared tensor, with its bound: worked out once a worker, not once a cell."""

    def __init__(self, bundle: Bundle, precision: str) -> None:
        if precision not in bundle.precisions:
            precision = bundle.precisions[0]  # such a cell is refused, which needs a golden all the same
        self.bundle = bundle
        self.batches = bundle.batches("forced")
        self.free = bundle.batches("free")
        self.steps = np.array([at for batch in self.batches for at in _trace_order(batch)], np.int64).reshape(-1, 2)
        self.places = np.array([at for batch in self.batches for at in _source_order(batch)], np.int64).reshape(-1, 2)
        self._step_groups = [np.arange(len(self.steps))]
        self._place_groups = [np.arange(len(self.places))]
        for batch in self.batches:
            assert batch.trace is not None
            self._step_groups.append(np.arange(batch.trace.start, batch.trace.start + sum(batch.steps)))
            self._place_groups.append(np.arange(batch.source_start, batch.source_start + int(batch.mask.sum())))
        self._step_groups += [np.flatnonzero(self.steps[:, 1] >= late) for late in LATE]
        self.tensors: "OrderedDict[str, Tuple[np.ndarray, np.ndarray, bounds.Bound]]" = OrderedDict()
        sides = [(layer, side) for layer in range(bundle.dims.layers) for side in (0, 1)]
        self._add("last_hidden_state", "encoder", (), precision)
        for layer, side in sides:
            self._add(f"present.{layer}.encoder.{'value' if side else 'key'}", "cross", (layer, side), precision)
        self._add("logits", "logits", (), precision)
        for layer, side in sides:
            self._add(f"present.{layer}.decoder.{'value' if side else 'key'}", "self", (layer, side), precision)

    def _add(self, name: str, output: str, index: Tuple[int, ...], precision: str) -> None:
        golden = self.bundle.array(f"trace_{output}")[index]
        floor = self.bundle.floor(precision, output)[index]
        peak = 0.0
        for start in range(0, len(golden), 64):
            block = golden[start : start + 64]
            peak = max(peak, float(block.max()), -float(block.min()))
            self.bundle.release()
        self.tensors[name] = (golden, floor, bounds.bound(floor, peak, precision))

    def series(self) -> "OrderedDict[str, Series]":
        """Fresh series for one cell."""
        return OrderedDict(
            (name, Series(name, golden, floor, *self._order(name), limit))
            for name, (golden, floor, limit) in self.tensors.items()
        )

    def _order(self, name: str) -> Tuple[np.ndarray, str]:
        kind = kv_of(name)
        by_source = name == "last_hidden_state" or (kind is not None and kind.cross)
        return (self.places, "source position") if by_source else (self.steps, "step")

    def groups(self, name: str) -> List[np.ndarray]:
        """Entries over which a bulk is taken: all, each batch, and late steps, where a fault of long caches is diluted."""
        return self._place_groups if self._order(name)[0] is self.places else self._step_groups

    def check_of(self, name: str) -> str:
        if self._order(name)[0] is self.places:
            return "encoder"
        return "logits" if name == "logits" else "kv_values"


class TraceJudge:
    """Give it each output of one cell's forced replay; then ask for its rows."""

    def __init__(self, golden: Golden, graph: Graph, thorough: bool = False) -> None:
        """``thorough``: hold all older cache entries against what was fed at every step, to find where one changed."""
        self.golden = golden
        self.thorough = thorough
        self.graph = graph
        self.series = golden.series()
        self.seconds = self.ran = 0.0  # spent on judging, and in the runtime
        self.shapes = 0
        self.shape_misses: List[Miss] = []
        self.history_misses: List[Miss] = []
        self.history = 0
        self._swapped: Set[str] = set()
        self._held: List[Tuple[str, int, np.ndarray, bytes]] = []
        self._last: List[Tuple[str, int, np.ndarray, bytes]] = []

    def encoder(self, batch: Batch, part: Part, outputs: Mapping[str, np.ndarray]) -> None:
        """Judge the encoder part's outputs; padding is left out."""
        began = time.perf_counter()
        self._check_shapes(batch, None, part, outputs)
        self._compare_source(batch, outputs)
        self._held = [(name, -1, array, _sample(array)) for name, array in outputs.items()]
        self._last = []
        self.seconds += time.perf_counter() - began

    def step(
        self, batch: Batch, step: int, part: Part, past: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> None:
        """Judge one step. ``past``: the cache that was fed, by input name.

        The new cache entry is compared with the golden. Of the older ones, the first and the last must be the bits that
        were fed; all of them whenever the length is a power of two and when a row ends, and against the golden as well.
        So must the slots of a static graph that are not yet written.
        """
        began = time.perf_counter()
        assert batch.trace is not None
        active, start = batch.trace.active(step), int(batch.trace.starts()[step])
        self._check_shapes(batch, step, part, outputs)
        self._check_kept(batch, step)
        full = step > 0 and (self.thorough or batch.trace.active(step + 1) < active or (step + 1) & step == 0)
        slots = slots_of(part)
        for name, array in outputs.items():
            kind = kv_of(name)
            if name == "logits" and array.ndim == 3 and array.shape[1]:
                self.series[name].add(start, array[:active, -1], active)
            elif kind and kind.cross:
                self._cross(batch, step, name, array, past)
            elif kind and name in self.series and array.ndim == 4:
                fed = past.get(name.replace("present.", "past_key_values.", 1))
                if name in self._swapped:
                    array, fed = array.transpose(0, 2, 1, 3), None if fed is None else fed.transpose(0, 2, 1, 3)
                if array.shape[2] > step:
                    self.series[name].add(start, array[:active, :, step], active)
                if fed is None or (fed.shape[2], array.shape[2]) != (slots or step, slots or step + 1):
                    continue
                if step:
                    self._check_history(batch, step, name, fed[:active, :, :step], array[:active], full)
                if slots:
                    self._check_unwritten(batch, step, name, fed[:active], array[:active], full or not step)
        for port in part.outputs:
            if port.name in self.series and port.name not in outputs and self.golden.check_of(port.name) != "encoder":
                self.series[port.name].stopped(start, "the output is missing")
        self._last = [(name, step, array, _sample(array)) for name, array in outputs.items()]
        self.seconds += time.perf_counter() - began

    def _check_kept(self, batch: Batch, step: int) -> None:
        """What earlier runs gave must still be what it was: the contract says that each output owns its memory."""
        for name, made, array, before in (*self._last, *(self._held if step % 16 == 15 else ())):
            if name in self.series and _sample(array) != before:
                when = "by the encoder" if made < 0 else f"at step {made}"
                message = f"{name}, given {when}, was changed by a later run: its memory is not its own"
                self._miss_history(name, "overwritten", np.inf, step, batch.rows[0], message)

    def let_go(self) -> None:
        """No later run can change what earlier ones gave: their outputs need not be kept any more."""
        self._held, self._last = [], []

    def stopped(self, batch: Batch, step: int, check: str, message: str) -> None:
        """The replay of this batch ended before ``step`` (-1: in the encoder) could be compared."""
        assert batch.trace is not None
        for name, series in self.series.items():
            by_source = self.golden.check_of(name) == "encoder"
            if by_source and step < 0:
                series.stopped(batch.source_start, message)
            elif not by_source:
                series.stopped(int(batch.trace.starts()[max(step, 0)]), message)
        if check == "kv_shape":
            self._miss_shape(check, max(step, 0), batch.rows[0], message)

    def _cross(self, batch: Batch, step: int, name: str, array: np.ndarray, past: Mapping[str, np.ndarray]) -> None:
        fed = past.get(name.replace("present.", "past_key_values.", 1))
        if fed is None:  # split layout: the first step makes them
            self._compare_source(batch, {name: array})
            return
        self.history += array.size
        if not np.array_equal(fed, array):
            message = f"{name} at step {step}: the cross-attention cache is not the one that was fed"
            self._miss_history(name, "constant", np.inf, step, batch.rows[0], message)

    def _compare_source(self, batch: Batch, outputs: Mapping[str, np.ndarray]) -> None:
        start = batch.source_start
        for index in range(len(batch.rows)):
            length = int(batch.mask[index].sum())
            for name, array in outputs.items():
                if name in self.series and array.ndim in (3, 4) and len(array) > index:
                    straight = array.ndim == 3 or name in self._swapped
                    row = array[index] if straight else array[index].transpose(1, 0, 2)
                    self.series[name].add(start, row[:length], length)
            start += length

    def _check_history(
        self, batch: Batch, step: int, name: str, fed: np.ndarray, array: np.ndarray, full: bool
    ) -> None:
        """Hold the older entries of the cache, [active, heads, step, head_dim], against the bits that were fed."""
        places = range(step) if full else sorted({0, step - 1})
        self.history += fed[:, :, :1].size * len(places)
        if full:
            same = np.array_equal(fed, array[:, :, :step])
        else:
            same = all(fed[:, :, at].tobytes() == array[:, :, at].tobytes() for at in places)
        if same and not full:
            return
        assert batch.trace is not None
        series, starts = self.series[name], batch.trace.starts()[:step]
        for index in range(len(array)):
            values, golden = array[index, :, :step].transpose(1, 0, 2), series.golden[starts + index]
            if values.shape != golden.shape:
                return
            gaps = careful_gap(values, golden)
            moved = gaps > series.limit.tail
            if not same:
                moved = moved | (fed[index] != array[index, :, :step]).any(axis=(0, 2))
            if moved.any():
                place = int(np.argmax(moved))
                row = int(series.where[starts[place] + index][0])
                message = f"{name} at step {step}: the entry written at step {place} has changed since"
                self._miss_history(name, "history", float(gaps.max()), step, row, message)
                return

    def _check_unwritten(
        self, batch: Batch, step: int, name: str, fed: np.ndarray, array: np.ndarray, full: bool
    ) -> None:
        """Hold the slots that wait for later steps, [active, heads, slots, head_dim], against the bits that were fed."""
        later = slice(step + 1, None) if full else slice(step + 1, step + 2)
        self.history += fed[:, :, later].size
        changed = (fed[:, :, later] != array[:, :, later]).any(axis=(1, 3))
        if not changed.any():
            return
        index, place = (int(at[0]) for at in np.nonzero(changed))
        metric, message = (
            "history",
            f"{name} at step {step}: slot {step + 1 + place}, which waits for a later step, has changed",
        )
        if np.array_equal(fed[index, :, step], array[index, :, step]):
            metric, message = MISPLACED, f"{message}, and slot {step} has not: the new entry is in the wrong place"
        self._miss_history(name, metric, np.inf, step, batch.rows[index], message)

    def _miss_history(self, name: str, metric: str, value: float, step: int, row: int, message: str) -> None:
        if not any(miss.tensor == name for miss in self.history_misses):
            self.history_misses.append(Miss(name, metric, value, 0.0, 0.0, step, row, message))

    def _check_shapes(self, batch: Batch, step: Optional[int], part: Part, outputs: Mapping[str, np.ndarray]) -> None:
        declared = {port.name: port for port in part.outputs}
        rows, source = batch.ids.shape
        sizes = {"batch": rows, "source": source, "past": step or 0, "total": (step or 0) + 1}
        for name in sorted(set(declared) ^ set(outputs)):
            word = "is missing" if name in declared else "is not declared"
            self._miss_shape(name, step, batch.rows[0], f"{part.name} output {name} {word}")
        for name in declared:
            if name not in outputs:
                continue
            self.shapes += 1
            expected = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in declared[name].shape)
            problem = shape_problem(name, outputs[name], declared[name].dtype, expected)
            if problem:
                where = "" if step is None else f" at step {step}"
                swapped = expected[:1] + expected[2:0:-1] + expected[3:]
                if outputs[name].shape == swapped and kv_of(name):
                    self._swapped.add(name)
                    problem += ": laid out batch, length, heads, head_dim"
                self._miss_shape(name, step, batch.rows[0], problem + where)

    def _miss_shape(self, name: str, step: Optional[int], row: int, message: str) -> None:
        if not any(miss.tensor == name for miss in self.shape_misses):
            self.shape_misses.append(Miss(name, "shape", np.inf, 0.0, 0.0, step, row, message))

    def row(self, check: str, tally: Optional["Tally"] = None) -> Row:
        """The answer to one of CHECKS. ``tally``: of the free replays, which have seen more logits than the traced rows'."""
        if check == "kv_shape":
            row = self._row(check, self.shape_misses, self.shapes, {"unit": "shapes"})
        else:
            row = self._row_of_values(check, tally if check == "logits" else None)
        row.detail["seconds"] = {"replay": self.ran, "compare": self.seconds}
        return row

    def _row_of_values(self, check: str, tally: Optional["Tally"]) -> Row:
        names = [name for name in self.series if self.golden.check_of(name) == check]
        judged = {name: self.series[name].judge(self.golden.groups(name)) for name in names}
        # Of one step and tensor, what became of other entries says more than how far the new one is off.
        misses = [miss for miss in self.history_misses if self.golden.check_of(miss.tensor) == check]
        misses += [miss for name in names for miss in judged[name][0]]
        compared = sum(self.series[name].compared for name in names) + (self.history if check == "kv_values" else 0)
        detail: Dict[str, Any] = {"tensors": {name: judged[name][1] for name in names}}
        misplaced = any(miss.metric == MISPLACED for miss in self.history_misses)  # says more than a pattern could
        pattern = blame.pattern(self.series) if misses and not misplaced else ""
        if tally is not None:
            misses += tally.misses
            compared += tally.compared_logits
            detail["free"] = {"largest gap": tally.worst, "compared": tally.compared_logits}
        row = self._row(check, misses, compared, detail)
        if pattern:
            row.kind, row.message = pattern.rsplit(": ", 1)[-1], f"{row.message}; {pattern}"
        if not misses:
            _say_nearest(row, detail["tensors"])
        return row

    def _row(self, check: str, misses: Sequence[Miss], compared: int, detail: Dict[str, Any]) -> Row:
        row = Row(check, verdict.of_row(compared, len(misses)), compared=compared, detail=detail)
        if misses:
            # The first step that is wrong says most; within it the tensor nearest the source of the fault comes first.
            # A bias is everywhere, so it speaks only where no single step does.
            place = {name: number for number, name in enumerate(self.series)}
            worst = min(
                misses, key=lambda miss: (ORDER.get(miss.metric, 0), miss.step or 0, place.get(miss.tensor, 99))
            )
            row.tensor, row.metric, row.value, row.bound, row.floor = worst[:5]
            row.step, row.message = worst.step, worst.message
            row.sentence = "" if worst.row is None else self.golden.bundle.rows[worst.row].id
            detail["misses"] = [miss.message for miss in misses[:20]]
        elif not compared:
            row.message = "nothing was compared"
        return row

    def saved(self) -> Dict[str, np.ndarray]:
        """The sidecar's arrays, for plots: float32 gaps and floors of each tensor, int32 row and step of each entry."""
        arrays: Dict[str, np.ndarray] = {
            "steps": self.golden.steps.astype(np.int32),
            "places": self.golden.places.astype(np.int32),
        }
        for name, series in self.series.items():
            arrays[f"{name}.gap"] = series.gap.astype(np.float32)
            arrays[f"{name}.floor"] = np.asarray(series.floor, np.float32)
        return arrays


def _say_nearest(row: Row, tensors: Mapping[str, Mapping[str, Any]]) -> None:
    """A passing row shows the tensor that came nearest to its bound."""
    nearest, stats = max(tensors.items(), key=lambda item: (item[1]["tail"] or 0) / item[1]["tail_bound"])
    row.tensor, row.metric = nearest, "tail"
    row.value, row.bound, row.floor = stats["tail"], stats["tail_bound"], stats["floor"]


def _sample(array: np.ndarray) -> bytes:
    """Some 64 values spread over an array, and one of each entry of a cache: enough to see it overwritten, even where just
    one slot of a fixed-size cache comes out another."""
    flat = array.reshape(-1)
    entries = array[0, 0, :, 0].tobytes() if array.ndim == 4 and array.size else b""
    return flat[:: max(1, flat.size // 64)].tobytes() + entries


def _trace_order(batch: Batch) -> Iterator[Tuple[int, int]]:
    for step in range(max(batch.steps)):
        for row, steps in zip(batch.rows, batch.steps):
            if steps > step:
                yield row, step


def _source_order(batch: Batch) -> Iterator[Tuple[int, int]]:
    for row, mask in zip(batch.rows, batch.mask):
        for place in range(int(mask.sum())):
            yield row, place
