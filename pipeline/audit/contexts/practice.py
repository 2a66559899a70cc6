"""Contexts of rules from practice: what RabbitMQ 4 refuses, and habits that cost.

upgrades   one row per queue.declare (1.0: management request), basic.qos or attach on a connection to RabbitMQ, with
           the settings that later releases refuse (`mode`, `queue_version`, `locator`, `mirrored`, `address` ...)
requeued   one row per connection and quorum queue without a delivery limit of its own: number of requeued `messages`
habits     one row per connection: `shots`, connections of the same application and host that sent one message and
           nothing else; `products` of the same user; `singles`, channels of the connection that sent one message and
           nothing else; `leaked`, channels that were opened, hardly used and never closed; `large`, published messages
           above the limit of PR-09, and the `largest`. `first_shot`, `first_of_user`: the first such connection
repeats    one row per declaration or binding that a connection repeats: `times`, and frame_no and ts_ns of the first
requeue_loops  one row per message that is delivered from one queue again and again (see below)
unrouted   one row per connection and route: `messages` published without 'mandatory' after the broker returned a
           mandatory one, and before any declaration or binding that could change the route
timed_out  one row per channel that the broker closed because an acknowledgement took too long: `of`, the delivery that
           waited longest, and `acked_frame`, its acknowledgement on the wire; `late`: it waited as long as the broker
           allows; `deliveries` of the channel that need an acknowledgement, and `slowest_ns`, the longest time to one
cancelled  one row per consumer that RabbitMQ 4.3 or later cancelled: its unsettled `messages`, when the first of them
           was delivered (`since_ns`), and `again_frame`, where the broker delivered one of them again, as redelivered
headless   one row per link of 1.0 over which a client publishes to RabbitMQ: `messages` without a header section
reply_queues  one row per connection to RabbitMQ with mandatory publishes to queues of direct reply-to: `messages`
old_headers   one row per connection to RabbitMQ with `messages` that have headers of its releases up to 3.13, and one
           `header` of these
tokens     one row per token put to the node $cbs (1.0) that expired while its connection was open, and not renewed
token_messages   one row per connection with messages that put a token: to $cbs, or by PUT /auth/tokens (1.0)

Context 'requeue_loops': messages that are delivered from one queue again and again.

One row per message, at its last delivery:

    redeliveries  deliveries with the flag redelivered
    quick         of these, redeliveries within the time of PR-11 of a requeue that itself came within that time of its
                  delivery: no consumer can have worked on the message
    frame_no      the first redelivery

A message is identified by its id, else by its octets. Different messages may have equal octets, so first deliveries
are subtracted there.
"""

from __future__ import annotations

from pipeline.audit.contexts.channels import CHANNEL_CLOSES
from pipeline.audit.contexts.sources import (
    BROKER,
    CHANNEL,
    CONNECTION_VERSIONS,
    DELIVERED,
    Context,
    Relation,
    Sources,
    columns,
)
from pipeline.audit.detectors import Sql, sql_in

RABBITMQ = "RabbitMQ"  # as the broker names itself
# Name -> its path in the arguments, and its type.
ARGUMENTS = {
    "passive": ("$.passive", "boolean"),
    "durable": ("$.durable", "boolean"),
    "exclusive": ("$.exclusive", "boolean"),
    "global": ("$.global", "boolean"),
    "prefetch_count": ("$.prefetch_count", "int"),
    "mode": ('$.arguments["x-queue-mode"]', "string"),
    "queue_version": ('$.arguments["x-queue-version"]', "string"),
    "locator": ('$.arguments["x-queue-master-locator"]', "string"),
    "mirrored": ('$.arguments["x-ha-policy"]', "string"),
    "role": ("$.role", "boolean"),
    "source": ("$.source.address", "string"),
    "target": ("$.target.address", "string"),
    "filters": ("$.source.filter", "map<string, variant>"),
}
DECLARES = ("queue.declare", "exchange.declare", "queue.bind")
# Methods that may give a route a queue.
ROUTES = ("queue.declare", "queue.bind", "exchange.bind", "exchange.declare")
QUORUM = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'quorum' AND "
    "try_variant_get(arguments, '$.arguments[\"x-delivery-limit\"]', 'variant') IS NULL"
)
# What RabbitMQ writes into channel.close with 406.
TIMED_OUT = (
    "name = 'channel.close' AND sender = 'server' AND args.reply_code = 406 AND "
    "args.reply_text LIKE '%delivery acknowledgement on channel%timed out%'"
)
SETTLES = ("basic.ack", "basic.nack", "basic.reject")
CBS = "$cbs"  # the node that takes tokens (AMQP Claims-based Security, section 3)
UPGRADING = ("queue.declare", "basic.qos", "attach")
MS_NS = 10**6
TO_RABBITMQ: Sql = f"""(SELECT connection_id, server_version, {columns(BROKER)}
                        FROM known_connections WHERE server_product = '{RABBITMQ}')"""
