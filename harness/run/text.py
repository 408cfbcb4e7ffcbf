"""The text check: detokenise with the bundle's piece table, score with sacrebleu, name what is empty or copied."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.core import verdict
from harness.core.bundle import Bundle
from harness.core.language import bleu_tokenizer
from harness.core.rows import Answer, Row
from harness.core.texts import METHODS, Interval, Paired, token_ids

BUDGET = {"fp32": 0.0}
"""BLEU that a precision may lose against the golden's own. Honest fp32 runtimes were measured to lose none."""

BOOTSTRAP = 1000
"""Resamples of a confidence interval: sacrebleu's own default."""

PAIRED = dict(zip(METHODS, ("bs", "ar"), strict=True))
"""sacrebleu's names of the paired tests."""


def detokenise(bundle: Bundle, ids: np.ndarray) -> str:
    """Text of target ids, special tokens left out."""
    rules = bundle.decode
    special = {rules.eos, rules.pad, rules.start}
    pieces = bundle.pieces
    # A runtime that pads the vocabulary can choose an id that no piece has.
    spelled = (
        pieces[token] if 0 <= token < len(pieces) else "\ufffd" for token in ids.tolist() if token not in special
    )
    return "".join(spelled).replace("▁", " ").strip()


def fingerprint(texts: Sequence[str]) -> str:
    """SHA-256 of texts in order."""
    return hashlib.sha256("\n".join(texts).encode("utf-8")).hexdigest()


