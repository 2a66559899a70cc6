"""Behind a hole: which record of its direction is this one?

`lost` octets lie between the last boundary that is known and the record at hand. Each record has 5 octets of header,
and at least `least` of body; so its number is bounded, and what is within the bounds is tried, the likeliest first.
"""

from __future__ import annotations

from collections.abc import Iterator

from codec.compiler.limits import LIMITS
from codec.layers.tls.framing import HEADER_BYTES, RECORD_BYTES


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
