"""The page of claims and measurements: written from the committed rows, and every difference explained."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.rows import Row
from reports import matrix, opset_table
from reports.folders import read_all


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for _, row in read_all([opset_table.MEASURED])]


def test_the_page_is_what_the_rows_say(rows: list[Row]) -> None:
    assert opset_table.PAGE.read_text(encoding="utf-8") == opset_table.page(rows)


def test_every_cell_of_the_article_is_answered(rows: list[Row]) -> None:
    lines = opset_table.claims(matrix.build(rows))
    assert len(lines) == sum(len(claim.says) for claim in opset_table.CLAIMS)
    for claim, opset, says, found, why in lines:
        assert bool(why) == (says != found), (claim.name, opset)
        assert (found == "⬜") == (not claim.measured)


def test_a_difference_that_nobody_explains_is_refused(rows: list[Row]) -> None:
    changed = [
        replace(row, status="FAIL") if row.cell == "ort@1.10.0/cpu/torchscript/split/fp32/op14" else row for row in rows
    ]
    with pytest.raises(ValueError, match=r"ONNX Runtime 1\.10, opset 14: says ✅, measured ❌, explained by ''"):
        opset_table.claims(matrix.build(changed))


def test_what_was_not_measured_is_refused(rows: list[Row]) -> None:
    left = [row for row in rows if row.version != "2022.3.0"]
    with pytest.raises(ValueError, match=r"no row of openvino@2022\.3\.0 GatherElements at opset 12; measure it first"):
        opset_table.claims(matrix.build(left))


def test_taking_rows_keeps_what_the_table_shows(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opset_table, "MEASURED", tmp_path)
    opset_table.take(opset_table.DOCS / "measured")
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {"versions.jsonl.gz", "operators.jsonl.gz", "exporters.jsonl.gz"}
    assert opset_table.page(row for _, row in read_all([tmp_path])) == opset_table.page(rows)
    opset_table.take(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first, "the same rows, the same bytes"
