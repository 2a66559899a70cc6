"""Link layers, tags and IP: from the first byte of a packet to the payload of its IP header.

A step parses the header at `state[AT]`, moves AT past it and sets the next layer; it returns NEXT_LAYER or a skip code.
The IP length gives the end of the packet on the wire (WIRE_END) and bounds its captured part (END), since a link frame
may be padded, or cut by the snaplen. Sources: IEEE 802.3, 802.1Q, 802.1ad; the LINKTYPE_ registry of tcpdump.org; RFC
791, RFC 8200, RFC 4302 (AH), RFC 1042 (SNAP).
"""

from __future__ import annotations

from codec.capture.records import NO_INTERFACE, NOT_A_PACKET
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    byte_at,
    fits,
    u8,
    u16,
    u32,
)

# Numbers and names of the layers below TCP, and skip codes: the reasons why a packet has no TCP segment.
#
# Sources: the LINKTYPE_ registry of tcpdump.org, the EtherType registry of IEEE, the registries of IANA for protocol
# numbers, ports, and PPP.


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
# Frame relay (RFC 2427 sections 3 and 4.2): the control byte; protocols (NLPID); bridged Ethernet in SNAP, with and
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


SPACE_MIX = 0x45D9F3B  # below 2**31, so that a product with 32 bits stays inside 63
SLL2_INTERFACE = 4  # of the header with the index of the interface
PKTAP_INTERFACE, PFLOG_INTERFACE, INTERFACE_NAME = 12, 4, 16  # with its name, of which so many bytes are compared


@kernel
def known(layers, number):
    """The layer of `number` in pairs (number, layer); UNKNOWN_LAYER when it is not among them."""
    for each, layer in layers:
        if each == number:
            return layer
    return UNKNOWN_LAYER


@kernel
def enter_space(state, kind, number):
    """The packet is in this VLAN or tunnel, or on this interface; 0 is the first interface, and no VLAN."""
    if number != 0 or kind < IN_VLAN:
        mixed = (state[SPACE] ^ number & 0xFFFFFFFF) * SPACE_MIX + kind
        state[SPACE] = (mixed ^ mixed >> 31) & 0xFFFFFFFF


@kernel
def link(link_type, state):
    """The first layer of a packet."""
    for each, size, layer in LINK_LAYERS:
        if each == link_type:
            state[AT] += size
            state[LAYER] = layer
            return NEXT_LAYER if state[AT] <= state[END] else TRUNCATED
    if link_type == NO_INTERFACE:
        return UNDESCRIBED
    return NUMBERED if link_type == NOT_A_PACKET else LINK_CODES + link_type


@kernel
def to_ethertype(block, state, type_at, size):
    """A link header of `size` bytes with an EtherType at `type_at`."""
    if state[AT] + size > state[END]:
        return TRUNCATED
    state[VALUE] = u16(block, state[AT] + type_at, state[END])
    state[AT] += size
    state[LAYER] = ETHERTYPE
    return NEXT_LAYER


@kernel
def ethertype(block, state):
    """The EtherType: IP, a tunnel, or a tag with the next EtherType: of a VLAN (IEEE 802.1Q clause 9), VN-Tag (Cisco)
    or E-Tag (IEEE 802.1BR)."""
    value = state[VALUE]
    if value == ETHERTYPE_IPV4:
        state[LAYER] = IPV4
    elif value == ETHERTYPE_IPV6:
        state[LAYER] = IPV6
    elif value in (ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_OLD_QINQ):
        enter_space(state, IN_VLAN, max(0, u16(block, state[AT], state[END])) & VLAN_ID)
        return to_ethertype(block, state, 2, 4)
    elif value == ETHERTYPE_VN_TAG:
        enter_space(state, IN_PORT_TAG, max(0, u32(block, state[AT], state[END])))
        return to_ethertype(block, state, 4, 6)
    elif value == ETHERTYPE_E_TAG:
        enter_space(state, IN_PORT_TAG, max(0, u32(block, state[AT] + 2, state[END])))
        return to_ethertype(block, state, 6, 8)
    elif value < ETHERTYPE_LEAST:
        return llc(block, state)
    else:
        state[LAYER] = known(ETHERTYPE_LAYERS, value)
        if state[LAYER] == UNKNOWN_LAYER:
            return ETHERTYPE_CODES + value
    return NEXT_LAYER


