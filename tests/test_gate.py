"""``conform gate``: every rule fails for its own reason, and passes when there is none."""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from conform import cli
from conform.commands import gate as command
from conform.texts import scorer_of
from harness.core import verdict
from harness.core.errors import UserError
from harness.core.rowfiles import read
from harness.core.rows import Row, to_json
from reports import compaction, gate, policy, ruling
from reports.pieces import STAMP
from reports.results import Results
from tests import helpers, nights

NOW = datetime.fromisoformat(f"{nights.day(0)}T12:00:00+00:00")
CELLS = "ort@*/cpu/torchscript/unified/fp32/op17"
TEXTS = scorer_of(helpers.EMBEDDED)
REQUIRE = f'[[require]]\ncells = ["{CELLS}"]\n'


def waive(what: str, expires: str = "2026-12-31", cells: str = CELLS, more: str = "") -> str:
    return f'[[waive]]\ncells = ["{cells}"]\nwhat = ["{what}"]\nreason = "known"\nexpires = {expires}\n{more}\n'


def judged(tmp_path: Path, text: str, *found: Row, baseline: list[Row] | None = None) -> ruling.Ruling:
    """The verdict of a policy's text over rows of night 0, at noon of that day."""
    place = tmp_path / "policy.toml"
    place.write_text(text, encoding="utf-8")
    nights.write(tmp_path / "results", 0, *found)
    before = None
    if baseline is not None:
        nights.write(tmp_path / "baseline", 0, *baseline)
        before = read_results(tmp_path / "baseline")
    return gate.judge(policy.load(place), read_results(tmp_path / "results"), before, TEXTS, NOW)


def read_results(path: Path) -> Results:
    return command.read(str(path), TEXTS)


def reasons(made: ruling.Ruling) -> list[tuple[str, str]]:
    """What stands against it: the policy's word and what is said."""
    assert made.passed == (not any(case.open for case in (*made.cells, *made.rules)))
    return [(reason.what, reason.message) for case in (*made.cells, *made.rules) for reason in case.open]


def changed(check: str, **fields: Any) -> list[Row]:
    """A good cell but for one check."""
    return [nights.row(one, **(fields if one == check else {})) for one in verdict.CHECKS]


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
        ("expected", lambda: changed("logits", status="XFAIL", reason="a fault"), "logits FAIL, expected: a fault (a link)"),
        ("uncompared", lambda: changed("kv_values", compared=0), "kv_values compared nothing"),
    ],
)  # fmt: skip
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
            "expected", "waiver",
        }  # fmt: skip
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
    not_run = [nights.row("artifact"), *(nights.row(check, "ABSENT", stage="build", kind="built", message="built in 2 s")
                                         for check in verdict.CHECKS[1:])]  # fmt: skip
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
        ("split/fp32/op16", "lab"), ("split/fp32/op17", "lab"), ("split/fp32/op16", "jet*"), ("unified/fp32/op16", "jet*"),
    }  # fmt: skip
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
    [({"stage": "build"}, "failed"), ({"value": math.nan}, "failed"), ({"compared": 0}, "uncompared"),
     ({"compared": -5}, "uncompared")],
)  # fmt: skip
def test_a_pass_that_is_none_fails(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    """Built is not ran, and a value that is no number was not held against anything."""
    assert [word for word, _ in reasons(judged(tmp_path, REQUIRE, *changed("logits", **fields)))] == [what]


def test_rows_of_a_fake_and_of_absent_backends_are_no_cells(tmp_path: Path) -> None:
    for name, found in (("fake", nights.cell(version="1.0-fake")), ("absent", [nights.absent("ort")])):
        nights.write(tmp_path / name, 0, *found)
        with pytest.raises(UserError, match="no cell has a row; nothing can be judged"):
            read_results(tmp_path / name)


def test_tokens_that_do_not_tell_their_flips_fail_the_budget(tmp_path: Path) -> None:
    made = judged(tmp_path, REQUIRE + "[flips]\nfp32 = 0.5", *changed("tokens", detail={}))
    assert [what for what, _ in reasons(made)] == ["flips"]


@pytest.mark.parametrize("name, asked", [("device", "cuda"), ("precision", "fp16")])
def test_what_did_the_work_must_be_what_is_required(tmp_path: Path, name: str, asked: str) -> None:
    did = {"device": "cpu", "precision": "fp32"}[name]
    assert reasons(judged(tmp_path, REQUIRE + f'{name} = "{did}"', *nights.cell())) == []
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + f'{name} = "{asked}"', *nights.cell()))
    assert (what, said) == ("placement", f"{name} {asked} is required, {did} did the work")


