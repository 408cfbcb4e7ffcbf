"""OpenVINO, from 2022.1 on, on its CPU plugin. Source: docs.openvino.ai, Python API and runtime properties."""

from typing import Any, Dict

import numpy as np

from backends import contract

REFUSALS = [
    ("unsupported ir version", "ir"),
    ("doesn't support operation set", "opset"),
    ("unsupported opset", "opset"),
    ("unsupported onnx operation", "operator"),
    ("not supported operations", "operator"),
    ("does not support the following ONNX operations", "operator"),
    ("no conversion rule", "operator"),
    ("not supported for", "operator"),
    ("shape", "shape"),
    ("element type", "dtype"),
]

PRECISIONS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


class Backend(contract.Backend):
    """The CPU plugin in float32: the plugin's own choice would be bf16 where the CPU has it."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "int64", "int32", "int8", "uint8", "bool"}),
        knobs={
            "CPU_RUNTIME_CACHE_CAPACITY=0": contract.Knob({"CPU_RUNTIME_CACHE_CAPACITY": "0"}),
            "SNIPPETS_MODE=DISABLE": contract.Knob({"SNIPPETS_MODE": "DISABLE"}),
            "threads=1": contract.Knob({"threads": 1}),
        },
    )
    modes = ("cpu",)

    def probe(self) -> contract.Probe:
        try:
            from openvino.runtime import get_version
        except ImportError:
            try:
                from openvino import get_version
            except ImportError as error:
                raise contract.not_imported("openvino", error) from error
        return contract.Probe(get_version().split("-")[0], "cpu", "fp32")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        try:
            from openvino import Core
        except ImportError:  # before 2023.1
            from openvino.runtime import Core

        core = Core()
        config = {name: value for name, value in options.items() if name.isupper()}
        if options.get("threads"):
            config["INFERENCE_NUM_THREADS"] = str(options["threads"])
        supported = core.get_property("CPU", "SUPPORTED_PROPERTIES")
        if "INFERENCE_PRECISION_HINT" in supported:
            config["INFERENCE_PRECISION_HINT"] = "f32"
        stage = "parse"
        try:
            model = core.read_model(part.path)
            stage = "load"
            compiled = core.compile_model(model, "CPU", config)
        except Exception as error:
            raise contract.StageError(stage, contract.first_kind(str(error), REFUSALS), str(error)) from error
        return _Program(core, compiled, part)


class _Program(contract.Program):
    def __init__(self, core: Any, compiled: Any, part: contract.Part) -> None:
        self.core = core  # 2023.0 answers no question about a compiled model once its core is gone
        self.compiled = compiled
        self.request = compiled.create_infer_request()
        declared = {port.name for port in part.outputs}
        # A port also carries the names of the tensors inside that it shares its value with.
        named = [(sorted(port.get_names() & declared) or sorted(port.get_names())) for port in compiled.outputs]
        self.names = [(name, index) for index, names in enumerate(named) for name in names[:1]]

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            self.request.infer(feeds)
            # The request reuses its output memory in the next run, so each result is copied out.
            return {name: np.array(self.request.get_output_tensor(index).data) for name, index in self.names}
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def placement(self) -> "contract.Placement | None":
        known = self.compiled.get_property("SUPPORTED_PROPERTIES")
        if "INFERENCE_PRECISION_HINT" not in known:
            return contract.Placement("cpu", "fp32", "this version's CPU plugin computes in f32 unless told otherwise")
        try:
            hint = self.compiled.get_property("INFERENCE_PRECISION_HINT")
        except TypeError:  # 2022.1 has the hint and cannot hand it over to Python: nothing proves the precision
            return None
        name = hint.get_type_name() if hasattr(hint, "get_type_name") else str(hint)
        if "EXECUTION_DEVICES" in known:
            devices = self.compiled.get_property("EXECUTION_DEVICES")
            devices = [devices] if isinstance(devices, str) else list(devices)
        else:
            devices = ["CPU"]
        device = ",".join(devices).lower()
        return contract.Placement(
            device, PRECISIONS.get(name, name), f"executed on {devices}, inference precision {name}"
        )
