"""The contract between the harness and a runtime: what an adapter receives, returns and raises.

An adapter is one file in this folder whose stem is its ``--backend`` name and which defines a class
``Backend(contract.Backend)``; any other class is selected as ``module:Class``. Adapters run in a worker process
on Python 3.8 or later with numpy and one runtime, and import nothing else.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Mapping, Optional, Tuple, Union

if TYPE_CHECKING:
    import numpy as np

Dim = Union[int, str]  # a fixed size, or the name of a dynamic one: batch, source (encoder length), past, total
LAYOUTS = ("split", "unified", "static", "static-scatter")
STAGES = ("parse", "build", "load", "run")
KINDS = ("opset", "ir", "operator", "shape", "dtype", "other")


@dataclass(frozen=True)
class Port:
    """One declared input or output of a part.

    ``dtype`` is numpy's name (``int64``, ``float32``); ``shape`` has one entry a dimension. ``role`` says what the port is
    for, whatever it is called: ``source.ids``, ``self.0.key``, ``logits`` (``harness.core.roles`` lists them).
    """

    name: str
    dtype: str
    shape: Tuple[Dim, ...]
    role: str = ""


@dataclass(frozen=True)
class Part:
    """One ONNX file of a graph: ``encoder``, ``first`` (split only), ``step``; ``step-48``: static, for 48 source ids."""

    name: str
    path: str
    inputs: Tuple[Port, ...]
    outputs: Tuple[Port, ...]


@dataclass(frozen=True)
class Probe:
    """What is on this box: the runtime's version, the device as a cell id names it (``cpu``), the precision it computes in.

    ``execution``: ``device``, ``simulator`` (its device is named ``simulator-NAME``) or ``fake`` (a test's stand-in for
    a vendor library). Raises ValueError when device and execution contradict each other.
    """

    version: str
    device: str
    precision: str
    execution: str = "device"

    def __post_init__(self) -> None:
        if self.device.startswith("simulator-") != (self.execution == "simulator"):
            raise ValueError(f"device {self.device!r} and execution {self.execution!r} contradict each other")


@dataclass(frozen=True)
class Placement:
    """The device and the precision that did the work, as the runtime itself reports them after loading."""

    device: str
    precision: str
    evidence: str


@dataclass(frozen=True)
class Knob:
    """A setting that may change results.

    ``options`` are passed to ``compile`` to turn it. ``culprit``, ``runtime`` or ``optimizer``, is blamed for a failure that
    goes away when it is turned.
    """

    options: Mapping[str, Any]
    culprit: str = "runtime"


@dataclass(frozen=True)
class Capabilities:
    """What an adapter supports. A graph that needs more is UNSUPPORTED without asking the runtime.

    Empty ``opsets``: the runtime is asked, and its refusal is the answer. ``knobs``: the settings, by name, that are
    tried on a cell that failed. ``deepest_stage``, one of STAGES: the last stage that this box can do; for an adapter that
    stops before ``run`` see `staged`.
    """

    opsets: Tuple[int, ...] = ()
    dtypes: FrozenSet[str] = frozenset({"float32", "int64"})
    dynamic_dims: bool = True
    zero_length_dims: bool = True
    layouts: FrozenSet[str] = frozenset(LAYOUTS)
    deepest_stage: str = "run"
    knobs: Mapping[str, Knob] = field(default_factory=dict)


class Absent(Exception):
    """The package or the hardware is not on this box. ``remedy``: the command that installs it, or what to plug in."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class Broken(Exception):
    """The package is installed and cannot be used: a fault of the environment, not an absence."""


class StageError(Exception):
    """The runtime refused. ``stage`` is one of STAGES, ``kind`` one of KINDS, ``message`` the runtime's own message."""

    def __init__(self, stage: str, kind: str, message: str) -> None:
        if stage not in STAGES or kind not in KINDS:
            raise ValueError(f"unknown stage {stage!r} or kind {kind!r}; stages {STAGES}, kinds {KINDS}")
        super().__init__(f"{stage}/{kind}: {message}")
        self.stage, self.kind, self.message = stage, kind, message


class Program(abc.ABC):
    """One compiled part, ready to run. It keeps no state of the decode between two runs.

    A context manager: leaving it closes the program. An error of the block is raised rather than one of ``close``.
    """

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    @abc.abstractmethod
    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """Run once. ``feeds`` has every declared input by name; the result has every declared output by name, each an array
        that owns its memory. Raises StageError("run", ...) when the runtime refuses.
        """

    def placement(self) -> Optional[Placement]:
        """What did the work, or None when the runtime gives no proof: the cell is then UNVERIFIED."""
        return None

    def close(self) -> None:  # noqa: B027 - most runtimes free a program with its last reference
        """Free the runtime's resources. A second call does nothing."""


class Backend(abc.ABC):
    """One runtime on one device of this box."""

    capabilities: Capabilities = Capabilities()
    missing: Optional[Absent] = None  # what a backend needs to go beyond its deepest stage
    modes: Optional[Tuple[str, ...]] = ()  # the providers a selector may name; None: the runtime is asked

    def __init__(self, provider: Optional[str] = None) -> None:
        """``provider`` is the part of the selector after the colon (``ort:PROVIDER``), or None."""
        self.provider = provider
        self.stages: List[Dict[str, Any]] = []  # a record for each stage of compiling, for the rows: see `staged`

    @abc.abstractmethod
    def probe(self) -> Probe:
        """What is on this box. Raises Absent when the package or the device is not, Broken when it cannot be used."""

    @abc.abstractmethod
    def compile(self, part: Part, options: Dict[str, Any]) -> Program:
        """Make a part ready to run. ``options``: ``threads`` (int, 0: the runtime's choice) and those of a knob.

        Raises StageError with the stage that refused. Adapters of runtimes that build derive from `staged.Staged`.
        """


def not_imported(package: str, error: ImportError) -> Exception:
    """The error that a failed import means: Broken when numpy's version is the reason, else Absent. The caller raises it."""
    if "numpy" in str(error).lower() and "No module named" not in str(error):
        return Broken(f"{package} is installed and was built for another numpy ({error}); pip install 'numpy<2'")
    return Absent(f"{package} cannot be imported: {error}", f"pip install '{package}'")


def first_kind(message: str, patterns: List[Tuple[str, str]]) -> str:
    """The kind of the first (fragment, kind) whose fragment is in ``message``, whatever its case; else ``other``."""
    return next((kind for fragment, kind in patterns if fragment.lower() in message.lower()), "other")


def refusal(stage: str, messages: List[str], patterns: List[Tuple[str, str]]) -> StageError:
    """The StageError for a runtime's messages, without duplicates; its kind by ``first_kind``. The caller raises it."""
    message = "; ".join(dict.fromkeys(messages)) or "refused without a message"
    return StageError(stage, first_kind(message, patterns), message)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def version_of(module: Any, version: str = "") -> str:
    """A vendor library's version, with ``-fake`` at its end for a test's fake (code asks `execution_of` instead)."""
    return (version or str(module.__version__)) + ("-fake" if execution_of(module) == "fake" else "")


def execution_of(module: Any) -> str:
    """``Probe.execution`` of an adapter of that vendor library: ``device``, or ``fake`` for a test's fake."""
    return "fake" if getattr(module, "__fake__", False) else "device"
