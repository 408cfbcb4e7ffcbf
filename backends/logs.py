"""What native libraries print or log: some of them say only there why they refuse. No adapter."""

import contextlib
import ctypes
import os
import tempfile
from typing import Any, Callable, ClassVar, Iterator, List


@contextlib.contextmanager
def captured() -> Iterator[List[str]]:
    """The lines that the process prints in this context, to stdout or stderr, from Python or below; filled in at its end.

    The output is then written to stderr, so that the log of a worker has it.
    """
    lines: List[str] = []
    saved = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as output:
        _flush()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            yield lines
        finally:
            _flush()
            for stream, original in zip((1, 2), saved):
                os.dup2(original, stream)
                os.close(original)
            output.seek(0)
            content = output.read()
            os.write(2, content)
            lines.extend(line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip())


def _flush() -> None:
    """C's streams are buffered while they lead to a file. Native code does not write to Python's."""
    ctypes.CDLL(None).fflush(None)


def tensorrt_logger(trt: Any, note: Callable[[str], None]) -> Any:
    """A logger for TensorRT, whose API does not report errors: ``errors`` has them. ``note`` gets all but verbose lines."""

    class Log(trt.ILogger):  # type: ignore[misc]
        errors: ClassVar[List[str]] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)
            if severity != trt.ILogger.Severity.VERBOSE:
                note(f"{severity.name.lower()}: {message}")

    return Log()
