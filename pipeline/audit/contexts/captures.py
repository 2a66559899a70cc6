"""Context 'captures': one row a capture, with the limits that it ran into before its packets belonged to a connection.

limits           names of these limits (SKIPPED, STOPPED)
packets_skipped  packets that were left out for them; null: none, reading stopped
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from codec.compiler.limits import LIMITS
from codec.net.protocols import FRAGMENT_LIMIT, SKIP_NAMES, TOO_DEEP, TOO_NESTED
from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

# Limit -> why packets were left out.
SKIPPED = {
    "packet headers": SKIP_NAMES[TOO_DEEP],
    "tunnels": SKIP_NAMES[TOO_NESTED],
    "fragments": SKIP_NAMES[FRAGMENT_LIMIT],
}
# Limit -> whether `error` tells that reading stopped for it. A record that claims more than the limit is, as a rule,
# damage; which of both it is, nobody can tell. Other errors are damage.
CLAIMED: Sql = r"CAST(nullif(regexp_extract(error, 'claims (more than|a length of) ([0-9]+)', 2), '') AS DECIMAL(38))"
STOPPED: dict[str, Sql] = {
    "record size": f"{CLAIMED} >= {LIMITS.record_bytes}",
    "expansion": "error LIKE '%expands more than % times%'",
}


def captures(sources: Sources) -> DataFrame:
    """Context 'captures'. `version` is null: a capture speaks none."""
    found = {name: f"skipped_packets['{reason}'] > 0" for name, reason in SKIPPED.items()} | STOPPED
    limits = ", ".join(f"CASE WHEN {reached} THEN '{name}' END" for name, reached in found.items())
    skipped = " + ".join(f"coalesce(skipped_packets['{reason}'], 0)" for reason in SKIPPED.values())
    return sources.tables.captures.select(
        "capture_file",
        "error",
        F.lit(None).cast("string").alias("version"),
        F.expr(f"array_compact(array({limits}))").alias("limits"),
        F.expr(f"nullif({skipped}, 0L)").alias("packets_skipped"),
    )
