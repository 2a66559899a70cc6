"""Messages over time: rates in and out of each queue, and backlogs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from pipeline.plots import chart
from pipeline.summaries import LINK
from pipeline.summaries import backlog as by_consumer
from pipeline.text import plain_text, time_unit
from pipeline.theme import DASHES, scale
from udfs.roles import DELIVERIES, REFUSED

if TYPE_CHECKING:
    from pipeline import Tables

ROW = 90  # height of one queue, pixels
IN, OUT = "published", "delivered"
BROKER, CONSUMERS = "in the broker, not delivered yet", "with consumers, not settled yet"
TRAFFIC, PLACES = {IN: "c1", OUT: "c2"}, {BROKER: "c2", CONSUMERS: "c1"}
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
    drawn = by_time(binned, rows, PLACES, ends, width, "messages", carry=True)
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
    chosen = chart.filtered_tables(tables, where, "messages", "message_flows")
    # A refused message is in no queue.
    refused = F.col("deliver_ts_ns").isNull() & F.coalesce(F.col("outcome").isin(*REFUSED), F.lit(False))
    flows = chosen.message_flows.filter(
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
    consumers = by_consumer(chosen).withColumn("change", F.col("outstanding") - before)
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
    for name, shown in chart.unique_names({row: plain_text(row, chart.NAME_CHARACTERS) for row in rows}).items():
        last = name == rows[-1]
        drawn = chart.layer(
            {"row": shown, "what": what, "t": at, "value": round(value, 3)}
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
        head = alt.TitleParams(shown, fontSize=12, offset=4)
        charts.append(encoded.properties(width=chart.WIDTH, height=ROW, title=head))
    return alt.vconcat(*charts, spacing=14)


def values(found: Mapping[Any, Row], name: str | None, what: str, intervals: int, carry: bool) -> Iterator[float]:
    """The value of each interval, 0 where nothing was found or carried over."""
    carried = 0
    for number in range(intervals):
        row = found.get((name, what, number))
        yield max(row["value"], carried) if row else carried
        carried = row["last"] if row and carry else carried
