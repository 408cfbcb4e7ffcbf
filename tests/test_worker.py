"""A worker process: what it imports, and that its death, hang, memory overrun or noise becomes rows and nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.core import selectors, verdict
from harness.core.rows import Row
from harness.core.verdict import NUMERIC
from harness.run.process import Limits
from harness.run.worker import Worker
from tests import helpers

STRUCK, HONEST = "torchscript/unified/fp32/op17", "torchscript/unified/fp32/op16"
FORBIDDEN = ("torch", "transformers", "pandas", "onnx", "sentencepiece", "sacrebleu", "jinja2", "pytest", "tabulate")


class Host:
    """Workers of one test; all are stopped after it."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def worker(self, fault: str, **limits: float) -> Worker:
        selector = selectors.parse(fault if ":" in fault or fault in selectors.names() else f"tests.faults:{fault}")
        made = Worker(str(helpers.EMBEDDED), selector, Limits(**limits))  # type: ignore[arg-type]
        self.workers.append(made)
        return made


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    for worker in made.workers:
        worker.stop()


def ask(worker: Worker, graph: str, *checks: str) -> list[Row]:
    return list(worker.replay(graph, checks or ("encoder", "logits"), "", {}))


def gone(pid: int) -> bool:
    """Whether a process has ended, waiting a little for the kernel."""
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


DEATHS = [
    ("Segfault", "CRASH", "signal", "died of signal 11 (SIGSEGV)"),
    ("Killed", "CRASH", "signal", "died of signal 9 (SIGKILL)"),
    ("Exits", "CRASH", "exit", "ended with exit code 7"),
    ("LoudThenKilled", "CRASH", "signal", "died of signal 9 (SIGKILL)"),
    ("Closes", "CRASH", "wire", "closed its output and went on"),
    ("Raises", "ERROR", "other", "the adapter raised RuntimeError: a fault of the adapter's own"),
    ("Loud", "PASS", "", ""),
]


@pytest.mark.parametrize("fault, status, kind, words", DEATHS, ids=[row[0] for row in DEATHS])
def test_a_fault_stays_in_its_cell(host: Host, fault: str, status: str, kind: str, words: str) -> None:
    worker = host.worker(fault, silence=60)
    assert worker.probe().probe is not None
    before, struck, after = (ask(worker, graph) for graph in (HONEST, STRUCK, HONEST))
    assert [row.check for row in struck] == ["encoder", "logits"]
    for row in struck:
        assert (row.status, row.kind) == (status, kind if status != "PASS" else row.kind), row.message
        assert words in row.message
        assert "\n" not in row.message
        assert row.stage in verdict.STAGES
    for row in before + after:
        assert row.status == "PASS"
        assert row.compared > 10_000
    if fault == "LoudThenKilled":
        assert "the last words" in struck[0].detail["said"]
    if fault == "Raises":
        assert "its second line" in struck[0].detail["said"]


def test_answers_given_before_a_death_stay(host: Host) -> None:
    rows = ask(host.worker("DiesTelling", silence=60), STRUCK, "encoder", "logits", "placement", "cost")
    assert {row.check: row.status for row in rows} == {
        "encoder": "PASS",
        "logits": "PASS",
        "placement": "CRASH",
        "cost": "CRASH",
    }


def test_silence_is_a_timeout(host: Host) -> None:
    worker = host.worker("Hangs", silence=6)
    began = time.monotonic()
    struck = ask(worker, STRUCK)
    assert {(row.status, row.kind) for row in struck} == {("TIMEOUT", "hang")}
    assert "6 s" in struck[0].message
    assert 6 <= time.monotonic() - began < 40
    assert {row.status for row in ask(worker, HONEST)} == {"PASS"}


def test_a_memory_overrun_is_ended(host: Host) -> None:
    worker = host.worker("OverLimit", silence=60, memory=2**30)
    struck = ask(worker, STRUCK)
    assert {(row.status, row.kind) for row in struck} == {("ERROR", "memory")}
    assert "the limit is 1.00 GiB" in struck[0].message
    assert {row.status for row in ask(worker, HONEST)} == {"PASS"}


@pytest.mark.parametrize("fault", ["Parent", "ParentThenKilled", "ParentThenHangs"])
def test_nothing_is_left_behind(host: Host, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "pid"))
    worker = host.worker(fault, silence=6)
    ask(worker, STRUCK)
    child = int((tmp_path / "pid").read_text())
    if fault == "Parent":
        assert psutil.Process(child).name() == "sleep", "the child should live as long as its worker"
    worker.stop()
    assert gone(child)


def test_a_host_that_leaves_in_mid_cell_starts_anew(host: Host) -> None:
    worker = host.worker("ort", silence=60)
    rows = worker.replay(HONEST, NUMERIC, "", {})
    assert next(rows).check in NUMERIC
    rows.close()  # type: ignore[attr-defined]
    again = ask(worker, STRUCK, "kv_shape")
    assert [(row.check, row.status) for row in again] == [("kv_shape", "PASS")]


PROBES = [
    ("KilledAtProbe", "CRASH", "died of signal 9 (SIGKILL)"),
    ("RaisesAtProbe", "ERROR", "OSError: driver 3 is too old"),
]


@pytest.mark.parametrize("fault, status, words", PROBES, ids=[row[0] for row in PROBES])
def test_a_fault_while_probing(host: Host, fault: str, status: str, words: str) -> None:
    found = host.worker(fault, silence=60).probe()
    assert found.probe is None
    assert found.absent is None
    assert found.failure is not None
    assert (found.failure.status, found.failure.stage) == (status, "probe")
    assert words in found.failure.message


def test_absence_has_its_reason_and_remedy(host: Host) -> None:
    assert host.worker("Missing", silence=60).probe().absent == {
        "reason": "no such device on this box",
        "remedy": "plug one in",
    }


def poison(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(f"import os\nos.write(2, b'{name} was imported\\n')\nos._exit(77)\n")


def test_replay_imports_no_framework(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of those names that kill whoever imports them stand before the real ones on the worker's path."""
    poison(tmp_path, *FORBIDDEN)
    (tmp_path / "clean_adapter.py").write_text("from backends.ort import Backend\n", encoding="utf-8")
    (tmp_path / "sly_adapter.py").write_text("import torch\nfrom backends.ort import Backend\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rows = ask(host.worker("clean_adapter:Backend", silence=60), STRUCK, *NUMERIC)
    assert {row.check: row.status for row in rows} == dict.fromkeys(NUMERIC, "PASS")
    sly = host.worker("sly_adapter:Backend", silence=60).probe()
    assert sly.failure is not None, "the poison does not work, so the test above proves nothing"
    assert "exit code 77" in sly.failure.message
    assert "torch was imported" in sly.failure.detail["said"]


def test_a_worker_holds_numpy_and_its_runtime_only(host: Host) -> None:
    (row,) = ask(host.worker("Tells", silence=60), STRUCK, "placement")
    loaded = {name.split(".")[0] for name in row.detail["step"].split()}
    assert {"numpy", "onnxruntime", "harness", "backends"} <= loaded
    assert not loaded & set(FORBIDDEN)
    assert not [name for name in row.detail["step"].split() if name.startswith(("harness.golden", "harness.suite"))]


def test_a_stopped_worker_is_no_longer_there(host: Host) -> None:
    worker = host.worker("ort", silence=60)
    worker.probe()
    children = [child for child in psutil.Process().children() if "harness.replay.worker" in child.cmdline()]
    assert children
    worker.stop()
    assert all(gone(child.pid) for child in children)
