"""``conform``: what each command says of itself, exit codes, and what this box has."""

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from conform import cli
from conform.commands import COMMANDS, backends
from harness.core import selectors
from tests import helpers

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


def conform(*arguments: object, **environment: str) -> Any:
    return helpers.run("conform.cli", *map(str, arguments), **environment)


def test_all_commands_are_listed() -> None:
    done = conform("--help")
    assert done.returncode == 0
    for name in NAMES:
        assert re.search(rf"^    {name}( +\S|$)", done.stdout, re.MULTILINE)


def test_every_module_of_the_commands_is_one() -> None:
    files = (Path(selectors.ROOT) / "conform" / "commands").glob("[!_]*.py")
    assert sorted(path.stem for path in files) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example_that_parses(name: str) -> None:
    done = conform(name, "--help")
    assert done.returncode == 0
    (example,) = re.findall(r"^example: conform (.+)$", done.stdout, re.MULTILINE)
    assert example.split()[0] == name
    assert cli._parser().parse_args(shlex.split(example)).run


def test_pytest_help_has_the_options_and_an_example() -> None:
    done = helpers.run("pytest", "--help")
    assert done.returncode == 0
    assert "example: pytest --backend=" in " ".join(done.stdout.split())
    for option in (
        "backend",
        "bundle",
        "opset",
        "layout",
        "precision",
        "backend-python",
        "cell-timeout",
        "memory-limit",
        "results",
        "resume",
        "reuse",
        "allow-absent",
        "exporter",
    ):
        assert f"--{option}" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-command",),
        ("matrix",),
        ("matrix", "x", "--format", "pdf"),
        ("record", "model"),
        ("record", "m", "--corpus", "c", "--out", "o", "--opset", "many"),
        ("explain",),
        ("record", "m", "--corpus", "c", "--out", "o", "--max-steps", "0"),
        ("record", "m", "--corpus", "c", "--out", "o", "--traced-steps", "-1"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_2(arguments: tuple[str, ...]) -> None:
    done = conform(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[0].startswith("usage: conform")
    assert done.stderr.splitlines()[-1].startswith("conform")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("matrix", "nowhere"), "nowhere: cannot be read as rows"),
        (("backends", "--backend-python", "/no/python"), "/no/python: no such interpreter"),
        (("explain", "ort/14"), "'ort/14' is not a cell; its form is ort@"),
        (("explain", "orrt@1.0/cpu/torchscript/unified/fp32/op17"), "did you mean 'ort'?"),
        (("explain", "ort@1.0/cpu/torchscript/unified/fp32/op17"), "version 1.0 was asked for"),
        (("explain", f"ort@{onnxruntime.__version__}/cpu/torchscript/unified/fp32/op99"), "--opset 9-"),
        (("explain", "ort@1/cpu/torchscript/unified/fp32/op17", "--bundle", "nowhere"), "no readable manifest.json"),
        (("expectations", "nowhere"), "nowhere: cannot be read as rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], words: str) -> None:
    done = conform(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_a_reader_that_has_seen_enough_is_no_error_and_no_verdict() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "conform.cli", "matrix", f"{selectors.ROOT}/docs/measured/versions.jsonl.gz"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "latin-1"])
@pytest.mark.parametrize("form", ["terminal", "csv"])
def test_a_console_that_is_not_utf_8_is_written_to(encoding: str, form: str) -> None:
    file = f"{selectors.ROOT}/docs/measured/versions.jsonl.gz"
    command = [sys.executable, "-m", "conform.cli", "matrix", file, "--format", form]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert r"\u2705" in done.stdout.decode(encoding), "which symbol it was can still be told"


def test_backends_are_shown_in_80_columns() -> None:
    done = conform("backends")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert len(line) <= 80
    for name in ("iree", "mnn", "openvino", "ort", "reference", "tract"):  # what the tests bring along
        assert re.search(rf"^{name} +present +\d[\w.]* +cpu fp32 +ran$", done.stdout, re.MULTILINE), done.stdout
    for name in selectors.names():
        assert re.search(rf"^{name}(@\S+)? +(absent|present) ", done.stdout, re.MULTILINE)
    assert re.search(rf"^ort +present +{re.escape(onnxruntime.__version__)} ", done.stdout, re.MULTILINE)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter with numpy and no runtime."""
    venv.create(tmp_path / "bare", symlinks=True)
    packages, site = tmp_path / "packages", next((tmp_path / "bare" / "lib").glob("python*/site-packages"))
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (Path(np.__file__).parents[1] / name).exists():
            (packages / name).symlink_to(Path(np.__file__).parents[1] / name)
    (site / "numpy.pth").write_text(f"{packages}\n", encoding="utf-8")
    return tmp_path / "bare" / "bin" / "python"


def test_a_backend_that_is_not_here_says_what_to_install(bare: Path) -> None:
    done = conform("backends", "--backend-python", bare)
    assert done.returncode == 0, done.stderr
    for name in selectors.names():
        assert re.search(rf"^{name} +absent +- +- +-$", done.stdout, re.MULTILINE)
        said = re.search(
            rf"^{name} is absent: .*cannot be.*(?:\n  \S.*)*\n    (\S.*(?:\n    .*)*)", done.stdout, re.MULTILINE
        )
        assert said, done.stdout
        assert re.match(r"(pip install|conform envs create) \S|.*\bsource\b", said[1]), "the exact line"
    for line in done.stdout.splitlines():
        assert len(line) <= 80


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(backends, "run", interrupted)
    assert cli.main(["backends"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_explain_passes_a_cell_that_passes(tmp_path: Path) -> None:
    cell = f"ort@{onnxruntime.__version__}/cpu/torchscript/unified/fp32/op17"
    done = helpers.run("conform.cli", "explain", cell, cwd=tmp_path, PYTHONPATH=str(helpers.ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert cell in done.stdout
    assert re.search(r"✅ logits +PASS +[\d,]+ compared", done.stdout)
    assert not list(tmp_path.iterdir()), "it writes nothing"
