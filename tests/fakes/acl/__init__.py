"""FAKE of Huawei's pyACL, for tests: it returns the documented codes and notices every misuse.

Source: the pyACL reference of CANN 7 and 8. A call returns its code, or (value, code); a misuse raises as well, since the
real library's answer to it is undefined.
"""

import itertools
import json
import math
from typing import Any

import fake_model
import fake_settings
import numpy as np
import onnx
from fake_device import DEVICE

__fake__ = True
SUCCESS, INVALID_PARAM, REPEAT_INITIALIZE, NO_MEMORY = 0, 100000, 100002, 207001
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
CODES = {"float32": 0, "float16": 1, "int32": 3, "int64": 9}
STATE = {"init": False, "device": False}
HOST: dict[int, bytes] = {}
_numbers = itertools.count(1)
SHAPE_INPUT = "ascend_mbatch_shape_data"


class Model:
    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as stream:
            om = json.load(stream)
        self.graph = onnx.load(om["model"], load_external_data=False).graph
        self.session = fake_model.session(om["model"])
        self.shapes, self.gears = om["shapes"], om["gears"]
        self.inputs = [port.name for port in self.graph.input] + ([SHAPE_INPUT] if self.gears else [])
        self.outputs = [port.name for port in self.graph.output]
        self.current: dict[str, tuple[int, ...]] | None = None if self.gears else self.at([])
        self.last = self.current

    def at(self, gear: list[int]) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs in one bucket."""
        moving = iter(gear)
        return {
            port.name: tuple(next(moving) if size == -1 else size for size in self.shapes[port.name])
            for port in self.graph.input
        }

    def largest(self) -> dict[str, tuple[int, ...]]:
        return self.at(self.gears[-1] if self.gears else [])

    def dtype(self, name: str) -> str:
        port = next(port for port in [*self.graph.input, *self.graph.output] if port.name == name)
        return str(onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type).name)

    def bytes_of(self, name: str, shapes: dict[str, tuple[int, ...]]) -> int:
        if name == SHAPE_INPUT:
            return 8 * sum(map(len, shapes.values()))
        shape = shapes.get(name) or fake_model.shape(self.graph, name, shapes)
        return math.prod(shape or ()) * np.dtype(self.dtype(name)).itemsize


class Desc:
    model: Model | None = None


class Dataset:
    def __init__(self) -> None:
        self.buffers: list[int] = []


class DataBuffer:
    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size


def _fails(call: str) -> int:
    """The code of a call that a test makes fail; such a call does nothing."""
    return fake_settings.CODES.get(call, SUCCESS)


def init(config: str | None = None) -> int:
    if STATE["init"]:
        return REPEAT_INITIALIZE
    STATE["init"] = True
    return SUCCESS


def get_soc_name() -> str:
    return "Ascend310P3"


def get_recent_err_msg() -> str | None:
    return "EE9999: the fake's message"


def create_data_buffer(address: int, size: int) -> int:
    if size > len(DEVICE.block(address, "create_data_buffer").data):
        DEVICE.fault("create_data_buffer: more bytes than are allocated")
    return DEVICE.handle(DataBuffer(address, size))


def destroy_data_buffer(number: int) -> int:
    DEVICE.taken(number, DataBuffer, "destroy_data_buffer")
    del DEVICE.handles[number]
    return SUCCESS


class rt:
    @staticmethod
    def get_device_count() -> tuple[int, int]:
        if not STATE["init"]:
            DEVICE.fault("get_device_count: acl.init was not called")
        return fake_settings.ASCENDS, SUCCESS

    @staticmethod
    def set_device(number: int) -> int:
        STATE["device"] = True
        return SUCCESS if number < fake_settings.ASCENDS else 107001

    @staticmethod
    def malloc(size: int, policy: int) -> tuple[int, int]:
        if not STATE["device"]:
            DEVICE.fault("malloc: acl.rt.set_device was not called")
        address = DEVICE.malloc(size)
        return address, SUCCESS if address else NO_MEMORY

    @staticmethod
    def free(address: int) -> int:
        if any(isinstance(one, DataBuffer) and one.address == address for one in DEVICE.handles.values()):
            DEVICE.fault("free: a data buffer still points at this memory")
        if _fails("rt.free"):
            return _fails("rt.free")
        DEVICE.free(address)
        return SUCCESS

    @staticmethod
    def malloc_host(size: int) -> tuple[int, int]:
        address = DEVICE.malloc(size)
        if address:
            DEVICE.blocks[address].stream = -1  # not the device's
        return address, SUCCESS if address else NO_MEMORY

    @staticmethod
    def free_host(address: int) -> int:
        if DEVICE.block(address, "free_host").stream != -1:
            DEVICE.fault("free_host: this is device memory")
        if _fails("rt.free_host"):
            return _fails("rt.free_host")
        DEVICE.blocks[address].stream = 0
        DEVICE.free(address)
        return SUCCESS

    @staticmethod
    def memcpy(to: int, capacity: int, source: int, size: int, kind: int) -> int:
        if _fails(f"rt.memcpy {kind}"):
            return _fails(f"rt.memcpy {kind}")
        target = DEVICE.block(to, "memcpy")
        if size > capacity or capacity > len(target.data):
            DEVICE.fault(f"memcpy: {size} bytes, room for {capacity}, {len(target.data)} are allocated")
        if kind == HOST_TO_DEVICE:
            if source not in HOST or target.stream:
                DEVICE.fault("memcpy: HOST_TO_DEVICE between the wrong sides")
            if size > len(HOST[source]):
                DEVICE.fault(f"memcpy: {size} bytes of {len(HOST[source])}")
            target.data[:size] = HOST[source][:size]
        elif kind == DEVICE_TO_HOST:
            block = DEVICE.block(source, "memcpy")
            if target.stream != -1 or block.stream:
                DEVICE.fault("memcpy: DEVICE_TO_HOST between the wrong sides")
            if size > block.written:
                DEVICE.fault(f"memcpy: {size} bytes, {block.written} were ever written")
            target.data[:size] = block.data[:size]
        else:
            return INVALID_PARAM
        target.written = size
        return SUCCESS


class util:
    @staticmethod
    def bytes_to_ptr(data: bytes) -> int:
        if not isinstance(data, bytes):
            DEVICE.fault("bytes_to_ptr: no bytes")
        number = next(_numbers)
        HOST.clear()  # only the newest: the bytes of earlier ones may be gone
        HOST[number] = data
        return number

    @staticmethod
    def ptr_to_bytes(address: int, size: int) -> bytes:
        block = DEVICE.block(address, "ptr_to_bytes")
        if block.stream != -1 or size > block.written:
            DEVICE.fault("ptr_to_bytes: device memory, or more than was written")
        return bytes(block.data[:size])


class mdl:
    @staticmethod
    def load_from_file(path: str) -> tuple[int, int]:
        if not STATE["device"]:
            DEVICE.fault("load_from_file: acl.rt.set_device was not called")
        return DEVICE.handle(Model(path)), SUCCESS

    @staticmethod
    def unload(number: int) -> int:
        model = DEVICE.taken(number, Model, "unload")
        if any(isinstance(one, Desc) and one.model is model for one in DEVICE.handles.values()):
            DEVICE.fault("unload: a description of this model is still there")
        del DEVICE.handles[number]
        return SUCCESS

    @staticmethod
    def create_desc() -> int:
        return DEVICE.handle(Desc())

    @staticmethod
    def destroy_desc(number: int) -> int:
        DEVICE.taken(number, Desc, "destroy_desc")
        del DEVICE.handles[number]
        return SUCCESS

    @staticmethod
    def get_desc(number: int, model: int) -> int:
        DEVICE.taken(number, Desc, "get_desc").model = DEVICE.taken(model, Model, "get_desc")
        return SUCCESS

    @staticmethod
    def create_dataset() -> int:
        return DEVICE.handle(Dataset())

    @staticmethod
    def destroy_dataset(number: int) -> int:
        DEVICE.taken(number, Dataset, "destroy_dataset")
        del DEVICE.handles[number]
        return SUCCESS

    @staticmethod
    def add_dataset_buffer(dataset: int, data: int) -> tuple[int, int]:
        DEVICE.taken(data, DataBuffer, "add_dataset_buffer")
        DEVICE.taken(dataset, Dataset, "add_dataset_buffer").buffers.append(data)
        return dataset, SUCCESS

    @staticmethod
    def get_num_inputs(desc: int) -> int:
        return len(_model(desc).inputs)

    @staticmethod
    def get_num_outputs(desc: int) -> int:
        return len(_model(desc).outputs)

    @staticmethod
    def get_input_size_by_index(desc: int, at: int) -> int:
        model = _model(desc)
        return model.bytes_of(model.inputs[at], model.largest())

    @staticmethod
    def get_output_size_by_index(desc: int, at: int) -> int:
        model = _model(desc)
        return model.bytes_of(model.outputs[at], model.largest())

    @staticmethod
    def get_input_index_by_name(desc: int, name: str) -> tuple[int, int]:
        names = _model(desc).inputs
        return (names.index(name), SUCCESS) if name in names else (0, INVALID_PARAM)

    @staticmethod
    def get_input_data_type(desc: int, at: int) -> int:
        return CODES[_model(desc).dtype(_model(desc).inputs[at])]

    @staticmethod
    def get_output_data_type(desc: int, at: int) -> int:
        return CODES[_model(desc).dtype(_model(desc).outputs[at])]

    @staticmethod
    def set_input_dynamic_dims(number: int, dataset: int, at: int, dims: dict[str, Any]) -> int:
        model = DEVICE.taken(number, Model, "set_input_dynamic_dims")
        DEVICE.taken(dataset, Dataset, "set_input_dynamic_dims")
        if at != model.inputs.index(SHAPE_INPUT) or dims["dimCount"] != len(dims["dims"]):
            DEVICE.fault("set_input_dynamic_dims: not the shape input, or a wrong dimCount")
        for gear in model.gears:
            shapes = model.at(gear)
            if [size for name in model.inputs[:-1] for size in shapes[name]] == list(dims["dims"]):
                model.current = model.last = shapes
                return SUCCESS
        return INVALID_PARAM

    @staticmethod
    def get_cur_output_dims(desc: int, at: int) -> tuple[dict[str, Any], int]:
        model = _model(desc)
        name = model.outputs[at]
        shape = fake_model.shape(model.graph, name, model.last or model.largest())
        return {"name": name, "dimCount": len(shape or ()), "dims": list(shape or ())}, SUCCESS

    @staticmethod
    def execute(number: int, inputs: int, outputs: int) -> int:
        model = DEVICE.taken(number, Model, "execute")
        datasets = [DEVICE.taken(dataset, Dataset, "execute") for dataset in (inputs, outputs)]
        if [len(one.buffers) for one in datasets] != [len(model.inputs), len(model.outputs)]:
            DEVICE.fault("execute: a buffer for each input and each output is needed")
        blocks = [
            [DEVICE.block(DEVICE.taken(one, DataBuffer, "execute").address, "execute") for one in dataset.buffers]
            for dataset in datasets
        ]
        if model.current is None:
            DEVICE.fault("execute: set_input_dynamic_dims was not called")
        if _fails("mdl.execute"):
            return _fails("mdl.execute")
        shapes = model.current or {}
        model.current, model.last = None if model.gears else shapes, shapes  # a bucket is chosen anew for each run
        feeds = {}
        for name, block in zip(shapes, blocks[0], strict=False):
            size = model.bytes_of(name, shapes)
            if size != block.written:
                DEVICE.fault(f"execute: {name} has {size} bytes in this bucket, {block.written} were written")
            feeds[name] = np.frombuffer(bytes(block.data[:size]), model.dtype(name)).reshape(shapes[name])
        for array, block in zip(model.session.run(model.outputs, feeds), blocks[1], strict=True):
            block.data[: array.nbytes] = array.tobytes()
            block.written = array.nbytes
        return SUCCESS


def _model(desc: int) -> Model:
    model = DEVICE.taken(desc, Desc, "description").model
    if model is None:
        DEVICE.fault("description: get_desc was not called")
    assert model is not None
    return model
