"""What makes a verdict hold: expectations, flakes, a host that dies, two hosts in one folder, a checker that crashes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conform.commands import expectations as expect
from harness.core.errors import UserError
from harness.core.rowfiles import Writer, read
from harness.core.rows import Row
from harness.golden import export
from harness.run import expectations
from tests import helpers

ENTRY = """
[[expect]]
checks = ["logits"]
status = "FAIL"
version = ">=1.0,<2.0"
layout = "unified"
opset = "12-17"
step = 7
reason = "a known fault"
link = "docs/live-fault.md"
"""

FLAKY = '''
"""A fake adapter: honest, but for the first decode that it ever does."""
import pathlib
from backends import ort
from tests.mutant import Mutant

DONE = pathlib.Path(__file__).with_name("done")


class Adapter(Mutant):
    def __init__(self, provider=None):
        def outputs(part, step, feeds, given):
            if step == 3 and not DONE.exists():
                given["logits"] = given["logits"] + 1
                if len(given["logits"]) == 1:
                    DONE.touch()
            return given
        super().__init__(provider, outputs=outputs)
        self.capabilities = type(self.capabilities)(knobs={})
'''


def row(status: str = "FAIL", **fields: object) -> Row:
    known = {"check": "logits", "version": "1.5", "layout": "unified", "opset": 14, "step": 7, "device": "cpu"}
    return Row(**{**known, "status": status, "backend": "ort", "cell": "c", **fields})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's root with an expectation file of `ort`."""
    (tmp_path / "backends" / "expectations").mkdir(parents=True)
    place = tmp_path / "backends" / "expectations" / "ort.toml"
    place.write_text(ENTRY, encoding="utf-8")
    monkeypatch.setattr(expectations, "ROOT", str(tmp_path))
    monkeypatch.setattr(expect, "ROOT", str(tmp_path))
    monkeypatch.setattr(expect, "FOLDER", place.parent)
    return place


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "XFAIL"),
        ({"status": "PASS"}, "XPASS"),
        ({"status": "UNSUPPORTED"}, "UNSUPPORTED"),
        ({"status": "CRASH"}, "CRASH"),
        ({"step": 8}, "FAIL"),
        ({"check": "tokens"}, "FAIL"),
        ({"layout": "split"}, "FAIL"),
        ({"opset": 18}, "FAIL"),
        ({"version": "2.0"}, "FAIL"),
        ({"version": "nightly"}, "FAIL"),
    ],
)
def test_an_expectation_speaks_of_its_cells_only(folder: Path, fields: dict, status: str) -> None:
    seen = row(**fields)
    seen = expectations.apply(seen, expectations.load("ort"))
    assert seen.status == status
    if status.startswith("X"):
        assert seen.detail["expected"]["seen"] == fields.get("status", "FAIL")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('reason = "a known fault"', "", "lacks reason"),
        ('link = "docs/live-fault.md"', "", "lacks link"),
        ("layout =", "layouts =", "unknown word layouts"),
        ('"logits"', '"logit"', "checks are"),
        ('"FAIL"', '"PASS"', "status is one that fails"),
        ('">=1.0,<2.0"', '"new"', "entry 1"),
        ('"12-17"', '"all"', "entry 1"),
        ("[[expect]]", "[[expected]]", "unknown table"),
        ("step = 7", "step = ", "not TOML"),
    ],
)
def test_a_wrong_word_in_an_expectation_ends_the_run(folder: Path, old: str, new: str, says: str) -> None:
    folder.write_text(ENTRY.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=says) as caught:
        expectations.load("ort")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_update_takes_out_what_passes_and_puts_in_what_fails(folder: Path) -> None:
    rows = [row("XPASS", detail={"expected": {"seen": "PASS"}}), row(check="tokens", message="12 DIVERGED", run="r1")]
    changes = expect.proposals(rows)
    old, new = changes[folder]
    assert old == ENTRY
    assert "a known fault" not in new
    assert "not yet explained: 12 DIVERGED" in new
    assert "+checks" in expect.diff(folder, old, new)
    folder.write_text(new, encoding="utf-8")
    assert [entry.checks for entry in expectations.load("ort")] == [("tokens",)]
    assert not expect.proposals([row("XFAIL", check="tokens", detail={"expected": {"seen": "FAIL"}})])


