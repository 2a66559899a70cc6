"""Contexts of messages. `frame_no` and `content_frame_no` are the frame of their method.

Context 'numbers': deliveries with a delivery tag, and `highest_tag`: the highest tag before, in the same channel
incarnation.

Context 'waits': messages that were settled late or never, with their connection (`c`).

waited_ns    from the message to its settlement; without one, to the end of its channel or connection
outstanding  messages of its channel that are unsettled at the end

Context 'returned_publishes': publishes in confirm mode that the server returned, paired with equal publishes.

A basic.return has no delivery tag: which of several equal publishes it returns is a guess. Brokers return before they
confirm; so a return after all equal publishes are confirmed matches none of them, and is paired with the first one.

    all_confirmed_frame  frame that confirmed the last of the equal publishes of the channel; null: not all confirmed

Context 'redeliveries': deliveries that can only be a message which the same queue has delivered before.

They have the message id and the octets of an earlier delivery from the same queue that went back to it: the consumer
requeued it, or left it unsettled on a channel that has been closed since. Everything that could be another, equal
message is left out: messages published in between or explained by more publishes, dead-lettered ones, and those with
neither an id nor a publish in the capture. Streams deliver a message to every reader, so queues that were declared as
streams, or read from an offset, are left out, too.

    earlier_frame, earlier_connection   the delivery that went back

Context 'management_errors': replies of management nodes of 1.0 with a `status` of an error and its `text`, with the
`operation` and `target` of their requests, null where the request is not known.

Context 'contents': messages with properties that rules read.

Context 'files': file.publish and file.deliver, with the methods before them on the channel that may have staged their
content.

Messages are counted by kind, once (`message_counts`): a context about a kind that does not occur is not planned.
"""

from __future__ import annotations

from pipeline.audit.contexts.sources import (
    BROKER,
    CHANNEL,
    CONNECTION_VERSIONS,
    DELIVERED,
    EARLIER,
    Context,
    Relation,
    Sources,
    columns,
)
from pipeline.audit.detectors import Sql, sql_in
from udfs.attributes import PERSISTENT

LIMITED = ("CF-04", "DL-13")  # rules with a limit on waiting; the lowest one selects the rows
# Kind -> condition on messages; contexts filter by the same conditions.
CHANNEL_KINDS: dict[str, Sql] = {  # context 'incarnations' has their numbers, and the first of each
    "delivered": DELIVERED,
    "unsettled": f"{DELIVERED} AND outcome = 'unsettled'",
    "requeued": f"{DELIVERED} AND outcome = 'requeued'",
    "rejected": f"{DELIVERED} AND outcome = 'rejected'",
    "redelivered": f"{DELIVERED} AND redelivered",
    "persistent": "operation = 'publish' AND durable",
}
KINDS: dict[str, Sql] = {
    **CHANNEL_KINDS,
    "immediate": "immediate AND operation = 'publish'",
    "settled": "settled_frame_no IS NOT NULL AND delivery_tag IS NOT NULL",
    # Properties that rules read; `durable` is delivery mode 2.
    "special": "priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL OR NOT durable",
    "returned": "operation = 'return'",
    "request_failed": "management_status >= 400",
    "went_back": "outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL",
    "waited": "settle_latency_ns > {least_ns} OR outcome = 'unsettled'",
}


def waited(sources: Sources) -> Sql:
    """KINDS["waited"] with the lowest limit of the LIMITED rules."""
    limits = [sources.limit(rule, "limit_seconds") for rule in LIMITED if rule in sources.parameters]
    return KINDS["waited"].format(least_ns=int(min(limits, default=0) * 10**9))


