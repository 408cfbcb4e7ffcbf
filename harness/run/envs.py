"""Environments of other runtime versions: numpy and one runtime each, made from the registry ``backends/envs.toml``.

``--backend=ort@1.10`` runs its worker in the environment of that version; the host stays where it is.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import selectors
from harness.core.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REGISTRY = Path(selectors.ROOT) / "backends" / "envs.toml"
FOLDER = Path(selectors.ROOT) / ".envs"
NOTE = "env.json"


class Entry(NamedTuple):
    """One line of the registry. ``python``: the version of Python that there is a wheel for, e.g. 3.8; ``pins``: further
    requirements for pip."""

    backend: str
    version: str
    package: str
    python: str
    pins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.backend}@{self.version}"

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.backend}-{self.version}"

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def made(self) -> bool:
        """Whether the environment is here, complete, and made from this very line of the registry."""
        return self.interpreter.exists() and _note(self).get("entry") == _plain(self)


def registry(path: Path = REGISTRY) -> list[Entry]:
    """Every entry, oldest first. Raises UserError for a file that is no registry."""
    try:
        families = tomllib.loads(path.read_text(encoding="utf-8"))
        return [
            Entry(backend, line["version"], family["package"], line["python"], tuple(line.get("pins", ())))
            for backend, family in families.items()
            for line in family["versions"]
        ]
    except (OSError, KeyError, TypeError, AttributeError, tomllib.TOMLDecodeError) as error:
        message = f"{path}: not a registry of environments ({error!r}); see the comment at its head"
        raise UserError(message) from error


def matching(text: str) -> list[Entry]:
    """Entries of ``ort@1.10``, ``ort-1.10`` (as tox writes it), ``ort@all`` or ``all``. Raises UserError."""
    backend, _, version = selectors.spelled(text).partition("@")
    known = registry()
    if text == "all":
        return known
    family = [entry for entry in known if entry.backend == backend]
    if not version:  # an unset variable must not mean everything
        entries = []
    elif version == "all":
        entries = family
    else:
        entries = [entry for entry in family if (entry.version + ".").startswith(version + ".")][-1:]
    if not entries:
        has = ", ".join(entry.version for entry in family) or f"no {backend}"
        where = Path(os.path.relpath(REGISTRY)).as_posix()
        raise UserError(
            f"{text}: give NAME@VERSION or NAME@all; the registry has {has}; another version is one more line in {where}"
        )
    return entries


def expand(selector: selectors.Selector) -> list[selectors.Selector]:
    """``ort@all`` as one selector a version of the registry; anything else as it is. Raises UserError."""
    if selector.version != "all":
        return [selector]
    tail = f":{selector.provider}" if selector.provider else ""
    return [selectors.parse(entry.name + tail) for entry in matching(selector.text.partition(":")[0])]


def interpreter(selector: selectors.Selector) -> str | None:
    """The interpreter of the environment made for that version; None where there is none: the host's own is then used."""
    if selector.version is None:
        return None
    try:
        entry = matching(f"{selector.module.rpartition('.')[2]}@{selector.version}")[0]
    except UserError:
        return None
    return str(entry.interpreter) if entry.made else None


def create(entry: Entry) -> str:
    """Make the environment, unless it is made. Returns a line that says so. Raises UserError; it then leaves nothing."""
    if entry.made:
        return f"{entry.name}: here already, {entry.folder}"
    began = time.monotonic()
    python = find_python(entry.python)
    remove(entry)
    try:
        _run("make a virtual environment", python, "-m", "venv", str(entry.folder))
        wanted = [f"{entry.package}=={entry.version}", *entry.pins]
        if not any(re.match(r"numpy\b", pin) for pin in entry.pins):
            wanted.append("numpy")
        # The runtime and numpy, and nothing that the runtime's package only recommends: --no-deps.
        pip = (str(entry.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run("install " + " ".join(wanted), *pip, "--no-deps", "--only-binary=:all:", *wanted)
        version = _run("import the runtime", str(entry.interpreter), "-c", PROBE, entry.backend).splitlines()[-1:]
        if not version or not (version[0] + ".").startswith(entry.version + "."):
            raise UserError(f"the runtime says that it is version {''.join(version)!r}, not {entry.version}")
        _write_note(entry)
    except UserError as error:
        remove(entry)
        raise UserError(f"{entry.name}: {error}") from error
    except BaseException:
        remove(entry)
        raise
    return f"{entry.name}: made in {time.monotonic() - began:.0f} s, {size(entry) / 2**20:.0f} MB, {entry.folder}"


PROBE = "import importlib, sys; print(importlib.import_module('backends.' + sys.argv[1]).Backend().probe().version)"


def remove(entry: Entry) -> bool:
    """Delete the environment. Returns whether there was one."""
    existed = entry.folder.exists()
    shutil.rmtree(entry.folder, ignore_errors=True)
    return existed


def size(entry: Entry) -> int:
    """Bytes on disk."""
    return sum(path.lstat().st_size for path in entry.folder.rglob("*") if path.is_file() and not path.is_symlink())


def find_python(version: str) -> str:
    """A CPython of that minor version, from PATH or from pyenv. Raises UserError."""
    for candidate in _candidates(version):
        # A shim of pyenv is on PATH even where the version behind it is not chosen, so each one is asked.
        command = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except OSError:
            continue
        if done.stdout.strip() == version:
            return candidate
    raise UserError(f"no Python {version} on PATH or in pyenv; install one (pyenv install {version})")


def _candidates(version: str) -> Iterator[str]:
    if "{}.{}".format(*sys.version_info) == version:
        yield sys.executable
    named = shutil.which(f"python{version}")
    if named:
        yield named
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}")))


def _run(what: str, *command: str) -> str:
    """Output of a step that must succeed. Raises UserError with the last thing that it said."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = selectors.ROOT
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, cwd=selectors.ROOT
    )
    if done.returncode:
        printed = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in printed if line.startswith("ERROR")] or printed
        died = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise UserError(f"could not {what}: {errors[-1].strip() if errors else died}")
    return done.stdout


def _plain(entry: Entry) -> list[Any]:
    return [*entry[:4], list(entry.pins)]


def _note(entry: Entry) -> dict[str, Any]:
    try:
        return dict(json.loads((entry.folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _write_note(entry: Entry) -> None:
    """Written last: an environment without it was never finished."""
    (entry.folder / NOTE).write_text(json.dumps({"entry": _plain(entry)}), encoding="utf-8")
