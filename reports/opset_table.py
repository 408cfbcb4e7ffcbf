"""``docs/opset-table.md``: a well-known opset table's claims beside what was measured, then the whole matrix of versions.

``python -m reports.opset_table`` writes the page from the rows in ``docs/measured/``; with ``--take RESULTS`` it first puts
the newest rows of a results folder there, without what no table shows.
"""

import argparse
import gzip
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from harness.core import verdict
from harness.core.rows import Row, named, newest, to_json
from reports import matrix, matrix_page
from reports.folders import read_all

DOCS = Path(__file__).resolve().parent.parent / "docs"
MEASURED = DOCS / "measured"
PAGE = DOCS / "opset-table.md"
KEPT = ("expected", "restamped")
"""Of a row's detail, what the matrix shows."""


class Claim(NamedTuple):
    """A column of the article. ``says`` by opset; ``measured``: (runtime@version, layout) of the columns that answer it, the
    worst one counting; ``why`` explains a difference, by opset."""

    name: str
    says: dict[int, str]
    measured: tuple[tuple[str, str], ...]
    why: dict[int, str]


def _spread(**symbols: str) -> dict[int, str]:
    """``_12_15="✅"`` as a symbol for each opset of a range."""
    spread = {}
    for name, symbol in symbols.items():
        first, _, last = name.strip("_").partition("_")
        spread.update(dict.fromkeys(range(int(first), int(last or first) + 1), symbol))
    return spread


GATHER, LOSS = "GatherElements", "SoftmaxCrossEntropyLoss"
OLD_ORT, OLD_OPENVINO = "ort@1.10.0", "openvino@2022.3.0"
IN_ONNX = "ONNX has it since opset {}; ONNX Runtime 1.10 passes all of its node tests."
TOO_NEW = "ONNX Runtime 1.10 refuses every graph of this opset: its official support ends at 15."

CLAIMS = (
    Claim(
        f"{GATHER} (ONNX Runtime 1.10)",
        _spread(_12="❌", _13_17="✅"),
        ((OLD_ORT, GATHER),),
        {12: IN_ONNX.format(11), **dict.fromkeys((16, 17), TOO_NEW)},
    ),
    Claim(
        f"{GATHER} (OpenVINO 2022.3)",
        _spread(_12="❌", _13_17="✅"),
        ((OLD_OPENVINO, GATHER),),
        dict.fromkeys(
            range(13, 18), "OpenVINO 2022.3 reads outside the tensor where an index is negative, at every opset."
        ),
    ),
    Claim(
        f"{LOSS} (ONNX Runtime 1.10)",
        _spread(_12_13="❌", _14_17="✅"),
        ((OLD_ORT, LOSS),),
        {**dict.fromkeys((12, 13), IN_ONNX.format(12)), **dict.fromkeys((16, 17), TOO_NEW)},
    ),
    Claim(
        f"{LOSS} (OpenVINO 2022.3)",
        _spread(_12_13="❌", _14_17="✅"),
        ((OLD_OPENVINO, LOSS),),
        {
            12: IN_ONNX.format(12).replace("ONNX Runtime 1.10", "OpenVINO 2022.3"),
            **dict.fromkeys(range(13, 18), "Four of its node tests end OpenVINO 2022.3 with a segmentation fault."),
        },
    ),
    Claim(
        "ONNX Runtime 1.10",
        _spread(_12_16="✅", _17="⚠️"),
        ((OLD_ORT, "split"), (OLD_ORT, "unified")),
        {16: TOO_NEW, 17: TOO_NEW + ' The article\'s "1.16" is no remedy that a re-stamped file could be.'},
    ),
    Claim(
        "OpenVINO 2022.3",
        _spread(_12_16="✅", _17="❌"),
        ((OLD_OPENVINO, "split"), (OLD_OPENVINO, "unified")),
        {17: "Not refused: the process dies of a segmentation fault."},
    ),
    Claim("TensorRT 8.4", _spread(_12_15="✅", _16="⚠️", _17="❌"), (), {}),
)
UNMEASURED = "TensorRT 8.4 cannot be installed from a package index; nothing here is said of it."


def claims(table: matrix.Matrix) -> list[tuple[Claim, int, str, str, str]]:
    """Claim, opset, what the article says, what was measured, and why they differ: a line for each cell of the article.

    Raises ValueError for a difference without an explanation, and for an explanation of no difference.
    """
    lines = []
    for claim in CLAIMS:
        for opset, says in claim.says.items():
            measured = [_symbol(table, opset, runtime, layout) for runtime, layout in claim.measured]
            worst = max(measured, key=_rank) if measured else verdict.STATUSES["ABSENT"].symbol
            differs = bool(measured) and worst != says
            why = claim.why.get(opset, "")
            if differs != bool(why):
                raise ValueError(f"{claim.name}, opset {opset}: says {says}, measured {worst}, explained by {why!r}")
            lines.append((claim, opset, says, worst, why or ("" if measured else UNMEASURED)))
    return lines


