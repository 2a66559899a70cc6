-- Contexts of AMQP 0-10 and 1.0, whose channels are sessions.

-- Table oddities with the names of columns that all contexts have.
CREATE TABLE sequence_rows AS
SELECT * RENAME (name AS oddity, side AS sender) FROM oddities;

-- One row per oddity in the sequence of frames:
--     oddity             its name; observed, expected: numbers that show it; waited_ns: how long a reply took
--     name               of the frame; condition, description: the error in it; asked: the command that it names;
--                        destination: that it names (0-10)
--     missing            names of required fields that the frame leaves out
--     link, address      of the link it is about; destination and queue of a subscription. Of a link on which the client
--                        receives the node is the source, else the target. Oddities of deliveries get the link of the
--                        message, whose transfer is in both tables.
--     content_frame_no   the first frame of the link or message, else the frame itself
CREATE VIEW context_sequences AS
SELECT *, coalesce(about_frame_no, frame_no) AS content_frame_no
FROM sequence_rows
LEFT JOIN (SELECT connection_id, frame_no, name,
                  coalesce(TRY_CAST(arguments.error.condition AS VARCHAR),
                           TRY_CAST(arguments.state.error.condition AS VARCHAR)) AS condition,
                  coalesce(TRY_CAST(arguments.error.description AS VARCHAR),
                           TRY_CAST(arguments.state.error.description AS VARCHAR),
                           TRY_CAST(arguments.description AS VARCHAR), TRY_CAST(arguments.text AS VARCHAR))
                      AS description,
                  TRY_CAST(arguments.destination AS VARCHAR) AS destination, command AS asked
           FROM (SELECT *, concat_ws('.', TRY_CAST(arguments.class_code AS INTEGER),
                                     TRY_CAST(arguments.command_code AS INTEGER)) AS code
                 FROM (SELECT connection_id, frame_no, name, arguments
                       FROM methods SEMI JOIN sequence_rows USING (connection_id, frame_no)))
           LEFT JOIN commands USING (code))
    USING (connection_id, frame_no)
LEFT JOIN (SELECT connection_id, about_frame_no, max(link) AS link, max(address) AS address
           FROM (SELECT connection_id, about_frame_no,
                        coalesce(TRY_CAST(arguments.destination AS VARCHAR), TRY_CAST(arguments.name AS VARCHAR))
                            AS link,
                        coalesce(TRY_CAST(arguments.queue AS VARCHAR),
                                 CASE WHEN (sender = 'client') = TRY_CAST(arguments.role AS BOOLEAN)
                                      THEN TRY_CAST(arguments.source.address AS VARCHAR)
                                      ELSE TRY_CAST(arguments.target.address AS VARCHAR) END) AS address
                 FROM (SELECT connection_id, frame_no AS about_frame_no, sender, arguments
                       FROM methods
                       SEMI JOIN (SELECT connection_id, about_frame_no AS frame_no FROM sequence_rows)
                           USING (connection_id, frame_no))
                 UNION ALL
                 SELECT connection_id, about_frame_no, link, address
                 FROM (SELECT connection_id, first_frame_no AS about_frame_no, link, address FROM messages)
                 SEMI JOIN sequence_rows USING (connection_id, about_frame_no))
           GROUP BY connection_id, about_frame_no)
    USING (connection_id, about_frame_no);

-- One row per link, direction and negative outcome: the number of messages, and the first with its error and the side
-- that states it (`stated_by`).
CREATE VIEW context_handed_back AS
WITH negative AS (
    SELECT * EXCLUDE (first), first.frame_no AS frame_no, first.ts_ns AS ts_ns,
           first.content_frame_no AS content_frame_no
    FROM (SELECT connection_id, channel, channel_incarnation, logins.version AS version, operation, link, address,
                 outcome, count(*) AS messages,
                 min({'frame_no': settled_frame_no, 'ts_ns': settled_ts_ns, 'content_frame_no': first_frame_no})
                     AS first
          FROM messages
          JOIN (SELECT connection_id, version FROM known_connections WHERE version IN ('0-10', '1.0')) AS logins
              USING (connection_id)
          WHERE outcome IN ('rejected', 'released', 'modified')
          GROUP BY connection_id, channel, channel_incarnation, logins.version, operation, link, address, outcome))
