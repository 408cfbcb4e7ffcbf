"""``conform explain``: one cell again, with what there is to know of each check."""

import argparse
from pathlib import Path

from harness.core import verdict
from harness.core.errors import UserError

HELP = "replay one cell again: every check, who is to blame, the knobs tried, the command"
EXAMPLE = "conform explain ort@1.32.0/cpu/torchscript/unified/fp32/op14"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cell", help="a cell as test ids and rows write it")
    parser.add_argument("--bundle", type=Path, help="folder made by `conform record` (default: the embedded one)")
    parser.add_argument("--backend-python", help="interpreter that has the runtime (default: this one)")


def run(options: argparse.Namespace) -> int:
    from conform.explain import cell_again, page
    from harness.core.cell import Cell
    from harness.run.launch import EMBEDDED

    try:
        cell = Cell.parse(options.cell)
    except ValueError as error:
        raise UserError(str(error)) from error
    rows = cell_again(cell, options.bundle or EMBEDDED, options.backend_python)
    print(page(rows))
    return verdict.exit_code((row.status, row.compared * (row.check in verdict.OF_PYTORCH)) for row in rows)
