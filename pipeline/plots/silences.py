"""Heartbeats: when each side sent them, and how long it was silent."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import functions as F

from pipeline.heartbeats import BEATS, silences
from pipeline.output.units import duration, time_unit
from pipeline.plots.chart import WIDTH, empty, layer, scale, titled, unique_names
from pipeline.plots.rows import filtered, moment, omitted, require_positive, subtitle
from pipeline.theme import LIGHT

if TYPE_CHECKING:
    from pipeline import Tables

STEP = 24  # height of a row, pixels
# The most silences that are drawn; and the number of intervals of a row for heartbeats.
MOST, INTERVALS = 500, 200
# Classes of silence, in negotiated intervals. After two a peer may close the connection (0-9-1, 4.2.7).
WITHIN, LATE, OVERDUE = "within the interval", "longer than the interval", "longer than two intervals"
COLOURS = {WITHIN: "c4", LATE: "c2", OVERDUE: "bad"}


def heartbeats(tables: Tables, where: str | None = None, *, most: int = 12) -> Any:
    """How long each side was silent, in the colour of how that compares with the heartbeat interval agreed on (of 1.0
    the idle time-out), and ticks where heartbeats were sent: an `altair.LayerChart`.

    Silences shorter than half an interval are not drawn. `where`: SQL over table frames; connections that have such a
    frame are drawn, with all of their frames. The `most` directions with the longest silence, in intervals, are
    drawn. Two Spark jobs. Raises ValueError for a `most` less than 1.
    """
    require_positive(most)
    title, rows = "Silence and heartbeats", tables.frames
    if where is not None:
        rows = rows.join(filtered(tables, "frames", where).select("connection_id"), "connection_id", "left_semi")
    silent = silences(rows, tables.connections)
    worst = silent.groupBy("connection_id", "sender").agg(
        F.max(F.col("ns") / F.col("limit_ns")).alias("share"), F.first("limit_ns").alias("limit_ns"),
        F.first("client").alias("client"), F.min("ts_ns").alias("first"), F.max("end_ns").alias("last"),
        F.count("*").alias("silences"),
    )  # fmt: skip
    found = worst.orderBy(F.desc("share"), "client", "sender").limit(most + 1).collect()
    if not found:
        return empty(title, "no connection agreed on heartbeats and was silent for half an interval")
    shown, more = found[:most], len(found) > most
    first, last = min(row["first"] for row in shown), max(row["last"] for row in shown)
    unit, unit_ns = time_unit(last - first)
    wide = max((last - first) // INTERVALS, 1)
    sides = reduce(operator.or_, (
        (F.col("connection_id") == row["connection_id"]) & (F.col("sender") == row["sender"]) for row in shown
    ))  # fmt: skip
    longest = silent.filter(sides).orderBy(F.desc(F.col("ns") / F.col("limit_ns"))).limit(MOST)
    beats = rows.filter(sides).filter(BEATS).select(
        "connection_id", "sender", (F.floor((F.col("ts_ns") - first) / wide) * wide + first).alias("ts_ns")
    ).distinct().limit(MOST * 10)  # fmt: skip
    lengths = ("ns", "limit_ns")
    drawn = longest.select("connection_id", "sender", "ts_ns", *lengths).unionAll(
        beats.select("connection_id", "sender", "ts_ns", *(F.lit(None).cast("long").alias(name) for name in lengths))
    )
    names = unique_names({
        (row["connection_id"], row["sender"]): f"{row['sender']} of {row['client']} ({duration(row['limit_ns'])})"
        for row in shown
    })  # fmt: skip
    spans, ticks = [], []
    for row in drawn.collect():
        at = {"name": names[row["connection_id"], row["sender"]], "t": (row["ts_ns"] - first) / unit_ns}
        if row["ns"] is None:
            ticks.append(at)
        else:
            spans.append({**at, "to": at["t"] + row["ns"] / unit_ns, "how": lateness(row["ns"] / row["limit_ns"])})
    lines = subtitle(
        "a side's name is followed by the interval agreed on; silence below half of it is blank; ticks are heartbeats",
        f"the {most} directions with the longest silence" if more else None,
        omitted(len(spans), sum(row["silences"] for row in shown), "silences", "the longest, in intervals"),
    )
    y = alt.Y(
        "name:N",
        sort=list(names.values()),
        title=None,
        axis=alt.Axis(labelColor=LIGHT["ink"], labelLimit=320, ticks=False, domain=False),
    )
    span = alt.Scale(domain=[0, (last - first) / unit_ns], nice=False)
    x = alt.X("t:Q", scale=span, title=f"{unit} since {moment(first)}", axis=alt.Axis(grid=False, tickCount=8))
    colour = alt.Color("how:N", scale=scale(COLOURS, [row["how"] for row in spans]))
    layers = (
        layer(spans).mark_bar(height=9).encode(x, y, alt.X2("to:Q"), colour),
        layer(ticks).mark_tick(thickness=1.2, height=17, color=LIGHT["ink"]).encode(x, y),
    )
    return titled(alt.layer(*layers).properties(width=WIDTH, height=alt.Step(STEP)), title, lines)


def lateness(share: float) -> str:
    """The class of a silence, by its share of the negotiated interval."""
    return WITHIN if share <= 1 else LATE if share <= 2 else OVERDUE
