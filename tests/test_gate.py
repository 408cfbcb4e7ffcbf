"""``conform gate``: every rule fails for its own reason, and passes when there is none."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.core import verdict
from harness.core.errors import UserError
from harness.core.rowfiles import read
from harness.core.rows import Row, to_json
from reports import gate, policy, ruling
from tests import gating, nights
from tests.gating import CELLS, NOW, REQUIRE, TEXTS, changed, judged, judged_as, read_results, reasons, waive

real = gating.real


def test_a_good_cell_passes(tmp_path: Path) -> None:
    made = judged(tmp_path, REQUIRE, *nights.cell())
    assert reasons(made) == []
    assert ruling.lines(made) == [
        f"PASS policy policy on {tmp_path / 'results'}: 1 required cells, 1 good, 0 bad, 0 reasons, 0 waived",
        f"note: judged by bundle {nights.BUNDLE}: 1 cells",
    ]


@pytest.mark.parametrize("status", ["FAIL", "CRASH", "TIMEOUT", "ERROR", "FLAKY", "XPASS"])
def test_what_fails_fails_and_has_no_waiver(tmp_path: Path, status: str) -> None:
    bad = changed("tokens", status=status, step=3, message="so it is", reason="known")
    (found,) = reasons(judged(tmp_path, REQUIRE, *bad))
    assert found == ("failed", f"tokens {status}, first at step 3: so it is")
    with pytest.raises(UserError, match="unknown word 'failed'"):
        judged(tmp_path, REQUIRE + waive("failed"), *bad)


@pytest.mark.parametrize(
    "what, rows_of, said",
    [
        ("missing", lambda: [nights.row(opset=9)], "no such cell on any box"),
        ("missing", lambda: [one for one in nights.cell() if one.check != "text"], "no text row"),
        ("unverified", lambda: changed("placement", status="UNVERIFIED", message="why"), "placement UNVERIFIED: why"),
        ("refused", lambda: changed("logits", status="UNSUPPORTED", message="opset"), "logits UNSUPPORTED: opset"),
        (
            "expected",
            lambda: changed("logits", status="XFAIL", reason="a fault"),
            "logits FAIL, expected: a fault (a link)",
        ),
        ("uncompared", lambda: changed("kv_values", compared=0), "kv_values compared nothing"),
    ],
)
def test_what_only_a_waiver_lets_pass(tmp_path: Path, what: str, rows_of: Callable[[], list[Row]], said: str) -> None:
    (tmp_path / "pass").mkdir()
    alone = judged(tmp_path, REQUIRE, *rows_of())
    assert (what, said) in reasons(alone)
    others = [nights.row(one, opset=14) for one in verdict.CHECKS]
    both = '[[require]]\ncells = ["ort@*/cpu/torchscript/unified/fp32/op1[47]"]\n'
    waived = judged(tmp_path / "pass", both + waive(what), *rows_of(), *others)
    assert reasons(waived) == []
    (line,) = [line for line in ruling.lines(waived) if line.startswith("waived until 2026-12-31")]
    assert said in line
    assert line.endswith("(known)") or "(known)" in line
    run_out = judged(tmp_path / "pass", both + waive(what, "2026-10-31"), *rows_of(), *others)
    assert {found for found, _ in reasons(run_out)} == {what, "waiver"}
    assert any("ran out on 2026-10-31: known" in text for _, text in reasons(run_out))


def test_a_waiver_that_matches_nothing_fails(tmp_path: Path) -> None:
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + waive("expected"), *nights.cell()))
    assert (what, said) == ("waiver", f"waiver 1 (expected of {CELLS}) matches nothing; take it out")


def test_a_waiver_holds_for_its_checks_and_boxes_only(tmp_path: Path) -> None:
    bad = changed("logits", status="XFAIL", reason="a fault")
    for more in ('checks = ["tokens"]', 'boxes = ["other"]'):
        assert {what for what, _ in reasons(judged(tmp_path, REQUIRE + waive("expected", more=more), *bad))} == {
            "expected",
            "waiver",
        }
    assert (
        reasons(judged(tmp_path, REQUIRE + waive("expected", more='checks = ["logits"]\nboxes = ["la*"]'), *bad)) == []
    )


def test_a_waiver_holds_for_its_bundle_only(tmp_path: Path) -> None:
    refused = {"status": "UNSUPPORTED", "message": "no Where"}
    rows = [*changed("logits", **refused), *(replace(row, bundle="big@b") for row in changed("logits", **refused))]
    found = judged(tmp_path, REQUIRE + waive("refused", more='bundle = "toy@*"'), *rows)
    assert [case.bundle for case in found.cells if case.open] == ["big@b"]
    (line,) = (line for line in ruling.lines(found) if line.startswith("FAIL ort@"))
    assert "op17 on lab with bundle big@b: refused: logits UNSUPPORTED" in line
    assert "| lab, big@b |" in ruling.summary(found)
    names = {test.get("name") for test in ElementTree.fromstring(ruling.junit(found)).iter("testcase")}
    assert names == {f"{rows[0].cell} with bundle {name}" for name in (nights.BUNDLE, "big@b")}
    assert reasons(judged(tmp_path, REQUIRE + waive("refused"), *rows)) == []
    gone = judged(tmp_path, REQUIRE + waive("missing", more='bundle = "toy@*"'), *nights.cell(), baseline=rows)
    assert ("missing", "no such cell on lab with bundle big@*") in reasons(gone)
    gone = judged(tmp_path, REQUIRE + waive("missing", more='bundle = "big@*"'), *nights.cell(), baseline=rows)
    assert reasons(gone) == []


def test_nothing_compared_is_no_pass_even_if_all_of_it_is_waived(tmp_path: Path) -> None:
    found = reasons(judged(tmp_path, REQUIRE + waive("missing"), nights.row(opset=9)))
    assert found == [("compared", "no required cell compared anything; a gate that compared nothing never passes")]


def test_what_was_only_built_was_not_compared(tmp_path: Path) -> None:
    not_run = [
        nights.row("artifact"),
        *(
            nights.row(check, "ABSENT", stage="build", kind="built", message="built in 2 s")
            for check in verdict.CHECKS[1:]
        ),
    ]
    made = judged(tmp_path, REQUIRE, *not_run)
    assert ("uncompared", "encoder ABSENT: built in 2 s") in reasons(made)
    assert ("compared", "0 elements compared, 1 are required") in reasons(made)
    made = judged(tmp_path, REQUIRE + waive("uncompared"), *not_run)
    assert not made.passed, "no waiver makes it a comparison"


def test_a_simulator_is_a_device_only_where_the_policy_says_so(tmp_path: Path) -> None:
    cell = nights.row().cell.replace("/cpu/", "/simulator-cpu/")
    simulated = [nights.row(check, device="simulator-cpu", cell=cell) for check in verdict.CHECKS]
    anywhere = REQUIRE.replace("/cpu/", "/*/")
    assert [what for what, _ in reasons(judged(tmp_path, anywhere, *simulated))] == ["missing", "compared"]
    named = judged(tmp_path, REQUIRE.replace("/cpu/", "/simulator-*/"), *simulated)
    assert reasons(named) == []


def test_each_member_of_a_promise_must_be_there(tmp_path: Path) -> None:
    text = '[[require]]\ncells = ["ort@*/cpu/torchscript/{split,unified}/fp32/op1[67]"]\nboxes = ["lab", "jet*"]\n'
    there = [*nights.cell(), *nights.cell(opset=16), *nights.cell(box="jet1", layout="split"), *nights.cell(box="jet2")]
    made = judged(tmp_path, text, *there)
    absent = {(case.cell.split("/", 3)[3], case.box) for case in made.cells if case.open}
    assert absent == {
        ("split/fp32/op16", "lab"),
        ("split/fp32/op17", "lab"),
        ("split/fp32/op16", "jet*"),
        ("unified/fp32/op16", "jet*"),
    }
    assert ("missing", "no such cell on lab") in reasons(made)


def test_what_the_baseline_has_and_these_results_lack_is_missing(tmp_path: Path) -> None:
    text = REQUIRE.replace("op17", "op*")
    before = [*nights.cell(version="1.31.0"), *nights.cell(version="1.31.0", opset=12)]
    made = judged(tmp_path, text, *nights.cell(), baseline=before)
    assert [(case.cell, what.what) for case in made.cells for what in case.open] == [
        ("ort@1.31.0/cpu/torchscript/unified/fp32/op12", "missing")
    ]
    assert reasons(judged(tmp_path, text, *nights.cell(), *nights.cell(opset=12), baseline=before)) == []


def test_what_the_baseline_has_is_of_its_bundle(tmp_path: Path) -> None:
    """Another bundle's cell of the same name stands in for none; a new recording of the bundle does."""
    toy, big = nights.cell(bundle="toy@a"), nights.cell(bundle="big@b")
    again = [replace(row, bundle="toy@c") for row in toy]
    assert reasons(judged(tmp_path, REQUIRE, *again, baseline=toy)) == []
    found = reasons(judged(tmp_path, REQUIRE, *again, baseline=[*toy, *big]))
    assert found == [("missing", "no such cell on lab with bundle big@*")]
    wide = REQUIRE.replace("unified", "*")
    split = nights.cell(bundle="big@b", layout="split")
    assert reasons(judged(tmp_path, wide + 'bundle = "toy@c"\n', *again, baseline=[*toy, *split])) == []
    found = reasons(judged(tmp_path, wide + 'bundle = "big@c"\n', *nights.cell(bundle="big@c"), baseline=split))
    assert found == [("missing", "no such cell on lab with bundle big@c")]