@kernel
def llc(block, state):
    """IEEE 802.2: with SNAP an EtherType follows (RFC 1042); anything else is not IP."""
    at, end = state[AT], state[END]
    if at + SNAP_BYTES > end:
        return TRUNCATED if at + SNAP_BYTES <= state[WIRE_END] else IEEE_802_3
    if u32(block, at, end) >> 8 != SNAP:
        return IEEE_802_3
    return to_ethertype(block, state, SNAP_BYTES - 2, SNAP_BYTES)


@kernel
def swapped(value):
    """The bytes of an unsigned 32-bit integer in the other order."""
    return ((value >> 24) & 0xFF) | ((value >> 8) & 0xFF00) | ((value & 0xFF00) << 8) | ((value & 0xFF) << 24)


@kernel
def bsd(block, state):
    """Four bytes of address family: in the byte order of the capturing host (NULL), or of the network (LOOP)."""
    family = u32(block, state[AT], state[END])
    if family < 0:
        return TRUNCATED
    if state[LAYER] == BSD_NULL and family > 0xFFFF:  # families are small: this one is little-endian
        family = swapped(family)
    state[AT] += 4
    if family == FAMILY_IPV4:
        state[LAYER] = IPV4
        return NEXT_LAYER
    if family in FAMILY_IPV6:
        state[LAYER] = IPV6
        return NEXT_LAYER
    return LINK_CODES + (LINK_NULL if state[LAYER] == BSD_NULL else LINK_LOOP)


@kernel
def nflog(block, state):
    """LINKTYPE_NFLOG: 4 bytes (family, version, resource), then attributes of the netlink protocol, padded to 4 bytes:
    size and type in the byte order of the capturing host, value. One is the IP packet. Types are below 256, so the zero
    byte of the first type tells the byte order."""
    at, end = state[AT] + 4, state[END]
    low = 0 if at + 4 <= end and byte_at(block, at + 3) == 0 else 1
    while at + 4 <= end:
        size = byte_at(block, at + low) + 256 * byte_at(block, at + 1 - low)
        if byte_at(block, at + 2 + low) == NFLOG_PAYLOAD:
            state[WIRE_END] = at + size
            state[END] = min(end, at + size)
            state[AT] = at + 4
            state[LAYER] = IP
            return NEXT_LAYER
        at += max(4, size + 3 & ~3)
    return TRUNCATED if at < state[WIRE_END] else LINK_CODES + LINK_NFLOG


@kernel
def enter_named(block, state, at):
    """The packet is on the interface whose name is `at` bytes after the begin of the header."""
    for word in range(0, INTERFACE_NAME, 4):
        enter_space(state, ON_INTERFACE, max(0, u32(block, state[AT] + at + word, state[END])))


@kernel
def pflog(block, state):
    """LINKTYPE_PFLOG: the first byte is the size of the header, which is padded to 4 bytes; IP follows."""
    if state[AT] >= state[END]:
        return TRUNCATED
    enter_named(block, state, PFLOG_INTERFACE)
    state[AT] += byte_at(block, state[AT]) + 3 & ~3
    state[LAYER] = IP
    return NEXT_LAYER if state[AT] <= state[END] else TRUNCATED


@kernel
def pktap(block, state):
    """LINKTYPE_PKTAP, of macOS: little-endian size of the header, kind of record, link type (DLT_) of the packet."""
    at, end = state[AT], state[END]
    if at + PKTAP_BYTES > end:
        return TRUNCATED
    size = swapped(u32(block, at, end))
    if size < PKTAP_BYTES or at + size > end:
        return TRUNCATED
    if size >= PKTAP_INTERFACE + INTERFACE_NAME:
        enter_named(block, state, PKTAP_INTERFACE)
    state[AT] = at + size
    return link(swapped(u32(block, at + 8, end)), state)


