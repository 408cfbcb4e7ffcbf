"""A device that computes in fp16 is judged by PyTorch's own fp16 noise: an honest one passes as fp16 and fails as fp32, and
one that rounds more coarsely fails."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from backends import contract
from harness.core.bundle import Bundle
from harness.core.rows import Row
from harness.judge import bounds
from harness.judge.golden import Golden
from harness.run.text import Scorer, complete
from tests import helpers
from tests.mutant import Feeds, Mutant
from tests.saboteurs import edits
from tests.saboteurs.frame import ONE_THREAD, brief

NUMBERS = ("encoder", "logits", "kv_shape", "kv_values", "tokens", "placement", "invariance")


def half(part: str, model: Any) -> None:
    """The graph in float16: weights, constants and casts; only its ports stay as they are declared."""
    graph = model.graph
    for tensor in graph.initializer:
        _halve(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value":
                _halve(attribute.t)
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    casts = []
    for values, to in ((graph.input, TensorProto.FLOAT16), (graph.output, TensorProto.FLOAT)):
        for port in [value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT]:
            for node in graph.node:
                node.input[:] = [f"{port}/half" if name == port else name for name in node.input]
                node.output[:] = [f"{port}/half" if name == port else name for name in node.output]
            ends = [port, f"{port}/half"]
            inward = to == TensorProto.FLOAT16
            casts.append(
                helper.make_node("Cast", ends[:1] if inward else ends[1:], ends[1:] if inward else ends[:1], to=to)
            )
            if inward:
                graph.node.insert(0, casts[-1])
            else:
                graph.node.append(casts[-1])
    assert casts, f"{part} has no float port"


def _halve(tensor: Any) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        with np.errstate(over="ignore"):
            array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


class Device(Mutant):
    """ONNX Runtime under the name of a device that computes in ``precision``."""

    def __init__(self, precision: str, **hooks: Any) -> None:
        super().__init__(options=ONE_THREAD, **hooks)
        self.precision = precision

    def probe(self) -> contract.Probe:
        return contract.Probe("1", "npu", self.precision)

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        program = super().compile(part, options)
        program.placement = lambda: contract.Placement("npu", self.precision, "a test says so")  # type: ignore[method-assign]
        return program


def rounded(to: Callable[[np.ndarray], np.ndarray]) -> Callable[[str, int, Feeds, Feeds], Feeds]:
    """An outputs hook: everything that comes out, the cache too, in another precision."""
    return lambda part, step, feeds, outputs: {name: to(array) for name, array in outputs.items()}


@lru_cache(maxsize=2)
def golden(precision: str) -> Golden:
    return Golden(brief().bundle, precision)


def rows(device: Device, layout: str, checks: tuple[str, ...] = NUMBERS, series: str = "") -> dict[str, Row]:
    return helpers.judge(device, layout, 17, checks, golden(device.precision), series)


@pytest.mark.parametrize("layout", ["unified", "split", "static"])
def test_a_device_that_computes_in_fp16_passes_as_one(layout: str, tmp_path: Any) -> None:
    answers = rows(Device("fp16", graph=half), layout, series=str(tmp_path / "series" / "cell"))
    assert {check: row.status for check, row in answers.items()} == dict.fromkeys(NUMBERS, "PASS"), [
        row.message for row in answers.values()
    ]
    floor = float(brief().bundle.floor("fp16", "logits").max())
    assert answers["logits"].floor == pytest.approx(floor)
    assert answers["logits"].value is not None
    assert answers["logits"].value > 100 * brief().bundle.floor("fp32", "logits").max(), "it did compute in fp16"
    text = complete(Scorer(brief().bundle), answers["tokens"], str(tmp_path))
    assert text.status == "PASS", text.message


def test_choices_within_its_noise_are_ties_and_cost_no_text(tmp_path: Any) -> None:
    """Noise as wide as fp16 may have flips close choices: none of them is a divergence, in tokens or in text."""
    limit = golden("fp16").tensors["logits"][2].tail
    rng = np.random.default_rng(3)

    def noisy(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
        if "logits" in outputs:
            noise = rng.uniform(-0.9 * limit, 0.9 * limit, outputs["logits"].shape)
            outputs["logits"] = outputs["logits"] + noise.astype(np.float32)
        return outputs

    row = rows(Device("fp16", outputs=noisy), "unified", ("tokens",), str(tmp_path / "series" / "cell"))["tokens"]
    assert (row.status, row.detail["rows"]["DIVERGED"]) == ("PASS", 0), row.message
    assert row.detail["rows"]["TIE"], "no choice was flipped: the test shows nothing"
    assert complete(Scorer(brief().bundle), row, str(tmp_path)).status == "PASS"


@pytest.mark.parametrize(
    "precision, hooks",
    [
        ("fp32", {"graph": half}),
        ("fp32", {"outputs": rounded(edits.fp16)}),
        ("fp16", {"outputs": rounded(edits.bf16)}),
        ("fp32", {"outputs": rounded(edits.bf16)}),
    ],
    ids=["fp16 as fp32", "rounded to fp16 as fp32", "rounded to bf16 as fp16", "rounded to bf16 as fp32"],
)
@pytest.mark.parametrize("layout", ["unified", "static"])
def test_a_coarser_precision_does_not_pass_for_a_finer_one(precision: str, hooks: dict[str, Any], layout: str) -> None:
    answers = rows(Device(precision, **hooks), layout, ("encoder", "logits", "kv_values"))
    assert {row.status for row in answers.values()} == {"FAIL"}, {check: row.status for check, row in answers.items()}


def test_rounding_to_a_precision_passes_as_that_precision() -> None:
    for precision, to in (("fp16", edits.fp16), ("bf16", edits.bf16)):
        answers = rows(Device(precision, outputs=rounded(to)), "static", ("encoder", "logits", "kv_values"))
        assert {row.status for row in answers.values()} == {"PASS"}, [row.message for row in answers.values()]


def test_the_least_bound_is_one_unit_of_the_effective_precision() -> None:
    for precision, unit in (("fp32", 2.0**-23), ("fp16", 2.0**-10), ("bf16", 2.0**-7)):
        assert bounds.bound(np.zeros(3), 5.0, precision) == (4 * unit, 0.0, 4 * unit)


def test_the_embedded_bundle_has_the_floors_of_three_precisions() -> None:
    bundle = Bundle(str(helpers.EMBEDDED), verify=False)
    assert bundle.precisions == ("fp32", "fp16", "bf16")
    widest = [float(bundle.floor(precision, "logits").max()) for precision in bundle.precisions]
    assert widest == sorted(widest)
    assert widest[1] > 100 * widest[0]
    assert widest[2] > 3 * widest[1]


def test_a_precision_without_a_floor_is_refused() -> None:
    row = rows(Device("int8"), "unified", ("logits",))["logits"]
    assert (row.status, row.kind) == ("UNSUPPORTED", "dtype")
    assert "no int8 floor to judge by; it has fp32, fp16, bf16" in row.message
