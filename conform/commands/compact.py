"""``conform compact``: finished nights of a results folder as Parquet."""

import argparse
from datetime import date
from pathlib import Path

HELP = "put finished nights of a results folder into Parquet, one file a night"
EXAMPLE = "conform compact results --delete"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="results folder")
    parser.add_argument("--before", type=_day, help="nights before this UTC day are finished (default: today)")
    parser.add_argument(
        "--delete", action="store_true", help="delete a .jsonl file once all its rows are read back from Parquet"
    )


def run(options: argparse.Namespace) -> int:
    from reports.compaction import compact, today

    return int(not compact(options.results, options.before or today(), options.delete))


def _day(text: str) -> str:
    """A UTC day of a command line. Raises argparse's error, which names the option."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-11-30") from None
