"""Captures as Spark data sources: `pcap`, one row a packet, and `tcp_runs`, what the decoder eats.

    register(spark)
    spark.read.format("pcap").load("captures/").where("dst_port = 5672").show()

Options, all text: `path` or `paths` (as `load` sets them), `ports`, `hosts`, `since`, `until` to keep only some packets
(see `udfs.source.options`), and sizes in bytes that change nothing in the packets: `splitBytes`, `blockBytes`,
`runBytes`. `tcp_runs` has `passedOver`, JSON of capture URI -> packets: so many packets at its beginning were read
before. `references` true lets runs of plain local captures say where their payloads are, instead of carrying them. A
capture that cannot be read is a row that says so. Paths that lead nowhere raise PathError on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from udfs.schemas import PACKETS, TCP_RUNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from codec.net.layers import Packets
    from udfs.source.options import Options
    from udfs.source.splits import Split


def register(spark: SparkSession) -> None:
    """Make the formats `pcap` and `tcp_runs` known to a session, classic or Connect."""
    spark.dataSource.register(PcapSource)
    spark.dataSource.register(TcpRunsSource)


class SplitsPartition(InputPartition):
    """What one task reads."""

    def __init__(self, splits: list[Split]) -> None:
        super().__init__(None)
        self.splits = splits


@dataclass
class CaptureReader(DataSourceReader):
    """Finds the captures and distributes them over tasks."""

    options: Options

    def partitions(self) -> list[InputPartition]:
        """One for each task. Raises PathError when no capture is found."""
        from udfs.source.paths import resolve
        from udfs.source.splits import plan

        return [SplitsPartition(splits) for splits in plan(resolve(self.options.paths), self.options.split_bytes)]


class PcapReader(CaptureReader):
    """Rows of `pcap`."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Packets of the partition's splits, and a row for each error."""
        from codec.net.filters import Filter
        from udfs.source.columns import error_batch, packet_batches
        from udfs.source.splits import Account, read_blocks

        assert isinstance(partition, SplitsPartition)
        wanted = self.options.wanted
        for split in partition.splits:
            account = Account(split.file.name, split.file.size)
            for block in read_blocks(split, account, self.options.block_bytes, Filter()):
                keep = None if wanted.passes_all else wanted.matches(block.packets)
                yield from packet_batches(block, account.capture_file, keep)
            if account.error:
                yield error_batch(account)


class TcpRunsReader(CaptureReader):
    """Rows of `tcp_runs`."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs of the partition's splits, and the account of each split after its runs."""
        from codec.net.runs import gather_runs, refer_runs
        from udfs.source.columns import account_batch, run_batches
        from udfs.source.files import LOCAL
        from udfs.source.splits import Account, read_blocks

        assert isinstance(partition, SplitsPartition)
        for split in partition.splits:
            account = Account(split.file.name, split.file.size)
            read_before = self.options.passed_over.get(account.capture_file, 0)
            for block in read_blocks(split, account, self.options.block_bytes, self.options.wanted):
                _pass_over(block.packets, read_before)
                if block.offset is not None and self.options.references and split.file.uri.startswith(LOCAL):
                    runs = refer_runs(block.packets, block.offset, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file, refer=True)
                else:
                    runs = gather_runs(block.octets, block.packets, self.options.run_bytes)
                    yield from run_batches(runs, account.capture_file)
            yield account_batch(account)


def _pass_over(packets: Packets, count: int) -> None:
    """Turn the skip code of TCP packets into FILTERED where they are among the first `count` of their capture."""
    from codec.net.protocols import FILTERED, TCP

    if count:
        packets.skip[(packets.skip == TCP) & (packets.segments["packet_no"] <= count)] = FILTERED


class PcapSource(DataSource):
    """Packets, for people."""

    @classmethod
    def name(cls) -> str:
        return "pcap"

    def schema(self) -> StructType:
        return PACKETS

    def reader(self, schema: StructType) -> DataSourceReader:
        from udfs.source.options import parse_options

        return PcapReader(parse_options(self.options))


class TcpRunsSource(DataSource):
    """TCP segments by flow, for the decoder."""

    @classmethod
    def name(cls) -> str:
        return "tcp_runs"

    def schema(self) -> StructType:
        return TCP_RUNS

    def reader(self, schema: StructType) -> DataSourceReader:
        from udfs.source.options import parse_options

        return TcpRunsReader(parse_options(self.options))
