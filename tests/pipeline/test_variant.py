"""The VARIANT writer, read back by Spark's own reader (pyspark.sql.variant_utils)."""

from __future__ import annotations

import math
import os
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import variant_writing
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from codec import variant as v
from codec.compiler.limits import LIMITS
from codec.cursor import SHORT, exceeds_i64, i64, is_utf8, signed, u8, u16, u32
from codec.variant import writer as cells
from codec.variant.containers import PROBES, key_hash

pytestmark = pytest.mark.usefixtures("plain_kernels")


def spark_value(value: bytes, metadata: bytes) -> Any:
    """What Spark's own reader makes of a value (it is annotated as text)."""
    return VariantUtils.to_python(value, metadata)


def raw_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def both_ways(thing: Any) -> tuple[bytes, bytes]:
    """The value and metadata of a Python object: by `encode`, and the same by the kernels."""
    encoded = v.encode(thing)
    assert variant_writing.written(thing) == encoded
    return encoded


def value_and_metadata(w: v.Writer) -> tuple[bytes, bytes]:
    """The value and metadata written last."""
    p = w.positions
    return (
        bytes(w.value[int(p[cells.VALUE_FROM]) : int(p[v.VALUE])]),
        bytes(w.metadata[int(p[cells.METADATA_FROM]) : int(p[v.METADATA])]),
    )


def written(put: Any, *arguments: Any) -> Any:
    """What Spark reads of a value that is the one scalar put by `put`."""
    w = v.new_writer(1 << 17)
    v.begin(w)
    put(w, *arguments)
    assert v.finish(w) == v.OK
    return spark_value(*value_and_metadata(w))


def put_key(w: v.Writer, name: bytes) -> None:
    v.key(w, raw_bytes(name), 0, len(name))


# Cursor


def test_reads_are_big_endian_and_stop_at_the_end() -> None:
    buf = raw_bytes(bytes(range(0xF0, 0x100)))
    assert (u8(buf, 0, 16), u16(buf, 0, 16), u32(buf, 0, 16)) == (0xF0, 0xF0F1, 0xF0F1F2F3)
    assert (u8(buf, 4, 4), u16(buf, 3, 4), u32(buf, 1, 4)) == (SHORT, SHORT, SHORT)
    assert i64(buf, 0, 8) == int.from_bytes(bytes(range(0xF0, 0xF8)), "big", signed=True)
    assert i64(buf, 1, 8) == 0


def test_unsigned_64_bits_above_the_signed_range_are_distinguished() -> None:
    assert exceeds_i64(i64(raw_bytes(b"\x80" + bytes(7)), 0, 8))
    assert not exceeds_i64(i64(raw_bytes(b"\x7f" + b"\xff" * 7), 0, 8))


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), st.sampled_from([8, 16, 32]))
def test_signed_is_twos_complement(number: int, bits: int) -> None:
    pattern = number % (1 << bits)
    assert signed(pattern, bits) == int.from_bytes(pattern.to_bytes(bits // 8, "big"), "big", signed=True)


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=12), st.text(max_size=6).map(str.encode), st.binary(max_size=4).map(lambda b: b"\xf0" + b)
    )
)
def test_utf8_is_valid_where_python_accepts_it(data: bytes) -> None:
    try:
        data.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert is_utf8(raw_bytes(b"\xff" + data + b"\xff"), 1, 1 + len(data)) == expected


@pytest.mark.parametrize("lead", range(0xC0, 0x100))
def test_utf8_second_byte_bounds(lead: int) -> None:
    for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
        data = bytes([lead, second, 0x80, 0x80][: 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4])
        try:
            data.decode()
            expected = True
        except UnicodeDecodeError:
            expected = False
        assert is_utf8(raw_bytes(data), 0, len(data)) == expected, data


# Scalars


@pytest.mark.parametrize(
    ("number", "size"),
    [
        *((0, 2), (127, 2), (-128, 2), (128, 3), (-129, 3), (32767, 3), (-32768, 3), (32768, 5), (-32769, 5)),
        *((2**31 - 1, 5), (-(2**31), 5), (2**31, 9), (-(2**31) - 1, 9), (2**63 - 1, 9), (-(2**63), 9)),
    ],
)
def test_integers_take_the_least_width(number: int, size: int) -> None:
    value, metadata = both_ways(number)
    assert len(value) == size
    assert spark_value(value, metadata) == number


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**63 + 12345])
def test_unsigned_above_int64_is_a_decimal(number: int) -> None:
    result = written(v.put_u64, number - 2**64)
    assert (type(result), result) == (Decimal, Decimal(number))


