-- Rows of table methods except those that carry or settle messages: few.
CREATE TABLE control_methods AS
SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
       payload_size, CAST(NULL AS BIGINT) AS body_size, status, error, notes, content_frame_no,
       ts, arguments, exchange, queue, reply_frame_no, reply_name, reply_latency_ns
FROM methods
WHERE NOT coalesce(name IN (
    'basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.ack', 'basic.reject',
    'message.transfer', 'message.accept', 'session.completed', 'session.known-completed', 'transfer', 'disposition',
    'flow'), false);

-- Protocol headers, frames of other protocols, and methods of connections themselves, with their arguments: few rows.
CREATE TABLE control_rows AS
SELECT * EXCLUDE (arguments),
       {'version_major': TRY_CAST(arguments.version_major AS INTEGER),
        'version_minor': TRY_CAST(arguments.version_minor AS INTEGER),
        'reply_code': TRY_CAST(arguments.reply_code AS INTEGER), 'code': TRY_CAST(arguments.code AS INTEGER),
        'heartbeat': TRY_CAST(arguments.heartbeat AS INTEGER),
        'heartbeat_min': TRY_CAST(arguments.heartbeat_min AS INTEGER),
        'heartbeat_max': TRY_CAST(arguments.heartbeat_max AS INTEGER),
        'insist': TRY_CAST(arguments.insist AS BOOLEAN), 'reply_text': TRY_CAST(arguments.reply_text AS VARCHAR),
        'hostname': TRY_CAST(arguments.hostname AS VARCHAR)} AS args,
       coalesce(strings(arguments.mechanisms), strings(arguments.sasl_server_mechanisms)) AS mechanisms,
       strings(arguments.locales) AS locales
FROM (SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
             payload_size, body_size, status, error, notes, content_frame_no, CAST(NULL AS VARIANT) AS arguments
      FROM frames WHERE frame_type IN ('protocol-header', 'foreign')
      UNION ALL
      SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
             payload_size, body_size, status, error, notes, content_frame_no, arguments
      FROM control_methods
      WHERE name LIKE 'connection.%' OR name LIKE 'sasl-%' OR name IN ('open', 'close'));

-- The first row of each kind in a connection, with what rules ask of it: wide rows are slow. 0-10 has the names of the
-- classic family.
CREATE TABLE first_rows AS
SELECT connection_id,
       {'start': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'status': status, 'mechanisms': mechanisms,
                           'locales': locales, 'args': {'version_major': args.version_major,
                                                        'version_minor': args.version_minor}},
                          name = 'connection.start'),
        'start_ok': earliest(noted, name = 'connection.start-ok'),
        'secure': earliest(line, name = 'connection.secure'),
        'secure_ok': earliest(noted, name = 'connection.secure-ok'),
        'tune': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'status': status,
                          'args': {'heartbeat_min': args.heartbeat_min, 'heartbeat_max': args.heartbeat_max}},
                         name = 'connection.tune'),
        'tune_ok': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'status': status,
                             'args': {'heartbeat': args.heartbeat}}, name = 'connection.tune-ok'),
        'open': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'args': {'insist': args.insist}},
                         name = 'connection.open'),
        'open_ok': earliest(line, name = 'connection.open-ok'),
        'redirect': earliest(line, name = 'connection.redirect'),
        'close': earliest(line, name = 'connection.close'),
        'close_ok': earliest(line, name = 'connection.close-ok'),
        'blocked': earliest(line, name = 'connection.blocked'),
        'update_secret': earliest(line, name = 'connection.update-secret'),
        'foreign': earliest(header, frame_type = 'foreign' AND sender = 'client' AND status != 'ok'),
        'proxy': earliest(line, frame_type = 'foreign' AND sender = 'client' AND status = 'ok'),
        'client_close': earliest(closing, name = 'connection.close' AND sender = 'client'),
        'server_close': earliest(closing, name = 'connection.close' AND sender = 'server'),
        'client_header': earliest(header, frame_type = 'protocol-header' AND sender = 'client'),
        'server_header': earliest(header, frame_type = 'protocol-header' AND sender = 'server'),
        'client_open': earliest(opening, name = 'open' AND sender = 'client'),
        'server_open': earliest(opening, name = 'open' AND sender = 'server'),
        'client_end': earliest(line, name = 'close' AND sender = 'client'),
        'server_end': earliest(line, name = 'close' AND sender = 'server'),
        'sasl_mechanisms': earliest({'frame_no': frame_no, 'mechanisms': mechanisms}, name = 'sasl-mechanisms'),
        'sasl_init': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'notes': notes,
                               'args': {'hostname': args.hostname}}, name = 'sasl-init'),
        'sasl_outcome': earliest({'frame_no': frame_no, 'ts_ns': ts_ns, 'args': {'code': args.code}},
                                 name = 'sasl-outcome')} AS c
