"""The tables as lazy DataFrames; those of decoded rows are made by the code of the workers, when they are requested."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from threading import RLock

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.decoding import config
from pipeline.output.place import OutputError, Place, place
from pipeline.schemas import CAPTURES, FRAMES, ROWS, SPARK_TABLES, TABLES, WORKER_TABLES
from pipeline.tables.shape import shaped, with_to_arrow
from udfs.pairing.schemas import MESSAGE_COLUMNS
from udfs.roles import QUEUE_TYPES_BY
from udfs.source.captures import MakeCaptures
from udfs.source.files import public_uri

MOST_FILES = 100  # of a table, to read their footers for row counts
SPARK_DERIVED = (*SPARK_TABLES, "frames")


@dataclass(frozen=True, repr=False)
class Tables:
    """The tables as lazy DataFrames, each with the columns of `pipeline.schemas.TABLES`."""

    captures: DataFrame
    frames: DataFrame
    streams: DataFrame
    connections: DataFrame
    channels: DataFrame
    links: DataFrame
    methods: DataFrame
    messages: DataFrame
    message_flows: DataFrame
    persisted: tuple[DataFrame, ...] = ()
    directory: str | None = None  # from which they are read unchanged
    byte_size: int | None = None  # of the files they are read from

    def __repr__(self) -> str:
        """Their names, with the numbers of rows if the files provide them; runs no Spark job."""
        counts = self._row_counts()
        if not any(count is not None for count in counts.values()):
            return f"Tables({', '.join(TABLES)})"
        return f"Tables({', '.join(f'{n}: {rows:,}' if rows is not None else n for n, rows in counts.items())} rows)"

    def _repr_html_(self) -> str:
        """The same for notebooks, with columns and the meaning of a row."""
        from markupsafe import Markup

        counts, left = self._row_counts(), Markup("style='text-align:left'")
        lines = Markup("").join(
            Markup(
                "<tr><th {left}>{}</th><td>{}</td><td {left}><details><summary>{} columns</summary>{}</details></td>"
                "<td {left}>{}</td></tr>"
            ).format(
                name,
                "" if counts[name] is None else f"{counts[name]:,}",
                len(schema.names),
                ", ".join(schema.names),
                ROWS[name],
                left=left,
            )
            for name, schema in TABLES.items()
        )
        read_from = None if self.directory is None else public_uri(self.directory)
        page = Markup(
            "<table><caption>{}</caption><thead><tr><th {left}>table</th><th>rows</th><th {left}>columns</th>"
            "<th {left}>one row for each</th></tr></thead><tbody>{}</tbody></table>"
        )
        return str(page.format(read_from or "rows are counted by Spark: tables.messages.count()", lines, left=left))

    def _row_counts(self) -> dict[str, int | None]:
        """The number of rows of each table; None if unknown."""
        try:
            where = None if self.directory is None else place(self.directory)
        except OutputError:  # Spark may reach stores that Arrow does not
            where = None
        return {name: None if where is None else _rows_in(where.child(name)) for name in TABLES}

    def items(self) -> Iterator[tuple[str, DataFrame]]:
        """(name, table) in the order of TABLES."""
        return ((name, getattr(self, name)) for name in TABLES)

    def having(self, **tables: DataFrame) -> Tables:
        """A copy with some tables replaced."""
        other = copy(self)
        other.__dict__.update(tables, directory=None)
        return other

    def release(self) -> None:
        """Drop the rows that Spark has cached; the tables can still be used, and are computed anew."""
        # The last first: Spark would plan cached rows anew for seconds if it lost the rows that they derive from.
        for rows in reversed(self.persisted):
            rows.unpersist()


def _rows_in(folder: Place) -> int | None:
    """The number of rows in the Parquet files of a folder, from their footers; None for no files or too many."""
    try:
        files = folder.dataset()
        return int(files.count_rows()) if 0 < len(files.files) <= MOST_FILES else None
    except (OSError, ValueError):  # missing or foreign files: a repr must not fail
        return None


def stream_queues(methods: DataFrame) -> DataFrame:
    """Rows of table methods, or of frames -> queues that are streams (`udfs.conversation.methods.STREAMS`)."""
    # Here, not above, as in the following: the kernels take a second to load, and tables already written need none.
    from udfs.conversation.methods import METHOD_COLUMNS, STREAMS, find_streams

    chosen = methods.filter(F.col("name").isin(list(QUEUE_TYPES_BY)))
    return chosen.select(*METHOD_COLUMNS).mapInArrow(find_streams, STREAMS)


class PlannedTables(Tables):
    """Tables of `decoded` rows, each planned on first access, which takes Spark seconds for some of them. Spark caches
    rows that several tables derive from once they are computed; with `payload` they include message bodies.
    `decoded_here`: so it does with `decoded`, of which all rows of a connection are in one partition, in order.
    Thread-safe."""

    _decoded: DataFrame
    _payload: bool
    _by_connection: bool
    _cached: list[DataFrame]
    _lock: RLock

    def __init__(self, decoded: DataFrame, payload: bool, decoded_here: bool = False) -> None:
        self.__dict__.update(_payload=payload, _by_connection=decoded_here, _cached=[], _lock=RLock())
        self.__dict__["_decoded"] = self._persist(decoded) if decoded_here else decoded

    def __getattr__(self, name: str) -> DataFrame:
        if name not in TABLES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._lock:
            if name not in self.__dict__:
                self.__dict__[name] = with_to_arrow(self._planned(name))
            rows: DataFrame = self.__dict__[name]
            return rows

    @property
    def persisted(self) -> tuple[DataFrame, ...]:  # type: ignore[override]
        return tuple(self._cached)

    def _persist(self, rows: DataFrame) -> DataFrame:
        self._cached.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def _planned(self, name: str) -> DataFrame:
        if name == "captures":
            accounts = self._decoded.filter(F.col("kind") == "capture").select(F.to_json("arguments"))
            return accounts.repartition(1).mapInArrow(MakeCaptures(CAPTURES), CAPTURES)
        if name == "frames":
            return shaped(self._decoded.filter(F.col("kind") == "frame"), FRAMES)
        if name == "message_flows":
            from pipeline.tables.flows import message_flows

            to_pair = self._persist(self.messages.select(*MESSAGE_COLUMNS))
            return message_flows(to_pair, self.connections, stream_queues(self.frames))
        return shaped(self._made.filter(F.col(name).isNotNull()).select(f"{name}.*"), TABLES[name])

    @cached_property
    def _made(self) -> DataFrame:
        """Tables that workers make, a struct each: one pass over the frames of a connection, which are in one
        partition."""
        from udfs.tables import TableRows

        rows = TableRows(config(self._payload), tuple(name for name in WORKER_TABLES if name not in SPARK_DERIVED))
        of_connections = self._decoded.filter("kind <> 'capture'")
        if not self._by_connection:
            of_connections = of_connections.repartition("connection_id")
        in_order = of_connections.sortWithinPartitions("connection_id", F.desc("kind"), "frame_no")
        return self._persist(in_order.mapInArrow(rows, rows.schema))