def test_too_few_elements_fail(tmp_path: Path) -> None:
    compared = 7 * 1000  # artifact, placement and cost hold nothing against PyTorch
    assert reasons(judged(tmp_path, REQUIRE + f"compared = {compared}", *nights.cell())) == []
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + f"compared = {compared + 1}", *nights.cell()))
    assert (what, said) == ("compared", "7,000 elements compared, 7,001 are required")


def test_rows_too_old_fail_unless_waived(tmp_path: Path) -> None:
    text = "max_age_hours = {}\n" + REQUIRE
    assert reasons(judged(tmp_path, text.format(10), *nights.cell())) == []
    ((what, said),) = reasons(judged(tmp_path, text.format(9), *nights.cell()))
    assert (what, said) == ("stale", "10 hours old, 9 are allowed")
    assert reasons(judged(tmp_path, text.format(9) + waive("stale"), *nights.cell())) == []


def test_rows_of_the_future_are_not_fresh(tmp_path: Path) -> None:
    ahead = nights.cell()
    path = nights.write(tmp_path / "results", 9, *ahead)
    read = read_results(path)
    (tmp_path / "policy.toml").write_text("max_age_hours = 20\n" + REQUIRE)
    ((what, said),) = reasons(gate.judge(policy.load(tmp_path / "policy.toml"), read, None, TEXTS, NOW))
    assert what == "stale"
    assert "which is in the future; set the clock of its box" in said


