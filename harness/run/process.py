"""The host's side of isolation: one worker process a backend. Crashes, hangs and memory overruns become answers."""

import contextlib
import json
import os
import select as io_select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backends.contract import Probe
from harness.core import selectors, verdict
from harness.core.errors import UserError
from harness.core.memory import resident
from harness.core.rows import Answer, answer_from, to_json

TICK = 0.2
TAIL = 2000


@dataclass
class Limits:
    """``silence``: seconds without a sign of life before a worker counts as hung; ``memory``: bytes, 0 for none."""

    silence: float = 120.0
    memory: int = 0


@dataclass
class Found:
    """What a worker said of its backend: one of ``probe``, ``absent`` (reason, remedy) and ``failure`` is set.

    ``depth``: the deepest stage that it can reach here; ``missing`` (reason, remedy): what it lacks to go deeper.
    ``surroundings``: its interpreter, packages and processor, in words.
    """

    probe: Probe | None = None
    absent: dict[str, str] | None = None
    failure: Answer | None = None
    depth: str = "run"
    missing: dict[str, str] | None = None
    surroundings: str = ""


class Died(Exception):
    """The worker is gone. Carries the row fields that say how."""

    def __init__(self, status: str, kind: str, message: str, log: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.log = status, kind, message, log

    @property
    def words(self) -> str:
        """What happened, for a knob that did it."""
        return f"hung: {self.message}" if self.status == "TIMEOUT" else self.message


class Worker:
    """Runs one backend in a process of its own. ``python`` is the interpreter that has the runtime.

    ``module``: what answers instead of ``harness.replay``, with its arguments; it then needs no selector.
    """

    def __init__(
        self,
        bundle: str,
        selector: selectors.Selector | None,
        limits: Limits,
        python: str | None = None,
        module: Sequence[str] = (),
    ) -> None:
        self.module = tuple(module)
        self.bundle = bundle
        self.selector = selector
        self.limits = limits
        self.python = python or sys.executable
        self.share: frozenset[int] = frozenset()
        """Processors that the worker may use while others run beside it; empty: all. For the next start."""
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._log: Any = None
        self._found: Found | None = None

    def start(self) -> None:
        """Start the process without waiting for it, so that imports overlap with the host's own work."""
        if self._process is not None:
            return
        folder = self.selector.folder if self.selector else None
        paths = [selectors.ROOT, *([folder] if folder else [])]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONUNBUFFERED="1")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        self._buffer = b""
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        if self.share and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, self.share)

    def _command(self) -> list[str]:
        if self.selector is None:
            return [self.python, "-m", *self.module]
        return [self.python, "-m", "harness.replay", self.bundle, "--backend", self.selector.text, "--serve"]

    def probe(self) -> Found:
        """What is here; a worker that dies while it is asked gives a ``failure`` row. Asked once, remembered.

        Raises UserError for a mode that the adapter does not have.
        """
        if self._found is None:
            self._found = self._greet()
        return self._found

    def _greet(self) -> Found:
        try:
            self.start()
            message = self._read()
        except Died as died:
            self.stop()
            # Some wheels of before numpy 2 do not refuse it, they crash.
            hint = "; if it was built for numpy 1: pip install 'numpy<2'" if died.kind == "signal" else ""
            words = f"{died.message} while it was asked what it is{hint}"
            return Found(
                failure=Answer("probe", died.status, "probe", died.kind, message=words, detail={"said": died.log})
            )
        except OSError as error:
            return Found(failure=Answer("probe", "ERROR", "probe", "other", message=f"{self.python}: {error.strerror}"))
        if "unknown" in message:
            self.stop()
            raise UserError(message["unknown"])
        if "absent" in message:
            self.stop()
            return Found(absent=message["absent"])
        if "probe" in message:
            deep = {name: message[name] for name in ("surroundings", "depth", "missing")}
            return Found(probe=Probe(**message["probe"]), **deep)
        log = self._tail()
        self.stop()
        return Found(
            failure=Answer("probe", "ERROR", "probe", "other", message=str(message.get("error")), detail={"said": log})
        )

    def replay(
        self,
        graph: str,
        checks: Sequence[str],
        series: str,
        options: dict[str, Any],
        alone: bool = True,
        keep: str = "",
    ) -> Iterator[Answer]:
        """The answers of one cell as they come. ``alone``: no other worker runs beside this one; ``keep``: the folder that
        observations are written to."""
        request = {
            "graph": graph,
            "checks": list(checks),
            "series": series,
            "options": self._shared(options),
            "alone": alone,
            "keep": keep,
        }
        return self.ask(request, checks)

    def explain(self, graph: str, answers: Sequence[Answer], options: dict[str, Any]) -> Iterator[Answer]:
        """The failed answers of one cell again, with blame, knob and evidence.

        A knob that kills or hangs the worker is noted with how, and the others are tried in a new one. Whatever goes wrong,
        the verdicts stay as they were. The next question finds a fresh worker: a knob may have left anything behind.
        """
        amended: dict[str, Answer] = {answer.check: answer for answer in answers}
        failed = [
            answer for answer in answers if answer.check in verdict.NUMERIC and answer.check not in verdict.UNBLAMED
        ]
        tried: dict[str, str] = {}
        finished = not failed
        while not finished:
            request = {
                "graph": graph,
                "explain": [json.loads(to_json(answer)) for answer in failed],
                "tried": tried,
                "options": self._shared(options),
            }
            trying = ""
            try:
                for message in self._exchange(request):
                    trying = message.get("trying", trying)
                    if "answer" in message:
                        amended[message["answer"].check] = message["answer"]
                finished = True
            except Died as died:
                if not trying or trying in tried:
                    note = {**tried, trying or "the worker, before any knob": died.words}
                    amended = {
                        check: replace(answer, detail={**answer.detail, "knobs": note})
                        for check, answer in amended.items()
                    }
                    finished = True
                tried[trying] = died.words
            finally:
                self.stop()
        yield from amended.values()

    def _shared(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options that tell a runtime of its share of the processors: some do not look at what they may use."""
        return {"threads": len(self.share), **options} if self.share else options

    def run_test(self, test: dict[str, str]) -> Answer:
        """The answer to one ONNX node test; ``test`` is what ``node.run_test`` takes."""
        (answer,) = self.ask({"test": test}, ["operator"])
        return answer

    def ask(self, request: dict[str, Any], checks: Sequence[str]) -> Iterator[Answer]:
        """The answers to a request. When the worker dies, the checks not yet answered say how; the next call starts a new
        one."""
        left: list[str] = list(checks)
        try:
            for message in self._exchange(request):
                if "answer" in message:
                    answer: Answer = message["answer"]
                    left.remove(answer.check)
                    yield answer
        except Died as died:
            for check in left:
                yield Answer(check, died.status, "run", died.kind, message=died.message, detail={"said": died.log})

    def _exchange(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request; gives each message that comes until it is done. Raises Died; the worker is stopped then."""
        finished = False
        try:
            if self._process is None:
                self.start()
                self._read()
            self._send(request)
            while True:
                message = self._read()
                if "done" in message:
                    finished = True
                    return
                yield message
        finally:
            if not finished:  # it died, or the caller left: what is still to come must not answer the next question
                self.stop()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died() from error

    def _read(self) -> dict[str, Any]:
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
                    raise Died("CRASH", "wire", words, self._tail()) from error
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
                raise Died("TIMEOUT", "hang", f"no sign of life for {self.limits.silence:g} s", self._tail())
            used = resident(self._process.pid)
            if self.limits.memory and used > self.limits.memory:
                words = f"uses {used / 2**30:.2f} GiB, the limit is {self.limits.memory / 2**30:.2f} GiB"
                raise Died("ERROR", "memory", words, self._tail())

    def _died(self) -> Died:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return Died("CRASH", "wire", "closed its output and went on", self._tail())
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            return Died("CRASH", "signal", f"died of signal {-code} ({name})", self._tail())
        return Died("CRASH", "exit", f"ended with exit code {code}", self._tail())

    def _tail(self) -> str:
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
