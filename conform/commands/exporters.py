"""``conform exporters``: what each exporter writes at each opset."""

import argparse
import tempfile
from pathlib import Path

from harness.core import verdict
from harness.core.arguments import count, span
from harness.core.errors import UserError
from harness.core.selectors import ROOT

HELP = "try each exporter at each opset: what is written, of which opset, and is it right"
EXAMPLE = "conform exporters corpora/tiny-marian-en-zh --results results/exporters"

CORPUS = Path(ROOT) / "corpora" / "corpus.tsv"
LAYOUTS = ("split", "unified")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="directory, as for record")
    parser.add_argument("--results", type=Path, required=True, help="folder that the rows file is added to")
    parser.add_argument("--corpus", type=Path, help="TSV of which a few rows are decoded (default: the embedded one)")
    parser.add_argument(
        "--exporter", default="torchscript,dynamo,converter", help="with commas (default: torchscript,dynamo,converter)"
    )
    parser.add_argument("--opset", type=span, help="one opset or a range (default: 9 to one past ONNX's newest)")
    parser.add_argument("--layout", choices=LAYOUTS, help="only this layout (default: both)")
    parser.add_argument("--timeout", type=count, default=120, help="seconds that one part may take (default: 120)")


def run(options: argparse.Namespace) -> int:
    try:
        from harness.golden import exporters as golden
    except ImportError as error:
        raise UserError(f"exporting needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    from tqdm import tqdm

    from harness.run.exporters import Survey, check_names
    from harness.run.process import Limits
    from reports import matrix, matrix_page

    exporters = options.exporter.split(",")
    check_names(exporters)  # before the golden is decoded
    layouts = [options.layout] if options.layout else LAYOUTS
    with tempfile.TemporaryDirectory(prefix="conform-exporters-") as folder:
        bundle = golden.golden(options.model, options.corpus or CORPUS, Path(folder), progress=True)
        survey = Survey(str(options.model), bundle, exporters, options.opset, layouts)
        with tqdm(total=len(survey.tasks), desc=f"{'exporters':<12}") as bar:
            rows = survey.run(options.results, Limits(options.timeout), lambda row: bar.update())
    print(matrix_page.terminal(matrix.build(rows)))
    return verdict.exit_code((row.status, row.compared) for row in rows)