@kernel
def frame_relay(block, state):
    """RFC 2427: an address of 2 to 4 bytes, whose last one is odd; the control byte, a byte of padding where it is
    zero, the protocol. Without the control byte, an EtherType as Cisco writes it."""
    at, end = state[AT] + 2, state[END]
    while at < end and at < state[AT] + 4 and byte_at(block, at - 1) & 1 == 0:
        at += 1
    if at + 2 > end:
        return TRUNCATED
    address = u16(block, state[AT], end)
    enter_space(state, IN_CIRCUIT, address >> 10 << 4 | address >> 4 & 0xF)
    state[AT] = at
    if byte_at(block, at) != UI:
        return to_ethertype(block, state, 0, 2)
    at += 2 if byte_at(block, at + 1) == 0 else 1
    protocol, state[AT] = u16(block, at, end) >> 8, at + 1
    if protocol < 0 or (protocol == NLPID_SNAP and at + 6 > end):
        return TRUNCATED
    if protocol == NLPID_IPV4:
        state[LAYER] = IPV4
    elif protocol == NLPID_IPV6:
        state[LAYER] = IPV6
    elif protocol != NLPID_SNAP:
        return LINK_CODES + LINK_FRAME_RELAY
    elif u32(block, at, end) & 0xFFFFFF != BRIDGED_OUI:
        return to_ethertype(block, state, 3, 5)
    elif u16(block, at + 4, end) in BRIDGED_ETHERNET:
        state[AT] = at + 6
        state[LAYER] = ETHERNET
    else:
        return LINK_CODES + LINK_FRAME_RELAY
    return NEXT_LAYER


@kernel
def ip(block, state):
    """IP without a link layer: the version is in the first four bits."""
    if state[AT] >= state[END]:
        return TRUNCATED
    version = byte_at(block, state[AT]) >> 4
    if version == 4:
        state[LAYER] = IPV4
    elif version == 6:
        state[LAYER] = IPV6
    else:
        return BAD_IP
    return NEXT_LAYER


@kernel
def enter(state, kind, number):
    """Add an encapsulation to the state, and drop the outer IP header. NEXT_LAYER, or TOO_NESTED."""
    count = state[TUNNELS]
    if count >= MAX_TUNNELS:
        return TOO_NESTED
    state[FIRST_TUNNEL + count] = kind * TUNNEL_STEP + number
    state[TUNNELS] = count + 1
    enter_space(state, kind, number)
    state[VERSION] = 0
    return NEXT_LAYER


@kernel
def ipv4(block, state):
    """RFC 791 section 3.1."""
    at = state[AT]
    if at + IPV4_BYTES > state[END]:
        return TRUNCATED
    first = byte_at(block, at)
    header = (first & 0x0F) * 4
    total = u16(block, at + 2, state[END])
    if first >> 4 != 4 or header < IPV4_BYTES or (total != 0 and total < header):
        return BAD_IP
    if total != 0:  # 0: the network card was to cut the packet up (segmentation offload), the frame's length counts
        state[WIRE_END] = at + total
        state[END] = min(state[END], at + total)
    state[VERSION] = 4
    state[SOURCE] = at + 12
    state[TARGET] = at + 16
    if u16(block, at + 6, state[AT] + IPV4_BYTES) & 0x3FFF:  # more fragments, or not the first one
        return FRAGMENT  # AT stays at the IP header
    state[VALUE] = byte_at(block, at + 9)
    state[AT] = at + header
    state[LAYER] = IP_PROTOCOL
    return NEXT_LAYER


