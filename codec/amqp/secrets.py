"""Secrets of a frame, blanked where they stand: what SASL responses and tokens carry, as the overlay of the fact tables
lists them ("credentials").

A frame keeps its length and all its other octets, so that it decodes as before but for the user, who stands inside of
the response. Where the fields do not fill the frame, some length is not true: all is blanked from the first secret on,
or from where they no longer fit. Octets that are not one whole frame, or whose method nobody knows, cannot be vouched
for: they are blanked from end to end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.amqp import kinds as K
from codec.amqp import tables_0_10 as S
from codec.amqp import tables_1_0 as D
from codec.amqp.classic import NUMBERS, classify_method
from codec.amqp.classic_frames import OVERHEAD, frame_kind
from codec.amqp.connection import matches_magic, plausible_header
from codec.amqp.constructors_1_0 import DESCRIBED, compound, skip
from codec.amqp.detect import FRAME_END
from codec.amqp.detect_1_0 import FRAME_HEADER, SASL_FRAME, WORD, is_list, performative
from codec.amqp.extents_0_10 import entry_at, extent, packing_flags, session_header_end
from codec.amqp.field_table import value_end
from codec.amqp.segmented_detect import BODY_SEGMENT, COMMAND_SEGMENT, WHOLE_SEGMENT, header_flaw
from codec.amqp.segmented_detect import OVERHEAD as SEGMENT_OVERHEAD
from codec.amqp.tables import OPTIONAL, classic_tables
from codec.amqp.tables_0_10 import segmented_tables
from codec.amqp.tables_1_0 import described_tables
from codec.amqp.versions import CLASSIC, FAMILY_OF_VERSION, METHOD, NO_ERROR, OOB_METHOD, SEGMENTED
from codec.cursor import octet, u8, u16, u32
from codec.kernel import kernel

BLANK = ord("*")
HEADER_OCTETS = 8


@kernel
def blank(octets, start, end):
    """Write over `octets[start:end]`."""
    for i in range(start, end):
        octets[i] = BLANK


@kernel
def _classic(octets, start, end, t, version):
    """Blank the secrets of a frame of 0-8 to 0-9-1: whether all of it can be vouched for."""
    if end - start < OVERHEAD or u32(octets, start + 3, end) != end - start - OVERHEAD:
        return False
    kind, stop = frame_kind(t, version, octet(octets, start)), end - 1
    if kind < 0 or octet(octets, stop) != FRAME_END:
        return False
    if kind not in (METHOD, OOB_METHOD):
        return True
    method = classify_method(octets, start + 7, stop, t, version)
    if method < 0:
        return False
    at, bit, secret_at = start + 7 + NUMBERS, 0, stop
    for i in range(int(t.field_from[method]), int(t.field_from[method + 1])):
        kind = int(t.field_kind[i])
        if at >= stop and t.field_flags[i] & OPTIONAL:
            break
        if kind == K.BIT:
            at += 1 if bit == 0 else 0
            bit = (bit + 1) & 7
            continue
        bit = 0
        after = value_end(octets, at, stop, kind)
        if after < 0:
            break
        if kind in (K.SECRET, K.SASL_RESPONSE):
            secret_at = min(secret_at, at + 4)
            blank(octets, at + 4, after)
        at = after
    if at != stop:
        blank(octets, min(secret_at, at), stop)
    return True


@kernel
def _segmented(octets, start, end, t):
    """`_classic` for 0-10."""
    if end - start < SEGMENT_OVERHEAD or u16(octets, start + 2, end) != end - start:
        return False
    if header_flaw(octets, start, end) != NO_ERROR:
        return False
    kind, at = octet(octets, start + 1), start + SEGMENT_OVERHEAD
    if kind > COMMAND_SEGMENT:
        return kind <= BODY_SEGMENT
    of = entry_at(octets, at, end, kind, t)
    if of < 0 or octet(octets, start) & WHOLE_SEGMENT != WHOLE_SEGMENT:
        return False
    at += 2
    if kind == COMMAND_SEGMENT:
        at = session_header_end(octets, at, end)
    flags = packing_flags(octets, at, end, of, t) if at >= 0 else -1
    if flags < 0:
        return False
    at += int(t.entries[of, S.PACK])
    secret_at = end
    for i in range(int(t.entries[of, S.FIELD_FROM]), int(t.entries[of, S.FIELD_END])):
        if flags & 1:
            number = int(t.fields[i, S.FIELD_TYPE])
            after = extent(octets, at, end, number, int(t.fields[i, S.FIELD_OF]), t)
            if after < 0:
                break
            if t.fields[i, S.FIELD_SHOWN] != S.SHOWN:
                secret_at = min(secret_at, at + int(t.types[S.WIDTH, number]))
                blank(octets, at + int(t.types[S.WIDTH, number]), after)
            at = after
        flags >>= 1
    if at != end:
        blank(octets, min(secret_at, at), end)
    return True


@kernel
def _described(octets, start, end, t):
    """`_classic` for 1.0."""
    if end - start < FRAME_HEADER or u32(octets, start, end) != end - start:
        return False
    body, kind = start + octet(octets, start + WORD) * WORD, octet(octets, start + WORD + 1)
    if body < start + FRAME_HEADER or body > end or kind > SASL_FRAME:
        return False
    if body == end:
        return True
    of, _, at = performative(octets, body, end, t)
    if of < 0 or not is_list(octets, at, end, t):
        return False
    at, stop, count = compound(octets, at + 1, end, octet(octets, at), t)
    first, last = int(t.descriptor[of].field_from), int(t.descriptor[of].field_end)
    secret_at = stop
    for i in range(first, min(first + count, last)):
        after = skip(octets, at, stop, t)
        if after < 0:
            break
        if t.field[i].shown != D.SHOWN:
            code = u8(octets, at, stop)
            kept = 1
            if code != DESCRIBED and t.constructor[code].category == D.VARIABLE:
                kept += int(t.constructor[code].width)
            secret_at = min(secret_at, at + kept)
            blank(octets, min(at + kept, after), after)
        at = after
    if at != stop:
        blank(octets, min(secret_at, at), stop)
    # What follows the list is a message, or nothing that a performative with secrets has.
    for i in range(first, last):
        if t.field[i].shown != D.SHOWN:
            blank(octets, stop, end)
            break
    return True


@kernel
def _blank_classic(octets, offsets, t, version, vouched):
    for i in range(len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        vouched[i] = _is_header(octets, start, end) or _classic(octets, start, end, t, version)
        if not vouched[i]:
            blank(octets, start, end)


@kernel
def _blank_segmented(octets, offsets, t, vouched):
    for i in range(len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        vouched[i] = _is_header(octets, start, end) or _segmented(octets, start, end, t)
        if not vouched[i]:
            blank(octets, start, end)


@kernel
def _blank_described(octets, offsets, t, vouched):
    for i in range(len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        vouched[i] = _is_header(octets, start, end) or _described(octets, start, end, t)
        if not vouched[i]:
            blank(octets, start, end)


@kernel
def _is_header(octets, start, end):
    whole = end - start == HEADER_OCTETS and matches_magic(octets, start, end) == 4
    return whole and plausible_header(octets, start)


def blank_secrets(octets: NDArray[np.uint8], offsets: NDArray[np.int64], version: int) -> NDArray[np.bool_]:
    """Write over the secrets of the frames `octets[offsets[i]:offsets[i + 1]]`, each a whole frame of a VERSIONS code.

    False for those that cannot be vouched for, of which no octet is left. `octets` must be writable, and is changed.
    """
    vouched = np.zeros(len(offsets) - 1, np.bool_)
    family = int(FAMILY_OF_VERSION[version])
    if family == CLASSIC:
        _blank_classic(octets, offsets, classic_tables(), version, vouched)
    elif family == SEGMENTED:
        _blank_segmented(octets, offsets, segmented_tables(), vouched)
    else:
        _blank_described(octets, offsets, described_tables()[0], vouched)
    return vouched
