"""PyTorch to ONNX: traced, re-read, cleaned of what has no diagnostic value, its weights in files shared by all graphs."""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from backends.contract import first_line
from harness.core.errors import UserError
from harness.golden.parts import Traceable

EXPORTERS = {"torchscript": range(9, 24), "dynamo": range(18, 29)}
"""The opsets that each exporter is recorded at. TorchScript refuses 24. Asked for less than 17, dynamo writes 18 and only
logs it; 17 it converts down. 28 is the newest that onnx 1.23 knows. ``conform exporters`` measures all of this."""
STATIC_OPSETS = {"static": range(11, 20), "static-scatter": (11, 13, 16, 18)}
"""Opsets of the static layouts, by TorchScript: what edge compilers take; where ScatterElements has another version."""
EXTERNAL = 1024
"""Tensors from this many bytes on go to a file of their own; smaller ones stay in the graph."""
LARGEST_FP16 = float(np.finfo(np.float16).max)
SUFFIX = "_output_0"


def export_part(part: Traceable, exporter: str, opset: int, path: Path) -> tuple[dict[str, Any], int]:
    """Export one part to ``path`` and its weights beside it. Returns what :func:`settle` does. Raises UserError."""
    with _captured(f"export of {path.name}"):
        write(part, exporter, opset, path)
    check_opset(path, opset)
    return settle(part, path)


def write(part: Traceable, exporter: str, opset: int, path: Path) -> None:
    """Let an exporter of EXPORTERS write the file as it does; it prints and raises what it likes."""
    names = {
        "input_names": [port.name for port in part.inputs],
        "output_names": [port.name for port in part.outputs],
    }
    if exporter == "dynamo":
        program = torch.onnx.export(part.program, (), opset_version=opset, dynamo=True, verbose=False, **names)
        program.save(str(path), external_data=False)
        return
    torch.onnx.export(
        part.module,
        part.examples,
        str(path),
        dynamic_axes={
            name: {axis: dim for axis, dim in enumerate(port.shape) if isinstance(dim, str)}
            for name, port in part.ports.items()
        },
        opset_version=opset,
        dynamo=False,
        **names,
    )


def settle(part: Traceable, path: Path) -> tuple[dict[str, Any], int]:
    """Rewrite an exported file: the lowest IR version that its opset allows, nothing of this machine, weights beside it.

    Returns the manifest's entry and the IR version. The entry: ``file``, ``weights`` (files), ``inputs`` and ``outputs``
    (rows of name, dtype, shape, role) as the graph really declares them: the exporter drops an input that the graph does
    not use. Raises UserError.
    """
    model = onnx.load(str(path))
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    _check_operators(model, part, path.name)
    _strip(model)
    _rename(model)
    weights = _move_weights(model, path.parent)
    entry = {
        "file": path.name,
        "weights": weights,
        "inputs": _ports(model.graph.input, part, path.name),
        "outputs": _ports(model.graph.output, part, path.name),
    }
    onnx.save_model(model, str(path))
    return entry, model.ir_version


CHECK = "import sys, onnx\nfor path in sys.argv[1:]:\n    print(path)\n    onnx.checker.check_model(path)"


def check_graphs(paths: Sequence[Path]) -> None:
    """Run ONNX's checker over the files, in a process of its own: it is native code, and it has crashed before.

    Raises UserError that names the file, whether the checker refuses it or dies of it.
    """
    command = [sys.executable, "-c", CHECK, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stdout.splitlines() or [str(paths[0])])[-1]
        problem = f"the checker died of signal {-done.returncode}"
        if done.returncode > 0:
            problem = f"the graph is invalid ({(done.stderr.splitlines() or [''])[-1]})"
        raise UserError(f"export of {Path(last).name}: {problem}; report it")


def opsets(path: Path) -> dict[str, int]:
    """Domain -> version of what a file really imports; ONNX's own domain is ``ai.onnx``."""
    imports = onnx.load(str(path), load_external_data=False).opset_import
    return {entry.domain or "ai.onnx": entry.version for entry in imports}


def check_opset(path: Path, opset: int) -> None:
    """Raise UserError unless the file is of that opset: exporters write another one and only log it."""
    written = opsets(path)
    if written != {"ai.onnx": opset}:
        raise UserError(f"export of {path.name}: asked for opset {opset}, got {written}; leave this opset out")


