"""The client that a header of the PROXY protocol names, as columns of its connection."""

from __future__ import annotations

import base64
import hashlib
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import fuzz_tables
import pieces
import pytest
from logins import login_frames
from wire import CLIENT, FLOW, Wire, write_capture

from jobs.cli import main

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
FOUR, SIX = ("203.0.113.77", "192.0.2.1"), ("2001:db8::7777", "2001:db8::1")
PORTS = (56324, 5672)


def binary(family: int, addresses: bytes, command: int = 0x21, more: bytes = b"") -> bytes:
    body = addresses + more
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


def packed(ends: tuple[str, str], ports: tuple[int, int] = PORTS) -> bytes:
    return b"".join(ip_address(each).packed for each in ends) + b"".join(port.to_bytes(2, "big") for port in ports)


def community_id(ends: tuple[str, str], ports: tuple[int, int] = PORTS) -> str:
    """By the specification of Corelight, version 1, without the product's code."""
    (low, low_port), (high, high_port) = sorted(
        (ip_address(end).packed, port.to_bytes(2, "big")) for end, port in zip(ends, ports, strict=True)
    )
    digest = hashlib.sha1(bytes(2) + low + high + bytes([6, 0]) + low_port + high_port).digest()
    return "1:" + base64.b64encode(digest).decode()


NAMED = {
    "line": (b"PROXY TCP4 203.0.113.77 192.0.2.1 56324 5672\r\n", FOUR),
    "line of IPv6": (b"PROXY TCP6 2001:db8::7777 2001:db8::1 56324 5672\r\n", SIX),
    "binary": (binary(0x11, packed(FOUR)), FOUR),
    "binary of IPv6": (binary(0x21, packed(SIX)), SIX),
    "binary with more than addresses": (binary(0x21, packed(SIX), more=b"\x04\x01\x00" + bytes(256)), SIX),
}
UNNAMED = {
    "none": b"",
    "line of an unknown client": b"PROXY UNKNOWN\r\n",
    "unknown with addresses": b"PROXY UNKNOWN 203.0.113.77 192.0.2.1 56324 5672\r\n",
    "another family than it says": b"PROXY TCP6 203.0.113.77 192.0.2.1 56324 5672\r\n",
    "no address": b"PROXY TCP4 203.0.113.777 192.0.2.1 56324 5672\r\n",
    "no port": b"PROXY TCP4 203.0.113.77 192.0.2.1 -1 5672\r\n",
    "a port too high": b"PROXY TCP4 203.0.113.77 192.0.2.1 99999 5672\r\n",
    "words too few": b"PROXY TCP4 203.0.113.77 192.0.2.1\r\n",
    "not ASCII": b"PROXY TCP4 203.0.113.77\xff 192.0.2.1 1 2\r\n",
    "the balancer's own": binary(0x11, packed(FOUR), command=0x20),
    "unspecified": binary(0x00, b""),
    "UDP": binary(0x12, packed(FOUR)),
    "a socket of Unix": binary(0x31, bytes(216)),
    "too short for its addresses": binary(0x11, packed(FOUR)[:8]),
}
COLUMNS = ("proxied_client_ip", "proxied_client_port", "proxied_community_id")


def connection(header: bytes, size: int = 1 << 20) -> Wire:
    wire = Wire()
    for at in range(0, len(header), size):
        wire.add(CLIENT, header[at : at + size])
    for direction, data in login_frames("0-9-1", "PLAIN", b"\0u\0p"):
        wire.add(direction, data)
    return wire


def proxied(wires: list[Wire]) -> list[tuple[Any, ...]]:
    rows = fuzz_tables.tables([[(FLOW, *wire.arrays())] for wire in wires])
    fuzz_tables.check(rows)
    table = fuzz_tables.table_of(rows, "connections", "client_ip", "user", *COLUMNS).sort_by("client_ip")
    assert table["user"].to_pylist() == ["u"] * len(wires)
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


@pytest.mark.parametrize("size", [1, 20, 1000])
def test_the_client_of_the_header_has_columns(size: int) -> None:
    found = proxied([connection(header, size) for header, _ in NAMED.values()])
    assert found == [(ends[0], PORTS[0], community_id(ends)) for _, ends in NAMED.values()]


def test_where_the_header_names_no_client_they_are_null() -> None:
    found = proxied([connection(header) for header in UNNAMED.values()])
    assert found == [(None, None, None)] * len(UNNAMED)


@pytest.mark.parametrize("name", ["line of IPv6", "binary"])
def test_pieces_have_the_same_columns(name: str) -> None:
    header, ends = NAMED[name]
    runs = fuzz_tables.in_one_table([[(FLOW, *connection(header, 9).arrays())]])
    whole = pieces.rows_of(runs)
    (row,) = whole["connections"]
    assert f"proxied_client_ip={ends[0]!r}" in row
    for cut in pieces.times(runs):
        pieces.same(pieces.in_pieces(runs, [cut]), whole, f"cut at {cut}")


def test_the_summary_and_a_cut_name_the_client_of_the_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, _ = NAMED["line"]
    write_capture(tmp_path / "a.pcap", [connection(header), connection(b"")])
    assert main(["decode", str(tmp_path / "a.pcap"), "--output", str(tmp_path / "tables")]) == 0
    printed = capsys.readouterr().out
    assert "203.0.113.77:56324" in printed
    for ends, code in (("203.0.113.77:56324", 0), ("203.0.113.77:56325", 1)):
        cut = ["cut", str(tmp_path / "tables"), "--connection", ends, "-o", str(tmp_path / f"{code}.pcapng")]
        assert main(cut) == code
    assert header in (tmp_path / "0.pcapng").read_bytes()
