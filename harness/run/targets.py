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
from harness.run.worker import Found, Worker


@dataclass
class Target:
    """One backend: its worker, and what that says is here."""

    selector: selectors.Selector
    worker: Worker
    found: Found

    @property
    def probe(self) -> Probe | None:
        return self.found.probe

    @property
    def refusal(self) -> Answer:
        """The one answer of a backend that no cell can be asked of."""
        if self.found.absent:
            return Answer("probe", "ABSENT", "probe", message=advice(self.found.absent))
        assert self.found.failure is not None
        return self.found.failure


class Refusal(Subject):
    """A backend that no cell can be asked of, as a subject of the ledger."""

    checks = ("probe",)

    def __init__(self, target: Target, bundle: str, command: str) -> None:
        """``bundle``: short name of the run's; ``command`` asks for the backend again."""
        version = target.selector.version if target.found.absent else None
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
    for selector, worker, found in zip(chosen, workers, answers, strict=True):
        target = Target(selector, worker, as_asked(selector, found))
        if target.probe and any(
            target.probe == other.probe and selector.name == other.selector.name for other in targets
        ):
            worker.stop()
        else:
            targets.append(target)
    return targets


def _probe(number: int, worker: Worker) -> Found:
    """A worker that must wait for its turn need not hold its memory until then."""
    found = worker.probe()
    if number >= cores():
        worker.stop()
    return found


def as_asked(selector: selectors.Selector, found: Found) -> Found:
    """A version that was asked for and is not the one found is absent."""
    if found.probe is None or selector.version is None:
        return found
    if (found.probe.version + ".").startswith(selector.version + "."):
        return found
    name = f"{selector.module.rpartition('.')[2]}@{selector.version}"
    reason = f"version {selector.version} was asked for, {found.probe.version} is installed"
    try:
        envs.matching(name)
        first = ""
    except UserError:
        first = "put a line for it into backends/envs.toml, then "
    remedy = f"{first}conform envs create {name}, or give the interpreter that has it with --backend-python"
    return Found(absent={"reason": reason, "remedy": remedy})


def advice(missing: dict[str, str]) -> str:
    """Why something is missing, and what to do about it."""
    return f"{missing['reason']}; {missing['remedy']}"
