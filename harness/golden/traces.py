"""The golden of a bundle: tokens of every row, everything of the traced rows, and the floor of each precision."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from transformers import MarianMTModel

from harness.core.batch import Batch, pad_rows
from harness.core.errors import UserError
from harness.core.graph import CorpusRow, Decode
from harness.golden import corpus, decode
from harness.golden.folder import Draft
from harness.golden.marian import Marian, decode_rules
from harness.golden.progress import Bars

GREEDY_BATCH = 24


class Budget(NamedTuple):
    """How much is recorded. ``max_steps``: of one row; ``traced_steps``: steps of all traced rows together.

    ``free_batch``, ``forced_batch``: rows a batch.
    """

    max_steps: int
    traced_steps: int
    free_batch: int
    forced_batch: int


class Sources:
    """The corpus as source ids. Raises UserError for a row that the model cannot take."""

    def __init__(self, marian: Marian, rows: Sequence[CorpusRow]) -> None:
        self.rows = rows
        self.ids = [_encode(marian, row) for row in rows]
        self.lengths = [len(ids) for ids in self.ids]
        unknown = marian.tokenizer.unk_token_id
        self.unusual = [index for index, ids in enumerate(self.ids) if unknown in ids]
        """Rows with an unknown piece."""

    @property
    def names(self) -> list[str]:
        return [row.id for row in self.rows]


def _encode(marian: Marian, row: CorpusRow) -> np.ndarray:
    ids = np.array(marian.encode(row.source), np.int64)
    config = marian.config
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


class Golden:
    """What PyTorch decoded. ``decoded``: of every row; ``batches``: the traced rows, as they are replayed together."""

    def __init__(self, sources: Sources, rules: Decode, decoded: Sequence[decode.Decoded], budget: Budget) -> None:
        self.sources, self.rules, self.decoded = sources, rules, decoded
        self.steps = [len(row.tokens) for row in decoded]
        self.traced = corpus.traced(self.steps, sources.lengths, sources.unusual, budget.traced_steps)
        self.forced = corpus.forced_batches(self.traced, self.steps, sources.lengths, budget.forced_batch)
        self.free = corpus.free_batches(self.steps, sources.lengths, budget.free_batch)
        self.batches = [self._batch(rows) for rows in self.forced]

    def _batch(self, rows: Sequence[int]) -> Batch:
        ids, mask = pad_rows([self.sources.ids[row] for row in rows], self.rules.pad)
        tokens, _ = pad_rows([self.decoded[row].tokens for row in rows], self.rules.pad)
        return Batch(tuple(rows), tuple(self.steps[row] for row in rows), ids, mask, tokens)


def record(
    marian: Marian, sources: Sources, budget: Budget, precisions: Sequence[str], draft: Draft, bars: Bars
) -> Golden:
    """Decode the corpus, replay the traced rows in float64 and in each precision, and write all of it to ``draft``.

    Raises UserError where PyTorch does not agree with itself.
    """
    bars.phase("load fp64", 1)
    model = marian.load("fp64")
    bars.tick()
    rules = decode_rules(marian, model, budget.max_steps)
    golden = Golden(sources, rules, _decode(model, sources, rules, bars), budget)
    _save_tokens(golden, draft)
    traces = _replay(model, golden, "fp64", bars)
    decode.check_forced(traces, golden.batches, rules, sources.names)
    draft.save(**{f"trace_{name}": array for name, array in traces.items()})
    draft.manifest |= {
        "decode": asdict(rules),
        "traced_rows": golden.traced,
        "floors": list(precisions),
        "batches": {"forced": golden.forced, "free": golden.free},
        "invariance": decode.invariance(model, golden.batches, traces, rules),
    }
    for precision in precisions:
        floors = decode.floors(traces, _replay(marian.load(precision), golden, precision, bars))
        if not all(np.isfinite(array).all() for array in floors.values()):
            raise UserError(
                f"precision {precision}: PyTorch's own decode in it is not finite; leave it out (--precision)"
            )
        draft.save(**{f"floor_{precision}_{name}": array for name, array in floors.items()})
    return golden


def _decode(model: MarianMTModel, sources: Sources, rules: Decode, bars: Bars) -> list[decode.Decoded]:
    bars.phase("decode", len(sources.ids))
    decoded: list[decode.Decoded] = []
    for start in range(0, len(sources.ids), GREEDY_BATCH):
        ids = sources.ids[start : start + GREEDY_BATCH]
        batch = decode.greedy(model, ids, rules)
        decode.check_generate(model, ids, rules, batch, sources.names[start : start + GREEDY_BATCH])
        decoded += batch
        bars.tick(len(batch))
    return decoded


def _save_tokens(golden: Golden, draft: Draft) -> None:
    source_starts, source_ids = _flat(golden.sources.ids)
    token_starts, tokens = _flat([row.tokens for row in golden.decoded])
    draft.save(
        source_ids=source_ids,
        source_starts=source_starts,
        tokens=tokens,
        token_starts=token_starts,
        top_ids=np.concatenate([row.top_ids for row in golden.decoded]),
        top_logits=np.concatenate([row.top_logits for row in golden.decoded]),
    )


def _replay(model: MarianMTModel, golden: Golden, precision: str, bars: Bars) -> decode.Arrays:
    bars.phase(f"replay {precision}", sum(golden.steps[row] for row in golden.traced))
    return decode.forced(model, golden.batches, golden.rules, bars.tick)


def _flat(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row starts [rows + 1] int64, and all rows one after another."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64), np.concatenate(rows)
