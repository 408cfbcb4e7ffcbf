"""Rows on disk: the schema that others may rely on, and what is read back."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.core import rowfiles, rows, verdict
from harness.core.errors import UserError
from reports import folders, schema
from tests import helpers


@pytest.fixture(scope="module")
def real(ort_run: Any) -> list[dict[str, Any]]:
    return helpers.rows_in(ort_run[1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.jsonl"


def line(**changes: Any) -> str:
    row = rows.Row("logits", "PASS", compared=5, cell="c", run="r", box="b", time="2026-11-30T02:00:00Z")
    return json.dumps({**json.loads(rows.to_json(row)), **changes}, ensure_ascii=False)


def test_committed_schema_is_current() -> None:
    assert schema.PATH.read_text(encoding="utf-8") == schema.text(), "run python -m reports.schema"


def test_schema_is_one_and_describes_only_fields() -> None:
    made = schema.build()
    jsonschema.Draft202012Validator.check_schema(made)
    assert list(made["properties"]) == [field.name for field in dataclasses.fields(rows.Row)]
    assert set(schema.SAYS) <= set(made["properties"])
    assert made["properties"]["status"]["enum"] == list(verdict.STATUSES)


def test_every_row_of_a_real_run_is_valid(real: list[dict[str, Any]], valid: Any) -> None:
    assert {row["check"] for row in real} == set(verdict.CHECKS)
    valid(real)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "GREEN"},
        {"stage": "later"},
        {"check": "vibes"},
        {"schema": 2},
        {"extra": 1},
        {"value": "big"},
        {"compared": 1.5},
        {"step": "3"},
        {"detail": None},
        {"cell": None},
    ],
    ids=str,
)
def test_schema_refuses_what_is_no_row(real: list[dict[str, Any]], change: dict[str, Any]) -> None:
    checker = jsonschema.Draft202012Validator(schema.build())
    assert not checker.is_valid({**real[0], **change})
    assert not checker.is_valid(
        {name: value for name, value in real[0].items() if name != next(iter(change))} | {"x": 1}
    )


def test_numbers_that_json_has_not_are_strings_and_come_back(file: Path, valid: Any) -> None:
    detail = {"a": [math.inf, {"b": math.nan}]}
    numbers = {"value": math.inf, "bound": -math.inf, "floor": math.nan}
    row = rows.Row("logits", "FAIL", **numbers, detail=detail, time="2026-11-30T02:00:00Z")
    text = rows.to_json(row)
    written = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (written["value"], written["bound"], written["floor"]) == ("inf", "-inf", "nan")
    assert written["detail"] == {"a": ["inf", {"b": "nan"}]}
    valid([written])
    file.write_text(text + "\n", encoding="utf-8")
    (found,) = rowfiles.read(str(file))
    assert (found.value, found.bound) == (math.inf, -math.inf)
    assert found.floor is not None
    assert math.isnan(found.floor)


def test_every_field_comes_back(real: list[dict[str, Any]]) -> None:
    for written in real:
        assert json.loads(rows.to_json(rows.from_dict(written))) == written


def test_last_line_cut_short_is_left_out(file: Path) -> None:
    file.write_text(line() + "\n" + line(check="tokens") + "\n" + line()[:40], encoding="utf-8")
    assert [row.check for row in rowfiles.read(str(file))] == ["logits", "tokens"]


@pytest.mark.parametrize("kept", [1, 2])
def test_a_last_line_cut_inside_a_character_is_left_out(file: Path, kept: int) -> None:
    whole = line(message="阀门").encode()
    file.write_bytes(line().encode() + b"\n" + whole[: whole.index("门".encode()) + kept])
    assert [row.check for row in rowfiles.read(str(file))] == ["logits"]


def test_half_a_character_elsewhere_is_damage(file: Path) -> None:
    broken = line(message="阀门").encode().replace("门".encode(), "门".encode()[:2])
    file.write_bytes(broken + b"\n" + line().encode() + b"\n")
    with pytest.raises(UserError, match="line 1: not a row"):
        list(rowfiles.read(str(file)))


def test_words_in_another_encoding_are_written_and_read_escaped(tmp_path: Path, file: Path) -> None:
    """A vendor's message in GBK, read with surrogateescape: no file can hold it as it is."""
    words = "不支持".encode("gbk").decode("utf-8", "surrogateescape")
    writer = rowfiles.Writer(str(tmp_path / "results"), {"bundle": words})
    writer.write(rows.Row("logits", "ERROR", message=f"not supported: {words}", detail={"misses": [words]}))
    writer.close()
    (row,) = rowfiles.read(writer.path)
    escaped = words.encode("utf-8", "backslashreplace").decode()
    assert row.message == f"not supported: {escaped}"
    assert row.detail == {"misses": [escaped]}
    file.write_text(line(message="X").replace("X", r"\udcff") + "\n", encoding="utf-8")
    (row,) = rowfiles.read(str(file))
    assert row.message == r"\udcff"


@pytest.mark.parametrize(
    "wrong",
    [
        "{",
        "[1]",
        "17",
        '"text"',
        line(schema=0),
        line(extra=1),
        line(value="big"),
        line(status="GREEN"),
        line(check="vibes"),
        line(stage="later"),
        line(compared="many"),
        line(detail=[]),
        line(time=None),
        line(time=""),
        line(time="yesterday"),
        line(status="XFAIL"),
        line(opset="seventeen"),
    ],
)
def test_a_damaged_line_is_named(file: Path, wrong: str) -> None:
    file.write_text("\n".join([line(), wrong, line()]) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        list(rowfiles.read(str(file)))
    said = str(caught.value)
    assert f"{file}, line 2" in said
    assert "\n" not in said
    assert "take the line out" in said


@pytest.mark.parametrize("last", ["", "\n"], ids=["last line", "whole line"])
def test_rows_of_a_newer_schema_say_what_to_update(file: Path, last: str) -> None:
    file.write_text(line() + "\n" + line(schema=2, more=1) + last, encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2: not a row \(schema 2, .*update this checkout$"):
        list(rowfiles.read(str(file)))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", None], ids=["not UTF-8", "missing"])
def test_a_file_that_cannot_be_read_is_named(file: Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"some\.jsonl") as caught:
        list(rowfiles.read(str(file)))
    assert "\n" not in str(caught.value)


def test_no_rows_at_all_is_said(tmp_path: Path, file: Path) -> None:
    file.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="no rows"):
        folders.read_all([tmp_path])


def test_every_row_is_on_disk_before_the_next(tmp_path: Path) -> None:
    writer = rowfiles.Writer(str(tmp_path), {})
    for count in (1, 2, 3):
        writer.write(rows.Row("logits", "PASS"))
        assert len(Path(writer.path).read_text(encoding="utf-8").splitlines()) == count
    writer.close()


def test_a_rows_file_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rowfiles.time, "strftime", lambda form, *_: "20260101T000000Z" if "-" not in form else "2026-01-01T00:00:00Z"
    )
    first = rowfiles.Writer(str(tmp_path), {})
    first.write(rows.Row("logits", "PASS"))
    first.close()
    second = rowfiles.Writer(str(tmp_path), {})
    second.close()
    assert second.path != first.path
    assert len(list(rowfiles.read(first.path))) == 1
