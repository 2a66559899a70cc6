-- What explains a connection: one row of `facts` for each connection in table `asked` (connection_id).

CREATE OR REPLACE TEMP MACRO ns_of(moment) AS epoch_us(moment) * 1000;
CREATE OR REPLACE TEMP MACRO end_of(ip, port) AS CASE WHEN ip LIKE '%:%' THEN '[' || ip || ']:' || port ELSE ip || ':' || port END;

-- All connections, with what says how one compares with the others.
CREATE OR REPLACE TEMP TABLE others AS
SELECT connection_id, client_ip, server_ip, server_port, "user", content, state, roles_from, server_packets,
       tcp_end_by = 'server' AND state = 'open' OR close_initiator = 'server'
           AND (close_code = 320 OR close_text ILIKE '%connection%forced%') AS ended_by_server,
       ns_of(opened_ts) AS opened_ns, ns_of(closed_ts) AS closed_ns
FROM connections;

-- Stages that the handshake reached; 0-10 has the names of the classic family. What is spoken on a channel comes after it,
-- whatever the capture lacks.
CREATE OR REPLACE TEMP TABLE stages AS
SELECT connection_id,
       bool_or(name IN ('connection.start', 'sasl-mechanisms', 'connection.start-ok', 'sasl-init') OR later) AS greeted,
       bool_or(name IN ('connection.start-ok', 'sasl-init') OR later) AS tried_login,
       bool_or(name IN ('connection.tune', 'connection.tune-ok', 'connection.open') OR later
               OR name = 'sasl-outcome' AND TRY_CAST(arguments.code AS INTEGER) = 0
               OR name = 'open' AND sender = 'server') AS logged_in,
       bool_or(name = 'connection.open' OR name = 'open' AND sender = 'client' OR later) AS tried_open,
       bool_or(name = 'connection.open-ok' OR name = 'open' AND sender = 'server' OR later) AS opened,
       arg_min(frame_no, frame_no) FILTER (WHERE name = 'sasl-outcome') AS outcome_frame,
       any_value(TRY_CAST(arguments.mechanisms AS VARCHAR)) FILTER (
           WHERE name IN ('connection.start', 'sasl-mechanisms') AND status = 'ok') AS mechanisms,
       count(*) FILTER (WHERE name = 'basic.get') AS gets, count(*) FILTER (WHERE name = 'basic.get-empty') AS empty_gets
FROM (SELECT *, name NOT LIKE 'connection.%' AND name NOT LIKE 'sasl-%' AND name NOT IN ('open', 'close')
                AND sender = 'server' AS later
      FROM methods WHERE connection_id IN (FROM asked) AND coalesce(status, 'ok') IN ('ok', 'partial'))
GROUP BY connection_id;

-- The first close of each connection, and the method that it names as its reason.
CREATE OR REPLACE TEMP TABLE closes AS
SELECT connection_id, c.frame_no AS close_frame, c.packet_no AS close_packet, c.ts_ns AS close_ns,
       CASE WHEN c.class_id > 0 THEN
           (SELECT any_value(name) FROM methods AS m
            WHERE m.class_id = c.class_id AND m.method_id = c.method_id AND m.version = c.version) END AS close_about
FROM (SELECT connection_id,
             arg_min({'frame_no': frame_no, 'packet_no': packet_no, 'ts_ns': ts_ns, 'version': version,
                      'class_id': TRY_CAST(arguments.class_id AS INTEGER),
                      'method_id': TRY_CAST(arguments.method_id AS INTEGER)}, frame_no) AS c
      FROM methods
      WHERE connection_id IN (FROM asked) AND name IN ('connection.close', 'close')
      GROUP BY connection_id);

-- Errors of channels, sessions and links, and consumers that the server cancelled.
CREATE OR REPLACE TEMP TABLE errors AS
SELECT connection_id, frame_no, packet_no, ts_ns, sender, channel, name, code, text,
       CASE WHEN class_id > 0 THEN
           (SELECT any_value(name) FROM methods AS m
            WHERE m.class_id = e.class_id AND m.method_id = e.method_id AND m.version = e.version) END AS about
