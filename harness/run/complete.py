"""What a box without pytest could not answer (artifact, text) is answered from the bundle, where the rows are merged."""

from collections.abc import Callable, Iterable
from pathlib import Path

from harness.core.rows import Answer, Origin, Row
from harness.run.text import Scorer


def answers(rows: Iterable[tuple[Path, Row]], scorer: Callable[[], Scorer]) -> list[Row]:
    """The artifact and text rows that cells with tokens lack. ``rows``: each with the folder that its sidecar path starts
    from; ``scorer`` is called when something is lacking, and gives the scorer of the bundle at hand."""
    rows = list(rows)
    answered = {(row.run, row.cell, row.check) for _, row in rows}
    lacking = [
        (folder, row) for folder, row in rows if row.check == "tokens" and (row.run, row.cell, "text") not in answered
    ]
    return _answers(lacking, scorer(), answered) if lacking else []


def unanswered(rows: Iterable[Row]) -> list[str]:
    """A line for each bundle whose cells still have tokens and no text: the bundle at hand is another one."""
    cells: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        if row.check in ("tokens", "text") and (row.compared or row.check == "text"):
            cells.setdefault(row.bundle, {}).setdefault(row.cell, set()).add(row.check)
    return [
        f"{count} cells have no text check; give the bundle {name} with --bundle"
        for name, checks_of in sorted(cells.items())
        if (count := sum("text" not in checks for checks in checks_of.values()))
    ]


def _answers(lacking: list[tuple[Path, Row]], scorer: Scorer, answered: set[tuple[str, str, str]]) -> list[Row]:
    from harness.run import preflight
    from harness.run.text import complete

    bundle = scorer.bundle
    graphs = {(graph.exporter, graph.layout, graph.opset): graph for graph in bundle.graphs}
    rows = []
    for folder, tokens in lacking:
        graph = graphs.get((tokens.exporter, tokens.layout, tokens.opset or 0))
        if tokens.bundle != bundle.short or not tokens.compared or graph is None:
            continue
        rows.append(_beside(tokens, complete(scorer, tokens, str(folder))))
        if (tokens.run, tokens.cell, "artifact") not in answered:
            rows.append(_beside(tokens, preflight.check(bundle, graph)))
    return rows


def _beside(tokens: Row, answer: Answer) -> Row:
    """An answer as a row of the same cell, run and time."""
    origin = Origin(command=tokens.command, run=tokens.run, time=tokens.time, box=tokens.box)
    return Row.of(answer, tokens.identity, origin)
