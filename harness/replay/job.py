"""What a worker is asked to do with one graph, and the programs that it does it with."""

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from backends.contract import STAGES, Backend, Part, Program, StageError
from backends.staged import Reached
from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.core.messages import one_line
from harness.core.rows import Answer
from harness.core.sidecars import save_arrays
from harness.judge.golden import Golden
from harness.replay.decoder import AdapterError


@dataclass(frozen=True)
class Job:
    """What is asked of one cell. ``beat`` is called as work goes on: silence means that the runtime hangs.

    ``alone``: no other worker runs beside this one, else the cost check gives no figures. ``options`` go to the adapter;
    ``series`` is the path that sidecar files start with, ``keep`` the folder of observations;
    empty for none. ``backend``: its name, which kept observations carry.
    """

    golden: Golden
    graph: Graph
    checks: Sequence[str]
    options: Mapping[str, Any]
    series: str
    beat: Callable[[], None]
    alone: bool = True
    keep: str = ""
    backend: str = ""
    clock: Dict[str, float] = field(default_factory=lambda: {"replay": 0.0, "compare": 0.0})
    """Seconds spent in the runtime during forced replays, and on judging."""

    @property
    def bundle(self) -> Bundle:
        return self.golden.bundle

    def spent(self, seconds: float, on: str = "replay") -> None:
        self.clock[on] += seconds

    def save(self, kind: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write a sidecar file before the row that names it. Returns its path from the results folder on."""
        return save_arrays(self.series, kind, arrays) if self.series else ""


class Programs(Dict[str, Program]):
    """Compiled parts by name. As a context manager it closes them all; some runtimes free one with its last reference."""

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        while self:
            self.popitem()[1].close()


def compile_parts(backend: Backend, job: Job) -> Programs:
    """Every part made ready. Raises what `compile_part` does, with nothing left open; Reached only when no part is
    refused."""
    programs = Programs()
    short: List[Reached] = []
    try:
        for part in job.graph.parts:
            job.beat()
            try:
                programs[part.name] = compile_part(backend, part, job.options)
            except Reached as reached:  # the other parts may be refused yet
                short.append(reached)
        job.beat()
        if short:
            raise min(short, key=lambda reached: STAGES.index(reached.stage))
    except BaseException:
        programs.close()
        raise
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
        seconds = round(time.perf_counter() - began, 4)
        backend.stages.append({"part": part.name, "stage": "load", "seconds": seconds})
    return program


def short_of_running(check: str, reached: Reached, stages: Sequence[Mapping[str, Any]]) -> Answer:
    """The answer to a check where parts were only parsed, or built: nothing ran, so nothing was compared."""
    seconds = sum(stage.get("build_seconds", stage["seconds"]) for stage in stages)
    size = sum(stage.get("bytes", 0) for stage in stages)
    kind = {"parse": "parsed", "build": "built", "load": "loaded"}[reached.stage]
    done = f"{kind} in {seconds:.1f} s" + (f", {size / 2**20:.1f} MiB" if size else "")
    message = f"{done}; not run: {reached.absent.reason}; {reached.absent.remedy}"
    return Answer(check, "ABSENT", reached.stage, kind, message=one_line(message))
