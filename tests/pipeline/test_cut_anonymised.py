"""Addresses of a cut to be shared: replaced down to the innermost header, with checksums as right as before."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_support import CAPTURES, cut, records, rightly_summed, tables_of
from encapsulations import IPV4, IPV6, MACS, NFLOG, PFLOG, WRAPS, Wrap
from hypothesis import given
from hypothesis import strategies as st
from pcap_files import pcap
from scapy.layers.inet import IP, TCP, UDP, IPOption, fragment
from scapy.layers.inet6 import HAO, HBHOptUnknown, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, RouterAlert
from scapy.layers.inet6 import IPv6 as IPv6Packet
from scapy.layers.l2 import Ether
from scapy.layers.pflog import PFLog
from scapy.packet import Packet
from scapy.utils import mac2str
from test_tunnels import LINKS as OF_SCAPY
from wire import CLIENT, SERVER, Wire, write_capture

from codec.capture.records import RECORD
from codec.pseudonyms import anonymise_ipv4, key_of
from pipeline.extract import Choice
from pipeline.extract.header_stack import adjust, stack_of

KEY = key_of(b"a passphrase")
# Before the packet in `Nflog`: 4 bytes, an attribute of 8, one of 4 + 5 padded to 12, and the header of the last, 4.
NFLOG_HEADERS = 4 + 8 + 12 + 4
LINKS = OF_SCAPY | {NFLOG: lambda data: (IP if data[NFLOG_HEADERS] >> 4 == 4 else IPv6Packet)(data[NFLOG_HEADERS:])}
UNSPECIFIC = {"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"}
BARE, BARE_6 = CAPTURES / "091_confirms_and_return.pcap", CAPTURES / "091_ipv6.pcapng"


def checksums(packet: Packet) -> list[Packet]:
    """The headers of a packet that have a checksum, outermost first."""
    return [layer for layer in layers(packet) if isinstance(layer, IP | TCP | UDP)]


def layers(packet: Packet) -> list[Packet]:
    """All headers of a packet, outermost first."""
    return [] if packet.name == "NoPayload" else [packet, *layers(packet.payload)]


def full_checksums(packet: Packet) -> list[tuple[str, int, int]]:
    """(layer, what stands there, what scapy computes) of every checksum of a packet."""
    fresh = packet.copy()
    for layer in checksums(fresh):
        del layer.chksum
    right = checksums(packet.__class__(bytes(fresh)))
    found = checksums(packet)
    return [(str(a.name), a.chksum, b.chksum) for a, b in zip(found, right, strict=True)]


# Outer headers with which scapy does not find the headers inside.
OPAQUE = ("by hand", "iii of ip", "one byte", "upstream", "without control word", "vn-tag", "e-tag")


@pytest.mark.parametrize("name", WRAPS)
def test_packets_in_tunnels_are_anonymised_down_to_the_innermost(name: str, tmp_path: Path) -> None:
    wrap = WRAPS[name]
    bare = rightly_summed(BARE_6 if wrap.inside == IPV6 else BARE, 14)
    path = tmp_path / "wrapped.pcap"
    path.write_bytes(pcap([(ns, wrap(data)) for ns, data in bare], wrap.link))
    tables = tables_of([path])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True, key=KEY)
    before, after = records(path), records(tmp_path / "cut.pcapng")
    assert [len(data) for _, _, data in after] == [len(data) for _, _, data in before]
    wire_bytes = b"".join(data for _, _, data in after)
    for (_, data), (_, _, old), (_, _, new) in zip(bare, before, after, strict=True):
        inside = Ether(data).payload
        at = old.rindex(bytes(inside))
        pairs = [(inside, inside.__class__(new[at : at + len(inside)]))]
        if not any(part in name for part in OPAQUE):
            pairs.append((LINKS[wrap.link](old), LINKS[wrap.link](new)))
        for was, now in pairs:
            assert [address for address in addresses(was) if ip_address(address).packed in wire_bytes] == []
            assert [mac for mac in {*hardware(was)} - UNSPECIFIC if mac2str(mac) in wire_bytes] == []
            assert wrong_checksums(now) == wrong_checksums(was)
            assert len(checksums(now)) == len(checksums(was)) >= 1


def wrong_checksums(packet: Packet) -> list[str]:
    """The layers whose checksum is not what scapy computes."""
    return [layer for layer, found, right in full_checksums(packet) if found != right]


def hardware(packet: Packet) -> list[str]:
    """Hardware addresses of all Ethernet headers of a packet."""
    return [mac for layer in layers(packet) if isinstance(layer, Ether) for mac in (layer.src, layer.dst)]


def addresses(packet: Packet) -> list[str]:
    """Addresses of all IP headers of a packet, outermost first."""
    ips = [layer for layer in layers(packet) if isinstance(layer, IP | IPv6Packet)]
    return [address for ip in ips for address in (ip.src, ip.dst)]


def test_an_address_is_the_same_everywhere_and_keeps_its_network(tmp_path: Path) -> None:
    """10.1.2.x of two networks in one capture: Crypto-PAn keeps what they share, and one key gives one result."""
    packets = []
    for ns, data in rightly_summed(BARE, 30):
        for network in ("10.1.2", "10.1.7"):
            packet = Ether(data)
            ends = {5672: f"{network}.1"}
            packet[IP].src = ends.get(packet[TCP].sport, f"{network}.9")
            packet[IP].dst = ends.get(packet[TCP].dport, f"{network}.9")
            del packet[IP].chksum, packet[TCP].chksum
            packets.append((ns, bytes(packet)))
    (tmp_path / "two.pcap").write_bytes(pcap(packets))
    tables = tables_of([tmp_path / "two.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", key=KEY)
    pairs: dict[str, str] = {}
    for (_, old), (_, _, new) in zip(packets, records(tmp_path / "cut.pcapng"), strict=True):
        assert all(found == right for _, found, right in full_checksums(Ether(new)))
        assert bytes(Ether(new)[TCP].payload) == bytes(Ether(old)[TCP].payload)
        for was, now in zip(addresses(Ether(old)), addresses(Ether(new)), strict=True):
            assert pairs.setdefault(was, now) == now
    assert len(set(pairs.values())) == 4
    for was, now in pairs.items():
        number = np.array([int(ip_address(was))], np.uint32)
        assert int(ip_address(now)) == int(anonymise_ipv4(number, KEY)[0])
    a, b, c = (int(ip_address(pairs[each])) for each in ("10.1.2.1", "10.1.2.9", "10.1.7.1"))
    assert a >> 8 != c >> 8
    assert a >> 11 == c >> 11  # 2 is 00000010, 7 is 00000111: 21 bits in common
    assert a >> 4 == b >> 4  # 1 is 00000001, 9 is 00001001: 28 bits


def test_names_of_interfaces_are_omitted(tmp_path: Path) -> None:
    """The capture says "lo" and "Loopback", as tshark shows."""
    tables = tables_of([BARE_6])
    for key, there in ((None, True), (KEY, False)):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", key=key)
        assert (b"Loopback" in (tmp_path / "cut.pcapng").read_bytes()) == there


TRANSLATED = "198.51.100.7"  # the address that a firewall has translated
NOTED = {
    "pflog": (
        Wrap("", PFLog(iface=b"igb0", saddr=TRANSLATED), IPV4, link=PFLOG),
        (b"igb0", ip_address(TRANSLATED).packed),
    ),
    "pktap": (WRAPS["pktap by hand"], (b"en0",)),
    "nflog": (WRAPS["nflog"], (b"in:",)),
    "nflog of a big-endian host": (WRAPS["nflog of a big-endian host"], (b"in:",)),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_the_capturing_host_noted_is_omitted(name: str, tmp_path: Path) -> None:
    wrap, texts = NOTED[name]
    path = tmp_path / "noted.pcap"
    path.write_bytes(pcap([(ns, wrap(data)) for ns, data in rightly_summed(BARE, 14)], wrap.link))
    tables = tables_of([path])
    for how, there in (({}, True), ({"key": KEY}, False), ({"redact": True}, False)):
        cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", **how)
        wire_bytes = b"".join(data for _, _, data in records(tmp_path / "cut.pcapng"))
        assert [text in wire_bytes for text in texts] == [there] * len(texts)
    assert tables_of([tmp_path / "cut.pcapng"]).ids


def fragments_of_a_tunnel(size: int) -> list[tuple[int, bytes]]:
    """Packets in VXLAN whose outer datagrams are in pieces."""
    found = []
    for number, (ns, data) in enumerate(rightly_summed(BARE, 30)):
        outer = Ether(WRAPS["vxlan"](data))
        outer[IP].id = number + 1
        found += [(ns, bytes(Ether(**MACS) / part)) for part in fragment(outer[IP], fragsize=size)]
    return found


def test_a_tunnel_in_fragments_shows_no_inner_address(tmp_path: Path) -> None:
    path = tmp_path / "tunnel.pcap"
    path.write_bytes(pcap(fragments_of_a_tunnel(96)))
    tables = tables_of([path])
    cut(tables, Choice(set(tables.ids)), tmp_path / "whole.pcapng")
    assert records(tmp_path / "whole.pcapng") == records(path)
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", key=KEY)
    wire_bytes = b"".join(data for _, _, data in records(tmp_path / "cut.pcapng"))
    inner = ip_address("127.0.0.1").packed
    assert inner in b"".join(data for _, _, data in records(path))
    assert inner not in wire_bytes


def adjusted(before: bytes, after: bytearray) -> bytes:
    record = np.zeros(1, RECORD)
    record["cap_len"] = record["wire_len"] = len(before)
    record["link_type"] = 1
    old, new = (np.frombuffer(bytearray(data), np.uint8) for data in (before, after))
    adjust(old, new, [stack_of(old, record, 0)])
    return new.tobytes()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_correct_checksum_is_recomputed(payload: bytes, data: Any) -> None:
    packet = Ether(**MACS) / IP(src="192.0.2.1", dst="192.0.2.2") / TCP(sport=5672, dport=40000) / payload
    before = bytes(packet)
    after = bytearray(before)
    # addresses begin at 14 + 12, the payload at 14 + 20 + 20
    for at in [*range(26, 34), *range(54, len(before))]:
        after[at] = data.draw(st.integers(0, 255))
    assert all(found == right for _, found, right in full_checksums(Ether(adjusted(before, after))))


def test_an_offloaded_checksum_changes_only_by_the_addresses() -> None:
    """The card finds the sum of the pseudo-header: 127.0.0.1 twice is 2 * (0x7f00 + 1), protocol 6, 20 + 4 bytes."""
    packet = Ether(**MACS) / IP(src="127.0.0.1", dst="127.0.0.1") / TCP(chksum=0xFE02 + 6 + 24) / b"body"
    before = bytes(packet)
    after = bytearray(before)
    after[26:30], after[54:] = bytes([10, 0, 0, 1]), b"****"
    # 10.0.0.1 and 127.0.0.1: 0x0a00 + 1 + 0x7f00 + 1
    assert Ether(adjusted(before, after))[TCP].chksum == 0x8902 + 6 + 24


INSIDE, INSIDE_6 = ip_address("203.0.113.77").packed, ip_address("2001:db8::7777").packed
# Options by their bytes: IANA's registries of IP option numbers and TCP option kinds, RFC 791 section 3.1, RFC 8684
# section 3.4.1; 254 as load balancers write the client's address and port into it.
TCP_WITH_ADDRESS = {
    "client address of a load balancer": [(254, b"\xdc\x04" + INSIDE)],
    "the same beside usual ones": [("NOP", None), ("Timestamp", (7, 9)), (254, b"\xdc\x04" + INSIDE)],
    "kind 200": [(200, b"\xdc\x04" + INSIDE)],
    "another address of multipath TCP": [(30, b"\x34\x01" + INSIDE)],
}
IPV4_WITH_ADDRESS = {
    "record route": bytes([7, 7, 8]) + INSIDE + b"\0",
    "loose source route": bytes([131, 7, 4]) + INSIDE + b"\0",
    "strict source route": bytes([1, 137, 7, 4]) + INSIDE,
    "time stamps": bytes([68, 12, 13, 1]) + INSIDE + bytes(4),
    "after a router alert": bytes([148, 4, 0, 0, 7, 7, 8]) + INSIDE + b"\0",
}


def cut_with_key(packets: list[tuple[int, bytes]], tmp_path: Path) -> list[bytes]:
    (tmp_path / "whole.pcap").write_bytes(pcap(packets))
    tables = tables_of([tmp_path / "whole.pcap"])
    assert tables.ids
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", key=KEY)
    return [data for _, _, data in records(tmp_path / "cut.pcapng")]


@pytest.mark.parametrize("name", TCP_WITH_ADDRESS)
def test_an_address_in_an_option_of_tcp_is_omitted(name: str, tmp_path: Path) -> None:
    packets = []
    for ns, data in rightly_summed(BARE, 14):
        packet = Ether(data)
        packet[TCP].options = TCP_WITH_ADDRESS[name]
        del packet[TCP].dataofs, packet[TCP].chksum, packet[IP].len, packet[IP].chksum
        packets.append((ns, bytes(packet)))
    assert all(INSIDE in data for _, data in packets)
    for (_, old), new in zip(packets, cut_with_key(packets, tmp_path), strict=True):
        assert INSIDE not in new
        assert wrong_checksums(Ether(new)) == []
        assert bytes(Ether(new)[TCP].payload) == bytes(Ether(old)[TCP].payload)
        stamps = [[value for kind, value in Ether(each)[TCP].options if kind == "Timestamp"] for each in (old, new)]
        assert stamps[0] == stamps[1]


@pytest.mark.parametrize("name", IPV4_WITH_ADDRESS)
def test_an_address_in_an_option_of_ipv4_is_omitted(name: str, tmp_path: Path) -> None:
    packets = []
    for ns, data in rightly_summed(BARE, 14):
        bare = Ether(data)
        header = IP(src=bare[IP].src, dst=bare[IP].dst, options=[IPOption(IPV4_WITH_ADDRESS[name])])
        tcp = bare[TCP].copy()
        del tcp.chksum
        packets.append((ns, bytes(Ether(**MACS) / header / tcp)))
    assert all(INSIDE in data for _, data in packets)
    for (_, old), new in zip(packets, cut_with_key(packets, tmp_path), strict=True):
        assert INSIDE not in new
        # with a source route the checksum of TCP is over its last address (RFC 9293, section 3.1)
        assert wrong_checksums(Ether(new)) == [] or "source" in name
        assert bytes(Ether(new)[TCP].payload) == bytes(Ether(old)[TCP].payload)
        assert (bytes([148, 4, 0, 0]) in new) == ("alert" in name)


EXTENSIONS = {
    "routing": IPv6ExtHdrRouting(type=0, addresses=["2001:db8::7777"], segleft=0),
    "home address": IPv6ExtHdrDestOpt(options=[HAO(hoa="2001:db8::7777")]),
    "hop by hop": IPv6ExtHdrHopByHop(options=[RouterAlert(), HBHOptUnknown(otype=0x3E, optdata=INSIDE_6)]),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_address_in_an_extension_header_of_ipv6_is_omitted(name: str, tmp_path: Path) -> None:
    packets = []
    for ns, data in rightly_summed(BARE, 14):
        tcp = Ether(data)[TCP].copy()
        del tcp.chksum
        ends = {5672: "2001:db8::1"}
        header = IPv6Packet(src=ends.get(tcp.sport, "2001:db8::2"), dst=ends.get(tcp.dport, "2001:db8::2"))
        packets.append((ns, bytes(Ether(**MACS) / header / EXTENSIONS[name] / tcp)))
    assert all(INSIDE_6 in data for _, data in packets)
    for (_, old), new in zip(packets, cut_with_key(packets, tmp_path), strict=True):
        assert INSIDE_6 not in new
        assert bytes(Ether(new)[TCP].payload) == bytes(Ether(old)[TCP].payload)
        assert (RouterAlert in Ether(new)) == (name == "hop by hop")


PROXY_HEADERS = {
    "line": b"PROXY TCP4 203.0.113.77 192.0.2.1 56324 5672\r\n",
    "line of IPv6": b"PROXY TCP6 2001:db8::7777 2001:db8::1 56324 5672\r\n",
    "binary": bytes.fromhex("0d0a0d0a000d0a515549540a 2111 000c") + INSIDE + bytes.fromhex("c0000201 dc04 1628"),
    "binary of IPv6": bytes.fromhex("0d0a0d0a000d0a515549540a 2121 0024") + 2 * INSIDE_6 + bytes.fromhex("dc04 1628"),
}


@pytest.mark.parametrize("name", PROXY_HEADERS)
@pytest.mark.parametrize("size", [7, 1000])
def test_a_header_of_the_proxy_protocol_loses_its_addresses(name: str, size: int, tmp_path: Path) -> None:
    """In one packet or several; nothing else of the stream changes."""
    wire, header, rest = Wire(), PROXY_HEADERS[name], bytes.fromhex("414d5150 00000901 0800000000 0000ce")
    for at in range(0, len(header + rest), size):
        wire.add(CLIENT, (header + rest)[at : at + size])
    wire.add(SERVER, b"")
    write_capture(tmp_path / "whole.pcap", [wire])
    tables = tables_of([tmp_path / "whole.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", key=KEY)
    wire_bytes = b"".join(data[40:] for _, _, data in records(tmp_path / "cut.pcapng"))
    assert [each for each in (b"203.0.113", b"2001:db8", INSIDE, INSIDE_6[:4]) if each in wire_bytes] == []
    assert wire_bytes.endswith(rest)
    columns = ["frame_no", "sender", "stream_offset", "size", "frame_type", "status"]
    before, after = tables.frames(), tables_of([tmp_path / "cut.pcapng"]).frames()
    assert [[row[name] for name in columns] for row in after] == [[row[name] for name in columns] for row in before]
