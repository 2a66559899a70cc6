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
"""

from __future__ import annotations

from pipeline.audit.contexts.channels import CHANNEL_LIFE
from pipeline.audit.contexts.sources import CHANNEL, Context, columns
from pipeline.audit.detectors import NEVER, Sql, sql_in

DECLARES: Sql = sql_in("name", ("exchange.declare", "queue.declare"))
DELETES: Sql = sql_in("name", ("exchange.delete", "queue.delete"))
ASKS = ("queue.query", "exchange.bound", "exchange.query")  # and change nothing, nor are they refused
CONSUMES = "basic.consume"
BITS = ("durable", "exclusive", "auto_delete", "passive")
FLAGS = f"struct<type string, {', '.join(f'{name} boolean' for name in BITS)}>"
BROKER = ("server_ip", "server_port", "vhost")
KIND: Sql = f"""CASE WHEN name IN ('exchange.declare', 'exchange.delete') THEN 'exchange'
                     WHEN queue IS NOT NULL AND NOT {sql_in("name", ASKS)} THEN 'queue' END"""
# The server replied with an -ok method, or no reply was requested, or the version has none.
ACCEPTED: Sql = """coalesce(reply_name LIKE '%-ok',
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
# A queue that was declared without a name gets the name in the reply.
NAMED: Sql = f"""
    SELECT * EXCEPT (entity, nameless, name_given), coalesce(name_given, entity) AS entity,
           name_given IS NOT NULL AS given
    FROM (SELECT *, CASE WHEN name = 'queue.declare' AND entity = '' THEN reply_frame_no END AS nameless
          FROM ({USES}))
    LEFT JOIN (SELECT connection_id, frame_no AS nameless, queue AS name_given
               FROM control_methods WHERE name = 'queue.declare-ok' AND sender = 'server')
        USING (connection_id, nameless)
    WHERE coalesce(name_given, entity) != ''"""
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
                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"""

CONTEXTS = {"entities": Context(ENTITIES, CHANNEL)}