FROM (SELECT *, {'frame_no': frame_no, 'ts_ns': ts_ns, 'sender': sender} AS line,
             {'frame_no': frame_no, 'ts_ns': ts_ns, 'status': status, 'notes': notes} AS noted,
             {'frame_no': frame_no, 'ts_ns': ts_ns, 'sender': sender, 'status': status, 'code': code} AS header,
             {'frame_no': frame_no, 'ts_ns': ts_ns,
              'args': {'reply_code': args.reply_code, 'reply_text': args.reply_text}} AS closing,
             {'frame_no': frame_no, 'ts_ns': ts_ns, 'status': status, 'args': {'hostname': args.hostname}} AS opening
      FROM control_rows)
GROUP BY connection_id;

-- Negotiated limits by connection: messages pass after frame `since` and before `until`, in frames no larger than
-- `largest`, on channels up to `last_channel`.
CREATE TABLE negotiated AS
SELECT connection_id,
       coalesce(c.open_ok.frame_no, CASE WHEN c."open" IS NULL AND c.tune_ok IS NULL THEN 0 END) AS since,
       coalesce(least(c.client_close.frame_no, c.server_close.frame_no, c.close_ok.frame_no, c.redirect.frame_no),
                never()) AS until,
       CASE WHEN c.tune_ok IS NULL THEN setting('HS-11.minimum_bytes')::BIGINT
            ELSE coalesce(nullif(frame_max, 0), never()) END AS largest,
       coalesce(nullif(channel_max, 0), never()) AS last_channel,
       greatest(c.client_open.frame_no, c.server_open.frame_no) AS opened,
       coalesce(least(c.client_end.frame_no, c.server_end.frame_no), never()) AS ended
FROM connections LEFT JOIN first_rows USING (connection_id);

-- Frames with `unusual_frame`: frame_no if the frame is unusual, else null. A routine frame carries or settles a message,
-- or a part of one, within the negotiated limits. Of 0-10 and 1.0 rules ask only about what is not whole or too large,
-- about redirects, and about empty frames outside of open and close.
CREATE VIEW flagged_frames AS
SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
       payload_size, body_size, status, error, notes, content_frame_no, first_ts_ns,
       CASE WHEN NOT coalesce(
           status = 'ok' AND coalesce(len(notes), 0) = 0 AND frame_type NOT IN ('gap', 'skipped', 'tls', 'foreign')
           AND (is_classic(version) AND channel > 0 AND frame_no > since AND frame_no < until AND size <= largest
                AND (frame_type = 'body' AND payload_size > 0
                     OR frame_type = 'header' AND body_size <= setting('CT-17.limit_bytes')::BIGINT
                     OR frame_type = 'method' AND carries(name, sender, version))
                OR NOT is_classic(version) AND error IS NULL
                AND CASE version WHEN '1.0' THEN frame_type != 'empty'
                                                 OR coalesce(frame_no > opened, false) AND frame_no < ended
                         ELSE size <= largest AND frame_no < until END), false)
       THEN frame_no END AS unusual_frame
FROM frames LEFT JOIN negotiated USING (connection_id);

-- The unusual rows of table frames.
CREATE TABLE unusual_frames AS
SELECT * EXCLUDE (first_ts_ns, unusual_frame) FROM flagged_frames WHERE unusual_frame IS NOT NULL;

-- One row per connection, sender, version and second: first and last frame, the first row that is a frame, the first
-- gap, the time from which bytes are missing; of captured bytes the times and frames from and to. A truncated frame
-- counts as lost.
CREATE TABLE seconds AS
SELECT connection_id, sender, version, ts_ns // 1000000000 AS second, min(frame_no) AS min_frame,
       max(frame_no) AS max_frame,
       min(frame_no) FILTER (WHERE frame_type NOT IN ('protocol-header', 'gap', 'skipped', 'tls', 'foreign'))
           AS framed,
       min(frame_no) FILTER (WHERE frame_type = 'gap') AS loss_frame,
       min(first_ts_ns) FILTER (WHERE frame_type = 'gap' OR status = 'partial' AND frame_type != 'skipped'
                                      OR frame_type = 'skipped' AND status != 'partial') AS loss_from_ns,
       min(first_ts_ns) FILTER (WHERE frame_type != 'gap') AS from_ns,
       max(ts_ns) FILTER (WHERE frame_type != 'gap') AS to_ns,
       min(frame_no) FILTER (WHERE frame_type != 'gap') AS from_frame,
       max(frame_no) FILTER (WHERE frame_type != 'gap') AS to_frame
