"""CAP: what the capture itself lacks.

Context 'captures': one row a capture, with the limits that it ran into before its packets belonged to a connection.

limits           names of these limits (SKIPPED, STOPPED)
packets_skipped  packets that were left out for them; null: none, reading stopped
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from codec.compiler.limits import LIMITS
from codec.net.protocols import FRAGMENT_LIMIT, SKIP_NAMES, TOO_DEEP, TOO_NESTED
from pipeline.audit.detector import Detector, Sql
from pipeline.audit.engine import CAPTURE

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

# Limit -> why packets were left out.
SKIPPED = {
    "packet headers": SKIP_NAMES[TOO_DEEP],
    "tunnels": SKIP_NAMES[TOO_NESTED],
    "fragments": SKIP_NAMES[FRAGMENT_LIMIT],
}
# Limit -> condition on `error`: reading stopped because of it. A record above the size limit is usually damage, which
# cannot be distinguished. Other errors are damage.
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


DETECTORS = (
    Detector(
        "CAP-01",
        "connections",
        when="content = 'amqp' AND missing_bytes > 0",
        frame="coalesce(loss_frame, first_frame)",
        evidence={"missing_bytes": "missing_bytes"},
    ),
    Detector(
        "CAP-02",
        "connections",
        when="content = 'amqp' AND sides_known_by != 'syn'",
        frame="first_frame",
        evidence={"header_seen": "c.client_header IS NOT NULL", "version_known": "version_known"},
    ),
    Detector(
        "CAP-03",
        "connections",
        when="content = 'amqp' AND (client_packets = 0) != (server_packets = 0)",
        frame="first_frame",
        evidence={"observed": "CASE WHEN client_packets > 0 THEN 'client' ELSE 'server' END"},
    ),
    Detector(
        "CAP-04",
        "frames",
        when="array_contains(notes, 'snap-length')",
        evidence={"sender": "sender", "missing_bytes": "size"},
    ),
    Detector(
        "CAP-05",
        "frames",
        when="frame_type = 'skipped' AND status = 'partial'",
        evidence={"sender": "sender", "octets": "size"},
    ),
    Detector(
        "CAP-06",
        "connections",
        when="size(limits) > 0",
        frame="first_frame",
        evidence={"observed": "limits"},
    ),
    Detector(
        "CAP-06",
        "captures",
        when="size(limits) > 0",
        frame="null",
        at_ns="null",
        evidence={"observed": "limits", "packets": "packets_skipped", "error": "error"},
        occurrences="greatest(packets_skipped, 1)",
        thing="capture_file",
        scope=CAPTURE,
    ),
)
CONTEXTS = {"captures": captures}
