"""The two decode loops. Everything that decodes runs through one of them: replays, the cost measurement, the witness."""

from typing import Callable, Iterator, List, NamedTuple, Tuple

import numpy as np

from harness.core.batch import Batch
from harness.core.graph import Decode
from harness.judge.free import Best
from harness.replay.decoder import Decoder, Ran

SLACK = 8
"""A free decode goes on this many steps past the longest golden row of its batch, so that a runaway shows."""


class Step(NamedTuple):
    """One run of a forced decode; ``step`` is -1 for the encoder."""

    step: int
    ran: Ran


def force(decoder: Decoder, batch: Batch, start: int, beat: Callable[[], None] = lambda: None) -> Iterator[Step]:
    """Decode a batch with the golden's tokens fed: the encoder, then every step of the longest row.

    The runtime keeps its own cache. ``start``: the id fed first; ``beat`` is called before each step. Raises what
    `Decoder.encode` and `Decoder.step` do.
    """
    yield Step(-1, decoder.encode(batch.ids, batch.mask))
    fed = np.full(len(batch.rows), start, np.int64)
    for step in range(batch.tokens.shape[1]):
        beat()
        yield Step(step, decoder.step(fed))
        fed = batch.tokens[:, step].copy()


def force_scores(
    decoder: Decoder, batch: Batch, start: int, beat: Callable[[], None] = lambda: None
) -> Iterator[Tuple[int, np.ndarray]]:
    """Step and logits, [rows, vocabulary], of a forced decode. Raises CannotGoOn where there are none."""
    for step, ran in force(decoder, batch, start, beat):
        if step >= 0:
            yield step, decoder.scores(ran, len(batch.rows))


class Greedy(NamedTuple):
    """A free greedy decode: the fields of `observations.Decoded`."""

    ids: np.ndarray
    lengths: np.ndarray
    largest: np.ndarray
    best: np.ndarray


def decode_freely(
    decoder: Decoder, batch: Batch, best: Best, rules: Decode, beat: Callable[[], None] = lambda: None
) -> Greedy:
    """Decode a batch greedily on the runtime's own choices, until every row has ended or has run SLACK steps too long.

    Raises CannotGoOn where the logits are not usable.
    """
    decoder.encode(batch.ids, batch.mask)
    rows, limit = len(batch.rows), min(rules.max_steps, max(batch.steps) + SLACK)
    suppressed = np.array(rules.suppress, np.int64)
    chosen: List[np.ndarray] = []
    largest: List[np.ndarray] = []
    observed = np.full(best.logits.shape, np.nan)
    lengths = np.full(rows, limit)
    fed, going = np.full(rows, rules.start, np.int64), np.ones(rows, bool)
    for step in range(limit):
        beat()
        scores = decoder.scores(decoder.step(fed), rows)
        if step < observed.shape[1]:
            observed[:, step] = np.take_along_axis(scores, best.ids[:, step], axis=1)
        fed = scores.argmax(axis=1)
        largest.append(fed)
        if (np.isin(fed, suppressed) & going).any():
            scores = scores.copy()
            scores[:, suppressed] = -np.inf
            fed = scores.argmax(axis=1)
        fed = np.where(going, fed, rules.pad).astype(np.int64)
        chosen.append(fed)
        ended = going & (fed == rules.eos)
        lengths[ended] = step + 1
        going &= ~ended
        if not going.any():
            break
    return Greedy(np.stack(chosen, axis=1), lengths, np.stack(largest, axis=1), observed)


def choose_aligned(
    decoder: Decoder, batch: Batch, best: Best, rules: Decode, beat: Callable[[], None] = lambda: None
) -> Tuple[np.ndarray, np.ndarray]:
    """With the golden's tokens fed: what would be chosen at every step, [rows, steps] int64, and the logits of the golden's
    best ids, [rows, steps, k]. Raises CannotGoOn."""
    choices, observed = np.zeros_like(batch.tokens), np.full(best.logits.shape, np.nan)
    for step, logits in force_scores(decoder, batch, rules.start, beat):
        scores = np.array(logits)
        observed[:, step] = np.take_along_axis(scores, best.ids[:, step], axis=1)
        scores[:, list(rules.suppress)] = -np.inf
        choices[:, step] = scores.argmax(axis=1)
    return choices, observed
