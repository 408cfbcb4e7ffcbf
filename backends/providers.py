"""ONNX Runtime's execution providers: one is found, held to one precision, and made to prove what it did. No adapter.

Source: onnxruntime.ai/docs/execution-providers. A provider's word is the runtime's own name in lower case without
``ExecutionProvider``. The CPU may do none of its work; a word that ends in ``_mixed`` lets it do what the provider leaves,
and the cell's device says so: ``cuda+cpu``.
"""

import collections
import difflib
import importlib
import json
import os
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from backends import contract

CPU = "CPUExecutionProvider"


class Pin(NamedTuple):
    """A provider's device in a cell's words, the options that hold it to one precision, and knobs of its own."""

    device: str
    precision: str
    options: Mapping[str, str]
    knobs: Mapping[str, contract.Knob] = MappingProxyType({})


def _openvino(device: str, **turned: str) -> Dict[str, str]:
    return {"device_type": device, "load_config": json.dumps({device: {"INFERENCE_PRECISION_HINT": "f32", **turned}})}


OPENVINO_KNOBS = {
    f"{name}={value}": contract.Knob({"provider": _openvino("CPU", **{name: value})})
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


class Provider:
    """The provider that a selector's word names."""

    def __init__(self, word: str) -> None:
        self.mixed = word.endswith("_mixed")
        self.word = word[: -len("_mixed")] if self.mixed else word
        self.family = self.word.split("_")[0]
        pin = PINS.get(self.word, Pin(self.word, "fp32", {}))
        self.device, self.precision, self.options, self.knobs = pin.device, pin.precision, dict(pin.options), pin.knobs
        self.execution = "device"
        self.name, self.plugins = "", []  # type: str, List[Any]

    def find(self, ort: Any) -> None:
        """Look the provider up and create it once. Raises Absent."""
        # Read by NVIDIA's libraries as they load: float32 is float32, whatever a version's default is.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        listed, known = (
            {name.replace("ExecutionProvider", "").lower(): name for name in names}
            for names in (ort.get_available_providers(), ort.get_all_providers())
        )
        package = PACKAGES.get(self.family, f"onnxruntime-{self.family}")
        self.name = listed.get(self.family, "") or self._plugin(ort)
        if not self.name:
            advice = f"pip install {package}, in an environment of its own: it replaces onnxruntime"
            if self.family not in known:
                near = difflib.get_close_matches(self.family, known, 1)
                meant = f"did you mean {near[0]!r}? " if near else ""
                advice = f"{meant}onnxruntime {ort.__version__} knows {', '.join(sorted(known))}"
            raise contract.Absent(
                f"this onnxruntime has no provider {self.family!r}, it has {', '.join(sorted(listed))}", advice
            )
        try:
            made = self.name in self.session(ort, RELU, ort.SessionOptions()).get_providers()
            said = "the session was given to the CPU without a word"
        except Exception as error:  # noqa: BLE001 - whatever it raises, it is not there
            made, said = False, contract.first_line(error).rpartition("&) ")[2]  # without C++ signatures
        if not made:
            raise contract.Absent(
                f"onnxruntime lists {self.name} and cannot create it on this box: {said}",
                f"install the driver and the libraries that {package} {ort.__version__} asks for, or plug the device in",
            )
        self.device += "+cpu" if self.mixed else ""

    def _plugin(self, ort: Any) -> str:
        """Register the provider's plugin package, where it is one; its name, or nothing."""
        try:
            package = importlib.import_module(f"onnxruntime_{self.family}")
            name = str(package.get_ep_name())
            if name not in {device.ep_name for device in ort.get_ep_devices()}:
                ort.register_execution_provider_library(name, package.get_library_path())
        except (ImportError, AttributeError):  # no such package, or an onnxruntime from before plugins
            return ""
        self.plugins = [device for device in ort.get_ep_devices() if device.ep_name == name]
        if self.family == "qnn" and not any(device.device.type.name == "NPU" for device in self.plugins):
            self.device, self.execution = f"simulator-{self.device}", "simulator"
            self.options["soc_model"] = "60"  # off the device the compiler has to be told which one to emulate
        return name

    def session(
        self, ort: Any, model: Any, settings: Any, strict: bool = False, turned: Optional[Mapping[str, str]] = None
    ) -> Any:
        """A session that is never retried on the CPU. ``strict``: nor may the CPU take a node of it.

        ``turned``: options of the provider that a knob sets.
        """
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if strict and not self.mixed else "0")
        options = {**self.options, **(turned or {})}
        if self.plugins:
            settings.add_provider_for_devices(self.plugins[:1], options)
            return ort.InferenceSession(model, settings)
        return ort.InferenceSession(model, settings, providers=[(self.name, options)], enable_fallback=0)

    def left(self, session: Any) -> str:
        """What the provider left to the CPU, in words."""
        nodes = assigned(session).get(CPU, [])
        counts = ", ".join(f"{count} {name}" for name, count in collections.Counter(nodes).most_common())
        return f"{self.name} leaves {len(nodes)} nodes: {counts}"

    def placement(self, session: Any, profiled: Callable[[], Dict[str, List[str]]]) -> Optional[contract.Placement]:
        """Where the nodes are, by the runtime's assignment info or else a profile; None where precision is not held."""
        placed, how = assigned(session), "assignment info"
        if not placed:
            placed, how = profiled(), "profile of a session with equal settings"
        if not placed or self.word not in PINS:
            return None
        said = f"{how}: " + "; ".join(f"{name} {len(nodes)} nodes" for name, nodes in sorted(placed.items()))
        said += f"; precision held by {self.options or 'NVIDIA_TF32_OVERRIDE=0'}"
        own = self.name in placed and set(placed) <= {self.name, *([CPU] if self.mixed else [])}
        return contract.Placement(self.device if own else ",".join(sorted(placed)), self.precision, said)


def assigned(session: Any) -> Dict[str, List[str]]:
    """Operators by provider, as the runtime placed the nodes; empty before 1.24, which does not tell."""
    placed = {}  # type: Dict[str, List[str]]
    for graph in getattr(session, "get_provider_graph_assignment_info", list)():
        placed.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
    return placed


def profile(session: Any) -> Dict[str, List[str]]:
    """Operators by provider in the profile of a session that has run, which ends it."""
    placed = {}  # type: Dict[str, List[str]]
    with open(session.end_profiling(), encoding="utf-8") as stream:
        for event in json.load(stream):
            given = event.get("args", {})
            if event.get("cat") == "Node" and "provider" in given:
                placed.setdefault(given["provider"], []).append(given.get("op_name", ""))
    return placed
