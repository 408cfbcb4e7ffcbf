"""What changed in the golden between two bundles, in plain lines, so that a new PyTorch is not blamed on the backends."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.core.batch import Batch, trace_order
from harness.core.bundle import Bundle

SETTINGS = (("signature", "recorded with"), ("model", "model file"), ("decode", "decode rule"), ("dims", "dimension"))
UNITS = {"logits": "step", "self": "step", "encoder": "source position", "cross": "source position"}
SILENT = 1e-3
"""Changes below this share of the fp32 floor are float64's own rounding on another processor: no backend can see them."""
FLOOR_CHANGE = 1.1
"""A floor is noise: its largest value moves this much without anything having changed."""
Place = tuple[int, int]
"""Row of the new bundle, and step or source position."""


def against(old: Bundle, new: Bundle) -> list[str]:
    """Compare two bundles' golden: a line for each thing that changed; nothing at all when they are alike.

    Rows are matched by id, numbers only where the same source and the same tokens were fed.
    """
    lines: list[str] = []
    for key, words in SETTINGS:
        lines += _changed(words, old.manifest.get(key, {}), new.manifest.get(key, {}))
    lines += _vocabulary(old, new)
    rows = _Rows(old, new)
    lines += rows.lines()
    lines += _tokens(old, new, rows)
    if old.dims == new.dims:
        for output in UNITS:
            lines += _numbers(old, new, rows, output)
        lines += _floors(old, new)
    lines += _graphs(old, new)
    return lines


def _changed(words: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        before, after = (str(side.get(name, "absent")) for side in (old, new))
        if before != after:
            # Hashes: twelve digits tell them apart.
            yield f"{words} {name}: {before[:12]} -> {after[:12]}"


def _vocabulary(old: Bundle, new: Bundle) -> Iterator[str]:
    if len(old.pieces) != len(new.pieces):
        yield f"vocabulary: {len(old.pieces)} pieces -> {len(new.pieces)}"
    other = [
        index for index, (before, after) in enumerate(zip(old.pieces, new.pieces, strict=False)) if before != after
    ]
    if other:
        first = other[0]
        yield f"vocabulary: {len(other)} ids changed, id {first} first: {old.pieces[first]!r} -> {new.pieces[first]!r}"


class _Rows:
    """Rows of both bundles, matched by id. ``common``: new row -> old row, of equal source ids."""

    def __init__(self, old: Bundle, new: Bundle) -> None:
        self.before = {row.id: index for index, row in enumerate(old.rows)}
        self.after = {row.id: index for index, row in enumerate(new.rows)}
        matched = {index: self.before[name] for name, index in self.after.items() if name in self.before}
        self.common = {
            index: before for index, before in matched.items() if np.array_equal(old.source(before), new.source(index))
        }
        self.texts = [new.rows[index].id for index, before in matched.items() if old.rows[before] != new.rows[index]]
        self.encoded = [new.rows[index].id for index in matched if index not in self.common]

    def lines(self) -> Iterator[str]:
        lists = (
            ("added to the corpus", [name for name in self.after if name not in self.before]),
            ("removed from the corpus", [name for name in self.before if name not in self.after]),
            ("have another text", self.texts),
            ("have other source ids", self.encoded),
        )
        for words, names in lists:
            if names:
                yield f"corpus: {len(names)} rows {words}, {names[0]} first"


def _agreed(old: Bundle, new: Bundle, before: int, after: int) -> int:
    """How many steps of a row were decoded from the same past: up to and with the first that differs."""
    one, other = old.tokens(before), new.tokens(after)
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) + 1 if len(differ) else size


def _tokens(old: Bundle, new: Bundle, rows: _Rows) -> Iterator[str]:
    found = []
    for after, before in rows.common.items():
        one, other = old.tokens(before), new.tokens(after)
        if not np.array_equal(one, other):
            step = _agreed(old, new, before, after)
            step -= int(one[step - 1] != other[step - 1])
            found.append((step, after, before))
    if found:
        step, after, before = min(found)
        words = [
            str(tokens[step]) if step < len(tokens) else "none" for tokens in (old.tokens(before), new.tokens(after))
        ]
        yield (
            f"tokens: {len(found)} of {len(rows.common)} rows changed, earliest at step {step} of {new.rows[after].id}: "
            f"id {words[0]} -> {words[1]}"
        )


