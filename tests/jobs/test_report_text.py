"""Strings from the wire on the page: escaped, isolated, visible, and never longer than the room they are given."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import command_line
from pipeline.output.formatting import (
    MARKUP_BYTES,
    MAX_CHARACTERS,
    count,
    moment,
    share,
    wire,
)
from pipeline.report.cards import connection_filter, cut_command, packet_filter
from pipeline.report.sections import SEVERITIES, at_least

# Every tag that `wire` may write, none with an attribute but the class of a placeholder.
ALLOWED = {("bdi", ()), ("i", ()), ("span", (("class", "none"),))}


class Seen(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[tuple[str, tuple[tuple[str, str | None], ...]]] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, tuple(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("name", "html"),
    [
        ("orders", "<bdi>orders</bdi>"),
        ("<script>alert(1)</script>", "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi>"),
        ('" onload="x', "<bdi>&#34; onload=&#34;x</bdi>"),
        ("a\x00b\r\n", "<bdi>a<i>U+0000</i>b<i>U+000D</i><i>U+000A</i></bdi>"),
        ("\u202egnp.exe", "<bdi><i>U+202E</i>gnp.exe</bdi>"),
        ("a\u200bb\ufeff", "<bdi>a<i>U+200B</i>b<i>U+FEFF</i></bdi>"),
        ("\ud800", "<bdi><i>U+D800</i></bdi>"),
        ("שלום", "<bdi>שלום</bdi>"),
        ("", '<span class="none">empty</span>'),
        (None, '<span class="none">\u2013</span>'),
        (5672, "<bdi>5672</bdi>"),
    ],
)
def test_a_string_is_inert_and_shows_what_cannot_be_seen(name: object, html: str) -> None:
    assert wire(name) == html


def test_a_long_string_says_how_much_more_there_is() -> None:
    assert wire("x" * 1000) == f"<bdi>{'x' * MAX_CHARACTERS}<i>… {1000 - MAX_CHARACTERS} more</i></bdi>"


def test_marks_stacked_on_a_letter_do_not_run_over_other_lines() -> None:
    assert wire("e\u0301\u0301\u0301") == "<bdi>e\u0301\u0301<i>U+0301</i></bdi>"


@given(st.text(st.characters(codec=None), max_size=400))
def test_any_string_is_only_text(name: str) -> None:
    html = wire(name)
    seen = Seen(html)
    assert seen.tags <= ALLOWED
    assert not set(seen.text) & {*map(chr, range(32)), "\u202e", "\u2066"}
    assert len(html) <= MARKUP_BYTES


@pytest.mark.parametrize(
    ("part", "total", "expected"),
    [(0, 10, "0 %"), (10, 10, "100 %"), (999_999, 10**6, "99.99 %"), (1, 10**9, "0.01 %"), (1, 8, "12.5 %")],
)
def test_a_share_is_rounded_to_0_or_100_only_when_exact(part: int, total: int, expected: str) -> None:
    assert share(part, total) == expected


def test_numbers_and_times() -> None:
    assert (count(1234567), count(None)) == ("1,234,567", "\u2013")
    # date -u -d @1700000000: Tue Nov 14 22:13:20 UTC 2023
    assert moment(1_700_000_000_999_999) == "2023-11-14 22:13:20"
    assert moment(10**18) == "1000000000000 s"


def test_filters_contain_only_addresses_and_numbers() -> None:
    ends = {"client_ip": "10.0.0.7", "client_port": 50312, "server_ip": "10.0.0.2", "server_port": 5672}
    assert packet_filter(17) == "frame.number == 17"
    assert (
        connection_filter(ends) == "ip.addr == 10.0.0.7 && ip.addr == 10.0.0.2 && tcp.port == 50312 && tcp.port == 5672"
    )
    six = {**ends, "client_ip": "fd00::7", "server_ip": "fd00::2"}
    assert str(connection_filter(six)).startswith("ipv6.addr == fd00::7 && ipv6.addr == fd00::2")
    assert connection_filter({**ends, "client_ip": "<b>"}) is None
    assert connection_filter({}) is None


def test_the_command_of_a_finding_is_one_that_the_command_line_takes() -> None:
    for ids in ((4711, 20), (4711, None), (None, None)):
        command = cut_command("TABLES", "CH-09", *ids).split()
        assert command[:3] == ["wirehare", "cut", "TABLES"]
        arguments = command_line().parse_args(command[1:])
        assert (arguments.finding, arguments.output) == ([("CH-09", *ids)], "CH-09.pcapng")


def test_severities_rise() -> None:
    assert SEVERITIES == ("info", "warning", "violation")
    assert list(at_least("warning")) == ["warning", "violation"]
