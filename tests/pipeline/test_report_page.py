"""The page: valid, self-contained, bounded in size, and deaf to what strings from the wire would have it do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import html5lib
import pytest
from markupsafe import Markup
from report_support import HOSTILE, audit_of, everywhere, identity

from pipeline.report import charts
from pipeline.report.baseline import compare, read
from pipeline.report.facts import Facts
from pipeline.report.grouped_counts import Groups, latencies
from pipeline.report.page import LARGEST, page, table

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
VOID = {"meta", "link", "input", "br", "img"}
# Where the HTML standard lets a paragraph or a row stand: enough to catch a template that nests wrongly.
PARENTS = {
    "tr": {"thead", "tbody"}, "td": {"tr"}, "th": {"tr"}, "li": {"ul", "ol"}, "dt": {"div"}, "dd": {"div"},
    "caption": {"table"}, "legend": {"fieldset"}, "figcaption": {"figure"}, "summary": {"details"},
}  # fmt: skip
PHRASING_ONLY = {"p", "h1", "h2", "h3", "summary", "dt", "button", "caption", "label"}
BLOCKS = {"p", "div", "table", "ul", "ol", "dl", "section", "article", "figure", "details", "h1", "h2", "h3", "form"}


class Outline(HTMLParser):
    """Reads a page strictly: every element closed in order, ids unique, no block inside a paragraph."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.loads: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        if tag in PARENTS:
            assert self.open[-1] in PARENTS[tag], (tag, self.open)
        if tag in BLOCKS:
            assert not PHRASING_ONLY & set(self.open), (tag, self.open)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= set(names)
        for name, value in attrs:
            if name == "id":
                assert value not in self.ids
                self.ids.add(str(value))
            if name in ("src", "href", "xlink:href", "action", "data", "poster"):
                self.loads.append((tag, str(value)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(facts: Facts, title: str = "Audit", previous: str | None = None, fail_on: str = "violation") -> str:
    found = compare(facts.groups["identities"], read(previous) if previous else None)
    return page(audit_of(facts, found, fail_on=fail_on, title=title), "/data/tables")


@pytest.fixture(scope="module", autouse=True)
def drawn_once() -> Iterator[None]:
    """Facts that differ only in their strings have the same charts: each is drawn by its first test."""
    drawings: dict[tuple[str, str], Markup] = {}
    draw = charts.svg

    def drawn(chart: Any, label: str) -> Markup:
        key = (json.dumps(chart), label)
        if key not in drawings:
            drawings[key] = draw(chart, label)
        return drawings[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "svg", drawn)
        yield


@pytest.fixture(scope="module")
def hostile() -> Outline:
    return Outline(written(everywhere(HOSTILE, rows=2, examples=2), title=HOSTILE))


@pytest.mark.parametrize("text", ["orders", HOSTILE])
def test_the_page_is_valid_html(text: str) -> None:
    html5lib.HTMLParser(strict=True).parse(written(everywhere(text, rows=2, examples=2)))


def test_strings_from_the_wire_stay_text(hostile: Outline) -> None:
    assert hostile.tags["script"] == 1
    assert "img" not in hostile.tags
    assert not {name for name in hostile.attributes if name.startswith("on")} | {"style"} & hostile.attributes
    assert '<script>alert("x")</script>' in hostile.text
    assert not set(hostile.text) & {"\u202e", "\x07", "\x1b"}


def test_the_page_requests_nothing_from_the_network(hostile: Outline) -> None:
    assert {target for tag, target in hostile.loads if tag != "a"} == {"data:,"}
    assert all(target.startswith("#") for tag, target in hostile.loads if tag == "a")


def test_a_finding_says_how_to_see_it(hostile: Outline) -> None:
    """The packet, the connection, and the command that cuts them out (`report_support.finding`)."""
    for part in ("frame.number == 17", " --finding ", "/7/5 -o "):
        assert part in hostile.text


def test_its_links_have_targets(hostile: Outline) -> None:
    assert {target[1:] for tag, target in hostile.loads if tag == "a"} <= hostile.ids


def test_only_our_style_and_script_may_run() -> None:
    html = written(everywhere("x"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1]


def test_the_page_begins_with_the_verdict() -> None:
    facts = everywhere("x", rules=2)
    text = Outline(written(facts)).text
    # two rules with 1000 findings each; three connections of each version, all with a violation
    assert "2,000 violations in 3 of 3 connections." in text
    assert text.index("2,000 violations") < text.index("What was captured")


@pytest.mark.parametrize(
    ("fail_on", "failed"), [("violation", False), ("warning", True), ("info", True), ("never", False)]
)
def test_the_threshold_decides(fail_on: str, failed: bool) -> None:
    facts = everywhere("x")
    rules = [{**facts.groups["rules"].rows[0], "severity": "warning"}]
    facts = replace(facts, groups={**facts.groups, "rules": Groups(rules, 1)})
    assert audit_of(facts, fail_on=fail_on).verdict.failed is failed


@pytest.mark.parametrize(("content", "failed"), [("amqp", False), ("tls", True), ("none", True)])
def test_an_audit_that_read_no_amqp_fails_if_asked(content: str, failed: bool) -> None:
    facts = everywhere("x")
    versions = [{**facts.groups["versions"].rows[0], "content": content}]
    groups = {**facts.groups, "versions": Groups(versions, 1), "rules": Groups()}
    assert audit_of(replace(facts, groups=groups), fail_on="empty").verdict.failed is failed
    assert audit_of(replace(facts, groups=groups)).verdict.failed is False
    violation = {**groups, "rules": facts.groups["rules"]}
    assert audit_of(replace(facts, groups=violation), fail_on="empty").verdict.failed


def test_a_column_without_any_value_is_left_out() -> None:
    facts = everywhere("x")
    (row,) = facts.groups["servers"].rows
    some = Groups([{**row, "product": None}, {**row, "release": None}], 2)
    none = Groups([{**row, "product": None, "release": None}], 1)
    assert [heading for heading, _ in table("servers", some, 9, 9).headings][:3] == ["Address", "Product", "Release"]
    assert [heading for heading, _ in table("servers", none, 9, 9).headings][:2] == ["Address", "Connections"]


def test_nothing_found_and_nothing_captured_read_well() -> None:
    facts = everywhere("x")
    none = {name: Groups() for name in facts.groups}
    clean = {**facts.groups, **dict.fromkeys(("rules", "identities", "affected"), Groups())}
    assert "Nothing wrong was found in 3 connections." in Outline(written(replace(facts, groups=clean))).text
    empty = written(Facts(none, {}, 0, 0))
    assert "There is no connection in these captures." in Outline(empty).text


def test_the_baseline_shows() -> None:
    facts = everywhere("x")
    gone = identity("GONE-01", client_product=HOSTILE)
    found = compare(Groups([gone], 1), None)
    from pipeline.report.formats import document

    text = Outline(written(facts, previous=document(audit_of(facts, found)))).text
    assert "Compared with the audit of 2026-11-21 02:00:00+00:00: 1 new, 0 persisting, 1 gone." in text
    assert "GONE-01" in text


@pytest.mark.parametrize("text", ["\x00" * 400, "&<>\"'\u05d0" * 80])
def test_the_worst_of_captures_gives_a_page_under_3_mb(text: str) -> None:
    assert len(written(everywhere(text, rows=100, examples=4, rules=310)).encode()) < LARGEST


def test_more_than_is_shown_is_counted_and_can_be_queried() -> None:
    text = Outline(written(everywhere("x", rows=200, examples=1))).text
    assert "and 1,940 more: this query shows them" in re.sub(r"\s+", " ", text)  # 2000 groups, 60 shown
    assert "SELECT * FROM findings WHERE rule_id = 'XX-00'" in text


def test_percentiles_are_the_middle_of_their_class() -> None:
    # classes of 1/256 octave: 2 ** 20 ns is the lower edge of class 5120, 2 ** 24 ns of class 6144
    rows = [
        {"name": "a", "class": "6144", "rows": 10, "shortest": 2**24, "longest": 2**24 + 1},
        {"name": "a", "class": "5120", "rows": 90, "shortest": 2**20, "longest": 2**20 + 10_000},
    ]
    (found,) = latencies(rows, "name")
    assert (found.number, found.shortest, found.longest) == (100, 2**20, 2**24 + 1)
    assert found.quantiles[0] == pytest.approx(2**20, rel=0.0014)
    assert found.quantiles[1] == pytest.approx(2**20, rel=0.0014)
    assert found.quantiles[2] == pytest.approx(2**24, rel=0.0014)


def test_charts_are_drawings_without_script_or_style() -> None:
    facts = everywhere("x", rows=3)
    drawing = charts.rates(facts.groups["rates"], facts.first_ns, facts.last_ns)
    assert drawing is not None
    outline = Outline(drawing)
    assert outline.tags["svg"] == 1
    assert "path" in outline.tags
    assert not {"script", "style", "image", "a"} & set(outline.tags)
    assert "style" not in outline.attributes


def test_the_templates_take_every_string_through_a_filter() -> None:
    """`|safe` is nowhere: what is not escaped was made by `text.wire`, or is a drawing of ours."""
    for template in Path(charts.__file__).with_name("template").glob("*.j2"):
        assert "|safe" not in template.read_text().replace(" ", "")


def test_each_answer_is_a_fold_out() -> None:
    """With what happened, the proof and advice; those without one are counted."""
    text = re.sub(r"\s+", " ", Outline(written(everywhere("orders", rows=50, examples=1))).text)
    assert text.count("orders -> 10.0.0.2:5672 and 2 more connections It said orders.") == 40
    assert "+1.000000 s client orders · packet 2" in text
    assert "wirehare explain 1 /data/tables" in text
    assert "530 more connections ended badly" in text  # 10 answers with 3 each, and 500


def test_a_page_says_why_there_are_no_answers() -> None:
    facts = everywhere("orders")
    assert "No connection ended badly" in Outline(written(replace(facts, answers=[], unexplained=0))).text
    assert "are on another file system" in Outline(written(replace(facts, answers=None, unexplained=0))).text
