"""Connections over time: when each began, how it ended, by whom and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import functions as F

from pipeline.output.units import time_unit
from pipeline.plots.chart import NAME_CHARACTERS, WIDTH, empty, layer, scale, titled, unique_names
from pipeline.plots.rows import GIVEN_NAME, filtered, is_one_of, moment, omitted, require_positive, subtitle
from pipeline.report.text import plain_text
from pipeline.theme import LIGHT

if TYPE_CHECKING:
    from pipeline import Tables

STEP = 20  # height of a row, pixels
# The minimum length of a bar, as a share of the width.
LEAST_BAR = 0.004
REASON_CHARACTERS = 60
# A bar that ends beyond this share of the width has its text before it, if there is as much room.
RIGHT_HALF = 0.6
# How a connection ended: the first condition that is true.
ENDINGS = {
    "closed with an error": "close_code >= 300 OR (close_code IS NULL AND close_text IS NOT NULL)",
    "reset by TCP": "tcp_end = 'rst' AND close_initiator IS NULL",
    "closed": "close_initiator IS NOT NULL",
    "TCP ended without a close": "tcp_end = 'fin'",
    "open at the end of the capture": "true",
}
COLOURS = dict(zip(ENDINGS, ("bad", "c2", "c1", "c3", "muted"), strict=True))
# Channels with an error that are marked.
MOST_MARKS = 400


def connections(tables: Tables, where: str | None = None, *, most: int = 40) -> Any:
    """A bar for each connection from its first packet to its last, in the colour of how it ended, with who ended it and
    why: an `altair.LayerChart`.

    `where`: SQL over table connections. Channels that were closed with an error are marked on their connection's bar.
    The `most` that ended worst, then the longest, are drawn. Three Spark jobs. Raises ValueError for a `most`
    less than 1.
    """
    require_positive(most)
    title, rows = "Connections over time", filtered(tables, "connections", where).filter("opened_ts IS NOT NULL")
    ending = F.expr("CASE " + " ".join(f"WHEN {sql} THEN '{word}'" for word, sql in ENDINGS.items()) + " END")
    rank = F.expr("CASE " + " ".join(f"WHEN {sql} THEN {n}" for n, sql in enumerate(ENDINGS.values())) + " END")
    facts = rows.select(
        "connection_id", "client_ip", "client_port", "client_product", "user", "vhost", "version", "content",
        "close_initiator", "close_code", "close_text", "tcp_end", "tcp_end_by",
        ending.alias("ending"), rank.alias("rank"),
        F.expr(GIVEN_NAME).alias("given_name"),
        *((F.unix_micros(end) * 1000).alias(name) for end, name in (("opened_ts", "first"), ("closed_ts", "last"))),
    )  # fmt: skip
    found = [
        row.asDict() for row in facts.orderBy("rank", F.col("first") - F.col("last"), "first").limit(most).collect()
    ]
    if not found:
        return empty(title, "no connection fits the condition")
    total = len(found) if len(found) < most else rows.count()
    found.sort(key=lambda row: (row["first"], row["connection_id"]))
    first, last = min(row["first"] for row in found), max(row["last"] for row in found)
    unit, unit_ns = time_unit(last - first)
    least = LEAST_BAR * (last - first) / unit_ns
    bars = [bar(row, first, unit_ns, least) for row in found]
    for number, name in unique_names({number: row["name"] for number, row in enumerate(bars)}).items():
        bars[number]["name"] = name  # the same port again is another row
    failed = (
        tables.channels.filter("close_code >= 300 AND closed_ts IS NOT NULL")
        .filter(is_one_of("connection_id", [row["connection_id"] for row in found]))
        .select("connection_id", (F.unix_micros("closed_ts") * 1000).alias("at"))
        .orderBy("at", "connection_id")
        .limit(MOST_MARKS + 1)
        .collect()
    )
    at = {row["connection_id"]: row["name"] for row in bars}
    marks = [{"name": at[row["connection_id"]], "t": (row["at"] - first) / unit_ns} for row in failed[:MOST_MARKS]]
    first_of_them = f", the first {MOST_MARKS} of them" if len(failed) > MOST_MARKS else ""
    order = omitted(len(found), total, "connections", "those that ended worst, then the longest")
    lines = subtitle(
        f"diamonds: channels closed with an error{first_of_them}" if marks else None,
        order,
    )
    return titled(gantt(bars, marks, f"{unit} since {moment(first)}"), title, lines)


def bar(row: Mapping[str, Any], first: int, unit_ns: int, least: float) -> dict[str, Any]:
    """The bar of a connection: name, times in units since the first packet, ending, and the text beside it."""
    begun, ended = (row["first"] - first) / unit_ns, (row["last"] - first) / unit_ns
    who = row["given_name"] or row["user"] or row["client_product"] or row["content"]
    closed = row["close_initiator"] or (row["tcp_end_by"] if row["tcp_end"] in ("fin", "rst") else None)
    failed = row["ending"] == "closed with an error"
    code = "" if row["close_code"] is None else f"{row['close_code']} "
    text = "" if row["close_text"] is None else plain_text(row["close_text"], REASON_CHARACTERS)
    why = f"{code}{text}" if failed else ""
    return {
        "connection_id": row["connection_id"],
        "name": f"{plain_text(who, NAME_CHARACTERS - 10)} {row['client_ip']}:{row['client_port']}",
        "t": begun,
        "to": max(ended, begun + least),
        "ending": row["ending"],
        "why": ": ".join(part for part in (f"by the {closed}" if closed else "", why) if part),
    }


def gantt(bars: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]], x_title: str) -> Any:
    """Bars with marks, and text beside them."""
    names = [row["name"] for row in bars]
    y = alt.Y(
        "name:N",
        sort=names,
        title=None,
        axis=alt.Axis(labelColor=LIGHT["ink"], labelLimit=320, ticks=False, domain=False),
    )
    span_to = max(row["to"] for row in bars)
    span = alt.Scale(domain=[0, span_to], nice=False)
    x = alt.X("t:Q", title=x_title, scale=span, axis=alt.Axis(grid=True, tickCount=8))
    end = alt.X("to:Q", scale=span, title=x_title)
    colour = alt.Color("ending:N", scale=scale(COLOURS, [row["ending"] for row in bars]))
    diamond = {"shape": "diamond", "filled": True, "size": 60, "opacity": 1, "stroke": LIGHT["paper"]}
    words: dict[str, Any] = {"fontSize": 10.5, "color": LIGHT["muted"]}
    late = [row for row in bars if row["to"] > RIGHT_HALF * span_to and row["t"] > (1 - RIGHT_HALF) * span_to]
    early = [row for row in bars if row not in late]
    layers = [
        layer(bars).mark_bar(height=9, cornerRadius=2).encode(x, y, alt.X2("to:Q"), colour),
        layer(marks).mark_point(color=LIGHT["bad"], **diamond).encode(alt.X("t:Q", scale=span), y),
        layer(early).mark_text(align="left", dx=6, **words).encode(end, y, alt.Text("why:N")),
        layer(late).mark_text(align="right", dx=-6, **words).encode(x, y, alt.Text("why:N")),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=alt.Step(STEP))
