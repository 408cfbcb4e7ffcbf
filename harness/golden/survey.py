"""The host's side of the exporter survey: every exporter at every opset as a row each; the worker is ``exporters``."""

import os
import queue
import shlex
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.rowfiles import Writer
from harness.core.rows import Answer, Row
from harness.core.selectors import ROOT, parse
from harness.golden import exporters as export_worker
from harness.golden.exporters import OPSETS, VARIANTS
from harness.golden.parts import DYNAMIC
from harness.run.process import Limits, Worker

CORPUS = Path(ROOT) / "corpora" / "corpus.tsv"


def survey(
    model: str | os.PathLike[str],
    results: str | os.PathLike[str],
    *,
    corpus_file: str | os.PathLike[str] = CORPUS,
    exporters: Sequence[str] = tuple(VARIANTS),
    wanted: Sequence[int] = OPSETS,
    layouts: Sequence[str] = DYNAMIC,
    silence: float = 120,
    progress: bool = True,
) -> list[Row]:
    """Try each exporter at each of the ``wanted`` opsets in each layout, and write a row a cell to ``results`` as they come.

    ``silence``: seconds that one part may take. Raises UserError on a bad wish, model or corpus, and OSError where rows
    cannot be written.
    """
    unknown = [exporter for exporter in exporters if exporter not in VARIANTS]
    if unknown:
        raise UserError(f"exporter {unknown[0]}: choose of {', '.join(VARIANTS)}")
    groups = [
        [Cell(exporter, version, "cpu", variant, layout, "fp32", opset) for layout in layouts]
        for exporter in exporters
        for version, variants in [VARIANTS[exporter]]
        for variant in variants
        for opset in wanted
    ]
    with tempfile.TemporaryDirectory(prefix="conform-exporters-") as scratch:
        bundle = export_worker.golden(model, corpus_file, Path(scratch), progress)
        again = f"conform exporters {shlex.quote(str(model))} --results DIR"
        asked = {"exporters": list(exporters), "opsets": list(wanted), "layouts": list(layouts), "bundle": bundle.short}
        writer = Writer(str(results), asked)
        rows = []
        try:
            with tqdm(total=sum(map(len, groups)), desc=f"{'exporters':<12}", disable=not progress) as bar:

                def keep(cell: Cell, answer: Answer) -> None:
                    row = Row(**vars(answer))
                    writer.write(_named(row, cell, bundle, again))
                    rows.append(row)
                    bar.update()

                _ask(groups, bundle.path, str(model), Limits(silence), keep)
        finally:
            writer.close(len(rows) == sum(map(len, groups)))
    return rows


def _named(row: Row, cell: Cell, bundle: Bundle, again: str) -> Row:
    for field, value in cell._asdict().items():
        setattr(row, field, value)
    row.runtime, row.bundle, row.cell = cell.backend, bundle.short, str(cell)
    row.command = f"{again} --exporter {cell.backend} --opset {cell.opset} --layout {cell.layout}"
    return row


class _Worker(Worker):
    """Answers cells of exporters instead of a runtime's. ``model``: the directory it exports."""

    def __init__(self, bundle: str, model: str, limits: Limits) -> None:
        super().__init__(bundle, parse("reference"), limits)
        self.model = model

    def _command(self) -> list[str]:
        return [self.python, "-m", export_worker.__name__, self.bundle, self.model]


def _ask(
    groups: Sequence[Sequence[Cell]], bundle: str, model: str, limits: Limits, keep: Callable[[Cell, Answer], None]
) -> None:
    """Have every cell answered, a group by one worker; ``keep`` is called in this thread, as answers come."""
    workers = [_Worker(bundle, model, limits) for _ in range(min(os.cpu_count() or 1, 4, len(groups)))]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def answer(group: Sequence[Cell]) -> list[tuple[Cell, Answer]]:
        worker = idle.get()
        try:
            return [(cell, row) for cell in group for row in worker.replay(str(cell), ["export"], "", {})]
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(workers))
    try:
        for future in as_completed([pool.submit(answer, group) for group in groups]):
            for cell, row in future.result():
                keep(cell, row)
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.stop()
