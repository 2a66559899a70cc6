"""TCP segments out of packets that scapy built: every link layer, tags, extension headers, options, padding, cuts."""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Any

import numpy as np
import pytest
from encapsulations import MACS
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.ipsec import AH
from scapy.layers.l2 import ARP, LLC, STP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Dot3, Ether, Loopback
from scapy.packet import Packet, Raw

from codec.capture import NO_INTERFACE, NOT_A_PACKET, RECORD
from codec.net.headers import LINK_NAMES, skip_name
from codec.net.layers import Filter, Packets, dissect, host_bytes

ETHERNET, NULL, RAW, LOOP, SLL, SLL2, IPV4, IPV6 = 1, 0, 101, 108, 113, 276, 228, 229
V4: dict[str, Any] = {"src": "10.0.0.9", "dst": "10.0.0.2"}
V6: dict[str, Any] = {"src": "2001:db8::9", "dst": "2001:db8::2"}
PAYLOAD = b"AMQP\x00\x00\x09\x01"


def tcp(**changes: Any) -> Packet:
    fields: dict[str, Any] = {"sport": 40000, "dport": 5672, "seq": 0xFFFFFFF0, "ack": 7, "flags": "PA", "window": 512}
    return TCP(**{**fields, **changes}) / Raw(PAYLOAD)


def dissected(*packets: bytes, link: int = ETHERNET, wire: int | None = None, times: tuple[int, ...] = ()) -> Packets:
    """The packets, end to end in one block, through the layers."""
    block = np.frombuffer(bytearray(b"".join(packets)), np.uint8)
    records = np.zeros(len(packets), RECORD)
    records["cap_len"] = [len(packet) for packet in packets]
    records["offset"] = np.cumsum(records["cap_len"]) - records["cap_len"]
    records["wire_len"] = wire or records["cap_len"]
    records["link_type"] = link
    if times:
        records["ts_ns"] = times
    return dissect(block, records, 1, -(2**63))


def skipped(data: bytes, link: int = ETHERNET) -> str | None:
    code = int(dissected(data, link=link).skip[0])
    return skip_name(code) if code else None


def assert_is_the_segment(packets: Packets, data: bytes, v6: bool = False) -> None:
    """The packet that `tcp()` describes, sent by the high endpoint (….9 > ….2)."""
    assert packets.skip.tolist() == [0]
    segment = packets.segments[0]
    assert (segment["seq"], segment["ack"], segment["window"], segment["flags"]) == (0xFFFFFFF0, 7, 512, 0x18)
    assert (segment["wire_len"], segment["cap_len"], segment["direction"]) == (8, 8, 1)
    at = int(segment["payload_at"])
    assert data[at : at + 8] == PAYLOAD
    low, high = (ip_address(("2001:db8::" if v6 else "::ffff:10.0.0.") + last).packed for last in "29")
    assert packets.keys[0].tobytes() == low + high + struct.pack(">HH", 5672, 40000)


