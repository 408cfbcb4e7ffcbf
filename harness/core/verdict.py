"""The words of a verdict and their truth table: stage × kind → status, status → what pytest, cell and matrix say."""

from typing import Dict, Iterable, List, NamedTuple, Tuple

STAGES = ("probe", "parse", "build", "load", "run", "compare")

CHECKS = ("artifact", "encoder", "logits", "kv_shape", "kv_values", "tokens", "text", "placement", "invariance", "cost")
FORCED = ("encoder", "logits", "kv_shape", "kv_values")
"""Checks of the forced replay."""
NUMERIC = tuple(check for check in CHECKS if check not in ("artifact", "text"))
"""Checks that a worker answers; the host answers artifact and text."""
UNBLAMED = ("placement", "cost")
"""Numeric checks that name what is wrong themselves: for every other one that fails the culprit is looked for."""
UNREPEATABLE = "another session of the same options is right: not repeatable from session to session"
"""Said of a failure that a second replay, with nothing changed, does not show."""
OF_PYTORCH = tuple(check for check in CHECKS if check not in ("artifact", "placement", "cost"))
"""Checks whose elements are held against PyTorch: what was placed, timed or checked beforehand is no comparison."""
OTHER_CHECKS = ("probe", "operator", "export")
"""What rows also answer, and no cell of a bundle is asked: whether a backend is here, node tests, an export."""


class Word(NamedTuple):
    """What one status means outside: pytest's outcome (pass, fail, skip, xfail), matrix symbol, and the words."""

    outcome: str
    symbol: str
    meaning: str


STATUSES: Dict[str, Word] = {
    # worst first: a cell is its worst row
    "ERROR": Word("fail", "❗", "harness or environment fault"),
    "CRASH": Word("fail", "💥", "crashed"),
    "TIMEOUT": Word("fail", "⏱", "timed out"),
    "FAIL": Word("fail", "❌", "wrong as shipped"),
    "FLAKY": Word("fail", "🎲", "attempts differ"),
    "UNVERIFIED": Word("fail", "❓", "placement or precision unproven"),
    "UNSUPPORTED": Word("skip", "🚫", "refused"),
    "ABSENT": Word("skip", "⬜", "not run here"),
    "PASS": Word("pass", "✅", "pass"),
    # the verdict on an expectation; the row keeps the status underneath in detail["expected"]
    "XFAIL": Word("xfail", "❌", "expected failure"),
    "XPASS": Word("fail", "✅", "expected to fail, passed"),
}
OF_RUNTIME = ("CRASH", "TIMEOUT", "FAIL", "FLAKY")
"""How a runtime fails; the other failures are of the harness, of the box, or of what was expected."""
MISSING = Word("skip", "·", "no row")
RESTAMPED = Word("skip", "⚠️", "passes when re-stamped (IR)")
PARTIAL = Word("pass", "◐", "what ran passed, not every check did")
BUILT = Word("skip", "🔨", "built, not run here")
SIMULATED = Word("pass", "🧪", "passes in a simulator, on no device")
WORDS: Dict[str, Word] = {**STATUSES, "PARTIAL": PARTIAL, "BUILT": BUILT, "SIMULATED": SIMULATED, "MISSING": MISSING}
"""What a cell can be called (`called`), worst first."""
SEVERITY: List[str] = [status for status in STATUSES if status not in ("XFAIL", "XPASS")]


def of_refusal(stage: str, kind: str) -> str:
    """Status of a StageError. A clear refusal before the run is UNSUPPORTED; once it runs, refusing is failing."""
    if stage == "run":
        return "FAIL"
    return "ERROR" if kind == "other" else "UNSUPPORTED"


def of_row(compared: int, problems: int) -> str:
    """Status of an answered check: nothing compared is an ERROR, whatever else is said."""
    if problems:
        return "FAIL"
    return "PASS" if compared > 0 else "ERROR"


def worst(statuses: Iterable[str]) -> str:
    """A cell's status from those of its rows; MISSING when there is none."""
    present = set(statuses)
    return next((status for status in SEVERITY if status in present), "MISSING")


def called(status: str, kind: str = "", partial: bool = False, simulated: bool = False) -> str:
    """What tables call a cell of that status: built is not ran, simulated is not on the device.

    ``kind``: of the row that decided; ``partial``: not every check was asked; ``simulated``: see `Row.simulated`.
    """
    if status == "ABSENT" and kind == "built":
        return "BUILT"
    if status == "PASS" and (partial or simulated):
        return "PARTIAL" if partial else "SIMULATED"
    return status


def exit_code(statuses: Iterable[Tuple[str, int]]) -> int:
    """Of (status, compared) pairs: 0 when nothing fails and something was compared, else 1."""
    rows = list(statuses)
    failed = any(STATUSES[status].outcome == "fail" for status, _ in rows)
    return int(failed or not any(compared for _, compared in rows))
