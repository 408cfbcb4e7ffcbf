"""``conform report``: what the pages say, that hostile rows stay words, and that a browser shows them whole."""

import itertools
import re
import shutil
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import ort
from conform import cli
from conform.commands import report
from conform.texts import scorer_of
from harness.core import verdict
from harness.core.identity import identity_in
from harness.core.rows import Answer, Origin, Row, seen_status, to_json
from harness.run.complete import answers
from reports import compaction, nights, plots, site
from reports.pieces import STAMP
from reports.store import Store
from tests import helpers
from tests.mutant import Mutant
from tests.test_matrix import absent, row

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NOW = datetime(2026, 3, 4, 6, tzinfo=timezone.utc)
WRONG_FROM = 5
EVIL = "\"><img src=x onerror=alert(1)><script>alert(2)</script>'"


def put(results: Path, night: str, box: str, rows: list[Row], **changes: Any) -> None:
    """One run's rows file. ``version``: also in the cell's name."""
    run = f"{re.sub('[^a-z]', '', box)}-{night}-{len(list(results.glob('*.jsonl')))}"
    text = ""
    for one in rows:
        values = {"time": f"{night}T02:00:00Z", "run": run, "box": box, **changes}
        if "version" in changes:
            values["cell"] = one.cell.replace(f"@{one.version}/", f"@{changes['version']}/")
        text += to_json(replace(one, **values)) + "\n"
    (results / f"{run}.jsonl").write_text(text, encoding="utf-8")


def judged(results: Path, backend: Any, name: str) -> list[Row]:
    rows = helpers.judge(backend, checks=("logits", "kv_values", "tokens", "cost"), series=str(results / name))
    bundle = helpers.golden().bundle
    graph = next(graph for graph in bundle.graphs if (graph.layout, graph.opset) == ("unified", 17))
    identity = identity_in(bundle, graph, "ort", backend.probe())
    answers = [Answer(**{item.name: getattr(answer, item.name) for item in fields(Answer)}) for answer in rows.values()]
    named = [replace(answer, series=answer.series and Path(answer.series).name) for answer in answers]
    return [Row.of(answer, identity, Origin()) for answer in named]


def rolled(part: str, step: int, feeds: Any, outputs: Any) -> Any:
    """Logits of their neighbours: other tokens, and no crash."""
    if part == "step" and step >= WRONG_FROM:
        outputs["logits"] = np.roll(outputs["logits"], 1, axis=-1)
    return outputs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights: `lab` breaks in the last, after a version that was right; `jetson` is silent then."""
    folder = tmp_path_factory.mktemp("results")
    honest, broken = judged(folder, ort.Backend(), "honest"), judged(folder, Mutant(outputs=rolled), "broken")
    put(folder, "2026-03-01", "lab", honest, version="1.0.0")
    put(folder, "2026-03-02", "jetson", honest)
    put(folder, "2026-03-02", "lab", [*honest, row(opset=12)])
    put(folder, "2026-03-03", "lab", honest)
    put(folder, "2026-03-04", "lab", broken)
    put(folder, "2026-03-04", EVIL, [row(
        "FAIL", backend=EVIL, cell=f"{EVIL}@1/../../x/op17", version=EVIL, message=EVIL, sentence=EVIL, tensor=EVIL,
        blame=EVIL, knob=EVIL, command=EVIL, device=EVIL, metric=EVIL, bundle=EVIL, step=1,
        detail={"misses": [EVIL], "said": EVIL, "knobs": [EVIL], "evidence": {"knob": EVIL}},
    )])  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def out(results: Path) -> Path:
    place = results.parent / (results.name + "-site")
    report.write([results], place, helpers.EMBEDDED, 3, NOW)
    return place


@pytest.fixture(scope="module")
def cells(out: Path) -> dict[str, Path]:
    """Page of each cell of the story on `lab`."""

    def of(version: str) -> Path:
        cell = f"ort@{version}/cpu/torchscript/unified/fp32/op17"
        return out / "cells" / site.file_name(row(cell=cell, box="lab", bundle=helpers.golden().bundle.short))

    return {"broken": of(ort.Backend().probe().version), "old": of("1.0.0")}


class Words(HTMLParser):
    """The text of a page, as a reader has it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def words(page: Path) -> str:
    reader = Words()
    reader.feed(page.read_text(encoding="utf-8"))
    return " ".join(" ".join(reader.said).split())


