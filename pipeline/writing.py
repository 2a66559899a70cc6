"""Captures in, tables in files out: what a job does, for anyone who has a session.

    pipeline.write(spark, "captures", "tables", overwrite=True)

The captures are read and decoded once: what follows from single connections is written by the workers as they decode,
into a stage beside the output; Spark derives the rest, and the stage is swapped into place when all tables are written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Unpack

from pyspark.sql import DataFrame, SparkSession

from pipeline import parquet
from pipeline.decoding import Chosen, Written, decode_into
from pipeline.derivation import Derivation
from pipeline.output import Place, staged
from pipeline.schemas import TABLES
from pipeline.session import INTERPRETED_ROWS, on_one_machine, planned, settings
from pipeline.tables.flows import write_flows
from udfs.parts import MESSAGES

# Tables written at the same time, and in which turn: first those that take longest.
SIDE_BY_SIDE = 3
TURN = ("messages", "connections", "methods", "streams", "channels", "links", "captures")
# What an audit leaves beside the tables; it goes when they are replaced.
FINDINGS = "findings"


class Status(Protocol):
    """What is being done now, for a person to read."""

    doing: str


class Progress(Protocol):
    """Told of each step: what is being done, what has been done when it ends, and by which session; `phases`: what each
    stage of Spark does to the captures."""

    def __call__(
        self, doing: str, done: str, spark: SparkSession, phases: Sequence[str] = ()
    ) -> AbstractContextManager[Status]: ...


class Unseen:
    """A status that nobody reads."""

    doing = ""


@contextmanager
def silent(doing: str, done: str, spark: SparkSession, phases: Sequence[str] = ()) -> Iterator[Status]:
    """Tell nobody."""
    yield Unseen()


def write(
    spark: SparkSession | Callable[[], SparkSession],
    paths: str | Sequence[str],
    output: str,
    *,
    tables: Collection[str] | None = None,
    overwrite: bool = False,
    payload: bool = False,
    progress: Progress = silent,
    **chosen: Unpack[Chosen],
) -> list[dict[str, Any]]:
    """Write the tables of captures as Parquet files below the directory `output`; the rows of table captures.

    `spark`: the session, or what begins one, which is called when the output is known to be ours to replace. `tables`:
    those that are wanted, else all. `overwrite`: replace the tables that `output` holds. `payload`, `chosen` as for
    `pipeline.decode`. Raises OutputError, PathError; then, and whenever it fails, the old output is as it was.
    """
    wanted = list(tables or TABLES)
    with staged(output, known=(*TABLES, FINDINGS), overwrite=overwrite) as stage:
        stage.scratch.create()
        session = spark() if callable(spark) else spark  # type: ignore[operator]
        if not on_one_machine(session):
            stage.publish()  # executors of another user write there
            stage.scratch.publish()
        try:
            _write(session, [paths] if isinstance(paths, str) else paths, stage, wanted, payload, progress, chosen)
        except BaseException:
            with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                session.interruptAll()  # they would go on writing to a stage that is being removed
            raise
        captures: list[dict[str, Any]] = stage.child("captures").dataset().to_table().to_pylist()
        if "captures" not in wanted:
            stage.child("captures").remove()
    return captures


def _write(
    spark: SparkSession,
    paths: Sequence[str],
    stage: Place,
    wanted: Sequence[str],
    payload: bool,
    progress: Progress,
    chosen: Chosen,
) -> None:
    """Decode the captures, write the wanted tables (and always `captures`) under `stage`."""
    captures = counted(len(paths), "capture")
    with (
        progress(f"decoding {captures}", f"{captures} decoded", spark, ("read", "decoded")),
        settings(spark, planned(small=True)),  # to Spark, runs are few rows
    ):
        written = decode_into(spark, paths, stage.scratch, wanted, payload=payload, **chosen)
    with progress("writing tables", f"{counted(len(wanted), 'table')} written", spark) as status:
        # Everything else is derived from what is written: the captures are read and decoded once.
        left = Derivation(written)
        needed = [name for name in TABLES if name in (*wanted, "captures")]
        with settings(spark, planned(small=written.rows_left() < INTERPRETED_ROWS)):
            _write_tables(spark, left, written, stage, [name for name in needed if name in TURN], status)
        if "message_flows" in needed:
            status.doing = "writing message_flows"
            # Answers to requests, and what is asked where bytes are lost, go through Spark.
            with settings(spark, planned(small=written.rows_left(MESSAGES) < INTERPRETED_ROWS)):
                _write_message_flows(spark, left, written, stage, needed)
        if "frames" in needed:
            frames = stage.child("frames")
            _write_left(spark, written.moved("frames", frames), None, frames)


def _write_tables(
    spark: SparkSession, left: Derivation, written: Written, stage: Place, names: Sequence[str], status: Status
) -> None:
    """Write these tables, some side by side: one is planned on the driver, on one core, while others are computed."""
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="table")
    under_way: dict[str, Future[None]] = {}

    def write_table(name: str) -> None:
        target = stage.child(name)
        rows = left.of(name)
        _write_left(spark, written.moved(name, target), rows, target)

    try:
        under_way.update((name, pool.submit(write_table, name)) for name in sorted(names, key=TURN.index))
        for table in as_completed(under_way.values()):
            table.result()
            status.doing = f"writing {', '.join(name for name, table in under_way.items() if table.running())}"
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while any(table.running() for table in under_way.values()):  # one that is being planned starts its tasks yet
            with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                spark.interruptAll()
            wait(under_way.values(), timeout=0.2)
        raise
    pool.shutdown()


def _write_message_flows(
    spark: SparkSession, left: Derivation, written: Written, stage: Place, there: Collection[str]
) -> None:
    """Write this table, out of those that are `there`."""
    target = stage.child("message_flows")
    if "messages" not in there:
        _write_left(spark, False, left.of(target.name), target)
        return
    flows, source = written.directory.child(target.name), stage.child("messages")
    connections = _standing(spark, stage, "connections") if "connections" in there else left.whole("connections")
    said = _standing(spark, stage, source.name)
    files = write_flows(said, connections, left.stream_queues, parquet.files(source), source, flows)
    if files:
        flows.move_to(target)
        target.keep(files)
    _write_left(spark, bool(files), None, target)


def _standing(spark: SparkSession, stage: Place, name: str) -> DataFrame:
    """A table that has been written under `stage`."""
    return spark.read.schema(TABLES[name]).parquet(stage.child(name).pattern)


def _write_left(spark: SparkSession, there: bool, rows: DataFrame | None, target: Place) -> None:
    """Add the `rows` of a table of which some are `there` in `target`, or none yet."""
    if rows is None and not there:
        rows = spark.createDataFrame([], TABLES[target.name])
    if rows is not None:
        parquet.write(rows, target.uri, append=there)


def counted(number: int, noun: str) -> str:
    """1 capture, 2 captures."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
