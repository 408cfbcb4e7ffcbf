"""Which graphs a bundle gets, and their export into it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.core.errors import UserError
from harness.golden.export import EXPORTERS, STATIC_OPSETS, check_graphs, export_part
from harness.golden.folder import Draft
from harness.golden.marian import Marian
from harness.golden.parts import STATIC, Sizes, parts
from harness.golden.progress import Bars
from harness.golden.traces import Golden
from harness.replay.loops import SLACK

STATIC_ROWS, STATIC_SHARE, STATIC_GRID = 2, 0.75, 16
"""A static graph has so many rows more than the longest forced batch, so that some are always idle; its smaller bucket
takes that share of the corpus; the sizes of its source are multiples of the last."""


class Variant(NamedTuple):
    """One graph that is to be exported."""

    exporter: str
    opset: int
    layout: str


def choose(exporters: Sequence[str], opsets: Sequence[int] | None, layouts: Sequence[str]) -> list[Variant]:
    """Each exporter × opset × layout that is recorded; ``opsets`` None: all. Raises UserError where there is none."""
    variants = [
        Variant(exporter, opset, layout)
        for exporter in exporters
        for opset in EXPORTERS[exporter]
        for layout in layouts
        if (opsets is None or opset in opsets) and _writes(exporter, opset, layout)
    ]
    if exporters and not variants:
        raise UserError(
            f"layout {' and '.join(layouts)} is not recorded by that exporter at that opset; "
            "leave --exporter or --opset out"
        )
    return variants


def _writes(exporter: str, opset: int, layout: str) -> bool:
    """Whether a graph is recorded of this combination."""
    static = exporter == "torchscript" and opset in STATIC_OPSETS.get(layout, ())
    return static if layout in STATIC else opset in EXPORTERS[exporter]


def export(variants: Sequence[Variant], marian: Marian, golden: Golden, draft: Draft, bars: Bars) -> None:
    """Write every variant in fp32 to ``draft``. Raises UserError."""
    draft.manifest["graphs"] = []
    if not variants:
        return
    model, buckets = marian.load("fp32"), _buckets(golden, marian.config.max_position_embeddings)
    prepared = {layout: parts(model, layout, buckets) for layout in {variant.layout for variant in variants}}
    bars.phase("export", len(variants))
    exported: dict[str, tuple[dict[str, Any], int]] = {}
    for exporter, opset, layout in variants:
        graph: dict[str, Any] = {
            "exporter": exporter,
            "layout": layout,
            "precision": "fp32",
            "opset": opset,
            "parts": {},
        }
        for part in prepared[layout]:
            stem = f"{exporter}-{part.stem}" if part.stem else exporter
            file = f"{stem}-fp32-op{opset}-{part.name}.onnx"
            if file not in exported:
                exported[file] = export_part(part, exporter, opset, draft.folder / file)
            graph["parts"][part.name], graph["ir"] = exported[file]
        draft.manifest["graphs"].append(graph)
        bars.tick()
    check_graphs(sorted(draft.folder.glob("*.onnx")))


def _buckets(golden: Golden, limit: int) -> list[Sizes]:
    """Two fixed sizes: for most sources, and for all. Slots: what a free replay of the longest output there takes."""
    lengths = golden.sources.lengths
    sizes = {
        min(-(-longest // STATIC_GRID) * STATIC_GRID, limit)
        for longest in (int(np.quantile(lengths, STATIC_SHARE)), max(lengths))
    }
    rows = max(map(len, golden.forced)) + STATIC_ROWS
    steps = {
        size: max(count for count, length in zip(golden.steps, lengths, strict=True) if length <= size)
        for size in sizes
    }
    return [Sizes(rows, size, min(steps[size] + SLACK, golden.rules.max_steps)) for size in sorted(sizes)]
