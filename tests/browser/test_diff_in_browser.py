"""The page of `wirehare diff` in Chromium: nothing is fetched, nothing complains; on a phone only tables are wider.

Run by `make browser-test`, as the report's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser_support import DESK, PHONE, accessibility_violations, chromium, events
from report_support import HOSTILE
from selenium import webdriver
from selenium.webdriver.common.by import By

from pipeline.diff import Comparison, Difference, Proof
from pipeline.diff.pages import html

DIFFERENCE = Difference(
    "client_product", "client library", HOSTILE, HOSTILE, "value", HOSTILE * 3, HOSTILE, "", "certain", 4, 5,
    proof_before=Proof(4837579859314740663, f"file:///{HOSTILE}", 22, 3333), also=[HOSTILE] * 4, details=[HOSTILE] * 3,
)  # fmt: skip
COMPARISON = Comparison(
    HOSTILE, "after", [DIFFERENCE] * 3, [replace(DIFFERENCE, confidence="few")], 7, ["x"], [HOSTILE], [HOSTILE]
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    page = tmp_path / "diff.html"
    page.write_text(html(COMPARISON))
    with chromium(tmp_path / "profile") as driver:
        driver.get(page.as_uri())
        yield driver


def test_the_page_logs_nothing_and_loads_nothing(browser: webdriver.Chrome) -> None:
    assert [entry["message"] for entry in browser.get_log("browser")] == []  # type: ignore[no-untyped-call]
    sent = [event["request"]["url"] for event in events(browser, "Network.requestWillBeSent")]
    assert [url for url in sent if not url.startswith(("file:", "data:", "chrome:"))] == []
    assert browser.find_elements(By.CSS_SELECTOR, "script, img, iframe") == []
    assert '<script>alert("x")</script>' in browser.find_element(By.TAG_NAME, "body").text


@pytest.mark.parametrize("width", [DESK[0], PHONE[0]])
def test_nothing_overflows_the_page_and_axe_finds_nothing(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": PHONE[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert accessibility_violations(browser) == []
