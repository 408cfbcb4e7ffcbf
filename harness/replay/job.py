"""What a worker is asked to do with one graph, and what every check of it needs."""

import os
import re
from typing import Any, Callable, Dict, Mapping, NamedTuple, Sequence

import numpy as np

from backends.contract import Backend, Program, StageError
from harness.bundle import Bundle, Graph
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
    programs = {}
    for part in job.graph.parts:
        job.beat()
        try:
            programs[part.name] = backend.compile(part, dict(job.options))
        except StageError:
            raise
        except Exception as error:
            raise AdapterError(error) from error
    job.beat()
    return programs


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
