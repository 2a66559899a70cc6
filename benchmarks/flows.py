"""Times of message_flows, from tables in Parquet files: `python -m benchmarks.flows --millions 0.1 0.5 1 2`.

Tables messages and connections are made by Spark itself, without captures: every message is published once, delivered
once, confirmed and acknowledged, on 16 publishers and 16 consumers of one broker; `load(...).message_flows` pairs them.
The kinds of traffic differ in what identifies messages:

    ids       each has a message-id of its own
    bodies    none has one, but bodies differ: pairs by fingerprint
    hot       as bodies, and nine of ten go through one queue
    equal     one in ten has one of ten bodies (heartbeats, say), so that only their order differs
    rpc       as bodies; every other message is a request, and the next one its reply

Prints the seconds of each, the time per million messages, and the ratio of that to the smallest table of the same kind:
1.0 everywhere is linear. The first run of a session, which compiles plans and starts workers, is not counted. A message
is two rows of table messages and one flow.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import pipeline
from pipeline.output import parquet_tables as parquet
from pipeline.run.session import session
from pipeline.tables.dataframes import shaped
from udfs.arrow.spark_schemas import TABLES

MILLION = 10**6
KINDS = ("ids", "bodies", "hot", "equal", "rpc")
SIZES = (0.1, 0.5, 1.0, 2.0)
BROKER = ("10.0.0.1", 5672)
REPLIES = "replies"  # queue that requests name
PEERS, QUEUES, HOT_SHARE, EQUAL_SHARE, EQUAL_BODIES = 16, 64, 9, 1, 10
START_NS, APART_NS = 1_700_000_000 * 10**9, 10_000
IN_BROKER_NS, CONFIRM_NS, ACK_NS, SIZE_NS = 250_000, 400_000, 900_000, 3_000
FRAMES_OF_A_MESSAGE = 3


def connections(spark: SparkSession) -> DataFrame:
    """Publishers 0 to 15, consumers 16 to 31."""
    ip, port = BROKER
    given = {
        "connection_id": F.col("id"), "server_ip": F.lit(ip), "server_port": F.lit(port), "version": F.lit("0-9-1"),
        "vhost": F.lit("/"), "missing_bytes": F.lit(0), "undecoded_bytes": F.lit(0),
    }  # fmt: skip
    return shaped(
        spark.range(2 * PEERS).select(*(value.alias(name) for name, value in given.items())), TABLES["connections"]
    )


def messages(spark: SparkSession, count: int, kind: str) -> DataFrame:
    """`count` messages, each published and delivered: 2 * `count` rows."""
    number = F.col("id")
    tenth = number % 10
    queue = F.when((kind == "hot") & (tenth < HOT_SHARE), F.lit(0)).otherwise(F.xxhash64(number) % QUEUES)
    body = F.when((kind == "equal") & (tenth < EQUAL_SHARE), F.floor(number / 10) % EQUAL_BODIES).otherwise(
        number + EQUAL_BODIES
    )
    is_reply = F.lit(kind == "rpc") & (number % 2 == 1)
    properties = F.format_string('{"headers":{"tenant":"acme","trace":"%016x"},"delivery_mode":2}', F.xxhash64(number))
    both = {
        "channel": F.lit(1),
        "exchange": F.lit(""),
        "routing_key": F.when(is_reply, REPLIES).otherwise(F.concat(F.lit("queue-"), queue)),
        "correlation_id": F.concat(F.lit("c-"), F.floor(number / 2)) if kind == "rpc" else F.lit(None),
        "reply_to": F.when(~is_reply, REPLIES) if kind == "rpc" else F.lit(None),
        "message_id": F.concat(F.lit("m-"), number) if kind == "ids" else F.lit(None),
        "properties": F.parse_json(properties),
        "headers": F.try_variant_get(F.parse_json(properties), "$.headers", "variant"),
        "body_size": F.lit(512),
        "body_captured": F.lit(512),
        "complete": F.lit(True),
        "body_sha256": F.sha2(body.cast("string"), 256),
        "first_frame_no": number * FRAMES_OF_A_MESSAGE + 20,
    }
    published = START_NS + number * APART_NS
    rows = [
        _side(both, published, CONFIRM_NS, "publish", "confirmed", F.lit(None), F.lit(0)),
        _side(both, published + IN_BROKER_NS, ACK_NS, "deliver", "acked", both["routing_key"], F.lit(PEERS)),
    ]
    parts = [spark.range(count).select(*(value.alias(name) for name, value in side.items())) for side in rows]
    return shaped(parts[0].unionByName(parts[1]), TABLES["messages"])


def _side(
    both: dict[str, Column], at: Column, settled: int, operation: str, outcome: str, queue: Column, first_peer: Column
) -> dict[str, Column]:
    return {
        **both,
        "connection_id": first_peer + F.col("id") % PEERS,
        "operation": F.lit(operation),
        "queue": queue,
        "redelivered": F.lit(False) if operation == "deliver" else F.lit(None),
        "ts_ns": at,
        "first_ts_ns": at,
        "last_ts_ns": at + SIZE_NS,
        "outcome": F.lit(outcome),
        "settled_ts_ns": at + settled,
    }


def written(spark: SparkSession, folder: Path, count: int, kind: str) -> str:
    """The two tables as Parquet, as a job leaves them."""
    directory = folder / f"{kind}-{count}"
    if not directory.exists():
        parquet.write(messages(spark, count, kind), (directory / "messages").as_uri())
        parquet.write(connections(spark), (directory / "connections").as_uri())
    return str(directory)


def seconds(spark: SparkSession, tables: str, output: Path | None) -> float:
    """Seconds until all flows are written: as Parquet to `output`, else discarded."""
    start = time.perf_counter()
    flows = pipeline.load(spark, tables).message_flows
    if output is None:
        flows.write.format("noop").mode("overwrite").save()
    else:
        parquet.write(flows, output.as_uri())
    return time.perf_counter() - start


def measured(spark: SparkSession, folder: Path, sizes: list[float], kinds: list[str]) -> Iterator[str]:
    """Lines of the printed table."""
    yield f"message_flows, {os.cpu_count()} cores; seconds (s for a million messages, as many times the smallest)"
    yield f"{'millions':10}" + "".join(f"{kind:>22}" for kind in kinds) + f"{kinds[0] + ', to Parquet':>22}"
    seconds(spark, written(spark, folder, 1000, kinds[0]), folder / "warm")
    smallest: dict[str, float] = {}
    for size in sizes:
        cells = []
        for index, kind in enumerate([*kinds, kinds[0]]):
            output = folder / f"flows-{size:g}" if index == len(kinds) else None
            used = seconds(spark, written(spark, folder, int(size * MILLION), kind), output)
            each = used / size
            first = smallest.setdefault(f"{kind} {index}", each)
            cells.append(f"{used:9.1f} ({each:.1f}, {each / first:.1f}x)".rjust(22))
        yield f"{size:<10g}" + "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description="Times of message_flows.")
    parser.add_argument("--millions", type=float, nargs="+", default=list(SIZES), help="millions of messages")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of traffic")
    parser.add_argument("--directory", type=Path, help="where the tables stay (default: a temporary one)")
    selected = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (selected.directory or Path(temporary)).absolute()
        spark = session("wirehare-bench", java_options="")  # as jobs on captures of this size
        for line in measured(spark, folder, selected.millions, selected.kinds):
            print(line, flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
