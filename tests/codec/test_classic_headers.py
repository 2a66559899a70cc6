"""Content headers of 0-8, 0-9 and 0-9-1: every property by hand, pika and py-amqp as encoders, damage."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import amqp
import numpy as np
import pika.spec
import pytest
from classic_support import (
    example,
    fact_table,
    header_fits,
    long_prefixed,
    properties,
    shortstr,
    tables,
    texts,
    with_padding,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.compiler.limits import LIMITS
from codec.framing.classic_frames import body_size_at
from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import classic_tables, content_classes
from codec.protocol.classic_values import check_header
from codec.protocol.versions import VERSIONS
from codec.variant import MALFORMED, OK, TOO_DEEP

pytestmark = pytest.mark.usefixtures("plain_kernels")


TEXTS = dict.fromkeys(
    ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
     "app_id", "cluster_id"), texts,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_properties_of_pika(data: st.DataObject) -> None:
    numbers = {"delivery_mode": st.integers(1, 255), "priority": st.integers(0, 255)}
    times = {"timestamp": st.integers(0, 253402300799)}
    selected: dict[str, Any] = data.draw(
        st.fixed_dictionaries({}, optional={**TEXTS, "headers": tables, **numbers, **times})
    )
    encoded = b"".join(pika.spec.BasicProperties(**selected).encode())
    if "timestamp" in selected:
        selected["timestamp"] = datetime.fromtimestamp(selected["timestamp"], UTC)
    assert properties("0-9-1", 60, encoded) == (OK, len(encoded), selected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_properties_of_py_amqp(data: st.DataObject) -> None:
    numbers = {"delivery_mode": st.integers(0, 255), "priority": st.integers(0, 255)}
    times = {"timestamp": st.integers(0, 2**31 - 1)}
    selected: dict[str, Any] = data.draw(
        st.fixed_dictionaries({}, optional={**TEXTS, "application_headers": tables, **numbers, **times})
    )
    encoded = amqp.Message("", **selected)._serialize_properties()
    expected = {key.replace("application_", ""): value for key, value in selected.items()}
    if "timestamp" in selected:
        expected["timestamp"] = datetime.fromtimestamp(selected["timestamp"], UTC)
    assert properties("0-8", 60, encoded) == (OK, len(encoded), expected)


# Content headers


def test_no_properties() -> None:
    assert properties("0-9-1", 60, b"\x00\x00") == (OK, 2, {})


@pytest.mark.parametrize("version", CLASSIC_VERSIONS)
def test_every_property_of_every_class(version: str) -> None:
    by_name = {c["name"]: c for c in fact_table(version)["classes"]}
    for of_class in content_classes(version):
        described = by_name[of_class.name]["properties"]
        for turn in (0, 1):
            data, meaning = example(described, turn)
            flags = sum(1 << field["flag_bit"] for field in described)
            data = struct.pack(">H", flags) + data
            assert properties(version, of_class.class_id, data) == (OK, len(data), meaning)


def test_a_second_flag_word_without_properties() -> None:
    data = struct.pack(">HH", 0x1001, 0) + b"\x02"
    assert properties("0-9-1", 60, data) == (OK, 5, {"delivery_mode": 2})


def test_a_property_of_a_second_flag_word_is_undefined() -> None:
    data = struct.pack(">HH", 0x1001, 0x8000) + b"\x02\x03abc"
    assert properties("0-9-1", 60, data) == (MALFORMED, 5, {"delivery_mode": 2})
    assert not header_fits("0-9-1", 60, data)


def test_flag_words_that_never_end() -> None:
    assert properties("0-9-1", 60, b"\x00\x01" * 500) == (MALFORMED, 0, {})


def test_an_undefined_flag_stops_the_properties() -> None:
    data = struct.pack(">H", 0x8000 | 0x0002) + shortstr(b"text/plain") + b"xyz"  # bit 1 of basic is undefined
    assert properties("0-9-1", 60, data) == (MALFORMED, 13, {"content_type": "text/plain"})


def test_properties_cut_short_or_too_long() -> None:
    data = struct.pack(">H", 0x9000) + shortstr(b"text/plain") + b"\x02"
    for size in range(len(data)):
        assert properties("0-9-1", 60, data[:size])[0] == MALFORMED
        assert not header_fits("0-9-1", 60, data[:size])
    assert not header_fits("0-9-1", 60, data + b"!")
    assert properties("0-9-1", 60, data + b"!") == (
        MALFORMED,
        len(data),
        {"content_type": "text/plain", "delivery_mode": 2},
    )


@pytest.mark.parametrize("class_id", [0, 10, 59, 127, 128, 65535])
def test_a_class_without_content_has_no_properties(class_id: int) -> None:
    assert properties("0-9-1", class_id, b"\x80\x00\x01a") == (MALFORMED, 0, {})
    assert not header_fits("0-9-1", class_id, b"\x00\x00")


def test_a_header_with_a_weight_is_not_valid() -> None:
    t, version = classic_tables(), VERSIONS.index("0-9-1")
    assert check_header(with_padding(struct.pack(">HHQH", 60, 0, 5, 0)), 3, 17, t, version)
    assert not check_header(with_padding(struct.pack(">HHQH", 60, 1, 5, 0)), 3, 17, t, version)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([60, 70, 80, 110, 120]), st.binary(max_size=80))
def test_any_bytes_give_properties(class_id: int, data: bytes) -> None:
    code, at, found = properties("0-8", class_id, data)
    assert isinstance(found, dict)
    assert code != OK or at == len(data)


BROKEN_ENTRY = shortstr(b"b") + b"?"  # no version has this tag: how long its value is, nobody knows


@pytest.mark.parametrize(
    ("entries", "table", "where"),
    [
        (
            shortstr(b"a") + b"I" + bytes(4) + BROKEN_ENTRY,
            {"a": 0},
            7 + 2,
        ),  # behind the first entry (2 + 1 + 4) and a name
        (BROKEN_ENTRY + b"whatever", {}, 2),
        (shortstr(b"a") + b"I" + bytes(3), {}, 2),  # the table ends inside of a number
        (b"\xffabc", {}, 0),  # a name that is longer than the table
        (shortstr(b"n") + b"F" + long_prefixed(BROKEN_ENTRY), {"n": {}}, 7 + 2),
    ],
)
def test_fields_after_a_broken_table_are_read(entries: bytes, table: dict[str, Any], where: int) -> None:
    """The table's length says where it ends (0-9-1, 4.2.5.5). Flags: content-type 15, headers 13, delivery-mode 12,
    priority 11, message-id 7 (4.2.6.1: the first property is the highest bit)."""
    flags = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1 << 7
    before = struct.pack(">H", flags) + shortstr(b"text/plain")
    data = before + long_prefixed(entries) + b"\x02\x09" + shortstr(b"m-1")
    expected = {
        "content_type": "text/plain", "headers": table, "delivery_mode": 2, "priority": 9, "message_id": "m-1",
    }  # fmt: skip
    assert properties("0-9-1", 60, data) == (MALFORMED, len(before) + 4 + where, expected)


def test_fields_after_a_table_that_is_nested_too_deep_are_read() -> None:
    entries = b""
    for _ in range(LIMITS.nesting_depth + 1):
        entries = shortstr(b"t") + b"F" + long_prefixed(entries)
    data = struct.pack(">H", 1 << 13 | 1 << 12) + long_prefixed(entries) + b"\x02"
    code, _, found = properties("0-9-1", 60, data)
    assert (code, found["delivery_mode"]) == (TOO_DEEP, 2)


def test_a_property_that_does_not_fit_after_a_broken_table_ends_the_properties() -> None:
    data = struct.pack(">H", 1 << 13 | 1 << 12 | 1 << 7) + long_prefixed(BROKEN_ENTRY) + b"\x02" + b"\x09m-1"
    assert properties("0-9-1", 60, data) == (MALFORMED, 8, {"headers": {}, "delivery_mode": 2})


def test_a_body_size_is_exact_beyond_53_bits() -> None:
    data = np.frombuffer(bytearray((2**62 + 1).to_bytes(8, "big")), np.uint8)
    assert body_size_at(data, 0) == 2**62 + 1
