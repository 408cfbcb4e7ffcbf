"""Free replays: every corpus row decoded greedily on the runtime's own choices, the oracle for tokens and text."""

from typing import Callable, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np

from backends.contract import Program, StageError
from harness.bundle import Batch, Bundle, Decode
from harness.judge import tokens, verdict
from harness.replay.decoder import Decoder, Stopped
from harness.replay.job import Job
from harness.rows import Row

SLACK = 8
"""A free replay goes on this many steps past the longest golden row of its batch, so that a runaway shows."""


def decode_free(
    decoder: Decoder, batch: Batch, rules: Decode, beat: Callable[[], None]
) -> Tuple[List[np.ndarray], List[List[int]]]:
    """Greedy decode of one batch. Returns each row's ids [steps] int64, end token included, and the steps at which a
    suppressed id had the largest logit (the next best was taken). Raises Stopped where the logits are not usable."""
    decoder.encode(batch.ids, batch.mask)
    count, limit = len(batch.rows), min(rules.max_steps, max(batch.steps) + SLACK)
    suppressed = np.array(rules.suppress, np.int64)
    chosen = np.full((count, limit), rules.pad, np.int64)
    lengths = np.full(count, limit)
    forbidden: List[List[int]] = [[] for _ in range(count)]
    fed, open_rows = np.full(count, rules.start, np.int64), np.ones(count, bool)
    for step in range(limit):
        beat()
        scores = _scores(decoder, fed, step)
        fed = scores.argmax(axis=1)
        wrong = np.isin(fed, suppressed) & open_rows
        if wrong.any():
            for row in np.flatnonzero(wrong):
                forbidden[row].append(step)
            scores = scores.copy()
            scores[:, suppressed] = -np.inf
            fed = scores.argmax(axis=1)
        fed = np.where(open_rows, fed, rules.pad).astype(np.int64)
        chosen[:, step] = fed
        ended = open_rows & (fed == rules.eos)
        lengths[ended] = step + 1
        open_rows &= ~ended
        if not open_rows.any():
            break
    return [chosen[row, : lengths[row]] for row in range(count)], forbidden


def decode_aligned(decoder: Decoder, batch: Batch, rules: Decode, beat: Callable[[], None]) -> np.ndarray:
    """The choice at every step when the golden's tokens are fed, [batch, steps] int64: where a decode that has left the
    golden would go on choosing right. Raises Stopped."""
    decoder.encode(batch.ids, batch.mask)
    fed, choices = np.full(len(batch.rows), rules.start, np.int64), []
    for step in range(batch.tokens.shape[1]):
        beat()
        scores = np.array(_scores(decoder, fed, step))
        scores[:, list(rules.suppress)] = -np.inf
        choices.append(scores.argmax(axis=1))
        fed = batch.tokens[:, step].copy()
    return np.stack(choices, axis=1)


def _scores(decoder: Decoder, fed: np.ndarray, step: int) -> np.ndarray:
    """Logits of the next step, [batch, vocabulary]. Raises Stopped where they are not usable."""
    logits = decoder.step(fed).get("logits")
    if logits is None or logits.ndim != 3 or len(logits) != len(fed):
        raise Stopped("logits", f"no usable logits at step {step}")
    return logits[:, -1]


class Tally(NamedTuple):
    """What the free replays of one cell found, row by row (corpus index)."""

    verdicts: Dict[int, tokens.Verdict]
    hypotheses: Dict[int, np.ndarray]
    flips: Dict[int, int]
    compared: int


def judge_tokens(job: Job, programs: Mapping[str, Program]) -> Row:
    """Decode every corpus row freely and judge it against the golden's tokens; the sidecar file gets the hypotheses."""
    tally = _tally(job, programs)
    ids = [tally.hypotheses.get(row, np.zeros(0, np.int64)) for row in range(len(job.bundle.rows))]
    answer = _token_row(job, tally)
    starts = np.cumsum([0] + [len(row) for row in ids])
    answer.series = job.save("tokens", {"tokens": np.concatenate(ids), "token_starts": starts})
    return answer


def _tie(job: Job) -> float:
    return 2 * job.golden.tensors["logits"][2].tail


