"""The conformance run as pytest sees it: options, what a verdict is to a test, exit codes.

It acts only when items of ``harness/suite`` are to be collected. ``-p harness.plugin`` in pyproject.toml loads it before
any other plugin, so that the workers import their runtimes while pytest and the host still import their own modules;
what the host needs after that is imported where it is used, for the same reason.
"""

import argparse
import gc
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.cell import span
from harness.launch import EMBEDDED, Launch, Options
from harness.replay.host import Limits
from harness.replay.select import ROOT, UnknownBackend

if TYPE_CHECKING:
    from harness.campaign import Campaign
    from harness.rows import Row

SUITE = Path(ROOT) / "harness" / "suite"
LAUNCH = pytest.StashKey[Launch]()
CAMPAIGN: "pytest.StashKey[Campaign]" = pytest.StashKey()
PROBLEM = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    says = "does this runtime decode like PyTorch? example: pytest --backend=ort,openvino --opset=12-17"
    add = parser.getgroup("conformance", says).addoption
    add(
        "--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class, several with commas (default: ort)"
    )
    add("--bundle", type=Path, default=EMBEDDED, help="folder made by `conform record` (default: the embedded one)")
    add("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 14 or 12-17 (default: all)")
    add("--layout", choices=["split", "unified"], help="only this layout (default: all)")
    add("--exporter", help="only graphs of this exporter, e.g. torchscript or dynamo (default: all)")
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


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    known = early_config.known_args_namespace
    _launch(early_config, known, known.file_or_dir or _default_paths(early_config))


def pytest_configure(config: pytest.Config) -> None:
    if LAUNCH in config.stash and not _reaches_suite(config, config.args):
        config.stash[LAUNCH].stop()
        del config.stash[LAUNCH]
    elif LAUNCH not in config.stash:  # the plugin was loaded late, by conftest.py
        _launch(config, config.option, config.args)


def _default_paths(config: pytest.Config) -> list[str]:
    here = config.invocation_params.dir
    return config.getini("testpaths") if here == config.rootpath else [str(here)]


def _launch(config: pytest.Config, wish: argparse.Namespace, paths: list[str]) -> None:
    """Start the workers when this invocation will collect the suite. Raises UsageError."""
    if wish.help or wish.version or not _reaches_suite(config, paths):
        return
    if getattr(wish, "numprocesses", None):
        raise pytest.UsageError(
            "-n: a runtime has one worker, and cost figures need the box to themselves; leave -n out"
        )
    python = wish.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise pytest.UsageError(f"--backend-python={python}: no such interpreter; give the path of a python")
    backends = [text.strip() for text in wish.backend.split(",") if text.strip()]
    if not backends:
        raise pytest.UsageError("--backend= names no backend; give one, e.g. --backend=ort")
    options = Options(
        backends,
        wish.bundle,
        wish.opset,
        wish.layout,
        wish.precision,
        python,
        Limits(wish.cell_timeout, int(wish.memory_limit * 2**30)),
        wish.results,
        wish.resume,
        wish.allow_absent,
        wish.exporter,
    )
    try:
        config.stash[LAUNCH] = Launch(options)
    except (UnknownBackend, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _reaches_suite(config: pytest.Config, paths: list[str]) -> bool:
    """Whether a path is the suite, a folder that holds it, or a file or item in it."""
    places = [(config.invocation_params.dir / path.split("::")[0]).resolve() for path in paths]
    return any(place in (SUITE, *SUITE.parents) or SUITE in place.parents for place in places)


def _campaign(config: pytest.Config) -> "Campaign | None":
    from harness.bundle import BundleError
    from harness.campaign import Campaign
    from harness.expectations import ExpectationError

    if CAMPAIGN not in config.stash and PROBLEM not in config.stash and LAUNCH in config.stash:
        try:
            config.stash[CAMPAIGN] = Campaign(config.stash[LAUNCH])
        except (BundleError, ExpectationError, OSError) as error:
            # Raised while collecting, it would be one broken test file among others; collection_modifyitems ends the run.
            config.stash[PROBLEM] = str(error)
    return config.stash.get(CAMPAIGN, None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "question" in metafunc.fixturenames:
        running = _campaign(metafunc.config)
        if running is None and PROBLEM not in metafunc.config.stash:
            metafunc.config.stash[PROBLEM] = (
                "the suite was not asked for by its path; run pytest, or pytest harness/suite"
            )
        questions = running.questions() if running else []
        metafunc.parametrize("question", questions, ids=[question.id for question in questions])


@pytest.fixture(scope="session")
def campaign(pytestconfig: pytest.Config) -> "Campaign":
    return pytestconfig.stash[CAMPAIGN]


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    if PROBLEM in config.stash:
        raise pytest.UsageError(config.stash[PROBLEM])


def pytest_collection_finish(session: pytest.Session) -> None:
    running = session.config.stash.get(CAMPAIGN, None)
    if running is None:
        return
    if session.config.option.collectonly:
        return
    try:
        running.only(item.callspec.params["question"] for item in session.items if hasattr(item, "callspec"))
    except OSError as error:
        raise pytest.UsageError(
            f"--results={running.options.results}: {error.strerror}; give another folder"
        ) from error
    for question in running.questions():
        if question.graph is None:  # a backend that is not here says so in its row, whatever -k selects
            running.ask(question)
    if running.all_absent and not running.options.allow_absent:
        raise pytest.UsageError("; ".join(running.absences()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    running = session.config.stash.get(CAMPAIGN, None)
    if running is not None and exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = 130
    if running is not None and exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly:
        nothing = not any(target.compared for target in running.targets)
        wrong = nothing or bool(running.idle() or running.unmatched())
        session.exitstatus = exit_status(bool(running.absences()), running.options.allow_absent, wrong)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    running = config.stash.get(CAMPAIGN, None)
    if running is None or not running.rows:
        return
    from reports import matrix

    terminalreporter.section("compatibility matrix")
    terminalreporter.write_line(matrix.terminal(matrix.build(running.rows)))
    terminalreporter.section("conformance")
    for line in [*running.totals(), matrix.write_page(running.options.results)]:
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CAMPAIGN in config.stash:
        config.stash[CAMPAIGN].close()
    elif LAUNCH in config.stash:
        config.stash[LAUNCH].stop()
    if LAUNCH in config.stash:
        gc.freeze()  # else pytest and Python look through all that was imported twice more, a tenth of a short run


def conclude(row: "Row") -> None:
    """Tell pytest: return, skip, xfail, or fail with the explanation."""
    from harness.failure import describe
    from harness.judge import verdict

    outcome = verdict.STATUSES[row.status].outcome
    if outcome == "skip":
        pytest.skip(" ".join(word for word in (row.status, row.kind, row.message) if word))
    if outcome == "xfail":
        pytest.xfail(row.detail["expected"]["reason"])
    if outcome == "fail":
        pytest.fail(describe(row), pytrace=False)


def exit_status(absent: bool, allowed: bool, wrong: bool) -> int:
    """Exit code of a run in which no test failed. ``wrong``: a backend compared nothing, or an expectation matched none."""
    if absent and not allowed:
        return int(pytest.ExitCode.USAGE_ERROR)
    return int(pytest.ExitCode.TESTS_FAILED) if wrong else 0
