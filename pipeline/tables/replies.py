"""Requests and their replies (RPC): how long until a request was answered."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.roles import DELIVERIES

DIRECT_REPLY = "amq.rabbitmq.reply-to"  # RabbitMQ: answers to this pseudo-queue come over the same channel
OF_REPLY = ("server", "vhost", "correlation_id")


def answered(messages: DataFrame, brokers: DataFrame) -> DataFrame:
    """Messages and their brokers -> requests that were answered (`udfs.pairing.pairable.OF_KEY`), and rpc_latency_ns.

    A reply bears the correlation-id of its request, or its message-id where that has none, and is delivered from where
    the request asked for it; the next such delivery counts. Looked for in the order of time, as ids may be used again.
    """
    from udfs.pairing.pairable import OF_KEY

    broker = brokers.select("connection_id", "server", "vhost")
    directly = F.concat_ws("\0", F.lit(DIRECT_REPLY), "connection_id")
    requests = (
        messages.filter((F.col("operation") == "publish") & F.col("reply_to").isNotNull())
        .join(broker, "connection_id")
        .withColumn("request", F.struct(*OF_KEY))
        .withColumn("correlation_id", F.coalesce("correlation_id", "message_id"))
        .filter(F.col("correlation_id").isNotNull())
        .select(
            *OF_REPLY,
            F.when(F.col("reply_to").startswith(DIRECT_REPLY), directly).otherwise(F.col("reply_to")).alias("place"),
            F.coalesce("first_ts_ns", "ts_ns").alias("at_ns"),
            "request",
        )
    )
    places = F.array("queue", "address", "routing_key", F.concat_ws("/", "exchange", "routing_key"))
    to_direct = F.exists(places, lambda place: F.coalesce(place.startswith(DIRECT_REPLY), F.lit(False)))
    replies = (
        messages.filter(F.col("operation").isin(*DELIVERIES) & F.col("correlation_id").isNotNull())
        .join(broker, "connection_id")
        .join(requests, list(OF_REPLY), "left_semi")
        .select(
            *OF_REPLY,
            F.explode(F.array_compact(F.array_distinct(F.array_append(places, F.when(to_direct, directly))))).alias(
                "place"
            ),
            F.coalesce("last_ts_ns", "ts_ns").alias("at_ns"),
            F.lit(None).cast(requests.schema["request"].dataType).alias("request"),
        )
    )
    is_reply = F.col("request").isNull()
    backwards = Window.partitionBy(*OF_REPLY, "place").orderBy(F.desc("at_ns"), F.desc(is_reply))
    following = backwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    answered_ns = F.last(F.when(is_reply, F.col("at_ns")), ignorenulls=True).over(following)
    return (
        requests.unionByName(replies)
        .withColumn("rpc_latency_ns", answered_ns - F.col("at_ns"))
        .filter(~is_reply & F.col("rpc_latency_ns").isNotNull())
        .select("request.*", "rpc_latency_ns")
    )
