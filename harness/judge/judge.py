"""``judge(golden, observations) -> answers``: the checks of one cell, folded over what was observed."""

from dataclasses import replace
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from backends.contract import Probe
from harness.core import observations as seen
from harness.core import roles
from harness.core.batch import split_rows
from harness.core.graph import Graph
from harness.core.rows import Answer
from harness.core.verdict import FORCED, NUMERIC
from harness.judge.cost import judge_cost
from harness.judge.free import FreeJudge
from harness.judge.golden import Golden
from harness.judge.invariance import InvarianceJudge
from harness.judge.placement import judge_placement
from harness.judge.trace import TraceJudge

Save = Callable[[str, Mapping[str, np.ndarray]], str]
"""Writes a sidecar file of that kind; returns its path from the results folder on, empty for none."""
REPLAYED = frozenset({*FORCED, "tokens", "invariance"})
"""Checks that rest on the forced replay."""
FREE = frozenset({"logits", "tokens"})
"""Checks that the free replays have something to say to."""


class Judge:
    """The judge of one cell. ``see`` takes each observation once and gives the answers that it completes."""

    def __init__(
        self, golden: Golden, graph: Graph, probe: Probe, checks: Sequence[str], save: Optional[Save] = None
    ) -> None:
        self.golden, self.graph, self.probe = golden, graph, probe
        self.checks = [check for check in NUMERIC if check in checks]
        self.save: Save = save or (lambda kind, arrays: "")
        logits = graph.output_name(roles.LOGITS)
        self.forced = self.thorough = TraceJudge(golden, graph)
        self.free = FreeJudge(golden, split_rows(golden.free, graph.rows), logits)
        self.invariance = InvarianceJudge(golden, self.forced.series[roles.LOGITS], logits)
        self._placed: List[seen.Placed] = []
        self._series = ""

    @property
    def wants_thorough(self) -> bool:
        """Whether a second replay should look at every step for the one at which a cache entry changed."""
        return bool(self.forced.history.misses)

    def see(self, observation: seen.Observation) -> Iterator[Answer]:
        """Take the next observation; gives answers as soon as nothing more can change them.

        A failed one says in ``detail["forced"]`` which checks of the forced replay fail, asked for or not.
        """
        for answer in self._answers(observation):
            if answer.check in self.checks:
                failed = answer.status == "FAIL" and answer.check in REPLAYED
                yield replace(answer, detail={**answer.detail, "forced": self.wrong_forced()}) if failed else answer

    def _answers(self, observation: seen.Observation) -> Iterator[Answer]:
        if isinstance(observation, seen.Measured):
            yield judge_cost(observation)
        elif isinstance(observation, seen.Placed):
            self._placed.append(observation)
        elif isinstance(observation, (seen.Decoded, seen.Aligned)):
            self.free.see(observation)
        elif isinstance(observation, seen.WayStep):
            self.invariance.see(observation)
        elif isinstance(observation, seen.Finished):
            yield from self._conclude(observation.phase)
        elif observation.phase == seen.COST:
            assert isinstance(observation, seen.Stopped)
            yield judge_cost(observation)
        else:
            self._see_replay(observation)

    def _see_replay(self, observation: Any) -> None:
        if observation.phase == seen.FREE:
            self.free.see(observation)
        elif observation.phase == seen.WAYS:
            self.invariance.see(observation)
        elif observation.phase == seen.FORCED:
            self.forced.see(observation)
        else:
            if self.thorough is self.forced:
                self.thorough = TraceJudge(self.golden, self.graph)
            self.thorough.see(observation)

    def _conclude(self, phase: str) -> Iterator[Answer]:
        if phase == seen.FORCED:
            if self.thorough is not self.forced:  # two replays of one fault: the second one saw where it began
                self.forced.history.misses = self.thorough.history.misses or self.forced.history.misses
            self._series = self.save("trace", self.forced.sidecar())
            for check in FORCED:
                if check != "logits" and check in self.checks:
                    yield self._with_series(self.forced.answer(check))
        elif phase == seen.FREE:
            yield from self._conclude_free()
        elif phase == seen.PLACEMENT:
            yield judge_placement(self.probe, self._placed)
        elif phase == seen.WAYS:
            yield self.invariance.answer()

    def _conclude_free(self) -> Iterator[Answer]:
        if "logits" in self.checks:
            yield self._with_series(self.logits())
        if "tokens" in self.checks:
            yield replace(self.free.answer(), series=self.save("tokens", self.free.sidecar()))

    def logits(self) -> Answer:
        """The answer to ``logits`` from the traced rows and the free ones."""
        answer = self.forced.answer("logits", self.free.misses, self.free.compared_logits)
        free = {"largest gap": self.free.worst, "compared": self.free.compared_logits}
        return replace(answer, detail={**answer.detail, "free": free})

    def wrong_forced(self) -> List[str]:
        """The checks of verdict.FORCED that do not pass, whoever asked for them."""
        answers = (self.logits() if check == "logits" else self.forced.answer(check) for check in FORCED)
        return [answer.check for answer in answers if answer.status != "PASS"]

    def _with_series(self, answer: Answer) -> Answer:
        return replace(answer, series=self._series)


def judge(
    golden: Golden,
    graph: Graph,
    probe: Probe,
    observations: Iterable[seen.Observation],
    checks: Sequence[str] = NUMERIC,
    save: Optional[Save] = None,
) -> Iterator[Answer]:
    """The answers to those of ``checks`` that the observations are enough for, as they come."""
    one = Judge(golden, graph, probe, checks, save)
    for observation in observations:
        yield from one.see(observation)
