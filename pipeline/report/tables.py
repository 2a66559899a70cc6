"""Sections as tables for the template: formatted cells, with the numbers that they sort by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.report.groups import Groups, Latency
from pipeline.report.sections import TABLES
from pipeline.report.text import NOTHING, count, duration, moment, size, wire

Show = Callable[[Any], str | Markup]


def number(show: Callable[[int], str | None]) -> Show:
    """A formatter for numbers that may be text or None."""
    return lambda value: NOTHING if value is None else show(int(value)) or NOTHING


# Kind of a column -> its formatter, and whether it has numbers (flush right, sorted by value).
KINDS: Mapping[str, tuple[Show, bool]] = {
    "wire": (wire, False),
    "count": (number(count), True),
    "size": (number(size), True),
    "duration": (number(duration), True),
    "moment": (number(moment), True),
    "agreed": (number(count), True),
}


@dataclass(frozen=True)
class Table:
    """A table for the template: cells are (HTML, number to sort by or None)."""

    caption: str
    headings: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[tuple[str | Markup, int | None]]]
    more: int = 0
    query: str = ""
    nothing: str = ""


def table(section: str, groups: Groups, rows: int, characters: int) -> Table:
    """A section as a table: its first `rows` groups, with texts of at most `characters`."""
    spec = TABLES[section]
    first = groups.rows[:rows]
    cells = [[cell(group, name, kind, characters) for _, name, kind in spec.columns] for group in first]
    headings = [(heading, KINDS[kind][1]) for heading, _, kind in spec.columns]
    return Table(spec.caption, headings, cells, groups.total - len(first), spec.query, spec.nothing)


def cell(group: Mapping[str, Any], name: str, kind: str, characters: int) -> tuple[str | Markup, int | None]:
    """A value of a group as HTML, with the number that it sorts by."""
    if kind == "wire":
        return wire(group[name], limit=characters), None
    if kind == "agreed":
        return agreed(group, name), sort_by(group.get(name, group[f"client_{name}"]))
    return KINDS[kind][0](group[name]), sort_by(group[name])


def agreed(group: Mapping[str, Any], name: str) -> str:
    """The proposals of both sides and, if known, the negotiated value: '2,047 / 2,047 = 2,047'."""
    show = number(count)
    client, server = (show(group[f"{side}_{name}"]) for side in ("client", "server"))
    if client == server == NOTHING and group.get(name) is None:
        return NOTHING
    return f"{client} / {server}" + (f" = {show(group[name])}" if name in group else "")


def sort_by(value: Any) -> int:
    """The sort value of a number; unknown ones sort first."""
    return -1 if value is None else int(value)


def latency_table(caption: str, what: str, found: Sequence[Latency], rows: int, nothing: str, query: str = "") -> Table:
    """Latencies with their percentiles."""
    headings = [
        (what, False),
        *((word, True) for word in ("Times", "Shortest", "Median", "90 %", "99 %", "Longest")),
    ]
    cells = [
        [
            (wire(one.what), None),
            (count(one.number), one.number),
            *((duration(ns) or NOTHING, sort_by(ns)) for ns in (one.shortest, *one.quantiles, one.longest)),
        ]
        for one in found[:rows]
    ]
    return Table(caption, headings, cells, max(0, len(found) - rows), query, nothing)
