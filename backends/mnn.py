"""MNN, Alibaba's engine for phones and edge boxes, on its CPU backend. Source: mnn-docs.readthedocs.io and the header files
MNNForwardType.h and Interpreter.hpp.

Its converter, which the wheel brings along, turns a graph into MNN's own format. A session is used and not
``MNN.nn``, because only a session says which backend it runs on.
"""

import os
import tempfile
from typing import Any, Dict, List

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
"""MNNForwardType. The second is what MNN takes for CPU by itself where the CPU has AVX2, AVX-512 or fp16."""
ASK_BACKENDS = 2


class Backend(staged.Staged):
    """The CPU in float32: precision ``high``, because MNN's own choice may be fp16 where the CPU has it."""

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
            with logs.captured():  # it tells of the CPU, on standard output
                import MNN
        except ImportError as error:
            raise contract.not_imported("MNN", error) from error
        self.probed = contract.Probe(MNN.version(), "cpu", "fp32")
        return self.probed

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> bytes:
        """The part in MNN's format: its converter reads and writes in one go."""
        import _tools  # MNN.tools.mnnconvert would install packages, and report what it converts, when it is imported

        with tempfile.TemporaryDirectory(prefix="mnn-") as folder:
            place = os.path.join(folder, "built.mnn")
            asked = ["mnnconvert", "-f", "ONNX", "--modelFile", part.path, "--MNNModel", place, "--bizCode", "MNN"]
            if "optimizeLevel" in options:
                asked += ["--optimizeLevel", str(options["optimizeLevel"])]
            with logs.captured() as said:
                _tools.mnnconvert(asked)  # returns True whatever happened
            if "Converted Success!" not in said:
                wrong = [line for line in said if "Not Support" in line or "ERROR" in line or "failed" in line]
                raise contract.refusal("parse", wrong or said[-1:], REFUSALS)
            with open(place, "rb") as stream:
                return stream.read()

    def build(self, parsed: bytes, part: contract.Part, options: Dict[str, Any]) -> bytes:
        return parsed

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        import MNN

        # Its own choice is four threads on any box, which on two cores wait for each other.
        threads = options.get("threads") or os.cpu_count()
        config = {"backend": "CPU", "precision": options.get("precision", "high"), "numThread": threads}
        with logs.captured() as said:
            net = MNN.Interpreter(engine.path)
            session = net.createSession(config)
        if session is None:
            raise contract.refusal("load", said, REFUSALS)
        return _Program(part, net, session, said)


class _Program(contract.Program):
    def __init__(self, part: contract.Part, net: Any, session: Any, said: List[str]) -> None:
        self.part, self.net, self.session, self.said = part, net, session, said
        self.inputs = net.getSessionInputAll(session)
        self.shapes = {}  # type: Dict[str, Any]

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        import MNN

        arrays = {
            port.name: _given(port.name, feeds[port.name]) for port in self.part.inputs if port.name in self.inputs
        }
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
        return {port.name: _taken(outputs[port.name], port, kinds) for port in self.part.outputs}

    def placement(self) -> "contract.Placement | None":
        kind = self.net.getSessionInfo(self.session, ASK_BACKENDS)
        if kind not in BACKENDS or "MNN use high precision" not in self.said:
            return None
        said = f"session info: backend {kind} ({BACKENDS[kind]}); it said: MNN use high precision"
        return contract.Placement("cpu", "fp32", said)

    def close(self) -> None:
        self.inputs, self.session, self.net = {}, None, None


def _given(name: str, array: np.ndarray) -> np.ndarray:
    """As MNN takes it: its widest integer has 32 bits."""
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "i" or (array.size and np.abs(array).max() > np.iinfo(np.int32).max):
        raise contract.StageError(
            "run", "dtype", f"{name}: MNN takes float32 and integers of 32 bits, not {array.dtype}"
        )
    return np.ascontiguousarray(array, np.int32)


def _host(array: np.ndarray, kinds: Dict[str, Any]) -> Any:
    import MNN

    return MNN.Tensor(array.shape, kinds[array.dtype.name], array, MNN.Tensor_DimensionType_Caffe)


def _taken(tensor: Any, port: contract.Port, kinds: Dict[str, Any]) -> np.ndarray:
    """A tensor of the session in the order of axes that the graph has, of the type that it declares."""
    shape = tuple(tensor.getShape())
    if port.dtype not in ("float32", "int64", "int32"):
        raise contract.StageError("run", "dtype", f"{port.name} is {port.dtype}, which MNN does not give")
    array = np.zeros(shape, "float32" if port.dtype == "float32" else "int32")
    host = _host(array, kinds)
    tensor.copyToHostTensor(host)
    return np.array(host.getNumpyData(), port.dtype).reshape(shape)