def message_counts(sources: Sources) -> Sql:
    """Messages counted by CHANNEL, `operation` and `link`: `first_frame` and `last_frame`; the number of each of KINDS,
    and of `large` publishes; the frame of the first of those and of each of CHANNEL_KINDS (`first_*`); the `largest`
    publish, bytes."""
    published = "CASE operation WHEN 'publish' THEN coalesce(body_size, body_seen) END"
    large = f"{published} > {int(sources.limit('PR-09', 'limit_bytes'))}"
    counted = {**KINDS, "waited": waited(sources), "large": large}
    first = (
        f"min(CASE WHEN {counted[name]} THEN first_frame_no END) AS first_{name}" for name in (*CHANNEL_KINDS, "large")
    )
    return f"""
        SELECT {columns(CHANNEL)}, operation, link, min(first_frame_no) AS first_frame,
               max(first_frame_no) AS last_frame, max({published}) AS largest,
               {", ".join(f"count_if({sql}) AS {name}" for name, sql in counted.items())},
               {", ".join(first)}
        FROM messages GROUP BY {columns(CHANNEL)}, operation, link"""


# Deliveries to a direct reply-to consumer have no delivery tags of their own.
NUMBERS: Sql = f"""
    SELECT /*+ BROADCAST(of_connection) */ *
    FROM (SELECT {columns(CHANNEL)}, first_frame_no AS frame_no, first_frame_no AS content_frame_no, ts_ns,
                 delivery_tag, max(delivery_tag) OVER (PARTITION BY {columns(CHANNEL)} ORDER BY first_frame_no
                                                       {EARLIER}) AS highest_tag
          FROM messages
          WHERE {DELIVERED} AND delivery_tag > 0
                AND coalesce(routing_key, '') NOT LIKE 'amq.rabbitmq.reply-to%')
    JOIN {CONNECTION_VERSIONS} AS of_connection USING (connection_id)"""


def waits(sources: Sources) -> Sql:
    return f"""
        SELECT *, coalesce(settle_latency_ns, least(closed_ns, c.close.ts_ns, c.last_ns) - ts_ns) AS waited_ns
        FROM (SELECT *, first_frame_no AS frame_no, first_frame_no AS content_frame_no
              FROM messages WHERE {waited(sources)})
        LEFT JOIN {CONNECTION_VERSIONS} USING (connection_id)
        LEFT JOIN connection_facts USING (connection_id)
        LEFT JOIN (SELECT {columns(CHANNEL)}, unix_micros(closed_ts) * 1000 AS closed_ns, unsettled AS outstanding
                   FROM channels) USING ({columns(CHANNEL)})"""


OF_KEY = (*CHANNEL, "exchange", "routing_key", "body_sha256")
RETURNED_PUBLISHES: Sql = f"""
    WITH publishes AS (
        SELECT {columns(OF_KEY)}, first_frame_no AS frame_no, ts_ns, delivery_tag, settled_frame_no, returned_frame_no,
               CASE WHEN count(settled_frame_no) OVER equal = count(1) OVER equal
                   THEN max(settled_frame_no) OVER equal END AS all_confirmed_frame
        FROM messages
        WHERE operation = 'publish' AND delivery_tag IS NOT NULL AND (mandatory OR immediate)
        WINDOW equal AS (PARTITION BY {columns(OF_KEY)})),
    unpaired AS (
        SELECT {columns(OF_KEY)}, returned_frame_no,
               row_number() OVER (PARTITION BY {columns(OF_KEY)} ORDER BY returned_frame_no) AS turn
        FROM (SELECT {columns(OF_KEY)}, first_frame_no AS returned_frame_no
              FROM messages WHERE {KINDS["returned"]})
        LEFT ANTI JOIN (SELECT connection_id, returned_frame_no FROM publishes WHERE returned_frame_no IS NOT NULL)
            USING (connection_id, returned_frame_no))
    SELECT * FROM (
        SELECT {columns(OF_KEY)}, frame_no, ts_ns, delivery_tag, settled_frame_no, all_confirmed_frame,
               returned_frame_no
        FROM publishes WHERE returned_frame_no IS NOT NULL
        UNION ALL
        SELECT {columns(OF_KEY)}, frame_no, ts_ns, delivery_tag, settled_frame_no, all_confirmed_frame,
               unpaired.returned_frame_no
        FROM (SELECT *, row_number() OVER (PARTITION BY {columns(OF_KEY)} ORDER BY frame_no) AS turn
              FROM publishes WHERE returned_frame_no IS NULL)
        JOIN unpaired USING ({columns(OF_KEY)}, turn))
    LEFT JOIN {CONNECTION_VERSIONS} USING (connection_id)"""

