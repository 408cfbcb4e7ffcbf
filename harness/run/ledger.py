"""The one writer of a run: it names answers, writes them as they come, remembers them and wakes whoever waits for one."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from harness.core import verdict
from harness.core.rowfiles import Writer
from harness.core.rows import Answer, Identity, Origin, Row
from harness.run import expectations


class Subject:
    """Whose answers are written: a cell, or a backend that no cell can be asked of."""

    identity: Identity
    checks: tuple[str, ...]
    """What can be asked of it, in the order of asking."""
    expected: Sequence[expectations.Expectation] = ()

    @property
    def name(self) -> str:
        """Names it within its run."""
        return self.identity.cell

    def command(self, check: str) -> str:
        """The command line that asks this check again."""
        raise NotImplementedError


def _ignore(row: Row) -> None:
    pass


class Ledger:
    """Rows of one run. Every method may be called from any thread.

    ``open_writer`` is called when there is something to write: a run that only collects leaves no file behind. It may raise
    OSError. ``on_answer`` is called with each row that settles a check.
    """

    def __init__(self, open_writer: Callable[[], Writer], on_answer: Callable[[Row], None] = _ignore) -> None:
        self._open_writer, self._on_answer = open_writer, on_answer
        self._asked: dict[str, set[str]] = {}
        self._newest: dict[tuple[str, str], Row] = {}
        self._settled: dict[str, dict[str, Row]] = {}
        self._first: dict[tuple[str, str], Row] = {}
        self._changed = threading.Condition(threading.RLock())
        self._failure: BaseException | None = None
        self.stopped = False
        """Whether the workers were sent away: their answers are then no verdicts, and none is written."""

    @cached_property
    def writer(self) -> Writer:
        """Of the run's rows file. Raises OSError."""
        return self._open_writer()

    @property
    def wrote(self) -> bool:
        """Whether there is a rows file."""
        return "writer" in vars(self)

    @property
    def rows(self) -> list[Row]:
        """The newest row of each check that has one."""
        with self._changed:
            return list(self._newest.values())

    def folder(self, subject: Subject) -> str:
        """Where files of a cell go: a path inside the run's folder, which is not made."""
        with self._changed:
            return os.path.join(self.writer.series, subject.name.replace("/", "_").replace(":", "_"))

    def ask(self, subject: Subject, checks: Iterable[str]) -> None:
        """Note that these checks are to be answered."""
        with self._changed:
            self._asked.setdefault(subject.name, set()).update(checks)

    def take_up(self, rows: Iterable[Row]) -> int:
        """Let rows of earlier runs answer what is asked and not yet answered; of one check the last row counts. Returns how
        many answers that gave."""
        taken = {
            (row.cell, row.check): row
            for row in rows
            if row.check in self._asked.get(row.cell, ()) and row.check not in self.answers(row.cell)
        }
        with self._changed:
            for (cell, check), row in taken.items():
                self._newest[cell, check] = self._settled.setdefault(cell, {})[check] = row
        return len(taken)

    def answers(self, name: str) -> Mapping[str, Row]:
        """The rows that settled checks of a subject, by check."""
        with self._changed:
            return dict(self._settled.get(name, {}))

    def wanted(self, subject: Subject, checks: Iterable[str]) -> list[str]:
        """Those of the checks that were asked and are not settled, in the order of asking."""
        with self._changed:
            open_checks = self._asked.get(subject.name, set()) & set(checks) - set(self._settled.get(subject.name, ()))
            return [check for check in subject.checks if check in open_checks]

    def asked(self, subject: Subject, checks: Iterable[str]) -> bool:
        """Whether all of these checks were asked."""
        with self._changed:
            return set(checks) <= self._asked.get(subject.name, set())

    @property
    def left(self) -> int:
        """How many answers are still to come."""
        with self._changed:
            return sum(len(checks - set(self._settled.get(name, ()))) for name, checks in self._asked.items())

    def record(self, subject: Subject, answer: Answer, attempt: int = 1, settles: bool = True) -> Row:
        """Write an answer. A second attempt that ends otherwise than the first is FLAKY. ``settles``: nothing more is to be
        found out about this check. Returns the row."""
        with self._changed:
            row = self._row(subject, answer, attempt)
            if self.stopped:
                return row
            key = subject.name, row.check
            if attempt == 1:
                self._first[key] = row
            elif key in self._first:
                row = _compared(self._first[key], row)
            row = self._newest[key] = self.writer.write(row)
        if settles:
            self.settle(subject, row.check)
        return row

    def _row(self, subject: Subject, answer: Answer, attempt: int) -> Row:
        origin = Origin(subject.command(answer.check), attempt)
        return expectations.apply(Row.of(answer, subject.identity, origin), subject.expected)

    def settle(self, subject: Subject, check: str) -> None:
        """Let the newest row of a check be its answer, and wake whoever waits for it."""
        with self._changed:
            if self.stopped:
                return
            row = self._settled.setdefault(subject.name, {})[check] = self._newest[subject.name, check]
            self._changed.notify_all()
        self._on_answer(row)

    def finish(self, subject: Subject, checks: Iterable[str]) -> None:
        """Answer what a task was to answer and did not."""
        for check in self.wanted(subject, checks):
            if not self.stopped:
                self.record(subject, Answer(check, "ERROR", message="the replay ended without this answer"))

    def wait(self, subject: Subject, check: str) -> Row:
        """The row that answers, as soon as it is there. Raises what stopped the engine."""
        with self._changed:
            while check not in self._settled.get(subject.name, {}):
                if self._failure:
                    raise self._failure
                self._changed.wait()
            return self._settled[subject.name][check]

    def fail(self, error: BaseException) -> None:
        """Let whoever waits raise this error."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def check_failure(self) -> None:
        """Raise what stopped the engine, if something did."""
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Write nothing from now on."""
        with self._changed:
            self.stopped = True

    def close(self, finished: bool | None = None) -> None:
        """Close the rows file. ``finished``: whether there is nothing for ``--resume``; by default, nothing is left."""
        if self.wrote:
            self.writer.close(self.left == 0 if finished is None else finished)


def _compared(first: Row, second: Row) -> Row:
    """The second attempt's row; FLAKY when it ends otherwise than the first."""
    if second.status in (first.status, "FLAKY"):
        return second
    attempts = [{"status": row.status, "message": row.message} for row in (first, second)]
    message = f"first {first.status} ({first.message}), then {second.status}"
    unrepeatable = (first.status, second.status) == ("FAIL", "PASS") and first.check in verdict.NUMERIC
    return replace(
        second,
        status="FLAKY",
        blame="runtime" if unrepeatable else second.blame,
        message=f"{message}: {verdict.UNREPEATABLE}" if unrepeatable else message,
        detail={**second.detail, "attempts": attempts},
    )
