"""The conformance run inside pytest: which cells to ask, who answers, and what a verdict is to pytest."""

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from backends.contract import Probe
from harness import expectations
from harness.bundle import Bundle, BundleError, Graph
from harness.judge import verdict
from harness.replay import select
from harness.replay.cell import NUMERIC, identify, name_cell
from harness.replay.host import Found, Limits, Worker
from harness.rows import Row, Writer

EMBEDDED = Path(select.ROOT) / "corpora" / "tiny-marian-en-zh.bundle"


class Question(NamedTuple):
    """One check of one cell; ``graph`` is None for a backend that is not here, which has one answer only."""

    target: "Target"
    graph: Graph | None
    check: str

    @property
    def id(self) -> str:
        if self.graph is None or self.target.probe is None:
            return f"{self.target.selector.name}-{self.check}"
        return f"{name_cell(self.graph, self.target.selector.name, self.target.probe)}-{self.check}"


@dataclass
class Target:
    """One asked-for backend: its worker, what was found, and how many elements it has compared."""

    selector: select.Selector
    worker: Worker
    found: Found
    expected: list[expectations.Expectation] = field(default_factory=list)
    compared: int = 0

    @property
    def probe(self) -> Probe | None:
        return self.found.probe


@dataclass
class Options:
    """The command line's wishes, named as there."""

    backends: list[str]
    bundle: Path = EMBEDDED
    opset: range = range(1, 99)
    layout: str | None = None
    precision: str | None = None
    python: str | None = None
    limits: Limits = field(default_factory=Limits)
    results: Path = Path("results")
    allow_absent: bool = False


