"""Summaries of the tables, as lazy DataFrames: `latency`, `rates`, `backlog`, `consumers`, `heartbeats`.

pipeline.latency(tables, by=["queue"]).show()
pipeline.rates(tables, every="10 seconds", by=["exchange"]).show()
pipeline.heartbeats(tables).filter("overdue > 0").show()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.output.formatting import PART_NAMES
from pipeline.tables.dataframes import timestamp
from udfs.conversation.roles import DELIVERIES

if TYPE_CHECKING:
    from pipeline.tables.dataframes import Tables

OF_PUBLISH = ("confirm_latency_ns", "rpc_latency_ns")
OF_PAIR = ("broker_latency_ns", "ack_latency_ns", "total_latency_ns")
TOTAL = "total_latency_ns"
PARTS = tuple(f"{name}_ns" for name in PART_NAMES)  # of the total
PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
# percentile_approx is off by at most one rank in so many.
ACCURACY = 10_000
CHANNEL = ("connection_id", "channel", "channel_incarnation")
LINK = (*CHANNEL, "link")
RATES = ("published", "published_bytes", "delivered", "delivered_bytes")


def latency(tables: Tables, by: Sequence[str] = (), *, parts: bool = False) -> DataFrame:
    """Latencies of messages: `by`, `measure` ('confirm' 'broker' 'ack' 'total' 'rpc'), `count`, and in ns `p50_ns`,
    `p90_ns`, `p99_ns`, `p999_ns`, `max_ns`.

    With `parts` the measures are those that add up to 'total', which is the first one: 'send' 'network' 'confirm_wait'
    'queue_blocked' 'queue_ready' 'redelivery' 'delivery' 'consumer' 'ack_held' (columns of message_flows), and there
    are `mean_ns` and `share`, of the time of all messages. A part that is unknown counts as 0: another one contains it.

    `by`: columns of table message_flows, or of table connections (of the publishing connection, or without one of the
    delivering one). `queue` falls back to the address, as in 1.0, unless `address` is in `by`. A confirm or a reply
    counts once per publish, however many queues the message reached. Percentiles are exact up to one rank in 10,000.
    Raises ValueError for any other column.
    """
    flows = _flows(tables, by)
    if parts:
        return _of_parts(flows, by)
    found = _summarised(flows, by, OF_PAIR).unionAll(_summarised(_published(flows, by), by, OF_PUBLISH))
    return found.orderBy(*by, "measure")


def _summarised(rows: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """`latency` of these columns, aggregated side by side in one pass: unpivoting the columns first takes four times as
    long."""
    at = f"array({', '.join(map(str, PERCENTILES.values()))}), {ACCURACY}"
    values = (
        f"{value} AS {name}_{measure}"
        for measure in measures
        for name, value in (
            ("count", f"count({measure})"),
            ("at", f"percentile_approx({measure}, {at})"),
            ("max", f"max({measure})"),
        )
    )
    measure_rows = (
        f"struct('{_short(measure)}' AS measure, count_{measure} AS count, "
        + "".join(f"at_{measure}[{index}] AS {name}, " for index, name in enumerate(PERCENTILES))
        + f"max_{measure} AS max_ns)"
        for measure in measures
    )
    known = rows.groupBy(*by).agg(*map(F.expr, values))
    return known.select(*by, F.expr(f"inline(array({', '.join(measure_rows)}))")).filter("count > 0")


def _short(measure: str) -> str:
    return measure.removesuffix("_ns").removesuffix("_latency")


def _of_parts(flows: DataFrame, by: Sequence[str]) -> DataFrame:
    """`latency` of the total and its parts."""
    known = flows.filter("total_latency_ns IS NOT NULL").withColumns(
        {name: F.coalesce(name, F.lit(0)) for name in PARTS}
    )
    found = _summarised(known, by, (TOTAL, *PARTS))
    sums = known.groupBy(*by).agg(*(F.sum(F.col(name).cast("double")).alias(name) for name in (TOTAL, *PARTS)))
    order = {_short(name): index for index, name in enumerate((TOTAL, *PARTS))}
    each = ", ".join(f"struct('{_short(name)}' AS measure, {name} AS whole, {TOTAL} AS of)" for name in (TOTAL, *PARTS))
    shares = sums.select(*by, F.expr(f"inline(array({each}))"))
    same = F.lit(True)
    for name in ("measure", *by):
        same = same & F.col(f"found.{name}").eqNullSafe(F.col(f"shares.{name}"))
    with_whole = found.alias("found").join(shares.alias("shares"), same)
    index = F.element_at(
        F.create_map(*(F.lit(value) for pair in order.items() for value in pair)), F.col("found.measure")
    )
    mean = (F.col("whole") / F.col("count")).cast("long").alias("mean_ns")
    share = F.when(F.col("of") > 0, F.col("whole") / F.col("of")).alias("share")
    return with_whole.orderBy(*(f"found.{name}" for name in by), index).select("found.*", mean, share)


def _flows(tables: Tables, by: Sequence[str]) -> DataFrame:
    """Message flows with `by` and `ts_ns`."""
    flows = _with_columns(tables.message_flows, by, tables)
    return flows.withColumn("ts_ns", F.coalesce("publish_ts_ns", "deliver_ts_ns"))


def _published(flows: DataFrame, by: Sequence[str]) -> DataFrame:
    """`by` and OF_PUBLISH, one row per publish: from its first flow; all of its flows have the same values."""
    publish = ("publish_connection_id", "publish_frame_no")
    asked = flows.filter(f"coalesce({', '.join(OF_PUBLISH)}) IS NOT NULL AND publish_frame_no IS NOT NULL")
    if not by:  # no need to sort
        return asked.groupBy(*publish).agg(*(F.max(name).alias(name) for name in OF_PUBLISH))
    once = Window.partitionBy(*publish).orderBy("deliver_ts_ns", "flow_id")
    return asked.withColumn("nth", F.row_number().over(once)).filter("nth = 1").select(*by, *OF_PUBLISH)


def measured(tables: Tables, by: Sequence[str] = ()) -> DataFrame:
    """The values behind `latency`, one per row: `by`, `ts_ns` (of the publish, or without one of the delivery),
    `measure` (the column of message_flows without `_latency_ns`) and `ns`."""
    flows = _flows(tables, by)
    keys = (*by, "ts_ns")
    per_pair = flows.select(*keys, *OF_PAIR)
    return _long(_published(flows, keys), keys, OF_PUBLISH).unionByName(_long(per_pair, keys, OF_PAIR))


def rates(tables: Tables, every: str = "1 second", by: Sequence[str] = ()) -> DataFrame:
    """Messages and body bytes by time: `ts` (start of the interval), `by`, and RATES. Empty intervals have no row.

    `every`: an interval as Spark writes it ('1 second', '5 minutes'). `by`: as for `latency`, of table messages or of
    table connections. Publishes that were rolled back count: they were sent. Raises ValueError for any other column.
    """
    rows = _with_columns(tables.messages, by, tables)
    published = F.col("operation") == "publish"
    delivered = F.col("operation").isin(*DELIVERIES)
    size = F.coalesce("body_size", "body_captured", F.lit(0))
    measures = [
        measure
        for is_one in (published, delivered)
        for measure in (F.count(F.when(is_one, 1)), F.sum(F.when(is_one, size).otherwise(0)))
    ]
    return (
        rows.filter(published | delivered)
        .groupBy(F.window("ts", every).alias("interval"), *by)
        .agg(*(measure.alias(name) for name, measure in zip(RATES, measures, strict=True)))
        .select(F.col("interval.start").alias("ts"), *by, *RATES)
        .orderBy("ts", *by)
    )


def backlog(tables: Tables) -> DataFrame:
    """Outstanding deliveries by consumer: a row whenever their number changes.

    `connection_id`, `client_name`, `channel`, `channel_incarnation`, `link`, `queue`, `ts`, `ts_ns`, `outstanding`
    (after that moment), `until_ns` (when it changes again; null for the last row). What was open at the end stays
    outstanding.
    """
    return _named(_outstanding(tables), tables)


def _outstanding(tables: Tables) -> DataFrame:
    """`backlog` without client names."""
    waits = F.col("operation").isin(*DELIVERIES) & ~F.col("outcome").eqNullSafe("presettled")
    changes = tables.messages.filter(waits).selectExpr(
        *LINK,
        "coalesce(queue, address) AS queue",
        "inline(array(struct(ts_ns, 1 AS change), struct(settled_ts_ns AS ts_ns, -1 AS change)))",
    )
    in_time = Window.partitionBy(*LINK).orderBy("ts_ns")
    return (
        changes.filter(F.col("ts_ns").isNotNull())
        .groupBy(*LINK, "ts_ns")
        .agg(F.max("queue").alias("queue"), F.sum("change").alias("change"))
        .withColumn("outstanding", F.sum("change").over(in_time))
        .withColumn("until_ns", F.lead("ts_ns").over(in_time))
        .select(*LINK, "queue", timestamp("ts_ns").alias("ts"), "ts_ns", "outstanding", "until_ns")
    )


def consumers(tables: Tables) -> DataFrame:
    """One row per consumer, and per channel with basic.get (`link` null): `connection_id`, `client_name`, `channel`,
    `channel_incarnation`, `link`, `queue`, `deliveries`, `settled`, `settle_p50_ns`, `settle_p99_ns`, `settle_max_ns`
    (delivery to settlement), `most_outstanding`, `prefetch_count` (of the channel, 0: no limit), `exhausted_ns`: time
    in which its prefetch limit was reached, or in 0-10 and 1.0 its credit was used up (links.no_credit_ns), to the end
    of its channel or the last packet. Null without a prefetch limit."""
    rows = tables.messages.filter(F.col("operation").isin(*DELIVERIES))
    percentile = {"settle_p50_ns": 0.5, "settle_p99_ns": 0.99}
    done = rows.groupBy(*LINK).agg(
        F.max(F.coalesce("queue", "address")).alias("queue"),
        F.count("*").alias("deliveries"),
        F.count("settled_ts_ns").alias("settled"),
        *(F.percentile_approx("settle_latency_ns", at, ACCURACY).alias(name) for name, at in percentile.items()),
        F.max("settle_latency_ns").alias("settle_max_ns"),
    )
    limits = _limits(tables)
    at_limit = (F.col("prefetch_count") > 0) & (F.col("outstanding") >= F.col("prefetch_count"))
    until_ns = F.coalesce("until_ns", F.greatest("end_ns", "ts_ns"))
    most = (
        _outstanding(tables)
        .join(limits, list(CHANNEL), "left")
        .groupBy(*LINK)
        .agg(
            F.max("outstanding").alias("most_outstanding"),
            F.try_sum(F.when(at_limit, until_ns - F.col("ts_ns")).otherwise(0)).alias("at_limit_ns"),
        )
    )
    of_prefetch = F.when(F.col("link").isNotNull() & (F.col("prefetch_count") > 0), F.coalesce("at_limit_ns", F.lit(0)))
    found = (
        _beside(_beside(done.join(limits.drop("end_ns"), list(CHANNEL), "left"), most), _credit(tables))
        .withColumn("most_outstanding", F.coalesce("most_outstanding", F.lit(0)))
        .withColumn("exhausted_ns", F.coalesce(of_prefetch, "no_credit_ns"))
        .select(*done.columns, "most_outstanding", "prefetch_count", "exhausted_ns")
    )
    return _named(found, tables)


def _named(rows: DataFrame, tables: Tables) -> DataFrame:
    """`rows` with `client_name` after `connection_id`."""
    names = tables.connections.select("connection_id", "client_name")
    others = (name for name in rows.columns if name != "connection_id")
    return rows.join(names, "connection_id", "left").select("connection_id", "client_name", *others)


def _limits(tables: Tables) -> DataFrame:
    """(CHANNEL, `prefetch_count`, `end_ns`: its close, or the last packet of its connection)."""
    last = tables.connections.select("connection_id", F.col("closed_ts").alias("last_ts"))
    end_ns = F.unix_micros(F.coalesce("closed_ts", "last_ts")) * 1000
    return tables.channels.join(last, "connection_id", "left").select(
        *CHANNEL, "prefetch_count", end_ns.alias("end_ns")
    )


def _credit(tables: Tables) -> DataFrame:
    """(LINK, `no_credit_ns`) of delivering links; null unless it is known for all links with the same name."""
    known = F.count("*") == F.count("no_credit_ns")
    return (
        tables.links.filter(F.col("kind").isin("subscription", "receiver"))
        .groupBy(*CHANNEL, F.col("name").alias("link"))
        .agg(F.when(known, F.try_sum("no_credit_ns")).alias("no_credit_ns"))
    )


def _beside(rows: DataFrame, other: DataFrame) -> DataFrame:
    """`rows` with the columns of `other` for the same LINK, which may be null."""
    others = other.select(*(F.col(name).alias(f"its_{name}" if name in LINK else name) for name in other.columns))
    same = [F.col(name).eqNullSafe(F.col(f"its_{name}")) for name in LINK]
    return rows.join(others, same, "left").drop(*(f"its_{name}" for name in LINK))


def _long(rows: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """A row (by, `measure`, `ns`) for each measure that is known."""
    short = {name: _short(name) for name in measures}
    named = rows.withColumnsRenamed(short)
    return named.unpivot(list(by), tuple(short.values()), "measure", "ns").filter(F.col("ns").isNotNull())


def _with_columns(rows: DataFrame, by: Sequence[str], tables: Tables) -> DataFrame:
    """`rows` with the columns of `by` that only table connections has; `queue` falls back to the address."""
    if "queue" in by and "address" not in by:
        rows = rows.withColumn("queue", F.coalesce("queue", "address"))
    missing = [name for name in by if name not in rows.columns]
    for name in missing:
        if name not in tables.connections.columns:
            raise ValueError(f"no column {name!r} to group by; expected one of {', '.join(sorted(set(rows.columns)))}")
    return with_connections(rows, tables, missing) if missing else rows


def with_connections(rows: DataFrame, tables: Tables, names: Sequence[str]) -> DataFrame:
    """`rows` with these columns of their connection. A flow belongs to the publishing connection, or without one to the
    delivering one."""
    own = [name for name in ("publish_connection_id", "deliver_connection_id") if name in rows.columns]
    connection = F.coalesce(*own) if own else F.col("connection_id")
    of_connection = tables.connections.select(F.col("connection_id").alias("of_connection"), *names)
    return rows.join(of_connection, connection == F.col("of_connection"), "left").drop("of_connection")


# The negotiated interval, ns: in 0-9-1 and 0-10 the same for both sides; in 1.0 the time-out of the other side.
LIMIT = (
    "coalesce(nullif(heartbeat_s, 0) * 1000000000, "
    "if(sender = 'client', server_idle_timeout_ms, client_idle_timeout_ms) * 1000000)"
)
BEATS = "frame_type IN ('heartbeat', 'empty') OR name = 'connection.heartbeat'"
# The interval applies from tune-ok, in 1.0 from the second open, up to the first close.
AGREED = "max(CASE WHEN name IN ('connection.tune-ok', 'open') THEN ts_ns END)"
CLOSED = "min(CASE WHEN name IN ('connection.close', 'close') THEN ts_ns END)"


def heartbeats(tables: Tables) -> DataFrame:
    """The heartbeats of connections, one row per side: `connection_id`, `sender`, the negotiated `interval_ns` (in 1.0
    the idle time-out of the other side), `heartbeats` sent, the longest silence `longest_ns` and its start
    (`longest_ts_ns`), and the number of silences longer than the interval (`late`), and longer than two intervals
    (`overdue`: the other side may close, 0-9-1 section 4.2.7).

    A silence lasts from the end of a frame to the start of the next frame of the same side, or to the last packet of
    the connection. It counts from the negotiation to the first close.
    """
    longest = F.max(F.struct("ns", (-F.col("ts_ns")).alias("before_ns")))
    return (
        _all_silences(tables.frames, tables.connections)
        .filter("limit_ns > 0")
        .groupBy("connection_id", "sender")
        .agg(
            F.first("limit_ns").alias("interval_ns"),
            F.count_if("beat").alias("heartbeats"),
            longest["ns"].alias("longest_ns"),
            (-longest["before_ns"]).alias("longest_ts_ns"),
            F.count(F.when(F.expr("ns > limit_ns"), 1)).alias("late"),
            F.count(F.when(F.expr("ns > 2 * limit_ns"), 1)).alias("overdue"),
        )
    )


def silences(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Silences of half a negotiated interval or longer: `connection_id`, `sender`, `client`, `ts_ns` (start), `end_ns`,
    `ns`, `limit_ns`; including the one from the last frame of a side to the last packet of the connection."""
    long = _all_silences(frames, connections).filter("limit_ns > 0 AND ns >= limit_ns / 2")
    return long.select("connection_id", "sender", "client", "ts_ns", "end_ns", "ns", "limit_ns")


