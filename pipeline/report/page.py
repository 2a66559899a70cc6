"""The page: one HTML file with its style, script and charts inline; it loads nothing.

A Content-Security-Policy with hashes allows only our own style and script, so that injected markup could not run. The
page works without its script, which adds sorting, filters and the choice of a theme.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.explain.answers import proof, times
from pipeline.output.formatting import (
    MEASURE_NAMES,
    NOTHING,
    count,
    duration,
    moment,
    share,
    size,
    wire,
)
from pipeline.report import charts
from pipeline.report.cards import cards, connection_filter, most_important
from pipeline.report.facts import Facts
from pipeline.report.formats import Audit
from pipeline.report.grouped_counts import Groups, Latency, latencies
from pipeline.report.sections import TABLES
from pipeline.report.topology import BOX_HEIGHT, BOX_WIDTH, COLUMN, HEADINGS, picture, with_names

TEMPLATES = Path(__file__).with_name("template")
LARGEST = 3_000_000
SLOWEST = 15
MEASURES = [*MEASURE_NAMES.values()]  # of latencies through a broker, in the order in which a message meets them
REPLIES = (
    "SELECT name, quantile_disc(reply_latency_ns, [0.5, 0.9, 0.99]) AS ns FROM methods "
    "WHERE reply_latency_ns IS NOT NULL GROUP BY name"
)
WAITS = (
    "SELECT coalesce(queue, address) AS queue, count(*) AS messages, "
    "quantile_disc(broker_latency_ns, [0.5, 0.9, 0.99]) AS ns FROM message_flows WHERE broker_latency_ns IS NOT NULL "
    "GROUP BY ALL ORDER BY sum(broker_latency_ns) DESC"
)
# Columns of the ledger that add up to all bytes of the streams -> what these bytes are.
USES = {
    "frame": "in frames", "tls": "encrypted", "skipped": "skipped", "foreign": "of another protocol",
    "tail": "of an unfinished frame", "missing": "not captured",
}  # fmt: skip
# Latencies -> label of their chart.
CHART_LABELS = {
    "flows": "Time from publish through the broker to settlement: median, 90 % and 99 %",
    "settled": "Time until messages were settled: median, 90 % and 99 % by operation and outcome",
    "replies": "Time until requests were answered: median, 90 % and 99 % by method",
}
# Latencies -> caption, first heading, text without rows, and query of their table.
LATENCY_TABLES = {
    "settled": ("Until settled", "Messages", "No settlement was captured.", ""),
    "replies": ("Until answered: the slowest", "Request", "No request with its answer was captured.", REPLIES),
    "waits": (
        "Where messages waited: from publish to delivery, by queue or address; the 20 with the longest time in all",
        "Queue or address",
        "No message was seen on both sides of a broker.",
        WAITS,
    ),
    "flows": ("Through the broker", "From, to", "No message was seen on both sides of a broker.", ""),
}


@dataclass(frozen=True)
class PageLimits:
    """The limits of a page: examples per rule, rows per table, characters per string, entries of the baseline and
    unchecked rules, names of each kind per rule, explained connections."""

    examples: int
    rows: int
    characters: int
    gone: int
    names: int
    answers: int


# The first one that keeps the page below LARGEST is used; the last one always does.
PAGE_LIMITS = (
    PageLimits(4, 60, 160, 100, 10_000, 40),
    PageLimits(2, 30, 80, 50, 200, 20),
    PageLimits(1, 15, 40, 25, 10, 10),
    PageLimits(0, 10, 20, 10, 0, 3),
)


def page(audit: Audit, source: str) -> str:
    """The report as HTML. `source`: where the tables are, for display."""
    drawn, html = draw_charts(audit.facts), ""
    for limits in PAGE_LIMITS:
        html = render(limits, audit, source, drawn)
        if len(html.encode(errors="replace")) <= LARGEST:
            break
    return html


def draw_charts(facts: Facts) -> dict[str, Any]:
    """The charts, None without data, and the latencies in some of them."""
    replies = latencies(facts.groups["replies"].rows, "name")
    measured = {
        "flows": sorted(latencies(facts.groups["flows"].rows, "measure"), key=lambda found: MEASURES.index(found.what)),
        "settled": latencies(facts.groups["settled"].rows, "operation", "outcome"),
        "replies": sorted(replies, key=lambda found: -found.quantiles[-1])[:SLOWEST],
        "waits": sorted(latencies(facts.groups["waits"].rows, "queue"), key=lambda found: -found.quantiles[0]),
    }
    return {
        "rates": charts.rates(facts.groups["rates"], facts.first_ns, facts.last_ns),
        "distribution": charts.distribution(facts.groups["settled"]),
        **measured,
        **{f"{name}_chart": charts.percentiles(measured[name], label) for name, label in CHART_LABELS.items()},
    }


def ledger(facts: Facts) -> dict[str, int]:
    """The byte ledger summed over all streams, with `payload`, the captured bytes."""
    return {name: facts.total("ledger", name) for name in (*USES, "payload", "retransmitted")}


def render(limits: PageLimits, audit: Audit, source: str, drawn: dict[str, Any]) -> str:
    facts = audit.facts
    style, script = ((TEMPLATES / name).read_text() for name in ("style.css", "page.js"))
    totals = ledger(facts)
    whole = sum(totals[name] for name in USES)
    groups = {**facts.groups, "topology": with_names(facts.groups["topology"])}
    tables = {name: table(name, groups[name], limits.rows, limits.characters) for name in TABLES}
    tables |= {name: latency_table(name, drawn[name], limits.rows) for name in LATENCY_TABLES}
    broken = cards(facts, audit.found, limits.examples, source, audit.rules)
    return (
        environment(limits.characters)
        .get_template("page.html.j2")
        .render(
            title=audit.title,
            source=source,
            now=audit.now,
            config=audit.config,
            facts=facts,
            found=audit.found,
            verdict=audit.verdict,
            drawn=drawn,
            limits=limits,
            cards=broken,
            first=most_important(broken),
            unchecked=audit.unchecked,
            explained=explained(facts, limits.answers, source),
            unexplained=facts.unexplained + sum(each.connections for each in (facts.answers or ())[limits.answers :]),
            tables=tables,
            picture=picture(facts.groups["topology"].rows, facts.last_ns - facts.first_ns),
            headings=HEADINGS,
            column=COLUMN,
            box_size=(BOX_WIDTH, BOX_HEIGHT),
            decoded=share(totals["frame"] + totals["tls"], totals["payload"]),
            totals=totals,
            uses=[f"{share(totals[name], whole)} {use}" for name, use in USES.items() if totals[name]],
            style=Markup(style),
            script=Markup(script),
            style_hash=policy_hash(style),
            script_hash=policy_hash(script),
        )
    )


def explained(facts: Facts, most: int, source: str) -> list[dict[str, Any]]:
    """The first `most` answers for the template: with the times of events, the proof, and the command for more."""
    return [
        {
            "answer": answer,
            "events": list(zip(times(answer.events), answer.events, strict=True)),
            "proof": list(proof(answer)),
            "command": shlex.join(["wirehare", "explain", str(answer.connection_id), source]),
        }
        for answer in (facts.answers or ())[:most]
    ]


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
    "number": (number(str), True),
    "filter": (wire, False),
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
    columns = [column for column in spec.columns if any(has_value(group, *column[1:]) for group in first)]
    cells = [[cell(group, name, kind, characters) for _, name, kind in columns] for group in first]
    headings = [(heading, KINDS[kind][1]) for heading, _, kind in columns]
    return Table(spec.caption, headings, cells, groups.total - len(first), spec.query, spec.nothing)


def has_value(group: Mapping[str, Any], name: str, kind: str) -> bool:
    """Whether a group has something to show in a column: a column without any is left out."""
    if kind == "filter":
        return True
    names = (name, f"client_{name}", f"server_{name}") if kind == "agreed" else (name,)
    return any(group.get(each) is not None for each in names)


def cell(group: Mapping[str, Any], name: str, kind: str, characters: int) -> tuple[str | Markup, int | None]:
    """A value of a group as HTML, with the number that it sorts by."""
    if kind == "wire":
        return wire(group[name], limit=characters), None
    if kind == "filter":
        return Markup("<code>{}</code>").format(connection_filter(group) or ""), None
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


def latency_table(name: str, found: Sequence[Latency], rows: int) -> Table:
    """Latencies with their percentiles, the first `rows`; `name`: of LATENCY_TABLES."""
    caption, what, nothing, query = LATENCY_TABLES[name]
    headings = [(what, False), *((word, True) for word in ("Count", "Shortest", "Median", "90 %", "99 %", "Longest"))]
    cells = [
        [
            (wire(one.what), None),
            (count(one.number), one.number),
            *((duration(ns) or NOTHING, sort_by(ns)) for ns in (one.shortest, *one.quantiles, one.longest)),
        ]
        for one in found[:rows]
    ]
    return Table(caption, headings, cells, max(0, len(found) - rows), query, nothing)


def environment(characters: int) -> Environment:
    """A Jinja environment with autoescape and our formats as filters."""
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    jinja.filters.update(wire=partial(wire, limit=characters), count=count, duration=duration, moment=moment, size=size)
    return jinja


def policy_hash(text: str) -> str:
    """The hash of an inline style or script for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
