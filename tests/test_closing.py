"""Programs are closed by whoever runs them: close() may be called twice, and hides no earlier error."""

import importlib
from typing import Any

import numpy as np
import pytest

from backends import contract
from tests import faked, helpers

INSTALLED = ("iree", "mnn", "openvino", "ort", "reference", "tract")


def encoder() -> contract.Part:
    graphs = helpers.golden().bundle.graphs
    return next(graph for graph in graphs if graph.id == "torchscript/unified/fp32/op17").part("encoder")


def feeds(part: contract.Part) -> dict[str, np.ndarray]:
    return {port.name: np.ones([2] * len(port.shape), port.dtype) for port in part.inputs}


def run_and_close_twice(backend: Any) -> None:
    part = encoder()
    backend.probe()
    with backend.compile(part, {"threads": 1}) as program:
        assert program.run(feeds(part))
    program.close()


@pytest.mark.usefixtures("engine_cache")
@pytest.mark.parametrize("name", INSTALLED)
def test_a_program_is_closed_twice(name: str) -> None:
    run_and_close_twice(importlib.import_module(f"backends.{name}").Backend())


@pytest.mark.usefixtures("engine_cache")
@pytest.mark.parametrize("name", ["tensorrt", "cann"])
def test_a_program_on_a_fake_device_is_closed_twice(name: str) -> None:
    with faked.fakes() as device:
        device.reset()
        run_and_close_twice(faked.adapter(name).Backend())
        assert not device.DEVICE.faults


@pytest.mark.usefixtures("engine_cache")
@pytest.mark.parametrize("name", ["tensorrt", "cann"])
def test_a_program_that_never_ran_is_closed(name: str) -> None:
    with faked.fakes() as device:
        device.reset().fail_at = 1
        backend = faked.adapter(name).Backend()
        backend.probe()
        part = encoder()
        program = backend.compile(part, {})
        with pytest.raises(contract.StageError):
            program.run(feeds(part))
        program.close()
        program.close()
        assert not device.DEVICE.faults


class Toolkit:
    """Of RKNN: releasing fails once, and must not be tried again."""

    released = 0

    def release(self) -> None:
        self.released += 1
        raise RuntimeError("the board is gone")


def test_rknn_releases_once() -> None:
    from backends import rknn

    toolkit = Toolkit()
    part = contract.Part("encoder", "", (), ())
    program = rknn._Program(rknn.Backend(), part, toolkit, [])
    with pytest.raises(RuntimeError, match="the board is gone"):
        program.close()
    program.close()
    assert toolkit.released == 1


class Fragile(contract.Program):
    """Neither runs nor closes."""

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise contract.StageError("run", "other", "the copy failed")

    def close(self) -> None:
        raise contract.StageError("run", "other", "the memory cannot be freed")


def test_the_first_error_is_raised() -> None:
    with pytest.raises(contract.StageError, match="the copy failed"), Fragile() as program:
        program.run({})


def test_an_error_of_closing_is_raised_when_it_is_the_only_one() -> None:
    with pytest.raises(contract.StageError, match="the memory cannot be freed"), Fragile():
        pass
