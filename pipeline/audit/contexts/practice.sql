-- Connections to RabbitMQ, as the broker names itself. `release`: 4.3 is 4003.
CREATE TABLE to_rabbitmq AS
SELECT connection_id, server_version, server_ip, server_port, vhost,
       coalesce(TRY_CAST(regexp_extract(server_version, '^([0-9]{1,4})[.]', 1) AS INTEGER) * 1000
                + TRY_CAST(regexp_extract(server_version, '^[0-9]{1,4}[.]([0-9]{1,3})', 1) AS INTEGER), 0) AS release
FROM known_connections WHERE server_product = 'RabbitMQ';

-- What RabbitMQ 4 refuses: one row per queue.declare (1.0: management request), basic.qos or attach on a connection to
-- RabbitMQ, with the settings that later releases refuse (`mode`, `queue_version`, `locator`, `mirrored`, `address` ...).
-- A receiver names its source, a sender its target. Queues that are declared over 1.0 are as if
-- by queue.declare.
CREATE VIEW context_upgrades AS
SELECT *, CASE WHEN role THEN source ELSE target END AS address,
       list_transform(list_filter(map_entries(filters), lambda entry: entry.value ->> '$.descriptor' IS NULL),
                      lambda entry: entry.key) AS bare_filters
FROM (SELECT connection_id, version, frame_no, ts_ns, channel, name, queue,
             TRY_CAST(arguments.passive AS BOOLEAN) AS passive, TRY_CAST(arguments.durable AS BOOLEAN) AS durable,
             TRY_CAST(arguments.exclusive AS BOOLEAN) AS exclusive,
             TRY_CAST(arguments."global" AS BOOLEAN) AS "global",
             TRY_CAST(arguments.prefetch_count AS INTEGER) AS prefetch_count,
             text_of(arguments.arguments."x-queue-mode") AS mode,
             text_of(arguments.arguments."x-queue-version") AS queue_version,
             text_of(arguments.arguments."x-queue-master-locator") AS locator,
             text_of(arguments.arguments."x-ha-policy") AS mirrored,
             TRY_CAST(arguments.role AS BOOLEAN) AS role, text_of(arguments.source.address) AS source,
             text_of(arguments.target.address) AS target,
             TRY_CAST(json_object_of(arguments.source.filter) AS MAP(VARCHAR, JSON)) AS filters
      FROM (SELECT connection_id, version, frame_no, ts_ns, channel, name, queue, arguments
            FROM control_methods WHERE sender = 'client' AND name IN ('queue.declare', 'basic.qos', 'attach')
            UNION ALL
            SELECT connection_id, version, frame_no, ts_ns, channel, name, queue, arguments
            FROM managed WHERE name = 'queue.declare'))
JOIN to_rabbitmq USING (connection_id);

-- Requeued `messages` by connection to RabbitMQ and queue. From 4.3 what is put back does not count.
CREATE VIEW fact_requeued AS
SELECT connection_id, queue, count(*) AS messages, '0-9-1' AS version, min(frame_no) AS frame_no, min(ts_ns) AS ts_ns,
       any_value(server_version) AS server_version, server_ip, server_port, vhost
FROM (SELECT connection_id, queue, settled_frame_no AS frame_no, settled_ts_ns AS ts_ns
      FROM messages WHERE outcome = 'requeued' AND queue IS NOT NULL)
LEFT JOIN (SELECT connection_id, frame_no, true AS put_back FROM control_methods
           WHERE name IN ('basic.nack', 'basic.recover', 'basic.recover-async'))
    USING (connection_id, frame_no)
JOIN to_rabbitmq USING (connection_id)
WHERE NOT (coalesce(put_back, false) AND release >= 4003)
GROUP BY connection_id, queue, server_ip, server_port, vhost;

-- Quorum queues that are declared without a delivery limit of their own.
CREATE VIEW fact_unlimited_queues AS
SELECT DISTINCT queue, server_ip, server_port, vhost
FROM (SELECT connection_id, queue
      FROM (SELECT connection_id, name, queue, arguments FROM control_methods
            UNION ALL SELECT connection_id, name, queue, arguments FROM managed)
      WHERE name = 'queue.declare' AND TRY_CAST(arguments.arguments."x-queue-type" AS VARCHAR) = 'quorum'
            AND arguments.arguments."x-delivery-limit" IS NULL)
