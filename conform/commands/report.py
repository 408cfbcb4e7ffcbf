"""``conform report``: a static site over the rows of many boxes and nights."""

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from harness.core.arguments import count
from harness.core.errors import UserError
from harness.core.rows import Row

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
    now = datetime.now(timezone.utc)
    print(write(options.results, options.out, options.bundle, options.stale_days, now))
    return 0


def write(results: Sequence[Path], out: Path, bundle: Path | None, stale_days: float, now: datetime) -> str:
    """Write the site over results folders and rows files. Returns a line that says where. ``now``: UTC. Raises UserError
    without rows, without the libraries, and when ``out`` is there and is no site."""
    try:
        from reports import site
    except ImportError as error:
        raise UserError(f"the report needs its libraries ({error}); pip install -e '.[reports]'") from error
    from conform.texts import scorer_of
    from harness.run.complete import answers
    from reports.nights import Past
    from reports.sidecars import Sidecars
    from reports.store import Store

    site.check_target(out)
    scorer = scorer_of(bundle)
    folders = [path if path.is_dir() else path.parent for path in results]
    sidecars = Sidecars(folders, scorer())
    store = Store(results)
    rows = store.newest_rows()
    past = Past(store, rows, answers([(_home(folders, row), row) for row in rows], scorer))
    return site.write(out, past, sidecars, stale_days, now)


def _home(folders: Sequence[Path], row: Row) -> Path:
    """The folder that a row's sidecar path starts from."""
    return next((folder for folder in folders if row.series and (folder / row.series).exists()), folders[0])
