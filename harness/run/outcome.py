"""How a run ended: what makes its exit code and its last lines. Plain data, so that pytest-xdist can carry it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.core import verdict
from harness.core.rows import Row


@dataclass
class Outcome:
    """``compared``: elements by backend; ``absent``: a line for each backend that is not here or was built and not run;
    ``unmatched``: a line for each expectation that is so."""

    files: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    resumed: str | None = None
    reused: int = 0

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def idle(self) -> list[str]:
        """Backends that can run here and compared nothing."""
        return [name for name, elements in self.compared.items() if not elements and name not in self.absent]

    def exit_code(self, absent_allowed: bool) -> int:
        """Of a run in which no test failed: 4 for an absent backend, 1 when a backend compared nothing or an expectation
        matched none."""
        if self.absent and not absent_allowed:
            return 4
        return int(not any(self.compared.values()) or bool(self.idle or self.unmatched))

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The run in a few lines: counts, rows files, and whatever makes the exit code other than 0."""
        counts = Counter(row.status for row in rows)
        words = ", ".join(f"{counts[status]} {status}" for status in verdict.STATUSES if counts[status])
        said = [f"{len(rows)} rows: {words}; {sum(self.compared.values()):,} elements compared"]
        said += [f"rows: {place}" for place in self.files]
        if self.reused:
            said.append(f"{self.reused} of them are answers of earlier runs; leave --reuse out to ask everything again")
        if self.resumed is not None:
            said.append(f"resumed {self.resumed}" if self.resumed else "nothing to resume: a new run")
        said += [f"{name} was asked for and compared nothing" for name in self.idle]
        return [*said, *self.unmatched, *self.absent.values()]


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a run whose cells were shared out: nobody else matched an expectation that one did not."""
    parts = list(outcomes)
    whole = Outcome()
    for part in parts:
        whole.files += part.files
        for name, elements in part.compared.items():
            whole.compared[name] = whole.compared.get(name, 0) + elements
        whole.absent |= part.absent
    whole.unmatched = [line for line in parts[0].unmatched if all(line in part.unmatched for part in parts)]
    return whole
