"""The conformance run as pytest sees it: options, what a verdict is to a test, exit codes.

It acts only when items of ``harness/suite`` are to be collected. ``-p conform.plugin`` in pyproject.toml loads it before
any other plugin, so that the workers import their runtimes while pytest and the host still import their own modules;
what the host needs after that is imported where it is used, for the same reason.
"""

import argparse
import gc
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backends.contract import LAYOUTS
from harness.core.arguments import layouts, span
from harness.core.errors import UserError
from harness.core.selectors import ROOT
from harness.run.launch import EMBEDDED, Launch, Options, cores, shares
from harness.run.process import Limits

if TYPE_CHECKING:
    from harness.core.rows import Row
    from harness.run.campaign import Campaign, Question
    from harness.run.outcome import Outcome

SUITE = Path(ROOT) / "harness" / "suite"
LAUNCH = pytest.StashKey[Launch]()
CAMPAIGN: "pytest.StashKey[Campaign]" = pytest.StashKey()
PROBLEM = pytest.StashKey[str]()
SHARED: "pytest.StashKey[tuple[Options, list[Outcome]]]" = pytest.StashKey()
"""What pytest-xdist's workers have sent back, in the process that started them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    says = "does this runtime decode like PyTorch? example: pytest --backend=ort,openvino --opset=12-17"
    add = parser.getgroup("conformance", says).addoption
    add(
        "--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class, several with commas (default: ort)"
    )
    add("--bundle", type=Path, default=EMBEDDED, help="folder made by `conform record` (default: the embedded one)")
    add("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 14 or 12-17 (default: all)")
    add("--layout", type=layouts, help=f"only these, with commas: {', '.join(LAYOUTS)} (default: all)")
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
    add(
        "--resume",
        action="store_true",
        help="continue the newest unfinished run of equal arguments, bundle, harness and packages",
    )
    add(
        "--reuse",
        action="store_true",
        help="do not ask again what earlier runs in --results settled and nothing changed",
    )
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
    python = wish.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise pytest.UsageError(f"--backend-python={python}: no such interpreter; give the path of a python")
    backends = [text.strip() for text in wish.backend.split(",") if text.strip()]
    if not backends:
        raise pytest.UsageError("--backend= names no backend; give one, e.g. --backend=ort")
    other = getattr(config, "workerinput", None)  # of a process of pytest-xdist
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
        wish.reuse,
        wish.allow_absent,
        wish.exporter,
        shared=bool(other),
        share=shares(other["workercount"])[int(other["workerid"][2:]) % cores()] if other else frozenset(),
    )
    try:
        if getattr(wish, "numprocesses", None) and not options.shared:
            _share(config, options)
        else:
            config.stash[LAUNCH] = Launch(options)
    except (UserError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _share(config: pytest.Config, options: Options) -> None:
    """Under ``-n`` pytest-xdist's processes run the cells. What is wrong for all of them is said once, here."""
    from harness.core.bundle import Bundle
    from harness.run import expectations
    from harness.run.launch import selected

    if options.resume or options.reuse:
        raise pytest.UsageError("--resume and --reuse take up the rows of one process; leave -n out")
    try:
        Bundle(str(options.bundle))
        for selector in selected(options):
            if selector.folder is None:
                expectations.load(selector.module.rpartition(".")[2])
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[SHARED] = (options, [])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Shares out whole cells: a cell's checks are answers of one replay."""
    if SHARED not in config.stash or config.option.dist != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByCell(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.rpartition("-")[0]

    return ByCell(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    from harness.run.outcome import Outcome

    sent = getattr(node, "workeroutput", {}).get("conformance")
    if sent is not None and SHARED in node.config.stash:
        node.config.stash[SHARED][1].append(Outcome(**sent))


def _reaches_suite(config: pytest.Config, paths: list[str]) -> bool:
    """Whether a path is the suite, a folder that holds it, or a file or item in it."""
    places = [(config.invocation_params.dir / path.split("::")[0]).resolve() for path in paths]
    return any(place in (SUITE, *SUITE.parents) or SUITE in place.parents for place in places)


def _campaign(config: pytest.Config) -> "Campaign | None":

    from harness.run.campaign import Campaign

    if CAMPAIGN not in config.stash and PROBLEM not in config.stash and LAUNCH in config.stash:
        try:
            config.stash[CAMPAIGN] = Campaign(config.stash[LAUNCH])
        except (UserError, OSError) as error:
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
        running.only(filter(None, map(_question, session.items)))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        raise pytest.UsageError(
            f"--results={running.options.results}: {error.strerror}; give another folder"
        ) from error
    for question in running.questions():
        if question.graph is None:  # a backend that is not here says so in its row, whatever -k selects
            running.ask(question)
    if running.all_absent and not running.options.allow_absent and not running.options.shared:
        raise pytest.UsageError("; ".join(running.absences().values()))


def _question(item: pytest.Item | None) -> "Question | None":
    """What an item of the suite asks; None for any other test."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("question") if callspec else None


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    running = item.config.stash.get(CAMPAIGN, None)
    done, coming = _question(item), _question(nextitem)
    if running is None or done is None or not running.side_by_side or item.config.option.verbose < 0:
        return
    if coming is None or (done.target, done.check == "cost") != (coming.target, coming.check == "cost"):
        item.config.pluginmanager.getplugin("terminalreporter").write_line(f" {running.progress(done)}")


def _outcome(config: pytest.Config) -> "tuple[Options, Outcome] | None":
    """Of this process's run, or of the parts that others ran."""
    from harness.run.outcome import joined

    if CAMPAIGN in config.stash:
        return config.stash[CAMPAIGN].options, config.stash[CAMPAIGN].outcome()
    options, parts = config.stash.get(SHARED, (None, None))
    return (options, joined(parts)) if options and parts else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if config.option.collectonly or not (CAMPAIGN in config.stash or SHARED in config.stash):
        return
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = 130
        return
    ended = _outcome(config) if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else None
    if ended and hasattr(config, "workeroutput"):
        config.workeroutput["conformance"] = ended[1].plain()
    elif ended and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = ended[1].exit_code(ended[0].allow_absent)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    running = config.stash.get(CAMPAIGN, None)
    if config.option.collectonly or (running is not None and not running.rows):
        return
    ended = _outcome(config)
    if ended is None:
        return
    from harness.core.rowfiles import read
    from reports import matrix, matrix_page

    options, outcome = ended
    rows = running.rows if running else [row for place in outcome.files for row in read(place)]
    if config.option.verbose >= 0:
        terminalreporter.section("compatibility matrix")
        terminalreporter.write_line(matrix_page.terminal(matrix.build(rows)))
        terminalreporter.section("conformance")
    for line in [*outcome.lines(rows), matrix_page.write_page(options.results)]:
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
    from conform.failure import describe
    from harness.core import verdict

    outcome = verdict.STATUSES[row.status].outcome
    if outcome == "skip":
        pytest.skip(" ".join(word for word in (row.status, row.kind, row.message) if word))
    if outcome == "xfail":
        pytest.xfail(row.detail["expected"]["reason"])
    if outcome == "fail":
        pytest.fail(describe(row), pytrace=False)
