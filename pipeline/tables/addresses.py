"""What a publish without an address is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def to_coordinator() -> Column:
    """On publishes of table messages: those of 1.0 that declare or discharge a transaction. Their link has no address
    (4.2); a link to the anonymous relay has none either, but there each message has one of its own."""
    return F.coalesce("exchange", "address").isNull() & F.col("link").isNotNull()
