"""The golden: PyTorch's own cached decode, one token a step, in float64; and its noise in lower precisions.

Every forward is Hugging Face's, with ``encoder_outputs`` and a cache. Sizes: n rows, s source ids, v ids of the vocabulary.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import MarianMTModel
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from harness.core.batch import Batch, Trace, more_padding, pad_rows, select_rows, trace_order
from harness.core.errors import UserError
from harness.core.graph import Decode
from harness.golden.modules import cache_word, empty_cache

TOP = 4
Arrays = dict[str, np.ndarray]


class Decoded(NamedTuple):
    """One row's greedy output, its end token included.

    ``tokens`` [steps] int64; ``top_ids`` [steps, TOP] int32 and ``top_logits`` float64: the largest raw logits.
    """

    tokens: np.ndarray
    top_ids: np.ndarray
    top_logits: np.ndarray


@dataclass
class Session:
    """One batch on its way through the decoder. ``hidden`` [n, s, d_model]; ``cache`` grows with each step."""

    model: MarianMTModel
    mask: Tensor
    hidden: Tensor
    cache: EncoderDecoderCache

    @classmethod
    def start(cls, model: MarianMTModel, ids: np.ndarray, mask: np.ndarray) -> "Session":
        """``ids``, ``mask``: [n, s] int64, padding on the right."""
        padding = torch.from_numpy(mask)
        hidden = model.model.encoder(input_ids=torch.from_numpy(ids), attention_mask=padding).last_hidden_state
        return cls(model, padding, hidden, empty_cache())

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Feed one token a row ([n] int64). Returns the raw logits [n, v], float64 whatever the model computes in."""
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden),
            attention_mask=self.mask,
            decoder_input_ids=torch.from_numpy(tokens)[:, None],
            use_cache=True,
            **{cache_word(self.model.forward): self.cache},
        )
        return float64(output.logits[:, -1])