def test_the_front_page_tells_what_changed_and_who_is_silent(out: Path) -> None:
    said = words(out / "index.html")
    assert "2 of 4 cells fail unexpectedly." in said
    assert "Box jetson has gone silent" in said
    assert "missing in the newest night, last run 2026-03-02" in said
    assert re.search(r"Changed in the newest night, 2026-03-04 ❌ wrong as shipped ort@\S+ [\w ]+ on lab: op17 ◐", said)


def test_a_cell_that_the_newest_night_left_out_is_told_from_one_that_it_saw(out: Path) -> None:
    text = (out / "index.html").read_text(encoding="utf-8")
    assert re.search(r'class="s-PARTIAL old"[^>]*><a [^>]*aria-label="opset 12,[^"]*last run 2026-03-02"', text)
    assert not re.search(r'class="s-FAIL old"', text)


def test_a_broken_cell_shows_where_it_left_pytorch(cells: dict[str, Path]) -> None:
    page = cells["broken"]
    text, said = page.read_text(encoding="utf-8"), words(page)
    assert f"first wrong step {WRONG_FROM}" in said
    assert "since 2026-03-04; ◐ what ran passed, not every check did on 2026-03-03" in said
    assert "with ort 1.0.0, ❌ wrong as shipped with" in said
    assert text.count("<svg") == 3
    assert f"first wrong: step {WRONG_FROM}" in said
    assert "sentences leave the bound: " in said
    theirs, own = re.findall(r'<p class="tokens">.*?</small><br>(.*?) <mark>(.*?)</mark>', text)[:2]
    assert theirs[0] == own[0]
    assert theirs[1] != own[1]
    low, high, worse = (float(number) for number in re.search(
        r"PyTorch [\d.]+ ([\d.]+) to ([\d.]+) this backend ([\d.]+)", said).groups())  # type: ignore[union-attr] # fmt: skip
    assert low < helpers.golden().bundle.manifest["golden_text"]["scores"]["BLEU"] < high
    assert worse < low
    assert "p50" in said
    assert "threads" in said


def test_a_version_that_has_been_replaced_is_no_alarm(out: Path, cells: dict[str, Path]) -> None:
    assert "until 2026-03-01; now" in words(out / "index.html")
    assert (
        "ort@1.0.0" not in re.search(r"Missing or stale(.*?)</section>", (out / "index.html").read_text(), re.DOTALL)[1]
    )  # type: ignore[index]
    assert "Not run in the newest night" in words(cells["old"])


def test_without_the_bundle_or_the_sidecars_rows_still_make_a_page(tmp_path: Path, results: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for number, rows in enumerate(sorted(results.glob("*.jsonl"))):
        text = rows.read_text(encoding="utf-8").replace(helpers.golden().bundle.short, "other@0123456789ab")
        (alone / f"{number}.jsonl").write_text(text, encoding="utf-8")
    (alone / "broken.trace.npz").write_bytes(b"PK damaged")
    report.write([alone], tmp_path / "site", helpers.EMBEDDED, 3, NOW)
    said = " ".join(words(page) for page in (tmp_path / "site" / "cells").iterdir())
    assert "need the bundle other@0123456789ab: give it with --bundle" in said
    assert "Logits: gap" not in said


def test_pages_of_the_same_rows_are_the_same(tmp_path: Path, results: Path, out: Path) -> None:
    report.write([results], tmp_path / "again", helpers.EMBEDDED, 3, NOW)
    for page in out.rglob("*.*"):
        assert page.read_bytes() == (tmp_path / "again" / page.relative_to(out)).read_bytes(), page


def test_hostile_words_stay_words(out: Path) -> None:
    pages = [out / "index.html", *(out / "cells").iterdir()]
    for page in pages:
        assert re.fullmatch(r"[a-z0-9.-]+\.html", page.name), page.name
        text = page.read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "<img" not in text
    assert sum(EVIL in words(page) for page in pages) == 2


def test_page_names_neither_collide_nor_leave_the_folder() -> None:
    names = [site.file_name(row(cell=cell, box=box, bundle=bundle)) for cell, box, bundle in itertools.product(
        ("a/b", "a-b", "A/B", "../a/b", "阀门", "", "x" * 500), ("one", "two"), ("b", "c"))]  # fmt: skip
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9.-]{1,120}\.html", name) and not name.startswith(".") for name in names)


