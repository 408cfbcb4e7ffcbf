"""FAKE of TensorRT's Python API, for tests: it computes with ONNX Runtime and enforces the documented rules.

``fake_settings.VERSION`` chooses whose API is there: 8.4 has bindings with numbers, 8.5 to 9 both, 10 and later tensors
with names; 11 has no EXPLICIT_BATCH and no FP16. Before 10 an int64 input is INT32. Sources: NVIDIA's Python API
reference of those versions.
"""

import enum
import json
import weakref
from typing import Any

import fake_model
import fake_settings
import numpy as np
import onnx
from fake_device import DEVICE
from fake_model import shape_of as _shape

__fake__ = True
__version__ = fake_settings.VERSION
MAJOR, MINOR = (int(word) for word in __version__.split(".")[:2])
NAMED, NUMBERED = (MAJOR, MINOR) >= (8, 5), MAJOR < 10


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self.made = True

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class DataType(enum.Enum):
    FLOAT = "float32"
    HALF = "float16"
    INT32 = "int32"
    INT64 = "int64"


class ProfilingVerbosity(enum.Enum):
    LAYER_NAMES_ONLY = 0
    DETAILED = 2


class LayerInformationFormat(enum.Enum):
    JSON = 1


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


BuilderFlag = enum.IntEnum("BuilderFlag", {"TF32": 7} if MAJOR >= 11 else {"FP16": 0, "TF32": 7})  # type: ignore[misc]
NetworkDefinitionCreationFlag = enum.IntEnum(  # type: ignore[misc]
    "NetworkDefinitionCreationFlag",
    {**({} if MAJOR >= 11 else {"EXPLICIT_BATCH": 0}), **({"STRONGLY_TYPED": 1} if MAJOR >= 10 else {})},
)
ErrorCode = enum.IntEnum("ErrorCode", {"INVALID_NODE": 6, "UNSUPPORTED_NODE": 8})


class _Owned:
    """An object that needs another one to outlive it, as the C++ below does. A builder is kept by what it made."""

    def __init__(self, owner: Any) -> None:
        self._owner, self._users = weakref.ref(owner), weakref.WeakSet()  # type: ignore[var-annotated]
        if isinstance(owner, Builder):
            self._builder = owner
        elif isinstance(owner, _Owned):
            owner._users.add(self)

    def owner(self, use: str) -> Any:
        found = self._owner()
        if found is None:
            DEVICE.fault(f"{use}: what made {type(self).__name__} is gone")
        return found

    def __del__(self) -> None:
        for user in list(self._users):
            DEVICE.faults.append(f"{type(self).__name__} destroyed before its {type(user).__name__}")


def _logged(owner: Any, message: str) -> None:
    owner.log(ILogger.Severity.ERROR, message)


_ALIVE: Any = weakref.WeakSet()


class _Root(_Owned):
    """A builder or a runtime. While one lives, TensorRT keeps to the logger it was given, and ignores any other."""

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger) or not hasattr(logger, "made"):
            DEVICE.fault(f"{type(self).__name__}: no ILogger, or one whose __init__ was not called")
        if any(one.owner("logger") is not logger for one in _ALIVE):
            DEVICE.fault(f"{type(self).__name__}: another logger is registered, and this one will hear nothing")
        super().__init__(logger)
        _ALIVE.add(self)


