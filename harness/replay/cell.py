"""Replay one cell: compile, force the traced rows, decode all rows freely, measure cost. A row for each check."""

import os
import resource
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from backends.contract import Backend, Capabilities, Probe, Program, StageError
from harness.bundle import Batch, Bundle, Decode, Graph
from harness.cell import Cell
from harness.judge import tokens, verdict
from harness.replay.decoder import Decoder, Stopped
from harness.replay.trace import CHECKS as FORCED
from harness.replay.trace import Golden, TraceJudge
from harness.rows import Row

NUMERIC = (*FORCED, "tokens", "placement", "cost")
SLACK = 8
"""A free replay goes on this many steps past the longest golden row of its batch, so that a runaway shows."""


class Job(NamedTuple):
    """What is asked of one cell. ``beat`` is called as work goes on: silence means that the runtime hangs.

    ``options`` go to the adapter; ``series`` is the path that sidecar files start with, or empty for none.
    """

    golden: Golden
    graph: Graph
    checks: Sequence[str]
    options: Mapping[str, Any]
    series: str
    beat: Callable[[], None]

    @property
    def bundle(self) -> Bundle:
        return self.golden.bundle


def identify(row: Row, bundle: Bundle, graph: Graph, backend: str, probe: Probe) -> Row:
    """Fill in the fields that say which cell a row is of."""
    cell = name_cell(graph, backend, probe)
    row.backend, row.runtime, row.version, row.device = backend, backend.split(":")[0], probe.version, probe.device
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
            return StageError("parse", "dtype", f"{port.name} is {port.dtype}, which the adapter does not take")
        if not can.dynamic_dims and any(isinstance(dim, str) for dim in port.shape):
            return StageError("parse", "shape", f"{port.name} has dynamic dimensions, which the adapter does not take")
    return None


def replay(backend: Backend, probe: Probe, job: Job) -> Iterator[Row]:
    """Answer each check that is asked, as the answers come.

    A StageError ends the cell, and gives its status to every check not yet answered. Other exceptions are the caller's.
    """
    asked = [check for check in NUMERIC if check in job.checks]
    began = time.perf_counter()
    try:
        refused = lacking(job.graph, backend.capabilities)
        if refused:
            raise refused
        for row in _answers(backend, probe, job, asked):
            if row.check in asked:
                asked.remove(row.check)
                row.seconds = round(time.perf_counter() - began, 4)
                yield row
    except StageError as error:
        status, seconds = verdict.of_refusal(error.stage, error.kind), round(time.perf_counter() - began, 4)
        for check in asked:
            yield Row(check, status, error.stage, error.kind, message=first_line(error.message), seconds=seconds,
                      detail={"said": error.message[-4000:]})  # fmt: skip


def first_line(text: str) -> str:
    """The first line that says something, cut to what a table can hold."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def _answers(backend: Backend, probe: Probe, job: Job, asked: Sequence[str]) -> Iterator[Row]:
    programs = _compile(backend, job)
    if set(asked) & set(FORCED):
        judge = TraceJudge(job.golden, job.graph)
        ran = force(job, programs, judge)
        series = _save(job, "trace", judge.saved())
        for row in judge.rows():
            row.series = series
            row.detail["seconds"] = {"replay": ran, "compare": judge.seconds}
            yield row
    if "tokens" in asked:
        yield judge_tokens(job, programs)
    if "placement" in asked:
        yield judge_placement(probe, programs)
    for program in programs.values():
        program.close()
    if "cost" in asked:
        yield measure_cost(backend, job)


def _save(job: Job, kind: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Write a sidecar file before the row that names it. Returns its path from the results folder on."""
    if not job.series:
        return ""
    place = f"{job.series}.{kind}.npz"
    os.makedirs(os.path.dirname(place), exist_ok=True)
    np.savez_compressed(place, **arrays)  # type: ignore[arg-type]  # numpy types keywords as its own flags
    return "/".join(place.split(os.sep)[-2:])


