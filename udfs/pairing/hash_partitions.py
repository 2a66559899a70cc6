"""Rows partitioned by a key, in Arrow: a shuffle then carries few large rows instead of many small ones.

    partitioned = rows.mapInArrow(HashPartitioner(schema, "key", buckets), PARTITIONED)
    for rows in whole_keys(batches, schema, "key"): ...         # in a mapInArrow over these, sorted by bucket

Spark makes each row of what it shuffles an object of its own, sorts these, and makes columns of them again, which takes
several times what the work on them takes. Here a worker orders the rows that it holds by bucket, a number that follows
from the key, and hands on those of each bucket as octets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.fields import offsets_of
from udfs.arrow.rows import in_one, numbers_of
from udfs.arrow.spool import Spool

_DEALT = pa.schema([("bucket", pa.int32()), ("rows", pa.binary())])
HELD_BYTES = 32 << 20  # by the partitioner
BATCH_BYTES = 8 << 20
# Rows of one bucket above this are partitioned again, by further bits of their key, to files.
MOST_BYTES = 64 << 20
BITS, LEVELS = 4, 8


@dataclass(frozen=True)
class HashPartitioner:
    """The function for `mapInArrow`: rows with at least the columns of `schema` -> PARTITIONED, the rows of each of so
    many
    `buckets` together; `key`: column int64 whose values are spread over all bits, as a hash."""

    schema: pa.Schema
    key: str
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            columns = [batch[field.name].cast(field.type) for field in self.schema]
            held.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
            size += held[-1].nbytes
            if size >= HELD_BYTES:
                yield from self._dealt(held)
                held, size = [], 0
        if size:
            yield from self._dealt(held)

    def _dealt(self, held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = one_batch(held)
        high = numbers_of(rows[self.key]).view(np.uint64) >> np.uint64(32)
        numbers, parts, size = list[int](), list[pa.Buffer](), 0
        for number, part in _spread(rows, high % np.uint64(self.buckets)):
            numbers.append(number)
            parts.append(part.serialize())
            size += parts[-1].size
            if size >= BATCH_BYTES:
                yield _batch(numbers, parts)
                numbers, parts, size = [], [], 0
        if parts:
            yield _batch(numbers, parts)


def whole_keys(batches: Iterator[pa.RecordBatch], schema: pa.Schema, key: str) -> Iterator[pa.Table]:
    """PARTITIONED sorted by bucket -> their rows, all of a key together, not in order."""
    pile, current = Pile(key), None
    for batch in batches:
        for bucket, rows in zip(batch["bucket"].to_pylist(), batch["rows"], strict=True):
            if bucket != current:
                yield from pile.taken()
                current = bucket
            pile.add(pa.ipc.read_record_batch(rows.as_buffer(), schema))
    yield from pile.taken()


class Pile:
    """Rows of a bucket, in memory, or in parts by bits of their key."""

    def __init__(self, key: str, level: int = 0) -> None:
        self._key, self._level = key, level
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._keys: set[int] = set()  # two of them, once there are
        self._parts: list[Spool] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if len(self._keys) < 2:
            self._keys.update(rows[self._key].unique()[:2].to_pylist())
        if self._bytes > MOST_BYTES and self._level < LEVELS and len(self._keys) > 1:
            self._part()

    def taken(self) -> Iterator[pa.Table]:
        """All rows, which are forgotten."""
        if self._parts:
            self._part()
        parts, batches = self._parts, self._batches
        self._parts, self._batches, self._bytes = [], [], 0
        if batches:
            yield pa.Table.from_batches([one_batch(batches)])
        for part in parts:
            pile = Pile(self._key, self._level + 1)
            for rows in part.drain():
                pile.add(rows)
            yield from pile.taken()

    def _part(self) -> None:
        """Put what is in memory into the parts."""
        self._parts = self._parts or [Spool(MOST_BYTES >> BITS) for _ in range(1 << BITS)]
        if self._batches:
            rows = one_batch(self._batches)
            bits = numbers_of(rows[self._key]).view(np.uint64) >> np.uint64(BITS * self._level)
            for number, part in _spread(rows, bits % np.uint64(1 << BITS)):
                self._parts[number].add(part.take(pa.array(np.arange(part.num_rows))))  # which holds no other rows
        self._batches, self._bytes = [], 0


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of at least one batch. Raises ArrowInvalid where a column would have more than 2 GB."""
    rows = pa.Table.from_batches(batches)
    return pa.RecordBatch.from_arrays([in_one(column) for column in rows.columns], schema=rows.schema)


def _spread(rows: pa.RecordBatch, numbers: NDArray[np.uint64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each number that occurs."""
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] + np.uint64(1)))
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), rows.slice(start, end - start)


def _batch(numbers: list[int], parts: list[pa.Buffer]) -> pa.RecordBatch:
    offsets = offsets_of(np.array([part.size for part in parts], np.int64))
    octets = pa.py_buffer(b"".join(parts))
    rows = pa.Array.from_buffers(pa.binary(), len(parts), [None, pa.py_buffer(offsets), octets])
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), rows], schema=_DEALT)
