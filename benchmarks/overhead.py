"""What the harness costs beside the runtime it watches.

Side by side in one run, on a bundle of eight long sentences cut at 64 steps (recorded here, so the extra `golden` is
needed): the whole ``pytest --backend=ort`` process for one cell, and a bare ONNX Runtime script that does its own
import, load, and the same forced and free steps. Ratios of medians are the result; seconds depend on the box. Both run
as installed programs do, with their byte code kept. ``--python`` measures the environment that the README's command
makes, which has no other pytest plugins than ours:

    python benchmarks/overhead.py --python .tox/ort/bin/python
    python benchmarks/overhead.py                      the embedded model, in this environment
    python benchmarks/overhead.py --opus --rounds 3    random weights of opus-mt-en-zh's geometry, some minutes
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = "artifact or encoder or logits or kv_shape or kv_values or tokens or text or placement"
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured runs of each side; the first pair is not counted"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of both sides (default: this one)")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--opus", action="store_true", help="random weights of opus-mt-en-zh's geometry")
    parser.add_argument("--model", type=Path, default=ROOT / "corpora" / "tiny-marian-en-zh")
    parser.add_argument("--steps", type=int, nargs="+", default=[16, 32, 64, 128], help="for the memory table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.opus:
            options.model = Path(folder) / "opus-geometry"
            run([sys.executable, str(ROOT / "benchmarks" / "opus_geometry.py"), str(options.model)])
        bundles = {steps: record(options, Path(folder), steps) for steps in sorted({64, *options.steps})}
        times(options, bundles[64], Path(folder))
        memory(options, bundles, Path(folder))
        comparison(bundles[64])
    return 0


def record(options: argparse.Namespace, folder: Path, steps: int) -> Path:
    """A bundle of the corpus's eight longest rows, every row traced, cut at ``steps``."""
    lines = (ROOT / "corpora" / "corpus.tsv").read_text(encoding="utf-8").splitlines()
    longest = sorted((line for line in lines[1:] if line.split("\t")[1] == "inspection"), key=len)[-8:]
    corpus, out = folder / f"{steps}.tsv", folder / f"{steps}.bundle"
    corpus.write_text("\n".join([lines[0], *longest]) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "conform.cli",
        "record",
        str(options.model),
        "--corpus",
        str(corpus),
        "--out",
        str(out),
    ]
    command += ["--opset", str(options.opset), "--layout", "unified", "--max-steps", str(steps)]
    run([*command, "--traced-steps", str(8 * steps)])
    return out


def run(command: list[str]) -> tuple[float, str]:
    """Wall seconds and output of a process that must succeed."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return time.perf_counter() - began, done.stdout


def commands(options: argparse.Namespace, bundle: Path, results: Path, checks: str) -> tuple[list[str], list[str]]:
    harness = [
        options.python,
        "-m",
        "pytest",
        "-q",
        "--backend=ort",
        f"--bundle={bundle}",
        f"--opset={options.opset}",
        "--layout=unified",
        f"--results={results}",
        "-k",
        checks,
    ]
    return harness, [options.python, str(ROOT / "benchmarks" / "bare_ort.py"), str(bundle)]


def times(options: argparse.Namespace, bundle: Path, folder: Path) -> None:
    seconds: dict[str, list[float]] = {"harness": [], "bare": []}
    for number in range(options.rounds + 1):
        results = folder / f"results-{number}"
        harness, bare = commands(options, bundle, results, CHECKS)
        seconds["harness"].append(run(harness)[0])
        seconds["bare"].append(run(bare)[0])
    middle = {side: statistics.median(values[1:]) for side, values in seconds.items()}
    spent = [row for row in rows(results) if row["check"] == "logits"][-1]["detail"]["seconds"]
    print(f"\nwhole process, one cell, 8 sentences, 64 steps, {options.rounds} rounds (medians)")
    print(f"  pytest --backend=ort   {middle['harness']:.2f} s")
    print(f"  bare ONNX Runtime      {middle['bare']:.2f} s")
    print(
        f"  ratio                  {middle['harness'] / middle['bare']:.2f}   (to reach: {1.15 if options.opus else 1.8})"
    )
    compare, replay = spent["compare"], spent["replay"]
    print(f"  comparison             {100 * compare / middle['harness']:.1f} % of the run   (to reach: 3)")
    print(f"                         {1e3 * compare:.1f} ms beside {1e3 * replay:.1f} ms of forced replay")


def memory(options: argparse.Namespace, bundles: dict[int, Path], folder: Path) -> None:
    print("\npeak memory as steps grow (MiB)\n  steps   worker   bare   ratio")
    for steps in sorted(options.steps):
        results = folder / f"memory-{steps}"
        harness, bare = commands(options, bundles[steps], results, f"{CHECKS} or cost")
        run(harness)
        worker = [row for row in rows(results) if row["check"] == "cost"][-1]["detail"]["peak_memory_bytes"] / 2**20
        alone = json.loads(run(bare)[1])["peak_memory_bytes"] / 2**20
        print(f"  {steps:5}   {worker:6.0f}   {alone:4.0f}   {worker / alone:.2f}")


def comparison(bundle: Path) -> None:
    """Our comparison of the traced logits with float64, beside Polygraphy's of the same arrays."""
    import numpy as np

    from harness.core.bundle import Bundle
    from harness.core.roles import LOGITS
    from harness.judge.golden import Golden

    opened = Bundle(str(bundle), verify=False)
    golden = Golden(opened, "fp32")
    values = opened.witness(opened.graphs[0].id)["logits"]
    began = time.perf_counter()
    series = golden.series(opened.graphs[0])[LOGITS]
    for start, stop in zip(golden.batches[0].trace.starts()[:-1], golden.batches[0].trace.starts()[1:], strict=True):
        series.add(int(start), values[start:stop], int(stop - start))
    series.judge()
    ours = time.perf_counter() - began
    print(f"\ncomparison of {series.compared:,} logits\n  ours         {1e3 * ours:7.1f} ms, step by step")
    try:
        from polygraphy.comparator import IterationResult, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER
    except ImportError:
        print("  Polygraphy   not installed (pip install polygraphy)")
        return
    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    steps = [slice(int(a), int(b)) for a, b in itertools.pairwise(golden.batches[0].trace.starts())]
    theirs = np.asarray(opened.array("trace_logits"))
    began = time.perf_counter()
    compare = SimpleCompareFunc(atol=1e-3, rtol=0)
    for at in steps:
        compare(IterationResult({"logits": values[at]}), IterationResult({"logits": theirs[at]}))
    spent = time.perf_counter() - began
    print(f"  Polygraphy   {1e3 * spent:7.1f} ms, step by step ({spent / ours:.0f} times ours)")


def rows(results: Path) -> list[dict]:
    return [
        json.loads(line)
        for path in sorted(results.glob("*.jsonl"), key=os.path.getmtime)
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


if __name__ == "__main__":
    sys.exit(main())
