"""The artifact check: on the host, before any backend, every part of a graph is what the manifest says it is."""

import os
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from backends.contract import Part, Port
from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.graph import Graph
from harness.core.manifest import PLAIN_NAME
from harness.core.rows import Answer
from harness.run import onnx_proto

PORTABLE = ("", "ai.onnx")
SPECIAL = ("</s>", "<pad>", "<s>")
LARGEST = {"fp16": 65504.0}
FLOATS = {"FLOAT": "<f4", "FLOAT16": "<f2", "DOUBLE": "<f8"}
PROTO = onnx_proto.load()
# ONNX's names for element types where numpy has another one.
NUMPY_NAMES = {"float": "float32", "double": "float64"}


class Problem(NamedTuple):
    """Something that is not as the manifest says. ``culprit``: whose fault it is, empty where it is the graph's own."""

    text: str
    culprit: str = ""


def check(bundle: Bundle, graph: Graph) -> Answer:
    """The artifact answer of one graph. ``compared`` counts the statements checked: ports, versions, files, id ranges."""
    problems: list[Problem] = []
    compared = 0
    for part in graph.parts:
        try:
            model = read(part.path)
        except Exception as error:  # noqa: BLE001 - protobuf raises classes of its own
            problems.append(Problem(f"{os.path.basename(part.path)} is not a readable ONNX file ({error})"))
            continue
        statements = list(_statements(bundle, graph, part, model))
        compared += len(statements)
        problems += [Problem(f"{part.name}: {text}") for text in statements if text]
    contents, of_contents = _contents(bundle)
    problems += of_contents
    compared += contents
    return Answer(
        "artifact",
        verdict.of_row(compared, len(problems)),
        metric="problems",
        value=float(len(problems)),
        bound=0.0,
        compared=compared,
        blame=next((problem.culprit for problem in problems if problem.culprit), ""),
        message=problems[0].text if problems else "",
        detail={"problems": [problem.text for problem in problems[:20]]} if problems else {},
    )


@lru_cache(maxsize=4)
def _contents(bundle: Bundle) -> tuple[int, list[Problem]]:
    """What is the same for every graph: ids inside the vocabulary that spell their text, and a golden of numbers. Returns
    how many elements were checked, and the problems."""
    problems = []
    compared = 0
    for name, size in (("source_ids", len(bundle.source_pieces)), ("tokens", bundle.dims.vocab)):
        ids = bundle.array(name)
        compared += ids.size
        outside = np.flatnonzero((ids < 0) | (ids >= size))
        if outside.size:
            problems.append(Problem(f"{name}: id {int(ids[outside[0]])} is outside the vocabulary of {size}"))
    for output in ("logits", "self", "encoder", "cross"):
        golden = bundle.array(f"trace_{output}")
        compared += golden.size
        if np.isnan(golden).any():
            problems.append(Problem(f"trace_{output}: the golden holds NaN", "golden"))
    if not problems:
        problems += _spelling(bundle)
    return compared, problems


def _spelling(bundle: Bundle) -> list[Problem]:
    """Ids taken from SentencePiece instead of the vocabulary file are all in range, and spell nonsense."""
    known = wrong = 0
    for index, row in enumerate(bundle.rows):
        pieces = [bundle.source_pieces[token] for token in bundle.source(index).tolist()]
        if "<unk>" in pieces:
            continue
        spelled, text = _letters("".join(piece for piece in pieces if piece not in SPECIAL)), _letters(row.source)
        known += 1
        wrong += spelled != text
    if wrong * 2 > known:
        words = f"source_ids: {wrong} of {known} rows do not spell their text: the ids are not the vocabulary file's"
        return [Problem(words, "tokenizer")]
    return []


