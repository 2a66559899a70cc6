"""Heads of HTTP/1.1 messages (RFC 9112): whether one may begin, where it ends, its fields.

`step` reads a head byte by byte, so that it may come in any pieces; `find_field` looks up a field of a whole head. Both
look at each byte once.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import byte_at

CR, LF, SPACE, TAB, COLON = 0x0D, 0x0A, 0x20, 0x09, 0x3A
GET = np.frombuffer(bytearray(b"GET "), np.uint8)
RESPONSE = np.frombuffer(bytearray(b"HTTP/1."), np.uint8)
VERSION = np.frombuffer(bytearray(b" HTTP/1.1"), np.uint8)  # at the end of the line of a request
UPGRADE = np.frombuffer(bytearray(b"upgrade"), np.uint8)
WEBSOCKET = np.frombuffer(bytearray(b"websocket"), np.uint8)
# Outcomes of `head_step`.
MORE, COMPLETE, NOT_HTTP = 0, 1, 2
NO_FIELD = -1


@kernel
def head_step(head, known, is_request):
    """The byte at `known - 1` has been added to `head`: MORE, COMPLETE (it ends the head), or NOT_HTTP. A request is a
    GET of HTTP/1.1, a response of any HTTP/1."""
    at = known - 1
    byte, begin = byte_at(head, at), GET if is_request else RESPONSE
    if at < len(begin):
        return MORE if byte == begin[at] else NOT_HTTP
    if byte != LF:
        return NOT_HTTP if byte < SPACE and byte != CR and byte != TAB else MORE
    if byte_at(head, at - 1) != CR:
        return MORE
    if byte_at(head, at - 2) == LF and byte_at(head, at - 3) == CR:
        return COMPLETE
    return MORE


@kernel
def lower(byte):
    """A letter of ASCII in lower case."""
    return byte + 0x20 if 0x41 <= byte <= 0x5A else byte


@kernel
def equals(buf, start, end, text):
    """Whether `buf[start:end]` is `text`, which is in lower case."""
    if end - start != len(text):
        return False
    for i in range(len(text)):
        if lower(byte_at(buf, start + i)) != text[i]:
            return False
    return True


@kernel
def contains(buf, start, end, text):
    """Whether `text`, which is in lower case and short, is in `buf[start:end]`."""
    for at in range(start, end - len(text) + 1):
        if equals(buf, at, at + len(text), text):
            return True
    return False


@kernel
def line_end(buf, at, end):
    """Offset of the LF of the line at `at`; `end`: it has none."""
    while at < end and byte_at(buf, at) != LF:
        at += 1
    return at


@kernel
def is_request_line(buf, at, end):
    """Whether the line `buf[at:end]`, which ends with its CR, is that of a GET of HTTP/1.1."""
    size = len(VERSION)
    if end - at < len(GET) + size + 1 or byte_at(buf, end - 1) != CR:
        return False
    for i in range(len(GET)):
        if byte_at(buf, at + i) != GET[i]:
            return False
    for i in range(size):
        if byte_at(buf, end - 1 - size + i) != VERSION[i]:
            return False
    return True


@kernel
def find_field(buf, at, end, name):
    """(begin and end of the value, offset of the next line) of the next field `name` in the lines from `at` on, without
    the blanks around the value; NO_FIELD. `name` is in lower case."""
    while at < end:
        stop = line_end(buf, at, end)
        colon = at + len(name)
        if colon < stop and byte_at(buf, colon) == COLON and equals(buf, at, colon, name):
            begin, last = colon + 1, stop
            if byte_at(buf, last - 1) == CR:
                last -= 1
            while begin < last and (byte_at(buf, begin) == SPACE or byte_at(buf, begin) == TAB):
                begin += 1
            while last > begin and (byte_at(buf, last - 1) == SPACE or byte_at(buf, last - 1) == TAB):
                last -= 1
            return begin, last, stop + 1
        at = stop + 1
    return NO_FIELD, NO_FIELD, end


@kernel
def asks_for_websocket(buf, at, end):
    """Whether the head `buf[at:end]` of a request asks for WebSocket: MORE when only bytes after `end` can tell;
    COMPLETE: it does; NOT_HTTP: it does not."""
    known = 0
    while at + known < end and known < len(GET):
        if byte_at(buf, at + known) != GET[known]:
            return NOT_HTTP
        known += 1
    line = line_end(buf, at, end)
    if line == end:
        return MORE
    if not is_request_line(buf, at, line):
        return NOT_HTTP
    here = line + 1
    while here < end:
        begin, last, here = find_field(buf, here, end, UPGRADE)
        if begin != NO_FIELD and contains(buf, begin, last, WEBSOCKET):
            return COMPLETE
    here = line + 1
    while here < end:  # without the field: does the head end here?
        stop = line_end(buf, here, end)
        if stop == end:
            return MORE
        if stop == here + 1 and byte_at(buf, here) == CR:
            return NOT_HTTP
        here = stop + 1
    return MORE


def field_of(data: bytes, name: bytes) -> bytes:
    """The value of a field of a whole head, by its name in lower case; several of a name are joined by commas."""
    buf, wanted = np.frombuffer(bytearray(data), np.uint8), np.frombuffer(bytearray(name), np.uint8)
    values, at = [], 0
    while at < len(data):
        begin, end, at = find_field(buf, at, len(data), wanted)
        if begin != NO_FIELD:
            values.append(data[begin:end])
    return b",".join(values)
