"""The folder of a new bundle: it grows beside its place under a hidden name, and gets its own only when it is whole."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.files import sha256
from harness.core.manifest import MANIFEST


def check_target(target: Path, overwrite: bool) -> None:
    """Raise UserError unless a bundle may be written there: nothing but a bundle is ever replaced."""
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such directory; make it first")
    if os.path.lexists(target):
        try:
            Bundle(str(target), verify=False)
        except UserError as error:
            raise UserError(f"{target}: is there and is no bundle, so it is left alone; give another place") from error
        if not overwrite:
            raise UserError(f"{target}: is there already; allow overwriting or give another place")


@contextlib.contextmanager
def growing(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` when the block ends well, and otherwise goes without a trace."""
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
            raise UserError(f"{target}: cannot be written ({error}); make room or give another place") from error


def _beside(target: Path, stack: contextlib.ExitStack) -> Path:
    try:
        place = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target}: cannot write beside it ({error.strerror}); give another place") from error
    stack.callback(shutil.rmtree, place, ignore_errors=True)
    return place


def write_manifest(folder: Path, manifest: dict[str, Any]) -> str:
    """List the folder's files under ``files`` and write the manifest. Returns its hash, which is the bundle's."""
    places = sorted(place for place in folder.iterdir() if place.name != MANIFEST)
    manifest["files"] = {place.name: {"size": place.stat().st_size, "sha256": sha256(str(place))} for place in places}
    raw = _canonical(manifest).encode("utf-8")
    (folder / MANIFEST).write_bytes(raw)
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