def _all_silences(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """The silence after each row of `frames`, which must have all frames of their connections."""
    proxied = F.concat("proxied_client_ip", F.lit(":"), "proxied_client_port")
    facts = connections.select(
        "connection_id",
        F.coalesce(proxied, F.concat_ws(":", "client_ip", "client_port")).alias("client"),
        "heartbeat_s",
        "server_idle_timeout_ms", "client_idle_timeout_ms", (F.unix_micros("closed_ts") * 1000).alias("last_ns"),
    )  # fmt: skip
    together = Window.partitionBy("connection_id")
    own = Window.partitionBy("connection_id", "sender").orderBy("frame_no")
    followed = (
        frames.filter("frame_type != 'gap'")
        .select(
            *("connection_id", "sender", "frame_no", "ts_ns", "first_ts_ns"),
            F.expr(f"coalesce({BEATS}, false)").alias("beat"),
            *(F.expr(sql).over(together).alias(name) for name, sql in (("agreed_ns", AGREED), ("until_ns", CLOSED))),
        )
        .withColumn("next_ns", F.lead("first_ts_ns").over(own))
    )
    begin = F.greatest("ts_ns", "agreed_ns").alias("ts_ns")
    end = F.least(F.coalesce("next_ns", F.col("last_ns")), "until_ns").alias("end_ns")
    return (
        followed.join(facts, "connection_id")
        .select("connection_id", "sender", "client", "beat", begin, end, F.expr(LIMIT).alias("limit_ns"))
        # Zero outside of the negotiated time, and where the last packet's time was truncated to microseconds.
        .withColumn("end_ns", F.greatest("end_ns", "ts_ns"))
        .withColumn("ns", F.col("end_ns") - F.col("ts_ns"))
    )
