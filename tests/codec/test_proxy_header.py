"""The header of the PROXY protocol, which a load balancer sends before the first byte of its client: a row of its own,
and the stream after it is read as if it were not there."""

from __future__ import annotations

from typing import Any

import pika.spec
import pytest
from pika_frames import method
from wire import CLIENT, SERVER, Wire

# "The PROXY protocol" of HAProxy, section 2.1: a line with the longest IPv4 addresses, and one of unknown origin.
LINE = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"
UNKNOWN = b"PROXY UNKNOWN\r\n"
# Section 2.2: signature, version 2 and command PROXY, TCP over IPv4, 12 bytes of addresses and ports, and 7 of a TLV
# of type 4 (NOOP) with a value of 4 bytes: 12 + 7 = 0x13.
BINARY = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 0013 c0a80001 c0a8000b dc04 1628 040004 00000000")
# Command LOCAL, the health check of a proxy: no addresses.
LOCAL = bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000")
HEADERS = pytest.mark.parametrize("header", [LINE, UNKNOWN, BINARY, LOCAL], ids=["line", "unknown", "binary", "local"])

AMQP = bytes.fromhex("414d5150 00000901")
TUNE_OK = method(pika.spec.Connection.TuneOk(0, 131072, 60), 0)
OPEN = method(pika.spec.Connection.Open("/"), 0)
FOLLOWING = ["connection.tune-ok", "connection.open"]


def wire(*parts: bytes) -> Wire:
    """These segments of a client, each acknowledged."""
    found = Wire()
    for part in parts:
        found.add(CLIENT, part)
        found.add(SERVER, b"")
    return found


def read(*parts: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows, facts = wire(*parts).rows()
    side = facts["client"]
    kinds = ("frame_bytes", "skipped_bytes", "tls_bytes", "foreign_bytes", "tail_bytes")
    assert side["payload_bytes"] == sum(map(len, parts)) == sum(side[kind] for kind in kinds)
    return rows, facts


@HEADERS
def test_the_stream_after_the_header_is_read(header: bytes) -> None:
    rows, facts = read(header, AMQP, TUNE_OK + OPEN)
    first, *others = rows
    assert (first["frame_type"], first["status"], first["sender"]) == ("foreign", "ok", "client")
    assert (first["offset"], first["size"], first["packet"]) == (0, len(header), 3)
    assert first["error"] == "header of the PROXY protocol"
    assert [row["frame_type"] for row in others] == ["protocol-header", "method", "method"]
    assert [row["name"] for row in others[1:]] == FOLLOWING
    assert [row["offset"] for row in others[:2]] == [len(header), len(header) + 8]
    assert facts["content"] == "amqp"
    assert facts["versions_offered"] == ["client 0-9-1"]
    assert facts["client"]["foreign_bytes"] == facts["proxy_bytes"] == len(header)


@HEADERS
def test_segments_of_any_size_give_the_same_rows(header: bytes) -> None:
    data = header + AMQP + TUNE_OK + OPEN
    expected = [(row["offset"], row["size"], row["name"]) for row in read(header, AMQP, TUNE_OK + OPEN)[0]]
    for size in (1, 7, 64, len(data)):
        rows, _ = read(*(data[at : at + size] for at in range(0, len(data), size)))
        assert [(row["offset"], row["size"], row["name"]) for row in rows] == expected


def test_another_protocol_after_the_header_is_foreign() -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    rows, facts = read(LINE, request)
    assert [(row["frame_type"], row["size"], row["status"]) for row in rows] == [
        ("foreign", len(LINE), "ok"),
        ("foreign", len(request), "unknown"),
    ]
    assert rows[1]["code"] == int.from_bytes(b"GET ", "big")
    assert facts["content"] == "foreign"
    assert (facts["client"]["foreign_bytes"], facts["proxy_bytes"]) == (len(LINE) + len(request), len(LINE))


def test_tls_after_the_header_is_tls() -> None:
    hello = b"\x16\x03\x01\x00\x40" + bytes(64)
    rows, facts = read(BINARY, hello)
    assert [(row["frame_type"], row["offset"], row["size"]) for row in rows] == [
        ("foreign", 0, len(BINARY)),
        ("tls", len(BINARY), len(hello)),
    ]
    assert facts["content"] == "tls"


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY" + b" " * 200,  # no end of line within 107 bytes
        b"PROXY",  # never completed
        BINARY[:20],
        LINE + LINE,  # a second one
    ],
)
def test_data_that_is_not_a_header_is_foreign(data: bytes) -> None:
    rows, _ = read(data)
    assert {row["frame_type"] for row in rows} == {"foreign"}
    assert sum(row["size"] for row in rows) == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.1\n",  # LF without CR
        BINARY[:12] + b"\x11" + BINARY[13:],  # version 1, in binary
    ],
)
def test_amqp_behind_data_that_is_not_a_header_is_read(data: bytes) -> None:
    rows, _ = read(data + AMQP)
    assert [row["frame_type"] for row in rows] == ["foreign", "protocol-header"]
    assert [row["size"] for row in rows] == [len(data), len(AMQP)]


def test_the_header_is_read_only_at_the_start_of_a_stream() -> None:
    rows, _ = read(AMQP, TUNE_OK, LINE, OPEN)
    assert "header of the PROXY protocol" not in [row["error"] for row in rows]
