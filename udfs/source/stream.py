"""The stream of captures: `spark.readStream.format("pcap")`, for directories that a capturing program fills.

An offset of the stream is the set of captures that were read. A capture is read once it has settled: it was not
changed for some time (option `settle`, seconds), so nobody writes it any more. What lies between two offsets is the
same whenever it is read: with a checkpoint and a sink that Spark can write twice to the same effect, each packet
arrives exactly once, wherever the query is killed. A capture that is removed leaves the offset with the next batch; put
back under its name it is a new one. The checkpoint has the offsets of the last hundred batches, each with the names in
the directory: keep some thousands there, not millions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from udfs.source.files import MISSING, CaptureFile
from udfs.source.packets import PacketsPartition, PcapReader

if TYPE_CHECKING:
    import pyarrow as pa

    from udfs.source.options import Options

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
        chosen = _within(sorted(new, key=lambda file: (file.modified_ns or 0, file.name)), limit)
        if not chosen:
            return start
        # Names are dropped only after a listing without errors: captures that were out of reach are not read again.
        here = {file.name for file in files}
        whole = not any(file.problem for file in files)
        still = {name: size for name, size in read.items() if name in here or not whole}
        return {READ: {**still, **{file.name: file.size for file in chosen}}}

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
