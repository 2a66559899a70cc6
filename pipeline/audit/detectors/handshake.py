"""HS: the handshake of the classic family, from start to open-ok."""

from __future__ import annotations

from pipeline.audit.detector import Detector, Sql

# What may follow in the handshake; a close may come at any point.
FOLLOWS = {
    None: ("start",),
    "start": ("start-ok",),
    "start-ok": ("secure", "tune"),
    "secure": ("secure-ok",),
    "secure-ok": ("secure", "tune"),
    "tune": ("tune-ok",),
    "tune-ok": ("open",),
    "open": ("open-ok", "redirect"),
}
STEPS = sorted({step for steps in FOLLOWS.values() for step in steps})
# Not `upper`, which has Spark read the tables of Unicode first: half a second.
ONE_STEP = "mechanism RLIKE '(?i)^(PLAIN|AMQPLAIN|EXTERNAL|ANONYMOUS)$'"
SEVERAL_STEPS = "mechanism RLIKE '(?i)^(SCRAM|CRAM|DIGEST|RABBIT-CR-DEMO|GSSAPI)'"
SERVER_KEYS = "'product', 'version', 'platform', 'host'"
CLIENT_KEYS = "'product', 'version', 'platform'"


def _in_order() -> Sql:
    """True on a step of the handshake that may follow the step before."""
    pairs = [
        f"coalesce(earlier_step, '') = '{'connection.' + before if before else ''}' AND name = 'connection.{after}'"
        for before, steps in FOLLOWS.items()
        for after in steps
    ]
    return " OR ".join(f"({pair})" for pair in pairs)


def _lacking(properties: Sql, keys: Sql) -> Sql:
    """Array of the keys that a VARIANT object does not have."""
    names = [key.strip(" '") for key in keys.split(",")]
    checks = ", ".join(f"CASE WHEN variant_get({properties}, '$.{name}') IS NULL THEN '{name}' END" for name in names)
    return f"array_compact(array({checks}))"


SERVER_LACKS = f"CASE WHEN c.start.status = 'ok' THEN {_lacking('server_properties', SERVER_KEYS)} ELSE array() END"
CLIENT_LACKS = f"CASE WHEN c.start_ok.status = 'ok' THEN {_lacking('client_properties', CLIENT_KEYS)} ELSE array() END"
# A header of its own is how a server refuses a version (0-10 and 1.0: a header that differs).
REFUSED = (
    "(c.server_header IS NOT NULL AND "
    "(version IN ('0-8', '0-9', '0-9-1') OR c.server_header.code != c.client_header.code))"
)
OPENED = "(c.open_ok IS NOT NULL OR c.client_open IS NOT NULL AND c.server_open IS NOT NULL)"
CLOSED = "(c.close IS NOT NULL OR c.client_end IS NOT NULL OR c.server_end IS NOT NULL)"
UNFINISHED = f"content = 'amqp' AND NOT {OPENED} AND NOT {CLOSED}"


def _above(limit: str) -> Sql:
    return f"server_{limit} > 0 AND (client_{limit} > server_{limit} OR client_{limit} = 0)"


