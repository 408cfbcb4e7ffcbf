"""Evidence for blame, gathered only when a check has failed: the golden, the witness, and the adapter's knobs."""

from typing import List, Optional, Sequence

import numpy as np

from backends.contract import Backend, StageError
from harness.bundle import kv_of
from harness.judge import blame
from harness.replay.decoder import ContractError
from harness.replay.forced import force
from harness.replay.job import Job, compile_parts
from harness.replay.trace import CHECKS, TraceJudge
from harness.rows import Row


class Blame:
    """The culprit of one cell's failures: looked for once, at the first of them. ``forced``: the forced replay's rows."""

    def __init__(self, backend: Backend, job: Job) -> None:
        self.backend = backend
        self.job = job
        self.forced: List[Row] = []
        self._seen: Optional[blame.Evidence] = None

    def lay(self, row: Row) -> Row:
        """Fill in ``blame``, ``knob`` and the evidence of a row that failed."""
        if row.status == "FAIL":
            seen = self._seen = self._seen or self._look()
            row.blame, row.knob = blame.culprit(row.check, seen), seen.knob or ""
            row.detail["evidence"] = seen._asdict()
            row.detail["knobs"] = list(self.backend.capabilities.knobs) if seen.forced else []
        return row

    def _look(self) -> blame.Evidence:
        wrong = [row.check for row in self.forced if row.status == "FAIL"]
        knob = clearing_knob(self.backend, self.job, wrong) if wrong else None
        golden, witness = golden_contradicts_itself(self.job), witness_is_wrong(self.job, wrong)
        return blame.Evidence(golden, witness, bool(wrong), knob)


def golden_contradicts_itself(job: Job) -> bool:
    """Whether a golden token of the traced rows is not the best choice of the golden's own logits."""
    logits = job.bundle.array("trace_logits")
    suppressed = list(job.bundle.decode.suppress)
    for batch in job.golden.batches:
        assert batch.trace is not None
        for step, start in enumerate(batch.trace.starts()[:-1]):
            scores = np.array(logits[start : start + batch.trace.active(step)])
            scores[:, suppressed] = -np.inf
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
        one.add(0, values)
        if one.judge()[0]:
            return True
    return False


def clearing_knob(backend: Backend, job: Job, checks: Sequence[str]) -> Optional[str]:
    """The first of the adapter's knobs that makes every failed check of the forced replay pass."""
    for name, settings in backend.capabilities.knobs.items():
        try:
            programs = compile_parts(backend, job._replace(options={**job.options, **settings}))
            judge = TraceJudge(job.golden, job.graph)
            force(job, programs, judge)
        except (StageError, ContractError):
            continue
        rows: List[Row] = list(judge.rows())
        if all(row.status == "PASS" for row in rows if row.check in checks and row.check in CHECKS):
            return name
    return None