def float64(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.to(torch.float64).numpy()
    return array


def greedy(model: MarianMTModel, sources: Sequence[np.ndarray], rules: Decode) -> list[Decoded]:
    """Greedy decode of one padded batch of source ids, until each row's end token or ``rules.max_steps``."""
    ids, mask = pad_rows(sources, rules.pad)
    session = Session.start(model, ids, mask)
    tokens = np.full(len(sources), rules.start, np.int64)
    running = np.ones(len(sources), bool)
    chosen: list[list[tuple[np.int64, np.ndarray, np.ndarray]]] = [[] for _ in sources]
    for _ in range(rules.max_steps):
        logits = session.step(tokens)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        choosable = logits.copy()
        choosable[:, list(rules.suppress)] = -np.inf
        tokens = choosable.argmax(axis=1)
        for row in np.flatnonzero(running):
            chosen[row].append((tokens[row], order[row].astype(np.int32), logits[row, order[row]]))
        running &= tokens != rules.eos
        if not running.any():
            break
        tokens = np.where(running, tokens, rules.pad)
    return [
        Decoded(
            np.array([token for token, _, _ in steps], np.int64),
            np.stack([ids for _, ids, _ in steps]),
            np.stack([values for _, _, values in steps]),
        )
        for steps in chosen
    ]


def check_generate(
    model: MarianMTModel, sources: Sequence[np.ndarray], rules: Decode, decoded: Sequence[Decoded], names: Sequence[str]
) -> None:
    """Raise UserError unless Hugging Face's own ``generate``, greedy, gives the same tokens. ``names``: of the rows."""
    ids, mask = pad_rows(sources, rules.pad)
    settings = copy.deepcopy(model.generation_config)
    settings.update(num_beams=1, do_sample=False, max_length=rules.max_steps + 1, max_new_tokens=None)
    # A forced end token at the length limit is generate's, not the model's: the golden may stop unended there.
    settings.forced_eos_token_id = None
    # generate() fills what is None from the model's own configuration, so ours has to take its place.
    original, model.generation_config = model.generation_config, settings
    try:
        output = model.generate(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).numpy()[:, 1:]
    finally:
        model.generation_config = original
    for name, row, generated in zip(names, decoded, output, strict=True):
        ours = np.full(max(len(generated), len(row.tokens)), rules.pad, np.int64)
        ours[: len(row.tokens)] = row.tokens
        if len(generated) != len(ours) or (generated != ours).any():
            step = int(np.argmax(generated != ours[: len(generated)]))
            raise UserError(
                f"row {name}: generate() chose id {generated[step]} at step {step}, the greedy loop {ours[step]}; "
                "the generation configuration asks for more than greedy search with suppressed ids: remove that setting"
            )


def forced(model: MarianMTModel, batches: Sequence[Batch], rules: Decode, tick: Callable[[int], object]) -> Arrays:
    """Replay the traced batches with their golden tokens fed. ``tick`` is called with the number of rows of each step.

    Returns ``logits``, ``self``, ``encoder`` and ``cross``, float64, shaped as the bundle's ``trace_*``.
    """
    logits: list[np.ndarray] = []
    own: list[np.ndarray] = []
    encoder: list[np.ndarray] = []
    cross: list[np.ndarray] = []
    for batch in batches:
        session = Session.start(model, batch.ids, batch.mask)
        valid = batch.mask == 1
        encoder.append(float64(session.hidden)[valid])
        for step in range(max(batch.steps)):
            active = sum(length > step for length in batch.steps)
            fed = batch.tokens[:, step - 1] if step else np.full(len(batch.rows), rules.start, np.int64)
            logits.append(session.step(fed)[:active])
            # [layers, 2, n, heads, head_dim]: only what this step wrote
            own.append(_sides(session.cache.self_attention_cache.layers)[..., -1, :][:, :, :active])
            tick(active)
        cross.append(_sides(session.cache.cross_attention_cache.layers).swapaxes(3, 4)[:, :, valid])
    return {
        "logits": np.concatenate(logits),
        "self": np.concatenate(own, axis=2),
        "encoder": np.concatenate(encoder),
        "cross": np.concatenate(cross, axis=2),
    }


def _sides(layers: Sequence[object]) -> np.ndarray:
    """[layers, 2, n, heads, length, head_dim] float64 of a cache."""
    return np.stack([np.stack([float64(layer.keys), float64(layer.values)]) for layer in layers])  # type: ignore[attr-defined]


def floors(golden: Arrays, other: Arrays) -> Arrays:
    """Largest gap of every step, and of every source position: ``trace_*`` less the compared axes, float64."""
    compared = {"logits": (-1,), "self": (-2, -1), "encoder": (-1,), "cross": (-2, -1)}
    return {name: np.abs(other[name] - golden[name]).max(axis=axes) for name, axes in compared.items()}


def check_forced(golden: Arrays, batches: Sequence[Batch], rules: Decode, names: Sequence[str]) -> None:
    """Raise UserError unless the forced float64 replay would choose each golden token. ``names``: of all rows."""
    choosable = golden["logits"].copy()
    choosable[:, list(rules.suppress)] = -np.inf
    chosen = iter(choosable.argmax(axis=1))
    for batch in batches:
        for row, step in trace_order(batch):
            token = next(chosen)
            if token != batch.tokens[row, step]:
                raise UserError(
                    f"row {names[batch.rows[row]]}: at step {step} float64 chooses id {batch.tokens[row, step]} in "
                    f"one batch and {token} in another, a tie within rounding; remove this row from the corpus"
                )


def invariance(model: MarianMTModel, batches: Sequence[Batch], golden: Arrays, rules: Decode) -> dict[str, float]:
    """Largest change of a logit when PyTorch itself runs the traced rows with more padding, or alone.

    Rounding in a sound model; a model that really depends on its padding must not be held against a runtime.
    """
    worst = {"padded": 0.0, "alone": 0.0}
    start = 0
    for batch in batches:
        trace = Trace(batch.steps, start)
        padded = forced(model, [more_padding(batch, rules.pad)], rules, int)["logits"]
        worst["padded"] = max(
            worst["padded"], float(np.abs(padded - golden["logits"][start : start + len(padded)]).max())
        )
        for row, steps in enumerate(batch.steps):
            alone = forced(model, [select_rows(batch, (row,))], rules, int)["logits"]
            together = golden["logits"][trace.starts()[:steps] + row]
            worst["alone"] = max(worst["alone"], float(np.abs(alone - together).max()))
        start += sum(batch.steps)
    return worst
