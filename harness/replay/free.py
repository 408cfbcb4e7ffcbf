"""Free replays: every corpus row decoded greedily on the runtime's own choices, the oracle for tokens and text.

As long as a row's choices are the golden's, its logits can be held against the golden's largest ones too: that takes the
numbers to batch sizes, source lengths and tokens that no traced row has.
"""

from typing import Callable, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np

from backends.contract import Program, StageError
from harness.core import verdict
from harness.core.batch import Batch, split_rows
from harness.core.bundle import Bundle
from harness.core.graph import Decode
from harness.core.rows import Row
from harness.judge import tokens
from harness.judge.compare import Miss
from harness.replay.decoder import Decoder, Stopped
from harness.replay.job import Job

SLACK = 8
"""A free replay goes on this many steps past the longest golden row of its batch, so that a runaway shows."""


class Best:
    """The golden's tokens and largest logits of one batch, padded: [batch, steps], [batch, steps, k]."""

    def __init__(self, bundle: Bundle, batch: Batch) -> None:
        shape = (len(batch.rows), max(batch.steps), bundle.array("top_ids").shape[1])
        self.tokens, self.steps = batch.tokens, np.array(batch.steps)
        self.ids, self.logits = np.zeros(shape, np.int64), np.zeros(shape)
        for index, row in enumerate(batch.rows):
            at = bundle.token_slice(row)
            self.ids[index, : batch.steps[index]] = bundle.array("top_ids")[at]
            self.logits[index, : batch.steps[index]] = bundle.array("top_logits")[at]
        # Where the golden's own largest logit is of a token that may not be chosen, the next best is what PyTorch took.
        self.suppressed = np.isin(self.ids[:, :, 0], bundle.decode.suppress)

    def of(self, index: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, ids and logits of one row, as the judge of tokens takes them."""
        steps = self.steps[index]
        return self.tokens[index, :steps], self.ids[index, :steps], self.logits[index, :steps]

    def gaps(self, step: int, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """[rows] largest gap of the scores ([batch, vocabulary]) at the golden's best tokens."""
        found = np.take_along_axis(scores[rows], self.ids[rows, step], axis=1).astype(np.float64)
        golden = self.logits[rows, step]
        with np.errstate(invalid="ignore"):
            gaps = np.where(found == golden, 0.0, np.abs(found - golden)).max(axis=1)
        return np.where(np.isnan(gaps), np.inf, gaps)


class Decoded(NamedTuple):
    """Free decode of one batch. ``ids``: of each row, its end token included. ``forbidden``: steps at which a suppressed
    id had the largest logit. ``gaps``: [batch, steps] of Best.gaps, NaN where a row had left the golden."""

    ids: List[np.ndarray]
    forbidden: List[List[int]]
    gaps: np.ndarray


def decode_free(decoder: Decoder, batch: Batch, best: Best, rules: Decode, beat: Callable[[], None]) -> Decoded:
    """Greedy decode of one batch. Raises Stopped where the logits are not usable."""
    decoder.encode(batch.ids, batch.mask)
    count, limit = len(batch.rows), min(rules.max_steps, max(batch.steps) + SLACK)
    suppressed = np.array(rules.suppress, np.int64)
    chosen = np.full((count, limit), rules.pad, np.int64)
    lengths = np.full(count, limit)
    forbidden: List[List[int]] = [[] for _ in range(count)]
    gaps = np.full(batch.tokens.shape, np.nan)
    fed, going, on_track = np.full(count, rules.start, np.int64), np.ones(count, bool), np.ones(count, bool)
    for step in range(limit):
        beat()
        scores = decoder.scores(fed)
        rows = np.flatnonzero(on_track & (best.steps > step))
        if rows.size:
            gaps[rows, step] = best.gaps(step, scores, rows)
        fed = scores.argmax(axis=1)
        wrong = np.isin(fed, suppressed) & going
        if wrong.any():
            for row in np.flatnonzero(wrong):
                if step >= best.steps[row] or not best.suppressed[row, step]:
                    forbidden[row].append(step)
            scores = scores.copy()
            scores[:, suppressed] = -np.inf
            fed = scores.argmax(axis=1)
        fed = np.where(going, fed, rules.pad).astype(np.int64)
        chosen[:, step] = fed
        if step < batch.tokens.shape[1]:
            on_track &= fed == batch.tokens[:, step]
        ended = going & (fed == rules.eos)
        lengths[ended] = step + 1
        going &= ~ended
        if not going.any():
            break
    return Decoded([chosen[row, : lengths[row]] for row in range(count)], forbidden, gaps)


def decode_aligned(
    decoder: Decoder, batch: Batch, best: Best, rules: Decode, beat: Callable[[], None]
) -> Tuple[np.ndarray, np.ndarray]:
    """Feed the golden's tokens: where a decode that left the golden would go on choosing right.

    Returns the choice at every step, [batch, steps] int64, and Best.gaps of every step. Raises Stopped.
    """
    decoder.encode(batch.ids, batch.mask)
    fed, choices = np.full(len(batch.rows), rules.start, np.int64), np.zeros_like(batch.tokens)
    gaps = np.full(batch.tokens.shape, np.nan)
    for step in range(batch.tokens.shape[1]):
        beat()
        scores = np.array(decoder.scores(fed))
        rows = np.flatnonzero(best.steps > step)
        gaps[rows, step] = best.gaps(step, scores, rows)
        scores[:, list(rules.suppress)] = -np.inf
        choices[:, step] = scores.argmax(axis=1)
        fed = batch.tokens[:, step].copy()
    return choices, gaps


class Tally:
    """What the free replays of one cell found, by corpus row; ``misses`` are of the logits, ``compared`` counts tokens."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.limit = job.golden.tensors["logits"][2]
        self.verdicts: Dict[int, tokens.Verdict] = {}
        self.hypotheses: Dict[int, np.ndarray] = {}
        self.wrong_choices: Dict[int, int] = {}
        self.misses: List[Miss] = []
        self.worst = 0.0
        self.compared = self.compared_logits = 0

    @property
    def tie(self) -> float:
        """How far apart two golden logits may be and still change places by rounding: each may move by the bound."""
        return 2 * self.limit.tail

    def take(self, batch: Batch, best: Best, found: Decoded) -> bool:
        """Judge a batch. Returns whether every row matches."""
        self.see_gaps(batch, found.gaps, f"in a free batch of {len(batch.rows)}")
        for index, row in enumerate(batch.rows):
            ids, eos = found.ids[index], self.job.bundle.decode.eos
            self.hypotheses[row] = ids
            self.compared += min(len(ids), batch.steps[index])
            self.verdicts[row] = tokens.judge_row(ids, *best.of(index), self.tie, eos, found.forbidden[index])
        return all(self.verdicts[row].word == "MATCH" for row in batch.rows)

    def see_gaps(self, batch: Batch, gaps: np.ndarray, where: str) -> None:
        """Hold the golden's best logits against the bound. ``gaps``: [batch, steps], NaN where not compared."""
        seen = ~np.isnan(gaps)
        self.compared_logits += int(seen.sum()) * self.job.bundle.array("top_ids").shape[1]
        over = np.argwhere(seen & (np.nan_to_num(gaps, nan=0.0) > self.limit.tail))
        self.worst = max(self.worst, float(gaps[seen].max()) if seen.any() else 0.0)
        if len(over):
            index, step = min(over.tolist(), key=lambda at: at[1])
            gap, row = float(gaps[index, step]), batch.rows[index]
            said = f"logits at step {step}: PyTorch's best are off by {gap:.3g} {where}, source {batch.ids.shape[1]}"
            self.misses.append(Miss("logits", "best", gap, self.limit.tail, self.limit.floor, step, row, said))

    def realign(self, batch: Batch, best: Best, choices: np.ndarray) -> None:
        """Count the wrong choices of rows that left the golden, back on its track; a tie must be their only kind."""
        for index, row in enumerate(batch.rows):
            if self.verdicts[row].word == "MATCH":
                continue
            golden = best.of(index)
            below = [tokens.gap(step, int(choices[index, step]), *golden) for step in range(batch.steps[index])]
            wrong = [step for step, gap in enumerate(below) if abs(gap) > self.tie]
            self.wrong_choices[row] = len(wrong)
            if wrong and self.verdicts[row].word == "TIE":
                said = (
                    f"token {int(choices[index, wrong[0]])} at step {wrong[0]}, PyTorch has {int(golden[0][wrong[0]])}"
                )
                self.verdicts[row] = tokens.Verdict("DIVERGED", wrong[0], f"{said} (after a tie, back on the golden)")

    def row(self) -> Row:
        """The tokens row; its sidecar file gets the hypotheses."""
        names = [row.id for row in self.job.bundle.rows]
        counts = {word: sum(found.word == word for found in self.verdicts.values()) for word in tokens.WORDS}
        notable = [(names[row], found) for row, found in self.verdicts.items() if found.word != "MATCH"]
        notable.sort(key=lambda item: (item[1].word != "DIVERGED", item[1].step or 0))
        result = Row("tokens", verdict.of_row(self.compared, counts["DIVERGED"]), metric="rows diverged", bound=0.0)
        result.value, result.compared = float(counts["DIVERGED"]), self.compared
        result.detail = {
            "rows": counts,
            "tie_bound": self.tie,
            "notable": [[name, found.word, found.step, found.message] for name, found in notable[:20]],
            "ties": [name for name, found in notable if found.word == "TIE"],
            "wrong_choices": {names[row]: count for row, count in list(self.wrong_choices.items())[:20]},
        }
        result.message = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        if counts["DIVERGED"]:
            name, found = notable[0]
            result.sentence, result.step = name, found.step
            result.message += (
                f", {sum(self.wrong_choices.values())} wrong choices back on the golden; {name}: {found.message}"
            )
        ids = [self.hypotheses.get(row, np.zeros(0, np.int64)) for row in range(len(names))]
        starts = np.cumsum([0] + [len(row) for row in ids])
        result.series = self.job.save("tokens", {"tokens": np.concatenate(ids), "token_starts": starts})
        return result


def decode_all(job: Job, programs: Mapping[str, Program]) -> Tally:
    """Decode every corpus row freely; what leaves the golden is decoded once more with the golden's tokens."""
    rules, tally = job.bundle.decode, Tally(job)
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    for batch in split_rows(job.golden.free, job.graph.rows):
        best = Best(job.bundle, batch)
        try:
            if not tally.take(batch, best, decode_free(decoder, batch, best, rules, job.beat)):
                choices, gaps = decode_aligned(decoder, batch, best, rules, job.beat)
                tally.see_gaps(batch, gaps, f"in a batch of {len(batch.rows)} fed the golden's tokens")
                tally.realign(batch, best, choices)
        except (Stopped, StageError) as error:
            stop = tokens.Verdict("DIVERGED", decoder.position, f"stopped at step {decoder.position}: {error}")
            tally.verdicts.update(dict.fromkeys(batch.rows, stop))
    return tally
