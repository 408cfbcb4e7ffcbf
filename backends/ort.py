"""ONNX Runtime, from 1.4 on, on its CPU provider or on the one that a selector names: ``ort:openvino``, ``ort:cuda``.

Sources: onnxruntime.ai/docs/api/python/api_summary.html, onnxruntime.ai/docs/execution-providers. A provider's word is
the runtime's own name in lower case without ``ExecutionProvider``. The CPU may do none of its work; a word that ends in
``_mixed`` lets it do what the provider refuses, and the cell's device says so: ``cuda+cpu``.
"""

import collections
import importlib
import json
import os
import re
import tempfile
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

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

CPU = "CPUExecutionProvider"


class Pin(NamedTuple):
    """A provider's device in a cell's words, the options that hold it to one precision, and knobs of its own."""

    device: str
    precision: str
    options: Dict[str, str]
    knobs: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def _openvino(device: str, **turned: str) -> Dict[str, str]:
    return {"device_type": device, "load_config": json.dumps({device: {"INFERENCE_PRECISION_HINT": "f32", **turned}})}


OPENVINO_KNOBS = {
    f"{name}={value}": {"provider": _openvino("CPU", **{name: value})}
    for name, value in (("CPU_RUNTIME_CACHE_CAPACITY", "0"), ("SNIPPETS_MODE", "DISABLE"))
}
# A provider without a line here runs all the same, and is UNVERIFIED: what it computes in is its own choice.
PINS = {
    "cann": Pin("cann", "fp32", {"precision_mode": "must_keep_origin_dtype"}),
    "cuda": Pin("cuda", "fp32", {}),
    "openvino": Pin("openvino-cpu", "fp32", _openvino("CPU"), OPENVINO_KNOBS),
    "openvino_gpu": Pin("openvino-gpu", "fp32", _openvino("GPU")),
    "qnn": Pin("qnn-htp", "fp16", {"backend_type": "htp", "enable_htp_fp16_precision": "1"}),
    "tensorrt": Pin("tensorrt", "fp32", {}),
}
PACKAGES = {"cuda": "onnxruntime-gpu", "tensorrt": "onnxruntime-gpu"}

# A model of one Relu: only a session tells whether a provider that is listed can be created.
RELU = (
    b'\x08\x07:3\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)


class Backend(contract.Backend):
    """One execution provider, the CPU's unless the selector names another; nothing else may do the work."""

    capabilities = contract.Capabilities(
        dtypes=frozenset({"float32", "float16", "int64", "int32", "int8", "uint8", "bool"}),
        knobs={
            "optimizer=off": {"optimizer": "off"},
            "optimizer=basic": {"optimizer": "basic"},
            "threads=1": {"threads": 1},
        },
    )

    def __init__(self, provider: Optional[str] = None) -> None:
        super().__init__(provider)
        word = (provider or "cpu").lower()
        self.mixed = word.endswith("_mixed")
        self.word = word[: -len("_mixed")] if self.mixed else word
        self.pin = PINS.get(self.word, Pin(self.word, "fp32", {}))
        self.device, self.options = self.pin.device, dict(self.pin.options)
        self.capabilities = replace(self.capabilities, knobs={**self.pin.knobs, **self.capabilities.knobs})
        self.name, self.plugins = CPU, []  # type: str, List[Any]

    def probe(self) -> contract.Probe:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise contract.not_imported("onnxruntime", error) from error
        if self.word != "cpu":
            self._find(ort)
        return contract.Probe(ort.__version__, self.device, self.pin.precision)

    def _find(self, ort: Any) -> None:
        """Look the provider up and create it once. Raises Absent."""
        # Read by NVIDIA's libraries as they load: float32 is float32, whatever a version's default is.
        os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
        listed = {name.replace("ExecutionProvider", "").lower(): name for name in ort.get_available_providers()}
        family = self.word.split("_")[0]
        package = PACKAGES.get(family, f"onnxruntime-{family}")
        self.name = listed.get(family, "") or self._plugin(ort, family)
        if not self.name:
            raise contract.Absent(
                f"this onnxruntime has no provider {family!r}, it has {', '.join(sorted(listed))}",
                f"pip install {package}, in an environment of its own: it replaces onnxruntime",
            )
        try:
            made = self.name in self._session(ort, RELU, ort.SessionOptions()).get_providers()
            said = "the session was given to the CPU without a word"
        except Exception as error:  # noqa: BLE001 - whatever it raises, it is not there
            made, said = False, contract.first_line(error).rpartition("&) ")[2]  # without C++ signatures
        if not made:
            raise contract.Absent(
                f"onnxruntime lists {self.name} and cannot create it on this box: {said}",
                f"install the driver and the libraries that {package} {ort.__version__} asks for, or plug the device in",
            )
        self.device += "+cpu" if self.mixed else ""

    def _plugin(self, ort: Any, family: str) -> str:
        """Register the provider's plugin package, where it is one; its name, or nothing."""
        try:
            package = importlib.import_module(f"onnxruntime_{family}")
            name = str(package.get_ep_name())
            if name not in {device.ep_name for device in ort.get_ep_devices()}:
                ort.register_execution_provider_library(name, package.get_library_path())
        except (ImportError, AttributeError):  # no such package, or an onnxruntime from before plugins
            return ""
        self.plugins = [device for device in ort.get_ep_devices() if device.ep_name == name]
        if family == "qnn" and not any(device.device.type.name == "NPU" for device in self.plugins):
            self.device += "-emulated"
            self.options["soc_model"] = "60"  # off the device the compiler has to be told which one to emulate
        return name

    def _session(
        self, ort: Any, model: Any, settings: Any, fallback: bool = True, turned: Optional[Dict[str, str]] = None
    ) -> Any:
        """A session on the provider alone, never retried on the CPU. ``fallback``: the CPU may take nodes of it.

        ``turned``: options of the provider that a knob sets.
        """
        if self.word == "cpu":
            return ort.InferenceSession(model, settings, providers=[CPU])
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if fallback else "1")
        options = {**self.options, **(turned or {})}
        if self.plugins:
            settings.add_provider_for_devices(self.plugins[:1], options)
            return ort.InferenceSession(model, settings)
        return ort.InferenceSession(model, settings, providers=[(self.name, options)], enable_fallback=0)

    def compile(self, part: contract.Part, options: Dict[str, Any]) -> contract.Program:
        import onnxruntime as ort

        def session(fallback: bool, profile: str = "") -> Any:
            settings = ort.SessionOptions()
            settings.log_severity_level = 3
            level = LEVELS[options.get("optimizer", "all")]
            settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
            settings.intra_op_num_threads = options.get("threads", 0)
            if profile:
                settings.enable_profiling, settings.profile_file_prefix = True, profile
            return self._session(ort, part.path, settings, fallback, options.get("provider"))

        try:
            return _Program(self, session(self.mixed), session)
        except Exception as error:
            said, kind = str(error), _kind(str(error))
            if "has been explicitly disabled" in said:
                left = _assigned(session(True)).get(CPU, [])
                said += f" {self.name} leaves {len(left)} nodes: {_counted(left)}"
            raise contract.StageError("load", kind, said) from error


