"""The matrix over rows: what each format shows, which row wins, and that a terminal of 80 columns holds it."""

import csv
import io
import itertools
import json
import re
from typing import Any

import pytest
from wcwidth import wcswidth

from harness.core import verdict
from harness.core.rows import Row
from reports import matrix, matrix_page
from tests.tables import absent, entry, expected, lines_of, row

WIDE = [
    row(
        "FAIL" if (opset, layout) in ((12, "split"), (13, "static")) else "PASS",
        backend=backend,
        version=version,
        layout=layout,
        opset=opset,
        message="logits at step 15: [3] is 4.25, PyTorch has 17.125, which is as far apart as two sentences of Chinese 阀门",
    )
    for backend, version in (
        ("ort", "1.32.0"),
        ("ort", "1.10.0"),
        ("openvino", "2026.4.1"),
        ("openvino", "2024.6.0"),
        ("reference", "1.23.2"),
        ("my_package.adapters.accelerator:Backend", "0.0.1.dev20260101"),
    )
    for layout in ("split", "static", "unified")
    for opset in range(9, 24)
]


def test_every_line_fits_a_terminal() -> None:
    said = lines_of(
        *WIDE,
        *(
            row(status, opset=opset, message="m" * 60 + " " + "n" * 60, kind="operator")
            for opset, status in enumerate(verdict.SEVERITY, 24)
            if status != "ABSENT"
        ),
        absent("tensorrt"),
        expected(opset=40),
    )
    for line in said:
        assert wcswidth(line) <= 80, line
    text = "\n".join(said)
    for version in ("1.32.0", "1.10.0", "2026.4.1", "2024.6.0", "1.23.2", "0.0.1.dev20260101"):
        assert version in text
    assert " ".join(text.split()).count("as far apart as two sentences of Chinese 阀门") == 1, (
        "one reason, one footnote"
    )


def test_no_cell_is_lost_in_the_folds() -> None:
    text = "\n".join(lines_of(*WIDE))
    cells = len({one.cell for one in WIDE})
    assert text.count("◐") + text.count("❌") - len(re.findall("◐ what|❌ wrong", text)) == cells
    assert text.count("❌[1]") == 2 * cells // 45


def test_table_columns_line_up_under_their_heads() -> None:
    said = lines_of(
        row(layout="split"), row("FAIL", layout="unified"), row("TIMEOUT", backend="reference", layout="split")
    )
    heads, body = said[1], said[3]
    for word, symbol in (("split", "◐"), ("unified", "❌")):
        assert wcswidth(heads[: heads.index(word)]) == wcswidth(body[: body.index(symbol)])
    assert wcswidth(heads[: heads.rindex("split")]) == wcswidth(body[: body.index("⏱")])


@pytest.mark.parametrize("change", [{"compared": 0}, {"value": float("nan")}, {"value": 2.0, "bound": 1.0}])
def test_a_pass_that_its_own_figures_deny_is_none(change: dict[str, Any]) -> None:
    assert {entry.symbol for entry in matrix.build([row()]).entries.values()} == {"◐"}
    (entry,) = matrix.build([row(**change)]).entries.values()
    assert entry.symbol == "❗"
    assert "says PASS" in matrix.reason(entry)


def test_the_newest_row_wins() -> None:
    older, newer = row("FAIL", message="bad"), row("PASS")
    for order in ([older, newer], [newer, older]):
        assert entry(*order).status == "PASS"
    again = row("FAIL", message="bad again")
    assert entry(older, newer, again).row.message == "bad again"


def test_a_cell_is_its_worst_row() -> None:
    for worse, better in itertools.pairwise(status for status in verdict.SEVERITY if status != "ABSENT"):
        found = entry(row(better, "encoder"), row(worse, "tokens"))
        assert (found.status, found.symbol) == (worse, verdict.STATUSES[worse].symbol)
        assert found.row.check == "tokens"


def test_every_attempt_of_a_flake_is_behind_the_last_word() -> None:
    assert entry(row("FAIL", attempt=1), row("FLAKY", attempt=2, message="first FAIL, then PASS")).symbol == "🎲"


