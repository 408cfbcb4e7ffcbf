"""What each command of ``conform`` does with its options: from the command line to the room that does the work, and back."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.contract import LAYOUTS
from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.errors import UserError


def compact(options: argparse.Namespace) -> int:
    from reports import compaction, store

    return int(not compaction.compact(options.results, options.before or store.today(), options.delete))


def diff(options: argparse.Namespace) -> int:
    from reports import diff

    report = diff.compare(*diff.sides(options.old, options.new), options.across_versions)
    _show(diff.markdown(report), options.out)
    if options.json:
        options.json.write_text(diff.to_json(report), encoding="utf-8")
    return int(report.worse)


def gate(options: argparse.Namespace) -> int:
    from harness.run.launch import EMBEDDED
    from reports import gate, ruling
    from reports.policy import find, load

    bundle = options.bundle or EMBEDDED
    try:
        policy = load(find(options.policy))
    except UserError as error:
        raise UserError(str(error)) from error
    if policy.cost and not options.baseline:
        raise UserError(
            f"policy {policy.name} has budgets of cost; give what they are measured by with --baseline RESULTS"
        )
    if options.good and Path(options.results).is_file():
        raise UserError(
            f"{options.results}: is one run of a night; give the folder, or DIR@NIGHT, to name a good night"
        )
    results = gate.read(options.results, bundle)
    found = gate.judge(policy, results, gate.read(options.baseline, bundle) if options.baseline else None, bundle)
    print("\n".join(ruling.lines(found)))
    if options.junit:
        options.junit.write_text(ruling.junit(found), encoding="utf-8")
    if options.summary:
        options.summary.write_text(ruling.summary(found), encoding="utf-8")
    elif os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as stream:
            stream.write(ruling.summary(found))
    if found.passed and options.good:
        print(f"last good night: {results.night} ({gate.mark_good(results)})")
    return int(not found.passed)


def _show(page: str, out: Path | None) -> None:
    if out:
        out.write_text(page, encoding="utf-8")
    else:
        print(page, end="" if page.endswith("\n") else "\n")


def explain(options: argparse.Namespace) -> int:
    from conform.explain import cell_again, page
    from harness.core.cell import Cell
    from harness.run.launch import EMBEDDED

    try:
        rows = cell_again(Cell.parse(options.cell), options.bundle or EMBEDDED, options.backend_python)
    except (ValueError, UserError) as error:
        raise UserError(str(error)) from error
    print(page(rows))
    return verdict.exit_code((row.status, row.compared * (row.check in verdict.OF_PYTORCH)) for row in rows)


def expectations(options: argparse.Namespace) -> int:
    from conform import proposals as expect
    from harness.core.rows import newest
    from reports.folders import read_all

    try:
        changes = expect.proposals(newest(row for _, row in read_all(options.results)))
    except UserError as error:
        raise UserError(str(error)) from error
    for place, (old, new) in changes.items():
        print(expect.diff(place, old, new), end="")
        if options.update:
            place.write_text(new, encoding="utf-8")
    if not changes:
        print("the expectations fit these rows")
    elif not options.update:
        print("nothing written; add --update to write this")
    return 0


def record(options: argparse.Namespace) -> int:
    try:
        from harness.golden import record
        from harness.golden.against import against
        from harness.run.text import Scorer
    except ImportError as error:
        raise UserError(f"recording needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    old = None
    if options.against is not None:
        if options.against.resolve() == options.out.resolve():
            raise UserError(f"--against {options.against}: is what --out replaces; copy the old bundle first")
        old = Bundle(str(options.against))
    try:
        layouts = [options.layout] if options.layout else LAYOUTS
        digest = record.record(
            options.model, options.corpus, options.out, exporters=options.exporter.split(","),
            opsets=options.opset, layouts=layouts, precisions=options.precision.split(","),
            traced_steps=options.traced_steps, max_steps=options.max_steps, threads=options.threads,
            overwrite=options.overwrite, score=Scorer, note=lambda line: print(f"note: {line}", file=sys.stderr),
        )  # fmt: skip
    except UserError as error:
        raise UserError(str(error)) from error
    print(f"{options.out}: bundle {digest[:12]}; replay it with pytest --backend=ort --bundle={options.out}")
    if old is None:
        return 0
    changes = against(old, Bundle(str(options.out)))
    print("\n".join(changes) or "the golden is unchanged")
    return int(bool(changes))


def exporters(options: argparse.Namespace) -> int:
    try:
        from harness.golden import exporters
    except ImportError as error:
        raise UserError(f"exporting needs PyTorch and transformers ({error}); pip install -e '.[golden]'") from error
    from reports import matrix, matrix_page

    try:
        rows = exporters.survey(
            options.model, options.results, corpus_file=options.corpus or exporters.CORPUS,
            exporters=options.exporter.split(","), wanted=options.opset or exporters.OPSETS,
            layouts=[options.layout] if options.layout else ["split", "unified"], silence=options.timeout,
        )  # fmt: skip
    except UserError as error:
        raise UserError(str(error)) from error
    print(matrix_page.terminal(matrix.build(rows)))
    return verdict.exit_code((row.status, row.compared) for row in rows)


def backends(options: argparse.Namespace) -> int:
    from conform import here

    python = options.backend_python
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise UserError(f"--backend-python {python}: no such interpreter; give the path of a python")
    print(here.page(python))
    return 0


def envs(options: argparse.Namespace) -> int:
    from tabulate import tabulate
    from tqdm import tqdm

    from harness.run import envs

    if not options.names and options.action != "list":
        raise UserError(f"conform envs {options.action}: name what to {options.action}, e.g. ort@1.10, or all")
    try:
        entries = list(dict.fromkeys(entry for name in options.names or ["all"] for entry in envs.matching(name)))
    except UserError as error:
        raise UserError(str(error)) from error
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
        except UserError as error:
            failed = True
            tqdm.write(f"{error}; it stays ABSENT")
    return int(failed)


def matrix(options: argparse.Namespace) -> int:
    from harness.run.complete import completed, unanswered
    from harness.run.launch import EMBEDDED
    from reports import matrix, matrix_page, platforms
    from reports.folders import read_all

    if options.ops is not None:
        return operators(options)
    if options.backend or options.opset or options.again:
        raise UserError("--backend, --opset and --again say what --ops runs; add --ops=graph, or leave them out")
    rows = completed(read_all(options.results), options.bundle or EMBEDDED)
    for line in unanswered(rows):
        print(f"note: {line}", file=sys.stderr)
    made = matrix.build(rows)
    if options.table == "platforms":
        if options.format not in ("terminal", "md"):
            raise UserError(f"--format {options.format}: the table of platforms is terminal or md")
        page = platforms.table(rows, "simple" if options.format == "terminal" else "github")
    elif options.format == "md" and options.out:
        page = matrix_page.markdown(made, _links(options.results, options.out))
    else:
        page = matrix_page.FORMATS[options.format](made)
    _show(page, options.out)
    return 0


def operators(options: argparse.Namespace) -> int:
    import difflib

    from harness.run import node_tests, operators
    from harness.run.launch import EMBEDDED
    from reports import matrix, matrix_page
    from reports.folders import filled, read_all

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    def names(text: str | None) -> list[str]:
        return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))

    named = names(options.ops)
    used = operators.used_by(Bundle(str(options.bundle or EMBEDDED))) if "graph" in named else []
    wanted = list(dict.fromkeys([name for name in named if name != "graph"] + used))
    if not wanted:
        raise UserError("--ops= names no operator; give some, e.g. --ops=GatherElements, or --ops=graph")
    tests = node_tests.collection(wanted, say)
    for name in named:
        if name not in (*tests.operators, *used, "graph"):
            near = difflib.get_close_matches(name, tests.operators, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"--ops: no node test of {name!r} in {tests.name}{hint}")
    opsets = [opset for opset in tests.opsets if options.opset is None or opset in options.opset]
    if not opsets:
        raise UserError(f"--opset: {tests.name} has opsets {tests.opsets[0]}-{tests.opsets[-1]}")
    if options.results[0].is_file():
        raise UserError(f"{options.results[0]}: rows are added to the first of RESULTS; give a folder")
    wish = operators.Wish(options.results, wanted, opsets, names(options.backend), options.again)
    # Runtimes that are asked for by name need no rows to be found in.
    needed = not wish.backends or any(map(filled, options.results))
    known = [row for _, row in read_all(options.results)] if needed else []
    columns = operators.Columns(wish, tests, known, say)
    try:
        columns.fill()
    except UserError as error:
        raise UserError(str(error)) from error
    finally:
        columns.close()
    rows = operators.shown((row for _, row in read_all(options.results)), wish)
    if not rows:
        raise UserError("no rows of these operators, and no runtime of RESULTS is here; name one with --backend")
    for line in operators.gaps(tests, wanted, opsets):
        say(f"note: {line}")
    if columns.wrote:
        say(matrix_page.write_page(options.results[0]))
    _show(matrix_page.FORMATS[options.format](matrix.build(rows)), options.out)
    return int(bool(columns.idle))


def _links(places: Sequence[Path], page: Path) -> dict[str, str]:
    """Where each run's rows lie, as seen from the page."""
    files = [path for place in places for path in (place.glob("*.jsonl") if place.is_dir() else [place])]
    return {path.stem: Path(os.path.relpath(path, page.parent)).as_posix() for path in files}


def report(options: argparse.Namespace) -> int:
    from datetime import datetime, timezone

    from harness.run.launch import EMBEDDED

    try:
        from reports import site
    except ImportError as error:
        raise UserError(f"the report needs its libraries ({error}); pip install -e '.[reports]'") from error
    try:
        now = datetime.now(timezone.utc)
        print(site.write(options.results, options.out, options.bundle or EMBEDDED, options.stale_days, now))
    except UserError as error:
        raise UserError(str(error)) from error
    return 0