def _kind(message: str) -> str:
    """An operator in a form older than opset 7 has no kernel, because the whole opset has none."""
    old = re.search(r"Could not find an implementation for \w+\((\d)\)", message)
    return "opset" if old and int(old[1]) < 7 else contract.first_kind(message, REFUSALS)


def _counted(operators: List[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in collections.Counter(operators).most_common())


def _assigned(session: Any) -> Dict[str, List[str]]:
    """Operators by provider, as the runtime placed the nodes; empty before 1.24, which does not tell."""
    placed = {}  # type: Dict[str, List[str]]
    for graph in getattr(session, "get_provider_graph_assignment_info", list)():
        placed.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
    return placed


class _Program(contract.Program):
    def __init__(self, backend: Backend, session: Any, again: Callable[..., Any]) -> None:
        """``again(fallback, profile)`` makes the session once more."""
        self.backend, self.session, self.again = backend, session, again
        self.names = [output.name for output in session.get_outputs()]
        self.feeds = {}  # type: Dict[str, np.ndarray]

    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        self.feeds = feeds
        try:
            return dict(zip(self.names, self.session.run(self.names, feeds)))
        except Exception as error:
            raise contract.StageError("run", contract.first_kind(str(error), REFUSALS), str(error)) from error

    def close(self) -> None:
        self.session = self.again = None
        self.feeds = {}

    def placement(self) -> Optional[contract.Placement]:
        backend, providers = self.backend, self.session.get_providers()
        if backend.word == "cpu":
            device = "cpu" if providers == [CPU] else ",".join(providers)
            said = f"session providers {providers}; the CPU provider computes as stored"
            return contract.Placement(device, "fp32", said)
        placed, how = _assigned(self.session), "assignment info"
        if not placed and self.feeds:
            placed, how = self._profiled(), "profile of a session with equal settings"
        if not placed or backend.word not in PINS:
            return None
        said = f"{how}: " + "; ".join(f"{name} {len(found)} nodes" for name, found in sorted(placed.items()))
        said += f"; precision held by {backend.options or 'NVIDIA_TF32_OVERRIDE=0'}"
        others = set(placed) - {backend.name}
        own = backend.name in placed and others <= ({CPU} if backend.mixed else set())
        return contract.Placement(backend.device if own else ",".join(sorted(placed)), backend.pin.precision, said)

    def _profiled(self) -> Dict[str, List[str]]:
        """Operators by provider in a profile of the last run, repeated on a session of its own."""
        placed = {}  # type: Dict[str, List[str]]
        with tempfile.TemporaryDirectory() as folder:
            twin = self.again(self.backend.mixed, os.path.join(folder, "run"))
            twin.run(self.names, self.feeds)
            with open(twin.end_profiling(), encoding="utf-8") as stream:
                events = [event.get("args", {}) for event in json.load(stream) if event.get("cat") == "Node"]
        for event in events:
            if "provider" in event:
                placed.setdefault(event["provider"], []).append(event.get("op_name", ""))
        return placed
