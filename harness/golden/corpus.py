"""The corpus file, and which of its rows are traced and replayed together."""

import os
from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.graph import CorpusRow

COLUMNS = ["id", "domain", "licence", "source", "reference"]
LONG = (96, 80, 65)
"""Traced rows with at least so many steps: wrong caches grow with the length."""
LENGTHS = (7, 8, 9, 15, 16, 17, 31, 32, 33)
"""Lengths around the widths of vector registers and unrolled loops, where kernels change over."""
MIN_FILL = 8
ALIGNED, ALONE = 16, (24, 48)
"""The row that is replayed alone: its source length is a multiple of the first, its steps lie between the others."""


def read(path: str | os.PathLike[str]) -> list[CorpusRow]:
    """Rows of a tab-separated UTF-8 file with the header COLUMNS. Raises UserError with the line's number."""
    remedy = f"give a tab-separated UTF-8 file with the columns {' '.join(COLUMNS)}"
    try:
        with open(path, "rb") as stream:
            raw = stream.read()
    except OSError as error:
        raise UserError(f"corpus {path}: cannot be read ({error.strerror}); {remedy}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw[: error.start].count(b"\n") + 1
        raise UserError(f"corpus {path}, line {number}: not UTF-8 ({error.reason}); {remedy}") from error
    # Only \n ends a line: str.splitlines() would also cut at separators that belong to the text.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if lines[0].split("\t") != COLUMNS:
        raise UserError(f"corpus {path}, line 1: the header is {lines[0][:80]!r}; {remedy}")
    rows: dict[str, CorpusRow] = {}
    for number, content in enumerate(lines[1:], 2):
        fields = content.split("\t")
        if len(fields) != len(COLUMNS):
            raise UserError(f"corpus {path}, line {number}: {len(fields)} fields, not {len(COLUMNS)}; {remedy}")
        row = CorpusRow(*fields)
        if not row.id or row.id in rows:
            problem = f"the id {row.id!r} stands on an earlier line too" if row.id else "the id is empty"
            raise UserError(f"corpus {path}, line {number}: {problem}; give every row an id of its own")
        rows[row.id] = row
    if not rows:
        raise UserError(f"corpus {path}: no rows; {remedy}")
    return list(rows.values())


def traced(steps: Sequence[int], lengths: Sequence[int], unusual: Sequence[int], budget: int) -> list[int]:
    """Which rows to trace: about ``budget`` steps in all, ``steps[row]`` each, in rising order of rows.

    Long rows first, then the lengths where kernels change, the shortest rows, two of the ``unusual`` ones, then whatever
    differs most in length from the chosen ones, then any other. Of equal rows the one with the shortest source
    (``lengths``), as a source position is stored too. The same input gives the same answer.
    """
    chosen: list[int] = []

    def take(candidates: Sequence[int]) -> None:
        left = budget - sum(steps[row] for row in chosen)
        fitting = [row for row in candidates if row not in chosen and steps[row] <= left]
        chosen.extend(fitting[:1])

    by_steps = sorted(range(len(steps)), key=lambda row: (steps[row], lengths[row], row))
    for least in LONG:
        take(
            [row for row in by_steps if steps[row] >= least] or [row for row in by_steps if steps[row] > min(LONG) - 1]
        )
    for length in LENGTHS:
        take([row for row in by_steps if steps[row] == length])
    take([row for row in by_steps if _fit_alone(steps[row], lengths[row])])
    take(by_steps)
    take([row for row in by_steps if all(steps[row] != steps[other] for other in chosen)])
    for _ in range(2):
        take([row for row in by_steps if row in unusual])
    while True:
        before = len(chosen)
        present = {steps[row] for row in chosen}
        new = [row for row in by_steps if steps[row] not in present and steps[row] < max(LONG)]
        take(sorted(new, key=lambda row: -min((abs(steps[row] - length) for length in present), default=0)))
        if len(chosen) == before:
            break
    for _ in by_steps:  # a corpus of few lengths still fills the budget; the shortest rows would add little
        take([row for row in by_steps if steps[row] >= MIN_FILL])
    return sorted(chosen or by_steps[:1])


def _fit_alone(steps: int, length: int) -> bool:
    return length % ALIGNED == 0 and ALONE[0] <= steps <= ALONE[1]


def forced_batches(rows: Sequence[int], steps: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Cut the traced rows into batches of about ``size``, a long row in each, by falling steps within each.

    One row stands alone, last: a batch of one, with a source of aligned length, is what a kernel of its own serves.
    """
    alone = [row for row in rows if _fit_alone(steps[row], lengths[row])][: 1 if len(rows) > 1 else 0]
    others = [row for row in rows if row not in alone]
    count = -(-len(others) // size)
    falling = sorted(others, key=lambda row: (-steps[row], row))
    return [*(falling[start::count] for start in range(count)), *([row] for row in alone)]


def free_batches(steps: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Cut all rows into batches of ``size``: alike in steps, as a batch costs its longest row, of mixed source ``lengths``.

    In a batch of one source length nothing is padded, and a lost mask goes unseen.
    """
    falling = sorted(range(len(steps)), key=lambda row: (-steps[row], row))
    for start in range(0, len(falling), size):
        stop = min(start + size, len(falling))
        if stop - start == 1 or len({lengths[row] for row in falling[start:stop]}) > 1:
            continue
        others = [index for index, row in enumerate(falling) if lengths[row] != lengths[falling[start]]]
        # Taking a row away may leave its own batch with one length, so only batches with variety to spare give one.
        for index in sorted(others, key=lambda index: abs(index - start)):
            first = index - index % size  # of the batch that the row is taken from
            rest = [lengths[row] for at, row in enumerate(falling[first : first + size], first) if at != index]
            if len({*rest, lengths[falling[start]]}) > 1 or not rest:
                falling[start], falling[index] = falling[index], falling[start]
                break
    return [
        sorted(falling[start : start + size], key=lambda row: (-steps[row], row))
        for start in range(0, len(falling), size)
    ]
