"""Numbers and names of the layers below TCP, and skip codes: the reasons why a packet has no TCP segment.

Sources: the LINKTYPE_ registry of tcpdump.org, the EtherType registry of IEEE, the registries of IANA for protocol
numbers, ports, and PPP.
"""

from __future__ import annotations

from codec.compiler.limits import LIMITS

# Layers: types of the next header of a packet. The first ones are of packets without encapsulation.
(
    ETHERNET, LINUX_SLL, LINUX_SLL2, BSD_NULL, BSD_LOOP, NFLOG, PFLOG, PKTAP, C_HDLC, FRAME_RELAY,
    ETHERTYPE, IP, IPV4, IPV6, IP_PROTOCOL, BARE,
) = range(16)  # fmt: skip
VXLAN, GENEVE, GRE, MPLS, PPPOE, PPP, VXLAN_GPE, GTP_U = range(BARE, BARE + 8)
UNKNOWN_LAYER = -1
MAX_LAYERS = LIMITS.packet_headers
MAX_TUNNELS = LIMITS.tunnels

# Link types, the most frequent first: number, name, how many bytes there are before the first layer, that layer. 12 and
# 14 are DLT_RAW as some systems and OpenBSD number it in files; 204 to 206 begin with the direction of the packet.
LINK_NULL, LINK_FRAME_RELAY, LINK_LOOP, LINK_NFLOG = 0, 107, 108, 239
LINKS = (
    (1, "ethernet", 0, ETHERNET), (113, "linux-sll", 0, LINUX_SLL), (276, "linux-sll2", 0, LINUX_SLL2),
    (LINK_NULL, "null", 0, BSD_NULL), (LINK_LOOP, "loop", 0, BSD_LOOP), (101, "raw", 0, IP), (12, "raw", 0, IP),
    (14, "raw", 0, IP), (228, "ipv4", 0, IPV4), (229, "ipv6", 0, IPV6), (258, "pktap", 0, PKTAP),
    (9, "ppp", 0, PPP), (50, "ppp-hdlc", 0, PPP), (204, "ppp", 1, PPP), (51, "pppoe", 0, PPPOE), (219, "mpls", 0, MPLS),
    (LINK_NFLOG, "nflog", 0, NFLOG), (117, "pflog", 0, PFLOG), (109, "enc", 12, IP),
    (104, "c-hdlc", 0, C_HDLC), (205, "c-hdlc", 1, C_HDLC),
    (LINK_FRAME_RELAY, "frame-relay", 0, FRAME_RELAY), (206, "frame-relay", 1, FRAME_RELAY),
)  # fmt: skip
LINK_NAMES = {number: name for number, name, _, _ in LINKS}
LINK_LAYERS = tuple((number, size, layer) for number, _, size, layer in LINKS)
ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_OLD_QINQ = 0x8100, 0x88A8, 0x9100
ETHERTYPE_E_TAG, ETHERTYPE_VN_TAG = 0x893F, 0x8926
ETHERTYPE_LEAST = 0x0600  # below, the two bytes are the length of an IEEE 802.3 frame
SNAP, SNAP_BYTES = 0xAAAA03, 8  # the first three bytes of an LLC header that is followed by one of SNAP
# The layer of each number: (number, layer), the most frequent first.
ETHERTYPE_LAYERS = (
    (0x8847, MPLS),
    (0x8848, MPLS),  # with an upstream-assigned label
    (0x8864, PPPOE),
    (0x6558, ETHERNET),  # transparent Ethernet bridging
    (0x880B, PPP),
)
NFLOG_PAYLOAD = 9  # the attribute with the IP packet
ETHERTYPE_ERSPAN, ETHERTYPE_ERSPAN_III = 0x88BE, 0x22EB  # only inside GRE
UDP_PORT_LAYERS = (
    (4789, VXLAN),
    (8472, VXLAN),  # Linux, before the port was assigned
    (6081, GENEVE),
    (6635, MPLS),
    (4790, VXLAN_GPE),
    (2152, GTP_U),
)
VXLAN_GPE_LAYERS = ((1, IPV4), (2, IPV6), (3, ETHERNET), (5, MPLS))
PPP_LAYERS = ((0x0021, IPV4), (0x0057, IPV6), (0x0281, MPLS))
FAMILY_IPV4 = 2
FAMILY_IPV6 = (10, 24, 28, 30)  # AF_INET6 of Linux, NetBSD and OpenBSD, FreeBSD, macOS

PKTAP_BYTES = 12  # of its header, up to the type of the link
# Frame relay (RFC 2427 sections 3 and 4.2): the control octet; protocols (NLPID); bridged Ethernet in SNAP, with and
# without its checksum.
UI, NLPID_SNAP, NLPID_IPV6, NLPID_IPV4 = 0x03, 0x80, 0x8E, 0xCC
BRIDGED_OUI, BRIDGED_ETHERNET = 0x0080C2, (1, 7)

PROTOCOL_HOP_BY_HOP, PROTOCOL_IPV4, PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_IPV6, PROTOCOL_ROUTING = 0, 4, 6, 17, 41, 43
PROTOCOL_FRAGMENT, PROTOCOL_GRE, PROTOCOL_AH, PROTOCOL_DESTINATION, PROTOCOL_MPLS = 44, 47, 51, 60, 137
EXTENSION_HEADERS = (PROTOCOL_HOP_BY_HOP, PROTOCOL_ROUTING, PROTOCOL_DESTINATION, PROTOCOL_FRAGMENT)  # of IPv6
PROTOCOL_LAYERS = ((PROTOCOL_GRE, GRE), (PROTOCOL_MPLS, MPLS))

