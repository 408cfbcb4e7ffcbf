"""The plan of operator columns: ONNX's node tests of an operator, opset by opset, through the adapters that cells use.

One row an operator, opset and runtime: check ``operator``, cell ``ort@1.32.0/cpu/operator/GatherElements/fp32/op12``. What
a test of an opset is, ``harness.run.node_tests`` says; where there is none, there is no row. A row is its worst test. Rows
already in the results, of the same runtime version, collection and box, are not asked again.
"""

import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core import selectors, verdict
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.identity import identity_of
from harness.core.messages import one_line
from harness.core.rowfiles import Writer, box_name
from harness.core.rows import Answer, Row
from harness.run import envs, preflight
from harness.run.engine import Engine
from harness.run.launch import EMBEDDED, shares
from harness.run.ledger import Ledger
from harness.run.node_tests import Collection, NodeTest, nodes
from harness.run.plan import Lane, Task
from harness.run.process import Limits
from harness.run.targets import Refusal, Target, meet
from harness.run.worker import Worker

EXPORTER = "operator"
"""Stands for the exporter in the cell of an operator; the operator's name stands for the layout."""
SILENCE = 20.0
"""Seconds of silence before a node test counts as hung: one takes milliseconds."""
NOTE_SECONDS = 5.0
"""Seconds between two lines of progress."""


@dataclass
class Request:
    """What a command line asks for. ``results``: rows are read from all of them and written to the first, a folder.

    ``backends``: selectors; empty for the runtimes that have rows in ``results``. ``again``: run what has rows, too.
    """

    results: Sequence[Path]
    operators: Sequence[str]
    opsets: Sequence[int]
    backends: Sequence[str] = ()
    again: bool = False
    limits: Limits = field(default_factory=lambda: Limits(SILENCE))

    def command(self, backend: str, operators: str) -> str:
        """The command line that asks a backend for operators (with commas)."""
        return f"conform operators {shlex.quote(str(self.results[0]))} --ops={operators} --backend={backend}"


def used_by(bundle: Bundle) -> list[str]:
    """The operators of a bundle's graphs, those of the graphs inside too."""
    graphs = (preflight.read(part.path).graph for graph in bundle.graphs for part in graph.parts)
    return sorted({node.op_type for graph in graphs for node in nodes(graph) if not node.domain})


def runtimes(rows: Iterable[Row]) -> list[str]:
    """Selectors of the runtimes that have cells in these rows."""
    pairs = dict.fromkeys((row.backend, row.version) for row in rows if row.cell)
    return [_selector(backend, version) for backend, version in sorted(pairs)]


def _selector(backend: str, version: str) -> str:
    name, colon, provider = backend.partition(":")
    return f"{name}@{version}{colon}{provider}" if name in selectors.names() else backend


class OperatorTask(Task):
    """The node tests of one operator at one opset on one backend."""

    checks = ("operator",)

    def __init__(self, target: Target, operator: str, opset: int, tests: Collection, request: Request) -> None:
        probe = target.probe
        assert probe is not None
        self.target, self.operator, self.opset, self.collection, self.request = target, operator, opset, tests, request
        cell = Cell(target.selector.name, probe.version, probe.device, EXPORTER, operator, probe.precision, opset)
        self.identity = identity_of(cell, probe.execution, "")

    def command(self, check: str) -> str:
        return f"{self.request.command(self.target.selector.text, self.operator)} --opset={self.opset} --again"

    def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        """Run every test; the row is what they come to together."""
        began = time.perf_counter()
        tests = self.collection.tests(self.operator, self.opset)
        with tempfile.TemporaryDirectory() as folder:
            answers = [self._answer(worker, test, folder) for test in tests]
        answer = conclude(tests, answers)
        detail = {**answer.detail, "collection": self.collection.name}
        ledger.record(self, replace(answer, seconds=round(time.perf_counter() - began, 4), detail=detail))

    def _answer(self, worker: Worker, test: NodeTest, folder: str) -> Answer:
        if test.lacks:
            message = f"numpy has no {' and no '.join(test.lacks)}, and the backend contract carries numpy arrays"
            return Answer("operator", "UNSUPPORTED", "parse", "dtype", message=message)
        return worker.run_test(self.collection.stamped(test, self.opset, folder))


