"""From captures to decoded rows (`udfs.schemas.DECODED`): as rows of Spark, or straight into files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypedDict, Unpack

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.output import Place
from pipeline.schemas import MESSAGES, METHODS
from pipeline.tables.history import method_roles
from pipeline.tables.messages import shown_messages
from pipeline.tables.roles import HOT_ARGUMENTS, METHOD_FRAMES, NAMES_LINK, replies
from udfs.schemas import DECODED

if TYPE_CHECKING:
    from udfs.writing import WriteTables

# Packets are handled one by one in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")


# Tables that are made of the history of channels.
OF_HISTORY = {"channels", "links", "methods", "messages"}


class Chosen(TypedDict, total=False):
    """Which packets of the captures are wanted, and how these are cut.

    `ports`, `hosts`: only connections with one of them on either side. `since` (inclusive), `until` (exclusive):
    packets of this time, ns since 1970-01-01 UTC. `split_bytes`: plain captures above this size are read in several
    splits, which changes nothing in the rows.
    """

    ports: Sequence[int] | None
    hosts: Sequence[str] | None
    since: int | None
    until: int | None
    split_bytes: int | None


def decoded(
    spark: SparkSession, paths: str | Sequence[str], *, payload: bool = False, **chosen: Unpack[Chosen]
) -> DataFrame:
    """Captures -> decoded rows (`udfs.schemas.DECODED`), lazily and each time anew.

    `paths`: files, directories, globs, URIs; relative ones are under the directory of this process, wherever Spark
    was started. `payload`: with the bytes of content bodies. `chosen`: see `Chosen`. A capture that cannot be read
    gives a row in `captures` with its error.
    """
    from udfs.decode import decode_runs

    return sorted_runs(spark, paths, **chosen).mapInArrow(decode_runs(payload), DECODED)


def decode_into(
    spark: SparkSession,
    paths: str | Sequence[str],
    directory: Place,
    tables: Collection[str],
    *,
    payload: bool = False,
    **chosen: Unpack[Chosen],
) -> Written:
    """As `decoded`, but into files of `directory`, and beside the decoded rows what follows from the frames of one
    connection, as far as it is needed for these tables."""
    from udfs.writing import WRITTEN

    runs = sorted_runs(spark, paths, **chosen)
    listed: dict[str, set[str]] = defaultdict(set)
    for row in runs.mapInArrow(writer(directory, tables, payload=payload), WRITTEN).collect():
        if row.rows:
            listed[row.folder].add(row.file)
    return Written(spark, directory, listed)


def writer(
    directory: Place, tables: Collection[str], *, payload: bool = False, waiting_bytes: int | None = None
) -> WriteTables:
    """What workers call to write these tables. `waiting_bytes`: of messages of one connection that are held until it
    ends (`udfs.messages`)."""
    from udfs.messages import WAITING_BYTES
    from udfs.methods import Methods
    from udfs.writing import WriteTables

    return WriteTables(
        directory.files,
        directory.path,
        payload,
        {**HOT_ARGUMENTS, "name": "string"},
        Methods(METHODS, METHOD_FRAMES, NAMES_LINK, tuple(replies())) if "methods" in tables else None,
        (method_roles(), shown_messages(payload)) if set(tables) & OF_HISTORY else None,
        WAITING_BYTES if waiting_bytes is None else waiting_bytes,
    )


@dataclass(frozen=True)
class Written:
    """What `decode_into` has left in `directory`: names of files by folder. Others may be there, and still come, from
    tasks that were tried again."""

    spark: SparkSession
    directory: Place
    files: Mapping[str, Collection[str]]

    @property
    def decoded(self) -> DataFrame:
        """The decoded rows (`udfs.schemas.DECODED`)."""
        from udfs.writing import DECODED_OF

        base = self.directory.child("decoded").uri
        paths = [path for folder in DECODED_OF.values() for path in self._paths(folder)]
        if not paths:
            return self.spark.createDataFrame([], DECODED)
        return self.spark.read.schema(DECODED).option("basePath", base).parquet(*paths)

    def moved(self, table: str, target: Place) -> bool:
        """Move the files of table 'frames', 'methods' or 'messages' to `target`, which must not exist; whether there
        are any."""
        from udfs.writing import DECODED_OF

        folder = DECODED_OF["frame"] if table == "frames" else table
        names = self.files.get(folder, ())
        if names:
            self._place(folder).move_to(target)
            target.keep(names)
        return bool(names)

    def versions(self) -> set[str]:
        """The versions that occur among the connections."""
        from udfs.writing import DECODED_OF

        folder = DECODED_OF["connection"]
        place = self._place(folder)
        found: set[str] = set()
        for name in self.files.get(folder, ()):
            file = f"{place.path}/{name}"
            rows = pyarrow.parquet.read_table(file, columns=["version"], filesystem=place.files, partitioning=None)
            found.update(version for version in rows["version"].unique().to_pylist() if version is not None)
        return found

    @property
    def requests(self) -> DataFrame | None:
        """The rows of table methods that may have a reply, without it; None if there are none."""
        from udfs.writing import REQUESTS

        return self._found(REQUESTS, METHODS)

    @property
    def open_messages(self) -> DataFrame | None:
        """Rows of table messages of which Spark has to say what became; None if there are none."""
        from udfs.messages import OPEN

        return self._found(OPEN, MESSAGES)

    @property
    def events(self) -> DataFrame | None:
        """What settles `open_messages`; None if nothing does."""
        from udfs.history import schema_of
        from udfs.messages import EVENTS

        return self._found(EVENTS, schema_of("event"))

    @property
    def counts(self) -> DataFrame:
        """How many of the other messages were settled how, by ledger (`udfs.writing.ENDED`)."""
        from udfs.messages import COUNTS
        from udfs.writing import ENDED

        return self._read(COUNTS, ENDED)

    def history(self, kind: str) -> DataFrame:
        """Rows of kind 'life', 'link' or 'reply' of the history of channels."""
        from udfs.history import schema_of
        from udfs.writing import HISTORY_OF

        return self._read(HISTORY_OF[kind], schema_of(kind))

    def _place(self, folder: str) -> Place:
        return reduce(Place.child, folder.split("/"), self.directory)

    def _paths(self, folder: str) -> list[str]:
        place = self._place(folder)
        return [place.child(name).uri for name in sorted(self.files.get(folder, ()))]

    def _found(self, folder: str, schema: StructType) -> DataFrame | None:
        paths = self._paths(folder)
        return self.spark.read.schema(schema).parquet(*paths) if paths else None

    def _read(self, folder: str, schema: StructType) -> DataFrame:
        found = self._found(folder, schema)
        return self.spark.createDataFrame([], schema) if found is None else found


def sorted_runs(spark: SparkSession, paths: str | Sequence[str], **chosen: Unpack[Chosen]) -> DataFrame:
    """Captures -> runs of TCP segments (`udfs.schemas.TCP_RUNS`), the runs of a flow together and in RUN_ORDER."""
    # Here, not above: the kernels behind them take a second to load, and tables already written need none.
    from udfs.paths import anchored
    from udfs.source import register

    register(spark)
    options = {
        "ports": ",".join(map(str, chosen.get("ports") or ())),
        "hosts": ",".join(chosen.get("hosts") or ()),
        "since": chosen.get("since"),
        "until": chosen.get("until"),
        "splitBytes": chosen.get("split_bytes"),
        "references": "true",
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    places = [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]
    runs = spark.read.format("tcp_runs").options(**given).load(places)
    return runs.repartition("flow").sortWithinPartitions(*RUN_ORDER)
