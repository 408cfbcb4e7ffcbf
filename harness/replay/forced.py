"""Forced replays: the golden's tokens are fed, the runtime keeps its own cache. The oracle for numbers."""

import time
from typing import Mapping

import numpy as np

from backends.contract import Program, StageError
from harness.replay.decoder import Decoder, Stopped
from harness.replay.job import Job, one_line
from harness.replay.trace import TraceJudge

RELEASE = 8
"""Steps after which the golden's pages go back: a step is not looked at again, and at opus-mt's size it is 6 MB."""


def force(job: Job, programs: Mapping[str, Program], thorough: bool = False) -> TraceJudge:
    """Feed the golden's tokens; the runtime keeps its own cache. Nothing has run on these programs before.

    A batch that cannot go on is a miss at its step; the next ones still run.
    """
    judge = TraceJudge(job.golden, job.graph, thorough)
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    for batch in job.golden.batches:
        step = -1
        try:
            began = time.perf_counter()
            outputs = decoder.encode(batch.ids, batch.mask)
            judge.ran += time.perf_counter() - began
            judge.encoder(batch, decoder.encoder(batch.ids.shape[1]), outputs)
            fed = np.full(len(batch.rows), job.bundle.decode.start, np.int64)
            for step in range(batch.tokens.shape[1]):
                job.beat()
                if step % RELEASE == 0:
                    job.bundle.release()
                part, past = decoder.part(), decoder.cache()
                began = time.perf_counter()
                outputs = decoder.step(fed)
                judge.ran += time.perf_counter() - began
                judge.step(batch, step, part, past, outputs)
                fed = batch.tokens[:, step].copy()
        except Stopped as stop:
            judge.stopped(batch, step, "kv_shape", str(stop))
        except StageError as error:
            where = "in the encoder" if step < 0 else f"at step {step}"
            judge.stopped(batch, step, error.kind, f"refused {where}: {one_line(error.message)}")
    judge.let_go()
    return judge
