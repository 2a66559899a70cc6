"""Context 'control': protocol headers and methods of the connection itself, with what came before them.

`earlier_header`: code of the last protocol header of the same sender; `framed`: the sender had sent frames;
`earlier_step`: name of the last step of the handshake, of either side; `closing`: a connection.close came before;
`far_close`: one by the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

STEPS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect",
)  # fmt: skip
CLOSE = "name = 'connection.close'"


def control(sources: Sources) -> DataFrame:
    """Rows of `sources.control` with those columns, and `c`."""
    every = Window.partitionBy("connection_id").orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    own = Window.partitionBy("connection_id", "sender").orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    is_header = F.col("frame_type") == "protocol-header"
    is_step = F.col("name").isin([f"connection.{step}" for step in STEPS])
    closed_by = {side: _any(f"{CLOSE} AND sender = '{side}'").over(every) for side in ("client", "server")}
    framed = F.expr("CASE sender WHEN 'client' THEN c.client_framed ELSE c.server_framed END")
    return (
        sources.control.withColumns(
            {
                "earlier_header": F.last(F.when(is_header, F.col("code")), True).over(own),
                "earlier_step": F.last(F.when(is_step, F.col("name")), True).over(every),
                "closing": F.coalesce(_any(CLOSE).over(every), F.lit(False)),
                "far_close": F.when(F.col("sender") == "client", closed_by["server"]).otherwise(closed_by["client"]),
            }
        )
        .join(sources.of_connection, "connection_id", "left")
        .withColumn("framed", F.coalesce(framed < F.col("frame_no"), F.lit(False)))
    )


def _any(sql: str) -> Column:
    return F.max(F.expr(sql))
