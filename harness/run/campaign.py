"""One conformance run: targets × graphs × checks. Workers run beside each other, each row is written as it comes."""

import os
import shlex
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from backends.contract import Probe
from harness.core import selectors, verdict
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import Graph
from harness.core.identity import cell_of as name_cell
from harness.core.identity import identity_in
from harness.core.rowfiles import Writer, read
from harness.core.rows import Row, named, seen_status
from harness.core.verdict import FORCED, NUMERIC
from harness.replay.worker import surroundings
from harness.run import envs, expectations, preflight, reuse
from harness.run.launch import EMBEDDED, Launch, cores, shares
from harness.run.outcome import Outcome
from harness.run.process import Found, Worker
from harness.run.text import Scorer, complete


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

    selector: selectors.Selector
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
        """Open the bundle and see what is here. Raises UserError and UserError; the workers are then stopped."""
        self.options = launch.options
        self.targets: list[Target] = []
        try:
            self.bundle = Bundle(str(self.options.bundle))
            self.graphs = [graph for graph in self.bundle.graphs if self._wanted(graph)]
            if not self.graphs:
                raise UserError(f"{self.bundle.short} has no such graph; {self._offer()}")
            self._scorer, self._scoring = Scorer(self.bundle), threading.Lock()
            with ThreadPoolExecutor(cores() + 1) as pool:
                sources = pool.submit(reuse.sources)
                found = list(pool.map(_meet, range(len(launch.workers)), launch.workers))
            for selector, worker, one in zip(launch.selectors, launch.workers, found, strict=True):
                self._add(selector, worker, one)
        except BaseException:
            launch.stop()
            raise
        self.conditions = {
            named(target.selector.name, target.probe.version): reuse.condition(
                self.bundle.hash, sources.result(), target.found.surroundings, surroundings()
            )
            for target in self.targets
            if target.probe and target.selector.folder is None  # else the adapter is no source of this checkout
        }
        self.rows: list[Row] = []
        self.reused = 0
        self._asked: dict[str, set[str]] = {}
        self._answers: dict[str, dict[str, Row]] = {}
        self._over: set[tuple[str, str]] = set()  # cell and check: whatever was to be answered has been
        self._lock = threading.Condition()
        self._conductor = threading.Thread(target=self._conduct, daemon=True)
        self._broken: BaseException | None = None
        self._stopping = False

    def _add(self, selector: selectors.Selector, worker: Worker, found: Found) -> None:
        expected = expectations.load(selector.module.rpartition(".")[2]) if selector.folder is None else []
        target = Target(selector, worker, as_asked(selector, found), expected)
        same = [one for one in self.targets if one.selector.name == selector.name and one.probe == target.probe]
        if target.probe and same:
            worker.stop()  # asked for twice, by name and by the version that is here
        else:
            self.targets.append(target)

    @property
    def side_by_side(self) -> bool:
        """Whether several workers run at once. What a decode costs is then measured at the end, one worker at a time."""
        here = sum(target.probe is not None for target in self.targets)
        return cores() > 1 and here > 1 and not self.options.shared

    @cached_property
    def writer(self) -> Writer:
        """Made when there is something to write to: collecting alone leaves no file behind. Raises OSError."""
        asked = {**self.options.asked(), "bundle": self.bundle.short}
        return Writer(str(self.options.results), asked, self.options.resume, self.conditions)

    def _wanted(self, graph: Graph) -> bool:
        options = self.options
        return (
            graph.opset in options.opset
            and (options.layout is None or graph.layout in options.layout.split(","))
            and options.exporter in (None, graph.exporter)
            and options.precision in (None, graph.precision)
        )

    def _offer(self) -> str:
        opsets = sorted({graph.opset for graph in self.bundle.graphs})
        layouts = ", ".join(sorted({graph.layout for graph in self.bundle.graphs}))
        precisions = ", ".join(sorted({graph.precision for graph in self.bundle.graphs}))
        exporters = ", ".join(sorted({graph.exporter for graph in self.bundle.graphs}))
        words = (
            f"--opset {opsets[0]}-{opsets[-1]}, --layout {layouts}, --precision {precisions}, --exporter {exporters}"
        )
        return f"{words} are there, not in every combination"

    def _take_up(self, rows: Iterable[Row]) -> None:
        """Rows of earlier runs are answers to what is asked; a later attempt replaces an earlier one."""
        targets = {(one.selector.name, one.probe.version): one for one in self.targets if one.probe}
        found: dict[tuple[str, str], Row] = {}
        for row in rows:
            if row.check in self._asked.get(row.cell, ()) and row.check not in self._answers.get(row.cell, ()):
                found[row.cell, row.check] = row
        for (cell, check), row in found.items():
            self._answers.setdefault(cell, {})[check] = row
            self._count(row, targets[row.backend, row.version])

    def questions(self) -> list[Question]:
        """Everything that can be asked, cell after cell."""
        asked = []
        for target in self.targets:
            if target.probe is None:
                asked.append(Question(target, None, "probe"))
            else:
                asked += [Question(target, graph, check) for graph in self.graphs for check in verdict.CHECKS]
        return sorted(asked, key=lambda one: one.check == "cost") if self.side_by_side else asked

    def only(self, questions: Iterable[Question]) -> None:
        """Say which questions were selected, and begin. Raises OSError when no row can be written, and UserError when an
        earlier run's cannot be read."""
        for question in questions:
            self._asked.setdefault(question.cell, set()).add(question.check)
        if self._asked and self.options.reuse:
            self._take_up(reuse.settled(self.options.results, self.conditions))
            self.reused = len(self.rows)
        if self._asked and self.writer.resumed:
            self._take_up(read(self.writer.path))
        if not self.options.shared:
            self._conductor.start()

    def ask(self, question: Question) -> Row:
        """The row that answers, as soon as it is there."""
        if question.graph is None and question.check not in self._answers.get(question.cell, {}):
            self._record(not_here(question.target.selector, question.target.found), question.target, None)
        elif self.options.shared and question.graph is not None:
            # Which cells are asked here, and which elsewhere, shows as they are asked.
            self._run(question.target, set(verdict.CHECKS), [question.graph])
        with self._lock:
            answers = self._answers.setdefault(question.cell, {})
            while question.check not in answers:
                if self._broken:
                    raise self._broken
                if (question.cell, question.check) in self._over:
                    lost = Row(question.check, "ERROR", message="the replay ended without this answer")
                    self._record(lost, question.target, question.graph)
                    break
                self._lock.wait()
            return answers[question.check]

    def _conduct(self) -> None:
        """Run the targets, as many at once as there are cores; then, one at a time, what must have the box to itself."""
        try:
            numeric = set(verdict.CHECKS) - ({"cost"} if self.side_by_side else set())
            here = [target for target in self.targets if target.probe]
            free = shares(len(here))
            with ThreadPoolExecutor(max(1, len(free))) as pool:
                for done in [pool.submit(self._run_beside, target, numeric, free) for target in here]:
                    done.result()
            for target in here if self.side_by_side else ():
                self._run(target, {"cost"}, self.graphs)
        except BaseException as error:  # noqa: BLE001 - it is the asking thread's to raise
            with self._lock:
                self._broken = error
                self._lock.notify_all()

    def _run_beside(self, target: Target, checks: set[str], free: list[frozenset[int]]) -> None:
        """Run a target on one of the free shares of the processors, and give that back."""
        with self._lock:
            share = target.worker.share if target.worker.share in free else free[-1]
            free.remove(share)
        if target.worker.share != share:
            target.worker.stop()
            target.worker.share = share
        try:
            self._run(target, checks, self.graphs)
        finally:
            if self.side_by_side:
                target.worker.stop()  # its memory is the next one's
                target.worker.share = frozenset()
            with self._lock:
                free.append(share)

    def _run(self, target: Target, checks: set[str], graphs: Sequence[Graph]) -> None:
        """Answer those of the checks that were asked, cell after cell."""
        for graph in graphs:
            cell = Question(target, graph, "").cell
            with self._lock:
                wanted = (self._asked.get(cell, set()) & checks) - set(self._answers.get(cell, ()))
            if wanted and not self._stopping:
                self._replay(target, graph, [check for check in verdict.CHECKS if check in wanted])
            with self._lock:
                self._over |= {(cell, check) for check in checks}
                self._lock.notify_all()

    def _replay(self, target: Target, graph: Graph, wanted: list[str]) -> None:
        artifact = preflight.check(self.bundle, graph)
        if "artifact" in wanted:
            self._record(artifact, target, graph)
        if artifact.status != "PASS":
            for check in wanted:
                if check != "artifact":
                    message = f"not run, because the artifact check failed: {artifact.message}"
                    self._record(Row(check, "ERROR", "parse", "artifact", message=message), target, graph)
            return
        idle = self._never_ran(target, graph)
        if wanted == ["cost"] and idle:
            message = f"not measured: {idle.message}"
            self._record(Row("cost", seen_status(idle), idle.stage, idle.kind, message=message), target, graph)
            return
        numeric = [check for check in NUMERIC if check in wanted or (check == "tokens" and "text" in wanted)]
        for row in self._attempts(target, graph, numeric):
            if row.check == "tokens" and "text" in wanted:
                self._record(self._text(row), target, graph)

    def _never_ran(self, target: Target, graph: Graph) -> Row | None:
        """An answer of a cell in which nothing was compared: measuring it would be one more refusal or crash."""
        answers = self._answers.get(Question(target, graph, "").cell, {})
        tried = [row for check, row in answers.items() if check in FORCED]
        return tried[0] if tried and not any(row.compared for row in tried) else None

    def _attempts(self, target: Target, graph: Graph, checks: list[str]) -> Iterator[Row]:
        """Answers of the worker. What fails unexpectedly is tried once more; when the attempts differ, that is FLAKY."""
        cell = Question(target, graph, "").cell
        series = os.path.join(self.writer.series, cell.replace("/", "_").replace(":", "_"))
        alone = not self.options.shared
        failed: dict[str, Row] = {}
        for row in target.worker.replay(graph.id, checks, series, {}, alone) if checks else ():
            row = self._name(Row(**vars(row)), target, graph)
            if verdict.STATUSES[row.status].outcome == "fail" and row.status not in ("XPASS", "UNVERIFIED"):
                failed[row.check] = row
                self._write(row)
            else:
                yield self._keep(row, target)
        if failed and not self._stopping:
            for row in target.worker.replay(graph.id, list(failed), series + ".2", {}, alone):
                row = self._name(Row(**vars(row)), target, graph)
                row.attempt = 2
                first = failed[row.check]
                if row.status != first.status:
                    row.detail["attempts"] = [{"status": one.status, "message": one.message} for one in (first, row)]
                    row.message = f"first {first.status} ({first.message}), then {row.status}"
                    row.status = "FLAKY"
                yield self._keep(row, target)

    def _text(self, tokens: Row) -> Row:
        if tokens.compared == 0 or not tokens.series:
            return Row("text", seen_status(tokens), tokens.stage, tokens.kind, message=f"no text: {tokens.message}")
        with self._scoring:
            return complete(self._scorer, tokens, str(self.options.results))

    def _record(self, row: Row, target: Target, graph: Graph | None) -> Row:
        return self._keep(self._name(row, target, graph), target)

    def _name(self, row: Row, target: Target, graph: Graph | None) -> Row:
        """Fill in whose row it is and what was expected."""
        row.backend, row.runtime = target.selector.name, target.selector.name.split(":")[0]
        row.bundle = self.bundle.short
        row.command = f"pytest --backend={target.selector.text}"
        if graph is not None and target.probe is not None:
            vars(row).update(vars(identity_in(self.bundle, graph, target.selector.name, target.probe)))
            row.command = self._command(target, graph, row.check)
            expectations.apply(row, target.expected)
        return row

    def _keep(self, row: Row, target: Target) -> Row:
        """Write an answer down and let it be known."""
        with self._lock:
            if not self._stopping:  # else the worker did not die, it was sent away
                self._count(row, target)
                self.writer.write(row)
                self._answers.setdefault(row.cell or target.selector.text, {})[row.check] = row
                self._lock.notify_all()
        return row

    def _write(self, row: Row) -> None:
        with self._lock:
            if not self._stopping:
                self.writer.write(row)

    def _count(self, row: Row, target: Target) -> None:
        evidence = row.check in verdict.OF_PYTORCH and not row.fake  # a fake compares nothing
        target.compared += row.compared if evidence else 0
        self.rows.append(row)

    def _command(self, target: Target, graph: Graph, check: str) -> str:
        """The command that runs just this check of this cell again."""
        words = ["pytest", f"--backend={target.selector.text}"]
        if self.options.bundle != EMBEDDED:
            words.append(f"--bundle={shlex.quote(str(self.options.bundle))}")
        if self.options.python:
            words.append(f"--backend-python={shlex.quote(self.options.python)}")
        words += [f"--exporter={graph.exporter}", f"--opset={graph.opset}", f"--layout={graph.layout}"]
        return " ".join([*words, f"-k {check}"])

    def progress(self, last: Question) -> str:
        """Where the run stands now that all of a backend, or all costs of it, has been asked: for a line of the terminal."""
        if last.check == "cost":
            return f"{last.target.selector.text}: costs measured"
        with self._lock:
            counts = Counter(seen_status(row) for row in self.rows if row.backend == last.target.selector.name
                             and (not last.target.probe or row.version == last.target.probe.version))  # fmt: skip
            left = sum(len(checks - set(self._answers.get(cell, ()))) for cell, checks in self._asked.items())
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.SEVERITY if counts[status])
        return f"{last.target.selector.text}: {words}; {left} answers to come"

    @property
    def all_absent(self) -> bool:
        return all(target.found.absent for target in self.targets)

    def outcome(self) -> Outcome:
        """What the run came to, so far."""
        return Outcome(
            [self.writer.path],
            {target.selector.text: target.compared for target in self.targets if not target.found.absent},
            {**self.absences(), **self._not_run()},
            self._unmatched(),
            self.writer.resumed if self.options.resume else None,
            self.reused,
        )

    def absences(self) -> dict[str, str]:
        """A line for each backend that is not here."""
        return {
            target.selector.text: f"{target.selector.text} is absent: {_why(target.found.absent)}"
            for target in self.targets
            if target.found.absent
        }

    def _not_run(self) -> dict[str, str]:
        """A line for each backend that got no further than parsing or building."""
        kinds = {(row.backend, row.version): row.kind for row in self.rows if row.status == "ABSENT" and row.cell}
        return {
            target.selector.text: f"{target.selector.text} was {kinds[key]} and not run: {_why(target.found.missing)}"
            for target in self.targets
            if target.probe and target.found.missing and not target.compared
            if (key := (target.selector.name, target.probe.version)) in kinds
        }

    def _unmatched(self) -> list[str]:
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

    def close(self) -> None:
        """End the workers; rows already written stay. What was asked and not answered is left for ``--resume``."""
        with self._lock:
            self._stopping = True
            finished = all(checks <= set(self._answers.get(cell, ())) for cell, checks in self._asked.items())
        while self._conductor.is_alive():  # killed again, should the conductor just be starting one
            for target in self.targets:
                target.worker.kill()
            self._conductor.join(0.1)
        for target in self.targets:
            target.worker.stop()
        if "writer" in vars(self):
            self.writer.close(finished)


def _meet(number: int, worker: Worker) -> Found:
    """Ask a worker what it is; those that must wait for their turn need not hold their memory until then."""
    found = worker.probe()
    if number >= cores():
        worker.stop()
    return found


def _why(missing: dict[str, str]) -> str:
    return f"{missing['reason']}; {missing['remedy']}"


def as_asked(selector: selectors.Selector, found: Found) -> Found:
    """A version that was asked for and is not the one found is absent."""
    if found.probe is None or selector.version is None:
        return found
    if (found.probe.version + ".").startswith(selector.version + "."):
        return found
    name = f"{selector.module.rpartition('.')[2]}@{selector.version}"
    reason = f"version {selector.version} was asked for, {found.probe.version} is installed"
    try:
        envs.matching(name)
        first = ""
    except UserError:
        first = "put a line for it into backends/envs.toml, then "
    remedy = f"{first}conform envs create {name}, or give the interpreter that has it with --backend-python"
    return Found(absent={"reason": reason, "remedy": remedy})


def not_here(selector: selectors.Selector, found: Found) -> Row:
    """The one row of a backend that cannot be asked anything."""
    if found.absent:
        return Row("probe", "ABSENT", "probe", message=_why(found.absent), version=selector.version or "")
    assert found.failure is not None
    return Row(**vars(found.failure))
