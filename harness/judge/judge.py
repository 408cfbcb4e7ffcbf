"""``judge(golden, observations) -> answers``: the checks of one cell, folded over what was observed."""

from dataclasses import replace
from typing import Callable, Iterable, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from backends.contract import Probe
from harness.core import observations, roles
from harness.core.batch import split_rows
from harness.core.graph import Graph
from harness.core.rows import Answer
from harness.core.verdict import FORCED, NUMERIC, UNBLAMED
from harness.judge.check import Cell
from harness.judge.checks import CHECKS
from harness.judge.free import FreeJudge
from harness.judge.golden import Golden
from harness.judge.trace import TraceJudge

Save = Callable[[str, Mapping[str, np.ndarray]], str]
"""Writes a sidecar file of that kind; returns its path from the results folder on, empty for none."""


class Judge:
    """The judge of one cell. ``see`` takes each observation once and gives the answers that it completes."""

    def __init__(
        self, golden: Golden, graph: Graph, probe: Probe, checks: Sequence[str], save: Optional[Save] = None
    ) -> None:
        self.golden, self.graph = golden, graph
        self.checks = [check for check in NUMERIC if check in checks]
        self.save: Save = save or (lambda kind, arrays: "")
        self.forced = self.thorough = TraceJudge(golden, graph)
        self.free = FreeJudge(golden, split_rows(golden.free, graph.rows), graph.output_name(roles.LOGITS))
        cell = Cell(golden, graph, probe, self.forced)
        self.others = [check(cell) for check in CHECKS if check.name in self.checks]
        self._series = ""

    @property
    def wants_thorough(self) -> bool:
        """Whether a second replay should look at every step for the one at which a cache entry changed."""
        return bool(self.forced.history.misses)

    def see(self, observation: observations.Observation) -> Iterator[Answer]:
        """Take the next observation; gives answers as soon as nothing more can change them.

        A failed one says in ``detail["forced"]`` which checks of the forced replay fail, asked for or not.
        """
        for answer in self._answers(observation):
            if answer.check in self.checks:
                numbers = answer.status == "FAIL" and answer.check not in UNBLAMED
                yield replace(answer, detail={**answer.detail, "forced": self.wrong_forced()}) if numbers else answer

    def _answers(self, observation: observations.Observation) -> Iterator[Answer]:
        if isinstance(observation, observations.Finished):
            yield from self._conclude(observation.phase)
            return
        for check in self.others:
            check.see(observation)
        if isinstance(observation, (observations.Encoded, observations.Stepped, observations.Stopped)):
            self._see_replay(observation)
        elif isinstance(observation, (observations.Decoded, observations.Aligned)):
            self.free.see(observation)

    def _see_replay(self, observation: "observations.Encoded | observations.Stepped | observations.Stopped") -> None:
        if observation.phase == observations.FORCED:
            self.forced.see(observation)
        elif observation.phase == observations.THOROUGH:
            if self.thorough is self.forced:
                self.thorough = TraceJudge(self.golden, self.graph)
            self.thorough.see(observation)
        elif observation.phase == observations.FREE:
            assert isinstance(observation, observations.Stopped)
            self.free.see(observation)

    def _conclude(self, phase: str) -> Iterator[Answer]:
        if phase == observations.FORCED:
            if self.thorough is not self.forced:  # two replays of one fault: the second one saw where it began
                self.forced.history.misses = self.thorough.history.misses or self.forced.history.misses
            self.forced.history.release()
            self.thorough.history.release()
            self._series = self.save("trace", self.forced.sidecar())
            for check in FORCED:
                if check != "logits" and check in self.checks:
                    yield replace(self.forced.answer(check), series=self._series)
        elif phase == observations.FREE:
            if "logits" in self.checks:
                yield replace(self.logits(), series=self._series)
            if "tokens" in self.checks:
                yield replace(self.free.answer(), series=self.save("tokens", self.free.sidecar()))
        for other in self.others:
            if other.phase == phase:
                yield other.answer()

    def logits(self) -> Answer:
        """The answer to ``logits`` from the traced rows and the free ones."""
        answer = self.forced.answer("logits", self.free.misses, self.free.compared_logits)
        free = {"largest gap": self.free.worst, "compared": self.free.compared_logits}
        return replace(answer, detail={**answer.detail, "free": free})

    def wrong_forced(self) -> List[str]:
        """The checks of verdict.FORCED that do not pass, whoever asked for them."""
        answers = (self.logits() if check == "logits" else self.forced.answer(check) for check in FORCED)
        return [answer.check for answer in answers if answer.status != "PASS"]


def judge(
    golden: Golden,
    graph: Graph,
    probe: Probe,
    observations: Iterable[observations.Observation],
    checks: Sequence[str] = NUMERIC,
    save: Optional[Save] = None,
) -> Iterator[Answer]:
    """The answers to those of ``checks`` that the observations are enough for, as they come."""
    one = Judge(golden, graph, probe, checks, save)
    for observation in observations:
        yield from one.see(observation)
