"""The harness held to known-bad backends: the right check must fail, at the right first step, with the right blame, and
what is right must still pass; and to honest ones, of which nothing may fail."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import ort
from backends.contract import Absent, Backend
from harness.core.bundle import Bundle
from harness.core.rows import Row
from harness.core.verdict import NUMERIC
from harness.judge.golden import Golden
from harness.run import preflight
from harness.run.text import Scorer, complete
from tests import helpers
from tests.saboteurs import bundles, cache, controls, feeds, graph, loop, outputs, process, refusals, runtimes, static
from tests.saboteurs.frame import Control, Refusal, Saboteur, Step, array_edit, brief, spoilt, whole

SABOTEURS = [one for kind in (graph, feeds, cache, outputs, loop, static, bundles, runtimes) for one in kind.SABOTEURS]
DIAGNOSES = {
    "output bias missing": ("bias", "one-entry", "pad-on-top-always"),
    "fully masked": ("fully-masked", "nan-from", "1e9-in-fp16"),
    "started with another token": ("starts-with",),
    "position frozen": ("position", "late", "embedding"),
}
"""Words of a diagnosis, and what the name of a saboteur that deserves it holds."""
CONTROLS = [(control, layout) for control in controls.CONTROLS for layout in control.layouts]


def answer(
    backend: Backend, layout: str, opset: int, checks: tuple[str, ...], of: Golden, folder: Path
) -> dict[str, Row]:
    """The rows of one cell, artifact and text included, as a conformance run would give them."""
    rows: dict[str, Row] = {}
    bundle = of.bundle
    if "artifact" in checks:
        wanted = f"torchscript/{layout}/fp32/op{opset}"
        rows["artifact"] = preflight.check(bundle, next(graph for graph in bundle.graphs if graph.id == wanted))
    numeric = tuple(check for check in NUMERIC if check in checks or (check == "tokens" and "text" in checks))
    if numeric:
        rows.update(helpers.judge(backend, layout, opset, numeric, of, str(folder / "series" / "cell")))
    if "text" in checks:
        rows["text"] = complete(Scorer(bundle), rows["tokens"], str(folder))
    return {check: rows[check] for check in checks}


def golden_of(one: Saboteur | Control, folder: Path) -> Golden:
    if one.bundle is None:
        return whole() if isinstance(one, Control) and one.whole else brief()
    witnessed = f"torchscript/{one.layout}/fp32/op{one.opset}" if isinstance(one, Saboteur) and one.witnessed else ""
    return Golden(Bundle(str(spoilt(folder, one.bundle, witnessed))), "fp32")


def named(expected: Step, step: int | None) -> bool:
    if callable(expected):
        expected = expected(brief())
    return expected is None or step == expected or (isinstance(expected, tuple) and step in expected)


def problems(saboteur: Saboteur, rows: dict[str, Row]) -> list[str]:
    """What the harness said that it should not have said, or did not say; one line each."""
    found = []
    for check, row in rows.items():
        said = f"{check}: {row.status} step {row.step} blame {row.blame or '-'} knob {row.knob or '-'}: {row.message}"
        if check in saboteur.passes:
            if row.status != "PASS":
                found.append(f"should pass, {said}")
            continue
        if row.status != saboteur.status or (saboteur.kind and row.kind != saboteur.kind):
            found.append(f"should be {saboteur.status} {saboteur.kind}, {said}")
            continue
        if not named(saboteur.fails[check], row.step):
            found.append(f"another step, {said}")
        if row.blame != saboteur.blame:
            found.append(f"should blame {saboteur.blame or 'nobody'}, {said}")
        if saboteur.knob and row.knob != saboteur.knob:
            found.append(f"should name {saboteur.knob}, {said}")
        if check == next(iter(saboteur.fails)) and saboteur.says not in row.message:
            found.append(f"should say {saboteur.says!r}, {said}")
    return found + misled(saboteur, rows)


def misled(saboteur: Saboteur, rows: dict[str, Row]) -> list[str]:
    """Rows whose message names a cause that this saboteur is not."""
    return [
        f"names a wrong cause, {check}: {row.message}"
        for check, row in rows.items()
        for words, names in DIAGNOSES.items()
        if words in row.message and not any(name in saboteur.name for name in names)
    ]


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=[one.name for one in SABOTEURS])
def test_fault_is_found(saboteur: Saboteur, tmp_path: Path) -> None:
    try:
        rows = answer(
            saboteur.make(), saboteur.layout, saboteur.opset, saboteur.checks, golden_of(saboteur, tmp_path), tmp_path
        )
    except Absent as absent:
        pytest.skip(absent.reason)
    assert not problems(saboteur, rows), "\n".join(problems(saboteur, rows))


@pytest.mark.parametrize("control, layout", CONTROLS, ids=[f"{control.name}-{layout}" for control, layout in CONTROLS])
def test_honest_backend_passes(control: Control, layout: str, tmp_path: Path) -> None:
    try:
        rows = answer(control.make(), layout, control.opset, control.checks, golden_of(control, tmp_path), tmp_path)
    except Absent as absent:
        pytest.skip(absent.reason)
    wrong = [
        f"{check}: {row.status} step {row.step}: {row.message}" for check, row in rows.items() if row.status != "PASS"
    ]
    assert not wrong, "\n".join(wrong)
    assert all(row.compared for row in rows.values())


@pytest.mark.parametrize("refusal", refusals.REFUSALS, ids=[one.name for one in refusals.REFUSALS])
def test_refused_before_any_backend(refusal: Refusal, tmp_path: Path) -> None:
    with pytest.raises(refusal.error) as refused:
        refusal.attempt(tmp_path)
    assert refusal.says in str(refused.value)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The logits and probe rows of one conformance run of all failing adapters."""
    folder = tmp_path_factory.mktemp("trials")
    (folder / "broken_adapter.py").write_text("class Backend(:\n", encoding="utf-8")
    low, high = process.OPSETS
    done = helpers.conformance(
        folder / "results",
        f"--backend={','.join(trial.selector for trial in process.TRIALS)}",
        f"--bundle={brief().bundle.path}",
        f"--opset={low}-{high}",
        "--layout=unified",
        "-k",
        "logits",
        "--cell-timeout=10",
        "--memory-limit=0.8",
        PYTHONPATH=str(folder),
    )
    assert done.returncode == 1, done.stdout[-3000:]
    return helpers.rows_in(folder / "results")