FROM frames GROUP BY connection_id, sender, version, ts_ns // 1000000000;

-- Connections with what is known of them. `client_ip` and `client_port` are those of the client that a header of the
-- PROXY protocol names.
--     tcp_client_ip, tcp_client_port   the same as TCP has them
--     opened_ns, ts_ns    first and last packet, ns since 1970-01-01 UTC
--     start, both         captured from its beginning; in both directions
--     order               no segment was captured out of order: the capture shows which side sent first
--     loss_from_ns        time from which bytes are missing; null: none
--     begun               TCP was captured from its beginning: if AMQP was not, bytes of TLS are missing from the start
--     version             a connection.start of 0-9-1 says 0-9: where the header of the client was not captured, as in
--                         early data that the server refused, the version is that of the frames
--     asked, answered     first protocol header of the client, and of the server, as in versions_offered
--     refused             the server answered with a protocol header of its own, and did not go on, or only to say why
--     failed_login        the login failed
--     first_frame, client_min_frame, client_max_frame, client_framed ...   first and last row of each side, and its
--                         first row that is a frame
--     c                   the first row of each kind (first_rows)
CREATE TABLE known_connections AS
SELECT * EXCLUDE (version, framed_version, client_ip, client_port, loss_from_ns),
       CASE WHEN begun AND NOT start THEN opened_ns ELSE loss_from_ns END AS loss_from_ns,
       coalesce(version, framed_version, answered) AS version,
       coalesce(proxied_client_ip, client_ip) AS client_ip,
       CASE WHEN proxied_client_ip IS NULL THEN client_port ELSE proxied_client_port END AS client_port,
       client_ip AS tcp_client_ip, client_port AS tcp_client_port,
       c.server_header IS NOT NULL AND (c.start IS NULL AND c.server_open IS NULL
           OR coalesce(answered != asked, false) AND client_framed IS NULL) AS refused,
       c.start IS NOT NULL AND c.start_ok IS NOT NULL AND c.tune IS NULL
           AND (c.server_close.args.reply_code = 403
                OR version = '0-10' AND c.server_close.args.reply_code = 320
                OR c.close IS NULL AND tcp_end_by = 'server')
           OR c.sasl_outcome.args.code != 0 AS failed_login,
       coalesce(c.start_ok.frame_no, c.client_header.frame_no, first_frame) AS frame_no
FROM (SELECT *, epoch_us(opened_ts) * 1000 AS opened_ns, epoch_us(closed_ts) * 1000 AS ts_ns,
             len(list_filter(versions_offered, lambda v: v LIKE 'client %')) > 0 OR roles_from = 'syn'
                 AND NOT (coalesce(tls.decrypted, false) AND coalesce(server_frames, 0) > 0) AS start,
             roles_from = 'syn' AS begun,
             client_packets > 0 AND server_packets > 0 AS "both",
             out_of_order_segments = 0 AND NOT coalesce(list_contains(limits, 'order of both sides'), false)
                 AS "order",
             offered(versions_offered, 'client %') AS asked, offered(versions_offered, 'server %') AS answered
      FROM connections)
LEFT JOIN (SELECT connection_id, min(version) FILTER (WHERE framed IS NOT NULL) AS framed_version,
                  min(min_frame) AS first_frame, min(loss_from_ns) AS loss_from_ns,
                  min(loss_frame) AS loss_frame,
                  min(min_frame) FILTER (WHERE sender = 'client') AS client_min_frame,
                  max(max_frame) FILTER (WHERE sender = 'client') AS client_max_frame,
                  min(framed) FILTER (WHERE sender = 'client') AS client_framed,
                  max(to_ns) FILTER (WHERE sender = 'client') AS client_to_ns,
                  min(min_frame) FILTER (WHERE sender = 'server') AS server_min_frame,
                  max(max_frame) FILTER (WHERE sender = 'server') AS server_max_frame,
                  min(framed) FILTER (WHERE sender = 'server') AS server_framed,
                  max(to_ns) FILTER (WHERE sender = 'server') AS server_to_ns
           FROM seconds GROUP BY connection_id) USING (connection_id)
