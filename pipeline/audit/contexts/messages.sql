-- Messages counted by channel incarnation, `operation` and `link`: `first_frame` and `last_frame`; the number of those of
-- each kind, and of `large` publishes; the frame of the first of those; the `largest` publish, bytes.
CREATE TABLE message_counts AS
SELECT connection_id, channel, channel_incarnation, operation, link, min(first_frame_no) AS first_frame,
       max(first_frame_no) AS last_frame, max(published) AS largest,
       count_if(was_delivered) AS delivered,
       count_if(was_delivered AND outcome = 'unsettled') AS unsettled,
       count_if(was_delivered AND outcome = 'requeued') AS requeued,
       count_if(was_delivered AND outcome = 'rejected') AS rejected,
       count_if(was_delivered AND redelivered) AS redelivered,
       count_if(operation = 'publish' AND durable) AS persistent,
       count_if(published > setting('PR-09.limit_bytes')::BIGINT) AS large,
       min(first_frame_no) FILTER (WHERE was_delivered) AS first_delivered,
       min(first_frame_no) FILTER (WHERE was_delivered AND outcome = 'unsettled') AS first_unsettled,
       min(first_frame_no) FILTER (WHERE was_delivered AND outcome = 'requeued') AS first_requeued,
       min(first_frame_no) FILTER (WHERE was_delivered AND outcome = 'rejected') AS first_rejected,
       min(first_frame_no) FILTER (WHERE was_delivered AND redelivered) AS first_redelivered,
       min(first_frame_no) FILTER (WHERE operation = 'publish' AND durable) AS first_persistent,
       min(first_frame_no) FILTER (WHERE published > setting('PR-09.limit_bytes')::BIGINT) AS first_large
FROM (SELECT connection_id, channel, channel_incarnation, operation, link, first_frame_no, outcome, redelivered,
             durable, operation IN ('deliver', 'get') AS was_delivered,
             CASE operation WHEN 'publish' THEN coalesce(body_size, body_captured) END AS published
      FROM messages)
GROUP BY connection_id, channel, channel_incarnation, operation, link;

-- Deliveries with a delivery tag, and `highest_tag`: the highest tag before, in the same channel incarnation. Deliveries
-- to a direct reply-to consumer have no delivery tags of their own. In the contexts of messages `frame_no` and
-- `content_frame_no` are the frame of their method.
CREATE VIEW context_numbers AS
SELECT *
FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no AS frame_no, first_frame_no
             AS content_frame_no, ts_ns, delivery_tag,
             max(delivery_tag) OVER (PARTITION BY connection_id, channel, channel_incarnation ORDER BY first_frame_no
                                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest_tag
      FROM messages
      WHERE operation IN ('deliver', 'get') AND delivery_tag > 0
            AND coalesce(routing_key, '') NOT LIKE 'amq.rabbitmq.reply-to%')
JOIN (SELECT connection_id, version FROM connections) USING (connection_id);

-- Messages that were settled late or never, with their connection (`c`).
--     waited_ns    from the message to its settlement; without one, to the end of its channel or connection
--     outstanding  messages of its channel that are unsettled at the end
CREATE VIEW context_waits AS
SELECT *, coalesce(settle_latency_ns, least(closed_ns, c.close.ts_ns, c.last_ns) - ts_ns) AS waited_ns
FROM (SELECT *, first_frame_no AS frame_no, first_frame_no AS content_frame_no
      FROM messages
      WHERE settle_latency_ns > (least(setting('CF-04.limit_seconds'), setting('DL-13.limit_seconds'))
                                 * 1000000000)::BIGINT
            OR outcome = 'unsettled')
LEFT JOIN (SELECT connection_id, version FROM connections) USING (connection_id)
LEFT JOIN connection_facts USING (connection_id)
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, epoch_us(closed_ts) * 1000 AS closed_ns,
                  unsettled AS outstanding
           FROM channels) USING (connection_id, channel, channel_incarnation);

