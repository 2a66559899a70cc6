"""Context 'silences': how long each side sent nothing, compared with the negotiated heartbeat interval.

One row per second in which a side sent, with the silence before it, and one for the silence up to the end of the
connection. Intervals are whole seconds, so pauses within a second do not matter. Silence counts from tune-ok to a
close, without the time in which the other side's TCP receive window was closed: nothing could be sent then. Columns:
connection_id, version, sender, heartbeat_s, idle_ms, silence_ns, frame_no and ts_ns of its end.

Context 'blocked': connection.blocked, unblocked and basic.publish on connections that were ever blocked. `since`:
struct(on, frame_no, ts_ns) of the last switch before; `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the
connection.
"""

from __future__ import annotations

from pipeline.audit.contexts.sources import Context
from pipeline.audit.detectors import Sql, sql_in

# A heartbeat interval was negotiated; in 1.0 each side announces the idle time-out for the other.
AGREED: Sql = (
    "heartbeat_s > 0 AND c.tune_ok IS NOT NULL OR coalesce(client_idle_timeout_ms, server_idle_timeout_ms) > 0 AND "
    "c.client_open IS NOT NULL AND c.server_open IS NOT NULL"
)


# What the other side announces is how long a side may be silent.
SILENCES: Sql = f"""
    SELECT connection_id, version, sender, heartbeat_s, idle_ms, ends AS ts_ns, ended_frame AS frame_no,
           CASE WHEN coalesce(to_ns < close_ns, true) THEN
               ends - greatest(to_ns, tuned_ns) - coalesce(barred_ns, 0) END AS silence_ns
    FROM (SELECT *, coalesce(lead(from_ns) OVER in_order, least(last_ns, close_ns)) AS ends,
                 coalesce(lead(from_frame) OVER in_order, to_frame) AS ended_frame,
                 nullif(CASE sender WHEN 'client' THEN server_idle_timeout_ms ELSE client_idle_timeout_ms END, 0)
                     AS idle_ms,
                 CASE sender WHEN 'client' THEN server_zero_window_ns ELSE client_zero_window_ns END AS barred_ns
          FROM (SELECT connection_id, sender, second, min(from_ns) AS from_ns, max(to_ns) AS to_ns,
                       min(from_frame) AS from_frame, max(to_frame) AS to_frame
                FROM seconds WHERE sender IS NOT NULL AND to_ns IS NOT NULL GROUP BY connection_id, sender, second)
          JOIN (SELECT connection_id, version, heartbeat_s, ts_ns AS last_ns, client_idle_timeout_ms,
                       server_idle_timeout_ms, client_zero_window_ns, server_zero_window_ns,
                       coalesce(c.tune_ok.ts_ns, greatest(c.client_open.ts_ns, c.server_open.ts_ns)) AS tuned_ns,
                       coalesce(c.close.ts_ns, least(c.client_end.ts_ns, c.server_end.ts_ns)) AS close_ns
                FROM known_connections WHERE {AGREED}) USING (connection_id)
          WINDOW in_order AS (PARTITION BY connection_id, sender ORDER BY second))"""

SWITCHES = ("connection.blocked", "connection.unblocked")
# Sorted backwards: Spark evaluates a window that reaches to the last row anew for each row.
BLOCKED: Sql = f"""
    SELECT *, last(CASE WHEN {sql_in("name", SWITCHES)} THEN struct(name = '{SWITCHES[0]}' AS on, frame_no, ts_ns) END,
                   true) OVER (PARTITION BY connection_id ORDER BY frame_no
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS since,
           min(CASE name WHEN '{SWITCHES[1]}' THEN ts_ns END) OVER (
               PARTITION BY connection_id ORDER BY frame_no DESC
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS unblocked_ns
    FROM (SELECT connection_id, version, frame_no, ts_ns, name
          FROM frames WHERE {sql_in("name", ("basic.publish", *SWITCHES))})
    JOIN (SELECT connection_id, tcp_rtt_ns, ts_ns AS last_ns FROM known_connections WHERE c.blocked IS NOT NULL)
        USING (connection_id)"""

CONTEXTS = {
    "silences": Context(SILENCES),
    "blocked": Context(BLOCKED, methods=SWITCHES[:1], full_scan=True),
}
