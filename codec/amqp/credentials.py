"""Who authenticates, read out of a SASL response without letting the secret through.

Only the bytes of the user name are ever written. PLAIN (RFC 4616): authzid NUL authcid NUL passwd. AMQPLAIN: a field
table without its length, the user under LOGIN. Any other mechanism, and anything that does not parse: no user.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import kinds as K
from codec.amqp.field_table import next_entry
from codec.cursor import octet
from codec.kernel import kernel

_PLAIN = np.frombuffer(bytearray(b"PLAIN"), np.uint8)
_AMQPLAIN = np.frombuffer(bytearray(b"AMQPLAIN"), np.uint8)
_LOGIN = np.frombuffer(bytearray(b"LOGIN"), np.uint8)
NOBODY = -1


@kernel
def _is(buf, start, end, text):
    if end - start != len(text):
        return False
    for i in range(len(text)):
        if buf[start + i] != text[i]:
            return False
    return True


@kernel
def user_span(buf, mechanism, mechanism_end, start, end, tags):
    """Where the user name stands in the response `buf[start:end]` to the mechanism `buf[mechanism:mechanism_end]`:
    (start, end), or (NOBODY, NOBODY)."""
    if _is(buf, mechanism, mechanism_end, _PLAIN):
        return _plain_user(buf, start, end)
    if _is(buf, mechanism, mechanism_end, _AMQPLAIN):
        return _amqplain_user(buf, start, end, tags)
    return NOBODY, NOBODY


@kernel
def _plain_user(buf, start, end):
    first, second, found = start, start, 0
    for i in range(start, end):
        if octet(buf, i) == 0:
            found += 1
            if found == 1:
                first = i
            elif found == 2:
                second = i
    if found != 2:
        return NOBODY, NOBODY
    return first + 1, second


@kernel
def _amqplain_user(buf, start, end, tags):
    at = start
    while at < end:
        tag_at, kind, after = next_entry(buf, at, end, tags)
        if after < 0:
            return NOBODY, NOBODY
        if kind == K.LONGSTR and _is(buf, at + 1, tag_at, _LOGIN):
            return tag_at + 5, after
        at = after
    return NOBODY, NOBODY