PUTS_BACK = ("basic.nack", "basic.recover", "basic.recover-async")
# The release of the broker as a number: 4.3 is 4003.
RELEASE: Sql = (
    "coalesce(TRY_CAST(regexp_extract(server_version, '^([0-9]{1,4})[.]', 1) AS INT) * 1000 + "
    "TRY_CAST(regexp_extract(server_version, '^[0-9]{1,4}[.]([0-9]{1,3})', 1) AS INT), 0)"
)
CONSUMERS_TIME_OUT = 4003  # RabbitMQ 4.3: quorum queues watch over their consumers themselves
# Headers in which RabbitMQ up to 3.13 kept the sections of 1.0 that 0-9-1 does not have.
OLD_HEADERS = tuple(
    f"x-amqp-1.0-{section}" for section in ("properties", "app-properties", "message-annotations", "footer")
)
VALUES: Sql = ", ".join(
    f"try_variant_get(arguments, '{path}', '{kind}') AS {name}" for name, (path, kind) in ARGUMENTS.items()
)
# Queues that are declared over 1.0 (PUT /queues/QUEUE, percent-encoded), as if by queue.declare.
MANAGED_QUEUES: Sql = """
    SELECT connection_id, '1.0' AS version, first_frame_no AS frame_no, ts_ns, channel, 'queue.declare' AS name,
           try_url_decode(replace(substring(management_target, 9), '+', '%2B')) AS queue,
           try_variant_get(properties, '$.body_value', 'variant') AS arguments
    FROM messages WHERE management_operation = 'PUT' AND management_target LIKE '/queues/%'"""
# A receiver names its source, a sender its target.
UPGRADES: Sql = f"""
    SELECT *, IF(role, source, target) AS address,
           map_keys(map_filter(filters, (name, filter) -> try_variant_get(filter, '$.descriptor', 'variant') IS NULL))
               AS bare_filters
    FROM (SELECT connection_id, version, frame_no, ts_ns, channel, name, queue, {VALUES}
          FROM (SELECT connection_id, version, frame_no, ts_ns, channel, name, queue, arguments
                FROM control_methods WHERE sender = 'client' AND {sql_in("name", UPGRADING)}
                UNION ALL {MANAGED_QUEUES}))
    JOIN {TO_RABBITMQ} USING (connection_id)"""

REQUEUED: Sql = f"""
    SELECT *
    FROM (SELECT connection_id, queue, count(1) AS messages, '0-9-1' AS version, min(frame_no) AS frame_no,
                 min(ts_ns) AS ts_ns, any_value(server_version) AS server_version, {columns(BROKER)}
          FROM (SELECT connection_id, queue, settled_frame_no AS frame_no, settled_ts_ns AS ts_ns
                FROM messages WHERE outcome = 'requeued' AND queue IS NOT NULL)
          LEFT JOIN (SELECT connection_id, frame_no, true AS put_back
                     FROM control_methods WHERE {sql_in("name", PUTS_BACK)}) USING (connection_id, frame_no)
          JOIN {TO_RABBITMQ} USING (connection_id)
          WHERE NOT (coalesce(put_back, false) AND {RELEASE} >= {CONSUMERS_TIME_OUT})
          GROUP BY connection_id, queue, {columns(BROKER)})
    LEFT SEMI JOIN (SELECT * FROM (SELECT connection_id, queue FROM control_methods WHERE {QUORUM})
                    JOIN {TO_RABBITMQ} USING (connection_id)) USING ({columns(BROKER)}, queue)"""

