"""The contract between the harness and a runtime: what an adapter gets, gives and raises.

An adapter is one file in this folder whose stem is its ``--backend`` name and which defines a class
``Backend(contract.Backend)``; any other class is selected as ``module:Class``. All of it runs in a worker process
on Python 3.8 or later with numpy and one runtime, and imports nothing else.
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
    """What is here: runtime version, device in the words of a cell id (``cpu``), precision the device computes in.

    ``execution``: ``device``; ``simulator`` of one, whose device is called ``simulator-NAME``; ``fake``, a test's stand-in.
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
    """Where the work was really done, as the runtime itself reports it after loading."""

    device: str
    precision: str
    evidence: str


@dataclass(frozen=True)
class Knob:
    """A setting that may change results: the ``options`` that turn it, and whose fault it is when that clears a failure,
    ``runtime`` or ``optimizer``."""

    options: Mapping[str, Any]
    culprit: str = "runtime"


@dataclass(frozen=True)
class Capabilities:
    """What an adapter can take. The harness derives UNSUPPORTED from it before the runtime is asked.

    An empty ``opsets`` means that the runtime itself is asked, and its refusal is the answer. ``knobs`` are
    the settings, by name, that are tried on a cell that failed.
    ``deepest_stage``, one of STAGES, is how far this box can take a part; short of ``run`` see `staged`.
    """

    opsets: Tuple[int, ...] = ()
    dtypes: FrozenSet[str] = frozenset({"float32", "int64"})
    dynamic_dims: bool = True
    zero_length_dims: bool = True
    layouts: FrozenSet[str] = frozenset(LAYOUTS)
    deepest_stage: str = "run"
    knobs: Mapping[str, Knob] = field(default_factory=dict)


class Absent(Exception):
    """The package or the hardware is not on this box. ``remedy``: the line that installs it, or what to plug in."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class Broken(Exception):
    """The package is here and cannot be used as it is installed: a fault of the environment, not an absence."""


class StageError(Exception):
    """The runtime refused. ``stage`` is one of STAGES, ``kind`` one of KINDS, ``message`` the runtime's own words."""

    def __init__(self, stage: str, kind: str, message: str) -> None:
        if stage not in STAGES or kind not in KINDS:
            raise ValueError(f"unknown stage {stage!r} or kind {kind!r}; stages {STAGES}, kinds {KINDS}")
        super().__init__(f"{stage}/{kind}: {message}")
        self.stage, self.kind, self.message = stage, kind, message


class Program(abc.ABC):
    """One compiled part, ready to run; it keeps no state of the decode between two runs. The harness closes it."""

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abc.abstractmethod
    def run(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """Run once: every declared input by name, in; every output by name, out, each owning its memory.

        Raises StageError("run", ...) when the runtime refuses.
        """

    def placement(self) -> Optional[Placement]:
        """What did the work; None when the runtime gives no proof, which the harness calls UNVERIFIED."""
        return None

    def close(self) -> None:  # noqa: B027 - most runtimes free a program with its last reference
        """Free the runtime's resources."""


class Backend(abc.ABC):
    """One runtime on one device of this box."""

    capabilities: Capabilities = Capabilities()
    missing: Optional[Absent] = None  # what a backend that is here lacks to go beyond its deepest stage
    modes: Optional[Tuple[str, ...]] = ()  # words that may follow the selector's colon; None: the runtime is asked

    def __init__(self, provider: Optional[str] = None) -> None:
        """``provider`` is the part of the selector after the colon (``ort:PROVIDER``), or None."""
        self.provider = provider
        self.stages: List[Dict[str, Any]] = []  # what compiling went through, for the rows: see `staged`

    @abc.abstractmethod
    def probe(self) -> Probe:
        """Say what is here. Raises Absent when it is not."""

    @abc.abstractmethod
    def compile(self, part: Part, options: Dict[str, Any]) -> Program:
        """Make a part ready to run. ``options``: ``threads`` (int, 0: the runtime's choice) and knob settings.

        Raises StageError with the stage that refused. A runtime that builds derives from `staged.Staged` instead.
        """


def not_imported(package: str, error: ImportError) -> Exception:
    """What a failed import means: Broken when a wrong numpy is the reason, else Absent. The caller raises it."""
    if "numpy" in str(error).lower() and "No module named" not in str(error):
        return Broken(f"{package} is installed and was built for another numpy ({error}); pip install 'numpy<2'")
    return Absent(f"{package} cannot be imported: {error}", f"pip install '{package}'")


def first_kind(message: str, patterns: List[Tuple[str, str]]) -> str:
    """The kind of the first (fragment, kind) whose fragment stands in ``message``, else ``other``."""
    return next((kind for fragment, kind in patterns if fragment.lower() in message.lower()), "other")


def refusal(stage: str, said: List[str], patterns: List[Tuple[str, str]]) -> StageError:
    """The StageError for what a runtime said, each thing once; its kind by ``first_kind``. The caller raises it."""
    words = "; ".join(dict.fromkeys(said)) or "refused without a word"
    return StageError(stage, first_kind(words, patterns), words)


def first_line(error: BaseException) -> str:
    """The first line of an error's words, or its class where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def version_of(module: Any, version: str = "") -> str:
    """A runtime's version. That of a test's fake ends in ``-fake``, for those who read it; `execution_of` is what counts."""
    return (version or str(module.__version__)) + ("-fake" if execution_of(module) == "fake" else "")


def execution_of(module: Any) -> str:
    """What ``Probe.execution`` is where that vendor library did the work on its device."""
    return "fake" if getattr(module, "__fake__", False) else "device"
