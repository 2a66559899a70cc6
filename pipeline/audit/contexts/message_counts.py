"""Messages counted by kind, once: a context about a kind that does not occur is not planned at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import CHANNEL, MESSAGE_KINDS
from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Parameters

LIMITED = ("CF-04", "DL-13")  # rules with a limit on waiting; the lowest one selects the rows
# Kind -> condition on messages; contexts filter by the same conditions.
KINDS: dict[str, Sql] = {
    "immediate": "immediate AND operation = 'publish'",
    "settled": "settled_frame_no IS NOT NULL AND delivery_tag IS NOT NULL",
    "delivered": "operation IN ('deliver', 'get')",
    # Properties that rules read; `durable` is delivery mode 2.
    "special": "priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL OR NOT durable",
    "returned": "operation = 'return'",
    "went_back": "outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL",
    "redelivered": "redelivered AND operation IN ('deliver', 'get')",
    "requeued": "outcome = 'requeued'",
    "waited": "settle_latency_ns > {least_ns} OR outcome = 'unsettled'",
}


def kind_conditions(parameters: Parameters) -> Mapping[str, Sql]:
    """KINDS with the lowest limit of the LIMITED rules, ns."""
    limits = [parameters[rule]["limit_seconds"] for rule in LIMITED if rule in parameters]
    return {name: sql.format(least_ns=int(min(limits, default=0) * 10**9)) for name, sql in KINDS.items()}


def count_messages(messages: DataFrame, parameters: Parameters) -> DataFrame:
    """Messages counted by CHANNEL, `operation` and `link`: `first_frame` and `last_frame`; the number of each of
    MESSAGE_KINDS and of `large` publishes, with the frame of the first (`first_*`); the `largest`, bytes; the number of
    each kind (`kind_*`)."""
    limit = int(parameters.get("PR-09", {}).get("limit_bytes", 0))
    published = F.when(F.col("operation") == "publish", F.coalesce("body_size", "body_seen"))
    counts = {name: F.expr(sql) for name, sql in MESSAGE_KINDS.items()} | {"large": published > limit}
    return messages.groupBy(*CHANNEL, "operation", "link").agg(
        F.min("first_frame_no").alias("first_frame"),
        F.max("first_frame_no").alias("last_frame"),
        F.max(published).alias("largest"),
        *(F.count_if(is_one).alias(name) for name, is_one in counts.items()),
        *(F.min(F.when(is_one, F.col("first_frame_no"))).alias(f"first_{name}") for name, is_one in counts.items()),
        *(F.count_if(F.expr(sql)).alias(f"kind_{name}") for name, sql in kind_conditions(parameters).items()),
    )


def count_kinds(counts: DataFrame) -> Mapping[str, int]:
    """How many messages there are of each kind."""
    (row,) = counts.agg(*(F.expr(f"coalesce(sum(kind_{name}), 0)").alias(name) for name in KINDS)).collect()
    return row.asDict()
