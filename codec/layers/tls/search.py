"""Behind a hole: where a record may begin, and which record of its direction it is.

`lost` octets lie between the last known boundary and the record at hand. Each record has 5 octets of header, and at
least `least` of body; so its number is bounded, and all within the bounds are tried, the likeliest first.
"""

from __future__ import annotations

from collections.abc import Iterator

from codec.compiler.limits import LIMITS
from codec.layers.tls.framing import ALERT, APPLICATION_DATA, HEADER_BYTES, RECORD_BYTES

VERSION = b"\x03\x03"  # in the header of an encrypted record


def headers(octets: bytes | bytearray, first: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what may be a record, by its header, from `first` on."""
    begin = octets.find(VERSION, first + 1) - 1
    while begin >= first and begin + HEADER_BYTES <= len(octets):
        size = (octets[begin + 3] << 8) | octets[begin + 4]
        if ALERT <= octets[begin] <= APPLICATION_DATA and size <= RECORD_BYTES:
            yield begin, begin + HEADER_BYTES + size
        begin = octets.find(VERSION, begin + 2) - 1


def numbers(lost: int, least: int, typical: int) -> Iterator[int]:
    """How many records may lie in `lost` octets, the likeliest first; `typical`: size of a record, with header."""
    low = -(-lost // (HEADER_BYTES + RECORD_BYTES))
    high = lost // (HEADER_BYTES + least)
    likely = min(max(round(lost / max(typical, 1)), low), high)
    yield likely
    for step in range(1, LIMITS.trial_records):
        below, above = likely - step, likely + step
        if below < low and above > high:
            return
        if below >= low:
            yield below
        if above <= high:
            yield above
