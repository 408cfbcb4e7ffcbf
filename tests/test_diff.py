"""``conform diff``: each kind of change is told, counted where it is for the worse, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conform import cli
from harness.core import verdict
from harness.core.rows import Row
from reports import compaction, diff, diff_page
from reports.changes import GROUPS, Report
from reports.selection import LAST_GOOD, select
from tests import nights


def compare(old: object, new: object, **options: Any) -> Report:
    return diff.compare(*select(str(old), str(new), detail=False, say=lambda line: None), **options)


def between(tmp_path: Path, old: list[Row], new: list[Row], **options: Any) -> Report:
    nights.write(tmp_path / "old", 0, *old)
    nights.write(tmp_path / "new", 1, *new)
    return compare(tmp_path / "old", tmp_path / "new", **options)


def groups(report: Report) -> list[str]:
    return [change.group for change in report.changes]


def test_nothing_changed(tmp_path: Path) -> None:
    report = between(tmp_path, nights.cell(), nights.cell())
    assert (report.changes, report.worse, report.cells) == ([], False, 1)
    assert "✅ nothing worse" in diff_page.markdown(report)
    assert "nothing changed" in diff_page.markdown(report)


def test_a_pass_over_its_own_bound_is_newly_failing(tmp_path: Path) -> None:
    report = between(tmp_path, nights.cell(), nights.cell(value=9.0, bound=1.0))
    assert {change.group for change in report.changes} == {"failing"}
    assert report.worse
    assert "PASS with the value 9 over its bound 1" in diff_page.markdown(report)


def test_a_pass_over_nothing_is_newly_failing(tmp_path: Path) -> None:
    report = between(tmp_path, nights.cell(), nights.cell(compared=0))
    assert {change.group for change in report.changes} == {"failing"}
    assert report.worse
    assert "PASS over nothing, 1,000 elements were compared" in diff_page.markdown(report)


def test_a_box_that_another_folder_of_the_same_night_lacks_is_told(tmp_path: Path) -> None:
    for name, boxes in (("old", ("lab", "jetson")), ("new", ("lab",))):
        for box in boxes:
            nights.write(tmp_path / name, 0, *nights.cell(box=box))
    report = diff.compare(*select(str(tmp_path / "old"), str(tmp_path / "new"), detail=False))
    assert [(change.group, change.box, change.worse) for change in report.changes] == [("stale", "jetson", True)]


@pytest.mark.parametrize(
    "was, its, group, worse",
    [
        ("PASS", "FAIL", "failing", True),
        ("PASS", "UNSUPPORTED", "failing", True),
        ("PASS", "UNVERIFIED", "failing", True),
        ("PASS", "FLAKY", "failing", True),
        ("PASS", "XFAIL", "failing", True),
        ("UNSUPPORTED", "CRASH", "failing", True),
        ("FAIL", "TIMEOUT", "failing", True),
        ("FAIL", "PASS", "passing", False),
        ("XFAIL", "PASS", "passing", False),
        ("UNSUPPORTED", "PASS", "passing", False),
        ("CRASH", "FAIL", "changed", False),
        ("XFAIL", "XPASS", "expectations", True),
        ("XFAIL", "FAIL", "expectations", True),
        ("FAIL", "XFAIL", "expectations", False),
    ],
)
def test_a_status_that_changed(tmp_path: Path, was: str, its: str, group: str, worse: bool) -> None:
    old, new = nights.cell(), nights.cell()
    old[2], new[2] = nights.row("logits", was, reason="known"), nights.row("logits", its, reason="known", step=7)
    report = between(tmp_path, old, new)
    assert set(groups(report)) - {"flaky"} == {group}
    assert report.worse == worse
    change = report.changes[0]
    assert (change.cell, change.box, change.checks) == (old[2].cell, "lab", ("logits",))
    assert f"{was} → {its}" in change.message
    assert change.command == new[2].command
    assert cli.main(["diff", str(tmp_path / "old"), str(tmp_path / "new")]) == worse


def test_what_is_now_only_built_is_worse_and_says_built(tmp_path: Path) -> None:
    built = [nights.row(check, "ABSENT", stage="build", kind="built") for check in verdict.CHECKS]
    report = between(tmp_path, nights.cell(), built)
    assert report.worse
    assert {change.message.split(":")[0] for change in report.changes} == {"PASS → ABSENT (built)"}
    new = between(tmp_path / "again", nights.cell(opset=12), [*nights.cell(opset=12), *built])
    assert [change.message for change in new.changes] == ["1 cells: 1 ABSENT (built)"]


def test_a_failure_says_where_since_when_and_how_to_see_it(tmp_path: Path) -> None:
    for number, status in enumerate(["PASS", "PASS", "FAIL", "FAIL"]):
        nights.write(tmp_path, number, *(nights.row(status=status, step=7, opset=opset) for opset in (12, 13, 14, 17)))
    report = compare(f"{tmp_path}@{nights.day(1)}", f"{tmp_path}@newest")
    page = diff_page.markdown(report)
    assert page.startswith("## ❌ worse: ")
    (line,) = [line for line in page.splitlines() if "→ FAIL" in line]
    assert "`ort@1.32.0/cpu/torchscript/unified/fp32/op12-14,17` on lab logits:" in line
    assert f"PASS → FAIL, first at step 7, since {nights.day(2)}" in line
    assert "`pytest --backend=ort --opset=12 --layout=unified -k logits`" in line
    assert len(report.changes) == 4, "folded on the page only"


def test_another_reason_is_a_changed_expectation(tmp_path: Path) -> None:
    old, new = (nights.row(status="XFAIL", reason=reason) for reason in ("a fault", "another fault"))
    report = between(tmp_path, [old], [new])
    assert groups(report) == ["expectations"]
    assert not report.worse
    assert "another fault" in report.changes[0].message


def test_what_is_missing(tmp_path: Path) -> None:
    report = between(
        tmp_path, nights.cell() + nights.cell(opset=9), [one for one in nights.cell() if one.check != "text"]
    )
    assert groups(report) == ["missing", "missing"]
    assert report.worse
    assert {(change.cell[-3:], change.checks) for change in report.changes} == {("p17", ("text",)), ("op9", ())}


def test_a_silent_box_is_stale_and_its_cells_are_not_each_missing(tmp_path: Path) -> None:
    for number in range(3):
        nights.write(tmp_path, number, *nights.cell())
        if number < 2:
            nights.write(tmp_path, number, *nights.cell(box="jetson"), *nights.cell(box="jetson", opset=9))
    for old in (f"{tmp_path}@{nights.day(1)}", f"{tmp_path}@{nights.day(0)}"):
        report = compare(old, f"{tmp_path}@newest")
        assert groups(report) == ["stale"]
        assert report.changes[0].message == f"silent since {nights.day(1)} (2 cells)"
        assert report.worse
    assert groups(compare(tmp_path, tmp_path)) == ["stale"], "a folder's newest rows do not hide it"


def test_a_new_version_is_a_new_column_and_compared_when_asked(tmp_path: Path) -> None:
    old = [*nights.cell(version="1.30.0", status="CRASH"), *nights.cell(version="1.31.0")]
    new = [*nights.cell(version="1.32.0", status="FAIL"), *nights.cell(version="1.32.0", opset=30)]
    plain = between(tmp_path, old, new)
    assert groups(plain) == ["missing", "missing", "columns"]
    assert plain.changes[-1].cell == "ort@1.32.0/cpu/torchscript/unified/fp32"
    assert plain.changes[-1].message == "2 cells: 1 FAIL, 1 PASS"
    across = compare(tmp_path / "old", tmp_path / "new", across_versions=True)
    assert groups(across).count("failing") == 10
    assert [change.cell for change in across.changes if change.group == "missing"] == [old[0].cell], (
        "1.30.0 has no heir"
    )
    assert "1 cells of ort@1.32.0 are compared with ort@1.31.0" in across.facts


def test_a_version_that_runs_beside_the_old_one_takes_nothing_from_it(tmp_path: Path) -> None:
    both = [*nights.cell(version="1.31.0"), *nights.cell(version="1.32.0")]
    report = between(tmp_path, nights.cell(version="1.31.0"), both, across_versions=True)
    assert (groups(report), report.worse) == ([], False)


def test_new_cells_of_a_known_column(tmp_path: Path) -> None:
    report = between(tmp_path, nights.cell(), nights.cell() + nights.cell(opset=18, status="UNSUPPORTED"))
    assert groups(report) == ["cells"]
    assert report.changes[0].message == "1 cells: 1 UNSUPPORTED"
    assert not report.worse


def test_a_bundle_recorded_again_is_compared_by_its_name(tmp_path: Path) -> None:
    report = between(tmp_path, nights.cell(bundle="toy@a"), nights.cell(bundle="toy@b", status="FAIL"))
    assert set(groups(report)) == {"failing"}
    assert "lab replays another recording of the bundle: toy@a -> toy@b" in report.facts
    other = between(tmp_path / "x", nights.cell(bundle="toy@a"), nights.cell(bundle="big@b"))
    assert groups(other) == ["missing", "cells"]


def test_one_box_does_not_speak_for_another(tmp_path: Path) -> None:
    report = between(
        tmp_path, nights.cell() + nights.cell(box="b"), nights.cell(status="FAIL") + nights.cell(box="b", status="PASS")
    )
    assert {(change.group, change.box) for change in report.changes} == {("failing", "lab")}


def test_what_flips_from_night_to_night_is_flaky(tmp_path: Path) -> None:
    for number, status in enumerate(["PASS", "FAIL", "PASS", "PASS", "FAIL"]):
        nights.write(
            tmp_path, number, nights.row(status=status), nights.row(opset=9, status="FAIL" if number > 1 else "PASS")
        )
    report = compare(f"{tmp_path}@{nights.day(3)}", f"{tmp_path}@newest")
    (flaky,) = [change for change in report.changes if change.group == "flaky"]
    assert (flaky.cell, flaky.message) == (nights.row().cell, "changed 3 times in 5 nights: 3 PASS, 2 FAIL")
    assert [change.cell for change in report.changes if change.group == "failing"] == [flaky.cell]


def history(tmp_path: Path, shares: dict[int, list[float]]) -> Report:
    """``shares``: of each opset, value over bound of the logits, night by night; the last one is tonight's."""
    for number in range(len(next(iter(shares.values())))):
        found = [
            nights.row(opset=opset, value=series[number] * 4e-5)
            for opset, series in shares.items()
            if series[number] > 0
        ]
        nights.write(tmp_path, number, *found)
    compaction.compact(tmp_path, nights.day(number), delete=True, say=lambda line: None)
    return compare(f"{tmp_path}@{nights.day(number - 1)}", f"{tmp_path}@{nights.day(number)}")


