"""May this be shipped? Every required cell is held against a policy, and each reason against it stands on its own line."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from fnmatch import fnmatchcase

from harness.core import verdict
from harness.core.rows import Row
from harness.core.texts import Texts
from reports import costs
from reports.budgets import Budgets
from reports.cell_rules import CellRules
from reports.policy import Policy, matches
from reports.results import Judged, Results, unrecorded
from reports.ruling import Case, Reason, Ruling


def judge(
    policy: Policy, results: Results, baseline: Results | None, texts: Callable[[], Texts], now: datetime | None = None
) -> Ruling:
    """The ruling over one set of results. ``texts`` is called when the policy has a budget of text, and answers for the
    bundle at hand; ``now``: what ages and expiry days are measured by. Raises what ``texts`` raises."""
    return _Gate(policy, results, baseline, texts, now or datetime.now(timezone.utc)).ruling()


class _Gate:
    """Collects the reasons against each required cell, and lets pass what is waived."""

    def __init__(
        self, policy: Policy, results: Results, baseline: Results | None, texts: Callable[[], Texts], now: datetime
    ) -> None:
        self.policy, self.results, self.baseline, self.now = policy, results, baseline, now
        self.rules = CellRules(results.overruled, policy.max_age_hours, now)
        self.budgets = Budgets(policy, results.folder, texts)
        self.cases: dict[Judged, Case] = {}
        self.waivers_used: set[int] = set()

    def ruling(self) -> Ruling:
        required = self._required()
        several = len({key.bundle for key in required}) > 1
        for key in required:
            self._add(key, self.budgets.reasons(self.results.cells[key]))
            self.cases[key].bundle = key.bundle if several else ""
        cost_cases, cost_facts = self._costs(required)
        rules = [Case(f"policy {self.policy.name}", "", self._policy_reasons(required)), *cost_cases]
        counts = Counter(key.bundle for key in required)
        return Ruling(
            self.policy.name,
            self.results.text,
            list(self.cases.values()),
            [case for case in rules if case.reasons],
            [
                *self.budgets.facts,
                *cost_facts,
                *self.budgets.same_text_facts(),
                *(f"judged by bundle {name}: {count} cells" for name, count in sorted(counts.items())),
            ],
        )

    def _required(self) -> list[Judged]:
        """The required cells that there are, each with a case of what its rows say against it; what is missing has a case
        too."""
        required: dict[Judged, None] = {}
        for need in self.policy.require:
            for pattern in need.cells:
                for box in need.boxes:
                    asked = Judged(pattern, box, need.bundle)
                    present = [key for key in self.results.cells if _fits(asked, key)]
                    for key in self._absent(asked, present):
                        self._add(key, [_missing(key)])
                    for key in present:
                        required[key] = None
                        self._add(key, self.rules.reasons(need, self.results.cells[key]))
        return list(required)

    def _add(self, key: Judged, reasons: Iterable[Reason]) -> None:
        case = self.cases.setdefault(key, Case(key.cell, key.box))
        for reason in reasons:
            for number, waiver in enumerate(self.policy.waive):
                if waiver.covers(*key, reason.what, reason.check):
                    self.waivers_used.add(number)
                    if waiver.expires >= self.now.date():
                        reason.waiver = waiver
            if reason not in case.reasons:
                case.reasons.append(reason)

    def _absent(self, asked: Judged, present: list[Judged]) -> Iterator[Judged]:
        """What should be there and is not: the pattern itself, and cells that the baseline has, in whatever version and
        recording of their bundle."""
        if not present:
            yield asked
        elif self.baseline:
            there = {key.lasting for key in present}
            any_recording = asked._replace(bundle=unrecorded(asked.bundle))
            for key in self.baseline.cells:
                if _fits(any_recording, key._replace(bundle=unrecorded(key.bundle))) and key.lasting not in there:
                    bundle = f"{unrecorded(key.bundle)}@*" if asked.bundle == "*" else asked.bundle
                    yield key._replace(bundle=bundle)

    def _costs(self, required: list[Judged]) -> tuple[list[Case], list[str]]:
        if not self.policy.cost:
            return [], []
        assert self.baseline is not None, "a policy of costs is judged against a baseline"
        before = {key.lasting: checks for key, checks in self.baseline.cells.items()}
        pairs: dict[str, list[tuple[Row, Row]]] = {}
        for key in required:
            both = pairs.setdefault(key.box, [])
            new, old = self.results.cells[key].get("cost"), before.get(key.lasting, {}).get("cost")
            if new is not None and old is not None and old.status == new.status == "PASS":
                both.append((new, old))
        return costs.judge(self.policy.cost, pairs)

    def _policy_reasons(self, required: list[Judged]) -> list[Reason]:
        """Waivers that have run out or fit nothing; and a gate that compared nothing at all."""
        reasons = []
        for number, waiver in enumerate(self.policy.waive, 1):
            what = f"waiver {number} ({', '.join(waiver.what)} of {waiver.cells[0]})"
            if waiver.expires < self.now.date():
                reasons.append(Reason("waiver", "", f"{what} ran out on {waiver.expires}: {waiver.reason}"))
            elif number - 1 not in self.waivers_used:
                reasons.append(Reason("waiver", "", f"{what} matches nothing; take it out"))
        rows = [row for key in required for row in self.results.cells[key].values()]
        if not any(row.compared for row in rows if row.check in verdict.OF_PYTORCH):
            message = "no required cell compared anything; a gate that compared nothing never passes"
            reasons.append(Reason("compared", "", message))
        return reasons


def _fits(asked: Judged, key: Judged) -> bool:
    return matches(asked.cell, key.cell) and fnmatchcase(key.box, asked.box) and fnmatchcase(key.bundle, asked.bundle)


def _missing(key: Judged) -> Reason:
    cell, box, bundle = key
    command = f"pytest --backend={cell.partition('@')[0]} --opset={cell.rpartition('/op')[2]}"
    where = ("on any box" if box == "*" else f"on {box}") + (f" with bundle {bundle}" if bundle != "*" else "")
    return Reason("missing", "", f"no such cell {where}", command if "*" not in command else "")
