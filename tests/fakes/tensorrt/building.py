"""FAKE of TensorRT: builder, network, configuration, optimization profiles, parser and serialized engines."""

import json
from typing import Any

import fake_settings
import onnx
from fake_device import DEVICE
from fake_model import shape_of

from tensorrt.common import (
    MAJOR,
    MINOR,
    BuilderFlag,
    ErrorCode,
    ILogger,
    MemoryPoolType,
    Owned,
    ProfilingVerbosity,
    Root,
    __version__,
    log_error,
)


class Builder(Root):
    kept_alive = True

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
        inputs = {port.name: shape_of(port) for port in network.model.graph.input}
        dynamic = [name for name, shape in inputs.items() if any(isinstance(size, str) for size in shape)]
        if not config.workspace:
            DEVICE.fault("set_memory_pool_limit was not called: an Orin shares its memory with everything else")
        if dynamic and not config.profiles:
            return log_error(log, "Network has dynamic or shape inputs, but no optimization profile has been defined.")
        for name in dynamic:
            shapes = config.profiles[0].shapes.get(name)
            fits = shapes and all(
                len(shape) == len(inputs[name])
                and all(isinstance(own, str) or own == size for own, size in zip(inputs[name], shape, strict=True))
                for shape in shapes
            )
            if not fits:
                return log_error(log, f"{name}: optimization profile {shapes} does not fit shape {inputs[name]}")
            if fake_settings.REFUSES_EMPTY and 0 in shapes[0]:
                return log_error(log, f"{name}: kMIN dimensions in profile 0 must be positive")
        log.log(ILogger.Severity.VERBOSE, "Tactic 0x0 of 1")
        log.log(ILogger.Severity.INFO, "Engine generation completed in 0.1 seconds.")
        return IHostMemory(network, config)


class INetworkDefinition(Owned):
    model: Any = None
    path = ""


class IBuilderConfig(Owned):
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


class IOptimizationProfile(Owned):
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


class OnnxParser(Owned):
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
