"""Engine and ledger without a process: order, attempts, what earlier runs answer, faults of a lane, and stopping."""

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.core.cell import Cell
from harness.core.identity import identity_of
from harness.core.rowfiles import Writer, read
from harness.core.rows import Answer, Row
from harness.run import engine as engine_module
from harness.run.cells import unconfirmed
from harness.run.engine import Engine
from harness.run.expectations import Expectation
from harness.run.ledger import Ledger
from harness.run.plan import Lane, Task
from harness.run.process import Limits
from harness.run.worker import Worker


class IdleWorker(Worker):
    """Never starts a process."""

    def __init__(self) -> None:
        super().__init__("", None, Limits())
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


class Numbered(Task):
    """A task that answers with PASS, or does what it was made with."""

    checks = ("logits", "cost")
    exclusive = ("cost",)

    def __init__(self, number: int, act: Callable[[Ledger], None] = lambda ledger: None) -> None:
        self.act = act
        self.identity = identity_of(Cell("fake", "1", "cpu", "torchscript", "unified", "fp32", number), "device", "b@0")

    def command(self, check: str) -> str:
        return f"again {check}"

    def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        self.act(ledger)
        for check in checks:
            ledger.record(self, Answer(check, "PASS", compared=1))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(lambda: Writer(str(tmp_path), {}))


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "cores", lambda: 2)
    monkeypatch.setattr(engine_module, "shares", lambda count: [frozenset({number}) for number in range(min(count, 2))])


def run(lanes: Sequence[Lane], ledger: Ledger, tasks: Sequence[Task]) -> Engine:
    for task in tasks:
        ledger.ask(task, task.checks)
    engine = Engine(lanes, ledger)
    engine.start()
    engine.join()
    return engine


def written(ledger: Ledger) -> list[Row]:
    return list(read(ledger.writer.path))


def test_exclusive_checks_come_last_and_every_worker_ends(ledger: Ledger) -> None:
    tasks = [Numbered(number) for number in range(9, 15)]
    workers = [IdleWorker() for _ in range(3)]
    lanes = [Lane(worker, tasks[at : at + 2]) for worker, at in zip(workers, (0, 2, 4), strict=True)]
    engine = run(lanes, ledger, tasks)
    checks = [row.check for row in written(ledger)]
    assert checks == ["logits"] * 6 + ["cost"] * 6
    assert [row.opset for row in written(ledger)][6:] == list(range(9, 15)), "one worker at a time, in the order asked"
    assert engine.side_by_side
    assert all(worker.stops for worker in workers), "the next worker needs its memory"
    assert not ledger.left


def test_lanes_share_an_iterator_of_tasks(ledger: Ledger) -> None:
    tasks = [Numbered(number) for number in range(9, 17)]
    groups = iter([tasks[at : at + 2] for at in range(0, 8, 2)])
    lanes = [Lane(IdleWorker(), itertools.chain.from_iterable(groups)) for _ in range(2)]
    run(lanes, ledger, tasks)
    assert sorted((row.opset, row.check) for row in written(ledger)) == sorted(
        (number, check) for number in range(9, 17) for check in Numbered.checks
    )


def test_lanes_run_beside_each_other(ledger: Ledger) -> None:
    both = threading.Barrier(2, timeout=20)
    tasks = [Numbered(number, lambda ledger: both.wait() and None) for number in (9, 10)]
    for task in tasks:
        task.exclusive = ()
    run([Lane(IdleWorker(), [task]) for task in tasks], ledger, tasks)
    assert len(written(ledger)) == 4


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_fault_of_the_harness_reaches_whoever_waits(error: type[BaseException], ledger: Ledger) -> None:
    def fault(ledger: Ledger) -> None:
        raise error

    good, bad = Numbered(9), Numbered(10, fault)
    for task in (good, bad):
        ledger.ask(task, ["logits"])
    engine = Engine([Lane(IdleWorker(), [good, bad])], ledger)
    engine.start()
    assert ledger.wait(good, "logits").status == "PASS"
    with pytest.raises(error):
        ledger.wait(bad, "logits")
    with pytest.raises(error):
        engine.join()
    assert [row.opset for row in written(ledger)] == [9]