def _compile(backend: Backend, job: Job) -> Dict[str, Program]:
    programs = {}
    for part in job.graph.parts:
        job.beat()
        programs[part.name] = backend.compile(part, dict(job.options))
    job.beat()
    return programs


def force(job: Job, programs: Mapping[str, Program], judge: TraceJudge) -> float:
    """Feed the golden's tokens; the runtime keeps its own cache. Nothing has run on these programs before.

    Returns the seconds spent in the runtime. A batch that cannot go on is a miss at its step; the next ones still run.
    """
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    spent = 0.0
    for batch in job.golden.batches:
        step = -1
        try:
            began = time.perf_counter()
            outputs = decoder.encode(batch.ids, batch.mask)
            spent += time.perf_counter() - began
            judge.encoder(batch, outputs)
            fed = np.full(len(batch.rows), job.bundle.decode.start, np.int64)
            for step in range(batch.tokens.shape[1]):
                job.beat()
                part, past = decoder.part(), decoder.cache()
                began = time.perf_counter()
                outputs = decoder.step(fed)
                spent += time.perf_counter() - began
                judge.step(batch, step, part, past, outputs)
                fed = batch.tokens[:, step].copy()
        except Stopped as stop:
            judge.stopped(batch, step, "kv_shape", str(stop))
        except StageError as error:
            where = "in the encoder" if step < 0 else f"at step {step}"
            judge.stopped(batch, step, error.kind, f"refused {where}: {first_line(error.message)}")
    return spent


def decode_free(
    decoder: Decoder, batch: Batch, rules: Decode, beat: Callable[[], None]
) -> Tuple[List[np.ndarray], List[List[int]]]:
    """Greedy decode of one batch. Returns each row's ids [steps] int64, end token included, and the steps at which a
    suppressed id had the largest logit (the next best was taken). Raises Stopped where the logits are not usable."""
    decoder.encode(batch.ids, batch.mask)
    count, limit = len(batch.rows), min(rules.max_steps, max(batch.steps) + SLACK)
    suppressed = np.array(rules.suppress, np.int64)
    chosen = np.full((count, limit), rules.pad, np.int64)
    lengths = np.full(count, limit)
    forbidden: List[List[int]] = [[] for _ in range(count)]
    fed, open_rows = np.full(count, rules.start, np.int64), np.ones(count, bool)
    for step in range(limit):
        beat()
        logits = decoder.step(fed).get("logits")
        if logits is None or logits.ndim != 3 or len(logits) != count:
            raise Stopped("logits", f"no usable logits at step {step}")
        scores = logits[:, -1]
        fed = scores.argmax(axis=1)
        wrong = np.isin(fed, suppressed) & open_rows
        if wrong.any():
            for row in np.flatnonzero(wrong):
                forbidden[row].append(step)
            scores = scores.copy()
            scores[:, suppressed] = -np.inf
            fed = scores.argmax(axis=1)
        fed = np.where(open_rows, fed, rules.pad).astype(np.int64)
        chosen[:, step] = fed
        ended = open_rows & (fed == rules.eos)
        lengths[ended] = step + 1
        open_rows &= ~ended
        if not open_rows.any():
            break
    return [chosen[row, : lengths[row]] for row in range(count)], forbidden


def judge_tokens(job: Job, programs: Mapping[str, Program]) -> Row:
    """Decode every corpus row freely and judge it against the golden's tokens; the sidecar file gets the hypotheses."""
    bundle, rules = job.bundle, job.bundle.decode
    tie = 2 * job.golden.tensors["logits"][2].tail
    verdicts: List[Tuple[int, tokens.Verdict]] = []
    hypotheses: Dict[int, np.ndarray] = {}
    decoder = Decoder(programs, job.graph, bundle.dims)
    for batch in bundle.batches("free"):
        try:
            decoded, forbidden = decode_free(decoder, batch, rules, job.beat)
        except (Stopped, StageError) as error:
            stop = tokens.Verdict("DIVERGED", decoder.position, f"stopped at step {decoder.position}: {error}")
            verdicts += [(row, stop) for row in batch.rows]
            continue
        for row, ids, banned in zip(batch.rows, decoded, forbidden):
            at = bundle.token_slice(row)
            hypotheses[row] = ids
            golden = bundle.array("tokens")[at]
            top_ids, top_logits = bundle.array("top_ids")[at], bundle.array("top_logits")[at]
            # Where the golden's own best is forbidden too, choosing the next best is what PyTorch did.
            banned = [step for step in banned if step >= len(golden) or top_ids[step][0] not in rules.suppress]
            verdicts.append((row, tokens.judge_row(ids, golden, top_ids, top_logits, tie, rules.eos, banned)))
    found = [hypotheses.get(row, np.zeros(0, np.int64)) for row in range(len(bundle.rows))]
    row = _token_row(bundle, verdicts, tie)
    starts = np.cumsum([0] + [len(ids) for ids in found])
    row.series = _save(job, "tokens", {"tokens": np.concatenate(found), "token_starts": starts})
    return row