@kernel
def ipv6(block, state):
    """RFC 8200 section 3. A payload length of 0 means a jumbogram or segmentation offload."""
    at = state[AT]
    if at + IPV6_BYTES > state[END]:
        return TRUNCATED
    if byte_at(block, at) >> 4 != 6:
        return BAD_IP
    size = u16(block, at + 4, state[END])
    if size != 0:
        state[WIRE_END] = at + IPV6_BYTES + size
        state[END] = min(state[END], state[WIRE_END])
    state[VERSION] = 6
    state[SOURCE] = at + 8
    state[TARGET] = at + 24
    state[VALUE] = byte_at(block, at + 6)
    state[AT] = at + IPV6_BYTES
    state[LAYER] = IP_PROTOCOL
    return NEXT_LAYER


@kernel
def ip_protocol(block, state):
    """The protocol number: TCP, UDP, a tunnel, or an extension header of IPv6 (RFC 8200 section 4)."""
    at = state[AT]
    value = state[VALUE]
    if value == PROTOCOL_TCP:
        return TCP
    if value == PROTOCOL_UDP:
        return udp(block, state)
    if value == PROTOCOL_IPV4:
        state[LAYER] = IPV4
        return enter(state, IPV4_IN_IPV4 if state[VERSION] == 4 else IPV4_IN_IPV6, NO_NUMBER)
    if value == PROTOCOL_IPV6:
        state[LAYER] = IPV6
        return enter(state, IPV6_IN_IPV4 if state[VERSION] == 4 else IPV6_IN_IPV6, NO_NUMBER)
    if value != PROTOCOL_AH and not (state[VERSION] == 6 and value in EXTENSION_HEADERS):
        state[LAYER] = known(PROTOCOL_LAYERS, value)
        return NEXT_LAYER if state[LAYER] != UNKNOWN_LAYER else PROTOCOL_CODES + value
    if at + 8 > state[END]:
        return TRUNCATED
    size = byte_at(block, at + 1)
    if value == PROTOCOL_FRAGMENT:
        if u16(block, at + 2, state[END]) & 0xFFF9:  # offset, or more fragments; an atomic fragment (RFC 6946) passes
            return FRAGMENT  # AT stays at the fragment header
        state[AT] = at + 8
    elif value == PROTOCOL_AH:
        state[AT] = at + 4 * (size + 2)
    else:
        state[AT] = at + 8 * (size + 1)
    state[VALUE] = byte_at(block, at)
    return NEXT_LAYER


@kernel
def udp(block, state):
    """RFC 768: the destination port identifies a tunnel."""
    layer = known(UDP_PORT_LAYERS, u16(block, state[AT] + 2, state[END]))
    if layer == UNKNOWN_LAYER:
        return PROTOCOL_CODES + PROTOCOL_UDP
    state[AT] += UDP_BYTES
    state[LAYER] = layer
    return NEXT_LAYER


@kernel
def header(block, state):
    """Parse a header that is no encapsulation: NEXT_LAYER, TCP (its header begins at AT), or a skip code."""
    layer = state[LAYER]
    if layer == ETHERTYPE:
        return ethertype(block, state)
    if layer == IPV4:
        return ipv4(block, state)
    if layer == IPV6:
        return ipv6(block, state)
    if layer == IP_PROTOCOL:
        return ip_protocol(block, state)
    if layer == ETHERNET:
        return to_ethertype(block, state, 12, 14)
    if layer == LINUX_SLL:
        return to_ethertype(block, state, 14, 16)
    if layer == LINUX_SLL2:
        enter_space(state, ON_INTERFACE, max(0, u32(block, state[AT] + SLL2_INTERFACE, state[END])))
        return to_ethertype(block, state, 0, 20)
    if layer == IP:
        return ip(block, state)
    if layer in (BSD_NULL, BSD_LOOP):
        return bsd(block, state)
    if layer == NFLOG:
        return nflog(block, state)
    if layer == PFLOG:
        return pflog(block, state)
    if layer == PKTAP:
        return pktap(block, state)
    if layer == C_HDLC:
        return to_ethertype(block, state, 2, 4)
    return frame_relay(block, state)