class Builder(_Root):
    if MAJOR < 11:
        platform_has_tf32 = property(lambda self: "tf32" in fake_settings.PRECISIONS)
        platform_has_fast_fp16 = property(lambda self: "fp16" in fake_settings.PRECISIONS)

    def create_network(self, flags: int = 0) -> "INetworkDefinition":
        if MAJOR < 10 and not flags & 1:
            DEVICE.fault("create_network: without EXPLICIT_BATCH the ONNX parser refuses the network")
        return INetworkDefinition(self)

    def create_builder_config(self) -> "IBuilderConfig":
        return IBuilderConfig(self)

    def create_optimization_profile(self) -> "IOptimizationProfile":
        return IOptimizationProfile(self)

    def build_serialized_network(self, network: "INetworkDefinition", config: "IBuilderConfig") -> Any:
        log = self.owner("build_serialized_network")
        if network.model is None:
            DEVICE.fault("build_serialized_network: nothing was parsed into the network")
        inputs = {port.name: _shape(port) for port in network.model.graph.input}
        dynamic = [name for name, shape in inputs.items() if any(isinstance(size, str) for size in shape)]
        if not config.workspace:
            DEVICE.fault("set_memory_pool_limit was not called: an Orin shares its memory with everything else")
        if dynamic and not config.profiles:
            return _logged(log, "Network has dynamic or shape inputs, but no optimization profile has been defined.")
        for name in dynamic:
            given = config.profiles[0].shapes.get(name)
            fits = given and all(
                len(shape) == len(inputs[name])
                and all(isinstance(own, str) or own == size for own, size in zip(inputs[name], shape, strict=True))
                for shape in given
            )
            if not fits:
                return _logged(log, f"{name}: optimization profile {given} does not fit shape {inputs[name]}")
            if fake_settings.REFUSES_EMPTY and 0 in given[0]:
                return _logged(log, f"{name}: kMIN dimensions in profile 0 must be positive")
        log.log(ILogger.Severity.VERBOSE, "Tactic 0x0 of 1")
        log.log(ILogger.Severity.INFO, "Engine generation completed in 0.1 seconds.")
        return IHostMemory(network, config)


def _dtype(port: Any) -> DataType:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type).name
    return DataType("int32" if dtype == "int64" and MAJOR < 10 else dtype)


class INetworkDefinition(_Owned):
    model: Any = None
    path = ""


class IBuilderConfig(_Owned):
    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.profiles: list[IOptimizationProfile] = []
        self.flags, self.workspace = {BuilderFlag.TF32}, 0  # TF32 is on unless it is cleared
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        if (MAJOR, MINOR) >= (8, 6):
            self.builder_optimization_level = 3

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self.workspace = size

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def add_optimization_profile(self, profile: "IOptimizationProfile") -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class IOptimizationProfile(_Owned):
    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.shapes: dict[str, Any] = {}

    def set_shape(self, name: str, min: Any, opt: Any, max: Any) -> None:
        if not all(isinstance(shape, tuple) for shape in (min, opt, max)):
            DEVICE.fault(f"set_shape: {name}: no tuples")
        if not len(min) == len(opt) == len(max) or not all(
            0 <= low <= usual <= high for low, usual, high in zip(min, opt, max, strict=True)
        ):
            raise ValueError(f"{name}: 0 <= min <= opt <= max does not hold for {min}, {opt}, {max}")
        self.shapes[name] = (min, opt, max)


class ParserError:
    def __init__(self, node: Any, at: int) -> None:
        self._node, self._at = node, at
        if (MAJOR, MINOR) >= (8, 6):
            self.node_name, self.node_operator = lambda: node.name, lambda: node.op_type

    def node(self) -> int:
        return self._at

    def code(self) -> Any:
        return ErrorCode.UNSUPPORTED_NODE

    def desc(self) -> str:
        return f"No importer registered for op: {self._node.op_type}"


class OnnxParser(_Owned):
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        super().__init__(network)
        self.errors: list[ParserError] = []

    def parse_from_file(self, path: str) -> bool:
        network = self.owner("parse_from_file")
        model = onnx.load(path, load_external_data=False)
        self.errors = [
            ParserError(node, at)
            for at, node in enumerate(model.graph.node)
            if node.op_type in fake_settings.NO_IMPORTER
        ]
        network.model, network.path = model, path
        return not self.errors

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def get_error(self, at: int) -> ParserError:
        return self.errors[at]


