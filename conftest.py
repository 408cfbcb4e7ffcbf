"""pytest hooks of the conformance run. They act only when items of ``harness/suite`` are to be collected.

The workers start in ``pytest_configure``; numpy and the rest of the host are imported after that, while they start.
"""

from typing import TYPE_CHECKING

import pytest

from harness import plugin
from harness.launch import Launch

if TYPE_CHECKING:
    from harness.campaign import Campaign

LAUNCH = pytest.StashKey[Launch]()
CAMPAIGN: "pytest.StashKey[Campaign]" = pytest.StashKey()
PROBLEM = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    plugin.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    started = plugin.launch(config)
    if started is not None:
        config.stash[LAUNCH] = started


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
        session.exitstatus = plugin.exit_status(bool(running.absences()), running.options.allow_absent, wrong)


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
