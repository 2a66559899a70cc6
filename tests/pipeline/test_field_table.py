"""Field tables and arrays of the classic family: bytes written by hand, by pika and by py-amqp."""

from __future__ import annotations

import io
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import amqp.serialization
import numpy as np
import pika.data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from codec.compiler.limits import LIMITS
from codec.names import CLASSIC_VERSIONS
from codec.protocol import classic_tables as kinds
from codec.protocol.classic_field_table import entries_fit, put_nested
from codec.protocol.classic_tables import classic_tables, tag_kinds
from codec.protocol.versions import VERSIONS
from codec.variant import MALFORMED, METADATA, OK, TOO_DEEP, VALUE, begin, finish, new_writer

pytestmark = pytest.mark.usefixtures("plain_kernels")
every_version = pytest.mark.parametrize("version", CLASSIC_VERSIONS)


def shortstr(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long_prefixed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def entry(name: bytes, tag: bytes, value: bytes) -> bytes:
    return shortstr(name) + tag + value


def decoded(data: bytes, kind: int = kinds.TABLE, version: str = "0-9-1") -> tuple[int, int, Any]:
    """Code, offset and what Spark reads, of the entries `data` without their length."""
    w = new_writer(max(1 << 14, 8 * len(data)), 1 << 14, max(1024, len(data)))
    buf = np.frombuffer(bytearray(b"\xce" + data + b"\xce"), np.uint8)
    begin(w)
    code, at = put_nested(w, buf, 1, 1 + len(data), kind, classic_tables().tag_kind[VERSIONS.index(version)])
    assert finish(w) == OK
    value, metadata = w.value[: int(w.positions[VALUE])], w.metadata[: int(w.positions[METADATA])]
    return code, at - 1, VariantUtils.to_python(bytes(value), bytes(metadata))


def table_of(data: bytes, version: str = "0-9-1") -> Any:
    """What is read of a table that must be well formed."""
    code, at, table = decoded(data, version=version)
    assert (code, at) == (OK, len(data))
    return table


def test_a_tag_is_read_as_in_the_specification_where_only_that_fits() -> None:
    """`s` in 0-9-1: every broker and client writes 16 bits, the document prints a short string."""
    short = entry(b"a", b"s", shortstr(b"abc")) + entry(b"b", b"s", shortstr(b"")) + entry(b"c", b"t", b"\x01")
    assert table_of(short) == {"a": "abc", "b": "", "c": True}
    nested = entry(b"n", b"F", long_prefixed(short)) + entry(b"z", b"V", b"")
    assert table_of(nested) == {"n": {"a": "abc", "b": "", "c": True}, "z": None}
    assert table_of(entry(b"a", b"s", b"\x01x")) == {"a": 0x0178}  # both readings fit: that of practice
    assert table_of(entry(b"a", b"s", b"\x00\x05") + entry(b"b", b"s", b"\x01\x00")) == {"a": 5, "b": 256}
    code, at, _ = decoded(entry(b"a", b"s", b"\x09abc"))  # neither does
    assert (code, at) == (MALFORMED, 5)


# One line a tag: bytes by hand, and what they mean (arithmetic where it is not plain).
TAGS: list[tuple[str, bytes, Any]] = [
    ("t", b"\x00", False),
    ("t", b"\x01", True),
    ("t", b"\x02", True),
    ("b", b"\xff", -1),
    ("b", b"\x7f", 127),
    ("B", b"\xff", 255),
    ("s", b"\xff\xfe", -2),
    ("u", b"\xff\xfe", 65534),
    ("I", b"\xff\xff\xff\xfd", -3),
    ("I", b"\x7f\xff\xff\xff", 2147483647),
    ("i", b"\xff\xff\xff\xfd", 4294967293),
    ("L", b"\xff" * 8, -1),
    ("L", b"\x00\x00\x00\x01" + b"\x00" * 4, 1 << 32),
    ("l", b"\x80" + b"\x00" * 7, -(1 << 63)),
    ("f", b"\x3f\xc0\x00\x00", 1.5),  # sign 0, exponent 127, fraction .1: 1.1 binary
    ("d", b"\xc0\x04" + b"\x00" * 6, -2.5),
    ("D", b"\x02\x00\x00\x01\x3a", Decimal("3.14")),  # 0x013a = 314
    ("D", b"\x01\xff\xff\xff\xf1", Decimal("-1.5")),  # -15, tenths
    ("D", b"\x26\x00\x00\x00\x07", Decimal("7E-38")),  # 0x26 = 38
    ("D", b"\x27\x00\x00\x00\x07", {"scale": 39, "value": 7}),  # more than DECIMAL(38) holds
    ("D", b"\xff\xff\xff\xff\xff", {"scale": 255, "value": -1}),
    ("S", b"\x00\x00\x00\x03abc", "abc"),
    ("S", b"\x00\x00\x00\x02\xc3\xa9", "é"),
    ("S", b"\x00\x00\x00\x02\xc3\x28", b"\xc3\x28"),  # not UTF-8
    ("S", b"\x00\x00\x00\x00", ""),
    ("x", b"\x00\x00\x00\x03abc", b"abc"),
    ("c", b"\x00\x00\x00\x02ab", "ab"),
    ("C", b"\x00\x00\x00\x02ab", "ab"),
    ("k", b"A", "A"),
    ("k", b"\xe9", b"\xe9"),
    (
        "T",
        b"\x00\x00\x00\x00\x65\x54\x0f\x00",
        datetime(2023, 11, 15, 0, 21, 20, tzinfo=UTC),
    ),  # 0x65540f00 = 1700007680
    ("T", b"\x00" * 8, datetime(1970, 1, 1, tzinfo=UTC)),
    ("T", struct.pack(">Q", 253402300799), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("T", struct.pack(">Q", 253402300800), 253402300800),  # year 10000
    ("T", struct.pack(">Q", 1700000000000), 1700000000000),  # milliseconds, as some Qpid clients write
    ("T", b"\xff" * 8, Decimal((1 << 64) - 1)),
    ("V", b"", None),
    ("F", b"\x00\x00\x00\x00", {}),
    ("F", b"\x00\x00\x00\x04\x01at\x01", {"a": True}),
    ("A", b"\x00\x00\x00\x00", []),
    ("A", b"\x00\x00\x00\x04Vb\xffV", [None, -1, None]),
]


@every_version
@pytest.mark.parametrize(
    ("tag", "wire_bytes", "expected"), TAGS, ids=[f"{tag}-{wire_bytes.hex()}" for tag, wire_bytes, _ in TAGS]
)
def test_every_tag_by_hand(version: str, tag: str, wire_bytes: bytes, expected: Any) -> None:
    data = entry(b"before", b"t", b"\x01") + entry(b"key", tag.encode(), wire_bytes) + entry(b"after", b"t", b"\x00")
    table = table_of(data, version)
    assert table == {"before": True, "key": expected, "after": False}
    assert type(table["key"]) is type(expected)
    assert decoded(tag.encode() + wire_bytes, kinds.ARRAY, version) == (OK, 1 + len(wire_bytes), [expected])


@every_version
def test_every_type_tag_is_tested(version: str) -> None:
    printed_only = {"U"} & set(tag_kinds(version))  # in the 0-9-1 text, used by nobody
    assert {tag for tag, _, _ in TAGS} | printed_only == set(tag_kinds(version))


def test_the_tag_that_only_the_text_knows() -> None:
    assert table_of(entry(b"k", b"U", b"\xff\xfe")) == {"k": -2}  # 0-9-1: U is short-int
    assert decoded(entry(b"k", b"U", b"\xff\xfe"), version="0-8") == (MALFORMED, 2, {})


# Encoders of others

names = st.text(min_size=0, max_size=20).filter(lambda name: len(name.encode()) <= 128)
seconds = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)


def values_for(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    nested = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
    )
    return st.dictionaries(names, nested, max_size=8)


common = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-1000, 1000)
    | st.text(max_size=80)
    | seconds
    | st.none()
    | st.decimals(Decimal(-(2**31)), Decimal(2**31 - 1), places=0)
)


