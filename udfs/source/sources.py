"""Runs of TCP segments of captures, for the decoder.

    tasks = run_tasks(options)                                           # on the driver
    spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(ReadRuns(options, tasks), spark_schema(TCP_RUNS))
    in_run_order(read_runs(options))                                     # in this process, without Spark

Options, all text: `path` or `paths`; filters `ports`, `hosts`, `since`, `until` (see `udfs.source.options`); sizes in
bytes that do not change rows: `splitBytes`, `blockBytes`, `runBytes`; `packetsRead`: JSON of capture name -> number of
packets to skip; `references`: true: runs of uncompressed local captures have the offset of their payload in the file
instead of the payload. A capture that cannot be read is a row with an error. Paths without captures raise PathError on
the driver.

Runs are not a data source of their own: to plan a scan, Spark starts six Python processes one after the other, which
takes five seconds in a new session."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from codec.tables import RUN_ORDER

if TYPE_CHECKING:
    from codec.net.layers import Packets
    from udfs.source.options import Options
    from udfs.source.splits import Split


BATCH_RUNS = 10_000  # rows of a batch, as in Spark


@dataclass(frozen=True)
class SplitsPartition:
    """What one task reads."""

    splits: list[Split]


def splits_of(options: Options) -> list[list[Split]]:
    """The captures, distributed over tasks. Raises PathError when there is none."""
    from udfs.source.paths import resolve
    from udfs.source.splits import plan

    return plan(resolve(options.paths), options.split_bytes)


@dataclass(frozen=True)
class TcpRunsReader:
    """TCP_RUNS rows."""

    options: Options

    def partitions(self) -> list[SplitsPartition]:
        """One for each task. Raises PathError when no capture is found."""
        return [SplitsPartition(splits) for splits in splits_of(self.options)]

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """Runs of the partition's splits, and the account of each split after its runs."""
        from codec.net.runs import gather_runs, refer_runs
        from udfs.source.capture_bytes import LOCAL
        from udfs.source.columns import account_batch, run_batches
        from udfs.source.splits import Account, read_blocks

        for split in partition.splits:
            account = Account(split.file.name, split.file.size)
            read_before = self.options.skipped.get(account.capture_file, 0)
            for block in read_blocks(split, account, self.options.block_bytes, self.options.wanted):
                _skip_first(block.packets, read_before)
                if block.offset is not None and self.options.references and split.file.uri.startswith(LOCAL):
                    runs = refer_runs(block.packets, block.offset, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file, True, block)
                else:
                    runs = gather_runs(block.data, block.packets, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file, False, block)
            yield account_batch(account)


def _skip_first(packets: Packets, count: int) -> None:
    """Set the skip code of the first `count` packets to FILTERED, if they are TCP."""
    from codec.net.headers import FILTERED, TCP

    if count:
        packets.skip[(packets.skip == TCP) & (packets.segments["packet_no"] <= count)] = FILTERED


def run_reader(options: Mapping[str, str]) -> TcpRunsReader:
    """A reader of runs. Raises OptionError."""
    from udfs.source.options import parse_options

    return TcpRunsReader(parse_options(options))


def read_runs(options: Mapping[str, str]) -> pa.Table:
    """All runs (TCP_RUNS), read in this process. Raises PathError when no capture is found, OptionError."""
    reader = run_reader(options)
    return pa.Table.from_batches([rows for part in reader.partitions() for rows in reader.read(part)])


def in_run_order(runs: pa.Table, rows: int = BATCH_RUNS) -> list[pa.RecordBatch]:
    """The runs in RUN_ORDER, as Spark's shuffle returns them, in batches of `rows`."""
    ordered = runs.sort_by([(column, "ascending") for column in RUN_ORDER]).combine_chunks()
    return list(ordered.to_batches(max_chunksize=rows))


def run_tasks(options: Mapping[str, str]) -> list[bytes]:
    """What each task reads, for `ReadRuns`. Raises PathError when no capture is found, OptionError."""
    return [pickle.dumps(partition) for partition in run_reader(options).partitions()]


@dataclass(frozen=True)
class ReadRuns:
    """The function for `mapInArrow` over numbers of `tasks` (column `id`): their TCP_RUNS rows."""

    options: Mapping[str, str]
    tasks: Sequence[bytes]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = run_reader(self.options)
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from reader.read(pickle.loads(self.tasks[number]))


@dataclass(frozen=True)
class ListTasks:
    """The function for `mapInArrow` over a single row: `run_tasks`, called where the captures are; a row for each."""

    options: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # Spark requires that all input is consumed
            pass
        yield pa.record_batch({"task": pa.array(run_tasks(self.options), pa.binary())})


@dataclass(frozen=True)
class InOneTask:
    """The function for `mapInArrow` over a single row: `decode` of all runs in RUN_ORDER, without a shuffle."""

    options: Mapping[str, str]
    decode: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # Spark requires that all input is consumed
            pass
        yield from self.decode(iter(in_run_order(read_runs(self.options))))
