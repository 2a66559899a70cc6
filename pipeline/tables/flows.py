"""Table message_flows: each publish with the deliveries of its message, across connections and versions.

Messages meet at their broker (server endpoint and virtual host) under a key: the message-id, or else a fingerprint of
correlation-id and body. They are shuffled by that key, so that the messages of one busy queue are spread, and the
kernel behind `udfs.pairing` pairs them queue by queue.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline import parquet
from pipeline.output import Place
from pipeline.schemas import MESSAGE_FLOWS
from pipeline.tables.addresses import node, to_coordinator
from pipeline.tables.replies import answered
from pipeline.tables.roles import DELIVERIES

# What never came to a queue, and what goes back to one.
REFUSED = ("returned", "nacked", "rejected", "released", "modified", "aborted")
GIVEN_BACK = ("requeued", "released", "modified", "unsettled", "unknown")
WITHOUT_MARK = "released"  # 0-10, 1.0: a message that comes again after this need not say so
NAMED_VHOST = "vhost:"  # RabbitMQ: so begins a host name of 1.0 that is a virtual host
# How RabbitMQ tells of dead-lettering: a list of deaths, the newest first, and of the first one where and why. That is
# in the headers, and for 1.0 since version 4 in the message annotations, with the route of every message.
DEATHS = "array<struct<reason: string, queue: string, exchange: string, `routing-keys`: array<string>, count: bigint>>"
FIRST_DEATH = ("exchange", "queue", "reason")
OF_FIRST_DEATH = ", ".join(f"`x-first-death-{name}`: string" for name in FIRST_DEATH)
IN_HEADERS = f"struct<`x-death`: {DEATHS}, {OF_FIRST_DEATH}>"
IN_ANNOTATIONS = f"struct<`x-exchange`: string, `x-routing-key`: string, `x-opt-deaths`: {DEATHS}, {OF_FIRST_DEATH}>"
# The columns of table messages that flows come from.
OF_MESSAGES = (
    "connection_id", "channel", "operation", "first_frame_no", "ts_ns", "first_ts_ns", "last_ts_ns", "exchange",
    "routing_key", "queue", "address", "link", "redelivered", "message_id", "correlation_id", "reply_to", "headers",
    "properties", "body_size", "body_sha256", "outcome", "settled_ts_ns", "transaction",
)  # fmt: skip


def message_flows(messages: DataFrame, connections: DataFrame) -> DataFrame:
    """Tables `messages` (OF_MESSAGES are enough; read four times, and where bytes are lost once more) and
    `connections` -> table message_flows."""
    # Here, not above: the kernel behind it takes a second to load, and tables already written need none.
    from udfs.pairing import PairMessages

    return _sorted(messages, connections).mapInArrow(PairMessages(MESSAGE_FLOWS), MESSAGE_FLOWS)


def write_flows(messages: DataFrame, connections: DataFrame, directory: Place) -> set[str]:
    """Write the table into `directory`, which must not exist; the names of its files, which may be none. Others may be
    there, from tasks that were tried again."""
    from udfs.pairing import PairMessages, WriteFlows
    from udfs.parquet import WRITTEN

    writer = WriteFlows(directory.files, directory.parent.path, directory.name, PairMessages(MESSAGE_FLOWS))
    return parquet.listed(_sorted(messages, connections).mapInArrow(writer, WRITTEN)).get(directory.name, set())


def _sorted(messages: DataFrame, connections: DataFrame) -> DataFrame:
    """What `udfs.pairing` reads: publishes, deliveries, and answers to requests, sorted."""
    from codec.pairing import Rows
    from udfs.pairing import ANSWER, CARRIED

    brokers = _brokers(connections)
    to_pair = _keyed(_routed(_known(messages, brokers)))
    columns = {name: to_pair[name] for name in (*Rows._fields, *CARRIED, "order_ns") if name in to_pair.columns}
    answers = answered(messages, brokers, _key("first_frame_no")).withColumn("side", F.lit(ANSWER))
    return (
        to_pair.select(*columns)
        .unionByName(answers, allowMissingColumns=True)
        .repartition("key")
        .sortWithinPartitions("key", "side", "place", "order_ns", "connection_id", "frame_no")
        .drop("order_ns")
    )


def _brokers(connections: DataFrame) -> DataFrame:
    """By connection: version, its broker (server endpoint, virtual host), and whether bytes of that broker are lost."""
    hostname = F.when(F.col("vhost").startswith(NAMED_VHOST), F.expr(f"substr(vhost, {len(NAMED_VHOST) + 1})"))
    vhost = F.when(F.col("version") == "1.0", hostname).otherwise(F.col("vhost"))
    lost = F.coalesce("missing_bytes", F.lit(0)) + F.coalesce("undecoded_bytes", F.lit(0)) > 0
    # Not by a join: Spark would take its rows for too many to be broadcast to the messages.
    return connections.select(
        "connection_id",
        "version",
        F.concat_ws(":", "server_ip", "server_port").alias("server"),
        F.when(vhost != "", vhost).otherwise(F.lit("/")).alias("vhost"),
        lost.alias("lossy"),
    ).withColumn("lossy", F.max("lossy").over(Window.partitionBy("server", "vhost")))


def _repeats(messages: DataFrame, brokers: DataFrame) -> DataFrame:
    """Brokers (server, vhost, and `ids_repeat`, true) to which, or from one of whose queues, a message-id came more
    than once and unmarked. Asked where bytes are lost only: elsewhere what repeats is there to be seen, and nothing is
    read."""
    delivered = F.col("operation").isin(*DELIVERIES)
    said = messages.filter((delivered | (F.col("operation") == "publish")) & (F.col("message_id") != ""))
    return (
        said.filter(~F.coalesce("redelivered", F.lit(False)))
        .join(F.broadcast(brokers.filter("lossy").select("connection_id", "server", "vhost")), "connection_id")
        .groupBy("server", "vhost", "message_id", F.when(delivered, F.coalesce("queue", "address", "link", F.lit(""))))
        .count()
        .filter("count > 1")
        .select("server", "vhost", F.lit(True).alias("ids_repeat"))
        .distinct()
    )


def _known(messages: DataFrame, brokers: DataFrame) -> DataFrame:
    """Publishes and deliveries with their broker, and what RabbitMQ says of where they come from."""
    delivered = F.col("operation").isin(*DELIVERIES)
    headers = F.when(delivered, F.expr(f"try_variant_get(headers, '$', '{IN_HEADERS}')"))
    annotations = F.when(delivered, F.expr(f"try_variant_get(properties, '$.message_annotations', '{IN_ANNOTATIONS}')"))
    rows = messages.filter(delivered | (F.col("operation") == "publish")).select(
        *("connection_id", "operation"),
        F.col("first_frame_no").alias("frame_no"),
        F.coalesce("first_ts_ns", "ts_ns").alias("from_ns"),
        F.coalesce("last_ts_ns", "ts_ns").alias("until_ns"),
        F.col("settled_ts_ns").alias("settled_ns"),
        delivered.alias("delivered"),
        *("channel", "link", "exchange", "routing_key", "queue", "address", "outcome", "transaction", "redelivered"),
        *("message_id", "correlation_id", "body_size", "body_sha256"),
        headers.alias("headers"),
        annotations.alias("annotations"),
    )
    return (
        rows.filter(F.col("delivered") | ~to_coordinator())
        .join(brokers, "connection_id")
        .join(F.broadcast(_repeats(messages, brokers)), ["server", "vhost"], "left")
    )


def _routed(rows: DataFrame) -> DataFrame:
    """Adds `source`: the queue of a delivery; `origin`: exchange and routing key published to, null where that is not
    told; `kind` of a publish's route; `at`: the address; `dead_lettered`: why, `died_in`: in which queue first,
    `deaths`: how often."""
    from codec.pairing import EXACT, NAMED, PLAIN

    by_link = F.concat_ws("\0", F.lit("link"), "connection_id", "channel", "link")
    by_address = F.when(F.col("at.kind") != "exchange", F.col("at.routing_key"))
    named_exchange = F.when(F.col("exchange") == "", EXACT).otherwise(NAMED)
    addressed = F.when(F.col("at.kind") == "queue", EXACT).when(F.col("at.kind") == "exchange", NAMED).otherwise(PLAIN)
    origins = (
        (F.col("died").isNotNull(), "died.exchange", "died.routing_key"),
        (F.col("exchange").isNotNull(), "exchange", "routing_key"),
        (F.col("annotations.x-exchange").isNotNull(), "annotations.x-exchange", "annotations.x-routing-key"),
        (~F.col("delivered"), "at.exchange", "at.routing_key"),
    )
    told = (
        F.when(known, F.struct(F.col(exchange).alias("exchange"), F.coalesce(key, F.lit("")).alias("routing_key")))
        for known, exchange, key in origins
    )
    return (
        rows.withColumns({"at": node(F.col("address")), "died": _before_death()})
        .withColumns(
            {
                "dead_lettered": _first_death("reason"),
                "died_in": _first_death("queue"),
                "deaths": F.coalesce(_deaths(), F.lit(0)),
            }
        )
        .withColumns(
            {
                "source": F.coalesce("queue", by_address, by_link),
                "origin": F.coalesce(*told),
                "kind": F.when(F.col("exchange").isNotNull(), named_exchange).otherwise(addressed),
            }
        )
    )


def _first_death(name: str) -> Column:
    return F.coalesce(F.col(f"headers.x-first-death-{name}"), F.col(f"annotations.x-first-death-{name}"))


def _all_deaths() -> Column:
    return F.coalesce(F.col("headers.x-death"), F.col("annotations.x-opt-deaths"))


def _deaths() -> Column:
    """How often a message was dead-lettered."""
    return F.aggregate(
        _all_deaths(), F.lit(0).cast("bigint"), lambda sum, death: sum + F.coalesce(death["count"], F.lit(1))
    )


def _before_death() -> Column:
    """Where a dead-lettered message was published to: struct of `exchange` and `routing_key`, the exchange null where
    that is not told in full; null where the message was not dead-lettered."""
    queue, reason, exchange = (_first_death(name) for name in ("queue", "reason", "exchange"))
    at_first = F.filter(_all_deaths(), lambda death: (death["queue"] == queue) & (death["reason"] == reason))
    first = F.coalesce(F.get(at_first, F.lit(0)), F.element_at(_all_deaths(), -1))
    listed = F.struct(first["exchange"].alias("exchange"), F.get(first["routing-keys"], F.lit(0)).alias("routing_key"))
    # On the default exchange the routing key is the queue's name.
    direct = F.struct(F.when(exchange == "", exchange).alias("exchange"), queue.alias("routing_key"))
    return F.when(first["exchange"].isNotNull(), listed).when(queue.isNotNull(), direct)


def _key(frame_no: str) -> Column:
    """What a message has in common with those that may be the same; its frame is in column `frame_no`."""
    delivered, by_id = F.col("operation").isin(*DELIVERIES), F.col("message_id") != ""
    refused = F.col("outcome").isin(*REFUSED) | (F.col("transaction") == "rolled-back")
    alone = _identity(frame_no)
    return (
        F.when(~delivered & F.coalesce(refused, F.lit(False)), alone)
        .when(by_id, F.xxhash64("server", "vhost", F.lit("id"), "message_id"))
        .when(
            F.col("body_sha256").isNotNull(),
            F.xxhash64("server", "vhost", F.lit(""), "correlation_id", "body_size", "body_sha256"),
        )
        .otherwise(alone)
    )


def _identity(frame_no: str) -> Column:
    return F.xxhash64("connection_id", frame_no)


def _keyed(rows: DataFrame) -> DataFrame:
    """The columns of `codec.pairing.Rows` and `udfs.pairing.CARRIED`, and `order_ns`."""
    from codec.pairing import CLASSIC, DELIVERY, DESCRIBED, PUBLISH, SEGMENTED

    delivered, by_id = F.col("delivered"), F.coalesce(F.col("message_id") != "", F.lit(False))
    route = F.when(F.col("origin.exchange").isNotNull(), F.xxhash64("origin.exchange", "origin.routing_key"))
    family = F.when(F.col("version") == "0-10", SEGMENTED).when(F.col("version") == "1.0", DESCRIBED).otherwise(CLASSIC)
    back = F.when(F.col("outcome").isin(*GIVEN_BACK), F.coalesce("settled_ns", "until_ns"))
    return rows.withColumns(
        {
            "key": _key("frame_no"),
            "identity": _identity("frame_no"),
            "by_id": by_id,
            # A message-id tells what it belongs to although bytes are lost, unless ids are used again.
            "lossy": F.col("lossy") & (F.coalesce("ids_repeat", F.lit(False)) | ~by_id),
            "side": F.when(delivered, DELIVERY).otherwise(PUBLISH),
            "route": F.coalesce(route, F.lit(0)),
            # The queue of a dead-lettered message is not the one that it was published to.
            "own_route": F.when(delivered & F.col("died").isNull(), F.xxhash64(F.lit(""), "source")).otherwise(0),
            "digest": F.when(F.col("body_sha256").isNotNull(), F.xxhash64("body_sha256")).otherwise(0),
            "family": family,
            "again": F.coalesce(F.col("redelivered"), F.lit(False)),
            "back_ns": F.when(delivered, F.coalesce(back, F.lit(-1))).otherwise(-1),
            "unmarked": F.coalesce(F.col("outcome") == WITHOUT_MARK, F.lit(False)),
            "order_ns": F.when(delivered, F.col("from_ns")).otherwise(F.col("until_ns")),
        }
    ).withColumn("place", F.when(delivered, F.xxhash64("source", "route", "deaths", "died_in")).otherwise(0))
