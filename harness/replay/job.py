"""What a worker is asked to do with one graph, and what every check of it needs."""

import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from backends.contract import STAGES, Backend, Part, Program, StageError
from backends.staged import Reached
from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.core.rows import Row
from harness.replay.decoder import AdapterError
from harness.replay.trace import Golden


class Job(NamedTuple):
    """What is asked of one cell. ``beat`` is called as work goes on: silence means that the runtime hangs.

    ``alone``: no other worker runs beside this one, else the cost check gives no figures. ``options`` go to the adapter;
    ``series`` is the path that sidecar files start with, or empty for none.
    """

    golden: Golden
    graph: Graph
    checks: Sequence[str]
    options: Mapping[str, Any]
    series: str
    beat: Callable[[], None]
    alone: bool = True

    @property
    def bundle(self) -> Bundle:
        return self.golden.bundle

    def save(self, kind: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write a sidecar file before the row that names it. Returns its path from the results folder on."""
        if not self.series:
            return ""
        place = f"{self.series}.{kind}.npz"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        np.savez_compressed(place, **arrays)  # type: ignore[arg-type]  # numpy types keywords as its own flags
        return "/".join(place.split(os.sep)[-2:])


def compile_parts(backend: Backend, job: Job) -> Dict[str, Program]:
    """Every part made ready. Raises what `compile_part` does; Reached only when no part is refused."""
    programs: Dict[str, Program] = {}
    short: List[Reached] = []
    for part in job.graph.parts:
        job.beat()
        try:
            programs[part.name] = compile_part(backend, part, job.options)
        except Reached as reached:  # the other parts may be refused yet
            short.append(reached)
    job.beat()
    if short:
        raise min(short, key=lambda one: STAGES.index(one.stage))
    return programs


def compile_part(backend: Backend, part: Part, options: Mapping[str, Any]) -> Program:
    """One part made ready; ``backend.stages`` gets what that took. Raises StageError, Reached, and AdapterError for
    whatever else an adapter raises."""
    known, began = len(backend.stages), time.perf_counter()
    try:
        program = backend.compile(part, dict(options))
    except (StageError, Reached):
        raise
    except Exception as error:
        raise AdapterError(error) from error
    if len(backend.stages) == known:  # an interpreter: loading is all that it does
        took = round(time.perf_counter() - began, 4)
        backend.stages.append({"part": part.name, "stage": "load", "seconds": took})
    return program


def short_of_running(check: str, reached: Reached, stages: Sequence[Mapping[str, Any]]) -> Row:
    """The answer to a check where parts were only parsed, or built: nothing ran, so nothing was compared."""
    took = sum(one.get("build_seconds", one["seconds"]) for one in stages)
    size = sum(one.get("bytes", 0) for one in stages)
    kind = {"parse": "parsed", "build": "built", "load": "loaded"}[reached.stage]
    made = f"{kind} in {took:.1f} s" + (f", {size / 2**20:.1f} MiB" if size else "")
    words = f"{made}; not run: {reached.absent.reason}; {reached.absent.remedy}"
    return Row(check, "ABSENT", reached.stage, kind, message=one_line(words))


NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|Failed to load model with error: "
    r"|Exception from \S+:\d+:\s*|Check '.*?' failed at \S+:\d+:\s*"
    r"|ONNX Runtime only \*guarantees\* .*? versions\. |The operator schemas and or .*? compatibility\. "
    r"|\S+\.(?:cc|cpp|h|hpp):\d+ .*?\) (?=[A-Z])"  # source line and the signature that follows it
)
"""What C++ runtimes put before what they have to say: it differs from file to file and build to build."""


def one_line(text: str) -> str:
    """A message on one line: what it says, without where in the runtime's source, cut to what a table can hold."""
    return NOISE.sub("", " ".join(text.split()))[:300]
