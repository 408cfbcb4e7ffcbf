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
Position = tuple[int, int]
"""Row of the new bundle, and step or source position."""


def against(old: Bundle, new: Bundle) -> list[str]:
    """Compare two bundles' golden: a line for each thing that changed; nothing at all when they are alike.

    Rows are matched by id, numbers only where the same source and the same tokens were fed.
    """
    lines: list[str] = []
    for key, words in SETTINGS:
        lines += _changed(words, old.manifest.get(key, {}), new.manifest.get(key, {}))
    lines += _vocabulary("vocabulary", old.pieces, new.pieces)
    if any(side.source_pieces is not side.pieces for side in (old, new)):
        lines += _vocabulary("source vocabulary", old.source_pieces, new.source_pieces)
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


def _vocabulary(words: str, old: list[str], new: list[str]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"{words}: {len(old)} pieces -> {len(new)}"
    changed = [index for index, (before, after) in enumerate(zip(old, new, strict=False)) if before != after]
    if changed:
        first = changed[0]
        yield f"{words}: {len(changed)} ids changed, id {first} first: {old[first]!r} -> {new[first]!r}"


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
    old_tokens, new_tokens = old.tokens(before), new.tokens(after)
    size = min(len(old_tokens), len(new_tokens))
    differ = np.flatnonzero(old_tokens[:size] != new_tokens[:size])
    return int(differ[0]) + 1 if len(differ) else size


def _tokens(old: Bundle, new: Bundle, rows: _Rows) -> Iterator[str]:
    changes = []
    for after, before in rows.common.items():
        old_tokens, new_tokens = old.tokens(before), new.tokens(after)
        if not np.array_equal(old_tokens, new_tokens):
            step = _agreed(old, new, before, after)
            step -= int(old_tokens[step - 1] != new_tokens[step - 1])
            changes.append((step, after, before))
    if changes:
        step, after, before = min(changes)
        ids = [
            str(tokens[step]) if step < len(tokens) else "none" for tokens in (old.tokens(before), new.tokens(after))
        ]
        yield (
            f"tokens: {len(changes)} of {len(rows.common)} rows changed, earliest at step {step} of "
            f"{new.rows[after].id}: id {ids[0]} -> {ids[1]}"
        )


def _positions(bundle: Bundle, output: str) -> dict[Position, int]:
    """Row and step (or source position) -> index in the trace."""
    orders = [(batch, _order(batch, output)) for batch in bundle.batches("forced")]
    flat = [(batch.rows[row], at) for batch, order in orders for row, at in order]
    return {position: index for index, position in enumerate(flat)}


def _order(batch: Batch, output: str) -> list[Position]:
    if UNITS[output] == "step":
        return trace_order(batch)
    return [(int(row), int(at)) for row, at in zip(*np.nonzero(batch.mask), strict=True)]


def _numbers(old: Bundle, new: Bundle, rows: _Rows, output: str) -> Iterator[str]:
    before, after = _positions(old, output), _positions(new, output)
    pairs: list[tuple[Position, int, int]] = []
    for (row, at), index in after.items():
        known = before.get((rows.common.get(row, -1), at))
        if known is not None and (UNITS[output] != "step" or at < _agreed(old, new, rows.common[row], row)):
            pairs.append(((row, at), known, index))
    if not pairs:
        yield f"{output}: no traced {UNITS[output]} in common, nothing compared"
        return
    old_trace, new_trace = old.array(f"trace_{output}"), new.array(f"trace_{output}")
    axis = old_trace.ndim - (2 if output in ("logits", "encoder") else 3)
    gaps = np.abs(old_trace.take([pair[1] for pair in pairs], axis) - new_trace.take([pair[2] for pair in pairs], axis))
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
