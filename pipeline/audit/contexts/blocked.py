"""Context 'blocked': connection.blocked, unblocked, and what is published, in connections that were ever blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

SWITCHES = ("connection.blocked", "connection.unblocked")


def blocked(sources: Sources) -> DataFrame | None:
    """Columns: connection_id, version, frame_no, ts_ns, name; `since`: struct(on, frame_no, ts_ns) of the last switch
    before; `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the connection."""
    if not sources.said[SWITCHES[0]]:
        return None
    own = sources.connections.filter("c.blocked IS NOT NULL").select(
        "connection_id", "tcp_rtt_ns", F.col("ts_ns").alias("last_ns")
    )
    rows = sources.tables.frames.filter(F.col("name").isin("basic.publish", *SWITCHES)).select(
        "connection_id", "version", "frame_no", "ts_ns", "name"
    )
    in_order = Window.partitionBy("connection_id").orderBy("frame_no")
    # From the end on: Spark evaluates a frame that reaches to the last row anew for each row.
    backwards = Window.partitionBy("connection_id").orderBy(F.desc("frame_no"))
    switch = F.struct((F.col("name") == SWITCHES[0]).alias("on"), "frame_no", "ts_ns")
    since = F.last(F.when(F.col("name").isin(*SWITCHES), switch), True)
    unblocked = F.min(F.when(F.col("name") == SWITCHES[1], F.col("ts_ns")))
    return rows.join(own, "connection_id").withColumns(
        {
            "since": since.over(in_order.rowsBetween(Window.unboundedPreceding, -1)),
            "unblocked_ns": unblocked.over(backwards.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )
