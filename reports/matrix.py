"""The compatibility matrix: opset rows, runtime@version × layout columns, of the newest row of each cell and check."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from harness.core import verdict
from harness.core.cell import SIMULATOR
from harness.core.rows import Row, contradiction, depth, named, newest, seen_status


class Line(NamedTuple):
    """One row of the table: an opset, of one exporter."""

    opset: int
    exporter: str


class Column(NamedTuple):
    """One column: a runtime at a version on a device, with the kind of graph it was fed."""

    backend: str
    version: str
    device: str
    precision: str
    layout: str
    box: str
    bundle: str
    difference: str = ""
    """What tells it from a column that would else be named alike: device, precision, box, bundle; mostly empty."""

    @property
    def simulated(self) -> bool:
        return self.device.startswith(SIMULATOR)

    @property
    def runtime(self) -> str:
        return f"{named(self.backend, self.version)} {self.difference}".strip()

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts 1.9 before 1.10."""
        return (self.backend, _natural(self.version), *self[2:])


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(word), "") if word.isdigit() else (-1, word) for word in re.findall(r"\d+|\D+", text))


@dataclass
class Entry:
    """One cell of the table: its symbol, its status, what it is called (`verdict.called`), the row that decided it."""

    status: str
    symbol: str
    called: str
    row: Row
    rows: list[Row] = field(default_factory=list)


@dataclass
class Matrix:
    """``entries`` maps (line, column) to an entry; a pair without one was not run."""

    columns: list[Column]
    lines: list[Line]
    entries: dict[tuple[Line, Column], Entry]
    absent: list[Row]

    @property
    def graphs(self) -> set[tuple[Line, str]]:
        """Lines and layouts of which there is a graph: not every layout has one of every opset."""
        return {(line, column.layout) for line, column in self.entries}

    def label(self, line: Line) -> str:
        """The opset, with its exporter where there are several."""
        several = len({line.exporter for line in self.lines}) > 1
        return f"{line.opset:>2} {line.exporter}".rstrip() if several else f"{line.opset:>2}"


def build(rows: Iterable[Row]) -> Matrix:
    """The matrix over rows of any number of runs and boxes."""
    by_cell: dict[tuple[str, str, str], list[Row]] = {}
    absent = []
    for row in newest(rows):
        if row.cell:
            by_cell.setdefault((row.cell, row.box, row.bundle), []).append(row)
        else:
            absent.append(row)
    difference = _differences([cell[0] for cell in by_cell.values()])
    entries = {}
    for cell in by_cell.values():
        first = cell[0]
        graphs, what_differs = _kind_of_graph(first), difference(first)
        runtime = first.backend, first.version, first.device, first.precision
        column = Column(*runtime, graphs, first.box, first.bundle, what_differs)
        line = Line(first.opset or 0, "" if first.check in verdict.OTHER_CHECKS else first.exporter)
        entries[(line, column)] = _entry(cell)
    columns = sorted({column for _, column in entries}, key=lambda column: column.order)
    return Matrix(columns, sorted({line for line, _ in entries}), entries, absent)


def _kind_of_graph(row: Row) -> str:
    """What a column is fed: graphs of a layout; the node tests of an operator; files of an exporter's way of attention."""
    return f"{row.layout} {row.exporter}" if row.check == "export" else row.layout


def _differences(firsts: Sequence[Row]) -> Callable[[Row], str]:
    """What a column must say of itself beside runtime and version, given all that it stands beside."""
    # Rows of operators and exports are of no bundle.
    boxes, bundles = {row.box for row in firsts}, {row.bundle for row in firsts} - {""}
    devices: dict[tuple[str, str], set[str]] = {}
    precisions: dict[tuple[str, str], set[str]] = {}
    for row in firsts:
        devices.setdefault((row.backend, row.version), set()).add(row.device)
        precisions.setdefault((row.backend, row.version), set()).add(row.precision)

    def difference(row: Row) -> str:
        runtime = (row.backend, row.version)
        words = [row.device] * (len(devices[runtime]) > 1) + [row.precision] * (len(precisions[runtime]) > 1)
        return " ".join(words + [row.box] * (len(boxes) > 1) + [row.bundle] * (len(bundles) > 1))

    return difference


def _entry(cell: list[Row]) -> Entry:
    cell = [replace(row, status="ERROR", message=why) if (why := contradiction(row)) else row for row in cell]
    status = verdict.worst(seen_status(row) for row in cell)
    deciding = min(
        (row for row in cell if seen_status(row) == status),
        key=lambda row: verdict.CHECKS.index(row.check) if row.check in verdict.CHECKS else 99,
    )
    partial = {row.check for row in cell} < set(verdict.CHECKS)
    called = verdict.called(status, deciding.kind, partial, deciding.simulated)
    symbol = verdict.WORDS[called].symbol
    if status == "UNSUPPORTED" and all(row.knob.startswith("ir=") for row in cell if row.status == "UNSUPPORTED"):
        symbol = verdict.RESTAMPED.symbol
    return Entry(status, symbol, called, deciding, cell)


