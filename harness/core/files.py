"""Files: their hash, and writing them whole or not at all."""

import hashlib
import os
import tempfile
from typing import Union


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