# Encapsulations: name, and name of their number.
(
    IN_VXLAN, IN_GENEVE, IN_GRE, IN_ERSPAN_I, IN_ERSPAN_II, IN_ERSPAN_III, IN_MPLS, IN_PPPOE,
    IPV4_IN_IPV4, IPV6_IN_IPV4, IPV4_IN_IPV6, IPV6_IN_IPV6, IN_VXLAN_GPE, IN_GTP_U, IN_PPTP,
) = range(1, 16)  # fmt: skip
TUNNEL_NAMES = {
    IN_VXLAN: ("vxlan", "vni"), IN_GENEVE: ("geneve", "vni"), IN_GRE: ("gre", "key"), IN_ERSPAN_I: ("erspan-i", ""),
    IN_ERSPAN_II: ("erspan-ii", "session"), IN_ERSPAN_III: ("erspan-iii", "session"), IN_MPLS: ("mpls", "label"),
    IN_PPPOE: ("pppoe", "session"), IPV4_IN_IPV4: ("4in4", ""), IPV6_IN_IPV4: ("6in4", ""), IPV4_IN_IPV6: ("4in6", ""),
    IPV6_IN_IPV6: ("6in6", ""), IN_VXLAN_GPE: ("vxlan-gpe", "vni"), IN_GTP_U: ("gtp-u", "teid"),
    IN_PPTP: ("pptp", "call"),
}  # fmt: skip
NO_NUMBER = 0xFFFFFFFF + 1  # above all keys of 32 bits
TUNNEL_STEP = 1 << 33  # the code of a tunnel is its type times this, plus its number
# What else separates address spaces, with types that no tunnel has.
IN_VLAN, IN_PORT_TAG, ON_INTERFACE, IN_CIRCUIT = range(32, 36)
VLAN_ID = 0xFFF

# Skip codes. Four families carry a number: link type, EtherType, IP protocol, PPP protocol.
TCP, NEXT_LAYER, TRUNCATED, BAD_IP, BAD_TCP, FRAGMENT, IEEE_802_3, TOO_DEEP, UNDESCRIBED, NUMBERED, FILTERED = range(11)
TOO_NESTED, BAD_FRAGMENT, FRAGMENT_COPY, FRAGMENT_OVERLAP, FRAGMENT_LIMIT, MPLS_OTHER, PPPOE_OTHER = range(11, 18)
LINK_CODES, ETHERTYPE_CODES, PROTOCOL_CODES, PPP_CODES = 0x10000, 0x20000, 0x30000, 0x40000

SKIP_NAMES = {
    TRUNCATED: "truncated-header",
    BAD_IP: "malformed-ip-header",
    BAD_TCP: "malformed-tcp-header",
    FRAGMENT: "ip-fragment",  # stored until its datagram is complete
    FRAGMENT_COPY: "ip-fragment-copy",  # without new bytes
    FRAGMENT_OVERLAP: "ip-fragment-overlap",  # stored, without the bytes that were stored before
    FRAGMENT_LIMIT: "ip-fragment-over-limit",
    BAD_FRAGMENT: "malformed-ip-fragment",
    IEEE_802_3: "llc",
    TOO_DEEP: "too-many-layers",
    TOO_NESTED: "too-many-tunnels",
    MPLS_OTHER: "mpls",
    PPPOE_OTHER: "pppoe",
    UNDESCRIBED: "undescribed-interface",
    NUMBERED: "not-a-packet",
    FILTERED: "filtered",
    **{
        PROTOCOL_CODES + number: name
        for number, name in {
            1: "icmp", 2: "igmp", 17: "udp", 46: "rsvp", 47: "gre", 50: "esp", 58: "icmpv6", 59: "ipv6-no-next-header",
            88: "eigrp", 89: "ospf", 103: "pim", 112: "vrrp", 132: "sctp", 136: "udp-lite",
        }.items()
    },
    **{
        ETHERTYPE_CODES + number: name
        for number, name in {
            0x0806: "arp", 0x8035: "rarp", 0x8863: "pppoe-discovery",
            0x888E: "eapol", 0x88CC: "lldp", 0x88E5: "macsec", 0x88F7: "ptp", 0x8809: "slow-protocols",
        }.items()
    },
}  # fmt: skip

# Indexes in the scratch array with the state of the current packet.
LAYER, VALUE, AT, END, WIRE_END, VERSION, SOURCE, TARGET, DEPTH, SPACE, TUNNELS, FIRST_TUNNEL = range(12)
STATE_SIZE = FIRST_TUNNEL + MAX_TUNNELS
IPV4_BYTES, IPV6_BYTES, UDP_BYTES, TCP_BYTES = 20, 40, 8, 20


def skip_name(code: int) -> str:
    """The name of a skip code, such as 'udp', 'ip-fragment', 'unknown-link-type-147', 'ip-protocol-99'."""
    if code in SKIP_NAMES:
        return SKIP_NAMES[code]
    if code >= PPP_CODES:
        return f"ppp-0x{code - PPP_CODES:04x}"
    if code >= PROTOCOL_CODES:
        return f"ip-protocol-{code - PROTOCOL_CODES}"
    if code >= ETHERTYPE_CODES:
        return f"ethertype-0x{code - ETHERTYPE_CODES:04x}"
    return f"unknown-link-type-{code - LINK_CODES}"


def tunnel_name(tunnel: int) -> str:
    """The name of an encapsulation, such as 'vxlan vni=42', 'gre key=7', 'gre', '6in4'."""
    kind, number = divmod(tunnel, TUNNEL_STEP)
    name, what = TUNNEL_NAMES[kind]
    return name if number == NO_NUMBER else f"{name} {what}={number}"
