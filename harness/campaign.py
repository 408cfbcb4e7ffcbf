"""One conformance run: targets × graphs × checks, answered lazily, each row written as it comes."""

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from backends.contract import Probe
from harness import expectations, preflight
from harness.bundle import Bundle, BundleError, Graph
from harness.judge import verdict
from harness.launch import EMBEDDED, Launch
from harness.replay import select
from harness.replay.cell import NUMERIC, identify, name_cell
from harness.replay.host import Found, Worker
from harness.rows import Row, Writer, is_fake, read
from harness.text import Scorer, complete


class Question(NamedTuple):
    """One check of one cell; ``graph`` is None for a backend that is not here, which has one answer only."""

    target: "Target"
    graph: Graph | None
    check: str

    @property
    def cell(self) -> str:
        if self.graph is None or self.target.probe is None:
            return self.target.selector.text
        return str(name_cell(self.graph, self.target.selector.name, self.target.probe))

    @property
    def id(self) -> str:
        return f"{self.cell}-{self.check}"


@dataclass
class Target:
    """One asked-for backend: its worker, what was found, what is expected of it, and how much it has compared."""

    selector: select.Selector
    worker: Worker
    found: Found
    expected: list[expectations.Expectation] = field(default_factory=list)
    compared: int = 0

    @property
    def probe(self) -> Probe | None:
        return self.found.probe