def test_plots_are_text_in_the_colours_of_the_page() -> None:
    at = np.array([(row, step) for row in range(60) for step in range(20)], np.int32)
    gap = np.full(len(at), 1e-6, np.float32)
    gap[at[:, 1] >= 5] = np.inf
    gap[at[:, 1] == 3] = np.nan
    gap[at[:, 1] == 4] = 0
    name = "a<b>&'\" $x^2$ 0.123456"
    drawn = [
        plots.gaps(at, gap, np.full(len(at), 1e-6), 1e-5, 5),
        plots.heat(at, gap, 1e-5, dict.fromkeys(range(60), name)),
        plots.drift(at, {f"layer {layer} {side}": (gap, 1e-5) for layer in range(6) for side in "KV"}, None),
    ]
    for text in drawn:
        tree = xml.etree.ElementTree.fromstring(text.replace("xlink:", ""))
        assert "decode step" in [node.text for node in tree.iter() if node.tag.endswith("text")]
        assert "var(--ink)" in text
        assert not re.search(r"#0[123]0", text)
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
        assert set(re.findall(r' id="([^"]+)"', text)) == used
    labels = [node.text for node in xml.etree.ElementTree.fromstring(drawn[1].replace("xlink:", "")).iter()]
    assert labels.count(name) == plots.MOST_ROWS


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_have_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for lines of a plot."""
    css = (site.TEMPLATES / "site.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w+)", part)) for part in css.split("@media (prefers-color-scheme: dark)")
    )
    colours = {**light, **(dark if scheme == "dark" else {})}

    def contrast(one: str, two: str) -> float:
        lights = []
        for name in (one, two):
            digits = colours[name][1:]
            digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
            parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
            linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
        return (max(lights) + 0.05) / (min(lights) + 0.05)

    grounds = ("page", "card", "good", "bad", "warn", "grey", "odd")
    for word, ground in [
        *itertools.product(("ink",), grounds),
        *itertools.product(("muted", "link", "bad-ink"), ("page", "card")),
    ]:
        assert contrast(word, ground) >= 4.5, (word, ground)
    for line in ("plot-0", "plot-1", "plot-2", "plot-3", "plot-4", "plot-5", "bad-edge", "focus"):
        assert contrast(line, "card") >= 3, line


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
        tmp_path, of("1.0", "PASS", "01"), of("2.0", "FAIL", "01"), of("2.0", "PASS", "02"), of("2.0", "FAIL", "03"),
        of("2.0", "FAIL", "05"), of("10.0", "PASS", "05"),
    )  # fmt: skip
    line = found.line(of("2.0", "FAIL", "05"))
    own = {track.version: track for track in line}
    assert own["2.0"].since.night == "2026-01-03"
    assert own["2.0"].since.before == ("2026-01-02", "2.0", line[0].bundle, "PASS", "PARTIAL")
    assert own["1.0"].since == ("2026-01-01", None)
    pairs = [(old.version, new.version) for old, new in nights.version_changes(line, line[0].bundle)]
    assert pairs == [("1.0", "2.0"), ("2.0", "10.0")]
    assert nights.before(line, "2026-01-03").night == "2026-01-02"
    assert nights.before(line, "2026-01-01") is None
    shown = {version: "".join(one.symbol if one else "·" for one in answers)
             for version, answers in nights.strip(line, 3).items()}  # fmt: skip
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
    [("PASS", ["PASS"], "PASS", "PASS"), ("PASS", ["PASS"], "PARTIAL", "PARTIAL"),
     ("FAIL", ["XFAIL", "PASS"], "FAIL", "XFAIL"),
     ("FAIL", ["XFAIL", "FAIL"], "FAIL", "FAIL"), ("PASS", ["XPASS", "PASS"], "PASS", "XPASS"),
     ("FAIL", ["XPASS", "XFAIL"], "FAIL", "XPASS"), ("UNSUPPORTED", ["UNSUPPORTED"], "UNSUPPORTED", "UNSUPPORTED"),
     ("ABSENT", ["ABSENT", "PASS"], "BUILT", "BUILT"), ("PASS", ["PASS"], "SIMULATED", "SIMULATED")],
)  # fmt: skip
def test_words_of_cells(status: str, others: list[str], called: str, word: str) -> None:
    assert nights.word_of(status, others, called) == word


def test_built_and_simulated_have_words_of_their_own(tmp_path: Path) -> None:
    stages = [{"part": "step", "stage": "build", "seconds": 1.5, "bytes": 5 << 20, "artifact": "/engines/<x>/engine",
               "log": ["layer <7>"]}]  # fmt: skip
    built = [row(check="artifact", backend="toy")]
    built += [row("ABSENT", check, "toy", stage="build", kind="built", message="built in 1.5 s; not run: no board",
                  detail={"stages": stages} if check == "encoder" else {}) for check in verdict.CHECKS[1:]]  # fmt: skip
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


def conform(*arguments: object) -> int:
    return cli.main(["report", *map(str, arguments)])


def test_no_such_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform(tmp_path / "nowhere", "--out", tmp_path / "site") == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'}: no such folder or file; give a results folder\n"


def test_no_rows_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    assert conform(tmp_path / "results", "--out", tmp_path / "site") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "no rows" in said
    assert [place.name for place in tmp_path.iterdir()] == ["results"]


def test_only_absent_backends_is_a_page_that_says_so(tmp_path: Path) -> None:
    put(tmp_path, "2026-03-04", "lab", [absent("tensorrt")])
    report.write([tmp_path], tmp_path / "site", helpers.EMBEDDED, 3, NOW)
    said = words(tmp_path / "site" / "index.html")
    assert "nothing was compared" in said
    assert "tensorrt is absent on lab: it is not installed; pip install it" in said


def test_a_time_that_is_none_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "yesterday", "lab", [row()])
    assert conform(tmp_path, "--out", tmp_path / "site") == 2
    assert "not UTC such as" in capsys.readouterr().err


def test_only_a_report_is_replaced(
    tmp_path: Path, results: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_bytes(b"cat")
    for place in (foreign, foreign / "cat.jpg", tmp_path / "no" / "where"):
        assert conform(results, "--out", place) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert (foreign / "cat.jpg").read_bytes() == b"cat"
    mine = shutil.copytree(out, tmp_path / "mine")
    (mine / "cells" / "left-over.html").write_text("old", encoding="utf-8")
    report.write([results], mine, helpers.EMBEDDED, 3, NOW)
    assert not (mine / "cells" / "left-over.html").exists()


def test_a_failure_leaves_the_old_site(
    tmp_path: Path, results: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = shutil.copytree(out, tmp_path / "mine")

    def no_room(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(site.Site, "_cell", no_room)
    assert conform(results, "--out", mine) == 2
    assert (mine / "index.html").read_bytes() == (out / "index.html").read_bytes()
    assert [place.name for place in tmp_path.iterdir()] == ["mine"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of this box, headless."""
    driver = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[tests]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser on the path ({', '.join(BROWSERS)}): apt-get install chromium-headless-shell")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Opens a page and returns it; whatever the browser complains of fails the test."""
    complaints: list[str] = []
    contexts = []

    def opens(page: Path, width: int = 1280, scheme: str = "light", script: bool = True, part: str = "") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=script
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda said: complaints.append(said.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        tab.on("requestfailed", lambda request: complaints.append(request.url))
        tab.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
        tab.goto(page.as_uri() + part)
        return tab

    yield opens
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_without_a_complaint(visit: Any, out: Path, width: int, scheme: str) -> None:
    for page in (out / "index.html", *(out / "cells").iterdir()):
        tab = visit(page, width, scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") == width, page
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 384) == (scheme == "dark")


def test_every_cell_links_to_its_page_and_back(visit: Any, out: Path) -> None:
    tab = visit(out / "index.html")
    links = tab.eval_on_selector_all(".matrix a", "all => all.map(one => one.getAttribute('href'))")
    assert sorted(links) == sorted(f"cells/{page.name}" for page in (out / "cells").iterdir())
    tab.click(".matrix a >> nth=0")
    assert tab.locator("h1").count() == 1
    tab.click("text=All cells")
    assert tab.title() == "Conformance report"


def shown(tab: Any) -> list[str]:
    return tab.eval_on_selector_all(
        ".matrix tbody tr:not([hidden]) td:not(.out) a", "all => all.map(one => one.textContent)"
    )


def test_filters(visit: Any, out: Path) -> None:
    tab = visit(out / "index.html")
    every = shown(tab)
    assert tab.text_content("#shown") == f"{len(every)} of {len(every)} cells"
    tab.select_option("select[name=status]", "FAIL")
    assert set(shown(tab)) == {"❌"}
    assert len(shown(tab)) == 2
    tab.select_option("select[name=box]", "lab")
    assert len(shown(tab)) == 1
    assert tab.text_content("#shown") == f"1 of {len(every)} cells"
    tab.select_option("select[name=status]", "")
    tab.select_option("select[name=check]", "kv_values")
    assert set(shown(tab)) == {"✅", "·"}  # the broken cell is right there, and one cell was not asked
    assert tab.get_attribute("[data-box=lab] [data-status=FAIL] a", "aria-label").endswith("kv_values: pass")
    tab.select_option("select[name=check]", "")
    tab.select_option("select[name=status]", "CRASH")
    assert shown(tab) == []
    assert tab.is_visible("#none")
    tab.click("#again")
    tab.wait_for_selector("#none", state="hidden")
    assert shown(tab) == every


def test_a_filter_can_be_linked_to_and_is_an_option(visit: Any, out: Path) -> None:
    tab = visit(out / "index.html", part="#box=lab&status=FAIL&no=such")
    assert shown(tab) == ["❌"]
    assert tab.evaluate("location.hash") == "#box=lab&status=FAIL"


def test_without_a_script_the_matrix_is_whole(visit: Any, out: Path) -> None:
    tab = visit(out / "index.html", script=False)
    assert tab.locator(".matrix td a").count() == len(list((out / "cells").iterdir()))


def test_a_command_is_copied_or_selected(visit: Any, cells: dict[str, Path]) -> None:
    tab = visit(cells["broken"])
    tab.click("button >> nth=0")
    tab.wait_for_selector("button:text-matches('^(copied|selected)$')")


def test_a_page_says_when_it_has_grown_old(visit: Any, tmp_path: Path) -> None:
    for name, now in (("old", datetime(2020, 1, 1, tzinfo=timezone.utc)), ("new", datetime.now(timezone.utc))):
        put(tmp_path, now.strftime("%Y-%m-%d"), name, [row()])
        report.write([next(tmp_path.glob(f"{name}*.jsonl"))], tmp_path / name, helpers.EMBEDDED, 3, now)
    assert "This page was built" in visit(tmp_path / "old" / "index.html").inner_text("#aged")
    assert not visit(tmp_path / "new" / "index.html").is_visible("#aged")


def test_tables_and_fields_have_names(visit: Any, out: Path, cells: dict[str, Path]) -> None:
    for page in (out / "index.html", cells["broken"]):
        tab = visit(page)
        assert tab.locator("th:not([scope])").count() == 0
        assert tab.locator("table").count() > 0
        unnamed = tab.eval_on_selector_all(
            "select, button, a",
            "all => all.filter(one => !(one.labels?.length || one.textContent.trim())).map(one => one.outerHTML)",
        )
        assert unnamed == []
        ids = tab.eval_on_selector_all("main [id]:not(svg [id])", "all => all.map(one => one.id)")
        assert len(set(ids)) == len(ids)
        tab.keyboard.press("Tab")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
