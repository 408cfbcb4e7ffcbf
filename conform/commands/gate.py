"""``conform gate``: results held against a release policy."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.run.text import Scorer
    from reports.results import Results

HELP = "hold results against a release policy; exit 1 with a line for each reason"
EXAMPLE = "conform gate results@newest --policy nightly --junit gate.xml --good"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", help="results folder or rows file; a night of them: DIR@2026-11-30, DIR@newest")
    parser.add_argument("--policy", required=True, help="TOML file, or a ready one: new-opset, new-runtime, nightly")
    parser.add_argument("--baseline", help="results that costs and missing cells are measured by; as RESULTS")
    parser.add_argument("--bundle", type=Path, help="bundle of the rows (default: the embedded one)")
    parser.add_argument("--junit", type=Path, help="JUnit XML to write: a test for each required cell")
    parser.add_argument("--summary", type=Path, help="Markdown to write (default: added to $GITHUB_STEP_SUMMARY)")
    parser.add_argument("--good", action="store_true", help="on a pass, name this night DIR@last-good")


def run(options: argparse.Namespace) -> int:
    from conform.texts import scorer_of
    from reports import gate, ruling, selection
    from reports.policy import find, load

    policy = load(find(options.policy))
    if policy.cost and not options.baseline:
        raise UserError(
            f"policy {policy.name} has budgets of cost; give what they are measured by with --baseline RESULTS"
        )
    if options.good and Path(options.results).is_file():
        raise UserError(
            f"{options.results}: is one run of a night; give the folder, or DIR@NIGHT, to name a good night"
        )
    scorer = scorer_of(options.bundle)
    results = read(options.results, scorer)
    judged = gate.judge(policy, results, read(options.baseline, scorer) if options.baseline else None, scorer)
    print("\n".join(ruling.lines(judged)))
    if options.junit:
        options.junit.write_text(ruling.junit(judged), encoding="utf-8")
    if options.summary:
        options.summary.write_text(ruling.summary(judged), encoding="utf-8")
    elif os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as stream:
            stream.write(ruling.summary(judged))
    if judged.passed and options.good:
        print(f"last good night: {results.night} ({selection.mark_good(results.folder, results.night)})")
    return int(not judged.passed)


def read(text: str, scorer: Callable[[], "Scorer"]) -> "Results":
    """The results that a command line names; what a box without pytest left out is answered here. Raises UserError."""
    from harness.run.complete import answers
    from reports.results import cells_of, collect
    from reports.selection import select

    (selection,) = select(text)
    rows = cells_of(selection)
    return collect(selection, [*(row for _, row in rows), *answers(rows, scorer)])
