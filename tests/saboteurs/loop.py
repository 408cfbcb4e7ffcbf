"""Faults of the greedy loop: forbidden tokens, a missed end, an early one. In a backend, and in the rules themselves."""

from typing import Any

import numpy as np

from tests.saboteurs.frame import Manifest, Saboteur, bad, brief, changed, giving, only, since


def _on_top(token: str, value: float = 99.0) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[:, :, getattr(brief().bundle.decode, token)] = value
        return array

    return changed(change, "logits")


def _rule(**rules: Any) -> Any:
    """Other rules in the manifest than the ones the golden was recorded with: only the free replay follows them."""

    def edit(folder: Any, manifest: Manifest) -> None:
        manifest["decode"].update(rules)

    return edit


REST = ("encoder", "kv_shape", "kv_values")
RIGHT = ("logits", *REST)


def _shortest(golden: Any) -> int:
    return min(len(golden.bundle.tokens(row)) for row in range(len(golden.bundle.rows))) - 1


def _unused() -> int:
    """A token that the golden neither says nor comes near to."""
    near = set(np.unique(brief().bundle.array("top_ids")).tolist())
    return next(token for token in range(2, brief().bundle.decode.pad) if token not in near)


SABOTEURS: list[Saboteur] = [
    Saboteur(
        "pad-on-top-at-3",
        9,
        bad(outputs=giving(_on_top("pad"), only(3))),
        {"tokens": 3, "logits": 3},
        passes=REST,
        says="a forbidden token has the largest logit at step 3",
    ),
    Saboteur(
        "pad-on-top-at-20",
        9,
        bad(outputs=giving(_on_top("pad"), only(20))),
        {"tokens": 20, "logits": 20},
        passes=REST,
        says="a forbidden token has the largest logit at step 20",
    ),
    Saboteur(
        "pad-on-top-always",
        9,
        bad(outputs=giving(_on_top("pad"))),
        {"tokens": 0, "logits": 0},
        passes=REST,
        layout="split",
        says="a forbidden token has the largest logit at step 0",
    ),
    Saboteur(
        "never-ends",
        10,
        bad(outputs=giving(_on_top("eos", -99.0))),
        {"tokens": _shortest, "logits": 0},
        passes=REST,
        says="runaway",
    ),
    Saboteur(
        "never-ends-after-20",
        10,
        bad(outputs=giving(_on_top("eos", -99.0), since(20))),
        {"tokens": None, "logits": 20},
        passes=REST,
        says="runaway",
    ),
    Saboteur(
        "ends-at-5",
        22,
        bad(outputs=giving(_on_top("eos"), only(5))),
        {"tokens": 5, "logits": 5},
        passes=REST,
        says="early stop at step 5",
    ),
    Saboteur(
        "rules-stop-after-5-steps",
        22,
        bad(),
        {"tokens": 5},
        passes=RIGHT,
        blame="decode loop",
        says="5 steps, PyTorch has",
        bundle=_rule(max_steps=5),
    ),
    Saboteur(
        "rules-with-another-end-token",
        10,
        bad(),
        {"tokens": lambda golden: _shortest(golden) + 1},
        passes=RIGHT,
        blame="decode loop",
        says="runaway",
        bundle=lambda folder, manifest: manifest["decode"].update(eos=_unused()),
    ),
    # The golden was not recorded by these rules: its own choice is one of the forbidden ones.
    Saboteur(
        "rules-forbid-a-common-token",
        9,
        bad(),
        {"tokens": None},
        passes=RIGHT,
        blame="golden",
        bundle=lambda folder, manifest: manifest["decode"]["suppress"].append(int(brief().batches[0].tokens[0, 3])),
    ),
]
