"""OpenVINO, from 2022.1 on, on its CPU plugin. Source: docs.openvino.ai, Python API and runtime properties."""

from typing import Any, Dict, Optional

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
    """The CPU plugin in float32. Left to itself it computes in bf16 where the CPU has that."""

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
        self.core = core  # 2023.0 cannot be asked about a compiled model whose core is gone
        self.compiled = compiled
        self.request = compiled.create_infer_request()
        declared = {port.name for port in part.outputs}
        # A port also has the names of inner tensors that share its value.
        names = [sorted(port.get_names() & declared) or sorted(port.get_names()) for port in compiled.outputs]
        self.indices = {name: index for index, own in enumerate(names) for name in own[:1]}

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            self.request.infer(feeds)
            # The request reuses the memory of its outputs in the next run, so each is copied.
            return {name: np.array(self.request.get_output_tensor(index).data) for name, index in self.indices.items()}
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def placement(self) -> Optional[contract.Placement]:
        known = self.compiled.get_property("SUPPORTED_PROPERTIES")
        if "INFERENCE_PRECISION_HINT" not in known:
            return contract.Placement("cpu", "fp32", "this version's CPU plugin computes in f32 unless told otherwise")
        try:
            hint = self.compiled.get_property("INFERENCE_PRECISION_HINT")
        except TypeError:  # 2022.1 has the hint and cannot return it to Python: nothing proves the precision
            return None
        precision = hint.get_type_name() if hasattr(hint, "get_type_name") else str(hint)
        devices = self.compiled.get_property("EXECUTION_DEVICES") if "EXECUTION_DEVICES" in known else ["CPU"]
        devices = [devices] if isinstance(devices, str) else list(devices)
        evidence = f"executed on {devices}, inference precision {precision}"
        return contract.Placement(",".join(devices).lower(), PRECISIONS.get(precision, precision), evidence)
