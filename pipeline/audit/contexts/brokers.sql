-- Methods of clients that name an exchange or a queue, and management requests of 1.0 that do.
--     kind, entity   'exchange' or 'queue', and its name; the server's name if a queue was declared without one
--     given          the server made up the name
--     declared       flags of a declaration: type, durable, exclusive, auto_delete, passive, and its `table` of arguments
--     accepted       the server accepted it, or was not asked for a reply; 0-10: it did not raise an exception
--     answered_ns    time of the reply
--     closed_us      when the exclusive consumer that it starts ended
-- A queue that was declared without a name gets the name in the reply; later methods on the channel that name no queue are
-- about the queue that was declared last. The server accepted what it replied to with an -ok method, or a 0-10 command
-- that it completed. A command without a reply is accepted if it asked for none (no-wait), and always in 0-10, where its
-- completion may come after the end of the capture. Management requests of 1.0 change exchanges and queues, too, if their
-- status says so; what RabbitMQ declares that way is durable unless told otherwise.
CREATE VIEW fact_entities AS
WITH uses AS (
    SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, ts, version, name, kind, reply_frame_no,
           reply_name, coalesce(reply_name LIKE '%-ok' OR reply_name = 'session.completed',
                    coalesce(TRY_CAST(arguments.no_wait AS BOOLEAN), false) OR version = '0-10') AS accepted,
           ts_ns + coalesce(reply_latency_ns, 0) AS answered_ns,
           CASE kind WHEN 'exchange' THEN exchange ELSE queue END AS named_entity,
           CASE WHEN name IN ('exchange.declare', 'queue.declare') THEN
               {'durable': coalesce(TRY_CAST(arguments.durable AS BOOLEAN), false),
                'exclusive': coalesce(TRY_CAST(arguments.exclusive AS BOOLEAN), false),
                'auto_delete': coalesce(TRY_CAST(arguments.auto_delete AS BOOLEAN), false),
                'passive': coalesce(TRY_CAST(arguments.passive AS BOOLEAN), false),
                'type': TRY_CAST(arguments.type AS VARCHAR)} END AS declared,
           CASE WHEN name IN ('exchange.declare', 'queue.declare') THEN
               coalesce(CAST(TRY_CAST(arguments.arguments AS JSON) AS VARCHAR), '{}') END AS "table",
           coalesce(name = 'basic.consume' AND TRY_CAST(arguments.exclusive AS BOOLEAN), false) AS exclusive
    FROM (SELECT *, channel_incarnations(name, connection_id, channel, frame_no) AS channel_incarnation
          FROM (SELECT *, CASE WHEN name IN ('exchange.declare', 'exchange.delete') THEN 'exchange'
                               WHEN queue IS NOT NULL AND name NOT IN ('queue.query', 'exchange.bound',
                                                                       'exchange.query') THEN 'queue' END AS kind
                FROM control_methods WHERE sender = 'client')
          WHERE kind IS NOT NULL OR name = 'channel.open')
    WHERE kind IS NOT NULL
    UNION ALL
    SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, ts, version, name,
           split_part(name, '.', 1) AS kind, reply_frame_no, NULL AS reply_name, coalesce(status < 300, false) AS accepted,
           answered_ns, coalesce(queue, exchange) AS named_entity,
           CASE WHEN name LIKE '%.declare' THEN
               {'durable': coalesce(TRY_CAST(arguments.durable AS BOOLEAN), true),
                'exclusive': coalesce(TRY_CAST(arguments.exclusive AS BOOLEAN), false),
                'auto_delete': coalesce(TRY_CAST(arguments.auto_delete AS BOOLEAN), false), 'passive': false,
                'type': TRY_CAST(arguments.type AS VARCHAR)} END AS declared,
           CASE WHEN name LIKE '%.declare' THEN
               coalesce(CAST(TRY_CAST(arguments.arguments AS JSON) AS VARCHAR), '{}') END AS "table",
           false AS exclusive
    FROM managed WHERE name NOT LIKE '%bind'),
