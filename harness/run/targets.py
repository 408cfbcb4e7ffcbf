"""The backends that a run was asked for, and what their workers say of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from backends.contract import Probe
from harness.core import selectors
from harness.core.errors import UserError
from harness.core.identity import absent_identity
from harness.core.rows import Answer
from harness.run import envs
from harness.run.launch import cores
from harness.run.ledger import Subject
from harness.run.worker import Presence, Worker


@dataclass
class Target:
    """One backend: its worker, and what that says is here."""

    selector: selectors.Selector
    worker: Worker
    presence: Presence

    @property
    def probe(self) -> Probe | None:
        return self.presence.probe

    @property
    def refusal(self) -> Answer:
        """The one answer of a backend that no cell can be asked of."""
        if self.presence.absent:
            return Answer("probe", "ABSENT", "probe", message=advice(self.presence.absent))
        assert self.presence.failure is not None
        return self.presence.failure


class Refusal(Subject):
    """A backend that no cell can be asked of, as a subject of the ledger."""

    checks = ("probe",)

    def __init__(self, target: Target, bundle: str, command: str) -> None:
        """``bundle``: short name of the run's; ``command`` asks for the backend again."""
        version = target.selector.version if target.presence.absent else None
        self.target = target
        self.identity = absent_identity(target.selector.name, version, bundle)
        self._command = command

    @property
    def name(self) -> str:
        return self.target.selector.text

    def command(self, check: str) -> str:
        return self._command


def meet(chosen: Sequence[selectors.Selector], workers: Sequence[Worker]) -> list[Target]:
    """Ask every worker what is here. One that is asked for twice, by name and by the version that is here, is one target;
    its second worker is stopped. Raises UserError for a mode that an adapter does not have."""
    with ThreadPoolExecutor(cores() + 1) as pool:
        answers = list(pool.map(_probe, range(len(workers)), workers))
    targets: list[Target] = []
    for selector, worker, presence in zip(chosen, workers, answers, strict=True):
        target = Target(selector, worker, as_asked(selector, presence))
        if target.probe and any(
            target.probe == other.probe and selector.name == other.selector.name for other in targets
        ):
            worker.stop()
        else:
            targets.append(target)
    return targets


def _probe(number: int, worker: Worker) -> Presence:
    """A worker that must wait for its turn need not hold its memory until then."""
    presence = worker.probe()
    if number >= cores():
        worker.stop()
    return presence


def as_asked(selector: selectors.Selector, presence: Presence) -> Presence:
    """A version that was asked for and is not the one found is absent."""
    if presence.probe is None or selector.version is None:
        return presence
    if (presence.probe.version + ".").startswith(selector.version + "."):
        return presence
    name = f"{selector.module.rpartition('.')[2]}@{selector.version}"
    reason = f"version {selector.version} was asked for, {presence.probe.version} is installed"
    try:
        envs.matching(name)
        first = ""
    except UserError:
        first = "put a line for it into backends/envs.toml, then "
    remedy = f"{first}conform envs create {name}, or give the interpreter that has it with --backend-python"
    return Presence(absent={"reason": reason, "remedy": remedy})


def advice(missing: dict[str, str]) -> str:
    """Why something is missing, and what to do about it."""
    return f"{missing['reason']}; {missing['remedy']}"
