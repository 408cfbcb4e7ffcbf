"""IREE: ONNX through torch-mlir to native code, run on this CPU. Source: iree.dev, guides for ONNX and for CPU deployment.

A graph is imported without the declared shapes of its outputs: they can be more specific than what ONNX's shape inference
finds for the tensors that the outputs are computed from, and the compiler refuses such a difference.
"""

import hashlib
import platform
import re
from importlib import metadata
from typing import Any, Dict, List, Optional

import numpy as np

from backends import contract, engines, staged

REFUSALS = [
    ("failed to legalize operation 'torch.operator'", "operator"),
    ("unsupported ONNX", "operator"),
    ("opset", "opset"),
    ("element type", "dtype"),
    ("dim(", "shape"),
    ("rank", "shape"),
    ("shape", "shape"),
    ("dimension", "shape"),
]
CPUINFO = "/proc/cpuinfo"
FORMATS = rb"embedded-elf-[a-z0-9_]+|system-[a-z]+-[a-z0-9_]+"
FORMATS += rb"|vmvx-bytecode-fb|cuda-nvptx-fb|rocm-hsaco-fb|vulkan-spirv-fb"


class Backend(staged.Staged):
    """Native code for this CPU on IREE's task system; with one thread, on its synchronous device."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"}),
        knobs={
            "iree-opt-level=O0": contract.Knob({"flags": ["--iree-opt-level=O0"]}),
            "iree-llvmcpu-target-cpu=generic": contract.Knob({"flags": ["--iree-llvmcpu-target-cpu=generic"]}),
            "threads=1": contract.Knob({"threads": 1}),
        },
    )

    def probe(self) -> contract.Probe:
        try:
            import iree.compiler.extras.onnx_importer
            import iree.runtime  # noqa: F401
        except ImportError as error:
            install = "pip install 'iree-base-compiler[onnx]' iree-base-runtime"
            raise contract.Absent(f"iree cannot be imported: {error}", install) from error
        self.toolkit = f"{metadata.version('iree-base-compiler')} for {_host()}"
        self.probed = contract.Probe(metadata.version("iree-base-runtime"), "cpu", "fp32")
        return self.probed

    def parse(self, part: contract.Part, options: Dict[str, Any]) -> bytes:
        """The part as MLIR bytecode."""
        import onnx
        from iree.compiler.extras import onnx_importer
        from iree.compiler.ir import Context

        try:
            model = onnx.load(part.path)
            for output in model.graph.output:
                output.type.tensor_type.ClearField("shape")
            info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model, data_prop=True))
            with Context() as context:
                module = info.create_module(context=context).operation
                onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
                module.verify()
                return bytes(module.get_asm(binary=True))
        except Exception as error:
            raise contract.refusal("parse", [_errors(error)], REFUSALS) from error

    def build(self, parsed: bytes, part: contract.Part, options: Dict[str, Any]) -> bytes:
        """Native code, as IREE's virtual machine loads it. The option ``flags`` is passed to the compiler."""
        from iree.compiler import tools

        flags = options.get("flags", ["--iree-llvmcpu-target-cpu=host"])
        try:
            return bytes(tools.compile_str(parsed, input_type="onnx", target_backends=["llvm-cpu"], extra_args=flags))
        except tools.CompilerToolError as error:
            raise contract.refusal("build", [_errors(error)], REFUSALS) from error

    def load(
        self, engine: engines.Engine, parsed: Any, part: contract.Part, options: Dict[str, Any]
    ) -> contract.Program:
        import iree.runtime as rt

        with open(engine.path, "rb") as stream:
            code = stream.read()

        try:
            device = rt.get_device("local-sync" if options.get("threads") == 1 else "local-task")
            config = rt.Config(device=device)
            module = rt.VmModule.copy_buffer(config.vm_instance, code)
            hal = rt.create_hal_module(config.vm_instance, device)
            context = rt.SystemContext(vm_modules=[hal, module], config=config)
        except Exception as error:
            raise contract.refusal("load", [_errors(error)], REFUSALS) from error
        entry = next(name for name in module.function_names if not name.startswith("__") and "$" not in name)
        formats = sorted({name.decode() for name in re.findall(FORMATS, code)})
        return _Program(part, context.modules[module.name][entry], f"HAL device {device}", formats)


def _host() -> str:
    """The processor that ``target-cpu=host`` builds for, as a hash.

    An engine of another processor, from a cache that boxes share, may stop with an illegal instruction or compute
    other numbers.
    """
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as stream:
            lines = sorted({line for line in stream if re.match("model|vendor|flags|Features|CPU [ipv]", line)})
    except OSError:
        lines = [platform.processor()]
    return f"{platform.machine()} {hashlib.sha256(''.join(lines).encode()).hexdigest()[:12]}"


def _errors(error: Exception) -> str:
    """The compiler's errors, without the source code that it quotes and its command line."""
    text = str(error)
    lines = [line for line in text.splitlines() if re.search("error:|Error code: -", line)]
    return "; ".join(dict.fromkeys(re.sub(r"^.*?error: ", "", line) for line in lines)) or contract.first_line(error)


class _Program(contract.Program):
    def __init__(self, part: contract.Part, function: Any, device: str, formats: List[str]) -> None:
        self.part, self.function, self.device, self.formats = part, function, device, formats

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            results = self.function(*[feeds[port.name] for port in self.part.inputs])
            results = [results] if len(self.part.outputs) == 1 else results
            return {port.name: np.array(result.to_host()) for port, result in zip(self.part.outputs, results)}
        except (RuntimeError, ValueError) as error:
            raise contract.refusal("run", [_errors(error)], REFUSALS) from error

    def placement(self) -> Optional[contract.Placement]:
        """The CPU, when all executables are in its native code."""
        if not self.formats or not all(name.startswith("embedded-elf") for name in self.formats):
            return None
        evidence = f"{self.device}, executables {', '.join(self.formats)}, no option that narrows types"
        return contract.Placement("cpu", "fp32", evidence)

    def close(self) -> None:
        self.function = None
