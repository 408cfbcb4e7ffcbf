"""The conformance run that pytest asks: targets × graphs × checks, each question answered by a row."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.rowfiles import Writer, read
from harness.core.rows import Row, named, seen_status
from harness.core.surroundings import surroundings
from harness.run import expectations, reuse
from harness.run.cells import Cells, CellTask, kept_bytes
from harness.run.engine import Engine
from harness.run.launch import EMBEDDED, Launch
from harness.run.ledger import Ledger
from harness.run.outcome import Outcome, absences, built_only, elements, unmatched
from harness.run.plan import Lane
from harness.run.targets import Refusal, Target, meet


class Question(NamedTuple):
    """One check of one cell; of a backend that no cell can be asked of, its one answer."""

    target: Target
    subject: CellTask | Refusal
    check: str

    @property
    def id(self) -> str:
        return f"{self.subject.name}-{self.check}"


class Conformance:
    """Ask it questions, after ``start``; close it at the end."""

    def __init__(self, launch: Launch) -> None:
        """Open the bundle and see which backends are here. Raises UserError; the workers are then stopped."""
        self.options = launch.options
        try:
            self.bundle = Bundle(str(self.options.bundle))
            self.graphs = self.options.selection.of(self.bundle.graphs, self.bundle.short)
            with ThreadPoolExecutor(1) as pool:
                sources = pool.submit(reuse.sources)
                self.targets = meet(launch.selectors, launch.workers)
            self.expected = {target.selector.text: _expected(target) for target in self.targets}
        except BaseException:
            launch.stop()
            raise
        self._conditions = self._conditions_of_reuse(sources.result())
        self._refusals = [
            Refusal(target, self.bundle.short, f"pytest --backend={target.selector.text}")
            for target in self.targets
            if not target.probe
        ]
        self._tasks = self._plan()
        self.reused = 0
        self.ledger = Ledger(self._open_writer)
        lanes = [Lane(target.worker, tasks) for target, tasks in self._tasks]
        self._engine = Engine(lanes, self.ledger, beside=not self.options.shared)

    def _plan(self) -> list[tuple[Target, Sequence[CellTask]]]:
        cells = Cells(self.bundle, self.options)
        return [
            (target, [CellTask(cells, target, graph, self.expected[target.selector.text]) for graph in self.graphs])
            for target in self.targets
            if target.probe
        ]

    def _conditions_of_reuse(self, sources: str) -> dict[str, str]:
        """What the answers of each runtime depend on; an adapter from elsewhere is no source of this checkout."""
        return {
            named(target.selector.name, target.probe.version): reuse.condition(
                self.bundle.hash, sources, target.presence.surroundings, surroundings()
            )
            for target in self.targets
            if target.probe and target.selector.folder is None
        }

    def _open_writer(self) -> Writer:
        asked = {**self.options.asked(), "bundle": self.bundle.short}
        return Writer(str(self.options.results), asked, self.options.resume, self._conditions)

    @property
    def rows(self) -> list[Row]:
        """The newest row of each check, so far."""
        return self.ledger.rows

    @property
    def side_by_side(self) -> bool:
        """Whether several workers run at once. What a decode costs is then measured at the end, one worker at a time."""
        return self._engine.side_by_side

    def questions(self) -> list[Question]:
        """Everything that can be asked, in the order in which it is answered."""
        questions = [
            Question(target, task, check) for target, tasks in self._tasks for task in tasks for check in task.checks
        ]
        questions += [
            Question(refusal.target, refusal, check) for refusal in self._refusals for check in refusal.checks
        ]
        order = [target.selector.text for target in self.targets]
        questions.sort(key=lambda question: order.index(question.target.selector.text))
        return sorted(questions, key=lambda question: question.check == "cost") if self.side_by_side else questions

    def start(self, questions: Iterable[Question]) -> None:
        """Begin to answer these questions. Raises OSError when no row can be written, and UserError when an earlier run's
        cannot be read. A backend that no cell can be asked of has its row whatever is asked."""
        asked = [question for question in questions if isinstance(question.subject, CellTask)]
        for question in asked:
            self.ledger.ask(question.subject, [question.check])
        if asked and self.options.reuse:
            self.reused = self.ledger.take_up(reuse.settled(self.options.results, self._conditions))
        if asked and self.ledger.writer.resumed:
            self.ledger.take_up(read(self.ledger.writer.path))
        for refusal in self._refusals:
            self.ledger.record(refusal, refusal.target.refusal)
        if not self.options.shared:
            self._engine.start()

    def ask(self, question: Question) -> Row:
        """The row that answers, as soon as it is there."""
        target, subject, check = question
        if self.options.shared and isinstance(subject, CellTask):
            # Which cells are asked here, and which in other processes, shows as they are asked.
            self._engine.run(subject, target.worker, subject.checks)
        return self.ledger.wait(subject, check)

    def progress(self, last: Question) -> str:
        """Where the run stands now that all of a backend, or all costs of it, has been asked: for a line of the terminal."""
        text, probe = last.target.selector.text, last.target.probe
        if last.check == "cost":
            return f"{text}: costs measured"
        rows = [row for row in self.rows if row.backend == last.target.selector.name]
        counts = Counter(seen_status(row) for row in rows if not probe or row.version == probe.version)
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.SEVERITY if counts[status])
        return f"{text}: {words}; {self.ledger.left} answers to come"

    @property
    def all_absent(self) -> bool:
        return all(target.presence.absent for target in self.targets)

    def absences(self) -> dict[str, str]:
        """A line for each backend that is not here."""
        return absences(self.targets)

    def outcome(self) -> Outcome:
        """What the run came to, so far."""
        rows = self.rows
        compared = {
            target.selector.text: elements(rows, target) for target in self.targets if not target.presence.absent
        }
        kept = kept_bytes(self.ledger) if self.options.keep_outputs else {}
        return Outcome(
            files=[self.ledger.writer.path],
            compared=compared,
            absent={**self.absences(), **built_only(self.targets, rows)},
            unmatched=unmatched(self.targets, self.expected, rows) if self._is_whole else [],
            resumed=self.ledger.writer.resumed if self.options.resume else None,
            reused=self.reused,
            kept_cells=len(kept),
            kept_bytes=sum(kept.values()),
        )

    @property
    def _is_whole(self) -> bool:
        """Whether everything was asked that the embedded bundle has: only then is an expectation without a row of no use."""
        whole = self.options.bundle == EMBEDDED and len(self.graphs) == len(self.bundle.graphs)
        return whole and all(self.ledger.asked(task, task.checks) for _, tasks in self._tasks for task in tasks)

    def close(self) -> None:
        """End the workers; rows already written stay. What was asked and not answered is left for ``--resume``."""
        self._engine.stop()
        for target in self.targets:
            target.worker.stop()
        self.ledger.close()


def _expected(target: Target) -> list[expectations.Expectation]:
    selector = target.selector
    return expectations.load(selector.module.rpartition(".")[2]) if selector.folder is None else []