class Scorer:
    """Scores hypotheses of one bundle; the golden's own score is worked out once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.references = [row.reference for row in bundle.rows]

    @cached_property
    def golden(self) -> list[str]:
        return [detokenise(self.bundle, self.bundle.tokens(row)) for row in range(len(self.bundle.rows))]

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """What `conform record` wrote of the golden's text: ``scores``, ``signatures``, ``sha256``; empty in its absence."""
        return dict(self.bundle.manifest.get("golden_text", {}))

    def record(self) -> dict[str, Any]:
        """What `conform record` is to write; see ``recorded``."""
        scores = self._score(self.golden, self.references)
        return {"scores": scores, "signatures": self.signatures(), "sha256": fingerprint(self.golden)}

    def _score_both(self, hypotheses: list[str]) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
        """Scores of the hypotheses and of the golden, and their common signatures: scores of two do not compare.

        Where nothing differs the recorded scores are both, and sacrebleu need not even be loaded.
        """
        if hypotheses == self.golden and self.recorded:
            return self.recorded["scores"], self.recorded["scores"], self.recorded["signatures"]
        return self._score(hypotheses, self.references), self._golden_now, self.signatures()

    @cached_property
    def _golden_now(self) -> dict[str, float]:
        return self._score(self.golden, self.references)

    def _score(self, hypotheses: list[str], references: list[str]) -> dict[str, float]:
        if len(hypotheses) != len(references):
            raise ValueError(f"{len(hypotheses)} hypotheses against {len(references)} references")
        return {name: metric.corpus_score(hypotheses, [references]).score for name, metric in self._metrics.items()}

    @property
    def tokenizer(self) -> str:
        """The name of sacrebleu's tokenizer for the bundle's language."""
        return bleu_tokenizer(self.bundle.language)

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        from sacrebleu.metrics import BLEU, CHRF

        return {"BLEU": BLEU(tokenize=self.tokenizer), "chrF": CHRF()}

    def signatures(self) -> dict[str, str]:
        return {name: str(metric.get_signature()) for name, metric in self._metrics.items()}

    def check(self, ids: Sequence[np.ndarray], ties: Sequence[str], precision: str) -> Answer:
        """The answer of the text check. ``ids``: [length] token ids of each corpus row's hypothesis; ``ties``: ids of rows
        whose choice was a tie: those are scored as the golden decoded them, so that rounding costs nobody a release."""
        hypotheses = [detokenise(self.bundle, row) for row in ids]
        scored = self.without_ties(hypotheses, ties)
        scores, golden, signatures = self._score_both(scored)
        bound = golden["BLEU"] - BUDGET.get(precision, 0.0)
        problems = list(self._oddities(hypotheses))
        if scores["BLEU"] < bound - 1e-9:
            problems.insert(0, (f"BLEU {scores['BLEU']:.2f}, PyTorch has {golden['BLEU']:.2f}", None))
        other_text = bool(self.recorded) and fingerprint(self.golden) != self.recorded["sha256"]
        if other_text:
            problems.insert(0, ("the piece table gives the golden another text than the tokenizer did", None))
        rows = zip(self.bundle.rows, scored, self.golden, strict=True)
        changed = [row.id for row, text, expected in rows if text != expected]
        return Answer(
            "text",
            verdict.of_row(len(hypotheses), len(problems)),
            metric="BLEU",
            value=scores["BLEU"],
            bound=bound,
            floor=golden["BLEU"],
            compared=len(hypotheses),
            sentence=next((row for _, row in problems if row), ""),
            blame="tokenizer" if other_text else "",
            message="; ".join(text for text, _ in problems),
            detail={
                "scores": scores,
                "golden": golden,
                "signatures": signatures,
                "changed": len(changed),
                "sentences": changed[:20],
            },
        )

    def spell(self, ids: Sequence[np.ndarray], ties: Sequence[str]) -> list[str]:
        """Texts as they are scored; see `harness.core.texts.Texts`."""
        return self.without_ties([detokenise(self.bundle, row) for row in ids], ties)

    def without_ties(self, hypotheses: Sequence[str], ties: Sequence[str]) -> list[str]:
        """The hypotheses, the golden's own where the choice was a tie."""
        return [
            golden if row.id in ties else text
            for row, text, golden in zip(self.bundle.rows, hypotheses, self.golden, strict=True)
        ]

    def interval(self, hypotheses: Sequence[str]) -> Interval:
        """BLEU with its 95 % interval by sacrebleu's bootstrap with its fixed seed."""
        # A copy, because it notes the resampling in its signature, which is not that of a score.
        bleu = copy.copy(self._metrics["BLEU"])
        score = bleu.corpus_score(hypotheses, [self.references], n_bootstrap=BOOTSTRAP)
        return Interval(score.score, score._mean - score._ci, score._mean + score._ci)

    def paired(self, hypotheses: Sequence[str], method: str, samples: int) -> Paired:
        """sacrebleu's paired test over the sentences of the bundle, the golden's hypotheses the baseline."""
        from sacrebleu.metrics import BLEU
        from sacrebleu.significance import PairedTest

        systems = [("golden", self.golden), ("runtime", list(hypotheses))]
        metrics = {"BLEU": BLEU(tokenize=self.tokenizer)}
        signatures, scores = PairedTest(systems, metrics, [self.references], PAIRED[method], samples)()
        golden, runtime = scores["BLEU"]
        return Paired(float(runtime.score), float(golden.score), float(runtime.p_value), str(signatures["BLEU"]))

    def _oddities(self, hypotheses: list[str]) -> list[tuple[str, str | None]]:
        odd: dict[str, list[str]] = {"empty": [], "copied from the source": []}
        for row, text, golden in zip(self.bundle.rows, hypotheses, self.golden, strict=True):
            if golden and not text:
                odd["empty"].append(row.id)
            elif text == row.source.strip() and text != golden:
                odd["copied from the source"].append(row.id)
        return [(f"{len(ids)} {word}, first {ids[0]}", ids[0]) for word, ids in odd.items() if ids]


def complete(scorer: Scorer, tokens_row: Row, results: str) -> Answer:
    """The answer of the text check that belongs to a tokens row, from the hypotheses in its sidecar file."""
    path = Path(results) / tokens_row.series
    try:
        ids = token_ids(path.read_bytes(), len(scorer.bundle.rows))
    except (OSError, ValueError) as error:
        message = f"the hypotheses cannot be read from {path} ({error})"
        return Answer("text", "ERROR", kind="other", message=message)
    answer = scorer.check(ids, tokens_row.detail.get("ties", []), tokens_row.precision)
    if answer.status != "FAIL" or answer.blame:
        return answer
    if tokens_row.blame:
        return replace(answer, blame=tokens_row.blame, knob=tokens_row.knob)
    # The same ids and other text: what stands between the two is the piece table.
    return replace(answer, blame="tokenizer")
