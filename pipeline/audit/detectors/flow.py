"""FL: channel.flow, and connection.blocked."""

from __future__ import annotations

from pipeline.audit.contexts.blocked import blocked
from pipeline.audit.detector import Detector, State

CONTENT = "name IN ('basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.return')"
OWN_FLOW = "CASE sender WHEN 'client' THEN client_flow_ok ELSE server_flow_ok END"
ASKED = "CASE sender WHEN 'client' THEN server_flow ELSE client_flow END"

STATES = {
    **{
        f"{side}_{name.replace('-', '_')}": State(
            f"last(CASE WHEN name = 'channel.{name}' AND sender = '{side}' "
            "THEN named_struct('frame_no', frame_no, 'active', said.active) END, true)"
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
        when=f"name = 'channel.flow-ok' AND said.active != ({ASKED}).active AND "
        f"coalesce(({OWN_FLOW}).frame_no < ({ASKED}).frame_no, true)",
        evidence={"observed": "said.active", "expected": f"({ASKED}).active"},
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
