"""What kinds of messages there are, asked once: a context that none of them is about is not planned at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts import Parameters

LIMITED = ("CF-04", "DL-13")  # rules with a limit on waiting, the least of which is what is looked at
# Kind -> which messages they are; a context filters by the same words.
KINDS: dict[str, Sql] = {
    "immediate": "immediate AND operation = 'publish'",
    "delivered": "operation IN ('deliver', 'get')",
    # Properties that rules ask about; delivery mode 2 is what `durable` says.
    "special": "priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL OR NOT durable",
    "returned": "returned_frame_no IS NOT NULL",
    "went_back": "outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL",
    "waited": "settle_latency_ns > {least_ns} OR outcome = 'unsettled'",
}


def kinds(parameters: Parameters) -> Mapping[str, Sql]:
    """KINDS with the limit of LIMITED rules, ns."""
    limits = [parameters[rule]["limit_seconds"] for rule in LIMITED if rule in parameters]
    return {name: sql.format(least_ns=int(min(limits, default=0) * 10**9)) for name, sql in KINDS.items()}


def traffic(messages: DataFrame, parameters: Parameters) -> Mapping[str, int]:
    """How many messages there are of each kind."""
    counts = (F.count_if(F.expr(sql)).alias(name) for name, sql in kinds(parameters).items())
    (row,) = messages.agg(*counts).collect()
    return row.asDict()
