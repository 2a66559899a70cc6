"""Context 'settlements': acks, nacks and rejects that did not settle the message that they name.

    sender        client: about a delivery; server: about a publish
    delivery_tag, multiple
    named         the last message with that tag on the channel before: frame_no, presettled, settled_frame_no (null:
                  not settled)
    elsewhere     another incarnation or channel of the connection where a message with that tag is outstanding
    hits          whether it settled anything; only if `multiple`
    confirms, in_transaction  mode of the channel at that time

The settlement engine decides which messages are settled (`settled_frame_no` of messages).
"""

from __future__ import annotations

from pipeline.audit.contexts.channels import CHANNEL_LIFE, METHOD_COLUMNS
from pipeline.audit.contexts.prefilter import ON_CHANNEL
from pipeline.audit.contexts.sources import CHANNEL, Context, Relation, Sources, columns
from pipeline.audit.detectors import NEVER, Sql, sql_in
from udfs.roles import SETTLEMENTS, SETTLES_ALL

SETTLES = tuple(dict.fromkeys(name for name, _, _ in SETTLEMENTS if name not in SETTLES_ALL))
CONFIRMS, TRANSACTS = "confirm.select", "tx.select"
TAG_ARGUMENTS = "struct<delivery_tag bigint, multiple boolean>"
# With more settled messages than this, stretches of frames in which every settlement hits are dropped first.
MANY = 10_000
STRETCH = 4096  # frames

# Settlements on the wire, and those recorded in messages.
SENT: Sql = f"""(SELECT connection_id, frame_no, delivery_tag, frame_no DIV {STRETCH} AS stretch
                 FROM methods WHERE {ON_CHANNEL} AND {sql_in("name", SETTLES)})"""
RECORDED: Sql = f"""(SELECT connection_id, settled_frame_no AS frame_no, delivery_tag,
                            settled_frame_no DIV {STRETCH} AS stretch
                     FROM messages WHERE delivery_tag IS NOT NULL AND settled_frame_no IS NOT NULL)"""
# Stretches of frames where these two differ. Compared by hash sums, which collide by chance once in 2^64 (or by
# intent); a join takes ten times as long.
UNEQUAL_STRETCHES: Sql = f"""
    SELECT connection_id, stretch
    FROM (SELECT connection_id, stretch, bit_xor(xxhash64(frame_no, delivery_tag)) AS differ, sum(side) AS more
          FROM (SELECT *, 1 AS side FROM {SENT} UNION ALL SELECT *, -1 FROM {RECORDED})
          GROUP BY connection_id, stretch)
    WHERE differ != 0 OR more != 0"""


def unmatched(sources: Sources) -> Sql:
    """Settlements that did not settle the message that they name."""
    unequal = ""
    if sources.count("message_counts", "settled") > MANY:
        unequal = "LEFT SEMI JOIN unequal_stretches USING (connection_id, stretch)"
    return f"""
        SELECT connection_id, frame_no
        FROM (SELECT * FROM {SENT} {unequal}) AS sent
        LEFT ANTI JOIN (SELECT * FROM {RECORDED} {unequal}) AS recorded USING (connection_id, frame_no, delivery_tag)"""


def unmatched_with_tags(sources: Sources) -> Sql:
    """These settlements with their tags, and the mode of the channel at that time."""
    so_far = f"(PARTITION BY {columns(CHANNEL)} ORDER BY frame_no)"
    return f"""
        SELECT {columns(CHANNEL)}, frame_no, ts_ns, version, sender, name, confirms, in_transaction,
               args.delivery_tag, coalesce(args.multiple, false) AS multiple
        FROM (SELECT *, count(CASE name WHEN '{CONFIRMS}' THEN 1 END) OVER {so_far} > 0 AS confirms,
                     count(CASE name WHEN '{TRANSACTS}' THEN 1 END) OVER {so_far} > 0 AS in_transaction
              FROM (SELECT *, {CHANNEL_LIFE} AS channel_life
                    FROM (SELECT {columns(METHOD_COLUMNS)}, try_variant_get(arguments, '$', '{TAG_ARGUMENTS}') AS args
                          FROM (SELECT {columns(METHOD_COLUMNS)}, arguments
                                FROM methods LEFT SEMI JOIN unmatched USING (connection_id, frame_no)
                                WHERE {sources.only("unmatched", "frame_no", "frame_no")}
                                UNION ALL
                                SELECT {columns(METHOD_COLUMNS)}, arguments FROM control_methods
                                WHERE {ON_CHANNEL} AND name IN ('channel.open', '{CONFIRMS}', '{TRANSACTS}')))))
        WHERE {sql_in("name", SETTLES)} AND args.delivery_tag IS NOT NULL"""


# Of the earlier messages with the row's tag, on any channel, the one that stays outstanding longest.
OPEN: Sql = f"""CASE WHEN message IS NOT NULL THEN struct(
                    CASE WHEN message.presettled THEN 0 ELSE coalesce(message.settled_frame_no, {NEVER}) END AS until,
                    struct(channel, channel_life) AS place) END"""
NUMBER = "connection_id, sender, delivery_tag"
# The window with the fewest keys first: its partitioning also serves the other.
SETTLEMENTS_OF_NOTHING: Sql = f"""
    SELECT * EXCEPT (open_elsewhere, message, hits), CASE WHEN multiple THEN coalesce(hits, false) END AS hits,
           CASE WHEN open_elsewhere.until > frame_no AND open_elsewhere.place != struct(channel, channel_life)
               THEN open_elsewhere.place END AS elsewhere
    FROM (SELECT *, last(message, true) OVER (PARTITION BY {NUMBER}, channel, channel_life ORDER BY frame_no) AS named
          FROM (SELECT *, max({OPEN}) OVER (PARTITION BY {NUMBER} ORDER BY frame_no) AS open_elsewhere
                FROM (SELECT *, CAST(NULL AS STRUCT<frame_no: BIGINT, presettled: BOOLEAN, settled_frame_no: BIGINT>)
                             AS message
                      FROM unmatched_with_tags
                      UNION ALL
                      SELECT {columns(CHANNEL)}, frame_no, NULL, NULL, sender, NULL, NULL, NULL, delivery_tag, NULL,
                             struct(frame_no, presettled, settled_frame_no)
                      FROM (SELECT {columns(CHANNEL)}, first_frame_no AS frame_no, delivery_tag, settled_frame_no,
                                   IF(operation = 'publish', 'server', 'client') AS sender,
                                   outcome = 'presettled' AS presettled
                            FROM messages
                            WHERE delivery_tag IS NOT NULL AND operation IN ('publish', 'deliver', 'get'))
                      LEFT SEMI JOIN unmatched_with_tags USING ({NUMBER}))))
    LEFT JOIN (SELECT DISTINCT connection_id, frame_no, true AS multiple, true AS hits
               FROM {RECORDED}
               LEFT SEMI JOIN (SELECT * FROM unmatched_with_tags WHERE multiple) USING (connection_id, frame_no))
        USING (connection_id, frame_no, multiple)
    WHERE name IS NOT NULL"""

RELATIONS = {
    "unequal_stretches": Relation(UNEQUAL_STRETCHES),
    "unmatched": Relation(unmatched),
    "unmatched_with_tags": Relation(unmatched_with_tags),
}
CONTEXTS = {
    "settlements": Context(SETTLEMENTS_OF_NOTHING, CHANNEL, rows="unmatched", full_scan=True),
}
