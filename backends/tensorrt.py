"""NVIDIA TensorRT from 8.4 (JetPack 5) to 11, on the first GPU.

``tensorrt`` computes in float32 with TF32 off; ``tensorrt:tf32`` and ``tensorrt:fp16`` let the builder use those. Sources:
docs.nvidia.com/deeplearning/tensorrt, Python API of 8.4, 8.5, 8.6, 10 and 11, and the migration guide to 11.
"""

import json
import re
from typing import Any, Dict, List, Optional

import numpy as np

from backends import contract, cuda, staged, words

# Least, usual and largest size of each dynamic dimension: the optimization profile. Marian has 512 positions.
SIZES = {"batch": (1, 8, 64), "source": (1, 64, 512), "past": (0, 64, 512)}
FASTER = {"tf32": "platform_has_tf32", "fp16": "platform_has_fast_fp16"}
INSTALL = "pip install tensorrt; on a Jetson it comes with JetPack, make the venv with --system-site-packages"
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT64": "int64", "INT8": "int8", "BOOL": "bool"}
REFUSALS = [("datatype", "dtype"), ("data type", "dtype"), ("opset", "opset"), ("ir version", "ir")]
REFUSALS += [("_shape", "shape"), ("_dynamic", "shape"), ("plugin not found", "operator")]
REFUSALS += [("unsupported_node", "operator"), ("no importer", "operator"), ("shape", "shape")]


class Backend(staged.Staged):
    """One GPU; every layer of an engine runs on it."""

    capabilities = contract.Capabilities(knobs={"builder_optimization_level=0": contract.Knob({"level": 0})})
    modes = ("fp32", *FASTER)

    def probe(self) -> contract.Probe:
        try:
            import tensorrt as trt
        except ImportError as error:
            raise contract.Absent(f"tensorrt cannot be imported: {error}", INSTALL) from error
        self.trt, self.gpu, self.log = trt, cuda.Device(cuda.find()), words.logger(trt, self.note)
        self.found = contract.Probe(
            contract.version_of(trt), self.gpu.name, self.provider or "fp32", contract.execution_of(trt)
        )
        return self.found

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> Any:
        """The builder and its network: without a network its parser segfaults."""
        self.log.said.clear()  # one for all parts: TensorRT keeps to the first that it was given
        builder, flags = self.trt.Builder(self.log), self.trt.NetworkDefinitionCreationFlag
        # From 10 on every network has an explicit batch, and 11 has no flag for it.
        network = builder.create_network(1 << int(flags.EXPLICIT_BATCH) if hasattr(flags, "EXPLICIT_BATCH") else 0)
        _parse(self.trt, network, part.path, self.log)
        return builder, network

    def build(self, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> bytes:
        builder, network = parsed
        grows = any("past" in port.shape for port in part.inputs)
        for least in (0, 1) if grows else (0,):  # a version that refuses an empty cache may build for longer ones
            plan = self._plan(builder, network, part, options, {**SIZES, "past": (least, *SIZES["past"][1:])})
            if plan is not None:
                return bytes(plan)
        raise contract.refusal("build", self.log.said, REFUSALS)

    def load(self, engine: staged.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> "_Program":
        self.log.said.clear()
        runtime = self.trt.Runtime(self.log)
        with open(engine.path, "rb") as stream:
            made = runtime.deserialize_cuda_engine(stream.read())
        context = made and made.create_execution_context()
        if not context:
            raise contract.refusal("load", self.log.said, REFUSALS)
        return _Program(self, [context, made, runtime, self.log], part)

    def _plan(self, builder: Any, network: Any, part: contract.Part, options: Dict[str, Any], sizes: Any) -> Any:
        """The serialized engine, or None when the builder refuses. Raises StageError for a precision that is not here."""
        trt = self.trt
        config = builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)  # an Orin's is the CPU's memory too
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # else the inspector gives names alone
        config.clear_flag(trt.BuilderFlag.TF32)
        if self.provider in FASTER:
            if not getattr(builder, FASTER[self.provider], True):  # 11 asks no more
                raise contract.StageError("build", "dtype", f"{self.gpu.name} has no {self.provider}")
            flag = getattr(trt.BuilderFlag, self.provider.upper(), None)
            if flag is None:
                strong = f"TensorRT {trt.__version__} types networks strongly: precision is the graph's, no flag's"
                raise contract.StageError("build", "dtype", strong)
            config.set_flag(flag)
        if "level" in options and hasattr(config, "builder_optimization_level"):
            config.builder_optimization_level = options["level"]
        profile = builder.create_optimization_profile()
        moving = [port for port in part.inputs if any(isinstance(size, str) for size in port.shape)]
        for port in moving:
            profile.set_shape(port.name, *zip(*(sizes.get(size, (size,) * 3) for size in port.shape)))
        if moving:
            config.add_optimization_profile(profile)
        return builder.build_serialized_network(network, config)


def _parse(trt: Any, network: Any, path: str, log: Any) -> None:
    """Read an ONNX file into a network, with a parser that ends before it. Raises StageError with every error."""
    parser, told = trt.OnnxParser(network, log), []
    if not parser.parse_from_file(path):
        for error in map(parser.get_error, range(parser.num_errors)):
            named = hasattr(error, "node_name")  # older ones have the operator in their text alone
            node = f"{error.node_name()} ({error.node_operator()})" if named else f"node {error.node()}"
            told.append(f"{node}: {error.code().name}: {error.desc()}")
        raise contract.refusal("parse", told or log.said, REFUSALS)


class _Program(contract.Program):
    def __init__(self, backend: Backend, owned: List[Any], part: contract.Part) -> None:
        """``owned``: context, engine, runtime and log, in the order in which they may go."""
        self.backend, self.owned, self.built = backend, owned, ""
        context, engine = owned[:2]
        self.numbered = not hasattr(engine, "num_io_tensors")  # before 8.5 a tensor was a binding with a number
        if self.numbered:
            names = [engine.get_binding_name(at) for at in range(engine.num_bindings)]
            keys, dtype, profile = list(range(len(names))), engine.get_binding_dtype, engine.get_profile_shape
            self.set_shape, self.shape = context.set_binding_shape, context.get_binding_shape
        else:
            keys = names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
            dtype, profile = engine.get_tensor_dtype, lambda at, name: engine.get_tensor_profile_shape(name, at)
            self.set_shape, self.shape = context.set_input_shape, context.get_tensor_shape
        self.key = dict(zip(names, keys))
        self.dtypes = {name: DTYPES[dtype(key).name] for name, key in self.key.items()}
        for port in [port for port in part.inputs if "past" in port.shape][:1]:
            least, _, most = (shape[port.shape.index("past")] for shape in profile(0, self.key[port.name]))
            self.built = f", built for caches of {least} to {most}"

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        outputs = [name for name in self.key if name not in feeds]
        self.owned[3].said.clear()
        try:
            with cuda.Buffers(self.backend.gpu) as buffers:
                for name, array in feeds.items():
                    if not self.set_shape(self.key[name], array.shape):
                        outside = f"{name} {array.shape} is outside of the optimization profile{self.built}"
                        raise contract.StageError("run", "shape", outside)
                    buffers.feed(name, array, self.dtypes[name])
                for name in outputs:
                    buffers.room(name, tuple(self.shape(self.key[name])), self.dtypes[name])
                if not buffers.run(self._execute):
                    raise RuntimeError("; ".join(self.owned[3].said[-3:]) or "the engine refused to run")
                return {name: buffers.taken(name) for name in outputs}
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
        told = json.loads(inspector.get_engine_information(self.backend.trt.LayerInformationFormat.JSON))
        layers = [json.dumps(layer).lower() for layer in told.get("Layers", [])]
        if not any(re.search("data ?type", layer) for layer in layers):
            return None  # names alone prove no precision
        half, fast = (sum(bool(re.search(word, layer)) for layer in layers) for word in ("half|fp16", "tf32"))
        precision = "fp16" if half else "tf32" if fast or self.backend.provider == "tf32" else "fp32"
        said = f"engine inspector: {len(layers)} layers, {half} with half tensors, {fast} with TF32 tactics"
        return contract.Placement(self.backend.gpu.name, precision, said + self.built)

    def close(self) -> None:
        """Context, engine, runtime, in this order; a second time does nothing."""
        self.set_shape = self.shape = None
        while self.owned:
            del self.owned[0]

    __del__ = close