def noisy(count: int, seed: int, spread: float = 0.02) -> list[float]:
    return list(0.3 * np.exp(np.random.default_rng(seed).normal(0, spread, count)))


def test_drift_is_what_the_measured_spread_does_not_explain(tmp_path: Path) -> None:
    shares = {opset: noisy(16, opset) for opset in range(20)}
    shares[3][-1], shares[4][-1], shares[5][-1] = 0.45, 0.2, 0.31
    shares[0][:10] = [0] * 10  # no row on these nights
    report = history(tmp_path, shares)
    drifted = {change.cell.rpartition("op")[2]: change.message for change in report.changes}
    assert set(drifted) == {"3", "4"}
    assert set(groups(report)) == {"drifted"}
    assert drifted["3"].startswith("↑ ")
    assert "→ 0.45 of the bound (spread 2" in drifted["3"]
    assert drifted["4"].startswith("↓")
    assert not report.worse
    (fact,) = [fact for fact in report.facts if "spread" in fact]
    assert "over 19 figures" in fact


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_does_not_drift(tmp_path: Path, seed: int) -> None:
    assert history(tmp_path, {opset: noisy(20, 1000 * seed + opset) for opset in range(200)}).changes == []


def test_a_figure_that_repeats_to_the_bit_has_drifted_when_it_moves(tmp_path: Path) -> None:
    report = history(tmp_path, {1: [0.3] * 9 + [0.3001], 2: [0.3] * 10, 3: [0.3, 0.31] * 5})
    assert [change.cell.rpartition("op")[2] for change in report.changes] == ["1"]


