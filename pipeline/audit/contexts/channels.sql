-- Nearly all methods that carry or settle messages are routine, and no rule can be about a single one of them. The state
-- that rules keep of a channel does not change while only messages pass. So such a method is routine within the longest
-- stretch of its channel between two methods that change the state of the channel, if the channel is open there, without
-- flow control and transactions, and no rule reads its arguments. Routine methods are only counted (transfer_counts);
-- unusual ones are read one by one (unusual_methods). A rule about rows that are routine so far needs a change here.

-- The longest stretch of each channel without methods that steer it: after `from_frame` and before `until_frame`;
-- `incarnation`: channel_incarnation; `confirms`. Where the capture begins in the middle of a connection, what comes
-- before the first steering method is such a stretch, which rules treat as unknown; a channel that is not named is never
-- steered.
CREATE TABLE stretches AS
SELECT connection_id, channel, longest.from_frame AS from_frame, longest.until_frame AS until_frame,
       longest.incarnation AS incarnation, longest.confirms AS confirms
FROM (SELECT connection_id, channel, max(stretch) AS longest
      FROM (SELECT connection_id, channel,
                   unnest([CASE WHEN was = 'channel.open' AND odd = 0
                                     AND until_frame - from_frame > setting('LIMITS.stretch')::BIGINT THEN
                               {'length': until_frame - from_frame, 'from_frame': from_frame,
                                'until_frame': until_frame, 'incarnation': incarnation,
                                'confirms': coalesce(confirmed > opened, false)} END,
                           CASE WHEN first AND midstream THEN
                               {'length': from_frame + 1, 'from_frame': -1, 'until_frame': from_frame, 'incarnation': 0,
                                'confirms': true} END]) AS stretch
            FROM (SELECT connection_id, channel, midstream, frame_no AS from_frame,
                         coalesce(lead(frame_no) OVER own, never()) AS until_frame,
                         lag(frame_no) OVER own IS NULL AS first,
                         count(CASE WHEN name = 'channel.open' THEN 1 END) OVER so_far AS incarnation,
                         last_value(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok')
                                         THEN name END IGNORE NULLS) OVER so_far AS was,
                         count(CASE WHEN name LIKE 'channel.flow%' OR name = 'tx.select' THEN 1 END) OVER so_far AS odd,
                         max(CASE WHEN name = 'confirm.select' THEN frame_no END) OVER so_far AS confirmed,
                         max(CASE WHEN name = 'channel.open' THEN frame_no END) OVER so_far AS opened
                  FROM control_methods
                  LEFT JOIN (SELECT connection_id, NOT start AS midstream FROM known_connections) USING (connection_id)
                  WHERE (name LIKE 'channel.%' OR name IN ('confirm.select', 'tx.select')) AND is_classic(version)
                        AND frame_type = 'method' AND channel > 0
                  WINDOW own AS (PARTITION BY connection_id, channel ORDER BY frame_no),
                         so_far AS (PARTITION BY connection_id, channel ORDER BY frame_no
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)))
      GROUP BY connection_id, channel)
WHERE longest IS NOT NULL;

-- Methods on channels that carry or settle messages: `stretch_incarnation` (`channel_incarnation` within the stretch of
-- its channel, else null) and `routine`. Only 0-8 and 0-9 have tickets.
CREATE VIEW transfers AS
SELECT *, coalesce(stretch_incarnation IS NOT NULL
                   AND (sender = 'client' OR name != 'basic.ack' OR coalesce(confirms, midstream))
                   AND channel <= last_channel AND status = 'ok'
                   AND NOT coalesce(delivery_tag = 0 OR strlen(exchange) > 127
                                    OR regexp_matches(exchange, '[^a-zA-Z0-9_.:-]'), false)
                   AND NOT coalesce(immediate, false) AND NOT coalesce(ticket = 0, false), false) AS routine
FROM (SELECT *, CASE WHEN is_classic(version) AND carries(name, sender, version)
                          AND (frame_no > from_frame AND frame_no < until_frame OR midstream AND from_frame IS NULL)
                     THEN coalesce(incarnation, 0) END AS stretch_incarnation
      FROM (SELECT * FROM methods
            WHERE is_classic(version) AND frame_type IN ('method', 'oob-method') AND channel IS DISTINCT FROM 0
                  AND name IN ('basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.ack', 'basic.reject'))
      LEFT JOIN stretches USING (connection_id, channel)
      LEFT JOIN (SELECT connection_id, true AS midstream FROM known_connections WHERE NOT start)
          USING (connection_id)
      LEFT JOIN (SELECT connection_id, last_channel FROM negotiated) USING (connection_id)
      LEFT JOIN (SELECT connection_id, first_frame_no AS frame_no, immediate
                 FROM messages WHERE immediate AND operation = 'publish') USING (connection_id, frame_no)
      LEFT JOIN (SELECT connection_id, frame_no, TRY_CAST(arguments.ticket AS INTEGER) AS ticket
                 FROM methods WHERE version IN ('0-8', '0-9')) USING (connection_id, frame_no));