FROM (SELECT connection_id, frame_no, packet_no, ts_ns, sender, channel, name, version,
             coalesce(reply_code, TRY_CAST(arguments.error_code AS INTEGER), TRY_CAST(arguments.code AS INTEGER)) AS code,
             coalesce(reply_text, TRY_CAST(arguments.description AS VARCHAR),
                      nullif(concat_ws(': ', TRY_CAST(arguments.error.condition AS VARCHAR),
                                       TRY_CAST(arguments.error.description AS VARCHAR)), ''),
                      CASE name WHEN 'basic.cancel' THEN 'consumer ' || consumer_tag || ' was cancelled' END) AS text,
             TRY_CAST(arguments.class_id AS INTEGER) AS class_id, TRY_CAST(arguments.method_id AS INTEGER) AS method_id
      FROM methods
      WHERE connection_id IN (FROM asked)
        AND (name = 'channel.close' AND reply_code >= 300
             OR name = 'basic.cancel' AND sender = 'server' AND version = '0-9-1'
             OR name IN ('end', 'detach') AND TRY_CAST(arguments.error.condition AS VARCHAR) IS NOT NULL
             OR name = 'execution.exception'
             OR name = 'session.detached' AND TRY_CAST(arguments.code AS VARCHAR) NOT IN ('0', 'normal'))) AS e;

CREATE OR REPLACE TEMP TABLE first_errors AS
SELECT connection_id, count(*) AS error_count, arg_min(e, e.frame_no) AS error
FROM (SELECT connection_id, {'frame_no': frame_no, 'packet_no': packet_no, 'ts_ns': ts_ns, 'sender': sender,
                             'channel': channel, 'name': name, 'code': code, 'text': text, 'about': about} AS e
      FROM errors)
GROUP BY connection_id;

-- The last frame of each side before the close, or bytes of it that the capture lacks; whether it lacks those before the
-- end; the first bytes of another protocol, and the last ones of the client that break the protocol.
CREATE OR REPLACE TEMP TABLE last_frames AS
SELECT connection_id,
       max(ts_ns) FILTER (WHERE sender = 'client' AND before) AS client_last_ns,
       arg_max(packet_no, ts_ns) FILTER (WHERE sender = 'client' AND before) AS client_last_packet,
       max(ts_ns) FILTER (WHERE sender = 'server' AND before) AS server_last_ns,
       arg_max(packet_no, ts_ns) FILTER (WHERE sender = 'server' AND before) AS server_last_packet,
       coalesce(arg_max(frame_type, frame_no) FILTER (WHERE sender = 'client') = 'gap', false)
           OR coalesce(arg_max(frame_type, frame_no) FILTER (WHERE sender = 'server') = 'gap', false) AS lost_last,
       arg_min(code, frame_no) FILTER (WHERE sender = 'client' AND frame_type = 'foreign') AS foreign_code,
       arg_min(packet_no, frame_no) FILTER (WHERE sender = 'client' AND frame_type = 'foreign') AS foreign_packet,
       arg_min(error, frame_no) FILTER (WHERE sender = 'client' AND frame_type = 'foreign') AS foreign_error,
       arg_min(packet_no, frame_no) FILTER (WHERE sender = 'server' AND frame_type IN ('skipped', 'foreign')) AS odd_packet,
       coalesce(sum(size) FILTER (WHERE sender = 'server' AND frame_type IN ('skipped', 'foreign')), 0)::BIGINT AS odd_bytes,
       coalesce(sum(size) FILTER (WHERE frame_type = 'gap'), 0)::BIGINT AS gap_bytes,
       arg_max({'frame_no': frame_no, 'packet_no': packet_no, 'ts_ns': ts_ns, 'error': error}, frame_no)
           FILTER (WHERE sender = 'client' AND status NOT IN ('ok', 'partial')
                         AND frame_type NOT IN ('foreign', 'protocol-header'))
           AS invalid
FROM (SELECT *, close_frame IS NULL OR frame_no < close_frame AS before
      FROM frames LEFT JOIN closes USING (connection_id)
      WHERE connection_id IN (FROM asked))
GROUP BY connection_id;

-- A server that was stopped may send what it had in hand when the client is gone already: its last frame before the
-- client's last one. And the heartbeats of each side after the last frame of the other.
CREATE OR REPLACE TEMP TABLE earlier_frames AS
SELECT connection_id, max(ts_ns) FILTER (WHERE sender = 'server' AND frame_type != 'gap' AND ts_ns <= client_last_ns)
           AS server_earlier_ns,
       count(*) FILTER (WHERE sender = 'server' AND is_beat AND ts_ns > client_last_ns) AS server_beats,
       count(*) FILTER (WHERE sender = 'client' AND is_beat AND ts_ns > server_last_ns) AS client_beats
FROM (SELECT *, frame_type = 'heartbeat' OR name = 'heartbeat' OR frame_type = 'empty' AS is_beat FROM frames)
JOIN last_frames USING (connection_id)
GROUP BY connection_id;

