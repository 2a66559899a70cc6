"""Settlement: what became of each message, and when, for every version of AMQP.

Messages are outstanding in ledgers: what one side sent on one life of a channel or session. The kernel behind
`udfs.settle` settles them; each family says which of its methods are which events.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from udfs.schemas import SETTLED

# What the settlement engine reads, in this order: `settled_by_ledger` describes it.
EVENT = (
    "connection_id", "ledger", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ts_ns",
    "transaction",
)  # fmt: skip
LEDGER = ("connection_id", "ledger")


def settled_by_ledger(events: DataFrame) -> DataFrame:
    """Events of ledgers -> SETTLED: what became of each message that was settled, noted or marked.

    An event opens a message under id `first`, or (`opens` false) settles the ids `first`..`last` with `outcome` (null:
    what was noted before); not `final`, it only notes the outcome. `effective_ts_ns` (null: `ts_ns`) is when it takes
    effect. `transaction` 'rolled-back': it settles nothing and marks what it names. A message is settled by the first
    final event that names it and is not before it; of one frame, what it opens comes first.
    """
    # Here, not above: the kernel behind it takes a second to load, and tables already written need none.
    from udfs.settle import settle_events

    effective = F.coalesce("effective_ts_ns", "ts_ns").alias("effective_ts_ns")
    columns = (effective if name == "effective_ts_ns" else F.col(name) for name in EVENT)
    return (
        events.select(*columns)
        .repartition(*LEDGER)
        .sortWithinPartitions(*LEDGER, "frame_no", F.desc("opens"), "first", "last", "final", "outcome")
        .mapInArrow(settle_events, SETTLED)
    )
