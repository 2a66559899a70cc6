"""Contexts of AMQP 0-10 and 1.0, whose channels are sessions.

'sequences', one row per oddity in the sequence of frames (`udfs.conversation.checks`):

    oddity             its name; observed, expected: numbers that show it; waited_ns: how long a reply took
    name               of the frame; condition, description: the error in it; asked: the command that it names;
                       destination: that it names (0-10)
    missing            names of required fields that the frame leaves out
    link, address      of the link it is about; destination and queue of a subscription
    content_frame_no   the first frame of the link or message, else the frame itself

'handed_back', one row per link, direction and negative outcome: the number of messages, and the first with its error
and the side that states it (`stated_by`).
'session_messages', one row per message with properties that rules read.
'stolen_links', one row per attach of a link that its container has on another connection.
'filtered', one row per link whose answer lacks filters that the receiver asked for (`lacking`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from codec.amqp.versions import fact_table
from pipeline.audit.contexts.sources import CHANNEL, EARLIER, Context, Relation, Sources, columns
from pipeline.audit.detectors import Sql, sql_in
from udfs.roles import METHOD_FRAMES, SESSION_VERSIONS

ROUND_TRIP_NS = 10**9  # assumed if the capture does not show it
ERROR = "struct<condition string, description string>"
STATES_ERROR = (
    f"struct<error {ERROR}, state struct<error {ERROR}>, class_code int, command_code int, description string, "
    "text string, destination string>"
)
ATTACHES = (
    "struct<name string, role boolean, source struct<address string>, target struct<address string>, "
    "destination string, queue string>"
)
HANDED_BACK = ("rejected", "released", "modified")
DISCHARGES: Sql = "SELECT connection_id, frame_no FROM methods WHERE transaction_command = 'discharge'"


def oddities(sources: Sources) -> DataFrame:
    """Oddities in the sequence of frames, found in Python workers."""
    # Imported here: it loads kernels, which captures of other versions do not need.
    from udfs.conversation.checks import METHOD_COLUMNS, ODD, odd_rows

    # The transaction that a transfer discharges is in the body of its message.
    discharged, joined = "CAST(NULL AS BINARY)", ""
    if "1.0" in sources.versions and sources.count("discharges"):
        discharged = "txn_id"
        joined = f"""LEFT JOIN (SELECT connection_id, frame_no,
                                       try_variant_get(properties, '$.body.txn_id', 'binary') AS txn_id
                                FROM frames LEFT SEMI JOIN discharges USING (connection_id, frame_no)
                                WHERE {sources.only("discharges", "frame_no", "frame_no")})
                         USING (connection_id, frame_no)"""
    rows = sources.query(f"""
        SELECT /*+ BROADCAST(known) */ {columns(METHOD_COLUMNS)}
        FROM (SELECT *, {discharged} AS discharged
              FROM (SELECT * FROM methods
                    WHERE {sql_in("version", SESSION_VERSIONS)} AND {sql_in("frame_type", METHOD_FRAMES)})
              {joined})
        JOIN (SELECT connection_id, coalesce(tcp_rtt_ns, {ROUND_TRIP_NS}) AS grace_ns, ts_ns AS last_ns,
                     channel_max AS agreed_channel_max
              FROM known_connections) AS known USING (connection_id)""")
    in_order = rows.repartition("connection_id").sortWithinPartitions("connection_id", "frame_no")
    return in_order.mapInArrow(odd_rows, ODD)


def commands() -> Sql:
    """Names of 0-10's commands by class code and code: '4.7' -> 'message.subscribe'."""
    named = (
        (f"{of_class['code']}.{entry['code']}", f"{of_class['name']}.{entry['name']}")
        for of_class in fact_table("0-10")["classes"]
        for entry in of_class.get("commands", ())
    )
    return f"map({', '.join(repr(part) for pair in named for part in pair)})"


def sequences(sources: Sources) -> Sql:
    """Context 'sequences': oddities with the details of their frames."""
    of_frame, about = (sources.only("oddities", "frame_no", name) for name in ("frame_no", "about_frame_no"))
    carrying = sources.only("oddities", "first_frame_no", "about_frame_no")
    # Of a link on which the client receives the node is the source, else the target. Oddities of deliveries get the
    # link of the message, whose transfer is in both tables.
    return f"""
        SELECT *, coalesce(about_frame_no, frame_no) AS content_frame_no
        FROM oddities
        LEFT JOIN (SELECT connection_id, frame_no, name,
                          coalesce(args.error.condition, args.state.error.condition) AS condition,
                          coalesce(args.error.description, args.state.error.description, args.description, args.text)
                              AS description, args.destination AS destination,
                          {commands()}[concat_ws('.', args.class_code, args.command_code)] AS asked
                   FROM (SELECT connection_id, frame_no, name,
                                try_variant_get(arguments, '$', '{STATES_ERROR}') AS args
                         FROM methods LEFT SEMI JOIN oddities USING (connection_id, frame_no) WHERE {of_frame}))
            USING (connection_id, frame_no)
        LEFT JOIN (SELECT connection_id, about_frame_no, max(link) AS link, max(address) AS address
                   FROM (
                   SELECT connection_id, about_frame_no, coalesce(of.destination, of.name) AS link,
                          coalesce(of.queue, CASE WHEN (sender = 'client') = of.role THEN of.source.address
                                                 ELSE of.target.address END) AS address
                   FROM (SELECT connection_id, frame_no AS about_frame_no, sender,
                                try_variant_get(arguments, '$', '{ATTACHES}') AS of
                         FROM methods WHERE {about})
                   LEFT SEMI JOIN oddities USING (connection_id, about_frame_no)
                   UNION ALL
                   SELECT connection_id, about_frame_no, link, address
                   FROM (SELECT connection_id, first_frame_no AS about_frame_no, link, address
                         FROM messages WHERE {carrying})
                   LEFT SEMI JOIN oddities USING (connection_id, about_frame_no))
                   GROUP BY connection_id, about_frame_no)
            USING (connection_id, about_frame_no)"""


