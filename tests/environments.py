"""Environments of real runtimes that cannot be installed beside the tests' packages, created once and kept.

``CONFORM_TEST_ENVIRONMENTS`` names the folder; without it they are in the user's cache. Each is 250 to 500 MB and takes
10 to 30 seconds to create.
"""

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGES = {
    "openvino": ("onnxruntime-openvino==1.24.1",),
    "qnn": ("onnxruntime==1.32.0", "onnxruntime-qnn==2.7.0"),
    "cann": ("onnxruntime-cann==1.24.4", "numpy<2"),
    "tensorrt-rtx": ("tensorrt-rtx-cu12==1.7.1.116", "cuda-bindings==13.5.0", "numpy"),
}


def python(name: str) -> Path:
    """The interpreter of an environment. Skips the test, with pip's message, where it cannot be created."""
    folder, problem = _created(name)
    if problem:
        pytest.skip(f"{' '.join(PACKAGES[name])} cannot be installed here: {problem}")
    return folder / "bin" / "python"


@cache
def _created(name: str) -> tuple[Path, str]:
    """The environment's folder, and why it could not be created; once in a process."""
    root = os.environ.get("CONFORM_TEST_ENVIRONMENTS") or Path.home() / ".cache" / "seq2seq-conformance"
    folder = Path(root) / f"{name}-py{sys.version_info.major}{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other process of `pytest -n 2` may create it too
        mark = folder / "made"
        if not mark.exists() or mark.read_text(encoding="utf-8") != " ".join(PACKAGES[name]):
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES[name]]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return folder, (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
            mark.write_text(" ".join(PACKAGES[name]), encoding="utf-8")
    return folder, ""
