"""What a run is to do: tasks, one a cell, in lanes, one a worker. ``engine`` runs them, ``ledger`` writes their answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.rows import Answer
from harness.run.ledger import Ledger, Subject
from harness.run.worker import Worker


class Task(Subject):
    """One cell: which it is, what can be asked of it, and how a worker is asked."""

    exclusive: tuple[str, ...] = ()
    """Checks that need the box to themselves: where workers run beside each other they come last, one at a time."""

    def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        """Have these checks answered by the worker and record the answers."""
        raise NotImplementedError


@dataclass
class Lane:
    """One worker and the tasks that it runs one after the other. Lanes may share an iterator of tasks."""

    worker: Worker
    tasks: Iterable[Task]


def not_run(check: str, because: str, status: str, stage: str, kind: str, message: str) -> Answer:
    """The answer to a check that was not run, because another check (``because``) decided it."""
    return Answer(check, status, stage, kind, message=message, detail={"because": because})
