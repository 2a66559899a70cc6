"""Link layers, tags and IP: from the first byte of a packet to the payload of its IP header.

A step parses the header at `state[AT]`, moves AT past it and sets the next layer; it returns NEXT_LAYER or a skip code.
The IP length gives the end of the packet on the wire (WIRE_END) and bounds its captured part (END), since a link frame
may be padded, or cut by the snaplen. Sources: IEEE 802.3, 802.1Q, 802.1ad; the LINKTYPE_ registry of tcpdump.org; RFC
791, RFC 8200, RFC 4302 (AH), RFC 1042 (SNAP).
"""

from __future__ import annotations

from codec.capture.records import NO_INTERFACE, NOT_A_PACKET
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16, u32
from codec.net import protocols as P

SPACE_MIX = 0x45D9F3B  # below 2**31, so that a product with 32 bits stays inside 63
SLL2_INTERFACE = 4  # of the header with the index of the interface
PKTAP_INTERFACE, PFLOG_INTERFACE, INTERFACE_NAME = 12, 4, 16  # with its name, of which so many bytes are compared


@kernel
def known(layers, number):
    """The layer of `number` in pairs (number, layer); UNKNOWN_LAYER when it is not among them."""
    for each, layer in layers:
        if each == number:
            return layer
    return P.UNKNOWN_LAYER


@kernel
def enter_space(state, kind, number):
    """The packet is in this VLAN or tunnel, or on this interface; 0 is the first interface, and no VLAN."""
    if number != 0 or kind < P.IN_VLAN:
        mixed = (state[P.SPACE] ^ number & 0xFFFFFFFF) * SPACE_MIX + kind
        state[P.SPACE] = (mixed ^ mixed >> 31) & 0xFFFFFFFF


@kernel
def link(link_type, state):
    """The first layer of a packet."""
    for each, size, layer in P.LINK_LAYERS:
        if each == link_type:
            state[P.AT] += size
            state[P.LAYER] = layer
            return P.NEXT_LAYER if state[P.AT] <= state[P.END] else P.TRUNCATED
    if link_type == NO_INTERFACE:
        return P.UNDESCRIBED
    return P.NUMBERED if link_type == NOT_A_PACKET else P.LINK_CODES + link_type


@kernel
def to_ethertype(block, state, type_at, size):
    """A link header of `size` bytes with an EtherType at `type_at`."""
    if state[P.AT] + size > state[P.END]:
        return P.TRUNCATED
    state[P.VALUE] = u16(block, state[P.AT] + type_at, state[P.END])
    state[P.AT] += size
    state[P.LAYER] = P.ETHERTYPE
    return P.NEXT_LAYER


@kernel
def ethertype(block, state):
    """The EtherType: IP, a tunnel, or a tag with the next EtherType: of a VLAN (IEEE 802.1Q clause 9), VN-Tag (Cisco)
    or E-Tag (IEEE 802.1BR)."""
    value = state[P.VALUE]
    if value == P.ETHERTYPE_IPV4:
        state[P.LAYER] = P.IPV4
    elif value == P.ETHERTYPE_IPV6:
        state[P.LAYER] = P.IPV6
    elif value in (P.ETHERTYPE_VLAN, P.ETHERTYPE_SERVICE_VLAN, P.ETHERTYPE_OLD_QINQ):
        enter_space(state, P.IN_VLAN, max(0, u16(block, state[P.AT], state[P.END])) & P.VLAN_ID)
        return to_ethertype(block, state, 2, 4)
    elif value == P.ETHERTYPE_VN_TAG:
        enter_space(state, P.IN_PORT_TAG, max(0, u32(block, state[P.AT], state[P.END])))
        return to_ethertype(block, state, 4, 6)
    elif value == P.ETHERTYPE_E_TAG:
        enter_space(state, P.IN_PORT_TAG, max(0, u32(block, state[P.AT] + 2, state[P.END])))
        return to_ethertype(block, state, 6, 8)
    elif value < P.ETHERTYPE_LEAST:
        return llc(block, state)
    else:
        state[P.LAYER] = known(P.ETHERTYPE_LAYERS, value)
        if state[P.LAYER] == P.UNKNOWN_LAYER:
            return P.ETHERTYPE_CODES + value
    return P.NEXT_LAYER


