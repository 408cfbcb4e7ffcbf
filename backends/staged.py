"""Runtimes that build: parse, build, load, each timed and logged, and the built engine kept from one run to the next.

No adapter: adapters derive from ``Staged``. Engines lie in ``CONFORM_ENGINES``, else in the user's cache folder, one folder
each: ``engine``, and ``built.json``, which says what it was built from. The folder's name is a hash of just that, so two
models of one name never share an engine. The whole cache can be deleted at any time.
"""

import abc
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from backends.contract import STAGES, Absent, Backend, Part, Probe, Program, StageError

LAST = 12
"""Lines of a stage's log that a row keeps."""


class Reached(Exception):
    """A part came as far as this box takes it: ``stage`` is the last one that was done, ``absent`` what the next lacks."""

    def __init__(self, stage: str, absent: Absent) -> None:
        super().__init__(f"{stage}: {absent}")
        self.stage, self.absent = stage, absent


class Engine(NamedTuple):
    """A built part on disk. ``size`` in bytes; ``seconds``: what building it took, whenever that was."""

    path: str
    size: int
    seconds: float


class Staged(Backend):
    """A backend that turns a part into an engine and loads that; ``compile`` is ready-made, the three stages are not.

    ``found`` is what ``probe`` gave, which sets it. ``toolkit`` is the version of the compiler where it has one of its own,
    and whatever of this box its engines are made for beside the device's name.
    ``cached = False``: the engine means nothing without the process that built it, as in a simulator that is part of the
    compiler. ``at_load`` are the options that ``build`` does not look at.
    """

    found: Probe
    toolkit = ""
    cached = True
    at_load: Tuple[str, ...] = ("threads",)

    @abc.abstractmethod
    def parse(self, part: Part, options: Dict[str, Any]) -> Any:
        """Read the part; what comes is given to ``build``. Raises StageError("parse", ...)."""

    @abc.abstractmethod
    def build(self, parsed: Any, part: Part, options: Dict[str, Any]) -> bytes:
        """The engine, in whatever form ``load`` takes it from a file. Raises StageError("build", ...)."""

    @abc.abstractmethod
    def load(self, engine: Engine, parsed: Any, part: Part, options: Dict[str, Any]) -> Program:
        """Make an engine ready to run; ``parsed`` is None when it comes from the cache. Raises StageError("load", ...)."""

    def note(self, line: str) -> None:
        """Keep a line of the runtime's log with the stage that is going on."""
        if self.stages:
            self.stages[-1]["log"] = [*self.stages[-1].get("log", []), *line.splitlines()][-LAST:]

    def compile(self, part: Part, options: Dict[str, Any]) -> Program:
        """Raises Reached where this box goes no further, and StageError, also for a kept engine that is not what it says."""
        place, recipe = self._place(part, options)
        began, parsed = time.perf_counter(), None
        engine = kept = _kept(place, recipe) if self.cached else None
        if engine is None:
            with self._stage(part, "parse"):
                parsed = self.parse(part, options)
            with self._stage(part, "build") as told:
                building = time.perf_counter()
                plan = self.build(parsed, part, options)
                engine = Engine("", len(plan), round(time.perf_counter() - building, 4))
                if self.cached:
                    engine = _keep(place, recipe, plan, engine.seconds)
        else:
            took = round(time.perf_counter() - began, 4)
            told = {"part": part.name, "stage": "build", "cached": True, "seconds": took}
            self.stages.append(told)
        told.update(artifact=engine.path, bytes=engine.size, build_seconds=engine.seconds)
        with self._stage(part, "load"):
            try:
                return self.load(engine, parsed, part, options)
            except StageError as error:
                if kept is None:
                    raise
                words = f"{error.message}; the engine was kept by an earlier run, delete {place} to build it again"
                raise StageError(error.stage, error.kind, words) from error

    @contextlib.contextmanager
    def _stage(self, part: Part, name: str) -> Iterator[Dict[str, Any]]:
        """What a stage went through, kept in ``stages``. Raises Reached when this box does not go so far."""
        if STAGES.index(name) > STAGES.index(self.capabilities.deepest_stage):
            assert self.missing is not None, "an adapter that goes less far than run says what is missing"
            raise Reached(self.capabilities.deepest_stage, self.missing)
        told = {"part": part.name, "stage": name}  # type: Dict[str, Any]
        self.stages.append(told)
        began = time.perf_counter()
        try:
            yield told
        except BaseException:
            told["failed"] = True
            raise
        finally:
            told["seconds"] = round(time.perf_counter() - began, 4)

    def _place(self, part: Part, options: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
        """The folder of a part's engine, and all that the engine depends on."""
        sources = (getattr(sys.modules.get(one.__module__), "__file__", None) for one in type(self).__mro__)
        recipe = {
            "backend": f"{type(self).__module__}:{type(self).__name__}", "provider": self.provider, "part": part.name,
            **vars(self.found), "toolkit": self.toolkit,
            "options": {name: value for name, value in options.items() if name not in self.at_load},
            "adapter": _digest([source for source in sources if source]), "model": _model(part.path),
            "inputs": [(port.name, port.dtype, port.shape) for port in part.inputs],
        }  # fmt: skip
        plain = json.loads(json.dumps(recipe, sort_keys=True, default=str))
        key = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        return os.path.join(folder(), key[:32]), plain


def folder() -> str:
    """Where engines are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("CONFORM_ENGINES") or os.path.join(root, "seq2seq-conformance", "engines")


def _digest(paths: List[str]) -> str:
    """SHA-256 over the content of files, in their order."""
    found = hashlib.sha256()
    for path in dict.fromkeys(paths):
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                found.update(block)
    return found.hexdigest()


def _model(path: str) -> Dict[str, str]:
    """Hashes of a graph and of its external weights: the files beside it whose names it holds."""
    with open(path, "rb") as stream:
        content = stream.read()
    around = os.path.dirname(path)
    files = (one.name for one in os.scandir(around) if one.is_file())
    named = [name for name in files if name != os.path.basename(path) and name.encode() in content]
    return {"graph": _digest([path]), **{name: _digest([os.path.join(around, name)]) for name in sorted(named)}}


def _keep(place: str, recipe: Dict[str, Any], plan: bytes, seconds: float) -> Engine:
    """Put an engine where the next run finds it, whole or not at all. Where another process was faster, its own serves."""
    built = {"sha256": hashlib.sha256(plan).hexdigest(), "bytes": len(plan), "seconds": seconds, "from": recipe}
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=os.path.dirname(place)) as beside:
            draft = os.path.join(beside, "whole")
            os.mkdir(draft)
            with open(os.path.join(draft, "engine"), "wb") as stream:
                stream.write(plan)
            with open(os.path.join(draft, "built.json"), "w", encoding="utf-8") as note:
                json.dump(built, note, ensure_ascii=False, indent=1)
            try:
                os.rename(draft, place)
            except OSError:
                if not os.path.isdir(place):
                    raise
    except OSError as error:
        words = f"{place}: the engine cannot be kept ({error.strerror}); give another folder with CONFORM_ENGINES"
        raise StageError("build", "other", words) from error
    kept = _kept(place, recipe)
    assert kept is not None, "it was put there a moment ago"
    return kept


def _kept(place: str, recipe: Dict[str, Any]) -> Optional[Engine]:
    """The engine that an earlier run built from just that. Raises StageError for one that is something else."""
    if not os.path.lexists(place):
        return None
    path = os.path.join(place, "engine")
    try:
        with open(os.path.join(place, "built.json"), encoding="utf-8") as note:
            built = json.load(note)
        size, digest = os.path.getsize(path), _digest([path])
        if built["from"] != recipe:
            other = [word for word in recipe if built["from"].get(word) != recipe[word]]
            problem = f"is stale or of something else: it was built from another {', '.join(other) or 'recipe'}"
        elif size != built["bytes"]:
            problem = f"is not whole: {size:,} bytes, {built['bytes']:,} were built"
        elif digest != built["sha256"]:
            problem = "was changed after it was built: its SHA-256 is another"
        else:
            return Engine(path, size, built["seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is foreign or damaged: nothing says what it was built from ({error!r})"
    raise StageError("load", "other", f"{place}: the engine there {problem}; delete that folder to build it again")
