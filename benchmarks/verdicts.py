"""How often verdicts are right: every saboteur and control of ``tests/``, judged by this harness and by three others.

    python benchmarks/verdicts.py [--only NAME] [--quick]

This harness: caught, missed, wrong step or blame, false red. Beside it, on the same replays: Polygraphy's comparison with
its defaults, ``numpy.allclose`` at 1e-5 and 1e-3 as exporters use it (logits and caches of every step), and a gate on
BLEU alone (half a point). Needs the extras golden, ort, openvino and tests; Polygraphy where it is installed.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from backends.contract import Backend, StageError  # noqa: E402 - the checkout's own packages, also uninstalled
from harness.core.roles import LOGITS, is_own  # noqa: E402
from harness.core.rows import Row  # noqa: E402
from harness.judge.golden import Golden  # noqa: E402
from harness.replay.decoder import AdapterError, CannotGoOn, ContractError, Decoder  # noqa: E402
from harness.replay.job import Programs  # noqa: E402
from harness.replay.loops import force  # noqa: E402
from tests import test_saboteurs as suite  # noqa: E402
from tests.helpers import golden as embedded  # noqa: E402
from tests.helpers import judge  # noqa: E402
from tests.saboteurs.blind import BLIND  # noqa: E402

Pair = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
BLEU_BUDGET = 0.5
RIGHT = ("caught", "caught, other step or blame", "passed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="saboteurs and controls with this in their name")
    parser.add_argument("--quick", action="store_true", help="every tenth one")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[tuple[str, str], Counter[str]] = {}
    for number, (group, name, results) in enumerate(measured(options.only, 10 if options.quick else 1), 1):
        for gate, verdict in results.items():
            counts.setdefault((gate, group), Counter())[verdict] += 1
        ours = results["this harness"]
        print(
            f"\r{number:4} {name[:50]:<50} {ours:<28}", end="" if ours in RIGHT else "\n", file=sys.stderr, flush=True
        )
    print(file=sys.stderr)
    print(table(counts))
    return 0


def measured(only: str, stride: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(group, name, verdict of each gate). Groups: declared saboteurs, blind ones, honest controls."""
    for saboteur in [each for each in suite.SABOTEURS if only in each.name][::stride]:
        with tempfile.TemporaryDirectory() as folder:
            golden = suite.golden_of(saboteur, Path(folder))
            # A damaged bundle is not replayed once its artifact check has failed, so there is no text to score.
            checks = saboteur.checks if saboteur.bundle else tuple(dict.fromkeys((*saboteur.checks, "tokens", "text")))
            rows = suite.answer(saboteur.make(), saboteur.layout, saboteur.opset, checks, golden, Path(folder))
            asked = {check: rows[check] for check in saboteur.checks}
            failed = any(row.status not in ("PASS", "ABSENT") for row in asked.values())
            right = not suite.problems(saboteur, asked)
            ours = "caught" if right else "caught, other step or blame" if failed else "missed"
            theirs = others(saboteur.make, saboteur.layout, saboteur.opset, golden, rows)
            yield "saboteurs", saboteur.name, {"this harness": ours, **theirs}
    for blind in [each for each in BLIND if only in each.name][::stride]:
        rows = judge(
            blind.make(), blind.layout, checks=("encoder", "logits", "kv_shape", "kv_values", "tokens", "invariance")
        )
        ours = "caught" if any(row.status != "PASS" for row in rows.values()) else "missed"
        yield "blind", blind.name, {"this harness": ours, **others(blind.make, blind.layout, 17, embedded(), {})}
    for control, layout in [pair for pair in suite.CONTROLS if only in pair[0].name][::stride]:
        with tempfile.TemporaryDirectory() as folder:
            golden = suite.golden_of(control, Path(folder))
            rows = suite.answer(control.make(), layout, control.opset, control.checks, golden, Path(folder))
            ours = "passed" if all(row.status == "PASS" for row in rows.values()) else "false red"
            theirs = others(control.make, layout, control.opset, golden, rows)
            honest = {gate: "false red" if verdict == "caught" else "passed" for gate, verdict in theirs.items()}
            yield "controls", f"{control.name}-{layout}", {"this harness": ours, **honest}


