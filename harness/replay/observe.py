"""Forced and free replays as observations: what came out of each run, without any judgement."""

from typing import Callable, Iterator, List, Mapping, Sequence, Set, Tuple

import numpy as np

from backends.contract import Part, Program, StageError
from harness.core import roles
from harness.core.batch import Batch
from harness.core.graph import slots_of
from harness.core.messages import one_line
from harness.core.observations import (
    FORCED,
    FREE,
    THOROUGH,
    Aligned,
    Decoded,
    Encoded,
    Finished,
    Observation,
    Output,
    Stepped,
    Stopped,
    is_sampled,
)
from harness.judge.compare import dtype_name
from harness.judge.free import Best
from harness.judge.shapes import is_swapped
from harness.replay.decoder import Arrays, CannotGoOn, Decoder
from harness.replay.job import Job
from harness.replay.loops import choose_aligned, decode_freely, force

RELEASE = 8
"""Steps after which the golden's pages go back: a step is not looked at again, and at opus-mt's size it is 6 MB."""
KEPT_EVERY = 16
"""Steps after which the encoder's outputs are looked at again for having been overwritten."""


def observe_forced(job: Job, programs: Mapping[str, Program], thorough: bool = False) -> Iterator[Observation]:
    """The traced batches with the golden's tokens fed. Nothing has run on these programs before.

    A batch that cannot go on ends with Stopped; the next ones still run. ``thorough``: every step has the whole cache.
    """
    phase = THOROUGH if thorough else FORCED
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    for number, batch in enumerate(job.golden.batches):
        step = -1
        watch = _Watch(job, batch, number, phase)
        try:
            for step, ran in force(decoder, batch, job.bundle.decode.start, job.beat):
                job.spent(ran.seconds)
                if step % RELEASE == 0:
                    job.bundle.release()
                yield (
                    watch.encoded(ran.part, ran.outputs, decoder)
                    if step < 0
                    else watch.stepped(step, ran.part, ran.outputs)
                )
                step += 1
        except CannotGoOn as stop:
            yield Stopped(phase, number, step, "contract", str(stop))
        except StageError as error:
            where = "in the encoder" if step < 0 else f"at step {step}"
            yield Stopped(phase, number, step, error.kind, f"refused {where}: {one_line(error.message)}")


class _Watch:
    """Makes observations of one batch's runs, and notices when a run changes what an earlier one gave."""

    def __init__(self, job: Job, batch: Batch, number: int, phase: str) -> None:
        assert batch.trace is not None
        self.job, self.batch, self.trace, self.number, self.phase = job, batch, batch.trace, number, phase
        self._swapped: Set[str] = set()
        self._encoder: List[Tuple[str, int, np.ndarray, bytes]] = []
        self._latest: List[Tuple[str, int, np.ndarray, bytes]] = []

    def encoded(self, part: Part, outputs: Arrays, decoder: Decoder) -> Encoded:
        self._encoder = _sampled(outputs, -1)
        fill = decoder.own_cache() if self.job.graph.static else {}
        seen = {role: self._of_source(part, role, array) for role, array in outputs.items()}
        return Encoded(self.number, part.name, seen, fill, self.phase)

    def stepped(self, step: int, part: Part, outputs: Arrays) -> Stepped:
        earlier = (*self._latest, *(self._encoder if step % KEPT_EVERY == KEPT_EVERY - 1 else ()))
        overwritten = tuple((role, given) for role, given, array, before in earlier if _sample(array) != before)
        self._latest = _sampled(outputs, step)
        seen = {role: self._of_step(step, part, role, array) for role, array in outputs.items()}
        return Stepped(self.number, step, part.name, seen, overwritten, self.phase)

    def _of_source(self, part: Part, role: str, array: np.ndarray) -> Output:
        cache = roles.cache_of(role)
        value = None
        if role == roles.HIDDEN and array.ndim == 3:
            value = array
        elif cache and cache.cross and array.ndim == 4:
            value = self._oriented(part, role, array, self.batch.ids.shape[1])
        return Output(dtype_name(array.dtype), array.shape, value)

    def _of_step(self, step: int, part: Part, role: str, array: np.ndarray) -> Output:
        active = self.trace.active(step)
        if role == roles.LOGITS:
            value = array[:active, -1] if array.ndim == 3 and array.shape[1] else None
            return Output(dtype_name(array.dtype), array.shape, value)
        if not roles.is_own(role) or array.ndim != 4:
            return self._of_source(part, role, array)
        slots = slots_of(part)
        cache = self._oriented(part, role, array, slots or step + 1)[:active]
        if cache.shape[2] <= step:
            return Output(dtype_name(array.dtype), array.shape)
        value = cache[:, :, step]
        if cache.shape[2] != (slots or step + 1):  # too long: what is older cannot be told from what is new
            return Output(dtype_name(array.dtype), array.shape, value)
        whole = bool(slots and not step) or is_sampled(step, active, self.trace.active(step + 1))
        if whole or (self.phase == THOROUGH and step > 0):
            return Output(dtype_name(array.dtype), array.shape, value, whole=cache)
        first, last = (cache[:, :, 0], cache[:, :, step - 1]) if step else (None, None)
        coming = cache[:, :, step + 1] if slots > step + 1 else None
        return Output(dtype_name(array.dtype), array.shape, value, first, last, coming)

    def _oriented(self, part: Part, role: str, array: np.ndarray, length: int) -> np.ndarray:
        """A cache as [rows, heads, length, head_dim], also where the runtime has put the length before the heads."""
        declared = next((port.shape for port in part.outputs if port.role == role), array.shape)
        expected = (len(array), *(dim if isinstance(dim, int) else length for dim in declared[1:]))
        if is_swapped(array.shape, expected):
            self._swapped.add(role)
        return array.transpose(0, 2, 1, 3) if role in self._swapped else array


def _sampled(outputs: Arrays, step: int) -> List[Tuple[str, int, np.ndarray, bytes]]:
    return [(role, step, array, _sample(array)) for role, array in outputs.items()]


def _sample(array: np.ndarray) -> bytes:
    """Some 64 values spread over an array, and one of each entry of a cache: enough to see it overwritten, even where just
    one slot of a fixed-size cache comes out another."""
    flat = array.reshape(-1)
    entries = array[0, 0, :, 0].tobytes() if array.ndim == 4 and array.size else b""
    return flat[:: max(1, flat.size // 64)].tobytes() + entries


def observe_free(
    job: Job, programs: Mapping[str, Program], batches: Sequence[Batch], matches: Callable[[int], bool]
) -> Iterator[Observation]:
    """Every corpus row decoded on the runtime's own choices; a batch that left the golden once more with its tokens fed.

    ``matches``: whether all rows of that batch, as observed, chose as the golden does.
    """
    rules = job.bundle.decode
    decoder = Decoder(programs, job.graph, job.bundle.dims)
    for number, batch in enumerate(batches):
        best = Best(job.bundle, batch)
        try:
            yield Decoded(number, *decode_freely(decoder, batch, best, rules, job.beat))
            if not matches(number):
                yield Aligned(number, *choose_aligned(decoder, batch, best, rules, job.beat))
        except (CannotGoOn, StageError) as error:
            yield Stopped(FREE, number, decoder.position, "contract", str(error))
    yield Finished(FREE)
