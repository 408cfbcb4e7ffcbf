"""``conform exporters``: what is refused, what is silently another opset, what is wrong, what dies; each really measured."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conform import cli
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.rows import Answer, Row, to_json
from harness.golden import exporters
from harness.run import worker
from harness.run.exporters import Survey, version
from harness.run.process import Limits, Process
from reports.folders import read_all
from tests import helpers
from tests.models import make_model

pytestmark = pytest.mark.filterwarnings("ignore")  # exporters warn of themselves
TORCH = version("torchscript")
CELL = Cell("torchscript", TORCH, "cpu", "eager", "unified", "fp32", 17)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy-en-zh"
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def survey(
    model: Path, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[tuple[str, str, str, int], Row], Path]:
    """Rows of opset 13 by (exporter, attention or source, layout, opset), and their folder."""
    results = tmp_path_factory.mktemp("exporters") / "results"
    rows = Survey(str(model), bundle, opsets=[13]).run(results, Limits(), lambda row: None)
    return {(row.backend, row.exporter, row.layout, row.opset): row for row in rows}, results


@pytest.mark.parametrize("layout", ["split", "unified"])
def test_what_is_right_passes(layout: str, survey: tuple[dict[Any, Row], Path]) -> None:
    for exporter, variant in (("torchscript", "eager"), ("converter", "from12")):
        row = survey[0][exporter, variant, layout, 13]
        assert row.status == "PASS", row.message
        assert row.compared > 1000
        assert row.value is not None
        assert 0 < row.value < 10, "near PyTorch's own noise"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_another_opset_than_asked_for_fails(attention: str, survey: tuple[dict[Any, Row], Path]) -> None:
    row = survey[0]["dynamo", attention, "unified", 13]
    assert (row.status, row.kind, row.message, row.compared) == ("FAIL", "opset", "asked for 13, wrote 18", 0)


def test_a_refusal_gives_the_exporters_own_words(survey: tuple[dict[Any, Row], Path]) -> None:
    row = survey[0]["torchscript", "sdpa", "split", 13]
    assert (row.status, row.kind, row.stage) == ("UNSUPPORTED", "operator", "build")
    assert "'aten::scaled_dot_product_attention' to ONNX opset version 13 is not supported" in row.message
    row = survey[0]["converter", "from17", "split", 13]
    assert (row.status, row.kind) == ("UNSUPPORTED", "operator")
    assert row.message == "encoder: No Previous Version of LayerNormalization exists"


def test_every_cell_has_its_row(survey: tuple[dict[Any, Row], Path], valid: Callable[[Any], None]) -> None:
    rows, results = survey
    assert len(rows) == 14
    assert rows["torchscript", "eager", "split", 13].cell == f"torchscript@{TORCH}/cpu/eager/split/fp32/op13"
    assert rows["torchscript", "eager", "split", 13].command.endswith(
        "--exporter torchscript --opset 13 --layout split"
    )
    written = [row for _, row in read_all([results])]
    assert sorted(row.cell for row in written) == sorted(row.cell for row in rows.values())
    assert {row.check for row in written} == {"export"}
    valid(helpers.rows_in(results))


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exporters.golden(model, helpers.CORPUS, tmp_path_factory.mktemp("golden"), progress=False)


@pytest.fixture(scope="module")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> exporters.Files:
    """The worker's side in this process."""
    return exporters.Files(str(model), tmp_path_factory.mktemp("files"), lambda: None)


@pytest.mark.parametrize("exporter, variant", [("torchscript", "eager"), ("converter", "from17")])
def test_an_opset_beyond_the_newest_is_refused(
    exporter: str, variant: str, files: exporters.Files, bundle: Bundle
) -> None:
    answer = exporters.answer(CELL._replace(backend=exporter, exporter=variant, opset=99), files, bundle)
    assert (answer.status, answer.kind) == ("UNSUPPORTED", "opset"), answer.message
    words = ("encoder: Unsupported onnx_opset_version: 99", "encoder: Warning: invalid version")
    assert answer.message.startswith(words)


def test_wrong_numbers_fail(files: exporters.Files, bundle: Bundle, model: Path, tmp_path: Path) -> None:
    """A model whose weights changed after the golden was decoded stands for an exporter that computes something else."""
    honest = exporters.answer(CELL, files, bundle)
    assert honest.status == "PASS", honest.message
    shutil.copytree(model, tmp_path / model.name)
    weights = load_file(tmp_path / model.name / "model.safetensors")
    weights["final_logits_bias"][0, 5] += 0.5
    save_file(weights, tmp_path / model.name / "model.safetensors", metadata={"format": "pt"})
    changed = exporters.Files(str(tmp_path / model.name), tmp_path, lambda: None)
    answer = exporters.answer(CELL, changed, bundle)
    assert answer.status == "FAIL"
    assert "logits is off the golden by 0.5" in answer.message
    assert answer.compared == honest.compared


DEATHS = {
    "CRASH": ("os.kill(os.getpid(), signal.SIGSEGV)", "died of signal 11 (SIGSEGV)"),
    "TIMEOUT": ("time.sleep(60)", "no sign of life for 1 s"),
}


@pytest.mark.parametrize("status", DEATHS)
def test_a_dead_exporter_costs_its_own_cell_only(
    status: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does, says = DEATHS[status]
    answer = to_json(Answer("export", "PASS", compared=1))
    script = (
        "import os, signal, sys, time\nprint('{\"ready\": 1}', flush=True)\nfor line in sys.stdin:\n"
        f"    if 'sdpa/split/fp32/op12' in line: {does}\n"
        f"    print('{{\"answer\": ' + {answer!r} + '}}', '{{\"done\": 1}}', sep='\\n', flush=True)\n"
    )

    class Scripted(Process):
        def __init__(self, command: list[str], *others: Any) -> None:
            super().__init__([sys.executable, "-c", script], *others)

    monkeypatch.setattr(worker, "Process", Scripted)
    asked = ["exporters", str(model), "--results", str(tmp_path), "--exporter", "dynamo", "--opset", "11-12"]
    assert cli.main([*asked, "--timeout", "1"]) == 1
    rows = [row for _, row in read_all([tmp_path])]
    assert len(rows) == 8
    (dead,) = [row for row in rows if row.status != "PASS"]
    assert (dead.status, dead.message) == (status, says)
    assert dead.cell == f"dynamo@{TORCH}/cpu/sdpa/split/fp32/op12"
    assert f"export {status}: {says}" in capsys.readouterr().out


def test_an_unknown_exporter_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["exporters", str(model), "--results", str(tmp_path / "results"), "--exporter", "torchscript,dynamite"]
    assert cli.main(asked) == 2
    assert capsys.readouterr().err == "error: exporter dynamite: choose from torchscript, dynamo, converter\n"
    assert not (tmp_path / "results").exists()
