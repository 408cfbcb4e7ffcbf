"""IREE: ONNX through torch-mlir to native code, run on this CPU. Source: iree.dev, guides for ONNX and for CPU deployment.

The sizes that a graph declares for its outputs are left open when it is imported: ONNX's shape inference knows less of some
tensors inside than the declarations say of the outputs made from them, and the compiler then refuses the difference.
"""

import hashlib
import platform
import re
from importlib import metadata
from typing import Any, Dict, List

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
FORMAT = (
    rb"embedded-elf-[a-z0-9_]+|system-[a-z]+-[a-z0-9_]+|vmvx-bytecode-fb|cuda-nvptx-fb|rocm-hsaco-fb|vulkan-spirv-fb"
)


class Backend(staged.Staged):
    """The CPU's own code on IREE's task system; one thread is its synchronous device."""

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
            told = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model, data_prop=True))
            with Context() as context:
                module = told.create_module(context=context).operation
                onnx_importer.NodeImporter.define_function(told.main_graph, module).import_all()
                module.verify()
                return bytes(module.get_asm(binary=True))
        except Exception as error:
            raise contract.refusal("parse", [_errors(error)], REFUSALS) from error

    def build(self, parsed: bytes, part: contract.Part, options: Dict[str, Any]) -> bytes:
        """Native code, as IREE's virtual machine loads it. ``flags`` of the options go to the compiler."""
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
        formats = sorted({found.decode() for found in re.findall(FORMAT, code)})
        return _Program(part, context.modules[module.name][entry], f"HAL device {device}", formats)


def _host() -> str:
    """What ``target-cpu=host`` builds for. Another processor's engine, in a cache that boxes share, may end in an illegal
    instruction here, or give that processor's numbers."""
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as stream:
            told = sorted({line for line in stream if re.match("model|vendor|flags|Features|CPU [ipv]", line)})
    except OSError:
        told = [platform.processor()]
    return f"{platform.machine()} {hashlib.sha256(''.join(told).encode()).hexdigest()[:12]}"


def _errors(error: Exception) -> str:
    """What the compiler complains of, without the source that it shows and the command that it was called with."""
    text = str(error)
    lines = [line for line in text.splitlines() if re.search("error:|Error code: -", line)]
    return "; ".join(dict.fromkeys(re.sub(r"^.*?error: ", "", line) for line in lines)) or contract.first_line(error)


class _Program(contract.Program):
    def __init__(self, part: contract.Part, function: Any, device: str, formats: List[str]) -> None:
        self.part, self.function, self.device, self.formats = part, function, device, formats

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            found = self.function(*[feeds[port.name] for port in self.part.inputs])
            found = [found] if len(self.part.outputs) == 1 else found
            return {port.name: np.array(one.to_host()) for port, one in zip(self.part.outputs, found)}
        except (RuntimeError, ValueError) as error:
            raise contract.refusal("run", [_errors(error)], REFUSALS) from error

    def placement(self) -> "contract.Placement | None":
        """Every piece of native code is of the host's, and the only device runs on the host."""
        if not self.formats or not all(one.startswith("embedded-elf") for one in self.formats):
            return None
        said = f"{self.device}, executables {', '.join(self.formats)}, no narrowing of types asked for"
        return contract.Placement("cpu", "fp32", said)

    def close(self) -> None:
        self.function = None
