"""Who is to blame for what failed: the golden, the witness, and the adapter's knobs. Runs after the verdict is written."""

import traceback
from dataclasses import replace
from typing import Callable, Dict, Iterator, List, Mapping, Sequence

from backends.contract import Backend, Knob, Probe, StageError
from backends.staged import Reached
from harness.core import verdict
from harness.core.batch import split_rows
from harness.core.messages import one_line
from harness.core.rows import Answer
from harness.judge import blame
from harness.judge.judge import Judge
from harness.replay.decoder import AdapterError, ContractError
from harness.replay.job import Job, compile_parts
from harness.replay.observe import observe_forced, observe_free

CLEARS = "clears it"
CHOICES = frozenset({"logits", "tokens"})
"""Checks that the free replays have a part in."""


def explain(
    backend: Backend,
    probe: Probe,
    job: Job,
    answers: Sequence[Answer],
    tried: Mapping[str, str],
    trying: Callable[[str], None],
) -> Iterator[Answer]:
    """The failed answers of one cell again, with ``blame``, ``knob``, and the evidence in their detail.

    ``tried``: knobs that are already known, with what came of them: one that kills the process is not turned again.
    ``trying`` is told the name of each knob before it is turned.
    """
    wrong = blame.wrong_checks(answers)
    evidence = blame.recorded_evidence(job.golden, job.graph, wrong)
    outcomes = dict(tried)
    knob = _clearing_knob(backend, probe, job, wrong, outcomes, trying) if wrong else ""
    repeatable = True
    if knob:
        trying("")
        repeatable = bool(_wrong_now(backend, probe, job, bool(CHOICES & set(wrong))))
        if repeatable:
            evidence = evidence._replace(knob=knob, knob_culprit=_knob(backend, knob).culprit)
    for answer in answers:
        message = answer.message if repeatable else f"{answer.message}; {verdict.UNREPEATABLE}"
        yield blame.lay(replace(answer, message=message, detail={**answer.detail, "knobs": outcomes}), evidence)


def _knob(backend: Backend, name: str) -> Knob:
    knob = backend.capabilities.knobs[name]
    return knob if isinstance(knob, Knob) else Knob(knob)  # adapters of earlier releases name the options alone


def _clearing_knob(
    backend: Backend,
    probe: Probe,
    job: Job,
    wrong: Sequence[str],
    outcomes: Dict[str, str],
    trying: Callable[[str], None],
) -> str:
    """The first knob with which everything passes, or nothing; ``outcomes`` gets what came of each."""
    for name in backend.capabilities.knobs:
        if name in outcomes:
            continue
        trying(name)
        options = {**job.options, **_knob(backend, name).options}
        turned = replace(job, options=options, series="", keep="", clock=dict(job.clock))
        try:
            still = _wrong_now(backend, probe, turned, bool(CHOICES & set(wrong)))
        except (StageError, ContractError, Reached) as error:
            outcomes[name] = f"refused: {one_line(str(error))}"
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises here leaves the verdict as it is
            traceback.print_exc()
            cause = error.__cause__ if isinstance(error, AdapterError) else error
            outcomes[name] = f"raised {type(cause).__name__}: {one_line(str(cause))}"
        else:
            outcomes[name] = f"does not clear it: {', '.join(still)} still wrong" if still else CLEARS
            if not still:
                return name
    return ""


def _wrong_now(backend: Backend, probe: Probe, job: Job, free: bool) -> List[str]:
    """The numeric checks that fail in a replay on programs compiled now; ``free``: in the free replays too."""
    judge = Judge(job.golden, job.graph, probe, ())
    with compile_parts(backend, job) as programs:
        for observation in observe_forced(job, programs):
            list(judge.see(observation))
        wrong = judge.wrong_forced()
        if wrong or not free:
            return wrong
        batches = split_rows(job.golden.free, job.graph.rows)
        for observation in observe_free(job, programs, batches, judge.free.matches):
            list(judge.see(observation))
    return judge.wrong_forced() + ([] if judge.free.answer().status == "PASS" else ["tokens"])