SHOT: Sql = "messages_published = 1 AND messages_delivered = 0"
OF_CLIENT: Sql = f"PARTITION BY client_ip, client_name, {columns(BROKER)}"
OF_USER: Sql = f"PARTITION BY user, {columns(BROKER)}"
IN_TIME: Sql = "ORDER BY opened_ns, connection_id"
HABITS: Sql = f"""
    SELECT *, count_if({SHOT}) OVER ({OF_CLIENT}) AS shots, row_number() OVER ({OF_CLIENT} {IN_TIME}) = 1 AS first_shot,
           sort_array(collect_set(client_product) OVER ({OF_USER})) AS products,
           row_number() OVER ({OF_USER} {IN_TIME}) = 1 AS first_of_user
    FROM (SELECT connection_id, version, ts_ns, first_frame, opened_ns, client_ip, client_name, client_product, user,
                 messages_published, messages_delivered, closed_ts, {columns(BROKER)}
          FROM known_connections WHERE content = 'amqp')
    LEFT JOIN (SELECT connection_id, count_if(single) AS singles,
                      min(CASE WHEN single THEN first_frame END) AS first_single, sum(large) AS large,
                      min(first_large) AS first_large, max(largest) AS largest
               FROM (SELECT connection_id, count(1) = 1 AND count_if(operation = 'publish'
                                                                     AND first_frame = last_frame) = 1 AS single,
                            min(first_frame) AS first_frame, sum(large) AS large, min(first_large) AS first_large,
                            max(largest) AS largest
                     FROM message_counts GROUP BY {columns(CHANNEL)})
               GROUP BY connection_id) USING (connection_id)
    LEFT JOIN (SELECT connection_id, count(1) AS leaked
               FROM (SELECT {columns(CHANNEL)} FROM channels
                     WHERE opened_ts IS NOT NULL AND closed_ts IS NULL AND published <= 1 AND delivered <= 1)
               LEFT ANTI JOIN links USING ({columns(CHANNEL)})
               GROUP BY connection_id) USING (connection_id)"""

REPEATS: Sql = f"""
    SELECT connection_id, version, name, queue, exchange, count(1) AS times, min(frame_no) AS frame_no,
           min(ts_ns) AS ts_ns
    FROM control_methods
    WHERE {sql_in("name", DECLARES)} AND NOT coalesce(try_variant_get(arguments, '$.passive', 'boolean'), false)
          AND (coalesce(queue, '') != '' OR name != 'queue.declare')
    GROUP BY connection_id, version, name, queue, exchange"""

ROUTE: Sql = f"{columns(BROKER)}, exchange, routing_key"
BROKERS: Sql = f"(SELECT connection_id, version, {columns(BROKER)} FROM known_connections)"
PUBLISHED: Sql = f"(SELECT * FROM messages WHERE operation = 'publish') JOIN {BROKERS} USING (connection_id)"
UNROUTED: Sql = f"""
    SELECT /*+ BROADCAST(returned) */ connection_id, version, exchange, routing_key, count(1) AS messages,
           min(first_frame_no) AS frame_no, min(ts_ns) AS ts_ns
    FROM {PUBLISHED}
    JOIN (SELECT {ROUTE}, returned_ns, min(CASE WHEN changed_ns > returned_ns THEN changed_ns END) AS changed_ns
          FROM (SELECT {ROUTE}, min(ts_ns) AS returned_ns
                FROM {PUBLISHED} WHERE mandatory AND returned_frame_no IS NOT NULL GROUP BY {ROUTE})
          LEFT JOIN (SELECT {columns(BROKER)}, ts_ns AS changed_ns
                     FROM (SELECT connection_id, ts_ns FROM control_methods WHERE {sql_in("name", ROUTES)})
                     JOIN {BROKERS} USING (connection_id)) USING ({columns(BROKER)})
          GROUP BY {ROUTE}, returned_ns) AS returned USING ({ROUTE})
    WHERE NOT mandatory AND ts_ns > returned_ns AND (changed_ns IS NULL OR ts_ns < changed_ns)
    GROUP BY connection_id, version, exchange, routing_key"""

# Channels that the broker closed because an acknowledgement took too long.
TIMED_OUT_CHANNELS: Sql = f"""
    SELECT {columns(CHANNEL)}, version, frame_no, ts_ns, args.reply_text
    FROM ({CHANNEL_CLOSES})
    WHERE {TIMED_OUT}"""
ALLOWED_MS: Sql = "TRY_CAST(nullif(regexp_extract(reply_text, 'Timeout value used: ([0-9]+) ms', 1), '') AS BIGINT)"
# The capture may see a delivery this much later than the broker sent it.
UNDER_WAY_NS = 10**9
# The broker ignores acknowledgements on a channel that it has closed: they settle nothing.
TIMED_OUT_DELIVERIES: Sql = f"""
    WITH waiting AS (
        SELECT {columns(CHANNEL)}, count(1) AS deliveries, max(settle_latency_ns) AS slowest_ns,
               min(CASE WHEN settled_frame_no IS NULL OR settled_frame_no > frame_no THEN
                       struct(first_frame_no, delivery_tag, queue, since_ns) END) AS of
        FROM (SELECT {columns(CHANNEL)}, first_frame_no, delivery_tag, queue, settled_frame_no, settle_latency_ns,
                     ts_ns AS since_ns
              FROM messages WHERE {DELIVERED} AND outcome != 'presettled')
        JOIN (SELECT {columns(CHANNEL)}, frame_no FROM timed_out_channels) USING ({columns(CHANNEL)})
        GROUP BY {columns(CHANNEL)})
    SELECT *, frame_no AS content_frame_no,
           coalesce(ts_ns - of.since_ns >= {ALLOWED_MS} * {MS_NS} - {UNDER_WAY_NS}, of IS NOT NULL) AS late
    FROM timed_out_channels LEFT JOIN waiting USING ({columns(CHANNEL)})
    LEFT JOIN (SELECT {columns(CHANNEL)}, min(acked_frame) AS acked_frame
               FROM (SELECT connection_id, channel, frame_no AS acked_frame, delivery_tag AS tag
                     FROM methods WHERE {sql_in("name", SETTLES)} AND sender = 'client')
               JOIN waiting USING (connection_id, channel)
               WHERE acked_frame > of.first_frame_no AND tag = of.delivery_tag
               GROUP BY {columns(CHANNEL)}) USING ({columns(CHANNEL)})"""

TAKES_TOKENS = f"(address = '{CBS}' OR address LIKE '%/{CBS}' OR address = '/management')"
TOKEN_CONNECTIONS: Sql = f"SELECT DISTINCT connection_id FROM links WHERE {TAKES_TOKENS}"
OF_PROPERTIES = {name: f"try_variant_get(properties, '$.properties.{name}', 'string')" for name in ("to", "subject")}
# To `$cbs` by Azure's clients and by those of the OASIS document; to RabbitMQ over 1.0.
PUTS_TOKEN: Sql = (
    f"(try_variant_get(headers, '$.operation', 'string') = 'put-token' OR {OF_PROPERTIES['subject']} = 'set-token' OR "
    f"{OF_PROPERTIES['to']} = '/auth/tokens' AND {OF_PROPERTIES['subject']} = 'PUT')"
)
TOKEN_MESSAGES: Sql = f"""
    SELECT first.*, messages, known.*
    FROM (SELECT connection_id, count(1) AS messages,
                 min(struct(first_frame_no AS frame_no, ts_ns, address)) AS first
          FROM messages WHERE operation = 'publish' AND {TAKES_TOKENS} AND {PUTS_TOKEN} GROUP BY connection_id)
    JOIN (SELECT connection_id, version, tls FROM known_connections) AS known USING (connection_id)"""
