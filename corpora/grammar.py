"""Seeded grammar of shop-floor inspection sentences: English with its Chinese translation.

The text is our own and is released under CC0-1.0. A seed gives the same sentences on every supported Python:
all draws go through `random.Random`, and no result depends on the order of a set.

`held_out(seed)` gives the test rows and `training(seed)` the training rows. No held-out sentence appears in
the training rows, neither as a row of its own nor inside a paragraph.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from corpora.phrases import ADJECTIVES, DEFECTS, PARTS, PEOPLE, QUANTITIES, STATES, Pair, Phrases

DEFAULT_SEED = 20240607


class Row(NamedTuple):
    """One text of the grammar and the sentences that it was joined from."""

    text: Pair
    sentences: tuple[Pair, ...]


def _finish(clause: Pair) -> Pair:
    """Make a sentence of a clause: capital letter and full stop."""
    return Pair(f"{clause.en[0].upper()}{clause.en[1:]}.", f"{clause.zh}。")


class Grammar(Phrases):
    """Draws sentences. Clauses have no capital and no full stop; sentences and paragraphs have both."""

    def label(self) -> Pair:
        """A short form of one to four words, such as "Bolt.", "Left gear." or "Torque 12 Nm."."""
        kind = self.rng.randint(0, 8)
        if kind == 0:
            return _finish(Pair(*self.rng.choice(PARTS)))
        if kind == 1:
            return _finish(Pair(*self.rng.choice(DEFECTS)))
        if kind == 2:
            return _finish(Pair(*self.rng.choice(STATES)))
        if kind == 3:
            quantity, quantity_zh, _, _ = self.rng.choice(QUANTITIES)
            return _finish(Pair(quantity, quantity_zh))
        if kind == 4:
            quantity, quantity_zh, unit, unit_zh = self.rng.choice(QUANTITIES)
            value = self.number()
            return _finish(Pair(f"{quantity} {value} {unit}", f"{quantity_zh}{value}{unit_zh}"))
        if kind == 5:
            part, number = self.part(), self.rng.randint(1, 99)
            return _finish(Pair(f"{part.en} number {number}", f"{number}号{part.zh}"))
        if kind == 6:
            part, defect = Pair(*self.rng.choice(PARTS)), Pair(*self.rng.choice(DEFECTS))
            return _finish(Pair(f"{defect.en} on {part.en}", f"{part.zh}上有{defect.zh}"))
        adjective, part = Pair(*self.rng.choice(ADJECTIVES)), Pair(*self.rng.choice(PARTS))
        return _finish(Pair(f"{adjective.en} {part.en}", adjective.zh + part.zh))

    def _single(self) -> Pair:
        if self.rng.randint(0, 5) == 0:
            return self.command()
        return self.fact()

    def _double(self) -> Pair:
        kind = self.rng.randint(0, 6)
        if kind == 0:
            condition = self.rng.choice((self.state, self.measurement, self.finding))()
            command = self.command()
            return Pair(f"if {condition.en}, {command.en}", f"如果{condition.zh}，{command.zh}")
        if kind == 1:
            result, cause = self.fact(), self.fact()
            return Pair(f"{result.en} because {cause.en}", f"因为{cause.zh}，所以{result.zh}")
        if kind == 2:
            first, second = self.fact(), self.fact()
            return Pair(f"{first.en}, but {second.en}", f"{first.zh}，但是{second.zh}")
        if kind == 3:
            command, later = self.command(), self.action()
            return Pair(f"{command.en} before you {later.en}", f"在{later.zh}之前，{command.zh}")
        if kind == 4:
            first, second = self.past(), self.fact()
            return Pair(f"after {first.en}, {second.en}", f"在{first.zh}之后，{second.zh}")
        if kind == 5:
            first, second = self.fact(), self.fact()
            return Pair(f"{first.en} and {second.en}", f"{first.zh}，而且{second.zh}")
        who, fact = Pair(*self.rng.choice(PEOPLE)), self.fact()
        return Pair(f"{who.en} reported that {fact.en}", f"{who.zh}报告说{fact.zh}")

    def one_clause(self) -> Pair:
        """A sentence of one clause."""
        return _finish(self._single())

    def two_clauses(self) -> Pair:
        """A sentence of two clauses, or of one clause that somebody reports."""
        return _finish(self._double())

    def three_clauses(self) -> Pair:
        """A sentence of three clauses, joined by a semicolon."""
        pair, single = self._double(), self._single()
        first, second = (pair, single) if self.rng.random() < 0.5 else (single, pair)
        return _finish(Pair(f"{first.en}; {second.en}", f"{first.zh}；{second.zh}"))

    def paragraph(self, length: int) -> Row:
        """A paragraph of `length` sentences."""
        sentences = tuple(
            self.rng.choice((self.one_clause, self.two_clauses, self.two_clauses))() for _ in range(length)
        )
        text = Pair(" ".join(s.en for s in sentences), "".join(s.zh for s in sentences))
        return Row(text, sentences)


# Kinds of row, in the order in which `held_out` gives them.
KINDS = ("label", "one clause", "two clauses", "three clauses", "paragraph")


def _as_row(draw: Callable[[], Pair]) -> Callable[[], Row]:
    def row() -> Row:
        pair = draw()
        return Row(pair, (pair,))

    return row


def _words(pair: Pair) -> int:
    return len(pair.en.split())


def _take(draw: Callable[[], Row], count: int, seen: set[str], least: int = 1, most: int = 999) -> list[Row]:
    """Draw `count` rows of `least` to `most` words that use no sentence in `seen`; adds their texts to it."""
    rows: list[Row] = []
    while len(rows) < count:
        row = draw()
        used = [row.text.en, *(sentence.en for sentence in row.sentences)]
        if least <= _words(row.text) <= most and not any(en in seen for en in used):
            seen.add(row.text.en)
            rows.append(row)
    return rows


def _held_out_rows(seed: int) -> dict[str, list[Row]]:
    grammar = Grammar(random.Random(f"held-out {seed}"))
    seen: set[str] = set()
    label = _as_row(grammar.label)
    rows = {
        "label": [
            *_take(label, 6, seen, 1, 1),
            *_take(label, 10, seen, 2, 2),
            *_take(label, 8, seen, 3, 4),
        ],
        "one clause": _take(_as_row(grammar.one_clause), 66, seen),
        "two clauses": _take(_as_row(grammar.two_clauses), 84, seen),
        "three clauses": _take(_as_row(grammar.three_clauses), 20, seen),
        "paragraph": [
            *_take(lambda: grammar.paragraph(3), 6, seen, 40, 60),
            *_take(lambda: grammar.paragraph(4), 8, seen, 55, 80),
            *_take(lambda: grammar.paragraph(5), 4, seen, 75, 89),
            *_take(lambda: grammar.paragraph(5), 4, seen, 92, 111),
        ],
    }
    assert tuple(rows) == KINDS
    return rows


def held_out_kinds(seed: int = DEFAULT_SEED) -> list[str]:
    """The kind (see `KINDS`) of each row of `held_out(seed)`."""
    return [kind for kind, rows in _held_out_rows(seed).items() for _ in rows]


def held_out(seed: int = DEFAULT_SEED) -> list[Pair]:
    """The test rows, from one word to a paragraph of over 90 words."""
    return [row.text for rows in _held_out_rows(seed).values() for row in rows]


def training(seed: int = DEFAULT_SEED) -> list[Pair]:
    """The training rows. None of them holds a sentence of `held_out(seed)`."""
    seen = {pair.en for rows in _held_out_rows(seed).values() for row in rows for pair in (row.text, *row.sentences)}
    grammar = Grammar(random.Random(f"training {seed}"))

    # The short forms are few, so they repeat; the other rows are all different.
    labels: list[Pair] = []
    while len(labels) < 3000:
        pair = grammar.label()
        if pair.en not in seen:
            labels.append(pair)
    rows = [
        *_take(_as_row(grammar.one_clause), 27000, seen),
        *_take(_as_row(grammar.two_clauses), 18000, seen),
        *_take(_as_row(grammar.three_clauses), 3000, seen),
        *_take(lambda: grammar.paragraph(grammar.rng.randint(2, 5)), 3500, seen),
    ]
    return labels + [row.text for row in rows]