class Campaign:
    """One conformance run: targets × graphs × checks, answered lazily, each row written as it comes."""

    def __init__(self, options: Options) -> None:
        """Start the workers and see what is here. Raises BundleError, UnknownBackend, ExpectationError, OSError."""
        self.options = options
        selectors = [select.parse(text) for text in dict.fromkeys(options.backends)]
        workers = [Worker(str(options.bundle), selector, options.limits, options.python) for selector in selectors]
        self.targets: list[Target] = []
        try:
            for worker in workers:
                worker.start()
            # The workers import their runtimes meanwhile.
            self.bundle = Bundle(str(options.bundle))
            self.graphs = [graph for graph in self.bundle.graphs if self._wanted(graph)]
            if not self.graphs:
                raise BundleError(
                    f"no graph of {self.bundle.short} is left by --opset, --layout and --precision; {self._offer()}"
                )
            from harness import preflight
            from harness.text import Scorer

            self._preflight = preflight.check
            self._scorer = Scorer(self.bundle)
            for selector, worker in zip(selectors, workers, strict=True):
                expected = expectations.load(selector.name)
                self.targets.append(Target(selector, worker, self._version(selector, worker.probe()), expected))
        except BaseException:
            for worker in workers:
                worker.stop()
            raise
        self.writer = Writer(str(options.results))
        self.rows: list[Row] = []
        self._asked: dict[str, set[str]] = {}
        self._answers: dict[str, dict[str, Row]] = {}
        self._running: tuple[str, Iterator[Row]] | None = None

    def _wanted(self, graph: Graph) -> bool:
        options = self.options
        return (
            graph.opset in options.opset
            and options.layout in (None, graph.layout)
            and options.precision in (None, graph.precision)
        )

    def _offer(self) -> str:
        opsets = sorted({graph.opset for graph in self.bundle.graphs})
        layouts = ", ".join(sorted({graph.layout for graph in self.bundle.graphs}))
        return f"it has opsets {opsets[0]}–{opsets[-1]}, layouts {layouts}"

    def _version(self, selector: select.Selector, found: Found) -> Found:
        """A version that was asked for and is not the one found is absent."""
        if found.probe is None or selector.version is None:
            return found
        if (found.probe.version + ".").startswith(selector.version + "."):
            return found
        reason = f"version {selector.version} was asked for, {found.probe.version} is installed"
        return Found(absent={"reason": reason, "remedy": "give the interpreter that has it with --backend-python"})

    def questions(self) -> list[Question]:
        """Everything that can be asked, cell after cell."""
        asked = []
        for target in self.targets:
            if target.probe is None:
                asked.append(Question(target, None, "probe"))
            else:
                asked += [Question(target, graph, check) for graph in self.graphs for check in verdict.CHECKS]
        return asked

    def only(self, questions: list[Question]) -> None:
        """Say which questions were selected, so that nothing else is computed."""
        for question in questions:
            self._asked.setdefault(self._key(question), set()).add(question.check)

    def _key(self, question: Question) -> str:
        return question.id.rsplit("-", 1)[0]

    @property
    def all_absent(self) -> bool:
        return all(target.found.absent for target in self.targets)

    def absences(self) -> list[str]:
        return [
            f"{target.selector.text} is absent: {target.found.absent['reason']}; {target.found.absent['remedy']}"
            for target in self.targets if target.found.absent
        ]  # fmt: skip

    def ask(self, question: Question) -> Row:
        """The row that answers; replays the cell as far as needed."""
        key = self._key(question)
        answers = self._answers.get(key)
        if answers is None:
            self._drain()
            answers = self._answers[key] = {}
            self._running = (key, self._cell(question, sorted(self._asked.get(key, {question.check}))))
        while question.check not in answers and self._running is not None:
            row = next(self._running[1], None)
            if row is None:
                self._running = None
            else:
                answers[row.check] = row
        if question.check not in answers:
            row = Row(question.check, "ERROR", message="the replay ended without this answer")
            answers[question.check] = self._record(row, question.target, question.graph)
        return answers[question.check]

    def _drain(self) -> None:
        """Finish the cell under way: a selected check whose test did not ask still leaves its row."""
        if self._running is not None:
            for _ in self._running[1]:
                pass

    def _cell(self, question: Question, checks: list[str]) -> Iterator[Row]:
        target, graph = question.target, question.graph
        if graph is None or target.probe is None:
            yield self._record(self._not_here(target), target, None)
            return
        wanted = [check for check in verdict.CHECKS if check in checks]
        artifact = self._preflight(self.bundle, graph)
        if "artifact" in wanted:
            yield self._record(artifact, target, graph)
        if artifact.status != "PASS":
            for check in wanted:
                if check != "artifact":
                    message = f"not run, because the artifact check failed: {artifact.message}"
                    yield self._record(Row(check, "ERROR", "parse", "artifact", message=message), target, graph)
            return
        numeric = [check for check in NUMERIC if check in wanted or (check == "tokens" and "text" in wanted)]
        series = os.path.join(self.writer.series, self._key(question).replace("/", "_").replace(":", "_"))
        for row in target.worker.replay(graph.id, numeric, series, {}) if numeric else ():
            yield self._record(row, target, graph)
            if row.check == "tokens" and "text" in wanted:
                yield self._record(self._text(row), target, graph)

    def _text(self, tokens: Row) -> Row:
        if tokens.compared == 0:
            return Row("text", tokens.detail.get("expected", {}).get("seen", tokens.status), tokens.stage, tokens.kind,
                       message=f"no text: {tokens.message}")  # fmt: skip
        from harness.text import complete

        return complete(self._scorer, tokens, str(self.options.results))

    def _not_here(self, target: Target) -> Row:
        if target.found.absent:
            absent = target.found.absent
            return Row("probe", "ABSENT", "probe", message=f"{absent['reason']}; {absent['remedy']}")
        assert target.found.failure is not None
        target.found.failure.check = "probe"
        return target.found.failure

    def _record(self, row: Row, target: Target, graph: Graph | None) -> Row:
        row.backend = row.runtime = target.selector.name
        row.bundle = self.bundle.short
        if graph is not None and target.probe is not None:
            identify(row, self.bundle, graph, target.selector.name, target.probe)
            row.command = self.command(target, graph, row.check)
            expectations.apply(row, target.expected)
        else:
            row.command = f"pytest --backend={target.selector.text}"
        target.compared += row.compared if row.check != "artifact" else 0
        self.rows.append(row)
        self.writer.write(row)
        return row

    def command(self, target: Target, graph: Graph, check: str) -> str:
        """The command that runs just this check of this cell again."""
        words = ["pytest", f"--backend={target.selector.text}"]
        if self.options.bundle != EMBEDDED:
            words.append(f"--bundle={self.options.bundle}")
        if self.options.python:
            words.append(f"--backend-python={self.options.python}")
        return " ".join([*words, f"--opset={graph.opset}", f"--layout={graph.layout}", f"-k {check}"])

    def exit_status(self) -> int:
        """0, 1 when a backend that was asked for compared nothing, 4 when one is absent and that was not allowed."""
        if self.absences() and not self.options.allow_absent:
            return int(pytest.ExitCode.USAGE_ERROR)
        present = [target for target in self.targets if not target.found.absent]
        idle = [target for target in present if not target.compared]
        return int(pytest.ExitCode.TESTS_FAILED) if idle or not present else 0

    def totals(self) -> list[str]:
        """The run in a few lines: counts, rows file, and whatever makes the exit code other than 0."""
        counts = Counter(row.status for row in self.rows)
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.STATUSES if counts[status])
        compared = sum(target.compared for target in self.targets)
        lines = [f"{len(self.rows)} rows: {words}; {compared:,} elements compared", f"rows: {self.writer.path}"]
        for target in self.targets:
            if not target.compared and not target.found.absent:
                lines.append(f"{target.selector.text} was asked for and compared nothing")
        return lines + self.absences()

    def close(self) -> None:
        """End the workers; rows already written stay."""
        for target in self.targets:
            target.worker.stop()
        self.writer.close()


