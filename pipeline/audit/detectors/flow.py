"""FL: channel.flow, and connection.blocked.

Context 'blocked': connection.blocked, unblocked and basic.publish on connections that were ever blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.detector import Detector, State

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

SWITCHES = ("connection.blocked", "connection.unblocked")


def blocked(sources: Sources) -> DataFrame | None:
    """Columns: connection_id, version, frame_no, ts_ns, name; `since`: struct(on, frame_no, ts_ns) of the last switch
    before; `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the connection."""
    if not sources.method_counts[SWITCHES[0]]:
        return None
    own = sources.connections.filter("c.blocked IS NOT NULL").select(
        "connection_id", "tcp_rtt_ns", F.col("ts_ns").alias("last_ns")
    )
    rows = sources.tables.frames.filter(F.col("name").isin("basic.publish", *SWITCHES)).select(
        "connection_id", "version", "frame_no", "ts_ns", "name"
    )
    in_order = Window.partitionBy("connection_id").orderBy("frame_no")
    # Sorted backwards: Spark evaluates a window that reaches to the last row anew for each row.
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


CONTENT = "name IN ('basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.return')"
OWN_FLOW = "CASE sender WHEN 'client' THEN client_flow_ok ELSE server_flow_ok END"
ASKED = "CASE sender WHEN 'client' THEN server_flow ELSE client_flow END"

STATES = {
    **{
        f"{side}_{name.replace('-', '_')}": State(
            f"last(CASE WHEN name = 'channel.{name}' AND sender = '{side}' "
            "THEN named_struct('frame_no', frame_no, 'active', args.active) END, true)"
        )
        for side in ("client", "server")
        for name in ("flow", "flow-ok")
    },
    "last_open": State("max(CASE WHEN name = 'channel.open' THEN frame_no END)"),
}
CONTEXTS = {"blocked": blocked}

DETECTORS = (
    Detector(
        "FL-01",
        "events",
        when=f"{CONTENT} AND NOT ({OWN_FLOW}).active AND ({OWN_FLOW}).frame_no > coalesce(last_open, 0)",
        evidence={"observed": "name", "paused_in_frame": f"({OWN_FLOW}).frame_no"},
        offender="sender",
    ),
    Detector(
        "FL-02",
        "events",
        when=f"name = 'channel.flow-ok' AND args.active != ({ASKED}).active AND "
        f"coalesce(({OWN_FLOW}).frame_no < ({ASKED}).frame_no, true)",
        evidence={"observed": "args.active", "expected": f"({ASKED}).active"},
        offender="sender",
    ),
    Detector(
        "FL-03",
        "blocked",
        when="name = 'basic.publish' AND since.on AND ts_ns - since.ts_ns > coalesce(tcp_rtt_ns, 1000000000)",
        evidence={"after_ms": "(ts_ns - since.ts_ns) DIV 1000000", "blocked_in_frame": "since.frame_no"},
    ),
    Detector(
        "FL-04",
        "blocked",
        when="name = 'connection.blocked' AND NOT coalesce(since.on, false) AND "
        "coalesce(unblocked_ns, last_ns) - ts_ns > {limit_seconds} * 1000000000L",
        at_ns="coalesce(unblocked_ns, last_ns)",
        evidence={"observed_ms": "(coalesce(unblocked_ns, last_ns) - ts_ns) DIV 1000000", "limit_s": "{limit_seconds}"},
    ),
)