def _tally(job: Job, programs: Mapping[str, Program]) -> Tally:
    bundle, rules, tie = job.bundle, job.bundle.decode, _tie(job)
    tally = Tally({}, {}, {}, 0)
    compared = 0
    decoder = Decoder(programs, job.graph, bundle.dims)
    for batch in bundle.batches("free"):
        try:
            decoded, forbidden = decode_free(decoder, batch, rules, job.beat)
            for row, ids, banned in zip(batch.rows, decoded, forbidden):
                golden = Best(bundle, row)
                tally.hypotheses[row] = ids
                compared += min(len(ids), len(golden.tokens))
                # Where the golden's own best is forbidden too, choosing the next best is what PyTorch did.
                banned = [step for step in banned if not golden.suppressed(step)]
                tally.verdicts[row] = tokens.judge_row(ids, *golden.arrays, tie, rules.eos, banned)
            if any(tally.verdicts[row].word != "MATCH" for row in batch.rows):
                _realign(tally, bundle, batch, decode_aligned(decoder, batch, rules, job.beat), tie)
        except (Stopped, StageError) as error:
            stop = tokens.Verdict("DIVERGED", decoder.position, f"stopped at step {decoder.position}: {error}")
            tally.verdicts.update(dict.fromkeys(batch.rows, stop))
    return tally._replace(compared=compared)


def _realign(tally: Tally, bundle: Bundle, batch: Batch, choices: np.ndarray, tie: float) -> None:
    """Count the wrong choices of rows that left the golden, back on its track; a tie must be their only kind."""
    for row, steps, chosen in zip(batch.rows, batch.steps, choices):
        if tally.verdicts[row].word == "MATCH":
            continue
        golden = Best(bundle, row)
        gaps = [golden.gap(step, int(chosen[step])) for step in range(steps)]
        wrong = [step for step, gap in enumerate(gaps) if gap > tie]
        tally.flips[row] = len(wrong)
        if wrong and tally.verdicts[row].word == "TIE":
            said = f"token {int(chosen[wrong[0]])} at step {wrong[0]}, PyTorch has {int(golden.tokens[wrong[0]])}"
            tally.verdicts[row] = tokens.Verdict("DIVERGED", wrong[0], f"{said} (after a tie, back on the golden)")


class Best:
    """The golden's tokens and best logits of one corpus row."""

    def __init__(self, bundle: Bundle, row: int) -> None:
        at = bundle.token_slice(row)
        self.tokens = bundle.array("tokens")[at]
        self.top_ids, self.top_logits = bundle.array("top_ids")[at], bundle.array("top_logits")[at]
        self.arrays = (self.tokens, self.top_ids, self.top_logits)
        self._never = bundle.decode.suppress

    def suppressed(self, step: int) -> bool:
        """Whether the golden's own largest logit is of a token that may not be chosen."""
        return step < len(self.tokens) and int(self.top_ids[step][0]) in self._never

    def gap(self, step: int, token: int) -> float:
        """How far below the golden's choice it puts that token; infinite when it is not among its best."""
        return tokens.gap(step, token, *self.arrays)


def _token_row(job: Job, tally: Tally) -> Row:
    names = [row.id for row in job.bundle.rows]
    counts = {word: sum(found.word == word for found in tally.verdicts.values()) for word in tokens.WORDS}
    notable = [(names[row], found) for row, found in tally.verdicts.items() if found.word != "MATCH"]
    notable.sort(key=lambda item: (item[1].word != "DIVERGED", item[1].step or 0))
    result = Row("tokens", verdict.of_row(tally.compared, counts["DIVERGED"]), metric="rows diverged")
    result.value, result.bound, result.compared = float(counts["DIVERGED"]), 0.0, tally.compared
    result.detail = {
        "rows": counts,
        "tie_bound": _tie(job),
        "notable": [[name, found.word, found.step, found.message] for name, found in notable[:20]],
        "ties": [name for name, found in notable if found.word == "TIE"],
        "wrong_choices": {names[row]: count for row, count in list(tally.flips.items())[:20]},
    }
    result.message = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if counts["DIVERGED"]:
        result.sentence, result.step = notable[0][0], notable[0][1].step
        flips = sum(tally.flips.values())
        result.message += f", {flips} wrong choices back on the golden; {result.sentence}: {notable[0][1].message}"
    return result