def test_logits_within_their_share_of_the_bound(tmp_path: Path) -> None:
    near = changed("logits", value=3.8e-5)
    assert reasons(judged(tmp_path, REQUIRE + "[logits]\nfp32 = 0.96", *near)) == []
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + "[logits]\nfp32 = 0.9", *near))
    assert (what, said) == ("logits", "0.95 of the bound used by logits, budget 0.9 in fp32")
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + "[logits]\nfp16 = 0.9", *near))
    assert (what, said) == ("logits", "the policy has no budget of logits for fp32")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_none_is_over_every_budget(tmp_path: Path, value: float) -> None:
    found = reasons(judged(tmp_path, REQUIRE + "[logits]\nfp32 = 0.9", *changed("logits", value=value)))
    assert [what for what, _ in found] == ["failed", "logits"]


def test_a_pass_over_its_own_bound_is_none(tmp_path: Path) -> None:
    ((what, said),) = reasons(judged(tmp_path, REQUIRE, *changed("logits", value=1e9, bound=4e-5)))
    assert (what, said) == ("failed", "logits says PASS with the value 1e+09 over its bound 4e-05")


def test_flips_count_ties_too(tmp_path: Path) -> None:
    some = changed("tokens", detail={"rows": {"MATCH": 97, "TIE": 3, "DIVERGED": 0}})
    assert reasons(judged(tmp_path, REQUIRE + "[flips]\nfp32 = 0.03", *some)) == []
    ((what, said),) = reasons(judged(tmp_path, REQUIRE + "[flips]\nfp32 = 0.02", *some))
    assert (what, said) == ("flips", "0.03 of the sentences leave the golden's tokens, budget 0.02 in fp32")


@pytest.mark.parametrize(
    "budget, check", [("logits", "logits"), ("flips", "tokens"), ("text", "tokens")]
)  # fmt: skip
def test_a_budget_of_what_has_no_row_is_not_kept(tmp_path: Path, budget: str, check: str) -> None:
    words = "loss = { fp32 = 0.2 }" if budget == "text" else "fp32 = 0.9"
    text = f'{REQUIRE}checks = ["encoder"]\n[{budget}]\n{words}\n'
    rows = [row for row in nights.cell() if row.check != check]
    assert reasons(judged(tmp_path, text, *rows)) == [("missing", f"no {check} row")]
    both = text.replace('"encoder"', f'"encoder", "{check}"')
    assert reasons(judged(tmp_path, both, *rows)) == [("missing", f"no {check} row")], "said once"


def test_a_waived_failure_still_has_its_budgets(tmp_path: Path) -> None:
    bad = changed("tokens", status="XFAIL", reason="a fault", detail={
        "rows": {"MATCH": 90, "TIE": 0, "DIVERGED": 10}, "expected": {"seen": "FAIL", "reason": "a fault", "link": "l"}
    })  # fmt: skip
    text = REQUIRE + waive("expected") + "[flips]\nfp32 = {}\n"
    assert reasons(judged(tmp_path, text.format(0.1), *bad)) == []
    assert [what for what, _ in reasons(judged(tmp_path, text.format(0.05), *bad))] == ["flips"]


