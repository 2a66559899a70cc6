"""Context 'entities': methods of clients that name an exchange or a queue, by broker, in the order of time.

    kind, entity   'exchange' or 'queue', and its name; the server's name if a queue was declared without one
    given          the server made up the name
    declared       flags of a declaration: type, durable, exclusive, auto_delete, passive, and its `table` of arguments
    accepted       the server accepted it, or was not asked for a reply; 0-10: it did not raise an exception
    answered_ns    time of the reply
    was            the last accepted declaration (not passive) or deletion before it: `deleted`, and of a declaration
                   frame_no, connection_id, answered_ns, until_ns (end of that connection), `declared`
    seen           number of earlier declarations and successful uses of the entity
    broker_loss_ns time from which bytes of any connection to the broker are missing, which may have changed an entity
    sole           the last accepted exclusive consumer of the queue before it, and until when it existed

The order in which a broker processes two connections is unknown, unless it replied on one before the request on the
other.

Context 'peers': connections compared with others of the same client, account or broker.

Times are those of the first packets; a connection is compared with itself and earlier ones. Columns:

    speaks_amqp   some connection to the same server and port carries AMQP
    offers_tls    the server and port answered a TLS header with one (1.0)
    came_back     a later connection of the client to that server was opened
    refusal       the last earlier connection of the client to that server whose version was refused (asked, answered,
                  opened_ns); `known_versions`: those of earlier connections to the server
    failures      failed logins of the client's address in the window of SEC-06, this one included; `all_failures`
    recent        connections of the client's address in the last minute, this one included
    hosts         addresses that have used the account on that broker so far; `new_host`: the first connection of its
                  address; `all_hosts`

Context 'refusals': closes with 'access refused' for want of a permission, compared with others of the same account on
the same broker: `user`; `refusals`: how many there were in the window of SEC-18 up to this one; `all_refusals`.
"""

from __future__ import annotations

from pipeline.audit.catalogue import ALL_VERSIONS
from pipeline.audit.contexts.channels import CHANNEL_LIFE
from pipeline.audit.contexts.connections import ACCESS_REFUSED
from pipeline.audit.contexts.sources import BROKER, CHANNEL, EARLIER, Context, Sources, columns
from pipeline.audit.detectors import NEVER, Sql, sql_in

DECLARES: Sql = sql_in("name", ("exchange.declare", "queue.declare"))
DELETES: Sql = sql_in("name", ("exchange.delete", "queue.delete"))
ASKS = ("queue.query", "exchange.bound", "exchange.query")  # and change nothing, nor are they refused
CONSUMES = "basic.consume"
BITS = ("durable", "exclusive", "auto_delete", "passive")
FLAGS = f"struct<type string, {', '.join(f'{name} boolean' for name in BITS)}>"
KIND: Sql = f"""CASE WHEN name IN ('exchange.declare', 'exchange.delete') THEN 'exchange'
                     WHEN queue IS NOT NULL AND NOT {sql_in("name", ASKS)} THEN 'queue' END"""
# The server replied with an -ok method, or completed the 0-10 command. A command without a reply is accepted if it
# asked for none (no-wait), and always in 0-10, where its completion may come after the end of the capture.
ACCEPTED: Sql = """coalesce(reply_name LIKE '%-ok' OR reply_name = 'session.completed',
                            coalesce(try_variant_get(arguments, '$.no_wait', 'boolean'), false) OR version = '0-10')"""
DECLARED: Sql = f"struct({', '.join(f'coalesce(flags.{name}, false) AS {name}' for name in BITS)}, flags.type AS type)"
# The arguments table as JSON with sorted keys, '{}' if there is none.
TABLE: Sql = "coalesce(to_json(try_variant_get(arguments, '$.arguments', 'variant')), '{}')"
# Methods of clients that name an exchange to declare or delete, or a queue.
USES: Sql = f"""
    SELECT {columns(CHANNEL)}, frame_no, ts_ns, ts, version, name, kind, reply_frame_no, reply_name,
           {ACCEPTED} AS accepted, ts_ns + coalesce(reply_latency_ns, 0) AS answered_ns,
           CASE kind WHEN 'exchange' THEN exchange ELSE queue END AS entity,
           CASE WHEN {DECLARES} THEN {DECLARED} END AS declared, CASE WHEN {DECLARES} THEN {TABLE} END AS table,
           coalesce(name = '{CONSUMES}' AND try_variant_get(arguments, '$.exclusive', 'boolean'), false) AS exclusive
    FROM (SELECT *, try_variant_get(arguments, '$', '{FLAGS}') AS flags
          FROM (SELECT *, {CHANNEL_LIFE} AS channel_life
                FROM (SELECT *, {KIND} AS kind FROM control_methods WHERE sender = 'client')
                WHERE kind IS NOT NULL OR name = 'channel.open')
          WHERE kind IS NOT NULL)"""
# A queue that was declared without a name gets the name in the reply. Later methods on the channel that name no queue
# are about the queue that was declared last.
NAMED: Sql = f"""
    SELECT * FROM (
        SELECT * EXCEPT (entity, nameless, name_given, named), name_given IS NOT NULL AS given,
               CASE WHEN named = '' AND kind = 'queue' THEN
                   last(CASE name WHEN 'queue.declare' THEN named END, true)
                       OVER (PARTITION BY {columns(CHANNEL)} ORDER BY frame_no)
               ELSE named END AS entity
        FROM (SELECT *, coalesce(name_given, entity) AS named
              FROM (SELECT *, CASE WHEN name = 'queue.declare' AND entity = '' THEN reply_frame_no END AS nameless
                    FROM ({USES}))
              LEFT JOIN (SELECT connection_id, frame_no AS nameless, queue AS name_given
                         FROM control_methods WHERE name = 'queue.declare-ok' AND sender = 'server')
                  USING (connection_id, nameless)))
    WHERE entity != ''"""