@kernel
def llc(block, state):
    """IEEE 802.2: with SNAP an EtherType follows (RFC 1042); anything else is not IP."""
    at, end = state[P.AT], state[P.END]
    if at + P.SNAP_BYTES > end:
        return P.TRUNCATED if at + P.SNAP_BYTES <= state[P.WIRE_END] else P.IEEE_802_3
    if u32(block, at, end) >> 8 != P.SNAP:
        return P.IEEE_802_3
    return to_ethertype(block, state, P.SNAP_BYTES - 2, P.SNAP_BYTES)


@kernel
def swapped(value):
    """The bytes of an unsigned 32-bit integer in the other order."""
    return ((value >> 24) & 0xFF) | ((value >> 8) & 0xFF00) | ((value & 0xFF00) << 8) | ((value & 0xFF) << 24)


@kernel
def bsd(block, state):
    """Four bytes of address family: in the byte order of the capturing host (NULL), or of the network (LOOP)."""
    family = u32(block, state[P.AT], state[P.END])
    if family < 0:
        return P.TRUNCATED
    if state[P.LAYER] == P.BSD_NULL and family > 0xFFFF:  # families are small: this one is little-endian
        family = swapped(family)
    state[P.AT] += 4
    if family == P.FAMILY_IPV4:
        state[P.LAYER] = P.IPV4
        return P.NEXT_LAYER
    if family in P.FAMILY_IPV6:
        state[P.LAYER] = P.IPV6
        return P.NEXT_LAYER
    return P.LINK_CODES + (P.LINK_NULL if state[P.LAYER] == P.BSD_NULL else P.LINK_LOOP)


@kernel
def nflog(block, state):
    """LINKTYPE_NFLOG: 4 bytes (family, version, resource), then attributes of the netlink protocol, padded to 4 bytes:
    size and type in the byte order of the capturing host, value. One is the IP packet. Types are below 256, so the zero
    byte of the first type tells the byte order."""
    at, end = state[P.AT] + 4, state[P.END]
    low = 0 if at + 4 <= end and octet(block, at + 3) == 0 else 1
    while at + 4 <= end:
        size = octet(block, at + low) + 256 * octet(block, at + 1 - low)
        if octet(block, at + 2 + low) == P.NFLOG_PAYLOAD:
            state[P.WIRE_END] = at + size
            state[P.END] = min(end, at + size)
            state[P.AT] = at + 4
            state[P.LAYER] = P.IP
            return P.NEXT_LAYER
        at += max(4, size + 3 & ~3)
    return P.TRUNCATED if at < state[P.WIRE_END] else P.LINK_CODES + P.LINK_NFLOG


@kernel
def enter_named(block, state, at):
    """The packet is on the interface whose name is `at` bytes after the begin of the header."""
    for word in range(0, INTERFACE_NAME, 4):
        enter_space(state, P.ON_INTERFACE, max(0, u32(block, state[P.AT] + at + word, state[P.END])))


@kernel
def pflog(block, state):
    """LINKTYPE_PFLOG: the first byte is the size of the header, which is padded to 4 bytes; IP follows."""
    if state[P.AT] >= state[P.END]:
        return P.TRUNCATED
    enter_named(block, state, PFLOG_INTERFACE)
    state[P.AT] += octet(block, state[P.AT]) + 3 & ~3
    state[P.LAYER] = P.IP
    return P.NEXT_LAYER if state[P.AT] <= state[P.END] else P.TRUNCATED


@kernel
def pktap(block, state):
    """LINKTYPE_PKTAP, of macOS: little-endian size of the header, kind of record, link type (DLT_) of the packet."""
    at, end = state[P.AT], state[P.END]
    if at + P.PKTAP_BYTES > end:
        return P.TRUNCATED
    size = swapped(u32(block, at, end))
    if size < P.PKTAP_BYTES or at + size > end:
        return P.TRUNCATED
    if size >= PKTAP_INTERFACE + INTERFACE_NAME:
        enter_named(block, state, PKTAP_INTERFACE)
    state[P.AT] = at + size
    return link(swapped(u32(block, at + 8, end)), state)


