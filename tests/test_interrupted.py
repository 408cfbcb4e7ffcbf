"""Runs that do not end well: faults beside other cells, interrupts, and how ``--resume`` and ``--reuse`` go on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.core import verdict
from tests import helpers
from tests.runs import OFFSET, ONE_CELL, statuses


@pytest.mark.parametrize(
    "fault, options, status",
    [
        ("Hangs", ["--cell-timeout=6"], "TIMEOUT"),
        ("OverLimit", ["--memory-limit=1"], "ERROR"),
        ("Segfault", [], "CRASH"),
    ],
)
def test_the_rest_of_a_run_goes_on(tmp_path: Path, fault: str, options: list[str], status: str, valid: Any) -> None:
    done = helpers.conformance(
        tmp_path,
        f"--backend=tests.faults:{fault}",
        "--opset=16-17",
        "--layout=unified",
        *options,
        "-k",
        "encoder or logits",
        FAULT_AT="op16",
    )
    assert done.returncode == 1
    valid(helpers.rows_in(tmp_path))
    assert statuses(tmp_path) == {
        "unified/op16 encoder": status,
        "unified/op16 logits": status,
        "unified/op17 encoder": "PASS",
        "unified/op17 logits": "PASS",
    }
    assert verdict.STATUSES[status].symbol in done.stdout
    assert "2 failed, 2 passed" in done.stdout


def test_an_interrupt_keeps_the_rows(tmp_path: Path, valid: Any) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            f"--results={tmp_path}",
            "-p",
            "no:cacheprovider",
            "--backend=tests.faults:Hangs",
            "--opset=16-17",
            "--layout=unified",
            "-k",
            "encoder or logits",
        ],
        cwd=helpers.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FAULT_AT": "op17"},
        # Under nohup or `&` SIGINT is ignored, and Python would then leave it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        limit = time.monotonic() + 60
        while len(helpers.rows_in(tmp_path)) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
        time.sleep(2)  # into the cell that hangs
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "KeyboardInterrupt" in output
    rows = helpers.rows_in(tmp_path)
    valid(rows)
    assert statuses(tmp_path) == {"unified/op16 encoder": "PASS", "unified/op16 logits": "PASS"}
    assert workers
    assert not [worker for worker in workers if worker.is_running()]
    assert "◐" in (tmp_path / "matrix.md").read_text(encoding="utf-8")


def test_an_interrupted_run_is_resumed(tmp_path: Path, valid: Any) -> None:
    """Rows already there are not asked again; the rest is added to the same file."""
    asked = ["--opset=16-17", "--layout=unified", "-k", "kv_shape or placement"]
    assert helpers.conformance(tmp_path, *asked).returncode == 0
    (path,) = tmp_path.glob("*.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    note = tmp_path / path.stem / "run.json"
    note.write_text(note.read_text(encoding="utf-8").replace('"finished": true', '"finished": false'), encoding="utf-8")
    path.write_text("".join(lines[:2]) + lines[2][:50], encoding="utf-8")
    other = helpers.conformance(tmp_path, "--resume", "--opset=16", "--layout=unified", "-k", "kv_shape")
    assert other.returncode == 0
    assert "nothing to resume" in other.stdout, "other arguments are another run"
    text = note.read_text(encoding="utf-8")
    note.write_text(re.sub(r'("ort@[^"]+": ")[0-9a-f]', r"\1x", text), encoding="utf-8")
    other = helpers.conformance(tmp_path, "--resume", *asked)
    assert "nothing to resume" in other.stdout, "answers of another harness, adapter or package are another run's"
    note.write_text(text, encoding="utf-8")
    done = helpers.conformance(tmp_path, "--resume", *asked)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    now = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert now[:2] == lines[:2]
    rows = [json.loads(line) for line in now]
    valid(rows)
    assert [(row["opset"], row["check"]) for row in rows] == [
        (opset, check) for opset in (16, 17) for check in ("kv_shape", "placement")
    ]


def test_what_is_settled_and_unchanged_is_not_asked_again(tmp_path: Path, valid: Any) -> None:
    """Same bundle, harness, packages and processor: the answer stands, with its own time. Anything else is asked again."""
    asked = ["--opset=16-17", "--layout=unified", "-k", "kv_shape or placement"]
    assert helpers.conformance(tmp_path, *asked).returncode == 0
    (first,) = tmp_path.glob("*.jsonl")
    rows = helpers.rows_in(tmp_path)
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert "4 rows reused from earlier runs" in done.stdout
    assert helpers.rows_in(tmp_path) == rows, "nothing was written twice"
    assert f"last run {rows[-1]['time']}" in done.stdout

    traces = {row["opset"]: tmp_path / row["series"] for row in rows if row["series"]}
    kept = traces[16].rename(tmp_path / "kept")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "2 rows reused from earlier runs" in done.stdout, "whose figures are gone is asked again"
    kept.rename(traces[16])
    for other in set(tmp_path.glob("*.jsonl")) - {first}:
        other.unlink()

    text = first.read_text(encoding="utf-8")
    spoilt = [{**row, "status": "CRASH"} if row["opset"] == 17 else row for row in rows]
    first.write_text("".join(json.dumps(row) + "\n" for row in spoilt), encoding="utf-8")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "2 rows reused from earlier runs" in done.stdout, "a crash is asked again"
    valid(helpers.rows_in(tmp_path))
    for change in ({"status": "FAIL"}, {"compared": 0}, {"box": rows[0]["box"] + "-2"}):
        first.write_text("".join(json.dumps({**row, **change}) + "\n" for row in rows), encoding="utf-8")
        for other in set(tmp_path.glob("*.jsonl")) - {first}:
            other.unlink()
        done = helpers.conformance(tmp_path, "--reuse", *asked)
        assert "reused from earlier runs" not in done.stdout, "no second attempt; no comparison; another box"

    first.write_text(text, encoding="utf-8")
    for note in tmp_path.glob("*/run.json"):
        changed = re.sub(r'("ort@[^"]+": ")[0-9a-f]', r"\1x", note.read_text(encoding="utf-8"))
        note.write_text(changed, encoding="utf-8")
    done = helpers.conformance(tmp_path, "--reuse", *asked)
    assert "reused from earlier runs" not in done.stdout, "another harness, bundle or environment"
    assert done.returncode == 0


def test_a_foreign_adapter_is_always_asked(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(OFFSET, encoding="utf-8")
    asked = (*ONE_CELL, "--reuse", "--backend=bad:Offset", "-k", "logits")
    for _ in range(2):
        done = helpers.conformance(tmp_path / "results", *asked, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1, done.stdout
        assert "reused from earlier runs" not in done.stdout
