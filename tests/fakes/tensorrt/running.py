"""FAKE of TensorRT: runtime, engine, inspector and execution context."""

import json
from typing import Any

import fake_model
import numpy as np
import onnx
from fake_device import DEVICE
from fake_model import shape_of

from tensorrt.building import IHostMemory, Plan
from tensorrt.common import (
    MAJOR,
    NAMED,
    NUMBERED,
    BuilderFlag,
    DataType,
    LayerInformationFormat,
    Owned,
    ProfilingVerbosity,
    Root,
    dtype_of,
    log_error,
)


class Runtime(Root):
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        log, content = self.owner("deserialize_cuda_engine"), bytes(serialized_engine)
        if not content.startswith(IHostMemory.mark):
            return log_error(log, "IRuntime::deserializeCudaEngine: no engine of this version of TensorRT")
        return ICudaEngine(self, Plan(*json.loads(content[len(IHostMemory.mark) :])))


class ICudaEngine(Owned):
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
            return dtype_of(self.port(name))

        def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
            return self._profile(name, profile_index)

    if NUMBERED:

        @property
        def num_bindings(self) -> int:
            return len(self.ports)

        def get_binding_name(self, at: int) -> str:
            return str(self.ports[at].name)

        def get_binding_dtype(self, at: int) -> DataType:
            return dtype_of(self.ports[at])

        def get_profile_shape(self, profile_index: int, binding: int) -> list[tuple[int, ...]]:
            return self._profile(self.ports[binding].name, profile_index)

    def _profile(self, name: str, at: int) -> list[tuple[int, ...]]:
        if at != 0 or name not in self.plan.profile:
            DEVICE.fault(f"profile shape: {name!r} is no dynamic input of profile {at!r}")
        return list(map(tuple, self.plan.profile[name]))

    def port(self, name: str) -> Any:
        ports = [port for port in self.ports if port.name == name]
        return ports[0] if ports else DEVICE.fault(f"{name!r} is no tensor of this engine")

    def is_input(self, name: str) -> bool:
        return any(port.name == name for port in self.plan.graph.input)

    def create_execution_context(self) -> "IExecutionContext":
        return IExecutionContext(self)

    def create_engine_inspector(self) -> "EngineInspector":
        return EngineInspector(self)


class EngineInspector(Owned):
    def get_engine_information(self, form: LayerInformationFormat) -> str:
        plan = self.owner("get_engine_information").plan
        if plan.verbosity is not ProfilingVerbosity.DETAILED:
            return json.dumps({"Layers": [node.name for node in plan.graph.node]})
        kind = "Half" if getattr(BuilderFlag, "FP16", None) in plan.flags else "Float"
        tactic = "sm80_xmma_gemm_f32f32_tf32f32_f32" if BuilderFlag.TF32 in plan.flags else "sm80_xmma_gemm_f32f32"
        # 11 split the field in two, and tells of inputs and outputs by more than their names.
        types = {"Format": "Row major linear", "DataType": kind} if MAJOR >= 11 else {"Format/Datatype": kind}
        layers = [
            {"Name": node.name, "TacticName": tactic, "Outputs": [{"Name": node.output[0], **types}]}
            for node in plan.graph.node
        ]
        names = [port.name for port in (*plan.graph.input, *plan.graph.output)]
        ends = (
            {"I/O Tensors": [{"Name": name, "DataType": "Float"} for name in names]}
            if MAJOR >= 11
            else {"Bindings": names}
        )
        return json.dumps({"Layers": layers, **ends})


class IExecutionContext(Owned):
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
        low, _, high = engine.plan.profile.get(name, (shape_of(engine.port(name)),) * 3)
        fits = len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        if fits:
            self.shapes[name] = shape
        return bool(fits)

    def _get(self, name: str) -> tuple[int, ...]:
        engine = self.owner("get_tensor_shape")
        if engine.is_input(name):
            return self.shapes.get(name, (-1,))
        shape = fake_model.shape(engine.plan.graph, name, self.shapes)
        return shape or tuple(-1 if isinstance(size, str) else size for size in shape_of(engine.port(name)))

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
        block, dtype = DEVICE.block(addresses[port.name], "kernel"), np.dtype(dtype_of(port).value)
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
