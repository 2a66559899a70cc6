"""Table links: one row a consumer, from basic.consume to its end."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import LINKS
from pipeline.tables.shape import shaped, timestamp


def links(lives: DataFrame) -> DataFrame:
    """Links of the history -> table links."""
    by_server = F.col("closed_by") == "server"
    return shaped(
        lives.withColumns(
            {
                "kind": F.coalesce("kind", F.lit("consumer")),
                "opened_ts": timestamp("opened_ns"),
                "closed_ts": timestamp("closed_ns"),
                "error": F.when(by_server, F.concat(F.col("closing_name"), F.lit(" by the server"))),
            }
        ),
        LINKS,
    )