def test_an_expected_failure_keeps_its_symbol_with_its_reason() -> None:
    found = entry(expected(), row(check="tokens"))
    assert (found.status, found.symbol) == ("FAIL", "❌")
    assert matrix.reason(found) == "logits FAIL, first at step 7 (expected: a known fault)"


def test_symbols_have_their_meaning_below() -> None:
    text = "\n".join(lines_of(row(), row("UNSUPPORTED", opset=9, kind="opset", message="too new"), absent("tensorrt")))
    assert "🚫 refused · ⬜ not run here · ◐ what ran passed, not every check did" in " ".join(text.split())
    assert "⬜ not run here" in text
    assert "[1] refused: opset: too new" in text
    assert "💥" not in text
    lonely = "\n".join(lines_of(row(opset=9), row(opset=17, layout="split")))
    assert "· no row" in lonely


def test_versions_stand_in_their_own_order() -> None:
    made = matrix.build([row(version=version) for version in ("1.10.0", "1.4.0", "1.32.0", "1.9.1")])
    assert [column.version for column in made.columns] == ["1.4.0", "1.9.1", "1.10.0", "1.32.0"]


def test_layouts_that_agree_share_a_column_where_room_is_short() -> None:
    rows = [row(version=f"1.{minor}.0", layout=layout) for minor in range(9) for layout in ("split", "unified")]
    text = "\n".join(lines_of(*rows))
    assert text.count("all") == 9
    text = "\n".join(lines_of(*rows, row("FAIL", version="1.3.0", layout="split", message="bad")))
    assert (text.count("all"), text.count("unified")) == (8, 1), "what differs stays apart"


def test_layouts_that_agree_wherever_they_have_a_graph_share_a_column_too() -> None:
    rows = [
        row(
            "FAIL" if layout == "unified" else "PASS", version=f"1.{minor}.0", layout=layout, opset=opset, message="bad"
        )
        for minor in range(9)
        for layout in ("split", "static", "unified")
        for opset in range(9, 24 if layout != "static" else 20)
    ]
    text = "\n".join(lines_of(*rows))
    heads, _, _ = text.partition("what ran passed")
    assert [heads.count(layout) for layout in ("split", "static", "unified")] == [9, 9, 9]
    symbols = text.count("◐") + text.count("❌") - len(re.findall("◐ what|❌ wrong", text))
    assert symbols == 9 * 2 * 15, "split speaks for static, and static takes no line from it"
    assert "1.8.0 split, static  " in matrix_page.markdown(matrix.build(rows))
    rows = [one for one in rows if (one.version, one.layout, one.opset) != ("1.3.0", "static", 12)]
    page = matrix_page.markdown(matrix.build(rows))
    assert "1.3.0 split  " in page, "a graph that was not run is no agreement"
    assert "1.3.0 static  " in page


def test_a_column_of_several_layouts_says_of_which_opsets_each_has_rows() -> None:
    """A run that ended early, or a layout without a graph of an opset: either way the mark is another layout's."""
    rows = [row(layout=layout, opset=opset) for layout in ("split", "unified") for opset in (14, 15, 16, 17)]
    rows = [one for one in rows if (one.layout, one.opset) not in (("unified", 15), ("unified", 17))]
    page = matrix_page.markdown(matrix.build(rows))
    assert "unified has rows of opset 14,16 of torchscript only: ort@1.32.0" in page
    many = [*rows, *(row(layout=one.layout, opset=one.opset, version=f"1.{at}.0") for one in rows for at in range(9))]
    text = "\n".join(lines_of(*many))
    assert "unified has rows of opset 14,16 of torchscript only: ort@1.0.0, ort@1.1.0," in text
    assert "only" not in "\n".join(lines_of(*rows)), "with a column of its own it has a sign for that"


def test_all_is_every_layout_of_the_matrix() -> None:
    rows = [row(backend="ort", layout=layout) for layout in ("split", "unified")]
    page = matrix_page.markdown(matrix.build(rows))
    assert "unified" not in page
    page = matrix_page.markdown(matrix.build([*rows, row(backend="mnn", layout="static")]))
    assert "1.32.0 split, unified " in page, "nobody asked this one for a static graph"