class Plan:
    """What is in a serialized engine: of network and config nothing else is needed any more. ``profile``: three shapes an
    input."""

    def __init__(self, path: str, flags: list[int], verbosity: int, profile: dict[str, list[list[int]]]) -> None:
        self.path, self.graph, self.profile = path, onnx.load(path, load_external_data=False).graph, profile
        self.flags, self.verbosity = set(map(BuilderFlag, flags)), ProfilingVerbosity(verbosity)


class IHostMemory:
    """A serialized engine in memory: no bytes object, but it can be read as one."""

    mark = f"fake plan of TensorRT {__version__}\n".encode()

    def __init__(self, network: INetworkDefinition, config: IBuilderConfig) -> None:
        profile = config.profiles[0].shapes if config.profiles else {}
        plan = [network.path, sorted(config.flags), config.profiling_verbosity.value, profile]
        self._content = self.mark + json.dumps(plan).encode()

    def __bytes__(self) -> bytes:
        return self._content


class Runtime(_Root):
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        log, content = self.owner("deserialize_cuda_engine"), bytes(serialized_engine)
        if not content.startswith(IHostMemory.mark):
            return _logged(log, "IRuntime::deserializeCudaEngine: no engine of this version of TensorRT")
        return ICudaEngine(self, Plan(*json.loads(content[len(IHostMemory.mark) :])))


class ICudaEngine(_Owned):
    def __init__(self, runtime: Runtime, plan: Plan) -> None:
        super().__init__(runtime)
        self.plan = plan
        self.ports = [*plan.graph.input, *plan.graph.output]
        self.session = fake_model.session(plan.path)

    if NAMED:

        @property
        def num_io_tensors(self) -> int:
            return len(self.ports)

        def get_tensor_name(self, at: int) -> str:
            return str(self.ports[at].name)

        def get_tensor_dtype(self, name: str) -> DataType:
            return _dtype(self.port(name))

        def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
            return self._profile(name, profile_index)

    if NUMBERED:

        @property
        def num_bindings(self) -> int:
            return len(self.ports)

        def get_binding_name(self, at: int) -> str:
            return str(self.ports[at].name)

        def get_binding_dtype(self, at: int) -> DataType:
            return _dtype(self.ports[at])

        def get_profile_shape(self, profile_index: int, binding: int) -> list[tuple[int, ...]]:
            return self._profile(self.ports[binding].name, profile_index)

    def _profile(self, name: str, at: int) -> list[tuple[int, ...]]:
        if at != 0 or name not in self.plan.profile:
            DEVICE.fault(f"profile shape: {name!r} is no dynamic input of profile {at!r}")
        return list(map(tuple, self.plan.profile[name]))

    def port(self, name: str) -> Any:
        found = [port for port in self.ports if port.name == name]
        return found[0] if found else DEVICE.fault(f"{name!r} is no tensor of this engine")

    def is_input(self, name: str) -> bool:
        return any(port.name == name for port in self.plan.graph.input)

    def create_execution_context(self) -> "IExecutionContext":
        return IExecutionContext(self)

    def create_engine_inspector(self) -> "EngineInspector":
        return EngineInspector(self)


class EngineInspector(_Owned):
    def get_engine_information(self, form: LayerInformationFormat) -> str:
        plan = self.owner("get_engine_information").plan
        if plan.verbosity is not ProfilingVerbosity.DETAILED:
            return json.dumps({"Layers": [node.name for node in plan.graph.node]})
        kind = "Half" if getattr(BuilderFlag, "FP16", None) in plan.flags else "Float"
        tactic = "sm80_xmma_gemm_f32f32_tf32f32_f32" if BuilderFlag.TF32 in plan.flags else "sm80_xmma_gemm_f32f32"
        # 11 split the field in two, and tells of inputs and outputs by more than their names.
        said = {"Format": "Row major linear", "DataType": kind} if MAJOR >= 11 else {"Format/Datatype": kind}
        layers = [
            {"Name": node.name, "TacticName": tactic, "Outputs": [{"Name": node.output[0], **said}]}
            for node in plan.graph.node
        ]
        names = [port.name for port in (*plan.graph.input, *plan.graph.output)]
        ends = (
            {"I/O Tensors": [{"Name": name, "DataType": "Float"} for name in names]}
            if MAJOR >= 11
            else {"Bindings": names}
        )
        return json.dumps({"Layers": layers, **ends})


