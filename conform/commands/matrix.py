"""``conform matrix``: the rows of many boxes as one compatibility matrix."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from conform.commands import operators
from conform.output import show
from harness.core.arguments import span
from harness.core.errors import UserError

HELP = "merge the rows of many boxes into one compatibility matrix"
EXAMPLE = "conform matrix results jetson-results --format md --out matrix.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", type=Path, help="results folders or .jsonl files")
    parser.add_argument("--format", choices=["terminal", "md", "csv", "json"], default="terminal")
    parser.add_argument(
        "--table",
        choices=["opsets", "platforms"],
        default="opsets",
        help="opsets: runtimes by opset; platforms: which kinds of box have been run (terminal, md) (default: opsets)",
    )
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    parser.add_argument(
        "--bundle", type=Path, help="bundle of rows that have no text check yet (default: the embedded one)"
    )
    # Until `conform operators` there was --ops here; command lines that say so still work.
    parser.add_argument("--ops", help="the older way to say `conform operators RESULTS --ops=...`")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--opset", type=span, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    if options.ops is not None:
        print("note: conform matrix --ops is now conform operators RESULTS --ops", file=sys.stderr)
        return operators.run(options)
    if options.backend or options.opset or options.again:
        raise UserError("--backend, --opset and --again say what to run: use conform operators RESULTS --ops=graph")
    from conform.texts import scorer_of
    from harness.run.complete import answers, unanswered
    from reports import matrix, matrix_page, platforms
    from reports.folders import read_all

    written = read_all(options.results)
    rows = [*(row for _, row in written), *answers(written, scorer_of(options.bundle))]
    for line in unanswered(rows):
        print(f"note: {line}", file=sys.stderr)
    built = matrix.build(rows)
    if options.table == "platforms":
        if options.format not in ("terminal", "md"):
            raise UserError(f"--format {options.format}: the table of platforms is terminal or md")
        page = platforms.table(rows, "simple" if options.format == "terminal" else "github")
    elif options.format == "md" and options.out:
        page = matrix_page.markdown(built, _links(options.results, options.out))
    else:
        page = matrix_page.FORMATS[options.format](built)
    show(page, options.out)
    return 0


def _links(results: Sequence[Path], page: Path) -> dict[str, str]:
    """Where each run's rows lie, as seen from the page."""
    files = [path for folder in results for path in (folder.glob("*.jsonl") if folder.is_dir() else [folder])]
    return {path.stem: Path(os.path.relpath(path, page.parent)).as_posix() for path in files}
