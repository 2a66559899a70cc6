"""Facts of TCP connections, as the decoder states them: VARIANT -> columns. Read by streams and connections."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIDE = ", ".join(
    f"{name} bigint"
    for name in (
        "packets",
        "payload_bytes",
        "frame_bytes",
        "skipped_bytes",
        "tls_bytes",
        "foreign_bytes",
        "tail_bytes",
        "missing_bytes",
        "retransmitted_bytes",
        "out_of_order_segments",
        "max_silence_ns",
    )
)
FACTS = f"""struct<client_ip string, client_port int, server_ip string, server_port int, community_id string,
    opened_ts_ns bigint, closed_ts_ns bigint, tcp_rtt_ns bigint, tcp_end string, tcp_end_by string, syn_seen boolean,
    sides_known_by string, content string, versions_offered array<string>,
    tls struct<version string, sni string, alpn string>, conflicting_overlap_bytes bigint, limits array<string>,
    client struct<{SIDE}>, server struct<{SIDE}>>"""


def facts(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> one row a connection: connection_id, version, version_known and the fields of FACTS."""
    stated = F.expr(f"try_variant_get(arguments, '$', '{FACTS}')")
    return (
        decoded.filter(F.col("kind") == "connection")
        .select("connection_id", "version", "version_known", stated.alias("facts"))
        .select("connection_id", "version", "version_known", "facts.*")
    )
