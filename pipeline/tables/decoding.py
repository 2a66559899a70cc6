"""From captures to rows of tables on Spark, or directly to files of tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

import pyarrow as pa

from codec.tables import PACKED, RUN_ORDER, TABLES, TCP_RUNS, WORKER_TABLES, Table
from pipeline.output import parquet_tables as parquet
from pipeline.output.location import Location
from pipeline.run.exchange import (
    Local,
    OnSpark,
    Rows,
    Source,
    task_numbers,
)
from pipeline.run.local_processes import LocalProcesses
from udfs.arrow.spill_files import flow_buckets
from udfs.workers.worker_config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from udfs.decode.key_logs import SecretFiles
    from udfs.sink.writers import WriteTables
    from udfs.source.capture_bytes import CaptureFile

# Captures of up to so many bytes in all are decoded by one task (`udfs.source.sources`), in about a second.
ONE_TASK_BYTES = 8 << 20
# Up to so many bytes the processes of one machine decode local captures without Spark. More would also be faster
# there, but Spark tries a task that failed again, and shuffles what does not fit on one disk.
LOCAL_BYTES = 4 << 30
ONE_TASK_FILES = 64
# Interpreted kernels decode some 400 KB a second on a core, and compiling all kernels takes two cores about a minute.
COLD_BYTES = 24 << 20

# Tables that message_flows are made of.
FLOW_INPUTS = ("messages", "connections", "links", "stalls")


Time = int | str | datetime
Decode = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


class PacketFilter(TypedDict, total=False):
    """Which packets of the captures are read, and how: arguments of `pipeline.decode`, which documents them."""

    ports: int | Sequence[int] | None
    hosts: str | Sequence[str] | None
    since: Time | None
    until: Time | None
    split_bytes: int | None
    keylog: str | Sequence[str] | None


def secret_files(uris: Sequence[str], keylog: str | Sequence[str] | None) -> SecretFiles:
    """Where workers find the TLS secrets of these captures. Raises KeyLogError."""
    from udfs.decode.key_logs import SecretFiles

    return SecretFiles(checked_key_logs(keylog), tuple(uris))


def checked_key_logs(keylog: str | Sequence[str] | None) -> tuple[str, ...]:
    """The key logs in a form that other processes can open. Raises KeyLogError for an invalid one."""
    from udfs.decode.key_logs import require_key_logs

    key_logs = anchored_paths(keylog or ())
    require_key_logs(key_logs)
    return tuple(key_logs)


def anchored_paths(paths: str | Sequence[str]) -> list[str]:
    """The paths in a form that other processes can open (`udfs.source.paths.anchored`)."""
    from udfs.source.paths import anchored

    return [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]


def config(payload: bool = False, tables: Collection[str] = WORKER_TABLES) -> Config:
    """What workers make of frames: `tables`; `payload`: with the bytes of content bodies."""
    return Config({name: TABLES[name] for name in WORKER_TABLES}, payload, frozenset(tables))


def packed(
    spark: SparkSession, paths: str | Sequence[str], *, payload: bool, **packet_filter: Unpack[PacketFilter]
) -> DataFrame:
    """The rows of all tables (`codec.tables.PACKED`), lazy and not cached."""
    from udfs.tables.packed import PackTables

    uris = anchored_paths(paths)
    pack = PackTables(config(payload), secret_files(uris, packet_filter.get("keylog")))
    rows = by_flow(spark, uris, pack, PACKED, packet_filter)
    assert isinstance(rows, OnSpark)
    return rows.rows


def decode_into(
    spark: SparkSession | LocalProcesses,
    uris: Sequence[str],
    directory: Location,
    tables: Collection[str],
    *,
    payload: bool = False,
    **packet_filter: Unpack[PacketFilter],
) -> Written:
    """Decode, and let workers write these tables into `directory`."""
    from udfs.sink.parquet import WRITTEN

    if directory.entries() is None:
        directory.create()
    write_tables = writer(directory, tables, payload=payload, secrets=secret_files(uris, packet_filter.get("keylog")))
    files: dict[str, dict[str, int]] = defaultdict(dict)
    for row in by_flow(spark, uris, write_tables, WRITTEN, packet_filter).collected():
        if row["rows"]:
            files[row["folder"]][row["file"]] = row["rows"]
    return Written(directory, files)


def writer(
    directory: Location, tables: Collection[str], *, payload: bool = False, secrets: SecretFiles | None = None
) -> WriteTables:
    """The function with which workers write these tables; `secrets`: where TLS secrets are."""
    from udfs.sink.writers import WriteTables

    flows = "message_flows" in tables
    wanted = {*tables, *(FLOW_INPUTS if flows else ())} & {*WORKER_TABLES}
    worker_config = config(
        payload, {*wanted, *(("methods",) if flows else ())}
    )  # methods tell which queues are streams
    return WriteTables(directory.files, directory.path, worker_config, wanted, flows, secrets)


@dataclass(frozen=True)
class Written:
    """The files that `decode_into` has written into `directory`: by folder, file name -> number of rows. Retried tasks
    may have left other files there, and may still add some."""

    directory: Location
    files: Mapping[str, Mapping[str, int]]

    def move(self, table: str, target: Location) -> bool:
        """Move the files of a table to `target`, which must not exist; return whether there are any."""
        names = self.files.get(table, ())
        if names:
            self.directory.child(table).move_to(target)
            target.keep(names)
        return bool(names)

    def rows(self, folder: str) -> int:
        return sum(self.files.get(folder, {}).values())

    def part(self, name: str, *columns: str) -> pa.Table | None:
        """The rows of a folder that was not moved; None if there are none."""
        names = self.files.get(name)
        return parquet.read(self.directory.child(name), columns, names) if names else None


def with_commas(values: int | str | Iterable[int | str] | None) -> str:
    """One value, several or none as the text of a data source option, separated by commas."""
    return ",".join(map(str, [values] if isinstance(values, int | str) else values or ()))


def by_flow(
    spark: SparkSession | LocalProcesses,
    uris: Sequence[str],
    decode: Decode,
    schema: Table | str,
    packet_filter: PacketFilter,
    packets_read: Mapping[str, int] | None = None,
) -> Rows:
    """The rows that `decode` makes of the runs of captures, flow by flow. Few bytes are decoded in one Spark task.
    `packets_read`: see `source_options`."""
    from udfs.source.sources import InOneTask

    options = source_options(uris, packet_filter, packets_read)
    if isinstance(spark, LocalProcesses):
        return local_runs(spark, options).then(decode, schema)
    tell_workers(uris)
    if packet_filter.get("split_bytes") or not in_one_task(uris):
        return OnSpark(sorted_runs(spark, options)).then(decode, schema)
    return task_numbers(spark).then(InOneTask(options, decode), schema)


def local_runs(processes: LocalProcesses, options: Mapping[str, str]) -> Local:
    """Runs of TCP segments, the runs of a flow together and in RUN_ORDER, in local processes."""
    from udfs.source.sources import ReadRuns, run_tasks

    first = Source([pa.record_batch({"id": [0]})])
    sources = [first.then(ReadRuns(options, [task])) for task in run_tasks(options)]
    return Local(processes, sources).shuffled(flow_buckets, RUN_ORDER)


def sorted_runs(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Runs of TCP segments (`codec.tables.TCP_RUNS`), the runs of a flow together and in RUN_ORDER, on Spark."""
    from pyspark.sql import is_remote

    from udfs.arrow.spark_schemas import spark_schema
    from udfs.source.sources import ListTasks, ReadRuns, run_tasks

    if is_remote():  # the captures may be on the server
        listed = task_numbers(spark).then(ListTasks(options), "task binary").collected()
        tasks = [bytes(row["task"]) for row in listed]
    else:
        tasks = run_tasks(options)
    runs = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(ReadRuns(options, tasks), spark_schema(TCP_RUNS))
    return runs.repartition("flow").sortWithinPartitions(*RUN_ORDER)


