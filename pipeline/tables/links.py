"""Table links: one row a consumer, from basic.consume to its end."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import LINKS
from pipeline.tables.roles import CLOSES_CHANNEL, CLOSES_LINK, OPENS_LINK, looked_up, named
from pipeline.tables.shape import shaped, timestamp
from pipeline.tables.timeline import LIFE


def links(settled: DataFrame) -> DataFrame:
    """`settled` timeline -> table links.

    A consumer is there when the server answered, no answer was wanted, or messages came; one that was refused is not.
    """
    kind = looked_up(OPENS_LINK)
    opening = F.struct("ts_ns", kind.alias("kind"), "queue", "no_ack", "details.exclusive")
    accepted = named(OPENS_LINK) & (F.col("reply").isNotNull() | F.coalesce("details.no_wait", F.lit(False)))
    closing = F.struct("frame_no", "ts_ns", "sender", "name")
    rows = (
        settled.filter(F.col("link").isNotNull())
        .groupBy(*LIFE, "link", "link_no")
        .agg(
            F.any_value(F.when(named(OPENS_LINK), opening), True).alias("opening"),
            F.max(F.when(accepted, True)).alias("accepted"),
            F.min(F.when(named(CLOSES_LINK), closing)).alias("closing"),
            F.count(F.when(F.col("operation") == "deliver", 1)).alias("transfers"),
        )
        .filter(F.col("accepted") | (F.col("transfers") > 0))
    )
    ends = settled.filter(named(CLOSES_CHANNEL)).groupBy(*LIFE).agg(F.min("ts_ns").alias("channel_closed_ns"))
    by_server = F.col("closing.sender") == "server"
    return shaped(
        rows.join(ends, list(LIFE), "left")
        .withColumn("closed_ns", F.coalesce("closing.ts_ns", "channel_closed_ns"))
        .withColumns(
            {
                "kind": F.coalesce("opening.kind", F.lit("consumer")),
                "name": F.col("link"),
                "queue": F.col("opening.queue"),
                "no_ack": F.col("opening.no_ack"),
                "exclusive": F.col("opening.exclusive"),
                "opened_ts": timestamp("opening.ts_ns"),
                "closed_ts": timestamp("closed_ns"),
                "error": F.when(by_server, F.concat(F.col("closing.name"), F.lit(" by the server"))),
            }
        ),
        LINKS,
    )
