"""The witness: the exported graphs replayed by the ``reference`` backend, through the one decode loop.

``python -m harness.golden.witness BUNDLE GRAPH...`` writes ``witness-HASH.npz`` files into the bundle and answers with
one line of JSON a graph. It runs beside PyTorch in a process of its own, with one thread, so that the numbers do
not depend on how the host was started. :func:`replay` is the host's side.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends import reference
from backends.contract import StageError, first_line
from harness.core import roles
from harness.core.batch import Batch
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.files import write_whole
from harness.core.graph import Graph
from harness.replay.decoder import CannotGoOn, ContractError, Decoder
from harness.replay.job import Programs
from harness.replay.loops import force

OUTPUTS = ("encoder", "cross", "self", "logits")
"""In the order in which a fault spreads: the first that is off names its source."""
GROSS = 1e3
"""A right export lands near the floor (ratio 1); from this multiple on it computes something else."""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def collect(bundle: Bundle, graph: Graph) -> dict[str, np.ndarray]:
    """Replay the traced batches of a graph. Returns OUTPUTS as float32, shaped as the bundle's ``trace_*``.

    Raises UserError when the reference refuses the graph or an output has another shape than the golden.
    """
    traces = {name: np.full(bundle.array(f"trace_{name}").shape, np.nan, np.float32) for name in OUTPUTS}
    backend = reference.Backend()
    try:
        programs = Programs({part.name: backend.compile(part, {"threads": 1}) for part in graph.parts})
        with programs:
            decoder = Decoder(programs, graph, bundle.dims)
            for batch in bundle.batches("forced"):
                _replay_batch(decoder, batch, bundle.decode.start, traces)
    except (StageError, CannotGoOn, ContractError, KeyError, ValueError, IndexError) as error:
        raise UserError(f"witness of {graph.id}: {first_line(error)}; the export is wrong") from error
    return traces


def _replay_batch(decoder: Decoder, batch: Batch, start: int, traces: dict[str, np.ndarray]) -> None:
    assert batch.trace is not None  # forced batches are the traced ones
    starts = batch.trace.starts()
    for step, ran in force(decoder, batch, start):
        _keep_source(batch, ran.outputs, traces)
        if step < 0:
            continue
        entries = slice(starts[step], starts[step + 1])
        active = batch.trace.active(step)
        traces["logits"][entries] = ran.outputs[roles.LOGITS][:active, -1]
        for role, array in ran.outputs.items():
            cache = roles.cache_of(role)
            if cache and not cache.cross:
                traces["self"][cache.layer, cache.side, entries] = array[:active, :, step]


def _keep_source(batch: Batch, outputs: Mapping[str, np.ndarray], traces: dict[str, np.ndarray]) -> None:
    """Copy what has an entry for each source position: encoder output and cross K/V, padding left out."""
    valid = batch.mask == 1
    rows, length = valid.shape
    entries = slice(batch.source_start, batch.source_start + int(valid.sum()))
    for role, array in outputs.items():
        cache = roles.cache_of(role)
        if role == roles.HIDDEN:
            traces["encoder"][entries] = array[:rows, :length][valid]
        elif cache and cache.cross:
            traces["cross"][cache.layer, cache.side, entries] = array.swapaxes(1, 2)[:rows, :length][valid]


def judge(bundle: Bundle, graph: Graph, traces: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest gap to the golden over the largest floor, per output. Raises UserError where it is gross or not finite."""
    ratios = {}
    for name in OUTPUTS:
        # One layer and side at a time: a copy of everything in float64 may not fit for a large model.
        index = np.ndindex(traces[name].shape[:2]) if name in ("self", "cross") else [()]
        worst = 0.0
        for at in index:
            golden, floor = bundle.array(f"trace_{name}")[at], bundle.floor(graph.precision, name)[at]
            gaps = np.abs(traces[name][at] - golden).reshape(len(golden), -1).max(axis=1)
            # A floor of zero would ask for equal bits; one unit in the last place is the least that any runtime may differ.
            noise = max(float(floor.max()), float(np.spacing(np.float32(np.abs(golden).max()))))
            ratio = float(gaps.max() / noise)
            worst = max(worst, ratio)
            if not ratio <= GROSS:
                entry = int(np.flatnonzero(~(gaps <= GROSS * noise))[0])
                raise UserError(
                    f"witness of {graph.id}: {graph.output_name(_role(name, at))} is off the golden by {gaps[entry]:.3g} at "
                    f"{_position(bundle, name, entry)} (worst: {ratio:.3g} times PyTorch's own noise); the export is wrong"
                )
        ratios[name] = round(worst, 3)
    return ratios