# A consumer that the broker cancels while it has unsettled messages, which then go to somebody else: a queue that was
# deleted does not deliver.
CANCELLED: Sql = f"""
    WITH cancels AS (
        SELECT connection_id, channel, frame_no, ts_ns, version, {columns(BROKER)},
               try_variant_get(arguments, '$.consumer_tag', 'string') AS link
        FROM control_methods JOIN {TO_RABBITMQ} USING (connection_id)
        WHERE name = 'basic.cancel' AND sender = 'server' AND {RELEASE} >= {CONSUMERS_TIME_OUT}),
    taken AS (
        SELECT cancels.*, channel_life, queue, first_frame_no, since_ns, known
        FROM (SELECT {columns(CHANNEL)}, link, queue, first_frame_no, ts_ns AS since_ns, settled_frame_no,
                     coalesce(message_id, body_sha256) AS known
              FROM messages WHERE operation = 'deliver' AND outcome != 'presettled' AND queue IS NOT NULL)
        JOIN cancels USING (connection_id, channel, link)
        WHERE first_frame_no < frame_no AND coalesce(settled_frame_no > frame_no, true))
    SELECT {columns(CHANNEL)}, version, link, queue, frame_no, ts_ns, count(DISTINCT first_frame_no) AS messages,
           min(since_ns) AS since_ns, min(again_frame) AS again_frame
    FROM taken
    JOIN (SELECT {columns(BROKER)}, queue, coalesce(message_id, body_sha256) AS known, ts_ns AS again_ns,
                 first_frame_no AS again_frame
          FROM messages JOIN {TO_RABBITMQ} USING (connection_id)
          WHERE {DELIVERED} AND redelivered) USING ({columns(BROKER)}, queue, known)
    WHERE again_ns >= ts_ns
    GROUP BY {columns(CHANNEL)}, version, link, queue, frame_no, ts_ns"""

HEADLESS: Sql = f"""
    SELECT connection_id, channel, channel_life, link, version, address, queue_type, server_version,
           count(1) AS messages, min(struct(first_frame_no AS frame_no, ts_ns)) AS first
    FROM (SELECT {columns(CHANNEL)}, link, address, first_frame_no, ts_ns,
                 try_variant_get(properties, '$.header', 'variant') AS header
          FROM messages
          WHERE operation = 'publish' AND durable IS NULL AND complete AND coalesce(message_format, 0) = 0
                AND NOT coalesce(resumed, false) AND NOT coalesce(address RLIKE '^[$]|^/management', false))
    JOIN (SELECT connection_id, version, server_version
          FROM known_connections WHERE server_product = '{RABBITMQ}' AND version = '1.0') USING (connection_id)
    LEFT JOIN (SELECT {columns(CHANNEL)}, name AS link, max(queue_type) AS queue_type
               FROM links WHERE kind = 'sender' GROUP BY {columns(CHANNEL)}, name) USING ({columns(CHANNEL)}, link)
    WHERE header IS NULL
    GROUP BY connection_id, channel, channel_life, link, version, address, queue_type, server_version"""
REPLY_QUEUES: Sql = f"""
    SELECT connection_id, version, server_version, count(1) AS messages,
           min(struct(first_frame_no AS frame_no, ts_ns)) AS first
    FROM messages JOIN {TO_RABBITMQ} USING (connection_id)
    JOIN {CONNECTION_VERSIONS} USING (connection_id)
    WHERE operation = 'publish' AND mandatory AND routing_key LIKE 'amq.rabbitmq.reply-to.%'
    GROUP BY connection_id, version, server_version"""
HAS_OLD: Sql = ", ".join(
    f"""CASE WHEN try_variant_get(headers, '$["{name}"]', 'variant') IS NOT NULL THEN '{name}' END"""
    for name in OLD_HEADERS
)
OLD_HEADED: Sql = f"""
    SELECT connection_id, version, server_version, count(1) AS messages, min(header) AS header,
           min(struct(first_frame_no AS frame_no, ts_ns)) AS first
    FROM (SELECT connection_id, first_frame_no, ts_ns, coalesce({HAS_OLD}) AS header
          FROM messages WHERE headers IS NOT NULL)
    JOIN {TO_RABBITMQ} USING (connection_id)
    JOIN {CONNECTION_VERSIONS} USING (connection_id)
    WHERE header IS NOT NULL GROUP BY connection_id, version, server_version"""