@pytest.mark.parametrize(
    "fields, what",
    [
        ({"stage": "build"}, "failed"),
        ({"value": math.nan}, "failed"),
        ({"compared": 0}, "uncompared"),
        ({"compared": -5}, "uncompared"),
    ],
)
def test_a_pass_that_is_none_fails(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    """Built is not ran, and a value that is no number was not held against anything."""
    assert [word for word, _ in reasons(judged(tmp_path, REQUIRE, *changed("logits", **fields)))] == [what]


def test_rows_of_a_fake_and_of_absent_backends_are_no_cells(tmp_path: Path) -> None:
    for name, found in (("fake", nights.cell(version="1.0-fake")), ("absent", [nights.absent("ort")])):
        nights.write(tmp_path / name, 0, *found)
        with pytest.raises(UserError, match="no cell has a row; nothing can be judged"):
            read_results(tmp_path / name)


@pytest.mark.parametrize("name, asked", [("device", "cuda"), ("precision", "fp16")])
def test_what_did_the_work_must_be_what_is_required(tmp_path: Path, name: str, asked: str) -> None:
    did = {"device": "cpu", "precision": "fp32"}[name]
    assert reasons(judged(tmp_path, REQUIRE + f'{name} = "{did}"', *nights.cell())) == []
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + f'{name} = "{asked}"', *nights.cell()))
    assert (what, said) == ("placement", f"{name} {asked} is required, {did} did the work")


