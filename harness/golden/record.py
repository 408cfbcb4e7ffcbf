"""Record a bundle: a model directory and a corpus in, one flat directory out, written whole or not at all."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from backends.contract import LAYOUTS
from harness.core import language
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.golden import corpus, folder, graphs, traces, witness
from harness.golden.export import EXPORTERS
from harness.golden.folder import Draft
from harness.golden.marian import DTYPES, Marian
from harness.golden.progress import Bars
from harness.golden.traces import Budget, Sources

LIBRARIES = ("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "numpy", "sentencepiece")
LOWEST_BLEU = 1.0
"""A golden below it is no translation of the references, or its language is not the one that was scored."""


class Scores(Protocol):
    """What scores a bundle's text: ``golden``, the text of each row, and ``record``, what the manifest keeps of it."""

    @property
    def golden(self) -> list[str]: ...

    def record(self) -> dict[str, Any]: ...


def record(
    model_dir: str | os.PathLike[str],
    corpus_file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    score: Callable[[Bundle], Scores] | None = None,
    note: Callable[[str], object] = lambda line: None,
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
    ``threads``: PyTorch's. ``overwrite``: replace ``out`` if it is a bundle. ``score``: scores the golden's text; without it
    none is recorded. ``note`` is called with each line that the user should read. Raises UserError; ``out`` is then
    as it was.
    """
    _check_request(exporters, opsets, layouts, precisions)
    variants = graphs.choose(exporters, opsets, layouts)
    target = Path(out).absolute()
    folder.check_target(target, overwrite)
    rows = corpus.read(corpus_file)
    marian = Marian(model_dir)
    with folder.filled(target) as partial, _threads(threads), Bars(progress) as bars:
        draft = Draft(
            partial,
            {
                "name": marian.name,
                "family": marian.family,
                "target_language": marian.language,
                "dims": asdict(marian.dims()),
                "rows": [asdict(row) for row in rows],
                "model": marian.file_hashes(),
                "signature": _signature(threads),
            },
        )
        draft.save_json("pieces.json", marian.pieces)
        if marian.source_pieces is not None:
            draft.save_json("source_pieces.json", marian.source_pieces)
        budget = Budget(max_steps, traced_steps, free_batch, forced_batch)
        golden = traces.record(marian, Sources(marian, rows), budget, precisions, draft, bars)
        graphs.export(variants, marian, golden, draft, bars)
        bundle = draft.seal()
        if bundle.graphs:
            _add_witness(draft, [graph.id for graph in bundle.graphs], bars)
        if score is not None:
            _add_text(draft, marian, bundle, score(bundle))
        digest = draft.seal().hash
    for line in _notes(marian, draft.manifest):
        note(line)
    return digest


def _signature(threads: int) -> dict[str, Any]:
    """What the numbers depend on beside the model."""
    return {
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
        # Its presence changes what the tokenizer does with punctuation.
        "sacremoses": _version("sacremoses"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
    }


def _add_witness(draft: Draft, graph_ids: Sequence[str], bars: Bars) -> None:
    bars.phase("witness", len(graph_ids))
    answers = witness.replay(draft.folder, graph_ids, min(os.cpu_count() or 1, 4), bars.tick)
    draft.manifest["witness"] = {graph: answers[graph]["file"] for graph in graph_ids}
    draft.manifest["witness_ratios"] = {graph: answers[graph]["ratios"] for graph in graph_ids}


def _add_text(draft: Draft, marian: Marian, bundle: Bundle, scores: Scores) -> None:
    """Keep the golden's scores. Raises UserError unless the piece table detokenises as the model's own tokenizer does."""
    tokenizer, pieces = marian.tokenizer, marian.vocabularies.target
    unknown = {tokenizer.unk_token_id, pieces.get(tokenizer.unk_token)}
    for number, (row, text) in enumerate(zip(bundle.rows, scores.golden, strict=True)):
        ids = bundle.tokens(number).tolist()
        own = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if not unknown.intersection(ids) and own.split() != text.split():
            raise UserError(
                f"row {row.id}: the piece table gives {text!r}, the tokenizer {own!r}; "
                "target.spm has pieces that vocab.json spells otherwise: take both from one checkpoint"
            )
    draft.manifest["golden_text"] = scores.record()


def _notes(marian: Marian, manifest: dict[str, Any]) -> Iterator[str]:
    """What weakens the text check of this bundle."""
    code, remedy = marian.language, "set target_lang in tokenizer_config.json"
    tokenizer = language.bleu_tokenizer(code)
    if not marian.language_stated:
        yield f"neither tokenizer_config.json nor the name {marian.name} says the target language, {code} is taken; {remedy}"
    elif code not in language.KNOWN:
        yield f"the target language {code!r} is unknown, BLEU is scored with the tokenizer {tokenizer}; {remedy}"
    bleu = manifest.get("golden_text", {}).get("scores", {}).get("BLEU")
    if bleu is not None and bleu < LOWEST_BLEU:
        yield (
            f"the golden's BLEU against the references is {bleu:.2f} (language {code}, tokenizer {tokenizer}), so the text "
            f"check can hardly tell a worse translation; check the model, the references of the corpus and target_lang"
        )


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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
