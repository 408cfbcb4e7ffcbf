"""The invariance check's replays: one traced batch, run in every way in which the same logits must come out."""

from typing import Dict, Iterator, Mapping, Optional, Tuple

import numpy as np

from backends.contract import Backend, Program
from harness.core import roles
from harness.core.batch import Batch, more_padding, select_rows
from harness.core.observations import WAYS, Finished, Observation, Stopped, WayStep
from harness.judge.invariance import BASE, chosen_batch
from harness.replay.decoder import CannotGoOn, Decoder
from harness.replay.job import Job, compile_parts
from harness.replay.loops import force_scores


def observe_ways(backend: Backend, job: Job) -> Iterator[Observation]:
    """Logits of every step of every way; Stopped where a replay could not go on."""
    number = chosen_batch(job.golden.batches)
    step = -1
    try:
        for seen in _every_way(backend, job, job.golden.batches[number]):
            step = seen.step
            yield seen
    except CannotGoOn as stop:
        yield Stopped(WAYS, number, step + 1, "contract", str(stop))
    yield Finished(WAYS)


def _every_way(backend: Backend, job: Job, batch: Batch) -> Iterator[WayStep]:
    rows = tuple(range(len(batch.rows)))
    with compile_parts(backend, job) as programs:
        yield from _way(BASE, job, programs, batch, rows)
        yield from _way("twice", job, programs, batch, rows)
        reversed_rows = rows[::-1]
        turned = select_rows(batch, reversed_rows)
        other = _beside(job, batch) or turned
        for _ in _scores(job, programs, other):
            pass
        yield from _way("aba", job, programs, batch, rows)
        yield from _taking_turns(job, programs, batch, other, rows)
        if job.graph.static:  # the source is padded to its full length already
            yield from _way("unwritten", job, programs, batch, rows, turn=1)
        else:
            yield from _way("padded", job, programs, more_padding(batch, job.bundle.decode.pad), rows)
        yield from _way("order", job, programs, turned, reversed_rows)
        for row in sorted({int(batch.mask.sum(axis=1).argmin()), len(rows) - 1, 0}):
            yield from _way("alone", job, programs, select_rows(batch, (row,)), (row,))
        with compile_parts(backend, job) as fresh:
            _long_first(job, fresh, batch)
            yield from _way("long first", job, fresh, batch, rows)


def _way(
    name: str, job: Job, programs: Mapping[str, Program], batch: Batch, rows: Tuple[int, ...], turn: int = 0
) -> Iterator[WayStep]:
    for step, logits in _scores(job, programs, batch, turn):
        yield WayStep(name, rows, step, logits)


def _scores(job: Job, programs: Mapping[str, Program], batch: Batch, turn: int = 0) -> Iterator[Tuple[int, np.ndarray]]:
    decoder = Decoder(programs, job.graph, job.bundle.dims, turn)
    return force_scores(decoder, batch, job.bundle.decode.start, job.beat)


def _taking_turns(
    job: Job, programs: Mapping[str, Program], batch: Batch, other: Batch, rows: Tuple[int, ...]
) -> Iterator[WayStep]:
    """A batch while another one is decoded on the same programs, a step of each in turn."""
    theirs = _scores(job, programs, other)
    for seen in _way("interleaved", job, programs, batch, rows):
        # A runtime may hand out the memory of its next run: what is compared is what was given at this step.
        kept = WayStep(seen.way, seen.rows, seen.step, np.array(seen.logits))
        next(theirs, None)
        yield kept


def _beside(job: Job, batch: Batch) -> Optional[Batch]:
    """Another traced batch that runs on the same programs: a static graph has others for another length of source."""
    part = job.graph.part("step", batch.ids.shape[1])
    others = (other for other in job.golden.batches if other is not batch)
    return next((other for other in others if job.graph.part("step", other.ids.shape[1]) == part), None)


def _long_first(job: Job, programs: Mapping[str, Program], batch: Batch) -> None:
    """Make the step part's first inference one with the golden's longest cache of this batch."""
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    longest = select_rows(batch, (0,))
    decoder.encode(longest.ids, longest.mask)
    assert batch.trace is not None
    steps = max(batch.trace.steps) - 1
    places = batch.trace.starts()[:steps]
    cache: Dict[str, np.ndarray] = {}
    for port in job.graph.part("step").inputs:
        tensor = roles.cache_of(port.role)
        if tensor is None:
            continue
        if not tensor.cross:
            values = job.bundle.array("trace_self")[tensor.layer, tensor.side][places]
        elif decoder.has(port.role):
            continue
        else:  # split layout: the first part, which is not run here, would have made it
            stop = batch.source_start + longest.ids.shape[1]
            values = job.bundle.array("trace_cross")[tensor.layer, tensor.side][batch.source_start : stop]
        cache[port.role] = np.ascontiguousarray(values.transpose(1, 0, 2)[None]).astype(port.dtype)
    decoder.resume(steps, cache)
    decoder.step(longest.tokens[:, steps - 1].copy())
