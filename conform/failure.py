"""What a row that does not pass says to a reader."""

import math

from harness.core.rows import Row

LAST_LINES = 12
"""Of what a worker printed before it died."""


def describe(row: Row) -> str:
    """A failure in lines: what, where, how far, the culprit, and the command that shows it again."""
    lines = [f"{row.cell or row.backend}  {row.check}: {row.status}"]
    if row.message:
        lines.append(f"  {row.message}")
    if row.value is not None and row.bound is not None and math.isfinite(row.value):
        floor = "" if row.floor is None else f", PyTorch's own floor {row.floor:.4g}"
        lines.append(f"  {row.metric} {row.value:.6g}, bound {row.bound:.4g}{floor}")
    where = [
        f"step {row.step}" if row.step is not None else "",
        f"sentence {row.sentence}" if row.sentence else "",
        f"tensor {row.tensor}" if row.tensor else "",
    ]
    if any(where):
        lines.append("  first: " + ", ".join(word for word in where if word))
    if row.blame:
        lines.append(f"  blame: {row.blame}" + (f", cleared by {row.knob}" if row.knob else ""))
    lines += _knobs(row)
    lines.append(f"  {row.compared:,} elements compared; stage {row.stage}")
    if row.status in ("CRASH", "TIMEOUT", "ERROR") and row.detail.get("said", "").strip():
        printed = row.detail["said"].strip().splitlines()[-LAST_LINES:]
        lines += ["  the last lines that the worker printed:", *("    " + line for line in printed)]
    return "\n".join([*lines, f"  again: {row.command}"])


def _knobs(row: Row) -> list[str]:
    """What came of each knob that was turned; rows of earlier releases say only which."""
    knobs = row.detail.get("knobs")
    if not knobs:
        return []
    if isinstance(knobs, list):
        return [f"  knobs tried: {', '.join(knobs)}"]
    width = max(map(len, knobs))
    return ["  knobs tried:", *(f"    {knob:<{width}}  {outcome}" for knob, outcome in knobs.items())]
