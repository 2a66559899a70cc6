"""Numbers and names of the layers below TCP, and the codes that say why a packet carries no TCP segment.

Sources: the LINKTYPE_ registry of tcpdump.org, the EtherType and protocol number registries of IEEE and IANA.
"""

from __future__ import annotations

# Layers: where a packet's next header is of this kind.
ETHERNET, LINUX_SLL, LINUX_SLL2, BSD_NULL, BSD_LOOP, ETHERTYPE, IP, IPV4, IPV6, IP_PROTOCOL = range(10)
MAX_LAYERS = 32  # headers of one packet; real stacks stay below 12

# LINKTYPE_ numbers.
LINK_NULL, LINK_ETHERNET, LINK_RAW, LINK_LOOP, LINK_SLL, LINK_SLL2, LINK_IPV4, LINK_IPV6 = (
    0,
    1,
    101,
    108,
    113,
    276,
    228,
    229,
)
LINK_RAW_BSD, LINK_RAW_OPENBSD = 12, 14  # DLT_RAW as some systems number it in files

LINK_NAMES = {
    LINK_NULL: "null",
    LINK_ETHERNET: "ethernet",
    LINK_RAW: "raw",
    LINK_RAW_BSD: "raw",
    LINK_RAW_OPENBSD: "raw",
    LINK_LOOP: "loop",
    LINK_SLL: "linux-sll",
    LINK_SLL2: "linux-sll2",
    LINK_IPV4: "ipv4",
    LINK_IPV6: "ipv6",
}

ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x0800, 0x86DD
ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_OLD_QINQ = 0x8100, 0x88A8, 0x9100
ETHERTYPE_LEAST = 0x0600  # below, the two bytes are the length of an IEEE 802.3 frame
FAMILY_IPV4 = 2
FAMILY_IPV6 = (10, 24, 28, 30)  # AF_INET6 of Linux, NetBSD and OpenBSD, FreeBSD, macOS

PROTOCOL_HOP_BY_HOP, PROTOCOL_IPV4, PROTOCOL_TCP, PROTOCOL_IPV6, PROTOCOL_ROUTING = 0, 4, 6, 41, 43
PROTOCOL_FRAGMENT, PROTOCOL_AH, PROTOCOL_DESTINATION = 44, 51, 60
EXTENSION_HEADERS = (PROTOCOL_HOP_BY_HOP, PROTOCOL_ROUTING, PROTOCOL_DESTINATION, PROTOCOL_FRAGMENT)  # of IPv6

# Skip codes. The three families carry a number: link type, EtherType, IP protocol.
TCP, NEXT_LAYER, TRUNCATED, BAD_IP, BAD_TCP, FRAGMENT, IEEE_802_3, TOO_DEEP, UNDESCRIBED, NUMBERED, FILTERED = range(11)
LINK_CODES, ETHERTYPE_CODES, PROTOCOL_CODES = 0x10000, 0x20000, 0x30000

SKIP_NAMES = {
    TRUNCATED: "truncated-header",
    BAD_IP: "malformed-ip-header",
    BAD_TCP: "malformed-tcp-header",
    FRAGMENT: "ip-fragment",
    IEEE_802_3: "llc",
    TOO_DEEP: "too-many-layers",
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
            0x0806: "arp", 0x8035: "rarp", 0x8847: "mpls", 0x8848: "mpls", 0x8863: "pppoe-discovery", 0x8864: "pppoe",
            0x888E: "eapol", 0x88CC: "lldp", 0x88E5: "macsec", 0x88F7: "ptp", 0x8809: "slow-protocols",
        }.items()
    },
}  # fmt: skip

# Places in the scratch array that holds the state of the packet at hand.
LAYER, VALUE, AT, END, WIRE_END, VERSION, SOURCE, TARGET, STATE_SIZE = range(9)
IPV4_BYTES, IPV6_BYTES, TCP_BYTES = 20, 40, 20


def skip_name(code: int) -> str:
    """A skip code in words, such as 'udp', 'ip-fragment', 'unknown-link-type-147', 'ip-protocol-99'."""
    if code in SKIP_NAMES:
        return SKIP_NAMES[code]
    if code >= PROTOCOL_CODES:
        return f"ip-protocol-{code - PROTOCOL_CODES}"
    if code >= ETHERTYPE_CODES:
        return f"ethertype-0x{code - ETHERTYPE_CODES:04x}"
    return f"unknown-link-type-{code - LINK_CODES}"