SELECT * FROM negative
LEFT JOIN (SELECT connection_id, frame_no, sender AS stated_by,
                  CASE WHEN variant_typeof(arguments.state.error) LIKE 'OBJECT%' THEN
                      {'condition': TRY_CAST(arguments.state.error.condition AS VARCHAR),
                       'description': TRY_CAST(arguments.state.error.description AS VARCHAR)} END AS error
           FROM methods SEMI JOIN negative USING (connection_id, frame_no))
    USING (connection_id, frame_no);

-- One row per message with properties that rules read. Messages are chosen by their columns, because to read `properties`
-- of all takes longer than all else: of a complete message of 0-10 body_size is content-length, if it has one.
CREATE VIEW context_session_messages AS
SELECT connection_id, channel, channel_incarnation, logins.version AS version, login, sender, operation, ts_ns,
       priority, ttl_ms, user_id, link, address, body_captured, body_size, complete, first_frame_no AS frame_no,
       first_frame_no AS content_frame_no,
       TRY_CAST(properties.header.delivery_count AS BIGINT) AS delivery_count,
       TRY_CAST(properties.delivery_properties.expiration AS TIMESTAMPTZ) AS expires,
       TRY_CAST(properties.delivery_properties.timestamp AS TIMESTAMPTZ) AS stamped
FROM messages
SEMI JOIN (SELECT connection_id, first_frame_no
           FROM messages JOIN (SELECT connection_id, version FROM known_connections) USING (connection_id)
           WHERE CASE version WHEN '0-10' THEN
                         complete AND (body_size != body_captured OR timestamp IS NOT NULL OR ttl_ms = 0
                                       OR user_id IS NOT NULL)
                     WHEN '1.0' THEN priority > 9 OR ttl_ms = 0 OR redelivered OR user_id IS NOT NULL END)
    USING (connection_id, first_frame_no)
JOIN (SELECT connection_id, version, "user" AS login FROM known_connections) AS logins USING (connection_id);

-- The attaches that open links.
CREATE TABLE opening_attaches AS
SELECT connection_id, name, opened_ts, min(frame_no) AS frame_no, min(ts_ns) AS ts_ns
FROM (SELECT connection_id, TRY_CAST(arguments.name AS VARCHAR) AS name, ts AS opened_ts, frame_no, ts_ns
      FROM control_methods WHERE version = '1.0' AND control_methods.name = 'attach')
GROUP BY connection_id, name, opened_ts;

-- One row per link whose answer lacks filters that the receiver asked for (`lacking`).
CREATE VIEW context_filtered AS
SELECT *
FROM (SELECT connection_id, channel, channel_incarnation, '1.0' AS version, name, opened_ts, address, filters,
             filters_requested,
             list_filter(json_keys(TRY_CAST(filters_requested AS JSON)),
                         lambda asked: NOT list_contains(coalesce(json_keys(TRY_CAST(filters AS JSON)), []), asked))
                 AS lacking
      FROM links WHERE filters_requested IS NOT NULL)
JOIN opening_attaches USING (connection_id, name, opened_ts)
WHERE len(lacking) > 0;

-- Named links with the attach that opened them.
CREATE VIEW fact_links AS
SELECT connection_id, channel, channel_incarnation, kind, name, opened_ts, closed_ts, frame_no, ts_ns
FROM (SELECT * FROM links WHERE opened_ts IS NOT NULL AND name IS NOT NULL)
LEFT JOIN opening_attaches USING (connection_id, name, opened_ts);

-- One row per attach of a link that its container has on another connection.
CREATE VIEW context_stolen_links AS
SELECT *
FROM (SELECT *, max({'until_ts': until_ts, 'of': connection_id})
                    OVER (PARTITION BY server_ip, client_container_id, server_container_id, kind, name
                          ORDER BY opened_ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
      FROM (SELECT *, coalesce(closed_ts, ended_ts) AS until_ts
            FROM fact_links
            JOIN (SELECT connection_id, version, server_ip, client_container_id, server_container_id,
                         closed_ts AS ended_ts
                  FROM fact_connections
                  WHERE version = '1.0' AND client_container_id IS NOT NULL AND server_container_id IS NOT NULL)
                USING (connection_id)))
WHERE frame_no IS NOT NULL AND earlier.until_ts > opened_ts AND earlier."of" != connection_id;
