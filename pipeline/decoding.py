"""From captures to decoded rows (`udfs.schemas.DECODED`): as rows of Spark, or straight into files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from typing import TYPE_CHECKING, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession

from pipeline import parquet
from pipeline.output import Place
from pipeline.parts import recipe, schemas
from pipeline.tables.connections import SPEAKS, frame_counts
from pipeline.tables.methods import READ_ARGUMENTS, shown_methods, streams
from udfs.parts import MESSAGES, METHODS
from udfs.schemas import DECODED
from udfs.suggestions import suggesting

if TYPE_CHECKING:
    from udfs.writing import WriteTables

# Packets are handled one by one in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")

# Tables that are made of what connections are said to be, and those of the history of channels.
OF_FACTS = {"connections", "message_flows"}
OF_HISTORY = {"channels", "links", "methods", "messages", "message_flows"}


Time = int | str | datetime


class Chosen(TypedDict, total=False):
    """Which packets of the captures are wanted, and how these are cut.

    `ports`, `hosts`: only connections with one of them on either side. `since` (inclusive), `until` (exclusive):
    packets of this time, as `udfs.options.parse_time` reads it. `split_bytes`: plain captures above this size are read
    in several splits, which changes nothing in the rows.
    """

    ports: int | Sequence[int] | None
    hosts: str | Sequence[str] | None
    since: Time | None
    until: Time | None
    split_bytes: int | None


@suggesting
def decoded(
    spark: SparkSession,
    paths: str | Sequence[str],
    *,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    split_bytes: int | None = None,
) -> DataFrame:
    """Captures -> decoded rows (`udfs.schemas.DECODED`), lazily and each time anew.

    `paths`: files, directories, globs, URIs; relative ones are under the directory of this process, wherever Spark
    was started. `payload`: with the bytes of content bodies. The others: see `Chosen`. A capture that cannot be read
    gives a row in `captures` with its error.
    """
    from udfs.decode import decode_runs

    runs = sorted_runs(spark, paths, ports=ports, hosts=hosts, since=since, until=until, split_bytes=split_bytes)
    return runs.mapInArrow(decode_runs(payload), DECODED)


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
    from udfs.parquet import WRITTEN

    if directory.entries() is None:
        directory.create()
    runs = sorted_runs(spark, paths, **chosen)
    files = parquet.listed(runs.mapInArrow(writer(directory, tables, payload=payload), WRITTEN))
    return Written(spark, directory, files)


def writer(
    directory: Place, tables: Collection[str], *, payload: bool = False, waiting_bytes: int | None = None
) -> WriteTables:
    """What workers call to write these tables; `waiting_bytes` as for `recipe`."""
    from udfs.writing import WriteTables

    return WriteTables(
        directory.files,
        directory.path,
        payload,
        READ_ARGUMENTS,
        SPEAKS if set(tables) & OF_FACTS else (),
        frame_counts() if set(tables) & OF_FACTS else None,
        shown_methods() if "methods" in tables else None,
        recipe(payload, waiting_bytes) if set(tables) & OF_HISTORY else None,
        streams() if "message_flows" in tables else None,
    )


@dataclass(frozen=True)
class Written:
    """What `decode_into` has left in `directory`: by folder, names of files and how many rows each has. Others may be
    there, and still come, from tasks that were tried again."""

    spark: SparkSession
    directory: Place
    files: Mapping[str, Mapping[str, int]]

    @cached_property
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

    def rows_left(self, *parts: str) -> int:
        """How many rows Spark has to look at; also in these `parts`, if those of a table that workers made."""
        from udfs.writing import DECODED_OF

        workers_made = {DECODED_OF["frame"], METHODS, MESSAGES} - set(parts)
        return sum(sum(files.values()) for folder, files in self.files.items() if folder not in workers_made)

    def part(self, name: str) -> DataFrame | None:
        """The rows of a part (`pipeline.parts.Parts`), of those that were not moved; None if there are none."""
        paths = self._paths(name)
        return self.spark.read.schema(schemas()[name]).parquet(*paths) if paths else None

    def held(self, name: str, rows: DataFrame) -> DataFrame:
        """`rows` in files: whatever is made of them is planned from there, and not from the beginning."""
        place = self._place(f"held/{name}")
        parquet.write(rows, place.uri)
        return self.spark.read.schema(rows.schema).parquet(place.pattern)

    def _place(self, folder: str) -> Place:
        return reduce(Place.child, folder.split("/"), self.directory)

    def _paths(self, folder: str) -> list[str]:
        place = self._place(folder)
        return [place.child(name).pattern for name in sorted(self.files.get(folder, ()))]


def with_commas(values: int | str | Iterable[int | str] | None) -> str:
    """One value, several or none, as an option of a data source."""
    return ",".join(map(str, [values] if isinstance(values, int | str) else values or ()))


def sorted_runs(spark: SparkSession, paths: str | Sequence[str], **chosen: Unpack[Chosen]) -> DataFrame:
    """Captures -> runs of TCP segments (`udfs.schemas.TCP_RUNS`), the runs of a flow together and in RUN_ORDER."""
    # Here, not above: the kernels behind them take a second to load, and tables already written need none.
    from udfs.options import parse_options
    from udfs.paths import anchored
    from udfs.source import register

    options = {
        "ports": with_commas(chosen.get("ports")),
        "hosts": with_commas(chosen.get("hosts")),
        "since": chosen.get("since"),
        "until": chosen.get("until"),
        "splitBytes": chosen.get("split_bytes"),
        "references": "true",
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    parse_options(given)  # else the source would complain of a wrong one, through Java
    register(spark)
    places = [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]
    runs = spark.read.format("tcp_runs").options(**given).load(places)
    return runs.repartition("flow").sortWithinPartitions(*RUN_ORDER)
