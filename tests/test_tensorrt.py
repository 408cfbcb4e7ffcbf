"""The TensorRT adapter on a named fake: every version's API, absences, refusals, and planted mistakes."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as make

from backends import contract
from backends import tensorrt as adapter
from tests import environments, faked, helpers

VERSIONS = ("8.4.1", "8.5.3", "8.6.1", "10.3.0", "11.4.0")


@pytest.mark.parametrize("layout", ["unified", "split"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_api_is_used_as_documented(version: str, layout: str) -> None:
    with faked.fakes(VERSION=version) as device:
        rows, faults = faked.replay(device, adapter, layout=layout)
    assert not faults
    assert {check: row.status for check, row in rows.items()} == dict.fromkeys(faked.CHECKS, "PASS")
    assert all(row.compared for row in rows.values())
    assert "built for caches of 0 to 512" in rows["placement"].detail["step"]


@pytest.mark.parametrize("version", ["8.5.3", "11.4.0"])
def test_a_whole_cell_passes(version: str) -> None:
    checks = ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "invariance")
    with faked.fakes(VERSION=version) as device:
        rows, faults = faked.replay(device, adapter, checks=checks)
    assert not faults
    assert {check: row.status for check, row in rows.items()} == dict.fromkeys(checks, "PASS")


def test_pycuda_serves_as_well() -> None:
    with faked.fakes(hidden=("cuda.bindings", "cuda.cudart", "cuda"), VERSION="8.4.1") as device:
        rows, faults = faked.replay(device, adapter)
    assert not faults
    assert {row.status for row in rows.values()} == {"PASS"}


def test_the_cache_is_not_uploaded_again() -> None:
    with faked.fakes() as device:
        rows, faults = faked.replay(device, adapter)
        uploads, steps = device.DEVICE.uploads, rows["kv_values"].detail["tensors"]
        with_cache = adapter._Program.run.__code__.co_names
    assert not faults
    assert "kept" in adapter._Program.run.__code__.co_varnames
    assert steps
    assert with_cache
    # Two batches of 96 and 25 steps: token and source mask at each, the empty cache once, two inputs of an encoder.
    assert uploads < 2 * (96 + 25) + 40
