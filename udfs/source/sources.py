"""Captures as rows: the Spark data source `pcap`, one row per packet, and runs of TCP segments for the decoder.

    udfs.register(spark)
    spark.read.format("pcap").load("captures/").where("dst_port = 5672").show()
    spark.read.format("pcap").schema("packet_no long, dst_port int").load("captures/")    # makes no other columns

    tasks = run_tasks(options)                                           # on the driver
    spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(ReadRuns(options, tasks), TCP_RUNS)
    in_run_order(read_runs(options))                                     # in this process, without Spark

Options, all text: `path` or `paths` (set by `load`); filters `ports`, `hosts`, `since`, `until` (see
`udfs.source.options`); sizes in bytes that do not change rows: `splitBytes`, `blockBytes`, `runBytes`; of streams
(`udfs.source.stream`) `settle`, `maxFilesPerTrigger`, `maxBytesPerTrigger`. Runs have two more: `packetsRead`: JSON of
capture name -> number of packets to skip, and `references`: true: runs of uncompressed local captures have the offset
of their payload in the file instead of the payload. A capture that cannot be read is a row with an error. Paths without
captures raise PathError on the driver.

Runs are not a data source of their own: to plan a scan, Spark starts six Python processes one after the other, which
takes five seconds in a new session."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from udfs.schemas import PACKETS, RUN_ORDER

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from codec.net.layers import Packets
    from udfs.source.columns import Condition
    from udfs.source.options import Options
    from udfs.source.splits import Split


BATCH_RUNS = 10_000  # rows of a batch, as in Spark


class SplitsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, splits: list[Split]) -> None:
        super().__init__(None)
        self.splits = splits


@dataclass
class CaptureReader(DataSourceReader):
    """Lists the captures and distributes them over tasks."""

    options: Options

    def partitions(self) -> list[InputPartition]:
        """One for each task. Raises PathError when no capture is found."""
        from udfs.source.paths import resolve
        from udfs.source.splits import plan

        return [SplitsPartition(splits) for splits in plan(resolve(self.options.paths), self.options.split_bytes)]


@dataclass
class PcapReader(CaptureReader):
    """Rows of `pcap` with the columns `names`; of packets that meet `conditions` (`udfs.source.columns.Condition`)."""

    names: tuple[str, ...] = tuple(PACKETS.names)
    conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read only packets that meet those of these filters that compare numbers. Spark evaluates all of them again,
        which is cheap, and drops rows with errors where it has to."""
        self.conditions = tuple(condition for each in filters if (condition := _condition(each)) is not None)
        return filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Packets of the partition's splits, and a row for each error."""
        from codec.net.filters import Filter
        from udfs.source.columns import error_batch, matches, packet_batches
        from udfs.source.splits import Account, read_blocks

        assert isinstance(partition, SplitsPartition)
        wanted = self.options.wanted
        for split in partition.splits:
            account = Account(split.file.name, split.file.size)
            for block in read_blocks(split, account, self.options.block_bytes, Filter()):
                keep = None if wanted.passes_all else wanted.matches(block.packets)
                if self.conditions:
                    met = matches(block, self.conditions)
                    keep = met if keep is None else keep & met
                yield from packet_batches(block, account.capture_file, keep, self.names)
            if account.error:
                yield error_batch(account, self.names)


def _condition(pushed: Filter) -> Condition | None:
    """What a filter of Spark says about a number; None: something else."""
    from udfs.source.columns import COMPARISONS, NUMBERS, Condition

    negated = type(pushed).__name__ == "Not"
    compared = getattr(pushed, "child", None) if negated else pushed
    comparison = type(compared).__name__
    column: tuple[str, ...] = getattr(compared, "attribute", ())
    value: Any = getattr(compared, "value", None)
    if comparison not in COMPARISONS or len(column) != 1 or column[0] not in NUMBERS:
        return None
    for each in value if isinstance(value, list) else (value,):
        if type(each) is not int or not -(1 << 63) <= each < 1 << 63:
            return None
    return Condition(column[0], comparison, value, negated)


class TcpRunsReader(CaptureReader):
    """TCP_RUNS rows."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs of the partition's splits, and the account of each split after its runs."""
        from codec.net.runs import gather_runs, refer_runs
        from udfs.source.columns import account_batch, run_batches
        from udfs.source.files import LOCAL
        from udfs.source.splits import Account, read_blocks

        assert isinstance(partition, SplitsPartition)
        for split in partition.splits:
            account = Account(split.file.name, split.file.size)
            read_before = self.options.skipped.get(account.capture_file, 0)
            for block in read_blocks(split, account, self.options.block_bytes, self.options.wanted):
                _skip_first(block.packets, read_before)
                if block.offset is not None and self.options.references and split.file.uri.startswith(LOCAL):
                    runs = refer_runs(block.packets, block.offset, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file, True, block)
                else:
                    runs = gather_runs(block.octets, block.packets, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file, False, block)
            yield account_batch(account)


def _skip_first(packets: Packets, count: int) -> None:
    """Set the skip code of the first `count` packets to FILTERED, if they are TCP."""
    from codec.net.protocols import FILTERED, TCP

    if count:
        packets.skip[(packets.skip == TCP) & (packets.segments["packet_no"] <= count)] = FILTERED


class PcapSource(DataSource):
    """Packets."""

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> StructType:
        return PACKETS

    def reader(self, schema: StructType) -> DataSourceReader:
        from udfs.source.options import parse_options

        return PcapReader(parse_options(self.options), _names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from udfs.source.options import parse_options
        from udfs.source.stream import PcapStreamReader

        return PcapStreamReader(parse_options(self.options), _names(schema))


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a query gives. Raises OptionError for others than those of PACKETS."""
    from udfs.source.options import OptionError
    from udfs.source.suggestions import unknown

    for field in schema.fields:
        if field.name not in PACKETS.names:
            raise OptionError(unknown("column", field.name, PACKETS.names))
        if field.dataType != PACKETS[field.name].dataType:
            expected = PACKETS[field.name].dataType.simpleString()
            raise OptionError(f"column {field.name} is of type {expected}, not {field.dataType.simpleString()}")
    return tuple(schema.names)


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
