"""NVIDIA TensorRT from 8.4 (JetPack 5) to 11, on the first GPU.

``tensorrt`` computes in float32 with TF32 off; ``tensorrt:tf32`` and ``tensorrt:fp16`` let the builder use those. Sources:
docs.nvidia.com/deeplearning/tensorrt, Python API of 8.4, 8.5, 8.6, 10 and 11, and the migration guide to 11.
An output stays on the device as long as its host copy lives, and is not uploaded when that copy is fed again: the cache
of a decode moves one way only. The host copy is what is judged; it cannot be written to, so the two stay equal.
"""

import json
import re
import weakref
from typing import Any, Dict, List

import numpy as np

from backends import contract, cuda

# Least, usual and largest size of each dynamic dimension: the optimization profile. Marian has 512 positions.
SIZES = {"batch": (1, 8, 64), "source": (1, 64, 512), "past": (0, 64, 512)}
WORKSPACE = 1 << 30
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT64": "int64", "INT8": "int8", "BOOL": "bool"}
REFUSALS = [
    ("datatype", "dtype"),
    ("data type", "dtype"),
    ("opset", "opset"),
    ("ir version", "ir"),
    ("_shape", "shape"),
]
REFUSALS += [("_dynamic", "shape"), ("plugin not found", "operator"), ("unsupported_node", "operator")]
REFUSALS += [("no importer", "operator"), ("shape", "shape")]


class Backend(contract.Backend):
    """One GPU; every layer of an engine runs on it."""

    capabilities = contract.Capabilities(knobs={"builder_optimization_level=0": {"level": 0}})

    def probe(self) -> contract.Probe:
        self.kept = {}  # type: Dict[int, Any]  # device memory of the outputs that live, by the id of their host copy
        if self.provider not in (None, "fp32", "tf32", "fp16"):
            raise contract.Absent(f"tensorrt has no mode {self.provider!r}", "use tensorrt, tensorrt:tf32 or :fp16")
        try:
            import tensorrt as trt
        except ImportError as error:
            remedy = (
                "pip install tensorrt; on a Jetson it comes with JetPack, make the venv with --system-site-packages"
            )
            raise contract.Absent(f"tensorrt cannot be imported: {error}", remedy) from error
        self.trt, self.cuda = trt, cuda.find()
        self.device = re.sub("[^a-z0-9]+", "-", self.cuda.gpu.lower()).strip("-")
        return contract.Probe(contract.version_of(trt), self.device, self.provider or "fp32")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        log = _log(self.trt)
        # A version that refuses an empty cache may still build for longer ones.
        for least in (0, 1) if any("past" in port.shape for port in part.inputs) else (0,):
            plan = self._plan(part, options, log, {**SIZES, "past": (least, *SIZES["past"][1:])})
            if plan:
                break
        else:
            raise contract.refusal("build", log.said, REFUSALS)
        runtime = self.trt.Runtime(log)
        engine = runtime.deserialize_cuda_engine(plan)
        context = engine and engine.create_execution_context()
        if not context:
            raise contract.refusal("load", log.said, REFUSALS)
        built = f"built for caches of {least} to {SIZES['past'][2]}"
        return _Program(self, part, [context, engine, runtime, log], built)

    def _plan(self, part: contract.Part, options: Dict[str, Any], log: Any, sizes: Any) -> Any:
        """The serialized engine, or None when the builder refuses. Raises StageError for what the parser refuses."""
        trt, flags = self.trt, self.trt.NetworkDefinitionCreationFlag
        builder = trt.Builder(log)
        # From 10 on every network has an explicit batch, and 11 has no flag for it.
        network = builder.create_network(1 << int(flags.EXPLICIT_BATCH) if hasattr(flags, "EXPLICIT_BATCH") else 0)
        _parse(trt, network, part.path, log)
        config = builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # else the inspector gives names alone
        config.clear_flag(trt.BuilderFlag.TF32)
        if self.provider in ("tf32", "fp16"):
            if not hasattr(trt.BuilderFlag, self.provider.upper()):
                words = (
                    f"TensorRT {trt.__version__} types networks strongly: the graph says the precision, no flag does"
                )
                raise contract.StageError("build", "dtype", words)
            config.set_flag(getattr(trt.BuilderFlag, self.provider.upper()))
        if "level" in options and hasattr(config, "builder_optimization_level"):
            config.builder_optimization_level = options["level"]
        profile = builder.create_optimization_profile()
        moving = [port for port in part.inputs if any(isinstance(size, str) for size in port.shape)]
        for port in moving:
            profile.set_shape(port.name, *zip(*(sizes.get(size, (size,) * 3) for size in port.shape)))
        if moving:
            config.add_optimization_profile(profile)
        return builder.build_serialized_network(network, config)


def _log(trt: Any) -> Any:
    """A logger that keeps what a refusal says: the API itself only returns nothing."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.said = []  # type: List[str]

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.said.append(message)

    return Log()


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
    def __init__(self, backend: Backend, part: contract.Part, owned: List[Any], built: str) -> None:
        """``owned``: context, engine, runtime and log, in the order in which they may go."""
        self.backend, self.cuda, self.owned, self.built = backend, backend.cuda, owned, built
        context, engine = owned[:2]
        self.inputs, self.stream = [port.name for port in part.inputs], self.cuda.stream()
        self.numbered = not hasattr(engine, "num_io_tensors")  # before 8.5 a tensor was a binding with a number
        if self.numbered:
            self.names = [engine.get_binding_name(at) for at in range(engine.num_bindings)]
            self.set_shape, self.shape, dtype = (
                context.set_binding_shape,
                context.get_binding_shape,
                engine.get_binding_dtype,
            )
        else:
            self.names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
            self.set_shape, self.shape, dtype = (
                context.set_input_shape,
                context.get_tensor_shape,
                engine.get_tensor_dtype,
            )
        self.key = {name: at if self.numbered else name for at, name in enumerate(self.names)}
        self.dtypes = {name: DTYPES[dtype(self.key[name]).name] for name in self.names}

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        held = self.backend.kept
        kept = {name: held[id(feeds[name])] for name in self.inputs if id(feeds[name]) in held}
        own, outputs = {}, {}  # type: Dict[str, Any], Dict[str, np.ndarray]
        try:
            for name in self.inputs:
                if not self.set_shape(self.key[name], feeds[name].shape):
                    words = f"{name} {feeds[name].shape} is outside of the optimization profile, {self.built}"
                    raise contract.StageError("run", "shape", words)
                if name not in kept:
                    array = np.ascontiguousarray(feeds[name], self.dtypes[name])
                    own[name] = self.cuda.malloc(max(array.nbytes, 1))  # an empty tensor needs an address too
                    self.cuda.upload(own[name], array)
            for name in [name for name in self.names if name not in self.inputs]:
                array = outputs[name] = np.empty(tuple(self.shape(self.key[name])), self.dtypes[name])
                own[name] = self.cuda.malloc(max(array.nbytes, 1))
            self._execute({**kept, **own})
            for name, array in outputs.items():
                self.cuda.download(array, own[name])
                array.setflags(write=False)
                self._keep(array, own.pop(name))
            return outputs
        except RuntimeError as error:
            raise contract.refusal("run", [str(error)], REFUSALS) from error
        finally:
            for memory in own.values():
                self.cuda.free(memory)

    def _execute(self, memory: Dict[str, Any]) -> None:
        context, stream = self.owned[0], self.cuda.handle(self.stream)
        if self.numbered:
            done = context.execute_async_v2([int(memory[name]) for name in self.names], stream)
        else:
            done = all(context.set_tensor_address(name, int(memory[name])) for name in self.names)
            done = done and context.execute_async_v3(stream)
        self.cuda.synchronize(self.stream)
        if not done:
            raise RuntimeError("; ".join(self.owned[3].said[-3:]) or "the engine refused to run")

    def _keep(self, array: np.ndarray, memory: Any) -> None:
        """Hold an output's device memory until its host copy is gone."""
        kept, free, key = self.backend.kept, self.cuda.free, id(array)
        kept[key] = memory
        weakref.finalize(array, lambda: free(kept.pop(key))).atexit = False

    def placement(self) -> "contract.Placement | None":
        form = self.backend.trt.LayerInformationFormat.JSON
        told = json.loads(self.owned[1].create_engine_inspector().get_engine_information(form))
        layers = [json.dumps(layer).lower() for layer in told.get("Layers", [])]
        if not any(re.search("data ?type", layer) for layer in layers):
            return None  # names alone prove no precision
        half = sum(bool(re.search("half|fp16|bf16", layer)) for layer in layers)
        fast = sum("tf32" in layer for layer in layers)
        precision = "fp16" if half else "tf32" if fast or self.backend.provider == "tf32" else "fp32"
        said = f"engine inspector: {len(layers)} layers, {half} with half tensors, {fast} with TF32 tactics"
        return contract.Placement(self.backend.device, precision, f"{said}; {self.built}")

    def close(self) -> None:
        """Context, engine, runtime, in this order; a second time does nothing."""
        self.set_shape = self.shape = None
        while self.owned:
            del self.owned[0]
        if self.stream is not None:
            self.stream = self.cuda.end(self.stream)

    def __del__(self) -> None:
        self.close()
