"""Messages that hand a token over: their payload is kept nowhere, also where payloads are.

A client puts a token to the node `$cbs` (AMQP Claims-based Security, section 3), or replaces its own on the link pair
of RabbitMQ by `PUT /auth/tokens` (management over AMQP, RabbitMQ 4). A direction remembers the handle of its sending
link to `$cbs`; with a second such link the payload of all its transfers is dropped. Where the attach is not known, and
on other links, a message is recognised by one of MARKS among its properties and application properties.
Cost: linear in the bytes.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.v1_0.constructors import DESCRIBED, compound, descriptor, is_true, text_span
from codec.compiler.kernel import kernel
from codec.cursor import octet, u8

NO_LINK, EVERY_LINK = 0, -1  # instead of a key plus 1
_NODE = np.frombuffer(bytearray(b"$cbs"), np.uint8)
_MARKS = (b"put-token", b"set-token", b"/auth/tokens")
_MARK = np.frombuffer(bytearray(b"".join(_MARKS)), np.uint8)
_MARK_AT = np.cumsum([0, *map(len, _MARKS)], dtype=np.int64)
_SLASH = ord("/")


@kernel
def _is_mark(buf, at, end):
    """Whether a string of one of MARKS, with its size before it, begins at `at`."""
    for i in range(len(_MARK_AT) - 1):
        first, size = int(_MARK_AT[i]), int(_MARK_AT[i + 1] - _MARK_AT[i])
        same = size <= end - at and octet(buf, at - 1) == size
        for j in range(size):
            same = same and buf[at + j] == _MARK[first + j]
        if same:
            return True
    return False


@kernel
def has_mark(buf, start, end):
    """Whether the payload `buf[start:end]` of a transfer has one of MARKS."""
    for at in range(start + 1, end):
        byte = octet(buf, at)
        if (byte == ord("p") or byte == ord("s") or byte == _SLASH) and _is_mark(buf, at, end):
            return True
    return False


@kernel
def is_token_node(buf, at, end, t):
    """Whether the source or target at `at` (-1: none) has the address `$cbs`, also after a path."""
    if at < 0 or u8(buf, at, end) != DESCRIBED:
        return False
    _, _, value = descriptor(buf, at + 1, end, t)
    code = u8(buf, value, end) if value >= 0 else 0
    if code <= 0:
        return False
    first, stop, count = compound(buf, value + 1, end, code, t)
    if first < 0 or count < 1:
        return False
    start, text_end = text_span(buf, first, stop, t)
    size = len(_NODE)
    if start < 0 or text_end - start < size:
        return False
    for i in range(size):
        if buf[text_end - size + i] != _NODE[i]:
            return False
    return text_end - start == size or octet(buf, text_end - size - 1) == _SLASH


@kernel
def on_attach(d, buf, end, role, target, key, t):
    """A link with `key` is attached; `role`, `target`: offsets of these fields, or -1."""
    on_detach(d, key)
    if not is_true(buf, role, end, t) and is_token_node(buf, target, end, t):
        d.token_link = key + 1 if d.token_link == NO_LINK else EVERY_LINK


@kernel
def on_detach(d, key):
    """The link with `key` is detached."""
    if d.token_link == key + 1:
        d.token_link = NO_LINK


@kernel
def on_token_link(d, key):
    """Whether transfers on the link with `key` hand tokens over."""
    return d.token_link == EVERY_LINK or d.token_link == key + 1
