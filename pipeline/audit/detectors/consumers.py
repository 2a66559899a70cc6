"""CO: consumers.

Context 'tags': methods that name a consumer tag, with the previous method that named it.

    consumer_tag
    tag_was      the previous basic.consume, consume-ok, cancel or cancel-ok with this tag in this channel incarnation:
                 name, sender, frame_no
    tag_was_anywhere  the same on any channel of the connection, with channel and channel_life

Deliveries are rows as well, except those to a consumer that was started before and not cancelled before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.constants import NEVER, sql_in
from pipeline.audit.contexts.channels import CHANNEL, channel_methods
from pipeline.audit.contexts.materialized import materialize_if_any
from pipeline.audit.detector import Detector, Sql, State
from pipeline.audit.detectors.transactions import SEEN_SINCE_OPEN
from pipeline.tables.roles import CONNECTION_CHANNEL

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

BEGINS = ("basic.consume", "basic.consume-ok")
CONSUMER_METHODS = (*BEGINS, "basic.cancel", "basic.cancel-ok")


def tags(sources: Sources) -> DataFrame:
    """Context 'tags'."""
    tag = F.expr("try_variant_get(arguments, '$.consumer_tag', 'string')")
    spoken = channel_methods(sources, {"consumer_tag": tag}, CONSUMER_METHODS).filter(
        "consumer_tag != '' AND name != 'channel.open'"
    )
    delivered = _delivered(sources, spoken)
    rows = spoken if delivered is None else spoken.unionByName(delivered, allowMissingColumns=True)
    statement = F.when(
        F.col("name").isin(list(CONSUMER_METHODS)), F.struct("name", "sender", "frame_no", "channel", "channel_life")
    )
    return rows.withColumns(
        {
            "tag_was": _before(statement, *CHANNEL, "consumer_tag"),
            "tag_was_anywhere": _before(statement, "connection_id", "consumer_tag"),
        }
    ).join(sources.connection_facts, "connection_id", "left")


def _delivered(sources: Sources, spoken: DataFrame) -> DataFrame | None:
    """Deliveries, from table messages, which has their tags as a column."""
    frame_no = F.col("first_frame_no")
    begins = F.col("name").isin(*BEGINS)
    consumers = spoken.groupBy(*CHANNEL, F.col("consumer_tag").alias("link")).agg(
        F.min(F.when(begins, F.col("frame_no"))).alias("begun"),
        F.coalesce(F.min(F.when(~begins, F.col("frame_no"))), F.lit(NEVER)).alias("cancelled"),
    )
    versions = sources.tables.connections.select("connection_id", "version")
    # Most consumers get all of their deliveries between start and cancel.
    odd = materialize_if_any(
        sources.message_counts.filter("operation = 'deliver' AND link != ''")
        .join(versions, "connection_id")
        .filter(sql_in("version", CONNECTION_CHANNEL))
        .join(consumers, [*CHANNEL, "link"], "left")
        .filter("NOT coalesce(first_frame > begun AND last_frame < cancelled, false)")
        .select(*CHANNEL, "link", "version", "begun", "cancelled")
    )
    if odd is None:
        return None
    return (
        sources.tables.messages.filter("operation = 'deliver'")
        .join(odd, [*CHANNEL, "link"])
        .filter("NOT coalesce(first_frame_no > begun AND first_frame_no < cancelled, false)")
        .select(
            *CHANNEL, frame_no.alias("frame_no"), frame_no.alias("content_frame_no"), "ts_ns", "version",
            F.lit("server").alias("sender"), F.lit("basic.deliver").alias("name"), F.col("link").alias("consumer_tag"),
        )
    )  # fmt: skip


def _before(value: Column, *partition: str) -> Column:
    rows = Window.partitionBy(*partition).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    return F.last(value, ignorenulls=True).over(rows)


STATES = {
    "last_qos": State(
        "last(CASE WHEN name = 'basic.qos' THEN "
        "named_struct('frame_no', frame_no, 'prefetch_count', args.prefetch_count) END, true)"
    )
}
CONTEXTS = {"tags": tags}

ACTIVE: Sql = "tag_was.name IN ('basic.consume', 'basic.consume-ok')"
# A consumer that the server has cancelled may be cancelled by a client that does not know that yet.
UNKNOWN: Sql = (
    "coalesce(tag_was.name = 'basic.cancel-ok' OR tag_was.name = 'basic.cancel' AND tag_was.sender = 'client', true)"
)
ACTIVE_ELSEWHERE: Sql = (
    "coalesce(tag_was_anywhere.name IN ('basic.consume', 'basic.consume-ok') AND "
    "tag_was_anywhere.channel != channel, false)"
)
CANCELS = f"name = 'basic.cancel' AND sender = 'client' AND {UNKNOWN} AND (channel_life > 0 OR c.from_start)"
NO_LIMIT: Sql = "NOT coalesce(last_qos.frame_no > coalesce(opened_frame, 0) AND last_qos.prefetch_count > 0, false)"
DIRECT_REPLY: Sql = "args.queue LIKE 'amq.rabbitmq.reply-to%'"

DETECTORS = (
    Detector(
        "CO-01",
        "tags",
        when=f"name = 'basic.consume' AND {ACTIVE}",
        evidence={"observed": "consumer_tag", "in_use_since_frame": "tag_was.frame_no"},
    ),
    Detector(
        "CO-02",
        "tags",
        when=f"{CANCELS} AND NOT {ACTIVE_ELSEWHERE}",
        evidence={"observed": "consumer_tag", "expected": "'the tag of an active consumer'"},
    ),
    Detector(
        "CO-03",
        "tags",
        when=f"{CANCELS} AND {ACTIVE_ELSEWHERE}",
        evidence={"observed": "consumer_tag", "channel": "channel", "active_on_channel": "tag_was_anywhere.channel"},
    ),
    Detector(
        "CO-04",
        "tags",
        when="name = 'basic.deliver' AND tag_was.name = 'basic.cancel-ok' AND tag_was.sender = 'server'",
        evidence={"observed": "consumer_tag", "cancelled_in_frame": "tag_was.frame_no"},
    ),
    Detector(
        "CO-05",
        "events",
        when="name = 'basic.cancel' AND sender = 'server'",
        evidence={"observed": "args.consumer_tag"},
    ),
    Detector(
        "CO-06",
        "events",
        when=f"name = 'basic.consume' AND NOT coalesce(args.no_ack, false) AND {NO_LIMIT} AND {SEEN_SINCE_OPEN}",
        evidence={
            "observed": "coalesce(last_qos.prefetch_count, 0)",
            "expected": "'a prefetch count above 0'",
            "queue": "args.queue",
            "consumer_tag": "args.consumer_tag",
        },
    ),
    Detector(
        "CO-07",
        "rates",
        when="name = 'basic.get' AND ts_ns - got_before_ns <= 60000000000",
        evidence={
            "observed": "{limit_per_minute} + 1",
            "expected": "{limit_per_minute}",
            "in_seconds": "(ts_ns - got_before_ns) / 1000000000D",
            "empty_share": "round(empty_share, 3)",
        },
    ),
    Detector(
        "CO-08",
        "events",
        when=f"name = 'basic.consume' AND args.no_ack AND NOT {DIRECT_REPLY}",
        evidence={"observed": "'no-ack'", "queue": "args.queue", "consumer_tag": "args.consumer_tag"},
    ),
    Detector(
        "CO-09",
        "entities",
        when="name = 'basic.consume' AND reply_name = 'basic.consume-ok' AND sole.answered_ns <= answered_ns AND "
        "sole.until_ns > answered_ns AND answered_ns < broker_loss_ns",
        evidence={
            "observed": "'a second consumer'",
            "queue": "entity",
            "exclusive_consumer": "named_struct('connection_id', sole.connection_id, 'frame_no', sole.frame_no)",
        },
        frame="reply_frame_no",
    ),
)
