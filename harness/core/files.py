"""Files: their hash, and writing them, and folders of them, whole or not at all."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator, Union


def sha256(path: Union[str, "os.PathLike[str]"]) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path: Union[str, "os.PathLike[str]"], content: Union[str, bytes]) -> None:
    """Write a file whole or not at all: nobody ever reads half of it, and a failure leaves the old one. Raises OSError."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    folder, name = os.path.split(os.fspath(path))
    handle, draft = tempfile.mkstemp(prefix=f".{name}-", dir=folder or ".")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)  # mkstemp's files are the owner's alone
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``target`` when the block ends well and is removed otherwise. Raises
    OSError."""
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=str(target.absolute().parent)))
    try:
        new, old = beside / "new", beside / "old"
        new.mkdir()
        yield new
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(str(beside), ignore_errors=True)
