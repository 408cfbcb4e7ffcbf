"""Replay one cell: compile, force the traced rows, decode all rows freely, measure cost. A row for each check."""

import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from backends.contract import Backend, Capabilities, Probe, Program, StageError
from backends.staged import Reached
from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.graph import Graph
from harness.core.rows import Row
from harness.replay.cost import measure_cost
from harness.replay.evidence import Blame
from harness.replay.forced import force
from harness.replay.free import decode_all
from harness.replay.invariance import judge_invariance
from harness.replay.job import Job, compile_parts, one_line, short_of_running
from harness.replay.restamp import as_shipped, restamped
from harness.replay.trace import CHECKS as FORCED

NUMERIC = (*FORCED, "tokens", "placement", "invariance", "cost")


def identify(row: Row, bundle: Bundle, graph: Graph, backend: str, probe: Probe) -> Row:
    """Fill in the fields that say which cell a row is of."""
    cell = name_cell(graph, backend, probe)
    row.backend, row.runtime, row.version, row.device = backend, backend.split(":")[0], probe.version, probe.device
    row.execution = probe.execution
    row.bundle, row.exporter, row.layout, row.opset = bundle.short, graph.exporter, graph.layout, graph.opset
    row.precision, row.cell = cell.precision, str(cell)
    return row


def name_cell(graph: Graph, backend: str, probe: Probe) -> Cell:
    return Cell(backend, probe.version, probe.device, graph.exporter, graph.layout, probe.precision, graph.opset)


def lacking(graph: Graph, can: Capabilities) -> Optional[StageError]:
    """The first need of a graph that the adapter declares it cannot meet."""
    if can.opsets and graph.opset not in can.opsets:
        return StageError(
            "parse", "opset", f"opset {graph.opset}: the adapter declares {min(can.opsets)}–{max(can.opsets)}"
        )
    if graph.layout not in can.layouts:
        return StageError(
            "parse", "shape", f"layout {graph.layout}: the adapter declares {', '.join(sorted(can.layouts))}"
        )
    if graph.layout == "unified" and not can.zero_length_dims:
        return StageError("parse", "shape", "the first step has a cache of length 0, which the adapter does not take")
    for port in (port for part in graph.parts for port in part.inputs + part.outputs):
        if port.dtype not in can.dtypes:
            takes = ", ".join(sorted(can.dtypes))
            return StageError("parse", "dtype", f"{port.name} is {port.dtype}; the adapter takes {takes}")
        if not can.dynamic_dims and any(isinstance(dim, str) for dim in port.shape):
            return StageError("parse", "shape", f"{port.name} has dynamic dimensions, which the adapter does not take")
    return None


def without_floor(bundle: Bundle, probe: Probe) -> Optional[StageError]:
    """What computes in a precision is judged by that precision's own noise, or not at all."""
    if probe.precision in bundle.precisions:
        return None
    has = ", ".join(bundle.precisions)
    lacks = f"this bundle has no {probe.precision} floor to judge by; it has {has}"
    return StageError("load", "dtype", f"{lacks}; `conform record --precision` says which")


def replay(backend: Backend, probe: Probe, job: Job) -> Iterator[Row]:
    """Answer each check that is asked, as the answers come.

    A StageError ends the cell, and gives its status to every check not yet answered; so does Reached. Other exceptions are
    the caller's. The first row says in ``detail["stages"]`` what compiling, and the forced replay, went through.
    """
    asked = [check for check in NUMERIC if check in job.checks]
    began = time.perf_counter()
    backend.stages = []
    told = False
    for row in _rows(backend, probe, job, asked):
        if row.check in asked:
            asked.remove(row.check)
            row.seconds = round(time.perf_counter() - began, 4)
            if backend.stages and not told:
                told, row.detail["stages"] = True, _until_run(backend.stages)
            yield row