# When an exclusive consumer ended: when it was cancelled, or its channel or connection was closed.
EXCLUSIVE_ENDS: Sql = f"""
    SELECT {columns(CHANNEL)}, opened_ts AS ts, true AS exclusive, min(unix_micros(closed_ts)) AS closed_us
    FROM links WHERE exclusive GROUP BY {columns(CHANNEL)}, opened_ts"""
# The broker of a connection, and when the connection ended: its close, or the end of its TCP connection.
BROKERS: Sql = f"""
    SELECT connection_id, {columns(BROKER)},
           coalesce(c.close.ts_ns, CASE WHEN tcp_end != 'none' THEN ts_ns END, {NEVER}) AS until_ns,
           coalesce(min(loss_from_ns) OVER (PARTITION BY {columns(BROKER)}), {NEVER}) AS broker_loss_ns
    FROM known_connections WHERE vhost IS NOT NULL"""
CHANGE: Sql = f"""CASE WHEN accepted AND ({DELETES} OR {DECLARES} AND NOT declared.passive) THEN
                      struct({DELETES} AS deleted, frame_no, connection_id, answered_ns, until_ns, declared, table)
                  END"""
SOLE: Sql = """CASE WHEN accepted AND exclusive THEN
                   struct(frame_no, connection_id, answered_ns, coalesce(closed_us * 1000, until_ns) AS until_ns) END"""
ENTITIES: Sql = f"""
    SELECT *, last({CHANGE}, true) OVER before AS was,
           count(CASE WHEN accepted AND NOT {DELETES} THEN 1 END) OVER before AS seen,
           last({SOLE}, true) OVER before AS sole
    FROM ({NAMED})
    LEFT JOIN ({EXCLUSIVE_ENDS}) USING ({columns(CHANNEL)}, ts, exclusive)
    JOIN ({BROKERS}) USING (connection_id)
    WINDOW before AS (PARTITION BY {columns(BROKER)}, kind, entity ORDER BY ts_ns, connection_id, frame_no
                      {EARLIER})"""


SECOND_NS = 10**9
MINUTE_S = 60
SERVER = "server_ip, server_port"
IN_TIME = "ORDER BY opened_ns, connection_id"
BEFORE = f"PARTITION BY client_ip, {SERVER} {IN_TIME} {EARLIER}"
AFTER = f"PARTITION BY client_ip, {SERVER} {IN_TIME} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"


def last(seconds: float) -> Sql:
    """The window frame of the last seconds."""
    return f"RANGE BETWEEN {int(seconds * SECOND_NS)}L PRECEDING AND CURRENT ROW"


def peers(sources: Sources) -> Sql:
    return f"""
        SELECT *, sum(CAST(new_host AS INT)) OVER (PARTITION BY server_ip, user {IN_TIME}) AS hosts,
               sum(CAST(new_host AS INT)) OVER (PARTITION BY server_ip, user) AS all_hosts
        FROM (SELECT *, max(content = 'amqp') OVER of_server AS speaks_amqp,
                     max(shiftright(c.server_header.code, 24) = 2) OVER of_server AS offers_tls,
                     last(CASE WHEN refused THEN struct(asked, answered, opened_ns, known_versions) END, true)
                         OVER before AS refusal,
                     max(NOT refused AND state IN ('open', 'closed')) OVER after AS came_back,
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
                    WINDOW before AS ({BEFORE}))
              WINDOW of_server AS (PARTITION BY {SERVER}), before AS ({BEFORE}), after AS ({AFTER}))"""


REFUSING = ("channel.close", "connection.close", "execution.exception")
# Texts of refusals that no permission would have prevented.
NO_PERMISSION = "exclusive use|[Ll]ogin was refused|reserved prefix|default exchange|expired"


def refusals(sources: Sources) -> Sql:
    code = ", ".join(f"try_variant_get(arguments, '$.{name}', 'int')" for name in ("error_code", "reply_code"))
    text = ", ".join(f"try_variant_get(arguments, '$.{name}', 'string')" for name in ("reply_text", "description"))
    return f"""
        SELECT *, count(1) OVER (PARTITION BY server_ip, user ORDER BY ts_ns
                                 {last(sources.limit("SEC-18", "window_seconds"))}) AS refusals,
               count(1) OVER (PARTITION BY server_ip, user) AS all_refusals
        FROM (SELECT connection_id, version, frame_no, ts_ns, name FROM control_methods
              WHERE {sql_in("name", REFUSING)} AND coalesce({code}) = {ACCESS_REFUSED}
                    AND NOT coalesce({text}, '') RLIKE '{NO_PERMISSION}')
        JOIN (SELECT connection_id, user, server_ip
              FROM known_connections WHERE NOT coalesce(failed_login, false)) USING (connection_id)"""


CONTEXTS = {
    "entities": Context(ENTITIES, CHANNEL),
    "peers": Context(peers),
    "refusals": Context(refusals, methods=REFUSING),
}
