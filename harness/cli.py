"""``conform``: record a bundle, see the backends of this box, merge rows into a matrix, explain a cell."""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from harness.bundle import Bundle, BundleError
from harness.cell import count, span
from harness.judge import verdict
from harness.rows import RowsError, read_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 verdict negative; 2 bad input; 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (BundleError, RowsError, OSError, BadInput) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


class BadInput(Exception):
    """One line that says what, where, and what to do."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("conform", description=__doc__.replace("``", ""))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, says: str, example: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=says, description=textwrap.fill(says[0].upper() + says[1:] + ".", 78),
            epilog=f"example: {example}", formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=run)
        return made

    record = command(
        "record", _record, "record a local Hugging Face MarianMT directory as a bundle (needs the extra `golden`)",
        "conform record ~/opus-mt --corpus corpora/corpus.tsv --out mine.bundle",
    )  # fmt: skip
    record.add_argument(
        "model", type=Path, help="directory with config.json, weights, source.spm, target.spm, vocab.json"
    )
    record.add_argument("--corpus", type=Path, required=True, help="TSV: id, domain, licence, source, reference")
    record.add_argument("--out", type=Path, required=True, help="folder to write")
    record.add_argument("--overwrite", action="store_true", help="replace the bundle at OUT")
    record.add_argument("--opset", type=span, default=range(9, 24), help="one opset or a range (default: 9-23)")
    record.add_argument("--layout", choices=["split", "unified"], help="only this layout (default: both)")
    record.add_argument("--traced-steps", type=count, default=520, help="steps that carry every tensor (default: 520)")
    record.add_argument("--max-steps", type=count, default=128, help="longest decode (default: 128)")
    record.add_argument(
        "--threads", type=count, default=1, help="torch threads; pinned, so that recording repeats (default: 1)"
    )
    record.add_argument(
        "--against", type=Path, help="an older bundle: say what changed in the golden, exit 1 if anything"
    )

    backends = command(
        "backends", _backends, "say for each backend whether it is here, its version and device, and what to install",
        "conform backends",
    )  # fmt: skip
    backends.add_argument("--backend-python", help="interpreter that has the runtimes (default: this one)")

    matrix = command(
        "matrix", _matrix, "merge the rows of many boxes into one compatibility matrix",
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

    explain = command(
        "explain", _explain, "replay one cell again: every check, who is to blame, the knobs tried, the command",
        "conform explain ort@1.32.0/cpu/torchscript/unified/fp32/op14",
    )  # fmt: skip
    explain.add_argument("cell", help="a cell as test ids and rows write it")
    explain.add_argument("--bundle", type=Path, help="folder made by `conform record` (default: the embedded one)")
    explain.add_argument("--backend-python", help="interpreter that has the runtime (default: this one)")

    expected = command(
        "expectations", _expectations, "show how rows would change the files of expected failures",
        "conform expectations results --update",
    )  # fmt: skip
    expected.add_argument(
        "results", nargs="*", type=Path, default=[Path("results")], help="folders or files (default: results)"
    )
    expected.add_argument("--update", action="store_true", help="write the files too")
    return parser


def _explain(options: argparse.Namespace) -> int:
    from harness.cell import Cell
    from harness.explain import cell_again, page
    from harness.launch import EMBEDDED
    from harness.replay.select import UnknownBackend

    try:
        rows = cell_again(Cell.parse(options.cell), options.bundle or EMBEDDED, options.backend_python)
    except (ValueError, UnknownBackend) as error:
        raise BadInput(str(error)) from error
    print(page(rows))
    return verdict.exit_code((row.status, row.compared) for row in rows)


def _expectations(options: argparse.Namespace) -> int:
    from harness import expect
    from harness.expectations import ExpectationError
    from reports.matrix import newest

    try:
        changes = expect.proposals(newest(row for _, row in read_all(options.results)))
    except ExpectationError as error:
        raise BadInput(str(error)) from error
    for place, (old, new) in changes.items():
        print(expect.diff(place, old, new), end="")
        if options.update:
            place.write_text(new, encoding="utf-8")
    if not changes:
        print("the expectations fit these rows")
    elif not options.update:
        print("nothing written; add --update to write this")
    return 0


def _record(options: argparse.Namespace) -> int:
    try:
        from harness.golden import RecordError, record
    except ImportError as error:
        raise BadInput(f"recording needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    old = None
    if options.against is not None:
        if options.against.resolve() == options.out.resolve():
            raise BadInput(f"--against {options.against}: is what --out replaces; copy the old bundle first")
        old = Bundle(str(options.against))
    try:
        layouts = [options.layout] if options.layout else ["split", "unified"]
        digest = record.record(
            options.model, options.corpus, options.out, opsets=options.opset, layouts=layouts,
            traced_steps=options.traced_steps, max_steps=options.max_steps, threads=options.threads,
            overwrite=options.overwrite,
        )  # fmt: skip
    except RecordError as error:
        raise BadInput(str(error)) from error
    print(f"{options.out}: bundle {digest[:12]}; replay it with pytest --backend=ort --bundle={options.out}")
    if old is None:
        return 0
    changes = record.against(old, Bundle(str(options.out)))
    print("\n".join(changes) or "the golden is unchanged")
    return int(bool(changes))


def _backends(options: argparse.Namespace) -> int:
    from tabulate import tabulate

    from harness.launch import EMBEDDED
    from harness.replay import select
    from harness.replay.host import Limits, Worker

    python = options.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise BadInput(f"--backend-python {python}: no such interpreter; give the path of a python")
    table = []
    for name in select.names():
        worker = Worker(str(EMBEDDED), select.parse(name), Limits(silence=60), python)
        found = worker.probe()
        worker.stop()
        if found.probe:
            where = f"{found.probe.device} {found.probe.precision}"
            table.append([name, "present", found.probe.version, where, "run", ""])
        elif found.absent:
            table.append([name, "absent", "", "", "-", f"{found.absent['reason']}; {found.absent['remedy']}"])
        elif found.failure:
            table.append([name, found.failure.status, "", "", "-", found.failure.message])
    headers = ["backend", "here", "version", "device", "depth", "why not, what to do"]
    print(tabulate(table, headers=headers, maxcolwidths=[None] * 5 + [28]))
    return 0


def _matrix(options: argparse.Namespace) -> int:
    from harness.launch import EMBEDDED
    from harness.merge import complete, unanswered
    from reports import matrix, platforms

    rows = complete(options.results, options.bundle or EMBEDDED)
    for line in unanswered(rows):
        print(f"note: {line}", file=sys.stderr)
    if options.table == "platforms":
        if options.format not in ("terminal", "md"):
            raise BadInput(f"--format {options.format}: the table of platforms is terminal or md")
        page = platforms.table(rows, "simple" if options.format == "terminal" else "github")
    else:
        page = matrix.FORMATS[options.format](matrix.build(rows))
    if options.out:
        options.out.write_text(page, encoding="utf-8")
    else:
        print(page, end="" if page.endswith("\n") else "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