def others(
    make: Callable[[], Backend], layout: str, opset: int, golden: Golden, rows: dict[str, Row]
) -> dict[str, str]:
    """Verdicts of the other gates: ``caught`` or ``missed``. Gates that compare numbers catch a replay that stops."""
    verdicts = {"allclose 1e-5": "missed", "allclose 1e-3": "missed", "Polygraphy": "missed"}
    try:
        for outputs, expected in pairs(make(), layout, opset, golden):
            for gate, tolerance in (("allclose 1e-5", 1e-5), ("allclose 1e-3", 1e-3)):
                if not close(outputs, expected, tolerance):
                    verdicts[gate] = "caught"
            if verdicts["Polygraphy"] == "missed" and not polygraphy(outputs, expected):
                verdicts["Polygraphy"] = "caught"
    except (CannotGoOn, StageError, AdapterError, ContractError, IndexError, ValueError):
        verdicts = dict.fromkeys(verdicts, "caught")
    text = rows.get("text")
    if text is not None and text.value is not None and text.floor is not None:
        verdicts["BLEU alone"] = "caught" if text.value < text.floor - BLEU_BUDGET else "missed"
    return verdicts


def pairs(backend: Backend, layout: str, opset: int, golden: Golden) -> Iterator[Pair]:
    """Outputs of each step of the first traced batch beside PyTorch's: logits and the whole own cache."""
    graph = next(graph for graph in golden.bundle.graphs if graph.id == f"torchscript/{layout}/fp32/op{opset}")
    programs = Programs({part.name: backend.compile(part, {"threads": 1}) for part in graph.parts})
    batch = golden.batches[0]
    assert batch.trace is not None
    starts = batch.trace.starts()
    with programs:
        for step, ran in force(Decoder(programs, graph, golden.bundle.dims), batch, golden.bundle.decode.start):
            if step < 0:
                continue
            active = batch.trace.active(step)
            at = slice(int(starts[step]), int(starts[step]) + active)
            outputs, expected = {}, {}
            for role, array in ran.outputs.items():
                if role == LOGITS or is_own(role):
                    outputs[role] = np.ascontiguousarray(
                        array[:active, -1] if role == LOGITS else array[:active, :, step]
                    )
                    expected[role] = np.ascontiguousarray(golden.tensors[role].golden[at], np.float32)
            yield outputs, expected


def close(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> bool:
    return all(
        outputs[name].shape == expected[name].shape and np.allclose(outputs[name], expected[name], tolerance, tolerance)
        for name in expected
    )


def polygraphy(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    try:
        from polygraphy.comparator import IterationResult, SimpleCompareFunc
        from polygraphy.exception import PolygraphyException
        from polygraphy.logger import G_LOGGER
    except ImportError:
        return True
    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    try:
        results: Any = SimpleCompareFunc()(IterationResult(outputs), IterationResult(expected))
    except PolygraphyException:
        return False
    return all(bool(result) for result in results.values())


def table(counts: dict[tuple[str, str], Counter[str]]) -> str:
    """One line a gate: caught of the declared and of the blind saboteurs, false reds of the controls."""
    from tabulate import tabulate

    lines = []
    for gate in ("this harness", "Polygraphy", "allclose 1e-5", "allclose 1e-3", "BLEU alone"):
        line: list[str] = [gate]
        for group in ("saboteurs", "blind"):
            count = counts.get((gate, group), Counter())
            caught = count["caught"] + count["caught, other step or blame"]
            line.append(f"{caught} of {count.total()}" if count else "-")
        right = counts.get((gate, "saboteurs"), Counter())
        line.append(f"{right['caught']} of {right.total()}" if gate == "this harness" else "-")
        honest = counts.get((gate, "controls"), Counter())
        lines.append([*line, f"{honest['false red']} of {honest.total()}"])
    return str(
        tabulate(lines, ["gate", "caught", "blind caught", "step, blame right", "false reds"], tablefmt="github")
    )


if __name__ == "__main__":
    sys.exit(main())
