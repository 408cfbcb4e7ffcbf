"""What a cell may use up of its bounds, its choices and its text, by precision."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from harness.core.rows import Row
from harness.core.texts import Texts, token_ids
from reports.cell_rules import no_row
from reports.policy import Policy, Text
from reports.ruling import Reason


class Budgets:
    """``facts`` and `same_text_facts` are the evidence of what was tested and passed."""

    def __init__(self, policy: Policy, folder: Path, texts: Callable[[], Texts]) -> None:
        """``folder``: where sidecar paths start; ``texts`` answers for the bundle at hand, and is called at most once."""
        self.policy, self.folder, self._open = policy, folder, texts
        self.facts: list[str] = []
        self._same_text: Counter[str] = Counter()

    @cached_property
    def texts(self) -> Texts:
        return self._open()

    def same_text_facts(self) -> list[str]:
        counts = ", ".join(f"{count} {precision} cells" for precision, count in sorted(self._same_text.items()))
        return [f"text equal to the golden's, nothing to test: {counts}"] if counts else []

    def reasons(self, checks: Mapping[str, Row]) -> Iterator[Reason]:
        """The reasons against one cell. ``checks``: its rows by check."""
        policy, logits, tokens = self.policy, checks.get("logits"), checks.get("tokens")
        for check, needed in (("logits", bool(policy.logits)), ("tokens", bool(policy.flips or policy.text))):
            if needed and check not in checks:
                yield no_row(check, next(iter(checks.values())))
        if policy.logits and logits is not None and logits.compared:
            used = logits.value / logits.bound if logits.value is not None and logits.bound else math.inf
            yield from _over("logits", logits, policy.logits, used, "of the bound used by logits")
        if tokens is None or not tokens.compared:
            return
        if policy.flips:
            message = "of the sentences leave the golden's tokens"
            yield from _over("flips", tokens, policy.flips, _flips(tokens), message)
        if policy.text:
            text = checks.get("text", tokens)
            yield from self._text(tokens, policy.text, text.command)

    def _text(self, tokens: Row, budget: Text, command: str) -> Iterator[Reason]:
        if tokens.precision not in budget.loss:
            message = f"the policy has no budget of text for {tokens.precision}"
            yield Reason("text", "text", message, command)
            return
        if tokens.bundle != self.texts.bundle.short:
            message = f"its bundle is {tokens.bundle}, not {self.texts.bundle.short}; give it with --bundle"
            yield Reason("text", "text", message, command)
            return
        path = self.folder / tokens.series
        try:
            ids = token_ids(path.read_bytes(), len(self.texts.bundle.rows))
        except (OSError, ValueError) as error:
            yield Reason("text", "text", f"the hypotheses cannot be read from {path} ({error})", command)
            return
        hypotheses = self.texts.spell(ids, tokens.detail.get("ties", []))
        if hypotheses == self.texts.golden:
            self._same_text[tokens.precision] += 1
            return
        test = self.texts.paired(hypotheses, budget.method, budget.samples)
        loss, allowed = test.golden - test.score, budget.loss[tokens.precision]
        message = (
            f"BLEU {test.score:.2f}, the golden has {test.golden:.2f}: {loss:+.2f} lost, budget {allowed:g} in "
            f"{tokens.precision}, p = {test.p:.4f} ({test.signature})"
        )
        if loss > allowed and test.p < 1 - budget.confidence:
            yield Reason("text", "text", message, command)
        else:
            self.facts.append(f"{tokens.cell} on {tokens.box}: {message}")


def _flips(tokens: Row) -> float:
    """The share of sentences whose tokens are not the golden's; NaN where the row does not tell."""
    counts = tokens.detail.get("rows", {})
    sentences = sum(counts.values())
    return (counts.get("TIE", 0) + counts.get("DIVERGED", 0)) / sentences if sentences else math.nan


def _over(what: str, row: Row, budgets: Mapping[str, float], used: float, words: str) -> Iterator[Reason]:
    if row.precision not in budgets:
        yield Reason(what, row.check, f"the policy has no budget of {what} for {row.precision}", row.command)
    elif not used <= budgets[row.precision]:
        message = f"{used:.3g} {words}, budget {budgets[row.precision]:g} in {row.precision}"
        yield Reason(what, row.check, message, row.command)