def _token_row(bundle: Bundle, verdicts: Sequence[Tuple[int, tokens.Verdict]], tie: float) -> Row:
    counts = {word: sum(found.word == word for _, found in verdicts) for word in tokens.WORDS}
    compared = sum(len(bundle.tokens(row)) for row, _ in verdicts)
    status = verdict.of_row(compared, counts["DIVERGED"])
    notable = [(bundle.rows[row].id, found) for row, found in verdicts if found.word != "MATCH"]
    notable.sort(key=lambda item: (item[1].word != "DIVERGED", item[1].step or 0))
    result = Row(
        "tokens", status, metric="rows diverged", value=float(counts["DIVERGED"]), bound=0.0, compared=compared
    )
    result.detail = {
        "rows": counts,
        "tie_bound": tie,
        "notable": [[name, found.word, found.step, found.message] for name, found in notable[:20]],
        "ties": [name for name, found in notable if found.word == "TIE"],
    }
    result.message = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if counts["DIVERGED"]:
        result.sentence, result.step = notable[0][0], notable[0][1].step
        result.message += f"; {result.sentence}: {notable[0][1].message}"
    return result


def judge_placement(probe: Probe, programs: Mapping[str, Program]) -> Row:
    """Whether the device and precision that the cell's name says did the work, in the runtime's own words."""
    asked = (probe.device, probe.precision)
    row = Row("placement", "PASS", metric="parts elsewhere", value=0.0, bound=0.0, compared=len(programs))
    for name, program in programs.items():
        found = program.placement()
        if found is None:
            row.status, row.message = "UNVERIFIED", f"{name}: the runtime gives no proof of what did the work"
            return row
        row.detail[name] = found.evidence
        if (found.device, found.precision) != asked:
            row.status, row.value = "FAIL", (row.value or 0) + 1
            row.message = f"{name} ran on {found.device} in {found.precision}, asked for {asked[0]} in {asked[1]}"
    return row


def measure_cost(backend: Backend, job: Job) -> Row:
    """Time a forced replay of the first traced batch on programs of its own. Seconds are wall time."""
    began = time.perf_counter()
    programs = _compile(backend, job)
    load = time.perf_counter() - began
    batch, seconds = job.golden.batches[0], []
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    began = time.perf_counter()
    decoder.encode(batch.ids, batch.mask)
    encoder = time.perf_counter() - began
    fed = np.full(len(batch.rows), job.bundle.decode.start, np.int64)
    try:
        for step in range(batch.tokens.shape[1]):
            job.beat()
            began = time.perf_counter()
            decoder.step(fed)
            seconds.append(time.perf_counter() - began)
            fed = batch.tokens[:, step].copy()
    except Stopped as stop:
        return Row("cost", "FAIL", message=f"the timed replay stopped: {stop}")
    for program in programs.values():
        program.close()
    # ru_maxrss is in KiB on Linux, in bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
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
        "peak_memory_bytes": peak,
        "threads": job.options.get("threads", 0) or os.cpu_count(),
        "unit": "timed steps",
    }
    row.message = f"{p50 * 1e3:.2f} ms a step of {len(batch.rows)}, {row.detail['tokens_per_second']:.0f} tokens/s"
    return row
