-- What happened on the connections of table `shown`, in order: connection_id, ts_ns, end_ns, who, text, frame_no,
-- packet_no, index; as many of the first and the last ones of each as variables `first` and `last` say, and those around
-- `proof_frame`. Methods that carry or settle messages are counted by run: those between two other events.
WITH lines AS (
    SELECT connection_id, frame_no, packet_no, ts_ns, name,
           name IN ('basic.publish', 'basic.deliver', 'basic.get-ok', 'basic.ack', 'basic.reject', 'basic.nack',
                    'message.transfer', 'message.accept', 'session.completed', 'session.known-completed',
                    'session.confirmed', 'transfer', 'disposition', 'flow', 'message.flow', 'basic.get', 'basic.get-empty')
               AND coalesce(status, 'ok') = 'ok' AS routine
    FROM methods WHERE connection_id IN (SELECT connection_id FROM shown)),
counted AS (
    SELECT connection_id, min(ts_ns) AS ts_ns, max(end_ns) AS end_ns, NULL AS who, min(frame_no) AS frame_no,
           min(packet_no) AS packet_no, array_to_string(list(each ORDER BY amount DESC), ', ') AS text
    FROM (SELECT connection_id, run, name, min(ts_ns) AS ts_ns, max(ts_ns) AS end_ns, min(frame_no) AS frame_no,
                 min(packet_no) AS packet_no, count(*) AS amount, count(*) || ' ' || name AS each
          FROM (SELECT *, count(*) FILTER (WHERE NOT routine)
                              OVER (PARTITION BY connection_id ORDER BY frame_no) AS run FROM lines)
          WHERE routine GROUP BY connection_id, run, name)
    GROUP BY connection_id, run),
others AS (
    SELECT connection_id, ts_ns, sender AS who, frame_no, packet_no,
           concat_ws(' ', name, reply_code, reply_text,
                     CASE WHEN queue != '' THEN 'queue ' || queue END,
                     CASE WHEN exchange != '' THEN 'exchange ' || exchange END,
                     CASE WHEN link_name != '' THEN 'link ' || link_name END,
                     TRY_CAST(arguments.error.condition AS VARCHAR), TRY_CAST(arguments.error.description AS VARCHAR),
                     TRY_CAST(arguments.description AS VARCHAR),
                     CASE WHEN channel > 0 THEN '(channel ' || channel || ')' END,
                     CASE WHEN status != 'ok' THEN status || ': ' || error END) AS text
    FROM methods SEMI JOIN (FROM lines WHERE NOT routine) USING (connection_id, frame_no)),
spans AS (
    SELECT connection_id, ts_ns, sender AS who, frame_no, packet_no,
           CASE frame_type WHEN 'protocol-header' THEN 'protocol header' || coalesce(' ' || version, '')
                           WHEN 'gap' THEN size || ' bytes are missing in the capture'
                           WHEN 'foreign' THEN size || ' bytes of another protocol'
                           ELSE frame_type || ', ' || size || ' bytes' END AS text
    FROM frames
    WHERE connection_id IN (SELECT connection_id FROM shown)
      AND frame_type IN ('protocol-header', 'gap', 'foreign', 'skipped')),
ends AS (
    SELECT connection_id, epoch_us(opened_ts) * 1000 AS ts_ns, 'client' AS who, NULL AS frame_no, NULL AS packet_no,
           CASE roles_from WHEN 'syn' THEN 'connects' ELSE 'is connected when the capture begins' END AS text, 0 AS part
    FROM connections WHERE connection_id IN (SELECT connection_id FROM shown)
    UNION ALL
    SELECT connection_id, epoch_us(closed_ts) * 1000, tcp_end_by, NULL, NULL,
           CASE tcp_end WHEN 'fin' THEN 'ends TCP (FIN)' WHEN 'rst' THEN 'resets TCP (RST)'
                        WHEN 'none' THEN 'is open when the capture ends' ELSE 'no packet for too long' END, 2
    FROM connections WHERE connection_id IN (SELECT connection_id FROM shown)),
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY connection_id ORDER BY part, frame_no, ts_ns) AS index,
           count(*) OVER (PARTITION BY connection_id) AS total
    FROM (SELECT connection_id, ts_ns, end_ns, who, frame_no, packet_no, text, 1 AS part FROM counted
          UNION ALL SELECT connection_id, ts_ns, ts_ns, who, frame_no, packet_no, text, 1 FROM others
          UNION ALL SELECT connection_id, ts_ns, ts_ns, who, frame_no, packet_no, text, 1 FROM spans
          UNION ALL SELECT connection_id, ts_ns, ts_ns, who, frame_no, packet_no, text, part FROM ends)
    WHERE ts_ns IS NOT NULL),  -- connections of a lake that are open have no end
proofs AS (
    SELECT connection_id, max(index) AS proof FROM numbered JOIN shown USING (connection_id)
    WHERE frame_no <= proof_frame GROUP BY connection_id, proof_frame)
FROM numbered
WHERE index <= getvariable('first') OR index > total - getvariable('last')
   OR EXISTS (FROM proofs
              WHERE proofs.connection_id = numbered.connection_id AND index BETWEEN proof - 1 AND proof + 1)
ORDER BY connection_id, index