JOIN to_rabbitmq USING (connection_id);

CREATE VIEW context_requeued AS
SELECT * FROM fact_requeued SEMI JOIN fact_unlimited_queues USING (server_ip, server_port, vhost, queue);

-- One row per connection with messages or channels: `singles`, channels of the connection that sent one message and
-- nothing else; `leaked`, channels that were opened, hardly used and never closed; `large`, published messages above the
-- limit of PR-09, and the `largest`.
CREATE VIEW fact_habits AS
SELECT *
FROM (SELECT connection_id, count_if(single) AS singles, min(CASE WHEN single THEN first_frame END) AS first_single,
             sum(large)::BIGINT AS large, min(first_large) AS first_large, max(largest) AS largest
      FROM (SELECT connection_id,
                   count(*) = 1 AND count_if(operation = 'publish' AND first_frame = last_frame) = 1 AS single,
                   min(first_frame) AS first_frame, sum(large) AS large, min(first_large) AS first_large,
                   max(largest) AS largest
            FROM message_counts GROUP BY connection_id, channel, channel_incarnation)
      GROUP BY connection_id)
FULL JOIN (SELECT connection_id, count(*) AS leaked
           FROM (SELECT connection_id, channel, channel_incarnation FROM channels
                 WHERE opened_ts IS NOT NULL AND closed_ts IS NULL AND published <= 1 AND delivered <= 1)
           ANTI JOIN links USING (connection_id, channel, channel_incarnation)
           GROUP BY connection_id) USING (connection_id);

-- The same with `shots`, connections of the same application and host that sent one message and nothing else.
-- `first_shot`: the first such connection; `products` of the same user, where it is the first connection of that user: a
-- list at each of them would make their number squared.
CREATE VIEW context_habits AS
WITH habits AS (
    SELECT *
    FROM (SELECT connection_id, version, ts_ns, first_frame, opened_ns, client_ip, client_name, client_product, "user",
                 messages_published, messages_delivered, server_ip, server_port, vhost
          FROM fact_connections WHERE content = 'amqp')
    LEFT JOIN fact_habits USING (connection_id))
SELECT *, count_if(messages_published = 1 AND messages_delivered = 0) OVER of_client AS shots,
       row_number() OVER (of_client ORDER BY opened_ns, connection_id) = 1 AS first_shot
FROM habits
LEFT JOIN (SELECT arg_min(connection_id, {'ns': opened_ns, 'of': connection_id}) AS connection_id,
                  list_sort(list(DISTINCT client_product) FILTER (WHERE client_product IS NOT NULL)) AS products
           FROM habits WHERE "user" IS NOT NULL
           GROUP BY "user", server_ip, server_port, vhost) USING (connection_id)
WINDOW of_client AS (PARTITION BY client_ip, client_name, server_ip, server_port, vhost);

-- One row per declaration or binding that a connection repeats: `times`, and frame_no and ts_ns of the first.
CREATE VIEW context_repeats AS
SELECT connection_id, version, name, queue, exchange, count(*) AS times, min(frame_no) AS frame_no, min(ts_ns) AS ts_ns
FROM control_methods
WHERE name IN ('queue.declare', 'exchange.declare', 'queue.bind')
      AND NOT coalesce(TRY_CAST(arguments.passive AS BOOLEAN), false)
      AND (coalesce(queue, '') != '' OR name != 'queue.declare')
GROUP BY connection_id, version, name, queue, exchange;

-- Routes over which a broker returned a mandatory message, and when first.
CREATE VIEW fact_returned AS
SELECT server_ip, server_port, vhost, exchange, routing_key, min(messages.ts_ns) AS returned_ns
FROM messages JOIN connections USING (connection_id)
WHERE operation = 'publish' AND mandatory AND returned_frame_no IS NOT NULL
GROUP BY server_ip, server_port, vhost, exchange, routing_key;

