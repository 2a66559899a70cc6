"""Returns: which publish a basic.return gives back.

The broker names no tag; it gives back the same exchange, routing key and body. Returned are the nearest earlier
publishes of these that were mandatory or immediate, as many as there are returns: brackets that close. Of those, the
first is returned first. Only such publishes and the returns themselves are looked at, so this is cheap where nothing is
returned.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

KEY = ("connection_id", "first_frame_no")


def returned(messages: DataFrame) -> DataFrame:
    """Rows of table messages, all of their connections -> (connection_id, first_frame_no, returned_ts_ns,
    returned_frame_no), one row a returned publish."""
    is_return = F.col("operation") == "return"
    may_be_returned = (F.col("operation") == "publish") & (F.col("mandatory") | F.col("immediate"))
    rows = messages.filter(is_return | may_be_returned)
    same = ("connection_id", "channel", "exchange", "routing_key", "body_sha256")
    so_far = Window.partitionBy(*same).orderBy("first_frame_no")
    publishes = F.col("operation") == "publish"
    height = F.sum(F.when(publishes, 1).otherwise(-1)).over(so_far)
    # A return stands at the height that its publish raised: next to it among the rows of that level.
    level = F.when(publishes, F.col("height")).otherwise(F.col("height") + 1)
    bracket = Window.partitionBy(*same, "level").orderBy("first_frame_no")
    other = F.when(publishes, F.lead("operation").over(bracket)).otherwise(F.lag("operation").over(bracket))
    # The brackets tell which publishes are returned; the broker returns them in the order in which they came.
    in_order = Window.partitionBy(*same, "operation").orderBy("first_frame_no")
    pair = Window.partitionBy(*same, "nth").orderBy("first_frame_no")
    return (
        rows.withColumn("height", height)
        .withColumn("level", level)
        .withColumn("other", other)
        .filter(F.col("other") != F.col("operation"))
        .withColumn("nth", F.row_number().over(in_order))
        .withColumn("closing", F.lead(F.struct("ts_ns", "first_frame_no")).over(pair))
        .filter(publishes)
        .select(
            *KEY,
            F.col("closing.ts_ns").alias("returned_ts_ns"),
            F.col("closing.first_frame_no").alias("returned_frame_no"),
        )
    )