def test_unsigned_within_int64_is_an_integer() -> None:
    result = written(v.put_u64, 2**63 - 1)
    assert (type(result), result) == (int, 2**63 - 1)


@pytest.mark.parametrize("digits", ["0", "-0.1", "999999999", "1000000000", "-1E-38", "1.5", "9" * 28, f"{2**64 - 1}"])
def test_decimals_are_encoded(digits: str) -> None:
    result = spark_value(*v.encode([Decimal(digits)]))
    assert (type(result[0]), result) == (Decimal, [Decimal(digits)])
    assert v.decode(*v.encode(Decimal(digits))) == Decimal(digits)


@pytest.mark.parametrize("scale", [0, 1, 9, 10, 18, 19, 38])
@pytest.mark.parametrize("unscaled", [0, 1, -1, 999_999_999, 10**9, -(10**9), 10**18 - 1, 10**18, -(2**63), 2**63 - 1])
def test_decimals_are_exact(unscaled: int, scale: int) -> None:
    assert written(v.put_decimal, unscaled, scale) == Decimal(
        (unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale)
    )


@settings(deadline=None)
@given(st.floats(), st.floats(width=32))
def test_floats_keep_their_bits(double: float, single: float) -> None:
    for put, code, bits_code, number in ((v.put_f64, "d", "q", double), (v.put_f32, "f", "i", single)):
        bits = struct.unpack(f">{bits_code}", struct.pack(f">{code}", number))[0]
        result = written(put, bits)
        assert result == number or (math.isnan(result) and math.isnan(number))


def test_timestamp_is_microseconds_utc() -> None:
    assert written(v.put_timestamp_us, 1_700_000_000_123_456) == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 255, 256, 70000])
def test_strings_and_binary_of_any_length(size: int) -> None:
    data = b"x" * size
    assert written(v.put_string, raw_bytes(data), 0, size) == data.decode()
    assert written(v.put_binary, raw_bytes(data), 0, size) == data
    header = 1 if size <= 63 else 5
    assert len(both_ways(data.decode())[0]) == header + size


TEXTS = [b"", b"plain", "größer €".encode(), b"\xff\xfe", b"a" * 70 + b"\xe9", b"ab\xc3"]


@pytest.mark.parametrize("data", TEXTS)
def test_bytes_are_a_string_when_they_are_utf8_else_binary(data: bytes) -> None:
    result = written(v.put_bytes, raw_bytes(b"??" + data + b"?"), 2, 2 + len(data))
    try:
        assert result == data.decode()
    except UnicodeDecodeError:
        assert result == data


@pytest.mark.parametrize("data", [*TEXTS, b"C:\\\xe9", b"C:\\"])
def test_text_is_a_string_with_odd_bytes_escaped(data: bytes) -> None:
    """As Python's error handler does it; backslashes too, where there are such bytes."""
    result = written(v.put_text, raw_bytes(b"??" + data + b"?"), 2, 2 + len(data))
    try:
        assert result == data.decode()
    except UnicodeDecodeError:
        assert result == data.replace(b"\\", rb"\x5c").decode("utf-8", "backslashreplace")


def test_null_and_booleans() -> None:
    assert [written(v.put_null), written(v.put_bool, True), written(v.put_bool, False)] == [None, True, False]


# Containers

things = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=70)
    | st.binary(max_size=70)
    | st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=40,
)


@settings(max_examples=150, deadline=None)
@given(things)
def test_spark_reads_what_was_encoded(thing: Any) -> None:
    value, metadata = both_ways(thing)
    assert spark_value(value, metadata) == thing
    assert v.decode(value, metadata) == thing


@pytest.mark.parametrize("count", [0, 1, 11, 12, 13, 24, 25, 255, 256, 257, 1000])
def test_objects_and_arrays_of_any_count(count: int) -> None:
    thing = {"o": {f"key {i * 7919 % count}": i for i in range(count)}, "a": list(range(count))}
    assert spark_value(*both_ways(thing)) == thing


@pytest.mark.parametrize("size", [200, 250, 255, 256, 65_000, 65_535, 65_536, 70_000])
def test_offsets_of_any_width(size: int) -> None:
    thing = {"b": "x" * size, "a": ["y" * size, 1], "c": None}
    assert spark_value(*both_ways(thing)) == thing


def test_fields_are_sorted_by_the_bytes_of_their_keys() -> None:
    names = ["b", "a", "", "ab", "B", "é", "z", "aa", "€", "a\x00", *(f"k{i}" for i in range(20))]
    value, metadata = both_ways(dict.fromkeys(names))
    assert list(v.decode(value, metadata)) == sorted(names, key=str.encode)


