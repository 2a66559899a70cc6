"""Batches of rows in temporary files: a shuffle between processes of one machine, and a queue that spills.

    files = write_sorted(batches, directory, flow_buckets, order=("flow", "order_ns"))
    for batch in read_sorted(files, buckets, order=("flow", "order_ns")): ...

Shuffled rows are sorted by bucket in Arrow files, which readers map into memory. However many rows a bucket has, the
writer and the reader hold about SORTED_BYTES of rows of similar sizes.
"""

from __future__ import annotations

import heapq
import mmap
import os
import tempfile
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.arrays import batch_groups, combine_chunks, to_int64

SORTED_BYTES = 64 << 20  # sorted at a time
BATCH_ROWS = 10_000
LARGE_ROW = 64 << 10  # bytes on average, from which rows are written one by one
FLOW_BUCKETS = 64
BUCKET = "__bucket"
Buckets = Callable[[pa.Table], NDArray[np.int64]]


class SortedFile(NamedTuple):
    """A file with rows sorted by bucket. `ends`: row at which each of `buckets` ends; `sizes`: their bytes."""

    path: str
    buckets: list[int]
    ends: list[int]
    sizes: list[int]


def column_buckets(rows: pa.Table) -> NDArray[np.int64]:
    return to_int64(combine_chunks(rows["bucket"]))


def flow_buckets(rows: pa.Table) -> NDArray[np.int64]:
    """The bucket of TCP_RUNS rows, from a hash of the flow."""
    from udfs.arrow.fields import hashed  # not above: it comes with kernels, which only workers need

    return (hashed(combine_chunks(rows["flow"])).view(np.uint64) % np.uint64(FLOW_BUCKETS)).astype(np.int64)


def write_sorted(
    batches: Iterable[pa.RecordBatch], directory: str, buckets_of: Buckets, order: Sequence[str]
) -> list[SortedFile]:
    """Write rows into new files in a local directory, sorted by bucket, then by the columns `order` (nulls last)."""
    return [_write(group, directory, buckets_of, order) for group in batch_groups(batches, SORTED_BYTES)]


def _write(batches: Sequence[pa.RecordBatch], directory: str, buckets_of: Buckets, order: Sequence[str]) -> SortedFile:
    rows = pa.Table.from_batches(batches)
    bucket_of = buckets_of(rows)
    keys = rows.select(order).append_column(BUCKET, pa.array(bucket_of))
    in_order = pc.sort_indices(keys, [(name, "ascending") for name in (BUCKET, *order)])
    if rows.nbytes > rows.num_rows * LARGE_ROW:
        rows = pa.concat_tables([rows.slice(row, 1) for row in in_order.to_pylist()])  # Arrow would copy large values
    else:
        rows = rows.take(in_order)
    buckets, counts = np.unique(bucket_of, return_counts=True)
    ends = [0, *np.cumsum(counts).tolist()]
    sizes = [rows.slice(begin, end - begin).nbytes for begin, end in pairwise(ends)]
    path = os.path.join(directory, f"{uuid.uuid4().hex}.arrow")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # it may have bytes of captures
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=BATCH_ROWS)
    return SortedFile(path, buckets.tolist(), ends[1:], sizes)


def read_sorted(
    files: Sequence[SortedFile], buckets: Collection[int], order: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of these buckets, bucket after bucket, each in the order in which the files were written."""
    parts: dict[int, list[pa.Table]] = {bucket: [] for bucket in buckets}
    files = [file for file in files if not parts.keys().isdisjoint(file.buckets)]
    maps = [_mapped(file.path) for file in files]
    for file, data in zip(files, maps, strict=True):
        rows = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        for bucket, (begin, end) in zip(file.buckets, pairwise([0, *file.ends]), strict=True):
            if bucket in parts:
                parts[bucket].append(rows.slice(begin, end - begin))
    size = 0
    for bucket in sorted(parts):
        for batch in merged(parts.pop(bucket), order):
            yield batch
            size += batch.nbytes
            if size > SORTED_BYTES:
                size = 0
                for data in maps:  # pages that were read count for this process until they are given back
                    data.madvise(mmap.MADV_DONTNEED)


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def merged(parts: Sequence[pa.Table], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of tables that are sorted by `order` each, sorted together; the tables one after the other if it is
    empty."""
    if not order:
        for part in parts:
            yield from part.to_batches(max_chunksize=BATCH_ROWS)
        return
    share = SORTED_BYTES // max(1, len(parts))
    windows = [max(1, share * len(part) // max(1, part.nbytes)) for part in parts]  # rows read at a time
    begins = [0] * len(parts)
    waiting = [(_key(part, order, 0), number) for number, part in enumerate(parts) if len(part)]
    heapq.heapify(waiting)
    while waiting:
        # The parts whose next rows come first. What a part has behind its window comes after the window's last row.
        read, last = list[int](), None
        while waiting and (last is None or waiting[0][0] <= last):
            number = heapq.heappop(waiting)[1]
            read.append(number)
            end = begins[number] + windows[number]
            if end < len(parts[number]):
                key = _key(parts[number], order, end - 1)
                last = key if last is None else min(last, key)
        slices = []
        for number in read:
            part, begin = parts[number], begins[number]
            end = min(begin + windows[number], len(part))
            if last is not None:
                end = bisect_right(range(end), last, begin, end, key=partial(_key, part, order))
            slices.append(part.slice(begin, end - begin))
            begins[number] = end
            if end < len(part):
                heapq.heappush(waiting, (_key(part, order, end), number))
        ordered = pa.concat_tables(slices).sort_by([(name, "ascending") for name in order])
        yield from ordered.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _key(rows: pa.Table, order: Sequence[str], row: int) -> list[tuple[bool, Any]]:
    values = (rows[name][row].as_py() for name in order)
    return [(value is None, value) for value in values]


# Where Spark lets its Python workers spill.
LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"


class Spool:
    """Stores batches of one schema; `drain` returns them in order. The last `most` bytes at most stay in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._batches: deque[pa.RecordBatch] = deque()
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        while self._bytes > self._most:
            self._spill(self._batches.popleft())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Return and remove all batches."""
        file, writer, batches = self._file, self._writer, self._batches
        self._file, self._writer, self._batches, self._bytes = None, None, deque(), 0
        if file is not None and writer is not None:
            with file:
                writer.close()
                file.seek(0)
                yield from pa.ipc.open_stream(file)
        yield from batches

    def _spill(self, oldest: pa.RecordBatch) -> None:
        if self._writer is None:
            directory = os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]
            self._file = tempfile.TemporaryFile(  # noqa: SIM115  (closed by `drain`, or with the spool)
                dir=directory if os.path.isdir(directory) else None
            )
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(self._file, oldest.schema, options=options)
        self._writer.write_batch(oldest)
        self._bytes -= oldest.nbytes
