"""ONNX Runtime, from 1.4 on. Source: onnxruntime.ai/docs/api/python/api_summary.html."""

import re
from typing import Any, Dict

import numpy as np

from backends import contract

LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "off": "ORT_DISABLE_ALL",
}

# ONNX Runtime has one error class a status code, and most refusals share FAIL: only its words tell them apart.
REFUSALS = [
    ("Unsupported model IR version", "ir"),
    ("Unknown model file format version", "ir"),
    ("is under development and support for this is limited", "opset"),
    ("only guarantees support for models stamped with", "opset"),
    ("Unsupported opset", "opset"),
    ("Could not find an implementation", "operator"),
    ("is not a registered function/op", "operator"),
    ("No Op registered for", "operator"),
    ("invalid dimensions for input", "shape"),
    ("Invalid rank for input", "shape"),
    ("ShapeInferenceError", "shape"),
    ("Unexpected input data type", "dtype"),
    ("Type Error", "dtype"),
]


class Backend(contract.Backend):
    """The CPU execution provider; nothing else may do the work."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "int64", "int32", "int8", "uint8", "bool"}),
        knobs={
            "optimizer=off": {"optimizer": "off"},
            "optimizer=basic": {"optimizer": "basic"},
            "threads=1": {"threads": 1},
        },
    )

    def probe(self) -> contract.Probe:
        if self.provider not in (None, "cpu"):
            raise contract.Absent(f"provider {self.provider!r} has no adapter yet", "use --backend=ort")
        try:
            import onnxruntime
        except ImportError as error:
            raise contract.not_imported("onnxruntime", error) from error
        return contract.Probe(onnxruntime.__version__, "cpu", "fp32")

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[options.get("optimizer", "all")])
        settings.intra_op_num_threads = options.get("threads", 0)
        try:
            session = ort.InferenceSession(part.path, settings, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise contract.StageError("load", _kind(str(error)), str(error)) from error
        return _Program(session, part)


def _kind(message: str) -> str:
    """An operator in a form older than opset 7 has no kernel, because the whole opset has none."""
    old = re.search(r"Could not find an implementation for \w+\((\d)\)", message)
    return "opset" if old and int(old[1]) < 7 else contract.first_kind(message, REFUSALS)


class _Program(contract.Program):
    def __init__(self, session: Any, part: contract.Part) -> None:
        self.session = session
        self.names = [output.name for output in session.get_outputs()]

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        try:
            return dict(zip(self.names, self.session.run(self.names, feeds)))
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def close(self) -> None:
        del self.session

    def placement(self) -> contract.Placement:
        providers = self.session.get_providers()
        device = "cpu" if providers == ["CPUExecutionProvider"] else ",".join(providers)
        return contract.Placement(device, "fp32", f"session providers {providers}; the CPU provider computes as stored")
