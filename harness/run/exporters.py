"""The plan of the exporter survey: every exporter at every opset, in each attention and layout, as a cell.

``torchscript@2.13.0/cpu/eager/split/fp32/op12``: an exporter stands for the backend, its attention for the exporter. ONNX's
version converter is an exporter too; ``from17`` names the opset that it starts from. `harness.golden.exporters` answers, in
workers of its own.
"""

import itertools
import shlex
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.identity import identity_of
from harness.core.rowfiles import Writer
from harness.core.rows import Row
from harness.run.engine import Engine
from harness.run.launch import cores, shares
from harness.run.ledger import Ledger
from harness.run.plan import Lane, Task
from harness.run.process import Limits
from harness.run.worker import Worker

WORKER = "harness.golden.exporters"
VARIANTS = {
    "torchscript": ("eager", "sdpa"),
    "dynamo": ("eager", "sdpa"),
    "converter": ("from12", "from17", "from23"),
}
"""Exporter -> the attentions (or what it converts: TorchScript's eager graphs of these opsets)."""
PACKAGES = {"torchscript": "torch", "dynamo": "torch", "converter": "onnx"}
"""Exporter -> the package whose version is its own."""
LAYOUTS = ("split", "unified")
MOST = 4
"""Workers at once: each holds a model and what an exporter makes of it."""


def known_opsets() -> range:
    """From the oldest that TorchScript writes to the one after the newest that ONNX has."""
    import onnx

    return range(9, onnx.defs.onnx_opset_version() + 2)


def version(exporter: str) -> str:
    """Of its package, without the local part: ``2.13.0`` of ``2.13.0+cpu``."""
    return metadata.version(PACKAGES[exporter]).partition("+")[0]


def check_names(exporters: Sequence[str]) -> None:
    """Raises UserError for a name that is no exporter's."""
    for exporter in exporters:
        if exporter not in VARIANTS:
            raise UserError(f"exporter {exporter}: choose from {', '.join(VARIANTS)}")


class ExporterTask(Task):
    """One exporter, attention, layout and opset."""

    checks = ("export",)

    def __init__(self, cell: Cell, bundle: str, model: str) -> None:
        """``bundle``: short name of the golden's; ``model``: the directory that is exported."""
        self.cell, self.model = cell, model
        self.identity = identity_of(cell, "device", bundle)

    def command(self, check: str) -> str:
        cell = self.cell
        again = f"conform exporters {shlex.quote(self.model)} --results DIR"
        return f"{again} --exporter {cell.backend} --opset {cell.opset} --layout {cell.layout}"

    def run(self, worker: Worker, checks: Sequence[str], ledger: Ledger) -> None:
        for answer in worker.ask({"graph": self.name}, checks):
            ledger.record(self, answer)


class Survey:
    """Exporters × attentions × layouts × opsets. ``tasks`` that share files are neighbours, and are run by one worker."""

    def __init__(
        self,
        model: str,
        bundle: Bundle,
        exporters: Sequence[str] = tuple(VARIANTS),
        opsets: Sequence[int] | None = None,
        layouts: Sequence[str] = LAYOUTS,
    ) -> None:
        """``bundle``: PyTorch's decode of a few rows, without graphs. Raises UserError for a name that is no exporter's."""
        check_names(exporters)
        self.model, self.bundle = model, bundle
        self.opsets = list(known_opsets() if opsets is None else opsets)
        self.exporters, self.layouts = list(exporters), list(layouts)
        self._groups = [
            [self._task(exporter, variant, layout, opset) for layout in layouts]
            for exporter in exporters
            for variant in VARIANTS[exporter]
            for opset in self.opsets
        ]

    @property
    def tasks(self) -> list[ExporterTask]:
        return list(itertools.chain.from_iterable(self._groups))

    def _task(self, exporter: str, variant: str, layout: str, opset: int) -> ExporterTask:
        cell = Cell(exporter, version(exporter), "cpu", variant, layout, "fp32", opset)
        return ExporterTask(cell, self.bundle.short, self.model)

    def run(self, results: Path, limits: Limits, on_row: Callable[[Row], None]) -> list[Row]:
        """Answer every cell, and write rows to ``results`` as they come; ``on_row`` is called with each.
        Raises OSError where none can be written. Returns the rows."""
        asked = {
            "exporters": self.exporters,
            "opsets": self.opsets,
            "layouts": self.layouts,
            "bundle": self.bundle.short,
        }
        ledger = Ledger(lambda: Writer(str(results), asked), on_row)
        for task in self.tasks:
            ledger.ask(task, task.checks)
        groups = iter(self._groups)  # shared: a worker that is done with a group takes the next one
        module = (WORKER, self.bundle.path, self.model)
        count = min(cores(), MOST, len(self._groups))
        workers = [Worker(self.bundle.path, None, limits, module=module) for _ in range(count)]
        for worker, share in zip(workers, shares(len(workers)), strict=True):
            worker.share = share
        engine = Engine([Lane(worker, itertools.chain.from_iterable(groups)) for worker in workers], ledger)
        engine.start()
        try:
            engine.join()
        finally:
            engine.stop()
            ledger.close()
        return ledger.rows
