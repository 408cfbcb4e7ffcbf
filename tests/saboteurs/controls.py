"""Honest backends, among them unusual ones: every check must pass, or the harness cries wolf."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from backends import contract, openvino, ort, reference
from harness.core.roles import is_cross
from tests.mutant import Feeds, Mutant
from tests.saboteurs import edits
from tests.saboteurs.edits import edited
from tests.saboteurs.frame import Control, Manifest, bad, brief, changed, giving

BRANCH = "use_cache_branch"


def _backwards(part: str, step: int, feeds: Feeds) -> Feeds:
    return {name: np.ascontiguousarray(array[::-1]) for name, array in feeds.items()}


def _forwards(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    return {name: np.ascontiguousarray(array[::-1]) for name, array in outputs.items()}


class FixedBatch(Mutant):
    """Each batch filled up to 32 rows by repeating the last one, as a compiler of fixed batches needs it."""

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        rows: list[int] = []

        def feeds(part: str, step: int, given: Feeds) -> Feeds:
            rows[:] = [len(given["input_ids"])]
            return {
                name: np.concatenate([array, np.repeat(array[-1:], max(0, 32 - len(array)), axis=0)])
                for name, array in given.items()
            }

        def outputs(part: str, step: int, feeds: Feeds, given: Feeds) -> Feeds:
            return {name: array[: rows[0]].copy() for name, array in given.items()}

        return Mutant(feeds=feeds, outputs=outputs).compile(part, options)


class Padding(contract.Backend):
    """Pads each source to a multiple of 16 inside the adapter, and cuts what comes out to the length it was given."""

    capabilities = ort.Backend.capabilities

    def probe(self) -> contract.Probe:
        return ort.Backend().probe()

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        return _Padding(part, ort.Backend().compile(part, options))


class _Padding(contract.Program):
    def __init__(self, part: contract.Part, inner: contract.Program) -> None:
        self.part, self.inner = part, inner

    def run(self, feeds: Feeds) -> Feeds:
        axes = {port.name: port.shape.index("source") for port in self.part.inputs if "source" in port.shape}
        length = next(feeds[name].shape[axis] for name, axis in axes.items())
        extra = -length % 16
        filled = {name: _padded(array, axes.get(name), extra, name) for name, array in feeds.items()}
        outputs = self.inner.run(filled)
        for port in self.part.outputs:
            if "source" in port.shape:
                outputs[port.name] = outputs[port.name].take(range(length), axis=port.shape.index("source"))
        return outputs

    def placement(self) -> contract.Placement | None:
        return self.inner.placement()


def _padded(array: np.ndarray, axis: int | None, extra: int, name: str) -> np.ndarray:
    if axis is None:
        return array
    widths = [(0, extra if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array, widths, constant_values=brief().bundle.decode.pad if name == "input_ids" else 0)


class Merged(contract.Backend):
    """One decoder for every step, as older Optimum merged it: an If on a branch flag, with a cache of length zero where
    there is none, in the branch that does not read it."""

    capabilities = ort.Backend.capabilities

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.inner = ort.Backend()
        self.first: contract.Part | None = None
        self.session: list[Any] = []

    def probe(self) -> contract.Probe:
        return self.inner.probe()

    def compile(self, part: contract.Part, options: dict[str, Any]) -> contract.Program:
        if part.name == "encoder":
            return self.inner.compile(part, options)
        if part.name == "first":
            self.first, self.session = part, []
        else:
            assert self.first is not None, "the first step comes before the others"
            self.session.append(_session(merge(self.first, part), options))
        return _Branch(self.session, part)


class _Branch(contract.Program):
    def __init__(self, session: list[Any], part: contract.Part) -> None:
        self.session, self.part = session, part

    def run(self, feeds: Feeds) -> Feeds:
        session = self.session[0]
        given = {BRANCH: np.array([self.part.name == "step"]), **feeds}
        rows = len(feeds["input_ids"])
        for port in session.get_inputs():
            if port.name not in given:
                shape = [rows if size == "batch" else size if isinstance(size, int) else 0 for size in port.shape]
                given[port.name] = np.zeros(shape, np.float32)
        names = [port.name for port in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        return {port.name: found[port.name] for port in self.part.outputs}

    def placement(self) -> contract.Placement | None:
        return contract.Placement("cpu", "fp32", "session providers")


def _session(model: Any, options: dict[str, Any]) -> Any:
    import onnxruntime  # type: ignore[import-untyped]

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.get("threads", 0)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def merge(first: contract.Part, step: contract.Part) -> Any:
    """Both decoders in one model: If(flag) the step over a cache, else the first one."""
    parts = {part.name: onnx.load(part.path) for part in (first, step)}
    outputs = list(parts["first"].graph.output)
    branches = {name: _branch(name, model.graph, outputs) for name, model in parts.items()}
    names = [value.name for value in outputs]
    node = helper.make_node("If", ["flag"], names, then_branch=branches["step"], else_branch=branches["first"])
    inputs = {value.name: value for model in parts.values() for value in model.graph.input}
    graph = helper.make_graph(
        [helper.make_node("Squeeze", [BRANCH], ["flag"]), node],
        "merged",
        [helper.make_tensor_value_info(BRANCH, TensorProto.BOOL, [1]), *inputs.values()],
        [helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None) for value in outputs],
    )
    return helper.make_model(graph, opset_imports=parts["step"].opset_import, ir_version=parts["step"].ir_version)


def _branch(name: str, graph: Any, outputs: list[Any]) -> Any:
    """A graph as a branch: its tensors get a prefix, what it does not compute it hands through from the cache."""
    outer = {value.name for value in graph.input}
    inner = {one for node in graph.node for one in node.output} | {tensor.name for tensor in graph.initializer}
    names = {one: f"{name}:{one}" for one in inner}
    nodes, tensors = [], []
    for old in graph.node:
        new = onnx.NodeProto()
        new.CopyFrom(old)
        new.name = f"{name}:{old.name}"
        new.input[:] = [names.get(one, one) for one in old.input]
        new.output[:] = [names[one] for one in old.output]
        nodes.append(new)
    for old in graph.initializer:
        tensors.append(numpy_helper.from_array(numpy_helper.to_array(old), names[old.name]))
    given = []
    for value in outputs:
        source = value.name.replace("present.", "past_key_values.", 1)
        target = names.get(value.name, f"{name}:{value.name}")
        if value.name not in inner:
            assert source in outer, value.name
            nodes.append(helper.make_node("Identity", [source], [target], name=f"{name}:through:{value.name}"))
        given.append(helper.make_tensor_value_info(target, TensorProto.FLOAT, None))
    return helper.make_graph(nodes, name, [], given, tensors)


def re_emitted(folder: Path, manifest: Manifest) -> None:
    """Older Optimum's step graph: it gives the constant cross-attention cache back at every step."""
    for part in [graph["parts"]["step"] for graph in manifest["graphs"] if "step" in graph["parts"]]:
        place = folder / part["file"]
        model = onnx.load(str(place), load_external_data=False)
        for name, dtype, shape, role in part["inputs"]:
            given = name.replace("past_key_values.", "present.", 1)
            if is_cross(role):
                if given not in {value.name for value in model.graph.output}:
                    model.graph.node.append(helper.make_node("Identity", [name], [given], name=f"through/{given}"))
                    model.graph.output.append(helper.make_tensor_value_info(given, TensorProto.FLOAT, shape))
                part["outputs"].append([given, dtype, shape, role])
        onnx.save(model, str(place))