def _until_run(stages: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What came before anything else was compiled, for blame or a second look."""
    names = [one["stage"] for one in stages]
    return stages[: names.index("run") + 1] if "run" in names else list(stages)


def _rows(backend: Backend, probe: Probe, job: Job, asked: Sequence[str]) -> Iterator[Row]:
    try:
        refused = lacking(job.graph, backend.capabilities) or without_floor(job.bundle, probe)
        if refused:
            raise refused
        yield from _answers(backend, probe, job, asked)
    except StageError as error:
        status = verdict.of_refusal(error.stage, error.kind)
        for check in list(asked):
            yield Row(check, status, error.stage, error.kind, message=one_line(error.message),
                      detail={"said": error.message[-4000:]})  # fmt: skip
    except Reached as reached:
        for check in list(asked):
            yield short_of_running(check, reached, backend.stages)


def _answers(backend: Backend, probe: Probe, job: Job, asked: Sequence[str]) -> Iterator[Row]:
    try:
        programs = compile_parts(backend, job)
    except StageError as refusal:
        if refusal.kind != "ir":
            raise
        with restamped(backend, job, refusal) as (again, programs):
            for row in _after_load(backend, probe, again, asked, programs):
                yield as_shipped(row, refusal, again.graph.ir)
    else:
        yield from _after_load(backend, probe, job, asked, programs)


def _after_load(
    backend: Backend, probe: Probe, job: Job, asked: Sequence[str], programs: Dict[str, Program]
) -> Iterator[Row]:
    try:
        yield from _judged(backend, probe, job, asked, programs)
    except StageError as error:  # once it has loaded, refusing is failing, whatever stage the adapter names
        raise StageError("run", error.kind, error.message) from error


def _judged(
    backend: Backend, probe: Probe, job: Job, asked: Sequence[str], programs: Dict[str, Program]
) -> Iterator[Row]:
    blame = Blame(backend, job)
    if set(asked) & {*FORCED, "tokens", "invariance"}:
        # The oracle for numbers comes first, on programs that never ran; blame for anything else leans on it too.
        began = time.perf_counter()
        judge = blame.judge = force(job, programs)
        backend.stages.append({"stage": "run", "seconds": round(time.perf_counter() - began, 4)})
        if judge.history_misses:  # somewhere between two full looks: a second replay looks at every step
            again = force(job, compile_parts(backend, job), thorough=True)
            judge.history_misses = again.history_misses or judge.history_misses
        series = job.save("trace", judge.saved())
        first = [_with_series(judge.row(check), series) for check in FORCED if check != "logits" and check in asked]
        yield from (row for row in first if row.status == "PASS")
        if set(asked) & {"logits", "tokens"}:
            blame.tally = decode_all(job, programs)
        # Failures wait for the free replays, so that the culprit is looked for once, with everything known.
        yield from (blame.lay(row) for row in first if row.status != "PASS")
        if "logits" in asked:
            yield blame.lay(_with_series(judge.row("logits", blame.tally), series))
        if "tokens" in asked and blame.tally:
            yield blame.lay(blame.tally.row())
    if "placement" in asked:
        yield judge_placement(probe, programs)
    while programs:  # popped: some runtimes free a program with its last reference
        programs.popitem()[1].close()
    if "invariance" in asked:
        yield blame.lay(judge_invariance(backend, job))
    if "cost" in asked:
        yield measure_cost(backend, job)


def _with_series(row: Row, series: str) -> Row:
    row.series = series
    return row


def judge_placement(probe: Probe, programs: Mapping[str, Program]) -> Row:
    """Whether the device and precision that the cell's name says did the work, in the runtime's own words."""
    asked = (probe.device, probe.precision)
    row = Row("placement", "PASS", metric="parts elsewhere", value=0.0, bound=0.0, compared=len(programs))
    effective = []
    for name, program in programs.items():
        found = program.placement()
        if found is None:
            row.status, row.message = "UNVERIFIED", f"{name}: the runtime gives no proof of what did the work"
            return row
        row.detail[name] = found.evidence
        effective.append(found.precision)
        if (found.device, found.precision) != asked:
            row.status, row.value = "FAIL", (row.value or 0) + 1
            row.message = f"{name} ran on {found.device} in {found.precision}, asked for {asked[0]} in {asked[1]}"
    row.detail["precision"] = {"requested": probe.precision, "effective": sorted(set(effective))}
    return row
