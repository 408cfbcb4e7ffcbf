"""Who is to blame for a failed check, from evidence. What other runtimes say is none: two of them can share a fault."""

from dataclasses import replace
from typing import List, NamedTuple, Sequence

import numpy as np

from harness.core import roles, verdict
from harness.core.graph import Graph
from harness.core.rows import Answer
from harness.judge.golden import Golden


class Evidence(NamedTuple):
    """``golden``: the golden contradicts itself; ``witness``: the specification's own evaluation of the graph is
    wrong too; ``numbers``: logits, caches or shapes are wrong where the golden's tokens were fed; ``knob``: the setting
    that clears it, if one does, and ``knob_culprit`` whose it is."""

    golden: bool = False
    witness: bool = False
    numbers: bool = False
    knob: str = ""
    knob_culprit: str = "runtime"


def culprit(check: str, evidence: Evidence) -> str:
    """One word for the row's ``blame``."""
    if evidence.golden:
        return "golden"
    if evidence.witness:
        return "export"
    if evidence.knob:
        return evidence.knob_culprit
    if check == "tokens" and not evidence.numbers:
        return "decode loop"
    return "runtime"


def wrong_checks(answers: Sequence[Answer]) -> List[str]:
    """The numeric checks that failed, by failed answers; also those that nobody asked for."""
    forced = {check for answer in answers for check in answer.detail.get("forced", [])}
    tokens = any(answer.check == "tokens" for answer in answers)
    return [check for check in verdict.FORCED if check in forced] + (["tokens"] if tokens else [])


def recorded_evidence(golden: Golden, graph: Graph, wrong: Sequence[str]) -> Evidence:
    """What the bundle itself says, without any runtime. ``wrong``: see `wrong_checks`."""
    numbers = [check for check in wrong if check in verdict.FORCED]
    witness = witness_is_wrong(golden, graph, numbers)
    return Evidence(golden_contradicts_itself(golden), witness, bool(numbers))


def lay(answer: Answer, evidence: Evidence) -> Answer:
    """A failed answer with its culprit, and the evidence in its detail."""
    detail = {**answer.detail, "evidence": evidence._asdict()}
    return replace(answer, blame=culprit(answer.check, evidence), knob=evidence.knob, detail=detail)


def golden_contradicts_itself(golden: Golden) -> bool:
    """Whether the golden's own logits of the traced rows choose other tokens, or differ from its best ones."""
    bundle = golden.bundle
    logits, suppressed = golden.logits.golden, list(bundle.decode.suppress)
    for batch in golden.batches:
        assert batch.trace is not None
        for step, start in enumerate(batch.trace.starts()[:-1]):
            scores = np.array(logits[start : start + batch.trace.active(step)])
            scores[:, suppressed] = -np.inf
            for index, row in enumerate(batch.rows[: len(scores)]):
                at = bundle.token_slice(row).start + step
                best = logits[start + index][bundle.array("top_ids")[at]]
                if not np.allclose(best, bundle.array("top_logits")[at], rtol=1e-9, atol=1e-9):
                    return True
            if (scores.argmax(axis=1) != batch.tokens[: len(scores), step]).any():
                return True
    return False


def witness_is_wrong(golden: Golden, graph: Graph, checks: Sequence[str]) -> bool:
    """Whether the recorded witness of this graph fails one of those checks as well."""
    arrays = golden.bundle.witness(graph.id)
    for role, series in golden.series(graph).items():
        if golden.check_of(role) not in checks or not arrays:
            continue
        cache = roles.cache_of(role)
        if cache is None:
            values = arrays["encoder" if role == roles.HIDDEN else "logits"]
        else:
            values = arrays["cross" if cache.cross else "self"][cache.layer, cache.side]
        series.add(0, values, len(series.gap))
        if series.judge()[0]:
            return True
    return False
