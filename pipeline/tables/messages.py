"""Table messages: one row each time a message crossed the wire.

Workers put messages together out of their frames (`shown_messages`), and say what became of them; of some of the
classic family, that is `concluded` here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import MESSAGES
from pipeline.tables.properties import CLASSIC, PERSISTENT, V0_10, V1_0
from pipeline.tables.returns import KEY as MESSAGE
from pipeline.tables.returns import returned
from pipeline.tables.roles import CLASSIC_VERSIONS
from pipeline.tables.shape import elapsed, shaped

if TYPE_CHECKING:
    from udfs.contents import Shown

BODY_FRAMES = ("body", "oob-body")
# Arguments of the method of a message that are columns of the table.
CLASSIC_ARGUMENTS = ("exchange", "routing_key", "redelivered", "mandatory", "immediate")


def concluded(rows: DataFrame, settled: DataFrame) -> DataFrame:
    """Rows of the table without what became of them, all of their connections -> the same with it, out of SETTLED."""
    end = F.struct("outcome", "settled_ts_ns", "settled_frame_no", "transaction").alias("end")
    ends = settled.select("connection_id", F.col("frame_no").alias("first_frame_no"), end)
    known = rows.drop("returned_frame_no").join(ends.join(returned(rows), list(MESSAGE), "full"), list(MESSAGE), "left")
    settled_ts_ns: Column = F.coalesce("returned_ts_ns", "end.settled_ts_ns")
    was_returned = F.col("returned_ts_ns").isNotNull()
    return shaped(
        known.withColumns(
            {
                "outcome": F.when(was_returned, "returned").otherwise(F.coalesce("end.outcome", "outcome")),
                "transaction": F.col("end.transaction"),
                "settled_ts_ns": settled_ts_ns,
                "settle_latency_ns": elapsed(F.col("ts_ns"), settled_ts_ns),
                "settled_frame_no": F.col("end.settled_frame_no"),
            }
        ),
        MESSAGES,
    )


def shown_messages(payload: bool) -> tuple[Shown, ...]:
    """How workers make the table out of the frames of each family."""
    from udfs.contents import Shown

    return tuple(
        Shown(MESSAGES, versions, and_unknown, BODY_FRAMES, arguments, properties, PERSISTENT, payload)
        for versions, and_unknown, arguments, properties in (
            (CLASSIC_VERSIONS, True, CLASSIC_ARGUMENTS, CLASSIC),
            (("0-10",), False, (), V0_10),
            (("1.0",), False, ("handle",), V1_0),
        )
    )