DETECTORS = (
    Detector(
        "HS-01",
        "control",
        when=f"name IN ({', '.join(repr('connection.' + step) for step in STEPS)}) AND channel = 0 AND NOT closing "
        f"AND NOT ({_in_order()})",
        evidence={"observed": "name", "after": "earlier_step"},
        offender="sender",
    ),
    Detector(
        "HS-02",
        "events",
        when="name LIKE 'connection.%' AND channel != 0",
        evidence={"observed": "channel", "expected": "0", "method": "name"},
        offender="sender",
    ),
    Detector(
        "HS-03",
        "frames",
        when="channel = 0 AND class_id != 10 AND frame_type = 'method'",
        evidence={"observed": "coalesce(name, concat_ws('.', class_id, method_id))", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "HS-04",
        "connections",
        when="NOT array_contains(c.start.mechanisms, mechanism)",
        row="c.start_ok",
        evidence={"observed": "mechanism", "expected": "c.start.mechanisms"},
    ),
    Detector(
        "HS-05",
        "connections",
        when="NOT array_contains(c.start.locales, locale)",
        row="c.start_ok",
        evidence={"observed": "locale", "expected": "c.start.locales"},
    ),
    Detector(
        "HS-06",
        "connections",
        when="NOT array_contains(c.start.locales, 'en_US')",
        row="c.start",
        evidence={"observed": "c.start.locales", "expected": "'en_US'"},
    ),
    Detector(
        "HS-07",
        "connections",
        when=f"size({SERVER_LACKS}) + size({CLIENT_LACKS}) > 0",
        frame=f"CASE WHEN size({SERVER_LACKS}) > 0 THEN c.start.frame_no ELSE c.start_ok.frame_no END",
        at_ns="coalesce(c.start_ok.ts_ns, c.start.ts_ns)",
        evidence={
            "server_lacks": f"CASE WHEN size({SERVER_LACKS}) > 0 THEN {SERVER_LACKS} END",
            "client_lacks": f"CASE WHEN size({CLIENT_LACKS}) > 0 THEN {CLIENT_LACKS} END",
        },
        offender=f"CASE WHEN size({CLIENT_LACKS}) = 0 THEN 'server' WHEN size({SERVER_LACKS}) = 0 THEN 'client' END",
    ),
    Detector(
        "HS-08",
        "connections",
        when=_above("channel_max"),
        row="c.tune_ok",
        evidence={"observed": "client_channel_max", "expected": "server_channel_max"},
    ),
    Detector(
        "HS-09",
        "connections",
        when=_above("frame_max"),
        row="c.tune_ok",
        evidence={"observed": "client_frame_max", "expected": "server_frame_max"},
    ),
    Detector(
        "HS-10",
        "connections",
        when="c.tune_ok IS NOT NULL AND frame_max > 0 AND frame_max < {minimum_bytes}",
        row="c.tune_ok",
        evidence={"negotiated": "frame_max", "expected": "{minimum_bytes}"},
    ),
    Detector(
        "HS-11",
        "frames",
        when="frame_type = 'method' AND size > {minimum_bytes} AND coalesce(frame_no < c.tune_ok.frame_no, true)",
        evidence={"observed": "size", "expected": "{minimum_bytes}", "method": "name"},
        offender="sender",
    ),
    Detector(
        "HS-12",
        "connections",
        when="client_heartbeat_s != server_heartbeat_s",
        row="c.tune_ok",
        evidence={"observed": "client_heartbeat_s", "expected": "server_heartbeat_s"},
    ),
    Detector(
        "HS-13",
        "frames",
        when="sender = 'client' AND frame_no > c.open.frame_no AND "
        "coalesce(frame_no < least(c.open_ok.frame_no, c.redirect.frame_no, c.server_close.frame_no), true) AND "
        "(channel > 0 OR name LIKE 'connection.%' AND name NOT LIKE 'connection.close%')",
        evidence={"observed": "coalesce(name, frame_type)", "channel": "channel"},
    ),
    Detector(
        "HS-14",
        "connections",
        when="length(vhost) > 127 OR NOT startswith(vhost, '/')",
        row="c.open",
        evidence={"observed": "vhost"},
    ),
    Detector(
        "HS-15",
        "connections",
        when="length(vhost) > 127 OR vhost = ''",
        row="c.open",
        evidence={"observed": "vhost"},
    ),
    Detector(
        "HS-16",
        "connections",
        when="c.open.args.insist AND c.redirect.frame_no > c.open.frame_no",
        row="c.redirect",
        evidence={"observed": "'redirect'", "insist": "c.open.args.insist"},
    ),
    Detector(
        "HS-17",
        "connections",
        when=f"{UNFINISHED} AND NOT coalesce({REFUSED}, false) AND c.client_header IS NOT NULL AND "
        "(tcp_end != 'none' OR ts_ns - opened_ns > {limit_seconds} * 1000000000L)",
        frame="greatest(client_max_frame, server_max_frame)",
        evidence={"observed": "state", "expected": "'open'", "tcp_end": "tcp_end", "ended_by": "tcp_end_by"},
    ),
    Detector(
        "HS-18",
        "connections",
        when="c.start_ok IS NOT NULL AND c.tune IS NULL AND failed_login",
        frame="coalesce(c.server_close.frame_no, c.start_ok.frame_no)",
        evidence={
            "reply_code": "c.server_close.args.reply_code",
            "reply_text": "c.server_close.args.reply_text",
            "tcp_end": "tcp_end",
            "user": "user",
            "mechanism": "mechanism",
        },
    ),
    Detector(
        "HS-19",
        "frames",
        when="sender = 'client' AND frame_no > c.redirect.frame_no AND "
        "coalesce(name NOT LIKE 'connection.close%', true) AND frame_type NOT IN ('gap', 'skipped', 'tls', 'foreign')",
        evidence={"observed": "coalesce(name, frame_type)"},
    ),
    Detector(
        "HS-20",
        "connections",
        when=f"c.secure IS NOT NULL AND {ONE_STEP} OR {SEVERAL_STEPS} AND c.tune IS NOT NULL AND c.secure IS NULL",
        frame="coalesce(c.secure.frame_no, c.tune.frame_no)",
        at_ns="coalesce(c.secure.ts_ns, c.tune.ts_ns)",
        evidence={"mechanism": "mechanism", "observed": "CASE WHEN c.secure IS NULL THEN 'tune' ELSE 'secure' END"},
    ),
)
