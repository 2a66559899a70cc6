"""Context 'returned': publishes in confirm mode that the server gave back, beside those that are equal to them.

A basic.return names no number; which of several equal publishes it gives back is a guess. One that comes when all equal
publishes are confirmed gives back none, as brokers return first; here it stands beside the first of these.

    all_confirmed_frame  frame that confirmed the last of the equal publishes of the channel; null: some never were
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE
from pipeline.audit.contexts.traffic import KINDS

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

OF_KEY = ("exchange", "routing_key", "body_sha256")


def returned(sources: Sources) -> DataFrame | None:
    """Context 'returned'."""
    if not sources.traffic["returned"]:
        return None
    versions = sources.tables.connections.select("connection_id", "version")
    equal = Window.partitionBy(*LIFE, *OF_KEY)
    all_are = F.count("settled_frame_no").over(equal) == F.count("*").over(equal)
    confirmed = F.when(all_are, F.max("settled_frame_no").over(equal))
    in_doubt = "operation = 'publish' AND delivery_tag IS NOT NULL AND (mandatory OR immediate)"
    publishes = (
        sources.tables.messages.filter(in_doubt)
        .select(
            *LIFE, *OF_KEY, F.col("first_frame_no").alias("frame_no"), "ts_ns", "delivery_tag", "settled_frame_no",
            "returned_frame_no",
        )
        .withColumn("all_confirmed_frame", confirmed)
    )  # fmt: skip
    given_back = publishes.filter("returned_frame_no IS NOT NULL")
    returns = sources.tables.messages.filter(KINDS["returned"]).select(
        *LIFE, *OF_KEY, F.col("first_frame_no").alias("returned_frame_no")
    )
    alone = returns.join(
        given_back.select("connection_id", "returned_frame_no"), [*LIFE[:1], "returned_frame_no"], "anti"
    )
    in_turn = Window.partitionBy(*LIFE, *OF_KEY)
    late = (
        publishes.filter("returned_frame_no IS NULL")
        .drop("returned_frame_no")
        .withColumn("turn", F.row_number().over(in_turn.orderBy("frame_no")))
        .join(
            alone.withColumn("turn", F.row_number().over(in_turn.orderBy("returned_frame_no"))),
            [*LIFE, *OF_KEY, "turn"],
        )
    )
    return given_back.unionByName(late.select(given_back.columns)).join(versions, "connection_id", "left")
