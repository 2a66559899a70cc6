"""The Spark data source `pcap`: packets of captures as rows.

    udfs.register(spark)
    spark.read.format("pcap").load("captures/").where("dst_port = 5672").show()
    spark.read.format("pcap").schema("packet_no long, dst_port int").load("captures/")    # makes no other columns
    spark.readStream.format("pcap").load("captures/")                                     # `udfs.source.packets`

Options, all text: `path` or `paths` (set by `load`); filters `ports`, `hosts`, `since`, `until` (see
`udfs.source.options`); sizes in bytes that do not change rows: `splitBytes`, `blockBytes`; of streams `settle`,
`maxFilesPerTrigger`, `maxBytesPerTrigger`. A capture that cannot be read is a row with an error. Paths without captures
raise PathError on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from codec.tables import PACKETS
from udfs.arrow.spark_schemas import spark_schema
from udfs.source.capture_bytes import MISSING, CaptureFile
from udfs.source.sources import splits_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from udfs.source.columns import Condition
    from udfs.source.options import Options
    from udfs.source.splits import Split


class PacketsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, splits: list[Split]) -> None:
        super().__init__(None)
        self.splits = splits


@dataclass
class PcapReader(DataSourceReader):
    """Rows of `pcap` with the columns `names`; of packets that meet `conditions` (`udfs.source.columns.Condition`)."""

    options: Options
    names: tuple[str, ...] = tuple(PACKETS.names)
    conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """One for each task. Raises PathError when no capture is found."""
        return [PacketsPartition(splits) for splits in splits_of(self.options)]

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read only packets that meet those of these filters that compare numbers. Spark evaluates all of them again,
        which is cheap, and drops rows with errors where it has to."""
        self.conditions = tuple(condition for each in filters if (condition := _condition(each)) is not None)
        return filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Packets of the partition's splits, and a row for each error."""
        from codec.net.layers import Filter
        from udfs.source.columns import error_batch, matches, packet_batches
        from udfs.source.splits import Account, read_blocks

        assert isinstance(partition, PacketsPartition)
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


class PcapSource(DataSource):
    """Packets."""

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> StructType:
        return spark_schema(PACKETS)

    def reader(self, schema: StructType) -> DataSourceReader:
        from udfs.source.options import parse_options

        return PcapReader(parse_options(self.options), _names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from udfs.source.options import parse_options

        return PcapStreamReader(parse_options(self.options), _names(schema))


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a query gives. Raises OptionError for others than those of PACKETS."""
    from udfs.source.options import OptionError, unknown

    for field in schema.fields:
        if field.name not in PACKETS.names:
            raise OptionError(unknown("column", field.name, PACKETS.names))
        if field.dataType.simpleString() != PACKETS[field.name].type:
            expected = str(PACKETS[field.name].type)
            raise OptionError(f"column {field.name} is of type {expected}, not {field.dataType.simpleString()}")
    return tuple(schema.names)


# The stream of captures: `spark.readStream.format("pcap")`, for directories that a capturing program fills.
#
# An offset of the stream is the set of captures that were read. A capture is read once it has settled: it was not
# changed for some time (option `settle`, seconds), so nobody writes it any more. What lies between two offsets is the
# same whenever it is read: with a checkpoint and a sink that Spark can write twice to the same effect, each packet
# arrives exactly once, wherever the query is killed. A capture that is removed leaves the offset with the next batch;
# put back under its name it is a new one. The checkpoint has the offsets of the last hundred batches, each with the
# names in the directory: keep some thousands there, not millions.


READ = "read"  # key of an offset: name of each capture -> its bytes
Offset = dict[str, Any]


class PcapStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Packets of captures as they settle, with the columns `names`."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self.options, self.names = options, tuple(names)
        self.target: frozenset[str] | None = None  # what a query with Trigger.AvailableNow reads

    def getDefaultReadLimit(self) -> ReadLimit:
        """Captures or bytes of one batch."""
        if self.options.max_files is not None:
            return ReadMaxFiles(self.options.max_files)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what has settled by now and no more."""
        self.target = frozenset(file.name for file in self._settled())

    def initialOffset(self) -> Offset:
        return {READ: {}}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """What was read, and settled captures up to `limit`, the oldest first; at least one, if there is any."""
        read: dict[str, int] = start[READ]
        files = self._files()
        new = [
            file
            for file in self._settled(files)
            if file.name not in read and (self.target is None or file.name in self.target)
        ]
        batch = _within(sorted(new, key=lambda file: (file.modified_ns or 0, file.name)), limit)
        if not batch:
            return start
        # Names are dropped only after a listing without errors: captures that were out of reach are not read again.
        here = {file.name for file in files}
        whole = not any(file.problem for file in files)
        still = {name: size for name, size in read.items() if name in here or not whole}
        return {READ: {**still, **{file.name: file.size for file in batch}}}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The captures between two offsets, in parts. One that is no longer there is a row with an error."""
        from udfs.source.splits import plan

        wanted = sorted(end[READ].keys() - start[READ].keys())
        files = {file.name: file for file in self._files()}
        gone = "was removed before it was read"
        found = [files.get(name) or CaptureFile(name, MISSING, gone) for name in wanted]
        return [PacketsPartition(splits) for splits in plan(found, self.options.split_bytes)] if found else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return PcapReader(self.options, self.names).read(partition)

    def _files(self) -> list[CaptureFile]:
        """The captures that are there; none while there is none."""
        from udfs.source.paths import PathError, resolve

        try:
            return resolve(self.options.paths)
        except PathError:
            return []

    def _settled(self, files: Sequence[CaptureFile] | None = None) -> list[CaptureFile]:
        """Those that nobody writes any more."""
        now_ns = time.time_ns()
        return [
            file
            for file in (self._files() if files is None else files)
            if not file.problem
            and (file.modified_ns is None or not 0 <= now_ns - file.modified_ns < self.options.settle_ns)
        ]


def _within(files: Sequence[CaptureFile], limit: ReadLimit) -> Sequence[CaptureFile]:
    """The first of these files, up to `limit`; at least one, if there is any."""
    if isinstance(limit, ReadMaxFiles):
        return files[: max(1, limit.max_files)]
    if not isinstance(limit, ReadMaxBytes):
        return files
    total = 0
    for index, file in enumerate(files):
        total += max(0, file.size)
        if total > limit.max_bytes:
            return files[: max(1, index)]
    return files
