"""What a decode costs, and whether its memory grows. One worker runs at a time, or these figures mean nothing."""

import os
import time
from typing import List, Mapping

import numpy as np

from backends.contract import Backend, Program
from harness.core.batch import Batch
from harness.core.memory import peak, resident
from harness.core.rows import Row
from harness.replay.decoder import Decoder, Stopped
from harness.replay.job import Job, compile_parts

REPEATS = 6
REPEAT_STEPS = 16
LEAK = 256 * 1024
"""Bytes by which every identical replay may not outgrow the one before, four times in a row. Allocators settle after two."""


def measure_cost(backend: Backend, job: Job) -> Row:
    """Time a forced replay of the first traced batch on programs of its own. Seconds are wall time."""
    known = len(backend.stages)
    programs = compile_parts(backend, job)
    # Of a runtime that builds, not the building: that is done once, and its engine kept.
    load = sum(one["seconds"] for one in backend.stages[known:] if one["stage"] == "load")
    batch = job.golden.batches[0]
    try:
        encoder, *seconds = _timed(job, programs, batch, batch.tokens.shape[1])
        memory = []
        for _ in range(REPEATS):
            _timed(job, programs, batch, REPEAT_STEPS)
            memory.append(resident("self"))
    except Stopped as stop:
        return Row("cost", "FAIL", message=f"the timed replay stopped: {stop}")
    for program in programs.values():
        program.close()
    p50, p95 = (float(np.percentile(seconds, rank)) for rank in (50, 95))
    row = Row("cost", "PASS", metric="p50 seconds a step", value=p50, compared=len(seconds))
    row.detail = {
        "batch": len(batch.rows),
        "file_bytes": sum(os.path.getsize(part.path) for part in job.graph.parts) + job.bundle.weight_bytes(job.graph),
        "load_seconds": load,
        "encoder_seconds": encoder,
        "step_p50_seconds": p50,
        "step_p95_seconds": p95,
        "tokens_per_second": sum(batch.steps) / sum(seconds),
        "peak_memory_bytes": peak(),
        "repeat_memory_bytes": memory,
        "threads": job.options.get("threads", 0) or os.cpu_count(),
        "cpu": cpu_flags(),
        "unit": "timed steps",
    }
    row.message = f"{p50 * 1e3:.2f} ms a step of {len(batch.rows)}, {row.detail['tokens_per_second']:.0f} tokens/s"
    if not job.alone:
        row.value, row.message = None, "no figures: other workers ran beside this one"
        row.detail = {name: known for name, known in row.detail.items() if "second" not in name}
    growth = np.diff(memory)[-4:]
    if growth.min() > LEAK:
        row.status, row.metric, row.value, row.bound = "FAIL", "bytes grown a replay", float(growth.min()), float(LEAK)
        row.message = f"leak: memory grows by at least {growth.min() / 2**20:.1f} MiB with every identical replay"
    return row


def _timed(job: Job, programs: Mapping[str, Program], batch: Batch, steps: int) -> List[float]:
    """Seconds of the encoder, then of each step. Raises Stopped."""
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    began = time.perf_counter()
    decoder.encode(batch.ids, batch.mask)
    seconds = [time.perf_counter() - began]
    fed = np.full(len(batch.rows), job.bundle.decode.start, np.int64)
    for step in range(min(steps, batch.tokens.shape[1])):
        job.beat()
        began = time.perf_counter()
        decoder.step(fed)
        seconds.append(time.perf_counter() - began)
        fed = batch.tokens[:, step].copy()
    return seconds


def cpu_flags() -> List[str]:
    """The vector instruction sets of this CPU, which decide how some kernels round or saturate; empty where unknown."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            line = next((line for line in stream if line.startswith(("flags", "Features"))), "")
    except OSError:
        return []
    known = (
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "amx_int8",
        "amx_bf16",
        "asimd",
        "asimddp",
        "sve",
    )
    return sorted(set(line.split()) & set(known))
