"""Operator columns: ONNX's node tests of an operator, opset by opset, through the adapters and workers that cells use.

One row an operator, opset and runtime: check ``operator``, cell ``ort@1.32.0/cpu/operator/GatherElements/fp32/op12``. What
a test of an opset is, ``harness.run.node_tests`` says; where there is none, there is no row. A row is its worst test. Rows
already in the results, of the same runtime version, collection and box, stand for another run.
"""

import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from backends.contract import Probe
from harness.core import selectors, verdict
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.rowfiles import Writer, box_name
from harness.core.rows import Row
from harness.replay.job import one_line
from harness.run import envs, preflight
from harness.run.campaign import as_asked, not_here
from harness.run.launch import EMBEDDED
from harness.run.node_tests import Collection, NodeTest, nodes
from harness.run.process import Found, Limits, Worker

EXPORTER = "operator"
"""What stands for the exporter in the cell of an operator; the operator's name stands for the layout."""
SILENCE = 20.0
"""Seconds of silence before a node test counts as hung: one takes milliseconds."""
TOLD = 5.0


@dataclass
class Wish:
    """What a command line asks for. ``results``: rows are read from all of them and written to the first, a folder.

    ``backends``: selectors; empty for the runtimes that have rows in ``results``.
    """

    results: Sequence[Path]
    operators: Sequence[str]
    opsets: Sequence[int]
    backends: Sequence[str] = ()
    again: bool = False
    limits: Limits = field(default_factory=lambda: Limits(SILENCE))


def used_by(bundle: Bundle) -> list[str]:
    """The operators of a bundle's graphs, those of the graphs inside too."""
    graphs = (preflight.read(part.path).graph for graph in bundle.graphs for part in graph.parts)
    return sorted({node.op_type for graph in graphs for node in nodes(graph) if not node.domain})


def runtimes(rows: Iterable[Row]) -> list[str]:
    """Selectors of the runtimes that have cells in these rows."""
    found = dict.fromkeys((row.backend, row.version) for row in rows if row.cell)
    return [_selector(backend, version) for backend, version in sorted(found)]


def _selector(backend: str, version: str) -> str:
    name, colon, provider = backend.partition(":")
    return f"{name}@{version}{colon}{provider}" if name in selectors.names() else backend


class Columns:
    """Fills in operator rows that are missing. Close it at the end; rows already written stay."""

    def __init__(self, wish: Wish, tests: Collection, rows: Sequence[Row], say: Callable[[str], None]) -> None:
        """``rows``: those of the results; ``say`` takes a line of progress."""
        self.wish, self.tests, self.say = wish, tests, say
        self.selectors = list(wish.backends) or runtimes(rows)
        self.idle: list[str] = []
        self._finished = False
        self._known = {(row.cell, row.box) for row in rows if not wish.again and self._stands(row)}

    def _stands(self, row: Row) -> bool:
        """Whether a row is an answer of this collection; a fault of the harness or the environment answers nothing."""
        return row.check == "operator" and row.status != "ERROR" and row.detail.get("collection") == self.tests.name

    @cached_property
    def writer(self) -> Writer:
        """Made when there is something to write. Raises OSError."""
        wish = self.wish
        asked = {"operators": list(wish.operators), "opsets": list(wish.opsets), "backends": list(wish.backends)}
        return Writer(str(wish.results[0]), {**asked, "collection": self.tests.name})

    @property
    def wrote(self) -> bool:
        """Whether a rows file was added to the first of the results."""
        return "writer" in vars(self)

    def fill(self) -> None:
        """Run what is missing, runtime after runtime. Raises UserError for one that was asked for."""
        for text in self.selectors:
            try:
                asked = envs.expand(selectors.parse(text))
            except UserError as error:
                if self.wish.backends:
                    raise
                self.say(f"{text}: not run here: {error}")
                continue
            for selector in asked:
                self._fill(selector)
        self._finished = True

    def _fill(self, selector: selectors.Selector) -> None:
        worker = Worker(str(EMBEDDED), selector, self.wish.limits, envs.interpreter(selector))
        try:
            found = as_asked(selector, worker.probe())
            if found.probe is None:
                self._unavailable(selector, found)
            else:
                self._run_missing(selector, worker, found.probe)
        finally:
            worker.stop()

    def _run_missing(self, selector: selectors.Selector, worker: Worker, probe: Probe) -> None:
        cells = [
            Cell(selector.name, probe.version, probe.device, EXPORTER, operator, probe.precision, opset)
            for operator in self.wish.operators
            for opset in self.wish.opsets
            if self.tests.tests(operator, opset)
        ]
        missing = [cell for cell in cells if (str(cell), box_name()) not in self._known]
        name = f"{selector.name}@{probe.version}"
        self.say(f"{name}: {len(missing)} rows to run, {len(cells) - len(missing)} known (--again runs those too)")
        told = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for number, cell in enumerate(missing):
                if time.monotonic() - told > TOLD:
                    told = time.monotonic()
                    self.say(f"{name}: {number} of {len(missing)} rows, {cell.layout} at opset {cell.opset} next")
                self._run(selector, worker, cell, folder)
                self._known.add((str(cell), box_name()))

    def _unavailable(self, selector: selectors.Selector, found: Found) -> None:
        """Nothing to run it on. Asked for by name, that is an answer; known from rows of another box, it is a remark."""
        row = not_here(selector, found)
        self.say(f"{selector.text}: not run here: {row.message}")
        if self.wish.backends:
            self.idle.append(selector.text)
            row.backend = row.runtime = selector.name
            row.command = self._command(selector.text)
            self.writer.write(row)

    def _run(self, selector: selectors.Selector, worker: Worker, cell: Cell, folder: str) -> None:
        began = time.perf_counter()
        tests = self.tests.tests(cell.layout, cell.opset)
        row = conclude(tests, [self._answer(worker, test, cell.opset, folder) for test in tests])
        row.seconds = round(time.perf_counter() - began, 4)
        row.detail["collection"] = self.tests.name
        vars(row).update(cell._asdict(), runtime=cell.backend.split(":")[0], cell=str(cell))
        row.command = f"{self._command(selector.text, cell.layout)} --opset={cell.opset} --again"
        self.writer.write(row)

    def _answer(self, worker: Worker, test: NodeTest, opset: int, folder: str) -> Row:
        if test.lacks:
            words = f"numpy has no {' and no '.join(test.lacks)}, and the backend contract carries numpy arrays"
            return Row("operator", "UNSUPPORTED", "parse", "dtype", message=words)
        return Row(**vars(worker.run_test(self.tests.stamped(test, opset, folder))))

    def _command(self, backend: str, operator: str = "") -> str:
        named = operator or ",".join(self.wish.operators)
        return f"conform matrix {shlex.quote(str(self.wish.results[0]))} --ops={named} --backend={backend}"

    def close(self) -> None:
        """The run counts as finished when ``fill`` came to its end."""
        if self.wrote:
            self.writer.close(self._finished)


