"""``conform explain CELL``: one cell once more, every check of it, with blame, knobs tried and the command."""

import tempfile
from pathlib import Path

from conform.failure import describe
from harness.core import verdict
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.graph import Selection
from harness.core.rows import Row
from harness.core.stages import staged
from harness.run.conformance import Conformance
from harness.run.launch import Launch, Options


def cell_again(cell: Cell, bundle: Path, python: str | None) -> list[Row]:
    """The rows of that cell, replayed and kept nowhere. Raises UserError when this box or bundle cannot make it, and what
    Launch raises."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            [cell.backend if ":" in cell.backend else f"{cell.backend}@{cell.version}"],
            bundle,
            Selection(range(cell.opset, cell.opset + 1), cell.layout),
            python,
            results=Path(folder),
        )
        run = Conformance(Launch(options))
        try:
            possible = run.questions()
            questions = [question for question in possible if question.subject.name == str(cell)]
            if not questions:
                others = ", ".join(sorted({question.subject.name for question in possible}))
                absent = "; ".join(run.absences().values())
                raise UserError(absent or f"this box makes no cell {cell}, but {others}")
            run.start(questions)
            return [run.ask(question) for question in questions]
        finally:
            run.close()


def page(rows: list[Row]) -> str:
    """What was found, in lines: a summary of every check, then each one that does not pass."""
    width = max(len(row.check) for row in rows)
    lines = [f"{rows[0].cell}", "", *_stages(rows)]
    for row in rows:
        word = verdict.WORDS[verdict.called(row.status, row.kind, simulated=row.simulated)]
        near = ""
        if row.status == "PASS" and row.value is not None and row.bound:
            near = f"  {row.metric} {row.value:.3g} of {row.bound:.3g}"
        lines.append(f"  {word.symbol} {row.check:<{width}}  {row.status:<11} {row.compared:>10,} compared{near}")
    refusals = set()  # a refusal is the answer to every check: shown once
    for row in rows:
        if row.status == "PASS" or "because" in row.detail or (not row.compared and row.message in refusals):
            continue
        lines += ["", describe(row), *_evidence(row)]
        refusals.add(row.message)
    return "\n".join(lines)


def _stages(rows: list[Row]) -> list[str]:
    """What each part went through, where a compiler built it: seconds, its artifact, the last lines of its log."""
    lines = []
    for stage in staged(rows):
        size = f", {stage['bytes'] / 2**20:.1f} MiB" if "bytes" in stage else ""
        kept = f", kept from a build of {stage['build_seconds']:.2f} s" if stage.get("cached") else ""
        failed = ", failed" if stage.get("failed") else ""
        lines.append(f"  {stage.get('part', ''):<8} {stage['stage']:<5} {stage['seconds']:>8.2f} s{size}{kept}{failed}")
        lines += [f"{'':<17}{stage['artifact']}"] if stage.get("artifact") else []
        lines += [f"{'':<17}{line[:63]}" for line in stage.get("log", [])[-SHOWN:]]
    return [*lines, ""] if lines else []


SHOWN = 4
"""Lines of a stage's log."""


def _evidence(row: Row) -> list[str]:
    seen = row.detail.get("evidence")
    if not seen:
        return []
    return [
        f"  golden: {'contradicts its own logits' if seen['golden'] else 'consistent'}",
        f"  witness: {'wrong as well' if seen['witness'] else 'right, so the exported graph is'}",
        f"  fed the golden's tokens: {'wrong' if seen['numbers'] else 'right'}",
    ]
