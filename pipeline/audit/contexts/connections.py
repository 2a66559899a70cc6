"""Context 'connections': one row per connection.

Besides the columns of table connections, where `client_ip` and `client_port` are those of the client that a header of
the PROXY protocol names:

    opened_ns, ts_ns    first and last packet, ns since 1970-01-01 UTC
    start, both         captured from its beginning; in both directions
    order               no segment was captured out of order: the capture shows which side sent first
    loss_from_ns        time from which bytes are missing; null: none
    asked, answered     first protocol header of the client, and of the server, as in versions_offered
    refused             the server answered with a protocol header of its own, and did not go on, or only to say why
    failed_login        the login failed
    first_frame, client_min_frame, client_max_frame, client_framed ...   first and last row of each side, and its first
                        row that is a frame
    c                   the first row of each kind in FIRST_ROWS: struct(frame_no, ts_ns, sender, status, notes, code,
                        args, mechanisms, locales)

Context 'control': protocol headers and methods of the connection itself, with what came before them.

`earlier_header`: code of the last protocol header of the same sender; `framed`: the sender had sent frames;
`earlier_step`: name of the last step of the handshake, of either side; `closing`: a connection.close came before;
`far_close`: one by the other side.

Context 'captures': one row per capture, with the limits that it ran into before its packets belonged to a connection.

limits           names of these limits (SKIPPED, STOPPED)
packets_skipped  packets that were left out for them; null: none, reading stopped

Context 'silences': how long each side sent nothing, compared with the negotiated heartbeat interval.

One row per second in which a side sent, with the silence before it, and one for the silence up to the end of the
connection. Intervals are whole seconds, so pauses within a second do not matter. Silence counts from tune-ok to a
close, without the time in which the other side's TCP receive window was closed: nothing could be sent then. Columns:
connection_id, version, sender, heartbeat_s, idle_ms, silence_ns, frame_no and ts_ns of its end.

Context 'blocked': connection.blocked, unblocked and basic.publish on connections that were ever blocked. `since`:
struct(on, frame_no, ts_ns) of the last switch before; `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the
connection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from codec.compiler.limits import LIMITS
from codec.net.protocols import FRAGMENT_LIMIT, SKIP_NAMES, TOO_DEEP, TOO_NESTED
from codec.sides import SIDES
from pipeline.audit.catalogue import KNOWN
from pipeline.audit.contexts.sources import CHANNEL, EARLIER, Context, Relation, columns
from pipeline.audit.detectors import Sql, sql_in
from udfs.roles import SPANS

FRAME_COLUMNS = (
    "connection_id", "frame_no", "ts_ns", "sender", "version", "channel", "frame_type", "class_id", "method_id", "code",
    "name", "size", "payload_size", "body_size", "status", "error", "notes", "content_frame_no",
)  # fmt: skip
# The same of table methods, which has no bodies.
FRAME_OF_METHOD: Sql = columns(FRAME_COLUMNS).replace("body_size", "CAST(NULL AS BIGINT) AS body_size")
# Arguments of methods of class connection by type, context 'connections'.
CONNECTION_ARGUMENTS = {
    "int": ("version_major", "version_minor", "reply_code", "code", "heartbeat", "heartbeat_min", "heartbeat_max"),
    "boolean": ("insist",),
    "string": ("reply_text", "hostname"),
}
CONNECTION_METHODS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect", "close", "close-ok",
    "blocked", "update-secret",
)  # fmt: skip
# First row of each kind in a connection: name -> condition on frames. 0-10 has the names of the classic family.
FIRST_ROWS = {
    **{name.replace("-", "_"): f"name = 'connection.{name}'" for name in CONNECTION_METHODS},
    "foreign": "frame_type = 'foreign' AND sender = 'client' AND status != 'ok'",
    "proxy": "frame_type = 'foreign' AND sender = 'client' AND status = 'ok'",
    **{f"{side}_close": f"name = 'connection.close' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_header": f"frame_type = 'protocol-header' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_open": f"name = 'open' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_end": f"name = 'close' AND sender = '{side}'" for side in SIDES},
    **{name.replace("-", "_"): f"name = '{name}'" for name in ("sasl-mechanisms", "sasl-init", "sasl-outcome")},
}
CONTROL = "name LIKE 'connection.%' OR name LIKE 'sasl-%' OR name IN ('open', 'close')"
SECOND_NS = 10**9
# Lists of strings: one string with blanks in the classic family, an array in the others.
LIST_ARGUMENTS = {"mechanisms": ("mechanisms", "sasl_server_mechanisms"), "locales": ("locales",)}
ROW = ("frame_no", "ts_ns", "sender", "status", "notes", "code", "args", *LIST_ARGUMENTS)
ACCESS_REFUSED = 403
CONNECTION_FORCED = 320  # sent by qpidd when a login fails


def arguments_struct(types: Mapping[str, Collection[str]]) -> Sql:
    """Struct of these arguments (type -> names) from VARIANT `arguments`, in one pass; null: none, or another type."""
    fields = ", ".join(f"{name} {kind}" for kind, names in types.items() for name in names)
    return f"try_variant_get(arguments, '$', 'struct<{fields}>')"


# Well-formed UTF-8 (RFC 3629, section 4) without the backslash, or any single octet. The input is octets decoded as
# ISO 8859-1, which has a character for each.
_TAIL = r"[\x80-\xBF]"
_CHARACTERS = "|".join(
    (
        r"[\x00-\x5B\x5D-\x7F]+",
        rf"[\xC2-\xDF]{_TAIL}",
        rf"\xE0[\xA0-\xBF]{_TAIL}|[\xE1-\xEC\xEE\xEF]{_TAIL}{{2}}|\xED[\x80-\x9F]{_TAIL}",
        rf"\xF0[\x90-\xBF]{_TAIL}{{2}}|[\xF1-\xF3]{_TAIL}{{3}}|\xF4[\x80-\x8F]{_TAIL}{{2}}",
        r"[\x00-\xFF]",
    )
)
_ESCAPED = (
    "array_join(transform(regexp_extract_all(decode(CAST({} AS BINARY), 'ISO-8859-1'), r'"
    + _CHARACTERS.replace("{", "{{").replace("}", "}}")
    + "', 0), piece -> "
    "if(length(piece) = 1 AND (piece >= '\\u0080' OR piece = r'\\'), "
    "concat(r'\\x', lower(hex(encode(piece, 'ISO-8859-1')))), "
    "decode(encode(piece, 'ISO-8859-1'), 'UTF-8'))), '')"
)


def utf8(text: Sql) -> Sql:
    """SQL for a text, escaped by the rule of `codec.text` if it is not UTF-8: a VARIANT may give strings of any
    octets."""
    return f"if(is_valid_utf8({text}), {text}, {_ESCAPED.format(text)})"


def list_argument(paths: tuple[str, ...]) -> Sql:
    """One of LIST_ARGUMENTS: an array of strings from VARIANT `arguments`."""

    def strings(path: str) -> list[Sql]:
        texts = f"try_variant_get(arguments, '$.{path}', 'array<string>')"
        one = utf8(f"try_variant_get(arguments, '$.{path}', 'string')")
        return [texts, f"split({one}, ' ')"] if path in LIST_ARGUMENTS else [texts]

    return f"coalesce({', '.join(found for path in paths for found in strings(path))})"


def offered(side: str) -> Sql:
    """The version in the first protocol header of `side`."""
    return f"try_element_at(split(try_element_at(filter(versions_offered, v -> v LIKE '{side} %'), 1), ' '), 2)"


# Protocol headers, frames of other protocols, and methods of connections themselves, with their arguments: few rows.
# One filter per frame type, so that Spark can skip pages by their minimum and maximum.
CONTROL_ROWS: Sql = f"""
    SELECT {columns(FRAME_COLUMNS)}, {arguments_struct(CONNECTION_ARGUMENTS)} AS args,
           {", ".join(f"{list_argument(paths)} AS {name}" for name, paths in LIST_ARGUMENTS.items())}
    FROM (SELECT {columns(FRAME_COLUMNS)}, CAST(NULL AS VARIANT) AS arguments
          FROM frames WHERE frame_type = 'protocol-header'
          UNION ALL
          SELECT {columns(FRAME_COLUMNS)}, CAST(NULL AS VARIANT) FROM frames WHERE frame_type = 'foreign'
          UNION ALL
          SELECT {columns(FRAME_COLUMNS)}, arguments FROM control_methods WHERE {CONTROL})"""

# By connection `c`, the first row of each kind in FIRST_ROWS.
FIRST: Sql = ", ".join(f"min(CASE WHEN {sql} THEN row END) AS {name}" for name, sql in FIRST_ROWS.items())
FIRST_OF_CONNECTION: Sql = f"""
    SELECT connection_id, struct({FIRST}) AS c
    FROM (SELECT *, struct({columns(ROW)}) AS row FROM control_rows) GROUP BY connection_id"""

# One row per connection, sender, version, second and unusual frame: first and last frame, the first row that is a
# frame, the first gap, the time from which bytes are missing; of captured bytes the times and frames from and to.
# A truncated frame counts as lost.
LOST: Sql = (
    "frame_type = 'gap' OR status = 'partial' AND frame_type != 'skipped' "
    "OR frame_type = 'skipped' AND status != 'partial'"
)
SECONDS: Sql = f"""
    SELECT connection_id, sender, version, ts_ns DIV {SECOND_NS} AS second, unusual_frame, count(1) AS frames,
           min(frame_no) AS min_frame, max(frame_no) AS max_frame,
           min(CASE WHEN frame_type NOT IN ('protocol-header', {", ".join(map(repr, SPANS))}) THEN frame_no END)
               AS framed,
           min(CASE WHEN frame_type = 'gap' THEN frame_no END) AS loss_frame,
           min(CASE WHEN {LOST} THEN first_ts_ns END) AS loss_from_ns,
           min(CASE WHEN frame_type != 'gap' THEN first_ts_ns END) AS from_ns,
           max(CASE WHEN frame_type != 'gap' THEN ts_ns END) AS to_ns,
           min(CASE WHEN frame_type != 'gap' THEN frame_no END) AS from_frame,
           max(CASE WHEN frame_type != 'gap' THEN frame_no END) AS to_frame
    FROM flagged_frames GROUP BY connection_id, sender, version, ts_ns DIV {SECOND_NS}, unusual_frame"""

# First and last rows of each side.
OF_SIDES: Sql = ", ".join(
    f"{function}(CASE WHEN sender = '{side}' THEN {name} END) AS {side}_{name}"
    for side in SIDES
    for function, name in (("min", "min_frame"), ("max", "max_frame"), ("min", "framed"), ("max", "to_ns"))
)
MEASURED: Sql = f"""
    SELECT connection_id, min(min_frame) AS first_frame, min(loss_from_ns) AS loss_from_ns,
           min(loss_frame) AS loss_frame, {OF_SIDES}
    FROM seconds GROUP BY connection_id"""
CONNECTIONS: Sql = f"""
    SELECT * EXCEPT (version, client_ip, client_port), coalesce(version, answered) AS version,
           coalesce(proxied_client_ip, client_ip) AS client_ip,
           IF(proxied_client_ip IS NULL, client_port, proxied_client_port) AS client_port,
           c.server_header IS NOT NULL AND (c.start IS NULL AND c.server_open IS NULL
               OR coalesce(answered != asked, false) AND client_framed IS NULL) AS refused,
           c.start IS NOT NULL AND c.start_ok IS NOT NULL AND c.tune IS NULL AND
               (c.server_close.args.reply_code = {ACCESS_REFUSED} OR
                version = '0-10' AND c.server_close.args.reply_code = {CONNECTION_FORCED} OR
                c.close IS NULL AND tcp_end_by = 'server')
               OR c.sasl_outcome.args.code != 0 AS failed_login,
           coalesce(c.start_ok.frame_no, c.client_header.frame_no, first_frame) AS frame_no
    FROM (SELECT *, unix_micros(opened_ts) * 1000 AS opened_ns, unix_micros(closed_ts) * 1000 AS ts_ns,
                 {", ".join(f"{sql} AS `{name}`" for name, sql in KNOWN.items())},
                 {offered("client")} AS asked, {offered("server")} AS answered
          FROM connections)
    LEFT JOIN ({MEASURED}) USING (connection_id) LEFT JOIN first_rows USING (connection_id)"""
# Columns of `c` in most contexts, besides the first methods.
OF_CONNECTION = (
    "frame_max", "channel_max", "heartbeat_s", "user", "vhost", "state", "version_known", "tcp_end", "tcp_end_by",
    "tcp_rtt_ns", "client_properties", "server_properties", "client_framed", "server_framed", "loss_frame",
    "loss_from_ns",
)  # fmt: skip
FACTS: Sql = f"""
    SELECT connection_id, struct(c.*, {columns(OF_CONNECTION)}, ts_ns AS last_ns, start AS from_start) AS c
    FROM known_connections"""
VERSIONS = {"versions": "collect_set(version)"}

STEPS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect",
)  # fmt: skip
CLOSE = "name = 'connection.close'"
BEFORE: Sql = f"ORDER BY frame_no {EARLIER}"
WITH_STEPS: Sql = f"""
    SELECT *, coalesce(CASE sender WHEN 'client' THEN c.client_framed ELSE c.server_framed END < frame_no, false)
           AS framed
    FROM (SELECT *, last(CASE WHEN frame_type = 'protocol-header' THEN code END, true) OVER own AS earlier_header,
                 last(CASE WHEN name IN ({", ".join(f"'connection.{step}'" for step in STEPS)}) THEN name END, true)
                     OVER before AS earlier_step,
                 coalesce(max({CLOSE}) OVER before, false) AS closing,
                 CASE sender WHEN 'client' THEN max({CLOSE} AND sender = 'server') OVER before
                     ELSE max({CLOSE} AND sender = 'client') OVER before END AS far_close
          FROM control_rows
          WINDOW before AS (PARTITION BY connection_id {BEFORE}), own AS (PARTITION BY connection_id, sender {BEFORE}))
    LEFT JOIN connection_facts USING (connection_id)"""

# Limit -> why packets were left out.
SKIPPED = {
    "packet headers": SKIP_NAMES[TOO_DEEP],
    "tunnels": SKIP_NAMES[TOO_NESTED],
    "fragments": SKIP_NAMES[FRAGMENT_LIMIT],
}
# Limit -> condition on `error`: reading stopped because of it. A record above the size limit is usually damage, which
# cannot be distinguished. Other errors are damage.
CLAIMED: Sql = r"CAST(nullif(regexp_extract(error, 'claims (more than|a length of) ([0-9]+)', 2), '') AS DECIMAL(38))"
STOPPED: dict[str, Sql] = {
    "record size": f"{CLAIMED} >= {LIMITS.record_bytes}",
    "expansion": "error LIKE '%expands more than % times%'",
}
REACHED = {name: f"skipped_packets['{reason}'] > 0" for name, reason in SKIPPED.items()} | STOPPED
# `version` is null: a capture speaks none.
CAPTURES: Sql = f"""
    SELECT capture_file, error, CAST(NULL AS STRING) AS version,
           array_compact(array({", ".join(f"CASE WHEN {sql} THEN '{name}' END" for name, sql in REACHED.items())}))
               AS limits,
           nullif({" + ".join(f"coalesce(skipped_packets['{reason}'], 0)" for reason in SKIPPED.values())}, 0L)
               AS packets_skipped
    FROM captures"""


# A heartbeat interval was negotiated; in 1.0 each side announces the idle time-out for the other.
AGREED: Sql = (
    "heartbeat_s > 0 AND c.tune_ok IS NOT NULL OR greatest(client_idle_timeout_ms, server_idle_timeout_ms) > 0 AND "
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
                   true) OVER (PARTITION BY connection_id {BEFORE}) AS since,
           min(CASE name WHEN '{SWITCHES[1]}' THEN ts_ns END) OVER (
               PARTITION BY connection_id ORDER BY frame_no DESC {EARLIER}) AS unblocked_ns
    FROM (SELECT connection_id, version, frame_no, ts_ns, name
          FROM frames WHERE {sql_in("name", ("basic.publish", *SWITCHES))})
    JOIN (SELECT connection_id, tcp_rtt_ns, ts_ns AS last_ns FROM known_connections WHERE c.blocked IS NOT NULL)
        USING (connection_id)"""


RELATIONS = {
    "control_rows": Relation(CONTROL_ROWS),
    "first_rows": Relation(FIRST_OF_CONNECTION),
    "seconds": Relation(SECONDS, {**VERSIONS, "frames": "coalesce(sum(frames), 0)", "unusual": "count(unusual_frame)"}),
    "known_connections": Relation(CONNECTIONS, VERSIONS),
    "connection_facts": Relation(FACTS, materialized=False),
}

CONTEXTS = {
    "connections": Context("SELECT * FROM known_connections"),
    "control": Context(WITH_STEPS, CHANNEL[:2]),
    "captures": Context(CAPTURES, ()),
    "silences": Context(SILENCES),
    "blocked": Context(BLOCKED, methods=SWITCHES[:1], full_scan=True),
}
