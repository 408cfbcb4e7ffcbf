"""``conform record``: a model directory becomes a bundle."""

import argparse
import sys
from pathlib import Path

from backends.contract import LAYOUTS
from harness.core.arguments import count, span
from harness.core.errors import UserError

HELP = "record a local Hugging Face MarianMT directory as a bundle (needs the extra `golden`)"
EXAMPLE = "conform record ~/opus-mt --corpus corpora/corpus.tsv --out mine.bundle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, help="directory with config.json, weights, source.spm, target.spm, vocab.json"
    )
    parser.add_argument("--corpus", type=Path, required=True, help="TSV: id, domain, licence, source, reference")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle at OUT")
    parser.add_argument(
        "--exporter",
        default="torchscript,dynamo",
        help="of PyTorch's exporters, with commas (default: torchscript,dynamo)",
    )
    parser.add_argument("--opset", type=span, help="one opset or a range (default: all that the exporters write)")
    parser.add_argument("--layout", choices=LAYOUTS, help="only this layout (default: all)")
    parser.add_argument(
        "--precision",
        default="fp32,fp16,bf16",
        help="precisions to record the noise of, with commas: what computes in one is judged by it (default: all)",
    )
    parser.add_argument("--traced-steps", type=count, default=520, help="steps that carry every tensor (default: 520)")
    parser.add_argument("--max-steps", type=count, default=128, help="longest decode (default: 128)")
    parser.add_argument(
        "--threads", type=count, default=1, help="torch threads; pinned, so that recording repeats (default: 1)"
    )
    parser.add_argument(
        "--against", type=Path, help="an older bundle: say what changed in the golden, exit 1 if anything"
    )


def run(options: argparse.Namespace) -> int:
    try:
        from harness.golden import record
        from harness.golden.against import against
    except ImportError as error:
        raise UserError(f"recording needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    from harness.core.bundle import Bundle
    from harness.run.text import Scorer

    old = None
    if options.against is not None:
        if options.against.resolve() == options.out.resolve():
            raise UserError(f"--against {options.against}: is what --out replaces; copy the old bundle first")
        old = Bundle(str(options.against))
    digest = record.record(
        options.model,
        options.corpus,
        options.out,
        exporters=options.exporter.split(","),
        opsets=options.opset,
        layouts=[options.layout] if options.layout else LAYOUTS,
        precisions=options.precision.split(","),
        traced_steps=options.traced_steps,
        max_steps=options.max_steps,
        threads=options.threads,
        overwrite=options.overwrite,
        score=Scorer,
        note=lambda line: print(f"note: {line}", file=sys.stderr),
    )
    print(f"{options.out}: bundle {digest[:12]}; replay it with pytest --backend=ort --bundle={options.out}")
    if old is None:
        return 0
    changes = against(old, Bundle(str(options.out)))
    print("\n".join(changes) or "the golden is unchanged")
    return int(bool(changes))
