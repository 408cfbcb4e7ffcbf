"""Evidence for blame, gathered only when a check has failed: the golden, the witness, and the adapter's knobs."""

from typing import List, Optional, Sequence

import numpy as np

from backends.contract import Backend, StageError
from harness.core.roles import kv_of
from harness.core.rows import Row
from harness.judge import blame
from harness.replay.decoder import ContractError
from harness.replay.forced import force
from harness.replay.free import Tally, decode_all
from harness.replay.job import Job, compile_parts
from harness.replay.trace import CHECKS, TraceJudge


class Blame:
    """The culprit of one cell's failures, looked for once, at the first of them.

    ``judge``: of the cell's forced replay; ``tally``: of its free ones, None when nobody asked for them.
    """

    def __init__(self, backend: Backend, job: Job) -> None:
        self.backend = backend
        self.job = job
        self.judge: Optional[TraceJudge] = None
        self.tally: Optional[Tally] = None
        self._seen: Optional[blame.Evidence] = None

    def lay(self, row: Row) -> Row:
        """Fill in ``blame``, ``knob`` and the evidence of a row that failed."""
        if row.status == "FAIL":
            seen = self._seen = self._seen or self._look()
            row.blame, row.knob = blame.culprit(row.check, seen), seen.knob or ""
            row.detail["evidence"] = seen._asdict()
            row.detail["knobs"] = list(self.backend.capabilities.knobs)
        return row

    def _look(self) -> blame.Evidence:
        wrong = failing(self.judge, self.tally) if self.judge else []
        numbers = [check for check in wrong if check in CHECKS]
        knob = clearing_knob(self.backend, self.job, self.tally is not None) if wrong else None
        golden, witness = golden_contradicts_itself(self.job), witness_is_wrong(self.job, numbers)
        known = self.backend.capabilities.knobs
        return blame.Evidence(golden, witness, bool(numbers), knob, known[knob].culprit if knob else "runtime")


def failing(judge: TraceJudge, tally: Optional[Tally]) -> List[str]:
    """Names of the numeric checks that fail."""
    checks = [check for check in CHECKS if judge.row(check, tally).status != "PASS"]
    diverged = tally is not None and any(found.word == "DIVERGED" for found in tally.verdicts.values())
    return [*checks, "tokens"] if diverged else checks


def golden_contradicts_itself(job: Job) -> bool:
    """Whether the golden's own logits of the traced rows choose other tokens, or differ from its best ones."""
    logits = job.bundle.array("trace_logits")
    suppressed = list(job.bundle.decode.suppress)
    for batch in job.golden.batches:
        assert batch.trace is not None
        for step, start in enumerate(batch.trace.starts()[:-1]):
            scores = np.array(logits[start : start + batch.trace.active(step)])
            scores[:, suppressed] = -np.inf
            for index, row in enumerate(batch.rows[: len(scores)]):
                at = job.bundle.token_slice(row).start + step
                best = logits[start + index][job.bundle.array("top_ids")[at]]
                if not np.allclose(best, job.bundle.array("top_logits")[at], rtol=1e-9, atol=1e-9):
                    return True
            if (scores.argmax(axis=1) != batch.tokens[: len(scores), step]).any():
                return True
    return False


def witness_is_wrong(job: Job, checks: Sequence[str]) -> bool:
    """Whether the recorded witness of this graph fails one of those checks as well."""
    arrays = job.bundle.witness(job.graph.id)
    series = job.golden.series()
    for name, one in series.items():
        if job.golden.check_of(name) not in checks or not arrays:
            continue
        kind = kv_of(name)
        if kind is None:
            values = arrays["encoder" if name == "last_hidden_state" else "logits"]
        else:
            values = arrays["cross" if kind.cross else "self"][kind.layer, kind.side]
        one.add(0, values, len(one.gap))
        if one.judge()[0]:
            return True
    return False


def clearing_knob(backend: Backend, job: Job, free: bool) -> Optional[str]:
    """The first of the adapter's knobs with which everything passes; ``free``: the free replays too."""
    for name, settings in backend.capabilities.knobs.items():
        turned = job._replace(options={**job.options, **settings.options}, series="")
        try:
            programs = compile_parts(backend, turned)
            judge = force(turned, programs)
            if not failing(judge, None) and not (free and failing(judge, decode_all(turned, programs))):
                return name
        except (StageError, ContractError):
            continue
    return None