-- The longest silence at the end: before the side that spoke last began again, without an answer, or after it.
CREATE OR REPLACE TEMP TABLE idle_times AS
SELECT connection_id, min(ts_ns) FILTER (WHERE ts_ns > spoken_ns) AS again_ns, any_value(spoken_ns) AS spoken_ns
FROM frames JOIN (SELECT connection_id, least(client_last_ns, server_last_ns) AS spoken_ns FROM last_frames)
    USING (connection_id)
WHERE frame_type != 'gap' GROUP BY connection_id;

-- How many other connections of the same server it ended within two seconds, forced or without a close.
CREATE OR REPLACE TEMP TABLE ended_together AS
SELECT connection_id, count(*) OVER (
           PARTITION BY server_ip, server_port ORDER BY closed_ns
           RANGE BETWEEN 2000000000 PRECEDING AND 2000000000 FOLLOWING) - 1 AS ended_with
FROM others WHERE ended_by_server;

-- Of each connection the longest stop of a sender of 1.0 or 0-10, and channels whose prefetch limit is used up.
CREATE OR REPLACE TEMP TABLE stops AS
SELECT connection_id, max(no_credit_ns) AS no_credit_ns,
       arg_max(coalesce(address, queue, name), no_credit_ns) AS no_credit_link
FROM links WHERE connection_id IN (FROM asked) GROUP BY connection_id;
CREATE OR REPLACE TEMP TABLE channel_sums AS
SELECT connection_id, sum(unsettled)::BIGINT AS unsettled, sum(returned)::BIGINT AS returned,
       sum(nacked)::BIGINT AS nacked, count(*) FILTER (WHERE closed_ts IS NULL) AS open_channels,
       count(*) FILTER (WHERE opened_ts IS NOT NULL AND closed_ts IS NOT NULL) AS closed_channels,
       arg_max(channel, unsettled) FILTER (WHERE prefetch_count > 0 AND delivered > 0 AND unsettled >= prefetch_count)
           AS full_channel,
       max(prefetch_count) FILTER (WHERE prefetch_count > 0 AND delivered > 0 AND unsettled >= prefetch_count)
           AS full_prefetch,
       arg_max(acked + rejected + requeued, unsettled)
           FILTER (WHERE prefetch_count > 0 AND delivered > 0 AND unsettled >= prefetch_count) AS full_settled
FROM channels WHERE connection_id IN (FROM asked) GROUP BY connection_id;

-- What held each connection up, by kind and side: how long, how often, and the longest time.
CREATE OR REPLACE TEMP TABLE held_up AS
SELECT connection_id, max(of) FILTER (WHERE kind = 'connection-blocked') AS held_blocked,
       max(of) FILTER (WHERE kind = 'channel-flow') AS held_flow,
       max(of) FILTER (WHERE kind = 'session-window') AS held_window,
       max(of) FILTER (WHERE kind = 'no-credit') AS held_credit,
       max(of) FILTER (WHERE kind = 'prefetch-full') AS held_prefetch,
       max(of) FILTER (WHERE kind = 'zero-window' AND side = 'server') AS held_client_reads,
       max(of) FILTER (WHERE kind = 'zero-window' AND side = 'client') AS held_server_reads,
       max(of) FILTER (WHERE kind = 'retransmission') AS held_lost,
       max(of) FILTER (WHERE kind = 'nagle') AS held_nagle,
       max(of) FILTER (WHERE kind = 'unanswered-request') AS held_request
FROM (SELECT connection_id, kind, side,
             {'ns': sum(stall_ns)::BIGINT, 'times': count(*), 'side': side, 'longest_ns': max(stall_ns),
              'resumed': arg_max(resumed, stall_ns), 'link': arg_max(link, stall_ns), 'channel': arg_max(channel, stall_ns),
              'frame': arg_max(frame_no, stall_ns), 'packet': arg_max(packet_no, stall_ns),
              'at': arg_max(from_ns, stall_ns)} AS of
      FROM stalls WHERE connection_id IN (FROM asked) GROUP BY connection_id, kind, side)
GROUP BY connection_id;

CREATE OR REPLACE TEMP TABLE requests AS
SELECT connection_id, {'name': any_value(name), 'sender': any_value(sender)} AS request
FROM methods JOIN held_up USING (connection_id) WHERE frame_no = held_request.frame GROUP BY connection_id;

-- How long publishers wait for confirms.
CREATE OR REPLACE TEMP TABLE confirms AS
SELECT connection_id, count(*) AS confirmed, quantile_disc(settle_latency_ns, 0.1) AS confirm_p10_ns,
       quantile_disc(settle_latency_ns, 0.5) AS confirm_p50_ns, quantile_disc(settle_latency_ns, 0.9) AS confirm_p90_ns
