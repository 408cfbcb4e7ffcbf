"""What a year of nights costs: ``python -m benchmarks.store [--nights 365] [--columns 20] [--cells 500]``.

The rows are generated, one column for each box. Every night but the last is compacted; the last is in JSONL. Each figure is
of a process of its own on two cores: seconds of wall time, and peak memory of all its processes, shared memory counted once.
"""

import argparse
import copy
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from conform.commands import report as site
from harness.core import verdict
from harness.core.rows import Answer, Identity, Origin, Row, to_json
from reports import compaction, diff, diff_page, pieces
from reports.selection import select

LAST = date(2026, 12, 1)
STATISTICS = {
    "tail": 1.88579875959e-06,
    "tail_bound": 5.83953582e-06,
    "floor": 1.45988395e-06,
    "bulk": 1.0294337162,
    "bulk_bound": 3.0,
    "bulk_part": 1.0641696325,
    "bulk_part_bound": 5.0,
    "entries": 623,
}
TENSORS = {
    "encoder": [
        "last_hidden_state",
        *(f"present.{layer}.encoder.{side}" for layer in (0, 1) for side in ("key", "value")),
    ],
    "logits": ["logits"],
    "kv_values": [f"present.{layer}.decoder.{side}" for layer in (0, 1) for side in ("key", "value")],
}
"""The outputs of which a run's rows have statistics, by check."""


def write_night(folder: Path, night: date, columns: int, cells: int, random: np.random.Generator) -> None:
    """A rows file for each column; one cell of the last night fails."""
    for column in range(columns):
        box = f"box{column:02}"
        origin = Origin(run=f"{box}-{night:%Y%m%d}T020000Z-1", time=f"{night}T02:00:00Z", box=box)
        with (folder / f"{origin.run}.jsonl").open("w", encoding="utf-8") as stream:
            for cell in range(cells):
                identity = identity_of(column, cell)
                for check in verdict.CHECKS:
                    failed = night == LAST and (column, cell, check) == (0, 0, "logits")
                    answer = answer_of(check, failed, identity.cell, random)
                    command = f"--backend={identity.backend} --opset={identity.opset} --layout={identity.layout}"
                    row = Row.of(answer, identity, replace(origin, command=f"pytest {command} -k {check}"))
                    stream.write(to_json(row) + "\n")


def identity_of(column: int, cell: int) -> Identity:
    backend, layout, opset = ("ort", "openvino")[column % 2], ("split", "unified")[cell % 2], cell // 2
    return Identity(
        backend=backend,
        version=f"1.{column}.0",
        device="cpu",
        exporter="torchscript",
        layout=layout,
        precision="fp32",
        opset=opset,
        cell=f"{backend}@1.{column}.0/cpu/torchscript/{layout}/fp32/op{opset}",
        bundle="toy@0123456789ab",
    )


def answer_of(check: str, failed: bool, cell: str, random: np.random.Generator) -> Answer:
    value = float(1e-5 * np.exp(random.normal(0, 0.02)))
    detail: dict[str, Any] = {"tensors": dict.fromkeys(TENSORS[check], STATISTICS)} if check in TENSORS else {}
    detail |= {"words": f"{cell} {check} " * 4, "seconds": {"replay": float(random.random())}}
    return Answer(
        check,
        "FAIL" if failed else "PASS",
        step=7 if failed else None,
        metric="tail",
        value=value,
        bound=4e-5,
        floor=1e-5,
        compared=565688,
        detail=detail,
    )


def fill(folder: Path, nights: int, columns: int, cells: int) -> None:
    """Write and compact one night as a lab would; make the others from it, with other values and digests."""
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
        metadata = copy.deepcopy(about)
        names = [run.replace(f"{first:%Y%m%d}", f"{night:%Y%m%d}") for run in runs.dictionary.to_pylist()]
        metadata.update(night=night.isoformat(), runs=sorted(names))
        count = len(table)
        replaced = {
            "value": pa.array(1e-5 * np.exp(random.normal(0, 0.02, count))),
            "id": pa.array(random.integers(-(2**62), 2**62, count)),
            "time": pa.array(table["time"].to_numpy() + np.timedelta64(number, "D")).cast(pieces.COLUMNS["time"]),
            "run": pa.DictionaryArray.from_arrays(runs.indices, pa.array(names)),
        }
        changed = table
        for name, column in replaced.items():
            changed = changed.set_column(changed.column_names.index(name), name, column)
        changed = changed.replace_schema_metadata({"conform": json.dumps(metadata)})
        path = folder / f"{night}-{number:012x}.parquet"
        pq.write_table(changed, path, compression="zstd", write_page_checksum=True)
    write_night(folder, LAST, columns, cells, random)


def compare_nights(folder: Path) -> str:
    """`conform diff` of the last two nights, with its window of earlier ones."""
    old = (LAST - timedelta(days=1)).isoformat()
    changes = diff.compare(*select(f"{folder}@{old}", f"{folder}@{LAST}", detail=False))
    assert changes.worse
    return diff_page.markdown(changes).splitlines()[2]


def report(folder: Path) -> str:
    """`conform report`: the front page and a page a cell."""
    now = datetime(LAST.year, LAST.month, LAST.day, 6, tzinfo=timezone.utc)
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        summary = site.write([folder], Path(out) / "site", None, 3, now)
    return summary.partition(":")[0]


def measured(job: object, folder: Path) -> None:
    began = time.perf_counter()
    summary = job(folder)  # type: ignore[operator]
    seconds = time.perf_counter() - began
    busy = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{job.__name__}: {seconds:.1f} s ({busy:.1f} s of CPU), {summary}", end="", flush=True)  # type: ignore[attr-defined]


def memory(pid: int) -> int:
    """Bytes of memory that a process and its children use now, shared memory counted once."""
    try:
        process = psutil.Process(pid)
        return sum(each.memory_full_info().pss for each in (process, *process.children()))
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
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not any(folder.glob("*.parquet")):
            fill(folder, options.nights, options.columns, options.cells)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        print(
            f"{options.nights} nights x {options.columns} columns x {options.cells} cells: {size / 2**30:.2f} GiB on disk"
        )
        for job in (compare_nights, report):
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