def test_of_equal_keys_the_last_wins() -> None:
    for repeats in (2, 3, 40):
        w = v.new_writer()
        v.begin(w)
        v.begin_object(w)
        for i in range(repeats):
            for name in (b"other", b"same", b"x"):
                put_key(w, name)
                v.put_int(w, i)
        v.end_object(w)
        assert v.finish(w) == v.OK
        assert spark_value(*value_and_metadata(w)) == {"other": repeats - 1, "same": repeats - 1, "x": repeats - 1}


def test_nested_objects_share_their_keys() -> None:
    _, metadata = both_ways({"name": 1, "inner": [{"name": 2}, {"name": 3, "inner": {}}]})
    assert metadata.count(b"name") == 1
    assert metadata[1] == 2  # two keys


def test_keys_that_collide_in_the_hash_table_stay_apart() -> None:
    mask = 2 * len(v.new_writer().entry_id) - 1
    colliding = [f"k{i}" for i in range(300_000) if key_hash(raw_bytes(f"k{i}".encode()), 0, len(f"k{i}")) & mask == 77]
    names = colliding[: PROBES + 10]
    thing = {"a": {name: i for i, name in enumerate(names)}, "b": {name: -i for i, name in enumerate(names)}}
    assert len(names) > PROBES
    assert spark_value(*variant_writing.written(thing)) == thing


def test_values_follow_each_other_in_the_heaps() -> None:
    w = v.new_writer()
    for i in range(300):
        v.begin(w)
        v.begin_object(w)
        put_key(w, f"k{i % 3}".encode())
        v.put_int(w, i)
        v.end_object(w)
        assert v.finish(w) == v.OK
        assert spark_value(*value_and_metadata(w)) == {f"k{i % 3}": i}


def test_the_hash_table_survives_the_end_of_its_generations() -> None:
    w = v.new_writer()
    w.positions[cells.GENERATION] = (1 << 30) - 2
    for _ in range(4):
        v.begin(w)
        v.begin_object(w)
        put_key(w, b"a")
        v.put_null(w)
        v.end_object(w)
        assert v.finish(w) == v.OK
        assert spark_value(*value_and_metadata(w)) == {"a": None}
    assert w.positions[cells.GENERATION] == 3


# Known keys

KEY_SETS = [["zeta", "alpha", "mid"], [], ["one"]]


@pytest.mark.parametrize("present", [[0, 1, 2], [0, 2], [1], []])
@pytest.mark.parametrize("guess", [(3, 3), (0, 0), (9, 70_000)])
def test_known_keys_give_the_same_object_whatever_was_reserved(present: list[int], guess: tuple[int, int]) -> None:
    keys = v.known_keys(KEY_SETS)
    w = v.new_writer(200_000)
    v.begin(w)
    v.begin_object_of(w, *guess)
    for number in present:
        v.known_key(w, number)
        v.put_int(w, number)
    v.end_known_object(w, keys, 0)
    assert v.finish_known(w, keys, 0) == v.OK
    assert spark_value(*value_and_metadata(w)) == {KEY_SETS[0][i]: i for i in present}
    by_hand = both_ways({KEY_SETS[0][i]: i for i in present})[0]
    assert len(value_and_metadata(w)[0]) == len(by_hand)


def test_known_keys_and_others_in_one_value() -> None:
    keys = v.known_keys(KEY_SETS)
    w = v.new_writer()
    v.begin(w)
    v.begin_object_of(w, 2, 10)
    v.known_key(w, 0)
    v.put_int(w, 1)
    v.known_key(w, 2)
    v.load_known(w, keys, 0)
    v.load_known(w, keys, 0)
    v.begin_object(w)
    for name in (b"new", b"alpha"):
        put_key(w, name)
        v.put_null(w)
    v.end_object(w)
    v.end_known_object(w, keys, 0)
    assert v.finish_known(w, keys, 0) == v.OK
    value, metadata = value_and_metadata(w)
    assert spark_value(value, metadata) == {"zeta": 1, "mid": {"new": None, "alpha": None}}
    assert metadata.count(b"alpha") == 1


# Limits

SAMPLE = {"list": [1, "two", None, 3.5], "deep": {"list": b"\x00" * 40, "text": "é" * 40}, "n": 2**40}