LEFT JOIN first_rows USING (connection_id);

-- `c` of most contexts: the frames of some first rows, and columns of the connection.
CREATE TABLE connection_facts AS
SELECT connection_id, {
    'open': {'frame_no': c.open.frame_no}, 'open_ok': {'frame_no': c.open_ok.frame_no},
    'tune_ok': {'frame_no': c.tune_ok.frame_no}, 'redirect': {'frame_no': c.redirect.frame_no},
    'start': {'status': c.start.status}, 'start_ok': {'status': c.start_ok.status},
    'close': c.close, 'close_ok': c.close_ok, 'sasl_outcome': c.sasl_outcome,
    'client_close': CASE WHEN c.client_close IS NOT NULL THEN
                        {'frame_no': c.client_close.frame_no, 'ts_ns': c.client_close.ts_ns} END,
    'server_close': CASE WHEN c.server_close IS NOT NULL THEN
                        {'frame_no': c.server_close.frame_no, 'ts_ns': c.server_close.ts_ns} END,
    'client_open': {'frame_no': c.client_open.frame_no}, 'server_open': {'frame_no': c.server_open.frame_no},
    'client_end': {'frame_no': c.client_end.frame_no}, 'server_end': {'frame_no': c.server_end.frame_no},
    'frame_max': frame_max, 'channel_max': channel_max, 'heartbeat_s': heartbeat_s, 'version_known': version_known,
    'tcp_end': tcp_end, 'tcp_end_by': tcp_end_by, 'tcp_rtt_ns': tcp_rtt_ns, 'client_properties': client_properties,
    'server_properties': server_properties, 'client_framed': client_framed, 'server_framed': server_framed,
    'loss_frame': loss_frame, 'loss_from_ns': loss_from_ns, 'last_ns': ts_ns, 'from_start': start} AS c
FROM known_connections;

-- What rules about several connections ask of each, and what findings need to know of theirs.
CREATE VIEW fact_connections AS
SELECT connection_id, version, frame_no, opened_ns, ts_ns, closed_ts, start, "both", "order", loss_from_ns, loss_frame,
       client_ip, client_port, tcp_client_ip, tcp_client_port, proxied_client_ip, proxied_client_port, server_ip,
       server_port, vhost, "user", client_name, client_product, server_product, handshake_ns, client_frames, server_frames,
       client_container_id, server_container_id, content, state, roles_from, asked, answered, refused, failed_login,
       tcp_end, tcp_origin, client_packets, server_packets, client_bytes, server_bytes, missing_bytes, first_frame,
       client_min_frame, messages_published, messages_delivered, {'mode': tls.mode} AS tls,
       {'foreign': c.foreign, 'proxy': c.proxy, 'client_header': c.client_header, 'server_header': c.server_header,
        'start_ok': {'frame_no': c.start_ok.frame_no}, 'sasl_init': {'frame_no': c.sasl_init.frame_no},
        'close': {'ts_ns': c.close.ts_ns}} AS c
FROM known_connections;

CREATE VIEW context_connections AS SELECT * FROM known_connections;

CREATE VIEW context_frames AS SELECT * FROM unusual_frames LEFT JOIN connection_facts USING (connection_id);

