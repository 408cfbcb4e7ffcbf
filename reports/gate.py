"""May this be shipped? Every required cell is held against a policy, and each reason against it stands on its own line."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.errors import UserError
from harness.core.rows import Row, contradiction, newest, seen_status
from harness.run.complete import completed
from harness.run.text import Scorer, detokenise, saved_ids
from reports import store
from reports.policy import COSTS, METHODS, Policy, Require, Text, matches
from reports.ruling import Case, Reason, Verdict

FEWEST = 3
"""Cells without which a median of cost ratios has no spread."""


class Results(NamedTuple):
    """Rows to be judged, by (cell, box, bundle) and check, and the newest of their nights. ``folder``: where sidecar paths
    start. ``overruled``: what a passing row, by its `store.KEY`, passed after: a failure of the same night."""

    folder: Path
    text: str
    cells: dict[tuple[str, str, str], dict[str, Row]]
    night: str
    overruled: dict[tuple[str, ...], str]


def read(text: str, bundle: Path, say: Callable[[str], None] = store.note) -> Results:
    """The newest rows of a folder, or of one night ``DIR@2026-11-30``; what a box without pytest left out is answered here
    from the bundle. Of two recordings of one bundle the newest counts. Raises UserError, also where there is no row."""
    folder, word = store.place(text)
    rows = store.Store([folder], say=say)
    night = word and store.night_named(rows, word)
    base = folder if folder.is_dir() else folder.parent
    written = [row for row in rows.newest_rows([night] if night else None) if row.cell and not row.fake]
    # What is answered here is as old as the tokens that it is answered from: a row written later stands.
    found = newest(completed([(base, row) for row in written], bundle))
    if not found:
        raise UserError(f"{text}: no cell has a row; nothing can be judged")
    cells: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in found:
        cells.setdefault((row.cell, row.box, row.bundle), {})[row.check] = row
    recordings: dict[tuple[str, str, str], str] = {}
    for (cell, box, name), checks in cells.items():
        kin = (cell, box, _unrecorded(name))
        if kin not in recordings or _last(cells[(cell, box, recordings[kin])]) < _last(checks):
            recordings[kin] = name
    kept = {key: checks for key, checks in cells.items() if recordings[(*key[:2], _unrecorded(key[2]))] == key[2]}
    if len(kept) < len(cells):
        say(f"{len(cells) - len(kept)} cells of an older recording of their bundle are not judged")
    text = f"{folder}@{night}" if night else text
    judged = max(rows.night_of[row.run] for checks in kept.values() for row in checks.values())
    return Results(base, text, kept, judged, _overruled(rows, found))


def _overruled(rows: store.Store, judged: list[Row]) -> dict[tuple[str, ...], str]:
    """Failures that a later run of the same night replaced by a pass: what is run until it passes is not stable."""
    passed = {
        (rows.night_of[row.run], *(getattr(row, name) for name in store.KEY)) for row in judged if row.status == "PASS"
    }
    found: dict[tuple[str, ...], str] = {}
    for night in sorted({key[0] for key in passed}):
        for row in rows.failures(night).itertuples():
            key = tuple(getattr(row, name) for name in store.KEY)
            if (night, *key) in passed:
                found[key] = (
                    f"{row.check} passes, and was {row.status} in run {row.run} of the same night: {row.message}"
                )
    return found


def _last(checks: dict[str, Row]) -> str:
    return max(row.time for row in checks.values())


def judge(
    policy: Policy, results: Results, baseline: Results | None, bundle: Path, now: datetime | None = None
) -> Verdict:
    """The verdict over one set of results. ``now``: what ages and expiry days are measured by."""
    return _Judge(policy, results, baseline, bundle, now or datetime.now(timezone.utc)).verdict()


class _Judge:
    def __init__(self, policy: Policy, results: Results, baseline: Results | None, bundle: Path, now: datetime) -> None:
        self.policy, self.results, self.baseline, self.now = policy, results, baseline, now
        self.bundle_path = bundle
        self.used: set[int] = set()
        self.facts: list[str] = []
        self.same_text: Counter[str] = Counter()

    def verdict(self) -> Verdict:
        cases: dict[tuple[str, str, str], Case] = {}
        required: dict[tuple[str, str, str], None] = {}
        for need in self.policy.require:
            for pattern in need.cells:
                for box in need.boxes:
                    hits = [
                        key for key in self.results.cells
                        if matches(pattern, key[0]) and fnmatchcase(key[1], box) and fnmatchcase(key[2], need.bundle)
                    ]  # fmt: skip
                    for cell, where, name in self._absent(pattern, box, need.bundle, hits):
                        self._add(cases, (cell, where, name), [self._missing(cell, where, name)])
                    for key in hits:
                        required[key] = None
                        self._add(cases, key, self._cell(need, self.results.cells[key]))
        for key in required:
            self._add(cases, key, self._budgets(self.results.cells[key]))
            cases[key].bundle = key[2] if len({bundle for _, _, bundle in required}) > 1 else ""
        made = Verdict(self.policy.name, self.results.text, list(cases.values()))
        made.rules = [Case(f"policy {self.policy.name}", "", self._policy_reasons(required)), *self._costs(required)]
        made.rules = [case for case in made.rules if case.reasons]
        if self.same_text:
            words = ", ".join(f"{count} {precision} cells" for precision, count in sorted(self.same_text.items()))
            self.facts.append(f"text equal to the golden's, nothing to test: {words}")
        counts = Counter(bundle for _, _, bundle in required)
        made.facts = [
            *self.facts,
            *(f"judged by bundle {name}: {count} cells" for name, count in sorted(counts.items())),
        ]
        return made

    def _add(
        self, cases: dict[tuple[str, str, str], Case], key: tuple[str, str, str], reasons: Iterable[Reason]
    ) -> None:
        case = cases.setdefault(key, Case(key[0], key[1]))
        for reason in reasons:
            for number, waiver in enumerate(self.policy.waive):
                if waiver.covers(*key, reason.what, reason.check):
                    self.used.add(number)
                    if waiver.expires >= self.now.date():
                        reason.waiver = waiver
            if reason not in case.reasons:
                case.reasons.append(reason)

    def _absent(
        self, pattern: str, box: str, bundle: str, hits: list[tuple[str, str, str]]
    ) -> Iterator[tuple[str, str, str]]:
        """What should be there and is not: the pattern itself, and cells that the baseline has, in whatever version and
        recording of their bundle."""
        if not hits:
            yield pattern, box, bundle
        elif self.baseline:
            there = set(map(_lasting, hits))
            for key in self.baseline.cells:
                of_it = fnmatchcase(_unrecorded(key[2]), _unrecorded(bundle))
                if of_it and matches(pattern, key[0]) and fnmatchcase(key[1], box) and _lasting(key) not in there:
                    yield key[0], key[1], bundle if bundle != "*" else f"{_unrecorded(key[2])}@*"

    def _missing(self, cell: str, box: str, bundle: str) -> Reason:
        command = f"pytest --backend={cell.partition('@')[0]} --opset={cell.rpartition('/op')[2]}"
        where = ("on any box" if box == "*" else f"on {box}") + (f" with bundle {bundle}" if bundle != "*" else "")
        return Reason("missing", "", f"no such cell {where}", command if "*" not in command else "")

    def _cell(self, need: Require, checks: dict[str, Row]) -> Iterator[Reason]:
        """What speaks against a cell in the rows themselves."""
        some = next(iter(checks.values()))
        for check in need.checks:
            row = checks.get(check)
            if row is None:
                yield _no_row(check, some)
            else:
                yield from _verdict_of(row)
                said = self.results.overruled.get((row.box, row.bundle, row.cell, check))
                if said:
                    yield Reason("unstable", check, said.removesuffix(": "), row.command)
        if self.policy.max_age_hours:
            oldest = min(
                (row for row in checks.values() if row.check in need.checks), key=lambda row: row.time, default=some
            )
            age = self.now - datetime.strptime(oldest.time, store.STAMP).replace(tzinfo=timezone.utc)
            if age < timedelta(hours=-1):  # more than a clock may be fast
                said = f"it is of {oldest.time}, which is in the future; set the clock of its box"
                yield Reason("stale", oldest.check, said, oldest.command)
            elif age > timedelta(hours=self.policy.max_age_hours):
                said = f"{age / timedelta(hours=1):.0f} hours old, {self.policy.max_age_hours:g} are allowed"
                yield Reason("stale", oldest.check, said, oldest.command)
        compared = sum(row.compared for row in checks.values() if row.check in verdict.OF_PYTORCH)
        if compared < need.compared:
            said = f"{compared:,} elements compared, {need.compared:,} are required"
            yield Reason("compared", "", said, some.command)
        for name in ("device", "precision"):
            asked, did = getattr(need, name), getattr(some, name)
            if asked and asked != did:
                yield Reason("placement", "placement", f"{name} {asked} is required, {did} did the work", some.command)

    def _budgets(self, checks: dict[str, Row]) -> Iterator[Reason]:
        """What a cell may use up of its bounds, its choices and its text."""
        logits, tokens = checks.get("logits"), checks.get("tokens")
        wanted = {"logits": self.policy.logits, "tokens": self.policy.flips or self.policy.text}
        for check in wanted:
            if wanted[check] and check not in checks:
                yield _no_row(check, next(iter(checks.values())))
        if self.policy.logits and logits is not None and logits.compared:
            share = logits.value / logits.bound if logits.value is not None and logits.bound else math.inf
            yield from self._over("logits", logits, self.policy.logits, share, "of the bound used by logits")
        if self.policy.flips and tokens is not None and tokens.compared:
            counts = tokens.detail.get("rows", {})
            left = counts.get("TIE", 0) + counts.get("DIVERGED", 0)
            flips = left / sum(counts.values()) if sum(counts.values()) else math.nan
            said = "of the sentences leave the golden's tokens"
            yield from self._over("flips", tokens, self.policy.flips, flips, said)
        if self.policy.text and tokens is not None and tokens.compared:
            yield from self._text(tokens, self.policy.text)

    def _over(self, what: str, row: Row, budgets: dict[str, float], used: float, said: str) -> Iterator[Reason]:
        if row.precision not in budgets:
            yield Reason(what, row.check, f"the policy has no budget of {what} for {row.precision}", row.command)
        elif not used <= budgets[row.precision]:
            words = f"{used:.3g} {said}, budget {budgets[row.precision]:g} in {row.precision}"
            yield Reason(what, row.check, words, row.command)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(Bundle(str(self.bundle_path)))

    def _text(self, tokens: Row, budget: Text) -> Iterator[Reason]:
        command = tokens.command.replace("-k tokens", "-k text")
        if tokens.precision not in budget.loss:
            yield Reason("text", "text", f"the policy has no budget of text for {tokens.precision}", command)
            return
        try:
            if tokens.bundle != self.scorer.bundle.short:
                raise ValueError(
                    f"its bundle is {tokens.bundle}, not {self.scorer.bundle.short}; give it with --bundle"
                )
            ids = saved_ids(self.scorer, tokens, str(self.results.folder))
        except ValueError as error:
            yield Reason("text", "text", str(error), command)
            return
        hypotheses = [detokenise(self.scorer.bundle, row) for row in ids]
        hypotheses = self.scorer.without_ties(hypotheses, tokens.detail.get("ties", []))
        if hypotheses == self.scorer.golden:
            self.same_text[tokens.precision] += 1
            return
        found = paired(self.scorer, hypotheses, budget)
        allowed = budget.loss[tokens.precision]
        said = (
            f"BLEU {found.score:.2f}, the golden has {found.golden:.2f}: {found.golden - found.score:+.2f} lost, budget "
            f"{allowed:g} in {tokens.precision}, p = {found.p:.4f} ({found.signature})"
        )
        if found.golden - found.score > allowed and found.p < 1 - budget.confidence:
            yield Reason("text", "text", said, command)
        else:
            self.facts.append(f"{tokens.cell} on {tokens.box}: {said}")

    def _policy_reasons(self, required: Iterable[tuple[str, str, str]]) -> list[Reason]:
        """Waivers that have run out or fit nothing; and a gate that compared nothing at all."""
        found = []
        for number, waiver in enumerate(self.policy.waive, 1):
            what = f"waiver {number} ({', '.join(waiver.what)} of {waiver.cells[0]})"
            if waiver.expires < self.now.date():
                found.append(Reason("waiver", "", f"{what} ran out on {waiver.expires}: {waiver.reason}"))
            elif number - 1 not in self.used:
                found.append(Reason("waiver", "", f"{what} matches nothing; take it out"))
        rows = [row for key in required for row in self.results.cells[key].values()]
        if not any(row.compared for row in rows if row.check in verdict.OF_PYTORCH):
            found.append(Reason("compared", "", "no required cell compared anything; nothing is no pass"))
        return found

    def _costs(self, required: Iterable[tuple[str, str, str]]) -> Iterator[Case]:
        """A case for each box whose cells have become dearer than the budget, beyond their own spread."""
        if not self.policy.cost:
            return
        assert self.baseline is not None, "a policy of costs is judged against a baseline"
        before = {_lasting(key): checks for key, checks in self.baseline.cells.items()}
        pairs: dict[str, list[tuple[Row, Row]]] = {}
        for key in required:
            both = pairs.setdefault(key[1], [])
            new, old = self.results.cells[key].get("cost"), before.get(_lasting(key), {}).get("cost")
            if new is not None and old is not None and old.status == new.status == "PASS":
                both.append((new, old))
        for box, rows in sorted(pairs.items()):
            case = Case("cost", box)
            for name, budget in self.policy.cost.items():
                case.reasons += self._cost(name, budget, box, rows)
            yield case

    def _cost(self, name: str, budget: float, box: str, rows: list[tuple[Row, Row]]) -> Iterator[Reason]:
        # Workers beside each other measure no seconds, and leave those figures out.
        rows = [pair for pair in rows if all(_measured(row.detail.get(name)) for row in pair)]
        if len(rows) < FEWEST:
            said = f"{name}: {len(rows)} cells of {box} have a cost in the baseline too, {FEWEST} are needed"
            yield Reason("cost", "cost", said)
            return
        logs = COSTS[name] * np.log([new.detail[name] / old.detail[name] for new, old in rows])
        middle = float(np.median(logs))
        # Standard error of a median, from the median absolute deviation of the cells themselves.
        error = 1.2533 * 1.4826 * float(np.median(np.abs(logs - middle))) / np.sqrt(len(logs))
        low, high = np.exp(middle - 1.96 * error), np.exp(middle + 1.96 * error)
        said = (
            f"{name} on {box}: {np.exp(middle):.3g} times the baseline's, median of {len(rows)} cells, 95 % between "
            f"{low:.3g} and {high:.3g}; budget {budget:g}"
        )
        if low > budget:
            worst = max(zip(logs, rows, strict=True), key=lambda pair: pair[0])[1][0]
            yield Reason("cost", "cost", f"{said}; dearest {worst.cell}", worst.command)
        else:
            self.facts.append(said)


def _unrecorded(bundle: str) -> str:
    """The name that all recordings of a bundle share."""
    return bundle.partition("@")[0]


def _lasting(key: tuple[str, str, str]) -> tuple[str, str, str]:
    """A cell, box and bundle without what a new runtime, or a new recording, changes of them."""
    return re.sub(r"@[^/]*", "", key[0], count=1), key[1], _unrecorded(key[2])


def _measured(figure: Any) -> bool:
    return isinstance(figure, (int, float)) and 0 < figure < math.inf


def _no_row(check: str, other: Row) -> Reason:
    """``other``: a row of the same cell."""
    return Reason("missing", check, f"no {check} row", re.sub(r"-k \w+$", f"-k {check}", other.command))


def _verdict_of(row: Row) -> Iterator[Reason]:
    """What a row's own status says against its cell."""
    words = {"UNVERIFIED": "unverified", "XFAIL": "expected", "UNSUPPORTED": "refused", "ABSENT": "uncompared"}
    where = "" if row.step is None else f", first at step {row.step}"
    if row.status == "XFAIL":
        expected = row.detail["expected"]
        said = f"{row.check} {seen_status(row)}{where}, expected: {expected['reason']} ({expected['link']})"
    else:
        said = f"{row.check} {row.status}{where}: {row.message}".removesuffix(": ")
    if row.status != "PASS":
        yield Reason(words.get(row.status, "failed"), row.check, said, row.command)
    why = contradiction(row)
    if row.compared <= 0 and row.status in ("PASS", "XFAIL"):
        yield Reason("uncompared", row.check, f"{row.check} compared nothing", row.command)
    elif why or (row.status == "PASS" and row.stage != "compare"):
        said = why or f"{row.check} says PASS at stage {row.stage}: that is none"
        yield Reason("failed", row.check, said, row.command)


class Paired(NamedTuple):
    """BLEU of the hypotheses and of the golden's, and what sacrebleu's paired test says of their difference."""

    score: float
    golden: float
    p: float
    signature: str


def paired(scorer: Scorer, hypotheses: list[str], budget: Text) -> Paired:
    """Paired test over the sentences of the bundle, the golden's hypotheses the baseline; seed and method are signed."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems = [("golden", scorer.golden), ("runtime", hypotheses)]
    test = PairedTest(
        systems, {"BLEU": BLEU(tokenize=scorer.tokenizer)}, [scorer.references], METHODS[budget.method], budget.samples
    )
    signatures, scores = test()
    golden, found = scores["BLEU"]
    return Paired(float(found.score), float(golden.score), float(found.p_value), str(signatures["BLEU"]))


def mark_good(results: Results) -> Path:
    """Name the night of these results as the last good one. Returns the file."""
    path = results.folder / store.LAST_GOOD
    draft = path.with_name(f".{store.LAST_GOOD}-{os.getpid()}")
    draft.write_text(results.night + "\n", encoding="utf-8")
    draft.replace(path)
    return path
