"""Chromium for tests of pages; needs it with its driver, and selenium (`make browser-test`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from selenium import webdriver

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
DESK, PHONE = (1280, 900), (390, 844)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A new browser that records its log and network events."""
    options = webdriver.ChromeOptions()
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(shutil.which("chromedriver"))))
    try:
        driver.set_window_size(*DESK)
        yield driver
    finally:
        driver.quit()


def events(browser: webdriver.Chrome, method: str) -> list[dict[str, Any]]:
    """What happened on the network, of one kind."""
    log = browser.get_log("performance")
    messages = (json.loads(entry["message"])["message"] for entry in log)
    return [message["params"] for message in messages if message["method"] == method]


def accessibility_violations(browser: webdriver.Chrome) -> list[str]:
    """What axe-core finds wrong with the page as it is: rule and the first elements."""
    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text())  # type: ignore[no-untyped-call]
    found = browser.execute_async_script("axe.run().then(arguments[0], error => arguments[0](String(error)))")  # type: ignore[no-untyped-call]
    return [f"{each['id']}: {[node['html'] for node in each['nodes'][:3]]}" for each in found["violations"]]
