"""Add the tables of a day to tables that hold all days; a day that is added again replaces itself.

    python examples/share_day.py tables/date=2026-11-20 2026-11-20 warehouse connections messages

Only the partitions of the day are overwritten (dynamic partition overwrite).
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

import wirehare


def share(tables: str, day: str, warehouse: str, *names: str) -> None:
    """Write the named tables of one day into `warehouse`/NAME/date=DAY."""
    spark = wirehare.session()
    for name in names:
        rows = spark.read.parquet(f"{tables}/{name}").withColumn("date", F.lit(day).cast("date"))
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("date").parquet(f"{warehouse}/{name}")


if __name__ == "__main__":
    share(*sys.argv[1:])
