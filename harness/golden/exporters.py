"""Exporters as rows: every way to an ONNX file tried at every opset, and what it wrote held against PyTorch.

One cell an exporter × attention × layout × opset, ``torchscript@2.13.0/cpu/eager/split/fp32/op12``. ONNX's version
converter is an exporter too; its field names the opset that it starts from (``from17``). A cell passes when the files are
of the opset asked for, ONNX's checker takes them, and the reference evaluator decodes with them like PyTorch.

:func:`survey` is the host's side. ``python -m harness.golden.exporters BUNDLE MODEL`` answers it from a process of its own,
as ``harness.replay.worker`` does for runtimes: exporters are native code as well, and they die and hang as well.
"""

import json
import os
import queue
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import onnx
import onnx.checker
import onnx.version_converter
import torch
from tqdm import tqdm

from backends.contract import Part, Port, first_kind, first_line
from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.graph import Graph
from harness.core.rowfiles import Writer
from harness.core.rows import Row, to_json
from harness.core.selectors import ROOT, parse
from harness.golden import corpus, witness
from harness.golden.export import opsets, settle, write
from harness.golden.marian import Marian
from harness.golden.parts import DYNAMIC, Traceable, parts
from harness.golden.record import record
from harness.run.process import Limits, Worker

CORPUS = Path(ROOT) / "corpora" / "corpus.tsv"
TORCH = torch.__version__.split("+")[0]
ATTENTIONS = ("eager", "sdpa")
VARIANTS = {
    "torchscript": (TORCH, ATTENTIONS),
    "dynamo": (TORCH, ATTENTIONS),
    "converter": (onnx.__version__, ("from12", "from17", "from23")),
}
"""Exporter -> its version, and the attentions (or what it converts: TorchScript's eager graphs of these opsets)."""
OPSETS = range(9, onnx.defs.onnx_opset_version() + 2)
"""From the oldest that TorchScript writes to the one after the newest that ONNX has."""
ROWS, STEPS = 4, 8
"""How much is decoded with each file: a wrong export is grossly wrong from its first steps on."""
REFUSALS = [
    ("unsupported onnx_opset_version", "opset"),
    ("invalid version", "opset"),
    ("support for this operator", "operator"),
    ("not implemented for opset", "operator"),
    ("no adapter", "operator"),
    ("no previous version", "operator"),
]
ASSERTION = re.compile(r".*Assertion `.*` failed: ")
"""Where in the C++ source it was said stands before what was said."""


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
        bundle = _golden(model, corpus_file, Path(scratch), progress)
        again = f"conform exporters {shlex.quote(str(model))} --results DIR"
        asked = {"exporters": list(exporters), "opsets": list(wanted), "layouts": list(layouts), "bundle": bundle.short}
        writer = Writer(str(results), asked)
        rows = []
        try:
            with tqdm(total=sum(map(len, groups)), desc=f"{'exporters':<12}", disable=not progress) as bar:

                def keep(cell: Cell, row: Row) -> None:
                    writer.write(_named(row, cell, bundle, again))
                    rows.append(row)
                    bar.update()

                _ask(groups, bundle.path, str(model), Limits(silence), keep)
        finally:
            writer.close(len(rows) == sum(map(len, groups)))
    return rows