@contextlib.contextmanager
def _captured(what: str) -> Iterator[None]:
    """Keep everything that an export prints, from C++ too, and leave a log of it when it fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    streams = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile(mode="w+b") as log:
        try:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            sys.stdout.flush()
            sys.stderr.flush()
            log.seek(0)
            raise UserError(
                f"{what}: {first_line(error)}; the exporter's output is in {_log(log.read(), error)}"
            ) from error
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, copy in zip((1, 2), streams, strict=True):
                os.dup2(copy, target)
                os.close(copy)


def _log(printed: bytes, error: Exception) -> str:
    descriptor, name = tempfile.mkstemp(prefix="conform-export-", suffix=".log")
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(printed + str(error).encode())
    return name


def _check_operators(model: ModelProto, part: Traceable, file: str) -> None:
    """Raise UserError where a static part has what a compiler of fixed sizes in fp16 cannot take."""
    if not part.avoids:
        return
    problems = sorted({node.op_type for node in model.graph.node if node.op_type.startswith(part.avoids)})
    for tensor in _constants(model):
        values = numpy_helper.to_array(tensor)
        largest = float(np.abs(values).max(initial=0)) if values.dtype.kind == "f" else 0.0
        if largest > LARGEST_FP16:
            problems.append(f"constant {tensor.name or '(unnamed)'} holds {largest:g}, fp16 ends at {LARGEST_FP16:g}")
    if problems:
        raise UserError(f"export of {file}: a static graph must not have {', '.join(problems)}; leave this opset out")


def _constants(model: ModelProto) -> Iterator[TensorProto]:
    """Initializers, and the values of Constant nodes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        yield from (entry.t for entry in node.attribute if node.op_type == "Constant" and entry.HasField("t"))


def _strip(model: ModelProto) -> None:
    """Remove documentation and traced scopes (they hold this machine's paths) and shapes that any runtime infers itself."""
    graph = model.graph
    del graph.value_info[:]
    for item in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        item.ClearField("doc_string")
        if hasattr(item, "metadata_props"):
            del item.metadata_props[:]
    for node in graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")


def _rename(model: ModelProto) -> None:
    """Name weights that the exporter transposed (``onnx::MatMul_413``) after their layer, and tensors after their node."""
    graph = model.graph
    ports = {port.name for port in (*graph.input, *graph.output)}
    used = ports | {tensor.name for tensor in graph.initializer} | {name for node in graph.node for name in node.output}
    names: dict[str, str] = {}

    def give(old: str, new: str) -> None:
        if old not in ports and old not in names and new not in used:
            names[old] = new
            used.add(new)

    unnamed = {tensor.name for tensor in graph.initializer if tensor.name.startswith("onnx::")}
    for node in graph.node:
        for name in node.output:
            if name.endswith(SUFFIX):
                give(name, name[: -len(SUFFIX)])
        for name in node.input:
            if name in unnamed and node.name:
                give(
                    name, node.name.strip("/").replace("/", ".").removesuffix(f".{node.op_type}") + ".weight_transposed"
                )
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _move_weights(model: ModelProto, folder: Path) -> list[str]:
    """Write each large tensor to ``w-HASH.bin``, once for all graphs, and let the graph point to it. Returns the files."""
    graph = model.graph
    files = set()
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        if value is not None and len(numpy_helper.to_array(value).tobytes()) >= EXTERNAL:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            graph.node.remove(node)
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.nbytes < EXTERNAL:
            continue
        raw = numpy_helper.from_array(array).raw_data
        name = f"w-{hashlib.sha256(raw).hexdigest()[:16]}.bin"
        files.add(name)
        if not (folder / name).exists():
            (folder / name).write_bytes(raw)
        for field in (
            "raw_data",
            "float_data",
            "double_data",
            "int32_data",
            "int64_data",
            "uint64_data",
            "external_data",
        ):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        for key, word in (("location", name), ("offset", "0"), ("length", str(len(raw)))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, word
    return sorted(files)


def _ports(values: Any, part: Traceable, file: str) -> list[list[Any]]:
    """Rows of name, dtype, shape and role; sizes that the exporter could not infer get their true ones.

    Raises UserError where the graph fixed a size that was to be dynamic, or another size than the model has.
    """
    rows = []
    for value in values:
        port, kind = part.ports[value.name], value.type.tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        expected = list(port.shape)
        fixed = any(isinstance(size, int) and size != dim for size, dim in zip(shape, expected, strict=False))
        if len(shape) != len(expected) or fixed:
            raise UserError(f"export of {file}: {port.name} came out as {shape}, not {expected}; leave this opset out")
        kind.shape.CopyFrom(helper.make_tensor_type_proto(kind.elem_type, expected).tensor_type.shape)
        rows.append([port.name, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, expected, port.role])
    return rows