def test_what_a_task_leaves_unanswered_is_an_error(ledger: Ledger) -> None:
    class Silent(Numbered):
        def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
            pass

    task = Silent(9)
    run([Lane(IdleWorker(), [task])], ledger, [task])
    assert [(row.check, row.status) for row in written(ledger)] == [("logits", "ERROR"), ("cost", "ERROR")]
    assert ledger.wait(task, "cost").message == "the replay ended without this answer"


def test_nothing_is_written_once_it_is_stopped(ledger: Ledger) -> None:
    task = Numbered(9)
    ledger.ask(task, task.checks)
    ledger.record(task, Answer("logits", "PASS", compared=1))
    ledger.stop()
    ledger.record(task, Answer("cost", "CRASH", "run", "signal"))
    ledger.finish(task, task.checks)
    assert [row.check for row in written(ledger)] == ["logits"]
    assert ledger.left == 1
    ledger.close()
    assert '"finished": false' in (Path(ledger.writer.series) / "run.json").read_text(encoding="utf-8")


def test_attempts_that_differ_are_flaky(ledger: Ledger) -> None:
    task = Numbered(9)
    first = ledger.record(task, Answer("logits", "CRASH", "run", "signal", message="died"), settles=False)
    assert unconfirmed(first)
    assert not ledger.answers(task.name), "nobody is told of a first attempt that is to be confirmed"
    second = ledger.record(task, Answer("logits", "PASS", compared=1), attempt=2)
    assert (second.status, second.attempt) == ("FLAKY", 2)
    assert second.message == "first CRASH (died), then PASS"
    assert [attempt["status"] for attempt in second.detail["attempts"]] == ["CRASH", "PASS"]
    assert ledger.answers(task.name)["logits"] == second


def test_an_amended_verdict_is_one_more_line_and_the_same_verdict(ledger: Ledger) -> None:
    task = Numbered(9)
    wrong = Answer("logits", "FAIL", value=2.0, bound=1.0, compared=5)
    for attempt in (1, 2):
        ledger.record(task, wrong, attempt, settles=False)
    ledger.record(task, Answer("logits", "FAIL", value=2.0, bound=1.0, compared=5, blame="runtime"), attempt=2)
    assert [(row.status, row.attempt, row.blame) for row in written(ledger)] == [
        ("FAIL", 1, ""),
        ("FAIL", 2, ""),
        ("FAIL", 2, "runtime"),
    ]
    assert [row.blame for row in ledger.rows] == ["runtime"], "of one check the last line counts"


def test_an_expected_failure_is_not_asked_again(ledger: Ledger) -> None:
    task = Numbered(9)
    task.expected = [Expectation(("logits",), "FAIL", "known", "a link")]
    expected = ledger.record(task, Answer("logits", "FAIL", compared=5))
    assert (expected.status, unconfirmed(expected)) == ("XFAIL", False)
    other = ledger.record(task, Answer("cost", "FAIL", compared=5))
    assert (other.status, unconfirmed(other)) == ("FAIL", True)


def test_rows_of_earlier_runs_answer_what_is_asked(ledger: Ledger) -> None:
    task = Numbered(9)
    ledger.ask(task, ["logits"])
    answers = (("logits", "FAIL"), ("logits", "PASS"), ("cost", "PASS"))
    rows = [Row(check, status, compared=1, cell=task.name) for check, status in answers]
    assert ledger.take_up(rows) == 1
    assert ledger.wait(task, "logits").status == "PASS", "the later row replaces the earlier one"
    assert ledger.wanted(task, task.checks) == [], "cost was not asked"
    assert not written(ledger), "nothing is written twice"