def explain(row: Row) -> str:
    """A failure in lines: what, where, how far, and the command that shows it again."""
    lines = [f"{row.cell or row.backend}  {row.check}: {row.status}"]
    if row.message:
        lines.append(f"  {row.message}")
    if row.value is not None and row.bound is not None and math.isfinite(row.value):
        floor = "" if row.floor is None else f", PyTorch's own floor {row.floor:.4g}"
        lines.append(f"  {row.metric} {row.value:.6g}, bound {row.bound:.4g}{floor}")
    where = [f"step {row.step}" if row.step is not None else "", f"sentence {row.sentence}" if row.sentence else "",
             f"tensor {row.tensor}" if row.tensor else ""]  # fmt: skip
    if any(where):
        lines.append("  first: " + ", ".join(word for word in where if word))
    lines.append(f"  {row.compared:,} elements compared; stage {row.stage}")
    if row.status in ("CRASH", "TIMEOUT", "ERROR") and row.detail.get("said", "").strip():
        lines += [
            "  the worker's last words:",
            *("    " + line for line in row.detail["said"].strip().splitlines()[-12:]),
        ]
    return "\n".join([*lines, f"  again: {row.command}"])


def conclude(row: Row) -> None:
    """Tell pytest: return, skip, xfail or fail with the explanation."""
    outcome = verdict.STATUSES[row.status].outcome
    if outcome == "skip":
        pytest.skip(f"{row.status} {row.kind} {row.message}".replace("  ", " "))
    if outcome == "xfail":
        pytest.xfail(row.detail["expected"]["reason"])
    if outcome == "fail":
        pytest.fail(explain(row), pytrace=False)


def python_of(text: str) -> str | None:
    """An interpreter that exists. Raises UsageError."""
    if text and not (os.path.isfile(text) and os.access(text, os.X_OK)):
        raise pytest.UsageError(
            f"--backend-python={text}: no such interpreter; give the path of a python that has the runtime"
        )
    return text or None