# Methods of the client that show that a queue is a stream.
STREAMS: Sql = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'stream' OR "
    "name = 'basic.consume' AND try_variant_get(arguments, '$.arguments[\"x-stream-offset\"]', 'variant') IS NOT NULL"
)
BROKERS: Sql = f"(SELECT connection_id, version, {columns(BROKER)} FROM connections)"
FINGERPRINT = (*BROKER, "body_sha256", "message_id", "correlation_id", "timestamp")
SAME_QUEUE: Sql = " AND ".join(f"delivered.{name} <=> streams.{name}" for name in (*BROKER, "queue"))
ENDS: Sql = "least(closed_ns, c.close.ts_ns, CASE WHEN c.tcp_end != 'none' THEN c.last_ns END)"
FRESH: Sql = "operation != 'publish' AND NOT coalesce(redelivered, false)"
# Few messages go back: only those, and messages equal to them, are sorted.
REDELIVERIES: Sql = f"""
    WITH moved AS (
        SELECT delivered.*, xxhash64({columns(FINGERPRINT)}) AS key
        FROM (SELECT {columns(CHANNEL)}, first_frame_no, ts_ns, operation, queue, redelivered, outcome, settled_ts_ns,
                     headers, body_sha256, message_id, correlation_id, timestamp, version, {columns(BROKER)}
              FROM messages JOIN {BROKERS} USING (connection_id)
              WHERE body_sha256 IS NOT NULL AND operation IN ('publish', 'deliver', 'get')) AS delivered
        LEFT ANTI JOIN (SELECT DISTINCT {columns(BROKER)}, queue
                        FROM (SELECT * FROM control_methods WHERE {STREAMS}) JOIN {BROKERS} USING (connection_id))
            AS streams ON {SAME_QUEUE})
    SELECT *, first_frame_no AS frame_no, earlier.first_frame_no AS earlier_frame,
           earlier.connection_id AS earlier_connection
    FROM (SELECT *, last(CASE WHEN operation != 'publish' THEN
                             struct(back_ns, first_frame_no, connection_id, ts_ns) END, true) OVER before AS earlier,
                 count(CASE WHEN {FRESH} THEN 1 END) OVER so_far AS first_deliveries,
                 count(CASE operation WHEN 'publish' THEN ts_ns END) OVER of_message AS publishes,
                 max(CASE operation WHEN 'publish' THEN ts_ns END) OVER of_message AS last_published_ns
          FROM (SELECT *, CASE WHEN {KINDS["went_back"]} THEN
                       CASE outcome WHEN 'requeued' THEN settled_ts_ns WHEN 'unsettled' THEN {ENDS} END END AS back_ns
                FROM moved LEFT SEMI JOIN (SELECT key FROM moved WHERE {KINDS["went_back"]}) USING (key)
                LEFT JOIN (SELECT {columns(CHANNEL)}, unix_micros(closed_ts) * 1000 AS closed_ns FROM channels)
                    USING ({columns(CHANNEL)})
                LEFT JOIN connection_facts USING (connection_id))
          WINDOW of_message AS (PARTITION BY key ORDER BY ts_ns, connection_id, first_frame_no),
                 before AS (PARTITION BY key, queue ORDER BY ts_ns, connection_id, first_frame_no {EARLIER}),
                 so_far AS (PARTITION BY key, queue ORDER BY ts_ns, connection_id, first_frame_no
                            ROWS UNBOUNDED PRECEDING))
    WHERE {FRESH} AND queue IS NOT NULL AND earlier.back_ns <= ts_ns
          AND try_variant_get(headers, '$["x-death"]', 'variant') IS NULL
          AND try_variant_get(headers, '$["x-stream-offset"]', 'variant') IS NULL
          AND (publishes = 0 AND message_id IS NOT NULL OR publishes > 0 AND first_deliveries > publishes)
          AND coalesce(last_published_ns < earlier.ts_ns, true)"""