def costly(times: list[float], boxes: tuple[str, ...] = ("lab",), version: str = "1.32.0") -> list[Row]:
    rows = []
    for box in boxes:
        for opset, factor in enumerate(times):
            detail = {"step_p50_seconds": 1e-3 * factor, "tokens_per_second": 1000 / factor}
            *others, cost = nights.cell(opset=opset, box=box, version=version)
            rows += [*others, replace(cost, detail=detail)]
    return rows


COST = REQUIRE.replace("op17", "op*") + "[cost]\nstep_p50_seconds = 1.2\ntokens_per_second = 1.2\n"


@pytest.mark.parametrize("base", ["1.31.0", "1.32.0"])
def test_costs_against_the_same_box(tmp_path: Path, base: str) -> None:
    before = costly([1.0] * 8, version=base)
    noise = [0.95, 1.0, 1.05, 1.0, 0.98, 1.02, 1.0, 1.01]
    honest = judged(tmp_path, COST, *costly(noise), baseline=before)
    assert reasons(honest) == []
    assert any(
        fact.startswith("step_p50_seconds on lab: 1 times the baseline's, median of 8 cells") for fact in honest.facts
    )
    (first, second) = reasons(judged(tmp_path, COST, *costly([1.5 * one for one in noise]), baseline=before))
    assert first[1].startswith("step_p50_seconds on lab: 1.5 times the baseline's, median of 8 cells, 95 % between 1.4")
    assert second[1].startswith("tokens_per_second on lab: 1.5 times")
    assert "budget 1.2; dearest ort@1.32.0" in first[1]


def test_a_cost_over_budget_by_less_than_its_spread_passes(tmp_path: Path) -> None:
    wild = [0.8, 1.25, 2.4, 1.3, 0.7, 1.9]
    made = judged(tmp_path, COST, *costly(wild), baseline=costly([1.0] * 6))
    assert reasons(made) == []
    assert any("1.27 times" in fact for fact in made.facts)


def test_costs_against_the_same_bundle(tmp_path: Path) -> None:
    dear = [replace(row, bundle="big@b") for row in costly([100.0] * 4)]
    found = reasons(judged(tmp_path, COST, *costly([5.0] * 4), baseline=[*costly([1.0] * 4), *dear]))
    assert [said.partition(",")[0] for what, said in found if what == "cost"] == [
        "step_p50_seconds on lab: 5 times the baseline's", "tokens_per_second on lab: 5 times the baseline's"
    ]  # fmt: skip


@pytest.mark.parametrize("figure", [None, math.nan, 0.0, "left out"])
@pytest.mark.parametrize("side", ["results", "baseline"])
def test_a_cost_that_was_not_measured_is_no_cost_within_its_budget(tmp_path: Path, figure: Any, side: str) -> None:
    sides = {"results": costly([1.0] * 4), "baseline": costly([1.0] * 4)}
    for row in sides[side]:
        if row.detail.pop("step_p50_seconds", None) and figure != "left out":
            row.detail["step_p50_seconds"] = figure
    found = reasons(judged(tmp_path, COST, *sides["results"], baseline=sides["baseline"]))
    assert found == [("cost", "step_p50_seconds: 0 cells of lab have a cost in the baseline too, 3 are needed")]


def test_costs_that_nobody_asked_for_are_not_within_their_budget(tmp_path: Path) -> None:
    text = COST.replace("[cost]", 'checks = ["logits"]\n[cost]')
    rows = [row for row in costly([1.0] * 4) if row.check != "cost"]
    assert {what for what, _ in reasons(judged(tmp_path, text, *rows, baseline=costly([1.0] * 4)))} == {"cost"}


def test_a_cost_without_a_baseline_fails(tmp_path: Path) -> None:
    found = reasons(judged(tmp_path, COST, *costly([1.0] * 4), baseline=costly([1.0] * 4, ("other",))))
    assert found[-2] == ("cost", "step_p50_seconds: 0 cells of lab have a cost in the baseline too, 3 are needed")
    two = judged(tmp_path, COST, *costly([1.0] * 2), baseline=costly([1.0] * 2))  # a median of two has no spread
    said = "step_p50_seconds: 2 cells of lab have a cost in the baseline too, 3 are needed"
    assert ("cost", said) in reasons(two)


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