def _symbol(table: matrix.Matrix, opset: int, runtime: str, layout: str) -> str:
    for (line, column), entry in table.entries.items():
        key = line.opset, named(column.backend, column.version), column.layout
        if key == (opset, runtime, layout) and line.exporter != "dynamo":
            return entry.symbol
    raise ValueError(f"no row of {runtime} {layout} at opset {opset}; measure it first")


def _rank(symbol: str) -> int:
    """Worse is greater."""
    order = [verdict.STATUSES[status].symbol for status in reversed(verdict.SEVERITY)]
    return order.index(symbol) if symbol in order else 0


def page(rows: Iterable[Row]) -> str:
    """The whole page. ``rows``: of cells, operators and exports."""
    everything = [row for row in rows if row.check != "operator" or row.layout in (GATHER, LOSS)]
    cells, operators, exports = (
        [row for row in everything if (row.check if row.check in ("operator", "export") else "") == kind]
        for kind in ("", "operator", "export")
    )
    table = matrix.build(everything)
    lines = claims(table)
    body = [[claim.name, opset, says, measured, why] for claim, opset, says, measured, why in lines]
    measured = [line for line in lines if line[0].measured]
    right = sum(says == symbol for _, _, says, symbol, _ in measured)
    common = matrix.newest_common(_only(matrix.build(cells), (OLD_ORT, OLD_OPENVINO)))
    blocks = [
        "# Opset table: what was claimed, and what was measured",
        "A widely copied table tells which ONNX opset is safe for which runtime. It was filled in by hand. Below, each "
        f"of its cells stands beside what this harness measured: {right} of {len(measured)} measured cells are as claimed. "
        "`python -m reports.opset_table` writes this page from the rows in [measured](measured/).",
        "\n".join(f"- {word.symbol} {word.meaning}" for word in _words(table)),
        tabulate(body, ["article's column", "opset", "claimed", "measured", "why they differ"], tablefmt="github"),
        "**Its conclusion is that opset 14 is the safest.** Measured, for the two of its runtimes that could be: "
        + " ".join(common),
        _section("Runtimes", cells),
        _section("Operators", operators),
        "Rows of the other operators of the graphs lie in [measured](measured/) too; `conform operators "
        "docs/measured/operators.jsonl.gz --ops=graph` shows them.",
        _section("Exporters and converters", exports),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _words(table: matrix.Matrix) -> list[verdict.Word]:
    used = {entry.symbol for entry in table.entries.values()} | {verdict.STATUSES["ABSENT"].symbol}
    return [word for status, word in verdict.STATUSES.items() if status in verdict.SEVERITY and word.symbol in used]


def _only(table: matrix.Matrix, runtimes: Iterable[str]) -> matrix.Matrix:
    kept = [column for column in table.columns if named(column.backend, column.version) in runtimes]
    entries = {key: entry for key, entry in table.entries.items() if key[1] in kept}
    return matrix.Matrix(kept, sorted({line for line, _ in entries}), entries, [])


def _section(title: str, rows: list[Row]) -> str:
    if not rows:
        return ""
    links = {row.run: f"measured/{_file(row)}" for row in rows}
    return matrix_page.markdown(matrix.build(rows), links).replace("# Compatibility matrix", f"## {title}", 1).rstrip()


def _file(row: Row) -> str:
    kinds = {"operator": "operators", "export": "exporters"}
    return f"{kinds.get(row.check, 'versions')}.jsonl.gz"


def take(results: Path) -> None:
    """Put the newest rows of a results folder into MEASURED, replacing the file of each kind of row that there is."""
    by_file: dict[str, list[Row]] = {}
    for row in newest(row for _, row in read_all([results])):
        by_file.setdefault(_file(row), []).append(row)
    MEASURED.mkdir(exist_ok=True)
    for name, rows in by_file.items():
        slim = [
            replace(row, series="", detail={key: row.detail[key] for key in KEPT if key in row.detail}) for row in rows
        ]
        text = "".join(to_json(row) + "\n" for row in sorted(slim, key=lambda row: (row.cell, row.check)))
        # No time in the header: the same rows are the same file.
        (MEASURED / name).write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> int:
    parser = argparse.ArgumentParser("python -m reports.opset_table", description=__doc__.split("\n")[0])
    parser.add_argument("--take", type=Path, metavar="RESULTS", help="first take the rows of this results folder")
    options = parser.parse_args()
    if options.take:
        take(options.take)
    PAGE.write_text(page(row for _, row in read_all([MEASURED])), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
