"""Connections with the same addresses and ports at a time, which VLANs, tunnels or interfaces tell apart: each is
decoded as if it were captured alone. Copies of one connection in several address spaces stay one connection."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import decoding
import golden
import independent_tcp
import pieces
import pytest
from encapsulations import BRIDGED, MACS, OUTER, pktap
from pcap_files import pcap
from scapy.contrib.erspan import ERSPAN_II, ERSPAN_III
from scapy.contrib.geneve import GENEVE
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import GRE, Dot1AD, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw

from codec.compiler.limits import LIMITS

Frame = tuple[int, bytes]  # time in ns, IP packet
Wrap = Callable[[bytes, int], bytes]  # an IP packet in address space 0, 1, 2, ...
# One of each version, with one TCP connection on Ethernet.
CAPTURES = {
    "0-8": "08_amqplib_session.pcap", "0-9": "09_qpid_client.pcap", "0-9-1": "091_confirms_and_return.pcap",
    "0-10": "010_auth.pcap", "1.0": "10_rhea_nosasl.pcap",
}  # fmt: skip
CLIENT, SERVER = ("192.0.2.11", 41003), ("192.0.2.22", 5672)
PACKETS = 40  # at most, of a capture
SKIPPED = {"capture_file", "file", "packet_no", "first_packet_no", "retransmitted_bytes", "packets"}


def ether(*headers: Any) -> Callable[[bytes], bytes]:
    packet = Ether(**MACS) if headers else Ether(**MACS, type=0x0800)
    for header in headers:
        packet = packet / header
    return lambda ip: bytes(packet / Raw(ip))


def tunnel(*headers: Any, bridged: bool = True) -> Callable[[bytes], bytes]:
    packet = OUTER
    for header in headers:
        packet = packet / header
    return lambda ip: bytes(packet / Raw((bytes(Ether(**MACS, type=0x0800)) if bridged else b"") + ip))


def udp(port: int) -> UDP:
    return UDP(sport=50000, dport=port)


KEY: dict[str, Any] = {"key_present": 1}
NUMBERED: dict[str, Any] = {"seqnum_present": 1}
SPACES: dict[str, Wrap] = {
    "vlan": lambda ip, n: ether(Dot1Q(vlan=10 + n, type=0x0800))(ip),
    "vlan and none": lambda ip, n: ether(*([Dot1Q(vlan=10 + n, type=0x0800)] if n else []))(ip),
    "outer vlan": lambda ip, n: ether(Dot1AD(vlan=10 + n), Dot1Q(vlan=7, type=0x0800))(ip),
    "inner vlan": lambda ip, n: ether(Dot1AD(vlan=7), Dot1Q(vlan=10 + n, type=0x0800))(ip),
    "vxlan": lambda ip, n: tunnel(udp(4789), VXLAN(vni=42 + n, flags=8))(ip),
    "vlan in vxlan": lambda ip, n: bytes(
        OUTER / udp(4789) / VXLAN(vni=42, flags=8) / Ether(**MACS) / Dot1Q(vlan=1 + n, type=0x0800) / Raw(ip)
    ),
    "geneve": lambda ip, n: tunnel(udp(6081), GENEVE(proto=BRIDGED, vni=1 + n))(ip),
    "gre key": lambda ip, n: tunnel(GRE(proto=0x0800, key=1 + n, **KEY), bridged=False)(ip),
    "nvgre": lambda ip, n: tunnel(GRE(proto=BRIDGED, key=(5 + n) << 8 | 0x7F, **KEY))(ip),
    "erspan ii": lambda ip, n: tunnel(GRE(proto=0x88BE, **NUMBERED), ERSPAN_II(vlan=100 + n, session_id=5))(ip),
    "erspan iii": lambda ip, n: tunnel(GRE(proto=0x22EB, **NUMBERED), ERSPAN_III(vlan=100 + n, session_id=5))(ip),
    "mpls": lambda ip, n: bytes(Ether(**MACS, type=0x8847) / MPLS(label=16 + n, s=1) / Raw(ip)),
    "vn-tag": lambda ip, n: bytes(Ether(**MACS, type=0x8926) / Raw(struct.pack(">IH", 0x80010002 + n, 0x0800) + ip)),
    "e-tag": lambda ip, n: bytes(Ether(**MACS, type=0x893F) / Raw(struct.pack(">HIH", 1, 2 + n, 0x0800) + ip)),
}  # fmt: skip
LINKS = {"sll2": 276, "pktap": 258, "pflog": 117, "frame relay": 107}
OTHER_LINKS: dict[str, Wrap] = {
    # Protocol, reserved, interface index, ARPHRD_ type, packet type, length of the address, address: 20 bytes.
    "sll2": lambda ip, n: struct.pack(">HHIHBB8x", 0x0800, 0, 2 + n, 1, 0, 6) + ip,
    "pktap": lambda ip, n: bytes(pktap(1)).replace(b"en0", b"en%d" % n) + bytes(Ether(**MACS, type=0x0800)) + ip,
    # 61 bytes of header, padded to 64: length, family, action, reason, interface name.
    "pflog": lambda ip, n: bytes([61, 2, 0, 0]) + b"em%d" % n + bytes(57) + ip,
    # RFC 2427: DLCI in the upper six and four bits of the address; 0x03 0xcc: IPv4.
    "frame relay": lambda ip, n: bytes([0x18, 0x41 + (n << 4), 0x03, 0xCC]) + ip,
}


def pcapng(packets: Iterable[tuple[int, bytes, int]]) -> bytes:
    """Packets (time in ns, Ethernet frame, interface), each interface with times in ns."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))

    packets = list(packets)
    found = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    for _ in range(1 + max(interface for *_, interface in packets)):
        found.append(block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHBxxx", 9, 1, 9) + bytes(4)))
    for ns, data, interface in packets:
        head = struct.pack("<IIIII", interface, ns >> 32, ns & 0xFFFFFFFF, len(data), len(data))
        found.append(block(6, head + data))
    return b"".join(found)


@cache
def conversation(name: str) -> tuple[tuple[bool, Frame], ...]:
    """(whether the client sent it, IP packet) of the first connection of a capture, between CLIENT and SERVER; it
    begins at 0."""
    found: list[tuple[bool, Frame]] = []
    first = other = ("", 0)
    base = 0
    for ns, _, data in independent_tcp.records(golden.captures()[name].paths[0]):
        packet = Ether(data)
        if TCP not in packet or IP not in packet:
            continue
        ip = packet[IP].copy()
        source, target = (ip.src, ip[TCP].sport), (ip.dst, ip[TCP].dport)
        if not found:
            first, other, base = source, target, ns
        if {source, target} != {first, other} or len(found) == PACKETS:
            continue
        sent = source == first
        (ip.src, ip[TCP].sport), (ip.dst, ip[TCP].dport) = (CLIENT, SERVER) if sent else (SERVER, CLIENT)
        found.append((sent, (ns - base, bytes(ip)[: ip.len])))
    assert len(found) > 20, name
    return tuple(found)


def at_steps(conversation: Sequence[tuple[bool, Frame]], step: int, start: int = 0) -> list[tuple[bool, Frame]]:
    """The same, one packet each `step` nanoseconds: so two of them are mixed packet by packet."""
    return [(sent, (start + i * step, ip)) for i, (sent, (_, ip)) in enumerate(conversation)]


class Decoded(NamedTuple):
    connections: list[list[Any]]

    @classmethod
    def of(cls, *paths: Path) -> Decoded:
        found = decoding.rows_of(decoding.decode_table(decoding.in_flow_order(decoding.runs(list(paths)))))
        connections = []
        for each in decoding.connections(found):
            facts = {name: without(value) for name, value in each.facts.items() if name not in SKIPPED}
            rows = [{name: value for name, value in row.items() if name not in SKIPPED} for row in each.rows]
            connections.append([facts, rows])
        return cls(sorted(connections, key=repr))


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: part for name, part in value.items() if name not in SKIPPED}
    return value