class Campaign:
    """Ask it questions; it replays, judges, retries and writes. Close it at the end."""

    def __init__(self, launch: Launch) -> None:
        """Open the bundle and see what is here. Raises BundleError and ExpectationError; the workers are then stopped."""
        self.options = launch.options
        self.targets: list[Target] = []
        try:
            self.bundle = Bundle(str(self.options.bundle))
            self.graphs = [graph for graph in self.bundle.graphs if self._wanted(graph)]
            if not self.graphs:
                raise BundleError(f"{self.bundle.short} has no such graph; {self._offer()}")
            self._scorer = Scorer(self.bundle)
            for selector, worker in zip(launch.selectors, launch.workers, strict=True):
                expected = expectations.load(selector.module.rpartition(".")[2]) if selector.folder is None else []
                target = Target(selector, worker, _version(selector, worker.probe()), expected)
                if target.probe and any(one.probe and one.selector.name == selector.name for one in self.targets):
                    worker.stop()  # asked for twice, by name and by the version that is here
                else:
                    self.targets.append(target)
        except BaseException:
            launch.stop()
            raise
        self.rows: list[Row] = []
        self._asked: dict[str, set[str]] = {}
        self._answers: dict[str, dict[str, Row]] = {}
        self._running: Iterator[Row] = iter(())

    @cached_property
    def writer(self) -> Writer:
        """Made when there is something to write to: collecting alone leaves no file behind. Raises OSError."""
        asked = {**self.options.asked(), "bundle": self.bundle.short}
        return Writer(str(self.options.results), asked, self.options.resume)

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
        precisions = ", ".join(sorted({graph.precision for graph in self.bundle.graphs}))
        return f"--opset {opsets[0]}-{opsets[-1]}, --layout {layouts}, --precision {precisions} are there"

    def _take_up(self, rows: Iterable[Row]) -> None:
        """Rows of the interrupted run are answers; a later attempt replaces an earlier one."""
        targets = {target.selector.name: target for target in self.targets}
        for row in rows:
            if row.backend in targets and row.cell:
                self._answers.setdefault(row.cell, {})[row.check] = row
        for answers in self._answers.values():
            for row in answers.values():
                self._count(row, targets[row.backend])

    def questions(self) -> list[Question]:
        """Everything that can be asked, cell after cell."""
        asked = []
        for target in self.targets:
            if target.probe is None:
                asked.append(Question(target, None, "probe"))
            else:
                asked += [Question(target, graph, check) for graph in self.graphs for check in verdict.CHECKS]
        return asked

    def only(self, questions: Iterable[Question]) -> None:
        """Say which questions were selected, so that nothing else is computed. Raises OSError when no row can be written."""
        for question in questions:
            self._asked.setdefault(question.cell, set()).add(question.check)
        if self._asked and self.writer.resumed:
            self._take_up(read(self.writer.path))

    def ask(self, question: Question) -> Row:
        """The row that answers; replays the cell as far as needed."""
        answers = self._answers.setdefault(question.cell, {})
        if question.check not in answers:
            for row in self._running:
                self._answers[row.cell or row.backend][row.check] = row
                if question.check in answers:
                    break
        if question.check not in answers:  # the cell under way, if any, is finished: begin this one
            wanted = self._asked.get(question.cell, {question.check}) - set(answers)
            self._running = self._cell(question, [check for check in (*verdict.CHECKS, "probe") if check in wanted])
            for row in self._running:
                answers[row.check] = row
                if question.check in answers:
                    break
        if question.check not in answers:
            lost = Row(question.check, "ERROR", message="the replay ended without this answer")
            answers[question.check] = self._record(lost, question.target, question.graph)
        return answers[question.check]

    def _cell(self, question: Question, wanted: list[str]) -> Iterator[Row]:
        target, graph = question.target, question.graph
        if graph is None:
            yield self._record(_not_here(target), target, None)
            return
        artifact = preflight.check(self.bundle, graph)
        if "artifact" in wanted:
            yield self._record(artifact, target, graph)
        if artifact.status != "PASS":
            for check in wanted:
                if check != "artifact":
                    message = f"not run, because the artifact check failed: {artifact.message}"
                    yield self._record(Row(check, "ERROR", "parse", "artifact", message=message), target, graph)
            return
        numeric = [check for check in NUMERIC if check in wanted or (check == "tokens" and "text" in wanted)]
        for row in self._attempts(question, numeric):
            yield row
            if row.check == "tokens" and "text" in wanted:
                yield self._record(self._text(row), target, graph)

    def _attempts(self, question: Question, checks: list[str]) -> Iterator[Row]:
        """Answers of the worker. What fails unexpectedly is tried once more; when the attempts differ, that is FLAKY."""
        target, graph = question.target, question.graph
        assert graph is not None
        series = os.path.join(self.writer.series, question.cell.replace("/", "_").replace(":", "_"))
        failed: dict[str, Row] = {}
        for row in target.worker.replay(graph.id, checks, series, {}) if checks else ():
            row = self._name(row, target, graph)
            if verdict.STATUSES[row.status].outcome == "fail" and row.status not in ("XPASS", "UNVERIFIED"):
                failed[row.check] = row
                self.writer.write(row)
            else:
                yield self._keep(row, target)
        if failed:
            for row in target.worker.replay(graph.id, list(failed), series + ".2", {}):
                row = self._name(row, target, graph)
                row.attempt = 2
                first = failed[row.check]
                if row.status != first.status:
                    row.detail["attempts"] = [{"status": one.status, "message": one.message} for one in (first, row)]
                    row.message = f"first {first.status} ({first.message}), then {row.status}"
                    row.status = "FLAKY"
                yield self._keep(row, target)

    def _text(self, tokens: Row) -> Row:
        if tokens.compared == 0 or not tokens.series:
            status = tokens.detail.get("expected", {}).get("seen", tokens.status)
            return Row("text", status, tokens.stage, tokens.kind, message=f"no text: {tokens.message}")
        return complete(self._scorer, tokens, str(self.options.results))

    def _record(self, row: Row, target: Target, graph: Graph | None) -> Row:
        return self._keep(self._name(row, target, graph), target)

    def _name(self, row: Row, target: Target, graph: Graph | None) -> Row:
        """Fill in whose row it is and what was expected."""
        row.backend = row.runtime = target.selector.name
        row.bundle = self.bundle.short
        row.command = f"pytest --backend={target.selector.text}"
        if graph is not None and target.probe is not None:
            identify(row, self.bundle, graph, target.selector.name, target.probe)
            row.command = self._command(target, graph, row.check)
            expectations.apply(row, target.expected)
        return row

    def _keep(self, row: Row, target: Target) -> Row:
        self._count(row, target)
        self.writer.write(row)
        return row

    def _count(self, row: Row, target: Target) -> None:
        # What was placed, timed or checked beforehand is no comparison with PyTorch, and a fake compares nothing.
        evidence = row.check not in ("artifact", "placement", "cost") and not is_fake(row.version)
        target.compared += row.compared if evidence else 0
        self.rows.append(row)

    def _command(self, target: Target, graph: Graph, check: str) -> str:
        """The command that runs just this check of this cell again."""
        words = ["pytest", f"--backend={target.selector.text}"]
        if self.options.bundle != EMBEDDED:
            words.append(f"--bundle={shlex.quote(str(self.options.bundle))}")
        if self.options.python:
            words.append(f"--backend-python={shlex.quote(self.options.python)}")
        return " ".join([*words, f"--opset={graph.opset}", f"--layout={graph.layout}", f"-k {check}"])

    @property
    def all_absent(self) -> bool:
        return all(target.found.absent for target in self.targets)

    def absences(self) -> list[str]:
        """A line for each backend that is not here."""
        return [
            f"{target.selector.text} is absent: {target.found.absent['reason']}; {target.found.absent['remedy']}"
            for target in self.targets
            if target.found.absent
        ]

    def idle(self) -> list[str]:
        """Backends that are here and compared nothing."""
        return [target.selector.text for target in self.targets if not target.compared and not target.found.absent]

    def unmatched(self) -> list[str]:
        """Expectations that nothing in a whole run spoke of: a file that nobody looks after. Part of a run says nothing."""
        whole = self.options.bundle == EMBEDDED and len(self.graphs) == len(self.bundle.graphs)
        everything = {(question.cell, question.check) for question in self.questions()}
        asked = {(cell, check) for cell, checks in self._asked.items() for check in checks}
        if not whole or everything != asked:
            return []
        return [
            f"expectation {entry.words()} of {target.selector.name} matches nothing; take it out or mend its conditions"
            for target in self.targets
            for entry in target.expected
            if target.probe and entry.applies(target.probe.version, target.probe.device)
            if not any(entry.covers(row) for row in self.rows if row.backend == target.selector.name)
        ]

    def totals(self) -> list[str]:
        """The run in a few lines: counts, rows file, and whatever makes the exit code other than 0."""
        counts = Counter(row.status for row in self.rows)
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.STATUSES if counts[status])
        compared = sum(target.compared for target in self.targets)
        lines = [f"{len(self.rows)} rows: {words}; {compared:,} elements compared", f"rows: {self.writer.path}"]
        if self.options.resume:
            lines.append(f"resumed {self.writer.resumed}" if self.writer.resumed else "nothing to resume: a new run")
        lines += [f"{name} was asked for and compared nothing" for name in self.idle()]
        return lines + self.unmatched() + self.absences()

    def close(self) -> None:
        """End the workers; rows already written stay. What was asked and not answered is left for ``--resume``."""
        finished = all(checks <= set(self._answers.get(cell, ())) for cell, checks in self._asked.items())
        for target in self.targets:
            target.worker.stop()
        if "writer" in vars(self):
            self.writer.close(finished)


def _version(selector: select.Selector, found: Found) -> Found:
    """A version that was asked for and is not the one found is absent."""
    if found.probe is None or selector.version is None:
        return found
    if (found.probe.version + ".").startswith(selector.version + "."):
        return found
    reason = f"version {selector.version} was asked for, {found.probe.version} is installed"
    return Found(absent={"reason": reason, "remedy": "give the interpreter that has it with --backend-python"})


def _not_here(target: Target) -> Row:
    if target.found.absent:
        absent = target.found.absent
        said = f"{absent['reason']}; {absent['remedy']}"
        return Row("probe", "ABSENT", "probe", message=said, version=target.selector.version or "")
    assert target.found.failure is not None
    return target.found.failure
