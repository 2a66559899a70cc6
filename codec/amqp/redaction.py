"""Redaction of frames: secrets in SASL responses and tokens are overwritten in place.

The fact tables' overlay lists the fields with secrets ("credentials"). The length and all other bytes of a frame
remain, so it decodes as before, except for the user, which is part of the response. Where the fields do not fill the
frame, a length is damaged: everything is overwritten from the first secret on, or from the first field that does not
fit. A field next to a secret that may be part of it is overwritten as well: a mechanism without the form of one, a long
string after a secret. A frame is unsafe when it is incomplete, its method is unknown, or its type is impossible there
(such as a login with a damaged type). All bytes of an unsafe frame are overwritten. Of the others, those
of the userinfo of URIs are (`codec.text`), field by field, except in frames of bodies. Cost: linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    byte_at,
    u8,
    u16,
    u32,
)
from codec.framing.classic_frames import OVERHEAD, frame_kind
from codec.framing.connection import matches_magic, plausible_header
from codec.protocol import classic_tables as K
from codec.protocol import v0_10_tables as T
from codec.protocol import v1_0_tables as D
from codec.protocol import versions as V
from codec.protocol.classic_detection import FRAME_END
from codec.protocol.classic_field_table import value_end
from codec.protocol.classic_tables import OPTIONAL, classic_tables
from codec.protocol.classic_values import (
    NUMBERS,
    check_header,
    classify_method,
    fields_in_place,
    is_public,
)
from codec.protocol.disclosure import NO_RESPONSE, SECRETS, SHOW_ALL, SHOW_SASL_NAMES
from codec.protocol.v0_10_detection import (
    BODY_SEGMENT,
    COMMAND_SEGMENT,
    WHOLE_SEGMENT,
    entry_at,
    extent,
    header_flaw,
    packing_flags,
    session_header_end,
)
from codec.protocol.v0_10_detection import OVERHEAD as SEGMENT_OVERHEAD
from codec.protocol.v0_10_detection import fields_in_place as fields_in_segment
from codec.protocol.v0_10_tables import v0_10_tables
from codec.protocol.v0_10_values import is_public as is_public_v0_10
from codec.protocol.v1_0_detection import (
    DESCRIBED,
    FRAME_HEADER,
    SASL_FRAME,
    WORD,
    compound,
    is_list,
    length_at,
    performative,
    skip,
)
from codec.protocol.v1_0_detection import fields_in_place as fields_in_place_1_0
from codec.protocol.v1_0_tables import v1_0_tables
from codec.protocol.v1_0_values import sasl_names
from codec.text import overwrite_userinfo

BLANK = ord("*")
HEADER_BYTES = 8
PAYLOAD = 7  # offset in a frame of 0-8 to 0-9-1
CONTENT = (V.HEADER, V.BODY, V.OOB_HEADER, V.OOB_BODY)


@kernel
def blank(data, start, end):
    """Overwrite `bytes[start:end]`."""
    for i in range(start, end):
        data[i] = BLANK


@kernel
def _classic(data, start, end, t, version, nest):
    """Overwrite the secrets of a frame of 0-8 to 0-9-1; False when it is unsafe."""
    if end - start < OVERHEAD or u32(data, start + 3, end) != end - start - OVERHEAD:
        return False
    kind, stop = frame_kind(t, version, byte_at(data, start)), end - 1
    if kind < 0 or byte_at(data, stop) != FRAME_END:
        return False
    if kind not in (V.METHOD, V.OOB_METHOD):
        # contents are not on channel 0, headers fit their class, and no other frame has a payload
        if kind in (V.HEADER, V.OOB_HEADER):
            if not check_header(data, start + PAYLOAD, stop, t, version):
                return False
            overwrite_userinfo(data, start + PAYLOAD, stop)
        return stop == start + PAYLOAD or (kind in CONTENT and u16(data, start + 1, end) != 0)
    method = classify_method(data, start + PAYLOAD, stop, t, version)
    if method < 0:
        return False
    at, bit = start + PAYLOAD + NUMBERS, 0
    first = int(t.field_from[method])
    visible, flaw = fields_in_place(data, at, stop, t, t.tag_kind[version], method, nest)
    for i in range(first, first + visible):
        kind = int(t.field_kind[i])
        if at >= stop and t.field_flags[i] & OPTIONAL:
            break
        if kind == K.BIT:
            at += 1 if bit == 0 else 0
            bit = (bit + 1) & 7
            continue
        bit = 0
        after = value_end(data, at, stop, kind)
        if kind in (K.SECRET, K.SASL_RESPONSE):
            blank(data, at + 4, after)
        elif kind in (K.SASL_NAME, K.AFTER_SECRET) and not is_public(data, at, after, stop, kind):
            blank(data, at + 1, after)
        else:
            overwrite_userinfo(data, at + 1 if kind == K.SHORTSTR else at, after)
        at = after
    if flaw:
        blank(data, at, stop)
    return True


@kernel
def _v0_10(data, start, end, t, version, nest):
    """`_classic` for 0-10."""
    if end - start < SEGMENT_OVERHEAD or u16(data, start + 2, end) != end - start:
        return False
    if header_flaw(data, start, end) != V.NO_ERROR:
        return False
    kind, at = byte_at(data, start + 1), start + SEGMENT_OVERHEAD
    if kind > COMMAND_SEGMENT:
        if kind < BODY_SEGMENT:
            overwrite_userinfo(data, at, end)
        return kind <= BODY_SEGMENT
    definition = entry_at(data, at, end, kind, t)
    if definition < 0 or byte_at(data, start) & WHOLE_SEGMENT != WHOLE_SEGMENT:
        return False
    at += 2
    if kind == COMMAND_SEGMENT:
        at = session_header_end(data, at, end)
    flags = packing_flags(data, at, end, definition, t) if at >= 0 else -1
    if flags < 0:
        return False
    visible, visible_end = fields_in_segment(data, at, end, definition, t)
    at += int(t.entries[definition, T.PACK])
    first = int(t.entries[definition, T.FIELD_FROM])
    for i in range(first, first + visible):
        if flags & 1:
            number, of_field = int(t.fields[i, T.FIELD_TYPE]), int(t.fields[i, T.FIELD_DISCLOSURE])
            after = extent(data, at, visible_end, number, int(t.fields[i, T.FIELD_OF]), t)
            fields_end = end if flags & 2 else NO_RESPONSE
            if of_field in SECRETS or (
                of_field != SHOW_ALL and not is_public_v0_10(data, at, after, fields_end, of_field)
            ):
                blank(data, at + int(t.types[T.WIDTH, number]), after)
            else:
                overwrite_userinfo(data, at, after)
            at = after
        flags >>= 1
    blank(data, at, end)
    return True


@kernel
def _v1_0(data, start, end, t, version, nest):
    """`_classic` for 1.0."""
    if end - start < FRAME_HEADER or u32(data, start, end) != end - start:
        return False
    body, kind = start + byte_at(data, start + WORD) * WORD, byte_at(data, start + WORD + 1)
    if body < start + FRAME_HEADER or body > end or kind > SASL_FRAME:
        return False
    blank(data, start + FRAME_HEADER, body)  # an extended header, for which no meaning is defined
    if body == end:
        return True
    definition, _, at = performative(data, body, end, t)
    if definition < 0 or not is_list(data, at, end, t):
        return False
    if t.descriptor[definition].frame_type != (V.SASL if kind == SASL_FRAME else V.AMQP):
        return False
    visible, fields_stop = fields_in_place_1_0(data, at, end, definition, t)
    in_list = at + 1
    at, stop, _ = compound(data, at + 1, end, byte_at(data, at), t)
    first = int(t.descriptor[definition].field_from)
    for i in range(first, first + visible):
        after = skip(data, at, stop, t)
        if t.field[i].disclosure == SHOW_SASL_NAMES:
            if not sasl_names(data, at, stop, t):
                blank(data, _content_of(data, at, stop, t), after)
        elif t.field[i].disclosure != SHOW_ALL:
            blank(data, min(_content_of(data, at, stop, t), after), after)
        at = after
    if fields_stop < 0:
        blank(data, at if visible > 0 else in_list, stop)
    if t.descriptor[definition].secret >= 0:
        blank(data, stop, end)  # only a transfer, which has no secret, may have a payload
    _overwrite_values(data, body, end, t)
    return True


@kernel
def _overwrite_values(data, at, end, t):
    """Overwrite the userinfo in texts and binary data among the values `bytes[at:end]`, which follow one another; what
    a list or a map holds follows its head."""
    while at < end:
        code = byte_at(data, at)
        category, width = int(t.constructor[code].category), int(t.constructor[code].width)
        at += 1
        if code == DESCRIBED:
            continue
        size = width if category == D.FIXED else length_at(data, at, end, width)
        start = at if category == D.FIXED else at + width
        if t.constructor[code].type < 0 or size < 0 or size > end - start:
            overwrite_userinfo(data, at, end)
            return
        if category == D.COMPOUND:
            at = start + width
            continue
        if category != D.FIXED:
            overwrite_userinfo(data, start, start + size)
        at = start + size


@kernel
def _content_of(data, at, stop, t):
    """Offset of the value whose constructor is at `at`, after its size if it has one."""
    code = u8(data, at, stop)
    if code != DESCRIBED and t.constructor[code].category == D.VARIABLE:
        return at + 1 + int(t.constructor[code].width)
    return at + 1


@kernel
def _is_header(data, start, end):
    whole = end - start == HEADER_BYTES and matches_magic(data, start, end) == 4
    return whole and plausible_header(data, start)


def _redact_all(redact: Callable[..., bool]) -> Callable[..., None]:
    """The kernel that redacts frames of one family, and sets `safe`."""

    @kernel
    def redact_all(data, offsets, t, version, nest, safe):  # type: ignore[no-untyped-def]
        for i in range(len(offsets) - 1):
            start, end = int(offsets[i]), int(offsets[i + 1])
            safe[i] = _is_header(data, start, end) or redact(data, start, end, t, version, nest)
            if not safe[i]:
                blank(data, start, end)

    return redact_all


_redact_classic, _redact_v0_10, _redact_v1_0 = map(_redact_all, (_classic, _v0_10, _v1_0))


def blank_secrets(data: NDArray[np.uint8], offsets: NDArray[np.int64], version: int) -> NDArray[np.bool_]:
    """Overwrite the secrets of the frames `bytes[offsets[i]:offsets[i + 1]]` of a VERSIONS code, in place.

    Returns bool (n,): False for unsafe frames, all of whose bytes are overwritten.
    """
    safe, nest = np.zeros(len(offsets) - 1, np.bool_), np.zeros((LIMITS.nesting_depth, 2), np.int64)
    family = int(V.FAMILY_OF_VERSION[version])
    if family == V.CLASSIC:
        _redact_classic(data, offsets, classic_tables(), version, nest, safe)
    elif family == V.V0_10_FAMILY:
        _redact_v0_10(data, offsets, v0_10_tables(), version, nest, safe)
    else:
        _redact_v1_0(data, offsets, v1_0_tables()[0], version, nest, safe)
    return safe
