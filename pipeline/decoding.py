"""From captures to decoded rows (`udfs.schemas.DECODED`): as rows of Spark, or straight into files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession

from pipeline.output import Place
from udfs.schemas import DECODED

# Packets are handled one by one in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")


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


def write_decoded(
    spark: SparkSession,
    paths: str | Sequence[str],
    directory: Place,
    *,
    payload: bool = False,
    **chosen: Unpack[Chosen],
) -> None:
    """As `decoded`, but into Parquet files by kind, which Spark reads from `directory` as DECODED."""
    from udfs.writing import WRITTEN, WriteDecoded

    writer = WriteDecoded(directory.files, directory.path, payload)
    listed: dict[str, set[str]] = defaultdict(set)
    for row in sorted_runs(spark, paths, **chosen).mapInArrow(writer, WRITTEN).collect():
        listed[row.folder].add(row.file)
    for folder in directory.entries() or ():
        # What else is there is of tasks that were tried again.
        directory.child(folder).keep(listed[folder])


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
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    places = [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]
    runs = spark.read.format("tcp_runs").options(**given).load(places)
    return runs.repartition("flow").sortWithinPartitions(*RUN_ORDER)