-- When declarations and bindings could change routes of a broker.
CREATE VIEW fact_route_changes AS
SELECT DISTINCT server_ip, server_port, vhost, ts_ns AS changed_ns
FROM (SELECT connection_id, name, ts_ns FROM control_methods UNION ALL SELECT connection_id, name, ts_ns FROM managed)
JOIN (SELECT connection_id, server_ip, server_port, vhost FROM connections) USING (connection_id)
WHERE name IN ('queue.declare', 'queue.bind', 'exchange.bind', 'exchange.declare');

-- The same routes with the first change after that.
CREATE VIEW returned_routes AS
SELECT returned.*, changed_ns
FROM (SELECT server_ip, server_port, vhost, exchange, routing_key, min(returned_ns) AS returned_ns
      FROM fact_returned GROUP BY server_ip, server_port, vhost, exchange, routing_key) AS returned
ASOF LEFT JOIN fact_route_changes AS changes
    ON returned.server_ip = changes.server_ip AND returned.server_port = changes.server_port
       AND returned.vhost = changes.vhost AND returned.returned_ns < changes.changed_ns;

-- One row per connection and route: `messages` published without 'mandatory' after the broker returned a mandatory one,
-- and before any declaration or binding that could change the route.
CREATE VIEW fact_unrouted AS
SELECT connection_id, version, exchange, routing_key, count(*) AS messages, min(first_frame_no) AS frame_no,
       min(ts_ns) AS ts_ns
FROM (SELECT connection_id, connections.version, server_ip, server_port, vhost, exchange, routing_key, mandatory,
             messages.ts_ns AS ts_ns, first_frame_no
      FROM messages JOIN connections USING (connection_id) WHERE operation = 'publish')
JOIN returned_routes USING (server_ip, server_port, vhost, exchange, routing_key)
WHERE NOT mandatory AND ts_ns > returned_ns AND (changed_ns IS NULL OR ts_ns < changed_ns)
GROUP BY connection_id, version, exchange, routing_key;

CREATE VIEW context_unrouted AS SELECT * FROM fact_unrouted;

-- One row per channel that the broker closed because an acknowledgement took too long: `of`, the delivery that waited
-- longest, and `acked_frame`, its acknowledgement on the wire; `late`: it waited as long as the broker allows (the
-- capture may see a delivery a second later than the broker sent it); `deliveries` of the channel that need an
-- acknowledgement, and `slowest_ns`, the longest time to one. The broker ignores acknowledgements on a channel that it
-- has closed: they settle nothing.
CREATE VIEW context_timed_out AS
WITH closed AS (
    SELECT connection_id, channel, channel_incarnation, version, frame_no, ts_ns, args.reply_text AS reply_text
    FROM channel_closes
    WHERE name = 'channel.close' AND sender = 'server' AND args.reply_code = 406
          AND args.reply_text LIKE '%delivery acknowledgement on channel%timed out%'),
waiting AS (
    SELECT connection_id, channel, channel_incarnation, count(*) AS deliveries, max(settle_latency_ns) AS slowest_ns,
           arg_min({'first_frame_no': first_frame_no, 'delivery_tag': delivery_tag, 'queue': queue,
                    'since_ns': since_ns}, first_frame_no)
               FILTER (WHERE settled_frame_no IS NULL OR settled_frame_no > frame_no) AS "of"
    FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no, delivery_tag, queue, settled_frame_no,
                 settle_latency_ns, ts_ns AS since_ns
          FROM messages WHERE operation IN ('deliver', 'get') AND outcome != 'presettled')
    JOIN (SELECT connection_id, channel, channel_incarnation, frame_no FROM closed)
        USING (connection_id, channel, channel_incarnation)
    GROUP BY connection_id, channel, channel_incarnation)
SELECT *, frame_no AS content_frame_no,
       coalesce(ts_ns - "of".since_ns >= TRY_CAST(nullif(regexp_extract(
                    reply_text, 'Timeout value used: ([0-9]+) ms', 1), '') AS BIGINT)::HUGEINT * 1000000 - 1000000000,
                "of" IS NOT NULL) AS late
FROM closed LEFT JOIN waiting USING (connection_id, channel, channel_incarnation)
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, min(acked_frame) AS acked_frame
           FROM (SELECT connection_id, channel, frame_no AS acked_frame, delivery_tag AS tag
                 FROM methods WHERE name IN ('basic.ack', 'basic.nack', 'basic.reject') AND sender = 'client')
           JOIN waiting USING (connection_id, channel)
           WHERE acked_frame > "of".first_frame_no AND tag = "of".delivery_tag
           GROUP BY connection_id, channel, channel_incarnation) USING (connection_id, channel, channel_incarnation);

