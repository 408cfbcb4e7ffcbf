"""``conform operators``: ONNX's node tests of operators on each runtime; what has no row yet is run."""

import argparse
import difflib
import sys
from pathlib import Path

from conform.output import show
from harness.core.arguments import span
from harness.core.errors import UserError

HELP = "run ONNX's node tests of operators on each runtime, opset by opset, and show the matrix of them"
EXAMPLE = "conform operators results --ops=GatherElements,LayerNormalization --opset=12-17"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", type=Path, help="results folders or .jsonl files; new rows are added to the first"
    )
    parser.add_argument("--ops", required=True, help="names with commas, or graph for the operators of the bundle")
    parser.add_argument("--backend", help="these, with commas, instead of the runtimes that RESULTS has rows of")
    parser.add_argument("--opset", type=span, help="one opset or a range (default: 9 to the newest)")
    parser.add_argument("--again", action="store_true", help="run what RESULTS already has, too")
    parser.add_argument("--format", choices=["terminal", "md", "csv", "json"], default="terminal")
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    parser.add_argument("--bundle", type=Path, help="bundle that --ops=graph means (default: the embedded one)")


def run(options: argparse.Namespace) -> int:
    from harness.core.bundle import Bundle
    from harness.run import node_tests, operators
    from harness.run.launch import EMBEDDED
    from reports import matrix, matrix_page
    from reports.folders import filled, read_all

    named = _names(options.ops)
    used = operators.used_by(Bundle(str(options.bundle or EMBEDDED))) if "graph" in named else []
    wanted = list(dict.fromkeys([name for name in named if name != "graph"] + used))
    if not wanted:
        raise UserError("--ops= names no operator; give some, e.g. --ops=GatherElements, or --ops=graph")
    tests = node_tests.collection(wanted, _note)
    for name in named:
        if name not in (*tests.operators, *used, "graph"):
            near = difflib.get_close_matches(name, tests.operators, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"--ops: no node test of {name!r} in {tests.name}{hint}")
    opsets = [opset for opset in tests.opsets if options.opset is None or opset in options.opset]
    if not opsets:
        raise UserError(f"--opset: {tests.name} has opsets {tests.opsets[0]}-{tests.opsets[-1]}")
    if options.results[0].is_file():
        raise UserError(f"{options.results[0]}: rows are added to the first of RESULTS; give a folder")
    request = operators.Request(options.results, wanted, opsets, _names(options.backend), options.again)
    # Runtimes that are asked for by name need no rows to be found in.
    needed = not request.backends or any(map(filled, options.results))
    known = [row for _, row in read_all(options.results)] if needed else []
    columns = operators.Columns(request, tests, known, _note)
    try:
        columns.fill()
    finally:
        columns.close()
    rows = operators.asked_rows((row for _, row in read_all(options.results)), request)
    if not rows:
        raise UserError("no rows of these operators, and no runtime of RESULTS is here; name one with --backend")
    for line in operators.gaps(tests, wanted, opsets):
        _note(f"note: {line}")
    if columns.ledger.wrote:
        _note(matrix_page.write_page(options.results[0]))
    show(matrix_page.FORMATS[options.format](matrix.build(rows)), options.out)
    return int(bool(columns.absent))


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _names(text: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
