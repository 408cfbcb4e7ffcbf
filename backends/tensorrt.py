"""NVIDIA TensorRT from 8.4 (JetPack 5) to 11, on the first GPU.

``tensorrt`` computes in float32 with TF32 off; ``tensorrt:tf32`` and ``tensorrt:fp16`` let the builder use those. Sources:
docs.nvidia.com/deeplearning/tensorrt, Python API of 8.4, 8.5, 8.6, 10 and 11, and the migration guide to 11.
"""

from typing import Any, Dict, Tuple

from backends import contract, cuda, cuda_memory, engines, logs, staged, tensorrt_engine

# Minimum, optimum and maximum size of each dynamic dimension: the optimization profile. Marian has 512 positions.
SIZES = {"batch": (1, 8, 64), "source": (1, 64, 512), "past": (0, 64, 512)}
FASTER = {"tf32": "platform_has_tf32", "fp16": "platform_has_fast_fp16"}
WORKSPACE = 1 << 30  # bytes: a Jetson's GPU shares the memory of its CPU
INSTALL = "pip install tensorrt; on a Jetson it comes with JetPack, make the venv with --system-site-packages"
Sizes = Dict[str, Tuple[int, int, int]]


class Backend(staged.Staged):
    """One GPU; every layer of an engine runs on it."""

    capabilities = contract.Capabilities(knobs={"builder_optimization_level=0": contract.Knob({"level": 0})})
    modes = ("fp32", *FASTER)

    def probe(self) -> contract.Probe:
        try:
            import tensorrt as trt
        except ImportError as error:
            raise contract.Absent(f"tensorrt cannot be imported: {error}", INSTALL) from error
        self.trt, self.log = trt, logs.tensorrt_logger(trt, self.note)
        self.gpu = cuda_memory.Device(cuda.find())
        return self._probe(self.gpu.name)

    def _probe(self, device: str) -> contract.Probe:
        precision, execution = self.provider or "fp32", contract.execution_of(self.trt)
        self.probed = contract.Probe(contract.version_of(self.trt), device, precision, execution)
        return self.probed

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> Any:
        """The builder and its network, which needs the builder."""
        self.log.errors.clear()  # one logger for all parts: TensorRT uses only the first that it was given
        builder, flags = self.trt.Builder(self.log), self.trt.NetworkDefinitionCreationFlag
        # From 10 on every network has an explicit batch, and 11 has no flag for it.
        network = builder.create_network(1 << int(flags.EXPLICIT_BATCH) if hasattr(flags, "EXPLICIT_BATCH") else 0)
        _parse(self.trt, network, part.path, self.log)
        return builder, network

    def build(self, parsed: Any, part: contract.Part, options: Dict[str, Any]) -> bytes:
        builder, network = parsed
        grows = any("past" in port.shape for port in part.inputs)
        for least in (0, 1) if grows else (0,):  # a version that refuses an empty cache may build for longer ones
            sizes = {**SIZES, "past": (least, *SIZES["past"][1:])}
            plan = self._plan(builder, network, part, options, sizes)
            if plan is not None:
                return bytes(plan)
        raise contract.refusal("build", self.log.errors, tensorrt_engine.REFUSALS)

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        self.log.errors.clear()
        runtime = self.trt.Runtime(self.log)
        with open(engine.path, "rb") as stream:
            loaded = runtime.deserialize_cuda_engine(stream.read())
        context = loaded and loaded.create_execution_context()
        if not context:
            raise contract.refusal("load", self.log.errors, tensorrt_engine.REFUSALS)
        return tensorrt_engine.Program(self, [context, loaded, runtime, self.log], part)

    def _plan(self, builder: Any, network: Any, part: contract.Part, options: Dict[str, Any], sizes: Sizes) -> Any:
        """The serialized engine, or None when the builder refuses. Raises StageError for a precision that is not here."""
        config = builder.create_builder_config()
        config.set_memory_pool_limit(self.trt.MemoryPoolType.WORKSPACE, WORKSPACE)
        config.profiling_verbosity = self.trt.ProfilingVerbosity.DETAILED  # else the inspector gives names alone
        config.clear_flag(self.trt.BuilderFlag.TF32)
        if self.provider in FASTER:
            config.set_flag(self._precision_flag(self.provider, builder))
        if "level" in options and hasattr(config, "builder_optimization_level"):
            config.builder_optimization_level = options["level"]
        profile = builder.create_optimization_profile()
        dynamic = [port for port in part.inputs if any(isinstance(size, str) for size in port.shape)]
        for port in dynamic:
            ranges = [sizes[size] if isinstance(size, str) else (size,) * 3 for size in port.shape]
            profile.set_shape(port.name, *zip(*ranges))
        if dynamic:
            config.add_optimization_profile(profile)
        return builder.build_serialized_network(network, config)

    def _precision_flag(self, precision: str, builder: Any) -> Any:
        """The flag that allows a faster precision. Raises StageError when the GPU or this version has none."""
        if not getattr(builder, FASTER[precision], True):  # 11 has no such property
            raise contract.StageError("build", "dtype", f"{self.gpu.name} has no {precision}")
        flag = getattr(self.trt.BuilderFlag, precision.upper(), None)
        if flag is None:
            message = (
                f"TensorRT {self.trt.__version__} types networks strongly: the graph sets the precision, no flag does"
            )
            raise contract.StageError("build", "dtype", message)
        return flag


def _parse(trt: Any, network: Any, path: str, log: Any) -> None:
    """Read an ONNX file into a network. Raises StageError with every error of the parser.

    The parser is local because it must not outlive the network: using it after that is a segmentation fault.
    """
    parser, messages = trt.OnnxParser(network, log), []
    if not parser.parse_from_file(path):
        for error in map(parser.get_error, range(parser.num_errors)):
            named = hasattr(error, "node_name")  # before 8.6 only the description has the operator
            node = f"{error.node_name()} ({error.node_operator()})" if named else f"node {error.node()}"
            messages.append(f"{node}: {error.code().name}: {error.desc()}")
        raise contract.refusal("parse", messages or log.errors, tensorrt_engine.REFUSALS)
