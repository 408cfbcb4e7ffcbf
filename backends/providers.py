"""ONNX Runtime's execution providers: finds one, fixes its precision, and proves what it did. No adapter: `ort` uses it.

Source: onnxruntime.ai/docs/execution-providers. A provider is named like the runtime's own, in lower case and without
``ExecutionProvider``. The CPU may do none of its work. With ``_mixed`` after the name it may do what the provider does not
support, and the cell's device says so: ``cuda+cpu``.
"""

import collections
import difflib
import importlib
import json
import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from backends import contract, provider_pins

CPU = "CPUExecutionProvider"


# A model of one Relu. Whether a provider that is listed can be created is only known from a session.
RELU = (
    b'\x08\x07:3\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)


class Provider:
    """The provider that a selector names. ``find`` completes it: ``name``, ``device``, ``execution``."""

    def __init__(self, selected: str) -> None:
        self.mixed = selected.endswith("_mixed")
        self.word = selected[: -len("_mixed")] if self.mixed else selected
        self.family = self.word.split("_")[0]
        pin = provider_pins.PINS.get(self.word, provider_pins.Pin(self.word, "fp32", {}))
        self.device, self.precision, self.options, self.knobs = pin.device, pin.precision, dict(pin.options), pin.knobs
        self.execution = "device"
        self.name = ""
        self.plugins: List[Any] = []

    def find(self, ort: Any) -> None:
        """Look the provider up and create a session on it once. Raises Absent."""
        # NVIDIA's libraries read it when they are loaded: without it float32 may be computed as TF32.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        listed = _by_family(ort.get_available_providers())
        self.name = listed.get(self.family, "") or self._plugin(ort)
        if not self.name:
            reason = f"this onnxruntime has no provider {self.family!r}, it has {', '.join(sorted(listed))}"
            raise contract.Absent(reason, self._advice(ort))
        problem = self._problem(ort)
        if problem:
            needs = f"{self._package()} {ort.__version__} needs"
            raise contract.Absent(
                f"onnxruntime lists {self.name} and cannot create it on this box: {problem}",
                f"install the driver and the libraries that {needs}, or plug the device in",
            )
        if self.mixed:
            self.device += "+cpu"

    def _package(self) -> str:
        return provider_pins.PACKAGES.get(self.family, f"onnxruntime-{self.family}")

    def _advice(self, ort: Any) -> str:
        """What to do about a provider that is not listed."""
        known = _by_family(ort.get_all_providers())
        if self.family in known:
            return f"pip install {self._package()}, in an environment of its own: it replaces onnxruntime"
        similar = difflib.get_close_matches(self.family, known, 1)
        suggestion = f"did you mean {similar[0]!r}? " if similar else ""
        return f"{suggestion}onnxruntime {ort.__version__} knows {', '.join(sorted(known))}"

    def _problem(self, ort: Any) -> str:
        """Why no session can be created on the provider, or nothing."""
        try:
            session = self.session(ort, RELU, ort.SessionOptions())
        except Exception as error:  # noqa: BLE001 - whatever it raises, the provider cannot be used
            return contract.first_line(error).rpartition("&) ")[2]  # without C++ signatures
        return "" if self.name in session.get_providers() else "the session silently fell back to the CPU"

    def _plugin(self, ort: Any) -> str:
        """Register the provider's plugin package, if there is one. Returns the provider's name, or nothing."""
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
            self.options["soc_model"] = "60"  # without a device the compiler must be told which one to emulate
        return name

    def session(
        self, ort: Any, model: Any, settings: Any, strict: bool = False, knob: Optional[Mapping[str, str]] = None
    ) -> Any:
        """A session that is never retried on the CPU.

        ``strict``: the CPU may take no node either, unless the provider is a mixed one. ``knob``: further provider options.
        """
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if strict and not self.mixed else "0")
        options = {**self.options, **(knob or {})}
        if self.plugins:
            settings.add_provider_for_devices(self.plugins[:1], options)
            return ort.InferenceSession(model, settings)
        return ort.InferenceSession(model, settings, providers=[(self.name, options)], enable_fallback=0)

    def leftovers(self, session: Any) -> str:
        """A sentence that counts the operators which the provider left to the CPU."""
        nodes = assigned(session).get(CPU, [])
        counts = ", ".join(f"{count} {name}" for name, count in collections.Counter(nodes).most_common())
        return f"{self.name} leaves {len(nodes)} nodes: {counts}"

    def placement(self, session: Any, profiled: Callable[[], Dict[str, List[str]]]) -> Optional[contract.Placement]:
        """Where the nodes are, by the assignment info or else by ``profiled``; None where the precision is not fixed."""
        placed, source = assigned(session), "assignment info"
        if not placed:
            placed, source = profiled(), "profile of a session with equal settings"
        if not placed or self.word not in provider_pins.PINS:
            return None
        counts = "; ".join(f"{name} {len(nodes)} nodes" for name, nodes in sorted(placed.items()))
        evidence = f"{source}: {counts}; precision fixed by {self.options or 'NVIDIA_TF32_OVERRIDE=0'}"
        allowed = {self.name, CPU} if self.mixed else {self.name}
        exclusive = self.name in placed and set(placed) <= allowed
        return contract.Placement(self.device if exclusive else ",".join(sorted(placed)), self.precision, evidence)


def _by_family(names: Iterable[str]) -> Dict[str, str]:
    """The runtime's names of providers by the names that a selector has."""
    return {name.replace("ExecutionProvider", "").lower(): name for name in names}


def assigned(session: Any) -> Dict[str, List[str]]:
    """Operator types by provider, as the runtime placed the nodes; empty before 1.24, which does not report it."""
    placed: Dict[str, List[str]] = {}
    for graph in getattr(session, "get_provider_graph_assignment_info", list)():
        placed.setdefault(graph.ep_name, []).extend(node.op_type for node in graph.get_nodes())
    return placed


def profile(session: Any) -> Dict[str, List[str]]:
    """Operator types by provider, from the profile of a session that has run; ends the profile."""
    placed: Dict[str, List[str]] = {}
    with open(session.end_profiling(), encoding="utf-8") as stream:
        for event in json.load(stream):
            arguments = event.get("args", {})
            if event.get("cat") == "Node" and "provider" in arguments:
                placed.setdefault(arguments["provider"], []).append(arguments.get("op_name", ""))
    return placed
