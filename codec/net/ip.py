"""IPv4 and IPv6 with extension headers: from an IP header to its payload.

Steps are as in `codec.net.link`. The IP length gives the end of the packet on the wire (WIRE_END) and bounds its
captured part (END), since a link frame may be padded, or cut by the snaplen. Sources: RFC 791, RFC 8200, RFC 4302 (AH).
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.cursor import octet, u16
from codec.net.link import known
from codec.net.protocols import (
    AT,
    BAD_IP,
    END,
    EXTENSION_HEADERS,
    FRAGMENT,
    IP_PROTOCOL,
    IPV4,
    IPV4_BYTES,
    IPV4_IN_IPV4,
    IPV4_IN_IPV6,
    IPV6,
    IPV6_BYTES,
    IPV6_IN_IPV4,
    IPV6_IN_IPV6,
    LAYER,
    NEXT_LAYER,
    NO_NUMBER,
    PROTOCOL_AH,
    PROTOCOL_CODES,
    PROTOCOL_FRAGMENT,
    PROTOCOL_IPV4,
    PROTOCOL_IPV6,
    PROTOCOL_LAYERS,
    PROTOCOL_TCP,
    PROTOCOL_UDP,
    SOURCE,
    TARGET,
    TCP,
    TRUNCATED,
    UDP_BYTES,
    UDP_PORT_LAYERS,
    UNKNOWN_LAYER,
    VALUE,
    VERSION,
    WIRE_END,
)
from codec.net.tunnels import enter


@kernel
def ipv4(block, state):
    """RFC 791 section 3.1."""
    at = state[AT]
    if at + IPV4_BYTES > state[END]:
        return TRUNCATED
    first = octet(block, at)
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
    state[VALUE] = octet(block, at + 9)
    state[AT] = at + header
    state[LAYER] = IP_PROTOCOL
    return NEXT_LAYER


@kernel
def ipv6(block, state):
    """RFC 8200 section 3. A payload length of 0 stands for a jumbogram or segmentation offload."""
    at = state[AT]
    if at + IPV6_BYTES > state[END]:
        return TRUNCATED
    if octet(block, at) >> 4 != 6:
        return BAD_IP
    size = u16(block, at + 4, state[END])
    if size != 0:
        state[WIRE_END] = at + IPV6_BYTES + size
        state[END] = min(state[END], state[WIRE_END])
    state[VERSION] = 6
    state[SOURCE] = at + 8
    state[TARGET] = at + 24
    state[VALUE] = octet(block, at + 6)
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
    size = octet(block, at + 1)
    if value == PROTOCOL_FRAGMENT:
        if u16(block, at + 2, state[END]) & 0xFFF9:  # offset, or more fragments; an atomic fragment (RFC 6946) passes
            return FRAGMENT  # AT stays at the fragment header
        state[AT] = at + 8
    elif value == PROTOCOL_AH:
        state[AT] = at + 4 * (size + 2)
    else:
        state[AT] = at + 8 * (size + 1)
    state[VALUE] = octet(block, at)
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
