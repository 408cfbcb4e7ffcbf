"""The worker's side of isolation, ``python -m harness.replay.worker BUNDLE SELECTOR``: read a request a line, answer in
lines of JSON.

The answers go out on the original standard output; what a runtime prints to either stream goes to the log that the host
keeps as standard error. Requests:

    {"graph": id, "checks": [...], "series": path, "options": {...}, "alone": bool, "keep": folder}    replay a cell
    {"graph": id, "explain": [answers], "tried": {knob: what came of it}, "options": {...}}            look for the culprit
    {"test": {"name": ..., "model": path, "data": path}}                                               an ONNX node test

Answers: ``probe`` with ``surroundings``, ``depth`` and what is ``missing`` to go deeper, ``absent``, ``unknown`` or
``error`` once; then ``beat``, ``answer``, ``trying`` (a knob), and ``done`` after each request.
"""

import json
import os
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, TextIO

from backends.contract import Absent, Backend, Probe
from harness.core import selectors, verdict
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.messages import one_line
from harness.core.rows import Answer, answer_from, to_json
from harness.core.surroundings import surroundings
from harness.judge.golden import Golden
from harness.replay.cell import replay
from harness.replay.decoder import AdapterError
from harness.replay.diagnose import explain
from harness.replay.job import Job
from harness.replay.node import run_test

BEAT_SECONDS = 0.5
Emit = Callable[[Answer], None]


def serve(path: str, selector: selectors.Selector) -> int:
    """Answer requests until standard input ends. The host has verified the bundle."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        backend = selectors.load(selector)
        probe = backend.probe()
        words = (probe.version, probe.device, probe.precision) if isinstance(probe, Probe) else ()
        if not words or not all(isinstance(word, str) and word and "/" not in word for word in words):
            raise TypeError(f"probe() gave {probe!r}, not a Probe of three words without a slash")
    except Absent as absent:
        _send(wire, absent={"reason": absent.reason, "remedy": absent.remedy})
        return 0
    except UserError as unknown:
        _send(wire, unknown=str(unknown))
        return 0
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and it must become a row
        traceback.print_exc()
        hint = "; pip install 'numpy<2'" if isinstance(error, ImportError) and "numpy" in str(error).lower() else ""
        _send(wire, error=f"{type(error).__name__}: {one_line(str(error))}{hint}")
        return 0
    missing = {"reason": backend.missing.reason, "remedy": backend.missing.remedy} if backend.missing else None
    depth = backend.capabilities.deepest_stage
    _send(wire, probe=vars(probe), surroundings=surroundings(), depth=depth, missing=missing)
    golden = Golden(Bundle(path, verify=False), probe.precision)

    def emit(answer: Answer) -> None:
        _send(wire, answer=json.loads(to_json(answer)))

    for line in sys.stdin:
        request = json.loads(line)
        if "test" in request:
            emit(run_test(backend, probe, request["test"]))
        else:
            job = job_of(golden, request, _beat(wire), selector.name)
            if "explain" in request:
                failed = [answer_from(values) for values in request["explain"]]
                for answer in explain(
                    backend, probe, job, failed, request["tried"], lambda knob: _send(wire, trying=knob)
                ):
                    emit(answer)
            else:
                answer_cell(backend, probe, job, emit)
        _send(wire, done=1)
    sys.stderr.flush()
    os._exit(0)  # every answer is out; what a runtime does while the interpreter is torn down is nobody's verdict


def job_of(golden: Golden, request: Dict[str, Any], beat: Callable[[], None], backend: str) -> Job:
    """The job that a request asks for."""
    graph = next(graph for graph in golden.bundle.graphs if graph.id == request["graph"])
    return Job(
        golden,
        graph,
        list(request.get("checks", ())),
        request["options"],
        request.get("series", ""),
        beat,
        bool(request.get("alone", True)),
        request.get("keep", ""),
        backend,
    )


def answer_cell(backend: Backend, probe: Probe, job: Job, emit: Emit) -> List[Answer]:
    """Replay one cell; returns what was emitted. Whatever an adapter raises beside the contract's errors is an ERROR."""
    left, answers = list(job.checks), []
    try:
        for answer in replay(backend, probe, job):
            left.remove(answer.check)
            answers.append(answer)
            emit(answer)
    except Exception as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        trace = traceback.format_exc()[-4000:]
        words = str(error) if isinstance(error, AdapterError) else f"the harness failed: {error!r}"
        for check in left:
            answers.append(Answer(check, "ERROR", "run", "other", message=one_line(words), detail={"said": trace}))
            emit(answers[-1])
    return answers


def explain_failures(backend: Backend, probe: Probe, job: Job, answers: List[Answer], emit: Emit) -> None:
    """Emit what failed once more, with its culprit, from this very process. The verdicts are out already."""
    failed = [answer for answer in answers if answer.status == "FAIL" and answer.check not in verdict.UNBLAMED]
    if not failed:
        return
    try:
        for answer in explain(backend, probe, job, failed, {}, lambda knob: None):
            emit(answer)
    except Exception:  # noqa: BLE001 - the verdicts are out already
        traceback.print_exc()


def _send(wire: TextIO, **message: Any) -> None:
    wire.write(json.dumps(message) + "\n")
    wire.flush()


def _beat(wire: TextIO) -> Callable[[], None]:
    last = [0.0]

    def beat() -> None:
        now = time.monotonic()
        if now - last[0] > BEAT_SECONDS:
            last[0] = now
            _send(wire, beat=1)

    return beat


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], selectors.parse(sys.argv[2])))