def test_a_retry_that_passes_is_flaky_and_both_attempts_are_rows(tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text(FLAKY, encoding="utf-8")
    results = tmp_path / "results"
    path = os.pathsep.join([str(tmp_path), str(helpers.ROOT)])
    done = helpers.conformance(
        results, "--backend=adapter:Adapter", "--opset=17", "--layout=unified", "-k", "logits", PYTHONPATH=path
    )
    assert done.returncode == 1, done.stdout
    first, second = (one for one in helpers.rows_in(results) if one["check"] == "logits")
    assert (first["attempt"], first["status"], first["step"]) == (1, "FAIL", 3)
    assert (second["attempt"], second["status"]) == (2, "FLAKY")
    assert [one["status"] for one in second["detail"]["attempts"]] == ["FAIL", "PASS"]
    assert "🎲" in done.stdout


def test_a_whole_run_repeated_gives_the_same_verdicts(tmp_path: Path) -> None:
    verdicts = []
    for number in (1, 2):
        results = tmp_path / str(number)
        assert helpers.conformance(results, "--opset=14", "--layout=split").returncode == 0
        numbers = ("check", "status", "value", "bound", "step", "compared", "message")
        rows = [one for one in helpers.rows_in(results) if one["check"] != "cost"]
        verdicts.append([[one[name] for name in numbers] for one in rows])
    assert verdicts[0] == verdicts[1]


def test_killing_the_host_loses_no_row_and_resume_goes_on(tmp_path: Path) -> None:
    asked = ["--opset=12-17", "--layout=unified"]
    command = [sys.executable, "-m", "pytest", f"--results={tmp_path}", "-p", "no:cacheprovider", *asked]
    host = subprocess.Popen(command, cwd=helpers.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and sum(1 for _ in written(tmp_path)) < 12:
        time.sleep(0.05)
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    before = list(written(tmp_path))
    assert len(before) >= 12
    done = helpers.conformance(tmp_path, "--resume", *asked)
    assert done.returncode == 0, done.stdout
    assert "resumed" in done.stdout
    after = helpers.rows_in(tmp_path)
    assert after[: len(before)] == before
    keys = [(one["cell"], one["check"]) for one in after]
    assert len(keys) == len(set(keys)) == 6 * 10


def written(results: Path) -> list[dict]:
    """Whole rows that are on disk now, the last line possibly cut."""
    lines = [line for path in results.glob("*.jsonl") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return [json.loads(line) for line in lines]


def test_two_hosts_share_a_folder(tmp_path: Path) -> None:
    writers = [Writer(str(tmp_path), {"opset": 14}) for _ in range(2)]
    for number in range(50):
        for writer in writers:
            writer.write(Row("logits", "PASS", compared=number + 1))
    assert not Writer(str(tmp_path), {"opset": 14}, resume=True).resumed, "both are still going on"
    for writer in writers:
        writer.close(finished=True)
    assert len({writer.path for writer in writers}) == 2
    assert [len(list(read(writer.path))) for writer in writers] == [50, 50]


def test_a_row_cut_short_is_left_out_and_other_damage_is_not(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), {})
    writer.write(Row("logits", "PASS", compared=1))
    writer.close(finished=False)
    place = Path(writer.path)
    whole = place.read_text(encoding="utf-8")
    place.write_text(whole + whole[:40], encoding="utf-8")
    assert len(list(read(str(place)))) == 1
    place.write_text(whole[:40] + "\n" + whole, encoding="utf-8")
    with pytest.raises(UserError, match="line 1"):
        list(read(str(place)))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of signal 11"),
        ("raise SystemExit('bad')", "bad"),
    ],
)
def test_a_crash_of_the_checker_is_survived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, says: str
) -> None:
    monkeypatch.setattr(export, "CHECK", "import sys; print(sys.argv[1], flush=True)\n" + code)
    with pytest.raises(UserError, match=says) as caught:
        export.check_graphs([tmp_path / "a.onnx"])
    assert "a.onnx" in str(caught.value)
