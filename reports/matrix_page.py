"""How a matrix is shown: for a terminal of 80 columns, as a page of Markdown, as CSV and as JSON."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from wcwidth import wcswidth, wrap

from harness.core import verdict
from harness.core.cell import spans
from harness.core.errors import UserError
from harness.core.files import write_whole
from harness.core.rows import Row, named
from reports.folders import read_all
from reports.markdown import escaped
from reports.matrix import Column, Line, Matrix, alike, build, in_common, newest_common, reason, records

WIDTH = 80


class _Head(NamedTuple):
    """A column as it is shown: one or more columns that say the same wherever they have a graph."""

    runtime: str
    name: str
    layouts: tuple[str, ...]
    columns: tuple[Column, ...]

    def column(self, line: Line, matrix: Matrix) -> Column:
        """The one that speaks for all of them in a line."""
        return next((column for column in self.columns if (line, column) in matrix.entries), self.columns[0])


ALL = "all"
"""Stands for every layout of the matrix, not of the runtime alone: what a runtime was not asked it does not pass."""


@dataclass
class _Page:
    """How a matrix is laid out: the marks and the heads, the layouts of a runtime joined where they say the same."""

    matrix: Matrix
    marks: dict[tuple[Line, Column], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graphs = self.matrix.graphs
        self.layouts = {column.layout for column in self.matrix.columns}
        reasons: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        for column in self.matrix.columns:
            for line in self.matrix.lines:
                entry = self.matrix.entries.get((line, column))
                if entry and entry.status != "PASS":
                    text = reason(entry)
                    key = alike(entry)
                    reasons.setdefault(key, []).append(text)
                    self.marks[(line, column)] = f"[{numbers.setdefault(key, len(numbers) + 1)}]"
        self.notes = [f"[{numbers[key]}] {in_common(texts)}" for key, texts in reasons.items()]

    def cell(self, line: Line, column: Column) -> str:
        entry = self.matrix.entries.get((line, column))
        return (entry.symbol if entry else verdict.MISSING.symbol) + self.marks.get((line, column), "")

    def heads(self, columns: Sequence[Column], joined: bool = True, short: bool = False) -> list[_Head]:
        """One head a column, or, ``joined``, one for layouts of a runtime that agree; ``short``: named by its version."""
        heads = []
        for runtime, group in groupby(columns, key=lambda column: column.runtime):
            same = list(group)
            name = runtime.partition("@")[2] or runtime if short else runtime
            groups: list[list[Column]] = []
            for column in same:
                kin = next((other for other in groups if joined and self._agree([*other, column])), None)
                if kin is None:
                    groups.append([column])
                else:
                    kin.append(column)
            for kin in groups:
                layouts = tuple(column.layout for column in kin)
                every = len(kin) > 1 and set(layouts) == self.layouts
                heads.append(_Head(runtime, name, (ALL,) if every else layouts, tuple(kin)))
        return heads

    def _agree(self, columns: Sequence[Column]) -> bool:
        """Whether they say the same in each line: layouts wherever they have a graph, operators everywhere."""

        def there(line: Line, column: Column) -> bool:
            return not column.bundle or (line, column.layout) in self.graphs

        return all(
            len({self.cell(line, column) for column in columns if there(line, column)}) <= 1
            for line in self.matrix.lines
        )

    def gaps(self, heads: Iterable[_Head]) -> list[str]:
        """What a shared column does not say: in which of its lines a layout has rows, where it lacks some."""
        runtimes: dict[str, list[str]] = {}
        for head in heads:
            for column in head.columns:
                its = head._replace(columns=(column,))
                if len(self.lines([its])) < len(self.lines([head])):
                    opsets: dict[str, list[int]] = {}
                    for line in self.lines([its]):
                        opsets.setdefault(line.exporter, []).append(line.opset)
                    words = ", ".join(f"{spans(numbers)} of {exporter}" for exporter, numbers in opsets.items())
                    runtimes.setdefault(f"{column.layout} has rows of opset {words} only", []).append(head.runtime)
        return [f"{text}: {', '.join(names)}" for text, names in runtimes.items()]

    def table(self, heads: Sequence[_Head], corner: str) -> str:
        """Plain text. Versions stand over layouts, and once over all of theirs."""
        names, last = [], None
        for head in heads:
            names.append("\n".join([head.name if head.runtime != last else "", *head.layouts]))
            last = head.runtime
        body = [
            [self.matrix.label(line), *(self.cell(line, head.column(line, self.matrix)) for head in heads)]
            for line in self.lines(heads)
        ]
        aligned = {"stralign": "left", "colalign": ["right"], "disable_numparse": [0]}
        return str(tabulate(body, headers=[corner, *names], tablefmt="simple", **aligned))

    def lines(self, heads: Sequence[_Head]) -> list[Line]:
        """Lines in which one of these columns has something."""
        shown = {column for head in heads for column in head.columns}
        return [line for line in self.matrix.lines if any((line, column) in self.matrix.entries for column in shown)]

    def folds(self) -> Iterable[tuple[str, list[_Head]]]:
        """Corner and heads of each table: one where all fits, if need be joined, else tables of one runtime family."""
        for joined in (False, True):
            whole = self.heads(self.matrix.columns, joined)
            if self.fits("opset", whole):
                yield "opset", whole
                return
        for family, group in groupby(self.matrix.columns, key=lambda column: column.backend):
            corner = f"{family}\nopset"
            fold: list[_Head] = []
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
    folds = [(corner, heads) for corner, heads in page.folds() if heads]
    tables = [page.table(heads, corner) for corner, heads in folds]
    lines = "\n\n".join(tables).split("\n")
    facts = [*page.gaps(head for _, heads in folds for head in heads), *newest_common(matrix), *page.notes]
    for text in [legend(matrix, tables), *facts, *_absences(matrix), *_facts(matrix)]:
        # A path or a command is longer than a line at times, and is of use only in one piece.
        lines += wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def markdown(matrix: Matrix, links: Mapping[str, str] | None = None) -> str:
    """A page. A cell links to the rows that it came from: ``links`` by run, else the run's file beside the page."""
    page = _Page(matrix)
    tables: list[str] = []
    gaps: list[str] = []
    for family, group in groupby(matrix.columns, key=lambda column: column.backend):
        heads = page.heads(list(group), short=True)
        gaps += page.gaps(heads)
        lines = page.lines(heads)
        body = [
            [matrix.label(line), *(_linked(page, line, head.column(line, matrix), links or {}) for head in heads)]
            for line in lines
        ]
        for name in ("time", "box"):
            body.append([{"time": "last run"}.get(name, name), *(_last(matrix, head, name) for head in heads)])
        names = [head.name if ALL in head.layouts else f"{head.name} {', '.join(head.layouts)}" for head in heads]
        headers = [f"{escaped(family)} opset", *names]
        tables.append(str(tabulate(body, headers=headers, tablefmt="github", disable_numparse=True)))
    lists = ["\n".join("- " + escaped(text) for text in texts) for texts in (page.notes, _absences(matrix))]
    words = [legend(matrix, tables), *map(escaped, [*gaps, *newest_common(matrix)])]
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


