"""The compatibility matrix: opset rows, runtime@version × layout columns, of the newest row of each cell and check."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from wcwidth import wcswidth, wrap

from harness.judge import verdict
from harness.rows import Row, RowsError, contradiction, depth, is_simulated, named, newest, seen_status
from reports.folders import read_all

WIDTH = 80


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
    told: str = ""
    """What tells it from a column that would else be named alike: device, precision, box, bundle; mostly empty."""

    @property
    def runtime(self) -> str:
        return f"{named(self.backend, self.version)} {self.told}".strip()

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


def build(rows: Iterable[Row]) -> Matrix:
    """The matrix over rows of any number of runs and boxes."""
    by_cell: dict[tuple[str, str, str], list[Row]] = {}
    absent = []
    for row in newest(rows):
        if row.cell:
            by_cell.setdefault((row.cell, row.box, row.bundle), []).append(row)
        else:
            absent.append(row)
    told = _told([cell[0] for cell in by_cell.values()])
    entries = {}
    for cell in by_cell.values():
        first = cell[0]
        column = Column(
            first.backend, first.version, first.device, first.precision, _kind_of_graph(first), first.box, first.bundle,
            told(first),
        )  # fmt: skip
        line = Line(first.opset or 0, "" if first.check in verdict.OTHER_CHECKS else first.exporter)
        entries[(line, column)] = _entry(cell)
    columns = sorted({column for _, column in entries}, key=lambda column: column.order)
    return Matrix(columns, sorted({line for line, _ in entries}), entries, absent)


def _kind_of_graph(row: Row) -> str:
    """What a column is fed: graphs of a layout; the node tests of an operator; files of an exporter's way of attention."""
    return f"{row.layout} {row.exporter}" if row.check == "export" else row.layout


def _told(firsts: Sequence[Row]) -> Callable[[Row], str]:
    """What a column must say of itself beside runtime and version, given all that it stands beside."""
    # Rows of operators and exports are of no bundle.
    boxes, bundles = {row.box for row in firsts}, {row.bundle for row in firsts} - {""}
    devices: dict[tuple[str, str], set[str]] = {}
    precisions: dict[tuple[str, str], set[str]] = {}
    for row in firsts:
        devices.setdefault((row.backend, row.version), set()).add(row.device)
        precisions.setdefault((row.backend, row.version), set()).add(row.precision)

    def told(row: Row) -> str:
        runtime = (row.backend, row.version)
        words = [row.device] * (len(devices[runtime]) > 1) + [row.precision] * (len(precisions[runtime]) > 1)
        return " ".join(words + [row.box] * (len(boxes) > 1) + [row.bundle] * (len(bundles) > 1))

    return told


def _entry(cell: list[Row]) -> Entry:
    cell = [replace(row, status="ERROR", message=why) if (why := contradiction(row)) else row for row in cell]
    status = verdict.worst(seen_status(row) for row in cell)
    deciding = min(
        (row for row in cell if seen_status(row) == status),
        key=lambda row: verdict.CHECKS.index(row.check) if row.check in verdict.CHECKS else 99,
    )
    partial = {row.check for row in cell} < set(verdict.CHECKS)
    called = verdict.called(status, deciding.kind, partial, is_simulated(deciding.device))
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
    said = row.message if row.step is None or not expected else ""
    if row.status == "UNSUPPORTED":
        return f"refused: {kind}{said}{knob}"
    return f"{row.check} {entry.status}{where}{knob}{': ' if said else ''}{said}{expected}"


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


class _Head(NamedTuple):
    """A column as it is shown: one or more columns that say the same in every line."""

    runtime: str
    name: str
    layout: str
    columns: tuple[Column, ...]


ALL = "all"


