"""The options of a conformance run on pytest's command line."""

import argparse
import math
import os
from pathlib import Path

import pytest

from backends.contract import LAYOUTS
from harness.core.arguments import layouts, span
from harness.core.errors import UserError
from harness.core.graph import Selection
from harness.run.launch import EMBEDDED, Options, cores, shares
from harness.run.process import Limits


def add(parser: pytest.Parser) -> None:
    """Add them as a group."""
    says = "does this runtime decode like PyTorch? example: pytest --backend=ort,openvino --opset=12-17"
    option = parser.getgroup("conformance", says).addoption
    option(
        "--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class, several with commas (default: ort)"
    )
    option("--bundle", type=Path, default=EMBEDDED, help="folder made by `conform record` (default: the embedded one)")
    option("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 14 or 12-17 (default: all)")
    option("--layout", type=layouts, help=f"only these, with commas: {', '.join(LAYOUTS)} (default: all)")
    option("--exporter", help="only graphs of this exporter, e.g. torchscript or dynamo (default: all)")
    option("--precision", help="only graphs of this precision, e.g. fp32 (default: all)")
    option("--backend-python", help="interpreter that has the runtime (default: this one)")
    option(
        "--cell-timeout",
        type=seconds,
        default=120,
        help="seconds of silence before a worker counts as hung (default: 120)",
    )
    option("--memory-limit", type=gibibytes, default=0, help="GiB that a worker may hold (default: no limit)")
    option(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder that rows are added to; write it with = (default: results)",
    )
    option(
        "--resume",
        action="store_true",
        help="continue the newest unfinished run of equal arguments, bundle, harness and packages",
    )
    option(
        "--reuse",
        action="store_true",
        help="do not rerun what earlier runs in --results settled, where nothing has changed since",
    )
    option("--allow-absent", action="store_true", help="a backend that is not here does not fail the run")
    option(
        "--keep-outputs",
        action="store_true",
        help="keep what the backends gave, under --results, for conform judge",
    )


def seconds(text: str) -> float:
    """A length of time above zero. Raises argparse's error."""
    return _number(text, 0.1, "seconds, 0.1 or more")


def gibibytes(text: str) -> float:
    """An amount of memory, 0 for no limit. Raises argparse's error."""
    return _number(text, 0, "GiB, 0 or more")


def _number(text: str, least: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}")
    return value


def read(values: argparse.Namespace, worker: dict[str, object] | None) -> Options:
    """The run that a command line asks for. ``worker``: what pytest-xdist tells a process of its own; None in any other.

    Raises UserError.
    """
    python = values.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise UserError(f"--backend-python={python}: no such interpreter; give the path of a python")
    backends = [text.strip() for text in values.backend.split(",") if text.strip()]
    if not backends:
        raise UserError("--backend= names no backend; give one, e.g. --backend=ort")
    return Options(
        backends,
        values.bundle,
        Selection(values.opset, values.layout, values.exporter, values.precision),
        python,
        Limits(values.cell_timeout, int(values.memory_limit * 2**30)),
        values.results,
        resume=values.resume,
        reuse=values.reuse,
        allow_absent=values.allow_absent,
        keep_outputs=values.keep_outputs,
        shared=worker is not None,
        share=_share(worker) if worker else frozenset(),
    )


def _share(worker: dict[str, object]) -> frozenset[int]:
    """The processors of one of pytest-xdist's processes: its number is in its name, ``gw3``."""
    count, name = int(str(worker["workercount"])), str(worker["workerid"])
    return shares(count)[int(name.removeprefix("gw")) % cores()]