def source_options(
    uris: Sequence[str], packet_filter: PacketFilter, packets_read: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Options of the source of runs. `packets_read`: capture -> number of packets to skip. Raises OptionError."""
    # Imported here: the kernels behind it take a second to load, and reading written tables needs none.
    from udfs.source.options import parse_options

    options = {
        "ports": with_commas(packet_filter.get("ports")),
        "hosts": with_commas(packet_filter.get("hosts")),
        "since": packet_filter.get("since"),
        "until": packet_filter.get("until"),
        "splitBytes": packet_filter.get("split_bytes"),
        "references": "true",
        "packetsRead": json.dumps(packets_read) if packets_read else None,
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    parse_options(given)  # raise here: an error of the source would come through Java
    return {**given, "paths": json.dumps(list(uris))}


def tell_workers(uris: Sequence[str]) -> None:
    """Let the workers that decode these captures, and what is made of them, interpret kernels where these are not
    compiled, if that is faster. Over Spark Connect they compile: their environment is that of the server."""
    from pyspark import SparkContext

    from codec.compiler.kernel import all_compiled
    from udfs.source.paths import PathError, resolve
    from udfs.workers.process_setup import interpret_in_workers

    context = SparkContext._active_spark_context
    if context is not None:
        sooner = False
        if not all_compiled():
            with suppress(PathError):  # reported by the workers
                sooner = interpreted_sooner(resolve(uris))
        # Functions that are made from now on have it; Spark starts other workers for another environment.
        interpret_in_workers(context.environment, sooner)


def interpreted_sooner(files: Sequence[CaptureFile]) -> bool:
    """Whether these captures are decoded faster by interpreted kernels than all kernels are compiled. They are counted:
    a small file may be a large capture."""
    from udfs.source.capture_bytes import size_up_to

    return sum(file.expected_size for file in files) <= COLD_BYTES and size_up_to(files, COLD_BYTES) <= COLD_BYTES


def decoded_locally(uris: Sequence[str]) -> bool:
    """Whether local processes should decode these captures: files of this machine with up to LOCAL_BYTES in all. Raises
    PathError."""
    return _local(uris) and byte_size(uris) <= LOCAL_BYTES


def byte_size(uris: Sequence[str]) -> int:
    """The size of captures, as far as it is known without reading them. Raises PathError."""
    from udfs.source.paths import resolve

    return sum(file.expected_size for file in resolve(uris))


def in_one_task(uris: Sequence[str]) -> bool:
    """Whether captures are few and small enough for one task of Spark, which has all of their runs in memory.
    Compressed files, whose size is unknown, and remote files are not."""
    from udfs.source.capture_bytes import is_compressed
    from udfs.source.paths import PathError, resolve

    try:
        files = resolve(uris) if _local(uris) else []
    except PathError:  # with Connect, the captures may be on the server
        return False
    if not 0 < len(files) <= ONE_TASK_FILES or sum(file.expected_size for file in files) > ONE_TASK_BYTES:
        return False
    return not any(map(is_compressed, files))


def _local(uris: Sequence[str]) -> bool:
    from udfs.source.capture_bytes import LOCAL, SCHEME

    return all(uri.startswith(LOCAL) or not SCHEME.match(uri) for uri in uris)