def legend(matrix: Matrix, tables: Sequence[str]) -> str:
    """The meaning of the symbols that stand in this matrix; ``tables``: as they are shown."""
    used = {entry.symbol for entry in matrix.entries.values()} | {
        verdict.STATUSES[row.status].symbol for row in matrix.absent
    }
    known = [verdict.STATUSES[status] for status in verdict.SEVERITY]
    known += [verdict.RESTAMPED, verdict.PARTIAL, verdict.BUILT, verdict.SIMULATED]
    words = [f"{word.symbol} {word.meaning}" for word in known if word.symbol in used]
    missing = any(verdict.MISSING.symbol in table for table in tables)
    return " · ".join(words + ([f"{verdict.MISSING.symbol} {verdict.MISSING.meaning}"] if missing else []))


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
        time, box = max(row.time for row in newest_run.values()), next(iter(newest_run.values())).box
        return [" · ".join([*lines, f"last run {time} on {box}"])]
    runtimes = {when: ", ".join(dict.fromkeys(column.runtime for column in columns)) for when, columns in runs.items()}
    return [*lines, *(f"last run {when}: {names}" for when, names in runtimes.items())]


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
    path = results / "matrix.md"
    try:
        page = markdown(build((row for _, row in read_all([results]))))
    except UserError as error:
        return f"{path} not rewritten: {error}"
    write_whole(path, page)
    return f"matrix of every run in this folder: {path}"