-- Protocol headers and methods of the connection itself, with what came before them: `earlier_header`, code of the last
-- protocol header of the same sender; `framed`: the sender had sent frames; `earlier_step`: name of the last step of the
-- handshake, of either side; `closing`: a connection.close came before; `far_close`: one by the other side.
CREATE VIEW context_control AS
SELECT *, coalesce(CASE sender WHEN 'client' THEN c.client_framed ELSE c.server_framed END < frame_no, false) AS framed
FROM (SELECT *,
             last_value(CASE WHEN frame_type = 'protocol-header' THEN code END IGNORE NULLS) OVER own AS earlier_header,
             last_value(CASE WHEN name IN ('connection.start', 'connection.start-ok', 'connection.secure',
                                           'connection.secure-ok', 'connection.tune', 'connection.tune-ok',
                                           'connection.open', 'connection.open-ok', 'connection.redirect')
                             THEN name END IGNORE NULLS) OVER before AS earlier_step,
             coalesce(max(name = 'connection.close') OVER before, false) AS closing,
             CASE sender WHEN 'client' THEN max(name = 'connection.close' AND sender = 'server') OVER before
                         ELSE max(name = 'connection.close' AND sender = 'client') OVER before END AS far_close
      FROM control_rows
      WINDOW before AS (PARTITION BY connection_id ORDER BY frame_no
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             own AS (PARTITION BY connection_id, sender ORDER BY frame_no
                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
LEFT JOIN connection_facts USING (connection_id);

-- One row per connection that is a copy of an earlier one nearer to the client. `copied`: the earlier one.
-- On the other side of a NAT: the same sequence numbers and as many packets and bytes, at most 50 ms later, between other
-- addresses. Numbers that other connections have as well are not random, and say nothing; neither do those that begin
-- below 65,536, unless the client's port is the same, and one of the addresses.
-- Behind a proxy: its client is where the other one ends, or its PROXY header names the other's client; as many frames
-- and messages, at most 1 s later, and the broker accepts it before the proxy accepts the other one.
CREATE VIEW context_translated AS
WITH known AS (
    SELECT *, {'connection_id': connection_id, 'client': client_ip || ' port ' || client_port,
               'server': server_ip || ' port ' || server_port, 'client_ip': client_ip, 'server_ip': server_ip,
               'server_port': server_port, 'opened_ns': opened_ns, 'closed_ns': closed_ns,
               'handshake_ns': handshake_ns} AS whole
    FROM (SELECT * REPLACE (tcp_client_ip AS client_ip, tcp_client_port AS client_port), ts_ns AS closed_ns,
                 (tcp_origin & 4294967295) < 65536 OR tcp_origin BETWEEN 0 AND 281474976710655 AS low
          FROM fact_connections)
), translated AS (
    SELECT connection_id, copied
    FROM (SELECT *, lag(whole) OVER same AS copied, count(*) OVER (PARTITION BY tcp_origin) AS with_numbers,
                 count(*) OVER (PARTITION BY tcp_origin, client_packets, server_packets, client_bytes, server_bytes)
                     AS alike
          FROM known WHERE tcp_origin IS NOT NULL
          WINDOW same AS (PARTITION BY tcp_origin, client_packets, server_packets, client_bytes, server_bytes,
                                       CASE WHEN low THEN client_port END
                          ORDER BY opened_ns, connection_id))
    WHERE opened_ns - copied.opened_ns BETWEEN 1 AND 50000000 AND abs(closed_ns - copied.closed_ns) <= 50000000
          AND (client_ip != copied.client_ip OR server_ip != copied.server_ip)
          AND CASE WHEN low THEN client_ip = copied.client_ip
                                 OR server_ip = copied.server_ip AND server_port = copied.server_port
                   ELSE with_numbers = alike END
), passed_on AS (
    SELECT *, (version, coalesce(vhost, ''), coalesce("user", ''), coalesce(client_name, ''), client_frames,
               server_frames, messages_published, messages_delivered) AS passed
    FROM known WHERE messages_published + messages_delivered > 0
), proxied AS (
    SELECT near.connection_id, near.whole, far.whole AS copied
    FROM passed_on far ASOF JOIN passed_on near
        ON far.server_ip = near.client_ip AND far.passed = near.passed AND far.opened_ns <= near.opened_ns
    UNION ALL
    SELECT near.connection_id, near.whole, far.whole
    FROM passed_on far ASOF JOIN (FROM passed_on WHERE proxied_client_ip IS NOT NULL) near
        ON far.client_ip = near.proxied_client_ip AND far.client_port = near.proxied_client_port
           AND far.passed = near.passed AND far.opened_ns <= near.opened_ns
)
SELECT fact_connections.*, copied
FROM (SELECT connection_id, min(copied) AS copied
      FROM (FROM translated UNION ALL
            SELECT connection_id, copied FROM proxied
            WHERE whole.client_ip != copied.client_ip AND whole.opened_ns - copied.opened_ns <= 1000000000
                  AND abs(whole.closed_ns - copied.closed_ns) <= 1000000000
                  AND (copied.handshake_ns IS NULL
                       OR whole.opened_ns + coalesce(whole.handshake_ns, 0)
                          <= copied.opened_ns + copied.handshake_ns))
      GROUP BY connection_id)
JOIN fact_connections USING (connection_id);

-- One row per capture, with the limits that it ran into before its packets belonged to a connection.
--     limits           names of these limits
--     packets_skipped  packets that were left out for them; null: none, reading stopped
-- `version` is null: a capture speaks none. A record above the size limit is usually damage, which cannot be
-- distinguished. Other errors are damage.
CREATE VIEW context_captures AS
SELECT capture_file, error, CAST(NULL AS VARCHAR) AS version,
       compact([CASE WHEN skipped_packets['too-many-layers'] > 0 THEN 'packet headers' END,
                CASE WHEN skipped_packets['too-many-tunnels'] > 0 THEN 'tunnels' END,
                CASE WHEN skipped_packets['ip-fragment-over-limit'] > 0 THEN 'fragments' END,
                CASE WHEN TRY_CAST(nullif(regexp_extract(error, 'claims (more than|a length of) ([0-9]+)', 2), '')
                                   AS DECIMAL(38)) >= setting('LIMITS.record_bytes')::BIGINT THEN 'record size' END,
                CASE WHEN error LIKE '%expands more than % times%' THEN 'expansion' END]) AS limits,
       nullif(coalesce(skipped_packets['too-many-layers'], 0) + coalesce(skipped_packets['too-many-tunnels'], 0)
              + coalesce(skipped_packets['ip-fragment-over-limit'], 0), 0) AS packets_skipped
FROM captures;

-- How long each side sent nothing, compared with the negotiated heartbeat interval. One row per second in which a side
-- sent, with the silence before it, and one for the silence up to the end of the connection. Intervals are whole
-- seconds, so pauses within a second do not matter. Silence counts from tune-ok to a close, without the time in which
-- the other side's TCP receive window was closed: nothing could be sent then. In 1.0 each side announces the idle
-- time-out for the other: what the other side announces is how long a side may be silent.
CREATE VIEW context_silences AS
SELECT connection_id, version, sender, heartbeat_s, idle_ms, ends AS ts_ns, ended_frame AS frame_no,
       CASE WHEN coalesce(to_ns < close_ns, true) THEN
           ends - greatest(to_ns, tuned_ns) - coalesce(barred_ns, 0) END AS silence_ns
FROM (SELECT *, coalesce(lead(from_ns) OVER in_order, least(last_ns, close_ns)) AS ends,
             coalesce(lead(from_frame) OVER in_order, to_frame) AS ended_frame,
             nullif(CASE sender WHEN 'client' THEN server_idle_timeout_ms ELSE client_idle_timeout_ms END, 0)
                 AS idle_ms,
             CASE sender WHEN 'client' THEN server_zero_window_ns ELSE client_zero_window_ns END AS barred_ns
      FROM (SELECT connection_id, sender, second, min(from_ns) AS from_ns, max(to_ns) AS to_ns,
                   min(from_frame) AS from_frame, max(to_frame) AS to_frame
            FROM seconds WHERE sender IS NOT NULL AND to_ns IS NOT NULL GROUP BY connection_id, sender, second)
      JOIN (SELECT connection_id, version, heartbeat_s, ts_ns AS last_ns, client_idle_timeout_ms,
                   server_idle_timeout_ms, client_zero_window_ns, server_zero_window_ns,
                   coalesce(c.tune_ok.ts_ns, greatest(c.client_open.ts_ns, c.server_open.ts_ns)) AS tuned_ns,
                   coalesce(c.close.ts_ns, least(c.client_end.ts_ns, c.server_end.ts_ns)) AS close_ns
            FROM known_connections
            WHERE heartbeat_s > 0 AND c.tune_ok IS NOT NULL
                  OR greatest(client_idle_timeout_ms, server_idle_timeout_ms) > 0
                  AND c.client_open IS NOT NULL AND c.server_open IS NOT NULL) USING (connection_id)
      WINDOW in_order AS (PARTITION BY connection_id, sender ORDER BY second));

-- connection.blocked, unblocked and basic.publish on connections that were ever blocked. `since`: the last switch before;
-- `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the connection.
CREATE VIEW context_blocked AS
SELECT *,
       last_value(CASE WHEN name IN ('connection.blocked', 'connection.unblocked') THEN
                      {'on': name = 'connection.blocked', 'frame_no': frame_no, 'ts_ns': ts_ns} END IGNORE NULLS)
           OVER (PARTITION BY connection_id ORDER BY frame_no ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS since,
       min(CASE name WHEN 'connection.unblocked' THEN ts_ns END)
           OVER (PARTITION BY connection_id ORDER BY frame_no DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
           AS unblocked_ns
FROM (SELECT connection_id, version, frame_no, ts_ns, name
      FROM frames WHERE name IN ('basic.publish', 'connection.blocked', 'connection.unblocked'))
JOIN (SELECT connection_id, tcp_rtt_ns, ts_ns AS last_ns FROM known_connections WHERE c.blocked IS NOT NULL)
    USING (connection_id);
