"""`conform matrix`: rows of many boxes, and rows that are none."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.rows import Row, to_json
from reports import matrix_page
from tests import helpers
from tests.tables import row


def write(place: Path, *rows: Row) -> Path:
    place.write_text("".join(to_json(one) + "\n" for one in rows), encoding="utf-8")
    return place


def conform(*arguments: object) -> Any:
    return helpers.run("conform.cli", "matrix", *map(str, arguments))


def test_boxes_are_merged(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", row("FAIL", message="bad"), row(opset=9))
    write(tmp_path / "two.jsonl", row(), row("CRASH", backend="openvino", version="2026.4.1"))
    done = conform(tmp_path / "one.jsonl", tmp_path / "two.jsonl", "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert {(one["backend"], one["opset"]): one["status"] for one in csv.DictReader(io.StringIO(done.stdout))} == {
        ("ort", "9"): "PASS",
        ("ort", "17"): "PASS",
        ("openvino", "17"): "CRASH",
    }
    assert conform(tmp_path).stdout == conform(tmp_path / "two.jsonl", tmp_path / "one.jsonl").stdout


@pytest.mark.parametrize("form", sorted(matrix_page.FORMATS))
def test_a_page_can_be_written(form: str, tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", row())
    shown = conform(tmp_path, "--format", form).stdout
    done = conform(tmp_path, "--format", form, "--out", tmp_path / "page")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "page").read_text(encoding="utf-8").strip() == shown.strip()


def test_the_last_line_cut_short_is_tolerated(tmp_path: Path) -> None:
    place = write(tmp_path / "one.jsonl", row(), row(opset=9))
    place.write_text(place.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    done = conform(place, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [one["opset"] for one in json.loads(done.stdout)] == [17]


@pytest.mark.parametrize(
    "content, words",
    [
        ("{}\n{}\n", "one.jsonl, line 1: not a row (schema None"),
        ("{\n{}\n", "one.jsonl, line 1: not a row"),
        ("", "no rows; run pytest --backend=NAME"),
        (None, "cannot be read as rows"),
    ],
    ids=["no rows in it", "no JSON", "empty", "missing"],
)
def test_bad_rows_are_one_line_and_exit_2(tmp_path: Path, content: str | None, words: str) -> None:
    place = tmp_path / "one.jsonl"
    if content is not None:
        place.write_text(content, encoding="utf-8")
    out = tmp_path / "page.md"
    out.write_text("kept", encoding="utf-8")
    done = conform(place, "--out", out)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert str(place) in line
    assert out.read_text(encoding="utf-8") == "kept"


def test_a_status_that_nobody_knows_is_never_green(tmp_path: Path) -> None:
    place = write(tmp_path / "one.jsonl", row(check="tokens"), row("GREEN"), row(check="cost"))
    done = conform(place)
    assert done.returncode == 2, done.stdout
    assert "line 2: not a row" in done.stderr


def test_rows_of_another_bundle_say_that_their_text_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", row(check="tokens"), row(check="tokens", opset=9), row(check="text", opset=9))
    done = conform(tmp_path)
    assert done.returncode == 0
    assert done.stderr == "note: 1 cells have no text check; give the bundle toy@0123456789ab with --bundle\n"
    assert "note" not in conform(write(tmp_path / "two.jsonl", row(check="logits"))).stderr
