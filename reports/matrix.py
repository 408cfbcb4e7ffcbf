"""The compatibility matrix: opset rows, runtime@version × layout columns, of the newest row of each cell and check."""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from wcwidth import wcswidth, wrap

from harness.judge import verdict
from harness.rows import Row, RowsError, is_fake, read_all

WIDTH = 80


class Column(NamedTuple):
    """One column: a runtime at a version on a device, with the kind of graph it was fed."""

    backend: str
    version: str
    device: str
    exporter: str
    precision: str
    layout: str
    box: str
    bundle: str
    told: str = ""
    """What tells it from a column of another box or bundle; empty where all columns share both."""

    @property
    def runtime(self) -> str:
        name = f"{self.backend}@{self.version}" if self.version else self.backend
        return f"{name} {self.told}".strip()


@dataclass
class Entry:
    """One cell of the table: its symbol, its status, and the row that decided it."""

    status: str
    symbol: str
    row: Row
    rows: list[Row] = field(default_factory=list)


@dataclass
class Matrix:
    """``entries`` maps (opset, column) to an entry; a pair without one was not run."""

    columns: list[Column]
    opsets: list[int]
    entries: dict[tuple[int, Column], Entry]
    absent: list[Row]


def newest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each cell and check; absent backends keep one row each, unless some run found them."""
    latest: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (row.time, row.run)):
        if is_fake(row.version):
            said = "a test's fake, left out: its rows are no evidence"
            row = Row("probe", "ABSENT", "probe", message=said, backend=row.backend, version=row.version)
        # A verdict holds for its box and its bundle: what another one says does not replace it.
        place = (row.cell, row.box, row.bundle) if row.cell else (_asked(row),)
        latest[(*place, row.check)] = row
    found = [row for row in latest.values() if row.cell]
    known = {row.backend for row in found} | {f"{row.backend}@{row.version}" for row in found}
    return [row for row in latest.values() if row.cell or _asked(row) not in known]


def _asked(row: Row) -> str:
    """What was asked for where nothing was found: a backend, or a version of it."""
    return f"{row.backend}@{row.version}" if row.version else row.backend


def seen_status(row: Row) -> str:
    """The status that was seen: an expected failure is still a failure in the table."""
    return str(row.detail["expected"]["seen"]) if row.status in ("XFAIL", "XPASS") else row.status


def build(rows: Iterable[Row]) -> Matrix:
    """The matrix over rows of any number of runs and boxes."""
    by_cell: dict[tuple[str, str, str], list[Row]] = {}
    absent = []
    for row in newest(rows):
        if row.cell:
            by_cell.setdefault((row.cell, row.box, row.bundle), []).append(row)
        else:
            absent.append(row)
    boxes, bundles = ({place[number] for place in by_cell} for number in (1, 2))
    entries = {}
    for cell_rows in by_cell.values():
        first = cell_rows[0]
        told = " ".join([first.box] * (len(boxes) > 1) + [first.bundle] * (len(bundles) > 1))
        column = Column(
            first.backend, first.version, first.device, first.exporter, first.precision, first.layout,
            first.box, first.bundle, told,
        )  # fmt: skip
        status = verdict.worst(seen_status(row) for row in cell_rows)
        deciding = min(
            (row for row in cell_rows if seen_status(row) == status),
            key=lambda row: verdict.CHECKS.index(row.check) if row.check in verdict.CHECKS else 99,
        )
        symbol = verdict.STATUSES[status].symbol
        if status == "PASS" and {row.check for row in cell_rows} < set(verdict.CHECKS):
            symbol = verdict.PARTIAL.symbol
        entries[(first.opset or 0, column)] = Entry(status, symbol, deciding, cell_rows)
    columns = sorted({column for _, column in entries})
    return Matrix(columns, sorted({opset for opset, _ in entries}), entries, absent)


def _notes(matrix: Matrix, columns: Sequence[Column]) -> tuple[dict[tuple[int, Column], str], list[str]]:
    """Footnote marks of the cells that do not pass, equal reasons sharing one, and the footnotes' lines."""
    marks: dict[tuple[int, Column], str] = {}
    numbers: dict[str, int] = {}
    for column in columns:
        for opset in matrix.opsets:
            entry = matrix.entries.get((opset, column))
            if entry and entry.status != "PASS":
                number = numbers.setdefault(reason(entry), len(numbers) + 1)
                marks[(opset, column)] = f"[{number}]"
    return marks, [f"[{number}] {text}" for text, number in numbers.items()]


def reason(entry: Entry) -> str:
    """Why a cell does not pass, in a line that cells with the same reason share."""
    row = entry.row
    if entry.status == "PASS":
        ran = {row.check for row in entry.rows}
        return f"not every check ran: {', '.join(check for check in verdict.CHECKS if check in ran)} passed"
    where = "" if row.step is None else f", first at step {row.step}"
    expected = f" (expected: {row.detail['expected']['reason']})" if row.status == "XFAIL" else ""
    kind = f"{row.kind}: " if row.status == "UNSUPPORTED" else ""
    said = row.message if row.step is None or not expected else ""
    if row.status == "UNSUPPORTED":
        # Runtimes put file names and versions of the graph into a refusal: one refusal, one footnote.
        said = said.split(" Fail", 1)[0]
    return f"{row.check} {entry.status}{where}{': ' if said else ''}{kind}{said}{expected}"


