"""pytest hooks of the conformance run. They act only when items of ``harness/suite`` are collected."""

from pathlib import Path

import pytest

from harness import plugin
from harness.bundle import BundleError
from harness.expectations import ExpectationError
from harness.replay.__main__ import span
from harness.replay.host import Limits
from harness.replay.select import UnknownBackend
from reports import matrix

CAMPAIGN = pytest.StashKey[plugin.Campaign]()
PROBLEM = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(
        "conformance", "does this runtime decode like PyTorch? e.g. pytest --backend=ort,openvino --opset=14"
    )
    add = group.addoption
    add(
        "--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class, several with commas (default: ort)"
    )
    add(
        "--bundle",
        type=Path,
        default=plugin.EMBEDDED,
        help="folder made by `conform record` (default: the embedded one)",
    )
    add("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 14 or 12-17 (default: all)")
    add("--layout", choices=["split", "unified"], help="only this layout (default: all)")
    add("--precision", help="only graphs of this precision, e.g. fp32 (default: all)")
    add("--backend-python", default="", help="interpreter that has the runtime (default: this one)")
    add(
        "--cell-timeout", type=float, default=120, help="seconds of silence after which a worker is hung (default: 120)"
    )
    add("--memory-limit", type=float, default=0, help="GiB that a worker may hold (default: no limit)")
    add("--results", type=Path, default=Path("results"), help="folder that rows are added to (default: results)")
    add("--allow-absent", action="store_true", help="a backend that is not here does not fail the run")


def _start(config: pytest.Config) -> plugin.Campaign | None:
    if CAMPAIGN not in config.stash and PROBLEM not in config.stash:
        wish = config.getoption
        try:
            options = plugin.Options(
                [text.strip() for text in wish("--backend").split(",") if text.strip()],
                wish("--bundle"),
                wish("--opset"),
                wish("--layout"),
                wish("--precision"),
                plugin.python_of(wish("--backend-python")),
                Limits(wish("--cell-timeout"), int(wish("--memory-limit") * 2**30)),
                wish("--results"),
                wish("--allow-absent"),
            )
            config.stash[CAMPAIGN] = plugin.Campaign(options)
        except (BundleError, UnknownBackend, ExpectationError, OSError, pytest.UsageError) as error:
            # Raised here it would be one broken test file among others; collection_modifyitems ends the run with it.
            config.stash[PROBLEM] = str(error)
    return config.stash.get(CAMPAIGN, None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "question" in metafunc.fixturenames:
        campaign = _start(metafunc.config)
        questions = campaign.questions() if campaign else []
        metafunc.parametrize("question", questions, ids=[question.id for question in questions])


@pytest.fixture(scope="session")
def campaign(pytestconfig: pytest.Config) -> plugin.Campaign:
    return pytestconfig.stash[CAMPAIGN]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if PROBLEM in config.stash:
        raise pytest.UsageError(config.stash[PROBLEM])


def pytest_collection_finish(session: pytest.Session) -> None:
    running = session.config.stash.get(CAMPAIGN, None)
    if running is None:
        return
    running.only([item.callspec.params["question"] for item in session.items if hasattr(item, "callspec")])
    if running.all_absent and not running.options.allow_absent:
        for question in running.questions():
            running.ask(question)
        raise pytest.UsageError("; ".join(running.absences()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    running = session.config.stash.get(CAMPAIGN, None)
    if running is not None and exitstatus == 0 and not session.config.option.collectonly:
        session.exitstatus = running.exit_status()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    running = config.stash.get(CAMPAIGN, None)
    if running is None or not running.rows:
        return
    terminalreporter.section("compatibility matrix")
    terminalreporter.write_line(matrix.terminal(matrix.build(running.rows)))
    terminalreporter.section("conformance")
    for line in [*running.totals(), matrix.write_page(running.options.results)]:
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    running = config.stash.get(CAMPAIGN, None)
    if running is not None:
        running.close()