named AS (
    SELECT * FROM (
        SELECT * EXCLUDE (named_entity, nameless, name_given, called), name_given IS NOT NULL AS given,
               CASE WHEN called = '' AND kind = 'queue' THEN
                   last_value(CASE name WHEN 'queue.declare' THEN called END IGNORE NULLS)
                       OVER (PARTITION BY connection_id, channel, channel_incarnation ORDER BY frame_no)
               ELSE called END AS entity
        FROM (SELECT *, coalesce(name_given, named_entity) AS called
              FROM (SELECT *, CASE WHEN name = 'queue.declare' AND named_entity = '' THEN reply_frame_no END
                                  AS nameless
                    FROM uses)
              LEFT JOIN (SELECT connection_id, frame_no AS nameless, queue AS name_given
                         FROM control_methods WHERE name = 'queue.declare-ok' AND sender = 'server')
                  USING (connection_id, nameless)))
    WHERE entity != '')
SELECT *
FROM named
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, opened_ts AS ts, true AS exclusive,
                  min(epoch_us(closed_ts)) AS closed_us
           FROM links WHERE exclusive GROUP BY connection_id, channel, channel_incarnation, opened_ts)
    USING (connection_id, channel, channel_incarnation, ts, exclusive);

-- The same by broker, in the order of time.
--     was            the last accepted declaration (not passive) or deletion before it: `deleted`, and of a declaration
--                    frame_no, connection_id, answered_ns, until_ns (end of that connection), `declared`
--     seen           number of earlier declarations and successful uses of the entity
--     broker_loss_ns time from which bytes of any connection to the broker are missing, which may have changed an entity
--     sole           the last accepted exclusive consumer of the queue before it, and until when it existed
-- The order in which a broker processes two connections is unknown, unless it replied on one before the request on the
-- other.
CREATE VIEW context_entities AS
SELECT *,
       last_value(CASE WHEN accepted AND (name IN ('exchange.delete', 'queue.delete')
                                          OR name IN ('exchange.declare', 'queue.declare') AND NOT declared.passive)
                       THEN {'deleted': name IN ('exchange.delete', 'queue.delete'), 'frame_no': frame_no,
                             'connection_id': connection_id, 'answered_ns': answered_ns, 'until_ns': until_ns,
                             'declared': declared, 'table': "table"} END IGNORE NULLS) OVER before AS was,
       count(CASE WHEN accepted AND name NOT IN ('exchange.delete', 'queue.delete') THEN 1 END) OVER before AS seen,
       last_value(CASE WHEN accepted AND exclusive THEN
                      {'frame_no': frame_no, 'connection_id': connection_id, 'answered_ns': answered_ns,
                       'until_ns': coalesce(closed_us * 1000, until_ns)} END IGNORE NULLS) OVER before AS sole
FROM fact_entities
JOIN (SELECT connection_id, server_ip, server_port, vhost,
             coalesce(c.close.ts_ns, CASE WHEN tcp_end != 'none' THEN ts_ns END, never()) AS until_ns,
             coalesce(min(loss_from_ns) OVER (PARTITION BY server_ip, server_port, vhost), never()) AS broker_loss_ns
      FROM fact_connections WHERE vhost IS NOT NULL) USING (connection_id)
WINDOW before AS (PARTITION BY server_ip, server_port, vhost, kind, entity ORDER BY ts_ns, connection_id, frame_no
                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);

-- Consumers that the server cancelled, with their queue, if it is known, and since when they got messages.
CREATE VIEW fact_lost_consumers AS
SELECT * FROM (SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, version,
                      TRY_CAST(arguments.consumer_tag AS VARCHAR) AS consumer_tag
               FROM channel_methods WHERE name = 'basic.cancel' AND sender = 'server')
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, name AS consumer_tag,
                  if(min(queue) = max(queue), min(queue), NULL) AS queue, min(epoch_us(opened_ts)) * 1000 AS since_ns
           FROM links GROUP BY connection_id, channel, channel_incarnation, name)
    USING (connection_id, channel, channel_incarnation, consumer_tag);

