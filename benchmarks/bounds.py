"""How far honest runtimes and small faults are from the bounds: the measurement behind ``harness/judge/bounds.py``.

    python benchmarks/bounds.py --out docs                                  runtimes of this environment
    python benchmarks/bounds.py --out docs --python /path/to/python3.8 ...  other interpreters' ONNX Runtime as well
    python benchmarks/bounds.py --out docs --rows results ...               the section of columns alone, from rows

Every forced replay gives a tail and a bulk for each tensor, in units of PyTorch float32's own noise. Honest cells: runtimes
× opsets × layouts × thread counts × optimizer levels × model sizes. Faulty cells: the smallest faults worth catching. Writes
``bounds.md``, ``bounds-logits.svg`` and ``bounds-tensors.svg``. Needs the extras golden, ort, openvino, and matplotlib.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.core.bundle import Bundle  # noqa: E402 - the checkout's own packages, also without an installation
from harness.core.rows import newest, seen_status  # noqa: E402
from harness.core.selectors import parse  # noqa: E402
from harness.core.verdict import FORCED as CHECKS  # noqa: E402
from harness.judge import bounds  # noqa: E402
from harness.judge.golden import Golden  # noqa: E402
from harness.run.process import Limits  # noqa: E402
from harness.run.worker import Worker  # noqa: E402
from reports.folders import read_all  # noqa: E402
from tests.helpers import judge  # noqa: E402
from tests.mutant import Mutant  # noqa: E402
from tests.saboteurs.edits import edited, epsilon, weight  # noqa: E402

OPSETS = {"embedded": (9, 12, 14, 16, 17, 20, 23), "small": (12, 17, 21), "medium": (12, 17, 21), "opus-mt": (17,)}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ort": [{}, {"optimizer": "off"}, {"optimizer": "basic"}, {"threads": 1}, {"threads": 2}],
    "openvino": [{}, {"threads": 1}, {"CPU_RUNTIME_CACHE_CAPACITY": "0"}],
    "reference": [{}],
}


COLUMNS = "## Columns"


class Point(NamedTuple):
    """One tensor of one cell: ``tail`` (largest gap over the floor's largest) and ``bulk`` (median of gap over floor)."""

    kind: str
    model: str
    what: str
    tensor: str
    tail: float
    bulk: float
    part: float

    @property
    def worst(self) -> float:
        """The largest of the three as a fraction of its limit; over 1 fails."""
        return max(self.tail / bounds.TAIL, self.bulk / bounds.BULK, self.part / bounds.BULK_PART)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for bounds.md and its plots")
    parser.add_argument("--python", nargs="*", default=[], help="interpreters with another onnxruntime")
    parser.add_argument(
        "--rows", nargs="+", type=Path, help="results folders or files: write the section of columns alone"
    )
    parser.add_argument("--models", nargs="+", choices=list(OPSETS), default=list(OPSETS))
    options = parser.parse_args()
    page = options.out / "bounds.md"
    if options.rows:
        old = page.read_text(encoding="utf-8")
        page.write_text(old.replace(section(old), "\n".join(columns(options.rows)) + "\n\n"), encoding="utf-8")
        return 0
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            bundle = Bundle(str(bundle_of(model, Path(folder))))
            for point in (*honest(model, bundle, options.python), *faulty(model, bundle)):
                points.append(point)
            print(f"{model}: {len(points)} points", file=sys.stderr)
    write(options.out, points)
    return 0


def columns(paths: list[Path]) -> list[str]:
    """The section of columns: the values of each runtime on each device, over all of its cells in those rows."""
    lines = [
        COLUMNS,
        "",
        "From rows (`--rows`), each against the floor of the precision that its cells compute in: median, up to largest.",
        "",
        "| column | device | precision | bundle | layouts | opsets | tensors | tail | bulk | bulk of a part |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    by_column: dict[tuple[str, ...], list[Any]] = {}
    for row in newest(row for _, row in read_all(paths)):
        if row.cell:
            by_column.setdefault((f"{row.backend}@{row.version}", row.device, row.precision, row.bundle), []).append(
                row
            )
    for column, rows in sorted(by_column.items()):
        points = points_of("honest", "", "", [row for row in rows if seen_status(row) == "PASS"])
        measured = list(zip(*((point.tail, point.bulk, point.part) for point in points), strict=True))
        if measured:
            ran = [row for row in rows if row.compared and row.check != "artifact"]
            layouts, opsets = sorted({row.layout for row in ran}), sorted({row.opset for row in ran})
            span = f"{opsets[0]}–{opsets[-1]}" if len(opsets) > 1 else str(opsets[0])
            cells = [
                *column,
                ", ".join(layouts),
                span,
                str(len(measured[0])),
                *(_two(np.array(values)) for values in measured),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def section(page: str) -> str:
    """The section of columns in an existing page, to the next heading."""
    _, head, rest = page.partition(COLUMNS)
    return head + rest.partition("\n## ")[0] + "\n" if head else ""


def bundle_of(model: str, folder: Path) -> Path:
    """The embedded bundle, or one recorded here of random weights in another size."""
    if model == "embedded":
        return ROOT / "corpora" / "tiny-marian-en-zh.bundle"
    directory, out, corpus = folder / model, folder / f"{model}.bundle", folder / f"{model}.tsv"
    size = {"small": "64 1 2 1100", "medium": "256 4 4 8000", "opus-mt": "512 6 8 65001"}[model].split()
    run(sys.executable, str(ROOT / "benchmarks" / "opus_geometry.py"), str(directory), *size)
    lines = (ROOT / "corpora" / "corpus.tsv").read_text(encoding="utf-8").splitlines()
    rows = 4 if model == "opus-mt" else 12
    corpus.write_text("\n".join(lines[:1] + lines[60 : 60 + rows]) + "\n", encoding="utf-8")
    opsets = OPSETS[model]
    command = ["-m", "conform.cli", "record", str(directory), "--corpus", str(corpus), "--out", str(out)]
    steps = 24 if model == "opus-mt" else 40
    run(sys.executable, *command, "--opset", f"{opsets[0]}-{opsets[-1]}", "--max-steps", str(steps))
    return out


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr[-2000:]}")


def honest(model: str, bundle: Bundle, pythons: list[str]) -> Iterator[Point]:
    """Points of every runtime that is right by default, or with the knob that avoids a known fault of its own."""
    for name, settings in SETTINGS.items():
        if name == "reference" and model == "opus-mt":
            continue  # it takes minutes a step, and recording has compared the witness with the golden already
        for python in [None, *(pythons if name == "ort" else [])]:
            worker = Worker(bundle.path, parse(name), Limits(), python)
            answer = worker.probe()
            if answer.probe is None:
                print(f"{name} ({python}): {answer.absent or answer.failure}", file=sys.stderr)
                continue
            for graph in bundle.graphs:
                for setting in settings if python is None else settings[:1]:
                    live_fault = (
                        name == "openvino" and graph.layout == "unified" and "CPU_RUNTIME_CACHE_CAPACITY" not in setting
                    )
                    if graph.opset not in OPSETS[model] or live_fault:
                        continue
                    words = " ".join(f"{key}={value}" for key, value in setting.items())
                    what = f"{name}@{answer.probe.version} {graph.layout} op{graph.opset} {words}".strip()
                    rows = list(worker.replay(graph.id, CHECKS, "", setting))
                    if all(row.status in ("PASS", "FAIL") for row in rows):
                        yield from points_of("honest", model, what, rows)
            worker.stop()


def faulty(model: str, bundle: Bundle) -> Iterator[Point]:
    """Points of small faults in an otherwise honest ONNX Runtime, opset 17, unified."""
    rng = np.random.default_rng(0)

    def half(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float16).astype(np.float32) * np.float32(1 + 2**-11)

    def top_16_bits(values: np.ndarray) -> np.ndarray:
        return ((values.view("<u4") + 0x8000) & 0xFFFF0000).view("<f4")

    def noise(size: float) -> Any:
        def outputs(_: str, __: int, ___: Any, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {
                key: value + (size * rng.standard_normal(value.shape)).astype(np.float32) if key == "logits" else value
                for key, value in results.items()
            }

        return outputs

    faults: dict[str, dict[str, Any]] = {
        **{f"layer-norm eps {value:g}": {"graph": edited(epsilon(value))} for value in (1e-6, 1e-12, 2e-5, 1e-4)},
        "weights of one projection off by 2⁻¹¹": {"graph": edited(weight("fc1", half), "step")},
        "bf16 weights of one projection": {"graph": edited(weight("fc1", top_16_bits), "step")},
        **{f"noise of {value:g} on the logits": {"outputs": noise(value)} for value in (1e-5, 1e-4)},
    }
    golden = Golden(bundle, "fp32")
    for what, hooks in faults.items():
        try:
            rows = judge(Mutant(**hooks), "unified", 17, CHECKS, of=golden)
        except AssertionError as error:
            print(f"{model}, {what}: {error}", file=sys.stderr)
            continue
        yield from points_of("faulty", model, what, list(rows.values()))


def points_of(kind: str, model: str, what: str, rows: list[Any]) -> Iterator[Point]:
    for row in rows:
        for tensor, stats in row.detail.get("tensors", {}).items():
            if stats["bulk"] is not None and stats["floor"]:
                yield Point(
                    kind, model, what, tensor, stats["tail"] / stats["floor"], stats["bulk"], stats["bulk_part"] or 0.0
                )


def group(tensor: str) -> str:
    if tensor in ("logits", "last_hidden_state"):
        return tensor
    return "cross K/V" if ".encoder." in tensor else f"K/V of layer {tensor.split('.')[1]}"


def write(out: Path, points: list[Point]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    page = out / "bounds.md"
    old = section(page.read_text(encoding="utf-8")) if page.exists() else ""
    plot_logits(out / "bounds-logits.svg", [point for point in points if point.tensor == "logits"])
    plot_tensors(out / "bounds-tensors.svg", points)
    good = [point for point in points if point.kind == "honest"]
    lines = [
        "# Bounds: measured, not chosen",
        "",
        "Written by `python benchmarks/bounds.py --out docs`; do not edit. Each point is one tensor of one cell's forced",
        "replay. *Tail*: the largest gap of any step to float64 over the largest gap of PyTorch float32. *Bulk*: the median",
        "over steps of gap over PyTorch's own gap at that step. 1 is as good as PyTorch.",
        "",
        f"Limits: tail {bounds.TAIL:g}; bulk {bounds.BULK:g} over all steps, {bounds.BULK_PART:g} over one batch or the",
        f"late steps only (from 32, from 64); a bulk only from {bounds.BULK_STEPS} steps on; never under one unit in the",
        "last place at the tensor's magnitude. The widest honest tensors measured stand at "
        f"{max(p.tail for p in good):.2f}, {max(p.bulk for p in good):.2f} and {max(p.part for p in good):.2f}.",
        "Medians, up to the largest:",
        "",
        f"## Honest cells ({len({(p.model, p.what) for p in good})} cells, {len(good)} tensors)",
        "",
        "| model | tensor | tail | bulk | bulk of a part | widest cell |",
        "|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(point.model for point in good):
        for name in dict.fromkeys(group(point.tensor) for point in good if point.model == model):
            mine = [point for point in good if point.model == model and group(point.tensor) == name]
            tails, bulks, parts = (
                np.array([getattr(point, key) for point in mine]) for key in ("tail", "bulk", "part")
            )
            widest = max(mine, key=lambda point: point.worst)
            lines.append(f"| {model} | {name} | {_two(tails)} | {_two(bulks)} | {_two(parts)} | {widest.what} |")
    lines += [
        "",
        *old.splitlines(),
        "## Faults",
        "",
        "The tensor that shows the fault most; **bold** is over its limit. A fault is caught when either is.",
        "",
        "| model | fault | tensor | tail | bulk | bulk of a part | caught |",
        "|---|---|---|---|---|---|---|",
    ]
    missed = 0
    bad = [point for point in points if point.kind == "faulty"]
    for model, what in dict.fromkeys((point.model, point.what) for point in bad):
        mine = [point for point in bad if (point.model, point.what) == (model, what)]
        most = max(mine, key=lambda point: point.worst)
        caught = most.worst > 1
        missed += not caught
        tail, bulk = _bold(most.tail, bounds.TAIL), _bold(most.bulk, bounds.BULK)
        part = _bold(most.part, bounds.BULK_PART)
        lines.append(f"| {model} | {what} | {most.tensor} | {tail} | {bulk} | {part} | {'yes' if caught else 'no'} |")
    over = [point for point in good if point.worst > 1]
    lines += [
        "",
        f"Honest tensors over a limit: {len(over)}. Faults not caught: {missed}.",
        *(
            f"- over: {point.model}, {point.what}, {point.tensor}: {point.tail:.2f}, {point.bulk:.2f}, {point.part:.2f}"
            for point in over[:10]
        ),
        "",
        "![Logits: tail and bulk of every cell](bounds-logits.svg)",
        "",
        "![All tensors](bounds-tensors.svg)",
        "",
        "## What these bounds cannot see",
        "",
        "A fault that leaves every tensor within these limits of float64 everywhere is, to this harness, noise: no larger",
        "than a few times what PyTorch float32 itself does. With random weights (small, medium, opus-mt) layer norms see",
        "inputs of another scale than in a trained model, so how far a wrong eps stands out there says little.",
    ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _two(values: np.ndarray) -> str:
    return f"{np.median(values):.2f}, up to {values.max():.2f}"


def _bold(value: float, limit: float) -> str:
    return f"**{value:.3g}**" if value > limit else f"{value:.3g}"


def plot_logits(path: Path, points: list[Point]) -> None:
    figure, axes = _axes("Logits, one point a cell")
    for kind, marker in (("honest", "o"), ("faulty", "X")):
        for colour, model in zip(("#0072b2", "#e69f00", "#009e73", "#cc79a7"), OPSETS, strict=True):
            mine = [point for point in points if point.kind == kind and point.model == model]
            if mine:
                tails, bulks = [point.tail for point in mine], [point.bulk for point in mine]
                axes.scatter(tails, bulks, marker=marker, color=colour, s=40, alpha=0.7, label=f"{kind}, {model}")
    _finish(figure, axes, path)


def plot_tensors(path: Path, points: list[Point]) -> None:
    figure, axes = _axes("Every tensor")
    for kind, marker, colour in (("honest", "o", "#0072b2"), ("faulty", "X", "#d55e00")):
        mine = [point for point in points if point.kind == kind]
        axes.scatter(
            [p.tail for p in mine], [p.bulk for p in mine], marker=marker, color=colour, s=14, alpha=0.5, label=kind
        )
    _finish(figure, axes, path)


def _axes(title: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bounds"  # the same figure gives the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tail (largest gap ÷ PyTorch's largest)",
        ylabel="bulk (median gap ÷ PyTorch's)",
    )
    axes.axvline(bounds.TAIL, color="black", linestyle="--", linewidth=1)
    axes.axhline(bounds.BULK, color="black", linestyle="--", linewidth=1)
    axes.set_title(title)
    return figure, axes


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
