"""Replay without pytest, on a box whose only Python is old.

``python3 -m harness.replay BUNDLE --backend NAME --results DIR`` writes the numeric rows; the text check and the matrix
are made where the rows are merged (``conform matrix``).
"""

import argparse
import os
import shlex
import sys
from typing import List, Tuple

from backends.contract import LAYOUTS, Absent
from harness.core import selectors, verdict
from harness.core.arguments import layouts, span
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.rowfiles import Writer
from harness.core.rows import Row
from harness.replay import worker
from harness.replay.cell import NUMERIC, identify
from harness.replay.trace import Golden

EXAMPLE = (
    "example: python3 -m harness.replay corpora/tiny-marian-en-zh.bundle --backend ort --opset 12-17 --results results"
)


def main() -> int:
    parser = argparse.ArgumentParser("python3 -m harness.replay", description=__doc__.split("\n")[0], epilog=EXAMPLE)
    parser.add_argument("bundle", help="folder made by `conform record`")
    parser.add_argument("--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class (default: ort)")
    parser.add_argument("--results", default="results", help="folder that the rows file is added to (default: results)")
    parser.add_argument(
        "--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 12-17 (default: all)"
    )
    parser.add_argument("--layout", type=layouts, help=f"with commas: {', '.join(LAYOUTS)} (default: all)")
    parser.add_argument("--exporter", help="torchscript or dynamo (default: both)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        selector = selectors.parse(options.backend)
        if options.serve:
            return worker.serve(options.bundle, selector)
        return run(options, selector)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the rows already written stay", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, selector: selectors.Selector) -> int:
    """Replay every chosen cell in this process; 0 when all pass, 1 when not, 2 when there is nothing to run."""
    bundle = Bundle(options.bundle)
    chosen = [
        graph
        for graph in bundle.graphs
        if graph.opset in options.opset
        and (options.layout is None or graph.layout in options.layout.split(","))
        and options.exporter in (None, graph.exporter)
    ]
    if not chosen:
        opsets = sorted({graph.opset for graph in bundle.graphs})
        layouts = " and ".join(sorted({graph.layout for graph in bundle.graphs}))
        exporters = " and ".join(sorted({graph.exporter for graph in bundle.graphs}))
        has = f"it has opsets {opsets[0]}-{opsets[-1]}, layouts {layouts}, exporters {exporters}"
        print(f"error: no graph of this bundle has that opset, layout and exporter; {has}", file=sys.stderr)
        return 2
    try:
        backend = selectors.load(selector)
        probe = backend.probe()
    except UserError:
        raise
    except Absent as absent:
        print(f"error: {selector.text} is absent: {absent.reason}; {absent.remedy}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything
        print(f"error: {selector.text} cannot be used: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    asked = {
        "backend": selector.text,
        "opsets": [options.opset.start, options.opset.stop],
        "layout": options.layout,
        "exporter": options.exporter,
    }
    writer = Writer(options.results, {**asked, "bundle": bundle.short})
    again = f"python3 -m harness.replay {shlex.quote(options.bundle)} --backend {selector.text}"
    outcomes: List[Tuple[str, int]] = []
    golden = Golden(bundle, probe.precision)

    def emit(row: Row) -> None:
        identify(row, bundle, graph, selector.name, probe)
        row.command = f"{again} --exporter {graph.exporter} --opset {graph.opset} --layout {graph.layout}"
        writer.write(row)
        outcomes.append((row.status, row.compared))
        if row.status != "PASS":
            print(f"  {row.check}: {row.status} {row.message}")

    for number, graph in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {selector.name}@{probe.version} {graph.id}", flush=True)
        series = os.path.join(writer.series, graph.id.replace("/", "_"))
        request = {"graph": graph.id, "checks": list(NUMERIC), "series": series, "options": {}}
        worker.answer(backend, probe, golden, request, emit, lambda: None)
    writer.close()
    print(f"{len(outcomes)} rows in {writer.path}; merge and view them with `conform matrix {options.results}`")
    if backend.missing and any(status == "ABSENT" for status, _ in outcomes) and not any(done for _, done in outcomes):
        missing = f"{backend.missing.reason}; {backend.missing.remedy}"
        print(
            f"error: {selector.text} goes no further than {backend.capabilities.deepest_stage}: {missing}",
            file=sys.stderr,
        )
        return 2
    return verdict.exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