-- Publishes in confirm mode that the server returned, paired with equal publishes. A basic.return has no delivery tag:
-- which of several equal publishes it returns is a guess. Brokers return before they confirm; so a return after all
-- equal publishes are confirmed matches none of them, and is paired with the first one.
--     all_confirmed_frame  frame that confirmed the last of the equal publishes of the channel; null: not all confirmed
CREATE VIEW context_returned_publishes AS
WITH publishes AS (
    SELECT connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256, first_frame_no AS frame_no,
           ts_ns, delivery_tag, settled_frame_no, returned_frame_no,
           CASE WHEN count(settled_frame_no) OVER equal = count(*) OVER equal
               THEN max(settled_frame_no) OVER equal END AS all_confirmed_frame
    FROM messages
    WHERE operation = 'publish' AND delivery_tag IS NOT NULL AND (mandatory OR immediate)
    WINDOW equal AS (PARTITION BY connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256)),
unpaired AS (
    SELECT *, row_number() OVER (PARTITION BY connection_id, channel, channel_incarnation, exchange, routing_key,
                                              body_sha256
                                 ORDER BY returned_frame_no) AS turn
    FROM (SELECT connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256,
                 first_frame_no AS returned_frame_no
          FROM messages WHERE operation = 'return')
    ANTI JOIN (SELECT connection_id, returned_frame_no FROM publishes WHERE returned_frame_no IS NOT NULL)
        USING (connection_id, returned_frame_no))
SELECT * FROM (
    SELECT connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256, frame_no, ts_ns,
           delivery_tag, settled_frame_no, all_confirmed_frame, returned_frame_no
    FROM publishes WHERE returned_frame_no IS NOT NULL
    UNION ALL
    SELECT connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256, frame_no, ts_ns,
           delivery_tag, settled_frame_no, all_confirmed_frame, unpaired.returned_frame_no
    FROM (SELECT * EXCLUDE (returned_frame_no),
                 row_number() OVER (PARTITION BY connection_id, channel, channel_incarnation, exchange, routing_key,
                                                 body_sha256 ORDER BY frame_no) AS turn
          FROM publishes WHERE returned_frame_no IS NULL)
    JOIN unpaired USING (connection_id, channel, channel_incarnation, exchange, routing_key, body_sha256, turn))
LEFT JOIN (SELECT connection_id, version FROM connections) USING (connection_id);

-- Messages with properties that rules read. `durable` is delivery mode 2: only properties of other messages are read.
CREATE VIEW context_contents AS
SELECT * REPLACE (CAST(delivery_mode AS INTEGER) AS delivery_mode)
FROM (SELECT connection_id, channel, channel_incarnation, sender, operation, ts_ns, priority, user_id, expiration,
             first_frame_no AS frame_no, first_frame_no AS content_frame_no, NULL AS delivery_mode
      FROM messages
      WHERE durable IS DISTINCT FROM false
            AND (priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL)
      UNION ALL
      SELECT connection_id, channel, channel_incarnation, sender, operation, ts_ns, priority, user_id, expiration,
             first_frame_no, first_frame_no, TRY_CAST(properties.delivery_mode AS INTEGER)
      FROM messages WHERE durable = false)
JOIN (SELECT connection_id, version, "user" AS login FROM known_connections) USING (connection_id)
WHERE delivery_mode != 2 OR priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL;

-- file.publish and file.deliver, with up to 1000 methods before them on the channel that may have staged their content:
-- channels with more staged contents are not searched further.
CREATE VIEW context_files AS
SELECT *
FROM (SELECT *, list({'frame_no': frame_no, 'sender': sender, 'name': name, 'identifier': args.identifier})
                    OVER (PARTITION BY connection_id, channel ORDER BY frame_no
                          ROWS BETWEEN 1000 PRECEDING AND 1 PRECEDING) AS steps
      FROM (SELECT connection_id, channel, version, frame_no, content_frame_no, ts_ns, sender, name,
                   {'identifier': TRY_CAST(arguments.identifier AS VARCHAR)} AS args
            FROM control_methods
            WHERE name IN ('file.open', 'file.open-ok', 'file.stage', 'file.publish', 'file.deliver')))
WHERE name IN ('file.publish', 'file.deliver');

-- Requests to management nodes over 1.0 that change exchanges, queues and bindings, as if by the methods of 0-9-1 in
-- `name`. `status`: of the reply, null without one; of requests with the same message-id that of the worst.
CREATE TABLE managed AS
SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, ts, '1.0' AS version, name, exchange, queue,
       arguments, reply_frame_no, status, coalesce(replied_ns, ts_ns) AS answered_ns
FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no AS frame_no, ts_ns, ts, message_id,
             management_exchange AS exchange, management_queue AS queue, properties.body_value AS arguments,
             CASE WHEN management_target LIKE '/bindings%' THEN
                      if(management_operation = 'POST', 'queue.bind', 'queue.unbind')
                  WHEN management_target LIKE '/queues/%/messages' THEN 'queue.purge'
                  WHEN upper(management_operation) IN ('PUT', 'CREATE') THEN
                      if(management_queue IS NULL, 'exchange.declare', 'queue.declare')
                  ELSE if(management_queue IS NULL, 'exchange.delete', 'queue.delete') END AS name
      FROM messages
      WHERE upper(management_operation) IN ('PUT', 'POST', 'DELETE', 'CREATE')
            AND (management_queue IS NOT NULL OR management_exchange IS NOT NULL))
LEFT JOIN (SELECT connection_id, correlation_id AS message_id, min(first_frame_no) AS reply_frame_no,
                  max(management_status) AS status, max(ts_ns) AS replied_ns
           FROM messages WHERE management_status IS NOT NULL AND correlation_id IS NOT NULL
           GROUP BY connection_id, correlation_id) USING (connection_id, message_id);

-- Replies of management nodes of 1.0 with a `status` of an error and its `text`, with the `operation` and `target` of
-- their requests, null where the request is not known. Of requests with the same message-id nobody knows which one was
-- answered.
CREATE VIEW context_management_errors AS
SELECT *
FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no AS frame_no, first_frame_no
             AS content_frame_no, ts_ns, correlation_id AS id, management_status AS status, management_text AS text
      FROM messages WHERE management_status >= 400)
LEFT JOIN (SELECT connection_id, message_id AS id, any_value(management_operation) AS operation,
                  any_value(management_target) AS target
           FROM messages WHERE management_operation IS NOT NULL AND message_id IS NOT NULL
           GROUP BY connection_id, message_id HAVING count(*) = 1) USING (connection_id, id)
LEFT JOIN (SELECT connection_id, version FROM connections) USING (connection_id);

-- Acks, nacks and rejects that did not settle the message that they name, with their tags, and the mode of the channel
-- at that time.
CREATE TABLE unmatched_settlements AS
SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, version, sender, name, confirms, in_transaction,
       delivery_tag, multiple
FROM (SELECT *, count(CASE name WHEN 'confirm.select' THEN 1 END) OVER so_far > 0 AS confirms,
             count(CASE name WHEN 'tx.select' THEN 1 END) OVER so_far > 0 AS in_transaction
      FROM (SELECT connection_id, channel, frame_no, ts_ns, version, sender, name,
                   channel_incarnations(name, connection_id, channel, frame_no) AS channel_incarnation,
                   TRY_CAST(arguments.delivery_tag AS BIGINT) AS delivery_tag,
                   coalesce(TRY_CAST(arguments.multiple AS BOOLEAN), false) AS multiple
            FROM (SELECT connection_id, channel, frame_no, ts_ns, version, sender, name, arguments
                  FROM methods
                  SEMI JOIN (SELECT connection_id, frame_no
                             FROM (SELECT connection_id, frame_no, delivery_tag FROM methods
                                   WHERE is_classic(version) AND frame_type IN ('method', 'oob-method')
                                         AND channel IS DISTINCT FROM 0
                                         AND name IN ('basic.ack', 'basic.nack', 'basic.reject', 'file.ack',
                                                      'file.reject'))
                             ANTI JOIN (SELECT connection_id, settled_frame_no AS frame_no, delivery_tag
                                        FROM messages
                                        WHERE delivery_tag IS NOT NULL AND settled_frame_no IS NOT NULL)
                                 USING (connection_id, frame_no, delivery_tag))
                      USING (connection_id, frame_no)
                  UNION ALL
                  SELECT connection_id, channel, frame_no, ts_ns, version, sender, name, arguments
                  FROM control_methods
                  WHERE is_classic(version) AND frame_type IN ('method', 'oob-method') AND channel IS DISTINCT FROM 0
                        AND name IN ('channel.open', 'confirm.select', 'tx.select')))
      WINDOW so_far AS (PARTITION BY connection_id, channel, channel_incarnation ORDER BY frame_no))
