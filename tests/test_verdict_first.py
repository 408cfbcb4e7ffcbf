"""A verdict is written before it is explained: whatever a knob does while the culprit is looked for, the verdict stays."""

from pathlib import Path
from typing import Any

import pytest

from tests import helpers

OUTCOMES = {"KnobDies": "died", "KnobRaises": "raised", "KnobHangs": "hung"}


def lines(results: Path, cell: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of the cell whose name ends so, by check, in the order of writing."""
    by_check: dict[str, list[dict[str, Any]]] = {}
    for row in helpers.rows_in(results):
        if row["cell"].endswith(cell):
            by_check.setdefault(row["check"], []).append(row)
    return by_check


@pytest.mark.parametrize("fault", OUTCOMES)
def test_a_knob_that_fails_leaves_the_verdict(fault: str, tmp_path: Path, valid: Any) -> None:
    """The row is FAIL with its figures; the diagnosis says what became of the knob; the next cell is not harmed."""
    done = helpers.conformance(
        tmp_path,
        f"--backend=tests.faults:{fault}",
        "--opset=16-17",
        "--layout=unified",
        "--cell-timeout=6",
        "-k",
        "logits or kv_shape",
        FAULT_AT="op16",
    )
    assert done.returncode == 1, done.stdout
    valid(helpers.rows_in(tmp_path))
    struck, honest = lines(tmp_path, "op16"), lines(tmp_path, "op17")
    assert [row["status"] for row in struck["kv_shape"]] == ["PASS"]
    assert {check: [row["status"] for row in rows] for check, rows in honest.items()} == {
        "logits": ["PASS"],
        "kv_shape": ["PASS"],
    }
    *verdicts, explained = struck["logits"]
    assert [(row["status"], row["attempt"]) for row in verdicts] == [("FAIL", 1), ("FAIL", 2)]
    assert not any("knobs" in row["detail"] for row in verdicts), "these were written before anything was explained"
    assert (explained["status"], explained["attempt"]) == ("FAIL", 2), explained["message"]
    assert explained["compared"] == verdicts[-1]["compared"] > 0
    assert explained["value"] == verdicts[-1]["value"] > explained["bound"] > 0
    assert explained["step"] == 0
    assert explained["blame"]
    knobs = explained["detail"]["knobs"]
    assert OUTCOMES[fault] in knobs["optimizer=off"], knobs
    assert OUTCOMES[fault] in knobs["optimizer=basic"], "one that failed does not keep the others from being tried"
    assert OUTCOMES[fault] not in knobs["threads=1"], knobs
    assert all(f"{knob} " in done.stdout for knob in knobs), "the failure shows them"
    assert "compared nothing" not in done.stdout


def test_a_knob_that_damages_the_process_harms_no_other_verdict(tmp_path: Path, valid: Any) -> None:
    """The worker of the explanation is not the worker of the checks that are still to come, nor of the next cell."""
    done = helpers.conformance(
        tmp_path,
        "--backend=tests.faults:KnobDamages",
        "--opset=16-17",
        "--layout=unified",
        "-k",
        "encoder or logits or kv_values or placement or invariance",
        FAULT_AT="op16",
    )
    assert done.returncode == 1, done.stdout
    valid(helpers.rows_in(tmp_path))
    struck, honest = lines(tmp_path, "op16"), lines(tmp_path, "op17")
    last = {check: rows[-1]["status"] for check, rows in struck.items()}
    assert last == {
        "encoder": "PASS",
        "logits": "FAIL",
        "kv_values": "PASS",
        "placement": "PASS",
        "invariance": "PASS",
    }
    assert struck["logits"][-1]["detail"]["knobs"]
    assert {check: [row["status"] for row in rows] for check, rows in honest.items()} == {
        check: ["PASS"] for check in last
    }
