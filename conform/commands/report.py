"""``conform report``: a static site over the rows of many boxes and nights."""

import argparse
from datetime import datetime, timezone
from pathlib import Path

from harness.core.arguments import count
from harness.core.errors import UserError

HELP = "write a static site over the rows of many boxes and nights, to open in any browser"
EXAMPLE = "conform report results jetson-results --out site"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", type=Path, help="results folders or .jsonl files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; only a report is ever replaced")
    parser.add_argument(
        "--bundle", type=Path, help="bundle of the rows, for their texts and token strings (default: the embedded one)"
    )
    parser.add_argument(
        "--stale-days", type=count, default=3, help="days after which a box is called stale (default: 3)"
    )


def run(options: argparse.Namespace) -> int:
    try:
        from reports import site
    except ImportError as error:
        raise UserError(f"the report needs its libraries ({error}); pip install -e '.[reports]'") from error
    from harness.run.launch import EMBEDDED

    now = datetime.now(timezone.utc)
    print(site.write(options.results, options.out, options.bundle or EMBEDDED, options.stale_days, now))
    return 0
