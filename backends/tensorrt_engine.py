"""A loaded TensorRT engine: it runs, and reports the precision of its layers. No adapter: TensorRT's adapters use it."""

import json
import re
from typing import Any, Dict, List, Optional

import numpy as np

from backends import contract, cuda_memory

DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT64": "int64", "INT8": "int8", "BOOL": "bool"}
REFUSALS = [("datatype", "dtype"), ("data type", "dtype"), ("opset", "opset"), ("ir version", "ir")]
REFUSALS += [("_shape", "shape"), ("_dynamic", "shape"), ("plugin not found", "operator")]
REFUSALS += [("unsupported_node", "operator"), ("no importer", "operator"), ("shape", "shape")]


class Program(contract.Program):
    def __init__(self, backend: Any, owned: List[Any], part: contract.Part) -> None:
        """``backend``: TensorRT's or TensorRT-RTX's. ``owned``: context, engine, runtime and logger, in the order in which
        they are released."""
        self.backend, self.owned, self.built_for = backend, owned, ""
        context, engine = owned[:2]
        self.numbered = not hasattr(engine, "num_io_tensors")  # before 8.5 a tensor was a binding with a number
        if self.numbered:
            names = [engine.get_binding_name(index) for index in range(engine.num_bindings)]
            keys, dtype, profile = list(range(len(names))), engine.get_binding_dtype, engine.get_profile_shape
            self.set_shape, self.shape = context.set_binding_shape, context.get_binding_shape
        else:
            keys = names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
            dtype, profile = engine.get_tensor_dtype, lambda at, name: engine.get_tensor_profile_shape(name, at)
            self.set_shape, self.shape = context.set_input_shape, context.get_tensor_shape
        self.key = dict(zip(names, keys))
        self.dtypes = {name: DTYPES[dtype(key).name] for name, key in self.key.items()}
        for port in [port for port in part.inputs if "past" in port.shape][:1]:
            least, _, most = (shape[port.shape.index("past")] for shape in profile(0, self.key[port.name]))
            self.built_for = f", built for caches of {least} to {most}"

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        outputs = [name for name in self.key if name not in feeds]
        self.owned[3].errors.clear()
        try:
            with cuda_memory.Buffers(self.backend.gpu) as buffers:
                for name, array in feeds.items():
                    if not self.set_shape(self.key[name], array.shape):
                        message = f"{name} {array.shape} is outside of the optimization profile{self.built_for}"
                        raise contract.StageError("run", "shape", message)
                    buffers.feed(name, array, self.dtypes[name])
                for name in outputs:
                    buffers.allocate(name, tuple(self.shape(self.key[name])), self.dtypes[name])
                if not buffers.run(self._execute):
                    raise RuntimeError("; ".join(self.owned[3].errors[-3:]) or "the engine refused to run")
                return {name: buffers.fetch(name) for name in outputs}
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error

    def _execute(self, memory: Dict[str, int], stream: int) -> bool:
        context = self.owned[0]
        if self.numbered:
            return bool(context.execute_async_v2([memory[name] for name in self.key], stream))
        known = all(context.set_tensor_address(name, memory[name]) for name in self.key)
        return bool(known and context.execute_async_v3(stream))

    def placement(self) -> Optional[contract.Placement]:
        inspector = self.owned[1].create_engine_inspector()
        report = json.loads(inspector.get_engine_information(self.backend.trt.LayerInformationFormat.JSON))
        layers = [json.dumps(layer).lower() for layer in report.get("Layers", [])]
        if not any(re.search("data ?type", layer) for layer in layers):
            return None  # names alone prove no precision
        half, fast = (sum(bool(re.search(word, layer)) for layer in layers) for word in ("half|fp16", "tf32"))
        precision = "fp16" if half else "tf32" if fast or self.backend.provider == "tf32" else "fp32"
        evidence = f"engine inspector: {len(layers)} layers, {half} with half tensors, {fast} with TF32 tactics"
        return contract.Placement(self.backend.gpu.name, precision, evidence + self.built_for)

    def close(self) -> None:
        """Release context, engine and runtime, in this order."""
        self.set_shape = self.shape = None
        while self.owned:
            del self.owned[0]

    __del__ = close