-- Messages that were unsettled when RabbitMQ 4.3 or later cancelled their consumer, the first time after their delivery;
-- `known` identifies them. A queue that was deleted does not deliver.
CREATE VIEW fact_taken_back AS
WITH cancels AS (
    SELECT connection_id, channel, frame_no, ts_ns, version, server_ip, server_port, vhost,
           TRY_CAST(arguments.consumer_tag AS VARCHAR) AS link
    FROM control_methods JOIN to_rabbitmq USING (connection_id)
    WHERE name = 'basic.cancel' AND sender = 'server' AND release >= 4003)
SELECT cancels.*, channel_incarnation, queue, first_frame_no, since_ns, known
FROM (SELECT connection_id, channel, channel_incarnation, link, queue, first_frame_no, ts_ns AS since_ns,
             settled_frame_no, coalesce(message_id, body_sha256) AS known
      FROM messages WHERE operation = 'deliver' AND outcome != 'presettled' AND queue IS NOT NULL) AS held
ASOF JOIN cancels ON held.connection_id = cancels.connection_id AND held.channel = cancels.channel
                     AND held.link = cancels.link AND held.first_frame_no < cancels.frame_no
WHERE coalesce(settled_frame_no > frame_no, true);

CREATE VIEW taken_keys AS SELECT DISTINCT server_ip, server_port, vhost, queue, known FROM fact_taken_back;

-- Where the broker delivered one of them again, as redelivered.
CREATE VIEW fact_delivered_again AS
SELECT server_ip, server_port, vhost, queue, known, again_ns, again_frame
FROM (SELECT server_ip, server_port, vhost, queue, coalesce(message_id, body_sha256) AS known, messages.ts_ns AS again_ns,
             first_frame_no AS again_frame
      FROM messages JOIN connections USING (connection_id)
      WHERE operation IN ('deliver', 'get') AND redelivered AND server_product = 'RabbitMQ')
SEMI JOIN taken_keys USING (server_ip, server_port, vhost, queue, known);

-- One row per consumer that was cancelled so: its unsettled `messages`, when the first of them was delivered (`since_ns`),
-- and `again_frame`, where the broker delivered one of them again.
CREATE VIEW context_cancelled AS
SELECT connection_id, channel, channel_incarnation, version, link, queue, frame_no, ts_ns,
       count(DISTINCT first_frame_no) AS messages, min(since_ns) AS since_ns, min(again_frame) AS again_frame
FROM (SELECT back.*, again_frame
      FROM fact_taken_back AS back
      ASOF JOIN fact_delivered_again AS again
          ON back.server_ip = again.server_ip AND back.server_port = again.server_port AND back.vhost = again.vhost
             AND back.queue = again.queue AND back.known = again.known AND back.ts_ns <= again.again_ns)
GROUP BY connection_id, channel, channel_incarnation, version, link, queue, frame_no, ts_ns;

-- One row per link of 1.0 over which a client publishes to RabbitMQ: `messages` without a header section, and the
-- queue that they are for, if it is one by its address.
CREATE VIEW fact_headless AS
SELECT connection_id, channel, channel_incarnation, link, version, address, server_version, server_ip, server_port,
       vhost, count(*) AS messages, CASE WHEN count(DISTINCT exchange || routing_key) = 1 AND bool_and(exchange = '')
                                  THEN any_value(routing_key) END AS queue,
       arg_min({'frame_no': first_frame_no, 'ts_ns': ts_ns}, first_frame_no) AS first
FROM (SELECT connection_id, channel, channel_incarnation, link, address, exchange, routing_key, first_frame_no, ts_ns,
             properties.header AS header
      FROM messages
      WHERE operation = 'publish' AND durable IS NULL AND complete AND coalesce(message_format, 0) = 0
            AND NOT coalesce(resumed, false)
            AND NOT coalesce(regexp_matches(address, '^[$]|^/management'), false))