def reason(entry: Entry) -> str:
    """Why a cell does not pass, in a line that cells with the same reason share."""
    row = entry.row
    if entry.status == "ABSENT":
        return row.message
    if entry.called == "SIMULATED":
        return f"passes on {row.device}, and on no device"
    if entry.status == "PASS":
        ran = {row.check for row in entry.rows}
        return f"not every check ran: {', '.join(check for check in verdict.CHECKS if check in ran)} passed"
    where = "" if row.step is None else f", first at step {row.step}"
    knob = f", cleared by {row.knob}" if row.knob else ""
    expected = f" (expected: {row.detail['expected']['reason']})" if row.status == "XFAIL" else ""
    kind = f"{row.kind}: " if row.status == "UNSUPPORTED" else ""
    message = row.message if row.step is None or not expected else ""
    if row.status == "UNSUPPORTED":
        return f"refused: {kind}{message}{knob}"
    return f"{row.check} {entry.status}{where}{knob}{': ' if message else ''}{message}{expected}"


def alike(entry: Entry) -> str:
    """What entries with one reason have in common: a refusal, or a node test, is the same one whatever numbers it names; a
    wrong cell's step matters."""
    text = reason(entry)
    same = entry.status in ("UNSUPPORTED", "ABSENT") or entry.row.check == "operator"
    return re.sub(r"[-+]?\d[\w.+-]*", "#", text) if same else text


def in_common(texts: Sequence[str]) -> str:
    """One text for several that differ in some words: those are left out."""
    words = [set(column) for column in zip(*(text.split(" ") for text in texts), strict=True)]
    return " ".join(word.pop() if len(word) == 1 else "…" for word in words)


def newest_common(matrix: Matrix) -> list[str]:
    """The newest opset that passes in every column shown that has a graph of it, and what each step up would lose."""
    passing: dict[Column, set[Line]] = {column: set() for column in matrix.columns}
    there = matrix.graphs
    for (line, column), entry in matrix.entries.items():
        if entry.status == "PASS" and not column.simulated:
            passing[column].add(line)
    never = [column for column, lines in passing.items() if not lines]
    rest = [column for column in matrix.columns if column not in never]
    if not rest or len(matrix.lines) < 2:
        return []

    def lost_at(line: Line) -> list[Column]:
        return [column for column in rest if line not in passing[column] and (line, column.layout) in there]

    common = [line for line in matrix.lines if not lost_at(line)]
    where = " on a device" if any(column.simulated for column in never) else ""
    left = f" (leaving out what passes at none{where}: {_names(never, matrix)})" if never else ""
    if not common:
        return [f"No opset passes in every column{left}."]
    best = common[-1]
    all_there = all((best, column.layout) in there for column in rest)
    has = "" if all_there else " that has it"
    words = f"Newest opset that passes in every column{has}{left}: {matrix.label(best).strip()}."
    lost_before: set[Column] = set()
    for line in matrix.lines[matrix.lines.index(best) + 1 :]:
        lost = lost_at(line)
        new = [column for column in lost if column not in lost_before]
        if new:
            words += f" {matrix.label(line).strip()} would lose {_names(new, matrix)}{' too' if lost_before else ''};"
        lost_before |= set(lost)
    words = words.rstrip(";") + ("." if words.endswith(";") else "")
    if any(entry.called == "PARTIAL" for (line, column), entry in matrix.entries.items() if line == best):
        words += f" Not every check ran at {matrix.label(best).strip()}."
    return [words]


def _names(columns: Sequence[Column], matrix: Matrix) -> str:
    """Runtimes, with the layouts where not all of theirs are meant."""
    names = []
    for runtime, group in groupby(columns, key=lambda column: column.runtime):
        layouts = [column.layout for column in group]
        some = len(layouts) < sum(column.runtime == runtime for column in matrix.columns)
        names.append(f"{runtime} {' and '.join(layouts)}" if some else runtime)
    return ", ".join(names)


def records(matrix: Matrix) -> list[dict[str, object]]:
    """One flat record a cell, for CSV and JSON."""
    entries = sorted(matrix.entries.items(), key=lambda item: (item[0][0], item[0][1].order))
    return [
        {
            **line._asdict(),
            **{name: value for name, value in column._asdict().items() if name != "difference"},
            "status": entry.status,
            "symbol": entry.symbol,
            "depth": depth(entry.rows),
            "check": entry.row.check,
            "step": entry.row.step,
            "knob": entry.row.knob,
            "reason": "" if entry.called == "PASS" else reason(entry),
            "cell": entry.row.cell,
            "compared": sum(row.compared for row in entry.rows),
            "last_run": entry.row.time,
            "rows": f"{entry.row.run}.jsonl",
        }
        for (line, column), entry in entries
    ]
