"""The invariance check: the same sentences, run in another way, must give the same logits.

Every way is a forced replay of one traced batch, held against the logits of its first one, the *base*, which runs on
programs of its own. Two honest runs may each stand at their bound from float64, and no further than twice that from each
other; what PyTorch itself shows between two ways (``invariance`` in the manifest) is the model's and is allowed on top.
The base itself is held against the cell's first replay of that batch: programs of the same options must not differ.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from harness.core import roles, verdict
from harness.core.batch import Batch
from harness.core.observations import WAYS, Observation, Stopped, WayStep
from harness.core.rows import Answer
from harness.judge.check import Cell, Check
from harness.judge.compare import careful_gap

BASE = "base"
MEANINGS = {
    "twice": "the same batch again on the same program (not deterministic, or state kept)",
    "aba": "the same batch after another one (state kept between sentences)",
    "interleaved": "two batches in turn on the same program (it keeps a cache of its own, or ignores the one it is fed)",
    "unwritten": "other values in the padding and in the slots not yet written (a mask lets them in)",
    "padded": "more padding in the source",
    "order": "the rows of the batch in another order",
    "alone": "alone instead of in a batch",
    "long first": "a long cache first, then short ones (a kernel kept for one length)",
    BASE: "on programs compiled anew with the same options (not repeatable from session to session)",
}
"""Each way, and what a difference means; of several that differ the first says most."""
SHORT, LONG = 64, 10
"""A batch with more steps than SHORT is preferred; a gap LONG times larger than before says more than the first one."""


def chosen_batch(batches: Sequence[Batch]) -> int:
    """Index of the traced batch that is run in every way: a long one with many rows."""

    def rank(index: int) -> "tuple[bool, int, int]":
        batch = batches[index]
        return max(batch.steps) > SHORT, len(batch.rows), -sum(batch.steps)

    return max(range(len(batches)), key=rank)


class Difference(NamedTuple):
    """Where a way differs: largest gap, step and row of the batch where that begins."""

    way: str
    gap: float
    step: int
    row: int


class InvarianceCheck(Check):
    """Compares each way, step by step, with the base; only the base's logits are kept."""

    name, phase = "invariance", WAYS

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.golden = golden = cell.golden
        self.first, self.logits = cell.forced.series[roles.LOGITS], cell.graph.output_name(roles.LOGITS)
        self.batch = golden.batches[chosen_batch(golden.batches)]
        self.limit = 2 * golden.logits.limit.tail
        self.allowed: Dict[str, float] = golden.bundle.manifest.get("invariance", {})
        self.compared = 0
        self.stopped = ""
        self._base: List[np.ndarray] = []
        self._steps: Dict["tuple[str, tuple[int, ...]]", int] = {}  # of each way and its rows
        self._ways: Dict[str, Dict[str, Any]] = {}
        self._differences: Dict[str, Difference] = {}
        self._worst: Dict[str, Difference] = {}

    def see(self, observation: Observation) -> None:
        if isinstance(observation, Stopped) and observation.phase == WAYS:
            self.stopped = observation.message
        if isinstance(observation, WayStep):
            self._steps[observation.way, observation.rows] = observation.step + 1
        if isinstance(observation, WayStep) and observation.way == BASE:
            self._base.append(np.array(observation.logits))
            self._compare_base(observation)
        elif isinstance(observation, WayStep):
            self._compare(observation)

    def _compare_base(self, seen: WayStep) -> None:
        """Hold the base's distance from the golden against that of the first replay."""
        trace = self.batch.trace
        assert trace is not None
        start, active = int(trace.starts()[seen.step]), trace.active(seen.step)
        golden = self.golden.logits.golden[start : start + active]
        gaps = careful_gap(seen.logits[:active].astype(np.float64), golden)
        with np.errstate(invalid="ignore"):
            apart = np.abs(gaps - self.first.gap[start : start + active])
        apart = np.where(np.isnan(apart), 0.0, apart)  # equal infinities, or an entry that was never compared
        index = int(apart.argmax())
        if apart[index] > self.limit:
            self._note(Difference(BASE, float(apart[index]), seen.step, index))

    def _compare(self, seen: WayStep) -> None:
        rows, base = seen.rows, self._base[seen.step]
        active = [index for index, row in enumerate(rows) if self.batch.steps[row] > seen.step]
        mine, theirs = seen.logits[active], base[[rows[index] for index in active]]
        self.compared += mine.size
        stats = self._ways.setdefault(seen.way, {"gap": 0.0, "bound": self._bound(seen.way), "bitwise": True})
        if stats["bitwise"] and np.array_equal(mine, theirs):
            return
        stats["bitwise"] = False
        gaps = careful_gap(mine.astype(np.float64), theirs.astype(np.float64))
        largest = int(gaps.argmax())
        self._note(Difference(seen.way, float(gaps[largest]), seen.step, rows[active[largest]]))
        stats["gap"] = max(stats["gap"], float(gaps[largest]))

    def _bound(self, way: str) -> float:
        return self.limit + float(self.allowed.get(way, 0.0))

    def _note(self, difference: Difference) -> None:
        """Keep where a way's difference starts, which says more than where it is largest."""
        before = self._worst.get(difference.way)
        if before is None or difference.gap > LONG * before.gap:
            self._worst[difference.way] = difference
        else:
            self._worst[difference.way] = before._replace(gap=max(before.gap, difference.gap))

    def answer(self) -> Answer:
        """One answer; the first way that differs is named, with the step and the sentence."""
        detail = {"ways": self._ways, "of the model itself": self.allowed}
        value = max((stats["gap"] for stats in self._ways.values()), default=0.0)
        common: Dict[str, Any] = {
            "metric": "largest gap",
            "bound": self.limit,
            "compared": self.compared,
            "detail": detail,
        }
        if self.stopped:
            message = f"a replay stopped: {self.stopped}"
            return Answer("invariance", "FAIL", value=value, message=message, **common)
        short = [
            way for (way, rows), steps in self._steps.items() if steps < max(self.batch.steps[row] for row in rows)
        ]
        if short:
            message = f"{short[0]}: its last steps were not observed"
            return Answer("invariance", "ERROR", value=value, message=message, **common)
        order = [*(way for way in MEANINGS if way in self._worst), *sorted(set(self._worst) - set(MEANINGS))]
        differing = [self._worst[way] for way in order if not self._worst[way].gap <= self._bound(way)]
        status = verdict.of_row(self.compared, len(differing))
        if not differing:
            return Answer("invariance", status, value=value, **common)
        first = differing[0]
        message = f"{MEANINGS.get(first.way, first.way)}: {self.logits} differ by {first.gap:.3g} at step {first.step}"
        if len(differing) > 1:
            message += f"; also {', '.join(other.way for other in differing[1:])}"
        return Answer(
            "invariance",
            status,
            value=first.gap,
            step=first.step,
            sentence=self.golden.bundle.rows[self.batch.rows[first.row]].id,
            tensor=self.logits,
            kind=first.way,
            message=message,
            **common,
        )
