"""Replay without pytest, on a box whose only Python is old.

``python3 -m harness.replay BUNDLE --backend NAME --results DIR`` writes the numeric rows; the text check and the matrix
are made where the rows are merged (``conform matrix``).
"""

import argparse
import os
import shlex
import sys
from typing import Dict, List

from backends.contract import LAYOUTS, Absent, Backend, Probe
from harness.core import selectors, verdict
from harness.core.arguments import layouts, span
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import Graph, Selection
from harness.core.identity import identity_in
from harness.core.rowfiles import Writer
from harness.core.rows import Answer, Origin, Row
from harness.judge.golden import Golden
from harness.replay import worker

EXAMPLE = (
    "example: python3 -m harness.replay corpora/tiny-marian-en-zh.bundle --backend ort --opset 12-17 --results results"
)


def main() -> int:
    parser = argparse.ArgumentParser("python3 -m harness.replay", description=__doc__.split("\n")[0], epilog=EXAMPLE)
    add = parser.add_argument
    add("bundle", help="folder made by `conform record`")
    add("--backend", default="ort", help="NAME[@VERSION][:PROVIDER] or module:Class (default: ort)")
    add("--results", default="results", help="folder that the rows file is added to (default: results)")
    add("--opset", type=span, default=range(1, 99), help="one opset or a range, e.g. 12-17 (default: all)")
    add("--layout", type=layouts, help=f"with commas: {', '.join(LAYOUTS)} (default: all)")
    add("--exporter", help="torchscript or dynamo (default: both)")
    add("--keep-outputs", action="store_true", help="keep the observations, for `conform judge` on any box")
    options = parser.parse_args()
    try:
        return run(options, selectors.parse(options.backend))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the rows already written stay", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, selector: selectors.Selector) -> int:
    """Replay every chosen cell in this process; 0 when all pass, 1 when not, 2 when there is nothing to run."""
    bundle = Bundle(options.bundle)
    graphs = Selection(options.opset, options.layout, options.exporter).of(bundle.graphs, bundle.short)
    backend, probe = _start(selector)
    asked = {
        "backend": selector.text,
        "opsets": [options.opset.start, options.opset.stop],
        "layout": options.layout,
        "exporter": options.exporter,
    }
    run = _Run(Writer(options.results, {**asked, "bundle": bundle.short}), options, selector, bundle, probe)
    golden = Golden(bundle, probe.precision)
    for number, graph in enumerate(graphs, 1):
        print(f"[{number}/{len(graphs)}] {selector.name}@{probe.version} {graph.id}", flush=True)
        run.replay(backend, golden, graph)
    run.writer.close()
    rows = list(run.rows.values())
    print(f"{len(rows)} rows in {run.writer.path}; merge and view them with `conform matrix {options.results}`")
    if backend.missing and any(row.status == "ABSENT" for row in rows) and not any(row.compared for row in rows):
        deepest = backend.capabilities.deepest_stage
        missing = f"{backend.missing.reason}; {backend.missing.remedy}"
        raise UserError(f"{selector.text} goes no further than {deepest}: {missing}")
    return verdict.exit_code((row.status, row.compared) for row in rows)


def _start(selector: selectors.Selector) -> "tuple[Backend, Probe]":
    """The adapter, and what is here. Raises UserError."""
    try:
        backend = selectors.load(selector)
        return backend, backend.probe()
    except UserError:
        raise
    except Absent as absent:
        raise UserError(f"{selector.text} is absent: {absent.reason}; {absent.remedy}") from absent
    except Exception as error:
        raise UserError(f"{selector.text} cannot be used: {type(error).__name__}: {error}") from error


class _Run:
    """Writes the rows of one run as they come; of a row that is amended later, the last line counts."""

    def __init__(
        self,
        writer: Writer,
        options: argparse.Namespace,
        selector: selectors.Selector,
        bundle: Bundle,
        probe: Probe,
    ) -> None:
        self.writer, self.keep, self.selector, self.bundle, self.probe = (
            writer,
            options.keep_outputs,
            selector,
            bundle,
            probe,
        )
        self.again = f"python3 -m harness.replay {shlex.quote(options.bundle)} --backend {selector.text}"
        self.rows: Dict[str, Row] = {}

    def replay(self, backend: Backend, golden: Golden, graph: Graph) -> None:
        """Replay one cell, then look for the culprit of what failed."""
        stem = os.path.join(self.writer.series, graph.id.replace("/", "_"))
        request = {
            "graph": graph.id,
            "checks": list(verdict.NUMERIC),
            "series": stem,
            "options": {},
            "keep": stem if self.keep else "",
        }
        job = worker.job_of(golden, request, lambda: None, self.selector.name)
        answers: List[Answer] = worker.answer_cell(backend, self.probe, job, lambda answer: self._write(graph, answer))
        for answer in answers:
            if answer.status != "PASS":
                print(f"  {answer.check}: {answer.status} {answer.message}")
        worker.explain_failures(backend, self.probe, job, answers, lambda answer: self._write(graph, answer))

    def _write(self, graph: Graph, answer: Answer) -> None:
        identity = identity_in(self.bundle, graph, self.selector.name, self.probe)
        command = f"{self.again} --exporter {graph.exporter} --opset {graph.opset} --layout {graph.layout}"
        row = self.writer.write(Row.of(answer, identity, Origin(command=command)))
        self.rows[f"{row.cell} {row.check}"] = row


if __name__ == "__main__":
    sys.exit(main())
