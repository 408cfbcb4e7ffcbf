"""The worker of the exporter survey: ``python -m harness.golden.exporters BUNDLE MODEL`` answers cells of exporters.

Requests and answers are those of ``harness.replay.worker``. A request's graph is a cell such as
``torchscript@2.13.0/cpu/eager/split/fp32/op12``: exporter, attention, layout and opset. ONNX's version converter is an
exporter too; ``from17`` in the attention's place names the opset that it starts from. A cell passes when the files are of
the opset asked for, ONNX's checker takes them, and the reference evaluator decodes with them like PyTorch. Exporters are
native code, which may crash or hang, so they run in a process of their own.
"""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import onnx.checker
import onnx.version_converter
import torch

from backends.contract import Part, Port, first_kind, first_line
from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.cell import Cell
from harness.core.errors import UserError
from harness.core.graph import Graph
from harness.core.rows import Answer, to_json
from harness.golden import corpus, witness
from harness.golden.export import opsets, settle, write
from harness.golden.marian import Marian
from harness.golden.parts import Traceable, parts
from harness.golden.record import record

ATTENTIONS = ("eager", "sdpa")
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
"""Where in the C++ source a message comes from; it stands before the message."""
LONGEST_MESSAGE = 300


def golden(
    model: str | os.PathLike[str], corpus_file: str | os.PathLike[str], folder: Path, progress: bool = True
) -> Bundle:
    """Record a bundle without graphs in ``folder``: PyTorch's decode of ROWS rows of mixed lengths, so that some are padded.

    Raises UserError on a bad model or corpus.
    """
    ranked = sorted(corpus.read(corpus_file), key=lambda row: len(row.source))
    rows = [ranked[len(ranked) * number // (ROWS + 1)] for number in range(1, min(ROWS, len(ranked)) + 1)]
    lines = ["\t".join(corpus.COLUMNS), *("\t".join(vars(row).values()) for row in rows)]
    few = folder / "few.tsv"
    few.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = folder / "golden.bundle"
    record(model, few, out, exporters=(), max_steps=STEPS, traced_steps=ROWS * STEPS, progress=progress)
    return Bundle(str(out))


class Refused(Exception):
    """An export ended before the comparison. ``answer`` says how."""

    def __init__(self, status: str, stage: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer("export", status, stage, kind, message=message[:LONGEST_MESSAGE])


class Files:
    """The exported files, each written once. ``beat`` is called before each."""

    def __init__(self, model: str, folder: Path, beat: Callable[[], None]) -> None:
        marian = Marian(model)
        self.folder, self.beat = folder, beat
        self.model = cache(lambda attention: marian.load("fp32", attention))
        self.traceable = cache(self._traceable)
        self._part = cache(self._exported)

    def parts(self, cell: Cell) -> list[Part]:
        """The parts of a cell. Raises Refused."""
        return [
            # The step is the same in both layouts.
            self._part(cell.backend, cell.exporter, "unified" if name == "step" else cell.layout, name, cell.opset)
            for name in self.traceable(cell.exporter, cell.layout)
        ]

    def _traceable(self, variant: str, layout: str) -> dict[str, Traceable]:
        attention = variant if variant in ATTENTIONS else "eager"
        return {part.name: part for part in parts(self.model(attention), layout)}

    def _exported(self, exporter: str, variant: str, layout: str, name: str, opset: int) -> Part:
        """One part written, checked and settled. Raises Refused."""
        self.beat()
        path = self.folder / f"{exporter}-{variant}-{layout}-op{opset}-{name}.onnx"
        part = self.traceable(variant, layout)[name]
        try:
            if exporter == "converter":
                source = self._part("torchscript", "eager", layout, name, int(variant.removeprefix("from")))
                onnx.save(onnx.version_converter.convert_version(onnx.load(source.path), opset), str(path))
            else:
                write(part, exporter, opset, path)
        except Refused:
            raise
        except Exception as error:
            message = ASSERTION.sub("", first_line(error))
            kind = first_kind(message, REFUSALS)
            raise Refused(verdict.of_refusal("build", kind), "build", kind, f"{name}: {message}") from error
        written = opsets(path)
        if written != {"ai.onnx": opset}:
            others = "".join(f", {domain} {version}" for domain, version in written.items() if domain != "ai.onnx")
            raise Refused("FAIL", "build", "opset", f"asked for {opset}, wrote {written.get('ai.onnx')}{others}")
        return _settled(part, path)


def _settled(part: Traceable, path: Path) -> Part:
    try:
        entry, _ = settle(part, path)
        onnx.checker.check_model(str(path))
    except (UserError, onnx.checker.ValidationError) as error:
        kind = "shape" if isinstance(error, UserError) else "invalid"
        raise Refused("FAIL", "parse", kind, f"{part.name}: {first_line(error)}") from error
    inputs, outputs = (
        tuple(Port(name, dtype, tuple(shape), role) for name, dtype, shape, role in entry[side])
        for side in ("inputs", "outputs")
    )
    return Part(part.name, str(path), inputs, outputs)


def answer(cell: Cell, files: Files, bundle: Bundle) -> Answer:
    """Export a cell and compare its decode with ``bundle``'s golden."""
    began = time.perf_counter()
    try:
        result = _compare(cell, files.parts(cell), bundle)
    except Refused as refused:
        result = refused.answer
    return replace(result, seconds=round(time.perf_counter() - began, 3))


def _compare(cell: Cell, exported: Sequence[Part], bundle: Bundle) -> Answer:
    """Decode with the reference evaluator; the witness's limit says what is no longer PyTorch's noise."""
    graph = Graph(cell.backend, cell.layout, cell.precision, cell.opset, 0, tuple(exported))
    result = Answer("export", "PASS", metric="gap over largest floor", bound=witness.GROSS)
    try:
        traces = witness.collect(bundle, graph)
        result = replace(result, compared=sum(array.size for array in traces.values()))
        ratios = witness.judge(bundle, graph, traces)
    except UserError as error:
        return replace(result, status="FAIL", message=str(error))
    return replace(result, value=max(ratios.values()), detail={"ratios": ratios})


def main(arguments: Sequence[str]) -> int:
    """Answer requests, a cell a line of standard input, until it ends."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # exporters print hundreds of lines

    def send(**message: object) -> None:
        wire.write(json.dumps(message) + "\n")
        wire.flush()

    torch.set_num_threads(1)
    path, model = arguments
    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))  # removed with the host's own, however this process ends
    bundle = Bundle(path, verify=False)
    files = Files(model, folder, lambda: send(beat=1))
    send(ready=1)
    for line in sys.stdin:
        cell = Cell.parse(json.loads(line)["graph"])
        send(beat=1)
        send(answer=json.loads(to_json(answer(cell, files, bundle))))
        send(done=1)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
