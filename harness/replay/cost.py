"""What a decode costs. One worker runs at a time, or the seconds mean nothing."""

import itertools
import os
from typing import Iterator, List, Mapping

from backends.contract import Backend, Program
from harness.core.batch import Batch
from harness.core.memory import peak, resident
from harness.core.observations import COST, Finished, Measured, Observation, Stopped
from harness.core.surroundings import cpu_flags
from harness.replay.decoder import CannotGoOn, Decoder
from harness.replay.job import Job, compile_parts
from harness.replay.loops import force

REPEATS = 6
REPEAT_STEPS = 16


def observe_cost(backend: Backend, job: Job) -> Iterator[Observation]:
    """A timed forced replay of the first traced batch on programs of its own, then short ones to see memory grow."""
    known = len(backend.stages)
    with compile_parts(backend, job) as programs:
        # Of a runtime that builds, not the building: that is done once, and its engine kept.
        load = sum(stage["seconds"] for stage in backend.stages[known:] if stage["stage"] == "load")
        batch = job.golden.batches[0]
        try:
            encoder, *steps = _timed(job, programs, batch, batch.tokens.shape[1])
            memory = []
            for _ in range(REPEATS):
                _timed(job, programs, batch, REPEAT_STEPS)
                memory.append(resident("self"))
        except CannotGoOn as stop:
            yield Stopped(COST, 0, -1, "contract", str(stop))
            yield Finished(COST)
            return
    yield Measured(
        len(batch.rows),
        sum(batch.steps),
        load,
        encoder,
        tuple(steps),
        tuple(memory),
        peak(),
        sum(os.path.getsize(part.path) for part in job.graph.parts) + job.bundle.weight_bytes(job.graph),
        job.options.get("threads", 0) or os.cpu_count() or 1,
        tuple(cpu_flags()),
        job.alone,
    )
    yield Finished(COST)


def _timed(job: Job, programs: Mapping[str, Program], batch: Batch, steps: int) -> List[float]:
    """Seconds of the encoder, then of each step. Raises CannotGoOn."""
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    runs = force(decoder, batch, job.bundle.decode.start, job.beat)
    return [run.ran.seconds for run in itertools.islice(runs, steps + 1)]