@kernel
def frame_relay(block, state):
    """RFC 2427: an address of 2 to 4 bytes, whose last one is odd; the control octet, a byte of padding where it is
    zero, the protocol. Without the control octet, an EtherType as Cisco writes it."""
    at, end = state[P.AT] + 2, state[P.END]
    while at < end and at < state[P.AT] + 4 and octet(block, at - 1) & 1 == 0:
        at += 1
    if at + 2 > end:
        return P.TRUNCATED
    address = u16(block, state[P.AT], end)
    enter_space(state, P.IN_CIRCUIT, address >> 10 << 4 | address >> 4 & 0xF)
    state[P.AT] = at
    if octet(block, at) != P.UI:
        return to_ethertype(block, state, 0, 2)
    at += 2 if octet(block, at + 1) == 0 else 1
    protocol, state[P.AT] = u16(block, at, end) >> 8, at + 1
    if protocol < 0 or (protocol == P.NLPID_SNAP and at + 6 > end):
        return P.TRUNCATED
    if protocol == P.NLPID_IPV4:
        state[P.LAYER] = P.IPV4
    elif protocol == P.NLPID_IPV6:
        state[P.LAYER] = P.IPV6
    elif protocol != P.NLPID_SNAP:
        return P.LINK_CODES + P.LINK_FRAME_RELAY
    elif u32(block, at, end) & 0xFFFFFF != P.BRIDGED_OUI:
        return to_ethertype(block, state, 3, 5)
    elif u16(block, at + 4, end) in P.BRIDGED_ETHERNET:
        state[P.AT] = at + 6
        state[P.LAYER] = P.ETHERNET
    else:
        return P.LINK_CODES + P.LINK_FRAME_RELAY
    return P.NEXT_LAYER


@kernel
def ip(block, state):
    """IP without a link layer: the version is in the first four bits."""
    if state[P.AT] >= state[P.END]:
        return P.TRUNCATED
    version = octet(block, state[P.AT]) >> 4
    if version == 4:
        state[P.LAYER] = P.IPV4
    elif version == 6:
        state[P.LAYER] = P.IPV6
    else:
        return P.BAD_IP
    return P.NEXT_LAYER


@kernel
def enter(state, kind, number):
    """Add an encapsulation to the state, and drop the outer IP header. NEXT_LAYER, or TOO_NESTED."""
    count = state[P.TUNNELS]
    if count >= P.MAX_TUNNELS:
        return P.TOO_NESTED
    state[P.FIRST_TUNNEL + count] = kind * P.TUNNEL_STEP + number
    state[P.TUNNELS] = count + 1
    enter_space(state, kind, number)
    state[P.VERSION] = 0
    return P.NEXT_LAYER


@kernel
def ipv4(block, state):
    """RFC 791 section 3.1."""
    at = state[P.AT]
    if at + P.IPV4_BYTES > state[P.END]:
        return P.TRUNCATED
    first = octet(block, at)
    header = (first & 0x0F) * 4
    total = u16(block, at + 2, state[P.END])
    if first >> 4 != 4 or header < P.IPV4_BYTES or (total != 0 and total < header):
        return P.BAD_IP
    if total != 0:  # 0: the network card was to cut the packet up (segmentation offload), the frame's length counts
        state[P.WIRE_END] = at + total
        state[P.END] = min(state[P.END], at + total)
    state[P.VERSION] = 4
    state[P.SOURCE] = at + 12
    state[P.TARGET] = at + 16
    if u16(block, at + 6, state[P.AT] + P.IPV4_BYTES) & 0x3FFF:  # more fragments, or not the first one
        return P.FRAGMENT  # AT stays at the IP header
    state[P.VALUE] = octet(block, at + 9)
    state[P.AT] = at + header
    state[P.LAYER] = P.IP_PROTOCOL
    return P.NEXT_LAYER


