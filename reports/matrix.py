"""The compatibility matrix: opset rows, runtime@version × layout columns, of the newest row of each cell and check."""

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from harness.judge import verdict
from harness.rows import Row, RowsError, read_all

WIDTH = 80


class Column(NamedTuple):
    """One column: a runtime at a version on a device, with the kind of graph it was fed."""

    backend: str
    version: str
    device: str
    exporter: str
    precision: str
    layout: str

    @property
    def runtime(self) -> str:
        return f"{self.backend}@{self.version}" if self.version else self.backend


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
    """The last row of each cell and check; absent backends keep one row each, unless a later run found them."""
    latest: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: (row.time, row.run)):
        latest[(row.cell or row.backend, row.check)] = row
    found = {row.backend for row in latest.values() if row.cell}
    return [row for row in latest.values() if row.cell or row.backend not in found]


def seen_status(row: Row) -> str:
    """The status that was seen: an expected failure is still a failure in the table."""
    return str(row.detail["expected"]["seen"]) if row.status in ("XFAIL", "XPASS") else row.status


def build(rows: Iterable[Row]) -> Matrix:
    """The matrix over rows of any number of runs and boxes."""
    by_cell: dict[str, list[Row]] = {}
    absent = []
    for row in newest(rows):
        if row.cell:
            by_cell.setdefault(row.cell, []).append(row)
        else:
            absent.append(row)
    entries = {}
    for cell_rows in by_cell.values():
        first = cell_rows[0]
        column = Column(first.backend, first.version, first.device, first.exporter, first.precision, first.layout)
        status = verdict.worst(seen_status(row) for row in cell_rows)
        deciding = min(
            (row for row in cell_rows if seen_status(row) == status),
            key=lambda row: verdict.CHECKS.index(row.check) if row.check in verdict.CHECKS else 99,
        )
        entries[(first.opset or 0, column)] = Entry(status, verdict.STATUSES[status].symbol, deciding, cell_rows)
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
    used = {entry.status for entry in matrix.entries.values()} | ({"ABSENT"} if matrix.absent else set())
    words = [f"{word.symbol} {word.meaning}" for status, word in verdict.STATUSES.items() if status in used]
    missing = len(matrix.entries) < len(matrix.opsets) * len(matrix.columns)
    return " · ".join(words + ([f"{verdict.MISSING.symbol} {verdict.MISSING.meaning}"] if missing else []))


def _folds(matrix: Matrix) -> Iterable[list[Column]]:
    """Columns in groups that fit the width, a runtime's columns kept together."""
    fold: list[Column] = []
    used = 0
    for runtime in dict.fromkeys(column.runtime for column in matrix.columns):
        group = [column for column in matrix.columns if column.runtime == runtime]
        width = sum(
            max(len(runtime) if index == 0 else 0, len(column.layout), 7) + 2 for index, column in enumerate(group)
        )
        if fold and used + width > WIDTH - 7:
            yield fold
            fold, used = [], 0
        fold, used = fold + group, used + width
    if fold:
        yield fold


def terminal(matrix: Matrix) -> str:
    """Text for 80 columns: folded by runtime."""
    marks, notes = _notes(matrix, matrix.columns)
    blocks = [_table(matrix, fold, marks, "simple") for fold in _folds(matrix)]
    return "\n".join(_blocks(matrix, blocks, notes))


def markdown(matrix: Matrix) -> str:
    marks, notes = _notes(matrix, matrix.columns)
    blocks = [_table(matrix, fold, marks, "github") + "\n" for fold in _folds(matrix)]
    lines = _blocks(matrix, blocks, ["- " + note for note in notes])
    return "# Compatibility matrix\n\n" + "\n".join(lines) + "\n"


def _blocks(matrix: Matrix, blocks: list[str], notes: list[str]) -> list[str]:
    away = [f"⬜ {row.backend}: {row.message}" for row in matrix.absent]
    lines = [block + "\n" if blocks[-1] is not block and not block.endswith("\n") else block for block in blocks]
    bundles = sorted({entry.row.bundle for entry in matrix.entries.values()})
    last = max((entry.row.time for entry in matrix.entries.values()), default="never")
    facts = f"bundle {', '.join(bundles)} · last run {last}" if bundles else ""
    return [line for line in [*lines, legend(matrix), *notes, *away, facts] if line]


def records(matrix: Matrix) -> list[dict[str, object]]:
    """One flat record a cell, for CSV and JSON."""
    result: list[dict[str, object]] = []
    for (opset, column), entry in sorted(matrix.entries.items()):
        result.append(
            {
                "opset": opset,
                **column._asdict(),
                "status": entry.status,
                "symbol": entry.symbol,
                "check": entry.row.check,
                "step": entry.row.step,
                "reason": "" if entry.status == "PASS" else reason(entry),
                "cell": entry.row.cell,
                "compared": sum(row.compared for row in entry.rows),
                "box": entry.row.box,
                "last_run": entry.row.time,
                "bundle": entry.row.bundle,
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
