-- What happened on the connection that variable `connection` names, in order: ts_ns, end_ns, who, text, frame_no,
-- packet_no; the first and the last `most` of them, by place. Methods that carry or settle messages are counted by run: those between two other events.
WITH lines AS (
    SELECT frame_no, packet_no, ts_ns, sender, name, version, reply_code, reply_text, channel, exchange, routing_key, queue,
           link_name, status, error, arguments,
           name IN ('basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.ack', 'basic.reject', 'basic.nack',
                    'message.transfer', 'message.accept', 'session.completed', 'session.known-completed',
                    'session.confirmed', 'transfer', 'disposition', 'flow', 'message.flow', 'basic.get', 'basic.get-empty')
               AND coalesce(status, 'ok') = 'ok' AS routine
    FROM methods WHERE connection_id = getvariable('connection')),
runs AS (
    SELECT *, sum(CASE WHEN routine THEN 0 ELSE 1 END) OVER (ORDER BY frame_no) AS run FROM lines),
counted AS (
    SELECT min(ts_ns) AS ts_ns, max(end_ns) AS end_ns, NULL AS who, min(frame_no) AS frame_no,
           min(packet_no) AS packet_no, array_to_string(list(each ORDER BY amount DESC), ', ') AS text
    FROM (SELECT run, name, min(ts_ns) AS ts_ns, max(ts_ns) AS end_ns, min(frame_no) AS frame_no,
                 min(packet_no) AS packet_no, count(*) AS amount, count(*) || ' ' || name AS each
          FROM runs WHERE routine GROUP BY run, name)
    GROUP BY run),
others AS (
    SELECT ts_ns, sender AS who, frame_no, packet_no,
           concat_ws(' ', name, reply_code, reply_text,
                     CASE WHEN queue != '' THEN 'queue ' || queue END,
                     CASE WHEN exchange != '' THEN 'exchange ' || exchange END,
                     CASE WHEN link_name != '' THEN 'link ' || link_name END,
                     TRY_CAST(arguments.error.condition AS VARCHAR), TRY_CAST(arguments.error.description AS VARCHAR),
                     TRY_CAST(arguments.description AS VARCHAR),
                     CASE WHEN channel > 0 THEN '(channel ' || channel || ')' END,
                     CASE WHEN status != 'ok' THEN status || ': ' || error END) AS text
    FROM lines WHERE NOT routine),
spans AS (
    SELECT ts_ns, sender AS who, frame_no, packet_no,
           CASE frame_type WHEN 'protocol-header' THEN 'protocol header' || coalesce(' ' || version, '')
                           WHEN 'gap' THEN size || ' bytes are missing in the capture'
                           WHEN 'foreign' THEN size || ' bytes of another protocol'
                           ELSE frame_type || ', ' || size || ' bytes' END AS text
    FROM frames
    WHERE connection_id = getvariable('connection') AND frame_type IN ('protocol-header', 'gap', 'foreign', 'skipped')),
ends AS (
    SELECT epoch_us(opened_ts) * 1000 AS ts_ns, 'client' AS who, NULL AS frame_no, NULL AS packet_no,
           CASE sides_known_by WHEN 'syn' THEN 'connects' ELSE 'is connected when the capture begins' END AS text, 0 AS part
    FROM connections WHERE connection_id = getvariable('connection')
    UNION ALL
    SELECT epoch_us(closed_ts) * 1000, tcp_end_by, NULL, NULL,
           CASE tcp_end WHEN 'fin' THEN 'ends TCP (FIN)' WHEN 'rst' THEN 'resets TCP (RST)'
                        WHEN 'none' THEN 'is open when the capture ends' ELSE 'no packet for too long' END, 2
    FROM connections WHERE connection_id = getvariable('connection'))
SELECT *
FROM (SELECT *, row_number() OVER (ORDER BY part, frame_no, ts_ns) AS place, count(*) OVER () AS total
      FROM (SELECT ts_ns, end_ns, who, frame_no, packet_no, text, 1 AS part FROM counted
            UNION ALL SELECT ts_ns, ts_ns, who, frame_no, packet_no, text, 1 FROM others
            UNION ALL SELECT ts_ns, ts_ns, who, frame_no, packet_no, text, 1 FROM spans
            UNION ALL SELECT ts_ns, ts_ns, who, frame_no, packet_no, text, part FROM ends))
WHERE place <= getvariable('most') OR place > total - getvariable('most')
ORDER BY place