@dataclass
class _Page:
    """How a matrix is laid out: the marks and the heads, the layouts of a runtime joined where they say the same."""

    matrix: Matrix
    marks: dict[tuple[Line, Column], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        said: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        for column in self.matrix.columns:
            for line in self.matrix.lines:
                entry = self.matrix.entries.get((line, column))
                if entry and entry.status != "PASS":
                    text = reason(entry)
                    key = alike(entry)
                    said.setdefault(key, []).append(text)
                    self.marks[(line, column)] = f"[{numbers.setdefault(key, len(numbers) + 1)}]"
        self.notes = [f"[{numbers[key]}] {in_common(texts)}" for key, texts in said.items()]

    def cell(self, line: Line, column: Column) -> str:
        entry = self.matrix.entries.get((line, column))
        return (entry.symbol if entry else verdict.MISSING.symbol) + self.marks.get((line, column), "")

    def heads(self, columns: Sequence[Column], short: bool) -> list[_Head]:
        """One head a column, or, ``short``, one a runtime whose layouts agree, named by its version."""
        made = []
        for runtime, group in groupby(columns, key=lambda column: column.runtime):
            same = list(group)
            name = runtime.partition("@")[2] or runtime if short else runtime
            says = {tuple(self.cell(line, column) for line in self.matrix.lines) for column in same}
            if short and len(same) > 1 and len(says) == 1:
                made.append(_Head(runtime, name, ALL, tuple(same)))
            else:
                made += [_Head(runtime, name, column.layout, (column,)) for column in same]
        return made

    def table(self, heads: Sequence[_Head], corner: str) -> str:
        """Plain text. Versions stand over layouts, and once over all of theirs."""
        names, last = [], None
        for head in heads:
            names.append(f"{head.name if head.runtime != last else ''}\n{head.layout}")
            last = head.runtime
        body = [[self.label(line), *(self.cell(line, head.columns[0]) for head in heads)] for line in self.lines(heads)]
        return str(tabulate(body, headers=[corner, *names], tablefmt="simple", stralign="left", colalign=["right"],
                            disable_numparse=[0]))  # fmt: skip

    def lines(self, heads: Sequence[_Head]) -> list[Line]:
        """Lines in which one of these columns has something."""
        shown = {column for head in heads for column in head.columns}
        return [line for line in self.matrix.lines if any((line, column) in self.matrix.entries for column in shown)]

    def label(self, line: Line) -> str:
        """The opset, with its exporter where there are several."""
        several = len({line.exporter for line in self.matrix.lines}) > 1
        return f"{line.opset:>2} {line.exporter}".rstrip() if several else f"{line.opset:>2}"

    def folds(self) -> Iterable[tuple[str, list[_Head]]]:
        """Corner and heads of each table: one where all fits, else tables of one runtime family."""
        whole = self.heads(self.matrix.columns, short=False)
        if self.fits("opset", whole):
            yield "opset", whole
            return
        for family, group in groupby(self.matrix.columns, key=lambda column: column.backend):
            corner, fold = f"{family}\nopset", []  # type: tuple[str, list[_Head]]
            for _, same in groupby(self.heads(list(group), short=True), key=lambda head: head.runtime):
                heads = list(same)
                if fold and not self.fits(corner, fold + heads):
                    yield corner, fold
                    fold = []
                for head in heads:
                    if fold and not self.fits(corner, [*fold, head]):
                        yield corner, fold
                        fold = []
                    fold.append(head)
            yield corner, fold

    def fits(self, corner: str, heads: Sequence[_Head]) -> bool:
        return not heads or max(wcswidth(line) for line in self.table(heads, corner).splitlines()) <= WIDTH


def terminal(matrix: Matrix) -> str:
    """Text for 80 columns: folded by runtime family, long lines wrapped."""
    page = _Page(matrix)
    tables = [page.table(heads, corner) for corner, heads in page.folds() if heads]
    lines = "\n\n".join(tables).split("\n")
    for text in [legend(matrix), *newest_common(matrix), *page.notes, *_absences(matrix), *_facts(matrix)]:
        # A path or a command is longer than a line at times, and is of use only in one piece.
        lines += wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def markdown(matrix: Matrix, links: Mapping[str, str] | None = None) -> str:
    """A page. A cell links to the rows that it came from: ``links`` by run, else the run's file beside the page."""
    page = _Page(matrix)
    tables = []
    for family, group in groupby(matrix.columns, key=lambda column: column.backend):
        heads = page.heads(list(group), short=True)
        lines = page.lines(heads)
        body = [
            [page.label(line), *(_linked(page, line, head.columns[0], links or {}) for head in heads)] for line in lines
        ]
        for name in ("time", "box"):
            body.append([{"time": "last run"}.get(name, name), *(_last(matrix, head, name) for head in heads)])
        names = [head.name if head.layout == ALL else f"{head.name} {head.layout}" for head in heads]
        tables.append(str(tabulate(body, headers=[f"{_escaped(family)} opset", *names], tablefmt="github",
                                   disable_numparse=True)))  # fmt: skip
    lists = ["\n".join("- " + _escaped(text) for text in texts) for texts in (page.notes, _absences(matrix))]
    words = [legend(matrix), *(_escaped(text) for text in newest_common(matrix))]
    blocks = ["# Compatibility matrix", *tables, *words, *lists, *_facts(matrix)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _linked(page: _Page, line: Line, column: Column, links: Mapping[str, str]) -> str:
    entry = page.matrix.entries.get((line, column))
    if not entry:
        return verdict.MISSING.symbol
    run = entry.row.run
    return f"[{entry.symbol}]({links.get(run, f'{run}.jsonl')}){page.marks.get((line, column), '')}"


def _last(matrix: Matrix, head: _Head, name: str) -> str:
    """Newest time (a day), or the box, of the rows behind a column."""
    rows = [entry.row for (_, column), entry in matrix.entries.items() if column in head.columns]
    return max(row.time for row in rows)[:10] if name == "time" else ", ".join(sorted({row.box for row in rows}))


def newest_common(matrix: Matrix) -> list[str]:
    """The newest opset that passes in every column shown, and what each step up would lose.

    Not every layout has a graph of every opset: where no column of a layout has a row, none of them lacks one.
    """
    passing: dict[Column, set[Line]] = {column: set() for column in matrix.columns}
    there = {(line, column.layout) for line, column in matrix.entries}
    for (line, column), entry in matrix.entries.items():
        if entry.status == "PASS" and not is_simulated(column.device):
            passing[column].add(line)
    never = [column for column, lines in passing.items() if not lines]
    rest = [column for column in matrix.columns if column not in never]
    if not rest or len(matrix.lines) < 2:
        return []

    def lost_at(line: Line) -> list[Column]:
        return [column for column in rest if line not in passing[column] and (line, column.layout) in there]

    common = [line for line in matrix.lines if not lost_at(line)]
    page = _Page(matrix)
    where = " on a device" if any(is_simulated(column.device) for column in never) else ""
    left = f" (leaving out what passes at none{where}: {_names(never, matrix)})" if never else ""
    if not common:
        return [f"No opset passes in every column{left}."]
    best = common[-1]
    all_there = all((best, column.layout) in there for column in rest)
    has = "" if all_there else " that has it"
    words = f"Newest opset that passes in every column{has}{left}: {page.label(best).strip()}."
    lost_before: set[Column] = set()
    for line in matrix.lines[matrix.lines.index(best) + 1 :]:
        lost = lost_at(line)
        new = [column for column in lost if column not in lost_before]
        if new:
            words += f" {page.label(line).strip()} would lose {_names(new, matrix)}{' too' if lost_before else ''};"
        lost_before |= set(lost)
    return [words.rstrip(";") + ("." if words.endswith(";") else "")]


def _names(columns: Sequence[Column], matrix: Matrix) -> str:
    """Runtimes, with the layouts where not all of theirs are meant."""
    names = []
    for runtime, group in groupby(columns, key=lambda column: column.runtime):
        layouts = [column.layout for column in group]
        some = len(layouts) < sum(column.runtime == runtime for column in matrix.columns)
        names.append(f"{runtime} {' and '.join(layouts)}" if some else runtime)
    return ", ".join(names)


def legend(matrix: Matrix) -> str:
    """The meaning of the symbols that stand in this matrix."""
    used = {entry.symbol for entry in matrix.entries.values()} | {
        verdict.STATUSES[row.status].symbol for row in matrix.absent
    }
    known = [verdict.STATUSES[status] for status in verdict.SEVERITY]
    known += [verdict.RESTAMPED, verdict.PARTIAL, verdict.BUILT, verdict.SIMULATED]
    words = [f"{word.symbol} {word.meaning}" for word in known if word.symbol in used]
    missing = len(matrix.entries) < len(matrix.lines) * len(matrix.columns)
    return " · ".join(words + ([f"{verdict.MISSING.symbol} {verdict.MISSING.meaning}"] if missing else []))


def _escaped(text: str) -> str:
    """A runtime's words, with nothing in them that Markdown would act on."""
    return re.sub(r"([\\`*<|])", r"\\\1", text)


def _absences(matrix: Matrix) -> list[str]:
    return [
        f"{verdict.STATUSES[row.status].symbol} {named(row.backend, row.version)}: {row.message}"
        for row in matrix.absent
    ]


def _facts(matrix: Matrix) -> list[str]:
    """Bundle, and when and where each column last ran, columns of one day and box in one line."""
    if not matrix.entries:
        return []
    newest_run: dict[Column, Row] = {}
    for (_, column), entry in matrix.entries.items():
        if column not in newest_run or entry.row.time > newest_run[column].time:
            newest_run[column] = entry.row
    runs: dict[str, list[Column]] = {}
    for column in matrix.columns:
        row = newest_run[column]
        runs.setdefault(f"{row.time[:10]} on {row.box or 'a box without a name'}", []).append(column)
    bundles = ", ".join(sorted({entry.row.bundle for entry in matrix.entries.values() if entry.row.bundle}))
    lines = [f"bundle {bundles}"] if bundles else []
    if len(runs) == 1:
        return [" · ".join([*lines, f"last run {max(row.time for row in newest_run.values())} on "
                            f"{next(iter(newest_run.values())).box}"])]  # fmt: skip
    return lines + [f"last run {when}: {', '.join(dict.fromkeys(column.runtime for column in columns))}"
                    for when, columns in runs.items()]  # fmt: skip


def records(matrix: Matrix) -> list[dict[str, object]]:
    """One flat record a cell, for CSV and JSON."""
    entries = sorted(matrix.entries.items(), key=lambda item: (item[0][0], item[0][1].order))
    return [
        {
            **line._asdict(),
            **{name: value for name, value in column._asdict().items() if name != "told"},
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


def to_csv(matrix: Matrix) -> str:
    table, stream = records(matrix), io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(table[0]) if table else ["cell"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return stream.getvalue()


def to_json(matrix: Matrix) -> str:
    return json.dumps(records(matrix), ensure_ascii=False, indent=1) + "\n"


FORMATS = {"terminal": terminal, "md": markdown, "csv": to_csv, "json": to_json}


def write_page(results: Path) -> str:
    """Rewrite ``matrix.md`` from every row in the folder. Returns the line that says so."""
    place = results / "matrix.md"
    try:
        page = markdown(build((row for _, row in read_all([results]))))
    except RowsError as error:
        return f"{place} not rewritten: {error}"
    draft = place.with_name(f".matrix-{os.getpid()}.md")
    draft.write_text(page, encoding="utf-8")
    draft.replace(place)
    return f"matrix of every run in this folder: {place}"