def test_layouts_are_joined_before_the_table_is_folded() -> None:
    rows = [
        row(
            "FAIL" if (backend, layout) == ("openvino", "unified") else "PASS",
            backend=backend,
            layout=layout,
            opset=opset,
        )
        for backend in ("openvino", "ort")
        for layout in ("split", "static", "static-scatter", "unified")
        for opset in (16, 17)
        if layout != "static-scatter" or opset == 16
    ]
    runtimes, *heads, _, line = (line.split() for line in lines_of(*rows)[:6])
    assert runtimes == ["opset", "openvino@1.32.0", "ort@1.32.0"]
    assert heads == [["split", "unified", "all"], ["static"], ["static-scatter"]]
    assert line == ["16", "◐", "❌[1]", "◐"]
    assert "no row" not in " ".join(lines_of(*rows))


def test_a_refusal_names_its_reason_once_whatever_the_opset() -> None:
    said = lines_of(
        *(row("UNSUPPORTED", opset=opset, kind="opset", message=f"Opset {opset} is too new") for opset in (16, 17))
    )
    assert [line for line in said if line.startswith("[")] == ["[1] refused: opset: Opset … is too new"]


def test_a_graph_that_only_needs_another_stamp_says_so() -> None:
    refused = {"kind": "ir", "message": "IR 9 is too new; re-stamped as IR 8: PASS"}
    found = entry(row(check="artifact"), row("UNSUPPORTED", knob="ir=8", **refused))
    assert (found.status, found.symbol) == ("UNSUPPORTED", "⚠️")
    worse = entry(row("UNSUPPORTED", "tokens", **refused), row("UNSUPPORTED", knob="ir=8", **refused))
    assert worse.symbol == "🚫", "one check that fails even so is enough"


def test_the_line_below_says_how_far_one_can_go_and_what_a_step_up_loses() -> None:
    def passing(version: str, *opsets: int, layout: str = "unified") -> list[Row]:
        return [
            row("PASS" if opset in opsets else "FAIL", version=version, layout=layout, opset=opset, message="bad")
            for opset in (13, 14, 15, 16)
        ]

    rows = passing("1.8.1", 13, 14) + passing("1.10.0", 13, 14, 15) + passing("1.32.0", 13, 14, 15, 16)
    (line,) = matrix.newest_common(matrix.build([*rows, *passing("1.4.0")]))
    assert line == (
        "Newest opset that passes in every column (leaving out what passes at none: ort@1.4.0): 14. "
        "15 would lose ort@1.8.1; 16 would lose ort@1.10.0 too. Not every check ran at 14."
    )
    (line,) = matrix.newest_common(matrix.build([*passing("1.8.1", 13), *passing("1.10.0", 16)]))
    assert line == "No opset passes in every column."
    (line,) = matrix.newest_common(matrix.build(passing("1.8.1", 13) + passing("1.8.1", 13, 14, layout="split")))
    assert line == "Newest opset that passes in every column: 13. 14 would lose ort@1.8.1 unified; 15 would lose ort@1.8.1 split too. Not every check ran at 13."  # fmt: skip  # noqa: E501


def test_an_opset_that_is_named_as_passing_had_every_check_or_says_so() -> None:
    rows = [row(check=check, opset=opset) for check in verdict.CHECKS for opset in (16, 17)]
    (line,) = matrix.newest_common(matrix.build(rows))
    assert line == "Newest opset that passes in every column: 17."
    (line,) = matrix.newest_common(matrix.build(rows[:-1]))
    assert line == "Newest opset that passes in every column: 17. Not every check ran at 17."


def test_a_layout_without_a_graph_of_an_opset_does_not_hold_the_others_back() -> None:
    rows = [row(opset=opset) for opset in (16, 17, 18)] + [row(opset=opset, layout="static") for opset in (16, 17)]
    (line,) = matrix.newest_common(matrix.build(rows))
    assert line == "Newest opset that passes in every column that has it: 18. Not every check ran at 18."
    rows += [row(opset=opset, layout="static", version="1.3") for opset in (16, 18)]
    (line,) = matrix.newest_common(matrix.build(rows))
    assert line == (
        "Newest opset that passes in every column: 16. 17 would lose ort@1.3; 18 would lose ort@1.32.0 static too. "
        "Not every check ran at 16."
    )