# Tunnels: from the header of an encapsulation to the link or IP header inside.
#
# Steps are as in `codec.net.headers`. The state has the encapsulations of a packet, outermost first; all other columns
# (addresses, flow, lengths) are those of the innermost packet. Sources: RFC 7348 (VXLAN), RFC 8926 (Geneve), RFC 2784
# and 2890 (GRE), RFC 2637 (PPTP), draft-foschiano-erspan, RFC 3032 and 4385 (MPLS), RFC 2516 (PPPoE), RFC 1661 and 1662
# (PPP), draft-ietf-nvo3-vxlan-gpe, 3GPP TS 29.281 (GTP-U).


VXLAN_BYTES, VXLAN_HAS_VNI, GPE_HAS_PROTOCOL, GPE_VERSION = 8, 0x08, 0x04, 0x30
GTP_BYTES, GTP_OPTIONAL_BYTES, GTP_PDU = 8, 4, 0xFF
GTP_KIND, GTP_VERSION_1, GTP_OPTIONS, GTP_EXTENSION = 0xF0, 0x30, 0x07, 0x04  # GTP, not GTP'
GENEVE_BYTES = 8
GRE_CHECKSUM, GRE_ROUTING, GRE_KEY, GRE_SEQUENCE, GRE_VERSION = 0x8000, 0x4000, 0x2000, 0x1000, 0x0007
PPTP_VERSION, PPTP_BYTES, PPTP_ACKNOWLEDGED = 1, 12, 0x0080
ERSPAN_II_BYTES, ERSPAN_III_BYTES, ERSPAN_PLATFORM_BYTES = 8, 12, 8
ERSPAN_SESSION = 0x3FF
ERSPAN_FRAME_ETHERNET, ERSPAN_FRAME_IP = 0, 2
MPLS_BOTTOM, CONTROL_WORD_BYTES = 0x100, 4
IN_ETHERNET = (
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_OLD_QINQ,
)  # fmt: skip
PPPOE_BYTES, PPPOE_SESSION = 6, 0x1100  # version 1, type 1, code 0
PPP_ALL_STATIONS = 0xFF  # the address byte of HDLC-like framing; a control byte follows


@kernel
def tunnel(block, state):
    """Parse the header of an encapsulation."""
    layer = state[LAYER]
    if layer == VXLAN:
        return _vxlan(block, state)
    if layer == GRE:
        return _gre(block, state)
    if layer == GENEVE:
        return _geneve(block, state)
    if layer == MPLS:
        return _mpls(block, state)
    if layer == PPPOE:
        return _pppoe(block, state)
    if layer == VXLAN_GPE:
        return _vxlan_gpe(block, state)
    if layer == GTP_U:
        return _gtp_u(block, state)
    return _ppp(block, state)


@kernel
def _vxlan(block, state):
    """RFC 7348 section 5. A packet without VNI is another protocol on that port."""
    at = state[AT]
    if not fits(at, VXLAN_BYTES, state[END]):
        return TRUNCATED
    if not byte_at(block, at) & VXLAN_HAS_VNI:
        return PROTOCOL_CODES + PROTOCOL_UDP
    state[AT] = at + VXLAN_BYTES
    state[LAYER] = ETHERNET
    return enter(state, IN_VXLAN, u32(block, at + 4, state[END]) >> 8)


@kernel
def _vxlan_gpe(block, state):
    """draft-ietf-nvo3-vxlan-gpe section 3: VXLAN with a number of the protocol inside."""
    at = state[AT]
    if not fits(at, VXLAN_BYTES, state[END]):
        return TRUNCATED
    flags = byte_at(block, at)
    state[LAYER] = known(VXLAN_GPE_LAYERS, byte_at(block, at + 3)) if flags & GPE_HAS_PROTOCOL else ETHERNET
    if flags & GPE_VERSION or not flags & VXLAN_HAS_VNI or state[LAYER] == UNKNOWN_LAYER:
        return PROTOCOL_CODES + PROTOCOL_UDP
    state[AT] = at + VXLAN_BYTES
    return enter(state, IN_VXLAN_GPE, u32(block, at + 4, state[END]) >> 8)


