"""Free replays: every corpus row decoded greedily on the runtime's own choices, the oracle for tokens and text."""

from typing import Callable, Dict, List, Mapping, Sequence, Tuple

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
        logits = decoder.step(fed).get("logits")
        if logits is None or logits.ndim != 3 or len(logits) != count:
            raise Stopped("logits", f"no usable logits at step {step}")
        scores = logits[:, -1]
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


def judge_tokens(job: Job, programs: Mapping[str, Program]) -> Row:
    """Decode every corpus row freely and judge it against the golden's tokens; the sidecar file gets the hypotheses."""
    bundle, rules = job.bundle, job.bundle.decode
    tie = 2 * job.golden.tensors["logits"][2].tail
    verdicts: List[Tuple[int, tokens.Verdict]] = []
    hypotheses: Dict[int, np.ndarray] = {}
    decoder = Decoder(programs, job.graph, bundle.dims)
    for batch in bundle.batches("free"):
        try:
            decoded, forbidden = decode_free(decoder, batch, rules, job.beat)
        except (Stopped, StageError) as error:
            stop = tokens.Verdict("DIVERGED", decoder.position, f"stopped at step {decoder.position}: {error}")
            verdicts += [(row, stop) for row in batch.rows]
            continue
        for row, ids, banned in zip(batch.rows, decoded, forbidden):
            at = bundle.token_slice(row)
            hypotheses[row] = ids
            golden = bundle.array("tokens")[at]
            top_ids, top_logits = bundle.array("top_ids")[at], bundle.array("top_logits")[at]
            # Where the golden's own best is forbidden too, choosing the next best is what PyTorch did.
            banned = [step for step in banned if step >= len(golden) or top_ids[step][0] not in rules.suppress]
            verdicts.append((row, tokens.judge_row(ids, golden, top_ids, top_logits, tie, rules.eos, banned)))
    found = [hypotheses.get(row, np.zeros(0, np.int64)) for row in range(len(bundle.rows))]
    answer = _token_row(bundle, verdicts, tie)
    starts = np.cumsum([0] + [len(ids) for ids in found])
    answer.series = job.save("tokens", {"tokens": np.concatenate(found), "token_starts": starts})
    return answer


def _token_row(bundle: Bundle, verdicts: Sequence[Tuple[int, tokens.Verdict]], tie: float) -> Row:
    counts = {word: sum(found.word == word for _, found in verdicts) for word in tokens.WORDS}
    compared = sum(len(bundle.tokens(row)) for row, _ in verdicts)
    status = verdict.of_row(compared, counts["DIVERGED"])
    notable = [(bundle.rows[row].id, found) for row, found in verdicts if found.word != "MATCH"]
    notable.sort(key=lambda item: (item[1].word != "DIVERGED", item[1].step or 0))
    result = Row(
        "tokens", status, metric="rows diverged", value=float(counts["DIVERGED"]), bound=0.0, compared=compared
    )
    result.detail = {
        "rows": counts,
        "tie_bound": tie,
        "notable": [[name, found.word, found.step, found.message] for name, found in notable[:20]],
        "ties": [name for name, found in notable if found.word == "TIE"],
    }
    result.message = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if counts["DIVERGED"]:
        result.sentence, result.step = notable[0][0], notable[0][1].step
        result.message += f"; {result.sentence}: {notable[0][1].message}"
    return result
