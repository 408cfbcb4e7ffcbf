"""The conformance run as pytest sees it: options, what a verdict is to a test, exit codes.

It acts only when items of ``harness/suite`` are to be collected. ``-p conform.plugin`` in pyproject.toml loads it before
any other plugin, so that the workers import their runtimes while pytest and the host still import their own modules;
what the host needs after that is imported where it is used, for the same reason.
"""

import argparse
import gc
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conform import options
from harness.core.errors import UserError
from harness.core.selectors import ROOT
from harness.run.launch import Launch, Options

if TYPE_CHECKING:
    from harness.core.rows import Row
    from harness.run.conformance import Conformance, Question
    from harness.run.outcome import Outcome

SUITE = Path(ROOT) / "harness" / "suite"
LAUNCH = pytest.StashKey[Launch]()
RUN: "pytest.StashKey[Conformance]" = pytest.StashKey()
PROBLEM = pytest.StashKey[str]()
SHARED: "pytest.StashKey[tuple[Options, list[Outcome]]]" = pytest.StashKey()
"""What pytest-xdist's workers have sent back, in the process that started them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


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


def _launch(config: pytest.Config, values: argparse.Namespace, paths: list[str]) -> None:
    """Start the workers when this invocation will collect the suite. Raises UsageError."""
    if values.help or values.version or not _reaches_suite(config, paths):
        return
    try:
        asked = options.read(values, getattr(config, "workerinput", None))
        if getattr(values, "numprocesses", None) and not asked.shared:
            _check(asked)
            config.stash[SHARED] = (asked, [])
        else:
            config.stash[LAUNCH] = Launch(asked)
    except (UserError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _check(asked: Options) -> None:
    """Under ``-n`` pytest-xdist's processes run the cells: what is wrong for all of them is said once, here. Raises
    UserError."""
    from harness.core.bundle import Bundle
    from harness.run import expectations
    from harness.run.launch import selected

    if asked.resume or asked.reuse:
        raise UserError("--resume and --reuse take up the rows of one process; leave -n out")
    Bundle(str(asked.bundle))
    for selector in selected(asked):
        if selector.folder is None:
            expectations.load(selector.module.rpartition(".")[2])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Shares out whole cells: a cell's checks are answered by one replay."""
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
    folders = [(config.invocation_params.dir / path.split("::")[0]).resolve() for path in paths]
    return any(folder in (SUITE, *SUITE.parents) or SUITE in folder.parents for folder in folders)


def _opened(config: pytest.Config) -> "Conformance | None":
    """The run, opened when it is first needed."""
    from harness.run.conformance import Conformance

    if RUN not in config.stash and PROBLEM not in config.stash and LAUNCH in config.stash:
        try:
            config.stash[RUN] = Conformance(config.stash[LAUNCH])
        except (UserError, OSError) as error:
            # Raised while collecting, it would be one broken test file among others; collection_modifyitems ends the run.
            config.stash[PROBLEM] = str(error)
    return config.stash.get(RUN, None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "question" in metafunc.fixturenames:
        run = _opened(metafunc.config)
        if run is None and PROBLEM not in metafunc.config.stash:
            metafunc.config.stash[PROBLEM] = (
                "the suite was not asked for by its path; run pytest, or pytest harness/suite"
            )
        questions = run.questions() if run else []
        metafunc.parametrize("question", questions, ids=[question.id for question in questions])


@pytest.fixture(scope="session")
def conformance(pytestconfig: pytest.Config) -> "Conformance":
    return pytestconfig.stash[RUN]


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    if PROBLEM in config.stash:
        raise pytest.UsageError(config.stash[PROBLEM])


def pytest_collection_finish(session: pytest.Session) -> None:
    run = session.config.stash.get(RUN, None)
    if run is None or session.config.option.collectonly:
        return
    try:
        run.start(filter(None, map(_question, session.items)))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        raise pytest.UsageError(f"--results={run.options.results}: {error.strerror}; give another folder") from error
    importlib.import_module("reports.matrix_page")  # needed at the end, and imported now, while the workers replay
    if run.all_absent and not run.options.allow_absent and not run.options.shared:
        raise pytest.UsageError("; ".join(run.absences().values()))


def _question(item: pytest.Item | None) -> "Question | None":
    """What an item of the suite asks; None for any other test."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("question") if callspec else None


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    run = item.config.stash.get(RUN, None)
    done, coming = _question(item), _question(nextitem)
    if run is None or done is None or not run.side_by_side or item.config.option.verbose < 0:
        return
    if coming is None or (done.target, done.check == "cost") != (coming.target, coming.check == "cost"):
        item.config.pluginmanager.getplugin("terminalreporter").write_line(f" {run.progress(done)}")


def _outcome(config: pytest.Config) -> "tuple[Options, Outcome] | None":
    """Of this process's run, or of the parts that others ran."""
    from harness.run.outcome import joined

    if RUN in config.stash:
        return config.stash[RUN].options, config.stash[RUN].outcome()
    asked, parts = config.stash.get(SHARED, (None, None))
    return (asked, joined(parts)) if asked and parts else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if config.option.collectonly or not (RUN in config.stash or SHARED in config.stash):
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
    run = config.stash.get(RUN, None)
    if config.option.collectonly or (run is not None and not run.rows):
        return
    ended = _outcome(config)
    if ended is None:
        return
    from harness.core.rowfiles import read
    from harness.core.rows import newest
    from reports import matrix, matrix_page

    asked, outcome = ended
    rows = run.rows if run else newest(row for path in outcome.files for row in read(path))
    if config.option.verbose >= 0:
        terminalreporter.section("compatibility matrix")
        terminalreporter.write_line(matrix_page.terminal(matrix.build(rows)))
        terminalreporter.section("conformance")
    for line in [*outcome.lines(rows), matrix_page.write_page(asked.results)]:
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        config.stash[RUN].close()
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
