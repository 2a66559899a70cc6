"""Context 'peers': connections compared with others of the same client, account or broker.

Times are those of the first packets; a connection is compared with itself and earlier ones. Columns:

    speaks_amqp   some connection to the same server and port carries AMQP
    offers_tls    the server and port answered a TLS header with one (1.0)
    refusal       the last earlier connection of the client to that server whose version was refused (asked, answered,
                  opened_ns); `known_versions`: those of earlier connections to the server
    failures      failed logins of the client's address in the window of SEC-06, this one included; `all_failures`
    recent        connections of the client's address in the last minute, this one included
    hosts         addresses that have used the account on that broker so far; `new_host`: the first connection of its
                  address; `all_hosts`

Context 'refusals': closes with 'access refused', compared with others of the same account on the same broker: `user`;
`refusals`: how many there were in the window of SEC-18 up to this one; `all_refusals`.
"""

from __future__ import annotations

from pipeline.audit.catalogue import ALL_VERSIONS
from pipeline.audit.contexts.connections import ACCESS_REFUSED
from pipeline.audit.contexts.sources import Context, Sources
from pipeline.audit.detectors import Sql, sql_in

SECOND_NS = 10**9
MINUTE_S = 60
SERVER = "server_ip, server_port"
IN_TIME = "ORDER BY opened_ns, connection_id"


def last(seconds: float) -> Sql:
    """The window frame of the last seconds."""
    return f"RANGE BETWEEN {int(seconds * SECOND_NS)}L PRECEDING AND CURRENT ROW"


def peers(sources: Sources) -> Sql:
    """Context 'peers'."""
    return f"""
        SELECT *, sum(CAST(new_host AS INT)) OVER (PARTITION BY server_ip, user {IN_TIME}) AS hosts,
               sum(CAST(new_host AS INT)) OVER (PARTITION BY server_ip, user) AS all_hosts
        FROM (SELECT *, max(content = 'amqp') OVER of_server AS speaks_amqp,
                     max(shiftright(c.server_header.code, 24) = 2) OVER of_server AS offers_tls,
                     last(CASE WHEN refused THEN struct(asked, answered, opened_ns, known_versions) END, true)
                         OVER before AS refusal,
                     count(CASE WHEN failed_login THEN 1 END) OVER (PARTITION BY client_ip ORDER BY opened_ns
                         {last(sources.limit("SEC-06", "window_seconds"))}) AS failures,
                     count(CASE WHEN failed_login THEN 1 END) OVER (PARTITION BY client_ip) AS all_failures,
                     count(CASE content WHEN 'amqp' THEN 1 END) OVER (PARTITION BY client_ip ORDER BY opened_ns
                         {last(MINUTE_S)}) AS recent,
                     row_number() OVER (PARTITION BY server_ip, user, client_ip {IN_TIME}) = 1 AND user IS NOT NULL
                         AS new_host
              FROM (SELECT *, collect_set(CASE WHEN {sql_in("asked", ALL_VERSIONS)} THEN asked END) OVER before
                           AS known_versions
                    FROM known_connections
                    WINDOW before AS (PARTITION BY client_ip, {SERVER} {IN_TIME}
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
              WINDOW of_server AS (PARTITION BY {SERVER}),
                     before AS (PARTITION BY client_ip, {SERVER} {IN_TIME}
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))"""


REFUSING = ("channel.close", "connection.close", "execution.exception")


def refusals(sources: Sources) -> Sql:
    """Context 'refusals'."""
    code = ", ".join(f"try_variant_get(arguments, '$.{name}', 'int')" for name in ("error_code", "reply_code"))
    return f"""
        SELECT *, count(1) OVER (PARTITION BY server_ip, user ORDER BY ts_ns
                                 {last(sources.limit("SEC-18", "window_seconds"))}) AS refusals,
               count(1) OVER (PARTITION BY server_ip, user) AS all_refusals
        FROM (SELECT connection_id, version, frame_no, ts_ns, name FROM control_methods
              WHERE {sql_in("name", REFUSING)} AND coalesce({code}) = {ACCESS_REFUSED})
        JOIN (SELECT connection_id, user, server_ip FROM known_connections) USING (connection_id)"""


CONTEXTS = {
    "peers": Context(peers),
    "refusals": Context(refusals, methods=REFUSING),
}