def test_a_slow_trend_is_seen_though_no_night_stands_out(tmp_path: Path) -> None:
    report = history(
        tmp_path, {1: [0.3 * 1.02**night for night in range(29)], **{n: noisy(29, n) for n in range(2, 12)}}
    )
    assert [change.cell.rpartition("op")[2] for change in report.changes] == ["1"]


def test_a_silent_night_is_no_drift(tmp_path: Path) -> None:
    shares = {1: noisy(14, 1), 2: noisy(14, 2)}
    shares[1][5] = shares[1][6] = 0
    assert history(tmp_path, shares).changes == []


def test_too_few_nights_are_said(tmp_path: Path) -> None:
    report = history(tmp_path, {1: [0.3] * 5 + [0.9]})
    assert report.changes == []
    assert "drift needs 8 earlier nights: 1 of 1 figures have fewer" in report.facts


def everything(tmp_path: Path) -> Report:
    """Fifty changes of every kind."""
    many = range(50)
    for number in range(10):
        rows = [nights.row(opset=opset, version="1.1", value=1e-5) for opset in many]
        rows += [nights.row(opset=opset, version="1.2", status=("PASS", "FAIL")[number % 2]) for opset in many]
        nights.write(tmp_path, number, *rows)
        nights.write(tmp_path, number, *(nights.row(box=f"gone{box}") for box in many), tag="g")
    changes = [("1.3", "PASS", "FAIL"), ("1.4", "FAIL", "PASS"), ("1.5", "CRASH", "FAIL"), ("1.6", "XFAIL", "XPASS")]
    old, new = [], [nights.row(opset=opset, version="1.1", value=2e-5 + opset * 1e-7) for opset in many]
    for version, was, its in changes:
        old += [nights.row(opset=opset, version=version, status=was, reason="r") for opset in many]
        new += [
            nights.row(opset=opset, version=version, status=its, reason=f"r{opset}", message=f"m{opset}", step=opset)
            for opset in many
        ]
    old += [nights.row(opset=opset, version="1.7") for opset in many]
    new += [nights.row(opset=17, version=f"2.{number}") for number in many]
    new += [nights.row(opset=99, layout="split", version="1.3"), nights.row(opset=99, version="1.3")]
    new += [nights.row(opset=opset, version="1.2") for opset in many]
    nights.write(tmp_path, 9, *old, hour=3)
    nights.write(tmp_path, 10, *new)
    return compare(f"{tmp_path}@{nights.day(9)}", f"{tmp_path}@newest")


