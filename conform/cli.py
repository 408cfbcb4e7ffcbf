"""``conform``: record a bundle, see and make what can run on this box, merge rows into a matrix, explain a cell."""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from backends.contract import LAYOUTS
from conform import commands
from harness.core.arguments import count, span
from harness.core.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 verdict negative; 2 bad input; 130 interrupted; 141 nobody read to the end."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read, such as head, has seen enough; no verdict was said to the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("conform", description=__doc__.replace("``", ""))
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, says: str, example: str) -> argparse.ArgumentParser:
        made = subparsers.add_parser(
            name, help=says, description=textwrap.fill(says[0].upper() + says[1:] + ".", 78),
            epilog=f"example: {example}", formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=run)
        return made

    record = command(
        "record", commands.record, "record a local Hugging Face MarianMT directory as a bundle (needs the extra `golden`)",
        "conform record ~/opus-mt --corpus corpora/corpus.tsv --out mine.bundle",
    )  # fmt: skip
    record.add_argument(
        "model", type=Path, help="directory with config.json, weights, source.spm, target.spm, vocab.json"
    )
    record.add_argument("--corpus", type=Path, required=True, help="TSV: id, domain, licence, source, reference")
    record.add_argument("--out", type=Path, required=True, help="folder to write")
    record.add_argument("--overwrite", action="store_true", help="replace the bundle at OUT")
    record.add_argument(
        "--exporter",
        default="torchscript,dynamo",
        help="of PyTorch's exporters, with commas (default: torchscript,dynamo)",
    )
    record.add_argument("--opset", type=span, help="one opset or a range (default: all that the exporters write)")
    record.add_argument("--layout", choices=LAYOUTS, help="only this layout (default: all)")
    record.add_argument(
        "--precision",
        default="fp32,fp16,bf16",
        help="precisions to record the noise of, with commas: what computes in one is judged by it (default: all)",
    )
    record.add_argument("--traced-steps", type=count, default=520, help="steps that carry every tensor (default: 520)")
    record.add_argument("--max-steps", type=count, default=128, help="longest decode (default: 128)")
    record.add_argument(
        "--threads", type=count, default=1, help="torch threads; pinned, so that recording repeats (default: 1)"
    )
    record.add_argument(
        "--against", type=Path, help="an older bundle: say what changed in the golden, exit 1 if anything"
    )

    exporters = command(
        "exporters", commands.exporters, "try each exporter at each opset: what is written, of which opset, and is it right",
        "conform exporters corpora/tiny-marian-en-zh --results results/exporters",
    )  # fmt: skip
    exporters.add_argument("model", type=Path, help="directory, as for record")
    exporters.add_argument("--results", type=Path, required=True, help="folder that the rows file is added to")
    exporters.add_argument(
        "--corpus", type=Path, help="TSV of which a few rows are decoded (default: the embedded one)"
    )
    exporters.add_argument(
        "--exporter", default="torchscript,dynamo,converter", help="with commas (default: torchscript,dynamo,converter)"
    )
    exporters.add_argument("--opset", type=span, help="one opset or a range (default: 9 to one past ONNX's newest)")
    exporters.add_argument("--layout", choices=["split", "unified"], help="only this layout (default: both)")
    exporters.add_argument("--timeout", type=count, default=120, help="seconds that one part may take (default: 120)")

    backends = command(
        "backends", commands.backends,
        "say for each backend whether it is here, version, device, how deep it goes, what it lacks",
        "conform backends",
    )  # fmt: skip
    backends.add_argument("--backend-python", help="interpreter that has the runtimes (default: this one)")

    matrix = command(
        "matrix", commands.matrix, "merge the rows of many boxes into one compatibility matrix",
        "conform matrix results jetson-results --format md --out matrix.md",
    )  # fmt: skip
    matrix.add_argument("results", nargs="+", type=Path, help="results folders or .jsonl files")
    matrix.add_argument("--format", choices=["terminal", "md", "csv", "json"], default="terminal")
    matrix.add_argument(
        "--table", choices=["opsets", "platforms"], default="opsets",
        help="opsets: runtimes by opset; platforms: which kinds of box have been run (terminal, md) (default: opsets)",
    )  # fmt: skip
    matrix.add_argument("--out", type=Path, help="file to write (default: standard output)")
    matrix.add_argument(
        "--bundle", type=Path, help="bundle of rows that have no text check yet (default: the embedded one)"
    )
    matrix.add_argument(
        "--ops",
        help="show operators instead: names with commas, or graph for those of the bundle; runs what is missing",
    )
    matrix.add_argument("--backend", help="with --ops: these instead of the runtimes that RESULTS has rows of")
    matrix.add_argument("--opset", type=span, help="with --ops: one opset or a range (default: 9 to the newest)")
    matrix.add_argument("--again", action="store_true", help="with --ops: run what RESULTS already has, too")

    envs = command(
        "envs", commands.envs,
        "make, list and remove the environments of other runtime versions, which NAME@VERSION runs in",
        "conform envs create ort@1.10 openvino@2022.3",
    )  # fmt: skip
    envs.add_argument("action", choices=["create", "list", "remove"])
    envs.add_argument(
        "names", nargs="*", help="NAME@VERSION, NAME@all or all, of backends/envs.toml (list: default all)"
    )

    report = command(
        "report", commands.report, "write a static site over the rows of many boxes and nights, to open in any browser",
        "conform report results jetson-results --out site",
    )  # fmt: skip
    report.add_argument("results", nargs="+", type=Path, help="results folders or .jsonl files")
    report.add_argument("--out", type=Path, required=True, help="folder to write; only a report is ever replaced")
    report.add_argument(
        "--bundle", type=Path, help="bundle of the rows, for their texts and token strings (default: the embedded one)"
    )
    report.add_argument(
        "--stale-days", type=count, default=3, help="days after which a box is called stale (default: 3)"
    )

    explain = command(
        "explain", commands.explain, "replay one cell again: every check, who is to blame, the knobs tried, the command",
        "conform explain ort@1.32.0/cpu/torchscript/unified/fp32/op14",
    )  # fmt: skip
    explain.add_argument("cell", help="a cell as test ids and rows write it")
    explain.add_argument("--bundle", type=Path, help="folder made by `conform record` (default: the embedded one)")
    explain.add_argument("--backend-python", help="interpreter that has the runtime (default: this one)")

    expected = command(
        "expectations", commands.expectations, "show how rows would change the files of expected failures",
        "conform expectations results --update",
    )  # fmt: skip
    expected.add_argument(
        "results", nargs="*", type=Path, default=[Path("results")], help="folders or files (default: results)"
    )
    expected.add_argument("--update", action="store_true", help="write the files too")

    compact = command(
        "compact", commands.compact, "put finished nights of a results folder into Parquet, one file a night",
        "conform compact results --delete",
    )  # fmt: skip
    compact.add_argument("results", type=Path, help="results folder")
    compact.add_argument("--before", type=day, help="nights before this UTC day are finished (default: today)")
    compact.add_argument(
        "--delete", action="store_true", help="delete a .jsonl file once all its rows are read back from Parquet"
    )

    diff = command(
        "diff", commands.diff,
        "say what changed from OLD to NEW, as Markdown of at most 60 lines; exit 1 when something is worse",
        "conform diff results@last-good results@newest --json diff.json",
    )  # fmt: skip
    for name in ("old", "new"):
        diff.add_argument(
            name, metavar=name.upper(), help="results folder or rows file; a night: DIR@2026-11-30, @newest, @last-good"
        )
    diff.add_argument(
        "--across-versions", action="store_true",
        help="compare cells of a runtime version that OLD lacks with the nearest older version",
    )  # fmt: skip
    diff.add_argument("--out", type=Path, help="file to write (default: standard output)")
    diff.add_argument("--json", type=Path, help="file to write every change to, none folded")

    gate = command(
        "gate", commands.gate, "hold results against a release policy; exit 1 with a line for each reason",
        "conform gate results@newest --policy nightly --junit gate.xml --good",
    )  # fmt: skip
    gate.add_argument("results", help="results folder or rows file; a night of them: DIR@2026-11-30, DIR@newest")
    gate.add_argument("--policy", required=True, help="TOML file, or a ready one: new-opset, new-runtime, nightly")
    gate.add_argument("--baseline", help="results that costs and missing cells are measured by; as RESULTS")
    gate.add_argument("--bundle", type=Path, help="bundle of the rows (default: the embedded one)")
    gate.add_argument("--junit", type=Path, help="JUnit XML to write: a test for each required cell")
    gate.add_argument("--summary", type=Path, help="Markdown to write (default: added to $GITHUB_STEP_SUMMARY)")
    gate.add_argument("--good", action="store_true", help="on a pass, name this night DIR@last-good")
    return parser


def day(text: str) -> str:
    """A UTC day of a command line. Raises argparse's error, which names the option."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-11-30") from None


if __name__ == "__main__":
    sys.exit(main())
