"""What a cell may use up: bounds, flips, costs and text."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.rows import Row
from tests import gating, nights
from tests.gating import REQUIRE, changed, judge_text, judged, reasons, waive

real = gating.real


def test_tokens_that_do_not_tell_their_flips_fail_the_budget(tmp_path: Path) -> None:
    made = judged(tmp_path, REQUIRE + "[flips]\nfp32 = 0.5", *changed("tokens", detail={}))
    assert [what for what, _ in reasons(made)] == ["flips"]


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


@pytest.mark.parametrize("budget, check", [("logits", "logits"), ("flips", "tokens"), ("text", "tokens")])
def test_a_budget_of_what_has_no_row_is_not_kept(tmp_path: Path, budget: str, check: str) -> None:
    words = "loss = { fp32 = 0.2 }" if budget == "text" else "fp32 = 0.9"
    text = f'{REQUIRE}checks = ["encoder"]\n[{budget}]\n{words}\n'
    rows = [row for row in nights.cell() if row.check != check]
    assert reasons(judged(tmp_path, text, *rows)) == [("missing", f"no {check} row")]
    both = text.replace('"encoder"', f'"encoder", "{check}"')
    assert reasons(judged(tmp_path, both, *rows)) == [("missing", f"no {check} row")], "said once"


def test_a_waived_failure_still_has_its_budgets(tmp_path: Path) -> None:
    bad = changed(
        "tokens",
        status="XFAIL",
        reason="a fault",
        detail={
            "rows": {"MATCH": 90, "TIE": 0, "DIVERGED": 10},
            "expected": {"seen": "FAIL", "reason": "a fault", "link": "l"},
        },
    )
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
        "step_p50_seconds on lab: 5 times the baseline's",
        "tokens_per_second on lab: 5 times the baseline's",
    ]


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
