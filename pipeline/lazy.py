"""Tables of decoded rows as lazy DataFrames: the code of the workers, run when a table is requested."""

from __future__ import annotations

from functools import cached_property
from threading import RLock

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.decoding import config
from pipeline.schemas import CAPTURES, FRAMES, SPARK_TABLES, TABLES, WORKER_TABLES
from pipeline.tables.shape import shaped
from udfs.pairing.schemas import MESSAGE_COLUMNS
from udfs.roles import QUEUE_TYPES_BY
from udfs.source.captures import MakeCaptures

SPARK_DERIVED = (*SPARK_TABLES, "frames")


def stream_queues(methods: DataFrame) -> DataFrame:
    """Rows of table methods, or of frames -> queues that are streams (`udfs.conversation.methods.STREAMS`)."""
    # Here, not above, as in the following: the kernels take a second to load, and tables already written need none.
    from udfs.conversation.methods import METHOD_COLUMNS, STREAMS, find_streams

    chosen = methods.filter(F.col("name").isin(list(QUEUE_TYPES_BY)))
    return chosen.select(*METHOD_COLUMNS).mapInArrow(find_streams, STREAMS)


class LazyTables:
    """Tables of `decoded` rows, each planned on first access. `persisted`: rows that Spark caches once computed,
    because several tables derive from them; with `payload` they include message bodies. `by_connection`: all rows of a
    connection are in one partition, in order. Thread-safe."""

    def __init__(self, decoded: DataFrame, *, payload: bool, by_connection: bool = False) -> None:
        self.decoded, self.persisted = decoded, list[DataFrame]()
        self._payload, self._by_connection = payload, by_connection
        self._lock = RLock()

    def table(self, name: str) -> DataFrame:
        with self._lock:
            if name in SPARK_DERIVED:
                rows: DataFrame = getattr(self, f"_{name}")
                return rows
            return shaped(self._made.filter(F.col(name).isNotNull()).select(f"{name}.*"), TABLES[name], checked=True)

    @cached_property
    def _captures(self) -> DataFrame:
        accounts = self.decoded.filter(F.col("kind") == "capture").select(F.to_json("arguments"))
        return accounts.repartition(1).mapInArrow(MakeCaptures(CAPTURES), CAPTURES)

    @cached_property
    def _frames(self) -> DataFrame:
        return shaped(self.decoded.filter(F.col("kind") == "frame"), FRAMES, checked=True)

    @cached_property
    def _message_flows(self) -> DataFrame:
        from pipeline.tables.flows import message_flows

        to_pair = self._persist(self.table("messages").select(*MESSAGE_COLUMNS))
        return message_flows(to_pair, self.table("connections"), stream_queues(self._frames))

    def _persist(self, rows: DataFrame) -> DataFrame:
        self.persisted.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    @cached_property
    def _made(self) -> DataFrame:
        """Tables that workers make, a struct each: one pass over the frames of a connection, which are in one
        partition."""
        from udfs.tables import TableRows

        rows = TableRows(config(self._payload), tuple(name for name in WORKER_TABLES if name not in SPARK_DERIVED))
        of_connections = self.decoded.filter("kind <> 'capture'")
        if not self._by_connection:
            of_connections = of_connections.repartition("connection_id")
        return self._persist(
            of_connections.sortWithinPartitions("connection_id", F.desc("kind"), "frame_no").mapInArrow(
                rows, rows.schema
            )
        )
