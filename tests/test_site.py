"""``conform report``: what the pages say, that hostile rows stay words, and that a browser shows them whole."""

import itertools
import re
import shutil
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from conform import cli
from conform.commands import report
from reports import plots, site
from tests import helpers, sites
from tests.sites import EVIL, NOW, WRONG_FROM, put
from tests.tables import absent, row

results = sites.results
out = sites.out
cells = sites.cells


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
    low, high, worse = (
        float(number)
        for number in re.search(r"PyTorch [\d.]+ ([\d.]+) to ([\d.]+) this backend ([\d.]+)", said).groups()
    )  # type: ignore[union-attr]
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
    names = [
        site.file_name(row(cell=cell, box=box, bundle=bundle))
        for cell, box, bundle in itertools.product(
            ("a/b", "a-b", "A/B", "../a/b", "阀门", "", "x" * 500), ("one", "two"), ("b", "c")
        )
    ]
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
