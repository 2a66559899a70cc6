"""Secrets of a frame, blanked where they stand: what SASL responses and tokens carry, as the overlay of the fact tables
lists them ("credentials").

A frame keeps its length and all its other octets, so that it decodes as before but for the user, who stands inside of
the response. Where the fields do not fill the frame, some length is not true: all is blanked from the first secret on,
or from where they no longer fit. So is what stands beside a secret and may be a part of it: what cannot name a
mechanism, a long string behind a secret. Octets that are not one whole frame, whose method nobody knows, or that stand
where their type cannot (a login whose type is damaged), cannot be vouched for: they are blanked from end to end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import value_end
from codec.amqp.classic.frames import OVERHEAD, frame_kind
from codec.amqp.classic.methods import NUMBERS, check_header, classify_method, fields_in_place, is_shown
from codec.amqp.classic.tables import OPTIONAL, classic_tables
from codec.amqp.connections.connection import matches_magic, plausible_header
from codec.amqp.detect import FRAME_END
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.detect import BODY_SEGMENT, COMMAND_SEGMENT, WHOLE_SEGMENT, header_flaw
from codec.amqp.v0_10.detect import OVERHEAD as SEGMENT_OVERHEAD
from codec.amqp.v0_10.extents import entry_at, extent, packing_flags, session_header_end
from codec.amqp.v0_10.extents import fields_in_place as fields_in_segment
from codec.amqp.v0_10.tables import segmented_tables
from codec.amqp.v0_10.values import is_shown as is_shown_apart
from codec.amqp.v1_0 import tables as D
from codec.amqp.v1_0.composites import sasl_names
from codec.amqp.v1_0.constructors import DESCRIBED, compound, skip
from codec.amqp.v1_0.detect import FRAME_HEADER, SASL_FRAME, WORD, is_list, performative
from codec.amqp.v1_0.detect import fields_in_place as fields_in_place_1_0
from codec.amqp.v1_0.tables import described_tables
from codec.amqp.versions import (
    AMQP,
    BODY,
    CLASSIC,
    FAMILY_OF_VERSION,
    HEADER,
    METHOD,
    NO_ERROR,
    OOB_BODY,
    OOB_HEADER,
    OOB_METHOD,
    SASL,
    SEGMENTED,
)
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import octet, u8, u16, u32

BLANK = ord("*")
HEADER_OCTETS = 8
PAYLOAD = 7  # offset in a frame of 0-8 to 0-9-1
CONTENT = (HEADER, BODY, OOB_HEADER, OOB_BODY)


@kernel
def blank(octets, start, end):
    """Write over `octets[start:end]`."""
    for i in range(start, end):
        octets[i] = BLANK


@kernel
def _classic(octets, start, end, t, version, nest):
    """Blank the secrets of a frame of 0-8 to 0-9-1: whether all of it can be vouched for."""
    if end - start < OVERHEAD or u32(octets, start + 3, end) != end - start - OVERHEAD:
        return False
    kind, stop = frame_kind(t, version, octet(octets, start)), end - 1
    if kind < 0 or octet(octets, stop) != FRAME_END:
        return False
    if kind not in (METHOD, OOB_METHOD):
        # content is on no channel 0, its headers fit their class, and no other frame has a payload
        if kind in (HEADER, OOB_HEADER) and not check_header(octets, start + PAYLOAD, stop, t, version):
            return False
        return stop == start + PAYLOAD or (kind in CONTENT and u16(octets, start + 1, end) != 0)
    method = classify_method(octets, start + PAYLOAD, stop, t, version)
    if method < 0:
        return False
    at, bit = start + PAYLOAD + NUMBERS, 0
    first = int(t.field_from[method])
    shown, flaw = fields_in_place(octets, at, stop, t, t.tag_kind[version], method, nest)
    for i in range(first, first + shown):
        kind = int(t.field_kind[i])
        if at >= stop and t.field_flags[i] & OPTIONAL:
            break
        if kind == K.BIT:
            at += 1 if bit == 0 else 0
            bit = (bit + 1) & 7
            continue
        bit = 0
        after = value_end(octets, at, stop, kind)
        if kind in (K.SECRET, K.SASL_RESPONSE):
            blank(octets, at + 4, after)
        elif kind in (K.SASL_NAME, K.AFTER_SECRET) and not is_shown(octets, at, after, kind):
            blank(octets, at + 1, after)
        at = after
    if flaw:
        blank(octets, at, stop)
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
    shown, shown_end = fields_in_segment(octets, at, end, of, t)
    at += int(t.entries[of, T.PACK])
    first = int(t.entries[of, T.FIELD_FROM])
    for i in range(first, first + shown):
        if flags & 1:
            number, of_field = int(t.fields[i, T.FIELD_TYPE]), int(t.fields[i, T.FIELD_SHOWN])
            after = extent(octets, at, shown_end, number, int(t.fields[i, T.FIELD_OF]), t)
            if of_field in T.SECRETS or (of_field != T.SHOWN and not is_shown_apart(octets, at, after, of_field)):
                blank(octets, at + int(t.types[T.WIDTH, number]), after)
            at = after
        flags >>= 1
    blank(octets, at, end)
    return True


@kernel
def _described(octets, start, end, t):
    """`_classic` for 1.0."""
    if end - start < FRAME_HEADER or u32(octets, start, end) != end - start:
        return False
    body, kind = start + octet(octets, start + WORD) * WORD, octet(octets, start + WORD + 1)
    if body < start + FRAME_HEADER or body > end or kind > SASL_FRAME:
        return False
    blank(octets, start + FRAME_HEADER, body)  # an extended header, which nobody has defined
    if body == end:
        return True
    of, _, at = performative(octets, body, end, t)
    if of < 0 or not is_list(octets, at, end, t):
        return False
    if t.descriptor[of].frame_type != (SASL if kind == SASL_FRAME else AMQP):
        return False
    shown, fields_stop = fields_in_place_1_0(octets, at, end, of, t)
    in_list = at + 1
    at, stop, _ = compound(octets, at + 1, end, octet(octets, at), t)
    first = int(t.descriptor[of].field_from)
    for i in range(first, first + shown):
        after = skip(octets, at, stop, t)
        if t.field[i].shown == D.NAME_SHOWN:
            if not sasl_names(octets, at, stop, t):
                blank(octets, _content_of(octets, at, stop, t), after)
        elif t.field[i].shown != D.SHOWN:
            blank(octets, min(_content_of(octets, at, stop, t), after), after)
        at = after
    if fields_stop < 0:
        blank(octets, at if shown > 0 else in_list, stop)
    if t.descriptor[of].secret >= 0:
        blank(octets, stop, end)  # what follows the list is a message, or nothing that a performative with secrets has
    return True


@kernel
def _content_of(octets, at, stop, t):
    """Where the octets of the value whose constructor is at `at` begin, behind their size if they have one."""
    code = u8(octets, at, stop)
    if code != DESCRIBED and t.constructor[code].category == D.VARIABLE:
        return at + 1 + int(t.constructor[code].width)
    return at + 1


@kernel
def _blank_classic(octets, offsets, t, version, nest, vouched):
    for i in range(len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        vouched[i] = _is_header(octets, start, end) or _classic(octets, start, end, t, version, nest)
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
        nest = np.zeros((LIMITS.nesting_depth, 2), np.int64)
        _blank_classic(octets, offsets, classic_tables(), version, nest, vouched)
    elif family == SEGMENTED:
        _blank_segmented(octets, offsets, segmented_tables(), vouched)
    else:
        _blank_described(octets, offsets, described_tables()[0], vouched)
    return vouched
