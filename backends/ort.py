"""ONNX Runtime, from 1.4 on. Source: onnxruntime.ai/docs/api/python/api_summary.html.

``ort`` is its CPU provider; ``ort:NAME`` is the execution provider of that name (`providers`).
"""

import os
import re
import tempfile
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from backends import contract, providers

LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "off": "ORT_DISABLE_ALL",
}

# Most refusals share the status code FAIL: only their messages tell them apart.
REFUSALS = [
    ("Unsupported model IR version", "ir"),
    ("Unknown model file format version", "ir"),
    ("is under development and support for this is limited", "opset"),
    ("only guarantees support for models stamped with", "opset"),
    ("Unsupported opset", "opset"),
    ("Could not find an implementation", "operator"),
    ("is not a registered function/op", "operator"),
    ("No Op registered for", "operator"),
    ("fallback to CPU EP has been explicitly disabled", "operator"),
    ("invalid dimensions for input", "shape"),
    ("Invalid rank for input", "shape"),
    ("ShapeInferenceError", "shape"),
    ("Unexpected input data type", "dtype"),
    ("Type Error", "dtype"),
]


class Backend(contract.Backend):
    """One execution provider, the CPU's unless the selector names another. No other provider may do the work."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "int64", "int32", "int8", "uint8", "bool"}),
        knobs={
            "optimizer=off": contract.Knob({"optimizer": "off"}, "optimizer"),
            "optimizer=basic": contract.Knob({"optimizer": "basic"}, "optimizer"),
            "threads=1": contract.Knob({"threads": 1}),
        },
    )
    modes = None

    def __init__(self, provider: Optional[str] = None) -> None:
        super().__init__(provider)
        self.other = None if provider in (None, "cpu") else providers.Provider(str(provider).lower())
        if self.other:
            self.capabilities = replace(self.capabilities, knobs={**self.other.knobs, **self.capabilities.knobs})

    def probe(self) -> contract.Probe:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise contract.not_imported("onnxruntime", error) from error
        if self.other is None:
            return contract.Probe(ort.__version__, "cpu", "fp32")
        self.other.find(ort)
        return contract.Probe(ort.__version__, self.other.device, self.other.precision, self.other.execution)

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        import onnxruntime as ort

        def session(strict: bool = True, profile: str = "") -> Any:
            settings = ort.SessionOptions()
            settings.log_severity_level = 3
            level = LEVELS[options.get("optimizer", "all")]
            settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
            settings.intra_op_num_threads = options.get("threads", 0)
            if profile:
                settings.enable_profiling, settings.profile_file_prefix = True, profile
            if self.other:
                return self.other.session(ort, part.path, settings, strict, options.get("provider"))
            return ort.InferenceSession(part.path, settings, providers=[providers.CPU])

        try:
            return _Program(self, session)
        except Exception as error:
            message, kind = str(error), _kind(str(error))
            if self.other and "has been explicitly disabled" in message:
                message = f"{message} {self.other.leftovers(session(strict=False))}"
            raise contract.StageError("load", kind, message) from error


def _kind(message: str) -> str:
    """The kind of a refusal. No operator of an opset before 7 has a kernel, so that kind is ``opset``, not ``operator``."""
    old = re.search(r"Could not find an implementation for \w+\((\d)\)", message)
    return "opset" if old and int(old[1]) < 7 else contract.first_kind(message, REFUSALS)


class _Program(contract.Program):
    def __init__(self, backend: Backend, make: Callable[..., Any]) -> None:
        """``make(strict, profile)`` makes a session; a second call makes another one with equal settings."""
        self.other, self.make, self.session = backend.other, make, make()
        self.names = [output.name for output in self.session.get_outputs()]
        self.feeds: Dict[str, np.ndarray] = {}

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        if self.other:
            self.feeds = feeds  # for a profile, in case the runtime does not report where the nodes are
        try:
            return dict(zip(self.names, self.session.run(self.names, feeds)))
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def close(self) -> None:
        self.session, self.feeds = None, {}

    def placement(self) -> Optional[contract.Placement]:
        if self.other:
            return self.other.placement(self.session, self._profiled)
        names = self.session.get_providers()
        device = "cpu" if names == [providers.CPU] else ",".join(names)
        evidence = f"session providers {names}; the CPU provider computes in the types of the graph"
        return contract.Placement(device, "fp32", evidence)

    def _profiled(self) -> Dict[str, List[str]]:
        """Operator types by provider, from a profile of the last run repeated on another session."""
        if not self.feeds:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            twin = self.make(profile=os.path.join(folder, "run"))
            twin.run(self.names, self.feeds)
            return providers.profile(twin)
