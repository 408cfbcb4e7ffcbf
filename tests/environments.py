"""Environments of real runtimes that cannot live beside the tests' own, made once and kept.

``CONFORM_TEST_ENVIRONMENTS`` names the folder; without it they lie in the user's cache.
"""

import os
import shutil
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


@cache
def python(name: str) -> Path:
    """The interpreter of an environment. Skips the test, with pip's own words, where it cannot be made."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(os.environ.get("CONFORM_TEST_ENVIRONMENTS") or Path(cache) / "seq2seq-conformance")
    tag = f"{name}-py{sys.version_info.major}{sys.version_info.minor}"
    place = root / tag
    if not (place / "made").exists():
        draft = root / f".{tag}-{os.getpid()}"
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        shutil.rmtree(draft, ignore_errors=True)
        done = subprocess.run(
            [place / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES[name]],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"{' '.join(PACKAGES[name])} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (place / "made").touch()
    return place / "bin" / "python"
