-- What measures.json compares, of one side: relations with a row for what a connection stated, or for what happened in a
-- part of it. `block`: 0 to 15, a sixteenth of the frames between the first and the last message of the connection.

CREATE OR REPLACE TEMP MACRO without_ids(name) AS regexp_replace(regexp_replace(regexp_replace(regexp_replace(name,
    '[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}', '*', 'g'),
    'amq[._]gen[-.][A-Za-z0-9_+/=-]{16,}', 'generated *', 'g'), '(amq\.rabbitmq\.reply-to)\..+', '\1', 'g'),
    '[0-9a-fA-F]{12,}', '*', 'g');
CREATE OR REPLACE TEMP MACRO without_numbers(name) AS regexp_replace(without_ids(name), '[0-9]+', '#', 'g');
CREATE OR REPLACE TEMP MACRO ns_of(moment) AS epoch_us(moment) * 1000;
CREATE OR REPLACE TEMP MACRO bin_of(value) AS floor(50 * log10(greatest(value, 1)))::INTEGER;
CREATE OR REPLACE TEMP MACRO names_of(value) AS nullif(array_to_string(list_sort(
    CASE json_type(value) WHEN 'OBJECT' THEN json_keys(value) WHEN 'ARRAY' THEN from_json(value, '["VARCHAR"]')
         ELSE [value ->> '$'] END), ', '), '');
CREATE OR REPLACE TEMP MACRO object_keys(value) AS nullif(array_to_string(list_sort(json_keys(value::JSON)), ', '), '');
CREATE OR REPLACE TEMP MACRO queue_or_exchange(exchange, routing_key, queue, address) AS CASE
    WHEN exchange != '' THEN 'exchange ' || exchange
    WHEN coalesce(queue, routing_key) IS NOT NULL AND (exchange IS NOT NULL OR queue IS NOT NULL)
        THEN 'queue ' || coalesce(queue, routing_key)
    WHEN address IS NOT NULL THEN 'address ' || address END;

CREATE OR REPLACE TEMP TABLE spans AS
SELECT connection_id, min(first_frame_no) AS first, max(first_frame_no) AS last
FROM messages WHERE management_operation IS NULL AND management_status IS NULL GROUP BY connection_id;

CREATE OR REPLACE TEMP TABLE roles AS
SELECT connection_id, bool_or(kind = 'sender') AS sends, bool_or(kind != 'sender') AS receives
FROM links WHERE coalesce(address, '') NOT SIMILAR TO '/?\$?management|\$cbs' GROUP BY connection_id;

-- One row for each connection: its application is the name that it gives itself, without numbers and identifiers, else
-- its user and what it does.
CREATE OR REPLACE TEMP TABLE peers AS
SELECT * REPLACE (coalesce(
           CASE WHEN application SIMILAR TO '.*[A-Za-z]{3}.*' THEN application END,
           CASE WHEN content = 'tls' THEN 'encrypted connections' WHEN content != 'amqp' THEN 'connections without AMQP' END,
           concat_ws(' of ', CASE WHEN coalesce(receives, false) AND messages_published > 0 THEN 'publishers and consumers'
                                  WHEN coalesce(receives, false) OR messages_delivered > 0 THEN 'consumers'
                                  WHEN coalesce(sends, false) OR messages_published > 0 THEN 'publishers'
                                  ELSE 'clients' END, coalesce('user ' || "user", 'a user without a name'))) AS application)
FROM (SELECT c.*, s.first, s.last, sends, receives,
             without_numbers(coalesce(TRY_CAST(client_properties.connection_name AS VARCHAR), client_container_id,
                                      TRY_CAST(client_properties."qpid.client_process" AS VARCHAR))) AS application,
             CASE WHEN version IN ('0-8', '0-9', '0-9-1') THEN 'classic' ELSE version END AS family,
             NULL::BIGINT AS frame_no, NULL::BIGINT AS packet_no, 0 AS block,
             ns_of(opened_ts) AS opened_ns, greatest(ns_of(closed_ts) - ns_of(opened_ts), 1) AS length_ns,
             state = 'closed' AND handshake_ns IS NOT NULL AS was_whole,
             CASE WHEN close_initiator IS NOT NULL
                  THEN concat_ws(' ', 'closed by the', close_initiator, 'with code ' || nullif(close_code, 200),
                                 CASE WHEN close_code IS NULL OR close_code != 200 THEN nullif(split_part(close_text, ': ', 1), '') END)
                  WHEN tcp_end IN ('fin', 'rst') THEN 'ended by TCP ' || upper(tcp_end) || ' of the ' || coalesce(tcp_end_by, 'other side') || ', without a close'
             END AS ending
      FROM connections AS c LEFT JOIN spans AS s USING (connection_id) LEFT JOIN roles USING (connection_id));