-- Counts of these methods; each unusual one by itself.
CREATE TABLE transfer_counts AS
SELECT connection_id, channel, version, stretch_incarnation, sender, name, class_id, method_id, unusual_frame,
       count(*) AS times, min(frame_no) AS first_frame, max(frame_no) AS last_frame, min(ts_ns) AS first_ns
FROM (SELECT *, CASE WHEN NOT routine THEN frame_no END AS unusual_frame FROM transfers)
GROUP BY ALL;

-- Unusual methods of the classic family on channels other than 0.
CREATE TABLE unusual_methods AS
SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
       payload_size, body_size, status, error, notes, content_frame_no, arguments, reply_name,
       CAST(NULL AS BIGINT) AS stretch_incarnation
FROM control_methods
WHERE is_classic(version) AND frame_type IN ('method', 'oob-method') AND channel IS DISTINCT FROM 0
UNION ALL
SELECT connection_id, frame_no, ts_ns, sender, version, channel, frame_type, class_id, method_id, code, name, size,
       payload_size, CAST(NULL AS BIGINT), status, error, notes, content_frame_no, arguments, reply_name,
       stretch_incarnation
FROM methods JOIN (SELECT connection_id, unusual_frame AS frame_no, stretch_incarnation
                   FROM transfer_counts WHERE unusual_frame IS NOT NULL) USING (connection_id, frame_no);

-- The same with `channel_incarnation` as in the tables.
CREATE VIEW channel_methods AS
SELECT *, channel_incarnations(name, connection_id, channel, frame_no) AS channel_incarnation FROM unusual_methods;