@settings(max_examples=150, deadline=None)
@given(values_for(common | st.binary(max_size=80)))
def test_what_pika_writes(table: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, table)
    assert table_of(b"".join(pieces)[4:]) == table


@settings(max_examples=150, deadline=None)
@given(values_for(common | st.floats(allow_nan=False)))
def test_what_py_amqp_writes(table: dict[str, Any]) -> None:
    out = io.BytesIO()
    amqp.serialization._write_table(table, out.write, [])
    assert table_of(out.getvalue()[4:]) == table


@settings(deadline=None)
@given(st.decimals(Decimal("-21474.83648"), Decimal("21474.83647"), places=5))
def test_decimals_of_both_encoders_are_signed(number: Decimal) -> None:
    out = io.BytesIO()
    amqp.serialization._write_table({"n": number}, out.write, [])
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, {"n": number})
    assert table_of(out.getvalue()[4:])["n"] == number
    assert table_of(b"".join(pieces)[4:])["n"] == number


@pytest.mark.parametrize("tag", ["t", "b", "B", "u", "I", "i", "L", "l", "d", "S", "D", "V", "F", "A"])
def test_tags_mean_what_pika_and_py_amqp_read(tag: str) -> None:
    for wire_bytes in [wire_bytes for name, wire_bytes, _ in TAGS if name == tag]:
        if tag == "D" and wire_bytes[0] > 38:  # a scale that is ours to show in another way
            continue
        data = entry(b"k", tag.encode(), wire_bytes)
        ours = table_of(data)
        if tag != "d":  # which pika rounds to an integer
            assert pika.data.decode_table(long_prefixed(data), 0)[0] == ours
        if not isinstance(ours["k"], bytes | dict) or tag == "F":
            assert amqp.serialization.loads("F", long_prefixed(data), 0)[0] == [ours]


