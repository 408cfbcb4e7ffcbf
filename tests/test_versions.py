"""Other versions of a runtime: the registry, environments made of it, workers side by side, graphs under another stamp."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends import contract
from harness.core import selectors, verdict
from harness.core.errors import UserError
from harness.run import envs
from harness.run.launch import cores
from tests import helpers
from tests.mutant import Mutant

OLD = "ort@1.10"
TAKES = 15
"""The newest opset that it takes."""


def conform(*arguments: str, **environment: str) -> Any:
    return helpers.run("conform.cli", "envs", *arguments, **environment)


@pytest.fixture(scope="module")
def old() -> envs.Entry:
    """The environment of an old ONNX Runtime; kept in .envs, because it takes half a minute."""
    (entry,) = envs.matching(OLD)
    try:
        envs.find_python(entry.python)
    except UserError as error:
        pytest.skip(str(error))
    done = conform("create", OLD)
    assert done.returncode == 0, done.stdout + done.stderr
    return entry


def test_the_registry_is_a_line_a_version() -> None:
    known = envs.registry()
    assert len({entry.name for entry in known}) == len(known)
    assert [entry.name for entry in envs.matching("ort@1.10")] == ["ort@1.10.0"]
    assert envs.matching("ort-1.10") == envs.matching("ort@1.10"), "as tox writes it"
    assert envs.matching("all") == known
    assert {entry.backend for entry in envs.matching("openvino@all")} == {"openvino"}
    assert [selector.text for selector in envs.expand(selectors.parse("ort@all"))] == [
        entry.name for entry in envs.matching("ort@all")
    ]
    assert envs.expand(selectors.parse("ort@1.10")) == [selectors.parse("ort@1.10")]


@pytest.mark.parametrize("text", ["ort@1.1", "ort@9", "tvm@1.0", "tvm", ""])
def test_a_version_that_the_registry_lacks_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"NAME@all; the registry has .*; another version is one more line in .*\.toml"):
        envs.matching(text)
    done = conform("create", text)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr


def test_a_broken_registry_is_one_line(tmp_path: Path) -> None:
    for content in ("[ort]\nversions = [{ version = 1 }]\n", "not toml", "ort = 1\n"):
        (tmp_path / "envs.toml").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="not a registry of environments"):
            envs.registry(tmp_path / "envs.toml")


def test_what_cannot_be_made_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(envs, "FOLDER", tmp_path)
    lines = {
        "no Python 2.6 on PATH": envs.Entry("ort", "1.10.0", "onnxruntime", "2.6"),
        "could not install onnxruntime==1.10.0 .*No matching distribution": envs.Entry(
            "ort", "1.10.0", "onnxruntime", "{}.{}".format(*sys.version_info)
        ),
        # The package is there, and is not the runtime.
        "could not import the runtime: .*onnxruntime": envs.Entry("ort", "24.0", "packaging", "3.11"),
    }
    for words, entry in lines.items():
        with pytest.raises(UserError, match=f"{entry.name}: {words}|{words}"):
            envs.create(entry)
        assert not entry.made
        assert not list(tmp_path.iterdir()), "a half-made environment"


def test_a_changed_line_is_made_again(old: envs.Entry) -> None:
    assert old.made
    assert not old._replace(pins=("numpy<1.20",)).made


def test_list_says_what_is_made(old: envs.Entry) -> None:
    done = conform("list")
    assert done.returncode == 0
    assert re.search(rf"^{old.name} +{old.python} .* MB$", done.stdout, re.MULTILINE)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")] == [
        entry.name for entry in envs.registry()
    ]
    assert max(map(len, lines)) <= 80
    assert "here already" in conform("create", OLD).stdout


def test_two_versions_side_by_side(old: envs.Entry, tmp_path: Path, valid: Any) -> None:
    import onnxruntime

    newest = onnxruntime.__version__
    opsets = f"--opset={TAKES}-{TAKES + 1}"
    done = helpers.conformance(tmp_path, f"--backend={OLD},ort@{newest},ort@1.11", opsets, "--layout=unified")
    assert done.returncode == 4, done.stdout
    assert "ort@1.11 is absent: version 1.11 was asked for" in done.stdout
    assert "put a line for it into backends/envs.toml, then conform envs create ort@1.11" in " ".join(
        done.stdout.split()
    )
    rows = [row for row in helpers.rows_in(tmp_path) if row["cell"]]
    valid(rows)
    seen = {(row["version"], row["opset"], row["check"]): row for row in rows}
    assert len(seen) == len(rows) == 2 * 2 * len(verdict.CHECKS)
    for (version, opset, check), row in seen.items():
        refused = version == old.version and opset > TAKES and check != "artifact"
        assert row["status"] == ("UNSUPPORTED" if refused else "PASS"), row
        assert row["kind"] == ("opset" if refused else ""), row
    if cores() > 1:
        costs = [number for number, row in enumerate(rows) if row["check"] == "cost"]
        assert costs == list(range(len(rows) - 4, len(rows))), "costs are measured when all else is done"
    assert seen[old.version, TAKES, "cost"]["value"] > 0
    assert f"ort@{old.version}" in done.stdout
    assert f"16 would lose ort@{old.version}" in done.stdout


def test_reused_answers_count_for_their_own_version(old: envs.Entry, tmp_path: Path) -> None:
    asked = (f"--backend={OLD},ort", f"--opset={TAKES}", "--layout=unified", "-k", "encoder", "--reuse")
    assert helpers.conformance(tmp_path, *asked).returncode == 0
    rows = helpers.rows_in(tmp_path)
    again = helpers.conformance(tmp_path, *asked)
    assert again.returncode == 0, again.stdout
    assert "2 rows reused from earlier runs" in again.stdout
    assert helpers.rows_in(tmp_path) == rows
    refused = (f"--backend=ort,{OLD}", f"--opset={TAKES + 1}", "--layout=unified", "--reuse", "-k")
    for checks in ("encoder", "encoder or kv_shape"):
        done = helpers.conformance(tmp_path, *refused, checks)
        assert f"{OLD} was asked for and compared nothing" in done.stdout, (
            "what another version compared is not its own"
        )
        assert done.returncode == 1


def test_another_package_of_the_host_is_another_condition(old: envs.Entry, tmp_path: Path) -> None:
    """The host scores the text and checks the files, in whatever interpreter the runtime is."""
    asked = (f"--backend={OLD}", f"--opset={TAKES}", "--layout=unified", "-k", "text", "--reuse")
    (tmp_path / "host" / "sacrebleu-0.1.dist-info").mkdir(parents=True)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(tmp_path / "host"))))
    for kwargs, reused in (({}, False), ({}, True), ({"PYTHONPATH": path}, False)):
        done = helpers.conformance(tmp_path / "results", *asked, **kwargs)
        assert done.returncode == 0, done.stdout
        assert ("1 rows reused from earlier runs" in done.stdout) == reused


def test_a_version_left_out_is_not_every_version() -> None:
    for text in ("ort@", "ort"):
        done = conform("remove", text)
        assert done.returncode == 2
        assert "give NAME@VERSION or NAME@all" in done.stderr


SLOW = '''
"""ONNX Runtime that never comes to an end."""

import time

from backends import ort


class Slow(ort.Backend):
    def compile(self, part, options):
        time.sleep(600)
'''


@pytest.mark.skipif(cores() < 2, reason="workers run side by side on two cores or more")
def test_a_worker_that_is_sent_away_leaves_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        SLOW.replace("time.sleep(600)", "raise TypeError('wrong')").replace("Slow", "Wrong"), encoding="utf-8"
    )
    began = time.monotonic()
    done = helpers.conformance(
        tmp_path / "results",
        "--backend=wrong:Wrong,slow:Slow",
        "--opset=17",
        "--layout=unified",
        "-x",
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 1, done.stdout
    assert time.monotonic() - began < 60
    assert {row["backend"] for row in helpers.rows_in(tmp_path / "results")} == {"wrong:Wrong", "slow:Slow"}
    slow = [row for row in helpers.rows_in(tmp_path / "results") if row["backend"] == "slow:Slow"]
    assert {row["check"] for row in slow} <= {"artifact"}, "it was killed by us, and that is no answer"
    left = [process for process in psutil.process_iter(["cmdline"]) if "slow:Slow" in (process.info["cmdline"] or [])]
    assert not left


class Picky(Mutant):
    """Honest ONNX Runtime that refuses files newer than an IR version."""

    newest = 7

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        with open(part.path, "rb") as stream:
            stamp = stream.read(2)[1]
        if stamp > self.newest:
            raise contract.StageError("load", "ir", f"Unsupported model IR version: {stamp}")
        return super().compile(part, options)


def test_another_stamp_is_tried_and_said() -> None:
    rows = helpers.judge(Picky())
    assert {row.status for row in rows.values()} == {"UNSUPPORTED"}
    for row in rows.values():
        assert (row.kind, row.knob, row.stage) == ("ir", "ir=7", "load"), row
        assert row.message.startswith("Unsupported model IR version: 8; re-stamped as IR 7: PASS")


def test_another_stamp_that_gives_wrong_numbers_is_no_warning() -> None:
    def outputs(part: str, step: int, feeds: Any, given: Any) -> Any:
        if part == "step" and step >= 3:
            given["logits"] = given["logits"] + 1
        return given

    row = helpers.judge(Picky(outputs=outputs), checks=("logits",))["logits"]
    assert (row.status, row.kind, row.knob) == ("UNSUPPORTED", "ir", "")
    assert "re-stamped as IR 7: FAIL" in row.message


def test_a_stamp_that_helps_nobody_says_what_came_instead() -> None:
    class Older(Picky):
        def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
            super().compile(part, options)
            raise contract.StageError("load", "opset", "Opset 17 is too new")

    class Never(Picky):
        newest = 0

    row = helpers.judge(Older(), checks=("logits",))["logits"]
    assert (row.status, row.kind, row.knob) == ("UNSUPPORTED", "ir", "")
    assert row.message == "Unsupported model IR version: 8; re-stamped as IR 7: opset: Opset 17 is too new"
    row = helpers.judge(Never(), checks=("logits",))["logits"]
    assert (row.status, row.message) == ("UNSUPPORTED", "Unsupported model IR version: 8")