@kernel
def _gtp_u(block, state):
    """3GPP TS 29.281 section 5: a G-PDU carries IP. The last of the optional bytes, and of each extension
    header, is the type of the next extension header; the first byte of one is its length in words of four bytes."""
    at, end = state[AT], state[END]
    if not fits(at, GTP_BYTES, end):
        return TRUNCATED
    flags = byte_at(block, at)
    if flags & GTP_KIND != GTP_VERSION_1 or byte_at(block, at + 1) != GTP_PDU:
        return PROTOCOL_CODES + PROTOCOL_UDP
    number = u32(block, at + 4, end)
    at += GTP_BYTES
    if flags & GTP_OPTIONS:
        at += GTP_OPTIONAL_BYTES
        following = u8(block, at - 1, end) if flags & GTP_EXTENSION else 0
        while following > 0:
            at += 4 * max(1, u8(block, at, end))
            following = u8(block, at - 1, end)
        if following < 0:
            return TRUNCATED
    state[AT] = at
    state[LAYER] = IP
    return enter(state, IN_GTP_U, number)


@kernel
def _geneve(block, state):
    """RFC 8926 section 3.4; the length of the options counts words of four bytes."""
    at = state[AT]
    if not fits(at, GENEVE_BYTES, state[END]):
        return TRUNCATED
    first = byte_at(block, at)
    if first >> 6:  # only version 0 is defined
        return PROTOCOL_CODES + PROTOCOL_UDP
    state[VALUE] = u16(block, at + 2, state[END])
    state[AT] = at + GENEVE_BYTES + 4 * (first & 0x3F)
    state[LAYER] = ETHERTYPE
    return enter(state, IN_GENEVE, u32(block, at + 4, state[END]) >> 8)


@kernel
def _gre(block, state):
    """RFC 2784 section 2, RFC 2890. Source routing (RFC 1701) is not followed."""
    at, end = state[AT], state[END]
    if not fits(at, 4, end):
        return TRUNCATED
    flags, kind = u16(block, at, end), u16(block, at + 2, end)
    if flags & GRE_VERSION == PPTP_VERSION and flags & GRE_SEQUENCE:
        return _pptp(block, state, flags & PPTP_ACKNOWLEDGED)
    if flags & (GRE_ROUTING | GRE_VERSION) or kind < ETHERTYPE_LEAST:
        return PROTOCOL_CODES + PROTOCOL_GRE
    at += 8 if flags & GRE_CHECKSUM else 4
    number = NO_NUMBER
    if flags & GRE_KEY:
        if not fits(at, 4, end):
            return TRUNCATED
        number = u32(block, at, end)
        at += 4
    if flags & GRE_SEQUENCE:
        at += 4
    state[AT] = at
    if kind == ETHERTYPE_ERSPAN:
        return _erspan_i_or_ii(block, state, flags & GRE_SEQUENCE)
    if kind == ETHERTYPE_ERSPAN_III:
        return _erspan_iii(block, state)
    state[VALUE] = kind
    state[LAYER] = ETHERTYPE
    return enter(state, IN_GRE, number)


@kernel
def _pptp(block, state, acknowledged):
    """RFC 2637 section 4.1: GRE version 1 carries PPP. Packets without a sequence number only acknowledge."""
    at = state[AT]
    if not fits(at, PPTP_BYTES, state[END]):
        return TRUNCATED
    state[AT] = at + PPTP_BYTES + (4 if acknowledged else 0)
    state[LAYER] = PPP
    return enter(state, IN_PPTP, u16(block, at + 6, state[END]))