def write(path: Path, packets: Iterable[Frame], link: int = 1) -> Path:
    path.write_bytes(pcap(sorted(packets, key=lambda packet: packet[0]), link))
    return path


def alone(tmp_path: Path, streams: Sequence[Sequence[tuple[bool, Frame]]], prefix: int = 0) -> Decoded:
    """Each connection decoded from a capture of its own."""
    found = []
    for number, stream in enumerate(streams):
        packets = [(ns, ether()(ip)) for _, (ns, ip) in stream[prefix:]]
        found += Decoded.of(write(tmp_path / f"alone-{number}.pcap", packets)).connections
    return Decoded(sorted(found, key=repr))


def together(streams: Sequence[Sequence[tuple[bool, Frame]]], wrap: Wrap, prefix: int = 0) -> list[Frame]:
    return [(ns, wrap(ip, n)) for n, stream in enumerate(streams) for _, (ns, ip) in stream[prefix:]]


def mixed(*versions: str) -> list[list[tuple[bool, Frame]]]:
    return [at_steps(conversation(CAPTURES[name]), 10_000, 10**9 + 100 * n) for n, name in enumerate(versions)]


@pytest.mark.parametrize("prefix", [0, 12], ids=["from the SYN", "mid-stream"])
@pytest.mark.parametrize("space", [*SPACES, *OTHER_LINKS])
def test_two_connections_in_two_spaces_are_decoded_as_each_alone(space: str, prefix: int, tmp_path: Path) -> None:
    streams = mixed("0-9-1", "1.0")
    packets = together(streams, {**SPACES, **OTHER_LINKS}[space], prefix)
    found = Decoded.of(write(tmp_path / "a.pcap", packets, LINKS.get(space, 1)))
    assert len(found.connections) == 2
    assert found == alone(tmp_path, streams, prefix)