WHERE name IN ('basic.ack', 'basic.nack', 'basic.reject', 'file.ack', 'file.reject') AND delivery_tag IS NOT NULL;

-- The same with the messages that they name. The settlement engine decides which messages are settled.
--     sender        client: about a delivery; server: about a publish
--     delivery_tag, multiple
--     named         the last message with that tag on the channel before: frame_no, presettled, settled_frame_no (null:
--                   not settled)
--     elsewhere     another incarnation or channel of the connection where a message with that tag is outstanding
--     confirms, in_transaction  mode of the channel at that time
CREATE VIEW context_settlements AS
SELECT * EXCLUDE (open_elsewhere, message),
       CASE WHEN open_elsewhere.until > frame_no
                 AND open_elsewhere.place != {'channel': channel, 'channel_incarnation': channel_incarnation}
           THEN open_elsewhere.place END AS elsewhere
FROM (SELECT *, last_value(message IGNORE NULLS) OVER (PARTITION BY connection_id, sender, delivery_tag, channel,
                                                                    channel_incarnation ORDER BY frame_no) AS named
      FROM (SELECT *, max(CASE WHEN message IS NOT NULL THEN
                              {'until': CASE WHEN message.presettled THEN 0
                                             ELSE coalesce(message.settled_frame_no, never()) END,
                               'place': {'channel': channel, 'channel_incarnation': channel_incarnation}} END)
                          OVER (PARTITION BY connection_id, sender, delivery_tag ORDER BY frame_no) AS open_elsewhere
            FROM (SELECT *, CAST(NULL AS STRUCT(frame_no BIGINT, presettled BOOLEAN, settled_frame_no BIGINT))
                                AS message
                  FROM unmatched_settlements
                  UNION ALL
                  SELECT connection_id, channel, channel_incarnation, frame_no, NULL, NULL, sender, NULL, NULL, NULL,
                         delivery_tag, NULL,
                         {'frame_no': frame_no, 'presettled': presettled, 'settled_frame_no': settled_frame_no}
                  FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no AS frame_no, delivery_tag,
                               settled_frame_no,
                               CASE WHEN operation = 'publish' THEN 'server' ELSE 'client' END AS sender,
                               outcome = 'presettled' AS presettled
                        FROM messages
                        WHERE delivery_tag IS NOT NULL AND operation IN ('publish', 'deliver', 'get'))
                  SEMI JOIN unmatched_settlements USING (connection_id, sender, delivery_tag))))
WHERE name IS NOT NULL;

-- A row per delivery that needs a settlement (if that is not known, those that were settled), and a row per settlement:
-- `at_ns`, `change`. A settlement counts before a delivery in the same packet.
CREATE VIEW outstanding_changes AS
SELECT * EXCLUDE (move), move.at_ns AS at_ns, move.change AS change
FROM (SELECT connection_id, channel, channel_incarnation, first_frame_no AS frame_no, operation, link, delivery_tag,
             unnest(CASE WHEN settled_ts_ns IS NULL THEN [{'at_ns': ts_ns, 'change': 1}]
                         ELSE [{'at_ns': ts_ns, 'change': 1}, {'at_ns': settled_ts_ns, 'change': -1}] END) AS move
      FROM messages
      WHERE operation IN ('deliver', 'get') AND outcome != 'presettled'
            AND NOT (outcome = 'unknown' AND settled_ts_ns IS NULL));

-- One row per incarnation of a channel or session, of any version:
--     peak           maximum of outstanding messages
--     frame_no, ts_ns  the first delivery that exceeds the limit of DL-12; null if none does
CREATE TABLE outstanding_peaks AS
SELECT connection_id, channel, channel_incarnation, peak, first.frame_no AS frame_no, first.at_ns AS ts_ns, version
FROM (SELECT connection_id, channel, channel_incarnation, max(outstanding)::BIGINT AS peak,
             min({'at_ns': at_ns, 'frame_no': frame_no})
                 FILTER (WHERE outstanding > setting('DL-12.limit')::BIGINT) AS first
      FROM (SELECT *, sum(change) OVER (PARTITION BY connection_id, channel, channel_incarnation
                                        ORDER BY at_ns, change, frame_no ROWS UNBOUNDED PRECEDING) AS outstanding
            FROM outstanding_changes)
      GROUP BY connection_id, channel, channel_incarnation)
