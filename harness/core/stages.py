"""What a compiler's parts went through, as a cell's rows carry it."""

from typing import Any, Dict, Iterable, List

from harness.core.rows import Row


def staged(rows: Iterable[Row]) -> List[Dict[str, Any]]:
    """The stages of a cell's parts where a compiler built them; empty for an interpreter, whose cost check says as much."""
    stages: List[Dict[str, Any]] = next((row.detail["stages"] for row in rows if "stages" in row.detail), [])
    return stages if any(stage["stage"] in ("parse", "build") for stage in stages) else []
