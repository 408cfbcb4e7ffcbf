"""Saboteurs written without knowing how the harness judges.

Each is ONNX Runtime with one fault that runtimes, exporters, quantisers, caches and wrappers make silently. Every run
is also done honestly, so the harm is measured, not assumed.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from backends import contract, ort

Arrays = dict[str, np.ndarray]
LAST = 1
"""The last decoder layer."""


@dataclass
class Call:
    """One run of one part. ``step`` is the past's length (-1 in the encoder); ``number`` counts a program's runs."""

    part: str
    step: int
    number: int
    feeds: Arrays
    honest: Callable[[Arrays], Arrays]
    edited: Callable[[Arrays], Arrays]

    @property
    def batch(self) -> int:
        return int(self.feeds["input_ids"].shape[0])

    @property
    def source(self) -> int:
        mask = self.feeds.get("encoder_attention_mask", self.feeds.get("attention_mask"))
        return 0 if mask is None else int(mask.shape[1])


Spoil = Callable[[Call], Arrays]
"""What a program really returns."""
Edit = Callable[[str, Any], None]
"""Changes the ONNX model of a part in place."""


@dataclass
class Harm:
    """What a saboteur did: runs that differed from the honest ones, and the largest gap of each output."""

    runs: int = 0
    wrong: int = 0
    gaps: dict[str, float] = field(default_factory=dict)

    def add(self, given: Arrays, right: Arrays) -> None:
        self.runs += 1
        differs = [self._gap(name, given[name], right[name]) for name in right if name in given]
        self.wrong += any(differs)

    def _gap(self, name: str, given: np.ndarray, right: np.ndarray) -> bool:
        same_shape = given.shape == right.shape
        gap = float(np.max(np.abs(given - right), initial=0)) if same_shape else float("inf")
        if gap != 0:
            self.gaps[name] = max(self.gaps.get(name, 0.0), float("inf") if np.isnan(gap) else gap)
        return gap != 0


class Saboteur(contract.Backend):
    """``spoil`` makes the spoiler of one program, which may keep state; ``edit`` makes what ``Call.edited`` runs."""

    capabilities = replace(ort.Backend.capabilities, knobs={})  # none would clear it, and trying costs three replays

    def __init__(self, spoil: Callable[[], Spoil] | None = None, edit: Edit | None = None) -> None:
        super().__init__()
        self.inner = ort.Backend()
        self.spoil = spoil or (lambda: lambda call: call.edited(call.feeds))
        self.edit = edit
        self.harm = Harm()

    def probe(self) -> contract.Probe:
        return self.inner.probe()

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        honest = self.inner.compile(part, options)
        if self.edit is None:
            return _Program(self, part, honest, honest)
        model = onnx.load(part.path)
        self.edit(part.name, model)
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "edited.onnx")
            onnx.save(model, place)
            edited = self.inner.compile(contract.Part(part.name, place, part.inputs, part.outputs), options)
        return _Program(self, part, honest, edited)


class _Program(contract.Program):
    def __init__(
        self, owner: Saboteur, part: contract.Part, honest: contract.Program, edited: contract.Program
    ) -> None:
        self.owner, self.part, self.honest, self.edited = owner, part, honest, edited
        self.spoil = owner.spoil()
        self.number = 0

    def run(self, feeds: Arrays) -> Arrays:
        caches = [array for name, array in feeds.items() if ".decoder." in name]
        step = -1 if self.part.name == "encoder" else (caches[0].shape[2] if caches else 0)
        right = {} if self.owner.harm.wrong > 50 else self.honest.run(feeds)  # enough is proved
        given = self.spoil(Call(self.part.name, step, self.number, dict(feeds), self.honest.run, self.edited.run))
        self.number += 1
        if right:
            self.owner.harm.add(given, right)
        return given

    def placement(self) -> contract.Placement | None:
        return self.honest.placement()


# --- graph edits -----------------------------------------------------------------------------------------------------


def rounded(array: np.ndarray, bits: int) -> np.ndarray:
    """Nearest float32 whose significand has ``bits`` explicit bits: 7 is bf16, 10 is TF32."""
    drop = 23 - bits
    raw = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((raw + np.uint32(1 << (drop - 1))) & np.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)).view(np.float32)


def tensors(change: Callable[[str, np.ndarray], np.ndarray | None]) -> Edit:
    """``change(name, array)`` gives the new value of a stored tensor, or None to leave it."""

    def edit(_: str, model: Any) -> None:
        for tensor in model.graph.initializer:
            new = change(tensor.name, numpy_helper.to_array(tensor).copy())
            if new is not None:
                tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))

    return edit


BF16, TF32, TWO_BF16 = 8, 11, 16


def products(bits: int, only: Callable[[str], bool] = lambda _: True) -> Edit:
    """Matrix products whose left factor keeps ``bits`` significant bits (Veltkamp's split). The weights of the embedded
    model are fp16 numbers, so rounding those to TF32 would change nothing: activations are where it shows."""

    def edit(_: str, model: Any) -> None:
        graph, rebuilt = model.graph, []
        graph.initializer.append(numpy_helper.from_array(np.float32(2.0 ** (24 - bits) + 1), "sabotage_split"))
        for index, node in enumerate(list(graph.node)):
            if node.op_type == "MatMul" and only(node.output[0]):
                source, step = node.input[0], [f"sabotage_{index}_{number}" for number in range(3)]
                rebuilt.append(helper.make_node("Mul", [source, "sabotage_split"], [step[0]]))
                rebuilt.append(helper.make_node("Sub", [step[0], source], [step[1]]))
                rebuilt.append(helper.make_node("Sub", [step[0], step[1]], [step[2]]))
                node.input[0] = step[2]
            rebuilt.append(node)
        del graph.node[:]
        graph.node.extend(rebuilt)

    return edit


def in_part(wanted: Callable[[str], bool], edit: Edit) -> Edit:
    return lambda part, model: edit(part, model) if wanted(part) else None


def epsilon(value: float, only: Callable[[str], bool] = lambda _: True) -> Edit:
    """Layer norm with another epsilon."""

    def edit(_: str, model: Any) -> None:
        for node in model.graph.node:
            if node.op_type == "LayerNormalization" and only(node.output[0]):
                for attribute in node.attribute:
                    if attribute.name == "epsilon":
                        attribute.f = value

    return edit


def after(op: str, build: Callable[[str, str, str], tuple[list[Any], list[Any]]], only: str = "") -> Edit:
    """Put nodes behind each ``op``: ``build(input, output, prefix)`` gives nodes and constants."""

    def edit(_: str, model: Any) -> None:
        graph, rebuilt, count = model.graph, [], 0
        for node in list(graph.node):
            rebuilt.append(node)
            if node.op_type == op and only in node.output[0]:
                name, prefix = node.output[0], f"sabotage_{count}"
                node.output[0] = prefix + "_in"
                nodes, constants = build(node.output[0], name, prefix)
                rebuilt.extend(nodes)
                graph.initializer.extend(constants)
                count += 1
        del graph.node[:]
        graph.node.extend(rebuilt)

    return edit


def flushed(source: str, target: str, prefix: str) -> tuple[list[Any], list[Any]]:
    """Below the least normal fp16 is zero."""
    names = [f"{prefix}_{suffix}" for suffix in ("least", "zero", "small")]
    constants = [numpy_helper.from_array(np.float32(2.0**-14), names[0])]
    constants.append(numpy_helper.from_array(np.float32(0), names[1]))
    nodes = [helper.make_node("Less", [source, names[0]], [names[2]])]
    nodes.append(helper.make_node("Where", [names[2], names[1], source], [target]))
    return nodes, constants


def half(source: str, target: str, prefix: str) -> tuple[list[Any], list[Any]]:
    """Kept in fp16 for a moment."""
    nodes = [helper.make_node("Cast", [source], [prefix + "_half"], to=onnx.TensorProto.FLOAT16)]
    nodes.append(helper.make_node("Cast", [prefix + "_half"], [target], to=onnx.TensorProto.FLOAT))
    return nodes, []


def sigmoid_table(_: str, model: Any) -> None:
    """Sigmoid from 2,048 table entries over [-8, 8], nearest entry, as fixed-function units do."""
    graph, rebuilt = model.graph, []
    grid = np.arange(2049, dtype=np.float32) / 128 - 8
    graph.initializer.append(numpy_helper.from_array((1 / (1 + np.exp(-grid))).astype(np.float32), "sabotage_table"))
    for name, value in (("low", 0.0), ("high", 2048.0), ("scale", 128.0), ("offset", 1024.0)):
        graph.initializer.append(numpy_helper.from_array(np.float32(value), f"sabotage_{name}"))
    for index, node in enumerate(list(graph.node)):
        if node.op_type != "Sigmoid":
            rebuilt.append(node)
            continue
        step = [f"sabotage_{index}_{number}" for number in range(6)]
        rebuilt += [
            helper.make_node("Mul", [node.input[0], "sabotage_scale"], [step[0]]),
            helper.make_node("Add", [step[0], "sabotage_offset"], [step[1]]),
            helper.make_node("Round", [step[1]], [step[2]]),
            helper.make_node("Clip", [step[2], "sabotage_low", "sabotage_high"], [step[3]]),
            helper.make_node("Cast", [step[3]], [step[4]], to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["sabotage_table", step[4]], [node.output[0]]),
        ]
    del graph.node[:]
    graph.node.extend(rebuilt)


def mask_constant(value: float) -> Edit:
    """The additive mask of hidden positions is ``value`` instead of the least float."""

    def edit(_: str, model: Any) -> None:
        masks = {name for node in model.graph.node if node.op_type == "Where" for name in node.input}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.output[0] in masks:
                tensor = node.attribute[0].t
                if numpy_helper.to_array(tensor) < -1e30:
                    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32), tensor.name))

    return edit


def scale_in_half(_: str, model: Any) -> None:
    """The embedding scale sqrt(d_model) stored in fp16: 11.3125 for 11.3137."""
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = numpy_helper.to_array(node.attribute[0].t)
            if value.ndim == 0 and value.dtype == np.float32 and 11.3 < value < 11.32:
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.asarray(np.float32(np.float16(value)))))


def positions(limit: int, table: str) -> Edit:
    """A position table cut at ``limit``: later positions get its last entry."""

    def change(name: str, array: np.ndarray) -> np.ndarray | None:
        if name != f"{table}.embed_positions.weight":
            return None
        array[limit:] = array[limit - 1]
        return array

    return tensors(change)


def token_row(token: int, change: Callable[[np.ndarray], np.ndarray], side: str = "decoder") -> Edit:
    """The embedding of one id only."""

    def edited(name: str, array: np.ndarray) -> np.ndarray | None:
        if name != f"{side}.embed_tokens.weight":
            return None
        array[token] = change(array)
        return array

    return tensors(edited)


def without_key_bias(name: str, array: np.ndarray) -> np.ndarray | None:
    return np.zeros_like(array) if "decoder.layers" in name and "self_attn.k_proj.bias" in name else None


# --- spoilers --------------------------------------------------------------------------------------------------------


def when(condition: Callable[[Call], bool]) -> Callable[[], Spoil]:
    """The edited graph in the runs that meet the condition, the honest one in the others."""
    return lambda: lambda call: call.edited(call.feeds) if condition(call) else call.honest(call.feeds)


def logits(change: Callable[[Call, np.ndarray], np.ndarray]) -> Callable[[], Spoil]:
    def spoil(call: Call) -> Arrays:
        outputs = call.honest(call.feeds)
        if "logits" in outputs:
            outputs["logits"] = change(call, outputs["logits"].copy()).astype(np.float32)
        return outputs

    return lambda: spoil


def caches(change: Callable[[Call, str, np.ndarray], np.ndarray], last: bool = False) -> Callable[[], Spoil]:
    """Change own-attention caches as given: of all layers, or of the last one."""

    def spoil(call: Call) -> Arrays:
        outputs = call.honest(call.feeds)
        for name in outputs:
            if ".decoder." in name and (not last or f".{LAST}." in name):
                outputs[name] = change(call, name, outputs[name].copy())
        return outputs

    return lambda: spoil


def fed(change: Callable[[Call], None]) -> Callable[[], Spoil]:
    """Change what the program reads; ``change`` replaces entries of ``call.feeds``."""

    def spoil(call: Call) -> Arrays:
        change(call)
        return call.honest(call.feeds)

    return lambda: spoil


def log_softmax(call: Call, values: np.ndarray) -> np.ndarray:
    top = values.max(-1, keepdims=True)
    return np.asarray(values - top - np.log(np.exp(values - top).sum(-1, keepdims=True)))


def stale_tail() -> Spoil:
    """The last 24 columns of the vocabulary are those of the run before: a tile that is never written."""
    kept: list[np.ndarray] = []

    def spoil(call: Call) -> Arrays:
        outputs = call.honest(call.feeds)
        if "logits" in outputs:
            fresh = outputs["logits"].copy()
            if kept and kept[-1].shape == fresh.shape:
                outputs["logits"] = np.concatenate([fresh[..., :-24], kept[-1][..., -24:]], -1)
            kept[:] = [fresh]
        return outputs

    return spoil


def stale_head(call: Call, name: str, values: np.ndarray) -> np.ndarray:
    if name.endswith("value") and call.step >= 40:
        values[:, 2, -1] = values[:, 2, -2]
    return values


def drift(call: Call, name: str, values: np.ndarray) -> np.ndarray:
    values[:, :, :-1] *= np.float32(1 + 2.0**-21)
    return values


def window(call: Call, name: str, values: np.ndarray) -> np.ndarray:
    if name.endswith("value") and values.shape[2] > 72:
        values[:, :, :-72] = 0
    return values


def cold_half(call: Call, name: str, values: np.ndarray) -> np.ndarray:
    if values.shape[2] > 64:
        values[:, :, :-64] = values[:, :, :-64].astype(np.float16)
    return values


def unflushed_block(call: Call) -> None:
    """Once, at step 90, one head of one sentence reads the value before the newest twice."""
    name = f"past_key_values.{LAST}.decoder.value"
    if call.step == 90:
        values = call.feeds[name].copy()
        values[0, 1, -1] = values[0, 1, -2]
        call.feeds[name] = values


def swapped_rows(call: Call) -> None:
    """At step 20 the beam reorder touches the values of one layer only."""
    name = f"past_key_values.{LAST}.decoder.value"
    if call.step == 20 and call.batch > 2:
        values = call.feeds[name].copy()
        values[[1, 0]] = values[[0, 1]]
        call.feeds[name] = values


def mask_of(call: Call) -> str:
    return "attention_mask" if call.part == "encoder" else "encoder_attention_mask"


def last_hidden_at_sixteen(call: Call) -> None:
    name = mask_of(call)
    if call.source and call.source % 16 == 0 and call.part != "encoder":
        mask = call.feeds[name].copy()
        mask[:, -1] = 0
        call.feeds[name] = mask


def sorted_lengths(call: Call) -> None:
    """The mask rebuilt from lengths sorted downwards, as packed sequences are."""
    name = mask_of(call)
    if name in call.feeds:
        lengths = np.sort(call.feeds[name].sum(1))[::-1]
        call.feeds[name] = (np.arange(call.source)[None] < lengths[:, None]).astype(np.int64)


def first_row_full(call: Call) -> None:
    """The widest row is taken to be the first: its mask is all ones."""
    name = mask_of(call)
    if name in call.feeds:
        mask = call.feeds[name].copy()
        mask[0] = 1
        call.feeds[name] = mask


def one_short(call: Call) -> None:
    """An exclusive end taken for an inclusive one in the third row: its last source token is hidden."""
    name = mask_of(call)
    if call.batch >= 3 and call.part != "encoder" and name in call.feeds:
        mask = call.feeds[name].copy()
        mask[2, mask[2].sum() - 1] = 0
        call.feeds[name] = mask


def prefix_cache(key: Callable[[Call], object]) -> Callable[[], Spoil]:
    """Encoder results kept under a key that does not tell all inputs apart."""

    def make() -> Spoil:
        kept: dict[object, Arrays] = {}

        def spoil(call: Call) -> Arrays:
            outputs = call.honest(call.feeds)
            if call.part != "encoder":
                return outputs
            return {name: array.copy() for name, array in kept.setdefault(key(call), outputs).items()}

        return spoil

    return make


def dropped_sync(every: int) -> Callable[[], Spoil]:
    """Each ``every``-th run gives the logits of the run before: a copy that started before the kernel ended."""

    def make() -> Spoil:
        kept: list[np.ndarray] = []

        def spoil(call: Call) -> Arrays:
            outputs = call.honest(call.feeds)
            if "logits" in outputs:
                fresh = outputs["logits"]
                if kept and call.number % every == every - 1 and kept[-1].shape == fresh.shape:
                    outputs["logits"] = kept[-1].copy()
                kept[:] = [fresh]
            return outputs

        return spoil

    return make


class Aliased(Saboteur):
    """Outputs that share memory with later ones. The harm is what an output kept by the caller becomes."""

    def __init__(self, only: Callable[[str], bool]) -> None:
        super().__init__(self._shared)
        self.only = only

    def _shared(self) -> Spoil:
        buffers: dict[str, np.ndarray] = {}
        kept: dict[str, tuple[np.ndarray, np.ndarray]] = {}

        def spoil(call: Call) -> Arrays:
            outputs = call.honest(call.feeds)
            for name in [name for name in outputs if self.only(name)]:
                fresh = outputs[name]
                room = tuple(256 if axis == 2 and fresh.ndim == 4 else size for axis, size in enumerate(fresh.shape))
                if name not in buffers or buffers[name].shape != room:
                    buffers[name] = np.zeros(room, fresh.dtype)
                view = buffers[name][tuple(slice(size) for size in fresh.shape)]
                view[...] = fresh
                if name in kept:
                    self.harm.add({name: kept[name][0]}, {name: kept[name][1]})
                outputs[name], kept[name] = view, (view, fresh)
            return outputs

        return spoil


class Donated(Saboteur):
    """The caches fed in are taken over as scratch memory. The harm is what the caller's own arrays become."""

    def __init__(self) -> None:
        super().__init__(lambda: self._scribble)

    def _scribble(self, call: Call) -> Arrays:
        outputs = call.honest(call.feeds)
        for name, array in call.feeds.items():
            if ".decoder." in name and array.size and array.flags.writeable:
                before = array.copy()
                array[:, :, -1] = 0
                self.harm.add({name: array}, {name: before})
        return outputs


def stateful() -> Spoil:
    """A stateful model behind a stateless face: its own cache is used whenever the length fits, the fed one ignored."""
    kept: Arrays = {}

    def spoil(call: Call) -> Arrays:
        feeds = dict(call.feeds)
        for name in feeds:
            if name in kept and kept[name].shape == feeds[name].shape and ".decoder." in name:
                feeds[name] = kept[name]
        outputs = call.honest(feeds)
        for name, array in outputs.items():
            kept[name.replace("present", "past_key_values")] = array
        return outputs

    return spoil


def racing() -> Spoil:
    """One run in fifty has a race in a split reduction: a few units in the last place of a few logits."""
    dice = np.random.default_rng()

    def spoil(call: Call) -> Arrays:
        outputs = call.honest(call.feeds)
        if "logits" in outputs and dice.random() < 0.02:
            shape = outputs["logits"].shape
            outputs["logits"] = (outputs["logits"] + dice.uniform(-2e-5, 2e-5, shape)).astype(np.float32)
        return outputs

    return spoil


# --- the list --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blind:
    """``why`` says who makes this mistake; ``layout`` is where it is tried; ``make`` gives a fresh backend."""

    name: str
    why: str
    layout: str
    make: Callable[[], Saboteur]


def decoder(part: str) -> bool:
    return part != "encoder"


BLIND = [
    # A small bias everywhere.
    Blind(
        "two-bf16",
        "float32 products emulated by two bf16 terms, the third is left out",
        "unified",
        lambda: Saboteur(edit=products(TWO_BF16)),
    ),
    Blind(
        "head-two-bf16",
        "the same in the vocabulary projection only",
        "unified",
        lambda: Saboteur(edit=products(TWO_BF16, lambda name: "lm_head" in name)),
    ),
    Blind(
        "one-tf32-matrix",
        "one product on tensor cores: the query of the last cross-attention",
        "unified",
        lambda: Saboteur(edit=products(TF32, lambda name: "layers.1/encoder_attn/q_proj" in name)),
    ),
    Blind("sigmoid-table", "swish by a lookup table of 2,048 entries", "unified", lambda: Saboteur(edit=sigmoid_table)),
    Blind("scale-in-half", "the embedding scale stored in fp16", "unified", lambda: Saboteur(edit=scale_in_half)),
    Blind(
        "one-fused-norm",
        "a fusion matches one layer norm of ten and drops its epsilon",
        "unified",
        lambda: Saboteur(edit=epsilon(1e-12, lambda name: "layers.1/encoder_attn_layer_norm" in name)),
    ),
    Blind(
        "temperature",
        "logits scaled by 1 - 2^-16: argmax and text stay",
        "unified",
        lambda: Saboteur(logits(lambda call, values: values * np.float32(1 - 2.0**-16))),
    ),
    Blind(
        "shifted-logits",
        "a constant of 2e-5 on all logits: softmax does not see it",
        "unified",
        lambda: Saboteur(logits(lambda call, values: values + np.float32(2e-5))),
    ),
    Blind("vocabulary-tail", "the last 24 columns are the run before's", "unified", lambda: Saboteur(stale_tail)),
    Blind("log-softmax", "log-probabilities returned as logits", "unified", lambda: Saboteur(logits(log_softmax))),
    Blind(
        "saturated-logits",
        "values above 12 clipped, as a fixed-point output does",
        "unified",
        lambda: Saboteur(logits(lambda call, values: np.minimum(values, 12))),
    ),
    Blind(
        "pad-suppressed",
        "the export bakes the rule that pad is never chosen into the logits",
        "unified",
        lambda: Saboteur(logits(lambda call, values: np.where(np.arange(1024) == 1023, -1e4, values))),
    ),
    Blind(
        "key-bias-dropped",
        "the key bias left out: no attention output changes, the cache does",
        "unified",
        lambda: Saboteur(edit=tensors(without_key_bias)),
    ),
    Blind(
        "probabilities-flushed",
        "attention probabilities below the least normal fp16 are zero",
        "unified",
        lambda: Saboteur(edit=after("Softmax", flushed)),
    ),
    Blind(
        "mask-minus-16",
        "the mask constant is -16, as an 8-bit accelerator stores it: padding leaks",
        "unified",
        lambda: Saboteur(edit=mask_constant(-16)),
    ),
    Blind(
        "half-scores-wide",
        "attention scores in fp16 where the source is 128 or longer",
        "unified",
        lambda: Saboteur(when(lambda call: call.source >= 128), after("MatMul", half, "attn/MatMul")),
    ),
    # Wrong in some steps only.
    Blind(
        "epsilon-from-32",
        "another layer-norm kernel, with another epsilon, from 32 cached positions on",
        "unified",
        lambda: Saboteur(when(lambda call: call.step >= 32), epsilon(1e-12)),
    ),
    Blind(
        "epsilon-from-64",
        "the same from 64 cached positions on",
        "unified",
        lambda: Saboteur(when(lambda call: call.step >= 64), epsilon(1e-12)),
    ),
    Blind(
        "tf32-from-97",
        "a TF32 kernel from 97 cached positions on",
        "unified",
        lambda: Saboteur(when(lambda call: call.step >= 97), products(TF32)),
    ),
    Blind(
        "tf32-from-source-144",
        "a TF32 kernel in the encoder where the source is 144 or longer",
        "unified",
        lambda: Saboteur(when(lambda call: call.part == "encoder" and call.source >= 144), products(TF32)),
    ),
    Blind(
        "cold-first-run",
        "the first run of each program takes the untuned kernel: TF32",
        "unified",
        lambda: Saboteur(when(lambda call: call.number == 0), products(TF32)),
    ),
    Blind(
        "epsilon-wide",
        "another layer-norm kernel in the encoder where the source is 128 or longer",
        "unified",
        lambda: Saboteur(when(lambda call: call.part == "encoder" and call.source >= 128), epsilon(1e-6)),
    ),
    Blind(
        "epsilon-first",
        "the first part exported apart, with another epsilon; the step part is right",
        "split",
        lambda: Saboteur(edit=in_part(lambda part: part == "first", epsilon(1e-6))),
    ),
    Blind(
        "first-two-bf16",
        "the first part runs on another provider, in two bf16 terms",
        "split",
        lambda: Saboteur(edit=in_part(lambda part: part == "first", products(TWO_BF16))),
    ),
    Blind(
        "unflushed-block",
        "one head of one sentence reads a stale value, in step 90 only",
        "unified",
        lambda: Saboteur(fed(unflushed_block)),
    ),
    Blind(
        "late-noise",
        "step 95, one sentence in the traced rows: 1e-4 on one logit",
        "unified",
        lambda: Saboteur(
            logits(lambda call, values: values + (call.step == 95) * 1e-4 * (np.arange(values.shape[-1]) == 700))
        ),
    ),
    Blind(
        "positions-cut-100",
        "the decoder's position table cut at 100 entries",
        "unified",
        lambda: Saboteur(edit=in_part(decoder, positions(100, "decoder"))),
    ),
    Blind(
        "positions-cut-160",
        "the encoder's position table cut at 160 entries",
        "unified",
        lambda: Saboteur(edit=positions(160, "encoder")),
    ),
    Blind("dropped-sync", "every 257th run gives the logits before", "unified", lambda: Saboteur(dropped_sync(257))),
    Blind(
        "dropped-sync-late",
        "every 1,000th run of a program does",
        "unified",
        lambda: Saboteur(dropped_sync(1000)),
    ),
    # The cache.
    Blind(
        "stale-head", "from step 40 one head's V is the one before", "split", lambda: Saboteur(caches(stale_head, True))
    ),
    Blind(
        "cache-drift", "kept values are rescaled by 1 + 2^-21 in every step", "unified", lambda: Saboteur(caches(drift))
    ),
    Blind(
        "window-72", "a sliding window forgets values older than 72 steps", "unified", lambda: Saboteur(caches(window))
    ),
    Blind(
        "cold-cache-half", "positions older than 64 are moved to fp16", "unified", lambda: Saboteur(caches(cold_half))
    ),
    Blind(
        "half-reorder", "a beam reorder swaps rows of one tensor only", "unified", lambda: Saboteur(fed(swapped_rows))
    ),
    Blind("stateful", "the program uses its own cache and ignores the one fed", "unified", lambda: Saboteur(stateful)),
    Blind(
        "logits-aliased",
        "logits of all runs share one buffer",
        "unified",
        lambda: Aliased(lambda name: name == "logits"),
    ),
    Blind(
        "cache-aliased", "caches are views of one buffer", "unified", lambda: Aliased(lambda name: ".decoder." in name)
    ),
    Blind(
        "encoder-aliased",
        "encoder outputs share one buffer",
        "unified",
        lambda: Aliased(lambda name: ".encoder." in name),
    ),
    Blind("donated-feeds", "the fed cache is used as scratch memory", "unified", Donated),
    # Some shapes, some rows, some ids.
    Blind(
        "large-batch-tf32",
        "batches of 16 and more take a TF32 kernel",
        "unified",
        lambda: Saboteur(when(lambda call: call.batch >= 16), products(TF32)),
    ),
    Blind(
        "large-batch-bf16",
        "batches of 16 and more take a bf16 kernel",
        "unified",
        lambda: Saboteur(when(lambda call: call.batch >= 16), products(BF16)),
    ),
    Blind(
        "large-batch-epsilon",
        "batches of 16 and more take a layer norm with another epsilon",
        "unified",
        lambda: Saboteur(when(lambda call: call.batch >= 16), epsilon(1e-12)),
    ),
    Blind(
        "alone-epsilon",
        "a batch of one takes a layer norm with another epsilon",
        "unified",
        lambda: Saboteur(when(lambda call: call.batch == 1), epsilon(1e-12)),
    ),
    Blind(
        "alone-two-bf16",
        "a batch of one takes a matrix-vector kernel of two bf16 terms",
        "unified",
        lambda: Saboteur(when(lambda call: call.batch == 1), products(TWO_BF16)),
    ),
    Blind("one-short", "the third row's last source token is hidden", "unified", lambda: Saboteur(fed(one_short))),
    Blind(
        "last-hidden-at-16",
        "a source length that is a multiple of 16 loses its last position",
        "unified",
        lambda: Saboteur(fed(last_hidden_at_sixteen)),
    ),
    Blind("sorted-lengths", "rows are taken to be sorted by length", "unified", lambda: Saboteur(fed(sorted_lengths))),
    Blind(
        "first-row-full", "the first row is taken to be the widest", "unified", lambda: Saboteur(fed(first_row_full))
    ),
    Blind(
        "cache-by-shape",
        "encoder results kept by shape",
        "unified",
        lambda: Saboteur(prefix_cache(lambda call: call.feeds["input_ids"].shape)),
    ),
    Blind(
        "cache-by-checksum",
        "encoder results kept by shape and a checksum that does not see the order",
        "unified",
        lambda: Saboteur(
            prefix_cache(lambda call: (call.feeds["input_ids"].shape, int(call.feeds["input_ids"].sum())))
        ),
    ),
    Blind(
        "alone-at-16",
        "a batch of one whose source length is a multiple of 16 loses its last position",
        "unified",
        lambda: Saboteur(fed(lambda call: last_hidden_at_sixteen(call) if call.batch == 1 else None)),
    ),
    Blind(
        "token-bf16",
        "one id, in no traced row, has its embedding in bf16",
        "unified",
        lambda: Saboteur(edit=in_part(decoder, token_row(1012, lambda table: rounded(table[1012], 7)))),
    ),
    Blind(
        "token-collision",
        "one id, in no traced row, gets its neighbour's embedding",
        "unified",
        lambda: Saboteur(edit=in_part(decoder, token_row(1012, lambda table: table[1011]))),
    ),
    Blind(
        "source-token-bf16",
        "one source id, in no traced row, has its embedding in bf16",
        "unified",
        lambda: Saboteur(edit=token_row(121, lambda table: rounded(table[121], 7), "encoder")),
    ),
    # Not the same twice.
    Blind("racing", "one run in fifty is a few units in the last place off", "unified", lambda: Saboteur(racing)),
]