# Names


def test_names_that_are_not_utf8_are_shown_with_backslashes() -> None:
    data = entry(b"caf\xe9", b"t", b"\x01") + entry(b"a\\\xff", b"t", b"\x00") + entry(b"a\\b", b"V", b"")
    assert table_of(data) == {"caf\\xe9": True, "a\\x5c\\xff": False, "a\\b": None}


def test_a_name_of_255_bad_bytes() -> None:
    assert table_of(entry(b"\xff" * 255, b"V", b"")) == {"\\xff" * 255: None}


def test_of_equal_names_the_last_wins() -> None:
    assert table_of(entry(b"k", b"b", b"\x01") + entry(b"x", b"V", b"") + entry(b"k", b"b", b"\x02")) == {
        "k": 2,
        "x": None,
    }


def test_an_empty_name() -> None:
    assert table_of(entry(b"", b"b", b"\x01")) == {"": 1}


# Damage

SOUND = (
    entry(b"a", b"t", b"\x01")
    + entry(b"list", b"A", long_prefixed(b"I\x00\x00\x00\x05S" + long_prefixed(b"text")))
    + entry(b"deep", b"F", long_prefixed(entry(b"x", b"F", long_prefixed(entry(b"y", b"d", bytes(8))))))
    + entry(b"z", b"V", b"")
)
MEANING = {"a": True, "list": [5, "text"], "deep": {"x": {"y": 0.0}}, "z": None}


def test_a_valid_table() -> None:
    assert table_of(SOUND) == MEANING


@pytest.mark.parametrize("size", range(len(SOUND)))
def test_a_table_cut_short_keeps_what_came_before(size: int) -> None:
    code, at, table = decoded(SOUND[:size])
    # where an entry ends (a: 2 + 1 + 1; list: 5 + 1 + 4 + 14; deep: 5 + 1 + 4 + 18): entries so far
    ends = {4: 1, 28: 2, 56: 3}
    complete = max((count for end, count in ends.items() if end <= size), default=0)
    assert table == dict(list(MEANING.items())[:complete])
    if size in (0, *ends):
        assert (code, at) == (OK, size)
    else:
        assert code == MALFORMED
        assert 0 <= at <= size


def test_an_unknown_tag_stops_the_table() -> None:
    data = entry(b"a", b"b", b"\x05") + entry(b"b", b"?", b"\x00") + entry(b"c", b"b", b"\x06")
    assert decoded(data) == (MALFORMED, 4 + 1 + 1, {"a": 5})  # offset of the tag byte


