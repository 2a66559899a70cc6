"""The Spark data source `pcap`: packets of captures as rows.

    udfs.register(spark)
    spark.read.format("pcap").load("captures/").where("dst_port = 5672").show()
    spark.read.format("pcap").schema("packet_no long, dst_port int").load("captures/")    # makes no other columns
    spark.readStream.format("pcap").load("captures/")                                     # `udfs.source.stream`

Options, all text: `path` or `paths` (set by `load`); filters `ports`, `hosts`, `since`, `until` (see
`udfs.source.options`); sizes in bytes that do not change rows: `splitBytes`, `blockBytes`; of streams `settle`,
`maxFilesPerTrigger`, `maxBytesPerTrigger`. A capture that cannot be read is a row with an error. Paths without captures
raise PathError on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from codec.tables import PACKETS
from udfs.source.sources import splits_of
from udfs.spark_schemas import spark_schema

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
        from codec.net.filters import Filter
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
        from udfs.source.stream import PcapStreamReader

        return PcapStreamReader(parse_options(self.options), _names(schema))


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a query gives. Raises OptionError for others than those of PACKETS."""
    from udfs.source.options import OptionError
    from udfs.source.suggestions import unknown

    for field in schema.fields:
        if field.name not in PACKETS.names:
            raise OptionError(unknown("column", field.name, PACKETS.names))
        if field.dataType.simpleString() != PACKETS[field.name].type:
            expected = str(PACKETS[field.name].type)
            raise OptionError(f"column {field.name} is of type {expected}, not {field.dataType.simpleString()}")
    return tuple(schema.names)
