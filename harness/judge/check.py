"""What a check is that stands on its own: it sees the observations of one cell and gives one answer.

The checks of forced and free replays, which share what they have seen, are `trace.TraceJudge` and `free.FreeJudge`.
"""

import abc
from typing import NamedTuple

from backends.contract import Probe
from harness.core.graph import Graph
from harness.core.observations import Observation
from harness.core.rows import Answer
from harness.judge.golden import Golden
from harness.judge.trace import TraceJudge


class Cell(NamedTuple):
    """What a check knows of the cell: golden, graph, what the backend says of itself, the judge of the first replay."""

    golden: Golden
    graph: Graph
    probe: Probe
    forced: TraceJudge


class Check(abc.ABC):
    """One check of one cell. ``name`` is the row's ``check``; ``phase`` of observations.PHASES is when it is answered, and
    what must have been replayed for it."""

    name: str
    phase: str

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    @abc.abstractmethod
    def see(self, observation: Observation) -> None:
        """Look at the next observation, of whatever phase."""

    @abc.abstractmethod
    def answer(self) -> Answer:
        """The answer, asked for once, when all of the phase has been seen."""