@pytest.mark.parametrize("trial", process.TRIALS, ids=[one.name for one in process.TRIALS])
def test_failing_adapter_is_its_own_rows_only(trial: process.Trial, trials: list[dict[str, Any]]) -> None:
    last = {row["opset"] or 0: row for row in trials if row["backend"] == trial.selector}
    assert {opset: row["status"] for opset, row in last.items()} == trial.statuses, last
    row = last[max(last)]
    assert trial.says in row["message"]
    assert trial.kind in ("", row["kind"])


def test_nothing_selected_is_no_success(tmp_path: Path) -> None:
    done = helpers.conformance(tmp_path / "results", "--opset=17", "-k", "nothing_of_the_kind")
    assert done.returncode == 5


def test_import_against_the_wrong_numpy_is_not_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is here, and broken: an environment fault with the pin to add, not a package to install."""

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "onnxruntime":
                raise ImportError(process.NUMPY)

    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(Exception) as failed:
        ort.Backend().probe()
    assert not isinstance(failed.value, Absent)
    assert "numpy<2" in str(failed.value)


def _golden_ids() -> list[np.ndarray]:
    return [brief().bundle.tokens(row) for row in range(len(brief().bundle.rows))]


def test_all_hypotheses_empty_score_nothing() -> None:
    row = Scorer(brief().bundle).check([np.zeros(0, np.int64)] * len(brief().bundle.rows), [], "fp32")
    assert (row.status, row.value) == ("FAIL", 0.0)
    assert "empty" in row.message


def test_an_empty_golden_is_not_a_fault(tmp_path: Path) -> None:
    rules = brief().bundle.decode
    row = brief().bundle.manifest["batches"]["free"][-1][-1]
    at = brief().bundle.token_slice(row)

    def emptied(tokens: np.ndarray) -> np.ndarray:
        tokens[at] = rules.eos
        return tokens

    def edit(folder: Path, manifest: dict[str, Any]) -> None:
        array_edit("tokens", emptied)(folder, manifest)
        del manifest["golden_text"]

    bundle = Bundle(str(spoilt(tmp_path, edit)))
    assert not Scorer(bundle).golden[row]
    found = Scorer(bundle).check([bundle.tokens(index) for index in range(len(bundle.rows))], [], "fp32")
    assert found.status == "PASS"
    assert found.value is not None
    assert found.value > 10


def test_chinese_is_scored_by_characters() -> None:
    row = Scorer(brief().bundle).check(_golden_ids(), [], "fp32")
    assert "tok:zh" in row.detail["signatures"]["BLEU"]
    assert row.value == row.floor


def test_scores_of_another_signature_are_not_compared(tmp_path: Path) -> None:
    """A bundle recorded with another tokenizer's scores: the golden is scored anew beside what differs from it."""

    def edit(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["golden_text"]["scores"] = {"BLEU": 1.0, "chrF": 1.0}
        manifest["golden_text"]["signatures"]["BLEU"] = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:1.0.0"

    bundle = Bundle(str(spoilt(tmp_path, edit)))
    ids = [*_golden_ids()[1:], np.zeros(0, np.int64)]
    row = Scorer(bundle).check(ids, [], "fp32")
    assert "tok:zh" in row.detail["signatures"]["BLEU"]
    assert row.floor is not None
    assert row.floor > 10
    assert row.status == "FAIL"


def test_a_changed_golden_is_named_and_no_backend_blamed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from harness.golden.against import against

    def nudged(logits: np.ndarray) -> np.ndarray:
        logits[40] += 1e-3
        return logits

    new = Bundle(str(spoilt(tmp_path, array_edit("trace_logits", nudged))))
    said = against(brief().bundle, new)
    assert any("logits" in line and "0.001" in line for line in said), said
    assert not against(brief().bundle, brief().bundle)


ELSEWHERE = {14, 16, 31, 48, 49, 50, 51}
"""Cases that the tests above are about, beside the declared ones."""


def test_every_public_fault_has_its_case() -> None:
    declared = [*SABOTEURS, *controls.CONTROLS, *refusals.REFUSALS, *process.TRIALS]
    assert {one.case for one in declared} | ELSEWHERE >= set(range(1, 52))
    names = [one.name for one in declared]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)
