"""MNN, Alibaba's engine for phones and edge boxes, on its CPU backend. Source: mnn-docs.readthedocs.io and the header files
MNNForwardType.h and Interpreter.hpp.

The converter in its wheel turns a graph into MNN's own format. The adapter uses a session and not ``MNN.nn``, because only
a session reports which backend it runs on.
"""

import os
import tempfile
from typing import Any, Dict, List, Optional

import numpy as np

from backends import contract, engines, logs, staged

REFUSALS = [
    ("Op Not Support", "operator"),
    ("not support", "operator"),
    ("Can't convert", "operator"),
    ("read onnx model failed", "other"),
    ("shape", "shape"),
    ("dimension", "shape"),
]
ERRORS = {
    1: ("OUT_OF_MEMORY", "other"),
    2: ("NOT_SUPPORT", "operator"),
    3: ("COMPUTE_SIZE_ERROR", "shape"),
    4: ("NO_EXECUTION", "operator"),
    5: ("INVALID_VALUE", "other"),
    10: ("INPUT_DATA_ERROR", "shape"),
    20: ("TENSOR_NOT_SUPPORT", "shape"),
    21: ("TENSOR_NEED_DIVIDE", "shape"),
}
BACKENDS = {0: "CPU", 13: "CPU_EXTENSION"}
"""MNNForwardType. Where the CPU has AVX2, AVX-512 or fp16, MNN itself replaces the first by the second."""
ASK_BACKENDS = 2


class Backend(staged.Staged):
    """The CPU in float32: precision ``high``, because MNN's default may be fp16 where the CPU has it."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "int64", "int32"}),
        knobs={
            "optimizeLevel=0": contract.Knob({"optimizeLevel": 0}),
            "precision=normal": contract.Knob({"precision": "normal"}),
            "threads=1": contract.Knob({"threads": 1}),
        },
    )

    def probe(self) -> contract.Probe:
        try:
            with logs.captured():  # importing it prints what the CPU supports
                import MNN
        except ImportError as error:
            raise contract.not_imported("MNN", error) from error
        self.probed = contract.Probe(MNN.version(), "cpu", "fp32")
        return self.probed

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> bytes:
        """The part in MNN's format, which is its engine: the converter reads and writes in one step."""
        import _tools  # MNN.tools.mnnconvert would install packages, and report what it converts, when it is imported

        with tempfile.TemporaryDirectory(prefix="mnn-") as folder:
            path = os.path.join(folder, "built.mnn")
            arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", part.path, "--MNNModel", path, "--bizCode", "MNN"]
            if "optimizeLevel" in options:
                arguments += ["--optimizeLevel", str(options["optimizeLevel"])]
            with logs.captured() as lines:
                _tools.mnnconvert(arguments)  # returns True whatever happened
            if "Converted Success!" not in lines:
                errors = [line for line in lines if "Not Support" in line or "ERROR" in line or "failed" in line]
                raise contract.refusal("parse", errors or lines[-1:], REFUSALS)
            with open(path, "rb") as stream:
                return stream.read()

    def build(self, parsed: bytes, part: contract.Part, options: Dict[str, Any]) -> bytes:
        return parsed

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        import MNN

        # Its default is four threads, which wait for each other on two cores.
        threads = options.get("threads") or os.cpu_count()
        config = {"backend": "CPU", "precision": options.get("precision", "high"), "numThread": threads}
        with logs.captured() as lines:
            net = MNN.Interpreter(engine.path)
            session = net.createSession(config)
        if session is None:
            raise contract.refusal("load", lines, REFUSALS)
        return _Program(part, net, session, lines)


class _Program(contract.Program):
    def __init__(self, part: contract.Part, net: Any, session: Any, log: List[str]) -> None:
        self.part, self.net, self.session, self.log = part, net, session, log
        self.inputs = net.getSessionInputAll(session)
        self.shapes: Dict[str, Any] = {}

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        import MNN

        used = [port.name for port in self.part.inputs if port.name in self.inputs]
        arrays = {name: _narrowed(name, feeds[name]) for name in used}
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != self.shapes:
            for name, shape in shapes.items():
                self.net.resizeTensor(self.inputs[name], shape)
            self.net.resizeSession(self.session)
            self.shapes = shapes
        kinds = {"float32": MNN.Halide_Type_Float, "int32": MNN.Halide_Type_Int}
        for name, array in arrays.items():
            self.inputs[name].copyFrom(_host(array, kinds))
        code = self.net.runSession(self.session)
        if code:
            name, kind = ERRORS.get(code, ("unknown", "other"))
            raise contract.StageError("run", kind, f"error code {code}, {name}")
        outputs = self.net.getSessionOutputAll(self.session)
        return {port.name: _widened(outputs[port.name], port, kinds) for port in self.part.outputs}

    def placement(self) -> Optional[contract.Placement]:
        kind = self.net.getSessionInfo(self.session, ASK_BACKENDS)
        if kind not in BACKENDS or "MNN use high precision" not in self.log:
            return None
        evidence = f"session info: backend {kind} ({BACKENDS[kind]}); log: MNN use high precision"
        return contract.Placement("cpu", "fp32", evidence)

    def close(self) -> None:
        self.inputs, self.session, self.net = {}, None, None


def _narrowed(name: str, array: np.ndarray) -> np.ndarray:
    """An input in a type that MNN has: its widest integer has 32 bits. Raises StageError for a value that does not fit."""
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "i" or (array.size and np.abs(array).max() > np.iinfo(np.int32).max):
        message = f"{name}: MNN takes float32 and integers of 32 bits, not {array.dtype}"
        raise contract.StageError("run", "dtype", message)
    return np.ascontiguousarray(array, np.int32)


def _host(array: np.ndarray, kinds: Dict[str, Any]) -> Any:
    import MNN

    return MNN.Tensor(array.shape, kinds[array.dtype.name], array, MNN.Tensor_DimensionType_Caffe)


def _widened(tensor: Any, port: contract.Port, kinds: Dict[str, Any]) -> np.ndarray:
    """An output with the graph's order of axes and the type that the graph declares. Raises StageError for other types."""
    shape = tuple(tensor.getShape())
    if port.dtype not in ("float32", "int64", "int32"):
        raise contract.StageError("run", "dtype", f"{port.name} is {port.dtype}, which MNN does not give")
    array = np.zeros(shape, "float32" if port.dtype == "float32" else "int32")
    host = _host(array, kinds)
    tensor.copyToHostTensor(host)
    return np.array(host.getNumpyData(), port.dtype).reshape(shape)
