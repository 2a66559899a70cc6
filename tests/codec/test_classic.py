"""Methods of 0-8, 0-9 and 0-9-1: an example for every method, pika as encoder, damage."""

from __future__ import annotations

import inspect
import os
import struct
from typing import Any

import pika.spec
import pytest
from classic_support import (
    BY_TYPE,
    SAMPLES,
    TABLE,
    TABLE_READ,
    arguments,
    described_methods,
    example,
    long_prefixed,
    method_fits,
    read,
    shortstr,
    with_padding,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import classic_tables, methods
from codec.protocol.classic_values import classify_method, decode_arguments
from codec.protocol.versions import VERSIONS
from codec.variant import FULL, MALFORMED, METADATA, OK, TOO_LARGE, VALUE, enlarge, new_writer, rollback, writer

pytestmark = pytest.mark.usefixtures("plain_kernels")

EVERY_METHOD = [(version, name) for version in CLASSIC_VERSIONS for name, _ in described_methods(version)]


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize(("version", "name"), EVERY_METHOD, ids=[f"{v}-{n}" for v, n in EVERY_METHOD])
def test_every_method_of_the_fact_tables(version: str, name: str, turn: int) -> None:
    described = dict(described_methods(version))[name]
    data, meaning = example(described["fields"], turn)
    assert arguments(version, name, data) == (OK, len(data), meaning)


@pytest.mark.parametrize("version", CLASSIC_VERSIONS)
def test_examples_reach_every_method_that_is_decoded(version: str) -> None:
    reached = {name for v, name in EVERY_METHOD if v == version}
    borrowed = {method.name for method in methods(version)} - reached
    others = {name for v, name in EVERY_METHOD if v != version}
    assert borrowed <= others  # methods of other versions' tables, whose examples run above
    for name in borrowed:
        origin = next(v for v in ("0-9-1", "0-9") if (v, name) in EVERY_METHOD)
        data, meaning = example(dict(described_methods(origin))[name]["fields"], 0)
        assert arguments(version, name, data) == (OK, len(data), meaning)


# Methods of 0-9-1 that bear a secret, and how many fields they have before it.
FIRST_SECRET = {"connection.start-ok": 2, "connection.secure": 0, "connection.secure-ok": 0} | {
    "connection.update-secret": 0
}


@pytest.mark.parametrize(("version", "name"), [case for case in EVERY_METHOD if case[0] == "0-9-1"])
def test_a_method_cut_short_keeps_the_fields_before(version: str, name: str) -> None:
    described = dict(described_methods(version))[name]
    data, meaning = example(described["fields"], 1)
    for size in range(len(data)):
        code, at, read = arguments(version, name, data[:size])
        assert code == MALFORMED
        assert not method_fits(version, name, data[:size])
        assert 0 <= at <= size
        assert all(meaning[key] == value for key, value in read.items())
    before_secret = list(meaning)[: FIRST_SECRET.get(name)]
    code, at, read = arguments(version, name, data + b"\x00")
    assert (code, read) == (MALFORMED, {key: meaning[key] for key in before_secret})
    assert at == len(data) or name in FIRST_SECRET
    assert not method_fits(version, name, data + b"\x00")


# pika


@pytest.mark.parametrize("number", pika.spec.methods, ids=lambda number: pika.spec.methods[number].NAME)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_methods_of_pika(number: int, data: st.DataObject) -> None:
    version = "0-9-1"
    of_method = pika.spec.methods[number]
    name = next(m.name for m in methods(version) if (m.class_id << 16 | m.method_id) == number)
    described = dict(described_methods(version))[name]
    parameters = list(inspect.signature(of_method.__init__).parameters)[1:]
    assert len(parameters) == len(described["fields"])
    values: dict[str, Any] = {
        p: data.draw(BY_TYPE[f["type"]]) for p, f in zip(parameters, described["fields"], strict=True)
    }
    if "mechanism" in values:
        values["mechanism"] = "PLAIN"
    if "locale" in values and not values.get("response", "x"):  # what may be the response is not shown
        values["locale"] = "en_US"
    if "reason" in values and not values.get("new_secret", "x"):
        values["reason"] = "new"
    encoded = b"".join(of_method(**values).encode())
    ours = {"nowait": "no_wait", "global_qos": "global"}
    expected = {ours.get(p, p): value for p, value in values.items() if p not in ("response", "new_secret")}
    if "challenge" in expected:
        expected["challenge_size"] = len(expected.pop("challenge").encode())
    for behind_secret in {"locale", "reason"} & expected.keys() if name in FIRST_SECRET else ():
        if len(expected[behind_secret].encode()) > 31 or min(expected[behind_secret], default=" ") < " ":
            del expected[behind_secret]
    code, at, decoded = arguments(version, name, encoded)
    decoded.pop("user", None)
    assert (code, at, decoded) == (OK, len(encoded), expected)


# Fields with rules of their own


def test_optional_trailing_arguments_of_consume_in_0_8() -> None:
    fixed = struct.pack(">H", 0) + shortstr(b"q") + shortstr(b"tag") + b"\x02"
    meaning = {
        "ticket": 0,
        "queue": "q",
        "consumer_tag": "tag",
        "no_local": False,
        "no_ack": True,
        "exclusive": False,
        "no_wait": False,
    }
    assert arguments("0-8", "basic.consume", fixed) == (OK, len(fixed), meaning)
    with_table = fixed + TABLE
    expected = {**meaning, "arguments": TABLE_READ}
    assert arguments("0-8", "basic.consume", with_table) == (OK, len(with_table), expected)
    assert arguments("0-8", "basic.consume", fixed + b"\x00")[0::2] == (MALFORMED, meaning)


def test_inline_content_and_references_of_0_9() -> None:
    fields = dict(described_methods("0-9"))["message.transfer"]["fields"]
    data, meaning = example(fields, 0)
    body = len(SAMPLES["content"][(len(fields) - 1) % 2][0])
    by_reference = data[:-body] + b"\x01" + long_prefixed(b"ref-1")
    del meaning["body"]
    assert arguments("0-9", "message.transfer", by_reference) == (
        OK,
        len(by_reference),
        {**meaning, "body_reference": "ref-1"},
    )


def test_a_table_that_stops_in_the_middle_is_shown_up_to_there() -> None:
    broken = long_prefixed(shortstr(b"a") + b"t\x01" + shortstr(b"b") + b"?\x00")
    data = struct.pack(">H", 0) + shortstr(b"q") + b"\x01" + broken
    code, at, fields = arguments("0-9-1", "queue.declare", data)
    assert (code, at) == (MALFORMED, len(data) - 2)  # offset of the tag nobody knows
    assert fields["arguments"] == {"a": True}
    assert (fields["queue"], fields["passive"]) == ("q", True)


@pytest.mark.parametrize(
    ("class_id", "method_id"), [(60, 41), (61, 40), (0, 0), (127, 543), (65535, 65535), (60, 544), (128, 10)]
)
def test_undefined_methods(class_id: int, method_id: int) -> None:
    payload = struct.pack(">HH", class_id, method_id)
    for version in CLASSIC_VERSIONS:
        assert classify_method(with_padding(payload), 3, 7, classic_tables(), VERSIONS.index(version)) == -1


def test_a_payload_shorter_than_class_and_method_id_is_not_a_method() -> None:
    payload = struct.pack(">HH", 60, 40)
    for size in range(4):
        assert classify_method(with_padding(payload), 3, 3 + size, classic_tables(), VERSIONS.index("0-9-1")) == -1


# Room


def test_a_method_that_does_not_fit_into_full_heaps_is_written_again() -> None:
    t, version = classic_tables(), VERSIONS.index("0-9-1")
    data, meaning = example(dict(described_methods("0-9-1"))["queue.declare"]["fields"], 1)
    payload = struct.pack(">HH", 50, 10) + data
    buf, end = with_padding(payload), 3 + len(payload)
    index = classify_method(buf, 3, end, t, version)
    w, fulls = new_writer(1, 1, 2), 0
    while decode_arguments(buf, 7, end, t, version, index, w)[0] == FULL:
        rollback(w)
        assert (w.positions[VALUE], w.positions[METADATA]) == (0, 0)
        w = enlarge(w)
        fulls += 1
    assert read(w) == meaning
    assert fulls > 5


@pytest.mark.skipif("COMPILE_ALL" in os.environ, reason="compiled kernels have the limit as a constant")
def test_a_value_above_the_limit_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "VARIANT_BYTES", 1 << 16)
    t, version = classic_tables(), VERSIONS.index("0-9-1")
    # 3 bytes of VARIANT or more for each byte here: 1 of value, 2 of offset
    table = long_prefixed(shortstr(b"a") + b"A" + long_prefixed(b"V" * (5 << 13)))
    payload = struct.pack(">HHH", 50, 10, 0) + shortstr(b"q") + b"\x00" + table
    buf, end = with_padding(payload), 3 + len(payload)
    w = new_writer(1 << 19, 1 << 16, 1 << 17)
    index = classify_method(buf, 3, end, t, version)
    assert decode_arguments(buf, 7, end, t, version, index, w)[0] == TOO_LARGE
    assert (w.positions[VALUE], w.positions[METADATA]) == (0, 0)


# Anything


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(EVERY_METHOD), st.binary(max_size=80))
def test_any_bytes_give_an_object(case: tuple[str, str], data: bytes) -> None:
    code, at, fields = arguments(*case, data)
    assert isinstance(fields, dict)
    assert 0 <= at <= len(data)
    assert code != OK or at == len(data)
