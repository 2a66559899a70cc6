"""The report in Chromium: nothing is fetched, nothing complains, it sorts, filters and changes its theme.

Run by `make browser-test`; needs Chromium with its driver. `SCREENSHOTS=DIR` keeps pictures at the width of a desk and
of a phone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_support import DESK, PHONE, accessibility_violations, chromium, events
from report_support import FINDINGS, HOSTILE, audit_of, everywhere, finding, group, identity
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pipeline.report.facts import Facts
from pipeline.report.grouped_counts import Groups
from pipeline.report.page import page

# A picture shows the first rooms of the house, not the roof.
TALLEST = 6000


def facts() -> Facts:
    """Three rules of three severities, a few rows everywhere, hostile names in all of them."""
    result = everywhere(HOSTILE, rows=5, examples=0)
    rules = [("AA-01", "violation", 2), ("BB-02", "warning", 40), ("CC-03", "info", 7)]
    groups = {
        **result.groups,
        "rules": Groups(
            [group(FINDINGS, "rules", f"Rule {name} is broken.", number, rule_id=name, severity=severity)
             for name, severity, number in rules], 3),
        "identities": Groups([identity(name, severity, client_product=HOSTILE) for name, severity, _ in rules], 3),
        "methods": Groups(
            [{"name": name, "sender": "client", "rows": number, "longest": 1, "shortest": 1}
             for name, number in (("basic.publish", 7), ("basic.ack", 1200), ("queue.declare", 30))], 3),
        "topology": Groups(
            [{"kind": "publishes", "origin": HOSTILE, "target": "", "rows": 70},
             {"kind": "publishes", "origin": "shop", "target": HOSTILE, "rows": 7},
             {"kind": "routed", "origin": "", "target": HOSTILE, "rows": 0},
             {"kind": "consumes", "origin": HOSTILE, "target": "billing", "rows": 77}], 4),
    }  # fmt: skip
    return Facts(groups, {name: [finding(name, HOSTILE)] for name, _, _ in rules}, *made_span(result))


def made_span(result: Facts) -> tuple[int, int]:
    return result.first_ns, result.last_ns


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report; REPORT names another one to look at."""
    if "REPORT" in os.environ:
        return Path(os.environ["REPORT"]).resolve()
    found = facts()
    path = tmp_path_factory.mktemp("browser") / "audit.html"
    path.write_text(page(audit_of(found, title=HOSTILE), "/data/tables"))
    return path


@pytest.fixture
def browser(tmp_path: Path, report: Path) -> Iterator[webdriver.Chrome]:
    """Chromium with the report open; its log and its network events are recorded."""
    with chromium(tmp_path / "profile") as driver:
        driver.get(report.as_uri())
        yield driver


