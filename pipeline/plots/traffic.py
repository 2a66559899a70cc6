"""Messages over time: rates in and out of each queue, and backlogs. Versions by client, and sizes of frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.explore.summaries import BEATS, LINK
from pipeline.explore.summaries import backlog as by_consumer
from pipeline.output.formatting import plain_text, size, time_unit
from pipeline.output.theme import DASHES, LIGHT, scale
from pipeline.plots import chart
from udfs.conversation.roles import DELIVERIES, REFUSED

if TYPE_CHECKING:
    from pipeline import Tables

ROW = 90  # height of one queue, pixels
IN, OUT = "published", "delivered"
BROKER, CONSUMERS = "in the broker, not delivered yet", "with consumers, not settled yet"
TRAFFIC, BACKLOG = {IN: "c1", OUT: "c2"}, {BROKER: "c2", CONSUMERS: "c1"}
# Where a publish goes that was never delivered: through the default exchange to the queue of its routing key.
NOT_ROLLED_BACK = "NOT transaction <=> 'rolled-back'"
QUEUE_OF_FLOW = "coalesce(queue, address, CASE WHEN exchange = '' THEN routing_key END)"
QUEUE_OF_MESSAGE = "coalesce(queue, address)"


def rates(
    tables: Tables, where: str | None = None, *, by: str = "queue", every: str | None = None, most: int = 6
) -> Any:
    """Messages a second in and out of each queue, a row each: an `altair.VConcatChart`.

    `by`: 'queue' (1.0: the address), or another column of table messages. A publish has no queue of its own: it counts
    for each queue that its message was delivered from, or that the default exchange routes to; a publish that
    was rolled back counts for none. `where`: SQL over columns that messages and message_flows both have, or
    connections. `every`: interval ('1 second'); by default as many as fit. The `most` busiest are drawn. Two Spark
    jobs. Raises ValueError for an unknown interval, and for a `most` less than 1.
    """
    chart.require_positive(most)
    title, events = f"Messages in and out, by {by.replace('_', ' ')}", traffic(tables, where, by)
    rows, total, ends = top_rows(events.groupBy("row").agg(F.count("*").alias("size"), *first_and_last()), most)
    if not rows:
        return chart.empty(title, "no message was published or delivered")
    width = chart.interval_us(every, *ends)
    counted = (
        events.filter(chart.is_one_of("row", rows)).groupBy("row", "what", chart.interval(ends[0], width).alias("bin"))
        .agg((F.count("*") * (1e6 / width)).alias("value"))
    )  # fmt: skip
    busiest = chart.omitted(len(rows), total, "rows", "the busiest")
    drawn = by_time(counted, rows, TRAFFIC, ends, width, "messages a second")
    return chart.titled(drawn, title, f"by {chart.length(width)}", busiest)


def backlog(tables: Tables, where: str | None = None, *, every: str | None = None, most: int = 6) -> Any:
    """Messages that waited, by queue and time: in the broker for a consumer, with consumers for their settlement; an
    `altair.VConcatChart`.

    The most that waited at once within each interval `every` ('1 second'; by default as many as fit). What began to
    wait before the capture is not counted. `where`: SQL over columns that messages and message_flows both have, or
    connections. The `most` longest queues are drawn. Two Spark jobs. Raises ValueError for an unknown interval, and
    for a `most` less than 1.
    """
    chart.require_positive(most)
    title, changes = "Messages that wait, by queue", waiting(tables, where)
    so_far = Window.partitionBy("row", "what").orderBy("ts_ns")
    at_once = changes.groupBy("row", "what", "ts_ns").agg(F.sum("change").alias("change"))
    levels = at_once.select("row", "what", "ts_ns", F.sum("change").over(so_far).alias("level"))
    rows, total, ends = top_rows(levels.groupBy("row").agg(F.max("level").alias("size"), *first_and_last()), most)
    if not rows:
        return chart.empty(title, "no message waited")
    width = chart.interval_us(every, *ends)
    binned = (
        levels.filter(chart.is_one_of("row", rows)).groupBy("row", "what", chart.interval(ends[0], width).alias("bin"))
        .agg(F.max("level").alias("value"), F.max_by("level", "ts_ns").alias("last"))
    )  # fmt: skip
    longest = chart.omitted(len(rows), total, "queues", "the longest")
    drawn = by_time(binned, rows, BACKLOG, ends, width, "messages", carry=True)
    return chart.titled(drawn, title, f"the most at once within {chart.length(width)}", longest)


def traffic(tables: Tables, where: str | None, by: str) -> DataFrame:
    """Rows (`row`, `what`: IN or OUT, `ts_ns`), one for each message."""
    messages = chart.filtered_tables(tables, where, "messages").messages
    name = F.expr(QUEUE_OF_MESSAGE) if by == "queue" else F.col(by)
    out = events(messages.filter(F.col("operation").isin(*DELIVERIES)), name, OUT)
    if by != "queue":
        return events(messages.filter(F.col("operation") == "publish"), name, IN).unionAll(out)
    flows = chart.filtered_tables(tables, where, "message_flows").message_flows.filter(
        f"publish_ts_ns IS NOT NULL AND {NOT_ROLLED_BACK}"
    )
    return events(flows, F.expr(QUEUE_OF_FLOW), IN, "publish_ts_ns").unionAll(out)


def waiting(tables: Tables, where: str | None) -> DataFrame:
    """Rows (`row`, `what`: BROKER or CONSUMERS, `ts_ns`, `change`): by how much the number of waiting messages
    changes."""
    filtered = chart.filtered_tables(tables, where, "messages", "message_flows")
    # A refused message is in no queue.
    refused = F.col("deliver_ts_ns").isNull() & F.coalesce(F.col("outcome").isin(*REFUSED), F.lit(False))
    flows = filtered.message_flows.filter(
        f"publish_ts_ns IS NOT NULL AND {QUEUE_OF_FLOW} IS NOT NULL AND {NOT_ROLLED_BACK}"
    )
    flows = flows.filter(~refused)
    entered = events(flows, F.expr(QUEUE_OF_FLOW), BROKER, "publish_ts_ns").withColumn("change", F.lit(1).cast("long"))
    # A delivery may be captured before the publish is complete: its waiting time is 0.
    left = F.greatest("deliver_ts_ns", "publish_ts_ns").alias("left_ns")
    delivered = flows.filter("deliver_ts_ns IS NOT NULL").select("*", left)
    left_broker = events(delivered, F.expr(QUEUE_OF_FLOW), BROKER, "left_ns").withColumn(
        "change", F.lit(-1).cast("long")
    )
    before = F.lag("outstanding", 1, 0).over(Window.partitionBy(*LINK).orderBy("ts_ns"))
    consumers = by_consumer(filtered).withColumn("change", F.col("outstanding") - before)
    with_consumers = consumers.select(F.col("queue").alias("row"), F.lit(CONSUMERS).alias("what"), "ts_ns", "change")
    return entered.unionAll(left_broker).unionAll(with_consumers)


def events(rows: DataFrame, name: Column, what: str, ts_ns: str = "ts_ns") -> DataFrame:
    """(`row`, `what`, `ts_ns`) of rows."""
    return rows.select(name.cast("string").alias("row"), F.lit(what).alias("what"), F.col(ts_ns).alias("ts_ns"))


def first_and_last() -> tuple[Column, Column]:
    """Time of the first and of the last event of a group."""
    return F.min("ts_ns").alias("first"), F.max("ts_ns").alias("last")


def top_rows(sizes: DataFrame, most: int) -> tuple[list[str | None], int, tuple[int, int]]:
    """The values of `row` with the largest `size`, the number of all values, and the times of the first and the last
    event. One Spark job."""
    times = (F.min("first").alias("first"), F.max("last").alias("last"))
    all_of_them = sizes.agg(F.count("*").alias("size"), *times).select(
        F.lit(None).alias("row"), F.lit(1).alias("all"), "*"
    )
    largest = (
        sizes.orderBy(F.desc("size"), "row").limit(most).select("row", F.lit(0).alias("all"), "size", "first", "last")
    )
    *rows, whole = sorted(
        largest.unionAll(all_of_them).collect(), key=lambda row: (row["all"], -row["size"], row["row"] or "")
    )
    return [row["row"] for row in rows], whole["size"], (whole["first"], whole["last"])


def by_time(
    binned: DataFrame,
    rows: Sequence[str | None],
    words: Mapping[str, str],
    ends: tuple[int, int],
    width: int,
    y: str,
    carry: bool = False,
) -> Any:
    """A chart of steps for each of `rows`, one above the other, with a line for each of `words` (values of `what`), or
    with `carry` an area; by intervals of `width` us since the first event.

    `carry`: column `last` of an interval carries over to the following intervals as their minimum.
    """
    found = {(row["row"], row["what"], row["bin"]): row for row in binned.collect()}
    unit, unit_ns = time_unit(ends[1] - ends[0])
    times = [number * width * 1000 / unit_ns for number in range((ends[1] - ends[0]) // (width * 1000) + 1)]
    x_scale = alt.Scale(domain=[0, (ends[1] - ends[0]) / unit_ns], nice=False)
    look = {"interpolate": "step-after", "strokeWidth": 1.8, "clip": True}
    charts = []
    for name, label in chart.unique_names({row: plain_text(row, chart.NAME_CHARACTERS) for row in rows}).items():
        last = name == rows[-1]
        drawn = chart.layer(
            {"row": label, "what": what, "t": at, "value": round(value, 3)}
            for what in words
            for at, value in zip(times, values(found, name, what, len(times), carry), strict=True)
        )
        marked = drawn.mark_area(line={"strokeWidth": 1.8}, opacity=0.35, **look) if carry else drawn.mark_line(**look)
        time: dict[str, Any] = {"title": f"{unit} since {chart.moment(ends[0])}" if last else None, "scale": x_scale}
        encoded = marked.encode(
            alt.X("t:Q", axis=alt.Axis(grid=False, tickCount=8, labels=last, ticks=last), **time),
            alt.Y("value:Q", title=y, stack=None, axis=alt.Axis(tickCount=3, labelExpr=chart.WHOLE, format="~s")),
            alt.Color("what:N", scale=chart.scale(words, list(words))),
            *([] if carry else [alt.StrokeDash("what:N", scale=scale(list(words), DASHES))]),
        )
        head = alt.TitleParams(label, fontSize=12, offset=4)
        charts.append(encoded.properties(width=chart.WIDTH, height=ROW, title=head))
    return alt.vconcat(*charts, spacing=14)


def values(found: Mapping[Any, Row], name: str | None, what: str, intervals: int, carry: bool) -> Iterator[float]:
    """The value of each interval, 0 where nothing was found or carried over."""
    carried = 0
    for number in range(intervals):
        row = found.get((name, what, number))
        yield max(row["value"], carried) if row else carried
        carried = row["last"] if row and carry else carried


STEP, SIZES_ROW = 20, 70  # heights, pixels
VERSIONS = {"0-8": "muted", "0-9": "c2", "0-9-1": "c1", "0-10": "c3", "1.0": "c4", "TLS": "line", "not AMQP": "bad"}
VERSION = "coalesce(version, CASE content WHEN 'tls' THEN 'TLS' ELSE 'not AMQP' END)"
CLIENT = "trim(concat_ws(' ', client_product, client_version))"
# Classes per octave: each bar is 41 % wide.
PER_OCTAVE = 2
UNITS = ((2**20, " M"), (2**10, " K"))
BYTES = "".join(f"datum.value >= {unit} ? datum.value / {unit} + '{word}' : " for unit, word in UNITS) + "datum.value"
KINDS = {"methods": "c3", "content headers": "c2", "bodies and transfers": "c1", "heartbeats": "c4"}
KIND_OF_FRAME = f"""CASE
    WHEN {BEATS} THEN 'heartbeats'
    WHEN frame_type IN ('body', 'oob-body') OR name = 'transfer' THEN 'bodies and transfers'
    WHEN frame_type IN ('header', 'oob-header') THEN 'content headers'
    WHEN frame_type IN ('method', 'oob-method', 'control', 'command', 'amqp', 'sasl') THEN 'methods' END"""


def versions(tables: Tables, where: str | None = None, *, by: str | None = None, most: int = 12) -> Any:
    """Connections, and messages over them, of each client product by AMQP version: an `altair.HConcatChart`.

    `by`: another column of table connections (or SQL over them) instead of the product that clients say they are.
    `where`: SQL over table connections. The `most` with the most connections are drawn. Two Spark jobs.
    Raises ValueError for a `most` less than 1.
    """
    chart.require_positive(most)
    title = "Who speaks which version"
    rows = chart.filtered(tables, "connections", where).select(
        F.coalesce(F.nullif(F.expr(by or CLIENT).cast("string"), F.lit("")), F.lit("says nothing")).alias("who"),
        F.expr(VERSION).alias("version"),
        F.expr("coalesce(messages_published, 0) + coalesce(messages_delivered, 0)").alias("messages"),
    )
    largest = rows.groupBy("who").count().orderBy(F.desc("count"), "who").limit(most + 1).collect()
    if not largest:
        return chart.empty(title, "no connection fits the condition")
    names = [row["who"] for row in largest[:most]]
    counted = rows.filter(chart.is_one_of("who", names)).groupBy("who", "version").agg(
        F.count("*").alias("connections"), F.sum("messages").alias("messages")
    )  # fmt: skip
    labels = chart.unique_names({name: plain_text(name, chart.NAME_CHARACTERS) for name in names})
    found = [{**row.asDict(), "who": labels[row["who"]]} for row in counted.collect()]
    look = alt.Axis(labelColor=LIGHT["ink"], labelLimit=240, ticks=False, domain=False)
    colour = alt.Color("version:N", scale=chart.scale(VERSIONS, [row["version"] for row in found]))
    stacked = alt.Order("order:Q")
    order = {version: number for number, version in enumerate(VERSIONS)}
    bars = [
        chart.layer({**row, "order": order[row["version"]]} for row in found)
        .mark_bar(height=12)
        .encode(
            alt.X(f"{what}:Q", title=what, axis=alt.Axis(labelExpr=chart.WHOLE, tickCount=5, format="~s")),
            alt.Y("who:N", sort=list(labels.values()), title=None, axis=axis),
            colour,
            stacked,
        )
        .properties(width=(chart.WIDTH - 160) // 2, height=alt.Step(STEP))
        for what, axis in (("connections", look), ("messages", None))
    ]
    more = f"the {most} with the most connections" if len(largest) > most else None
    return chart.titled(alt.hconcat(*bars, spacing=24), title, more)


def frame_sizes(tables: Tables, where: str | None = None) -> Any:
    """Histogram of frame sizes by kind, a row per AMQP version: an `altair.VConcatChart`.

    `where`: SQL over table frames. Bytes outside of frames are not counted. One Spark job.
    """
    title = "Sizes of frames"
    rows = (
        chart.filtered(tables, "frames", where)
        .withColumn("kind", F.expr(KIND_OF_FRAME))
        .filter("kind IS NOT NULL AND version IS NOT NULL")
    )
    octave = F.floor(F.log2(F.greatest("size", F.lit(1))) * PER_OCTAVE).cast("int").alias("class")
    counted = rows.groupBy("version", "kind", octave).agg(
        F.count("*").alias("n"), F.sum("size").alias("bytes"), F.max("size").alias("largest")
    )  # fmt: skip
    found = [row.asDict() for row in counted.collect()]
    if not found:
        return chart.empty(title, "no frame fits the condition")
    ends = min(row["class"] for row in found) // PER_OCTAVE, max(row["class"] for row in found) // PER_OCTAVE + 1
    powers = [2**power for power in range(ends[0], ends[1] + 1)]
    x_scale = alt.Scale(type="log", base=2, domain=[powers[0], powers[-1]], nice=False)
    kinds, charts = [row["kind"] for row in found], []
    present = [version for version in VERSIONS if any(row["version"] == version for row in found)]
    for version in present:
        own, last = [row for row in found if row["version"] == version], version == present[-1]
        bars = [
            {"from": 2 ** (row["class"] / PER_OCTAVE), "to": 2 ** ((row["class"] + 1) / PER_OCTAVE), **row}
            for row in own
        ]
        axis = alt.Axis(values=powers, labelExpr=BYTES, grid=False, labels=last, ticks=last)
        total, largest = sum(row["bytes"] for row in own), max(row["largest"] for row in own)
        line = f"{sum(row['n'] for row in own):,} frames · {size(total)} · largest {size(largest)}"
        drawn = chart.layer(bars).mark_bar(orient="vertical").encode(
            alt.X("from:Q", scale=x_scale, axis=axis, title="bytes" if last else None),
            alt.X2("to:Q"),
            alt.Y("n:Q", title="frames", stack="zero", axis=alt.Axis(tickCount=3, labelExpr=chart.WHOLE, format="~s")),
            alt.Color("kind:N", scale=chart.scale(KINDS, kinds)),
        )  # fmt: skip
        head = alt.TitleParams(f"AMQP {version}", subtitle=line, fontSize=12, offset=4)
        charts.append(drawn.properties(width=chart.WIDTH, height=SIZES_ROW, title=head))
    return chart.titled(alt.vconcat(*charts, spacing=12), title)