JOIN (SELECT connection_id, version FROM known_connections WHERE version = '1.0') USING (connection_id)
JOIN to_rabbitmq USING (connection_id)
WHERE header IS NULL
GROUP BY connection_id, channel, channel_incarnation, link, version, address, server_version, server_ip, server_port,
    vhost;

-- Types with which queues are declared.
CREATE VIEW fact_typed_queues AS
SELECT DISTINCT queue, TRY_CAST(arguments.arguments."x-queue-type" AS VARCHAR) AS queue_type, server_ip,
       server_port, vhost
FROM (SELECT connection_id, name, queue, arguments FROM control_methods
      UNION ALL SELECT connection_id, name, queue, arguments FROM managed)
JOIN to_rabbitmq USING (connection_id)
WHERE name = 'queue.declare' AND arguments.arguments."x-queue-type" IS NOT NULL;

-- With the type of the queue that all its declarations name, on any connection to the broker.
CREATE VIEW context_headless AS
SELECT *
FROM fact_headless
LEFT JOIN (SELECT server_ip, server_port, vhost, queue, min(queue_type) AS queue_type FROM fact_typed_queues
           GROUP BY server_ip, server_port, vhost, queue HAVING min(queue_type) = max(queue_type))
    USING (server_ip, server_port, vhost, queue);

-- One row per connection to RabbitMQ with mandatory publishes to queues of direct reply-to: `messages`.
CREATE VIEW context_reply_queues AS
SELECT connection_id, version, server_version, count(*) AS messages,
       arg_min({'frame_no': first_frame_no, 'ts_ns': messages.ts_ns}, first_frame_no) AS first
FROM messages JOIN to_rabbitmq USING (connection_id)
JOIN (SELECT connection_id, version FROM connections) USING (connection_id)
WHERE operation = 'publish' AND mandatory AND exchange = '' AND routing_key LIKE 'amq.rabbitmq.reply-to.%'
GROUP BY connection_id, version, server_version;

-- One row per connection to RabbitMQ with `messages` that have headers in which its releases up to 3.13 kept the sections
-- of 1.0 that 0-9-1 does not have, and one `header` of these.
CREATE VIEW context_old_headers AS
SELECT connection_id, version, server_version, count(*) AS messages, min(header) AS header,
       arg_min({'frame_no': first_frame_no, 'ts_ns': ts_ns}, first_frame_no) AS first
FROM (SELECT connection_id, first_frame_no, ts_ns,
             list_filter(['x-amqp-1.0-properties', 'x-amqp-1.0-app-properties', 'x-amqp-1.0-message-annotations',
                          'x-amqp-1.0-footer'], lambda name: list_contains(names, name))[1] AS header
      FROM (SELECT connection_id, first_frame_no, ts_ns, variant_keys(headers) AS names FROM messages)
      WHERE list_has_any(names, ['x-amqp-1.0-properties', 'x-amqp-1.0-app-properties',
                                 'x-amqp-1.0-message-annotations', 'x-amqp-1.0-footer']))
JOIN to_rabbitmq USING (connection_id)
JOIN (SELECT connection_id, version FROM connections) USING (connection_id)
WHERE header IS NOT NULL GROUP BY connection_id, version, server_version;

-- One row per token put to the node $cbs (1.0) that expired while its connection was open, and not renewed.
CREATE VIEW context_tokens AS
SELECT *
FROM (SELECT *, lead(ts_ns) OVER (PARTITION BY connection_id, audience ORDER BY frame_no) AS renewed_ns
      FROM (SELECT connection_id, ts_ns, first_frame_no AS frame_no, text_of(headers.name) AS audience,
                   epoch_us(TRY_CAST(headers.expiration AS TIMESTAMPTZ))::HUGEINT * 1000 AS expires_ns
            FROM messages
            WHERE operation = 'publish' AND (address = '$cbs' OR ends_with(address, '/$cbs'))
                  AND TRY_CAST(headers.operation AS VARCHAR) = 'put-token'))
JOIN (SELECT connection_id, version, ts_ns AS last_ns FROM known_connections) USING (connection_id)
WHERE expires_ns < coalesce(renewed_ns, last_ns);

