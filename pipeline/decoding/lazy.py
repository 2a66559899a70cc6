"""Tables of decoded rows as lazy DataFrames: the code of the workers, run when a table is requested."""

from __future__ import annotations

from threading import RLock

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.decoding.shared_property import shared_property
from pipeline.schemas import CAPTURES, FRAMES, TABLES
from pipeline.tables.config import WORKER_TABLES, config, streams
from pipeline.tables.flows import message_flows
from pipeline.tables.roles import TELLS_STREAM, named
from pipeline.tables.shape import shaped
from udfs.pairing.columns import OF_MESSAGES
from udfs.source.captures import MakeCaptures

OF_SPARK = ("captures", "frames", "message_flows")


def stream_queues(methods: DataFrame) -> DataFrame:
    """Rows of table methods, or of frames -> queues that are streams (`udfs.conversation.streams.STREAMS`)."""
    # Here, not above, as in the following: the kernels take a second to load, and tables already written need none.
    from udfs.conversation.streams import OF_METHODS, STREAMS

    return methods.filter(named(TELLS_STREAM)).select(*OF_METHODS).mapInArrow(streams(), STREAMS)


class LazyTables:
    """Tables of `decoded` rows, each planned on first access. `persisted`: rows that Spark caches once computed,
    because several tables derive from them; with `payload` they include message bodies. `by_connection`: all rows of a
    connection are in one partition, in order. Thread-safe."""

    def __init__(self, decoded: DataFrame, *, payload: bool, by_connection: bool = False) -> None:
        self.decoded, self.persisted = decoded, list[DataFrame]()
        self._payload, self._by_connection = payload, by_connection
        self.lock = RLock()

    def table(self, name: str) -> DataFrame:
        """All rows of a table."""
        if name in OF_SPARK:
            rows: DataFrame = getattr(self, name)
            return rows
        return shaped(self._made.filter(F.col(name).isNotNull()).select(f"{name}.*"), TABLES[name], checked=True)

    @shared_property
    def captures(self) -> DataFrame:
        accounts = self.decoded.filter(F.col("kind") == "capture").select(F.to_json("arguments"))
        return accounts.repartition(1).mapInArrow(MakeCaptures(CAPTURES), CAPTURES)

    @shared_property
    def frames(self) -> DataFrame:
        return shaped(self.decoded.filter(F.col("kind") == "frame"), FRAMES, checked=True)

    @shared_property
    def message_flows(self) -> DataFrame:
        to_pair = self._persist(self.table("messages").select(*OF_MESSAGES))
        return message_flows(to_pair, self.table("connections"), stream_queues(self.frames))

    def _persist(self, rows: DataFrame) -> DataFrame:
        self.persisted.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    @shared_property
    def _made(self) -> DataFrame:
        """Tables that workers make, a struct each: one pass over the frames of a connection, which are in one
        partition."""
        from udfs.tables.rows import TableRows

        rows = TableRows(config(self._payload), tuple(name for name in WORKER_TABLES if name not in OF_SPARK))
        of_connections = self.decoded.filter("kind <> 'capture'")
        if not self._by_connection:
            of_connections = of_connections.repartition("connection_id")
        return self._persist(
            of_connections.sortWithinPartitions("connection_id", F.desc("kind"), "frame_no").mapInArrow(
                rows, rows.schema
            )
        )