FROM messages
WHERE connection_id IN (FROM asked) AND operation = 'publish' AND settle_latency_ns IS NOT NULL
GROUP BY connection_id;

-- Connections of the same client, user and server, and for how long they were opened one after the other.
CREATE OR REPLACE TEMP TABLE siblings AS
SELECT client_ip, server_ip, server_port, "user", count(*) AS siblings, max(opened_ns) - min(opened_ns) AS siblings_span_ns,
       quantile_disc(closed_ns - opened_ns, 0.5) AS sibling_p50_ns
FROM others WHERE content = 'amqp' AND roles_from = 'syn'
GROUP BY ALL;

-- Servers: whether one speaks AMQP, and how many connections it answered.
CREATE OR REPLACE TEMP TABLE servers AS
SELECT server_ip, server_port, bool_or(content = 'amqp' AND state != 'header') AS speaks_amqp,
       count(*) FILTER (WHERE server_packets > 0) AS server_seen
FROM others GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE facts AS
SELECT c.connection_id, capture_file, c.version, state, content, transport, undecoded_reason,
       -- Of one direction only what it states is known, not how the connection ended.
       (client_packets = 0) != (server_packets = 0) AND (client_bytes > 0 OR server_bytes > 0) AS one_sided,
       CASE WHEN NOT one_sided THEN tcp_end END AS tcp_end, CASE WHEN NOT one_sided THEN tcp_end_by END AS tcp_end_by,
       server_channel_max > 0 AND client_channel_max > server_channel_max
           OR server_frame_max > 0 AND client_frame_max > server_frame_max OR client_frame_max BETWEEN 1 AND 4095 AS tuned_too_high,
       coalesce(gap_bytes, 0) AS gap_bytes, coalesce(server_beats, 0) AS server_beats,
       coalesce(client_beats, 0) AS client_beats, mechanisms, coalesce(gets, 0) AS gets, coalesce(empty_gets, 0) AS empty_gets, start_latency_ns, odd_packet, odd_bytes,
       client_channel_max, server_channel_max, client_frame_max, server_frame_max, coalesce(closed_channels, 0) AS closed_channels,
       roles_from, client_name, c."user", vhost, mechanism,
       close_initiator, close_code, close_text, missing_bytes, client_packets, server_packets,
       client_bytes, server_bytes, messages_published, messages_delivered, blocked_ns, client_zero_window_ns,
       server_zero_window_ns, versions_offered, c.server_ip, c.server_port, c.client_ip, client_port,
       end_of(coalesce(proxied_client_ip, c.client_ip),
              CASE WHEN proxied_client_ip IS NULL THEN client_port ELSE proxied_client_port END) AS client,
       end_of(c.server_ip, c.server_port) AS server,
       ns_of(opened_ts) AS opened_ns, ns_of(closed_ts) AS closed_ns, ns_of(closed_ts) - ns_of(opened_ts) AS duration_ns,
       nullif(heartbeat_s, 0) * 1000000000 AS heartbeat_ns,
       -- 1.0: how long the peer may be silent; peers state half of what they tolerate (2.4.5)
       coalesce(nullif(heartbeat_s, 0) * 1000000000, server_idle_timeout_ms * 1000000) AS client_silence_limit_ns,
       coalesce(nullif(heartbeat_s, 0) * 1000000000, client_idle_timeout_ms * 1000000) AS server_silence_limit_ns,
       coalesce(greeted, false) AS greeted, coalesce(tried_login, false) AS tried_login,
       coalesce(logged_in, false) AS logged_in, coalesce(tried_open, false) AS tried_open,
       coalesce(opened, false) AS opened, outcome_frame,
       close_frame, close_packet, close_ns, close_about, close_frame IS NOT NULL AS has_close,
       coalesce(error_count, 0) AS error_count, error.frame_no AS error_frame, error.packet_no AS error_packet,
       error.ts_ns AS error_ns, error.sender AS error_by, error.channel AS error_channel, error.name AS error_name,
       error.code AS error_code, error.text AS error_text, error.about AS error_about,
       client_last_ns, client_last_packet, server_last_ns, server_last_packet, coalesce(lost_last, false) AS lost_last,
       held_blocked, held_flow, held_window, held_credit, held_prefetch, held_client_reads, held_server_reads, held_lost,
       held_nagle, held_request, request.name AS request_name, request.sender AS request_by,
       CASE request.sender WHEN 'client' THEN 'server' ELSE 'client' END AS request_of,
       greatest(again_ns - spoken_ns,
                ns_of(closed_ts) - greatest(client_last_ns, server_last_ns)) AS idle_ns,
       ns_of(closed_ts) - greatest(client_last_ns, server_last_ns) AS end_quiet_ns,
       client_last_ns > server_last_ns AS client_spoke_last,
       heartbeat_s IS NULL AND c.version != '1.0' OR roles_from != 'syn' AS began_unseen,
       tls.cipher_suite AS cipher_suite,
       (SELECT ns_of(max(last_ts)) FROM captures) - ns_of(closed_ts) AS after_ns,
       coalesce(close_ns, ns_of(closed_ts)) - coalesce(client_last_ns, ns_of(opened_ts)) AS client_quiet_ns,
       greatest(coalesce(close_ns, ns_of(closed_ts)) - coalesce(server_last_ns, ns_of(opened_ts)),
                CASE WHEN tcp_end_by = 'client' AND close_frame IS NULL THEN client_last_ns - server_earlier_ns END)
           AS server_quiet_ns,
       invalid.frame_no AS invalid_frame, invalid.packet_no AS invalid_packet, invalid.ts_ns AS invalid_ns,
       invalid.error AS invalid_error,
       CASE error.name WHEN 'detach' THEN 'refused or ended a link on channel ' || error.channel
                       WHEN 'end' THEN 'ended the session on channel ' || error.channel
                       WHEN 'session.detached' THEN 'ended the session on channel ' || error.channel
                       WHEN 'channel.close' THEN concat_ws(' and ', 'refused ' || error.about,
                                                           'closed channel ' || error.channel)
                       ELSE 'refused ' || coalesce(error.about, 'a command') || ' on channel ' || error.channel
       END AS error_work,
       coalesce(error.code::VARCHAR, nullif(split_part(error.text, ': ', 1), error.text)) AS error_kind,
       coalesce(close_code::VARCHAR, nullif(split_part(close_text, ': ', 1), close_text)) AS close_kind,
       c.server_port IN (5671, 5672) OR coalesce(speaks_amqp, false) AS is_amqp_port, server_seen,
       (SELECT count(*) FROM others WHERE content = 'amqp') AS amqp_seen,
       split_part(list_filter(versions_offered, lambda v: v LIKE 'client %')[1], ' ', 2) AS client_header,
       split_part(list_filter(versions_offered, lambda v: v LIKE 'server %')[1], ' ', 2) AS server_header,
       foreign_code, foreign_packet, coalesce(ended_with, 0) AS ended_with,
       no_credit_ns, no_credit_link, coalesce(unsettled, 0) AS unsettled, full_channel, full_prefetch, full_settled,
       coalesce(returned, 0) AS returned, coalesce(nacked, 0) AS nacked, coalesce(open_channels, 0) AS open_channels,
       confirmed, confirm_p10_ns, confirm_p50_ns, confirm_p90_ns, siblings, siblings_span_ns, sibling_p50_ns,
       CASE WHEN content = 'tls' THEN 'TLS' WHEN foreign_error ILIKE '%PROXY protocol%' THEN foreign_error
            WHEN foreign_code IS NULL THEN 'another protocol'
            WHEN foreign_code IN (1195725856, 1347375956, 1212498244, 1347769376) THEN 'HTTP'
            WHEN foreign_code = 1397966893 THEN 'SSH'
            WHEN foreign_code >> 24 = 22 THEN 'TLS'
            WHEN foreign_code >> 24 = 16 THEN 'MQTT'
            WHEN foreign_code IN (1129270862, 1398033488) THEN 'STOMP' ELSE 'another protocol' END AS foreign_protocol
FROM connections AS c
SEMI JOIN asked USING (connection_id)
LEFT JOIN stages USING (connection_id)
LEFT JOIN closes USING (connection_id)
LEFT JOIN first_errors USING (connection_id)
LEFT JOIN last_frames USING (connection_id)
LEFT JOIN earlier_frames USING (connection_id)
LEFT JOIN idle_times USING (connection_id)
LEFT JOIN ended_together USING (connection_id)
LEFT JOIN stops USING (connection_id)
LEFT JOIN channel_sums USING (connection_id)
LEFT JOIN held_up USING (connection_id)
LEFT JOIN requests USING (connection_id)
LEFT JOIN confirms USING (connection_id)
LEFT JOIN servers ON servers.server_ip = c.server_ip AND servers.server_port = c.server_port
LEFT JOIN siblings ON siblings.client_ip = c.client_ip AND siblings.server_ip = c.server_ip
    AND siblings.server_port = c.server_port AND siblings."user" IS NOT DISTINCT FROM c."user";