-- One row per unusual method of the classic family on a channel other than 0, with its arguments (`args`), states of the
-- channel from its earlier rows, its `reply_name`, the method that the server's next channel.close in the same
-- incarnation names (`blamed`), and its connection (`c`).
CREATE VIEW context_events AS
SELECT *
FROM (SELECT *,
             max(CASE WHEN name = 'tx.select' THEN frame_no END) OVER before AS tx_frame,
             max(CASE WHEN name = 'dtx.select' THEN frame_no END) OVER before AS dtx_frame,
             max(CASE WHEN name = 'confirm.select' THEN frame_no END) OVER before AS confirm_frame,
             max(CASE WHEN name = 'access.request-ok' THEN frame_no END) OVER before AS ticket_frame,
             max(CASE WHEN name = 'queue.declare' AND sender = 'client' THEN frame_no END) OVER before AS declare_frame,
             last_value(CASE WHEN name = 'basic.qos' THEN
                            {'frame_no': frame_no, 'prefetch_count': args.prefetch_count} END IGNORE NULLS)
                 OVER before AS last_qos,
             last_value(CASE WHEN name = 'channel.flow' AND sender = 'client' THEN
                            {'frame_no': frame_no, 'active': args.active} END IGNORE NULLS) OVER before AS client_flow,
             last_value(CASE WHEN name = 'channel.flow-ok' AND sender = 'client' THEN
                            {'frame_no': frame_no, 'active': args.active} END IGNORE NULLS) OVER before
                 AS client_flow_ok,
             last_value(CASE WHEN name = 'channel.flow' AND sender = 'server' THEN
                            {'frame_no': frame_no, 'active': args.active} END IGNORE NULLS) OVER before AS server_flow,
             last_value(CASE WHEN name = 'channel.flow-ok' AND sender = 'server' THEN
                            {'frame_no': frame_no, 'active': args.active} END IGNORE NULLS) OVER before
                 AS server_flow_ok,
             max(CASE WHEN name = 'channel.open' THEN frame_no END) OVER before AS opened_frame,
             last_value(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END
                        IGNORE NULLS) OVER before AS channel_was,
             sum(CASE name WHEN 'channel.close' THEN 1 WHEN 'channel.close-ok' THEN -1 END) OVER before
                 AS unanswered_closes,
             max(CASE WHEN name = 'channel.close' AND sender = 'client' THEN frame_no END) OVER before
                 AS client_close_frame,
             max(CASE WHEN name = 'channel.close' AND sender = 'server' THEN frame_no END) OVER before
                 AS server_close_frame,
             count(CASE WHEN name = 'channel.close' AND sender = 'client' THEN 1 END) OVER before
                 AS client_channel_closes,
             count(CASE WHEN name = 'channel.close-ok' AND sender = 'client' THEN 1 END) OVER before
                 AS client_channel_close_oks,
             count(CASE WHEN name = 'channel.close' AND sender = 'server' THEN 1 END) OVER before
                 AS server_channel_closes,
             count(CASE WHEN name = 'channel.close-ok' AND sender = 'server' THEN 1 END) OVER before
                 AS server_channel_close_oks,
             count(CASE name WHEN 'channel.open' THEN 1 END) OVER before
                 + coalesce(CASE name WHEN 'channel.open' THEN 1 END, 0) AS channel_incarnation,
             lead(CASE WHEN name = 'channel.open' OR name = 'channel.close' AND sender = 'server' THEN
                      {'class_id': args.class_id, 'method_id': args.method_id} END IGNORE NULLS) OVER own AS blamed
      FROM (SELECT * EXCLUDE (arguments, stretch_incarnation),
                   {'exchange': TRY_CAST(arguments.exchange AS VARCHAR),
                    'routing_key': TRY_CAST(arguments.routing_key AS VARCHAR),
                    'queue': TRY_CAST(arguments.queue AS VARCHAR),
                    'consumer_tag': TRY_CAST(arguments.consumer_tag AS VARCHAR),
                    'type': TRY_CAST(arguments.type AS VARCHAR), 'source': TRY_CAST(arguments.source AS VARCHAR),
                    'destination': TRY_CAST(arguments.destination AS VARCHAR),
                    'identifier': TRY_CAST(arguments.identifier AS VARCHAR),
                    'reply_text': TRY_CAST(arguments.reply_text AS VARCHAR),
                    'realm': TRY_CAST(arguments.realm AS VARCHAR),
                    'delivery_tag': TRY_CAST(arguments.delivery_tag AS BIGINT),
                    'reply_code': TRY_CAST(arguments.reply_code AS INTEGER),
                    'class_id': TRY_CAST(arguments.class_id AS INTEGER),
                    'method_id': TRY_CAST(arguments.method_id AS INTEGER),
                    'ticket': TRY_CAST(arguments.ticket AS INTEGER),
                    'prefetch_count': TRY_CAST(arguments.prefetch_count AS INTEGER),
                    'active': TRY_CAST(arguments.active AS BOOLEAN),
                    'multiple': TRY_CAST(arguments.multiple AS BOOLEAN),
                    'requeue': TRY_CAST(arguments.requeue AS BOOLEAN),
                    'no_wait': TRY_CAST(arguments.no_wait AS BOOLEAN),
                    'no_ack': TRY_CAST(arguments.no_ack AS BOOLEAN),
                    'exclusive': TRY_CAST(arguments.exclusive AS BOOLEAN),
                    'passive': TRY_CAST(arguments.passive AS BOOLEAN),
                    'durable': TRY_CAST(arguments.durable AS BOOLEAN),
                    'auto_delete': TRY_CAST(arguments.auto_delete AS BOOLEAN),
                    'internal': TRY_CAST(arguments.internal AS BOOLEAN),
                    'mandatory': TRY_CAST(arguments.mandatory AS BOOLEAN),
                    'immediate': TRY_CAST(arguments.immediate AS BOOLEAN),
                    'redelivered': TRY_CAST(arguments.redelivered AS BOOLEAN),
                    'global': TRY_CAST(arguments."global" AS BOOLEAN)} AS args
            FROM unusual_methods)
      WINDOW own AS (PARTITION BY connection_id, channel ORDER BY frame_no
                     ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING),
             before AS (PARTITION BY connection_id, channel ORDER BY frame_no
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
LEFT JOIN connection_facts USING (connection_id);

-- channel.close and its arguments.
CREATE TABLE channel_closes AS
SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, version, sender, name,
       {'reply_code': TRY_CAST(arguments.reply_code AS INTEGER),
        'reply_text': TRY_CAST(arguments.reply_text AS VARCHAR),
        'class_id': TRY_CAST(arguments.class_id AS INTEGER),
        'method_id': TRY_CAST(arguments.method_id AS INTEGER)} AS args
FROM channel_methods WHERE name = 'channel.close';

-- One row per channel incarnation of the classic family, with its methods and messages. An incarnation lasts from an
-- open of a channel number to the next open; `channel_incarnation` numbers them.
--     methods       array of (sender, name, class_id, method_id, times, first_frame, last_frame), by method and sender
--     close         the first channel.close: sender, frame_no, ts_ns and its arguments
--     close_ok_ns   time of its channel.close-ok
--     ended         the channel or its connection was closed
--     until_ns      end of the incarnation, or of the capture of its connection
--     still_open    it was opened, as far as the capture shows, and neither side closed it
--     open_channels number of these on the connection
--     unsettled, requeued, rejected, redelivered, delivered, persistent: messages; `first_*`: frame of the first of them
CREATE VIEW context_incarnations AS
SELECT *, CASE close.sender WHEN 'client' THEN server_ok_ns ELSE client_ok_ns END AS close_ok_ns,
       connection_ended OR close IS NOT NULL AS ended, least(c.close.ts_ns, c.last_ns) AS until_ns,
       count_if(still_open) OVER (PARTITION BY connection_id) AS open_channels
FROM (SELECT *, c.close.frame_no IS NOT NULL OR coalesce(c.tcp_end, 'none') != 'none' AS connection_ended,
             close IS NULL AND NOT (channel_incarnation = 0 AND c.from_start) AS still_open
      FROM (SELECT connection_id, channel, channel_incarnation, any_value(version) AS version,
                   list({'sender': sender, 'name': name, 'class_id': class_id, 'method_id': method_id, 'times': times,
                         'first_frame': first_frame, 'last_frame': last_frame} ORDER BY first_frame) AS methods,
                   min(first_ns) FILTER (WHERE name = 'channel.close-ok' AND sender = 'client') AS client_ok_ns,
                   min(first_ns) FILTER (WHERE name = 'channel.close-ok' AND sender = 'server') AS server_ok_ns,
                   max(last_frame) AS last_frame
            FROM (SELECT connection_id, channel, channel_incarnation, version, sender, name, class_id, method_id,
                         sum(times)::BIGINT AS times, min(first_frame) AS first_frame, max(last_frame) AS last_frame,
                         min(first_ns) AS first_ns
                  FROM (SELECT connection_id, channel, stretch_incarnation AS channel_incarnation, version, sender,
                               name, class_id, method_id, times, first_frame, last_frame, first_ns
                        FROM transfer_counts WHERE stretch_incarnation IS NOT NULL
                        UNION ALL
                        SELECT connection_id, channel, channel_incarnation, version, sender, name, class_id, method_id,
                               1, frame_no, frame_no, ts_ns
                        FROM channel_methods WHERE stretch_incarnation IS NULL)
                  GROUP BY connection_id, channel, channel_incarnation, version, sender, name, class_id, method_id)
            GROUP BY connection_id, channel, channel_incarnation)
      LEFT JOIN (SELECT connection_id, channel, channel_incarnation,
                        arg_min({'frame_no': frame_no, 'ts_ns': ts_ns, 'sender': sender,
                                 'reply_code': args.reply_code, 'reply_text': args.reply_text,
                                 'class_id': args.class_id, 'method_id': args.method_id}, frame_no) AS close
                 FROM channel_closes GROUP BY connection_id, channel, channel_incarnation)
          USING (connection_id, channel, channel_incarnation)
      LEFT JOIN (SELECT connection_id, channel, channel_incarnation, sum(delivered)::BIGINT AS delivered,
                        sum(unsettled)::BIGINT AS unsettled, sum(requeued)::BIGINT AS requeued,
                        sum(rejected)::BIGINT AS rejected, sum(redelivered)::BIGINT AS redelivered,
                        sum(persistent)::BIGINT AS persistent, min(first_delivered) AS first_delivered,
                        min(first_unsettled) AS first_unsettled, min(first_requeued) AS first_requeued,
                        min(first_rejected) AS first_rejected, min(first_redelivered) AS first_redelivered,
                        min(first_persistent) AS first_persistent
                 FROM message_counts GROUP BY connection_id, channel, channel_incarnation)
          USING (connection_id, channel, channel_incarnation)
      LEFT JOIN connection_facts USING (connection_id));

-- Methods with a limit on their rate.
--     opened_before_ns  time of the channel.open on this connection that is `limit_per_minute` of CH-11 opens before
--     got_before_ns     the same for basic.get on this channel and CO-07
--     empty_share       share of the gets on the channel so far that were answered with get-empty
CREATE VIEW context_rates AS
SELECT *, lag(ts_ns, setting('CH-11.limit_per_minute')::BIGINT) OVER own AS opened_before_ns,
       lag(ts_ns, setting('CO-07.limit_per_minute')::BIGINT) OVER own AS got_before_ns,
       avg(CASE WHEN reply_name = 'basic.get-empty' THEN 1 ELSE 0 END) OVER so_far AS empty_share
FROM (SELECT *, channel_incarnations(name, connection_id, channel, frame_no) AS channel_incarnation,
             CASE name WHEN 'basic.get' THEN channel END AS on_channel
      FROM (SELECT connection_id, frame_no, ts_ns, version, channel, name, reply_name
            FROM control_methods WHERE name IN ('channel.open', 'basic.get')))
WINDOW own AS (PARTITION BY connection_id, name, on_channel ORDER BY frame_no),
       so_far AS (PARTITION BY connection_id, name, on_channel ORDER BY frame_no ROWS UNBOUNDED PRECEDING);

-- Methods that name a consumer tag.
CREATE TABLE tagged AS
SELECT connection_id, channel, channel_incarnation, frame_no, ts_ns, version, sender, name, content_frame_no,
       TRY_CAST(arguments.consumer_tag AS VARCHAR) AS consumer_tag
FROM channel_methods
WHERE name IN ('basic.consume', 'basic.consume-ok', 'basic.cancel', 'basic.cancel-ok')
      AND TRY_CAST(arguments.consumer_tag AS VARCHAR) != '';

-- Most consumers get all of their deliveries between start and cancel: these did not, perhaps.
CREATE TABLE odd_consumers AS
SELECT connection_id, channel, channel_incarnation, link, version, begun, cancelled
FROM (SELECT * FROM message_counts WHERE operation = 'deliver' AND link != '')
JOIN (SELECT connection_id, version FROM connections) USING (connection_id)
LEFT JOIN (SELECT connection_id, channel, channel_incarnation, consumer_tag AS link,
                  min(frame_no) FILTER (WHERE name IN ('basic.consume', 'basic.consume-ok')) AS begun,
                  coalesce(min(frame_no) FILTER (WHERE name NOT IN ('basic.consume', 'basic.consume-ok')), never())
                      AS cancelled
           FROM tagged GROUP BY connection_id, channel, channel_incarnation, consumer_tag)
    USING (connection_id, channel, channel_incarnation, link)
WHERE is_classic(version) AND NOT coalesce(first_frame > begun AND last_frame < cancelled, false);

-- Methods that name a consumer tag, with the previous method that named it: `tag_was` in this channel incarnation,
-- `tag_was_anywhere` on any channel of the connection. Deliveries are rows as well, except those to a consumer that was
-- started before and not cancelled before.
CREATE VIEW context_tags AS
SELECT *
FROM (SELECT *,
             last_value(CASE WHEN name != 'basic.deliver' THEN
                 {'name': name, 'sender': sender, 'frame_no': frame_no, 'channel': channel,
                  'channel_incarnation': channel_incarnation} END IGNORE NULLS) OVER here AS tag_was,
             last_value(CASE WHEN name != 'basic.deliver' THEN
                 {'name': name, 'sender': sender, 'frame_no': frame_no, 'channel': channel,
                  'channel_incarnation': channel_incarnation} END IGNORE NULLS) OVER anywhere AS tag_was_anywhere
      FROM (SELECT connection_id, channel, channel_incarnation, consumer_tag, frame_no, ts_ns, version, sender, name,
                   content_frame_no
            FROM tagged
            UNION ALL
            SELECT connection_id, channel, channel_incarnation, link, first_frame_no, ts_ns, version, 'server',
                   'basic.deliver', first_frame_no
            FROM (SELECT * FROM messages WHERE operation = 'deliver')
            JOIN odd_consumers USING (connection_id, channel, channel_incarnation, link)
            WHERE NOT coalesce(first_frame_no > begun AND first_frame_no < cancelled, false))
      WINDOW here AS (PARTITION BY connection_id, channel, channel_incarnation, consumer_tag ORDER BY frame_no
                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             anywhere AS (PARTITION BY connection_id, consumer_tag ORDER BY frame_no
                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
LEFT JOIN connection_facts USING (connection_id);

-- One row per synchronous request and one per reply, classic family.
--     asks           the row is a request that waits for a reply
--     reply_ns       time of its reply
--     open_until     of the earlier requests of the same side in this channel incarnation: frame of the last reply to
--                    them, never() if one has no reply; null: there are none
--     next_close_ns  time at which the channel was closed after this row
--     replies        the row is a reply
--     paired         it is the reply to a request that waited
--     no_wait_before the last request of its group (methods that share replies) had no-wait set
--     overtaken      the next row of the group is a request without a reply
-- Packets may have been captured out of order: a reply before its request is taken as the reply to an unanswered request
-- right after it, which then asks for nothing. Table methods has the frame of the reply in the row of the request; a
-- mark row (place 0) is inserted before each such reply (place 1). By ids: 0-9 has two methods basic.recover, of which
-- one has a reply.
CREATE VIEW context_request_reply AS
SELECT * EXCLUDE (latest), CASE latest.channel_incarnation WHEN channel_incarnation THEN latest.until END AS open_until
FROM (SELECT *,
             CASE sender
                 WHEN 'client' THEN max(CASE WHEN asks AND sender = 'client' THEN
                     {'channel_incarnation': channel_incarnation, 'until': coalesce(reply_frame_no, never())} END)
                         OVER before
                 WHEN 'server' THEN max(CASE WHEN asks AND sender = 'server' THEN
                     {'channel_incarnation': channel_incarnation, 'until': coalesce(reply_frame_no, never())} END)
                         OVER before
             END AS latest,
             min(CASE WHEN name IN ('channel.close', 'connection.close') THEN ts_ns END) OVER backwards AS next_close_ns,
             last_value(CASE place WHEN 1 THEN no_wait END IGNORE NULLS) OVER earlier_in_group AS no_wait_before
      FROM (SELECT * EXCLUDE (asks, answered_early),
                   asks AND NOT (reply_frame_no IS NULL AND coalesce(answered_early, false)) AS asks,
                   count(CASE WHEN name = 'channel.open' AND place = 1 THEN 1 END)
                       OVER (PARTITION BY connection_id, channel ORDER BY frame_no, place) AS channel_incarnation
            FROM (SELECT *, lag(place = 1 AND replies AND NOT coalesce(paired, false)) OVER in_group AS answered_early
                  FROM (SELECT *, lag(place = 0) OVER in_group AS paired,
                               lead(place = 1 AND asks AND reply_frame_no IS NULL) OVER in_group AS overtaken
                        FROM (SELECT * EXCLUDE (frame_no, mark), mark.frame_no AS frame_no, mark.place AS place,
                                     mark.place = 1 AND NOT coalesce(no_wait, true) AS asks
                              FROM (SELECT *, unnest(CASE WHEN reply_frame_no IS NULL
                                                          THEN [{'frame_no': frame_no, 'place': 1}]
                                                          ELSE [{'frame_no': frame_no, 'place': 1},
                                                                {'frame_no': reply_frame_no, 'place': 0}] END) AS mark
                                    FROM (SELECT * EXCLUDE (arguments), ts_ns + reply_latency_ns AS reply_ns,
                                                 CASE WHEN asked THEN
                                                     coalesce(TRY_CAST(arguments.no_wait AS BOOLEAN), false) END
                                                     AS no_wait
                                          FROM (SELECT connection_id, channel, version, frame_no, ts_ns, sender, name,
                                                       class_id, method_id, status, arguments, reply_frame_no,
                                                       reply_latency_ns
                                                FROM control_methods
                                                UNION ALL
                                                SELECT connection_id, channel, version, frame_no, ts_ns, sender, name,
                                                       class_id, method_id, status, arguments, reply_frame_no,
                                                       reply_latency_ns
                                                FROM methods WHERE name = 'basic.get-ok')
                                          JOIN request_methods USING (version, class_id, method_id)
                                          LEFT JOIN request_groups USING (name))))
                        WINDOW in_group AS (PARTITION BY connection_id, channel, request_group
                                            ORDER BY frame_no, place))
                  WINDOW in_group AS (PARTITION BY connection_id, channel, request_group ORDER BY frame_no, place)))
      WINDOW before AS (PARTITION BY connection_id, channel ORDER BY frame_no, place
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             backwards AS (PARTITION BY connection_id, channel ORDER BY frame_no DESC, place DESC
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
             earlier_in_group AS (PARTITION BY connection_id, channel, request_group ORDER BY frame_no, place
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
LEFT JOIN connection_facts USING (connection_id)
WHERE place = 1;
