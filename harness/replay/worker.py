"""The worker's side of isolation: read a request a line, answer in lines of JSON.

The answers go out on the original standard output; what a runtime prints to either stream goes to the log that the host
keeps as standard error. Requests: ``{"graph": id, "checks": [...], "series": path, "options": {...},
"alone": bool}`` for a cell,
``{"test": {"name": ..., "model": path, "data": path}}`` for an ONNX node test. Answers: ``probe`` with ``surroundings``,
``depth`` and what is ``missing`` to go deeper, ``absent``, ``unknown`` or ``error`` once; then ``beat``, ``row``, and
``done`` after each request.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from typing import Any, Callable, Dict, TextIO

from backends.contract import Absent, Backend, Probe
from harness.core import selectors
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.rows import Row, to_json
from harness.replay.cell import replay
from harness.replay.cost import cpu_flags
from harness.replay.decoder import AdapterError
from harness.replay.job import Job, one_line
from harness.replay.node import run_test
from harness.replay.trace import Golden

BEAT_SECONDS = 0.5


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
        _say(wire, absent={"reason": absent.reason, "remedy": absent.remedy})
        return 0
    except UserError as unknown:
        _say(wire, unknown=str(unknown))
        return 0
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and it must become a row
        traceback.print_exc()
        hint = "; pip install 'numpy<2'" if isinstance(error, ImportError) and "numpy" in str(error).lower() else ""
        _say(wire, error=f"{type(error).__name__}: {one_line(str(error))}{hint}")
        return 0
    missing = {"reason": backend.missing.reason, "remedy": backend.missing.remedy} if backend.missing else None
    depth = backend.capabilities.deepest_stage
    _say(wire, probe=vars(probe), surroundings=surroundings(), depth=depth, missing=missing)
    bundle = Bundle(path, verify=False)
    golden = Golden(bundle, probe.precision)

    def emit(row: Row) -> None:
        _say(wire, row=json.loads(to_json(row)))

    for line in sys.stdin:
        request = json.loads(line)
        if "test" in request:
            emit(run_test(backend, probe, request["test"]))
        else:
            answer(backend, probe, golden, request, emit, _beat(wire))
        _say(wire, done=1)
    sys.stderr.flush()
    os._exit(0)  # every answer is out; what a runtime does while the interpreter is torn down is nobody's verdict


def answer(
    backend: Backend,
    probe: Probe,
    golden: Golden,
    request: Dict[str, Any],
    emit: Callable[[Row], None],
    beat: Callable[[], None],
) -> None:
    """Replay one cell. Whatever an adapter raises beside the contract's errors becomes ERROR rows."""
    graph = next(graph for graph in golden.bundle.graphs if graph.id == request["graph"])
    left, alone = list(request["checks"]), bool(request.get("alone", True))
    try:
        for row in replay(backend, probe, Job(golden, graph, left, request["options"], request["series"], beat, alone)):
            left.remove(row.check)
            emit(row)
    except Exception as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        said = traceback.format_exc()[-4000:]
        words = str(error) if isinstance(error, AdapterError) else f"the harness failed: {error!r}"
        for check in left:
            emit(Row(check, "ERROR", "run", "other", message=one_line(words), detail={"said": said}))


def surroundings() -> str:
    """Interpreter, packages by their folders' names (which hold the version) and processor."""
    packages = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            packages |= {name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))}
    return "\n".join([sys.version, os.uname().machine, *cpu_flags(), *sorted(packages)])


def _say(wire: TextIO, **answer: Any) -> None:
    wire.write(json.dumps(answer) + "\n")
    wire.flush()


def _beat(wire: TextIO) -> Callable[[], None]:
    last = [0.0]

    def beat() -> None:
        now = time.monotonic()
        if now - last[0] > BEAT_SECONDS:
            last[0] = now
            _say(wire, beat=1)

    return beat
