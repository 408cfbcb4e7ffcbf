"""The conformance run as pytest sees it: options, what a verdict is to a test, exit codes."""

import argparse
import math
import os
from pathlib import Path

import pytest

from harness.cell import span
from harness.judge import verdict
from harness.launch import EMBEDDED, Launch, Options
from harness.replay.host import Limits
from harness.replay.select import ROOT, UnknownBackend
from harness.rows import Row

SUITE = Path(ROOT) / "harness" / "suite"


def add_options(parser: pytest.Parser) -> None:
    """The options of a conformance run."""
    says = "does this runtime decode like PyTorch? example: pytest --backend=ort,openvino --opset=12-17"
    add = parser.getgroup("conformance", says).addoption
    add(
        "--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class, several with commas (default: ort)"
    )
    add("--bundle", type=Path, default=EMBEDDED, help="folder made by `conform record` (default: the embedded one)")
    add("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 14 or 12-17 (default: all)")
    add("--layout", choices=["split", "unified"], help="only this layout (default: all)")
    add("--precision", help="only graphs of this precision, e.g. fp32 (default: all)")
    add("--backend-python", help="interpreter that has the runtime (default: this one)")
    add(
        "--cell-timeout",
        type=seconds,
        default=120,
        help="seconds of silence before a worker counts as hung (default: 120)",
    )
    add("--memory-limit", type=gibibytes, default=0, help="GiB that a worker may hold (default: no limit)")
    add(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder that rows are added to; write it with = (default: results)",
    )
    add("--resume", action="store_true", help="continue the newest unfinished run of equal arguments and bundle")
    add("--allow-absent", action="store_true", help="a backend that is not here does not fail the run")


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


def launch(config: pytest.Config) -> Launch | None:
    """Start the workers when this invocation will collect the suite. Raises UsageError."""
    if config.option.help or config.option.version or not any(_reaches_suite(config, path) for path in config.args):
        return None
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            "-n: a runtime has one worker, and cost figures need the box to themselves; leave -n out"
        )
    wish = config.getoption
    python = wish("--backend-python")
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise pytest.UsageError(f"--backend-python={python}: no such interpreter; give the path of a python")
    backends = [text.strip() for text in wish("--backend").split(",") if text.strip()]
    if not backends:
        raise pytest.UsageError("--backend= names no backend; give one, e.g. --backend=ort")
    options = Options(
        backends,
        wish("--bundle"),
        wish("--opset"),
        wish("--layout"),
        wish("--precision"),
        python,
        Limits(wish("--cell-timeout"), int(wish("--memory-limit") * 2**30)),
        wish("--results"),
        wish("--resume"),
        wish("--allow-absent"),
    )
    try:
        return Launch(options)
    except (UnknownBackend, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _reaches_suite(config: pytest.Config, argument: str) -> bool:
    place = (config.invocation_params.dir / argument.split("::")[0]).resolve()
    return place in (SUITE, *SUITE.parents) or SUITE in place.parents


def explain(row: Row) -> str:
    """A failure in lines: what, where, how far, who is to blame, and the command that shows it again."""
    lines = [f"{row.cell or row.backend}  {row.check}: {row.status}"]
    if row.message:
        lines.append(f"  {row.message}")
    if row.value is not None and row.bound is not None and math.isfinite(row.value):
        floor = "" if row.floor is None else f", PyTorch's own floor {row.floor:.4g}"
        lines.append(f"  {row.metric} {row.value:.6g}, bound {row.bound:.4g}{floor}")
    where = [
        f"step {row.step}" if row.step is not None else "",
        f"sentence {row.sentence}" if row.sentence else "",
        f"tensor {row.tensor}" if row.tensor else "",
    ]
    if any(where):
        lines.append("  first: " + ", ".join(word for word in where if word))
    if row.blame:
        lines.append(f"  blame: {row.blame}" + (f", cleared by {row.knob}" if row.knob else ""))
    lines.append(f"  {row.compared:,} elements compared; stage {row.stage}")
    if row.status in ("CRASH", "TIMEOUT", "ERROR") and row.detail.get("said", "").strip():
        lines += [
            "  the worker's last words:",
            *("    " + line for line in row.detail["said"].strip().splitlines()[-12:]),
        ]
    return "\n".join([*lines, f"  again: {row.command}"])


def conclude(row: Row) -> None:
    """Tell pytest: return, skip, xfail, or fail with the explanation."""
    outcome = verdict.STATUSES[row.status].outcome
    if outcome == "skip":
        pytest.skip(" ".join(word for word in (row.status, row.kind, row.message) if word))
    if outcome == "xfail":
        pytest.xfail(row.detail["expected"]["reason"])
    if outcome == "fail":
        pytest.fail(explain(row), pytrace=False)


def exit_status(absent: bool, allowed: bool, wrong: bool) -> int:
    """Exit code of a run in which no test failed. ``wrong``: a backend compared nothing, or an expectation matched none."""
    if absent and not allowed:
        return int(pytest.ExitCode.USAGE_ERROR)
    return int(pytest.ExitCode.TESTS_FAILED) if wrong else 0
