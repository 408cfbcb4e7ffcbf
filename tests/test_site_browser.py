"""The site in a browser: it fits, its filters work, and it complains of nothing."""

import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from conform.commands import report
from tests import helpers, sites
from tests.sites import put
from tests.tables import row

results = sites.results
out = sites.out
cells = sites.cells

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


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
