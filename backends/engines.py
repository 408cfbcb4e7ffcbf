"""The cache of built engines: one folder for each, which the next run finds by what the engine was built from. No adapter.

The cache is ``CONFORM_ENGINES``, else a folder of the user's cache. An engine's folder has two files, ``engine`` and
``built.json``, which says what it was built from; the folder's name is a hash of that, so two models of one name never
share an engine. The whole cache can be deleted at any time.
"""

import hashlib
import json
import os
import tempfile
from typing import Any, Dict, Iterable, NamedTuple, Optional

from backends.contract import StageError

ENGINE, BUILT = "engine", "built.json"
BLOCK = 1 << 20  # bytes read at once


class Engine(NamedTuple):
    """A built part on disk. ``size`` in bytes; ``seconds``: what building it took, in this run or an earlier one."""

    path: str
    size: int
    seconds: float


class Slot:
    """The place in the cache of the engine that is built from ``recipe``, which is everything that the engine depends on."""

    def __init__(self, recipe: Dict[str, Any]) -> None:
        self.recipe = json.loads(json.dumps(recipe, sort_keys=True, default=str))
        key = hashlib.sha256(json.dumps(self.recipe, sort_keys=True).encode()).hexdigest()
        self.path = os.path.join(folder(), key[:32])

    def store(self, engine: bytes, seconds: float) -> Engine:
        """Write an engine, whole or not at all. If another process was faster, its engine is returned.

        Raises StageError where the cache cannot be written.
        """
        digest = hashlib.sha256(engine).hexdigest()
        built = {"sha256": digest, "bytes": len(engine), "seconds": seconds, "from": self.recipe}
        try:
            self._write(engine, built)
        except OSError as error:
            message = (
                f"{self.path}: the engine cannot be kept ({error.strerror}); name another folder in CONFORM_ENGINES"
            )
            raise StageError("build", "other", message) from error
        stored = self.stored()
        assert stored is not None, "the engine was written above"
        return stored

    def _write(self, engine: bytes, built: Dict[str, Any]) -> None:
        parent = os.path.dirname(self.path)
        os.makedirs(parent, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=parent) as temporary:
            draft = os.path.join(temporary, "draft")
            os.mkdir(draft)
            with open(os.path.join(draft, ENGINE), "wb") as stream:
                stream.write(engine)
            with open(os.path.join(draft, BUILT), "w", encoding="utf-8") as stream:
                json.dump(built, stream, ensure_ascii=False, indent=1)
            try:
                os.rename(draft, self.path)
            except OSError:
                if not os.path.isdir(self.path):
                    raise

    def stored(self) -> Optional[Engine]:
        """The engine that an earlier run stored here. Raises StageError when the folder holds anything else."""
        if not os.path.lexists(self.path):
            return None
        path = os.path.join(self.path, ENGINE)
        try:
            with open(os.path.join(self.path, BUILT), encoding="utf-8") as stream:
                built = json.load(stream)
            problem = self._problem(path, built)
            if not problem:
                return Engine(path, built["bytes"], built["seconds"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"is damaged, or was not written by this program ({error!r})"
        message = f"{self.path}: the engine in this folder {problem}; delete the folder to build it again"
        raise StageError("load", "other", message)

    def _problem(self, path: str, built: Dict[str, Any]) -> str:
        """What is wrong with the stored engine, or nothing."""
        if built["from"] != self.recipe:
            names = [name for name, value in self.recipe.items() if built["from"].get(name) != value]
            return f"was built from something else: its {', '.join(names) or 'recipe'} differs"
        size = os.path.getsize(path)
        if size != built["bytes"]:
            return f"is truncated or was changed: {size:,} bytes, {built['bytes']:,} were built"
        if digest([path]) != built["sha256"]:
            return "was changed after it was built: its SHA-256 differs"
        return ""


def folder() -> str:
    """The cache's folder."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("CONFORM_ENGINES") or os.path.join(root, "seq2seq-conformance", "engines")


def digest(paths: Iterable[str]) -> str:
    """SHA-256 over the content of files, in their order, each once."""
    total = hashlib.sha256()
    for path in dict.fromkeys(paths):
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(BLOCK), b""):
                total.update(block)
    return total.hexdigest()


def model_digests(path: str) -> Dict[str, str]:
    """SHA-256 of a graph and of its external weights: the files beside it whose names are in it."""
    with open(path, "rb") as stream:
        content = stream.read()
    parent, own = os.path.split(path)
    files = (entry.name for entry in os.scandir(parent) if entry.is_file())
    weights = sorted(name for name in files if name != own and name.encode() in content)
    return {"graph": digest([path]), **{name: digest([os.path.join(parent, name)]) for name in weights}}
