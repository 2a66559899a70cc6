"""Who authenticates, read out of a SASL response without letting the secret through.

Only the bytes of the user name are ever written; of the password it is noted whether it is empty or a token.
PLAIN (RFC 4616): authzid NUL authcid NUL passwd. AMQPLAIN: a field table without its length, the user under LOGIN, the
password under PASSWORD, each once. SCRAM (RFC 5802, section 7): the first message, which holds no secret. CRAM-MD5 (RFC
2195): the answer to a challenge, which names no mechanism: user, a space, and 32 digits, and nothing else is shaped so.
Any other mechanism, and anything that does not parse from end to end: no user.

A damaged length moves octets of the secret into the fields beside it. So a mechanism is shown only if it can be the
name of one, and a short string behind a secret only if its length is no octet that a secret is made of, and none of its
octets could be such a length.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import notes as N
from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import next_entry
from codec.compiler.kernel import kernel
from codec.cursor import octet
from codec.variant import note

_PLAIN = np.frombuffer(bytearray(b"PLAIN"), np.uint8)
_AMQPLAIN = np.frombuffer(bytearray(b"AMQPLAIN"), np.uint8)
_SCRAM = np.frombuffer(bytearray(b"SCRAM-"), np.uint8)
_LOGIN = np.frombuffer(bytearray(b"LOGIN"), np.uint8)
_PASSWORD = np.frombuffer(bytearray(b"PASSWORD"), np.uint8)
_TOKEN_BEGINS = np.frombuffer(bytearray(b"eyJ"), np.uint8)  # base64 of {" (RFC 7519, section 3.1)
_TOKEN_PARTS = 3
_MECHANISM_OCTETS = 20  # of the longest name (RFC 4422, section 3.1)
_FIRST_PRINTABLE = 0x20
_DIGEST_DIGITS = 32  # of HMAC-MD5
NOBODY = -1


@kernel
def is_sasl_name(buf, start, end):
    """Whether `buf[start:end]` can name a SASL mechanism: 1 to 20 upper-case letters, digits, hyphens, underscores (RFC
    4422, section 3.1)."""
    if end <= start or end - start > _MECHANISM_OCTETS:
        return False
    for i in range(start, end):
        byte = octet(buf, i)
        is_letter = ord("A") <= byte <= ord("Z")
        if not (is_letter or ord("0") <= byte <= ord("9") or byte == ord("-") or byte == ord("_")):
            return False
    return True


@kernel
def stands_apart(buf, start, end):
    """Whether the short string `buf[start:end]` begins where it should: its length is none that could be a character of
    the secret before it, and no such length stands inside of it."""
    for i in range(start, end):
        if octet(buf, i) < _FIRST_PRINTABLE:
            return False
    return end - start < _FIRST_PRINTABLE


@kernel
def _is(buf, start, end, text):
    if end - start != len(text):
        return False
    for i in range(len(text)):
        if buf[start + i] != text[i]:
            return False
    return True


@kernel
def user_span(w, buf, mechanism, mechanism_end, start, end, tags):
    """Where the user name stands in the response `buf[start:end]` to the mechanism `buf[mechanism:mechanism_end]`, or
    to a challenge where that is empty: (start, end), or (NOBODY, NOBODY). What is odd about the password is noted in
    `w`."""
    if mechanism >= mechanism_end:
        return _cram_span(buf, start, end)
    if mechanism_end - mechanism > len(_SCRAM) and _is(buf, mechanism, mechanism + len(_SCRAM), _SCRAM):
        return _scram_span(buf, start, end)
    if _is(buf, mechanism, mechanism_end, _PLAIN):
        user, user_end, password, password_end = _plain_spans(buf, start, end)
    elif _is(buf, mechanism, mechanism_end, _AMQPLAIN):
        user, user_end, password, password_end = _amqplain_spans(buf, start, end, tags)
    else:
        return NOBODY, NOBODY
    if password >= 0:
        if password == password_end:
            note(w, N.EMPTY_PASSWORD)
        elif _is_token(buf, password, password_end):
            note(w, N.TOKEN_PASSWORD)
    return user, user_end


@kernel
def _cram_span(buf, start, end):
    """The user of CRAM-MD5: printable, without a blank, before the only blank and the digest."""
    blank_at = end - _DIGEST_DIGITS - 1
    if blank_at <= start or octet(buf, blank_at) != ord(" "):
        return NOBODY, NOBODY
    for i in range(start, blank_at):
        if octet(buf, i) <= _FIRST_PRINTABLE:
            return NOBODY, NOBODY
    for i in range(blank_at + 1, end):
        byte = octet(buf, i)
        if not (ord("0") <= byte <= ord("9") or ord("a") <= byte <= ord("f")):
            return NOBODY, NOBODY
    return start, blank_at


@kernel
def _attribute_end(buf, start, end):
    """Where the comma behind the attribute at `start` is, or `end`; NOBODY for a control character in it."""
    for i in range(start, end):
        if octet(buf, i) == ord(","):
            return i
        if octet(buf, i) < _FIRST_PRINTABLE:
            return NOBODY
    return end


@kernel
def _names_attribute(buf, start, end, name):
    return end - start > 2 and octet(buf, start) == name and octet(buf, start + 1) == ord("=")


@kernel
def _scram_span(buf, start, end):
    """The user of a first message of SCRAM: channel binding, perhaps another identity, user, nonce."""
    binding = octet(buf, start) if end > start else 0
    if not (binding == ord("n") or binding == ord("y") or binding == ord("p")):
        return NOBODY, NOBODY
    user, user_end, at = NOBODY, NOBODY, start
    for place in range(4):
        stop = _attribute_end(buf, at, end)
        if stop < 0 or (place < 3 and stop == end):
            return NOBODY, NOBODY
        if place == 2:
            if not _names_attribute(buf, at, stop, ord("n")):
                return NOBODY, NOBODY
            user, user_end = at + 2, stop
        if place == 3 and not _names_attribute(buf, at, stop, ord("r")):
            return NOBODY, NOBODY
        at = stop + 1
    return user, user_end


@kernel
def _plain_spans(buf, start, end):
    """Where user and password stand: (user, its end, password, its end)."""
    first, second, found = start, start, 0
    for i in range(start, end):
        if octet(buf, i) == 0:
            found += 1
            if found == 1:
                first = i
            elif found == 2:
                second = i
    if found != 2:
        return NOBODY, NOBODY, NOBODY, NOBODY
    return first + 1, second, second + 1, end


@kernel
def _amqplain_spans(buf, start, end, tags):
    """`_plain_spans` of a field table without its length."""
    user, user_end, password, password_end = NOBODY, NOBODY, NOBODY, NOBODY
    at = start
    while at < end:
        tag_at, kind, after = next_entry(buf, at, end, tags)
        if after < 0:
            return NOBODY, NOBODY, NOBODY, NOBODY
        names_user, names_password = _is(buf, at + 1, tag_at, _LOGIN), _is(buf, at + 1, tag_at, _PASSWORD)
        if (names_user and user >= 0) or (names_password and password >= 0):
            return NOBODY, NOBODY, NOBODY, NOBODY
        if kind == K.LONGSTR and names_user:
            user, user_end = tag_at + 5, after
        elif kind == K.LONGSTR and names_password:
            password, password_end = tag_at + 5, after
        at = after
    if user < 0 or password < 0:
        return NOBODY, NOBODY, NOBODY, NOBODY
    return user, user_end, password, password_end


@kernel
def _is_token(buf, start, end):
    """Whether `buf[start:end]` looks like a signed JSON web token: three base64url parts joined by dots."""
    if end - start < len(_TOKEN_BEGINS) or not _is(buf, start, start + len(_TOKEN_BEGINS), _TOKEN_BEGINS):
        return False
    parts, begun = 1, start
    for i in range(start, end):
        byte = octet(buf, i)
        if byte == ord("."):
            if i == begun:
                return False
            parts += 1
            begun = i + 1
        elif not (
            ord("a") <= byte <= ord("z")
            or ord("A") <= byte <= ord("Z")
            or ord("0") <= byte <= ord("9")
            or byte == ord("-")
            or byte == ord("_")
        ):
            return False
    return parts == _TOKEN_PARTS and begun < end