-- The same with the last deletion of the queue before, on any connection to the broker: `deleted_frame`, the
-- `deleting_connection` and the name of its client (`deleted_by`); null if none is since the consumer got messages.
CREATE VIEW context_lost_consumers AS
SELECT * REPLACE (CASE WHEN deleted_ns >= since_ns THEN deleted_frame END AS deleted_frame,
                  CASE WHEN deleted_ns >= since_ns THEN deleting_connection END AS deleting_connection,
                  CASE WHEN deleted_ns >= since_ns THEN deleted_by END AS deleted_by)
FROM (SELECT lost.*, deleted_ns, deleted_frame, deleting_connection, deleted_by
      FROM (SELECT fact_lost_consumers.*, server_ip, server_port, vhost
            FROM fact_lost_consumers LEFT JOIN fact_connections USING (connection_id)) AS lost
      ASOF LEFT JOIN (SELECT server_ip, server_port, vhost, entity, fact_entities.ts_ns AS deleted_ns,
                             fact_entities.frame_no AS deleted_frame, connection_id AS deleting_connection,
                             coalesce(client_name, client_product, client_ip || ' port ' || client_port) AS deleted_by
                      FROM fact_entities JOIN fact_connections USING (connection_id)
                      WHERE fact_entities.name = 'queue.delete' AND accepted) AS deleted
          ON lost.server_ip = deleted.server_ip AND lost.server_port = deleted.server_port
             AND lost.vhost = deleted.vhost AND lost.queue = deleted.entity AND lost.ts_ns >= deleted.deleted_ns);

-- Connections compared with others of the same client, account or broker. Times are those of the first packets; a
-- connection is compared with itself and earlier ones.
--     speaks_amqp   some connection to the same server and port carries AMQP
--     offers_tls    the server and port answered a TLS header with one (1.0)
--     came_back     a later connection of the client to that server was opened
--     refusal       the last earlier connection of the client to that server whose version was refused (asked, answered,
--                   opened_ns); `known_versions`: those of earlier connections to the server
--     failures      failed logins of the client's address in the window of SEC-06, this one included; `all_failures`
--     recent        connections of the client's address in the last minute, this one included
--     hosts         addresses that have used the account on that broker so far; `new_host`: the first connection of its
--                   address; `all_hosts`
CREATE VIEW context_peers AS
SELECT *, sum(CAST(new_host AS INTEGER)) OVER (PARTITION BY server_ip, "user" ORDER BY opened_ns, connection_id)::BIGINT
              AS hosts,
       sum(CAST(new_host AS INTEGER)) OVER (PARTITION BY server_ip, "user")::BIGINT AS all_hosts