@kernel
def ipv6(block, state):
    """RFC 8200 section 3. A payload length of 0 means a jumbogram or segmentation offload."""
    at = state[P.AT]
    if at + P.IPV6_BYTES > state[P.END]:
        return P.TRUNCATED
    if octet(block, at) >> 4 != 6:
        return P.BAD_IP
    size = u16(block, at + 4, state[P.END])
    if size != 0:
        state[P.WIRE_END] = at + P.IPV6_BYTES + size
        state[P.END] = min(state[P.END], state[P.WIRE_END])
    state[P.VERSION] = 6
    state[P.SOURCE] = at + 8
    state[P.TARGET] = at + 24
    state[P.VALUE] = octet(block, at + 6)
    state[P.AT] = at + P.IPV6_BYTES
    state[P.LAYER] = P.IP_PROTOCOL
    return P.NEXT_LAYER


@kernel
def ip_protocol(block, state):
    """The protocol number: TCP, UDP, a tunnel, or an extension header of IPv6 (RFC 8200 section 4)."""
    at = state[P.AT]
    value = state[P.VALUE]
    if value == P.PROTOCOL_TCP:
        return P.TCP
    if value == P.PROTOCOL_UDP:
        return udp(block, state)
    if value == P.PROTOCOL_IPV4:
        state[P.LAYER] = P.IPV4
        return enter(state, P.IPV4_IN_IPV4 if state[P.VERSION] == 4 else P.IPV4_IN_IPV6, P.NO_NUMBER)
    if value == P.PROTOCOL_IPV6:
        state[P.LAYER] = P.IPV6
        return enter(state, P.IPV6_IN_IPV4 if state[P.VERSION] == 4 else P.IPV6_IN_IPV6, P.NO_NUMBER)
    if value != P.PROTOCOL_AH and not (state[P.VERSION] == 6 and value in P.EXTENSION_HEADERS):
        state[P.LAYER] = known(P.PROTOCOL_LAYERS, value)
        return P.NEXT_LAYER if state[P.LAYER] != P.UNKNOWN_LAYER else P.PROTOCOL_CODES + value
    if at + 8 > state[P.END]:
        return P.TRUNCATED
    size = octet(block, at + 1)
    if value == P.PROTOCOL_FRAGMENT:
        if u16(block, at + 2, state[P.END]) & 0xFFF9:  # offset, or more fragments; an atomic fragment (RFC 6946) passes
            return P.FRAGMENT  # AT stays at the fragment header
        state[P.AT] = at + 8
    elif value == P.PROTOCOL_AH:
        state[P.AT] = at + 4 * (size + 2)
    else:
        state[P.AT] = at + 8 * (size + 1)
    state[P.VALUE] = octet(block, at)
    return P.NEXT_LAYER


@kernel
def udp(block, state):
    """RFC 768: the destination port identifies a tunnel."""
    layer = known(P.UDP_PORT_LAYERS, u16(block, state[P.AT] + 2, state[P.END]))
    if layer == P.UNKNOWN_LAYER:
        return P.PROTOCOL_CODES + P.PROTOCOL_UDP
    state[P.AT] += P.UDP_BYTES
    state[P.LAYER] = layer
    return P.NEXT_LAYER


@kernel
def header(block, state):
    """Parse a header that is no encapsulation: NEXT_LAYER, TCP (its header begins at AT), or a skip code."""
    layer = state[P.LAYER]
    if layer == P.ETHERTYPE:
        return ethertype(block, state)
    if layer == P.IPV4:
        return ipv4(block, state)
    if layer == P.IPV6:
        return ipv6(block, state)
    if layer == P.IP_PROTOCOL:
        return ip_protocol(block, state)
    if layer == P.ETHERNET:
        return to_ethertype(block, state, 12, 14)
    if layer == P.LINUX_SLL:
        return to_ethertype(block, state, 14, 16)
    if layer == P.LINUX_SLL2:
        enter_space(state, P.ON_INTERFACE, max(0, u32(block, state[P.AT] + SLL2_INTERFACE, state[P.END])))
        return to_ethertype(block, state, 0, 20)
    if layer == P.IP:
        return ip(block, state)
    if layer == P.BSD_NULL or layer == P.BSD_LOOP:
        return bsd(block, state)
    if layer == P.NFLOG:
        return nflog(block, state)
    if layer == P.PFLOG:
        return pflog(block, state)
    if layer == P.PKTAP:
        return pktap(block, state)
    if layer == P.C_HDLC:
        return to_ethertype(block, state, 2, 4)
    return frame_relay(block, state)
