"""Saved pictures in Chromium: names from the wire run nothing, with a Content-Security-Policy and without.

Run by `make browser-test`; needs Chromium with its driver.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html5lib
import pytest
from browser_support import chromium, events
from plots_support import pictures_with
from pyspark.sql import SparkSession
from selenium import webdriver
from selenium.webdriver.common.by import By

from pipeline.plots import TEMPLATES

# As long as names on an axis may be. The page has x.js beside it, which says so when it runs.
HOSTILE = ("</script><script>broken=1</script>", "</script><script src=x.js>", "<img src=x onerror=broken=1>")
BROKEN = "return typeof broken === 'undefined' ? null : broken"
PICTURES = ("versions", "ladder", "connections", "rates", "backlog", "latency", "beside each other")


@pytest.fixture(scope="module")
def charts(spark: SparkSession) -> dict[str, Any]:
    return pictures_with(spark, HOSTILE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as driver:
        yield driver


def policy(page: str) -> str:
    """A page with a Content-Security-Policy that knows its scripts by their hashes. Vega compiles expressions."""
    scripts = html5lib.parse(page, namespaceHTMLElements=False).iter("script")
    hashes = (base64.b64encode(hashlib.sha256((tag.text or "").encode()).digest()).decode() for tag in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rules = f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    return page.replace("<head>", f'<head><meta http-equiv="Content-Security-Policy" content="{rules}">', 1)


def opened(browser: webdriver.Chrome, page: str, folder: Path) -> list[str]:
    """Open a page with x.js beside it; what the console complains of. Vega's warnings are about drawing."""
    (folder / "x.js").write_text("broken = 1")
    (folder / "picture.html").write_text(page)
    browser.get((folder / "picture.html").as_uri())
    browser.implicitly_wait(5)
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


def saved(chart: Any, folder: Path) -> str:
    chart.save(str(folder / "saved.html"), inline=True, embed_options={"renderer": "svg"})
    return (folder / "saved.html").read_text()


@pytest.mark.parametrize("with_policy", [False, True], ids=["no-policy", "policy"])
@pytest.mark.parametrize("name", PICTURES)
def test_names_in_saved_pictures_are_text(
    name: str, with_policy: bool, charts: dict[str, Any], browser: webdriver.Chrome, tmp_path: Path
) -> None:
    page = saved(charts[name], tmp_path)
    console = opened(browser, policy(page) if with_policy else page, tmp_path)
    assert browser.find_elements(By.CSS_SELECTOR, "svg.marks")
    assert "</script><script src=x.js>" in browser.find_element(By.CSS_SELECTOR, "svg.marks").text
    assert browser.execute_script(BROKEN) is None  # type: ignore[no-untyped-call]
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 2
    own = (tmp_path / "picture.html").as_uri()
    sent = [event for event in events(browser, "Network.requestWillBeSent") if event["documentURL"] == own]
    assert [event["request"]["url"] for event in sent] == [own]
    assert console == []


def test_the_same_names_run_where_nothing_is_escaped(
    charts: dict[str, Any], browser: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TEMPLATES, "inline", TEMPLATES["inline"].template)
    opened(browser, saved(charts["versions"], tmp_path), tmp_path)
    assert browser.execute_script(BROKEN) == 1  # type: ignore[no-untyped-call]


def test_the_menu_of_a_chart_can_only_save(charts: dict[str, Any], browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, saved(charts["versions"], tmp_path), tmp_path)
    actions = browser.find_elements(By.CSS_SELECTOR, ".vega-actions a")
    assert [action.get_attribute("textContent") for action in actions] == ["Save as SVG", "Save as PNG"]


@pytest.mark.parametrize("name", PICTURES)
def test_names_in_notebooks_are_text(
    name: str, charts: dict[str, Any], browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """Jupyter, and nbconvert where it writes a notebook as HTML, put the drawing into the page as it is."""
    bundle = charts[name]._repr_mimebundle_()
    drawing = (bundle[0] if isinstance(bundle, tuple) else bundle)["image/svg+xml"]
    console = opened(
        browser, f'<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,">{drawing}', tmp_path
    )
    assert "</script><script src=x.js>" in browser.find_element(By.TAG_NAME, "svg").text
    assert browser.execute_script(BROKEN) is None  # type: ignore[no-untyped-call]
    assert browser.find_elements(By.CSS_SELECTOR, "script, img, a, foreignObject") == []
    assert console == []
