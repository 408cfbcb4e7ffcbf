"""The texts of the bundle at hand, which reports ask for."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from harness.core.bundle import Bundle
from harness.run.launch import EMBEDDED
from harness.run.text import Scorer


def scorer_of(bundle: Path | None) -> Callable[[], Scorer]:
    """A function that gives the scorer of a bundle (the embedded one without a path), and opens the bundle when it is first
    called: most commands do without it. It raises UserError for what is no bundle."""

    @cache
    def scorer() -> Scorer:
        return Scorer(Bundle(str(bundle or EMBEDDED)))

    return scorer