def test_a_page_has_sixty_lines_at_most_and_json_has_everything(tmp_path: Path) -> None:
    report = everything(tmp_path)
    assert set(groups(report)) == set(GROUPS)
    page = diff_page.markdown(report)
    assert len(page.splitlines()) <= 60
    for group, title in GROUPS.items():
        count = groups(report).count(group)
        assert f"### {title} ({count})" in page, group
    assert "\n- and " in page
    full = json.loads(diff_page.to_json(report))
    assert len(full["changes"]) == len(report.changes) > 300
    assert full["counts"]["failing"] == 50
    assert full["worse"] is True


def test_every_kind_has_its_lines_when_there_is_room(tmp_path: Path) -> None:
    old = [nights.row(opset=opset) for opset in range(40)]
    new = [nights.row(opset=opset, status="FAIL", step=opset) for opset in range(40)]
    page = diff_page.markdown(between(tmp_path, old, new))
    assert page.count("PASS → FAIL") == 40
    assert "more" not in page


def test_a_runtimes_words_do_not_break_the_page(tmp_path: Path) -> None:
    broken = nights.row(status="CRASH", message="<img src=x> [a](b) | `c`\n# d", box="b`o|x")
    page = diff_page.markdown(between(tmp_path, [nights.row(box="b`o|x")], [broken]))
    (line,) = [line for line in page.splitlines() if "CRASH" in line]
    assert r"\<img src=x> \[a\](b) \| \`c\` # d" in line
    assert r"on b\`o\|x" in line


def test_the_command_writes_both_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights.write(tmp_path, 0, *nights.cell())
    nights.write(tmp_path, 1, *nights.cell(status="FAIL"))
    (tmp_path / LAST_GOOD).write_text(nights.day(0) + "\n")
    words = ["diff", f"{tmp_path}@last-good", f"{tmp_path}@newest", "--json", str(tmp_path / "d.json")]
    assert cli.main(words) == 1
    shown = capsys.readouterr().out
    assert cli.main([*words, "--out", str(tmp_path / "d.md")]) == 1
    assert (tmp_path / "d.md").read_text(encoding="utf-8") == shown
    assert json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))["counts"]["failing"] == 10
