"""What packets are wrapped in, as data for the tests: headers that scapy builds, and some written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from scapy.contrib.chdlc import CHDLC
from scapy.contrib.erspan import ERSPAN_II, ERSPAN_III, ERSPAN_PlatformSpecific
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.contrib.mpls import MPLS, EoMCW
from scapy.fields import CharEnumField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, GRE_PPTP, LLC, SNAP, CookedLinux, Dot1Q, Ether, Loopback
from scapy.layers.pflog import PFLog
from scapy.layers.ppp import HDLC, PPP, PPPoE
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

ETHERNET, FRAME_RELAY, PFLOG, NFLOG, PKTAP = 1, 107, 117, 239, 258
FRAME, IPV4, IPV6 = "frame", "ipv4", "ipv6"  # what is inside
BRIDGED = 0x6558

MACS: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
ENDS: dict[str, Any] = {"src": "192.0.2.1", "dst": "192.0.2.2"}
ENDS_6: dict[str, Any] = {"src": "2001:db8:ffff::1", "dst": "2001:db8:ffff::2"}
OUTER, OUTER_6 = Ether(**MACS) / IP(**ENDS, ttl=9), Ether(**MACS) / IPv6(**ENDS_6)


@dataclass(frozen=True)
class Wrap:
    """`headers` before a packet; `text`: theirs in column `encapsulation`."""

    text: str
    headers: Packet
    inside: str = FRAME
    link: int = ETHERNET

    def __call__(self, frame: bytes) -> bytes:
        """An Ethernet frame (without tags) or its IP packet, wrapped."""
        return bytes(self.headers / Raw(frame if self.inside == FRAME else frame[14:]))


def carrying(protocol: int) -> Packet:
    """IPv4 in front of what is no header of scapy's."""
    return Ether(**MACS) / IP(**ENDS, proto=protocol)


