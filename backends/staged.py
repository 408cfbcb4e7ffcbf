"""Runtimes that build: parse, build and load, each timed and logged; a built engine is kept for the next run (`engines`).

No adapter: adapters derive from ``Staged``.
"""

import abc
import contextlib
import sys
import time
from typing import Any, Dict, Iterator, Tuple

from backends import engines
from backends.contract import STAGES, Absent, Backend, Part, Probe, Program, StageError

LOG_LINES = 12
"""How many lines of a stage's log a row keeps: the last ones."""


class Reached(Exception):
    """This box takes a part no further. ``stage``: the last one that was done; ``absent``: what the next one needs."""

    def __init__(self, stage: str, absent: Absent) -> None:
        super().__init__(f"{stage}: {absent}")
        self.stage, self.absent = stage, absent


class Staged(Backend):
    """A backend that builds an engine from a part and loads it. An adapter writes ``probe`` and the three stages.

    ``probed``: what ``probe`` returned, which sets it.
    ``toolkit``: the version of the compiler where it has one of its own, and whatever else on this box its engines are
    specific to, besides the device's name.
    ``cached``: False where an engine is of no use outside the process that built it, as with a simulator that is part of
    the compiler.
    ``load_options``: names of options that ``build`` does not use.
    """

    probed: Probe
    toolkit = ""
    cached = True
    load_options: Tuple[str, ...] = ("threads",)

    @abc.abstractmethod
    def parse(self, part: Part, options: Dict[str, Any]) -> Any:
        """Read the part. The result is passed to ``build``. Raises StageError("parse", ...)."""

    @abc.abstractmethod
    def build(self, parsed: Any, part: Part, options: Dict[str, Any]) -> bytes:
        """The engine, as ``load`` reads it from a file. Raises StageError("build", ...)."""

    @abc.abstractmethod
    def load(self, engine: engines.Engine, parsed: Any, part: Part, options: Dict[str, Any]) -> Program:
        """Make an engine ready to run; ``parsed`` is None when it is a stored one. Raises StageError("load", ...)."""

    def note(self, line: str) -> None:
        """Add lines of the runtime's log to the record of the current stage."""
        if self.stages:
            self.stages[-1]["log"] = [*self.stages[-1].get("log", []), *line.splitlines()][-LOG_LINES:]

    def compile(self, part: Part, options: Dict[str, Any]) -> Program:
        """Raises Reached where this box goes no further, and StageError, also for a stored engine that is not usable."""
        slot, parsed = engines.Slot(self._recipe(part, options)), None
        began = time.perf_counter()
        stored = slot.stored() if self.cached else None
        if stored is None:
            parsed, engine = self._parse_and_build(part, options, slot)
        else:
            engine = stored
            seconds = round(time.perf_counter() - began, 4)
            self.stages.append({"part": part.name, "stage": "build", "cached": True, "seconds": seconds})
        self.stages[-1].update(artifact=engine.path, bytes=engine.size, build_seconds=engine.seconds)
        with self._stage(part, "load"):
            try:
                return self.load(engine, parsed, part, options)
            except StageError as error:
                if stored is None:
                    raise
                advice = f"the engine was kept by an earlier run, delete {slot.path} to build it again"
                raise StageError(error.stage, error.kind, f"{error.message}; {advice}") from error

    def _parse_and_build(self, part: Part, options: Dict[str, Any], slot: engines.Slot) -> Tuple[Any, engines.Engine]:
        with self._stage(part, "parse"):
            parsed = self.parse(part, options)
        with self._stage(part, "build"):
            began = time.perf_counter()
            content = self.build(parsed, part, options)
            seconds = round(time.perf_counter() - began, 4)
            if self.cached:
                return parsed, slot.store(content, seconds)
            return parsed, engines.Engine("", len(content), seconds)

    @contextlib.contextmanager
    def _stage(self, part: Part, name: str) -> Iterator[None]:
        """Add a stage's record to ``stages``. Raises Reached when this box does not go so far."""
        if STAGES.index(name) > STAGES.index(self.capabilities.deepest_stage):
            assert self.missing is not None, "an adapter that stops before run sets `missing`"
            raise Reached(self.capabilities.deepest_stage, self.missing)
        record: Dict[str, Any] = {"part": part.name, "stage": name}
        self.stages.append(record)
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            record["failed"] = True
            raise
        finally:
            record["seconds"] = round(time.perf_counter() - began, 4)

    def _recipe(self, part: Part, options: Dict[str, Any]) -> Dict[str, Any]:
        """Everything that a part's engine depends on."""
        kind = type(self)
        sources = (getattr(sys.modules.get(base.__module__), "__file__", None) for base in kind.__mro__)
        return {
            "backend": f"{kind.__module__}:{kind.__name__}",
            "provider": self.provider,
            "part": part.name,
            **vars(self.probed),
            "toolkit": self.toolkit,
            "options": {name: value for name, value in options.items() if name not in self.load_options},
            "adapter": engines.digest(source for source in sources if source),
            "model": engines.model_digests(part.path),
            "inputs": [(port.name, port.dtype, port.shape) for port in part.inputs],
        }