-- One row per connection with messages that put a token: to $cbs by Azure's clients and by those of the OASIS document
-- (AMQP Claims-based Security, section 3), or by PUT /auth/tokens to RabbitMQ (1.0).
CREATE VIEW context_token_messages AS
SELECT connection_id, first.frame_no AS frame_no, first.ts_ns AS ts_ns, first.address AS address, messages, version, tls
FROM (SELECT connection_id, count(*) AS messages,
             arg_min({'frame_no': first_frame_no, 'ts_ns': ts_ns, 'address': address}, first_frame_no) AS first
      FROM messages
      WHERE operation = 'publish' AND (address = '$cbs' OR address LIKE '%/$cbs' OR address = '/management')
            AND (TRY_CAST(headers.operation AS VARCHAR) = 'put-token'
                 OR TRY_CAST(properties.properties.subject AS VARCHAR) = 'set-token'
                 OR TRY_CAST(properties.properties."to" AS VARCHAR) = '/auth/tokens'
                    AND TRY_CAST(properties.properties.subject AS VARCHAR) = 'PUT')
      GROUP BY connection_id)
JOIN (SELECT connection_id, version, tls FROM known_connections) USING (connection_id);

-- Deliveries by `of_queue` and `known`, which identifies a message: its id, else its bytes.
CREATE VIEW known_deliveries AS
SELECT *
FROM (SELECT connection_id, first_frame_no, ts_ns, settled_ts_ns, outcome, redelivered, message_id,
             coalesce(queue, address) AS of_queue,
             coalesce(message_id, concat_ws(' ', body_sha256, correlation_id)) AS known
      FROM messages WHERE operation IN ('deliver', 'get') AND NOT coalesce(browsed, false))
WHERE known IS NOT NULL AND of_queue IS NOT NULL;

CREATE VIEW fact_redelivered AS SELECT DISTINCT of_queue, known FROM known_deliveries WHERE redelivered;

CREATE VIEW redelivered_keys AS SELECT DISTINCT of_queue, known FROM fact_redelivered;

-- Few messages come again: only what may be one of these is a fact.
CREATE VIEW fact_repeated_deliveries AS
SELECT * FROM known_deliveries SEMI JOIN redelivered_keys USING (of_queue, known);

-- Messages that are delivered from one queue again and again. One row per message:
--     redeliveries  deliveries with the flag redelivered
--     quick         of these, redeliveries within the time of PR-11 of a requeue that itself came within that time of its
--                   delivery: no consumer can have worked on the message
--     frame_no      the first redelivery
-- Different messages without an id may have equal bytes, so first deliveries are subtracted there.
CREATE VIEW context_requeue_loops AS
SELECT of_queue AS queue, message_id, quick, first.ts_ns AS ts_ns, first.connection_id AS connection_id,
       first.frame_no AS frame_no, first.version AS version,
       CASE WHEN message_id IS NULL THEN redeliveries - fresh + 1 ELSE redeliveries END AS redeliveries
FROM (SELECT server_ip, server_port, vhost, of_queue, known, count_if(redelivered) AS redeliveries,
             count_if(quick) AS quick, count_if(NOT redelivered) AS fresh, any_value(message_id) AS message_id,
             min({'ts_ns': ts_ns, 'connection_id': connection_id, 'frame_no': first_frame_no, 'version': version})
                 FILTER (WHERE redelivered) AS first
      FROM (SELECT *, redelivered AND before.outcome IN ('requeued', 'released', 'modified')
                      AND before.settled_ts_ns - before.ts_ns < setting('PR-11.within_ms')::BIGINT * 1000000
                      AND ts_ns - before.settled_ts_ns < setting('PR-11.within_ms')::BIGINT * 1000000 AS quick
            FROM (SELECT *, lag({'ts_ns': ts_ns, 'outcome': outcome, 'settled_ts_ns': settled_ts_ns})
                                OVER (PARTITION BY server_ip, server_port, vhost, of_queue, known
                                      ORDER BY ts_ns, connection_id, first_frame_no) AS before
                  FROM fact_repeated_deliveries
                  JOIN (SELECT connection_id, version, server_ip, server_port, vhost FROM fact_connections)
                      USING (connection_id)))
      GROUP BY server_ip, server_port, vhost, of_queue, known);