def test_a_cell_links_to_its_rows() -> None:
    made = matrix.build([row(run="box-1"), row("FAIL", opset=9, message="bad", run="box-2")])
    page = matrix_page.markdown(made, {"box-1": "../results/box-1.jsonl"})
    assert "[◐](../results/box-1.jsonl)" in page
    assert "[❌](box-2.jsonl)[" in page
    assert {one["rows"] for one in matrix.records(made)} == {"box-1.jsonl", "box-2.jsonl"}


def test_two_exporters_of_an_opset_are_two_lines() -> None:
    cell = row(opset=18).cell.replace("torchscript", "dynamo")
    other = row("FAIL", opset=18, exporter="dynamo", message="bad", cell=cell)
    made = matrix.build([row(opset=18), other])
    assert [line.exporter for line in made.lines] == ["dynamo", "torchscript"]
    assert len(made.columns) == 1
    assert "18 dynamo" in matrix_page.terminal(made)


def test_absent_backends_stand_below_until_some_run_finds_them() -> None:
    gone, here = absent("openvino"), row(backend="openvino", version="2026.4.1")
    assert "⬜ openvino: it is not installed; pip install it" in "\n".join(lines_of(row(), gone))
    assert "⬜ openvino" not in "\n".join(lines_of(gone, here))
    assert "⬜ openvino" not in "\n".join(lines_of(here, absent("openvino"))), "another box has it"


def test_a_version_that_is_absent_is_not_hidden_by_another_that_is_here() -> None:
    text = "\n".join(lines_of(row(version="1.32.0"), absent("ort", version="1.10")))
    assert "⬜ ort@1.10: it is not installed" in text


def test_only_absent_backends() -> None:
    made = matrix.build([absent("tensorrt")])
    assert "⬜ tensorrt: it is not installed" in matrix_page.terminal(made)
    assert "⬜ tensorrt" in matrix_page.markdown(made)
    assert json.loads(matrix_page.to_json(made)) == []
    assert matrix_page.to_csv(made).startswith("cell")


def test_formats_say_the_same() -> None:
    made = matrix.build([*WIDE, expected(opset=40, backend="openvino", version="2026.4.1")])
    flat = json.loads(matrix_page.to_json(made))
    table = list(csv.DictReader(io.StringIO(matrix_page.to_csv(made))))
    assert [one["cell"] for one in flat] == [one["cell"] for one in table]
    assert {(one["cell"], one["status"], str(one["opset"])) for one in flat} == {
        (one["cell"], one["status"], one["opset"]) for one in table
    }
    assert len(flat) == len({one.cell for one in WIDE}) + 1
    known = next(one for one in flat if one["opset"] == 40)
    assert (known["status"], known["step"], known["symbol"]) == ("FAIL", 7, "❌")
    assert "a known fault" in known["reason"]
    page = matrix_page.markdown(made)
    assert page.startswith("# Compatibility matrix\n\n| ")
    assert page.count("❌") - 1 == sum(one["symbol"] == "❌" for one in flat)
    assert page.count("◐") - 1 == sum(one["symbol"] == "◐" for one in flat)
    for line in page.splitlines():
        assert line.count("|") in (0, *range(3, 12)), line


def test_a_runtimes_words_do_not_break_the_page() -> None:
    page = matrix_page.markdown(matrix.build([row("ERROR", message="<b>bold</b> | `code` *star*")]))
    (note,) = [line for line in page.splitlines() if line.startswith("- [1]")]
    assert r"\<b>bold\</b> \| \`code\` \*star\*" in note


def test_one_box_or_bundle_does_not_speak_for_another() -> None:
    bad = row("FAIL", message="wrong here")
    later = "2099-01-01T00:00:00Z"
    for other in (row("PASS", box="laptop", time=later), row("PASS", bundle="another@0", time=later)):
        found = matrix.build([bad, other])
        assert sorted(one.status for one in found.entries.values()) == ["FAIL", "PASS"]
        assert len(found.columns) == 2


def test_a_cell_of_which_only_a_part_ran_is_no_pass() -> None:
    whole = [row("PASS", check) for check in verdict.CHECKS]
    assert entry(*whole).symbol == "✅"
    assert entry(*whole[:-1]).symbol == "◐"
