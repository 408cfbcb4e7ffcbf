"""``conform``: record a bundle, see and make what can run on this box, merge rows into a matrix, explain a cell."""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from backends.contract import LAYOUTS
from harness.bundle import Bundle, BundleError
from harness.cell import count, span
from harness.judge import verdict
from harness.rows import RowsError


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
        "exporters", _exporters, "try each exporter at each opset: what is written, of which opset, and is it right",
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
        "backends", _backends, "say for each backend whether it is here, version, device, how deep it goes, what it lacks",
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
    matrix.add_argument(
        "--ops",
        help="show operators instead: names with commas, or graph for those of the bundle; runs what is missing",
    )
    matrix.add_argument("--backend", help="with --ops: these instead of the runtimes that RESULTS has rows of")
    matrix.add_argument("--opset", type=span, help="with --ops: one opset or a range (default: 9 to the newest)")
    matrix.add_argument("--again", action="store_true", help="with --ops: run what RESULTS already has, too")

    envs = command(
        "envs", _envs, "make, list and remove the environments of other runtime versions, which NAME@VERSION runs in",
        "conform envs create ort@1.10 openvino@2022.3",
    )  # fmt: skip
    envs.add_argument("action", choices=["create", "list", "remove"])
    envs.add_argument(
        "names", nargs="*", help="NAME@VERSION, NAME@all or all, of backends/envs.toml (list: default all)"
    )

    report = command(
        "report", _report, "write a static site over the rows of many boxes and nights, to open in any browser",
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

    compact = command(
        "compact", _compact, "put finished nights of a results folder into Parquet, one file a night",
        "conform compact results --delete",
    )  # fmt: skip
    compact.add_argument("results", type=Path, help="results folder")
    compact.add_argument("--before", type=day, help="nights before this UTC day are finished (default: today)")
    compact.add_argument(
        "--delete", action="store_true", help="delete a .jsonl file once all its rows are read back from Parquet"
    )

    diff = command(
        "diff", _diff, "say what changed from OLD to NEW, as Markdown of at most 60 lines; exit 1 when something is worse",
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
        "gate", _gate, "hold results against a release policy; exit 1 with a line for each reason",
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


def _compact(options: argparse.Namespace) -> int:
    from reports import compaction, store

    return int(not compaction.compact(options.results, options.before or store.today(), options.delete))


def _diff(options: argparse.Namespace) -> int:
    from reports import diff

    report = diff.compare(*diff.sides(options.old, options.new), options.across_versions)
    _show(diff.markdown(report), options.out)
    if options.json:
        options.json.write_text(diff.to_json(report), encoding="utf-8")
    return int(report.worse)


def _gate(options: argparse.Namespace) -> int:
    from harness.launch import EMBEDDED
    from reports import gate
    from reports.policy import PolicyError, find, load

    bundle = options.bundle or EMBEDDED
    try:
        policy = load(find(options.policy))
    except PolicyError as error:
        raise BadInput(str(error)) from error
    if policy.cost and not options.baseline:
        raise BadInput(
            f"policy {policy.name} has budgets of cost; give what they are measured by with --baseline RESULTS"
        )
    results = gate.read(options.results, bundle)
    found = gate.judge(policy, results, gate.read(options.baseline, bundle) if options.baseline else None, bundle)
    print("\n".join(gate.lines(found)))
    if options.junit:
        options.junit.write_text(gate.junit(found), encoding="utf-8")
    if options.summary:
        options.summary.write_text(gate.summary(found), encoding="utf-8")
    elif os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as stream:
            stream.write(gate.summary(found))
    if found.passed and options.good:
        print(f"last good night: {results.night} ({gate.mark_good(results)})")
    return int(not found.passed)


def _show(page: str, out: Path | None) -> None:
    if out:
        out.write_text(page, encoding="utf-8")
    else:
        print(page, end="" if page.endswith("\n") else "\n")


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
    return verdict.exit_code((row.status, row.compared * (row.check in verdict.OF_PYTORCH)) for row in rows)


def _expectations(options: argparse.Namespace) -> int:
    from harness import expect
    from harness.expectations import ExpectationError
    from harness.rows import newest
    from reports.folders import read_all

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
        layouts = [options.layout] if options.layout else LAYOUTS
        digest = record.record(
            options.model, options.corpus, options.out, exporters=options.exporter.split(","),
            opsets=options.opset, layouts=layouts, precisions=options.precision.split(","),
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


def _exporters(options: argparse.Namespace) -> int:
    try:
        from harness.golden import RecordError, exporters
    except ImportError as error:
        raise BadInput(f"exporting needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    from reports import matrix

    try:
        rows = exporters.survey(
            options.model, options.results, corpus_file=options.corpus or exporters.CORPUS,
            exporters=options.exporter.split(","), wanted=options.opset or exporters.OPSETS,
            layouts=[options.layout] if options.layout else ["split", "unified"], silence=options.timeout,
        )  # fmt: skip
    except RecordError as error:
        raise BadInput(str(error)) from error
    print(matrix.terminal(matrix.build(rows)))
    return verdict.exit_code((row.status, row.compared) for row in rows)


def _backends(options: argparse.Namespace) -> int:
    from harness import here

    python = options.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise BadInput(f"--backend-python {python}: no such interpreter; give the path of a python")
    print(here.page(python))
    return 0


def _envs(options: argparse.Namespace) -> int:
    from tabulate import tabulate
    from tqdm import tqdm

    from harness import envs
    from harness.replay.select import UnknownBackend

    if not options.names and options.action != "list":
        raise BadInput(f"conform envs {options.action}: name what to {options.action}, e.g. ort@1.10, or all")
    try:
        entries = list(dict.fromkeys(entry for name in options.names or ["all"] for entry in envs.matching(name)))
    except UnknownBackend as error:
        raise BadInput(str(error)) from error
    if options.action == "list":
        table = [
            [
                entry.name,
                entry.python,
                " ".join(entry.pins),
                f"{envs.size(entry) / 2**20:.0f} MB" if entry.made else "-",
            ]
            for entry in entries
        ]
        heads = ["environment", "Python", "pins", "made"]
        print(tabulate(table, headers=heads, disable_numparse=True, maxcolwidths=[None, None, 36, None]))
        return 0
    failed = False
    for entry in tqdm(entries, options.action, unit="env", disable=len(entries) < 2 or None):
        if options.action == "remove":
            tqdm.write(f"{entry.name}: {'removed' if envs.remove(entry) else 'was not here'}")
            continue
        try:
            tqdm.write(envs.create(entry))
        except envs.EnvError as error:
            failed = True
            tqdm.write(f"{error}; it stays ABSENT")
    return int(failed)


def _matrix(options: argparse.Namespace) -> int:
    from harness.launch import EMBEDDED
    from harness.merge import completed, unanswered
    from reports import matrix, platforms
    from reports.folders import read_all

    if options.ops is not None:
        return _operators(options)
    if options.backend or options.opset or options.again:
        raise BadInput("--backend, --opset and --again say what --ops runs; add --ops=graph, or leave them out")
    rows = completed(read_all(options.results), options.bundle or EMBEDDED)
    for line in unanswered(rows):
        print(f"note: {line}", file=sys.stderr)
    made = matrix.build(rows)
    if options.table == "platforms":
        if options.format not in ("terminal", "md"):
            raise BadInput(f"--format {options.format}: the table of platforms is terminal or md")
        page = platforms.table(rows, "simple" if options.format == "terminal" else "github")
    elif options.format == "md" and options.out:
        page = matrix.markdown(made, _links(options.results, options.out))
    else:
        page = matrix.FORMATS[options.format](made)
    _show(page, options.out)
    return 0


def _operators(options: argparse.Namespace) -> int:
    import difflib

    from harness import node_tests, operators
    from harness.launch import EMBEDDED
    from harness.replay.select import UnknownBackend
    from reports import matrix
    from reports.folders import filled, read_all

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    def names(text: str | None) -> list[str]:
        return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))

    named = names(options.ops)
    used = operators.used_by(Bundle(str(options.bundle or EMBEDDED))) if "graph" in named else []
    wanted = list(dict.fromkeys([name for name in named if name != "graph"] + used))
    if not wanted:
        raise BadInput("--ops= names no operator; give some, e.g. --ops=GatherElements, or --ops=graph")
    tests = node_tests.collection(wanted, say)
    for name in named:
        if name not in (*tests.operators, *used, "graph"):
            near = difflib.get_close_matches(name, tests.operators, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadInput(f"--ops: no node test of {name!r} in {tests.name}{hint}")
    opsets = [opset for opset in tests.opsets if options.opset is None or opset in options.opset]
    if not opsets:
        raise BadInput(f"--opset: {tests.name} has opsets {tests.opsets[0]}-{tests.opsets[-1]}")
    if options.results[0].is_file():
        raise BadInput(f"{options.results[0]}: rows are added to the first of RESULTS; give a folder")
    wish = operators.Wish(options.results, wanted, opsets, names(options.backend), options.again)
    # Runtimes that are asked for by name need no rows to be found in.
    needed = not wish.backends or any(map(filled, options.results))
    known = [row for _, row in read_all(options.results)] if needed else []
    columns = operators.Columns(wish, tests, known, say)
    try:
        columns.fill()
    except UnknownBackend as error:
        raise BadInput(str(error)) from error
    finally:
        columns.close()
    rows = operators.shown((row for _, row in read_all(options.results)), wish)
    if not rows:
        raise BadInput("no rows of these operators, and no runtime of RESULTS is here; name one with --backend")
    for line in operators.gaps(tests, wanted, opsets):
        say(f"note: {line}")
    if columns.wrote:
        say(matrix.write_page(options.results[0]))
    _show(matrix.FORMATS[options.format](matrix.build(rows)), options.out)
    return int(bool(columns.idle))


def _links(places: Sequence[Path], page: Path) -> dict[str, str]:
    """Where each run's rows lie, as seen from the page."""
    files = [path for place in places for path in (place.glob("*.jsonl") if place.is_dir() else [place])]
    return {path.stem: Path(os.path.relpath(path, page.parent)).as_posix() for path in files}


def _report(options: argparse.Namespace) -> int:
    from datetime import datetime, timezone

    from harness.launch import EMBEDDED

    try:
        from reports import site
    except ImportError as error:
        raise BadInput(f"the report needs its libraries ({error}); pip install -e '.[reports]'") from error
    try:
        now = datetime.now(timezone.utc)
        print(site.write(options.results, options.out, options.bundle or EMBEDDED, options.stale_days, now))
    except site.SiteError as error:
        raise BadInput(str(error)) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
