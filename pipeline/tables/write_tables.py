"""Writes the tables of captures to files.

    pipeline.write(spark, "captures", "tables", overwrite=True)

The captures are read and decoded once. Workers write the tables of single connections while they decode, into a stage
beside the output; Spark derives the others; when all tables are written, the stage replaces the output.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa

from codec.tables import TABLES, WORKER_TABLES
from pipeline.output import parquet_tables as parquet
from pipeline.output.formatting import plural
from pipeline.output.location import Location, OutputError
from pipeline.output.swap import staged
from pipeline.run.exchange import planned, task_numbers
from pipeline.run.local_processes import LocalProcesses
from pipeline.run.session import INTERPRETED_ROWS, ONE_PARTITION_ROWS, on_one_machine
from pipeline.tables.decoding import (
    FLOW_INPUTS,
    PacketFilter,
    Time,
    anchored_paths,
    byte_size,
    decode_into,
)
from udfs.source.capture_bytes import public_uri
from udfs.source.captures import capture_rows, captures_of
from udfs.source.options import suggesting, unknown
from udfs.source.paths import PathError
from udfs.workers.worker_config import ACCOUNTS, STREAM_QUEUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The table of an audit; it is removed when the other tables are replaced.
FINDINGS = "findings"


# Called for each step with texts for its start and its end, its session, and what each stage does to the captures;
# gives an object whose `doing` may be changed.
Progress = Callable[[str, str, Union["SparkSession", LocalProcesses], Sequence[str]], AbstractContextManager[Any]]


def no_progress(*_: object) -> AbstractContextManager[Any]:
    return contextlib.nullcontext(SimpleNamespace(doing=""))


@suggesting
def write(
    spark: SparkSession | LocalProcesses | Callable[[], SparkSession | LocalProcesses],
    paths: str | Sequence[str],
    output: str,
    *,
    tables: Collection[str] | None = None,
    overwrite: bool = False,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    split_bytes: int | None = None,
    keylog: str | Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Write the tables of captures as Parquet files below the directory `output`; return the rows of table captures.

    `spark`: the session, or a function that starts one, which is called after `output` was checked; for captures of
    this machine (`pipeline.tables.decoding.decoded_locally`) also `LocalProcesses`, which are faster. `tables`: default
    all. `overwrite`: replace the tables in `output`. `payload` and the following arguments: see `pipeline.decode`.
    Raises OutputError; PathError if no file is a capture; ValueError for an unknown table. If it raises, the old output
    is unchanged.
    """
    wanted, given = list(tables or TABLES), anchored_paths(paths)
    for name in wanted:
        if name not in TABLES:
            raise ValueError(unknown("table", name, TABLES))
    packet_filter = PacketFilter(
        ports=ports, hosts=hosts, since=since, until=until, split_bytes=split_bytes, keylog=keylog
    )
    with staged(output, known=(*TABLES, FINDINGS), overwrite=overwrite) as stage:
        stage.scratch.create()
        session = spark() if callable(spark) else spark
        if isinstance(session, LocalProcesses):
            decode = partial(_decode_into, given, {"tables": wanted, "payload": payload, **packet_filter})
            session.use_for(byte_size(given), decode)
        if not isinstance(session, LocalProcesses) and not on_one_machine(session):
            stage.publish()  # executors of another user write there
            stage.scratch.publish()
        try:
            if not isinstance(session, LocalProcesses):
                require_shared(session, stage.scratch, output)
            _write(session, given, stage, wanted, payload, progress, packet_filter)
        except BaseException:
            if not isinstance(session, LocalProcesses):
                with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                    session.interruptAll()  # they would go on writing to a stage that is being removed
            raise
        finally:
            if isinstance(session, LocalProcesses) and callable(spark):
                session.close()
        rows: list[dict[str, Any]] = parquet.read(stage.child("captures"), TABLES["captures"].names).to_pylist()
        if not any(row["format"] for row in rows):  # else good tables would be replaced by empty ones
            raise PathError(f"no capture could be read; {rows[0]['error']}")
        if "captures" not in wanted:
            stage.child("captures").remove()
    return rows


def _decode_into(paths: Sequence[str], options: Mapping[str, Any], directory: str) -> None:
    write(LocalProcesses(1), paths, f"{directory}/tables", **options)


@dataclass(frozen=True)
class SeesDirectory:
    """The function for `mapInArrow` over a single row: whether a directory is there for the worker."""

    path: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # Spark requires that all input is consumed
            pass
        yield pa.record_batch({"seen": [os.path.isdir(self.path)]})


def require_shared(spark: SparkSession, stage: Location, output: str) -> None:
    """Raise OutputError if a Connect server does not see the directory `stage` of this machine, which was just made:
    its workers write there."""
    from pyspark.sql import is_remote

    if not stage.local or not is_remote():
        return
    (row,) = task_numbers(spark).then(SeesDirectory(stage.path), "seen boolean").collected()
    if not row["seen"]:
        raise OutputError(
            f"{public_uri(output)}: the workers of the Spark Connect server do not see this directory; write to "
            "storage that they and this machine see (s3://, gs://, abfs://, hdfs://, a mounted share)"
        )


def _write(
    spark: SparkSession | LocalProcesses,
    paths: Sequence[str],
    stage: Location,
    wanted: Sequence[str],
    payload: bool,
    progress: Progress,
    packet_filter: PacketFilter,
) -> None:
    """Decode the captures, write the wanted tables (and always `captures`) under `stage`."""
    number = plural(len(paths), "capture")
    with progress(f"decoding {number}", f"{number} decoded", spark, ("read", "decoded")), planned(spark):
        written = decode_into(spark, paths, stage.scratch, wanted, payload=payload, **packet_filter)
    with progress("writing tables", f"{plural(len(wanted), 'table')} written", spark, ()) as status:
        accounts = written.part(ACCOUNTS, "account")
        splits = map(json.loads, accounts["account"].to_pylist() if accounts else ())
        rows = capture_rows(captures_of(splits), TABLES["captures"])
        parquet.write_rows(stage.child("captures"), TABLES["captures"], rows.to_batches())
        intermediate = written.directory.child("intermediate")
        intermediate.create()
        needed = {*wanted, *(FLOW_INPUTS if "message_flows" in wanted else ())}
        folders = {
            name: (stage if name in wanted else intermediate).child(name) for name in WORKER_TABLES if name in needed
        }
        for name, target in folders.items():
            if not written.move(name, target):
                parquet.write_rows(target, TABLES[name])
        if "message_flows" in wanted:
            from pipeline.tables.message_flows import write_flows  # not above: it loads kernels

            status.doing = "writing message_flows"
            number_of = written.rows("messages")
            small, one_partition = number_of < INTERPRETED_ROWS, number_of < ONE_PARTITION_ROWS
            with planned(spark, small=small, one_partition=one_partition, pairing=True):
                flows, target = written.directory.child("flows"), stage.child("message_flows")
                streams = written.part(STREAM_QUEUES, "connection_id", "queue")
                files = write_flows(spark, folders, streams, flows)
            if files:
                flows.move_to(target)
                target.keep(files)
            else:
                parquet.write_rows(target, TABLES["message_flows"])
