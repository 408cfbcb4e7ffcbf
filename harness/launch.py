"""What a conformance run was asked for, and its workers, started before the host has loaded numpy.

A worker spends its first second on importing its runtime; the host spends that second on its own imports.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.replay.host import Limits, Worker
from harness.replay.select import ROOT, Selector, parse

# numpy's OpenBLAS threads spin for some 30 ms when they are made, on the core that another process imports on.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

EMBEDDED = Path(ROOT) / "corpora" / "tiny-marian-en-zh.bundle"


@dataclass
class Options:
    """The wishes of a command line, named as there."""

    backends: list[str]
    bundle: Path = EMBEDDED
    opset: range = range(1, 99)
    layout: str | None = None
    precision: str | None = None
    python: str | None = None
    limits: Limits = field(default_factory=Limits)
    results: Path = Path("results")
    resume: bool = False
    allow_absent: bool = False
    exporter: str | None = None

    def asked(self) -> dict[str, Any]:
        """What makes two runs the same question, in plain JSON."""
        return {
            "backends": self.backends,
            "opset": [self.opset.start, self.opset.stop],
            "layout": self.layout,
            "exporter": self.exporter,
            "precision": self.precision,
            "python": self.python,
        }


class Launch:
    """The selected backends' workers, starting. Raises UnknownBackend, and OSError for an interpreter that is not there."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.selectors: list[Selector] = [parse(text) for text in dict.fromkeys(options.backends)]
        self.workers = [
            Worker(str(options.bundle), selector, options.limits, options.python) for selector in self.selectors
        ]
        try:
            for worker in self.workers:
                worker.start()
        except OSError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the workers and everything they started."""
        for worker in self.workers:
            worker.stop()
