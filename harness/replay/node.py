"""Run one ONNX node test through an adapter: one operator, fixed inputs, the outputs that ONNX expects."""

import traceback
from dataclasses import replace
from typing import Any, Dict, Mapping, Tuple

import numpy as np

from backends.contract import Backend, Part, Port, Probe, StageError
from backends.staged import Reached
from harness.core import verdict
from harness.core.messages import one_line
from harness.core.rows import Answer
from harness.judge.equal import difference
from harness.judge.placement import judge_placement
from harness.replay.cell import placed
from harness.replay.decoder import AdapterError
from harness.replay.job import compile_part, short_of_running

Arrays = Dict[str, np.ndarray]


def run_test(backend: Backend, probe: Probe, test: Mapping[str, Any]) -> Answer:
    """The answer to one test. ``compared`` counts elements of the outputs.

    ``test``: ``name``; ``model``, the path of its .onnx; ``data``, the path of an .npz with each input as ``in:NAME`` and
    each expected output as ``out:NAME``. Whatever an adapter raises beside the contract's errors is an ERROR.
    """
    backend.stages = []
    try:
        answer = _answer(backend, probe, test)
    except Reached as reached:
        answer = short_of_running("operator", reached, backend.stages)
    except StageError as error:
        status, detail = verdict.of_refusal(error.stage, error.kind), {"said": error.message[-4000:]}
        answer = Answer("operator", status, error.stage, error.kind, message=error.message, detail=detail)
    except Exception as error:  # noqa: BLE001 - it must become a row
        traceback.print_exc()
        words = str(error) if isinstance(error, AdapterError) else f"the harness failed: {error!r}"
        detail = {"said": traceback.format_exc()[-4000:]}
        answer = Answer("operator", "ERROR", "run", "other", message=words, detail=detail)
    # The stamped copy lies in a temporary folder: its path would make one refusal look like many.
    return replace(answer, message=one_line(answer.message.replace(test["model"], f"{test['name']}.onnx")))


def _answer(backend: Backend, probe: Probe, test: Mapping[str, Any]) -> Answer:
    feeds, expected = _load(test["data"])
    part = Part("node", test["model"], _ports(feeds), _ports(expected))
    try:
        with compile_part(backend, part, {}) as program:
            try:
                outputs = program.run(feeds)
                placement = judge_placement(probe, [placed("node", program)])
            except StageError as error:  # once it has loaded, refusing is failing, whatever stage the adapter names
                raise StageError("run", error.kind, error.message) from error
    except (StageError, Reached, AdapterError):
        raise
    except Exception as error:
        raise AdapterError(error) from error
    problem = _compare(outputs, expected)
    if problem:
        return Answer("operator", "FAIL", message=problem)
    compared = sum(array.size for array in expected.values())
    return Answer("operator", placement.status, message=placement.message, compared=compared)


def _load(path: str) -> Tuple[Arrays, Arrays]:
    """Inputs and expected outputs, each in the order of the graph. Texts are objects, as runtimes take and give them."""
    sides: Dict[str, Arrays] = {"in": {}, "out": {}}
    with np.load(path, allow_pickle=False) as saved:
        for key in saved.files:
            side, _, name = key.partition(":")
            array = saved[key]
            sides[side][name] = array.astype(object) if array.dtype.kind == "U" else array
    return sides["in"], sides["out"]


def _ports(arrays: Mapping[str, np.ndarray]) -> Tuple[Port, ...]:
    return tuple(Port(name, array.dtype.name, array.shape) for name, array in arrays.items())


def _compare(outputs: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> str:
    """The first difference between what came and what is expected; empty when there is none."""
    if set(outputs) != set(expected):
        return f"outputs {', '.join(sorted(outputs)) or 'none'}, expected {', '.join(sorted(expected))}"
    for name, array in expected.items():
        value = outputs[name]
        if not isinstance(value, (np.ndarray, np.generic)):
            return f"{name} is a {type(value).__name__}, not an array"
        problem = difference(name, np.asarray(value), array)
        if problem:
            return problem
    return ""
