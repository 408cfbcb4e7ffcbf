"""Rows from kept observations: judged on any box, without the runtime that was observed."""

import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path

from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import Graph
from harness.core.identity import identity_in
from harness.core.observation_files import NOTE, Kept
from harness.core.rowfiles import Writer
from harness.core.rows import Answer, Row
from harness.core.selectors import names
from harness.core.sidecars import save_arrays
from harness.judge import blame
from harness.judge.golden import Golden
from harness.judge.judge import judge
from harness.run import expectations, preflight
from harness.run.ledger import Ledger, Subject
from harness.run.text import Scorer, complete


class KeptCell(Subject):
    """One folder of observations."""

    def __init__(self, kept: Kept, bundle: Bundle, graph: Graph) -> None:
        self.kept, self.graph = kept, graph
        self.identity = identity_in(bundle, graph, kept.backend, kept.probe)
        self.checks = tuple(check for check in verdict.CHECKS if check in (*kept.checks, "artifact", "text"))
        self.expected = expectations.load(kept.backend) if kept.backend in names() else []

    def command(self, check: str) -> str:
        return f"conform judge {shlex.quote(self.kept.folder)}"


class Judging:
    """Judges folders of observations that were made with one bundle; rows are added to ``results``."""

    def __init__(self, bundle: Path, results: Path) -> None:
        """Raises UserError for a bundle that cannot be read."""
        self.bundle, self.results = Bundle(str(bundle)), results
        asked = {"judge": self.bundle.short}
        self.ledger = Ledger(lambda: Writer(str(results), asked))
        self._scorer = Scorer(self.bundle)
        self._golden = lru_cache(maxsize=None)(lambda precision: Golden(self.bundle, precision))

    def cell(self, kept: Kept) -> KeptCell:
        """The cell of a folder. Raises UserError where its bundle or graph is another one."""
        if kept.bundle != self.bundle.hash:
            made = f"{kept.bundle_name}@{kept.bundle[:12]}"
            foreign = f"made with bundle {made}, not {self.bundle.short}"
            raise UserError(f"observations {kept.folder}: {foreign}; give it with --bundle")
        graph = next((graph for graph in self.bundle.graphs if graph.id == kept.graph), None)
        if graph is None:
            lacks = f"{self.bundle.short} has no graph {kept.graph}"
            raise UserError(f"observations {kept.folder}: {lacks}; give another --bundle")
        return KeptCell(kept, self.bundle, graph)

    def judge(self, cell: KeptCell) -> None:
        """Write the rows of a cell. Raises UserError for observations that make no sense; rows already written stay."""
        ledger = self.ledger
        ledger.ask(cell, cell.checks)
        ledger.record(cell, preflight.check(self.bundle, cell.graph))
        failed = []
        for answer in self._answers(cell):
            ledger.record(cell, answer)
            if answer.status == "FAIL" and answer.check not in verdict.UNBLAMED:
                failed.append(answer)
        if failed:
            wrong = blame.wrong_checks(failed)
            evidence = blame.recorded_evidence(self._golden(cell.kept.probe.precision), cell.graph, wrong)
            for answer in failed:
                ledger.record(cell, blame.lay(answer, evidence))
        tokens = ledger.answers(cell.name).get("tokens")
        if tokens and tokens.series:
            ledger.record(cell, complete(self._scorer, tokens, str(self.results)))

    def _answers(self, cell: KeptCell) -> Iterator[Answer]:
        kept, stem = cell.kept, self.ledger.folder(cell)
        yield from kept.answers
        answered = {answer.check for answer in kept.answers}
        checks = [check for check in kept.checks if check not in answered]
        if checks:
            golden = self._golden(kept.probe.precision)
            observations = kept.read(self.bundle, cell.graph)
            try:
                yield from judge(golden, cell.graph, kept.probe, observations, checks, partial(save_arrays, stem))
            except (ValueError, TypeError, IndexError, KeyError) as error:  # arrays that no replay can have given
                raise kept.damaged(error) from error

    def close(self) -> list[Row]:
        """End the run. Returns its rows, the newest of each check."""
        if self.ledger.wrote:
            self.ledger.writer.close()
        return self.ledger.rows


def folders(paths: Iterable[Path]) -> list[Path]:
    """The folders of observations in or below each path. Raises UserError for a path that has none."""
    cells: list[Path] = []
    for path in paths:
        below = [path] if (path / NOTE).exists() else sorted(note.parent for note in path.rglob(NOTE))
        unfinished = sorted({file.parent for file in path.rglob("*.safetensors")} - set(below))
        if unfinished:
            Kept(str(unfinished[0]))  # says what is wrong with it
        if not below:
            remedy = "run pytest --backend=NAME --keep-outputs first, or name its results"
            raise UserError(f"{path}: no observations; {remedy}")
        cells += below
    return cells
