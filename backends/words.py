"""What native libraries print or log: the only place where some of them say why they refuse. No adapter."""

import contextlib
import ctypes
import os
import tempfile
from typing import Any, Callable, ClassVar, Iterator, List


@contextlib.contextmanager
def heard() -> Iterator[List[str]]:
    """The lines that the process prints meanwhile, to either stream and below Python too, filled in at the end.

    They are printed after all then, so that the log of a worker keeps them.
    """
    lines = []  # type: List[str]
    own = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as kept:
        _flush()
        os.dup2(kept.fileno(), 1)
        os.dup2(kept.fileno(), 2)
        try:
            yield lines
        finally:
            _flush()
            for stream, before in zip((1, 2), own):
                os.dup2(before, stream)
                os.close(before)
            kept.seek(0)
            said = kept.read()
            os.write(2, said)
            lines.extend(line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip())


def _flush() -> None:
    """C's streams are full of what was printed while they led to a file; Python's are not touched by what is native."""
    ctypes.CDLL(None).fflush(None)


def logger(trt: Any, note: Callable[[str], None]) -> Any:
    """A logger for TensorRT: ``said`` has the errors, of which the API tells nothing; all but the chatter is noted."""

    class Log(trt.ILogger):  # type: ignore[misc]
        said: ClassVar[List[str]] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.said.append(message)
            if severity != trt.ILogger.Severity.VERBOSE:
                note(f"{severity.name.lower()}: {message}")

    return Log()