@pytest.mark.parametrize("version", CAPTURES)
def test_every_version_beside_another_connection(version: str, tmp_path: Path) -> None:
    other = "0-10" if version == "0-9-1" else "0-9-1"
    streams = mixed(version, other)
    found = Decoded.of(write(tmp_path / "a.pcap", together(streams, SPACES["vlan"])))
    assert found == alone(tmp_path, streams)


def test_interfaces_of_a_pcapng_tell_connections_apart(tmp_path: Path) -> None:
    streams = mixed("0-9-1", "0-10")
    packets = sorted((ns, ether()(ip), n) for n, stream in enumerate(streams) for _, (ns, ip) in stream)
    path = tmp_path / "a.pcapng"
    path.write_bytes(pcapng(packets))
    assert Decoded.of(path) == alone(tmp_path, streams)


def test_five_connections_at_a_time(tmp_path: Path) -> None:
    streams = mixed(*CAPTURES)
    found = Decoded.of(write(tmp_path / "a.pcap", together(streams, SPACES["vxlan"])))
    assert len(found.connections) == 5
    assert found == alone(tmp_path, streams)


@pytest.mark.parametrize("prefix", [0, 12], ids=["from the SYN", "mid-stream"])
def test_both_directions_may_have_tags_of_their_own(prefix: int, tmp_path: Path) -> None:
    """The client's packets of both connections have VLANs 10 and 11, the server's 12 and 13."""
    streams = mixed("0-9-1", "1.0")
    packets = [
        (ns, SPACES["vlan"](ip, n + (0 if sent else 2)))
        for n, stream in enumerate(streams)
        for sent, (ns, ip) in stream[prefix:]
    ]
    assert Decoded.of(write(tmp_path / "a.pcap", packets)) == alone(tmp_path, streams, prefix)


def test_connections_may_share_the_tag_of_one_direction(tmp_path: Path) -> None:
    streams = mixed("0-9-1", "1.0")
    packets = [
        (ns, SPACES["vlan"](ip, n if sent else 5)) for n, stream in enumerate(streams) for sent, (ns, ip) in stream
    ]
    assert Decoded.of(write(tmp_path / "a.pcap", packets)) == alone(tmp_path, streams)


@pytest.mark.parametrize("prefix", [0, 12], ids=["from the SYN", "mid-stream"])
@pytest.mark.parametrize("late_ns", [7, 35_000], ids=["at once", "some packets late"])
@pytest.mark.parametrize("space", [*SPACES, *OTHER_LINKS])
def test_copies_in_two_spaces_are_one_connection(space: str, late_ns: int, prefix: int, tmp_path: Path) -> None:
    (stream,) = mixed("0-9-1")
    wrap = {**SPACES, **OTHER_LINKS}[space]
    packets = [(ns + n * late_ns, wrap(ip, n)) for n in range(2) for _, (ns, ip) in stream[prefix:]]
    found = Decoded.of(write(tmp_path / "a.pcap", packets, LINKS.get(space, 1)))
    ((facts, rows),), ((_, expected),) = found.connections, alone(tmp_path, [stream], prefix).connections
    assert facts["client"]["missing_bytes"] == facts["server"]["missing_bytes"] == 0
    assert rows == expected


def test_a_plain_copy_and_one_in_a_tunnel_are_one_connection_beside_another(tmp_path: Path) -> None:
    streams = mixed("0-9-1", "1.0")
    plain = [(ns, ether()(ip)) for _, (ns, ip) in streams[0]]
    late = [[(sent, (ns + 3, ip)) for sent, (ns, ip) in streams[0]], streams[1]]
    packets = [*plain, *together(late, SPACES["vxlan"])]
    found, expected = Decoded.of(write(tmp_path / "a.pcap", packets)), alone(tmp_path, streams)
    assert [rows for _, rows in found.connections] == [rows for _, rows in expected.connections]