def build_sample(w: v.Writer) -> int:
    """SAMPLE by hand."""
    v.begin(w)
    v.begin_object(w)
    put_key(w, b"list")
    v.begin_array(w)
    v.element(w)
    v.put_int(w, 1)
    v.element(w)
    v.put_string(w, raw_bytes(b"two"), 0, 3)
    v.element(w)
    v.put_null(w)
    v.element(w)
    v.put_f64(w, struct.unpack(">q", struct.pack(">d", 3.5))[0])
    v.end_array(w)
    put_key(w, b"deep")
    v.begin_object(w)
    put_key(w, b"list")
    v.put_binary(w, raw_bytes(bytes(40)), 0, 40)
    put_key(w, b"text")
    v.put_text(w, raw_bytes("é".encode() * 40), 0, 80)
    v.end_object(w)
    put_key(w, b"n")
    v.put_int(w, 2**40)
    v.end_object(w)
    return int(v.finish(w))


def test_a_full_heap_is_reported_and_never_overrun() -> None:
    expected_value, expected_metadata = both_ways(SAMPLE)
    full = 0
    for value_room in (*range(len(expected_value)), 1000):
        for metadata_room in (*range(len(expected_metadata)), 1000) if value_room == 1000 else (1000,):
            large = v.new_writer(value_room + 64, metadata_room + 64)
            w = large._replace(value=large.value[:value_room], metadata=large.metadata[:metadata_room])
            code = build_sample(w)
            assert not large.value[value_room:].any()
            assert not large.metadata[metadata_room:].any()
            if value_room == 1000 and metadata_room == 1000:
                assert (code, value_and_metadata(w)) == (v.OK, (expected_value, expected_metadata))
            else:
                assert code == v.FULL
                full += 1
                v.rollback(w)
                assert value_and_metadata(w) == (b"", b"")
    assert full == len(expected_value) + len(expected_metadata)


def test_a_writer_enlarged_until_it_fits_keeps_what_was_finished() -> None:
    w = v.new_writer(8, 8, 2)
    finished = []
    for _ in range(3):
        while build_sample(w) == v.FULL:
            w = v.enlarge(w)
        finished.append(value_and_metadata(w))
    assert finished == [both_ways(SAMPLE)] * 3
    ends = int(w.positions[v.VALUE]), int(w.positions[v.METADATA])
    assert bytes(w.value[: ends[0]]) == 3 * finished[0][0]
    assert bytes(w.metadata[: ends[1]]) == 3 * finished[0][1]


def test_a_value_above_the_limit_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = cells.VARIANT_BYTES
    assert limit == LIMITS.variant_bytes
    if not os.environ.get("COMPILE_ALL"):  # as Python the kernels copy byte by byte, for half a minute
        limit >>= 8
        monkeypatch.setattr(cells, "VARIANT_BYTES", limit)
    half = raw_bytes(bytes(limit // 2))
    w = v.new_writer(3 * len(half))
    v.begin(w)
    v.begin_array(w)
    for _ in range(2):
        v.element(w)
        v.put_binary(w, half, 0, len(half))
    v.end_array(w)
    assert v.error_code(w) == v.TOO_LARGE
    assert v.finish(w) == v.TOO_LARGE
    v.rollback(w)
    assert value_and_metadata(w) == (b"", b"")


def test_nesting_beyond_the_stack_is_too_deep() -> None:
    w = v.new_writer()
    v.begin(w)
    for _ in range(1000):
        v.begin_array(w)
        v.element(w)
    for _ in range(1000):
        v.end_array(w)
    assert v.finish(w) == v.TOO_DEEP


@pytest.mark.parametrize(
    ("thing", "error"),
    [
        (2**64, OverflowError),
        (-(2**63) - 1, OverflowError),
        (Decimal(10**38), OverflowError),
        (Decimal("1E-39"), OverflowError),
        (Decimal("1E+1"), OverflowError),
        (Decimal("NaN"), OverflowError),
        ({1, 2}, TypeError),
    ],
)
def test_what_has_no_variant_type_is_refused(thing: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        v.encode(thing)


def test_encode_of_facts() -> None:
    facts = {
        "ip": "10.0.0.1",
        "rtt": None,
        "at": datetime(2024, 2, 29, tzinfo=UTC) + timedelta(microseconds=1),
        "n": 2**63,
    }
    assert spark_value(*both_ways(facts)) == facts


@pytest.mark.parametrize("thing", [[[]] * 100, [], {}, {"": {}}, [None] * 300, {f"k{i}": [i] for i in range(300)}])
def test_containers_of_any_size_are_written_alike(thing: Any) -> None:
    assert spark_value(*both_ways(thing)) == thing


def test_a_value_of_the_deepest_nesting_and_one_deeper() -> None:
    def nested(depth: int) -> Any:
        return None if depth == 0 else [nested(depth - 1)]

    deepest = LIMITS.nesting_depth + 8
    assert v.decode(*both_ways(nested(deepest))) == nested(deepest)
    for write in (v.encode, variant_writing.written):
        with pytest.raises(ValueError, match="VARIANT"):
            write(nested(deepest + 1))
