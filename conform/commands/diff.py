"""``conform diff``: what changed between two states of the rows."""

import argparse
from pathlib import Path

from conform.output import show

HELP = "say what changed from OLD to NEW, as Markdown of at most 60 lines; exit 1 when something is worse"
EXAMPLE = "conform diff results@last-good results@newest --json diff.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ("old", "new"):
        parser.add_argument(
            name, metavar=name.upper(), help="results folder or rows file; a night: DIR@2026-11-30, @newest, @last-good"
        )
    parser.add_argument(
        "--across-versions",
        action="store_true",
        help="compare cells of a runtime version that OLD lacks with the nearest older version",
    )
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    parser.add_argument("--json", type=Path, help="file to write every change to, none folded")


def run(options: argparse.Namespace) -> int:
    from reports import diff_page
    from reports.diff import compare
    from reports.selection import select

    old, new = select(options.old, options.new, detail=False)
    report = compare(old, new, options.across_versions)
    show(diff_page.markdown(report), options.out)
    if options.json:
        options.json.write_text(diff_page.to_json(report), encoding="utf-8")
    return int(report.worse)
