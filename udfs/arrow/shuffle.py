"""A shuffle between processes of one machine: rows sorted by bucket in Arrow files, which readers map into memory.

    files = write_sorted(batches, directory, flow_buckets, order=("flow", "order_ns"))
    for batch in read_sorted(files, buckets, order=("flow", "order_ns")): ...

Memory is bounded however many rows a bucket has: about SORTED_BYTES in the writer and in the reader.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.rows import in_one, numbers_of, truth_of

SORTED_BYTES = 64 << 20  # sorted at a time
BATCH_ROWS = 10_000
FLOW_BYTES, FLOW_BUCKETS = 36, 64
BUCKET = "__bucket"
Buckets = Callable[[pa.Table], NDArray[np.int64]]


class SortedFile(NamedTuple):
    """A file with rows sorted by bucket. `ends`: row at which each of `buckets` ends; `sizes`: their bytes."""

    path: str
    buckets: list[int]
    ends: list[int]
    sizes: list[int]


def column_buckets(rows: pa.Table) -> NDArray[np.int64]:
    """The bucket of rows that name it in a column."""
    return numbers_of(in_one(rows["bucket"]))


def flow_buckets(rows: pa.Table) -> NDArray[np.int64]:
    """The bucket of TCP_RUNS rows: from a hash of the flow, 0 without one."""
    flows = in_one(rows["flow"])
    keys = flows.drop_null().cast(pa.binary(FLOW_BYTES))
    words = np.frombuffer(keys.buffers()[1], "<u4").reshape(-1, FLOW_BYTES // 4)[keys.offset :][: len(keys)]
    factors = np.uint64(0x9E3779B97F4A7C15) ** np.arange(1, FLOW_BYTES // 4 + 1, dtype=np.uint64)  # odd
    hashes = (words * factors).sum(axis=1, dtype=np.uint64)
    buckets = np.zeros(len(flows), np.int64)
    buckets[truth_of(flows.is_valid())] = (hashes >> np.uint64(40)) % np.uint64(FLOW_BUCKETS)
    return buckets


def write_sorted(
    batches: Iterable[pa.RecordBatch], directory: str, buckets_of: Buckets, order: Sequence[str]
) -> list[SortedFile]:
    """Write rows into new files in a local directory, sorted by bucket, then by the columns `order` (nulls last)."""
    files, pending, size = list[SortedFile](), list[pa.RecordBatch](), 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= SORTED_BYTES:
            files.append(_write(pending, directory, buckets_of, order))
            pending, size = [], 0
    if pending:
        files.append(_write(pending, directory, buckets_of, order))
    return files


def _write(batches: Sequence[pa.RecordBatch], directory: str, buckets_of: Buckets, order: Sequence[str]) -> SortedFile:
    rows = pa.Table.from_batches(batches)
    rows = rows.append_column(BUCKET, pa.array(buckets_of(rows)))
    rows = rows.sort_by([(name, "ascending") for name in (BUCKET, *order)])
    buckets, counts = np.unique(numbers_of(in_one(rows[BUCKET])), return_counts=True)
    rows = rows.drop_columns(BUCKET)
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
    for file in files:
        with pa.memory_map(file.path) as source:
            rows = pa.ipc.open_file(source).read_all()
        for bucket, (begin, end) in zip(file.buckets, pairwise([0, *file.ends]), strict=True):
            if bucket in parts:
                parts[bucket].append(rows.slice(begin, end - begin))
    for bucket in sorted(parts):
        yield from merged(parts.pop(bucket), order)


def merged(parts: Sequence[pa.Table], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of tables that are sorted by `order` each, sorted together; the tables one after the other if it is
    empty."""
    if not order:
        for part in parts:
            yield from part.to_batches(max_chunksize=BATCH_ROWS)
        return
    share = SORTED_BYTES // max(1, len(parts))
    windows = [max(1, share * len(part) // max(1, part.nbytes)) for part in parts]  # rows
    begins = [0] * len(parts)
    while any(begin < len(part) for begin, part in zip(begins, parts, strict=True)):
        ends = [min(begin + window, len(part)) for begin, window, part in zip(begins, windows, parts, strict=True)]
        # No row behind a window comes before the window's last row.
        lasts = [_key(part, order, end - 1) for part, end in zip(parts, ends, strict=True) if end < len(part)]
        if lasts:
            last = min(lasts)
            ends = [
                bisect_right(range(end), last, begin, end, key=partial(_key, part, order))
                for part, begin, end in zip(parts, begins, ends, strict=True)
            ]
        rows = pa.concat_tables(
            part.slice(begin, end - begin) for part, begin, end in zip(parts, begins, ends, strict=True)
        )
        ordered = rows.sort_by([(name, "ascending") for name in order])
        yield from ordered.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        begins = ends


def _key(rows: pa.Table, order: Sequence[str], row: int) -> list[tuple[bool, Any]]:
    """What a row is ordered by."""
    values = (rows[name][row].as_py() for name in order)
    return [(value is None, value) for value in values]
