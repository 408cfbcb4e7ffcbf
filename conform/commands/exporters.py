"""``conform exporters``: what each exporter writes at each opset."""

import argparse
from pathlib import Path

from harness.core import verdict
from harness.core.arguments import count, span
from harness.core.errors import UserError

HELP = "try each exporter at each opset: what is written, of which opset, and is it right"
EXAMPLE = "conform exporters corpora/tiny-marian-en-zh --results results/exporters"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="directory, as for record")
    parser.add_argument("--results", type=Path, required=True, help="folder that the rows file is added to")
    parser.add_argument("--corpus", type=Path, help="TSV of which a few rows are decoded (default: the embedded one)")
    parser.add_argument(
        "--exporter", default="torchscript,dynamo,converter", help="with commas (default: torchscript,dynamo,converter)"
    )
    parser.add_argument("--opset", type=span, help="one opset or a range (default: 9 to one past ONNX's newest)")
    parser.add_argument("--layout", choices=["split", "unified"], help="only this layout (default: both)")
    parser.add_argument("--timeout", type=count, default=120, help="seconds that one part may take (default: 120)")


def run(options: argparse.Namespace) -> int:
    try:
        from harness.golden import exporters, survey
    except ImportError as error:
        raise UserError(f"exporting needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    from reports import matrix, matrix_page

    rows = survey.survey(
        options.model,
        options.results,
        corpus_file=options.corpus or survey.CORPUS,
        exporters=options.exporter.split(","),
        wanted=options.opset or exporters.OPSETS,
        layouts=[options.layout] if options.layout else ["split", "unified"],
        silence=options.timeout,
    )
    print(matrix_page.terminal(matrix.build(rows)))
    return verdict.exit_code((row.status, row.compared) for row in rows)
