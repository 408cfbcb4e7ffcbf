"""What a row that does not pass says to a reader."""

import math

from harness.core.rows import Row


def describe(row: Row) -> str:
    """A failure in lines: what, where, how far, who is to blame, and the command that shows it again."""
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
    lines.append(f"  {row.compared:,} elements compared; stage {row.stage}")
    if row.status in ("CRASH", "TIMEOUT", "ERROR") and row.detail.get("said", "").strip():
        lines += [
            "  the worker's last words:",
            *("    " + line for line in row.detail["said"].strip().splitlines()[-12:]),
        ]
    return "\n".join([*lines, f"  again: {row.command}"])