CREATE OR REPLACE TEMP TABLE members AS
SELECT connection_id, application, family, first, last, opened_ns, length_ns, tcp_end FROM peers;

-- Times are of a slice of the capture: a second, or a 64th of it.
SET VARIABLE first_ns = (SELECT coalesce(min(opened_ns), 0) FROM members);
SET VARIABLE slice_ns = (SELECT coalesce(greatest(max(opened_ns + length_ns) - min(opened_ns), 0) // 64, 0) FROM members);
CREATE OR REPLACE TEMP MACRO slice_of(ns) AS
    least(greatest((ns - getvariable('first_ns')) // greatest(getvariable('slice_ns'), 1000000000), 0), 63)::INTEGER;

CREATE OR REPLACE TEMP MACRO block_of(frame, first, last) AS
    least(greatest(16 * (frame - first) // greatest(last - first + 1, 1), 0), 15)::INTEGER;

-- Messages by connection, block and where they go to or come from.
CREATE OR REPLACE TEMP TABLE message_counts AS
SELECT connection_id, application, family, block,
       CASE operation WHEN 'publish' THEN 'publish' ELSE 'deliver' END AS operation,
       without_ids(queue_or_exchange(exchange, CASE exchange WHEN '' THEN routing_key END, queue, address)) AS subject,
       subject AS target,
       sum(messages)::BIGINT AS messages, sum(redelivered)::BIGINT AS redelivered, sum(durable)::BIGINT AS durable,
       sum(mandatory)::BIGINT AS mandatory, sum(has_ttl)::BIGINT AS has_ttl, sum(has_priority)::BIGINT AS has_priority,
       sum(has_message_id)::BIGINT AS has_message_id, sum(has_correlation_id)::BIGINT AS has_correlation_id,
       sum(has_reply_to)::BIGINT AS has_reply_to, sum(has_timestamp)::BIGINT AS has_timestamp,
       sum(got)::BIGINT AS got, sum(presettled)::BIGINT AS presettled, sum(returned)::BIGINT AS returned,
       sum(nacked)::BIGINT AS nacked, sum(confirmed)::BIGINT AS confirmed, sum(acked)::BIGINT AS acked,
       sum(rejected)::BIGINT AS rejected, sum(requeued)::BIGINT AS requeued, sum(decided)::BIGINT AS decided,
       sum(committed)::BIGINT AS committed, sum(traced)::BIGINT AS traced
FROM (SELECT connection_id, application, family, block_of(first_frame_no, first, last) AS block, operation, exchange,
             CASE WHEN operation != 'publish' OR exchange = '' THEN routing_key END AS routing_key, m.queue, m.address,
             count(*) AS messages, count_if(redelivered) AS redelivered, count_if(durable) AS durable,
             count_if(mandatory) AS mandatory, count(expiration) + count(ttl_ms) FILTER (WHERE expiration IS NULL) AS has_ttl,
             count_if(priority > 0) AS has_priority, count(message_id) AS has_message_id,
             count(correlation_id) AS has_correlation_id, count(reply_to) AS has_reply_to, count(timestamp) AS has_timestamp,
             count_if(operation = 'get') AS got, count_if(outcome = 'presettled') AS presettled,
             count_if(outcome = 'returned') AS returned, count_if(outcome = 'nacked') AS nacked,
             count_if(outcome = 'confirmed') AS confirmed, count_if(outcome = 'acked') AS acked,
             count_if(outcome = 'rejected') AS rejected, count_if(outcome IN ('requeued', 'released', 'modified')) AS requeued,
             count_if(outcome NOT IN ('unsettled', 'unknown')) AS decided, count(transaction) AS committed,
             count(trace_id) AS traced
      FROM messages AS m JOIN members USING (connection_id)
      WHERE operation != 'return' AND management_operation IS NULL AND management_status IS NULL
      GROUP BY ALL)
GROUP BY ALL;

-- Published messages, and how many of them the capture shows delivered; one for each queue that one is delivered from.
CREATE OR REPLACE TEMP TABLE published AS
SELECT connection_id, application, family, block, without_ids(queue_or_exchange(exchange, routing_key, queue, address)) AS subject,
       sum(messages)::BIGINT AS messages, sum(delivered)::BIGINT AS delivered
FROM (SELECT connection_id, application, family, block_of(publish_frame_no, first, last) AS block, exchange,
             CASE exchange WHEN '' THEN routing_key END AS routing_key, CASE WHEN coalesce(exchange, '') = '' THEN queue END AS queue,
             address, count(*) AS messages, count(deliver_frame_no) AS delivered
      FROM message_flows JOIN members ON connection_id = publish_connection_id
      WHERE publish_frame_no IS NOT NULL
      GROUP BY ALL)
GROUP BY ALL;

-- Frames that settle messages, and what they settle: by publishers' brokers and by consumers.
CREATE OR REPLACE TEMP TABLE settlements AS
SELECT connection_id, application, family, block_of(first_frame_no, first, last) AS block,
       CASE operation WHEN 'publish' THEN 'publish' ELSE 'deliver' END AS operation,
       count(*) AS messages, count(DISTINCT settled_frame_no) AS frames
FROM messages JOIN members USING (connection_id)
WHERE settled_frame_no IS NOT NULL AND outcome != 'presettled' AND operation != 'return'
GROUP BY ALL;

-- Frames and bytes that messages need, by connection, block and direction.
CREATE OR REPLACE TEMP TABLE content_frames AS
SELECT connection_id, application, family, sender, block_of(frame_no, first, last) AS block,
       count(*) AS frames, sum(size)::BIGINT AS bytes, count_if(content_frame_no = frame_no) AS messages,
       sum(size - CASE frame_type WHEN 'body' THEN coalesce(payload_size, 0) ELSE 0 END)
           FILTER (WHERE family != '1.0')::BIGINT AS overhead
FROM frames JOIN members USING (connection_id)
WHERE content_frame_no IS NOT NULL AND first IS NOT NULL
GROUP BY ALL;

-- Methods between the first and the last message that carry and settle none; item '' stands for any that is not there.
CREATE OR REPLACE TEMP TABLE steady_methods AS
SELECT connection_id, application, family, block, name || ' by the ' || sender AS item, count(*) AS methods
FROM (SELECT connection_id, application, family, name, sender, block_of(frame_no, first, last) AS block
      FROM methods JOIN members USING (connection_id)
      WHERE frame_no >= first AND frame_no < last
        AND name NOT IN ('transfer', 'basic.publish', 'basic.deliver', 'basic.return', 'basic.ack', 'basic.nack',
                         'basic.reject', 'basic.get', 'basic.get-ok', 'basic.get-empty', 'disposition',
                         'message.transfer', 'message.accept', 'message.reject', 'message.release', 'session.completed'))
GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE steady AS
WITH done AS (SELECT connection_id, application, family, block, sum(messages)::BIGINT AS messages FROM message_counts GROUP BY ALL)
SELECT done.*, items.item, coalesce(methods, 0) AS methods
FROM done JOIN (SELECT DISTINCT application, item FROM steady_methods
           UNION ALL SELECT DISTINCT application, '' FROM members) AS items USING (application)
LEFT JOIN steady_methods AS s USING (connection_id, block, item);

-- Histograms with 50 bins for each power of ten; of times by slice, of sizes by block.
CREATE OR REPLACE TEMP TABLE histograms AS
WITH settled AS (
    SELECT connection_id, application, family, slice_of(ts_ns) AS slice, operation, exchange,
            CASE WHEN operation != 'publish' OR exchange = '' THEN routing_key END AS routing_key, m.queue, m.address,
           bin_of(settle_latency_ns) AS bin, count(*) AS n
    FROM messages AS m JOIN members USING (connection_id)
    -- A publish of 0-10 that needs no answer has one: its command is completed.
    WHERE settle_latency_ns >= 0 AND (outcome != 'presettled' OR operation = 'publish') AND operation != 'return'
      AND management_operation IS NULL AND management_status IS NULL
    GROUP BY ALL),
sizes AS (
    SELECT connection_id, application, family, block_of(first_frame_no, first, last) AS block,
           exchange, CASE exchange WHEN '' THEN routing_key END AS routing_key, m.queue, m.address,
           bin_of(coalesce(body_captured, body_size)) AS bin, count(*) AS n
    FROM messages AS m JOIN members USING (connection_id)
    WHERE operation = 'publish' AND coalesce(body_captured, body_size) IS NOT NULL
      AND management_operation IS NULL AND management_status IS NULL
    GROUP BY ALL),
flows AS (
    SELECT coalesce(deliver_connection_id, publish_connection_id) AS connection_id, publish_ts_ns,
           queue_or_exchange(NULL, NULL, queue, address) AS subject, broker_latency_ns, network_ns, queue_blocked_ns,
           queue_ready_ns
    FROM message_flows WHERE NOT ambiguous OR ambiguous IS NULL)
SELECT connection_id, application, family, slice,
       CASE operation WHEN 'publish' THEN 'confirm_latency' ELSE 'ack_latency' END AS measure,
       without_ids(queue_or_exchange(exchange, routing_key, queue, address)) AS subject, bin, sum(n)::BIGINT AS n
FROM settled GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, block, 'body_size' AS measure,
       without_ids(queue_or_exchange(exchange, routing_key, queue, address)) AS subject, bin, sum(n)::BIGINT AS n
FROM sizes GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, slice_of(publish_ts_ns) AS slice,
       'broker_latency' AS measure, without_ids(subject) AS subject, bin_of(broker_latency_ns) AS bin, count(*) AS n
FROM flows JOIN members USING (connection_id) WHERE broker_latency_ns >= 0 GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, slice_of(publish_ts_ns) AS slice, part AS measure,
       without_ids(subject) AS subject, bin_of(ns) AS bin, count(*) AS n
FROM (FROM flows UNPIVOT (ns FOR part IN (network_ns AS 'network', queue_blocked_ns AS 'queue_blocked',
                                          queue_ready_ns AS 'queue_ready')))
     JOIN members USING (connection_id) WHERE broker_latency_ns >= 0 GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, slice_of(publish_ts_ns) AS slice,
       'rpc_latency' AS measure, without_ids(subject) AS subject, bin_of(rpc_latency_ns) AS bin, count(*) AS n
FROM (SELECT * REPLACE (publish_connection_id AS connection_id) FROM (
          SELECT publish_connection_id, NULL::BIGINT AS connection_id, publish_ts_ns, rpc_latency_ns,
                 queue_or_exchange(exchange, routing_key, queue, address) AS subject
          FROM message_flows WHERE rpc_latency_ns >= 0))
     JOIN members USING (connection_id) GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, slice_of(ts_ns) AS slice, 'reply_latency' AS measure, name AS subject,
       bin_of(reply_latency_ns) AS bin, count(*) AS n
FROM methods JOIN members USING (connection_id)
WHERE reply_latency_ns >= 0 AND name IN (
    'queue.declare', 'queue.bind', 'exchange.declare', 'channel.open', 'basic.consume', 'basic.qos', 'confirm.select',
    'tx.commit', 'tx.rollback', 'attach', 'begin', 'open', 'execution.sync', 'session.attach', 'basic.get', 'queue.delete',
    'queue.purge', 'channel.close', 'connection.close')
GROUP BY ALL
UNION ALL BY NAME
SELECT connection_id, application, family, slice_of(opened_ns) AS slice, unnest(['handshake_latency', 'login_latency', 'open_latency', 'start_latency', 'tcp_rtt']) AS measure,
       NULL AS subject, bin_of(unnest([handshake_ns, login_latency_ns, open_latency_ns, start_latency_ns, tcp_rtt_ns])) AS bin, 1 AS n
FROM peers;
DELETE FROM histograms WHERE bin IS NULL;

-- Arguments that a connection states, one row for each leaf of their tree.
-- The frames are found first: to read the arguments of all methods takes much longer. Of credit they are the first
-- grants, because renewals follow the messages.
CREATE OR REPLACE TEMP TABLE stating AS
SELECT connection_id, frame_no FROM methods
WHERE name IN ('exchange.declare', 'exchange.bind', 'exchange.delete', 'queue.declare', 'queue.bind', 'queue.delete',
               'queue.unbind', 'basic.consume', 'basic.qos', 'basic.recover', 'confirm.select', 'tx.select', 'attach',
               'begin', 'open', 'session.attach', 'session.request-timeout', 'message.subscribe',
               'message.set-flow-mode', 'dtx.select', 'connection.start', 'sasl-mechanisms')
UNION ALL
SELECT connection_id, unnest(min(frame_no, CASE name WHEN 'flow' THEN 1 ELSE 2 END)) AS frame_no FROM methods
WHERE name = 'flow' AND handle IS NOT NULL OR name = 'message.flow'
GROUP BY connection_id, channel, sender, handle, name;
CREATE OR REPLACE TEMP TABLE statements AS
WITH stated AS (
    SELECT connection_id, application, family, name, sender, exchange, m.queue, address, role, arguments,
           min(frame_no) AS frame_no, arg_min(packet_no, frame_no) AS packet_no
    FROM (SELECT connection_id, frame_no, packet_no, name, sender, nullif(exchange, '') AS exchange, nullif(queue, '') AS queue,
                 CASE name WHEN 'attach' THEN coalesce(
                     CASE WHEN (sender = 'client') = (arguments.role::VARCHAR = 'true')
                          THEN TRY_CAST(arguments.source.address AS VARCHAR) ELSE TRY_CAST(arguments.target.address AS VARCHAR) END,
                     TRY_CAST(arguments.target.address AS VARCHAR), TRY_CAST(arguments.source.address AS VARCHAR)) END AS address,
                 CASE name WHEN 'attach' THEN CASE WHEN (sender = 'client') = (arguments.role::VARCHAR = 'true')
                     THEN 'receiving link' ELSE 'sending link' END END AS role,
                 arguments::JSON AS arguments
          FROM methods SEMI JOIN stating USING (connection_id, frame_no)
         ) AS m JOIN members USING (connection_id)
    WHERE coalesce(m.address, '') NOT SIMILAR TO '/?\$?management|\$cbs'
    GROUP BY ALL)
SELECT connection_id, application, family, concat_ws(' ', s.name, '(' || role || ')', CASE sender WHEN 'server' THEN 'by the server' END) AS name,
       CASE WHEN family = 'classic' AND s.name LIKE 'exchange.%' OR family = '0-10' AND s.name LIKE 'exchange.%' THEN 'exchange ' || without_ids(exchange)
            WHEN queue IS NOT NULL THEN 'queue ' || without_ids(queue)
            WHEN address IS NOT NULL THEN 'address ' || without_ids(address) END AS subject,
       substr(t.fullkey, 3) AS argument, without_ids(CASE WHEN t.type = 'ARRAY' THEN names_of(t.value)
           WHEN t.key = 'mechanisms' THEN array_to_string(list_sort(string_split(t.value ->> '$', ' ')), ', ')
           ELSE trim(t.value::VARCHAR, '"') END) AS value, s.frame_no, s.packet_no
FROM stated AS s, json_tree(s.arguments) AS t
WHERE t.type != 'OBJECT' AND t.fullkey NOT LIKE '%[%'
  AND t.key NOT IN ('name', 'handle', 'consumer_tag', 'ticket', 'queue', 'exchange', 'address', 'next_outgoing_id',
                    'next_incoming_id', 'initial_delivery_count', 'remote_channel', 'delivery_count', 'container_id',
                    'destination', 'unsettled', 'nowait', 'hostname', 'reserved_1', 'reserved_2', 'reserved_3', 'reserved_4')
  AND NOT (s.name IN ('connection.start', 'sasl-mechanisms') AND t.key NOT IN ('mechanisms', 'sasl_server_mechanisms'))
  AND NOT (s.name = 'open' AND t.key != 'desired_capabilities')
  -- What 1.0 takes for granted (part 2.7 and 3.5 of its specification) is the same stated or not.
  AND NOT (family = '1.0' AND (t.key, t.value::VARCHAR) IN (
      ('snd_settle_mode', '2'), ('rcv_settle_mode', '0'), ('durable', '0'), ('timeout', '0'), ('dynamic', 'false'),
      ('max_message_size', '0'), ('handle_max', '4294967295'), ('expiry_policy', '"session-end"')))
  AND NOT (s.name IN ('flow', 'message.flow') AND t.key NOT IN ('link_credit', 'value', 'unit'));

-- Order of methods: until the connection is open, at the start of channels, and after the last message.
CREATE OR REPLACE TEMP TABLE sequences AS
WITH ordered AS (
    SELECT connection_id, application, family, channel, frame_no, packet_no, sender, name,
           lag(name) OVER (PARTITION BY connection_id, channel, phase, sender ORDER BY frame_no) AS before, phase
    FROM (SELECT connection_id, application, family, channel, frame_no, packet_no, m.sender, name,
                 CASE WHEN channel = 0 AND (name LIKE 'connection.%' OR name LIKE 'sasl-%' OR name = 'open')
                           AND name NOT LIKE '%close%' THEN 'handshake'
                      WHEN (first IS NULL OR frame_no < first) AND name NOT LIKE '%close%' AND name NOT IN ('end', 'detach', 'connection.unblocked')
                          THEN 'start of channels'
                      WHEN frame_no > last AND tcp_end != 'none' THEN 'end of the connection' END AS phase
          FROM methods AS m JOIN members USING (connection_id)
          WHERE name NOT IN ('basic.ack', 'basic.nack', 'disposition', 'flow', 'basic.get', 'message.accept', 'session.completed',
                             'message.flow', 'session.known-completed', 'session.flush', 'transfer', 'basic.publish', 'basic.reject')
            AND (first IS NULL OR frame_no < first OR frame_no > last))
    WHERE phase IS NOT NULL AND (sender = 'client' OR phase = 'handshake'))
SELECT connection_id, any_value(application) AS application, any_value(family) AS family, phase,
       min(frame_no) AS frame_no, arg_min(packet_no, frame_no) AS packet_no,
       array_to_string(list(CASE sender WHEN 'server' THEN '(' || name || ')' ELSE name END ORDER BY frame_no)[:16], ' ') AS value
FROM ordered WHERE before IS DISTINCT FROM name
GROUP BY connection_id, phase, CASE phase WHEN 'start of channels' THEN channel END;

-- Errors and refusals, of each kind how often on each connection.
CREATE OR REPLACE TEMP TABLE errors AS
SELECT connection_id, application, family, length_ns,
       concat_ws(' ', name, code::VARCHAR, without_numbers(text), 'by the ' || sender) AS item,
       count(*) AS n, min(frame_no) AS frame_no, arg_min(packet_no, frame_no) AS packet_no
FROM (SELECT connection_id, frame_no, packet_no, sender, name, application, family, length_ns,
             coalesce(reply_code, TRY_CAST(arguments.error_code AS INTEGER), TRY_CAST(arguments.code AS INTEGER)) AS code,
             coalesce(split_part(split_part(reply_text, ' - ', 1), ' ''', 1), TRY_CAST(arguments.description AS VARCHAR),
                      TRY_CAST(arguments.error.condition AS VARCHAR),
                      TRY_CAST(arguments.reason AS VARCHAR)) AS text
      FROM methods JOIN members USING (connection_id)
      WHERE name IN ('channel.close', 'connection.close') AND reply_code >= 300
         OR name = 'connection.blocked'
         OR name = 'basic.cancel' AND sender = 'server'
         OR name IN ('end', 'detach', 'close') AND TRY_CAST(arguments.error.condition AS VARCHAR) IS NOT NULL
         OR name = 'execution.exception'
         OR name = 'session.detached' AND TRY_CAST(arguments.code AS VARCHAR) NOT IN ('0', 'normal'))
GROUP BY ALL;

-- Names of the headers, and properties that are set, of the first messages of each connection.
CREATE OR REPLACE TEMP TABLE headers AS
SELECT connection_id, application, family, first_frame_no AS frame_no, packet_no, m.content_type, m.content_encoding,
       m.priority, m.app_id, m.user_id, m.type, CASE WHEN exchange != '' THEN nullif(m.routing_key, '') END AS routing_key, TRY_CAST(m.properties.body_kind AS VARCHAR) AS body_kind, m.properties,
       without_ids(queue_or_exchange(exchange, CASE exchange WHEN '' THEN routing_key END, m.queue, m.address)) AS subject,
       unnest(coalesce(nullif(json_keys(headers::JSON), []), [NULL])) AS header
FROM messages AS m JOIN members USING (connection_id)
WHERE operation = 'publish' AND first_frame_no < first + 200 AND management_operation IS NULL AND management_status IS NULL;

-- Names of properties that no other measure is about.
CREATE OR REPLACE TEMP TABLE message_properties AS
SELECT * EXCLUDE (property), CASE WHEN property NOT IN (
           'content_type', 'content_encoding', 'priority', 'app_id', 'user_id', 'type', 'message_id', 'correlation_id',
           'reply_to', 'timestamp', 'creation_time', 'expiration', 'ttl', 'delivery_mode', 'durable', 'headers',
           'application_headers', 'routing_key', 'exchange', 'content_length') THEN property END AS property
FROM (SELECT * EXCLUDE (properties), unnest(CASE family WHEN 'classic' THEN json_keys(properties)
                 ELSE list_concat(json_keys(properties, '$.header'), json_keys(properties, '$.properties'),
                                  json_keys(properties, '$.delivery_properties'), json_keys(properties, '$.message_properties'))
             END) AS property
      FROM (SELECT DISTINCT ON (connection_id, frame_no) * REPLACE (properties::JSON AS properties) FROM headers));

CREATE OR REPLACE TEMP TABLE rules AS
SELECT connection_id, application, family, rule_id || ' ' || any_value(summary) AS value, min(f.frame_no) AS frame_no,
       arg_min(f.packet_no, f.frame_no) AS packet_no
FROM findings AS f JOIN members USING (connection_id) GROUP BY connection_id, application, family, rule_id;

CREATE OR REPLACE TEMP TABLE channel_facts AS
SELECT connection_id, application, family, mode, NULL::BIGINT AS frame_no, NULL::BIGINT AS packet_no
FROM channels JOIN members USING (connection_id) WHERE mode != 'none' OR published > 0;

CREATE OR REPLACE TEMP TABLE link_facts AS
SELECT connection_id, application, family, kind, queue_type, 0 AS block, no_credit_ns,
       greatest(coalesce(ns_of(closed_ts), opened_ns + length_ns) - ns_of(opened_ts), 1) AS length_ns,
       without_ids(coalesce('queue ' || queue, 'address ' || address)) AS subject, subject AS target,
       CASE WHEN no_ack THEN 'none' WHEN NOT no_ack THEN 'by the client' END AS value,
       NULL::BIGINT AS frame_no, NULL::BIGINT AS packet_no
FROM links JOIN members USING (connection_id)
WHERE coalesce(address, '') NOT SIMILAR TO '/?\$?management|\$cbs';

-- The most consumers that a connection has at the same time.
CREATE OR REPLACE TEMP TABLE receivers AS
SELECT connection_id, application, family, max(n)::BIGINT AS n, NULL::BIGINT AS frame_no, NULL::BIGINT AS packet_no
FROM (SELECT connection_id, sum(step) OVER (PARTITION BY connection_id ORDER BY moment, step) AS n
      FROM (SELECT connection_id, coalesce(opened_ts, 'epoch') AS moment, 1 AS step FROM links WHERE kind != 'sender'
            UNION ALL
            SELECT connection_id, closed_ts, -1 FROM links WHERE kind != 'sender' AND closed_ts IS NOT NULL))
     JOIN members USING (connection_id)
GROUP BY ALL;
