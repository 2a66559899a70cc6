"""The tables as lazy DataFrames: exactly the columns and types of their schemas, and `toArrow` with VARIANT columns."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from codec.tables import CAPTURES, TABLES, Table
from pipeline.output.location import Location, OutputError, location
from udfs.arrow.spark_schemas import TABLES as SCHEMAS
from udfs.arrow.spark_schemas import spark_schema, struct_schema, variant_columns
from udfs.conversation.roles import COUNTS_MESSAGES, DELETES_QUEUE, QUEUE_TYPES_BY
from udfs.pairing.schemas import MESSAGE_COLUMNS
from udfs.source.capture_bytes import public_uri
from udfs.source.captures import MakeCaptures
from udfs.source.options import meant
from udfs.workers.worker_config import ACCOUNT_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FILES = 100  # of a table, to read their footers for row counts


@dataclass(frozen=True, repr=False)
class Tables:
    """The tables as lazy DataFrames, each with the columns of `codec.tables.TABLES`."""

    captures: DataFrame
    frames: DataFrame
    streams: DataFrame
    connections: DataFrame
    channels: DataFrame
    links: DataFrame
    methods: DataFrame
    messages: DataFrame
    stalls: DataFrame
    oddities: DataFrame
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

    def __getattr__(self, name: str) -> DataFrame:
        hint = "" if name.startswith("_") else meant(name, dir(self))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __dir__(self) -> list[str]:
        """The tables, and what can be done with all of them."""
        return sorted({*TABLES, *(name for name in (*vars(Tables), *vars(self)) if not name.startswith("_"))})

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
                len(table.names),
                ", ".join(table.names),
                table.row,
                left=left,
            )
            for name, table in TABLES.items()
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
            where = None if self.directory is None else location(self.directory)
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


def _rows_in(folder: Location) -> int | None:
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

    relevant = methods.filter(F.col("name").isin([*QUEUE_TYPES_BY, *COUNTS_MESSAGES, *DELETES_QUEUE]))
    return relevant.select(*METHOD_COLUMNS).mapInArrow(find_streams, spark_schema(STREAMS))


class DecodedTables(Tables):
    """Tables of `packed` rows (`codec.tables.PACKED`), which Spark caches once they are computed: one pass over the
    captures makes all tables. Each is planned on first access. Thread-safe."""

    _packed: DataFrame
    _cached: list[DataFrame]
    _lock: RLock

    def __init__(self, packed: DataFrame) -> None:
        self.__dict__.update(_cached=[], _lock=RLock())
        self.__dict__["_packed"] = self._persist(packed)

    def __getattr__(self, name: str) -> DataFrame:
        if name not in TABLES:
            return super().__getattr__(name)
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
            accounts = self._unpacked(ACCOUNT_ROWS).repartition(1)
            return accounts.mapInArrow(MakeCaptures(CAPTURES), SCHEMAS["captures"])
        if name == "message_flows":
            from pipeline.tables.message_flows import message_flows

            to_pair = self._persist(self.messages.select(*MESSAGE_COLUMNS))
            return message_flows(to_pair, self.connections, stream_queues(self.methods), self.links, self.stalls)
        return self._unpacked(TABLES[name])

    def _unpacked(self, table: Table) -> DataFrame:
        from udfs.tables.packed import UnpackTable

        own = self._packed.filter(F.col("table") == table.name)
        return own.mapInArrow(UnpackTable(table), spark_schema(table))


def shaped(rows: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, in order, with its types; a column that `rows` lacks is null."""
    present = set(rows.columns)
    columns = []
    for column in schema.fields:
        value = f"`{column.name}`" if column.name in present else "NULL"
        value = f"CAST({value} AS {column.dataType.simpleString()})"
        found = F.expr(value)
        if isinstance(column.dataType, StructType):  # in SQL its fields lose their comments
            found = found.cast(column.dataType)
        columns.append(found.alias(column.name, metadata=column.metadata))
    return rows.select(*columns)


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows that Spark optimizes away; for an empty list it would start tasks with Python
    workers."""
    nulls = [F.lit(None).cast(column.dataType).alias(column.name, metadata=column.metadata) for column in schema.fields]
    return spark.range(1).where("false").select(*nulls)


def timestamp(nanoseconds: str) -> Column:
    """Column of nanoseconds since 1970 -> TIMESTAMP, microseconds, rounded down."""
    return F.expr(f"timestamp_micros({nanoseconds} div 1000)")


def to_arrow(rows: DataFrame) -> pa.Table:
    """All of `rows` as a pyarrow.Table. A VARIANT is a struct of its `value` and `metadata`, as in Parquet files.

    Replaces `rows.toArrow()`, which raises ArrowInvalid if a VARIANT is null (pyspark 4.1 to 4.3, pyarrow 26). Such
    columns are converted in Python workers.
    """
    from udfs.arrow.types import as_structs, as_variants

    columns = variant_columns(rows.schema)
    if not columns:
        return type(rows).toArrow(rows)
    plain = rows.mapInArrow(as_structs, struct_schema(rows.schema))
    return as_variants(plain.toArrow(), columns)


def with_to_arrow(rows: DataFrame) -> DataFrame:
    """`rows` with `to_arrow` as their method `toArrow`; DataFrames derived from them have pyspark's."""
    rows.__dict__["toArrow"] = lambda: to_arrow(rows)
    return rows