FROM (SELECT *, max(content = 'amqp') OVER of_server AS speaks_amqp,
             max(c.server_header.code >> 24 = 2) OVER of_server AS offers_tls,
             last_value(CASE WHEN refused THEN {'asked': asked, 'answered': answered, 'opened_ns': opened_ns,
                                                'known_versions': known_versions} END IGNORE NULLS)
                 OVER before AS refusal,
             max(NOT refused AND state IN ('open', 'closed')) OVER after AS came_back,
             count(CASE WHEN failed_login THEN 1 END) OVER (
                 PARTITION BY client_ip ORDER BY opened_ns
                 RANGE BETWEEN (setting('SEC-06.window_seconds') * 1000000000)::BIGINT PRECEDING AND CURRENT ROW)
                 AS failures,
             count(CASE WHEN failed_login THEN 1 END) OVER (PARTITION BY client_ip) AS all_failures,
             count(CASE content WHEN 'amqp' THEN 1 END) OVER (
                 PARTITION BY client_ip ORDER BY opened_ns
                 RANGE BETWEEN 60000000000 PRECEDING AND CURRENT ROW) AS recent,
             row_number() OVER (PARTITION BY server_ip, "user", client_ip ORDER BY opened_ns, connection_id) = 1
                 AND "user" IS NOT NULL AS new_host
      FROM (SELECT *, coalesce(list(DISTINCT asked) FILTER (WHERE asked IN ('0-8', '0-9', '0-9-1', '0-10', '1.0'))
                                   OVER before, []) AS known_versions
            FROM fact_connections
            WINDOW before AS (PARTITION BY client_ip, server_ip, server_port ORDER BY opened_ns, connection_id
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
      WINDOW of_server AS (PARTITION BY server_ip, server_port),
             before AS (PARTITION BY client_ip, server_ip, server_port ORDER BY opened_ns, connection_id
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             after AS (PARTITION BY client_ip, server_ip, server_port ORDER BY opened_ns, connection_id
                       ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING));

-- Closes with 'access refused' for want of a permission. Some texts are those of refusals that no permission would have
-- prevented.
CREATE VIEW fact_refusals AS
SELECT connection_id, version, frame_no, ts_ns, name FROM control_methods
WHERE name IN ('channel.close', 'connection.close', 'execution.exception')
      AND coalesce(TRY_CAST(arguments.error_code AS INTEGER), TRY_CAST(arguments.reply_code AS INTEGER)) = 403
      AND NOT regexp_matches(coalesce(TRY_CAST(arguments.reply_text AS VARCHAR),
                                      TRY_CAST(arguments.description AS VARCHAR), ''),
                             'exclusive use|[Ll]ogin was refused|reserved prefix|default exchange|expired');

-- Closes with 'access refused' for want of a permission, compared with others of the same account on the same broker:
-- `user`; `refusals`: how many there were in the window of SEC-18 up to this one; `all_refusals`.
CREATE VIEW context_refusals AS
SELECT *, count(*) OVER (PARTITION BY server_ip, "user" ORDER BY ts_ns
                         RANGE BETWEEN (setting('SEC-18.window_seconds') * 1000000000)::BIGINT PRECEDING
                               AND CURRENT ROW) AS refusals,
       count(*) OVER (PARTITION BY server_ip, "user") AS all_refusals
FROM fact_refusals
JOIN (SELECT connection_id, "user", server_ip FROM fact_connections WHERE NOT coalesce(failed_login, false))
    USING (connection_id);

-- Queues that are streams: declared as such, or read from an offset.
CREATE VIEW fact_streams AS
SELECT DISTINCT connection_id, queue
FROM (SELECT connection_id, name, queue, arguments FROM control_methods
      UNION ALL SELECT connection_id, name, queue, arguments FROM managed)
WHERE name = 'queue.declare' AND TRY_CAST(arguments.arguments."x-queue-type" AS VARCHAR) = 'stream'
      OR name = 'basic.consume' AND arguments.arguments."x-stream-offset" IS NOT NULL;

-- Messages by `key`, equal for messages that are equal on one broker. Few of them went back to a queue: only those, and
-- messages equal to them anywhere, are facts.
CREATE VIEW keyed_messages AS
SELECT connection_id, channel, channel_incarnation, first_frame_no, messages.ts_ns AS ts_ns, operation, queue,
       redelivered, outcome, settled_ts_ns, body_sha256, message_id, version, headers,
       hash(server_ip, server_port, vhost, body_sha256, message_id, correlation_id, timestamp) AS key
FROM messages JOIN (SELECT connection_id, version, server_ip, server_port, vhost FROM connections)
    USING (connection_id)
WHERE body_sha256 IS NOT NULL AND operation IN ('publish', 'deliver', 'get');

CREATE VIEW fact_went_back AS
SELECT DISTINCT key FROM keyed_messages WHERE outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL;

CREATE VIEW back_keys AS SELECT DISTINCT key FROM fact_went_back;

CREATE VIEW fact_equal_messages AS
SELECT * EXCLUDE (headers),
       headers."x-death" IS NOT NULL OR headers."x-stream-offset" IS NOT NULL AS came_otherwise
FROM keyed_messages SEMI JOIN back_keys USING (key)
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, epoch_us(closed_ts) * 1000 AS closed_ns FROM channels)
    USING (connection_id, channel, channel_incarnation);

-- Deliveries that can only be a message which the same queue has delivered before. They have the message id and the bytes
-- of an earlier delivery from the same queue that went back to it: the consumer requeued it, or left it unsettled on a
-- channel that has been closed since. Everything that could be another, equal message is left out: messages published in
-- between or explained by more publishes, dead-lettered ones, and those with neither an id nor a publish in the capture.
-- Streams deliver a message to every reader, so they are left out, too.
--     earlier_frame, earlier_connection   the delivery that went back
CREATE VIEW context_redeliveries AS
WITH streams AS (
    SELECT DISTINCT server_ip, server_port, vhost, queue FROM fact_streams JOIN fact_connections USING (connection_id)),
delivered AS (
    SELECT * EXCLUDE (closed_ns, closing_ns),
           CASE WHEN queue IS NOT NULL THEN
               CASE outcome WHEN 'requeued' THEN settled_ts_ns WHEN 'unsettled' THEN least(closed_ns, closing_ns) END
           END AS back_ns
    FROM (SELECT * FROM fact_equal_messages
          JOIN (SELECT connection_id, server_ip, server_port, vhost,
                       least(c.close.ts_ns, CASE WHEN tcp_end != 'none' THEN ts_ns END) AS closing_ns
                FROM fact_connections) USING (connection_id)) AS moved
    ANTI JOIN streams ON moved.server_ip IS NOT DISTINCT FROM streams.server_ip
                         AND moved.server_port IS NOT DISTINCT FROM streams.server_port
                         AND moved.vhost IS NOT DISTINCT FROM streams.vhost
                         AND moved.queue IS NOT DISTINCT FROM streams.queue)
SELECT *, first_frame_no AS frame_no, earlier.first_frame_no AS earlier_frame,
       earlier.connection_id AS earlier_connection
FROM (SELECT *,
             last_value(CASE WHEN operation != 'publish' THEN
                            {'back_ns': back_ns, 'first_frame_no': first_frame_no, 'connection_id': connection_id,
                             'ts_ns': ts_ns} END IGNORE NULLS) OVER before AS earlier,
             count(CASE WHEN operation != 'publish' AND NOT coalesce(redelivered, false) THEN 1 END) OVER so_far
                 AS first_deliveries,
             count(CASE operation WHEN 'publish' THEN ts_ns END) OVER of_message AS publishes,
             max(CASE operation WHEN 'publish' THEN ts_ns END) OVER of_message AS last_published_ns
      FROM delivered
      SEMI JOIN (SELECT key FROM delivered WHERE outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL)
          USING (key)
      WINDOW of_message AS (PARTITION BY key ORDER BY ts_ns, connection_id, first_frame_no),
             before AS (PARTITION BY key, queue ORDER BY ts_ns, connection_id, first_frame_no
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             so_far AS (PARTITION BY key, queue ORDER BY ts_ns, connection_id, first_frame_no
                        ROWS UNBOUNDED PRECEDING))
WHERE operation != 'publish' AND NOT coalesce(redelivered, false) AND queue IS NOT NULL AND earlier.back_ns <= ts_ns
      AND NOT came_otherwise
      AND (publishes = 0 AND message_id IS NOT NULL OR publishes > 0 AND first_deliveries > publishes)
      AND coalesce(last_published_ns < earlier.ts_ns, true);
