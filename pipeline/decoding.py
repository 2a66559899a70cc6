"""From captures to decoded rows (`udfs.schemas.DECODED`) on Spark, or directly to files of tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.types import StructType

from pipeline.output import parquet
from pipeline.output.place import Place
from pipeline.schemas import WORKER_TABLES
from pipeline.tables.config import config, streams
from pipeline.tables.exchange import InProcess, OnSpark, ThisProcess
from udfs.schemas import DECODED, RUN_ORDER, TCP_RUNS
from udfs.source.suggestions import suggesting

if TYPE_CHECKING:
    import pyarrow as pa

    from udfs.decode.key_logs import SecretFiles
    from udfs.sink.writers import WriteTables
    from udfs.source.sources import InOneTask

# Captures of up to so many bytes in all are decoded by one task (`udfs.source.sources`), in about a second.
ONE_TASK_BYTES = 8 << 20
# Up to so many bytes this process (`ThisProcess`) is faster than starting Spark, in less than 1 GB: 60 MB take 5 s.
IN_PROCESS_BYTES = 64 << 20
ONE_TASK_FILES = 64

# Tables that message_flows are made of.
FLOW_INPUTS = ("messages", "connections")


Time = int | str | datetime
Decode = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


class PacketFilter(TypedDict, total=False):
    """Which packets of the captures are read, and how.

    `ports`, `hosts`: only connections with one of them on either side. `since` (inclusive), `until` (exclusive): packet
    times, as `udfs.source.options.parse_time` reads them. `split_bytes`: uncompressed captures above this size are read
    in several splits, with the same rows. `keylog`: key logs (files, URIs) with the secrets of TLS connections; secrets
    in the captures themselves are found without it."""

    ports: int | Sequence[int] | None
    hosts: str | Sequence[str] | None
    since: Time | None
    until: Time | None
    split_bytes: int | None
    keylog: str | Sequence[str] | None


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
    keylog: str | Sequence[str] | None = None,
) -> DataFrame:
    """Captures -> decoded rows (`udfs.schemas.DECODED`), lazy and not cached.

    `paths`: files, directories, globs, URIs; relative ones are under the working directory of this process. `payload`:
    include the bytes of content bodies. The others: see `PacketFilter`. A capture that cannot be read is a row of
    `captures` with its error.
    """
    from udfs.decode.decoder import decode_runs

    chosen = PacketFilter(ports=ports, hosts=hosts, since=since, until=until, split_bytes=split_bytes)
    decode = decode_runs(payload, secrets=secret_files(paths, keylog))
    return by_flow(spark, paths, decode, DECODED, chosen)


def secret_files(paths: str | Sequence[str], keylog: str | Sequence[str] | None) -> SecretFiles:
    """Where workers find the TLS secrets of these captures. Raises KeyLogError for an invalid key log."""
    from udfs.decode.key_logs import SecretFiles, require_key_logs
    from udfs.source.paths import anchored

    key_logs = [anchored(path) for path in ([keylog] if isinstance(keylog, str) else keylog or ())]
    require_key_logs(key_logs)
    captures = [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]
    return SecretFiles(tuple(key_logs), tuple(captures))


def decode_into(
    spark: SparkSession | ThisProcess,
    paths: str | Sequence[str],
    directory: Place,
    tables: Collection[str],
    *,
    payload: bool = False,
    **chosen: Unpack[PacketFilter],
) -> Written:
    """Decode, and let workers write these tables into `directory`. Raises ValueError for captures that are too many, or
    too large, for this process."""
    from udfs.sink.parquet import WRITTEN

    if directory.entries() is None:
        directory.create()
    write_tables = writer(directory, tables, payload=payload, secrets=secret_files(paths, chosen.get("keylog")))
    if not isinstance(spark, ThisProcess):
        written = OnSpark(by_flow(spark, paths, write_tables, WRITTEN, chosen)).collected()
    elif (decode := one_task(paths, write_tables, chosen, most=IN_PROCESS_BYTES)) is not None:
        with spark.interruptible():
            written = InProcess([]).then(decode, WRITTEN).collected()
    else:
        raise ValueError("these captures need Spark")
    return Written(directory, parquet.listed(written))


def writer(
    directory: Place, tables: Collection[str], *, payload: bool = False, secrets: SecretFiles | None = None
) -> WriteTables:
    """The function with which workers write these tables; `secrets`: where TLS secrets are."""
    from udfs.sink.writers import WriteTables

    flows = "message_flows" in tables
    wanted = {*tables, *(FLOW_INPUTS if flows else ())} & {*WORKER_TABLES}
    made = config(payload, {*wanted, *(("methods",) if flows else ())})  # methods tell which queues are streams
    return WriteTables(directory.files, directory.path, made, wanted, streams() if flows else None, secrets)


@dataclass(frozen=True)
class Written:
    """The files that `decode_into` has written into `directory`: by folder, file name -> number of rows. Retried tasks
    may have left other files there, and may still add some."""

    directory: Place
    files: Mapping[str, Mapping[str, int]]

    def move(self, table: str, target: Place) -> bool:
        """Move the files of a table to `target`, which must not exist; return whether there are any."""
        names = self.files.get(table, ())
        if names:
            self.directory.child(table).move_to(target)
            target.keep(names)
        return bool(names)

    def rows(self, *folders: str) -> int:
        """The number of rows."""
        return sum(sum(self.files.get(folder, {}).values()) for folder in folders)

    def part(self, name: str, *columns: str) -> pa.Table | None:
        """The rows of a folder that was not moved; None if there are none."""
        names = self.files.get(name)
        return parquet.read(self.directory.child(name), columns, names) if names else None


def with_commas(values: int | str | Iterable[int | str] | None) -> str:
    """One value, several or none, as the option of a data source."""
    return ",".join(map(str, [values] if isinstance(values, int | str) else values or ()))


def by_flow(
    spark: SparkSession,
    paths: str | Sequence[str],
    decode: Decode,
    schema: StructType | str,
    chosen: PacketFilter,
    packets_read: Mapping[str, int] | None = None,
) -> DataFrame:
    """What `decode` makes of the runs of captures (`packets_read`: see `runs`), flow by flow; few bytes in one task."""
    function = None if chosen.get("split_bytes") else one_task(paths, decode, chosen, packets_read)
    if function is None:
        return sorted_runs(spark, paths, packets_read, **chosen).mapInArrow(decode, schema)
    return spark.range(0, 1, 1, 1).mapInArrow(function, schema)


def one_task(
    paths: str | Sequence[str],
    decode: Decode,
    chosen: PacketFilter,
    packets_read: Mapping[str, int] | None = None,
    most: int = ONE_TASK_BYTES,
) -> InOneTask | None:
    """The function that reads captures and decodes their runs in one task; None if they are too many or too large."""
    from udfs.source.sources import InOneTask

    options, places = _source(paths, chosen, packets_read)
    return InOneTask({**options, "paths": json.dumps(places)}, decode) if in_one_task(places, most) else None


def sorted_runs(
    spark: SparkSession,
    paths: str | Sequence[str],
    packets_read: Mapping[str, int] | None = None,
    **chosen: Unpack[PacketFilter],
) -> DataFrame:
    """Captures -> runs of TCP segments (`udfs.schemas.TCP_RUNS`), the runs of a flow together and in RUN_ORDER."""
    return runs(spark, paths, packets_read, **chosen).repartition("flow").sortWithinPartitions(*RUN_ORDER)


def runs(
    spark: SparkSession,
    paths: str | Sequence[str],
    packets_read: Mapping[str, int] | None = None,
    **chosen: Unpack[PacketFilter],
) -> DataFrame:
    """Captures -> runs of TCP segments, unordered. `packets_read`: capture -> number of packets to skip."""
    from udfs.source.sources import ListTasks, ReadRuns, run_tasks

    options, places = _source(paths, chosen, packets_read)
    options["paths"] = json.dumps(places)
    if is_remote():  # the captures may be on the server
        listed = spark.range(0, 1, 1, 1).mapInArrow(ListTasks(options), "task binary").collect()
        tasks = [bytes(row["task"]) for row in listed]
    else:
        tasks = run_tasks(options)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(ReadRuns(options, tasks), TCP_RUNS)


def _source(
    paths: str | Sequence[str], chosen: PacketFilter, packets_read: Mapping[str, int] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Options of the source, and its paths. Raises OptionError."""
    # Imported here: the kernels behind them take a second to load, and reading written tables needs none.
    from udfs.source.options import parse_options
    from udfs.source.paths import anchored

    options = {
        "ports": with_commas(chosen.get("ports")),
        "hosts": with_commas(chosen.get("hosts")),
        "since": chosen.get("since"),
        "until": chosen.get("until"),
        "splitBytes": chosen.get("split_bytes"),
        "references": "true",
        "packetsRead": json.dumps(packets_read) if packets_read else None,
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    parse_options(given)  # raise here: an error of the source would come through Java
    return given, [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]


def in_one_task(places: Sequence[str], most: int = ONE_TASK_BYTES) -> bool:
    """Whether captures are few and small enough for one task, which has all of their runs in memory. Compressed files,
    whose size is unknown, and remote files are not."""
    from udfs.source.files import LOCAL, SCHEME
    from udfs.source.paths import PathError, resolve
    from udfs.source.reading import is_compressed

    if any(SCHEME.match(place) and not place.startswith(LOCAL) for place in places):
        return False
    try:
        files = resolve(places)
    except PathError:  # with Connect, the captures may be on the server
        return False
    if len(files) > ONE_TASK_FILES or sum(file.expected_size for file in files) > most:
        return False
    return not any(map(is_compressed, files))