STACKS = {
    "ethernet": (ETHERNET, Ether(**MACS) / IP(**V4)),
    "ipv4 options": (ETHERNET, Ether(**MACS) / IP(**V4, options=[b"\x94\x04\x00\x00"])),
    "tcp options": (ETHERNET, Ether(**MACS) / IP(**V4)),
    "802.1Q": (ETHERNET, Ether(**MACS) / Dot1Q(vlan=5) / IP(**V4)),
    "QinQ 88a8": (ETHERNET, Ether(**MACS) / Dot1AD(vlan=7) / Dot1Q(vlan=5) / IP(**V4)),
    "QinQ 9100": (ETHERNET, Ether(type=0x9100) / Dot1Q(vlan=7) / Dot1Q(vlan=5) / IP(**V4)),
    "SLL": (SLL, CookedLinux(proto=0x0800) / IP(**V4)),
    "SLL with a tag": (SLL, CookedLinux(proto=0x8100) / Dot1Q(vlan=5) / IP(**V4)),
    "SLL2": (SLL2, CookedLinuxV2(proto=0x0800) / IP(**V4)),
    "raw": (RAW, IP(**V4)),
    "raw of BSD": (12, IP(**V4)),
    "raw of OpenBSD": (14, IP(**V4)),
    "ipv4": (IPV4, IP(**V4)),
    "null": (NULL, Loopback(type=2) / IP(**V4)),
    "ip in ip": (ETHERNET, Ether(**MACS) / IP(src="1.1.1.1", dst="2.2.2.2") / IP(**V4)),
    "ipv6": (ETHERNET, Ether(**MACS) / IPv6(**V6)),
    "ipv6 raw": (RAW, IPv6(**V6)),
    "ipv6 link": (IPV6, IPv6(**V6)),
    "ipv6 sll2": (SLL2, CookedLinuxV2(proto=0x86DD) / IPv6(**V6)),
    "ipv6 null": (NULL, Loopback(type=30) / IPv6(**V6)),
    "ipv6 in ipv4": (ETHERNET, Ether(**MACS) / IP(src="1.1.1.1", dst="2.2.2.2") / IPv6(**V6)),
    "hop by hop": (ETHERNET, Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrHopByHop()),
    "routing": (ETHERNET, Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrRouting(addresses=["2001:db8::5"], segleft=0)),
    "destination": (ETHERNET, Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrDestOpt()),
    "atomic fragment": (ETHERNET, Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrFragment(offset=0, m=0)),
    "authentication": (ETHERNET, Ether(**MACS) / IPv6(**V6) / AH(nh=6, payloadlen=4, spi=1, seq=1, icv=bytes(12))),
    "authentication on ipv4": (ETHERNET, Ether(**MACS) / IP(**V4, proto=51) / AH(nh=6, payloadlen=4, icv=bytes(12))),
    "four headers": (
        ETHERNET,
        Ether(**MACS)
        / IPv6(**V6)
        / IPv6ExtHdrHopByHop()
        / IPv6ExtHdrDestOpt()
        / IPv6ExtHdrRouting()
        / IPv6ExtHdrFragment(),
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_segment_is_found_under(name: str) -> None:
    link, stack = STACKS[name]
    options = {"options": [("Timestamp", (1, 2)), ("NOP", None)]} if name == "tcp options" else {}
    data = bytes(stack / tcp(**options))
    assert_is_the_segment(dissected(data, link=link), data, v6="2001" in repr(stack))


@pytest.mark.parametrize(("link", "order", "family"), [(NULL, "<", 2), (NULL, ">", 2), (LOOP, ">", 2)])
def test_loopback_family_in_the_order_of_the_host_or_the_network(link: int, order: str, family: int) -> None:
    data = struct.pack(order + "I", family) + bytes(IP(**V4) / tcp())
    assert_is_the_segment(dissected(data, link=link), data)


@pytest.mark.parametrize("family", [10, 24, 28, 30])
def test_ipv6_families_of_all_systems(family: int) -> None:
    data = struct.pack(">I", family) + bytes(IPv6(**V6) / tcp())
    assert_is_the_segment(dissected(data, link=LOOP), data, v6=True)


def test_ethernet_padding_is_not_payload() -> None:
    data = bytes(Ether(**MACS) / IP(**V4) / TCP(sport=1, dport=2)) + bytes(
        6
    )  # 54 bytes padded to the shortest frame, 60
    packets = dissected(data)
    assert (packets.segments["wire_len"][0], packets.segments["cap_len"][0]) == (0, 0)


def test_ip_length_zero_of_segmentation_offload_takes_the_length_of_the_frame() -> None:
    for data in (bytes(Ether(**MACS) / IP(**V4, len=0) / tcp()), bytes(Ether(**MACS) / IPv6(**V6, plen=0) / tcp())):
        packets = dissected(data[:-3], wire=len(data))
        assert (packets.skip[0], packets.segments["wire_len"][0], packets.segments["cap_len"][0]) == (0, 8, 5)


def test_snaplen_shortens_what_was_captured_not_what_was_sent() -> None:
    data = bytes(Ether(**MACS) / IP(**V4) / tcp(options=[("Timestamp", (1, 2)), ("NOP", None), ("NOP", None)]))
    assert len(data) == 14 + 20 + 32 + 8
    for captured, expected in ((74, 8), (73, 7), (67, 1), (66, 0), (60, 0), (54, 0)):
        packets = dissected(data[:captured], wire=len(data))
        assert (packets.skip[0], packets.segments["wire_len"][0], packets.segments["cap_len"][0]) == (0, 8, expected)
    for captured in range(54):
        assert skip_name(int(dissected(data[:captured], wire=len(data)).skip[0])) == "truncated-header"


@pytest.mark.parametrize(
    ("name", "data", "link"),
    [
        ("udp", bytes(Ether(**MACS) / IP(**V4) / UDP() / b"x"), ETHERNET),
        ("icmp", bytes(Ether(**MACS) / IP(**V4) / ICMP()), ETHERNET),
        ("icmpv6", bytes(Ether(**MACS) / IPv6(**V6, nh=58) / b"1234"), ETHERNET),
        ("sctp", bytes(Ether(**MACS) / IP(**V4, proto=132) / b"12345678"), ETHERNET),
        ("gre", bytes(Ether(**MACS) / IP(**V4, proto=47) / b"12345678"), ETHERNET),
        ("ip-protocol-99", bytes(Ether(**MACS) / IP(**V4, proto=99) / b"12345678"), ETHERNET),
        ("arp", bytes(Ether(**MACS) / ARP()), ETHERNET),
        ("llc", bytes(Dot3() / LLC() / STP()), ETHERNET),
        ("ethertype-0x1234", bytes(Ether(type=0x1234) / b"12345678"), ETHERNET),
        ("unknown-link-type-147", b"whatever", 147),
        ("unknown-link-type-65535", b"whatever", 65535),
        ("undescribed-interface", b"whatever", NO_INTERFACE),
        ("not-a-packet", b"", NOT_A_PACKET),
        ("ip-fragment", bytes(Ether(**MACS) / IP(**V4, flags="MF") / tcp() / bytes(4)), ETHERNET),  # 32 bytes, 4 units
        ("ip-fragment", bytes(Ether(**MACS) / IP(**V4, frag=3) / tcp()), ETHERNET),
        ("ip-fragment", bytes(Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrFragment(m=1) / tcp() / bytes(4)), ETHERNET),
        ("ip-fragment", bytes(Ether(**MACS) / IPv6(**V6) / IPv6ExtHdrFragment(offset=3) / tcp()), ETHERNET),
        ("malformed-ip-header", bytes(Ether(**MACS) / IP(**V4, ihl=4) / tcp()), ETHERNET),
        ("malformed-ip-header", bytes(Ether(**MACS) / IP(**V4, len=19) / tcp()), ETHERNET),
        ("malformed-ip-header", bytes(Ether(**MACS) / IP(**V4, version=7) / tcp()), ETHERNET),
        ("malformed-ip-header", b"\x70" + bytes(40), RAW),
        ("malformed-tcp-header", bytes(Ether(**MACS) / IP(**V4) / tcp(dataofs=4)), ETHERNET),
        ("malformed-tcp-header", bytes(Ether(**MACS) / IP(**V4) / tcp(dataofs=15)), ETHERNET),  # 60 of 28 bytes
        ("malformed-tcp-header", bytes(Ether(**MACS) / IP(**V4, len=30) / tcp()), ETHERNET),
        ("truncated-header", b"", ETHERNET),
        ("truncated-header", bytes(Ether(**MACS) / Dot1Q())[:16], ETHERNET),
        ("too-many-layers", bytes(Ether(type=0x8100)) + 40 * bytes.fromhex("00018100"), ETHERNET),
    ],
)
def test_everything_else_is_counted_by_name(name: str, data: bytes, link: int) -> None:
    assert skipped(data, link) == name


def test_packets_without_tcp_keep_their_addresses() -> None:
    packets = dissected(bytes(Ether(**MACS) / IP(**V4) / UDP()), bytes(Ether(**MACS) / ARP()))
    assert packets.keys[0].tobytes() == (
        ip_address("::ffff:10.0.0.2").packed + ip_address("::ffff:10.0.0.9").packed + bytes(4)
    )
    assert packets.keys[1].tobytes() == bytes(36)


def test_both_directions_share_a_key_also_when_only_ports_differ() -> None:
    there = IP(src="127.0.0.1", dst="127.0.0.1") / TCP(sport=40000, dport=5672)
    back = IP(src="127.0.0.1", dst="127.0.0.1") / TCP(sport=5672, dport=40000)
    packets = dissected(bytes(there), bytes(back), link=RAW)
    assert packets.segments["direction"].tolist() == [1, 0]
    assert (packets.keys[0] == packets.keys[1]).all()


def test_order_is_the_running_maximum_of_times() -> None:
    data = bytes(Ether(**MACS) / ARP())
    packets = dissected(data, data, data, data, times=(5, 9, 3, 10))
    assert packets.segments["order_ns"].tolist() == [5, 9, 9, 10]
    assert packets.segments["ts_ns"].tolist() == [5, 9, 3, 10]
    assert packets.order_ns == 10


def test_random_bytes_never_raise() -> None:
    rng = np.random.default_rng(7)
    for link in LINK_NAMES:
        noise = [rng.integers(0, 256, rng.integers(0, 90), np.uint8).tobytes() for _ in range(200)]
        seeded = [bytes(Ether(**MACS) / IP(**V4) / tcp())[: int(rng.integers(0, 60))] + part for part in noise]
        for packets in (dissected(*noise, link=link), dissected(*seeded, link=link)):
            assert (packets.segments["cap_len"] <= packets.segments["wire_len"]).all()
            assert (packets.segments["payload_at"] + packets.segments["cap_len"] <= sum(map(len, seeded))).all()


def test_filters_look_at_both_sides_and_at_the_time() -> None:
    data = [
        bytes(Ether(**MACS) / IP(**V4) / tcp()),
        bytes(Ether(**MACS) / IPv6(**V6) / tcp(dport=80)),
        bytes(Ether(**MACS) / ARP()),
    ]
    packets = dissected(*data, times=(10, 20, 30))
    hosts = host_bytes([ip_address("10.0.0.2"), ip_address("2001:db8::9")])
    assert Filter().matches(packets).tolist() == [True, True, True]
    assert Filter(ports=frozenset([5672])).matches(packets).tolist() == [True, False, False]
    assert Filter(ports=frozenset([40000])).matches(packets).tolist() == [True, True, False]
    assert Filter(hosts=hosts).matches(packets).tolist() == [True, True, False]
    assert Filter(hosts=hosts[1:]).matches(packets).tolist() == [False, True, False]
    assert Filter(since_ns=20, until_ns=30).matches(packets).tolist() == [False, True, False]
    Filter(ports=frozenset([80])).apply(packets)
    assert [skip_name(int(code)) if code else None for code in packets.skip] == ["filtered", None, "arp"]
