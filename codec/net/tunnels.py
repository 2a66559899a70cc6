"""Tunnels: from the header of an encapsulation to the link or IP header inside.

Steps are as in `codec.net.headers`. The state has the encapsulations of a packet, outermost first; all other columns
(addresses, flow, lengths) are those of the innermost packet. Sources: RFC 7348 (VXLAN), RFC 8926 (Geneve), RFC 2784 and
2890 (GRE), RFC 2637 (PPTP), draft-foschiano-erspan, RFC 3032 and 4385 (MPLS), RFC 2516 (PPPoE), RFC 1661 and 1662
(PPP), draft-ietf-nvo3-vxlan-gpe, 3GPP TS 29.281 (GTP-U).
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.cursor import fits, octet, u8, u16, u32
from codec.net import protocols as P
from codec.net.headers import enter, enter_space, known

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
    P.ETHERTYPE_IPV4, P.ETHERTYPE_IPV6, P.ETHERTYPE_VLAN, P.ETHERTYPE_SERVICE_VLAN, P.ETHERTYPE_OLD_QINQ,
)  # fmt: skip
PPPOE_BYTES, PPPOE_SESSION = 6, 0x1100  # version 1, type 1, code 0
PPP_ALL_STATIONS = 0xFF  # the address byte of HDLC-like framing; a control byte follows


@kernel
def tunnel(block, state):
    """Parse the header of an encapsulation."""
    layer = state[P.LAYER]
    if layer == P.VXLAN:
        return _vxlan(block, state)
    if layer == P.GRE:
        return _gre(block, state)
    if layer == P.GENEVE:
        return _geneve(block, state)
    if layer == P.MPLS:
        return _mpls(block, state)
    if layer == P.PPPOE:
        return _pppoe(block, state)
    if layer == P.VXLAN_GPE:
        return _vxlan_gpe(block, state)
    if layer == P.GTP_U:
        return _gtp_u(block, state)
    return _ppp(block, state)


@kernel
def _vxlan(block, state):
    """RFC 7348 section 5. A packet without VNI is another protocol on that port."""
    at = state[P.AT]
    if not fits(at, VXLAN_BYTES, state[P.END]):
        return P.TRUNCATED
    if not octet(block, at) & VXLAN_HAS_VNI:
        return P.PROTOCOL_CODES + P.PROTOCOL_UDP
    state[P.AT] = at + VXLAN_BYTES
    state[P.LAYER] = P.ETHERNET
    return enter(state, P.IN_VXLAN, u32(block, at + 4, state[P.END]) >> 8)


@kernel
def _vxlan_gpe(block, state):
    """draft-ietf-nvo3-vxlan-gpe section 3: VXLAN with a number of the protocol inside."""
    at = state[P.AT]
    if not fits(at, VXLAN_BYTES, state[P.END]):
        return P.TRUNCATED
    flags = octet(block, at)
    state[P.LAYER] = known(P.VXLAN_GPE_LAYERS, octet(block, at + 3)) if flags & GPE_HAS_PROTOCOL else P.ETHERNET
    if flags & GPE_VERSION or not flags & VXLAN_HAS_VNI or state[P.LAYER] == P.UNKNOWN_LAYER:
        return P.PROTOCOL_CODES + P.PROTOCOL_UDP
    state[P.AT] = at + VXLAN_BYTES
    return enter(state, P.IN_VXLAN_GPE, u32(block, at + 4, state[P.END]) >> 8)


@kernel
def _gtp_u(block, state):
    """3GPP TS 29.281 section 5: a G-PDU carries IP. The last of the optional octets, and of each extension
    header, is the type of the next extension header; the first octet of one is its length in words of four bytes."""
    at, end = state[P.AT], state[P.END]
    if not fits(at, GTP_BYTES, end):
        return P.TRUNCATED
    flags = octet(block, at)
    if flags & GTP_KIND != GTP_VERSION_1 or octet(block, at + 1) != GTP_PDU:
        return P.PROTOCOL_CODES + P.PROTOCOL_UDP
    number = u32(block, at + 4, end)
    at += GTP_BYTES
    if flags & GTP_OPTIONS:
        at += GTP_OPTIONAL_BYTES
        following = u8(block, at - 1, end) if flags & GTP_EXTENSION else 0
        while following > 0:
            at += 4 * max(1, u8(block, at, end))
            following = u8(block, at - 1, end)
        if following < 0:
            return P.TRUNCATED
    state[P.AT] = at
    state[P.LAYER] = P.IP
    return enter(state, P.IN_GTP_U, number)


@kernel
def _geneve(block, state):
    """RFC 8926 section 3.4; the length of the options counts words of four bytes."""
    at = state[P.AT]
    if not fits(at, GENEVE_BYTES, state[P.END]):
        return P.TRUNCATED
    first = octet(block, at)
    if first >> 6:  # only version 0 is defined
        return P.PROTOCOL_CODES + P.PROTOCOL_UDP
    state[P.VALUE] = u16(block, at + 2, state[P.END])
    state[P.AT] = at + GENEVE_BYTES + 4 * (first & 0x3F)
    state[P.LAYER] = P.ETHERTYPE
    return enter(state, P.IN_GENEVE, u32(block, at + 4, state[P.END]) >> 8)


@kernel
def _gre(block, state):
    """RFC 2784 section 2, RFC 2890. Source routing (RFC 1701) is not followed."""
    at, end = state[P.AT], state[P.END]
    if not fits(at, 4, end):
        return P.TRUNCATED
    flags, kind = u16(block, at, end), u16(block, at + 2, end)
    if flags & GRE_VERSION == PPTP_VERSION and flags & GRE_SEQUENCE:
        return _pptp(block, state, flags & PPTP_ACKNOWLEDGED)
    if flags & (GRE_ROUTING | GRE_VERSION) or kind < P.ETHERTYPE_LEAST:
        return P.PROTOCOL_CODES + P.PROTOCOL_GRE
    at += 8 if flags & GRE_CHECKSUM else 4
    number = P.NO_NUMBER
    if flags & GRE_KEY:
        if not fits(at, 4, end):
            return P.TRUNCATED
        number = u32(block, at, end)
        at += 4
    if flags & GRE_SEQUENCE:
        at += 4
    state[P.AT] = at
    if kind == P.ETHERTYPE_ERSPAN:
        return _erspan_i_or_ii(block, state, flags & GRE_SEQUENCE)
    if kind == P.ETHERTYPE_ERSPAN_III:
        return _erspan_iii(block, state)
    state[P.VALUE] = kind
    state[P.LAYER] = P.ETHERTYPE
    return enter(state, P.IN_GRE, number)


@kernel
def _pptp(block, state, acknowledged):
    """RFC 2637 section 4.1: GRE version 1 carries PPP. Packets without a sequence number only acknowledge."""
    at = state[P.AT]
    if not fits(at, PPTP_BYTES, state[P.END]):
        return P.TRUNCATED
    state[P.AT] = at + PPTP_BYTES + (4 if acknowledged else 0)
    state[P.LAYER] = P.PPP
    return enter(state, P.IN_PPTP, u16(block, at + 6, state[P.END]))


@kernel
def _erspan_i_or_ii(block, state, sequenced):
    """draft-foschiano-erspan sections 4.1 and 4.2: type I has no header of its own, and no GRE sequence number."""
    at = state[P.AT]
    state[P.LAYER] = P.ETHERNET
    if not sequenced:
        return enter(state, P.IN_ERSPAN_I, P.NO_NUMBER)
    if not fits(at, ERSPAN_II_BYTES, state[P.END]):
        return P.TRUNCATED
    enter_space(state, P.IN_VLAN, u16(block, at, state[P.END]) & P.VLAN_ID)
    state[P.AT] = at + ERSPAN_II_BYTES
    return enter(state, P.IN_ERSPAN_II, u16(block, at + 2, state[P.END]) & ERSPAN_SESSION)


@kernel
def _erspan_iii(block, state):
    """draft-foschiano-erspan section 4.3: the last bit announces a platform specific header."""
    at = state[P.AT]
    if not fits(at, ERSPAN_III_BYTES, state[P.END]):
        return P.TRUNCATED
    enter_space(state, P.IN_VLAN, u16(block, at, state[P.END]) & P.VLAN_ID)
    last = u16(block, at + 10, state[P.END])
    frame = (last >> 10) & 0x1F
    if frame != ERSPAN_FRAME_ETHERNET and frame != ERSPAN_FRAME_IP:
        return P.PROTOCOL_CODES + P.PROTOCOL_GRE
    state[P.LAYER] = P.ETHERNET if frame == ERSPAN_FRAME_ETHERNET else P.IP
    state[P.AT] = at + ERSPAN_III_BYTES + ERSPAN_PLATFORM_BYTES * (last & 1)
    return enter(state, P.IN_ERSPAN_III, u16(block, at + 2, state[P.END]) & ERSPAN_SESSION)


@kernel
def _mpls(block, state):
    """A label stack (RFC 3032 section 2.1) is one encapsulation; its number is the label at the bottom.

    The first four bits after it identify the payload: IP, or the control word of a pseudowire (RFC 4385 section 3),
    which is assumed to carry Ethernet. Without a control word they are the first ones of a hardware address: then the
    EtherType is at another place.
    """
    at, end = state[P.AT], state[P.END]
    entry = u32(block, at, end)
    while entry >= 0 and not entry & MPLS_BOTTOM:
        at += 4
        entry = u32(block, at, end)
    at += 4
    first = u8(block, at, end)
    if entry < 0 or first < 0:
        return P.TRUNCATED
    kind = first >> 4
    if kind == 4:
        state[P.LAYER] = P.IPV4
    elif kind == 6:
        state[P.LAYER] = P.IPV6
    else:
        state[P.LAYER] = P.ETHERNET
        bare = u16(block, at + 12, end) in IN_ETHERNET
        if kind == 0 and (not bare or u16(block, at + CONTROL_WORD_BYTES + 12, end) in IN_ETHERNET):
            at += CONTROL_WORD_BYTES
        elif not bare:
            return P.TRUNCATED if end < at + 14 <= state[P.WIRE_END] else P.MPLS_OTHER
    state[P.AT] = at
    return enter(state, P.IN_MPLS, entry >> 12)


@kernel
def _pppoe(block, state):
    """RFC 2516 section 4; the discovery stage has another EtherType."""
    at = state[P.AT]
    if not fits(at, PPPOE_BYTES, state[P.END]):
        return P.TRUNCATED
    if u16(block, at, state[P.END]) != PPPOE_SESSION:
        return P.PPPOE_OTHER
    state[P.AT] = at + PPPOE_BYTES
    state[P.LAYER] = P.PPP
    return enter(state, P.IN_PPPOE, u16(block, at + 2, state[P.END]))


@kernel
def _ppp(block, state):
    """RFC 1661 section 2, RFC 1662 section 3.1; a one-byte protocol number is odd (section 6.5)."""
    at, end = state[P.AT], state[P.END]
    if u8(block, at, end) == PPP_ALL_STATIONS:
        at += 2
    first = u8(block, at, end)
    value = first if first & 1 else u16(block, at, end)
    if value < 0:
        return P.TRUNCATED
    state[P.LAYER] = known(P.PPP_LAYERS, value)
    state[P.AT] = at + (1 if first & 1 else 2)
    return P.NEXT_LAYER if state[P.LAYER] != P.UNKNOWN_LAYER else P.PPP_CODES + value
