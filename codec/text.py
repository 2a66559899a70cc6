"""Text of the wire as STRING, in columns and in VARIANT.

Well-formed UTF-8 (RFC 3629, section 4) does not change. In any other text each octet outside of a well-formed character
is escaped as `\\xHH`, as with Python's error handler "backslashreplace", and each backslash as `\\x5c`. So different
octets remain different, and can be restored. A row with such a text has the note 'not-utf8'.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import is_utf8, octet

ESCAPE_OCTETS = 4  # of one escaped octet
_LONGEST_CHARACTER = 4
_BACKSLASH = 0x5C
_HEX = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)


@kernel
def _character_end(buf, at, end):
    """The offset after the well-formed character at `at`; `at` when there is none, or it is a backslash."""
    if octet(buf, at) == _BACKSLASH:
        return at
    for size in range(1, min(_LONGEST_CHARACTER, end - at) + 1):
        if is_utf8(buf, at, at + size):
            return at + size
    return at


@kernel
def escaped_size(buf, start, end):
    """Size of `buf[start:end]`, which is not UTF-8, when it is escaped."""
    size, at = 0, start
    while at < end:
        after = _character_end(buf, at, end)
        size += after - at if after > at else ESCAPE_OCTETS
        at = max(after, at + 1)
    return size


@kernel
def put_escaped(out, to, buf, start, end):
    """Write `buf[start:end]`, which is not UTF-8, escaped at `out[to:]`: the offset after it."""
    at = start
    while at < end:
        after = _character_end(buf, at, end)
        if after > at:
            for i in range(at, after):
                out[to] = buf[i]
                to += 1
            at = after
            continue
        byte = octet(buf, at)
        out[to] = _BACKSLASH
        out[to + 1] = ord("x")
        out[to + 2] = _HEX[byte >> 4]
        out[to + 3] = _HEX[byte & 15]
        to += ESCAPE_OCTETS
        at += 1
    return to


@kernel
def escaped_ends(buf, ends, out_ends):
    """Set `out_ends` to the ends of the texts that end at `ends` in `buf`, with those that are not UTF-8 escaped.
    Returns whether there is any."""
    start, to, differs = 0, 0, False
    for i in range(len(ends)):
        end = int(ends[i])
        if is_utf8(buf, start, end):
            to += end - start
        else:
            to += escaped_size(buf, start, end)
            differs = True
        out_ends[i] = to
        start = end
    return differs


@kernel
def escape_all(buf, ends, out):
    """Write these texts to `out`, with those that are not UTF-8 escaped."""
    start, to = 0, 0
    for i in range(len(ends)):
        end = int(ends[i])
        if is_utf8(buf, start, end):
            for j in range(start, end):
                out[to] = buf[j]
                to += 1
        else:
            to = put_escaped(out, to, buf, start, end)
        start = end


def escaped(octets: bytes) -> str:
    """Octets as text, by the same rule."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets.replace(b"\\", rb"\x5c").decode("utf-8", "backslashreplace")
