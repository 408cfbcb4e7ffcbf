"""The folder of a new bundle: it is filled beside its target under a hidden name, and renamed only when it is complete."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.files import sha256, write_whole
from harness.core.manifest import FORMAT, MANIFEST, SCHEMA


def check_target(target: Path, overwrite: bool) -> None:
    """Raise UserError unless a bundle may be written there: nothing but a bundle is ever replaced."""
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such directory; make it first")
    if os.path.lexists(target):
        try:
            Bundle(str(target), verify=False)
        except UserError as error:
            raise UserError(f"{target}: is there and is no bundle, so it is left alone; give another path") from error
        if not overwrite:
            raise UserError(f"{target}: is there already; allow overwriting or give another path")


@contextlib.contextmanager
def filled(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` when the block succeeds and is removed otherwise. Raises UserError."""
    with contextlib.ExitStack() as stack:
        partial = _beside(target, stack)
        try:
            yield partial
            partial.chmod(0o755)
            if target.exists():
                old = _beside(target, stack)
                target.rename(old / target.name)
                try:
                    partial.rename(target)
                except OSError:
                    (old / target.name).rename(target)
                    raise
            else:
                partial.rename(target)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error}); free some space or give another path") from error


def _beside(target: Path, stack: contextlib.ExitStack) -> Path:
    try:
        path = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target}: cannot write beside it ({error.strerror}); give another path") from error
    stack.callback(shutil.rmtree, path, ignore_errors=True)
    return path


class Draft:
    """A bundle that is being filled: its ``folder``, and the ``manifest`` so far."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, {"format": FORMAT, "schema": SCHEMA, **manifest}

    def save(self, **arrays: np.ndarray) -> None:
        """Write each array to ``NAME.npy``."""
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)

    def save_json(self, name: str, content: object) -> None:
        """Write a JSON file."""
        (self.folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    def seal(self) -> Bundle:
        """Write the manifest of what is there. Returns the bundle so far."""
        write_manifest(self.folder, self.manifest)
        return Bundle(str(self.folder), verify=False)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> str:
    """List the folder's files under ``files`` and write the manifest. Returns its hash, which is the bundle's."""
    paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    manifest["files"] = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in paths}
    raw = _canonical(manifest).encode("utf-8")
    write_whole(folder / MANIFEST, raw)
    return hashlib.sha256(raw).hexdigest()


def _canonical(manifest: dict[str, Any]) -> str:
    """JSON with sorted keys and one entry of each top-level list or mapping a line, so that two can be compared."""

    def compact(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)

    blocks = []
    for key, value in sorted(manifest.items()):
        if isinstance(value, dict):
            lines = [f"  {compact(name)}: {compact(entry)}" for name, entry in sorted(value.items())]
            body = "{\n" + ",\n".join(lines) + "\n }"
        elif isinstance(value, list):
            body = "[\n" + ",\n".join(f"  {compact(entry)}" for entry in value) + "\n ]"
        else:
            body = compact(value)
        blocks.append(f" {compact(key)}: {body}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"
