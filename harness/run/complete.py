"""Rows of many boxes, completed: what a box without pytest could not answer (artifact, text) is answered here."""

from collections.abc import Iterable
from pathlib import Path

from harness.core.bundle import Bundle
from harness.core.rows import Answer, Origin, Row


def completed(found: list[tuple[Path, Row]], bundle_path: Path) -> list[Row]:
    """The rows, with the artifact and text rows that are missing where the bundle is at hand. ``found``: each row with the
    folder that its sidecar path starts from."""
    rows = [row for _, row in found]
    answered = {(row.run, row.cell, row.check) for row in rows}
    lacking = [
        (folder, row) for folder, row in found if row.check == "tokens" and (row.run, row.cell, "text") not in answered
    ]
    if lacking:
        rows += _answers(lacking, bundle_path, answered)
    return rows


def unanswered(rows: Iterable[Row]) -> list[str]:
    """A line for each bundle whose cells still have tokens and no text: the bundle at hand is another one."""
    cells: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        if row.check in ("tokens", "text") and (row.compared or row.check == "text"):
            cells.setdefault(row.bundle, {}).setdefault(row.cell, set()).add(row.check)
    return [
        f"{count} cells have no text check; give the bundle {name} with --bundle"
        for name, found in sorted(cells.items())
        if (count := sum("text" not in checks for checks in found.values()))
    ]


def _answers(lacking: list[tuple[Path, Row]], bundle_path: Path, answered: set[tuple[str, str, str]]) -> list[Row]:
    from harness.run import preflight
    from harness.run.text import Scorer, complete

    bundle = Bundle(str(bundle_path))
    scorer = Scorer(bundle)
    graphs = {(graph.exporter, graph.layout, graph.opset): graph for graph in bundle.graphs}
    made = []
    for folder, tokens in lacking:
        graph = graphs.get((tokens.exporter, tokens.layout, tokens.opset or 0))
        if tokens.bundle != bundle.short or not tokens.compared or graph is None:
            continue
        made.append(_like(tokens, complete(scorer, tokens, str(folder))))
        if (tokens.run, tokens.cell, "artifact") not in answered:
            made.append(_like(tokens, preflight.check(bundle, graph)))
    return made


def _like(pattern: Row, answer: Answer) -> Row:
    """A row of the same cell, run and time."""
    plain = answer.answer if isinstance(answer, Row) else answer
    origin = Origin(pattern.command, run=pattern.run, time=pattern.time, box=pattern.box)
    return Row.of(plain, pattern.identity, origin)
