"""Small captures read and decoded by one task: what `mapInArrow` calls instead of a scan, a shuffle, a second stage.

To plan the scan of a Python data source, Spark starts six Python processes, one after the other, and its tasks need
further workers. Here one worker reads, sorts in memory, and decodes. The rows are those of the source `tcp_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

BATCH_RUNS = 10_000  # rows that Spark would hand over at a time


@dataclass(frozen=True)
class InOneTask:
    """The function for `mapInArrow` over any one row: what `decode` makes of the runs of captures, sorted by `order`.
    `options` are those of the source, with `paths`."""

    options: Mapping[str, str]
    order: Sequence[str]
    decode: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from udfs.source.sources import TcpRunsSource

        for _ in batches:  # Spark wants all of them taken
            pass
        source = TcpRunsSource(dict(self.options))
        reader = source.reader(source.schema())
        runs = pa.Table.from_batches([rows for part in reader.partitions() for rows in reader.read(part)])
        ordered = runs.sort_by([(column, "ascending") for column in self.order]).combine_chunks()
        yield from self.decode(iter(ordered.to_batches(max_chunksize=BATCH_RUNS)))
