"""Rows partitioned in Arrow: nothing is lost, no key is in two places, whatever fits into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from udfs.pairing import hash_partitions as hash_partitions
from udfs.pairing.hash_partitions import EVERYWHERE, HashPartitioner, whole_keys
from udfs.pairing.schemas import ARROW_PARTITIONED

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("number", pa.int64())])


def batches(rows: int, keys: int, seed: int) -> list[pa.RecordBatch]:
    """Rows with an extra column, in another order, some texts null."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-(1 << 63), (1 << 63) - 1, keys)
    found = []
    for start in range(0, rows, 1000):
        count = min(1000, rows - start)
        numbers = np.arange(start, start + count)
        texts = [None if number % 7 == 0 else f"text {number}" for number in numbers]
        columns = {"number": pa.array(numbers), "more": pa.nulls(count), "text": pa.array(texts, pa.string())}
        columns["key"] = pa.array(rng.choice(values, count))
        found.append(pa.RecordBatch.from_pydict(columns))
    return found


def shuffled(partitioned: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As Spark hands them on: sorted by bucket, in batches of another size."""
    rows = pa.Table.from_batches(partitioned).sort_by("bucket")
    yield from rows.to_batches(max_chunksize=3)


def content(tables: list[pa.Table] | list[pa.RecordBatch]) -> Counter[tuple[object, ...]]:
    return Counter(
        row for table in tables for row in zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True)
    )


@pytest.mark.parametrize("most", [hash_partitions.BUCKET_BYTES, 20_000, 500])
@pytest.mark.parametrize("pending", [hash_partitions.BUFFER_BYTES, 50_000])
def test_all_rows_come_and_those_of_a_key_together(monkeypatch: pytest.MonkeyPatch, most: int, pending: int) -> None:
    monkeypatch.setattr(hash_partitions, "BUCKET_BYTES", most)
    monkeypatch.setattr(hash_partitions, "BUFFER_BYTES", pending)
    monkeypatch.setattr(hash_partitions, "BATCH_BYTES", 10_000)
    given = batches(20_000, 3000, seed=most + pending)
    found = list(whole_keys(shuffled(list(HashPartitioner(SCHEMA, 5)(iter(given)))), SCHEMA))
    assert content(found) == content(given)
    keys = [key for table in found for key in set(table["key"].to_pylist())]
    assert len(keys) == len(set(keys))
    assert (len(found) > 5) == (most < hash_partitions.BUFFER_BYTES)  # above `most` a bucket comes in parts


def test_all_rows_of_a_key_are_in_one_partition_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_partitions, "BUCKET_BYTES", 1000)
    given = batches(5000, 1, seed=1)
    (found,) = whole_keys(shuffled(list(HashPartitioner(SCHEMA, 4)(iter(given)))), SCHEMA)
    assert content([found]) == content(given)


def test_a_row_that_all_keys_need_does_not_part_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part would have the row again, and would be too large again."""
    monkeypatch.setattr(hash_partitions, "BUCKET_BYTES", 20_000)
    given = batches(100, 50, seed=1)
    columns = {"key": [EVERYWHERE], "text": ["x" * 30_000], "number": [0]}
    shared = pa.RecordBatch.from_pydict(columns, SCHEMA)
    of_bucket = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array([shared.serialize().to_pybytes()])], schema=ARROW_PARTITIONED
    )
    (found,) = whole_keys(shuffled([of_bucket, *HashPartitioner(SCHEMA, 1)(iter(given))]), SCHEMA)
    assert content([found]) == content([*given, shared])


def test_no_rows_give_no_partitions() -> None:
    assert list(HashPartitioner(SCHEMA, 4)(iter([]))) == []
    assert list(whole_keys(iter([]), SCHEMA)) == []
