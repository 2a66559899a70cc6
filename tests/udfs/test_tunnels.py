"""Packets in tunnels: the segment is the one that scapy and tshark find, the frames are those of the bare capture."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import independent_tcp
import pytest
from decoding import connections, decode_table, in_flow_order, rows_of, runs
from encapsulations import (
    BRIDGED,
    FRAME_RELAY,
    IPV6,
    MACS,
    OUTER,
    PFLOG,
    PKTAP,
    WRAPS,
    Wrap,
    carrying,
    frame_relay,
    geneve,
    gtp_u,
    pktap,
    vxlan,
)
from mangled import packets_of
from pcap_files import pcap
from scapy.contrib.chdlc import CHDLC
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6 as IPv6Packet
from scapy.layers.l2 import ARP, GRE, CookedLinux, Ether
from scapy.layers.pflog import PFLog
from scapy.layers.ppp import HDLC, PPP, PPP_LCP, PPPoE
from scapy.packet import Packet, Raw
from test_layers import PAYLOAD, V4, V6, dissected, tcp
from test_source import rows

from codec.net.headers import skip_name, tunnel_name
from codec.net.layers import Packets
from udfs.source.packets import PcapReader

CAPTURES = Path(__file__).parents[1] / "captures"
BARE, BARE_6 = CAPTURES / "091_confirms_and_return.pcap", CAPTURES / "091_ipv6.pcapng"
LINKS = {1: Ether, 113: CookedLinux, 51: PPPoE, 9: PPP, 50: HDLC, 104: CHDLC, PFLOG: PFLog}

# scapy shows these, and those by hand, as they are; tshark takes them apart, but for some: frame type 2, attributes in
# the byte order of another host, two link types.
NOT_READ_BY_TSHARK = {
    "erspan iii of ip", "nflog of a big-endian host", "c-hdlc of ipv6, with its direction, by hand",
    "frame relay with its direction by hand",
}  # fmt: skip
NOT_TAKEN_APART = {
    "erspan iii of ip",
    "mpls upstream",
    "ppp link, protocol in one byte",
    "vn-tag",
    "e-tag",
    "nflog",
    "nflog of a big-endian host",
    "nflog of ipv6",
}

every_wrap = pytest.mark.parametrize("name", WRAPS)


def inner(wrap: Wrap) -> bytes:
    """The frame that goes inside."""
    return bytes(Ether(**MACS) / (IPv6Packet(**V6) if wrap.inside == IPV6 else IP(**V4)) / tcp())


def encapsulation_text(packets: Packets, row: int = 0) -> str:
    return " / ".join(tunnel_name(int(tunnel)) for tunnel in packets.tunnels[row] if tunnel)


def segment(packets: Packets, row: int = 0) -> tuple[Any, ...]:
    """Source, target, sequence number and payload of a packet."""
    key, found = packets.keys[row].tobytes(), packets.segments[row]
    addresses = [IPv6Address(key[:16]), IPv6Address(key[16:32])]
    ends = [
        (str(address.ipv4_mapped or address), port)
        for address, port in zip(addresses, struct.unpack(">HH", key[32:]), strict=True)
    ]
    source, at = int(found["direction"]), int(found["payload_at"])
    payload = packets.data[at : at + int(found["cap_len"])].tobytes()
    assert found["wire_len"] == found["cap_len"]
    return ends[source], ends[1 - source], int(found["seq"]), payload


@every_wrap
def test_segment_is_the_one_that_scapy_finds(name: str) -> None:
    wrap = WRAPS[name]
    data = wrap(inner(wrap))
    packets = dissected(data, link=wrap.link)
    assert packets.skip.tolist() == [0]
    assert encapsulation_text(packets) == wrap.text
    found = (Ether(inner(wrap)) if "by hand" in name or name in NOT_TAKEN_APART else LINKS[wrap.link](data))[TCP]
    ip = found.underlayer
    source, target = ((ip_address(ip.src).compressed, found.sport), (ip_address(ip.dst).compressed, found.dport))
    assert segment(packets) == (source, target, found.seq, bytes(found.payload)[: len(PAYLOAD)])
    assert segment(packets)[3] == PAYLOAD


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("link", sorted({wrap.link for name, wrap in WRAPS.items() if name not in NOT_READ_BY_TSHARK}))
def test_segment_is_the_one_that_tshark_finds(link: int, tmp_path: Path) -> None:
    wraps = [wrap for name, wrap in WRAPS.items() if wrap.link == link and name not in NOT_READ_BY_TSHARK]
    path = tmp_path / "wrapped.pcap"
    path.write_bytes(pcap([(n, wrap(inner(wrap))) for n, wrap in enumerate(wraps)], link))
    names = ["ip.src", "ipv6.src", "tcp.srcport", "tcp.dstport", "tcp.seq_raw", "tcp.payload"]
    names += ["vxlan.vni", "geneve.vni", "gre.key", "erspan.spanid", "mpls.label", "pppoe.session_id", "gtp.teid"]
    names += ["gre.key.call_id"]
    command = ["tshark", "-n", "-r", str(path), "-T", "json", "-d", "udp.port==8472,vxlan"]
    command += ["-d", "mpls.label==101,pwethcw", "-d", "mpls.label==102,pwethnocw"]
    command += [part for name in names for part in ("-e", name)]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(listed) == len(wraps)
    for wrap, entry in zip(wraps, listed, strict=True):
        layers = entry["_source"]["layers"]
        packets = dissected(wrap(inner(wrap)), link=wrap.link)
        (address, port), (_, target), seq, payload = segment(packets)
        assert ip_address(layers["ipv6.src" if wrap.inside == IPV6 else "ip.src"][-1]).compressed == address
        assert [layers[name] for name in names[2:6]] == [[str(port)], [str(target)], [str(seq)], [payload.hex()]]
        numbers = [int(layers[name][-1], 0) for name in names[6:] if name in layers]
        assert {int(part.split("=")[1]) for part in wrap.text.split(" / ") if "=" in part} <= set(numbers)


def frames(path: Path) -> list[dict[str, Any]]:
    """All that the decoder says of a capture, but its name."""
    found = [row for row in rows_of(decode_table(in_flow_order(runs([path])))) if row["kind"] != "capture"]
    for row in found:
        del row["file"], row["capture_file"]
        if row["facts"]:
            del row["facts"]["capture_file"]
    return sorted(found, key=lambda row: (row["connection_id"], row["kind"], row["frame_no"] or 0))


BARE_FRAMES: dict[Path, list[dict[str, Any]]] = {}


def bare_frames(path: Path) -> list[dict[str, Any]]:
    if path not in BARE_FRAMES:
        BARE_FRAMES[path] = frames(path)
        assert len(BARE_FRAMES[path]) > 20
    return BARE_FRAMES[path]


@every_wrap
def test_wrapped_capture_gives_the_frames_of_the_bare_one(name: str, tmp_path: Path) -> None:
    wrap = WRAPS[name]
    bare = BARE_6 if wrap.inside == IPV6 else BARE
    packets = [(ns, wrap(data)) for ns, _, data in independent_tcp.records(bare)]
    path = tmp_path / "wrapped.pcap"
    path.write_bytes(pcap(packets, wrap.link))
    assert frames(path) == bare_frames(bare)


def test_bare_and_wrapped_copies_are_retransmissions_of_one_connection(tmp_path: Path) -> None:
    wrap = WRAPS["vxlan"]
    packets = [(ns, copy) for ns, _, data in independent_tcp.records(BARE) for copy in (data, wrap(data))]
    path = tmp_path / "both.pcap"
    path.write_bytes(pcap(packets))
    (once,), (twice,) = (connections(rows_of(decode_table(in_flow_order(runs([each]))))) for each in (BARE, path))
    columns = ["frame_type", "name", "arguments", "properties", "stream_offset", "size", "ts_ns", "payload", "status"]
    assert [[row[column] for column in columns] for row in once.rows] == [
        [row[column] for column in columns] for row in twice.rows
    ]
    payload = sum(len(packet.payload) for packet in independent_tcp.packets([BARE]))
    sent = [twice.facts[sender]["retransmitted_bytes"] for sender in ("client", "server")]
    assert sum(sent) == payload


def test_packets_show_the_encapsulation_and_what_is_inside(tmp_path: Path) -> None:
    arp = bytes(OUTER / vxlan() / Ether(**MACS) / ARP())
    udp = bytes(OUTER / GRE(proto=0x0800) / IP(**V4) / UDP(dport=53))
    data = [WRAPS["mirrored overlay"](inner(WRAPS["mirrored overlay"])), arp, udp, inner(WRAPS["vxlan"])]
    path = tmp_path / "four.pcap"
    path.write_bytes(pcap(enumerate(data)))
    columns = ["encapsulation", "src_ip", "src_port", "dst_ip", "dst_port", "payload", "skipped"]
    assert [tuple(row[column] for column in columns) for row in rows(PcapReader, path)] == [
        ("vxlan vni=42 / geneve vni=7 / gre", "2001:db8::9", 40000, "2001:db8::2", 5672, PAYLOAD, None),
        ("vxlan vni=42", None, None, None, None, None, "arp"),
        ("gre", "10.0.0.9", None, "10.0.0.2", None, None, "udp"),
        (None, "10.0.0.9", 40000, "10.0.0.2", 5672, PAYLOAD, None),
    ]
    found = rows(PcapReader, path, ports="5672")
    assert [row["encapsulation"] for row in found] == ["vxlan vni=42 / geneve vni=7 / gre", None]


def nested(depth: int) -> bytes:
    """IPv4 in IPv4, `depth` times."""
    packet: Packet = IP(**V4) / tcp()
    for _ in range(depth):
        packet = IP(src="192.0.2.1", dst="192.0.2.2") / packet
    return bytes(packet)


def test_tunnels_nest_four_deep_and_no_deeper() -> None:
    assert encapsulation_text(dissected(nested(4), link=101)) == "4in4 / 4in4 / 4in4 / 4in4"
    packets = dissected(nested(5), link=101)
    assert (skip_name(int(packets.skip[0])), encapsulation_text(packets)) == (
        "too-many-tunnels",
        "4in4 / 4in4 / 4in4 / 4in4",
    )


@pytest.mark.parametrize(
    ("reason", "headers", "link"),
    [
        ("udp", OUTER / vxlan(flags=0), 1),  # no VNI: something else on this port
        ("udp", OUTER / UDP(sport=4789, dport=53), 1),
        ("udp", OUTER / UDP(dport=6081) / Raw(bytes.fromhex("40 00 6558 000007 00")), 1),  # Geneve version 1
        ("udp", OUTER / vxlan(4790, flags=8 + 4), 1),  # VXLAN-GPE of no protocol
        ("udp", OUTER / UDP(dport=2152) / Raw(bytes.fromhex("30 01 0000 00000007")), 1),  # echo request of GTP-U
        ("truncated-header", OUTER / gtp_u(E=1, next_ex=0x85) / Raw(b"\1\0\5"), 1),
        ("gre", carrying(47) / Raw(bytes.fromhex("2081 880b 0000 0001 00000007")), 1),  # acknowledgement of PPTP
        ("ppp-0x00fd", carrying(47) / Raw(bytes.fromhex("3001 880b 0004 0001 00000007 fd 900000")), 1),  # encrypted
        ("gre", carrying(47) / Raw(bytes.fromhex("4000 0800 0000 0000")), 1),  # source routing
        ("gre", carrying(47) / Raw(bytes.fromhex("0000 0000")), 1),  # keep-alive of a tunnel
        ("gre", carrying(47) / Raw(bytes.fromhex("0000 22eb 2005 2155 01020304 0009 0414")), 1),  # frame type 1
        ("ethertype-0x883e", carrying(47) / Raw(bytes.fromhex("0000 883e")), 1),
        ("mpls", Ether(type=0x8847) / MPLS(label=16, s=1) / Raw(b"\x10\x00\x00\x07"), 1),  # associated channel
        ("pppoe", Ether(**MACS) / PPPoE(code=0xA7) / Raw(b"1234"), 1),  # not of the session stage
        ("ppp-0xc021", Ether(**MACS) / PPPoE() / PPP(proto=0xC021) / PPP_LCP(), 1),
        ("ppp-0xc021", HDLC() / PPP(proto=0xC021) / PPP_LCP(), 50),
        ("ethertype-0x2000", CHDLC(proto=0x2000), 104),  # CDP
        ("unknown-link-type-107", frame_relay("1841 03 cf 0021"), FRAME_RELAY),  # PPP
        ("unknown-link-type-107", frame_relay("1841 03 80 0080c2 000e"), FRAME_RELAY),  # bridged spanning tree
        ("truncated-header", frame_relay("1841 03 00"), FRAME_RELAY),
        ("unknown-link-type-250", pktap(250), PKTAP),
        ("truncated-header", Raw(bytes(11)), 109),
        ("arp", OUTER / geneve(0x0806) / ARP(), 1),
        ("llc", OUTER / GRE(proto=BRIDGED) / Raw(bytes(12) + b"\x00\x26"), 1),
        ("truncated-header", OUTER / vxlan(), 1),
        ("truncated-header", Ether(type=0x8847) / (bytes.fromhex("00010000") * 1000), 1),  # no bottom of the stack
    ],
)
def test_other_encapsulations_and_payloads_are_counted_by_name(reason: str, headers: Packet, link: int) -> None:
    assert skip_name(int(dissected(bytes(headers), link=link).skip[0])) == reason


@every_wrap
def test_a_packet_cut_anywhere_shows_the_headers_that_remain(name: str) -> None:
    wrap = WRAPS[name]
    data = wrap(inner(wrap))
    header = len(data) - len(PAYLOAD)
    for size in range(len(data)):
        packets = dissected(data[:size], link=wrap.link, wire=len(data))
        reason = skip_name(int(packets.skip[0])) if packets.skip[0] else None
        if size >= header:
            assert (reason, packets.segments["cap_len"][0], packets.segments["wire_len"][0]) == (None, size - header, 8)
        else:
            assert reason in ("truncated-header", "udp", "gre")


def test_mangled_packets_give_the_same_without_the_compiler() -> None:
    """Plain Python raises IndexError when a kernel reads past a packet; compiled code would read on."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "mangled.py"), "2500"]
    plain = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    compiled = list(packets_of(2500))
    assert plain.stdout.splitlines() == compiled
    assert len({line.split()[0] for line in compiled}) > 15