class IExecutionContext(_Owned):
    def __init__(self, engine: ICudaEngine) -> None:
        super().__init__(engine)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    if NAMED:

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            return self._set(name, shape)

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self._get(name)

        def set_tensor_address(self, name: str, address: int) -> bool:
            self.owner("set_tensor_address").port(name)
            DEVICE.block(address, f"set_tensor_address {name}")
            self.addresses[name] = address
            return True

        def execute_async_v3(self, stream_handle: int) -> bool:
            return self._execute(stream_handle)

    if NUMBERED:

        def set_binding_shape(self, at: int, shape: tuple[int, ...]) -> bool:
            return self._set(self._name(at), shape)

        def get_binding_shape(self, at: int) -> tuple[int, ...]:
            return self._get(self._name(at))

        def execute_async_v2(self, bindings: list[int], stream_handle: int) -> bool:
            ports = self.owner("execute_async_v2").ports
            if len(bindings) != len(ports):
                DEVICE.fault(f"execute_async_v2: {len(bindings)} bindings, the engine has {len(ports)}")
            self.addresses = {port.name: address for port, address in zip(ports, bindings, strict=True)}
            return self._execute(stream_handle)

    def _name(self, at: int) -> str:
        return str(self.owner("binding").ports[at].name)

    def _set(self, name: str, shape: tuple[int, ...]) -> bool:
        engine = self.owner("set_input_shape")
        if not engine.is_input(name) or not isinstance(shape, tuple):
            DEVICE.fault(f"set_input_shape: {name!r} {shape!r}")
        low, _, high = engine.plan.profile.get(name, (_shape(engine.port(name)),) * 3)
        fits = len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if fits:
            self.shapes[name] = shape
        return bool(fits)

    def _get(self, name: str) -> tuple[int, ...]:
        engine = self.owner("get_tensor_shape")
        if engine.is_input(name):
            return self.shapes.get(name, (-1,))
        shape = fake_model.shape(engine.plan.graph, name, self.shapes)
        return shape or tuple(-1 if isinstance(size, str) else size for size in _shape(engine.port(name)))

    def _execute(self, stream: int) -> bool:
        engine = self.owner("execute")
        shapes = {port.name: self._get(port.name) for port in engine.ports}
        addresses = dict(self.addresses)
        for name in shapes:
            if name not in addresses:
                DEVICE.fault(f"execute: the address of {name} was never set")
            if min(shapes[name], default=0) < 0:
                DEVICE.fault(f"execute: the shape of {name} was never set")
        DEVICE.queue(stream, lambda: _compute(engine, shapes, addresses), list(addresses.values()))
        return True


def _compute(engine: ICudaEngine, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
    feeds = {}
    for port in engine.plan.graph.input:
        block, dtype = DEVICE.block(addresses[port.name], "kernel"), np.dtype(_dtype(port).value)
        size = int(np.prod(shapes[port.name])) * dtype.itemsize
        if size != block.written:
            DEVICE.fault(f"kernel: {port.name} is {size} bytes of {dtype}, {block.written} bytes were written")
        array = np.frombuffer(bytes(block.data[:size]), dtype).reshape(shapes[port.name])
        feeds[port.name] = array.astype(onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type))
    names = [port.name for port in engine.plan.graph.output]
    for name, array in zip(names, engine.session.run(names, feeds), strict=True):
        block = DEVICE.block(addresses[name], "kernel")
        if array.nbytes > len(block.data):
            DEVICE.fault(f"kernel: {name} has {array.nbytes} bytes, {len(block.data)} are allocated")
        block.data[: array.nbytes] = array.tobytes()
        block.written = array.nbytes