def _role(output: str, at: tuple[int, ...]) -> str:
    if output in ("self", "cross"):
        return roles.cache_role(at[0], output == "cross", at[1])
    return roles.HIDDEN if output == "encoder" else roles.LOGITS


def _position(bundle: Bundle, output: str, index: int) -> str:
    """The step or source position of an index of the trace, in words."""
    for batch in bundle.batches("forced"):
        assert batch.trace is not None
        if output in ("encoder", "cross"):
            rows, positions = np.nonzero(batch.mask)
            if index - batch.source_start < len(rows):
                at = index - batch.source_start
                return f"source position {positions[at]} of row {bundle.rows[batch.rows[rows[at]]].id}"
        elif index < batch.trace.start + sum(batch.steps):
            starts = batch.trace.starts()
            step = int(np.searchsorted(starts, index, side="right")) - 1
            return f"step {step} of row {bundle.rows[batch.rows[index - int(starts[step])]].id}"
    return f"index {index}"


def store(bundle: Bundle, traces: dict[str, np.ndarray]) -> str:
    """Write OUTPUTS, unless equal ones are there, as ``Bundle.witness`` reads them. Returns the file's name.

    An output is stored as the difference of its float32 bit patterns to those of the rounded golden: mostly a few units.
    Folded (0, -1, 1, -2 ... become 0, 1, 2, 3 ...) and with its four bytes in planes it compresses to a fifth.
    """
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(traces[name]).tobytes() for name in OUTPUTS))
    name = f"witness-{digest.hexdigest()[:16]}.npz"
    path = Path(bundle.path) / name
    if not path.exists():
        planes = {}
        for output in OUTPUTS:
            golden = bundle.array(f"trace_{output}").astype("<f4").view("<i4")
            difference = traces[output].astype("<f4").view("<i4") - golden
            folded = (difference << 1) ^ (difference >> 31)
            planes[output] = np.ascontiguousarray(folded.reshape(-1, 1).view(np.uint8).T)
        packed = io.BytesIO()
        np.savez_compressed(packed, **planes)  # type: ignore[arg-type]  # the stub takes a flag by name
        write_whole(path, packed.getvalue())
    return name


def replay(
    folder: Path, graphs: Sequence[str], processes: int, tick: Callable[[], object]
) -> dict[str, dict[str, Any]]:
    """Witness the named graphs of the bundle in ``folder``; ``tick`` after each.

    Returns for each graph ``file`` and ``ratios``. Raises UserError with the first problem that any process met.
    """
    shares = [share for share in (graphs[start::processes] for start in range(processes)) if share]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    answers: dict[str, dict[str, Any]] = {}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *share],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        for share in shares
    ]
    try:
        # The shares take turns, so reading them in turn keeps every pipe short and the bar moving.
        for graph in graphs:
            worker = workers[graphs.index(graph) % processes]
            assert worker.stdout is not None
            assert worker.stderr is not None
            line = worker.stdout.readline()
            answer = (
                json.loads(line) if line else {"error": f"witness of {graph}: {worker.stderr.read().strip()[-500:]}"}
            )
            if "error" in answer:
                raise UserError(answer["error"])
            answers[answer.pop("graph")] = answer
            tick()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return answers


def main(arguments: Sequence[str]) -> int:
    try:
        bundle = Bundle(arguments[0], verify=False)
        graphs = {graph.id: graph for graph in bundle.graphs}
        for name in arguments[1:]:
            traces = collect(bundle, graphs[name])
            ratios = judge(bundle, graphs[name], traces)
            print(json.dumps({"graph": name, "file": store(bundle, traces), "ratios": ratios}), flush=True)
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