def test_a_connection_may_change_its_space(tmp_path: Path) -> None:
    """Every packet in one of two VLANs by turns, as over two links of a trunk."""
    (stream,) = mixed("0-9-1")
    packets = [(ns, SPACES["vlan"](ip, i % 2)) for i, (_, (ns, ip)) in enumerate(stream)]
    assert Decoded.of(write(tmp_path / "a.pcap", packets)) == alone(tmp_path, [stream])


def test_connections_after_one_another_have_the_ids_that_they_have_without_tags(tmp_path: Path) -> None:
    first, second = mixed("0-9-1", "0-9-1")
    shift = first[-1][1][0] + 10**9
    again = [(sent, (ns + shift, renumbered(ip, 123_456_789))) for sent, (ns, ip) in second]
    found = Decoded.of(write(tmp_path / "a.pcap", together([first, again], SPACES["vlan"])))
    plain = Decoded.of(write(tmp_path / "b.pcap", [(ns, ether()(ip)) for _, (ns, ip) in [*first, *again]]))
    assert len(found.connections) == 2
    assert found == plain


def renumbered(ip: bytes, more: int) -> bytes:
    packet = IP(ip)
    packet[TCP].seq = (packet[TCP].seq + more) % (1 << 32)
    if packet[TCP].ack:
        packet[TCP].ack = (packet[TCP].ack + more) % (1 << 32)
    return bytes(packet)


def test_files_in_any_order_and_parts(tmp_path: Path) -> None:
    """A file of its own for each VLAN; and both in one file, read in small splits."""
    streams = mixed("0-9-1", "0-10", "1.0")
    packets = together(streams, SPACES["vlan"])
    whole = Decoded.of(write(tmp_path / "z.pcap", packets))
    paths = [
        write(tmp_path / f"{'cab'[n]}.pcap", [(ns, SPACES["vlan"](ip, n)) for _, (ns, ip) in stream])
        for n, stream in enumerate(streams)
    ]
    assert Decoded.of(*paths) == whole == Decoded.of(*paths[::-1]) == alone(tmp_path, streams)


@pytest.mark.parametrize("prefix", [0, 12], ids=["from the SYN", "mid-stream"])
def test_in_pieces_as_whole(prefix: int, tmp_path: Path) -> None:
    """Cut anywhere, with the states of open connections carried from one piece to the next."""
    streams = mixed("0-9-1", "1.0", "0-10")
    path = write(tmp_path / "a.pcap", together(streams, SPACES["vlan"], prefix))
    table = decoding.in_flow_order(decoding.runs([path]))
    expected = pieces.rows_of(table)
    assert sum(expected["connections"].values()) == 3
    rng = random.Random(prefix)
    times = pieces.times(table)
    for _ in range(4):
        cuts = sorted(rng.sample(times[1:], 3))
        pieces.same(pieces.in_pieces(table, cuts), expected, str(cuts))


def test_waiting_segments_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from udfs.decode import flow_order as spaces

    monkeypatch.setattr(spaces, "LIMITS", replaced := type(LIMITS)(waiting_spaces_bytes=1000))
    assert replaced.waiting_spaces_bytes == 1000
    streams = mixed("0-9-1", "1.0")
    found = Decoded.of(write(tmp_path / "a.pcap", together(streams, SPACES["vlan"])))
    assert found == alone(tmp_path, streams)


def test_more_spaces_than_are_told_apart_lose_no_byte(tmp_path: Path) -> None:
    """Forty connections in forty VLANs; the last group has the packets of 25 of them."""
    (stream,) = mixed("0-9-1")
    packets, rng = [], random.Random(3)
    for n in range(40):
        more = rng.randrange(1 << 32)
        packets += [(ns + n, SPACES["vlan"](renumbered(ip, more), n)) for _, (ns, ip) in stream[:9]]
    found = Decoded.of(write(tmp_path / "a.pcap", packets))
    assert len(found.connections) >= LIMITS.address_spaces
    sent = sum(len(IP(ip)[TCP].payload) for _, (_, ip) in stream[:9]) * 40
    counted = [facts[side] for facts, _ in found.connections for side in ("client", "server")]
    assert sum(side["payload_bytes"] + side["outside_bytes"] for side in counted) <= sent