def test_an_unknown_tag_in_a_nested_table_preserves_every_level() -> None:
    inner = b"b\x01" + b"?" + b"b\x02"
    data = entry(b"a", b"b", b"\x05") + entry(b"l", b"A", long_prefixed(b"V" + b"A" + long_prefixed(inner))) + b"rest"
    code, at, table = decoded(data)
    # 4 (entry a), 3 + 4 (name, tag, length of l), 1 (V), 5 (tag, length), 2 (b 1)
    assert (code, at, table) == (MALFORMED, 4 + 7 + 1 + 5 + 2, {"a": 5, "l": [None, [1]]})


@pytest.mark.parametrize("length", [3, 100, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("tag", [b"S", b"x", b"A", b"F", b"c"])
def test_a_length_beyond_the_table_is_malformed(tag: bytes, length: int) -> None:
    data = entry(b"a", b"b", b"\x05") + entry(b"b", tag, struct.pack(">I", length) + b"xx")
    code, _, table = decoded(data)
    assert (code, table) == (MALFORMED, {"a": 5})


def test_a_nested_table_does_not_read_past_its_own_length() -> None:
    nested = entry(b"x", b"I", b"\x00\x00")  # two bytes of four, though more follow outside
    code, _, table = decoded(entry(b"t", b"F", long_prefixed(nested)) + entry(b"u", b"b", b"\x01"))
    assert (code, table) == (MALFORMED, {"t": {}})


def nest(depth: int, tag: bytes) -> bytes:
    """The entries of `depth` containers, one in the other."""
    data = b""
    for _ in range(depth - 1):
        data = (entry(b"k", tag, long_prefixed(data))) if tag == b"F" else tag + long_prefixed(data)
    return data


@pytest.mark.parametrize(("tag", "kind"), [(b"F", kinds.TABLE), (b"A", kinds.ARRAY)])
def test_nesting_up_to_the_limit(tag: bytes, kind: int) -> None:
    data = nest(LIMITS.nesting_depth, tag)
    code, at, thing = decoded(data, kind)
    depth = 1
    while thing:
        thing = thing["k"] if kind == kinds.TABLE else thing[0]
        depth += 1
    assert (code, at, depth) == (OK, len(data), LIMITS.nesting_depth)


@pytest.mark.parametrize(("tag", "kind"), [(b"F", kinds.TABLE), (b"A", kinds.ARRAY)])
@pytest.mark.parametrize("beyond", [1, 1000])
def test_nesting_beyond_the_limit(tag: bytes, kind: int, beyond: int) -> None:
    code, _, thing = decoded(nest(LIMITS.nesting_depth + beyond, tag), kind)
    depth = 1
    while thing:
        thing = thing["k"] if kind == kinds.TABLE else thing[0]
        depth += 1
    assert (code, depth) == (TOO_DEEP, LIMITS.nesting_depth)


def test_an_array_of_values_without_bytes_is_as_long_as_its_tags() -> None:
    assert decoded(b"V" * 5000, kinds.ARRAY) == (OK, 5000, [None] * 5000)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([kinds.TABLE, kinds.ARRAY]), st.sampled_from(CLASSIC_VERSIONS))
def test_any_bytes_give_a_value(data: bytes, kind: int, version: str) -> None:
    code, at, thing = decoded(data, kind, version)
    assert isinstance(thing, dict if kind == kinds.TABLE else list)
    assert 0 <= at <= len(data)
    assert code in (OK, MALFORMED, TOO_DEEP)
    assert code != OK or at == len(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(0, 255))
def test_one_byte_changed_gives_a_value(index: int, byte: int) -> None:
    data = bytearray(SOUND)
    data[index] = byte
    code, at, thing = decoded(bytes(data))
    assert isinstance(thing, dict)
    assert code != OK or at == len(data)


def test_entries_that_fit() -> None:
    tags = classic_tables().tag_kind[VERSIONS.index("0-9-1")]
    buf = np.frombuffer(bytearray(SOUND), np.uint8)
    ends = [size for size in range(len(SOUND) + 1) if entries_fit(buf, 0, size, tags)]
    assert ends == [0, 4, 28, 56, len(SOUND)]