TOKENS: Sql = f"""
    SELECT *
    FROM (SELECT *, lead(ts_ns) OVER (PARTITION BY connection_id, audience ORDER BY frame_no) AS renewed_ns
          FROM (SELECT connection_id, ts_ns, first_frame_no AS frame_no,
                       try_variant_get(headers, '$.name', 'string') AS audience,
                       unix_micros(try_variant_get(headers, '$.expiration', 'timestamp')) * 1000 AS expires_ns
                FROM messages WHERE operation = 'publish' AND address = '{CBS}'
                                    AND try_variant_get(headers, '$.operation', 'string') = 'put-token'))
    JOIN (SELECT connection_id, version, ts_ns AS last_ns FROM known_connections) USING (connection_id)
    WHERE expires_ns < coalesce(renewed_ns, last_ns)"""

PLACE = "server_ip, server_port, vhost, of_queue"


def requeue_loops(sources: Sources) -> Sql:
    within_ns = int(sources.limit("PR-11", "within_ms") * MS_NS)
    # Few messages come again: only what may be one of these is put in order.
    return f"""
        WITH delivered AS (
            SELECT *
            FROM (SELECT connection_id, first_frame_no, ts_ns, settled_ts_ns, outcome, redelivered, message_id,
                         coalesce(queue, address) AS of_queue,
                         coalesce(message_id, concat_ws(' ', body_sha256, correlation_id)) AS known
                  FROM messages WHERE {DELIVERED} AND NOT coalesce(browsed, false))
            WHERE known IS NOT NULL AND of_queue IS NOT NULL)
        SELECT of_queue AS queue, message_id, quick, first.*,
               IF(message_id IS NULL, redeliveries - fresh + 1, redeliveries) AS redeliveries
        FROM (SELECT {PLACE}, known, count_if(redelivered) AS redeliveries, count_if(quick) AS quick,
                     count_if(NOT redelivered) AS fresh, any_value(message_id) AS message_id,
                     min(CASE WHEN redelivered THEN
                             struct(ts_ns, connection_id, first_frame_no AS frame_no, version) END) AS first
              FROM (SELECT *, redelivered AND before.outcome IN ('requeued', 'released', 'modified')
                              AND before.settled_ts_ns - before.ts_ns < {within_ns}
                              AND ts_ns - before.settled_ts_ns < {within_ns} AS quick
                    FROM (SELECT *, lag(struct(ts_ns, outcome, settled_ts_ns)) OVER (
                                     PARTITION BY {PLACE}, known ORDER BY ts_ns, connection_id, first_frame_no
                                 ) AS before
                          FROM delivered
                          LEFT SEMI JOIN (SELECT of_queue, known FROM delivered WHERE redelivered)
                              USING (of_queue, known)
                          JOIN {BROKERS} USING (connection_id)))
              GROUP BY {PLACE}, known)"""


RELATIONS = {
    "to_rabbitmq": Relation(f"SELECT connection_id FROM {TO_RABBITMQ}"),
    "timed_out_channels": Relation(TIMED_OUT_CHANNELS),
    "token_connections": Relation(TOKEN_CONNECTIONS),
}
CONTEXTS = {
    "upgrades": Context(UPGRADES, CHANNEL[:2], methods=UPGRADING),
    "requeued": Context(REQUEUED, messages="requeued", full_scan=True),
    "habits": Context(HABITS),
    "repeats": Context(REPEATS, methods=DECLARES),
    "requeue_loops": Context(requeue_loops, messages="redelivered", full_scan=True),
    "unrouted": Context(UNROUTED, messages="returned", full_scan=True),
    "timed_out": Context(
        TIMED_OUT_DELIVERIES, CHANNEL, rows="timed_out_channels", methods=("channel.close",), full_scan=True
    ),
    "cancelled": Context(CANCELLED, CHANNEL, messages="redelivered", methods=("basic.cancel",), full_scan=True),
    "headless": Context(HEADLESS, CHANNEL, versions=("1.0",), full_scan=True),
    "reply_queues": Context(REPLY_QUEUES, rows="to_rabbitmq", versions=("0-9-1",), full_scan=True),
    "old_headers": Context(OLD_HEADED, rows="to_rabbitmq", full_scan=True),
    "tokens": Context(TOKENS, rows="token_connections", versions=("1.0",), full_scan=True),
    "token_messages": Context(TOKEN_MESSAGES, rows="token_connections", versions=("1.0",), full_scan=True),
}