@kernel
def _erspan_i_or_ii(block, state, sequenced):
    """draft-foschiano-erspan sections 4.1 and 4.2: type I has no header of its own, and no GRE sequence number."""
    at = state[AT]
    state[LAYER] = ETHERNET
    if not sequenced:
        return enter(state, IN_ERSPAN_I, NO_NUMBER)
    if not fits(at, ERSPAN_II_BYTES, state[END]):
        return TRUNCATED
    enter_space(state, IN_VLAN, u16(block, at, state[END]) & VLAN_ID)
    state[AT] = at + ERSPAN_II_BYTES
    return enter(state, IN_ERSPAN_II, u16(block, at + 2, state[END]) & ERSPAN_SESSION)


@kernel
def _erspan_iii(block, state):
    """draft-foschiano-erspan section 4.3: the last bit announces a platform specific header."""
    at = state[AT]
    if not fits(at, ERSPAN_III_BYTES, state[END]):
        return TRUNCATED
    enter_space(state, IN_VLAN, u16(block, at, state[END]) & VLAN_ID)
    last = u16(block, at + 10, state[END])
    frame = (last >> 10) & 0x1F
    if frame != ERSPAN_FRAME_ETHERNET and frame != ERSPAN_FRAME_IP:
        return PROTOCOL_CODES + PROTOCOL_GRE
    state[LAYER] = ETHERNET if frame == ERSPAN_FRAME_ETHERNET else IP
    state[AT] = at + ERSPAN_III_BYTES + ERSPAN_PLATFORM_BYTES * (last & 1)
    return enter(state, IN_ERSPAN_III, u16(block, at + 2, state[END]) & ERSPAN_SESSION)


@kernel
def _mpls(block, state):
    """A label stack (RFC 3032 section 2.1) is one encapsulation; its number is the label at the bottom.

    The first four bits after it identify the payload: IP, or the control word of a pseudowire (RFC 4385 section 3),
    which is assumed to carry Ethernet. Without a control word they are the first ones of a hardware address: then the
    EtherType is at another offset.
    """
    at, end = state[AT], state[END]
    entry = u32(block, at, end)
    while entry >= 0 and not entry & MPLS_BOTTOM:
        at += 4
        entry = u32(block, at, end)
    at += 4
    first = u8(block, at, end)
    if entry < 0 or first < 0:
        return TRUNCATED
    kind = first >> 4
    if kind == 4:
        state[LAYER] = IPV4
    elif kind == 6:
        state[LAYER] = IPV6
    else:
        state[LAYER] = ETHERNET
        bare = u16(block, at + 12, end) in IN_ETHERNET
        if kind == 0 and (not bare or u16(block, at + CONTROL_WORD_BYTES + 12, end) in IN_ETHERNET):
            at += CONTROL_WORD_BYTES
        elif not bare:
            return TRUNCATED if end < at + 14 <= state[WIRE_END] else MPLS_OTHER
    state[AT] = at
    return enter(state, IN_MPLS, entry >> 12)


@kernel
def _pppoe(block, state):
    """RFC 2516 section 4; the discovery stage has another EtherType."""
    at = state[AT]
    if not fits(at, PPPOE_BYTES, state[END]):
        return TRUNCATED
    if u16(block, at, state[END]) != PPPOE_SESSION:
        return PPPOE_OTHER
    state[AT] = at + PPPOE_BYTES
    state[LAYER] = PPP
    return enter(state, IN_PPPOE, u16(block, at + 2, state[END]))


@kernel
def _ppp(block, state):
    """RFC 1661 section 2, RFC 1662 section 3.1; a one-byte protocol number is odd (section 6.5)."""
    at, end = state[AT], state[END]
    if u8(block, at, end) == PPP_ALL_STATIONS:
        at += 2
    first = u8(block, at, end)
    value = first if first & 1 else u16(block, at, end)
    if value < 0:
        return TRUNCATED
    state[LAYER] = known(PPP_LAYERS, value)
    state[AT] = at + (1 if first & 1 else 2)
    return NEXT_LAYER if state[LAYER] != UNKNOWN_LAYER else PPP_CODES + value
