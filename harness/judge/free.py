"""The judge of free replays: the tokens check, and the golden's best logits in every corpus row.

As long as a row's choices are the golden's, its logits can be held against the golden's largest ones too: that takes the
numbers to batch sizes, source lengths and tokens that no traced row has.
"""

from typing import Dict, List, Sequence, Tuple

import numpy as np

from harness.core import verdict
from harness.core.batch import Batch
from harness.core.bundle import Bundle
from harness.core.observations import Aligned, Decoded, Stopped
from harness.core.rows import Answer
from harness.judge import tokens
from harness.judge.compare import Miss
from harness.judge.golden import Golden

SHOWN = 20
"""Rows that the detail of an answer lists."""


class Best:
    """The golden's tokens and largest logits of one batch, padded: [rows, steps], [rows, steps, k]."""

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

    def gaps(self, observed: np.ndarray, compared: np.ndarray) -> np.ndarray:
        """[rows, steps] largest gap of observed logits [rows, steps, k] where ``compared`` [rows, steps], else NaN."""
        values = observed.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gaps = np.where(values == self.logits, 0.0, np.abs(values - self.logits)).max(axis=2)
        return np.where(compared, np.where(np.isnan(gaps), np.inf, gaps), np.nan)

    def forbidden(self, decoded: Decoded, index: int, suppress: Sequence[int]) -> List[int]:
        """Steps of a row at which a suppressed id had the largest logit, and has not in the golden."""
        steps = np.flatnonzero(np.isin(decoded.largest[index, : decoded.lengths[index]], suppress))
        return [int(step) for step in steps if step >= self.steps[index] or not self.suppressed[index, step]]


def on_track(batch: Batch, decoded: Decoded) -> np.ndarray:
    """[rows, golden steps] bool: where a row had chosen as the golden does at every step before."""
    steps = batch.tokens.shape[1]
    chosen = np.full_like(batch.tokens, -1)
    chosen[:, : decoded.ids.shape[1]] = decoded.ids[:, :steps]
    same = np.cumprod(chosen == batch.tokens, axis=1).astype(bool)
    before = np.concatenate([np.ones((len(same), 1), bool), same[:, :-1]], axis=1)
    ran = np.arange(steps) < min(decoded.ids.shape[1], steps)
    return np.asarray(before & ran & (np.arange(steps) < np.array(batch.steps)[:, None]))


