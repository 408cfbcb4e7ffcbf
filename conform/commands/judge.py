"""``conform judge``: kept observations to rows, on any box, without the runtime."""

import argparse
from pathlib import Path

HELP = "judge observations that --keep-outputs or any program wrote, without the runtime"
EXAMPLE = "conform judge results/<run> --results judged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "observations", nargs="+", type=Path, metavar="DIR", help="folder of a cell, or any folder above"
    )
    parser.add_argument("--bundle", type=Path, help="bundle that was replayed (default: the embedded one)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder that rows are added to (default: results)"
    )


def run(options: argparse.Namespace) -> int:
    import sys

    from conform.judging import Judging, folders
    from harness.core import verdict
    from harness.core.observation_files import Kept
    from harness.run.launch import EMBEDDED
    from reports import matrix, matrix_page

    judging = Judging(options.bundle or EMBEDDED, options.results)
    cells = [judging.cell(Kept(str(folder))) for folder in folders(options.observations)]
    try:
        for number, cell in enumerate(cells, 1):
            size = f"{cell.kept.bytes / 2**20:.1f} MiB"
            print(f"[{number}/{len(cells)}] {cell.identity.cell}: {size} of observations", file=sys.stderr)
            judging.judge(cell)
    finally:
        rows = judging.close()
    print(matrix_page.terminal(matrix.build(rows)))
    compared = sum(row.compared for row in rows)
    print(f"{len(rows)} rows, {compared:,} elements compared: {judging.ledger.writer.path}")
    return verdict.exit_code((row.status, row.compared * (row.check in verdict.OF_PYTORCH)) for row in rows)
