"""Fields, elements and texts of VARIANT columns, against Python objects: what `codec.variant.encode` was given."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.variant import encode
from codec.variant.reading import ENTRIES, SLOTS
from udfs.arrow.fields import counted, elements, fields, inside, texts, values_of
from udfs.arrow.types import VARIANT

NAMES = [f"name{number}" for number in range(2 * ENTRIES)]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS = st.one_of(st.none(), st.booleans(), INT64, st.text(max_size=70))
OBJECTS = st.dictionaries(st.sampled_from(NAMES[:6]), SCALARS, max_size=6)


def column(values: list[Any]) -> pa.StructArray:
    """None is no value at all, not VARIANT's null."""
    parts = [encode(value) if value is not None else (b"", b"") for value in values]
    arrays = [pa.array([part[i] for part in parts], pa.binary()) for i in (0, 1)]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(VARIANT), mask=missing)


def of_kind(kind: str, value: Any) -> Any:
    """`value` where it is of that kind."""
    expected = {"string": str, "bigint": int, "boolean": bool}[kind]
    return value if type(value) is expected else None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), OBJECTS), min_size=1, max_size=30))
def test_fields_are_the_values_of_the_objects(rows: list[dict[str, Any] | None]) -> None:
    for kind in ("string", "bigint", "boolean"):
        found = fields(column(rows), dict.fromkeys(NAMES[:6], kind))
        for name in NAMES[:6]:
            assert found[name].to_pylist() == [of_kind(kind, (row or {}).get(name)) for row in rows]


def test_times_that_python_cannot_represent_are_null() -> None:
    """Seconds, as a property of AMQP 0-9-1 has them; a client that writes milliseconds is beyond the year 9999."""
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    rows: list[Any] = [
        {"at": 1580702706},
        {"at": int(last.timestamp())},
        {"at": int(last.timestamp()) + 1},
        {"at": 1 << 62},
    ]
    rows += [{"at": last}, {"at": -62135596800}, {"at": -62135596801}]
    expected = [datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC), last, None, None, last, datetime(1, 1, 1, tzinfo=UTC), None]
    assert fields(column(rows), {"at": "timestamp"})["at"].to_pylist() == expected


def test_more_dictionaries_than_are_remembered() -> None:
    """Dictionaries that share their slot, and those with more entries than are remembered, alternate."""
    large = {name: number for number, name in enumerate(NAMES)}
    rows = [{NAMES[number]: number, NAMES[number + 1]: -number} for number in range(SLOTS + 20)] * 2
    rows = [part for row in rows for part in (row, large)]
    found = fields(column(rows), dict.fromkeys(NAMES, "bigint"))
    for name in NAMES:
        assert found[name].to_pylist() == [row.get(name) for row in rows]


def test_dictionaries_of_one_size_and_the_same_ends_are_distinguished() -> None:
    rows = [{"abca": 1}, {"acba": 2}, {"abca": 3}, {"aaaa": 4}]
    found = fields(column(rows), {"abca": "bigint", "acba": "bigint"})
    assert found["abca"].to_pylist() == [1, None, 3, None]
    assert found["acba"].to_pylist() == [None, 2, None, None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(st.one_of(SCALARS, OBJECTS), max_size=8), OBJECTS), max_size=12))
def test_elements_are_those_of_the_arrays(rows: list[Any]) -> None:
    lists = values_of(column(rows))
    counts = counted(lists)
    found = elements(lists, counts)
    expected = [value for row in rows if isinstance(row, list) for value in row]
    assert counts.tolist() == [len(row) if isinstance(row, list) else 0 for row in rows]
    assert texts(found).to_pylist() == [value if isinstance(value, str) else None for value in expected]
    inner = fields(found, {NAMES[0]: "bigint"})[NAMES[0]].to_pylist()
    assert inner == [of_kind("bigint", value.get(NAMES[0])) if isinstance(value, dict) else None for value in expected]


def test_an_array_of_more_than_255_elements() -> None:
    lists = values_of(column([[str(number) for number in range(1000)], None, ["x"]]))
    counts = counted(lists)
    found = elements(lists, counts)
    assert counts.tolist() == [1000, 0, 1]
    assert texts(found).to_pylist() == [*map(str, range(1000)), "x"]


@pytest.mark.parametrize("seed", range(20))
def test_reading_any_bytes_stays_in_bounds(seed: int) -> None:
    """Values and dictionaries that nobody wrote; the first bytes say that they are arrays or objects."""
    rng = np.random.default_rng(seed)
    variants = [encode({"a": [1, "two", {"b": 3}], "c": "text"}), encode([[1, 2], {"a": 1}, "x" * 100])]
    values, words = [], []
    for _ in range(300):
        parts = [bytearray(part) for part in variants[rng.integers(2)]]
        for part in parts:
            for _ in range(rng.integers(0, 4)):
                part[rng.integers(len(part))] = rng.integers(256)
            del part[rng.integers(1, len(part) + 1) :]
        values.append(bytes(parts[0]))
        words.append(bytes(parts[1]))
    arrays = [pa.array(part, pa.binary()) for part in (values, words)]
    damaged = pa.StructArray.from_arrays(arrays, fields=list(VARIANT))
    lists = values_of(damaged)
    counts = counted(lists)
    found = elements(lists, counts)
    sizes = iter((found.stops - found.starts).tolist())
    for value, count in zip(values, counts, strict=True):
        assert sum(next(sizes) for _ in range(count)) <= len(value)
    texts(found)
    fields(found, {"a": "variant", "b": "bigint"})
    fields(inside(lists, "a"), {"a": "variant", "c": "string"})
    fields(damaged, {"a": "variant", "c": "string"})


def test_elements_share_the_dictionary_of_their_row() -> None:
    """Many elements under many names: each has the names at hand, and none a copy."""
    names = {f"{number:04}" * 60: number for number in range(250)}
    lists = inside(values_of(column([{"list": [None] * 60_000 + [{"name": 1}], **names}] * 2)), "list")
    counts = counted(lists)
    found = elements(lists, counts)
    assert counts.tolist() == [60_001] * 2
    assert found.metadata is lists.metadata
    numbers = fields(found, {"name": "bigint"})["name"]
    assert numbers.drop_null().to_pylist() == [1, 1]
