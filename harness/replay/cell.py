"""Replay one cell: compile, force the traced rows, decode all rows freely, run in other ways, measure."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

from backends.contract import Backend, Capabilities, Probe, Program, StageError
from backends.staged import Reached
from harness.core import verdict
from harness.core.batch import split_rows
from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.core.messages import one_line
from harness.core.observations import (
    COST,
    FORCED,
    FREE,
    PLACEMENT,
    WAYS,
    Encoded,
    Finished,
    Observation,
    Placed,
    Stepped,
)
from harness.core.rows import Answer
from harness.judge.checks import phases
from harness.judge.judge import Judge
from harness.replay.cost import observe_cost
from harness.replay.job import Job, Programs, compile_parts, short_of_running
from harness.replay.observe import observe_forced, observe_free
from harness.replay.restamp import as_shipped, restamped
from harness.replay.ways import observe_ways

if TYPE_CHECKING:
    from harness.core.observation_files import Keeper


def lacking(graph: Graph, can: Capabilities) -> Optional[StageError]:
    """The first need of a graph that the adapter declares it cannot meet."""
    if can.opsets and graph.opset not in can.opsets:
        declared = f"{min(can.opsets)}–{max(can.opsets)}"
        return StageError("parse", "opset", f"opset {graph.opset}: the adapter declares {declared}")
    if graph.layout not in can.layouts:
        declared = ", ".join(sorted(can.layouts))
        return StageError("parse", "shape", f"layout {graph.layout}: the adapter declares {declared}")
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


def replay(backend: Backend, probe: Probe, job: Job) -> Iterator[Answer]:
    """Answer each check that is asked, as the answers come.

    A StageError ends the cell, and gives its status to every check not yet answered; so does Reached. Other exceptions are
    the caller's. The first answer says in ``detail["stages"]`` what compiling, and the forced replay, went through.
    """
    asked = [check for check in verdict.NUMERIC if check in job.checks]
    began = time.perf_counter()
    backend.stages = []
    stages_shown = False
    keeper = _keeper(job, probe) if job.keep else None
    for answer in _answers(backend, probe, job, keeper, asked):
        if answer.check not in asked:
            continue
        asked.remove(answer.check)
        detail: Dict[str, Any] = dict(answer.detail)
        if answer.check in verdict.FORCED and answer.stage == "compare":
            detail["seconds"] = dict(job.clock)
        if backend.stages and not stages_shown:
            stages_shown, detail["stages"] = True, _until_run(backend.stages)
        if keeper and not asked:  # the host may end this process as soon as it has the last answer
            keeper.finish()
        yield replace(answer, seconds=round(time.perf_counter() - began, 4), detail=detail)


def _keeper(job: Job, probe: Probe) -> "Keeper":
    from harness.core.observation_files import Keeper  # most runs keep nothing, and start sooner without

    return Keeper(job.keep, job.bundle, job.graph, probe, job.checks, job.backend)


def _until_run(stages: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What came before anything else was compiled, for another replay."""
    names = [stage["stage"] for stage in stages]
    return stages[: names.index("run") + 1] if "run" in names else list(stages)


def _answers(
    backend: Backend, probe: Probe, job: Job, keeper: Optional["Keeper"], asked: Sequence[str]
) -> Iterator[Answer]:
    """``asked`` shrinks as the caller takes the answers."""
    try:
        refused = lacking(job.graph, backend.capabilities) or without_floor(job.bundle, probe)
        if refused:
            raise refused
        yield from _compiled(backend, probe, job, keeper)
    except StageError as error:
        status, detail = verdict.of_refusal(error.stage, error.kind), {"said": error.message[-4000:]}
        message = one_line(error.message)
        rest = [Answer(check, status, error.stage, error.kind, message=message, detail=detail) for check in asked]
        yield from _kept(keeper, rest)
    except Reached as reached:
        yield from _kept(keeper, [short_of_running(check, reached, backend.stages) for check in asked])


def _kept(keeper: Optional["Keeper"], answers: Sequence[Answer]) -> Sequence[Answer]:
    """Answers that rest on no observation are kept as they are."""
    if keeper:
        keeper.refused(answers)
    return answers


def _compiled(backend: Backend, probe: Probe, job: Job, keeper: Optional["Keeper"]) -> Iterator[Answer]:
    try:
        programs = compile_parts(backend, job)
    except StageError as refusal:
        if refusal.kind != "ir":
            raise
        with restamped(backend, job, refusal) as (again, programs):
            for answer in _after_load(backend, probe, again, programs, None):
                yield from _kept(keeper, [as_shipped(answer, refusal, again.graph.ir)])
    else:
        with programs:
            yield from _after_load(backend, probe, job, programs, keeper)


def _after_load(
    backend: Backend, probe: Probe, job: Job, programs: Programs, keeper: Optional["Keeper"]
) -> Iterator[Answer]:
    judge = Judge(job.golden, job.graph, probe, job.checks, job.save)
    try:
        for observation in _observe(backend, job, judge, programs):
            if keeper:
                keeper.take(observation)
            began = time.perf_counter()
            answers = list(judge.see(observation))
            if isinstance(observation, (Encoded, Stepped)):
                job.spent(time.perf_counter() - began, "compare")
            yield from answers
    except StageError as error:  # once it has loaded, refusing is failing, whatever stage the adapter names
        raise StageError("run", error.kind, error.message) from error


def _observe(backend: Backend, job: Job, judge: Judge, programs: Programs) -> Iterator[Observation]:
    needed = phases(set(judge.checks))
    if FORCED in needed:
        # The oracle for numbers comes first, on programs that never ran; all else leans on it.
        began = time.perf_counter()
        yield from observe_forced(job, programs)
        backend.stages.append({"stage": "run", "seconds": round(time.perf_counter() - began, 4)})
        if judge.wants_thorough:
            with compile_parts(backend, job) as again:
                yield from observe_forced(job, again, thorough=True)
        yield Finished(FORCED)
    if FREE in needed:
        yield from observe_free(job, programs, split_rows(job.golden.free, job.graph.rows), judge.free.matches)
    if PLACEMENT in needed:
        for name, program in programs.items():
            yield placed(name, program)
        yield Finished(PLACEMENT)
    programs.close()
    if WAYS in needed:
        yield from observe_ways(backend, job)
    if COST in needed:
        yield from observe_cost(backend, job)


def placed(name: str, program: Program) -> Placed:
    """What the runtime says did the work of a part."""
    placement = program.placement()
    if placement is None:
        return Placed(name)
    return Placed(name, placement.device, placement.precision, placement.evidence)
