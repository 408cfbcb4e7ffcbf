"""Rows of three nights, and the site that is made of them."""

import re
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import ort
from conform.commands import report
from harness.core.identity import identity_in
from harness.core.rows import Answer, Origin, Row, to_json
from reports import site
from tests import helpers
from tests.mutant import Mutant
from tests.tables import row

NOW = datetime(2026, 3, 4, 6, tzinfo=timezone.utc)

WRONG_FROM = 5

EVIL = "\"><img src=x onerror=alert(1)><script>alert(2)</script>'"


def put(results: Path, night: str, box: str, rows: list[Row], **changes: Any) -> None:
    """One run's rows file. ``version``: also in the cell's name."""
    run = f"{re.sub('[^a-z]', '', box)}-{night}-{len(list(results.glob('*.jsonl')))}"
    text = ""
    for one in rows:
        values = {"time": f"{night}T02:00:00Z", "run": run, "box": box, **changes}
        if "version" in changes:
            values["cell"] = one.cell.replace(f"@{one.version}/", f"@{changes['version']}/")
        text += to_json(replace(one, **values)) + "\n"
    (results / f"{run}.jsonl").write_text(text, encoding="utf-8")


def judged(results: Path, backend: Any, name: str) -> list[Row]:
    rows = helpers.judge(backend, checks=("logits", "kv_values", "tokens", "cost"), series=str(results / name))
    bundle = helpers.golden().bundle
    graph = next(graph for graph in bundle.graphs if (graph.layout, graph.opset) == ("unified", 17))
    identity = identity_in(bundle, graph, "ort", backend.probe())
    answers = [Answer(**{item.name: getattr(answer, item.name) for item in fields(Answer)}) for answer in rows.values()]
    named = [replace(answer, series=answer.series and Path(answer.series).name) for answer in answers]
    return [Row.of(answer, identity, Origin()) for answer in named]


def rolled(part: str, step: int, feeds: Any, outputs: Any) -> Any:
    """Logits of their neighbours: other tokens, and no crash."""
    if part == "step" and step >= WRONG_FROM:
        outputs["logits"] = np.roll(outputs["logits"], 1, axis=-1)
    return outputs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights: `lab` breaks in the last, after a version that was right; `jetson` is silent then."""
    folder = tmp_path_factory.mktemp("results")
    honest, broken = judged(folder, ort.Backend(), "honest"), judged(folder, Mutant(outputs=rolled), "broken")
    put(folder, "2026-03-01", "lab", honest, version="1.0.0")
    put(folder, "2026-03-02", "jetson", honest)
    put(folder, "2026-03-02", "lab", [*honest, row(opset=12)])
    put(folder, "2026-03-03", "lab", honest)
    put(folder, "2026-03-04", "lab", broken)
    put(
        folder,
        "2026-03-04",
        EVIL,
        [
            row(
                "FAIL",
                backend=EVIL,
                cell=f"{EVIL}@1/../../x/op17",
                version=EVIL,
                message=EVIL,
                sentence=EVIL,
                tensor=EVIL,
                blame=EVIL,
                knob=EVIL,
                command=EVIL,
                device=EVIL,
                metric=EVIL,
                bundle=EVIL,
                step=1,
                detail={"misses": [EVIL], "said": EVIL, "knobs": [EVIL], "evidence": {"knob": EVIL}},
            )
        ],
    )
    return folder


@pytest.fixture(scope="module")
def out(results: Path) -> Path:
    place = results.parent / (results.name + "-site")
    report.write([results], place, helpers.EMBEDDED, 3, NOW)
    return place


@pytest.fixture(scope="module")
def cells(out: Path) -> dict[str, Path]:
    """Page of each cell of the story on `lab`."""

    def of(version: str) -> Path:
        cell = f"ort@{version}/cpu/torchscript/unified/fp32/op17"
        return out / "cells" / site.file_name(row(cell=cell, box="lab", bundle=helpers.golden().bundle.short))

    return {"broken": of(ort.Backend().probe().version), "old": of("1.0.0")}