LOGINS: Sql = f"""(SELECT connection_id, version, user AS login FROM known_connections
                   WHERE {sql_in("version", SESSION_VERSIONS)})"""
BY = f"{columns(CHANNEL)}, version, operation, link, address, outcome"
NEGATIVE_OUTCOMES: Sql = f"""
    SELECT /*+ BROADCAST(logins) */ {BY}, messages, first.frame_no, first.settled_ts_ns AS ts_ns,
           first.first_frame_no AS content_frame_no
    FROM (SELECT {BY}, count(1) AS messages,
                 min(struct(settled_frame_no AS frame_no, settled_ts_ns, first_frame_no)) AS first
          FROM messages JOIN {LOGINS} AS logins USING (connection_id)
          WHERE {sql_in("outcome", HANDED_BACK)} GROUP BY {BY})"""


def handed_back(sources: Sources) -> Sql:
    return f"""
        SELECT * FROM negative_outcomes
        LEFT JOIN (SELECT connection_id, frame_no, sender AS stated_by,
                          try_variant_get(arguments, '$.state.error', '{ERROR}') AS error
                   FROM methods LEFT SEMI JOIN negative_outcomes USING (connection_id, frame_no)
                   WHERE {sources.only("negative_outcomes", "frame_no", "frame_no")})
            USING (connection_id, frame_no)"""


def session_messages(sources: Sources) -> Sql:
    # Of each message of 0-10 the length is compared.
    read = (
        "complete" if "0-10" in sources.versions else "priority > 9 OR ttl_ms = 0 OR redelivered OR user_id IS NOT NULL"
    )
    values = {
        "content_length": ("message_properties.content_length", "bigint"),
        "delivery_count": ("header.delivery_count", "bigint"),
        "expires": ("delivery_properties.expiration", "timestamp"),
        "stamped": ("delivery_properties.timestamp", "timestamp"),
    }
    properties = ", ".join(
        f"try_variant_get(properties, '$.{path}', '{kind}') AS {name}" for name, (path, kind) in values.items()
    )
    return f"""
        SELECT /*+ BROADCAST(logins) */ {columns(CHANNEL)}, version, login, sender, operation, ts_ns, priority, ttl_ms,
               user_id, link, address, body_seen, complete, first_frame_no AS frame_no,
               first_frame_no AS content_frame_no,
               {properties}
        FROM (SELECT * FROM messages WHERE {read}) JOIN {LOGINS} AS logins USING (connection_id)"""


# The attaches that open links.
ATTACHES_OF_LINKS: Sql = """(
    SELECT connection_id, name, opened_ts, min(frame_no) AS frame_no, min(ts_ns) AS ts_ns
    FROM (SELECT connection_id, try_variant_get(arguments, '$.name', 'string') AS name, ts AS opened_ts, frame_no,
                 ts_ns
          FROM control_methods WHERE version = '1.0' AND name = 'attach')
    GROUP BY connection_id, name, opened_ts)"""
FILTERED: Sql = f"""
    SELECT *
    FROM (SELECT {columns(CHANNEL)}, '1.0' AS version, name, opened_ts, address, filters, filters_requested,
                 array_except(json_object_keys(filters_requested), coalesce(json_object_keys(filters), array()))
                     AS lacking
          FROM links WHERE filters_requested IS NOT NULL)
    JOIN {ATTACHES_OF_LINKS} USING (connection_id, name, opened_ts)
    WHERE size(lacking) > 0"""
STOLEN_LINKS: Sql = f"""
    SELECT *
    FROM (SELECT *, max(struct(until_ts, connection_id AS of)) OVER (
                     PARTITION BY server_ip, client_container_id, server_container_id, kind, name ORDER BY opened_ts
                     {EARLIER}) AS earlier
          FROM (SELECT /*+ BROADCAST(whose) */ *, coalesce(closed_ts, ended_ts) AS until_ts
                FROM (SELECT * FROM links WHERE opened_ts IS NOT NULL AND name IS NOT NULL)
                JOIN (SELECT connection_id, version, server_ip, client_container_id, server_container_id,
                             closed_ts AS ended_ts
                      FROM known_connections
                      WHERE version = '1.0' AND client_container_id IS NOT NULL AND server_container_id IS NOT NULL)
                    AS whose USING (connection_id)))
    JOIN {ATTACHES_OF_LINKS} USING (connection_id, name, opened_ts)
    WHERE earlier.until_ts > opened_ts AND earlier.of != connection_id"""

RELATIONS = {
    "discharges": Relation(DISCHARGES),
    "oddities": Relation(oddities),
    "negative_outcomes": Relation(NEGATIVE_OUTCOMES),
}
CONTEXTS = {
    "sequences": Context(sequences, CHANNEL, rows="oddities", versions=SESSION_VERSIONS, full_scan=True),
    "handed_back": Context(handed_back, CHANNEL, rows="negative_outcomes", versions=SESSION_VERSIONS, full_scan=True),
    "session_messages": Context(session_messages, CHANNEL, versions=SESSION_VERSIONS, full_scan=True),
    "filtered": Context(FILTERED, CHANNEL, versions=("1.0",)),
    "stolen_links": Context(STOLEN_LINKS, CHANNEL, versions=("1.0",), full_scan=True),
}