def _letters(text: str) -> str:
    """Letters and digits only: SentencePiece normalises spaces and punctuation."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", text).casefold() if letter.isalnum())


def read(path: str) -> Any:
    """The ModelProto of a file, weights left where they are."""
    model = PROTO.ModelProto()
    with open(path, "rb") as stream:
        model.ParseFromString(stream.read())
    return model


def _statements(bundle: Bundle, graph: Graph, part: Part, model: Any) -> Iterator[str]:
    """One entry a statement checked: empty when it holds, else what is wrong."""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx"))
    yield "" if opset == graph.opset else f"opset {opset}, the manifest says {graph.opset}"
    yield "" if model.ir_version == graph.ir else f"IR version {model.ir_version}, the manifest says {graph.ir}"
    used = {node.domain for node in model.graph.node} | set(opsets)
    for domain in sorted(used - set(PORTABLE)):
        yield f"uses operators of the domain {domain!r}, which is not portable"
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    for word, values, ports in (("input", inputs, part.inputs), ("output", model.graph.output, part.outputs)):
        yield from _ports(word, values, ports)
    if graph.precision in LARGEST or graph.layout.startswith("static"):
        yield from overflows(model, "fp16")
    for tensor in _tensors(model.graph):
        if tensor.data_location == PROTO.TensorProto.EXTERNAL:
            yield _external(bundle, tensor)


def _ports(word: str, values: Any, ports: "tuple[Port, ...]") -> Iterator[str]:
    graph_names, manifest_names = [value.name for value in values], [port.name for port in ports]
    if graph_names != manifest_names:
        wrong = sorted(set(graph_names) ^ set(manifest_names)) or graph_names
        yield f"{word}s differ from the manifest's: {', '.join(wrong)}"
        return
    for value, port in zip(values, ports, strict=True):
        tensor = value.type.tensor_type
        dtype = PROTO.TensorProto.DataType.Name(tensor.elem_type).lower()
        dtype = NUMPY_NAMES.get(dtype, dtype)
        yield "" if dtype == port.dtype else f"{port.name} is {dtype}, the manifest says {port.dtype}"
        rank = len(tensor.shape.dim)
        yield "" if rank == len(port.shape) else f"{port.name} has rank {rank}, the manifest says {len(port.shape)}"
        for axis, (dim, stated) in enumerate(zip(tensor.shape.dim, port.shape, strict=False)):
            size = dim.dim_value if dim.HasField("dim_value") else None
            if size is not None and size != stated:
                yield f"{port.name}: the graph fixes axis {axis} at {size}, the manifest says {stated}"


def overflows(model: Any, precision: str) -> Iterator[str]:
    """One entry a constant that stands in the file: empty when the precision holds it, else what is wrong."""
    return (_overflow(tensor, precision) for tensor in _constants(model))


def _constants(model: Any) -> Iterator[Any]:
    """Tensors whose values stand in the file: initializers and the values of Constant nodes."""
    yield from (tensor for tensor in model.graph.initializer if tensor.raw_data or tensor.float_data)
    for node in model.graph.node:
        yield from (entry.t for entry in node.attribute if node.op_type == "Constant" and entry.HasField("t"))


def _overflow(tensor: Any, precision: str) -> str:
    """A mask of -1e9 is fine in fp32 and turns into minus infinity, then NaN, in fp16."""
    kind = FLOATS.get(PROTO.TensorProto.DataType.Name(tensor.data_type))
    if kind is None:
        return ""
    values = np.frombuffer(tensor.raw_data, kind) if tensor.raw_data else np.array(tensor.float_data, np.float32)
    largest = float(np.abs(values.astype(np.float64)).max()) if values.size else 0.0
    if largest <= LARGEST[precision]:
        return ""
    return f"constant {tensor.name or '(unnamed)'} holds {largest:g}, {precision} ends at {LARGEST[precision]:g}"


def _tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor: initializers, attributes, and those of the graphs inside."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else []
            yield from attribute.tensors
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _tensors(inner)


def _external(bundle: Bundle, tensor: Any) -> str:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    if not PLAIN_NAME.match(name) or name not in bundle.files:
        return f"{tensor.name}: external data {name!r} is not a file of this bundle"
    path = os.path.join(bundle.path, name)
    if os.path.islink(path) or not os.path.isfile(path):
        return f"{tensor.name}: external data {name} is not a plain file beside its graph"
    end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    size = os.path.getsize(path)
    return "" if end <= size else f"{tensor.name}: external data {name} has {size} bytes, {end} are asked for"