@pytest.fixture
def real(ort_run: Any, tmp_path: Path) -> Path:
    """A copy of a real run's results."""
    shutil.copytree(ort_run[1], tmp_path / "real")
    return tmp_path / "real"


def judge_text(results: Path, table: str) -> ruling.Ruling:
    return judged_as(results, f"{REQUIRE}[text]\n{table}\n")


def judged_as(results: Path, text: str) -> ruling.Ruling:
    place = results.parent / "policy.toml"
    place.write_text(text, encoding="utf-8")
    return gate.judge(policy.load(place), read_results(results), None, TEXTS)


def spoil(results: Path, every: int) -> None:
    """Of every so manieth hypothesis of the unified cell only the first three tokens stay."""
    (place,) = results.glob("*/*unified*.tokens.npz")
    with np.load(place) as saved:
        ids = np.split(saved["tokens"], saved["token_starts"][1:-1])
    ids = [row[:3] if number % every == 0 else row for number, row in enumerate(ids)]
    np.savez(place, tokens=np.concatenate(ids), token_starts=np.cumsum([0] + [len(row) for row in ids]))


@pytest.mark.parametrize("method, sign", [("bootstrap", "bs:1000"), ("randomization", "ar:1000")])
def test_a_loss_of_bleu_beyond_the_budget_is_tested_in_pairs(real: Path, method: str, sign: str) -> None:
    table = f'method = "{method}"\nsamples = 1000\nloss = {{ fp32 = %s }}'
    equal = judge_text(real, table % "0.2")
    assert reasons(equal) == []
    assert equal.facts[0] == "text equal to the golden's, nothing to test: 1 fp32 cells"
    spoil(real, 4)
    ((what, said),) = reasons(judge_text(real, table % "0.2"))
    assert what == "text"
    assert said.startswith("BLEU 5")
    assert "the golden has 73.08: +1" in said
    assert "budget 0.2 in fp32, p = 0.00" in said
    assert f"{sign}|seed:12345|" in said
    assert "tok:zh" in said
    within = judge_text(real, table % "50")
    assert reasons(within) == []
    assert any("budget 50 in fp32, p = 0.00" in fact for fact in within.facts)


def test_a_loss_that_may_be_chance_passes_and_is_said(real: Path) -> None:
    spoil(real, 400)  # one sentence
    made = judge_text(real, "loss = { fp32 = 0.0 }\nconfidence = 0.999")
    assert reasons(made) == []
    fact = made.facts[0]
    assert "lost, budget 0 in fp32, p = " in fact


def test_text_that_cannot_be_judged_fails(real: Path) -> None:
    ((what, said),) = reasons(judge_text(real, "loss = { fp16 = 0.2 }"))
    assert (what, said) == ("text", "the policy has no budget of text for fp32")
    (place,) = real.glob("*/*unified*.tokens.npz")
    whole = place.read_bytes()
    for damaged in (whole[:-100], whole[:100] + bytes(100) + whole[200:], b"", None):
        place.write_bytes(damaged) if damaged is not None else place.unlink()
        ((what, said),) = reasons(judge_text(real, "loss = { fp32 = 0.2 }"))
        assert what == "text"
        assert said.startswith("the hypotheses cannot be read from ")
    for place in real.glob("*.jsonl"):
        place.write_text(place.read_text().replace("tiny-marian-en-zh@", "mine@"))
    ((what, said),) = reasons(judge_text(real, "loss = { fp32 = 0.2 }"))
    assert said.startswith("its bundle is mine@")
    assert said.endswith("give it with --bundle")


