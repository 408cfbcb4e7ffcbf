"""What tests of the gate have in common: policies, rows, and a ruling over them."""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from conform.commands import gate as command
from conform.texts import scorer_of
from harness.core import verdict
from harness.core.rows import Row
from reports import gate, policy, ruling
from reports.results import Results
from tests import helpers, nights

NOW = datetime.fromisoformat(f"{nights.day(0)}T12:00:00+00:00")

CELLS = "ort@*/cpu/torchscript/unified/fp32/op17"

TEXTS = scorer_of(helpers.EMBEDDED)

REQUIRE = f'[[require]]\ncells = ["{CELLS}"]\n'


def waive(what: str, expires: str = "2026-12-31", cells: str = CELLS, more: str = "") -> str:
    return f'[[waive]]\ncells = ["{cells}"]\nwhat = ["{what}"]\nreason = "known"\nexpires = {expires}\n{more}\n'


def judged(tmp_path: Path, text: str, *found: Row, baseline: list[Row] | None = None) -> ruling.Ruling:
    """The ruling of a policy's text over rows of night 0, at noon of that day."""
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


@pytest.fixture
def real(ort_run: Any, tmp_path: Path) -> Path:
    """A copy of a real run's results."""
    shutil.copytree(ort_run[1], tmp_path / "real")
    return tmp_path / "real"


def judged_as(results: Path, text: str) -> ruling.Ruling:
    place = results.parent / "policy.toml"
    place.write_text(text, encoding="utf-8")
    return gate.judge(policy.load(place), read_results(results), None, TEXTS)


def judge_text(results: Path, table: str) -> ruling.Ruling:
    return judged_as(results, f"{REQUIRE}[text]\n{table}\n")
