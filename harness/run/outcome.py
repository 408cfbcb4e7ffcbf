"""How a run ended: what makes its exit code and its last lines. Plain data, so that pytest-xdist can carry it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.core import verdict
from harness.core.rows import Row
from harness.run.expectations import Expectation
from harness.run.targets import Target, advice


@dataclass
class Outcome:
    """``compared``: elements by backend; ``absent``: a line for each backend that is not here or was built and not run;
    ``unmatched``: a line for each expectation without a row; ``kept_bytes``: of the observations of ``kept_cells`` cells."""

    files: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    resumed: str | None = None
    reused: int = 0
    kept_cells: int = 0
    kept_bytes: int = 0

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def idle(self) -> list[str]:
        """Backends that can run here and compared nothing."""
        return [name for name, count in self.compared.items() if not count and name not in self.absent]

    def exit_code(self, absent_allowed: bool) -> int:
        """Of a run in which no test failed: 4 for an absent backend, 1 when a backend compared nothing or an expectation
        matched no row."""
        if self.absent and not absent_allowed:
            return 4
        return int(not any(self.compared.values()) or bool(self.idle or self.unmatched))

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The run in a few lines: counts, rows files, and whatever makes the exit code other than 0."""
        counts = Counter(row.status for row in rows)
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.STATUSES if counts[status])
        lines = [f"{len(rows)} rows: {words}; {sum(self.compared.values()):,} elements compared"]
        lines += [f"rows: {path}" for path in self.files]
        if self.reused:
            lines.append(f"{self.reused} rows reused from earlier runs; omit --reuse to rerun them")
        if self.resumed is not None:
            lines.append(f"resumed {self.resumed}" if self.resumed else "nothing to resume: a new run")
        if self.kept_cells:
            average = self.kept_bytes / self.kept_cells / 2**20
            lines.append(f"outputs kept of {self.kept_cells} cells, {average:.1f} MiB a cell on average")
        lines += [f"{name} was asked for and compared nothing" for name in self.idle]
        return [*lines, *self.unmatched, *self.absent.values()]


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a run whose cells were shared out: an expectation without a row has one in no part."""
    parts = list(outcomes)
    whole = Outcome()
    for part in parts:
        whole.files += part.files
        for name, count in part.compared.items():
            whole.compared[name] = whole.compared.get(name, 0) + count
        whole.absent |= part.absent
        whole.kept_cells += part.kept_cells
        whole.kept_bytes += part.kept_bytes
    whole.unmatched = [line for line in parts[0].unmatched if all(line in part.unmatched for part in parts)]
    return whole


def elements(rows: Iterable[Row], target: Target) -> int:
    """How many elements of a target were compared with PyTorch's; a test's fake compares nothing."""
    return sum(row.compared for row in _of(target, rows) if row.check in verdict.OF_PYTORCH and not row.fake)


def absences(targets: Iterable[Target]) -> dict[str, str]:
    """A line for each backend that is not here, by what it was asked for as."""
    return {
        target.selector.text: f"{target.selector.text} is absent: {advice(target.presence.absent)}"
        for target in targets
        if target.presence.absent
    }


def built_only(targets: Iterable[Target], rows: Sequence[Row]) -> dict[str, str]:
    """A line for each backend that got no further than parsing or building, by what it was asked for as."""
    lines = {}
    for target in targets:
        kinds = [row.kind for row in _of(target, rows) if row.status == "ABSENT" and row.cell]
        if kinds and target.presence.missing and not elements(rows, target):
            text = target.selector.text
            lines[text] = f"{text} was {kinds[-1]} and not run: {advice(target.presence.missing)}"
    return lines


def unmatched(
    targets: Iterable[Target], expected: Mapping[str, Sequence[Expectation]], rows: Sequence[Row]
) -> list[str]:
    """A line for each expectation that speaks of a backend here and of none of a whole run's rows. ``expected``: by what a
    target was asked for as."""
    return [
        f"expectation {entry.words()} of {target.selector.name} matches nothing; take it out or correct its conditions"
        for target in targets
        for entry in expected[target.selector.text]
        if target.probe and entry.applies(target.probe.version, target.probe.device)
        if not any(entry.covers(row) for row in rows if row.backend == target.selector.name)
    ]


def _of(target: Target, rows: Iterable[Row]) -> list[Row]:
    """The rows of a target's backend in its version."""
    return [
        row
        for row in rows
        if target.probe and (row.backend, row.version) == (target.selector.name, target.probe.version)
    ]
