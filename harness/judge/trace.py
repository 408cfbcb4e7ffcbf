"""The judge of forced replays: encoder, logits, kv_shape and kv_values. It sees each observation once, as it comes."""

from typing import Any, Dict, Mapping, Sequence

import numpy as np

from harness.core import roles, verdict
from harness.core.batch import Batch
from harness.core.graph import Graph
from harness.core.observations import Encoded, Outputs, Stepped, Stopped
from harness.core.rows import Answer
from harness.judge import pattern
from harness.judge.compare import Miss
from harness.judge.golden import Golden
from harness.judge.history import MISPLACED, HistoryJudge
from harness.judge.shapes import ShapeJudge

ORDER = {"best": 1, "bulk": 2}
"""Metrics that speak only where no single traced step does."""
SHOWN = 20
"""Misses that a row keeps."""


class TraceJudge:
    """Give it each observation of one cell's forced replay; then ask for the answers."""

    def __init__(self, golden: Golden, graph: Graph) -> None:
        self.golden = golden
        self.series = golden.series(graph)
        self.shapes = ShapeJudge(graph)
        self.history = HistoryJudge(self.series)

    def see(self, seen: "Encoded | Stepped | Stopped") -> None:
        batch = self.golden.batches[seen.batch]
        if isinstance(seen, Encoded):
            self.shapes.see(batch, seen)
            self._compare_source(batch, seen.outputs)
            self.history.start(seen)
        elif isinstance(seen, Stepped):
            self._see_step(batch, seen)
        else:
            self._stopped(batch, seen)

    def _see_step(self, batch: Batch, seen: Stepped) -> None:
        assert batch.trace is not None
        active, start = batch.trace.active(seen.step), int(batch.trace.starts()[seen.step])
        self.shapes.see(batch, seen)
        first_cross = {role: seen.outputs[role] for role in seen.outputs if roles.is_cross(role) and seen.step == 0}
        self._compare_source(batch, {role: made for role, made in first_cross.items() if not self.history.knows(role)})
        self.history.see(batch, seen)
        for role, output in seen.outputs.items():
            if (role == roles.LOGITS or roles.is_own(role)) and role in self.series and output.value is not None:
                self.series[role].add(start, output.value, active)
        for port in self.shapes.part(seen.part).outputs:
            if port.role in self.series and port.role not in seen.outputs and not roles.is_cross(port.role):
                self.series[port.role].stopped(start, "the output is missing")

    def _compare_source(self, batch: Batch, outputs: Outputs) -> None:
        """Hold what is of the source, [rows, source, ...] or a cross cache, against the golden; padding is left out."""
        start = batch.source_start
        for index in range(len(batch.rows)):
            length = int(batch.mask[index].sum())
            for role, output in outputs.items():
                if role in self.series and output.value is not None and len(output.value) > index:
                    row = output.value[index]
                    values = row.transpose(1, 0, 2) if roles.is_cross(role) else row
                    self.series[role].add(start, values[:length], length)
            start += length

    def _stopped(self, batch: Batch, seen: Stopped) -> None:
        assert batch.trace is not None
        for role, series in self.series.items():
            if self.golden.check_of(role) != "encoder":
                series.stopped(int(batch.trace.starts()[max(seen.step, 0)]), seen.message)
            elif seen.step < 0:
                series.stopped(batch.source_start, seen.message)
        if seen.kind == "contract":
            self.shapes.miss("kv_shape", max(seen.step, 0), batch, seen.message)

    def answer(self, check: str, more: Sequence[Miss] = (), compared: int = 0) -> Answer:
        """The answer to one of verdict.FORCED. ``more``: misses of the same tensors that other replays have seen, in
        ``compared`` elements: the free ones have seen more logits than the traced rows'."""
        if check == "kv_shape":
            return self._answer(check, self.shapes.misses, self.shapes.compared, {"unit": "shapes"})
        of_check = [role for role in self.series if self.golden.check_of(role) == check]
        judged = {role: self.series[role].judge(self.golden.groups(role)) for role in of_check}
        names = {self.series[role].name for role in of_check}
        # Of one step and tensor, what became of other entries says more than how far the new one is off.
        misses = [miss for miss in self.history.misses if miss.tensor in names]
        misses += [miss for role in of_check for miss in judged[role][0]]
        likeness = self._likeness(misses)
        misses += more
        compared += sum(self.series[role].compared for role in of_check)
        compared += self.history.compared if check == "kv_values" else 0
        tensors = {self.series[role].name: judged[role][1] for role in of_check}
        return self._answer(check, misses, compared, {"tensors": tensors}, likeness)

    def _likeness(self, misses: Sequence[Miss]) -> pattern.Pattern:
        """What the traced entries that are wrong look like together; a misplaced entry says more than any pattern."""
        if not misses or any(miss.metric == MISPLACED for miss in self.history.misses):
            return pattern.UNKNOWN
        return pattern.of(self.series)

    def _answer(
        self,
        check: str,
        misses: Sequence[Miss],
        compared: int,
        detail: Dict[str, Any],
        likeness: pattern.Pattern = pattern.UNKNOWN,
    ) -> Answer:
        status = verdict.of_row(compared, len(misses))
        if not misses:
            nearest = _nearest(detail["tensors"]) if "tensors" in detail else {}
            message = "" if compared else "nothing was compared"
            return Answer(check, status, compared=compared, detail=detail, message=message, **nearest)
        # The first step that is wrong says most; within it the tensor nearest the source of the fault comes first.
        # A bias is everywhere, so it speaks only where no single step does.
        place = {series.name: number for number, series in enumerate(self.series.values())}
        worst = min(misses, key=lambda miss: (ORDER.get(miss.metric, 0), miss.step or 0, place.get(miss.tensor, 99)))
        return Answer(
            check,
            status,
            kind=likeness.kind,
            tensor=worst.tensor,
            metric=worst.metric,
            value=worst.value,
            bound=worst.bound,
            floor=worst.floor,
            compared=compared,
            step=worst.step,
            sentence="" if worst.row is None else self.golden.bundle.rows[worst.row].id,
            message=f"{worst.message}; {likeness.message}" if likeness.message else worst.message,
            detail={**detail, "misses": [miss.message for miss in misses[:SHOWN]]},
        )

    def sidecar(self) -> Dict[str, np.ndarray]:
        """Arrays for plots: float32 gaps and floors of each tensor, int32 row and step of each entry."""
        arrays: Dict[str, np.ndarray] = {
            "steps": self.golden.steps.astype(np.int32),
            "places": self.golden.places.astype(np.int32),
        }
        for series in self.series.values():
            arrays[f"{series.name}.gap"] = series.gap.astype(np.float32)
            arrays[f"{series.name}.floor"] = np.asarray(series.floor, np.float32)
        return arrays


def _nearest(tensors: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The fields by which a passing answer shows the tensor that came nearest to its bound."""
    name, stats = max(tensors.items(), key=lambda item: (item[1]["tail"] or 0) / item[1]["tail_bound"])
    bound, floor = stats["tail_bound"], stats["floor"]
    return {"tensor": name, "metric": "tail", "value": stats["tail"], "bound": bound, "floor": floor}
