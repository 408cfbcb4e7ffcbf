"""What a year of nights costs: ``python -m benchmarks.store [--nights 365] [--columns 20] [--cells 500]``.

Generated rows, a column a box: every night but the last compacted, the last in JSONL. Each figure is of a command of its
own, held to two cores: seconds of wall time, and peak memory of all its processes, what they share counted once.
"""

import argparse
import copy
import json
import os
import resource
import sys
import tempfile
import time
from datetime import date, datetime, timedelta, timezone
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from harness.core import verdict
from harness.core.rows import Row, to_json
from harness.run.launch import EMBEDDED
from reports import compaction, diff, site, store

LAST = date(2026, 12, 1)
STATISTICS = {"tail": 1.88579875959e-06, "tail_bound": 5.83953582e-06, "floor": 1.45988395e-06, "bulk": 1.0294337162,
              "bulk_bound": 3.0, "bulk_part": 1.0641696325, "bulk_part_bound": 5.0, "entries": 623}  # fmt: skip
TENSORS = {
    "encoder": [
        "last_hidden_state",
        *(f"present.{layer}.encoder.{side}" for layer in (0, 1) for side in ("key", "value")),
    ],
    "logits": ["logits"],
    "kv_values": [f"present.{layer}.decoder.{side}" for layer in (0, 1) for side in ("key", "value")],
}
"""Of which outputs a row tells statistics, as a run's rows do."""


def write_night(folder: Path, night: date, columns: int, cells: int, random: np.random.Generator) -> None:
    """A rows file for each column; one cell of the last night fails."""
    stamp = f"{night}T02:00:00Z"
    for column in range(columns):
        box, backend = f"box{column:02}", ("ort", "openvino")[column % 2]
        run = f"{box}-{night:%Y%m%d}T020000Z-1"
        with (folder / f"{run}.jsonl").open("w", encoding="utf-8") as stream:
            for cell in range(cells):
                name = f"{backend}@1.{column}.0/cpu/torchscript/{('split', 'unified')[cell % 2]}/fp32/op{cell // 2}"
                for check in verdict.CHECKS:
                    row = Row(check, "PASS", metric="tail", bound=4e-5, floor=1e-5, compared=565688)
                    row.value = float(1e-5 * np.exp(random.normal(0, 0.02)))
                    row.backend, row.version, row.device, row.exporter = backend, f"1.{column}.0", "cpu", "torchscript"
                    row.layout, row.precision, row.opset = name.split("/")[3], "fp32", cell // 2
                    row.cell, row.box, row.run, row.time, row.bundle = name, box, run, stamp, "toy@0123456789ab"
                    row.command = f"pytest --backend={backend} --opset={row.opset} --layout={row.layout} -k {check}"
                    row.detail = {"tensors": dict.fromkeys(TENSORS[check], STATISTICS)} if check in TENSORS else {}
                    row.detail |= {"words": f"{name} {check} " * 4, "seconds": {"replay": float(random.random())}}
                    if night == LAST and (column, cell, check) == (0, 0, "logits"):
                        row.status, row.step = "FAIL", 7
                    stream.write(to_json(row) + "\n")


def fill(folder: Path, nights: int, columns: int, cells: int) -> None:
    """One night is written and compacted as it would be; the others are made of it, with other figures and digests."""
    random = np.random.default_rng(7)
    first = LAST - timedelta(days=nights)
    write_night(folder, first, columns, cells, random)
    began = time.perf_counter()
    compaction.compact(folder, LAST.isoformat(), delete=True, say=lambda line: None)
    (path,) = folder.glob("*.parquet")
    print(f"compact one night: {time.perf_counter() - began:.1f} s, {path.stat().st_size / 2**20:.1f} MiB")
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"conform"])
    runs = table["run"].chunk(0)
    for number in range(1, nights):
        night = first + timedelta(days=number)
        made = copy.deepcopy(about)
        names = [run.replace(f"{first:%Y%m%d}", f"{night:%Y%m%d}") for run in runs.dictionary.to_pylist()]
        made.update(night=night.isoformat(), runs=sorted(names))
        count = len(table)
        new = {
            "value": pa.array(1e-5 * np.exp(random.normal(0, 0.02, count))),
            "id": pa.array(random.integers(-(2**62), 2**62, count)),
            "time": pa.array(table["time"].to_numpy() + np.timedelta64(number, "D")).cast(store.COLUMNS["time"]),
            "run": pa.DictionaryArray.from_arrays(runs.indices, pa.array(names)),
        }
        changed = table
        for name, column in new.items():
            changed = changed.set_column(changed.column_names.index(name), name, column)
        pq.write_table(
            changed.replace_schema_metadata({"conform": json.dumps(made)}),
            folder / f"{night}-{number:012x}.parquet", compression="zstd", write_page_checksum=True,
        )  # fmt: skip
    write_night(folder, LAST, columns, cells, random)


def changes(folder: Path) -> str:
    """`conform diff` of the last two nights, with its window of earlier ones."""
    old = (LAST - timedelta(days=1)).isoformat()
    found = diff.compare(*diff.sides(f"{folder}@{old}", f"{folder}@{LAST}"))
    assert found.worse
    return diff.markdown(found).splitlines()[2]


def report(folder: Path) -> str:
    """`conform report`: the front page and a page a cell."""
    now = datetime(LAST.year, LAST.month, LAST.day, 6, tzinfo=timezone.utc)
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        said = site.write([folder], Path(out) / "site", EMBEDDED, 3, now)
    return said.partition(":")[0]


def measured(job: object, folder: Path) -> None:
    began = time.perf_counter()
    says = job(folder)  # type: ignore[operator]
    seconds = time.perf_counter() - began
    busy = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{job.__name__}: {seconds:.1f} s ({busy:.1f} s of CPU), {says}", end="", flush=True)  # type: ignore[attr-defined]


def memory(pid: int) -> int:
    """Bytes that a process and its children hold now, those that they share once."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_full_info().pss for one in (process, *process.children()))
    except psutil.Error:
        return 0  # it has just ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="filled before and kept (default: a temporary one)")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(exist_ok=True)
        if not any(folder.glob("*.parquet")):
            fill(folder, options.nights, options.columns, options.cells)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        print(
            f"{options.nights} nights x {options.columns} columns x {options.cells} cells: {size / 2**30:.2f} GiB on disk"
        )
        for job in (changes, report):
            process = get_context("spawn").Process(target=measured, args=(job, folder))
            process.start()
            peak = 0
            while process.is_alive():
                peak = max(peak, memory(process.pid))
                process.join(0.25)
            if process.exitcode:
                return 1
            print(f", {peak / 2**30:.2f} GiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
