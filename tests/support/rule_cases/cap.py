"""CAP: what the capture itself lacks."""

from __future__ import annotations

import struct
from typing import Any

import classic_frames as classic
import pyarrow as pa
from pcap_files import RAW_IP
from rule_support import MSS, CaptureCase, Case, Connection, pcap, spoken

from codec.compiler.limits import LIMITS

V = spoken()
ETHERNET = 1  # LINKTYPE_ETHERNET
VLAN = bytes.fromhex("81000001")  # a tag and VLAN 1
MORE_FRAGMENTS = 0x2000
UDP, IPV4_IN_IPV4, TCP = 17, 4, 6
LARGE = 15 << 20  # bytes of a record


def midway() -> Connection:
    connection = Connection(syn=False)
    for number in range(1, 5):
        connection.client("basic.ack", 1, delivery_tag=number).heartbeat("server")
    return connection


def half() -> Connection:
    """Only what the client sends."""
    connection = Connection().handshake().open(1).publish(delivery_mode=1).publish(delivery_mode=1)
    connection.packets = [packet for packet in connection.packets if packet.sender == "client"]
    return connection


def cut() -> Connection:
    """The capture keeps the first bytes of a large body frame."""
    connection = Connection().handshake().open(1).client("basic.publish", 1, exchange="e", routing_key="q")
    data = classic.header(V, "basic", 2000, delivery_mode=1) + classic.body(bytes(2000))
    return connection.packet("client", data[:200], wire_len=len(data)).packet("server").close()


def strayed() -> Connection:
    """A segment whose number is a gigabyte away from all others."""
    connection = Connection().handshake()
    connection.seq["client"] += 1 << 30
    connection.packet("client", b"stray")
    connection.seq["client"] -= (1 << 30) + len(b"stray")
    return connection.heartbeat().close()


def nested(depth: int) -> Connection:
    """Arguments of tables in each other."""
    tables: dict[str, Any] = {}
    for _ in range(depth - 1):
        tables = {"t": tables}
    return (
        Connection().handshake().open(1).asks("queue.declare", 1, {"queue": "q"}, queue="q", arguments=tables).close()
    )


def text(size: int) -> Connection:
    """So many bytes of another protocol, from the middle of the connection."""
    return Connection(syn=False).client_bytes(b"SET key value\r\n" * (size // 15)).fin()


def greeted(times: int) -> Connection:
    """The protocol header several times, as a client does that tries again."""
    connection = Connection()
    for _ in range(times - 1):
        connection.header()
    return connection.handshake().close()


def ipv4(protocol: int, payload: bytes, number: int = 0, flags: int = 0) -> bytes:
    """An IPv4 packet; checksums are not looked at by anyone here."""
    ends = bytes([127, 0, 0, 1, 127, 0, 0, 2])
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), number, flags, 64, protocol, 0) + ends + payload


DATAGRAM = ipv4(UDP, struct.pack(">HHHH", 1000, 2000, 8, 0))


def tagged(tags: int) -> bytes:
    """An Ethernet frame with so many VLAN tags: one header, and one for each of them."""
    return pcap(ETHERNET, [bytes(12) + tags * VLAN + b"\x08\x00" + DATAGRAM])


def tunnelled(depth: int) -> bytes:
    """Two packets of IPv4 in IPv4, so deep."""
    packet = DATAGRAM
    for _ in range(depth):
        packet = ipv4(IPV4_IN_IPV4, packet)
    return pcap(RAW_IP, [packet, packet])


def in_fragments(datagrams: int) -> bytes:
    """The first fragments of so many TCP datagrams; the others are missing."""
    return pcap(RAW_IP, (ipv4(TCP, bytes(24), number, MORE_FRAGMENTS) for number in range(datagrams)))


def recorded(size: int) -> bytes:
    """A record that claims so many bytes, the first of them with it."""
    return pcap(RAW_IP, []) + struct.pack("<IIII", 1, 0, size, size) + DATAGRAM


def expanding(records: int) -> bytes:
    """Large records of zeros, which zstd makes some thousand times smaller."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(pcap(RAW_IP, records * [bytes(LARGE)]))
    return bytes(out.getvalue())


def complete() -> Connection:
    return Connection().handshake().open(1).publish(bytes(2000), delivery_mode=1).close()


def translated(**options: Any) -> Connection:
    """Other connections have other sequence numbers."""
    return Connection(**options).handshake().open(1).publish(bytes(sum(V.encode())), delivery_mode=1).close()


ONE, OTHER, THIRD = ((sum(V.encode()) << 20, second << 28) for second in (5, 6, 7))

CASES = [
    Case("CAP-01", V, Connection().handshake().lose("client", 50).heartbeat().heartbeat().close(), complete(),
         evidence={"missing_bytes": 50}),
    Case("CAP-02", V, midway(), complete(), evidence={"header_seen": False}),
    Case("CAP-03", V, half(), complete(), evidence={"observed": "client"}),
    Case("CAP-04", V, cut(), complete(), also=("CAP-01",)),
    Case("CAP-05", V, Connection().handshake().client_bytes(classic.heartbeat()[:5]), complete(),
         evidence={"bytes": 5}),
    Case("CAP-06", V, strayed(), complete(), evidence={"observed": ["segment out of window"]}),
    # The same numbers and bytes 20 µs later at another address, and 2 s later.
    Case("CAP-07", V, [translated(numbers=ONE), translated(numbers=ONE, server=9, at=0.00002)],
         [translated(numbers=OTHER), translated(numbers=OTHER, server=9, at=2)]),
    # Numbers that a program chose, as here all others, are no sign.
    Case("CAP-07", V, [translated(numbers=THIRD), translated(numbers=THIRD, server=9, at=0.00002)],
         [translated(), translated(server=9, at=0.00002)]),
    Case("CAP-06", V, nested(LIMITS.nesting_depth + 1), nested(LIMITS.nesting_depth),
         evidence={"observed": ["nesting depth"]}),
    Case("CAP-06", V, text(LIMITS.detect_bytes + 2 * MSS), text(LIMITS.detect_bytes // 2),
         evidence={"observed": ["search for frames"]}),
    Case("CAP-06", V, greeted(LIMITS.offers + 1), greeted(LIMITS.offers),
         evidence={"observed": ["protocol headers"]}, besides=("NEG-09",)),
]  # fmt: skip

# Twins come as near to the limit as they can.
GRACE = LIMITS.expansion_grace // LARGE  # records of LARGE within it
CAPTURE_CASES = [
    CaptureCase("CAP-06", tagged(LIMITS.packet_headers + 1), tagged(LIMITS.packet_headers - 4),
                evidence={"observed": ["packet headers"], "packets": 1}),
    CaptureCase("CAP-06", tunnelled(LIMITS.tunnels + 1), tunnelled(LIMITS.tunnels),
                evidence={"observed": ["tunnels"], "packets": 2}, occurrences=2),
    CaptureCase("CAP-06", in_fragments(LIMITS.fragment_datagrams + 3), in_fragments(LIMITS.fragment_datagrams),
                evidence={"observed": ["fragments"], "packets": 3}, occurrences=3),
    # The twin's record is cut short, as in a capture that ended.
    CaptureCase("CAP-06", recorded(LIMITS.record_bytes + 1), recorded(LIMITS.record_bytes),
                evidence={"observed": ["record size"]}),
    CaptureCase("CAP-06", expanding(GRACE + 1), expanding(GRACE), evidence={"observed": ["expansion"]}),
]  # fmt: skip
