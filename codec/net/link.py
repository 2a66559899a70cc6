"""Link layers and tags: from the first byte of a packet to its IP header.

A step parses the header at `state[AT]`, moves AT past it and sets the next layer; it returns NEXT_LAYER or a skip code.
Sources: IEEE 802.3, 802.1Q, 802.1ad; the LINKTYPE_ registry of tcpdump.org.
"""

from __future__ import annotations

from codec.capture.records import NO_INTERFACE, NOT_A_PACKET
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16, u32
from codec.net.protocols import (
    AT,
    BAD_IP,
    BSD_NULL,
    END,
    ETHERTYPE,
    ETHERTYPE_CODES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_LAYERS,
    ETHERTYPE_LEAST,
    ETHERTYPE_OLD_QINQ,
    ETHERTYPE_SERVICE_VLAN,
    ETHERTYPE_VLAN,
    FAMILY_IPV4,
    FAMILY_IPV6,
    IEEE_802_3,
    IPV4,
    IPV6,
    LAYER,
    LINK_CODES,
    LINK_LAYERS,
    LINK_LOOP,
    LINK_NULL,
    NEXT_LAYER,
    NUMBERED,
    TRUNCATED,
    UNDESCRIBED,
    UNKNOWN_LAYER,
    VALUE,
)


@kernel
def known(layers, number):
    """The layer of `number` in pairs (number, layer); UNKNOWN_LAYER when it is not among them."""
    for each, layer in layers:
        if each == number:
            return layer
    return UNKNOWN_LAYER


@kernel
def link(link_type, state):
    """The first layer of a packet."""
    layer = known(LINK_LAYERS, link_type)
    if layer == UNKNOWN_LAYER:
        if link_type == NO_INTERFACE:
            return UNDESCRIBED
        return NUMBERED if link_type == NOT_A_PACKET else LINK_CODES + link_type
    state[LAYER] = layer
    return NEXT_LAYER


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
    """The EtherType: IP, a VLAN tag with the next EtherType (IEEE 802.1Q clause 9), or a tunnel."""
    value = state[VALUE]
    if value == ETHERTYPE_IPV4:
        state[LAYER] = IPV4
    elif value == ETHERTYPE_IPV6:
        state[LAYER] = IPV6
    elif value in (ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_OLD_QINQ):
        return to_ethertype(block, state, 2, 4)
    elif value < ETHERTYPE_LEAST:
        return IEEE_802_3
    else:
        state[LAYER] = known(ETHERTYPE_LAYERS, value)
        if state[LAYER] == UNKNOWN_LAYER:
            return ETHERTYPE_CODES + value
    return NEXT_LAYER


@kernel
def bsd(block, state):
    """Four bytes of address family: in the byte order of the capturing host (NULL), or of the network (LOOP)."""
    family = u32(block, state[AT], state[END])
    if family < 0:
        return TRUNCATED
    if state[LAYER] == BSD_NULL and family > 0xFFFF:  # families are small: this one is little-endian
        family = ((family >> 24) & 0xFF) | ((family >> 8) & 0xFF00) | ((family & 0xFF00) << 8) | ((family & 0xFF) << 24)
    state[AT] += 4
    if family == FAMILY_IPV4:
        state[LAYER] = IPV4
        return NEXT_LAYER
    if family in FAMILY_IPV6:
        state[LAYER] = IPV6
        return NEXT_LAYER
    return LINK_CODES + (LINK_NULL if state[LAYER] == BSD_NULL else LINK_LOOP)


@kernel
def ip(block, state):
    """IP without a link layer: the version is in the first four bits."""
    if state[AT] >= state[END]:
        return TRUNCATED
    version = octet(block, state[AT]) >> 4
    if version == 4:
        state[LAYER] = IPV4
    elif version == 6:
        state[LAYER] = IPV6
    else:
        return BAD_IP
    return NEXT_LAYER
