"""The host's side of isolation: one worker process a backend. Crashes, hangs and memory overruns become answers."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backends.contract import Probe
from harness.core import selectors, verdict
from harness.core.errors import UserError
from harness.core.rows import Answer, to_json
from harness.run.process import Died, Limits, Process


@dataclass
class Presence:
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
        self.bundle = bundle
        self.selector = selector
        self.python = python or sys.executable
        self.share: frozenset[int] = frozenset()
        """Processors that the worker may use while others run beside it; empty: all. For the next start."""
        arguments: Sequence[str] = module
        folders = [selectors.ROOT]
        if selector is not None:
            arguments = ["harness.replay.worker", bundle, selector.text]
            folders += [selector.folder] if selector.folder else []
        self._process = Process([self.python, "-m", *arguments], folders, limits)
        self._presence: Presence | None = None

    def start(self) -> None:
        """Start the process without waiting for it, so that imports overlap with the host's own work."""
        if not self._process.running:
            self._process.start(self.share)

    def probe(self) -> Presence:
        """What is here; a worker that dies while it is asked gives a ``failure`` row. Asked once, remembered.

        Raises UserError for a mode that the adapter does not have.
        """
        if self._presence is None:
            self._presence = self._greet()
        return self._presence

    def _greet(self) -> Presence:
        try:
            self.start()
            message = self._process.read()
        except Died as died:
            self.stop()
            # Some wheels of before numpy 2 do not refuse it, they crash.
            hint = "; if it was built for numpy 1: pip install 'numpy<2'" if died.kind == "signal" else ""
            words = f"{died.message} while it was asked what it is{hint}"
            return Presence(
                failure=Answer("probe", died.status, "probe", died.kind, message=words, detail={"said": died.log})
            )
        except OSError as error:
            return Presence(
                failure=Answer("probe", "ERROR", "probe", "other", message=f"{self.python}: {error.strerror}")
            )
        if "unknown" in message:
            self.stop()
            raise UserError(message["unknown"])
        if "absent" in message:
            self.stop()
            return Presence(absent=message["absent"])
        if "probe" in message:
            deep = {name: message[name] for name in ("surroundings", "depth", "missing")}
            return Presence(probe=Probe(**message["probe"]), **deep)
        log = self._process.tail()
        self.stop()
        return Presence(
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
            if not self._process.running:
                self.start()
                self._process.read()
            self._process.send(request)
            while True:
                message = self._process.read()
                if "done" in message:
                    finished = True
                    return
                yield message
        finally:
            if not finished:  # it died, or the caller left: what is still to come must not answer the next question
                self.stop()

    def kill(self) -> None:
        """End the process at once, from another thread than the one that reads its answers."""
        self._process.kill()

    def stop(self) -> None:
        """End the worker and everything it started."""
        self._process.stop()