class Columns:
    """Fills in operator rows that are missing. Close it at the end; rows already written stay."""

    def __init__(self, request: Request, tests: Collection, rows: Sequence[Row], note: Callable[[str], None]) -> None:
        """``rows``: those of the results; ``note`` takes a line of progress."""
        self.request, self.tests, self.note = request, tests, note
        self.selectors = list(request.backends) or runtimes(rows)
        self.absent: list[str] = []
        """What was asked for by name and is not here."""
        self._known = {(row.cell, row.box) for row in rows if not request.again and self._answers(row)}
        self._noted = time.monotonic()
        self._finished = False
        self.ledger = Ledger(self._open_writer, self._progress)
        self._engine = Engine([], self.ledger)

    def _answers(self, row: Row) -> bool:
        """Whether a row is an answer of this collection; a fault of the harness or the environment answers nothing."""
        return row.check == "operator" and row.status != "ERROR" and row.detail.get("collection") == self.tests.name

    def _open_writer(self) -> Writer:
        request = self.request
        asked = {
            "operators": list(request.operators),
            "opsets": list(request.opsets),
            "backends": list(request.backends),
            "collection": self.tests.name,
        }
        return Writer(str(request.results[0]), asked)

    def fill(self) -> None:
        """Run what is missing. Raises UserError for a runtime that was asked for and does not exist, and OSError."""
        chosen = self._chosen()
        limits = self.request.limits
        workers = [Worker(str(EMBEDDED), selector, limits, envs.interpreter(selector)) for selector in chosen]
        try:
            for worker, share in zip(workers, shares(len(workers)), strict=False):
                worker.share = share
            targets = meet(chosen, workers)
            for target in targets:
                if target.probe is None:
                    self._refuse(target)
            lanes = [Lane(target.worker, self._missing(target)) for target in targets if target.probe]
            self._engine = Engine(lanes, self.ledger)
            self._engine.start()
            self._engine.join()
            self._finished = True
        finally:
            self._engine.stop()
            for worker in workers:
                worker.stop()

    def _chosen(self) -> list[selectors.Selector]:
        chosen = []
        for text in self.selectors:
            try:
                chosen += envs.expand(selectors.parse(text))
            except UserError as error:
                if self.request.backends:
                    raise
                self.note(f"{text}: not run here: {error}")
        return list(dict.fromkeys(chosen))

    def _missing(self, target: Target) -> list[OperatorTask]:
        """The tasks without a row of this box; the ledger is asked for them."""
        tasks = [
            OperatorTask(target, operator, opset, self.tests, self.request)
            for operator in self.request.operators
            for opset in self.request.opsets
            if self.tests.tests(operator, opset)
        ]
        missing = [task for task in tasks if (task.name, box_name()) not in self._known]
        for task in missing:
            self.ledger.ask(task, task.checks)
        known = len(tasks) - len(missing)
        self.note(f"{_name(target)}: {len(missing)} rows to run, {known} known (--again runs those too)")
        return missing

    def _refuse(self, target: Target) -> None:
        """Nothing to run it on. Asked for by name, that is an answer; known from rows of another box, it is a remark."""
        text = target.selector.text
        self.note(f"{text}: not run here: {target.refusal.message}")
        if self.request.backends:
            self.absent.append(text)
            command = self.request.command(text, ",".join(self.request.operators))
            self.ledger.record(Refusal(target, "", command), target.refusal)

    def _progress(self, row: Row) -> None:
        if time.monotonic() - self._noted > NOTE_SECONDS:
            self._noted = time.monotonic()
            self.note(f"{row.cell}: {row.status}; {self.ledger.left} rows to come")

    def close(self) -> None:
        """The run counts as finished when ``fill`` came to its end."""
        self.ledger.close(self._finished)


def _name(target: Target) -> str:
    assert target.probe is not None
    return f"{target.selector.name}@{target.probe.version}"


