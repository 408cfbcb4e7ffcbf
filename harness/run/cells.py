"""The conformance plan: each graph of a bundle on each backend is a task, whose checks one worker answers."""

import os
import shlex
import threading
from collections.abc import Iterator, Sequence

from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.core.identity import identity_in
from harness.core.rows import Answer, Row, seen_status
from harness.core.verdict import CHECKS, FORCED, NUMERIC, STATUSES
from harness.run import expectations, preflight
from harness.run.launch import EMBEDDED, Options
from harness.run.ledger import Ledger
from harness.run.plan import Task, not_run
from harness.run.targets import Target
from harness.run.text import Scorer, complete
from harness.run.worker import Worker

NO_RETRY = ("XPASS", "UNVERIFIED")
"""Failing statuses that a second attempt cannot change."""
SECOND = ".2"
"""What the names of a second attempt's files and folder end with."""


class Cells:
    """What all cells of a run share."""

    def __init__(self, bundle: Bundle, options: Options) -> None:
        self.bundle, self.options = bundle, options
        self._scorer, self._scoring = Scorer(bundle), threading.Lock()

    def score(self, tokens: Row) -> Answer:
        """The answer to the text check that belongs to a tokens row."""
        with self._scoring:
            return complete(self._scorer, tokens, str(self.options.results))

    def command(self, target: Target, graph: Graph, check: str) -> str:
        """The command that runs just this check of this cell again."""
        options = self.options
        words = ["pytest", f"--backend={target.selector.text}"]
        if options.bundle != EMBEDDED:
            words.append(f"--bundle={shlex.quote(str(options.bundle))}")
        if options.python:
            words.append(f"--backend-python={shlex.quote(options.python)}")
        words += [f"--exporter={graph.exporter}", f"--opset={graph.opset}", f"--layout={graph.layout}"]
        return " ".join([*words, f"-k {check}"])


class CellTask(Task):
    """One graph on one backend."""

    checks = CHECKS
    exclusive = ("cost",)

    def __init__(
        self, cells: Cells, target: Target, graph: Graph, expected: Sequence[expectations.Expectation]
    ) -> None:
        assert target.probe is not None
        self.cells, self.target, self.graph, self.expected = cells, target, graph, expected
        self.identity = identity_in(cells.bundle, graph, target.selector.name, target.probe)

    def command(self, check: str) -> str:
        return self.cells.command(self.target, self.graph, check)

    def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        """Check the files, then have the worker replay; what cannot be asked of it is answered with the reason."""
        artifact = preflight.check(self.cells.bundle, self.graph)
        if "artifact" in checks:
            ledger.record(self, artifact)
        others = [check for check in checks if check != "artifact"]
        never_ran = self._never_ran(ledger)
        if artifact.status != "PASS":
            message = f"not run, because the artifact check failed: {artifact.message}"
            for check in others:
                ledger.record(self, not_run(check, "artifact", "ERROR", "parse", "artifact", message))
        elif others == ["cost"] and never_ran:
            status, message = seen_status(never_ran), f"not measured: {never_ran.message}"
            ledger.record(self, not_run("cost", never_ran.check, status, never_ran.stage, never_ran.kind, message))
        elif others:
            _Replay(self, worker, others, ledger).run()

    def _never_ran(self, ledger: Ledger) -> Row | None:
        """An answer of this cell, if nothing was compared in it: measuring it would be one more refusal or crash."""
        answers = [row for check, row in ledger.answers(self.name).items() if check in FORCED]
        return answers[0] if answers and not any(row.compared for row in answers) else None

    def text(self, tokens: Row) -> Answer:
        """The answer to the text check: a score of what the tokens check decoded."""
        if tokens.compared and tokens.series:
            return self.cells.score(tokens)
        return not_run("text", "tokens", seen_status(tokens), tokens.stage, tokens.kind, f"no text: {tokens.message}")


def unconfirmed(row: Row) -> bool:
    """Whether a first attempt's row is to be asked once more: it fails, and that was not expected."""
    return STATUSES[row.status].outcome == "fail" and row.status not in NO_RETRY


class _Replay:
    """Attempts at the numeric checks of one cell, and the explanation of what fails.

    Each verdict is written as it comes. What fails unexpectedly is asked once more, and what still fails is then explained,
    in this order, so that nothing that happens while explaining can change a verdict.
    """

    def __init__(self, task: CellTask, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        self.task, self.worker, self.ledger = task, worker, ledger
        self.scores_text = "text" in checks
        self.checks = [check for check in NUMERIC if check in checks or (check == "tokens" and self.scores_text)]
        self.wrong: dict[str, tuple[int, Answer]] = {}
        """Answers to be explained, by check, each with its attempt."""

    def run(self) -> None:
        unexpected = self._attempt(1, self.checks)
        if unexpected and not self.ledger.stopped:
            self._attempt(2, unexpected)
        if self.wrong and not self.ledger.stopped:
            self._explain()
        for check in self.wrong:
            self._settle(check)

    def _attempt(self, number: int, checks: Sequence[str]) -> list[str]:
        """Record the worker's answers. Returns the checks that are to be asked once more."""
        again = []
        for answer in self._replay(number, checks):
            row = self.ledger.record(self.task, answer, number, settles=False)
            if number == 1 and unconfirmed(row):
                again.append(row.check)
            elif seen_status(row) == "FAIL":
                self.wrong[row.check] = number, answer
            else:
                self._settle(row.check)
        return again

    def _replay(self, number: int, checks: Sequence[str]) -> Iterator[Answer]:
        options, graph = self.task.cells.options, self.task.graph.id
        folder = self.ledger.folder(self.task) + (SECOND if number > 1 else "")
        keep = folder if options.keep_outputs else ""
        return self.worker.replay(graph, checks, folder, {}, not options.shared, keep)

    def _explain(self) -> None:
        answers = [answer for _, answer in self.wrong.values()]
        for answer in self.worker.explain(self.task.graph.id, answers, {}):
            number, verdict = self.wrong[answer.check]
            if answer != verdict:
                self.ledger.record(self.task, answer, number, settles=False)
            del self.wrong[answer.check]
            self._settle(answer.check)

    def _settle(self, check: str) -> None:
        """Nothing more is to be found out about this check; the text of the tokens can now be scored."""
        self.ledger.settle(self.task, check)
        if check == "tokens" and self.scores_text:
            tokens = self.ledger.answers(self.task.name).get("tokens")
            if tokens:
                self.ledger.record(self.task, self.task.text(tokens))


def kept_bytes(ledger: Ledger) -> dict[str, int]:
    """Bytes of the observations that the run kept, by cell; a second attempt's folder is its cell's too."""
    sizes: dict[str, int] = {}
    for folder in os.scandir(ledger.writer.series):
        if folder.is_dir():
            cell = folder.name.removesuffix(SECOND)
            sizes[cell] = sizes.get(cell, 0) + sum(file.stat().st_size for file in os.scandir(folder.path))
    return sizes
