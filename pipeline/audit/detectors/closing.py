"""CL: how connections are closed."""

from __future__ import annotations

from codec.amqp.versions import fact_table
from pipeline.audit.detector import Detector, State
from pipeline.audit.detectors.handshake import CLOSED, OPENED

SOFT = sorted(
    {
        constant["value"]
        for version in ("0-8", "0-9", "0-9-1")
        for constant in fact_table(version)["constants"]
        if constant.get("class") == "soft-error"
    }
)
IS_CLOSE = "coalesce(name IN ('connection.close', 'connection.close-ok'), false)"
IS_FRAME = "frame_type NOT IN ('gap', 'skipped', 'tls', 'foreign')"
OWN_CLOSE = "CASE sender WHEN 'client' THEN c.client_close.frame_no ELSE c.server_close.frame_no END"
FAR_CLOSE = "CASE sender WHEN 'client' THEN c.server_close ELSE c.client_close END"
# What was sent before the other side's last word had arrived is on its way for a round trip.
CROSSES = "ts_ns - ({0}).ts_ns <= coalesce(c.tcp_rtt_ns, 1000000000)"
ANSWERED = "coalesce(frame_no > c.close_ok.frame_no, false)"
OTHER_OF_CLOSER = "CASE c.close.sender WHEN 'client' THEN 'server' ELSE 'client' END"

STATES = {
    f"{side}_channel_{kind.replace('-', '_')}s": State(
        f"count(CASE WHEN name = 'channel.{kind}' AND sender = '{side}' THEN 1 END)"
    )
    for side in ("client", "server")
    for kind in ("close", "close-ok")
}

DETECTORS = (
    Detector(
        "CL-01",
        "connections",
        when="c.close IS NOT NULL AND c.close_ok IS NULL AND "
        "(tcp_end != 'none' OR ts_ns - c.close.ts_ns > {limit_seconds} * 1000000000L)",
        frame="c.close.frame_no",
        evidence={"tcp_end": "tcp_end", "ended_by": "tcp_end_by", "waited_ms": "(ts_ns - c.close.ts_ns) DIV 1000000"},
        offender=f"CASE WHEN tcp_end = 'none' OR tcp_end_by != c.close.sender THEN {OTHER_OF_CLOSER} END",
    ),
    Detector(
        "CL-02",
        "frames",
        when=f"frame_no > {OWN_CLOSE} AND {IS_FRAME} AND NOT {IS_CLOSE} AND NOT {ANSWERED}",
        evidence={"observed": "coalesce(name, frame_type)", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "CL-03",
        "frames",
        when=f"{ANSWERED} AND {IS_FRAME} AND NOT {IS_CLOSE} AND "
        f"(sender = c.close_ok.sender OR NOT {CROSSES.format('c.close_ok')})",
        evidence={"observed": "coalesce(name, frame_type)", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "CL-04",
        "connections",
        when=f"content = 'amqp' AND tcp_end != 'none' AND ({OPENED} OR NOT start) AND NOT {CLOSED}",
        frame="greatest(client_max_frame, server_max_frame)",
        evidence={"observed": "tcp_end", "state": "state"},
        offender="tcp_end_by",
    ),
    Detector(
        "CL-05",
        "control",
        when="name = 'connection.close-ok' AND NOT coalesce(far_close, false)",
        evidence={"observed": "name"},
        offender="sender",
    ),
    Detector(
        "CL-05",
        "events",
        when="name = 'channel.close-ok' AND CASE sender WHEN 'client' "
        "THEN server_channel_closes <= client_channel_close_oks "
        "ELSE client_channel_closes <= server_channel_close_oks END",
        evidence={"observed": "name", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "CL-06",
        "frames",
        when=f"frame_no > ({FAR_CLOSE}).frame_no AND NOT {CROSSES.format(FAR_CLOSE)} "
        f"AND {IS_FRAME} AND NOT {IS_CLOSE} AND NOT {ANSWERED} AND {OWN_CLOSE} IS NULL",
        evidence={"observed": "coalesce(name, frame_type)", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "CL-07",
        "connections",
        # 403 before tune is how brokers say that the login failed.
        when=f"close_code IN ({', '.join(map(str, SOFT))}) AND NOT (close_code = 403 AND c.tune IS NULL)",
        row="c.close",
        evidence={"observed": "close_code", "reply_text": "close_text"},
        offender="close_initiator",
    ),
    Detector(
        "CL-08",
        "connections",
        when="close_initiator IS NOT NULL AND CASE WHEN version = '1.0' THEN close_text IS NOT NULL "
        "ELSE close_code NOT IN (0, 200) END",
        frame="coalesce(c.close.frame_no, c.client_end.frame_no, c.server_end.frame_no)",
        at_ns="coalesce(c.close.ts_ns, c.client_end.ts_ns, c.server_end.ts_ns)",
        evidence={"reply_code": "close_code", "reply_text": "close_text", "by": "close_initiator"},
    ),
)
