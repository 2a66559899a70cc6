"""How the sections of a message of AMQP 1.0 begin (part 3, section 3.2), read from as few octets as there are."""

from __future__ import annotations

from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import DESCRIBED, descriptor, is_descriptor, length_at, skip
from codec.compiler.kernel import kernel
from codec.cursor import octet, u8

NO_HEAD = -1  # this is not a section
MORE = -2  # the octets end before the head does


@kernel
def section_head(buf, at, end, t):
    """The section that begins at `at`: (section or NO_HEAD or MORE, offset of its value's constructor, offset of what
    the value holds, octets from there to its end)."""
    if at >= end:
        return MORE, at, at, 0
    if octet(buf, at) != DESCRIBED:
        return NO_HEAD, at, at, 0
    of, _, value = descriptor(buf, at + 1, end, t)
    if value < 0:
        return (MORE if is_descriptor(buf, at + 1, end, t) else NO_HEAD), at, at, 0
    if of < 0 or t.descriptor[of].section < 0:
        return NO_HEAD, at, at, 0
    inner, code = value, u8(buf, value, end)
    while code == DESCRIBED:
        inner = skip(buf, inner + 1, end, t)
        if inner < 0:
            return MORE, at, at, 0
        code = u8(buf, inner, end)
    if code < 0:
        return MORE, at, at, 0
    if t.constructor[code].type < 0:
        return NO_HEAD, at, at, 0
    width = int(t.constructor[code].width)
    if t.constructor[code].category == T.FIXED:
        return int(t.descriptor[of].section), value, inner + 1, width
    size = length_at(buf, inner + 1, end, width)
    if size < 0:
        return MORE, at, at, 0
    return int(t.descriptor[of].section), value, inner + 1 + width, size


@kernel
def is_operation(buf, value, end, t):
    """Whether the value of a section is for a transaction coordinator (declare, discharge: part 4, section 4.5)."""
    if u8(buf, value, end) != DESCRIBED:
        return False
    of, _, _ = descriptor(buf, value + 1, end, t)
    return of >= 0 and t.descriptor[of].transactional != 0