LEFT JOIN (SELECT connection_id, version FROM connections) USING (connection_id);

-- Consumers with a limit, on channels whose peak exceeds it: `allowed`, `shared` (by all consumers of the channel). If
-- several limits were set on a channel, the highest applies of the one in force when the consumer started and all later
-- ones. Left out: consumers whose tag was used twice on the channel, and transactional channels, because it is not
-- specified when the broker counts a settlement in a transaction.
CREATE TABLE prefetch_limits AS
SELECT connection_id, channel, channel_incarnation, consumer_tag, version, allowed, shared
FROM (SELECT connection_id, channel, channel_incarnation, args.consumer_tag AS consumer_tag, any_value(version)
             AS version, max(greatest(in_force, later)) AS allowed, min(in_force IS NOT NULL) AS ever,
             max(coalesce(shared, false)) AS shared, max(transactions) AS transactions,
             count(CASE name WHEN 'basic.consume' THEN 1 END) AS asked, count(*) AS lines
      FROM (SELECT *, last_value(qos IGNORE NULLS) OVER in_order AS in_force,
                   last_value(CASE WHEN qos IS NOT NULL THEN args."global" END IGNORE NULLS) OVER in_order AS shared,
                   max(qos) OVER (PARTITION BY connection_id, channel, channel_incarnation ORDER BY frame_no DESC
                                  ROWS UNBOUNDED PRECEDING) AS later,
                   max(name = 'tx.select') OVER (PARTITION BY connection_id, channel, channel_incarnation)
                       AS transactions
            FROM (SELECT *, CASE name WHEN 'basic.qos' THEN
                                CASE WHEN args.prefetch_count > 0 THEN args.prefetch_count ELSE 2147483647 END END
                                AS qos
                  FROM (SELECT connection_id, channel, channel_incarnation, frame_no, version, name,
                               {'prefetch_count': TRY_CAST(arguments.prefetch_count AS INTEGER),
                                'global': TRY_CAST(arguments."global" AS BOOLEAN),
                                'consumer_tag': TRY_CAST(arguments.consumer_tag AS VARCHAR)} AS args
                        FROM channel_methods
                        WHERE name IN ('channel.open', 'basic.qos', 'basic.consume', 'basic.consume-ok', 'tx.select')))
            WINDOW in_order AS (PARTITION BY connection_id, channel, channel_incarnation ORDER BY frame_no))
      WHERE name IN ('basic.consume', 'basic.consume-ok') AND coalesce(args.consumer_tag, '') != ''
      GROUP BY connection_id, channel, channel_incarnation, args.consumer_tag)
JOIN (SELECT connection_id, channel, channel_incarnation, peak FROM outstanding_peaks)
    USING (connection_id, channel, channel_incarnation)
WHERE ever AND allowed < 2147483647 AND NOT transactions AND asked <= 1 AND lines <= 2 AND peak > allowed;

CREATE VIEW context_outstanding_peaks AS SELECT * FROM outstanding_peaks;

-- One row per delivery to a consumer with a prefetch limit, of incarnations whose peak exceeds the limit of a consumer:
--     outstanding    messages outstanding at its consumer, or (`shared`) at all consumers of the channel, itself included
--     allowed        the prefetch limit
CREATE VIEW context_prefetched AS
SELECT *, at_ns AS ts_ns
FROM (SELECT *, sum(change) OVER (PARTITION BY connection_id, channel, channel_incarnation, of_group
                                  ORDER BY at_ns, change, frame_no ROWS UNBOUNDED PRECEDING)::BIGINT AS outstanding
      FROM (SELECT connection_id, channel, channel_incarnation, consumer_tag, delivery_tag, version, allowed, shared,
                   CASE WHEN NOT shared THEN consumer_tag END AS of_group, frame_no, at_ns, change
            FROM (SELECT *, link AS consumer_tag FROM outstanding_changes WHERE operation = 'deliver')
            JOIN prefetch_limits USING (connection_id, channel, channel_incarnation, consumer_tag)))
WHERE change > 0;