def conclude(tests: Sequence[NodeTest], answers: Sequence[Row]) -> Row:
    """The row of an operator at an opset from the answers to all its tests, one each: the worst of them.

    ``compared``: elements compared; ``value``: tests that failed. PASS needs every test, equal; a test that was refused
    makes it UNSUPPORTED. What is refused for a dtype that no test passes with has the kind ``dtype``, whatever the
    runtime called it: the operator is there.
    """
    pairs = list(zip(tests, answers, strict=True))
    passed = [test for test, answer in pairs if answer.status == "PASS"]
    others = {test.name: f"{answer.status}: {answer.message}" for test, answer in pairs if answer.status != "PASS"}
    row = Row("operator", verdict.worst(answer.status for answer in answers), metric="node tests failed", bound=0.0)
    row.value = float(sum(verdict.STATUSES[answer.status].outcome == "fail" for answer in answers))
    row.compared = sum(answer.compared for answer in answers)
    row.detail = {"tests": len(tests), "passed": len(passed), "others": dict(list(others.items())[:20])}
    if row.status == "PASS":
        row.status = verdict.of_row(row.compared, 0)
        return row
    known = {dtype for test in passed for dtype in test.dtypes}
    exotic = {
        test.name: [dtype for dtype in test.dtypes if dtype not in known] if passed else list(test.lacks)
        for test, answer in pairs
        if answer.status == "UNSUPPORTED"
    }
    deciding = [pair for pair in pairs if pair[1].status == row.status]
    plain = [(test, answer) for test, answer in deciding if not exotic.get(test.name) and answer.kind != "dtype"]
    test, answer = (plain or deciding)[0]
    row.stage, row.kind = answer.stage, answer.kind if plain else "dtype"
    row.message = one_line(f"{_numbers(answers, exotic)}: {test.name}: {answer.message}")
    if "said" in answer.detail:
        row.detail["said"] = answer.detail["said"]
    return row


def _numbers(answers: Sequence[Row], exotic: Mapping[str, list[str]]) -> str:
    """``1 of 34 node tests wrong as shipped, 2 refused, all of those with dtypes that no test passes with (bfloat16)``."""
    counts = Counter(answer.status for answer in answers)
    said = [
        f"{counts[one]} {verdict.STATUSES[one].meaning}" for one in verdict.SEVERITY if counts[one] and one != "PASS"
    ]
    number, _, meaning = said[0].partition(" ")
    said[0] = f"{number} of {len(answers)} node tests {meaning}"
    dtypes = sorted({dtype for found in exotic.values() for dtype in found})
    if dtypes:
        those = sum(map(bool, exotic.values()))
        more = f" and {len(dtypes) - 3} more" if len(dtypes) > 4 else ""
        named = ", ".join(dtypes[:3] if more else dtypes) + more
        said.append(
            f"{'all' if those == len(exotic) else those} of those with dtypes that no test passes with ({named})"
        )
    return ", ".join(said)


def gaps(tests: Collection, operators: Iterable[str], opsets: Sequence[int]) -> list[str]:
    """A line for each operator without a test at some of the opsets: there it has no row."""
    lines = []
    for operator in operators:
        none = [opset for opset in opsets if not tests.tests(operator, opset)]
        if none:
            shown = f"{none[0]}-{none[-1]}" if len(none) == none[-1] - none[0] + 1 > 1 else ", ".join(map(str, none))
            lines.append(f"{operator}: ONNX has no node test of it at opset {shown}, so there is no row")
    return lines


def shown(rows: Iterable[Row], wish: Wish) -> list[Row]:
    """The rows that answer a wish: of its operators and opsets, and of the backends that are not here."""
    return [
        row
        for row in rows
        if (row.check == "operator" and row.layout in wish.operators and row.opset in wish.opsets)
        or (row.check == "probe" and not row.cell and wish.backends)
    ]
