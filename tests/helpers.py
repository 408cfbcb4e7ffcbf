"""What several test files need: the embedded bundle, a cell judged in this process, a conformance run in its own."""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import onnx

from backends.contract import Backend, Part, Port
from harness.core.bundle import Bundle
from harness.core.rows import Answer, Row
from harness.core.verdict import NUMERIC
from harness.judge.golden import Golden
from harness.replay import worker

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "corpora" / "tiny-marian-en-zh.bundle"
MODEL = ROOT / "corpora" / "tiny-marian-en-zh"
CORPUS = ROOT / "corpora" / "corpus.tsv"


@lru_cache(maxsize=1)
def golden() -> Golden:
    return Golden(Bundle(str(EMBEDDED)), "fp32")


def judge(
    backend: Backend,
    layout: str = "unified",
    opset: int = 17,
    checks: tuple[str, ...] = NUMERIC,
    of: Golden | None = None,
    series: str = "",
    options: dict | None = None,
) -> dict[str, Row]:
    """The rows of one cell, by check, from a replay in this process: what a worker would say, failures explained.
    ``series``: the path that sidecar files start with."""
    of = of or golden()
    answers: list[Answer] = []
    graph = f"torchscript/{layout}/fp32/op{opset}"
    request = {"graph": graph, "checks": list(checks), "series": series, "options": options or {"threads": 1}}
    probe = backend.probe()
    job = worker.job_of(of, request, lambda: None, "test")
    answered = worker.answer_cell(backend, probe, job, answers.append)
    worker.explain_failures(backend, probe, job, answered, answers.append)
    return {answer.check: Row(**vars(answer), precision=probe.precision) for answer in answers}


def fixed(part: Part, folder: Path, **sizes: int) -> Part:
    """A part with its dynamic dimensions made fixed ones."""
    model = onnx.load(part.path)
    for port in (*model.graph.input, *model.graph.output):
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    onnx.save(model, folder / "fixed.onnx")

    def of(port: Port) -> Port:
        return Port(port.name, port.dtype, tuple(sizes.get(str(size), size) for size in port.shape))

    return Part(part.name, str(folder / "fixed.onnx"), tuple(map(of, part.inputs)), tuple(map(of, part.outputs)))


def run(*command: str, cwd: Path = ROOT, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, output captured."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


def conformance(results: Path, *options: str, **kwargs: str) -> subprocess.CompletedProcess[str]:
    """``pytest`` as a user runs it."""
    return run("pytest", f"--results={results}", "-p", "no:cacheprovider", *options, **kwargs)


def rows_in(results: Path) -> list[dict]:
    """The rows of a results folder as plain JSON objects, in the order of writing."""
    return [
        json.loads(line)
        for path in sorted(results.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