def all_of(browser: webdriver.Chrome, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements(By.CSS_SELECTOR, selector)
    return found


def test_the_report_logs_nothing_and_loads_nothing(browser: webdriver.Chrome, report: Path) -> None:
    assert [entry["message"] for entry in browser.get_log("browser")] == []  # type: ignore[no-untyped-call]
    sent = [event for event in events(browser, "Network.requestWillBeSent") if event["documentURL"] == report.as_uri()]
    assert {event["request"]["url"] for event in sent} <= {report.as_uri(), "data:,"}


def test_hostile_names_are_text(browser: webdriver.Chrome) -> None:
    assert len(all_of(browser, "script")) == 1
    assert all_of(browser, "img, iframe, object, embed, form") == []
    assert '<script>alert("x")</script>' in browser.find_element(By.TAG_NAME, "body").text


def test_the_content_security_policy_blocks_inserted_scripts_and_images(browser: webdriver.Chrome) -> None:
    browser.execute_script(  # type: ignore[no-untyped-call]
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:9/x.png\">')"
    )
    assert browser.execute_script("return window.broken") is None  # type: ignore[no-untyped-call]
    complaints = [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]
    assert len([line for line in complaints if "Content Security Policy" in line]) == 2
    assert "csp" in [event.get("blockedReason") for event in events(browser, "Network.loadingFailed")]


def test_charts_are_drawn(browser: webdriver.Chrome) -> None:
    charts = all_of(browser, "svg.chart")
    assert len(charts) >= 4
    for chart in charts:
        assert chart.size["width"] > 250
        assert chart.size["height"] > 30
        assert chart.get_attribute("aria-label")


def test_tables_sort_by_size_and_by_name(browser: webdriver.Chrome) -> None:
    (table,) = [one for one in all_of(browser, "table") if "basic.ack" in one.text]

    def names() -> list[str]:
        return [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody td:first-child")]

    by_name, _, by_times = table.find_elements(By.CSS_SELECTOR, "th button")
    by_times.send_keys(Keys.ENTER)
    assert names() == ["basic.ack", "queue.declare", "basic.publish"]
    by_times.send_keys(Keys.ENTER)
    assert names() == ["basic.publish", "queue.declare", "basic.ack"]
    by_name.send_keys(Keys.SPACE)
    assert names() == ["basic.ack", "basic.publish", "queue.declare"]
    assert [heading.get_attribute("aria-sort") for heading in table.find_elements(By.CSS_SELECTOR, "th")] == [
        "ascending", "none", "none",
    ]  # fmt: skip


def test_findings_filter_by_severity_and_text(browser: webdriver.Chrome) -> None:
    def visible() -> list[str]:
        return [str(card.get_attribute("id")) for card in all_of(browser, ".card") if card.is_displayed()]

    assert visible() == ["rule-AA-01", "rule-BB-02", "rule-CC-03"]
    browser.find_element(By.CSS_SELECTOR, "input[value=warning]").click()
    assert visible() == ["rule-AA-01", "rule-CC-03"]
    assert browser.find_element(By.ID, "matches").text == "2 of 3 rules"
    browser.find_element(By.ID, "search").send_keys("cc-03")
    assert visible() == ["rule-CC-03"]


def test_the_theme_can_be_chosen(browser: webdriver.Chrome) -> None:
    def paper() -> Any:
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")  # type: ignore[no-untyped-call]

    button = browser.find_element(By.ID, "theme")
    button.click()
    assert (button.text, paper()) == ("Theme: light", "rgb(255, 255, 255)")
    button.click()
    assert (button.text, paper()) == ("Theme: dark", "rgb(20, 23, 27)")


def contrasts(browser: webdriver.Chrome) -> dict[str, float]:
    """Contrast of every text colour of the style sheet with both backgrounds (WCAG 2.2, relative luminance)."""
    style = browser.execute_script(  # type: ignore[no-untyped-call]
        "const s = getComputedStyle(document.documentElement);"
        "return Object.fromEntries(['paper','panel','ink','muted','link','bad','warn','good']"
        ".map(n => [n, s.getPropertyValue('--' + n).trim()]))"
    )

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    found = {}
    for paper in ("paper", "panel"):
        for name in ("ink", "muted", "link", "bad", "warn", "good"):
            dark, light = sorted((luminance(style[paper]), luminance(style[name])))
            found[f"{name} on {paper}"] = (light + 0.05) / (dark + 0.05)
    return found


def test_text_has_enough_contrast_in_both_themes(browser: webdriver.Chrome) -> None:
    for _ in ("light", "dark"):
        browser.find_element(By.ID, "theme").click()
        assert {pair: ratio for pair, ratio in contrasts(browser).items() if ratio < 4.5} == {}


@pytest.mark.parametrize("width", [DESK[0], PHONE[0]])
def test_axe_finds_nothing(browser: webdriver.Chrome, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": TALLEST, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_script("document.querySelectorAll('details').forEach(each => { each.open = true })")  # type: ignore[no-untyped-call]
    for _ in ("light", "dark"):
        browser.find_element(By.ID, "theme").click()
        assert accessibility_violations(browser) == []


def test_the_keyboard_reaches_everything(browser: webdriver.Chrome) -> None:
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the findings"
    reached = set()
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(browser.switch_to.active_element.tag_name)
    assert {"a", "button", "input", "summary", "div"} <= reached


@pytest.mark.parametrize(("name", "width"), [("desk", DESK[0]), ("phone", PHONE[0])])
def test_nothing_overflows_the_page(browser: webdriver.Chrome, name: str, width: int) -> None:
    size = {"width": width, "height": TALLEST, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    if "SCREENSHOTS" in os.environ:
        browser.save_screenshot(str(Path(os.environ["SCREENSHOTS"]) / f"{name}.png"))


def test_everything_is_expanded_in_print(browser: webdriver.Chrome) -> None:
    folded = "return document.querySelectorAll('details:not([open])').length"
    assert browser.execute_script(folded) > 0  # type: ignore[no-untyped-call]
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")  # type: ignore[no-untyped-call]
    assert browser.execute_script(folded) == 0  # type: ignore[no-untyped-call]
    pdf = browser.print_page()
    assert len(pdf) > 10_000


def test_paper_has_the_first_screen_and_one_table_of_all_rules(browser: webdriver.Chrome) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        visible = "return [...document.querySelectorAll(arguments[0])].filter(each => each.checkVisibility()).length"
        (displayed, rows, first, cards, others) = (
            browser.execute_script(visible, selector)  # type: ignore[no-untyped-call]
            for selector in ("table", "table.printed tbody tr", "#first", ".card", "main > section:not(#findings)")
        )
        assert (displayed, rows, first, cards, others) == (1, len(all_of(browser, "article.card")), 1, 0, 0)
        wide = (
            "return [...document.querySelectorAll('.printed td')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        )
        assert browser.execute_script(wide) == 0  # type: ignore[no-untyped-call]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_first_screen_on_a_desktop_has_the_most_important_parts(browser: webdriver.Chrome) -> None:
    browser.set_window_size(*DESK)
    bottom = browser.execute_script("return document.querySelector('ol.first').getBoundingClientRect().bottom")  # type: ignore[no-untyped-call]
    assert bottom < DESK[1]


def test_ten_thousand_findings_open_in_a_second(tmp_path: Path) -> None:
    """Every room of the page is full. Processor time of its thread, the least of three: others may be at work."""
    result = everywhere("orders.of.the.shop", rows=100, examples=4, rules=300)
    rules = [row["rule_id"] for row in result.groups["rules"].rows]
    identities = [
        identity(str(rules[n % 300]), client_product=f"app {n}", entities=f"queue=q{n}") for n in range(10_000)
    ]
    found = Facts({**result.groups, "identities": Groups(identities, 10_000)}, result.examples,
                  *made_span(result))  # fmt: skip
    path = tmp_path / "large.html"
    path.write_text(page(audit_of(found, title="Large"), "/data/tables"))
    with chromium(tmp_path / "profile") as driver:
        assert min(seconds_to_open(driver, path) for _ in range(3)) < 1
        assert len(all_of(driver, "article.card")) == 300


def seconds_to_open(browser: webdriver.Chrome, path: Path) -> float:
    """Processor time of the main thread for a page, from nothing to all drawn."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Performance.enable", {})
    before = thread_seconds(browser)
    browser.get(path.as_uri())
    return thread_seconds(browser) - before


def thread_seconds(browser: webdriver.Chrome) -> float:
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))


def test_a_button_copies_the_text_beside_it(browser: webdriver.Chrome) -> None:
    button = all_of(browser, "details code.copy + button")[0]
    browser.execute_script("arguments[0].closest('details').open = true", button)  # type: ignore[no-untyped-call]
    button.click()
    search = browser.find_element(By.ID, "search")
    search.send_keys(Keys.CONTROL, "v")
    assert search.get_attribute("value") == browser.execute_script(  # type: ignore[no-untyped-call]
        "return arguments[0].previousElementSibling.textContent", button
    )
