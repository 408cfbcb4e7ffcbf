"""What each night says of each cell: since when, what changed, who is silent."""

import itertools
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conform.commands import report
from conform.texts import scorer_of
from harness.core import verdict
from harness.core.rows import Row, seen_status, to_json
from harness.run.complete import answers
from reports import compaction, nights
from reports.pieces import STAMP
from reports.store import Store
from tests import helpers, sites
from tests.sites import NOW, put
from tests.tables import row

results = sites.results


def history(results: list[Path]) -> nights.Past:
    """What `conform report` makes of results folders."""
    store = Store(results)
    rows = store.newest_rows()
    return nights.Past(store, rows, answers([(results[0], row) for row in rows], scorer_of(helpers.EMBEDDED)))


def past(folder: Path, *rows: Row) -> nights.Past:
    """What these rows, each of the run that it names, make a history of."""
    for one in rows:
        with (folder / f"{one.run}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(to_json(one) + "\n")
    return history([folder])


def on(day: str, status: str, check: str = "logits", hour: str = "02", **fields: Any) -> Row:
    return row(
        status, check, time=f"2026-01-{day}T{hour}:00:00Z", run=f"{day}{hour}{fields.get('version', '')}", **fields
    )


def of(version: str, status: str, day: str) -> Row:
    return on(day, status, version=version, cell=f"ort@{version}/cpu/torchscript/unified/fp32/op17")


def test_since_looks_at_one_version_and_bundle(tmp_path: Path) -> None:
    found = past(
        tmp_path,
        of("1.0", "PASS", "01"),
        of("2.0", "FAIL", "01"),
        of("2.0", "PASS", "02"),
        of("2.0", "FAIL", "03"),
        of("2.0", "FAIL", "05"),
        of("10.0", "PASS", "05"),
    )
    line = found.line(of("2.0", "FAIL", "05"))
    own = {track.version: track for track in line}
    assert own["2.0"].since.night == "2026-01-03"
    assert own["2.0"].since.before == ("2026-01-02", "2.0", line[0].bundle, "PASS", "PARTIAL")
    assert own["1.0"].since == ("2026-01-01", None)
    pairs = [(old.version, new.version) for old, new in nights.version_changes(line, line[0].bundle)]
    assert pairs == [("1.0", "2.0"), ("2.0", "10.0")]
    assert nights.before(line, "2026-01-03").night == "2026-01-02"
    assert nights.before(line, "2026-01-01") is None
    shown = {
        version: "".join(one.symbol if one else "·" for one in answers)
        for version, answers in nights.strip(line, 3).items()
    }
    assert shown == {"10.0": "◐··", "2.0": "❌❌◐"}, "the newest first, and what did not run then is left out"


def test_a_compacted_year_tells_what_its_rows_told(tmp_path: Path, results: Path) -> None:
    """The strips, since when, and who is silent come from all nights, in Parquet or not."""
    pages = []
    for place in (tmp_path / "rows", tmp_path / "parquet"):
        shutil.copytree(results, place)
        if place.name == "parquet":
            compaction.compact(place, "2026-03-04", delete=True, say=lambda line: None)
            assert len(list(place.glob("*.parquet"))) == 3
        report.write([place], tmp_path / f"{place.name}-site", helpers.EMBEDDED, 3, NOW)
        pages.append({page.name: page.read_bytes() for page in (tmp_path / f"{place.name}-site").rglob("*.*")})
    assert pages[0] == pages[1]


def test_an_answer_of_the_merge_counts_for_the_night_of_its_run(tmp_path: Path, results: Path) -> None:
    """A box without pytest leaves out the text check: what the merge says of it is in the history too."""
    told = history([results])
    broken = next(one for one in told.rows if one.check == "text" and one.status == "FAIL")
    assert told.track(broken).at(-1).status == "FAIL"


def test_a_run_across_midnight_is_one_night(tmp_path: Path) -> None:
    late = [
        row(check=check, time=time, run="r")
        for check, time in (("logits", "2026-01-01T23:59:00Z"), ("tokens", "2026-01-02T00:01:00Z"))
    ]
    assert past(tmp_path, *late).nights == ["2026-01-01"]


def test_the_newest_row_of_a_night_counts_and_the_worst_check(tmp_path: Path) -> None:
    rows = [on("01", "FAIL", hour="01"), on("01", "PASS"), on("01", "FAIL", "tokens", hour="01")]
    assert past(tmp_path / ".", *rows).track(rows[0]).at(0).status == "FAIL"
    (tmp_path / "other").mkdir()
    assert past(tmp_path / "other", *rows[:2]).track(rows[0]).at(0).status == "PASS"


def test_all_cells_at_once_are_called_what_each_is(tmp_path: Path) -> None:
    """Every pair of statuses of two checks: the history's words are those of `word_of`."""
    rows = []
    for number, pair in enumerate(itertools.product([*verdict.SEVERITY[:8], "XFAIL", "XPASS"], repeat=2)):
        for check, status in zip(("logits", "tokens"), pair, strict=True):
            one = on("01", status, check, cell=f"ort@1/cpu/torchscript/unified/fp32/op{number}", opset=number)
            if status in ("XFAIL", "XPASS"):
                one.detail["expected"] = {"seen": "FAIL" if status == "XFAIL" else "PASS", "reason": "r", "link": "l"}
            rows.append(one)
    found = past(tmp_path, *rows)
    for pair in zip(rows[::2], rows[1::2], strict=True):
        worst = verdict.worst(map(seen_status, pair))
        night = found.track(pair[0]).at(0)
        assert night.status == worst
        called = verdict.called(worst, partial=worst == "PASS")
        assert night.word == nights.word_of(worst, [one.status for one in pair], called)


@pytest.mark.parametrize(
    ("status", "others", "called", "word"),
    [
        ("PASS", ["PASS"], "PASS", "PASS"),
        ("PASS", ["PASS"], "PARTIAL", "PARTIAL"),
        ("FAIL", ["XFAIL", "PASS"], "FAIL", "XFAIL"),
        ("FAIL", ["XFAIL", "FAIL"], "FAIL", "FAIL"),
        ("PASS", ["XPASS", "PASS"], "PASS", "XPASS"),
        ("FAIL", ["XPASS", "XFAIL"], "FAIL", "XPASS"),
        ("UNSUPPORTED", ["UNSUPPORTED"], "UNSUPPORTED", "UNSUPPORTED"),
        ("ABSENT", ["ABSENT", "PASS"], "BUILT", "BUILT"),
        ("PASS", ["PASS"], "SIMULATED", "SIMULATED"),
    ],
)
def test_words_of_cells(status: str, others: list[str], called: str, word: str) -> None:
    assert nights.word_of(status, others, called) == word


def test_built_and_simulated_have_words_of_their_own(tmp_path: Path) -> None:
    stages = [
        {
            "part": "step",
            "stage": "build",
            "seconds": 1.5,
            "bytes": 5 << 20,
            "artifact": "/engines/<x>/engine",
            "log": ["layer <7>"],
        }
    ]
    built = [row(check="artifact", backend="toy")]
    built += [
        row(
            "ABSENT",
            check,
            "toy",
            stage="build",
            kind="built",
            message="built in 1.5 s; not run: no board",
            detail={"stages": stages} if check == "encoder" else {},
        )
        for check in verdict.CHECKS[1:]
    ]
    cell = "sim@1.32.0/simulator-npu/torchscript/unified/fp32/op17"
    simulated = [row("PASS", check, "sim", device="simulator-npu", cell=cell) for check in verdict.CHECKS]
    put(tmp_path, "2026-03-04", "lab", [*built, *simulated])
    report.write([tmp_path], tmp_path / "site", helpers.EMBEDDED, 3, NOW)
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'data-status="BUILT"' in index
    assert 'data-status="SIMULATED"' in index
    assert "artifact:PASS cost:BUILT encoder:BUILT" in index
    (page,) = (tmp_path / "site" / "cells").glob("toy-*.html")
    text = page.read_text(encoding="utf-8")
    assert "built, not run here" in text
    assert "/engines/&lt;x&gt;/engine" in text
    assert "layer &lt;7&gt;" in text
    (page,) = (tmp_path / "site" / "cells").glob("sim-*.html")
    assert "passes in a simulator, on no device" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("age", "stale"), [(timedelta(days=2), False), (timedelta(days=4), True), (timedelta(days=-9), True)]
)
def test_what_is_old_or_from_the_future_is_stale(tmp_path: Path, age: timedelta, stale: bool) -> None:
    one = row(time=(NOW - age).strftime(STAMP), run="r", cell="ort@1/cpu/torchscript/unified/fp32/op17")
    column = nights.SiteColumn(*(getattr(one, name) for name in nights.SiteColumn._fields))
    (sight,) = nights.sights(past(tmp_path, one), {column: [one]}, NOW, 3)
    assert (sight.stale, sight.silent) == (stale, stale)