class Nflog(Packet):
    """LINKTYPE_NFLOG as libpcap documents it: 4 bytes, then attributes (size with its 4 bytes of header, type, value,
    padding to 4 bytes): here of type 1 (4 bytes), 10 (the prefix "in:"), and 9, the packet. Sizes and types are in the
    byte order of the capturing host, which `order` names for `struct`."""

    name = "NFLOG"
    fields_desc: ClassVar = [CharEnumField("order", "<", {"<": "little", ">": "big"})]

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        attributes = ((1, b"\x08\x00\x03\x00"), (10, b"in:\x00\x00"), (9, payload))
        parts = (
            struct.pack(self.order + "HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
            for number, value in attributes
        )
        return bytes.fromhex("02 00 0007") + b"".join(parts)


def pktap(link: int) -> Packet:
    """LINKTYPE_PKTAP, version 1, as macOS writes it: 108 bytes, little-endian: its size, 1 for a packet, the link type;
    here the rest is zero but for the name of the interface."""
    return Raw(struct.pack("<III24s", 108, 1, link, b"en0") + bytes(72))


def frame_relay(data: str) -> Packet:
    """RFC 2427: address, control byte, protocol."""
    return Raw(bytes.fromhex(data))


def vxlan(port: int = 4789, vni: int = 42, flags: int = 8) -> Packet:
    return UDP(sport=50000, dport=port) / VXLAN(vni=vni, flags=flags)


def gpe(protocol: int) -> Packet:
    return UDP(sport=50000, dport=4790) / VXLAN(vni=42, flags=0x0C, NextProtocol=protocol)


def gtp_u(teid: int = 7, **options: Any) -> Packet:
    return UDP(sport=2152, dport=2152) / GTP_U_Header(teid=teid, gtp_type=255, **options)


def pptp(call: int, **options: Any) -> Packet:
    return GRE_PPTP(call_id=call, seqnum_present=1, **options)


def geneve(proto: int = BRIDGED, options: Iterable[Packet] = ()) -> Packet:
    return UDP(sport=50000, dport=6081) / GENEVE(vni=7, proto=proto, options=list(options))


OPTIONS = [GeneveOptions(classid=0x0108, type=1, data=bytes(8)), GeneveOptions(classid=0x0103, type=3, data=b"1234")]
# RFC 8926 section 3.4, by hand: version 0 and 2 words of options; O and C bits; protocol; VNI 0xfffffe, reserved;
# option class 0xffff, type 0x81 (critical), length 1 word, data.
GENEVE_BY_HAND = bytes.fromhex("02 c0 6558 fffffe 00 ffff 81 01 deadbeef")
# GRE with sequence number (RFC 2890: flags 0x1000) of protocol 0x22eb, sequence 1; draft-foschiano-erspan 4.3: version
# 2 and VLAN 5, COS 1 and session 0x155 (0x2155), time, group 9, then P 0, FT 0 (Ethernet), hardware 1, D 0, Gra 2, O 1:
# 0b0_00000_000001_0_10_1 = 0x0015; 8 bytes for the platform.
ERSPAN_III_BY_HAND = bytes.fromhex("1000 22eb 00000001 2005 2155 01020304 0009 0015 0c00000000000000")
# The same with no sequence number, frame type 2 (IP), which is 0b0_00010_000001_0_10_0 = 0x0814, and no platform part.
ERSPAN_III_OF_IP = bytes.fromhex("0000 22eb 2005 2155 01020304 0009 0814")

GRE_SEQ: dict[str, Any] = {"seqnum_present": 1, "sequence_number": 99}
GRE_KEY: dict[str, Any] = {"key_present": 1, "key": 0xFFFFFFFF}
SUM: dict[str, Any] = {"chksum_present": 1}

WRAPS = {
    "vxlan": Wrap("vxlan vni=42", OUTER / vxlan()),
    "vxlan of linux": Wrap("vxlan vni=0", OUTER / vxlan(8472, 0)),
    "vxlan group policy, highest vni": Wrap("vxlan vni=16777215", OUTER / vxlan(vni=0xFFFFFF, flags=0x88)),
    "vxlan over ipv6": Wrap("vxlan vni=42", OUTER_6 / vxlan()),
    "vxlan in a tagged frame": Wrap(
        "vxlan vni=42", Ether(**MACS) / Dot1Q(vlan=5) / IP(**ENDS) / vxlan()
    ),
    "vxlan captured on all interfaces": Wrap(
        "vxlan vni=42", CookedLinux(proto=0x0800) / IP(**ENDS) / vxlan(), link=113
    ),
    "geneve": Wrap("geneve vni=7", OUTER / geneve()),
    "geneve with options": Wrap("geneve vni=7", OUTER_6 / geneve(options=OPTIONS)),
    "geneve of ip": Wrap("geneve vni=7", OUTER / geneve(0x0800, OPTIONS), IPV4),
    "geneve of ipv6": Wrap("geneve vni=7", OUTER / geneve(0x86DD), IPV6),
    "geneve by hand": Wrap("geneve vni=16777214", OUTER / UDP(sport=50000, dport=6081) / Raw(GENEVE_BY_HAND)),
    "gre": Wrap("gre", OUTER / GRE(proto=0x0800), IPV4),
    "gre of ipv6": Wrap("gre", OUTER_6 / GRE(proto=0x86DD), IPV6),
    "gre bridging": Wrap("gre", OUTER / GRE(proto=BRIDGED)),
    "gre key": Wrap("gre key=4294967295", OUTER / GRE(proto=BRIDGED, **GRE_KEY)),
    "gre key 0": Wrap("gre key=0", OUTER / GRE(proto=0x0800, key_present=1, key=0), IPV4),
    "gre checksum": Wrap("gre", OUTER / GRE(proto=0x0800, **SUM), IPV4),
    "gre sequence": Wrap("gre", OUTER / GRE(proto=0x0800, **GRE_SEQ), IPV4),
    "gre checksum key sequence": Wrap(
        "gre key=4294967295", OUTER_6 / GRE(proto=BRIDGED, **GRE_KEY, **GRE_SEQ, **SUM)
    ),
    "erspan i": Wrap("erspan-i", OUTER / GRE(proto=0x88BE)),
    "erspan ii": Wrap("erspan-ii session=5", OUTER / GRE(proto=0x88BE, **GRE_SEQ) / ERSPAN_II(vlan=9, session_id=5)),
    "erspan ii with key": Wrap(
        "erspan-ii session=1023", OUTER / GRE(proto=0x88BE, **GRE_SEQ, **GRE_KEY) / ERSPAN_II(session_id=1023, en=3)
    ),
    "erspan iii": Wrap("erspan-iii session=5", OUTER_6 / GRE(proto=0x22EB, **GRE_SEQ) / ERSPAN_III(session_id=5, d=1)),
    "erspan iii with platform header": Wrap(
        "erspan-iii session=5",
        OUTER / GRE(proto=0x22EB, **GRE_SEQ) / ERSPAN_III(session_id=5, o=1) / ERSPAN_PlatformSpecific(platf_id=3),
    ),
    "erspan iii by hand": Wrap("erspan-iii session=341", carrying(47) / Raw(ERSPAN_III_BY_HAND)),
    "erspan iii of ip": Wrap("erspan-iii session=341", carrying(47) / Raw(ERSPAN_III_OF_IP), IPV4),
    "4in4": Wrap("4in4", carrying(4), IPV4),
    "6in4": Wrap("6in4", carrying(41), IPV6),
    "4in6": Wrap("4in6", Ether(**MACS) / IPv6(**ENDS_6, nh=4), IPV4),
    "6in6": Wrap("6in6", Ether(**MACS) / IPv6(**ENDS_6, nh=41), IPV6),
    "mpls": Wrap("mpls label=16", Ether(**MACS, type=0x8847) / MPLS(label=16, s=1), IPV4),
    "mpls upstream": Wrap("mpls label=16", Ether(**MACS, type=0x8848) / MPLS(label=16, s=1), IPV4),
    "mpls of ipv6": Wrap("mpls label=2", Ether(**MACS, type=0x8847) / MPLS(label=2, s=1), IPV6),
    "mpls stack": Wrap(
        "mpls label=1048575",
        Ether(**MACS, type=0x8847) / MPLS(label=16, s=0) / MPLS(label=17, s=0) / MPLS(label=0xFFFFF, s=1),
        IPV4,
    ),
    "mpls pseudowire": Wrap("mpls label=101", Ether(**MACS, type=0x8847) / MPLS(label=101, s=1) / EoMCW(seq=7)),
    "mpls pseudowire without control word": Wrap("mpls label=102", Ether(**MACS, type=0x8847) / MPLS(label=102, s=1)),
    "mpls pseudowire without control word, hardware address with another first digit": Wrap(
        "mpls label=102",
        Ether(**MACS, type=0x8847) / MPLS(label=102, s=1) / Ether(dst="ac:de:48:00:00:02", type=0x0800),
        IPV4,
    ),
    "pptp": Wrap("pptp call=4660", OUTER / pptp(0x1234, acknum_present=1) / HDLC() / PPP(proto=0x21), IPV4),
    "pptp of ipv6, without acknowledgement, address and control": Wrap(
        "pptp call=65535", OUTER / pptp(0xFFFF) / PPP(proto=0x57), IPV6
    ),
    "vxlan-gpe": Wrap("vxlan-gpe vni=42", OUTER / gpe(3)),
    "vxlan-gpe of ip": Wrap("vxlan-gpe vni=42", OUTER / gpe(1), IPV4),
    "vxlan-gpe of ipv6": Wrap("vxlan-gpe vni=42", OUTER_6 / gpe(2), IPV6),
    "gtp-u": Wrap("gtp-u teid=4294967295", OUTER / gtp_u(0xFFFFFFFF), IPV4),
    "gtp-u of ipv6, numbered": Wrap("gtp-u teid=7", OUTER / gtp_u(S=1, seq=9), IPV6),
    "gtp-u with an extension header": Wrap(
        "gtp-u teid=7", OUTER / gtp_u(E=1, next_ex=0x85) / GTPPDUSessionContainer(QFI=5), IPV4
    ),
    "vn-tag": Wrap("", Ether(**MACS, type=0x8926) / Raw(bytes.fromhex("8001 0002 0800")), IPV4),
    "e-tag": Wrap("", Ether(**MACS, type=0x893F) / Raw(bytes.fromhex("0001 0002 0000 86dd")), IPV6),
    "mpls over udp": Wrap("mpls label=100", OUTER / UDP(sport=50000, dport=6635) / MPLS(label=100, s=1), IPV4),
    "mpls over ip": Wrap("mpls label=100", carrying(137) / MPLS(label=100, s=1), IPV4),
    "pppoe": Wrap("pppoe session=65535", Ether(**MACS) / PPPoE(sessionid=0xFFFF) / PPP(proto=0x21), IPV4),
    "pppoe of ipv6": Wrap("pppoe session=3", Ether(**MACS) / PPPoE(sessionid=3) / PPP(proto=0x57), IPV6),
    "pppoe link": Wrap("pppoe session=3", PPPoE(sessionid=3) / PPP(proto=0x21), IPV4, link=51),
    "ppp link": Wrap("", PPP(proto=0x21), IPV4, link=9),
    "ppp link of ipv6": Wrap("", PPP(proto=0x57), IPV6, link=9),
    "ppp link in hdlc framing": Wrap("", HDLC() / PPP(proto=0x21), IPV4, link=50),
    "ppp link, protocol in one byte": Wrap("", Raw(b"\x21"), IPV4, link=9),
    "nflog": Wrap("", Nflog(), IPV4, link=NFLOG),
    "nflog of a big-endian host": Wrap("", Nflog(order=">"), IPV4, link=NFLOG),
    "nflog of ipv6": Wrap("", Nflog(), IPV6, link=NFLOG),
    "pflog": Wrap("", PFLog(), IPV4, link=PFLOG),
    "pflog with padding by hand": Wrap("", Raw(b"\x3d\x02" + bytes(62)), IPV4, link=PFLOG),
    "enc by hand": Wrap("", Raw(struct.pack("<III", 2, 0x1234, 0x1000)), IPV4, link=109),
    "pktap by hand": Wrap("", pktap(1), link=PKTAP),
    "pktap of the loopback interface by hand": Wrap("", pktap(0) / Loopback(type=30), IPV6, link=PKTAP),
    "c-hdlc": Wrap("", CHDLC(), IPV4, link=104),
    "c-hdlc of ipv6, with its direction, by hand": Wrap("", Raw(b"\x01\x0f\x00\x86\xdd"), IPV6, link=205),
    "ppp with its direction by hand": Wrap("", Raw(b"\x01\xff\x03\x00\x21"), IPV4, link=204),
    "frame relay by hand": Wrap("", frame_relay("1841 03 cc"), IPV4, link=FRAME_RELAY),
    "frame relay of ipv6 by hand": Wrap("", frame_relay("1841 03 8e"), IPV6, link=FRAME_RELAY),
    "frame relay with snap by hand": Wrap("", frame_relay("1841 03 00 80 000000 0800"), IPV4, link=FRAME_RELAY),
    "frame relay with a long address by hand": Wrap("", frame_relay("18400203 03 cc"), IPV4, link=FRAME_RELAY),
    "frame relay of cisco by hand": Wrap("", frame_relay("1841 0800"), IPV4, link=FRAME_RELAY),
    "bridged frame relay by hand": Wrap("", frame_relay("1841 03 00 80 0080c2 0007"), link=FRAME_RELAY),
    "frame relay with its direction by hand": Wrap("", frame_relay("01 1841 03 cc"), IPV4, link=206),
    "llc and snap": Wrap("", Ether(**MACS, type=76) / LLC() / SNAP(code=0x0800), IPV4),
    "llc and snap in a tagged frame": Wrap(
        "", Ether(**MACS) / Dot1Q(vlan=5, type=76) / LLC() / SNAP(code=0x86DD), IPV6
    ),
    "vxlan in gre": Wrap("gre key=1 / vxlan vni=42", OUTER / GRE(proto=0x0800, key_present=1, key=1) / IP() / vxlan()),
    "mirrored overlay": Wrap(
        "vxlan vni=42 / geneve vni=7 / gre", OUTER / vxlan() / OUTER_6 / geneve() / OUTER / GRE(proto=0x86DD), IPV6
    ),
    "four deep": Wrap(
        "pppoe session=3 / 6in4 / erspan-ii session=0 / 4in4",
        Ether(**MACS) / PPPoE(sessionid=3) / PPP() / IP(**ENDS) / IPv6(**ENDS_6)
        / GRE(proto=0x88BE, **GRE_SEQ) / ERSPAN_II() / carrying(4),
        IPV4,
    ),
}  # fmt: skip