class FreeJudge:
    """What the free replays of one cell came to, by corpus row; ``misses`` are of the logits, ``compared`` counts tokens."""

    def __init__(self, golden: Golden, batches: Sequence[Batch], logits: str) -> None:
        """``batches``: those that the observations number; ``logits``: what the graph calls them."""
        self.golden, self.bundle, self.batches, self.logits = golden, golden.bundle, batches, logits
        self.limit = golden.logits.limit
        self.choices: Dict[int, tokens.Choice] = {}
        self.hypotheses: Dict[int, np.ndarray] = {}
        self.wrong_choices: Dict[int, int] = {}
        self.misses: List[Miss] = []
        self.worst = 0.0
        self.compared = self.compared_logits = 0

    @property
    def tie(self) -> float:
        """How far apart two golden logits may be and still change places by rounding: each may move by the bound."""
        return 2 * self.limit.tail

    def see(self, seen: "Decoded | Aligned | Stopped") -> None:
        batch = self.batches[seen.batch]
        if isinstance(seen, Decoded):
            self._see_decoded(batch, seen)
        elif isinstance(seen, Aligned):
            self._see_aligned(batch, seen)
        else:
            stop = tokens.Choice("DIVERGED", seen.step, f"stopped at step {seen.step}: {seen.message}")
            self.choices.update(dict.fromkeys(batch.rows, stop))

    def _see_decoded(self, batch: Batch, seen: Decoded) -> None:
        best = Best(self.bundle, batch)
        self._see_gaps(batch, best.gaps(seen.best, on_track(batch, seen)), f"in a free batch of {len(batch.rows)}")
        for index, row in enumerate(batch.rows):
            ids = seen.ids[index, : seen.lengths[index]]
            self.hypotheses[row] = np.array(ids)
            self.compared += min(len(ids), batch.steps[index])
            forbidden = best.forbidden(seen, index, self.bundle.decode.suppress)
            self.choices[row] = tokens.judge_row(ids, *best.of(index), self.tie, self.bundle.decode.eos, forbidden)

    def matches(self, batch: int) -> bool:
        """Whether every row of that batch chose as the golden did."""
        return all(self.choices[row].word == "MATCH" for row in self.batches[batch].rows)

    def _see_aligned(self, batch: Batch, seen: Aligned) -> None:
        """Count the wrong choices of rows that left the golden, back on its track; a tie must be their only kind."""
        best = Best(self.bundle, batch)
        decoding = np.arange(batch.tokens.shape[1]) < best.steps[:, None]
        where = f"in a batch of {len(batch.rows)} fed the golden's tokens"
        self._see_gaps(batch, best.gaps(seen.best, decoding), where)
        for index, row in enumerate(batch.rows):
            if self.choices[row].word == "MATCH":
                continue
            golden = best.of(index)
            below = [tokens.gap(step, int(seen.choices[index, step]), *golden) for step in range(batch.steps[index])]
            wrong = [step for step, gap in enumerate(below) if abs(gap) > self.tie]
            self.wrong_choices[row] = len(wrong)
            if wrong and self.choices[row].word == "TIE":
                first = wrong[0]
                message = (
                    f"token {int(seen.choices[index, first])} at step {first}, PyTorch has {int(golden[0][first])}"
                )
                self.choices[row] = tokens.Choice("DIVERGED", first, f"{message} (after a tie, back on the golden)")

    def _see_gaps(self, batch: Batch, gaps: np.ndarray, where: str) -> None:
        """Hold the golden's best logits against the bound. ``gaps``: [rows, steps], NaN where not compared."""
        seen = ~np.isnan(gaps)
        self.compared_logits += int(seen.sum()) * self.bundle.array("top_ids").shape[1]
        over = np.argwhere(seen & (np.nan_to_num(gaps, nan=0.0) > self.limit.tail))
        self.worst = max(self.worst, float(gaps[seen].max()) if seen.any() else 0.0)
        if len(over):
            index, step = min(over.tolist(), key=lambda at: at[1])
            gap, row = float(gaps[index, step]), batch.rows[index]
            off = f"PyTorch's best are off by {gap:.3g} {where}, source {batch.ids.shape[1]}"
            message = f"{self.logits} at step {step}: {off}"
            miss = Miss(self.logits, "best", gap, self.limit.tail, self.limit.floor, step, row, message)
            self.misses.append(miss)

    def answer(self) -> Answer:
        """The answer to ``tokens``."""
        names = [row.id for row in self.bundle.rows]
        counts = {word: sum(choice.word == word for choice in self.choices.values()) for word in tokens.WORDS}
        notable = [(names[row], choice) for row, choice in self.choices.items() if choice.word != "MATCH"]
        notable.sort(key=lambda item: (item[1].word != "DIVERGED", item[1].step or 0))
        detail = {
            "rows": counts,
            "tie_bound": self.tie,
            "notable": [[name, choice.word, choice.step, choice.message] for name, choice in notable[:SHOWN]],
            "ties": [name for name, choice in notable if choice.word == "TIE"],
            "wrong_choices": {names[row]: count for row, count in list(self.wrong_choices.items())[:SHOWN]},
        }
        message = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        sentence, step = "", None
        if counts["DIVERGED"]:
            sentence, first = notable[0]
            step = first.step
            wrong = sum(self.wrong_choices.values())
            message += f", {wrong} wrong choices back on the golden; {sentence}: {first.message}"
        return Answer(
            "tokens",
            verdict.of_row(self.compared, counts["DIVERGED"]),
            metric="rows diverged",
            value=float(counts["DIVERGED"]),
            bound=0.0,
            compared=self.compared,
            step=step,
            sentence=sentence,
            message=message,
            detail=detail,
        )

    def sidecar(self) -> Dict[str, np.ndarray]:
        """Hypotheses of all corpus rows: ``tokens`` one after another, ``token_starts`` [rows + 1]."""
        ids = [self.hypotheses.get(row, np.zeros(0, np.int64)) for row in range(len(self.bundle.rows))]
        return {"tokens": np.concatenate(ids), "token_starts": np.cumsum([0] + [len(row) for row in ids])}
