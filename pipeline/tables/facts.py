"""Facts of TCP connections, as the decoder states them. Read by streams and connections."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def facts(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> one row a connection: connection_id, version, version_known and the fields of FACTS."""
    return (
        decoded.filter(F.col("kind") == "connection")
        .select("connection_id", "version", "version_known", F.col("facts")[0].alias("facts"))
        .select("connection_id", "version", "version_known", "facts.*")
    )