def restamped(folder: Path, manifest: Manifest) -> None:
    """The same graphs under a newer IR version, as an exporter that always stamps its own writes them."""
    for graph in manifest["graphs"]:
        graph["ir"] = 10
        for part in graph["parts"].values():
            model = onnx.load(str(folder / part["file"]), load_external_data=False)
            model.ir_version = 10
            onnx.save(model, str(folder / part["file"]))


def _noise(scale: float) -> Callable[[np.ndarray], np.ndarray]:
    generator = np.random.default_rng(1)
    return lambda array: array + (generator.uniform(-scale, scale, array.shape)).astype(array.dtype)


def _read_only(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    """Arrays as some bindings give them: not writable, and not contiguous."""
    given = {}
    for name, array in outputs.items():
        wide = np.repeat(array, 2, axis=-1)[..., ::2]
        wide.flags.writeable = False
        given[name] = wide
    return given


def _shuffled(part: str, step: int, feeds: Feeds, outputs: Feeds) -> Feeds:
    """A dictionary has no order: names say which output is which."""
    return dict(sorted(outputs.items(), reverse=True))


def _grown(model: Any) -> None:
    """Hand the logits through a pair of operators that cancel out exactly."""
    edits.before_output("logits", ("Neg", (), {}), ("Neg", (), {}))(model)


QUICK = ("artifact", "encoder", "logits", "kv_shape", "kv_values", "tokens", "text", "placement")
CACHES = ("encoder", "kv_shape", "kv_values")
NUMBERS = ("encoder", "logits", "kv_shape", "kv_values", "placement")

CONTROLS: list[Control] = [
    Control("ort", ort.Backend, case=17, whole=True),
    Control("ort-static", ort.Backend, layouts=("static",)),
    Control("ort-scatter", ort.Backend, layouts=("static-scatter",), opset=16),
    Control("no-op", bad(graph=edited(_grown, "first", "step"), feeds=lambda part, step, feeds: feeds)),
    Control("one-thread", bad(options={"threads": 1})),
    Control("two-threads", bad(options={"threads": 2}), checks=QUICK),
    Control("optimizer-off", bad(options={"optimizer": "off"})),
    Control("optimizer-basic", bad(options={"optimizer": "basic"}), checks=QUICK),
    Control("rows-backwards", bad(feeds=_backwards, outputs=_forwards)),
    Control("batch-filled-up", FixedBatch, checks=QUICK),
    Control("source-padded-inside", Padding),
    Control("merged-by-if", Merged, case=24, layouts=("split",)),
    Control("cross-cache-given-again", ort.Backend, case=17, bundle=re_emitted, checks=QUICK),
    Control("restamped-ir", ort.Backend, case=27, bundle=restamped, checks=QUICK),
    Control("mask-constant-1e4", bad(graph=edited(edits.constant("/Constant_7", -1e4), "step")), layouts=("unified",)),
    Control(
        "mask-constant-inf",
        bad(graph=edited(edits.constant("/Constant_4", -np.inf), "encoder")),
        case=25,
        layouts=("unified",),
    ),
    Control("read-only-and-strided", bad(outputs=_read_only), checks=QUICK),
    Control("outputs-in-another-order", bad(outputs=_shuffled), checks=QUICK, layouts=("unified",)),
    Control(
        "noise-of-one-ulp", bad(outputs=giving(changed(_noise(5e-7), "logits"))), checks=QUICK, layouts=("unified",)
    ),
    Control("opset-14", ort.Backend, opset=14, layouts=("unified", "split", "static")),
    Control("reference", reference.Backend, checks=NUMBERS, layouts=("unified",)),
    Control("reference-split", reference.Backend, checks=CACHES, layouts=("split",)),
    Control("reference-static", reference.Backend, checks=CACHES, layouts=("static",)),
    Control("openvino-split", openvino.Backend, case=42, layouts=("split",)),
    Control("openvino-static", openvino.Backend, layouts=("static",)),
]
