"""The invariance check: the same sentences, run in another way, must give the same logits.

Every way is a forced replay of one traced batch, held against the logits of its first replay on fresh programs. Two honest
runs may each stand at their bound from float64, and no further than twice that from each other; what PyTorch itself
shows between two ways (``invariance`` in the manifest) is the model's and is allowed on top.
"""

from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from backends.contract import Backend, Program
from harness.core import verdict
from harness.core.batch import Batch, more_padding, select_rows
from harness.core.roles import kv_of
from harness.core.rows import Row
from harness.judge.compare import careful_gap
from harness.replay.decoder import Decoder, Stopped
from harness.replay.job import Job, compile_parts

TURNS = "two batches in turn on the same program (it keeps a cache of its own, or ignores the one it is fed)"


class Way(NamedTuple):
    """One way to run: ``rows`` are the batch's rows whose logits come out, in that order."""

    name: str
    meaning: str
    batch: Batch
    rows: Tuple[int, ...]


def judge_invariance(backend: Backend, job: Job) -> Row:
    """One row; the first way that differs is named, with the step and the sentence."""
    batch = max(job.golden.batches, key=lambda batch: (max(batch.steps) > 64, len(batch.rows), -sum(batch.steps)))
    limit = 2 * job.golden.tensors["logits"][2].tail
    allowed = job.bundle.manifest.get("invariance", {})
    row = Row("invariance", "PASS", metric="largest gap", value=0.0, bound=limit)
    row.detail = {"ways": {}, "of the model itself": allowed}
    differing: List[Tuple[str, int, int, float, str]] = []
    try:
        programs = compile_parts(backend, job)
        base = list(_logits(job, programs, batch))
        for way, outputs in _ways(backend, job, programs, batch):
            bound = limit + float(allowed.get(way.name, 0.0))
            gap, step, place, exact, compared = _compare(batch, base, way, outputs)
            row.compared += compared
            row.detail["ways"][way.name] = {"gap": gap, "bound": bound, "bitwise": exact}
            row.value = max(row.value or 0.0, gap)
            if not gap <= bound:
                differing.append((way.name, step, place, gap, way.meaning))
    except Stopped as stop:
        row.message = f"a replay stopped: {stop}"
        row.status = "FAIL"
        return row
    row.status = verdict.of_row(row.compared, len(differing))
    if differing:
        name, row.step, place, row.value, meaning = differing[0]
        row.sentence, row.tensor, row.kind = job.bundle.rows[batch.rows[place]].id, "logits", name
        row.message = f"{meaning}: logits differ by {row.value:.3g} at step {row.step}"
        if len(differing) > 1:
            row.message += f"; also {', '.join(other[0] for other in differing[1:])}"
    return row


def _ways(
    backend: Backend, job: Job, programs: Mapping[str, Program], batch: Batch
) -> Iterator[Tuple[Way, Iterator[np.ndarray]]]:
    everything = tuple(range(len(batch.rows)))
    again = Way(
        "twice", "the same batch again on the same program (not deterministic, or state kept)", batch, everything
    )
    yield again, _logits(job, programs, batch)
    backwards = everything[::-1]
    turned = select_rows(batch, backwards)
    other = _beside(job, batch) or turned
    for _ in _logits(job, programs, other):
        pass
    between = "the same batch after another one (state kept between sentences)"
    yield again._replace(name="aba", meaning=between), _logits(job, programs, batch)
    yield again._replace(name="interleaved", meaning=TURNS), _taking_turns(job, programs, batch, other)
    if job.graph.static:  # the source is padded to its full length already
        unread = "other values in the padding and in the slots not yet written (a mask lets them in)"
        yield Way("unwritten", unread, batch, everything), _logits(job, programs, batch, turn=1)
    else:
        padded = more_padding(batch, job.bundle.decode.pad)
        yield Way("padded", "more padding in the source", padded, everything), _logits(job, programs, padded)
    yield Way("order", "the rows of the batch in another order", turned, backwards), _logits(job, programs, turned)
    for row in sorted({int(batch.mask.sum(axis=1).argmin()), len(batch.rows) - 1, 0}):
        single = select_rows(batch, (row,))
        yield Way("alone", "alone instead of in a batch", single, (row,)), _logits(job, programs, single)
    fresh = compile_parts(backend, job)
    _long_first(job, fresh, batch)
    order = "a long cache first, then short ones (a kernel kept for one length)"
    yield again._replace(name="long first", meaning=order), _logits(job, fresh, batch)
    for program in (*fresh.values(), *programs.values()):
        program.close()


