"""Link layers and tags: from the first byte of a packet to its IP header.

A step parses the header at `state[AT]`, moves AT past it and sets the next layer; it returns NEXT_LAYER or a skip code.
Sources: IEEE 802.3, 802.1Q, 802.1ad; the LINKTYPE_ registry of tcpdump.org.
"""

from __future__ import annotations

from codec.capture.records import NO_INTERFACE, NOT_A_PACKET
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16, u32
from codec.net import protocols as P


@kernel
def known(layers, number):
    """The layer of `number` in pairs (number, layer); UNKNOWN_LAYER when it is not among them."""
    for each, layer in layers:
        if each == number:
            return layer
    return P.UNKNOWN_LAYER


@kernel
def link(link_type, state):
    """The first layer of a packet."""
    layer = known(P.LINK_LAYERS, link_type)
    if layer == P.UNKNOWN_LAYER:
        if link_type == NO_INTERFACE:
            return P.UNDESCRIBED
        return P.NUMBERED if link_type == NOT_A_PACKET else P.LINK_CODES + link_type
    state[P.LAYER] = layer
    return P.NEXT_LAYER


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
    """The EtherType: IP, a VLAN tag with the next EtherType (IEEE 802.1Q clause 9), or a tunnel."""
    value = state[P.VALUE]
    if value == P.ETHERTYPE_IPV4:
        state[P.LAYER] = P.IPV4
    elif value == P.ETHERTYPE_IPV6:
        state[P.LAYER] = P.IPV6
    elif value in (P.ETHERTYPE_VLAN, P.ETHERTYPE_SERVICE_VLAN, P.ETHERTYPE_OLD_QINQ):
        return to_ethertype(block, state, 2, 4)
    elif value < P.ETHERTYPE_LEAST:
        return P.IEEE_802_3
    else:
        state[P.LAYER] = known(P.ETHERTYPE_LAYERS, value)
        if state[P.LAYER] == P.UNKNOWN_LAYER:
            return P.ETHERTYPE_CODES + value
    return P.NEXT_LAYER


@kernel
def bsd(block, state):
    """Four bytes of address family: in the byte order of the capturing host (NULL), or of the network (LOOP)."""
    family = u32(block, state[P.AT], state[P.END])
    if family < 0:
        return P.TRUNCATED
    if state[P.LAYER] == P.BSD_NULL and family > 0xFFFF:  # families are small: this one is little-endian
        family = ((family >> 24) & 0xFF) | ((family >> 8) & 0xFF00) | ((family & 0xFF00) << 8) | ((family & 0xFF) << 24)
    state[P.AT] += 4
    if family == P.FAMILY_IPV4:
        state[P.LAYER] = P.IPV4
        return P.NEXT_LAYER
    if family in P.FAMILY_IPV6:
        state[P.LAYER] = P.IPV6
        return P.NEXT_LAYER
    return P.LINK_CODES + (P.LINK_NULL if state[P.LAYER] == P.BSD_NULL else P.LINK_LOOP)


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
