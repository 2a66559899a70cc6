"""Lifetimes of connections (when each began, how it ended, by whom and why), heartbeats and silences."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import functions as F

from pipeline.explore.summaries import BEATS, silences
from pipeline.output.formatting import duration, plain_text, time_unit
from pipeline.output.theme import LIGHT
from pipeline.plots import chart

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
    chart.require_positive(most)
    title, rows = "Connections over time", chart.filtered(tables, "connections", where).filter("opened_ts IS NOT NULL")
    rank = F.expr("CASE " + " ".join(f"WHEN {sql} THEN {n}" for n, sql in enumerate(ENDINGS.values())) + " END")
    facts = rows.select(
        "connection_id", "client_ip", "client_port", "client_product", "user", "vhost", "version", "content",
        "close_initiator", "close_code", "close_text", "tcp_end", "tcp_end_by",
        rank.alias("rank"),
        F.expr(chart.GIVEN_NAME).alias("given_name"),
        *((F.unix_micros(end) * 1000).alias(name) for end, name in (("opened_ts", "first"), ("closed_ts", "last"))),
    )  # fmt: skip
    worst = facts.orderBy("rank", F.col("first") - F.col("last"), "first").limit(most).collect()
    found = [row.asDict() | {"ending": list(ENDINGS)[row["rank"]]} for row in worst]
    if not found:
        return chart.empty(title, "no connection fits the condition")
    total = len(found) if len(found) < most else rows.count()
    found.sort(key=lambda row: (row["first"], row["connection_id"]))
    first, last = min(row["first"] for row in found), max(row["last"] for row in found)
    unit, unit_ns = time_unit(last - first)
    least = LEAST_BAR * (last - first) / unit_ns
    bars = [bar(row, first, unit_ns, least) for row in found]
    for number, name in chart.unique_names({number: row["name"] for number, row in enumerate(bars)}).items():
        bars[number]["name"] = name  # the same port again is another row
    failed = (
        tables.channels.filter("close_code >= 300 AND closed_ts IS NOT NULL")
        .filter(chart.is_one_of("connection_id", [row["connection_id"] for row in found]))
        .select("connection_id", (F.unix_micros("closed_ts") * 1000).alias("at"))
        .orderBy("at", "connection_id")
        .limit(MOST_MARKS + 1)
        .collect()
    )
    at = {row["connection_id"]: row["name"] for row in bars}
    marks = [{"name": at[row["connection_id"]], "t": (row["at"] - first) / unit_ns} for row in failed[:MOST_MARKS]]
    first_of_them = f", the first {MOST_MARKS} of them" if len(failed) > MOST_MARKS else ""
    lines = (
        f"diamonds: channels closed with an error{first_of_them}" if marks else None,
        chart.omitted(len(found), total, "connections", "those that ended worst, then the longest"),
    )
    return chart.titled(gantt(bars, marks, f"{unit} since {chart.moment(first)}"), title, *lines)


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
        "name": f"{plain_text(who, chart.NAME_CHARACTERS - 10)} {row['client_ip']}:{row['client_port']}",
        "t": begun,
        "to": max(ended, begun + least),
        "ending": row["ending"],
        "why": ": ".join(part for part in (f"by the {closed}" if closed else "", why) if part),
    }


def gantt(bars: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]], x_title: str) -> Any:
    """Bars with marks, and text beside them."""
    y = chart.name_rows(row["name"] for row in bars)
    span_to = max(row["to"] for row in bars)
    span = alt.Scale(domain=[0, span_to], nice=False)
    x = alt.X("t:Q", title=x_title, scale=span, axis=alt.Axis(grid=True, tickCount=8))
    end = alt.X("to:Q", scale=span, title=x_title)
    colour = alt.Color("ending:N", scale=chart.scale(COLOURS, [row["ending"] for row in bars]))
    diamond = {"shape": "diamond", "filled": True, "size": 60, "opacity": 1, "stroke": LIGHT["paper"]}
    words: dict[str, Any] = {"fontSize": 10.5, "color": LIGHT["muted"]}
    late = [row for row in bars if row["to"] > RIGHT_HALF * span_to and row["t"] > (1 - RIGHT_HALF) * span_to]
    early = [row for row in bars if row not in late]
    layers = [
        chart.layer(bars).mark_bar(height=9, cornerRadius=2).encode(x, y, alt.X2("to:Q"), colour),
        chart.layer(marks).mark_point(color=LIGHT["bad"], **diamond).encode(alt.X("t:Q", scale=span), y),
        chart.layer(early).mark_text(align="left", dx=6, **words).encode(end, y, alt.Text("why:N")),
        chart.layer(late).mark_text(align="right", dx=-6, **words).encode(x, y, alt.Text("why:N")),
    ]
    return alt.layer(*layers).properties(width=chart.WIDTH, height=alt.Step(STEP))


SILENCE_STEP = 24  # height of a row, pixels
# The most silences that are drawn; and the number of intervals of a row for heartbeats.
MOST, INTERVALS = 500, 200
# Classes of silence, in negotiated intervals. After two a peer may close the connection (0-9-1, 4.2.7).
WITHIN, LATE, OVERDUE = "within the interval", "longer than the interval", "longer than two intervals"
SILENCE_COLOURS = {WITHIN: "c4", LATE: "c2", OVERDUE: "bad"}


def heartbeats(tables: Tables, where: str | None = None, *, most: int = 12) -> Any:
    """How long each side was silent, in the colour of how that compares with the heartbeat interval agreed on (of 1.0
    the idle time-out), and ticks where heartbeats were sent: an `altair.LayerChart`.

    Silences shorter than half an interval are not drawn. `where`: SQL over table frames; connections that have such a
    frame are drawn, with all of their frames. The `most` directions with the longest silence, in intervals, are
    drawn. Two Spark jobs. Raises ValueError for a `most` less than 1.
    """
    chart.require_positive(most)
    title, rows = "Silence and heartbeats", tables.frames
    if where is not None:
        rows = rows.join(chart.filtered(tables, "frames", where).select("connection_id"), "connection_id", "left_semi")
    silent = silences(rows, tables.connections)
    worst = silent.groupBy("connection_id", "sender").agg(
        F.max(F.col("ns") / F.col("limit_ns")).alias("share"), F.first("limit_ns").alias("limit_ns"),
        F.first("client").alias("client"), F.min("ts_ns").alias("first"), F.max("end_ns").alias("last"),
        F.count("*").alias("silences"),
    )  # fmt: skip
    found = worst.orderBy(F.desc("share"), "client", "sender").limit(most + 1).collect()
    if not found:
        return chart.empty(title, "no connection agreed on heartbeats and was silent for half an interval")
    first_rows, more = found[:most], len(found) > most
    first, last = min(row["first"] for row in first_rows), max(row["last"] for row in first_rows)
    unit, unit_ns = time_unit(last - first)
    wide = max((last - first) // INTERVALS, 1)
    sides = reduce(operator.or_, (
        (F.col("connection_id") == row["connection_id"]) & (F.col("sender") == row["sender"]) for row in first_rows
    ))  # fmt: skip
    longest = silent.filter(sides).orderBy(F.desc(F.col("ns") / F.col("limit_ns"))).limit(MOST)
    beats = rows.filter(sides).filter(BEATS).select(
        "connection_id", "sender", (F.floor((F.col("ts_ns") - first) / wide) * wide + first).alias("ts_ns")
    ).distinct().limit(MOST * 10)  # fmt: skip
    lengths = ("ns", "limit_ns")
    drawn = longest.select("connection_id", "sender", "ts_ns", *lengths).unionAll(
        beats.select("connection_id", "sender", "ts_ns", *(F.lit(None).cast("long").alias(name) for name in lengths))
    )
    names = chart.unique_names({
        (row["connection_id"], row["sender"]): f"{row['sender']} of {row['client']} ({duration(row['limit_ns'])})"
        for row in first_rows
    })  # fmt: skip
    spans, ticks = [], []
    for row in drawn.collect():
        at = {"name": names[row["connection_id"], row["sender"]], "t": (row["ts_ns"] - first) / unit_ns}
        if row["ns"] is None:
            ticks.append(at)
        else:
            spans.append({**at, "to": at["t"] + row["ns"] / unit_ns, "how": lateness(row["ns"] / row["limit_ns"])})
    lines = (
        "a side's name is followed by the interval agreed on; silence below half of it is blank; ticks are heartbeats",
        f"the {most} directions with the longest silence" if more else None,
        chart.omitted(len(spans), sum(row["silences"] for row in first_rows), "silences", "the longest, in intervals"),
    )
    y = chart.name_rows(names.values())
    span = alt.Scale(domain=[0, (last - first) / unit_ns], nice=False)
    x = alt.X("t:Q", scale=span, title=f"{unit} since {chart.moment(first)}", axis=alt.Axis(grid=False, tickCount=8))
    colour = alt.Color("how:N", scale=chart.scale(SILENCE_COLOURS, [row["how"] for row in spans]))
    layers = (
        chart.layer(spans).mark_bar(height=9).encode(x, y, alt.X2("to:Q"), colour),
        chart.layer(ticks).mark_tick(thickness=1.2, height=17, color=LIGHT["ink"]).encode(x, y),
    )
    return chart.titled(alt.layer(*layers).properties(width=chart.WIDTH, height=alt.Step(SILENCE_STEP)), title, *lines)


def lateness(share: float) -> str:
    """The class of a silence, by its share of the negotiated interval."""
    return WITHIN if share <= 1 else LATE if share <= 2 else OVERDUE
