-- What explains the messages that variables name, by `connection` and first `frame` or by message-id `subject`: one row
-- each, of at most six.
SELECT m.connection_id, m.first_frame_no, m.packet_no, m.capture_file, m.operation, m.exchange, m.routing_key, m.queue,
       m.address, m.message_id, m.ts_ns, m.first_ts_ns AS opened_ns, m.last_ts_ns, m.outcome, m.outcome_error,
       m.settled_ts_ns, m.settled_frame_no, m.settle_latency_ns, m.transaction, m.body_size, c.client_name, c."user", c.vhost,
       c.client_ip || ':' || c.client_port AS client, c.server_ip || ':' || c.server_port AS server, c.version,
       (SELECT {send: sum(coalesce(send_ns, 0)) / count(*), network: sum(coalesce(network_ns, 0)) / count(*),
                confirm_wait: sum(coalesce(confirm_wait_ns, 0)) / count(*),
                queue_blocked: sum(coalesce(queue_blocked_ns, 0)) / count(*),
                queue_ready: sum(coalesce(queue_ready_ns, 0)) / count(*),
                redelivery: sum(coalesce(redelivery_ns, 0)) / count(*),
                delivery: sum(coalesce(delivery_ns, 0)) / count(*),
                consumer: sum(coalesce(consumer_ns, 0)) / count(*),
                ack_held: sum(coalesce(ack_held_ns, 0)) / count(*)}
        FROM message_flows AS f
        WHERE (f.publish_connection_id = m.connection_id AND f.publish_frame_no = m.first_frame_no
               OR f.deliver_connection_id = m.connection_id AND f.deliver_frame_no = m.first_frame_no)
          AND f.total_latency_ns IS NOT NULL HAVING count(*) > 0) AS parts,
       (SELECT any_value(dead_letter_reason) FROM message_flows AS f
        WHERE f.publish_connection_id = m.connection_id AND f.publish_frame_no = m.first_frame_no)
            AS dead_letter_reason,
       (SELECT count(*) FROM message_flows AS f
        WHERE f.publish_connection_id = m.connection_id AND f.publish_frame_no = m.first_frame_no
          AND f.deliver_frame_no IS NOT NULL) AS deliveries
FROM messages AS m LEFT JOIN connections AS c USING (connection_id)
WHERE m.connection_id = getvariable('connection') AND m.first_frame_no = getvariable('frame')
   OR m.message_id = getvariable('subject')
ORDER BY m.ts_ns, m.connection_id, m.first_frame_no
LIMIT 6
