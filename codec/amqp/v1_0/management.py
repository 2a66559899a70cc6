"""Which messages are requests of HTTP over AMQP, and their replies: RabbitMQ's management (its documentation, AMQP 1.0,
and HTTP Semantics and Content over AMQP 1.0).

A request has its method as the subject, a path as `to`, and "$me" as reply-to; a reply has the version of HTTP as the
application property "http:response". Their bodies are declarations of queues and the like: small maps, which are
decoded. Bodies of requests for "/auth/..." are credentials, and are not. Cost: constant.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import length_at, skip, text_span
from codec.compiler.kernel import kernel
from codec.cursor import octet, u8

KEYS = 8  # of application properties, among which the one of a reply is
TO, SUBJECT, REPLY_TO = 2, 3, 4  # fields of the properties (part 3, section 3.2.4)
WORDS = (b"GET", b"PUT", b"POST", b"DELETE", b"$me", b"http:response", b"/auth/")
METHODS, ME, RESPONSE, CREDENTIALS = 4, 4, 5, 6  # the number of methods, and other words
TEXT = np.frombuffer(b"".join(WORDS), np.uint8)
ENDS = np.cumsum([0, *map(len, WORDS)])
SLASH = ord("/")


@kernel
def is_management(buf, properties, application, end, t):
    """Whether a message with these sections is a request or a reply: offsets of the constructors of their values, -1
    for a missing section. False for requests whose body is a credential."""
    if application >= 0 and _is_reply(buf, application, end, t):
        return True
    return properties >= 0 and _is_request(buf, properties, end, t)


@kernel
def _items(buf, value, end, t, kind):
    """A list or map: (offset of its first item, number of items, its end); (-1, 0, -1) for another value."""
    code = u8(buf, value, end)
    if code < 0 or t.constructor[code].type != kind or t.constructor[code].category != T.COMPOUND:
        return -1, 0, -1
    width = int(t.constructor[code].width)
    size = length_at(buf, value + 1, end, width)
    start = value + 1 + width
    count = length_at(buf, start, end, width)
    if size < 0 or count < 0 or size > end - start:
        return -1, 0, -1
    return start + width, count, start + size


@kernel
def _is_word(buf, start, stop, word, prefix):
    """Whether a text is one of WORDS, or begins with it."""
    first, size = ENDS[word], ENDS[word + 1] - ENDS[word]
    if start < 0 or stop - start < size or (stop - start > size and not prefix):
        return False
    for i in range(size):
        if octet(buf, start + i) != TEXT[first + i]:
            return False
    return True


@kernel
def _is_request(buf, value, end, t):
    at, count, stop = _items(buf, value, end, t, T.LIST)
    if count <= REPLY_TO:
        return False
    has_method = False
    for field in range(REPLY_TO + 1):
        start, text_end = text_span(buf, at, stop, t)
        if field == TO and (
            start < 0
            or start == text_end
            or octet(buf, start) != SLASH
            or _is_word(buf, start, text_end, CREDENTIALS, True)
        ):
            return False
        if field == SUBJECT:
            for method in range(METHODS):
                has_method |= _is_word(buf, start, text_end, method, False)
        if field == REPLY_TO:
            return has_method and _is_word(buf, start, text_end, ME, False)
        at = skip(buf, at, stop, t)
        if at < 0:
            return False
    return False


@kernel
def _is_reply(buf, value, end, t):
    at, count, stop = _items(buf, value, end, t, T.MAP)
    for _ in range(min(count // 2, KEYS)):
        start, text_end = text_span(buf, at, stop, t)
        if _is_word(buf, start, text_end, RESPONSE, False):
            return True
        at = skip(buf, at, stop, t)
        if at >= 0:
            at = skip(buf, at, stop, t)
        if at < 0:
            return False
    return False
