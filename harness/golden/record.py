"""Record a bundle: a model directory and a corpus in, one flat directory out, written whole or not at all."""

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import MarianMTModel

from backends.contract import LAYOUTS
from harness.core.batch import Batch, pad_rows
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.graph import CorpusRow, Decode
from harness.core.manifest import SCHEMA
from harness.golden import corpus, decode, folder, witness
from harness.golden.against import against
from harness.golden.export import EXPORTERS, check_graphs, export_part, writes
from harness.golden.marian import DTYPES, Marian
from harness.golden.parts import Sizes, parts
from harness.replay.free import SLACK
from harness.run.text import Scorer

__all__ = ["UserError", "against", "record"]

GREEDY_BATCH = 24
STATIC_ROWS, STATIC_SHARE, STATIC_GRID = 2, 0.75, 16
"""A static graph has so many rows more than the longest forced batch, so that some are always idle; its smaller bucket
takes that share of the corpus; the sizes of its source are multiples of the last."""
LIBRARIES = ("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "numpy", "sentencepiece")


def record(
    model_dir: str | os.PathLike[str],
    corpus_file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    exporters: Sequence[str] = tuple(EXPORTERS),
    opsets: Sequence[int] | None = None,
    layouts: Sequence[str] = LAYOUTS,
    precisions: Sequence[str] = ("fp32", "fp16", "bf16"),
    traced_steps: int = 520,
    free_batch: int = 24,
    forced_batch: int = 6,
    max_steps: int = 128,
    threads: int = 1,
    overwrite: bool = False,
    progress: bool = True,
) -> str:
    """Record the bundle ``out`` and return its hash. The same call on the same box gives the same hash.

    ``exporters`` (none: a golden without graphs) × ``layouts`` × those of ``opsets`` that the exporter writes (None: all)
    are exported in fp32; ``precisions`` (of DTYPES) get a floor each. ``traced_steps``: steps whose
    golden carries everything. ``free_batch``, ``forced_batch``: rows a batch. ``max_steps``: longest output recorded.
    ``threads``: PyTorch's. ``overwrite``: replace ``out`` if it is a bundle. Raises UserError; then ``out`` is untouched.
    """
    _check_request(exporters, opsets, layouts, precisions)
    graphs = _graphs(exporters, opsets, layouts)
    target = Path(out).absolute()
    folder.check_target(target, overwrite)
    rows = corpus.read(corpus_file)
    marian = Marian(model_dir)
    with folder.growing(target) as partial, _threads(threads), _Bar(progress) as bar:
        recorder = _Recorder(marian, rows, partial, bar)
        recorder.golden(precisions, max_steps, traced_steps, free_batch, forced_batch)
        recorder.export(graphs)
        return recorder.finish(threads)


class _Recorder:
    """The steps of a recording, in order; ``manifest`` grows with each. Files go to ``folder``."""

    def __init__(self, marian: Marian, rows: Sequence[CorpusRow], place: Path, bar: "_Bar") -> None:
        self.marian, self.rows, self.folder, self.bar = marian, rows, place, bar
        self.sources = [self._encode(row) for row in rows]
        self.manifest: dict[str, Any] = {
            "format": "seq2seq-conformance-bundle",
            "schema": SCHEMA,
            "name": marian.name,
            "family": marian.family,
            "target_language": marian.language,
            "dims": asdict(marian.dims()),
            "rows": [asdict(row) for row in rows],
            "model": marian.file_hashes(),
        }
        (place / "pieces.json").write_text(json.dumps(marian.pieces, ensure_ascii=False), encoding="utf-8")
        starts, flat = _flat(self.sources)
        self._save(source_ids=flat, source_starts=starts)

    def _encode(self, row: CorpusRow) -> np.ndarray:
        ids = np.array(self.marian.encode(row.source), np.int64)
        config = self.marian.config
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= config.vocab_size:
            raise UserError(
                f"row {row.id}: the tokenizer gives id {ids.max()}, the vocabulary ends at {config.vocab_size - 1}; "
                "use the tokenizer that the model was trained with"
            )
        if not 1 <= len(ids) <= config.max_position_embeddings:
            raise UserError(
                f"row {row.id}: {len(ids)} source ids, the model takes 1 to {config.max_position_embeddings}; shorten it"
            )
        return ids

    def _save(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)

    def golden(self, precisions: Sequence[str], limit: int, traced: int, free: int, forced: int) -> None:
        """The golden: tokens of every row, everything of the traced ones, the floor of each precision."""
        self.bar.phase("load fp64", 1)
        model = self.marian.load("fp64")
        self.bar.tick()
        rules = self.marian.rules(model, limit)
        decoded = self._greedy(model, rules)
        self.steps = steps = [len(row.tokens) for row in decoded]
        unknown = self.marian.tokenizer.unk_token_id
        unusual = [index for index, ids in enumerate(self.sources) if unknown in ids]
        lengths = [len(ids) for ids in self.sources]
        chosen = corpus.traced(steps, lengths, unusual, traced)
        batches = corpus.forced_batches(chosen, steps, lengths, forced)
        self.manifest["decode"] = asdict(rules)
        self.manifest["traced_rows"] = chosen
        self.manifest["floors"] = list(precisions)
        self.manifest["batches"] = {
            "forced": batches,
            "free": corpus.free_batches(steps, lengths, free),
        }
        starts, tokens = _flat([row.tokens for row in decoded])
        self._save(
            tokens=tokens,
            token_starts=starts,
            top_ids=np.concatenate([row.top_ids for row in decoded]),
            top_logits=np.concatenate([row.top_logits for row in decoded]),
        )
        padded = [self._batch(batch, decoded, rules) for batch in batches]
        total = sum(steps[row] for row in chosen)
        self.bar.phase("replay fp64", total)
        golden = decode.forced(model, padded, rules, self.bar.tick)
        decode.check_forced(golden, padded, rules, [row.id for row in self.rows])
        self.manifest["invariance"] = decode.invariance(model, padded, golden, rules)
        self._save(**{f"trace_{name}": array for name, array in golden.items()})
        for precision in precisions:
            self.bar.phase(f"replay {precision}", total)
            noisy = decode.forced(self.marian.load(precision), padded, rules, self.bar.tick)
            floors = decode.floors(golden, noisy)
            if not all(np.isfinite(array).all() for array in floors.values()):
                raise UserError(
                    f"precision {precision}: PyTorch's own decode in it is not finite; leave it out (--precision)"
                )
            self._save(**{f"floor_{precision}_{name}": array for name, array in floors.items()})

    def _greedy(self, model: MarianMTModel, rules: Decode) -> list[decode.Decoded]:
        self.bar.phase("decode", len(self.rows))
        decoded: list[decode.Decoded] = []
        for start in range(0, len(self.rows), GREEDY_BATCH):
            part = slice(start, start + GREEDY_BATCH)
            found = decode.greedy(model, self.sources[part], rules)
            decode.check_generate(model, self.sources[part], rules, found, [row.id for row in self.rows[part]])
            decoded += found
            self.bar.tick(len(found))
        return decoded

    def _batch(self, rows: Sequence[int], decoded: Sequence[decode.Decoded], rules: Decode) -> Batch:
        ids, mask = pad_rows([self.sources[row] for row in rows], rules.pad)
        tokens, _ = pad_rows([decoded[row].tokens for row in rows], rules.pad)
        return Batch(tuple(rows), tuple(len(decoded[row].tokens) for row in rows), ids, mask, tokens)

    def export(self, graphs: Sequence[tuple[str, int, str]]) -> None:
        """Every (exporter, opset, layout)."""
        model = self.marian.load("fp32")
        self.bar.phase("export", len(graphs))
        self.manifest["graphs"] = []
        prepared = {layout: parts(model, layout, self._buckets()) for layout in {layout for _, _, layout in graphs}}
        made: dict[str, tuple[dict[str, Any], int]] = {}
        for exporter, opset, layout in graphs:
            graph: dict[str, Any] = {
                "exporter": exporter,
                "layout": layout,
                "precision": "fp32",
                "opset": opset,
                "parts": {},
            }
            for part in prepared[layout]:
                stem = f"{exporter}-{part.home}" if part.home else exporter
                file = f"{stem}-fp32-op{opset}-{part.name}.onnx"
                if file not in made:
                    made[file] = export_part(part, exporter, opset, self.folder / file)
                graph["parts"][part.name], graph["ir"] = made[file]
            self.manifest["graphs"].append(graph)
            self.bar.tick()
        check_graphs(sorted(self.folder.glob("*.onnx")))

    def _buckets(self) -> list[Sizes]:
        """Two fixed sizes: for most sources, and for all. Slots: what a free replay of the longest output there takes."""
        lengths, limit = [len(ids) for ids in self.sources], self.marian.config.max_position_embeddings
        sizes = {
            min(-(-longest // STATIC_GRID) * STATIC_GRID, limit)
            for longest in (int(np.quantile(lengths, STATIC_SHARE)), max(lengths))
        }
        rows = max(map(len, self.manifest["batches"]["forced"])) + STATIC_ROWS
        steps = {
            size: max(count for count, length in zip(self.steps, lengths, strict=True) if length <= size)
            for size in sizes
        }
        most = self.manifest["decode"]["max_steps"]
        return [Sizes(rows, size, min(steps[size] + SLACK, most)) for size in sorted(sizes)]

    def _check_text(self, scorer: Scorer) -> None:
        """Raise UserError unless the piece table detokenises as the model's own tokenizer does."""
        tokenizer, bundle = self.marian.tokenizer, scorer.bundle
        for number, (row, text) in enumerate(zip(self.rows, scorer.golden, strict=True)):
            ids = bundle.tokens(number).tolist()
            own = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if tokenizer.unk_token_id not in ids and own.split() != text.split():
                raise UserError(
                    f"row {row.id}: the piece table gives {text!r}, the tokenizer {own!r}; "
                    "target.spm has pieces that vocab.json spells otherwise: take both from one checkpoint"
                )

    def finish(self, threads: int) -> str:
        """Witness what was written, then write the manifest. Returns its hash."""
        self.manifest["signature"] = {
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
            # Its presence changes what the tokenizer does with punctuation.
            "sacremoses": _version("sacremoses"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": threads,
        }
        folder.write_manifest(self.folder, self.manifest)
        ids = [graph.id for graph in Bundle(str(self.folder), verify=False).graphs]
        self.bar.phase("witness", len(ids))
        found = witness.replay(self.folder, ids, min(os.cpu_count() or 1, 4), self.bar.tick)
        self.manifest["witness"] = {graph: found[graph]["file"] for graph in ids}
        scorer = Scorer(Bundle(str(self.folder), verify=False))
        self._check_text(scorer)
        self.manifest["golden_text"] = scorer.record()
        self.manifest["witness_ratios"] = {graph: found[graph]["ratios"] for graph in ids}
        return folder.write_manifest(self.folder, self.manifest)


class _Bar:
    """One progress bar after another, a phase each."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.bar: Any = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def phase(self, name: str, total: int) -> None:
        self.__exit__()
        self.bar = tqdm(total=total, desc=f"{name:<12}", disable=not self.shown, leave=True)

    def tick(self, count: int = 1) -> None:
        self.bar.update(count)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_request(
    exporters: Sequence[str], opsets: Sequence[int] | None, layouts: Sequence[str], precisions: Sequence[str]
) -> None:
    writable = sorted({opset for exporter in exporters for opset in EXPORTERS.get(exporter, ())})
    for name, asked, known in (
        ("exporter", exporters, tuple(EXPORTERS)),
        ("opset", writable if opsets is None else opsets, writable),
        ("layout", layouts, LAYOUTS),
        ("precision", precisions, DTYPES),
    ):
        unknown = [item for item in asked if item not in known]
        if unknown or (known and not asked and name != "exporter"):
            raise UserError(f"{name} {unknown[0] if unknown else 'missing'}: choose of {', '.join(map(str, known))}")
    if "fp32" not in precisions:
        raise UserError("precision fp32 is missing: the graphs are exported in it and need its floor")


def _graphs(
    exporters: Sequence[str], opsets: Sequence[int] | None, layouts: Sequence[str]
) -> list[tuple[str, int, str]]:
    """(exporter, opset, layout), as far as an exporter writes that opset and a layout is recorded of it."""
    found = [
        (exporter, opset, layout)
        for exporter in exporters
        for opset in EXPORTERS[exporter]
        for layout in layouts
        if (opsets is None or opset in opsets) and writes(exporter, opset, layout)
    ]
    if exporters and not found:
        raise UserError(
            f"layout {' and '.join(layouts)} is not recorded by that exporter at that opset; leave --exporter or --opset out"
        )
    return found


def _flat(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row starts [rows + 1] int64, and all rows one after another."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64), np.concatenate(rows)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
