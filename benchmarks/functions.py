"""Rows a second of the SQL functions: `python -m benchmarks.functions`.

First on one core without Spark, batches of 10,000 rows as a Python worker gets them: processor seconds of this thread,
the best of the runs. Columns hold a few hundred different rows, as columns of frames, addresses and queues do; those
marked "distinct" hold no row twice. Then in a query over a stored table of frames, on two cores, result thrown away:
seconds of the clock, next to the same query with a Python function that only measures the length of each frame.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.functions import arrow_udf

import udfs
from benchmarks.profiles import FAMILIES, streams
from pipeline.run.session import session
from udfs.functions import decode_functions as decoding
from udfs.functions import privacy_functions as naming

BATCH = 10_000
MILLION = 10**6
KEY = bytes(range(32))


def split(data: bytes, family: str) -> list[bytes]:
    """A stream of complete frames, frame by frame."""
    found, at = [], 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            size = 8
        elif family == "0-10":
            size = int.from_bytes(data[at + 2 : at + 4], "big")
        elif family == "1.0":
            size = int.from_bytes(data[at : at + 4], "big")
        else:
            size = int.from_bytes(data[at + 3 : at + 7], "big") + 8
        found.append(data[at : at + size])
        at += size
    return found


def repeated(values: list[Any], rows: int) -> pa.Array:
    """A column of `rows` rows, `values` over and over."""
    column = pa.array(values)
    return column.take(pa.array([i % len(values) for i in range(rows)]))


def constant(value: Any, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


def rate(function: Callable[..., pa.Array], columns: list[pa.Array], runs: int) -> float:
    """Million rows a second of `function`, called batch by batch."""
    spent = []
    for _ in range(runs + 1):  # the first loads kernels
        start = time.thread_time()
        for at in range(0, len(columns[0]), BATCH):
            function(*(column.slice(at, BATCH) for column in columns))
        spent.append(time.thread_time() - start)
    return len(columns[0]) / min(spent[1:]) / MILLION


def cases(rows: int) -> dict[str, tuple[Callable[..., pa.Array], list[pa.Array]]]:
    """What is measured: a line's name, the function, its columns."""
    dice = random.Random(1)
    found: dict[str, tuple[Callable[..., pa.Array], list[pa.Array]]] = {}
    for family in FAMILIES:
        version = constant(family, rows)
        frames = [frame for side in streams(family, 100)[1] for frame in split(side, family)]
        found[f"amqp_frame, {family}"] = (decoding.decode_frame, [repeated(frames, rows), version])
        found[f"amqp_redact, {family}"] = (naming.redact_frame, [repeated(frames, rows), version])
        if family == "0-9-1":
            found["amqp_version"] = (decoding.version_of, [repeated(frames, rows)])
    old = constant("0-9-1", rows)
    publish = bytes.fromhex("003c0028 0000 04 6c6f6773 0b 6f72646572732e6e6577 2e 00")
    table = bytes.fromhex("0000001f 05 636f756e74 49 00000007 06 736f75726365 53 00000008 77656273746f7265")
    message = bytes.fromhex("005370 c0 02 01 41 005373 c0 06 01 a1 03 6d2d31 005375 a0 02 6869")
    ips = [f"10.{dice.randrange(4)}.{dice.randrange(16)}.{dice.randrange(8)}" for _ in range(300)]
    names = [f"queue.{i}" for i in range(rows)]
    every = [f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}" for i in range(rows)]
    ports = [repeated([40_000 + i for i in range(300)], rows), constant(5672, rows)]
    key = constant(KEY, rows)
    return found | {
        "amqp_arguments": (decoding.decode_arguments, [repeated([publish], rows), old]),
        "amqp_properties, 1.0": (decoding.decode_properties, [repeated([message], rows), constant("1.0", rows)]),
        "amqp_table": (decoding.decode_table, [repeated([table], rows), old]),
        "amqp_value": (decoding.decode_value, [repeated([message[:7]], rows)]),
        "amqp_community_id": (naming.flow_id, [repeated(ips, rows), ports[0], constant("10.0.0.1", rows), ports[1]]),
        "amqp_community_id, distinct": (
            naming.flow_id,
            [pa.array(every), *ports[:1], constant("10.0.0.1", rows), ports[1]],
        ),
        "amqp_anonymise_ip": (naming.anonymise_ip, [repeated(ips, rows), key]),
        "amqp_anonymise_ip, distinct": (naming.anonymise_ip, [pa.array(every), key]),
        "amqp_pseudonym": (naming.pseudonyms, [repeated(ips, rows), constant("queue", rows), key]),
        "amqp_pseudonym, distinct": (naming.pseudonyms, [pa.array(names), constant("queue", rows), key]),
    }


def in_queries(rows: int) -> None:
    """Seconds of three queries over the same table of frames."""
    frames = [frame for side in streams("0-9-1", 100)[1] for frame in split(side, "0-9-1")]
    spark = session("functions", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
    udfs.register(spark)
    spark.udf.register("length_only", arrow_udf(_length, "int"))
    with tempfile.TemporaryDirectory() as directory:
        for part in range(4):
            table = pa.table({"frame": repeated(frames, rows // 4)})
            pq.write_table(table, Path(directory) / f"{part}.parquet")
        stored = spark.read.parquet(directory)
        for name in ("length_only(frame)", "amqp_version(frame)", "amqp_frame(frame, '0-9-1')"):
            spent = []
            for _ in range(3):
                start = time.perf_counter()
                stored.selectExpr(name).write.format("noop").mode("overwrite").save()
                spent.append(time.perf_counter() - start)
            best = min(spent[1:])
            print(f"{name:30} {best:6.2f} s for {rows / MILLION:.1f} M rows, {rows / best / MILLION:.2f} M/s")
    spark.stop()


def _length(frame: pa.Array) -> pa.Array:
    return pc.binary_length(frame)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="of each column (500000)")
    parser.add_argument("--runs", type=int, default=3, help="the best of them counts (3)")
    parser.add_argument("--no-spark", action="store_true", help="only the functions themselves")
    given = parser.parse_args()
    for name, (function, columns) in cases(given.rows).items():
        print(f"{name:30} {rate(function, columns, given.runs):6.2f} M rows/s")
    if not given.no_spark:
        in_queries(4 * given.rows)


if __name__ == "__main__":
    main()
