"""``conform explain CELL``: one cell once more, every check of it, with blame, knobs tried and the command."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conform.failure import describe
from harness.core import verdict
from harness.core.cell import Cell
from harness.core.rows import Row
from harness.run.campaign import Campaign
from harness.run.launch import Launch, Options


def cell_again(cell: Cell, bundle: Path, python: str | None) -> list[Row]:
    """Replay that cell, write nothing. Raises ValueError when this box or bundle cannot make it, and what Launch raises."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            [cell.backend if ":" in cell.backend else f"{cell.backend}@{cell.version}"],
            bundle,
            range(cell.opset, cell.opset + 1),
            cell.layout,
            python=python,
            results=Path(folder),
        )
        campaign = Campaign(Launch(options))
        try:
            questions = [one for one in campaign.questions() if one.cell == str(cell)]
            if not questions:
                raise ValueError("; ".join(campaign.absences().values()) or f"this box makes no cell {cell}, but "
                                 f"{', '.join(sorted({one.cell for one in campaign.questions()}))}")  # fmt: skip
            campaign.only(questions)
            return [campaign.ask(question) for question in questions]
        finally:
            campaign.close()


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
    told = set()
    for row in rows:
        if row.status != "PASS" and (row.compared or row.message not in told):  # what was not run is told once
            lines += ["", describe(row), *_evidence(row)]
            told |= {row.message, f"no text: {row.message}", f"not measured: {row.message}"}
    return "\n".join(lines)


def staged(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The stages of a cell's parts, where a compiler built them: of an interpreter the cost check says as much."""
    stages: list[dict[str, Any]] = next((row.detail["stages"] for row in rows if "stages" in row.detail), [])
    return stages if any(one["stage"] in ("parse", "build") for one in stages) else []


def _stages(rows: list[Row]) -> list[str]:
    """What each part went through, where a compiler built it: seconds, its artifact, the last lines of its log."""
    lines = []
    for one in staged(rows):
        size = f", {one['bytes'] / 2**20:.1f} MiB" if "bytes" in one else ""
        kept = f", kept from a build of {one['build_seconds']:.2f} s" if one.get("cached") else ""
        failed = ", failed" if one.get("failed") else ""
        lines.append(f"  {one.get('part', ''):<8} {one['stage']:<5} {one['seconds']:>8.2f} s{size}{kept}{failed}")
        lines += [f"{'':<17}{one['artifact']}"] if one.get("artifact") else []
        lines += [f"{'':<17}{line[:63]}" for line in one.get("log", [])[-SHOWN:]]
    return [*lines, ""] if lines else []


SHOWN = 4
"""Lines of a stage's log."""


def _evidence(row: Row) -> list[str]:
    seen = row.detail.get("evidence")
    if not seen:
        return []
    tried = ", ".join(row.detail.get("knobs", [])) or "none"
    return [
        f"  golden: {'contradicts its own logits' if seen['golden'] else 'consistent'}",
        f"  witness: {'wrong as well' if seen['witness'] else 'right, so the exported graph is'}",
        f"  fed the golden's tokens: {'wrong' if seen['numbers'] else 'right'}",
        f"  knobs tried: {tried}; " + (f"{seen['knob']} clears it" if seen["knob"] else "none clears it"),
    ]
