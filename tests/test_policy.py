"""Policies as files, the ready ones, and what `conform gate` writes."""

import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conform import cli
from reports import compaction, policy
from reports.pieces import STAMP
from tests import gating, nights
from tests.gating import REQUIRE, changed, judge_text, reasons, waive

real = gating.real


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
        (REQUIRE + "[text]\nloss = 3", "text loss: is no table of numbers"),
        (REQUIRE + '[text]\nloss = { fp32 = 1 }\nmethod = "bootstrp"', "did you mean 'bootstrap'?"),
        (REQUIRE + "[text]\nloss = { fp32 = 1 }\nsamples = 3", "samples is 3; give a whole number of 100 or more"),
        (REQUIRE + "[text]\nloss = { fp32 = 1 }\nconfidence = 95", "confidence is 95; give a number between 0 and 1"),
        (REQUIRE + "[cost]\nstep_p50 = 1.1", "cost: unknown word 'step_p50', did you mean 'step_p50_seconds'?"),
        (REQUIRE + '[logits]\nfp32 = "x"', "logits fp32: 'x' is no number"),
        ("[[require", "not a policy in TOML"),
        (REQUIRE + "[cost]\nfile_bytes = 1.1", "has budgets of cost; give what they are measured by with --baseline"),
    ],
)
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
    [
        ("a[1-3]b", ["a1b", "a2b", "a3b"]),
        ("{x,yz}/op{9..11}", ["x/op9", "x/op10", "x/op11", "yz/op9", "yz/op10", "yz/op11"]),
        ("*?[!a]", ["*?[!a]"]),
        ("op1[02-4]", ["op10", "op12", "op13", "op14"]),
    ],
)
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
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
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
