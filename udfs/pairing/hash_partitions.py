"""Hash partitioning of Arrow rows by a key, so that a shuffle carries few large rows instead of many small ones.

    partitioned = rows.mapInArrow(HashPartitioner(schema, buckets), PARTITIONED)
    for rows in whole_keys(batches, schema): ...         # in a mapInArrow over these, sorted by bucket

Spark shuffles single rows: it converts columns to rows, sorts them and converts them back, which takes several times
as long as the work on them. Here a worker groups its rows by bucket (from the key) and serializes those of each bucket
as one binary value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.arrays import (
    batch_groups,
    combine_chunks,
    equal_runs,
    to_int64,
)
from udfs.arrow.fields import offsets_of
from udfs.arrow.spill_files import Spool
from udfs.arrow.types import binary_column, cast_to
from udfs.pairing.schemas import ARROW_PARTITIONED

KEY = "key"  # the column that rows are partitioned by
EVERYWHERE = np.iinfo(np.int64).min  # the key of rows that all keys of a bucket need; the callers write these
BUFFER_BYTES = 32 << 20  # rows that the partitioner collects before it groups them
BATCH_BYTES = 8 << 20
# A larger bucket is partitioned again, by other bits of the key, into files.
BUCKET_BYTES = 64 << 20
BITS, LEVELS = 4, 8


@dataclass(frozen=True)
class HashPartitioner:
    """The function for `mapInArrow`: rows with at least the columns of `schema` -> PARTITIONED, one row a bucket.
    KEY is an int64 column of hashes."""

    schema: pa.Schema
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = (cast_to({name: batch[name] for name in self.schema.names}, self.schema) for batch in batches)
        for group in batch_groups(own, BUFFER_BYTES):
            yield from self._partition(one_batch(group))

    def _partition(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        high = to_int64(rows[KEY]).view(np.uint64) >> np.uint64(32)
        numbers, parts, size = list[int](), list[pa.Buffer](), 0
        for number, part in _split(rows, high % np.uint64(self.buckets)):
            numbers.append(number)
            parts.append(part.serialize())
            size += parts[-1].size
            if size >= BATCH_BYTES:
                yield _batch(numbers, parts)
                numbers, parts, size = [], [], 0
        if parts:
            yield _batch(numbers, parts)


def whole_keys(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """PARTITIONED sorted by bucket -> tables with all rows of their keys, in any order, and those EVERYWHERE."""
    bucket_rows, current = Bucket(), None
    for batch in batches:
        for bucket, rows in zip(batch["bucket"].to_pylist(), batch["rows"], strict=True):
            if bucket != current:
                yield from bucket_rows.drain()
                current = bucket
            bucket_rows.add(pa.ipc.read_record_batch(rows.as_buffer(), schema))
    yield from bucket_rows.drain()


class Bucket:
    """Rows of a bucket: in memory or, above BUCKET_BYTES, in files by bits of their key."""

    def __init__(self, level: int = 0) -> None:
        self._level = level
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._keys: set[int] = set()  # the first two distinct ones
        self._parts: list[Spool] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        shared = to_int64(rows[KEY]) == EVERYWHERE  # each part has them again: parting does not make them fewer
        self._bytes += (rows.filter(pa.array(~shared)) if shared.any() else rows).nbytes
        if len(self._keys) < 2:
            self._keys.update(rows[KEY].unique()[:3].to_pylist())
            self._keys.discard(EVERYWHERE)
        if self._bytes > BUCKET_BYTES and self._level < LEVELS and len(self._keys) > 1:
            self._part()

    def drain(self) -> Iterator[pa.Table]:
        """Return all rows and remove them."""
        if self._parts:
            self._part()
        parts, batches = self._parts, self._batches
        self._parts, self._batches, self._bytes = [], [], 0
        if batches:
            rows = pa.Table.from_batches([one_batch(batches)])
            del batches  # not kept while the caller works on their copy
            yield rows
            del rows
        for part in parts:
            bucket_rows = Bucket(self._level + 1)
            for rows in part.drain():
                bucket_rows.add(rows)
            yield from bucket_rows.drain()

    def _part(self) -> None:
        """Move the rows in memory to the parts."""
        self._parts = self._parts or [Spool(BUCKET_BYTES >> BITS) for _ in range(1 << BITS)]
        if self._batches:
            rows = one_batch(self._batches)
            bits = to_int64(rows[KEY]).view(np.uint64) >> np.uint64(BITS * self._level)
            shared = to_int64(rows[KEY]) == EVERYWHERE
            if shared.any():
                for part in self._parts:
                    part.add(rows.take(pa.array(np.flatnonzero(shared))))
                rows, bits = rows.filter(pa.array(~shared)), bits[~shared]
            for number, part in _split(rows, bits % np.uint64(1 << BITS)):
                self._parts[number].add(
                    part.take(pa.array(np.arange(part.num_rows)))
                )  # a copy, which does not reference other rows
        self._batches, self._bytes = [], 0


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of at least one batch. Raises ArrowInvalid where a column would have more than 2 GB."""
    rows = pa.Table.from_batches(batches)
    return pa.RecordBatch.from_arrays([combine_chunks(column) for column in rows.columns], schema=rows.schema)


def _split(rows: pa.RecordBatch, numbers: NDArray[np.uint64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows.take(pa.array(order)), numbers[order]
    for start, end in equal_runs(numbers):
        yield int(numbers[start]), rows.slice(start, end - start)


def _batch(numbers: list[int], parts: list[pa.Buffer]) -> pa.RecordBatch:
    rows = binary_column(b"".join(parts), offsets_of(np.array([part.size for part in parts], np.int64)))
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), rows], schema=ARROW_PARTITIONED)