def _places(bundle: Bundle, output: str) -> dict[Place, int]:
    """Row and step (or source position) -> index in the trace."""
    orders = [(batch, _order(batch, output)) for batch in bundle.batches("forced")]
    flat = [(batch.rows[row], at) for batch, order in orders for row, at in order]
    return {place: index for index, place in enumerate(flat)}


def _order(batch: Batch, output: str) -> list[Place]:
    if UNITS[output] == "step":
        return trace_order(batch)
    return [(int(row), int(at)) for row, at in zip(*np.nonzero(batch.mask), strict=True)]


def _numbers(old: Bundle, new: Bundle, rows: _Rows, output: str) -> Iterator[str]:
    before, after = _places(old, output), _places(new, output)
    pairs: list[tuple[Place, int, int]] = []
    for (row, at), index in after.items():
        known = before.get((rows.common.get(row, -1), at))
        if known is not None and (UNITS[output] != "step" or at < _agreed(old, new, rows.common[row], row)):
            pairs.append(((row, at), known, index))
    if not pairs:
        yield f"{output}: no traced {UNITS[output]} in common, nothing compared"
        return
    one, other = old.array(f"trace_{output}"), new.array(f"trace_{output}")
    axis = one.ndim - (2 if output in ("logits", "encoder") else 3)
    gaps = np.abs(one.take([pair[1] for pair in pairs], axis) - other.take([pair[2] for pair in pairs], axis))
    gaps = np.moveaxis(gaps, axis, 0).reshape(len(pairs), -1).max(axis=1)
    worst = int(gaps.argmax())
    floor = float(old.floor("fp32", output).max())
    if gaps[worst] > SILENT * floor:
        (row, at), _, _ = pairs[worst]
        yield (
            f"{output}: largest change {gaps[worst]:.3g} ({gaps[worst] / floor:.3g} times the old fp32 floor), "
            f"at {UNITS[output]} {at} of {new.rows[row].id}; {len(pairs)} {UNITS[output]}s compared"
        )


def _floors(old: Bundle, new: Bundle) -> Iterator[str]:
    yield from _listed("floor of precision", old.precisions, new.precisions)
    for precision in sorted({*old.precisions} & {*new.precisions}):
        for output in UNITS:
            before, after = (float(side.floor(precision, output).max()) for side in (old, new))
            if max(before, after) > FLOOR_CHANGE * min(before, after):
                yield f"floor of {precision}, {output}: largest {before:.3g} -> {after:.3g}"


def _listed(words: str, old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[str]:
    for change, names in (("added", set(new) - set(old)), ("removed", set(old) - set(new))):
        for name in sorted(names):
            yield f"{words} {change}: {name}"


def _graphs(old: Bundle, new: Bundle) -> Iterator[str]:
    before, after = ({graph.id: graph for graph in side.graphs} for side in (old, new))
    yield from _listed("graph", tuple(before), tuple(after))
    common = [name for name in after if name in before]

    def hashes(side: Bundle, graph: str) -> list[str]:
        parts = (before if side is old else after)[graph].parts
        return [side.files[os.path.basename(part.path)]["sha256"] for part in parts]

    exported = [name for name in common if hashes(old, name) != hashes(new, name)]
    if exported:
        yield f"graphs: {len(exported)} of {len(common)} were exported to other bytes, {exported[0]} first"
    was, now = (side.manifest.get("witness", {}) for side in (old, new))
    witnessed = [name for name in common if was.get(name) != now.get(name)]
    if witnessed:
        yield f"witness: {len(witnessed)} of {len(common)} graphs gave other bits, {witnessed[0]} first"
