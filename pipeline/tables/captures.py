"""Table captures: one row a capture file, summed over the accounts of the splits that it was read in."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import CAPTURES
from pipeline.tables.shape import shaped, timestamp

ACCOUNT = """struct<capture_file string, format string, compression string, link_types array<string>, byte_size bigint,
    packets bigint, first_ts_ns bigint, last_ts_ns bigint, snaplen bigint, dropped bigint, truncated boolean,
    error string, skipped map<string, bigint>>"""


def captures(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> table captures."""
    account = F.expr(f"try_variant_get(arguments, '$', '{ACCOUNT}')")
    accounts = decoded.filter(F.col("kind") == "capture").select(account.alias("account")).select("account.*")
    rows = accounts.groupBy("capture_file").agg(
        F.max(F.when(F.col("byte_size") >= 0, F.col("byte_size"))).alias("byte_size"),
        *(F.max(name).alias(name) for name in ("format", "compression", "snaplen", "dropped")),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("link_types")))).alias("link_types"),
        F.sum("packets").alias("packets"),
        F.min("first_ts_ns").alias("first_ts_ns"),
        F.max("last_ts_ns").alias("last_ts_ns"),
        F.max("truncated").alias("truncated"),
        F.min("error").alias("error"),
        _summed(F.collect_list("skipped")).alias("skipped_packets"),
    )
    return shaped(
        rows.withColumn("first_ts", timestamp("first_ts_ns")).withColumn("last_ts", timestamp("last_ts_ns")), CAPTURES
    )


def _summed(maps: Column) -> Column:
    """Array of maps name -> count, added up by name."""
    none = F.expr("cast(map() as map<string, bigint>)")

    def added(_: Column, left: Column, right: Column) -> Column:
        return F.coalesce(left, F.lit(0)) + F.coalesce(right, F.lit(0))

    return F.aggregate(maps, none, lambda total, one: F.map_zip_with(total, one, added))