def conclude(tests: Sequence[NodeTest], answers: Sequence[Answer]) -> Answer:
    """The answer of an operator at an opset from those to all its tests, one each: the worst of them.

    ``compared``: elements compared; ``value``: tests that failed. PASS needs every test, equal; a test that was refused
    makes it UNSUPPORTED. What is refused for a dtype that no test passes with has the kind ``dtype``, whatever the
    runtime called it: the operator is there.
    """
    pairs = list(zip(tests, answers, strict=True))
    status = verdict.worst(answer.status for answer in answers)
    compared = sum(answer.compared for answer in answers)
    passed = [test for test, answer in pairs if answer.status == "PASS"]
    others = {test.name: f"{answer.status}: {answer.message}" for test, answer in pairs if answer.status != "PASS"}
    worst = Answer(
        "operator",
        verdict.of_row(compared, 0) if status == "PASS" else status,
        metric="node tests failed",
        value=float(sum(verdict.STATUSES[answer.status].outcome == "fail" for answer in answers)),
        bound=0.0,
        compared=compared,
        detail={"tests": len(tests), "passed": len(passed), "others": dict(list(others.items())[:20])},
    )
    if status == "PASS":
        return worst
    known = {dtype for test in passed for dtype in test.dtypes}
    exotic = {
        test.name: [dtype for dtype in test.dtypes if dtype not in known] if passed else list(test.lacks)
        for test, answer in pairs
        if answer.status == "UNSUPPORTED"
    }
    deciding = [pair for pair in pairs if pair[1].status == status]
    plain = [(test, answer) for test, answer in deciding if not exotic.get(test.name) and answer.kind != "dtype"]
    test, answer = (plain or deciding)[0]
    return replace(
        worst,
        stage=answer.stage,
        kind=answer.kind if plain else "dtype",
        message=one_line(f"{_numbers(answers, exotic)}: {test.name}: {answer.message}"),
        detail={**worst.detail, **{key: answer.detail[key] for key in ("said",) if key in answer.detail}},
    )


def _numbers(answers: Sequence[Answer], exotic: Mapping[str, list[str]]) -> str:
    """``1 of 34 node tests wrong as shipped, 2 refused, all of those with dtypes that no test passes with (bfloat16)``.

    ``exotic``: for each refused test its dtypes that no test passes with."""
    counts = Counter(answer.status for answer in answers)
    worst, *others = [status for status in verdict.SEVERITY if counts[status] and status != "PASS"]
    parts = [f"{counts[worst]} of {len(answers)} node tests {verdict.STATUSES[worst].meaning}"]
    parts += [f"{counts[status]} {verdict.STATUSES[status].meaning}" for status in others]
    dtypes = sorted({dtype for names in exotic.values() for dtype in names})
    if dtypes:
        refused = sum(map(bool, exotic.values()))
        more = f" and {len(dtypes) - 3} more" if len(dtypes) > 4 else ""
        names = ", ".join(dtypes[:3] if more else dtypes) + more
        count = "all" if refused == len(exotic) else str(refused)
        parts.append(f"{count} of those with dtypes that no test passes with ({names})")
    return ", ".join(parts)


def gaps(tests: Collection, operators: Iterable[str], opsets: Sequence[int]) -> list[str]:
    """A line for each operator without a test at some of the opsets: there it has no row."""
    lines = []
    for operator in operators:
        none = [opset for opset in opsets if not tests.tests(operator, opset)]
        if none:
            shown = f"{none[0]}-{none[-1]}" if len(none) == none[-1] - none[0] + 1 > 1 else ", ".join(map(str, none))
            lines.append(f"{operator}: ONNX has no node test of it at opset {shown}, so there is no row")
    return lines


def asked_rows(rows: Iterable[Row], request: Request) -> list[Row]:
    """The rows that answer a request: of its operators and opsets, and of the backends that are not here."""
    return [
        row
        for row in rows
        if (row.check == "operator" and row.layout in request.operators and row.opset in request.opsets)
        or (row.check == "probe" and not row.cell and request.backends)
    ]
