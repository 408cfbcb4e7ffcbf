"""Run one ONNX node test through an adapter: one operator, fixed inputs, the outputs that ONNX expects."""

import traceback
from typing import Any, Dict, Mapping

import numpy as np

from backends.contract import Backend, Part, Port, Probe, StageError
from backends.staged import Reached
from harness.core import verdict
from harness.core.rows import Row
from harness.judge.equal import difference
from harness.replay.cell import judge_placement
from harness.replay.decoder import AdapterError
from harness.replay.job import compile_part, one_line, short_of_running


def run_test(backend: Backend, probe: Probe, test: Mapping[str, Any]) -> Row:
    """The answer to one test. ``compared`` counts elements of the outputs.

    ``test``: ``name``; ``model``, the path of its .onnx; ``data``, the path of an .npz with each input as ``in:NAME`` and
    each expected output as ``out:NAME``. Whatever an adapter raises beside the contract's errors is an ERROR.
    """
    backend.stages = []
    try:
        row = _answer(backend, probe, test)
    except Reached as reached:
        row = short_of_running("operator", reached, backend.stages)
    except StageError as error:
        status = verdict.of_refusal(error.stage, error.kind)
        row = Row("operator", status, error.stage, error.kind, message=error.message)
        row.detail["said"] = error.message[-4000:]
    except Exception as error:  # noqa: BLE001 - it must become a row
        traceback.print_exc()
        words = str(error) if isinstance(error, AdapterError) else f"the harness failed: {error!r}"
        row = Row("operator", "ERROR", "run", "other", message=words)
        row.detail["said"] = traceback.format_exc()[-4000:]
    # The stamped copy lies in a folder of a moment: its path would make one refusal look like many.
    row.message = one_line(row.message.replace(test["model"], f"{test['name']}.onnx"))
    return row


def _answer(backend: Backend, probe: Probe, test: Mapping[str, Any]) -> Row:
    feeds, expected = _load(test["data"])
    part = Part("node", test["model"], _ports(feeds), _ports(expected))
    program = compile_part(backend, part, {})
    try:
        try:
            outputs = program.run(feeds)
            placement = judge_placement(probe, {"node": program})
        except StageError as error:  # once it has loaded, refusing is failing, whatever stage the adapter names
            raise StageError("run", error.kind, error.message) from error
        finally:
            program.close()
    except StageError:
        raise
    except Exception as error:
        raise AdapterError(error) from error
    problem = _compare(outputs, expected)
    if problem:
        return Row("operator", "FAIL", message=problem)
    compared = sum(array.size for array in expected.values())
    return Row("operator", placement.status, message=placement.message, compared=compared)


def _load(place: str) -> "tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]":
    """Inputs and expected outputs, each in the order of the graph. Texts are objects, as runtimes take and give them."""
    sides: Dict[str, Dict[str, np.ndarray]] = {"in": {}, "out": {}}
    with np.load(place, allow_pickle=False) as saved:
        for key in saved.files:
            side, _, name = key.partition(":")
            array = saved[key]
            sides[side][name] = array.astype(object) if array.dtype.kind == "U" else array
    return sides["in"], sides["out"]


def _ports(arrays: Mapping[str, np.ndarray]) -> "tuple[Port, ...]":
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
