"""What came out of one run of one graph. Replay yields observations, the judge sees nothing else.

They are plain data, frozen, and hold views of a runtime's arrays where they can: whoever keeps one for longer than the
next run copies it. ``docs/observations.md`` is the same on disk, for producers in any language.

A batch is named by its index among the bundle's batches of its kind. Sizes: *rows* of the batch, *active* rows that are
still decoding at that step (the first ones), *source* ids, *k* best golden logits.
"""

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple, Union

import numpy as np

FORCED, THOROUGH, FREE, PLACEMENT, WAYS, COST = "forced", "thorough", "free", "placement", "ways", "cost"
PHASES = (FORCED, THOROUGH, FREE, PLACEMENT, WAYS, COST)


@dataclass(frozen=True)
class Output:
    """One output as it came: numpy's name of its dtype, its whole shape, and of its values what is judged.

    ``value``: the encoder's output [rows, source, d_model]; a cross cache [rows, heads, source, head_dim]; the newest logits
    [active, vocabulary]; of an own cache the entry written at this step, [active, heads, head_dim]. None where the shape is
    such that there is none. The rest is of own caches only: ``first`` and ``last`` are the oldest entry and the one written
    at the step before, ``next`` the slot that the next step of a static graph will write, all as ``value``; ``whole`` is the
    cache [active, heads, length, head_dim], at sampled steps only (`is_sampled`).
    """

    dtype: str
    shape: Tuple[int, ...]
    value: Optional[np.ndarray] = None
    first: Optional[np.ndarray] = None
    last: Optional[np.ndarray] = None
    next: Optional[np.ndarray] = None
    whole: Optional[np.ndarray] = None


Outputs = Mapping[str, Output]
"""By role; an output that the part does not declare by ``?NAME``."""


@dataclass(frozen=True)
class Encoded:
    """A batch went through the encoder. ``fill``: by role, what a static graph's own cache held before the first step."""

    batch: int
    part: str
    outputs: Outputs
    fill: Mapping[str, np.ndarray] = field(default_factory=dict)
    phase: str = FORCED


@dataclass(frozen=True)
class Stepped:
    """One decoder step of a forced replay. ``overwritten``: roles of earlier outputs whose memory this run changed, each
    with the step that had given it (-1: the encoder)."""

    batch: int
    step: int
    part: str
    outputs: Outputs
    overwritten: Tuple[Tuple[str, int], ...] = ()
    phase: str = FORCED


@dataclass(frozen=True)
class Stopped:
    """A replay of a batch could not go on at ``step`` (-1: in the encoder). ``kind``: ``contract`` where the runtime did not
    give what the next step needs, else the kind of a refusal."""

    phase: str
    batch: int
    step: int
    kind: str
    message: str


@dataclass(frozen=True)
class Decoded:
    """A free greedy decode of a batch. ``ids``: [rows, steps] int64, what was chosen, then pad; ``lengths``: [rows], each
    row's steps with its end token. ``largest``: [rows, steps] int64, the id of the largest logit, before any is ruled out;
    ``best``: [rows, golden steps, k], the logits of the golden's best ids, NaN where there are none."""

    batch: int
    ids: np.ndarray
    lengths: np.ndarray
    largest: np.ndarray
    best: np.ndarray


@dataclass(frozen=True)
class Aligned:
    """A free batch that left the golden, decoded once more with the golden's tokens fed. ``choices``: [rows, golden steps]
    int64, what would have been chosen; ``best`` as in Decoded."""

    batch: int
    choices: np.ndarray
    best: np.ndarray


@dataclass(frozen=True)
class WayStep:
    """Logits of one step of the invariance check's batch, run in one way. ``way``: its name, ``base`` for the first;
    ``rows``: of the batch, in the order of ``logits`` [rows, vocabulary]."""

    way: str
    rows: Tuple[int, ...]
    step: int
    logits: np.ndarray


@dataclass(frozen=True)
class Placed:
    """What did the work of a part, in the runtime's own words; ``device`` is empty where it gives no proof."""

    part: str
    device: str = ""
    precision: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Measured:
    """What a decode costs. Seconds are wall time: of loading all parts, of the encoder, of each step. ``memory``: bytes
    held after each identical replay. ``alone``: no other worker ran, else the seconds mean nothing."""

    rows: int
    tokens: int
    load: float
    encoder: float
    steps: Tuple[float, ...]
    memory: Tuple[int, ...]
    peak: int
    file_bytes: int
    threads: int
    cpu: Tuple[str, ...]
    alone: bool


@dataclass(frozen=True)
class Finished:
    """All of a phase has been observed."""

    phase: str


Observation = Union[Encoded, Stepped, Stopped, Decoded, Aligned, WayStep, Placed, Measured, Finished]


def is_sampled(step: int, active: int, active_next: int) -> bool:
    """Whether the whole cache is observed at that step: where its length is a power of two, and where a row ends."""
    return step > 0 and (active_next < active or (step + 1) & step == 0)