def _table(matrix: Matrix, columns: Sequence[Column], marks: dict[tuple[int, Column], str], style: str) -> str:
    last = None
    heads = []
    for column in columns:
        shown = column.runtime if column.runtime != last or style != "simple" else ""
        last = column.runtime
        heads.append(f"{shown}\n{column.layout}" if style == "simple" else f"{column.runtime} {column.layout}")
    body = []
    for opset in matrix.opsets:
        cells = []
        for column in columns:
            entry = matrix.entries.get((opset, column))
            symbol = entry.symbol if entry else verdict.MISSING.symbol
            cells.append(symbol + marks.get((opset, column), ""))
        body.append([opset, *cells])
    return str(tabulate(body, headers=["opset", *heads], tablefmt=style, stralign="left", numalign="right"))


def legend(matrix: Matrix) -> str:
    """The meaning of the symbols that stand in this matrix."""
    used = {entry.symbol for entry in matrix.entries.values()} | {
        verdict.STATUSES[row.status].symbol for row in matrix.absent
    }
    known = [*(word for status, word in verdict.STATUSES.items() if status in verdict.SEVERITY), verdict.PARTIAL]
    words = [f"{word.symbol} {word.meaning}" for word in known if word.symbol in used]
    missing = len(matrix.entries) < len(matrix.opsets) * len(matrix.columns)
    return " · ".join(words + ([f"{verdict.MISSING.symbol} {verdict.MISSING.meaning}"] if missing else []))


def _folds(matrix: Matrix, marks: dict[tuple[int, Column], str]) -> Iterable[list[Column]]:
    """Columns in groups whose table fits the width, a runtime's columns kept together where they fit at all."""

    def fits(columns: Sequence[Column]) -> bool:
        return max(wcswidth(line) for line in _table(matrix, columns, marks, "simple").splitlines()) <= WIDTH

    fold: list[Column] = []
    for runtime in dict.fromkeys(column.runtime for column in matrix.columns):
        group = [column for column in matrix.columns if column.runtime == runtime]
        if fold and not fits(fold + group):
            yield fold
            fold = []
        for column in group:
            if fold and not fits([*fold, column]):
                yield fold
                fold = []
            fold.append(column)
    if fold:
        yield fold


def terminal(matrix: Matrix) -> str:
    """Text for 80 columns: folded by runtime, long lines wrapped."""
    marks, notes = _notes(matrix, matrix.columns)
    lines = "\n\n".join(_table(matrix, fold, marks, "simple") for fold in _folds(matrix, marks)).split("\n")
    for text in [legend(matrix), *notes, *_absences(matrix), *_facts(matrix)]:
        # A path or a command is longer than a line at times, and is of use only in one piece.
        lines += wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def markdown(matrix: Matrix) -> str:
    marks, notes = _notes(matrix, matrix.columns)
    lists = ["\n".join("- " + _escaped(text) for text in texts) for texts in (notes, _absences(matrix))]
    tables = [_table(matrix, fold, marks, "github") for fold in _folds(matrix, marks)]
    blocks = ["# Compatibility matrix", *tables, legend(matrix), *lists, *_facts(matrix)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _escaped(text: str) -> str:
    """A runtime's words, with nothing in them that Markdown would act on."""
    return re.sub(r"([\\`*<|])", r"\\\1", text)


def _absences(matrix: Matrix) -> list[str]:
    return [f"{verdict.STATUSES[row.status].symbol} {_asked(row)}: {row.message}" for row in matrix.absent]


def _facts(matrix: Matrix) -> list[str]:
    bundles = sorted({entry.row.bundle for entry in matrix.entries.values()})
    last = max((entry.row.time for entry in matrix.entries.values()), default="never")
    return [f"bundle {', '.join(bundles)} · last run {last}"] if bundles else []


def records(matrix: Matrix) -> list[dict[str, object]]:
    """One flat record a cell, for CSV and JSON."""
    result: list[dict[str, object]] = []
    for (opset, column), entry in sorted(matrix.entries.items()):
        result.append(
            {
                "opset": opset,
                **{name: value for name, value in column._asdict().items() if name != "told"},
                "status": entry.status,
                "symbol": entry.symbol,
                "check": entry.row.check,
                "step": entry.row.step,
                "reason": "" if entry.symbol == verdict.STATUSES["PASS"].symbol else reason(entry),
                "cell": entry.row.cell,
                "compared": sum(row.compared for row in entry.rows),
                "last_run": entry.row.time,
            }
        )
    return result


def to_csv(matrix: Matrix) -> str:
    table = records(matrix)
    stream = io.StringIO()
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
