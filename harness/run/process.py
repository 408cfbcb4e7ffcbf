"""A child process that is asked in lines of JSON and answers in lines of JSON. Its end, silence and memory are watched."""

import contextlib
import json
import os
import select as io_select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.memory import resident
from harness.core.rows import answer_from

TICK = 0.2
"""Seconds between two looks at a child that says nothing."""
TAIL = 2000
"""Bytes of a child's own output that are kept when it dies."""


@dataclass
class Limits:
    """``silence``: seconds without a sign of life before a worker counts as hung; ``memory``: bytes, 0 for none."""

    silence: float = 120.0
    memory: int = 0


class Died(Exception):
    """The worker is gone. Carries the row fields that say how."""

    def __init__(self, status: str, kind: str, message: str, log: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.log = status, kind, message, log

    @property
    def words(self) -> str:
        """What happened, for a knob that did it."""
        return f"hung: {self.message}" if self.status == "TIMEOUT" else self.message


class Process:
    """One child at a time; it can be started again after it has ended."""

    def __init__(self, command: Sequence[str], paths: Sequence[str], limits: Limits) -> None:
        """``paths``: folders that the child's Python imports from first."""
        self.command, self.paths, self.limits = list(command), list(paths), limits
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._log: Any = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self, share: frozenset[int]) -> None:
        """Start the child without waiting for it. ``share``: the processors that it may use; empty for all."""
        if self._process is not None:
            return
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(self.paths), PYTHONUNBUFFERED="1")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        self._buffer = b""
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        if share and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, share)

    def send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died() from error

    def read(self) -> dict[str, Any]:
        """The next answer that is not a bare beat. Raises Died."""
        assert self._process is not None
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        heard = time.monotonic()
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                try:
                    message: dict[str, Any] = json.loads(line)
                    if "answer" in message:
                        message["answer"] = answer_from(message["answer"])
                except (ValueError, TypeError, AttributeError) as error:
                    words = f"printed {line[:80]!r} where answers are expected"
                    raise Died("CRASH", "wire", words, self.tail()) from error
                if "beat" in message:
                    continue
                return message
            if io_select.select([stream], [], [], TICK)[0]:
                block = os.read(stream, 1 << 16)
                if not block:
                    raise self._died()
                self._buffer += block
                heard = time.monotonic()
            if time.monotonic() - heard > self.limits.silence:
                raise Died("TIMEOUT", "hang", f"no sign of life for {self.limits.silence:g} s", self.tail())
            used = resident(self._process.pid)
            if self.limits.memory and used > self.limits.memory:
                words = f"uses {used / 2**30:.2f} GiB, the limit is {self.limits.memory / 2**30:.2f} GiB"
                raise Died("ERROR", "memory", words, self.tail())

    def _died(self) -> Died:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return Died("CRASH", "wire", "closed its output and went on", self.tail())
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            return Died("CRASH", "signal", f"died of signal {-code} ({name})", self.tail())
        return Died("CRASH", "exit", f"ended with exit code {code}", self.tail())

    def tail(self) -> str:
        """The end of what the worker printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - TAIL))
        text: str = self._log.read().decode("utf-8", "replace")
        return text

    def kill(self) -> None:
        """End the process at once, from another thread than the one that reads its answers."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the worker and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except OSError:  # it is gone, and what was still to be sent with it
            pass
        # A worker that is not hung ends with its input, which closes its output; a killed one would lose its clean-up.
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and io_select.select([process.stdout], [], [], TICK)[0]:
            if not os.read(process.stdout.fileno(), 1 << 16):
                break
        process.stdout.close()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        self._log.close()
