"""What a conformance run was asked for, and its workers, started before the host has loaded numpy.

A worker spends its first second on importing its runtime; the host spends that second on its own imports.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.graph import Selection
from harness.core.selectors import ROOT, Selector, parse
from harness.run.process import Limits
from harness.run.worker import Worker

# numpy's OpenBLAS threads spin for some 30 ms when they are made, on the core that another process imports on.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

EMBEDDED = Path(ROOT) / "corpora" / "tiny-marian-en-zh.bundle"


@dataclass
class Options:
    """What a command line asks for, named as there. ``python``: the interpreter that has the runtimes."""

    backends: list[str]
    bundle: Path = EMBEDDED
    selection: Selection = field(default_factory=Selection)
    python: str | None = None
    limits: Limits = field(default_factory=Limits)
    results: Path = Path("results")
    resume: bool = False
    reuse: bool = False
    allow_absent: bool = False
    keep_outputs: bool = False
    shared: bool = False
    """Whether other processes ask for other cells of the same run (pytest-xdist); ``share``: this one's processors."""
    share: frozenset[int] = frozenset()

    def asked(self) -> dict[str, Any]:
        """What makes two runs the same question, in plain JSON."""
        return {
            "backends": self.backends,
            "opset": [self.selection.opsets.start, self.selection.opsets.stop],
            "layout": self.selection.layout,
            "exporter": self.selection.exporter,
            "precision": self.selection.precision,
            "python": self.python,
        }


class Launch:
    """The selected backends' workers; as many as there are cores are starting.

    Raises UserError, and OSError for an interpreter that is not there.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.selectors = selected(options)
        self.workers = [
            Worker(str(options.bundle), selector, options.limits, options.python or _interpreter(selector))
            for selector in self.selectors
        ]
        try:
            each = [options.share] * len(self.workers) if options.shared else shares(len(self.workers))
            for worker, share in zip(self.workers, each, strict=False):
                worker.share = share
                worker.start()
        except OSError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers and everything they started."""
        for worker in self.workers:
            worker.stop()


def selected(options: Options) -> list[Selector]:
    """What ``--backend`` names, each once. Raises UserError."""
    named = [parse(text) for text in options.backends]
    return list(dict.fromkeys(version for selector in named for version in _versions(selector)))


def cores() -> int:
    """Processors that this process may use; as many workers run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(count: int) -> list[frozenset[int]]:
    """The processors of each of ``count`` workers, for as many workers as run at once. An empty share means all processors.

    Runtimes make a thread for every processor that they see. Where two such runtimes share processors, an old ONNX Runtime
    becomes twenty times slower: its threads wait for each other in busy loops.
    """
    every = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    parts = min(count, len(every))
    return [frozenset(every[number::parts] if parts > 1 else ()) for number in range(parts)]


def _versions(selector: Selector) -> list[Selector]:
    if selector.version is None:  # the registry of versions need not be read
        return [selector]
    from harness.run import envs

    return envs.expand(selector)


def _interpreter(selector: Selector) -> str | None:
    if selector.version is None:
        return None
    from harness.run import envs

    return envs.interpreter(selector)