def test_of_two_recordings_the_newest_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = nights.cell(bundle="toy@a", status="CRASH")
    nights.write(tmp_path / "results", 0, *old, hour=1, tag="old")
    assert reasons(judged(tmp_path, REQUIRE, *nights.cell(bundle="toy@b"))) == []
    assert "1 cells of an older recording of their bundle are not judged" in capsys.readouterr().err
    nights.write(tmp_path / "results", 0, *nights.cell(bundle="big@a", status="CRASH"), hour=1, tag="big")
    other = reasons(judged(tmp_path, REQUIRE, *nights.cell(bundle="toy@b")))
    assert ("failed", "logits CRASH") in other, "another bundle is another matter"


def test_a_policy_names_the_bundle_whose_cells_it_means(tmp_path: Path) -> None:
    named = REQUIRE + 'bundle = "toy@*"\n'
    assert reasons(judged(tmp_path, named, *nights.cell(bundle="toy@b"))) == []
    (tmp_path / "other").mkdir()
    found = reasons(judged(tmp_path / "other", named, *nights.cell(bundle="two-rows@c")))
    assert ("missing", "no such cell on any box with bundle toy@*") in found


@pytest.mark.parametrize("status", verdict.OF_RUNTIME)
def test_what_was_run_until_it_passed_is_not_stable(tmp_path: Path, status: str) -> None:
    before = nights.row("tokens", status, message="at step 3")
    run = nights.write(tmp_path / "results", 0, before, hour=1).stem
    (found,) = reasons(judged(tmp_path, REQUIRE, *nights.cell()))
    assert found == ("unstable", f"tokens passes, and was {status} in run {run} of the same night: at step 3")
    assert reasons(judged(tmp_path, REQUIRE + waive("unstable"), *nights.cell())) == []


def test_a_box_that_was_mended_and_an_earlier_night_are_no_instability(tmp_path: Path) -> None:
    nights.write(
        tmp_path / "results", 0, nights.row("tokens", "ERROR"), nights.row("logits", "FAIL", box="other"), hour=1
    )
    nights.write(tmp_path / "results", -1, nights.row("tokens", "FAIL"))
    mine = REQUIRE + 'boxes = ["lab"]\n'
    assert reasons(judged(tmp_path, mine, *nights.cell())) == []


@pytest.mark.parametrize("check", ["artifact", "text"])
@pytest.mark.parametrize("again", ["tokens", "the failure"])
def test_an_answer_given_here_takes_no_failure_away(real: Path, check: str, again: str) -> None:
    """A second run of the same night asks one check only; tokens without a text get one here, and an artifact row."""
    (path,) = real.glob("*.jsonl")
    rows = [row for row in read(str(path)) if row.layout == "unified"]
    message = "weights are not those of the manifest"
    rows = [replace(row, status="FAIL", message=message) if row.check == check else row for row in rows]
    failed, tokens = ([row for row in rows if row.check == one] for one in (check, "tokens"))
    bare = [row for row in rows if row.check not in ("artifact", "text")]
    first, second = (rows, tokens) if again == "tokens" else (bare, failed)
    for number, part in enumerate((first, second)):
        hour = f"23:0{number}:00Z"
        part = [replace(row, time=row.time[:11] + hour, run=row.run + "-1" * number) for row in part]
        lines = "".join(to_json(row) + "\n" for row in part)
        path.with_name(f"{path.stem}{'-1' * number}.jsonl").write_text(lines, encoding="utf-8")
    made = judged_as(real, REQUIRE)
    (reason,) = (reason for case in made.cells for reason in case.open)
    assert (reason.what, reason.check) == ("unstable" if again == "tokens" else "failed", check)
