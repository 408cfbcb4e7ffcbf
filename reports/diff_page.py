"""How a comparison is shown: as Markdown of few lines, and as JSON of every change."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from harness.core.cell import Cell, spans
from reports.changes import GROUPS, Change, Report
from reports.markdown import code, escaped

LINES = 60


def to_json(report: Report) -> str:
    counts = Counter(change.group for change in report.changes)
    about = {
        "old": report.old,
        "new": report.new,
        "cells": report.cells,
        "boxes": report.boxes,
        "worse": report.worse,
        "counts": {group: counts[group] for group in GROUPS},
        "facts": report.facts,
        "changes": [_to_json(change) for change in report.changes],
    }
    return json.dumps(about, ensure_ascii=False, indent=1) + "\n"


def _to_json(change: Change) -> dict[str, Any]:
    values = asdict(change)
    return {**values, "said": values.pop("message")}  # as it was named when others began to read it


def markdown(report: Report) -> str:
    """At most LINES lines, for a chat or a pull request: what does not fit is counted."""
    grouped = {group: _lines(change for change in report.changes if change.group == group) for group in GROUPS}
    grouped = {group: lines for group, lines in grouped.items() if lines}
    counts = Counter(change.group for change in report.changes)
    word = "❌ worse" if report.worse else "✅ nothing worse"
    page = [
        f"## {word}: {escaped(report.old)} → {escaped(report.new)}",
        "",
        ", ".join(f"{GROUPS[group].split(':')[0].lower()} {counts[group]}" for group in grouped) or "nothing changed",
        "",
        *(
            f"- {escaped(fact)}"
            for fact in [f"{report.cells} cells on {report.boxes} boxes compared", *report.facts][:6]
        ),
    ]
    shown = _allot([len(lines) for lines in grouped.values()], LINES - len(page) - 3 * len(grouped))
    for (group, lines), count in zip(grouped.items(), shown, strict=True):
        page += ["", f"### {GROUPS[group]} ({counts[group]})", *lines[:count]]
        if len(lines) > count:
            page.append(f"- and {len(lines) - count} more")
    return "\n".join(page) + "\n"


def _allot(sizes: list[int], total: int) -> list[int]:
    """How many of each group's lines are shown, of ``total``: the first groups come first once each has two."""
    shown = [min(size, 2) for size in sizes]
    for number, size in enumerate(sizes):
        shown[number] += min(size - shown[number], max(0, total - sum(shown)))
    return shown


def _lines(changes: Iterable[Change]) -> list[str]:
    """A line for all checks and opsets to which the same happened."""
    merged: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    commands: dict[tuple[Any, ...], str] = {}
    by_cell: dict[tuple[Any, ...], list[str]] = {}
    for change in changes:
        key = (change.cell, change.box, change.message, change.since)
        by_cell.setdefault(key, []).extend(change.checks)
        commands.setdefault(key, change.command)
    for (cell, box, message, since), checks in by_cell.items():
        try:
            parsed = Cell.parse(cell)
            head, opset = cell.rpartition("/")[0], str(parsed.opset)
        except ValueError:
            head, opset = cell, ""
        merged.setdefault((head, box, message, since, tuple(checks)), {}).setdefault(opset, []).append(cell)
    lines = []
    for (head, box, message, since, checks), opsets in merged.items():
        name = f"{head}/op{spans(map(int, opsets))}" if "" not in opsets else head
        where = f" on {escaped(box)}" if box != head else ""
        what = f" {', '.join(checks)}:" if checks else ":"
        began = f", since {since}" if since else ""
        first = next(iter(opsets.values()))[0]
        command = commands[(first, box, message, since)]
        again = f" · {code(command)}" if command else ""
        lines.append(f"- {code(name)}{where}{what} {escaped(message)}{began}{again}")
    return lines
