"""Outstanding messages over time: +1 when one is delivered, -1 when it is settled.

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

from pipeline.audit.contexts.channels import channel_methods
from pipeline.audit.contexts.sources import CHANNEL, Context, Relation, Sources, columns
from pipeline.audit.detectors import Sql

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
                          FROM messages WHERE operation IN ('deliver', 'get') AND {NEEDS_SETTLEMENT}))
              GROUP BY {columns(CHANNEL)})
        LEFT JOIN (SELECT connection_id, version FROM connections) USING (connection_id)"""


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
    "outstanding_peaks": Relation(outstanding_peaks),
    "prefetch_limits": Relation(PREFETCH_LIMITS),
}
CONTEXTS = {
    "outstanding_peaks": Context("SELECT * FROM outstanding_peaks", CHANNEL, messages="delivered"),
    "prefetched": Context(prefetched, CHANNEL, methods=("basic.qos",), messages="delivered", full_scan=True),
}