# Rows in which the staging of a content is searched: more staged contents on a channel do not occur.
STAGED_BEFORE = 1000
STAGES = ("file.open", "file.open-ok", "file.stage")
SENDS_STAGED = ("file.publish", "file.deliver")
# durable is delivery mode 2: only other messages need the properties.
CONTENTS: Sql = f"""
    SELECT *
    FROM (SELECT {columns(CHANNEL)}, sender, operation, ts_ns, priority, user_id, expiration,
                 first_frame_no AS frame_no, first_frame_no AS content_frame_no,
                 CASE WHEN NOT durable THEN try_variant_get(properties, '$.delivery_mode', 'int') END AS delivery_mode
          FROM messages WHERE {KINDS["special"]})
    JOIN (SELECT connection_id, version, user AS login FROM known_connections) USING (connection_id)
    WHERE delivery_mode != {PERSISTENT} OR priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL"""
FILES: Sql = f"""
    SELECT *
    FROM (SELECT *, collect_list(struct(frame_no, sender, name, args.identifier)) OVER (
                     PARTITION BY connection_id, channel ORDER BY frame_no
                     ROWS BETWEEN {STAGED_BEFORE} PRECEDING AND 1 PRECEDING) AS steps
          FROM (SELECT connection_id, channel, version, frame_no, content_frame_no, ts_ns, sender, name,
                       try_variant_get(arguments, '$', 'struct<identifier string>') AS args
                FROM control_methods WHERE {sql_in("name", (*STAGES, *SENDS_STAGED))}))
    WHERE {sql_in("name", SENDS_STAGED)}"""

# Of requests with the same message-id nobody knows which one was answered.
MANAGEMENT_ERRORS: Sql = f"""
    SELECT *
    FROM (SELECT {columns(CHANNEL)}, first_frame_no AS frame_no, first_frame_no AS content_frame_no, ts_ns,
                 correlation_id AS id, management_status AS status, management_text AS text
          FROM messages WHERE {KINDS["request_failed"]})
    LEFT JOIN (SELECT connection_id, message_id AS id, any_value(management_operation) AS operation,
                      any_value(management_target) AS target
               FROM messages WHERE management_operation IS NOT NULL AND message_id IS NOT NULL
               GROUP BY connection_id, message_id HAVING count(1) = 1) USING (connection_id, id)
    LEFT JOIN {CONNECTION_VERSIONS} USING (connection_id)"""

RELATIONS = {"message_counts": Relation(message_counts, {name: f"coalesce(sum({name}), 0)" for name in KINDS})}
CONTEXTS = {
    "numbers": Context(NUMBERS, CHANNEL, messages="delivered", full_scan=True),
    "waits": Context(waits, CHANNEL, messages="waited", full_scan=True),
    "returned_publishes": Context(RETURNED_PUBLISHES, CHANNEL, messages="returned", full_scan=True),
    "redeliveries": Context(REDELIVERIES, CHANNEL, messages="went_back", full_scan=True),
    "management_errors": Context(MANAGEMENT_ERRORS, CHANNEL, messages="request_failed", full_scan=True),
    "contents": Context(CONTENTS, CHANNEL, messages="special", full_scan=True),
    "files": Context(FILES, CHANNEL[:2], methods=SENDS_STAGED),
}
