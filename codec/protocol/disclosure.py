"""Fields with a secret, and fields next to one: what rows show of them. The fact tables' overlay lists the fields.

A damaged length moves bytes of a secret into the fields next to it. So a row has the name of a mechanism only if it
has the form of one, and a short string after a secret only if its length is no byte of a secret, and none of its
bytes could be such a length; after an empty secret only a language tag. Of a SASL response, rows have the user name,
and notes on an empty password and a token:

    PLAIN (RFC 4616)                authzid NUL authcid NUL passwd
    AMQPLAIN                        a field table without its length, with LOGIN and PASSWORD, each once
    SCRAM (RFC 5802, section 7)     the first message, which has no secret
    CRAM-MD5 (RFC 2195)             the response to a challenge: user, a space, and 32 digits

The frame of a response to a challenge names no mechanism: the response is one of the last two or of PLAIN if it has the
form of one (a client may send its first message after an empty challenge; RFC 4422, section 3.2). A response of any
other mechanism, or one that does not parse from end to end, has no user.

A client that forgets a NUL, or writes its fields in another form, moves its password to where the user is expected. So
a user of PLAIN or AMQPLAIN is only shown if it cannot be the password (`_may_be_secret`). Cost: linear.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import byte_at
from codec.protocol import classic_tables as K
from codec.protocol import rows as N
from codec.protocol.classic_field_table import next_entry
from codec.protocol.versions import overlay
from codec.variant import note

# Of a field: all of it; the user name in it; its size; nothing; all of it, if it has the form of SASL mechanism names;
# all of it, if it is a short string that cannot be part of the secret before it.
SHOW_ALL, SHOW_USER, SHOW_SIZE, HIDE, SHOW_SASL_NAMES, SHOW_SHORT_TEXT = range(6)
SECRETS = (SHOW_USER, SHOW_SIZE, HIDE)

SECRET_LENGTH_BYTES = 4  # longstr, vbin32
MECHANISM_BYTES = 20  # of the longest name (RFC 4422, section 3.1)
FIRST_PRINTABLE = 0x20
FIRST_NOT_ASCII = 0x80
_PLAIN = np.frombuffer(bytearray(b"PLAIN"), np.uint8)
_AMQPLAIN = np.frombuffer(bytearray(b"AMQPLAIN"), np.uint8)
_SCRAM = np.frombuffer(bytearray(b"SCRAM-"), np.uint8)
_LOGIN = np.frombuffer(bytearray(b"LOGIN"), np.uint8)
_PASSWORD = np.frombuffer(bytearray(b"PASSWORD"), np.uint8)
_TOKEN_PREFIX = np.frombuffer(bytearray(b"eyJ"), np.uint8)  # base64 of {" (RFC 7519, section 3.1)
_SIGNED_PARTS, _ENCRYPTED_PARTS = 3, 5  # RFC 7515, section 7.1; RFC 7516, section 7.1
_DIGEST_DIGITS = 32  # of HMAC-MD5
NO_USER = NO_RESPONSE = -1


def disclosure(entry: str, field: str) -> tuple[str, int]:
    """Key in a row, and what the row shows, of `field` of a method, control, command or performative."""
    facts = overlay()
    key, secret = field.replace("-", "_"), facts["credentials"].get(entry, {}).get(field)
    if field in facts["sasl_names"].get(entry, ()):
        return key, SHOW_SASL_NAMES
    if secret is None:
        return key, SHOW_ALL
    if "size_as" in secret:
        return secret["size_as"], SHOW_SIZE
    return ("user", SHOW_USER) if "user_from" in secret else (key, HIDE)


def describes_peer(entry: str, field: str) -> bool:
    """Whether a peer describes itself in `field`: bytes that may be text are text there."""
    return field in overlay()["describes_peer"].get(entry, ())


@kernel
def is_sasl_name(buf, start, end):
    """Whether `buf[start:end]` has the form of a SASL mechanism name: 1 to 20 upper-case letters, digits, hyphens,
    underscores (RFC 4422, section 3.1)."""
    if end <= start or end - start > MECHANISM_BYTES:
        return False
    for i in range(start, end):
        byte = byte_at(buf, i)
        is_letter = ord("A") <= byte <= ord("Z")
        if not (is_letter or ord("0") <= byte <= ord("9") or byte == ord("-") or byte == ord("_")):
            return False
    return True


@kernel
def names_mechanism(buf, start, end, fields_end):
    """Whether the short string `buf[start:end]` is the name of a mechanism, not a piece of the response behind it: it
    has the form of one, and what follows may be the length of a response. All fields end at `fields_end`; NO_RESPONSE:
    none follows."""
    if fields_end != NO_RESPONSE and (fields_end - end < SECRET_LENGTH_BYTES or buf[end] != 0 or buf[end + 1] != 0):
        return False
    return is_sasl_name(buf, start, end)


@kernel
def is_not_secret(buf, start, end):
    """Whether the short string `buf[start:end]`, whose length is the byte before, cannot be part of the secret before
    that: its length is not printable, and none of its bytes could be such a length. Behind an empty secret it has the
    form of a language tag: with a zero inserted before the length of a secret, the secret is read as this string."""
    if end - start >= FIRST_PRINTABLE:
        return False
    for i in range(max(start - 1 - SECRET_LENGTH_BYTES, 0), start - 1):
        if byte_at(buf, i):
            return _is_text(buf, start, end)
    return _is_language_tag(buf, start, end)


@kernel
def _is_language_tag(buf, start, end):
    """Whether `buf[start:end]` is empty, or a language of two or three letters and further subtags of two to eight
    letters or digits (RFC 5646, section 2.1), with underscores or dots, too, as names of POSIX locales have."""
    length = 0
    is_first = True
    for i in range(start, end + 1):
        byte = byte_at(buf, i) if i < end else ord("-")
        is_letter = ord("a") <= byte | 0x20 <= ord("z")
        if is_letter or (not is_first and ord("0") <= byte <= ord("9")):
            length += 1
        elif byte not in (ord("-"), ord("_"), ord(".")) or length < 2 or length > (3 if is_first else 8):
            return start == end
        else:
            length = 0
            is_first = False
    return True


@kernel
def _is_text(buf, start, end):
    """Whether there are no control characters in `buf[start:end]`."""
    for i in range(start, end):
        if byte_at(buf, i) < FIRST_PRINTABLE:
            return False
    return True


@kernel
def _equals(buf, start, end, text):
    if end - start != len(text):
        return False
    for i in range(len(text)):
        if buf[start + i] != text[i]:
            return False
    return True


@kernel
def user_span(w, buf, mechanism, mechanism_end, start, end, tags):
    """The user name in the response `buf[start:end]` to the mechanism `buf[mechanism:mechanism_end]`, or to a challenge
    if `mechanism` is above `mechanism_end`: (start, end), or (NO_USER, NO_USER). `w` gets the notes on the password."""
    by_form = mechanism > mechanism_end
    if by_form:
        user, user_end = _cram_span(buf, start, end)
        if user < 0:
            user, user_end = _scram_span(buf, start, end)
        if user >= 0:
            return user, user_end
    if mechanism_end - mechanism > len(_SCRAM) and _equals(buf, mechanism, mechanism + len(_SCRAM), _SCRAM):
        return _scram_span(buf, start, end)
    if by_form or _equals(buf, mechanism, mechanism_end, _PLAIN):
        user, user_end, password, password_end = _plain_spans(buf, start, end)
        if by_form and (user == user_end or _may_be_other_response(buf, start, user, user_end)):
            return NO_USER, NO_USER
    elif _equals(buf, mechanism, mechanism_end, _AMQPLAIN):
        user, user_end, password, password_end = _amqplain_spans(buf, start, end, tags)
    else:
        return NO_USER, NO_USER
    if password >= 0:
        if _may_be_secret(buf, user, user_end, password, password_end):
            if _is_token(buf, user, user_end):
                note(w, N.TOKEN_PASSWORD)
            return NO_USER, NO_USER
        if password == password_end:
            note(w, N.EMPTY_PASSWORD)
        elif _is_token(buf, password, password_end):
            note(w, N.TOKEN_PASSWORD)
    return user, user_end


@kernel
def _may_be_other_response(buf, start, user, end):
    """Whether what seems to be the authorization identity at `start` and the user `buf[user:end]` of PLAIN may be a
    response of another mechanism, in which damage left two NULs: it has a control character, or a space, comma or
    equals sign, as those have; or the user is of hexadecimal digits, as the digest of CRAM-MD5 is."""
    digits = user - 1 > start
    for i in range(start, end):
        byte = byte_at(buf, i)
        if i != user - 1 and (byte <= FIRST_PRINTABLE or byte == ord(",") or byte == ord("=")):
            return True
        is_digit = ord("0") <= byte <= ord("9") or ord("a") <= byte <= ord("f")
        digits = digits and (i < user or is_digit)
    return digits


@kernel
def _cram_span(buf, start, end):
    """The user of CRAM-MD5: printable, without a space; a space and the digest follow it."""
    space_at = end - _DIGEST_DIGITS - 1
    if space_at <= start or byte_at(buf, space_at) != ord(" "):
        return NO_USER, NO_USER
    for i in range(start, space_at):
        if byte_at(buf, i) <= FIRST_PRINTABLE:
            return NO_USER, NO_USER
    for i in range(space_at + 1, end):
        byte = byte_at(buf, i)
        if not (ord("0") <= byte <= ord("9") or ord("a") <= byte <= ord("f")):
            return NO_USER, NO_USER
    return start, space_at


@kernel
def _attribute_end(buf, start, end):
    """The offset of the comma after the attribute at `start`, or `end`; NO_USER for a control character in it."""
    for i in range(start, end):
        if byte_at(buf, i) == ord(","):
            return i
        if byte_at(buf, i) < FIRST_PRINTABLE:
            return NO_USER
    return end


@kernel
def _names_attribute(buf, start, end, name):
    return end - start > 2 and byte_at(buf, start) == name and byte_at(buf, start + 1) == ord("=")


@kernel
def _scram_span(buf, start, end):
    """The user in the first message of SCRAM: channel binding, authorization identity (may be empty), an extension that
    may be left out, user, nonce."""
    binding = byte_at(buf, start) if end > start else 0
    if not (binding == ord("n") or binding == ord("y") or binding == ord("p")):
        return NO_USER, NO_USER
    user, user_end, at = NO_USER, NO_USER, start
    for part in range(4):
        stop = _attribute_end(buf, at, end)
        if part == 2 and stop > 0 and _names_attribute(buf, at, stop, ord("m")):
            at = stop + 1
            stop = _attribute_end(buf, at, end)
        if stop < 0 or (part < 3 and stop == end):
            return NO_USER, NO_USER
        if part == 2:
            if not _names_attribute(buf, at, stop, ord("n")):
                return NO_USER, NO_USER
            user, user_end = at + 2, stop
        if part == 3 and not _names_attribute(buf, at, stop, ord("r")):
            return NO_USER, NO_USER
        at = stop + 1
    return user, user_end


@kernel
def _plain_spans(buf, start, end):
    """The user and the password: (start, end, start, end), or four times NO_USER."""
    first, second, found = start, start, 0
    for i in range(start, end):
        if byte_at(buf, i) == 0:
            found += 1
            if found == 1:
                first = i
            elif found == 2:
                second = i
    if found != 2 or (first > start and _moved(buf, start, first, second, end)):
        return NO_USER, NO_USER, NO_USER, NO_USER
    return first + 1, second, second + 1, end


@kernel
def _moved(buf, start, first, second, end):
    """Whether the fields of PLAIN may be a user, a password, and nothing or a copy of either: the NUL that should
    precede them is missing. An authorization identity that is the user, too, has a copy of it there."""
    if _same(buf, start, first, first + 1, second):
        return False
    copied = _same(buf, second + 1, end, start, first) or _same(buf, second + 1, end, first + 1, second)
    return copied or _is_blank(buf, second + 1, end)


@kernel
def _is_blank(buf, start, end):
    """Whether `buf[start:end]` has nothing but spaces and control characters."""
    for i in range(start, end):
        if byte_at(buf, i) > FIRST_PRINTABLE:
            return False
    return True


@kernel
def _same(buf, start, end, other, other_end):
    if end - start != other_end - other:
        return False
    for i in range(end - start):
        if buf[start + i] != buf[other + i]:
            return False
    return True


@kernel
def _may_be_secret(buf, user, user_end, password, password_end):
    """Whether the user may be, or have, a password: control characters (lengths, line ends); a token; base64 of fields
    that a NUL or colon separates; the password after a separator; two words, where the password is empty."""
    if not _is_text(buf, user, user_end) or _token_parts(buf, user, user_end)[0] > 1 or _is_base64(buf, user, user_end):
        return True
    at = user_end - (password_end - password)
    if password < password_end and user < at:
        return not _is_word(byte_at(buf, at - 1)) and _same(buf, at, user_end, password, password_end)
    if _is_blank(buf, password, password_end):
        for i in range(user, user_end):
            byte = byte_at(buf, i)
            if byte <= FIRST_PRINTABLE or byte in (ord(":"), ord(";"), ord(","), ord("|")):
                return True
    return False


@kernel
def _is_word(byte):
    letter = byte | 0x20
    return ord("a") <= letter <= ord("z") or ord("0") <= byte <= ord("9") or byte >= FIRST_NOT_ASCII


@kernel
def _six_bits(byte):
    """Value of a digit of base64 or base64url (RFC 4648, sections 4 and 5), or -1."""
    if ord("A") <= byte <= ord("Z"):
        return byte - ord("A")
    if ord("a") <= byte <= ord("z"):
        return byte - ord("a") + 26
    if ord("0") <= byte <= ord("9"):
        return byte - ord("0") + 52
    if byte == ord("+") or byte == ord("-"):
        return 62
    return 63 if byte == ord("/") or byte == ord("_") else -1


@kernel
def _is_base64(buf, start, end):
    """Whether `buf[start:end]` is base64 of ASCII text that has a NUL or a colon."""
    while end > start and byte_at(buf, end - 1) == ord("="):
        end -= 1
    bits, bit_count, separated = 0, 0, False
    for i in range(start, end):
        six = _six_bits(byte_at(buf, i))
        if six < 0:
            return False
        bits, bit_count = ((bits << 6) | six) & 0xFFFF, bit_count + 6
        if bit_count >= 8:
            bit_count -= 8
            byte = (bits >> bit_count) & 0xFF
            separated = separated or byte == 0 or byte == ord(":")
            if 0 < byte < FIRST_PRINTABLE or byte >= FIRST_NOT_ASCII:
                return False
    return separated


@kernel
def _amqplain_spans(buf, start, end, tags):
    """`_plain_spans` of a field table without its length."""
    user, user_end, password, password_end = NO_USER, NO_USER, NO_USER, NO_USER
    at = start
    while at < end:
        tag_at, kind, after = next_entry(buf, at, end, tags)
        if after < 0:
            return NO_USER, NO_USER, NO_USER, NO_USER
        names_user, names_password = _equals(buf, at + 1, tag_at, _LOGIN), _equals(buf, at + 1, tag_at, _PASSWORD)
        if (names_user and user >= 0) or (names_password and password >= 0):
            return NO_USER, NO_USER, NO_USER, NO_USER
        if kind == K.LONGSTR and names_user:
            user, user_end = tag_at + 5, after
        elif kind == K.LONGSTR and names_password:
            password, password_end = tag_at + 5, after
        at = after
    if user < 0 or password < 0:
        return NO_USER, NO_USER, NO_USER, NO_USER
    return user, user_end, password, password_end


@kernel
def _token_parts(buf, start, end):
    """(parts of the JSON web token `buf[start:end]`, whether one of them is empty); (0, False): it has no such form.
    Parts are base64url, and joined by dots."""
    if end - start < len(_TOKEN_PREFIX) or not _equals(buf, start, start + len(_TOKEN_PREFIX), _TOKEN_PREFIX):
        return 0, False
    parts, part_start, has_empty = 1, start, False
    for i in range(start, end):
        byte = byte_at(buf, i)
        if byte == ord("."):
            has_empty = has_empty or i == part_start
            parts += 1
            part_start = i + 1
        elif byte in (ord("+"), ord("/")) or _six_bits(byte) < 0:
            return 0, False
    return parts, has_empty or part_start == end


@kernel
def _is_token(buf, start, end):
    """Whether `buf[start:end]` is a JSON web token: three parts if it is signed; five if it is encrypted, where the key
    may be empty."""
    parts, has_empty = _token_parts(buf, start, end)
    return parts == _ENCRYPTED_PARTS or (parts == _SIGNED_PARTS and not has_empty)
