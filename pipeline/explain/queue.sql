-- What explains the queue or address that variable `subject` names: one row.
WITH published AS (
    SELECT ts_ns, ttl_ms * 1000000 AS ttl_ns FROM messages
    WHERE operation = 'publish' AND (exchange = '' AND routing_key = getvariable('subject') OR address = getvariable('subject'))),
deliveries AS (
    SELECT connection_id, channel, channel_incarnation, link, ts_ns, redelivered, outcome, settled_ts_ns,
           settle_latency_ns, coalesce(TRY_CAST(headers."x-death"[1].count AS BIGINT),
                    TRY_CAST(properties.message_annotations."x-opt-deaths"[1].count AS BIGINT)) AS deaths
    FROM messages
    WHERE operation IN ('deliver', 'get') AND (queue = getvariable('subject') OR address = getvariable('subject'))),
consumers AS (
    SELECT l.*, c.prefetch_count, c.delivered, c.unsettled, coalesce(l.closed_ts, c.closed_ts, k.closed_ts) AS ended_ts,
           k.tcp_end, k.tcp_rtt_ns
    FROM links AS l
    LEFT JOIN channels AS c USING (connection_id, channel, channel_incarnation)
    LEFT JOIN connections AS k USING (connection_id)
    WHERE l.kind IN ('consumer', 'subscription', 'receiver') AND (l.queue = getvariable('subject') OR l.address = getvariable('subject'))),
waits AS (
    SELECT broker_latency_ns, publish_ts_ns FROM message_flows
    WHERE (queue = getvariable('subject') OR queue IS NULL AND address = getvariable('subject')) AND broker_latency_ns IS NOT NULL),
-- Of each consumer the share of the time, from its first delivery to its last settlement, in which it had one in hand.
busy AS (
    SELECT least(1, sum(settle_latency_ns) / nullif(max(settled_ts_ns) - min(ts_ns), 0)) AS share
    FROM deliveries GROUP BY connection_id, channel, channel_incarnation, link),
-- From one delivery of a channel to the next, on average.
paces AS (
    SELECT (max(ts_ns) - min(ts_ns)) / nullif(count(*) - 1, 0) AS pace_ns
    FROM deliveries GROUP BY connection_id, channel, channel_incarnation),
ends AS (SELECT epoch_us(min(first_ts)) * 1000 AS first_ns, epoch_us(max(last_ts)) * 1000 AS last_ns FROM captures)
SELECT getvariable('subject') AS queue,
       (SELECT count(*) FROM published) AS published, last_published_ns,
       (SELECT count(ttl_ns) FROM published) AS expiring, (SELECT max(ttl_ns) FROM published) AS longest_ttl_ns,
       first_consumer_ns, first_consumer_ns - last_published_ns AS came_after_ns,
       (SELECT count(*) FROM deliveries) AS deliveries, (SELECT max(ts_ns) FROM deliveries) AS last_delivered_ns,
       last_published_ns - (SELECT max(ts_ns) FROM deliveries) AS waits_ns,
       (SELECT count(*) FROM deliveries WHERE redelivered) AS redelivered,
       (SELECT count(*) FROM deliveries WHERE outcome = 'unsettled') AS unsettled,
       (SELECT last_ns - min(ts_ns) FROM deliveries WHERE outcome = 'unsettled') AS unsettled_ns,
       (SELECT count(*) FROM deliveries WHERE outcome = 'rejected') AS rejected,
       (SELECT count(*) FROM deliveries WHERE outcome IN ('requeued', 'released', 'modified')) AS requeued,
       (SELECT quantile_disc(settle_latency_ns, 0.5) FROM deliveries) AS settle_p50_ns,
       (SELECT quantile_disc(broker_latency_ns, 0.5) FROM waits) AS wait_p50_ns,
       (SELECT quantile_disc(broker_latency_ns, 0.99) FROM waits) AS wait_p99_ns,
       busy_share, round(100 * busy_share)::BIGINT AS busy_percent, 100 - busy_percent AS idle_percent,
       (SELECT count(*) FROM waits) AS waited,
       (SELECT count(*) FROM waits
        WHERE publish_ts_ns < first_consumer_ns) AS before_consumers,
       (SELECT {send: sum(coalesce(send_ns, 0)) / count(*), network: sum(coalesce(network_ns, 0)) / count(*),
                confirm_wait: sum(coalesce(confirm_wait_ns, 0)) / count(*),
                queue_blocked: sum(coalesce(queue_blocked_ns, 0)) / count(*),
                queue_ready: sum(coalesce(queue_ready_ns, 0)) / count(*),
                redelivery: sum(coalesce(redelivery_ns, 0)) / count(*),
                delivery: sum(coalesce(delivery_ns, 0)) / count(*),
                consumer: sum(coalesce(consumer_ns, 0)) / count(*),
                ack_held: sum(coalesce(ack_held_ns, 0)) / count(*)}
        FROM message_flows
        WHERE (queue = getvariable('subject') OR queue IS NULL AND address = getvariable('subject'))
          AND total_latency_ns IS NOT NULL HAVING count(*) > 0) AS parts,
       (SELECT count(*) FROM consumers) AS consumers,
       (SELECT count(*) FROM consumers WHERE closed_ts IS NULL AND tcp_end = 'none') AS open_consumers,
       (SELECT count(DISTINCT (connection_id, channel, channel_incarnation)) FROM consumers
        WHERE prefetch_count > 0 AND unsettled >= prefetch_count) AS full_channels,
       (SELECT max(no_credit_ns) FROM consumers) AS no_credit_ns,
       coalesce((SELECT bool_or(queue_type = 'stream') FROM consumers), false) AS is_stream,
       -- Deliveries of which the queue is not known, connections with missing bytes or only one direction.
       (SELECT count(*) FROM messages WHERE operation IN ('deliver', 'get') AND queue IS NULL AND address IS NULL)
       + (SELECT count(*) FROM connections WHERE content = 'amqp'
          AND (missing_bytes > 0 OR client_packets = 0 OR server_packets = 0 OR undecoded_reason IS NOT NULL))
              AS unseen,
       (SELECT max(deaths) FROM deliveries) AS deaths,
       (SELECT min(prefetch_count) FROM consumers WHERE prefetch_count > 0) AS least_prefetch,
       (SELECT max(tcp_rtt_ns) FROM consumers) AS consumer_rtt_ns,
       (SELECT quantile_cont(pace_ns, 0.5)::BIGINT FROM paces) AS pace_ns,
       last_ns - first_ns AS span_ns
FROM ends, (SELECT avg(share) AS busy_share FROM busy), (SELECT max(ts_ns) AS last_published_ns FROM published),
     (SELECT epoch_us(min(opened_ts)) * 1000 AS first_consumer_ns FROM consumers)
