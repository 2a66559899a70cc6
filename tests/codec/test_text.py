"""The one rule by which bytes that are not UTF-8 are shown, and URIs without what precedes their host."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from classic_frames import method
from hypothesis import given
from hypothesis import strategies as st
from wire import CLIENT, Wire

from codec.layers.tls_handshake import hello_facts
from codec.text import escaped
from udfs.arrow.fields import to_utf8_escaped
from udfs.conversation.addresses import nodes

# What is not UTF-8 (RFC 3629, section 3 and 4), and how Python's "backslashreplace" shows it.
INVALID = {
    "Latin-1": (b"Z\xfcrich", r"Z\xfcrich"),
    "truncated": (b"a\xe2\x82", r"a\xe2\x82"),
    "truncated before text": (b"\xf0\x9f\x98x", r"\xf0\x9f\x98x"),
    "lone continuation": (b"\x80", r"\x80"),
    "overlong of two": (b"\xc0\xaf", r"\xc0\xaf"),
    "overlong of three": (b"\xe0\x80\xaf", r"\xe0\x80\xaf"),
    "overlong of four": (b"\xf0\x80\x80\xaf", r"\xf0\x80\x80\xaf"),
    "surrogate": (b"\xed\xa0\x80", r"\xed\xa0\x80"),
    "pair of surrogates": (b"\xed\xa0\xbd\xed\xb8\x80", r"\xed\xa0\xbd\xed\xb8\x80"),
    "above U+10FFFF": (b"\xf4\x90\x80\x80", r"\xf4\x90\x80\x80"),
    "five bytes": (b"\xf8\x88\x80\x80\x80", r"\xf8\x88\x80\x80\x80"),
    "never an byte": (b"\xfe\xff", r"\xfe\xff"),
    "beside UTF-8": ("é€😀".encode() + b"\xe9", r"é€😀\xe9"),
    "beside a zero byte": (b"\0\xff", "\0\\xff"),
    "beside a backslash": (b"C:\\\xe9", r"C:\x5c\xe9"),
}


@pytest.mark.parametrize("data", [b"", b"text", "é€😀".encode(), b"\0", rb"C:\xe9", b"a\\"])
def test_utf8_is_unchanged(data: bytes) -> None:
    assert escaped(data) == data.decode()
    assert to_utf8_escaped(pa.array([data, b"\xff"])).to_pylist() == [data.decode(), r"\xff"]


@pytest.mark.parametrize(("data", "expected"), INVALID.values(), ids=INVALID)
def test_bytes_that_are_not_utf8_are_escaped(data: bytes, expected: str) -> None:
    assert escaped(data) == expected
    wire = Wire()
    wire.add(CLIENT, b"AMQP\0\0\x09\x01" + method("0-9-1", "queue.declare", queue=data))
    row = wire.rows()[0][1]
    assert row["arguments"]["queue"] == expected
    assert (row["status"], row["error"]) == ("malformed", "text that is not UTF-8")
    assert "not-utf8" in row["notes"]


@given(st.lists(st.none() | st.binary(max_size=12), max_size=8), st.integers(0, 3))
def test_columns_of_texts_are_valid_and_escaped_alike(values: list[bytes | None], skipped: int) -> None:
    """Also those of a slice; pyarrow looks whether all of it is UTF-8."""
    column = to_utf8_escaped(pa.array(values, pa.binary()).slice(skipped))
    column.validate(full=True)
    assert column.to_pylist() == [None if value is None else escaped(value) for value in values[skipped:]]


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_different_bytes_are_shown_differently(one: bytes, other: bytes) -> None:
    """As long as neither or both are UTF-8: the note says which."""

    def is_utf8(data: bytes) -> bool:
        return data.decode("utf-8", "ignore").encode() == data

    if is_utf8(one) == is_utf8(other) and one != other:
        assert escaped(one) != escaped(other)


def test_parts_of_addresses_and_server_names_are_text() -> None:
    _, exchanges, keys, _ = nodes(pa.array(["/exchanges/caf%E9/k%ff"]))
    assert (exchanges.to_pylist(), keys.to_pylist()) == ([r"caf\xe9"], [r"k\xff"])
    exchanges.validate(full=True)
    assert server_name(b"h\xf6st") == r"h\xf6st"


@pytest.mark.parametrize(
    "name", ["amqps://guest:s3cret@mq.example/vh", "guest:s3cret@mq.example", "p@s3cret@mq.example"]
)
def test_a_server_name_shows_no_userinfo(name: str) -> None:
    """A client that takes a URI apart at the wrong '@', or not at all, asks for such a name."""
    escaped = server_name(name.encode())
    assert escaped is not None
    assert (escaped.startswith("****@mq.example"), "s3cret" in escaped) == (True, False)


def server_name(name: bytes) -> str | None:
    """What is shown of a client hello with this server name (RFC 6066, section 3)."""
    sni = b"\0\0" + (len(name) + 5).to_bytes(2, "big") + (len(name) + 3).to_bytes(2, "big") + b"\0"
    sni += len(name).to_bytes(2, "big") + name
    hello = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + len(sni).to_bytes(2, "big") + sni
    message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    escaped: str | None = hello_facts(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message, b"")["sni"]
    return escaped


# ---- URIs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [b"S", b"x"])
def test_userinfo_in_client_properties_is_masked_at_any_depth(tag: bytes) -> None:
    uri = b"amqp://me:s3cret@host/"
    table = b"\x01u" + tag + len(uri).to_bytes(4, "big") + uri
    nested = b"\x01n" + b"F" + len(table).to_bytes(4, "big") + table
    properties = (len(table + nested)).to_bytes(4, "big") + table + nested
    row = start_ok(properties)
    masked = b"amqp://****@host/" if tag == b"x" else "amqp://****@host/"
    assert row["arguments"]["client_properties"] == {"u": masked, "n": {"u": masked}}
    assert row["arguments"]["locale"] == "en_US"


def test_connection_attributes_are_text() -> None:
    """A long string may be any bytes; product and platform are names."""
    row = start_ok({"product": b"K\xfcche"})
    assert row["arguments"]["client_properties"] == {"product": r"K\xfcche"}
    assert row["status"] == "malformed"


def start_ok(properties: Any) -> dict[str, Any]:
    wire = Wire()
    given = {"client_properties": properties, "mechanism": "EXTERNAL", "response": b"", "locale": "en_US"}
    wire.add(CLIENT, b"AMQP\0\0\x09\x01" + method("0-9-1", "connection.start-ok", 0, **given))
    return wire.rows()[0][1]