def _golden(
    model: str | os.PathLike[str], corpus_file: str | os.PathLike[str], scratch: Path, progress: bool
) -> Bundle:
    """PyTorch's decode of a few rows of mixed lengths, so that some are padded, as a bundle without graphs."""
    few = scratch / "few.tsv"
    ranked = sorted(corpus.read(corpus_file), key=lambda row: len(row.source))
    kept = [ranked[len(ranked) * place // (ROWS + 1)] for place in range(1, min(ROWS, len(ranked)) + 1)]
    lines = ["\t".join(corpus.COLUMNS), *("\t".join(vars(row).values()) for row in kept)]
    few.write_text("\n".join(lines) + "\n", encoding="utf-8")
    place = scratch / "golden.bundle"
    record(model, few, place, exporters=(), max_steps=STEPS, traced_steps=ROWS * STEPS, progress=progress)
    return Bundle(str(place))


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
        return [self.python, "-m", __name__, self.bundle, self.model]


def _ask(
    groups: Sequence[Sequence[Cell]], bundle: str, model: str, limits: Limits, keep: Callable[[Cell, Row], None]
) -> None:
    """Have every cell answered, a group by one worker; ``keep`` is called in this thread, as answers come."""
    workers = [_Worker(bundle, model, limits) for _ in range(min(os.cpu_count() or 1, 4, len(groups)))]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def answer(group: Sequence[Cell]) -> list[tuple[Cell, Row]]:
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


class _Refused(Exception):
    """What was tried ended before the comparison. Carries the row that says how."""

    def __init__(self, status: str, stage: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.row = Row("export", status, stage, kind, message=message)


class _Workshop:
    """The worker's side: a model in each attention, and the files already made. ``beat`` is called as work goes on."""

    def __init__(self, bundle: Bundle, model: str, folder: Path, beat: Callable[[], None]) -> None:
        self.bundle, self.folder, self.beat = bundle, folder, beat
        marian = Marian(model)
        self.model = cache(lambda attention: marian.load("fp32", attention))
        self.parts = cache(self._parts)
        self.made = cache(self._made)

    def answer(self, cell: Cell) -> Row:
        """The row of one cell; which cell it is, is the host's to fill in."""
        began = time.perf_counter()
        try:
            row = self._compare(cell, [self._part(cell, name) for name in self.parts(cell.exporter, cell.layout)])
        except _Refused as refused:
            row = refused.row
        row.seconds = round(time.perf_counter() - began, 3)
        return row

    def _parts(self, variant: str, layout: str) -> dict[str, Traceable]:
        attention = variant if variant in ATTENTIONS else "eager"
        return {part.name: part for part in parts(self.model(attention), layout)}

    def _part(self, cell: Cell, name: str) -> Part:
        layout = "unified" if name == "step" else cell.layout  # the step is one and the same in both
        return self.made(cell.backend, cell.exporter, layout, name, cell.opset)

    def _made(self, exporter: str, variant: str, layout: str, name: str, opset: int) -> Part:
        """One part written, checked and settled. Raises _Refused."""
        self.beat()
        place = self.folder / f"{exporter}-{variant}-{layout}-op{opset}-{name}.onnx"
        part = self.parts(variant, layout)[name]
        try:
            if exporter == "converter":
                source = self.made("torchscript", "eager", layout, name, int(variant.removeprefix("from")))
                onnx.save(onnx.version_converter.convert_version(onnx.load(source.path), opset), str(place))
            else:
                write(part, exporter, opset, place)
        except _Refused:
            raise
        except Exception as error:
            message = ASSERTION.sub("", first_line(error))
            kind = first_kind(message, REFUSALS)
            raise _Refused(verdict.of_refusal("build", kind), "build", kind, f"{name}: {message}"[:300]) from error
        wrote = opsets(place)
        if wrote != {"ai.onnx": opset}:
            others = "".join(f", {domain} {version}" for domain, version in wrote.items() if domain != "ai.onnx")
            raise _Refused("FAIL", "build", "opset", f"asked for {opset}, wrote {wrote.get('ai.onnx')}{others}")
        try:
            entry, _ = settle(part, place)
            onnx.checker.check_model(str(place))
        except (UserError, onnx.checker.ValidationError) as error:
            kind = "shape" if isinstance(error, UserError) else "invalid"
            raise _Refused("FAIL", "parse", kind, f"{name}: {first_line(error)}") from error
        ports = [
            tuple(Port(port, dtype, tuple(shape), role) for port, dtype, shape, role in entry[side])
            for side in ("inputs", "outputs")
        ]
        return Part(name, str(place), *ports)

    def _compare(self, cell: Cell, made: Sequence[Part]) -> Row:
        """Decode with the reference evaluator; witness's limit says what is not PyTorch's noise any more."""
        graph = Graph(cell.backend, cell.layout, cell.precision, cell.opset, 0, tuple(made))
        self.beat()
        row = Row("export", "PASS", metric="gap over largest floor", bound=witness.GROSS)
        try:
            found = witness.collect(self.bundle, graph)
            row.compared = sum(array.size for array in found.values())
            row.detail = {"ratios": witness.judge(self.bundle, graph, found)}
            row.value = max(row.detail["ratios"].values())
        except UserError as error:
            row.status, row.message = "FAIL", str(error)
        return row


def main(arguments: Sequence[str]) -> int:
    """Answer requests, a cell a line of standard input; see ``harness.replay.worker``."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # exporters print hundreds of lines

    def say(**said: object) -> None:
        wire.write(json.dumps(said) + "\n")
        wire.flush()

    torch.set_num_threads(1)
    path, model = arguments
    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))  # goes with the host's own, however this process ends
    workshop = _Workshop(Bundle(path, verify=False), model, folder, lambda: say(beat=1))
    say(ready=1)
    for line in sys.stdin:
        cell = json.loads(line)["graph"]
        say(row=json.loads(to_json(workshop.answer(Cell.parse(cell)))))
        say(done=cell)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
