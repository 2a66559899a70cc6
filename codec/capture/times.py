"""Times of pcapng packets as nanoseconds: 64 bits in units that each interface chooses.

Source: draft-ietf-opsawg-pcapng section 4.2, options if_tsresol and if_tsoffset. Everything stays inside 63 bits, and
a time inside 62: a damaged one ends at LAST_NS, it does not wrap, and neither does what lies between two times.
"""

from __future__ import annotations

from codec.compiler.jit import njit

MAX_NS = 2**63 - 1
SECOND_NS = 1_000_000_000
# The last whole second of 62 bits, in 2116; the seconds of a pcap end in 2106.
LAST_NS = 2**62 // SECOND_NS * SECOND_NS

# How units become nanoseconds: times `factor`, divided by `factor`, or as fractions of 2**-factor seconds.
MULTIPLY, DIVIDE, SHIFT = range(3)


def time_rule(resolution: int) -> tuple[int, int]:
    """if_tsresol -> (rule, factor). The high bit chooses between powers of 2 and of 10 (section 4.2 of the draft)."""
    power = resolution & 0x7F
    if resolution & 0x80:
        return SHIFT, power
    if power <= 9:
        return MULTIPLY, 10 ** (9 - power)
    return DIVIDE, min(10 ** (power - 9), MAX_NS)


@njit
def nanoseconds(high, low, rule, factor, offset_ns):
    """Time of a packet: 64 bits in two halves of 32, in the interface's units. Stays inside -LAST_NS..LAST_NS."""
    if rule == SHIFT:
        ns = _binary_fraction(high, low, factor)
    elif high >= 1 << 31:
        ns = MAX_NS
    elif rule == DIVIDE:
        ns = ((high << 32) | low) // factor
    else:
        units = (high << 32) | low
        ns = units * factor if units <= MAX_NS // factor else MAX_NS
    if offset_ns > 0 and ns > LAST_NS - offset_ns:
        return LAST_NS
    return max(-LAST_NS, min(ns + offset_ns, LAST_NS))


@njit
def _binary_fraction(high, low, bits):
    """Nanoseconds of (high * 2**32 + low) units of 2**-bits seconds, rounded down, without leaving 63 bits."""
    if bits <= 32:
        if high > (MAX_NS // SECOND_NS - 1) >> (32 - bits):
            return MAX_NS
        seconds = (high << (32 - bits)) | (low >> bits)
        return seconds * SECOND_NS + (((low & ((1 << bits) - 1)) * SECOND_NS) >> bits)
    shift = bits - 32
    if shift > 62:
        return 0
    seconds = high >> min(shift, 32)
    fraction = high & ((1 << min(shift, 32)) - 1)
    return seconds * SECOND_NS + ((fraction * SECOND_NS + ((low * SECOND_NS) >> 32)) >> shift)