def test_text_of_a_box_without_pytest_is_answered_here(real: Path) -> None:
    """`python3 -m harness.replay` writes no artifact and no text row."""
    (place,) = real.glob("*.jsonl")
    kept = [
        line
        for line in place.read_text().splitlines(keepends=True)
        if '"text"' not in line and '"artifact"' not in line
    ]
    place.write_text("".join(kept))
    assert reasons(judge_text(real, "loss = { fp32 = 0.2 }")) == []


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


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "lacks require"),
        ("[[require]]\ncels = []", "require 1: unknown word 'cels', did you mean 'cells'?"),
        ("[[require]]", "require 1: lacks cells"),
        ("require = 3", "require: entries are written [[require]]"),
        ('[[require]]\ncells = ["ort@*"]', "'ort@*' is no pattern of cells; their form is ort@*/cpu"),
        ('[[require]]\ncells = "x"', "cells is 'x'; give a list of words in quotes"),
        (REQUIRE + 'checks = ["logit"]', "require 1: unknown word 'logit', did you mean 'logits'?"),
        (REQUIRE + "compared = 0", "compared is 0; give a whole number of 1 or more"),
        (REQUIRE + "device = 3", "device is 3; give text in quotes"),
        (REQUIRE + "[budget]", "unknown word 'budget'"),
        ('max_age_hours = "old"\n' + REQUIRE, "max_age_hours: 'old' is no number of 0 or more"),
        ("max_age_hours = inf\n" + REQUIRE, "max_age_hours: inf is no number of 0 or more"),
        (REQUIRE.replace("op17", "op{1..99999999}"), "promises more than 1000 cells; give a smaller range"),
        (REQUIRE.replace("op17", "op{17..12}"), "names no cell: a range goes from the lower number to the higher"),
        ("max_age_hours = -1\n" + REQUIRE, "max_age_hours: -1 is no number of 0 or more"),
        (REQUIRE + waive("expeted"), "waive 1: unknown word 'expeted', did you mean 'expected'?"),
        (REQUIRE + waive("expected", '"soon"'), "expires is 'soon'; write a day without quotes"),
        (REQUIRE + waive("expected").replace("known", " "), "reason is empty"),
        (REQUIRE + waive("expected").replace('reason = "known"\n', ""), "waive 1: lacks reason"),
        (REQUIRE + '[text]\nloss = 3', "text loss: is no table of numbers"),
        (REQUIRE + '[text]\nloss = { fp32 = 1 }\nmethod = "bootstrp"', "did you mean 'bootstrap'?"),
        (REQUIRE + "[text]\nloss = { fp32 = 1 }\nsamples = 3", "samples is 3; give a whole number of 100 or more"),
        (REQUIRE + "[text]\nloss = { fp32 = 1 }\nconfidence = 95", "confidence is 95; give a number between 0 and 1"),
        (REQUIRE + "[cost]\nstep_p50 = 1.1", "cost: unknown word 'step_p50', did you mean 'step_p50_seconds'?"),
        (REQUIRE + '[logits]\nfp32 = "x"', "logits fp32: 'x' is no number"),
        ("[[require", "not a policy in TOML"),
        (REQUIRE + "[cost]\nfile_bytes = 1.1", "has budgets of cost; give what they are measured by with --baseline"),
    ],
)  # fmt: skip
def test_a_policy_that_is_not_understood_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    place = tmp_path / "policy.toml"
    place.write_text(text, encoding="utf-8")
    nights.write(tmp_path / "results", 0, *nights.cell())
    assert cli.main(["gate", str(tmp_path / "results"), "--policy", str(place)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "policy" in line


@pytest.mark.parametrize(
    "results, name, words",
    [
        ("full", "nigthly", "nigthly: no such policy, did you mean 'nightly'?; give a .toml file; the ready ones are"),
        ("empty", "nightly", "empty: no rows; run pytest --backend"),
        ("absent", "nightly", "absent: no cell has a row; nothing can be judged"),
        ("nowhere", "nightly", "nowhere: no such folder or file"),
        ("full@", "nightly", "full@: names no night after @; give DIR@2026-11-30"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, results: str, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nights.write(Path("full"), 0, *nights.cell())
    nights.write(Path("absent"), 0, nights.absent("tensorrt"))
    Path("empty").mkdir()
    assert cli.main(["gate", results, "--policy", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


@pytest.mark.parametrize(
    "pattern, members",
    [("a[1-3]b", ["a1b", "a2b", "a3b"]), ("{x,yz}/op{9..11}", ["x/op9", "x/op10", "x/op11", "yz/op9", "yz/op10", "yz/op11"]),
     ("*?[!a]", ["*?[!a]"]), ("op1[02-4]", ["op10", "op12", "op13", "op14"])],
)  # fmt: skip
def test_promises_are_expanded(pattern: str, members: list[str]) -> None:
    assert policy.expand(pattern) == members


def test_a_pattern_matches_part_by_part() -> None:
    cell = "ort@1.32.0/cpu/torchscript/unified/fp32/op17"
    assert policy.matches("ort@1.3?.*/cpu/*/*/fp32/op*", cell)
    assert not policy.matches("ort@*/unified/fp32/op17", cell)
    assert not policy.matches("ort@*/*/*/*/*/op1", cell)


def ready(results: Path, name: str, *more: str) -> int:
    return cli.main(["gate", str(results), "--policy", name, *more])


def opsets(results: Path) -> None:
    """The run of opset 17 again as one of opsets 12 to 17, all of it as of now."""
    (place,) = results.glob("*.jsonl")
    now = datetime.now(timezone.utc).strftime(STAMP)
    text = re.sub(r'"time": "[^"]+"', f'"time": "{now}"', place.read_text(encoding="utf-8"))
    copies = [
        text.replace("/op17", f"/op{opset}").replace('"opset": 17', f'"opset": {opset}') for opset in range(12, 18)
    ]
    place.write_text("".join(copies), encoding="utf-8")


@pytest.mark.parametrize("name", ["nightly", "new-opset", "new-runtime"])
def test_ready_policies_pass_an_honest_run_and_fail_a_bad_one(real: Path, name: str, capsys: Any) -> None:
    opsets(real)
    shutil.copytree(real, real.parent / "baseline")
    more = ["--baseline", str(real.parent / "baseline")] if name == "new-runtime" else []
    assert ready(real, name, *more) == 0
    assert capsys.readouterr().out.startswith("PASS ")
    (place,) = real.glob("*.jsonl")
    good = place.read_text(encoding="utf-8")
    for old, new, what in (
        ('"check": "logits", "status": "PASS"', '"check": "logits", "status": "FAIL"', "failed: logits FAIL"),
        ('"check": "placement", "status": "PASS"', '"check": "placement", "status": "UNVERIFIED"', "unverified: "),
        ('"check": "kv_values"', '"check": "encoder"', "missing: no kv_values row"),
        ("/unified/", "/static/", "missing: no such cell"),
        (datetime.now(timezone.utc).strftime('"%Y-'), '"2025-', "stale: "),
    ):
        place.write_text(good.replace(old, new), encoding="utf-8")
        assert ready(real, name, *more) == 1
        shown = capsys.readouterr().out
        assert f": {what}" in shown, (what, shown)
        assert [line for line in shown.splitlines() if not line.startswith(("FAIL ", "note: "))] == []


def test_every_ready_policy_is_tested_and_listed() -> None:
    assert sorted(path.stem for path in policy.READY.glob("*.toml")) == ["new-opset", "new-runtime", "nightly"]


def test_pages_for_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad = changed("logits", status="CRASH", message="a | b <c>\x00 `d`")
    nights.write(
        tmp_path / "results",
        0,
        *bad,
        *nights.cell(opset=9),
        *changed("logits", status="XFAIL", reason="r", opset=9)[2:3],
    )
    text = '[[require]]\ncells = ["ort@*/cpu/torchscript/unified/fp32/op*"]\n'
    text += waive("expected", "2999-01-01", "*/*/*/*/*/op9")
    (tmp_path / "p.toml").write_text(text)
    junit, page, step = tmp_path / "j.xml", tmp_path / "s.md", tmp_path / "step.md"
    step.write_text("before\n")
    words = ["gate", str(tmp_path / "results"), "--policy", str(tmp_path / "p.toml"), "--junit", str(junit)]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    assert cli.main(words) == 1
    assert cli.main([*words, "--summary", str(page)]) == 1
    assert step.read_text() == "before\n" + page.read_text()
    (suite,) = ElementTree.parse(junit).getroot()
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2", "failures": "1", "errors": "0", "skipped": "1",
    }  # fmt: skip
    names = {test.attrib["name"]: test for test in suite}
    failed = names[bad[0].cell].find("failure")
    assert failed is not None
    assert "a | b <c>\ufffd `d`" in failed.attrib["message"]
    assert "pytest --backend=ort --opset=17 --layout=unified -k logits" in str(failed.text)
    skipped = names[bad[0].cell.replace("op17", "op9")].find("skipped")
    assert skipped is not None
    assert "waived until 2999-01-01: known" in skipped.attrib["message"]
    shown = page.read_text(encoding="utf-8")
    assert shown.startswith("## ❌ Gate: FAIL policy p on ")
    assert r"a \| b \<c>" in shown
    rows_ = [line for line in shown.splitlines() if line.startswith("| `ort")]
    assert len(rows_) == 2
    assert "pytest --backend=ort --opset=17" in capsys.readouterr().out


def test_a_pass_names_the_last_good_night_and_a_failure_does_not(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(REQUIRE)
    results = tmp_path / "results"
    nights.write(results, 0, *nights.cell())
    nights.write(results, 1, *nights.cell(status="FAIL"))
    words = ["--policy", str(tmp_path / "p.toml"), "--good"]
    assert cli.main(["gate", f"{results}@newest", *words]) == 1
    assert not (results / "last-good").exists()
    assert cli.main(["gate", f"{results}@{nights.day(0)}", *words]) == 0
    assert (results / "last-good").read_text() == nights.day(0) + "\n"
    assert cli.main(["gate", f"{results}@last-good", *words]) == 0
    assert sorted(path.name for path in results.iterdir() if path.suffix != ".jsonl") == ["last-good"]


def test_a_good_night_is_one_that_was_judged_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text(REQUIRE)
    results = tmp_path / "results"
    one = nights.write(results, 0, *nights.cell())
    nights.write(results, 0, *nights.cell(status="FAIL"), hour=3)
    words = ["--policy", str(tmp_path / "p.toml"), "--good"]
    assert cli.main(["gate", str(one), *words]) == 2
    assert "is one run of a night; give the folder" in capsys.readouterr().err
    assert not (results / "last-good").exists()
    assert cli.main(["gate", str(one), *words[:2]]) == 0
    nights.write(results, 1, *nights.cell())
    nights.write(results, 2, nights.absent("mnn"))
    assert cli.main(["gate", str(results), *words]) == 0
    assert (results / "last-good").read_text() == nights.day(1) + "\n", "of the third night nothing was judged"
    (results / "last-good").write_bytes(b"\xff")
    capsys.readouterr()
    assert cli.main(["gate", f"{results}@last-good", *words]) == 2
    assert "last-good: names no night" in capsys.readouterr().err


def test_compacted_rows_are_judged_alike(real: Path) -> None:
    before = judge_text(real, "loss = { fp32 = 0.2 }")
    compaction.compact(real, "2999-01-01", delete=True, say=lambda line: None)
    assert [case.cell for case in judge_text(real, "loss = { fp32 = 0.2 }").cells] == [
        case.cell for case in before.cells
    ]
    assert reasons(judge_text(real, "loss = { fp32 = 0.2 }")) == []