def _beside(job: Job, batch: Batch) -> Optional[Batch]:
    """Another traced batch that runs on the same programs: a static graph has others for another length of source."""
    part = job.graph.part("step", batch.ids.shape[1])
    others = (one for one in job.golden.batches if one is not batch)
    return next((one for one in others if job.graph.part("step", one.ids.shape[1]) == part), None)


def _logits(job: Job, programs: Mapping[str, Program], batch: Batch, turn: int = 0) -> Iterator[np.ndarray]:
    """Logits of a forced replay, [batch, vocabulary] a step. Raises Stopped where there are none."""
    decoder = Decoder(programs, job.graph, job.bundle.dims, turn)
    decoder.encode(batch.ids, batch.mask)
    fed = np.full(len(batch.rows), job.bundle.decode.start, np.int64)
    for step in range(batch.tokens.shape[1]):
        job.beat()
        yield np.array(decoder.scores(fed))
        fed = batch.tokens[:, step].copy()


def _long_first(job: Job, programs: Mapping[str, Program], batch: Batch) -> None:
    """Make the step part's first inference one with the golden's longest cache of this batch."""
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    longest = select_rows(batch, (0,))
    decoder.encode(longest.ids, longest.mask)
    trace = batch.trace
    assert trace is not None
    steps = max(trace.steps) - 1
    places = trace.starts()[:steps]
    cache: Dict[str, np.ndarray] = {}
    for port in job.graph.part("step").inputs:
        kind = kv_of(port.name)
        if kind is None:
            continue
        if not kind.cross:
            values = job.bundle.array("trace_self")[kind.layer, kind.side][places]
        elif decoder.has(port.name):
            continue
        else:  # split layout: the first part, which is not run here, would have made it
            stop = batch.source_start + longest.ids.shape[1]
            values = job.bundle.array("trace_cross")[kind.layer, kind.side][batch.source_start : stop]
        cache[port.name] = np.ascontiguousarray(values.transpose(1, 0, 2)[None]).astype(port.dtype)
    decoder.resume(steps, cache)
    decoder.step(longest.tokens[:, steps - 1].copy())


def _taking_turns(job: Job, programs: Mapping[str, Program], batch: Batch, other: Batch) -> Iterator[np.ndarray]:
    """Logits of a batch while another one is decoded on the same programs, a step of each in turn."""
    theirs = _logits(job, programs, other)
    for logits in _logits(job, programs, batch):
        next(theirs, None)
        yield logits


def _compare(
    batch: Batch, base: List[np.ndarray], way: Way, outputs: Iterator[np.ndarray]
) -> Tuple[float, int, int, bool, int]:
    """Largest gap to the base, its first large step and batch row, whether all bits agree, and elements compared."""
    worst, where, exact, compared = 0.0, (0, 0), True, 0
    for step, logits in enumerate(outputs):
        active = [index for index, row in enumerate(way.rows) if batch.steps[row] > step]
        mine, theirs = logits[active], base[step][[way.rows[index] for index in active]]
        compared += mine.size
        if exact and np.array_equal(mine, theirs):
            continue
        exact = False
        gaps = careful_gap(mine.astype(np.float64), theirs.astype(np.float64))
        if gaps.max() > 10 * worst:  # the step at which it starts says more than the largest one
            where = (step, way.rows[active[int(gaps.argmax())]])
        worst = max(worst, float(gaps.max()))
    return worst, where[0], where[1], exact, compared
