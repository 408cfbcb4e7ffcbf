"""Kinds of change between two states of the rows, and what a comparison reports."""

from dataclasses import dataclass, field

GROUPS = {
    "failing": "Newly failing",
    "missing": "Missing: were there, are not",
    "stale": "Stale boxes",
    "expectations": "Expectations changed",
    "flaky": "Flaky",
    "drifted": "Drifted inside the bounds",
    "passing": "Newly passing",
    "changed": "Fails less severely",
    "columns": "New columns",
    "cells": "New cells in known columns",
}
"""Kinds of change, the worst first, as JSON and Markdown name them."""


@dataclass(frozen=True)
class Change:
    """One thing that changed. ``cell`` is a box's or a column's name where the change is of one; ``worse`` counts."""

    group: str
    cell: str
    box: str
    message: str
    worse: bool = False
    checks: tuple[str, ...] = ()
    since: str = ""
    command: str = ""


@dataclass
class Report:
    """``changes`` in the order of GROUPS; ``facts`` are lines about what was compared with what."""

    old: str
    new: str
    cells: int
    boxes: int
    changes: list[Change] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        return any(change.worse for change in self.changes)
