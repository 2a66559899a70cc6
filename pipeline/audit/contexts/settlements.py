"""Context 'settlements': acks, nacks and rejects that did not settle the message that they name.

    sender        client: about a delivery; server: about a publish
    delivery_tag, multiple
    named         the last message with that tag on the channel before: frame_no, presettled, settled_frame_no (null:
                  not settled)
    elsewhere     another incarnation or channel of the connection where a message with that tag is outstanding
    confirms, in_transaction  mode of the channel at that time

The settlement engine decides which messages are settled (`settled_frame_no` of messages).

Context 'outstanding_peaks', one row per incarnation of a channel or session, of any version:

    peak           maximum of outstanding messages
    frame_no, ts_ns  the first delivery that exceeds the limit of DL-12; null if none does

Context 'prefetched', one row per delivery to a consumer with a prefetch limit:

    outstanding    messages outstanding at its consumer, or (`shared`) at all consumers of the channel, itself included
    allowed        the prefetch limit

A settlement counts before a delivery in the same packet. If several limits were set on a channel, the highest applies
of the one in force when the consumer started and all later ones.
"""

from __future__ import annotations

from pipeline.audit.contexts.channels import CHANNEL_LIFE, METHOD_COLUMNS, channel_methods
from pipeline.audit.contexts.prefilter import ON_CHANNEL
from pipeline.audit.contexts.sources import CHANNEL, CONNECTION_VERSIONS, DELIVERED, Context, Relation, Sources, columns
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
    SELECT * EXCEPT (open_elsewhere, message),
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
    WHERE name IS NOT NULL"""


UNLIMITED = (1 << 31) - 1
QOS_ARGUMENTS = "struct<prefetch_count int, `global` boolean, consumer_tag string, no_ack boolean, no_wait boolean>"
LIMITS = ("basic.qos", "basic.consume", "basic.consume-ok", "tx.select")
# Messages that need a settlement; if that is not known, those that were settled.
NEEDS_SETTLEMENT: Sql = "outcome != 'presettled' AND NOT (outcome = 'unknown' AND settled_ts_ns IS NULL)"
# A row per delivery and a row per settlement: `at_ns`, `change`.
MOVES: Sql = (
    "inline(IF(settled_ts_ns IS NULL, array(struct(ts_ns AS at_ns, 1 AS change)), "
    "array(struct(ts_ns AS at_ns, 1 AS change), struct(settled_ts_ns AS at_ns, -1 AS change))))"
)
OVER_TIME: Sql = "ORDER BY at_ns, change, frame_no ROWS UNBOUNDED PRECEDING"


def outstanding_peaks(sources: Sources) -> Sql:
    """The rows of context 'outstanding_peaks', which 'prefetched' reads as well."""
    limit = sources.parameters.get("DL-12", {}).get("limit", UNLIMITED)
    return f"""
        SELECT {columns(CHANNEL)}, peak, first.frame_no, first.at_ns AS ts_ns, version
        FROM (SELECT {columns(CHANNEL)}, max(outstanding) AS peak,
                     min(CASE WHEN outstanding > {limit} THEN struct(at_ns, frame_no) END) AS first
              FROM (SELECT *, sum(change) OVER (PARTITION BY {columns(CHANNEL)} {OVER_TIME}) AS outstanding
                    FROM (SELECT {columns(CHANNEL)}, first_frame_no AS frame_no, {MOVES}
                          FROM messages WHERE {DELIVERED} AND {NEEDS_SETTLEMENT}))
              GROUP BY {columns(CHANNEL)})
        LEFT JOIN {CONNECTION_VERSIONS} USING (connection_id)"""


# Consumers with a limit, on channels whose peak exceeds it: CHANNEL, consumer_tag, `allowed`, `shared` (by all
# consumers of the channel). Left out: consumers whose tag was used twice on the channel, and transactional channels,
# because it is not specified when the broker counts a settlement in a transaction.
PREFETCH_LIMITS: Sql = f"""
    SELECT {columns(CHANNEL)}, consumer_tag, version, allowed, shared
    FROM (SELECT {columns(CHANNEL)}, args.consumer_tag AS consumer_tag, any_value(version) AS version,
                 max(greatest(in_force, later)) AS allowed, min(in_force IS NOT NULL) AS ever,
                 max(coalesce(shared, false)) AS shared, max(transactions) AS transactions,
                 count(CASE name WHEN 'basic.consume' THEN 1 END) AS asked, count(1) AS rows
          FROM (SELECT *, last(qos, true) OVER in_order AS in_force,
                       last(CASE WHEN qos IS NOT NULL THEN args.global END, true) OVER in_order AS shared,
                       max(qos) OVER (PARTITION BY {columns(CHANNEL)} ORDER BY frame_no DESC
                                      ROWS UNBOUNDED PRECEDING) AS later,
                       max(name = 'tx.select') OVER (PARTITION BY {columns(CHANNEL)}) AS transactions
                FROM (SELECT *, CASE name WHEN 'basic.qos' THEN
                             IF(args.prefetch_count > 0, args.prefetch_count, {UNLIMITED}) END AS qos
                      FROM ({channel_methods(f"try_variant_get(arguments, '$', '{QOS_ARGUMENTS}') AS args", LIMITS)}))
                WINDOW in_order AS (PARTITION BY {columns(CHANNEL)} ORDER BY frame_no))
          WHERE name IN ('basic.consume', 'basic.consume-ok') AND coalesce(args.consumer_tag, '') != ''
          GROUP BY {columns(CHANNEL)}, args.consumer_tag)
    JOIN (SELECT {columns(CHANNEL)}, peak FROM outstanding_peaks) USING ({columns(CHANNEL)})
    WHERE ever AND allowed < {UNLIMITED} AND NOT transactions AND asked <= 1 AND rows <= 2 AND peak > allowed"""


def prefetched(sources: Sources) -> Sql | None:
    """Context 'prefetched': only incarnations whose peak exceeds the limit of a consumer."""
    if not sources.count("outstanding_peaks") or not sources.count("prefetch_limits"):
        return None
    return f"""
        SELECT *, at_ns AS ts_ns
        FROM (SELECT *, sum(change) OVER (PARTITION BY {columns(CHANNEL)}, of_group {OVER_TIME}) AS outstanding
              FROM (SELECT {columns(CHANNEL)}, consumer_tag, delivery_tag, version, allowed, shared,
                           CASE WHEN NOT shared THEN consumer_tag END AS of_group, first_frame_no AS frame_no, {MOVES}
                    FROM (SELECT *, link AS consumer_tag FROM messages
                          WHERE operation = 'deliver' AND {NEEDS_SETTLEMENT})
                    JOIN prefetch_limits USING ({columns(CHANNEL)}, consumer_tag)))
        WHERE change > 0"""


RELATIONS = {
    "unequal_stretches": Relation(UNEQUAL_STRETCHES),
    "unmatched": Relation(unmatched),
    "unmatched_with_tags": Relation(unmatched_with_tags),
    "outstanding_peaks": Relation(outstanding_peaks),
    "prefetch_limits": Relation(PREFETCH_LIMITS),
}

CONTEXTS = {
    "settlements": Context(SETTLEMENTS_OF_NOTHING, CHANNEL, rows="unmatched", full_scan=True),
    "outstanding_peaks": Context("SELECT * FROM outstanding_peaks", CHANNEL, messages="delivered"),
    "prefetched": Context(prefetched, CHANNEL, methods=("basic.qos",), messages="delivered", full_scan=True),
}
