"""Userinfo of URIs (RFC 3986, section 3.2.1) in text of the wire: it may have a password, so rows show **** instead.

    amqp://alice:wonderland@host/q              -> amqp://****@host/q
    jdbc:oracle:thin:scott/tiger@host           -> jdbc:oracle:thin:****@host
    amqp%3A%2F%2Falice%3Awonderland%40host%2Fq  -> amqp%3A%2F%2F****%40host%2Fq

A text may have several URIs, and anything around them. Percent-encoded URIs count, up to three times encoded, and
those of JSON, which may escape a slash by a backslash. `//` without a scheme counts where a colon, and after it an `@`,
follow: a name and a password; so does `queue://` or `topic://`, which a name of ActiveMQ follows.

What people write is not always a URI. A password may have the signs / ? # " < > and spaces, which should have been
encoded: where the text after the first colon of the authority is not a port, userinfo goes on to the next `@`. A text
of LONG bytes may have been cut (reply texts have at most 255): without an `@` before its end, all of such an authority
is userinfo. Where both readings are possible, as in `amqp://host:5672/me@home`, it is the one of RFC 3986.

Equal texts remain equal. Texts that differ only in userinfo become equal. Cost: linear in the bytes.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import octet

LONG = 255  # bytes: the longest short string
PORT_DIGITS = 5
PASSWORD_BYTES = 128  # the longest password with signs that should have been encoded
LEVELS = 3  # of percent-encoding
MASK_BYTES = 4
_ASTERISK = ord("*")
_AT, _COLON, _SLASH, _QUESTION, _HASH, _PERCENT, _BACKSLASH = (ord(sign) for sign in "@:/?#%\\")
_SPACE, _DOUBLE_QUOTE, _QUOTE, _LESS, _GREATER, _BRACKET = (ord(sign) for sign in " \"'<>[")
_OTHER = ord("x")  # stands for a sign that is encoded once more than the URI: part of a name
_ORACLE = np.frombuffer(bytearray(b"oracle:thin:oracle:oci:oracle:oci8:"), np.uint8)
_DESTINATIONS = np.frombuffer(bytearray(b"queue://topic://"), np.uint8)
DESTINATION_BYTES = 8
_ORACLE_AT = np.array([0, 12, 23, 35], np.int64)


@kernel
def is_ordinary(buf, start, end):
    """Whether `buf[start:end]` is ASCII without zeros and cannot have userinfo, by a quick look: no @, no %, not
    LONG."""
    octets = buf[start:end]
    seen, least, signs = 0, 0x7F, 0
    for i in range(len(octets)):
        seen |= octets[i]
        least = min(least, octets[i])
        signs |= (octets[i] == 0x40) | (octets[i] == 0x25)
    return seen < 0x80 and least > 0 and signs == 0 and len(octets) < LONG


@kernel
def may_have_userinfo(buf, start, end):
    """Whether `buf[start:end]` can have userinfo, by a quick look."""
    octets = buf[start:end]
    signs = 0
    for i in range(len(octets)):
        signs |= (octets[i] == 0x40) | (octets[i] == 0x25)
    return signs != 0 or len(octets) >= LONG


@kernel
def _digit(byte):
    """Value of a hexadecimal digit, or -1."""
    if ord("0") <= byte <= ord("9"):
        return byte - ord("0")
    letter = byte | 0x20
    return letter - ord("a") + 10 if ord("a") <= letter <= ord("f") else -1


@kernel
def _sign(buf, at, end):
    """The sign at `at`: (its byte, how many bytes it has here, how often it is percent-encoded)."""
    byte = octet(buf, at)
    if byte == _BACKSLASH and at + 1 < end and octet(buf, at + 1) == _SLASH:
        return _SLASH, 2, 0
    if byte != _PERCENT:
        return byte, 1, 0
    digits, level = at + 1, 1
    while end - digits >= 4 and octet(buf, digits) == ord("2") and octet(buf, digits + 1) == ord("5"):
        digits += 2
        level += 1
    if level > LEVELS:
        return _PERCENT, 1, 0
    if end - digits < 2:
        return _PERCENT, 1, 0
    high, low = _digit(octet(buf, digits)), _digit(octet(buf, digits + 1))
    if high < 0 or low < 0:
        return _PERCENT, 1, 0
    return (high << 4) | low, digits + 2 - at, level


@kernel
def _ends_uri(byte, buf, after, end):
    """Whether `byte`, before offset `after`, ends a URI: control, space, quotes, angle brackets. An apostrophe is a
    sign of names as well: it ends one unless a letter or digit follows."""
    if byte == _QUOTE:
        if after >= end:
            return True
        following = octet(buf, after)
        letter = following | 0x20
        is_name = ord("a") <= letter <= ord("z") or ord("0") <= following <= ord("9") or following >= 0x80
        return not is_name
    return byte <= _SPACE or byte in (_DOUBLE_QUOTE, _LESS, _GREATER)


@kernel
def _userinfo_end(buf, start, end, level, is_long, clear):
    """(offset of the @ after the userinfo of the authority at `start`, `end` if all of a cut text is userinfo, -1
    without any; whether it has a colon; offset before which no @ follows the authority). Signs that end the authority
    are encoded `level` times at most, the @ as often as it may be. `clear`: the last of these offsets, so that no byte
    is read again."""
    at, found, colon, digits, named = start, -1, -1, 0, False
    is_port, passed = True, False
    is_address = start < end and octet(buf, start) == _BRACKET
    while at < end and not (passed and at - colon > PASSWORD_BYTES):
        byte, size, encoded = _sign(buf, at, end)
        named = named or byte == _COLON
        if encoded > level and byte != _AT:
            byte = _OTHER
        if byte < _SPACE:
            break
        if byte in (_SLASH, _QUESTION, _HASH) or _ends_uri(byte, buf, at + size, end):
            maybe_port = is_port and 0 < digits <= PORT_DIGITS
            if found >= 0 or (not passed and (colon < 0 or maybe_port or is_address)):
                return found, named, clear
            passed = True
            if clear > at + size:
                at = clear
                continue
        elif byte == _AT:
            found = at
        elif byte == _COLON and not passed:
            is_port = is_port and colon < 0
            colon = at
        elif colon >= 0 and not passed:
            digits += 1
            is_port = is_port and ord("0") <= byte <= ord("9")
        at += size
    if at >= end and found < 0 and not passed and is_long and colon >= 0 and not (is_port or is_address):
        found = end
    return found, named, (max(at, clear) if passed and found < 0 else clear)


@kernel
def _follows_oracle(buf, start, at):
    """Whether `buf[start:at]` ends with a prefix of JDBC after which Oracle has a name, a slash and a password."""
    for i in range(len(_ORACLE_AT) - 1):
        size = int(_ORACLE_AT[i + 1] - _ORACLE_AT[i])
        same = at - start >= size
        for j in range(size):
            same = same and octet(buf, at - size + j) | 0x20 == octet(_ORACLE, int(_ORACLE_AT[i]) + j) | 0x20
        if same:
            return True
    return False


@kernel
def _oracle_end(buf, start, end):
    """`_userinfo_end` of name, slash and password: (offset of the @ or -1, True)."""
    for at in range(start, min(end, start + PASSWORD_BYTES)):
        byte = octet(buf, at)
        if byte == _AT:
            return at, True
        if _ends_uri(byte, buf, at + 1, end):
            break
    return -1, True


@kernel
def _is_destination(buf, start, at):
    """Whether `buf[start:at]` ends with queue:// or topic://, after which a name follows, and no authority."""
    if at - start < DESTINATION_BYTES:
        return False
    first = at - DESTINATION_BYTES
    queue, topic = True, True
    for i in range(DESTINATION_BYTES):
        byte = octet(buf, first + i) | 0x20
        queue = queue and byte == octet(_DESTINATIONS, i) | 0x20
        topic = topic and byte == octet(_DESTINATIONS, DESTINATION_BYTES + i) | 0x20
    return queue or topic


@kernel
def _is_sign(byte):
    """Whether a byte may be one of those before an authority, or begin one that is encoded or escaped."""
    return byte in (_SLASH, _COLON, _PERCENT, _BACKSLASH)


@kernel
def next_userinfo(buf, at, end, is_long):
    """The first userinfo in `buf[at:end]` that is not empty: (its start, its end), or `end` twice. `is_long`: the text
    may have been cut."""
    start = at
    first, first_level, second, second_level = 0, 0, 0, 0  # the two signs before
    clear = at
    while at < end:
        if not _is_sign(octet(buf, at)):
            first = second = 0
            while at < end and not _is_sign(octet(buf, at)):
                at += 1
            continue
        byte, size, level = _sign(buf, at, end)
        at += size
        stop, named = -1, False
        if byte == _SLASH and second == _SLASH:
            scheme = first == _COLON
            deepest = max(level, second_level, first_level if scheme else 0)
            stop, named, clear = _userinfo_end(buf, at, end, deepest, is_long and scheme, clear)
            named = named or (scheme and not _is_destination(buf, start, at))
            byte = second = 0
        elif byte == _COLON and _follows_oracle(buf, start, at):
            stop, named = _oracle_end(buf, at, end)
        if stop > at and named:
            return at, stop
        first, first_level, second, second_level = second, second_level, byte, level
    return end, end


@kernel
def masked_size(buf, start, end):
    """Size of `buf[start:end]` with its userinfo masked; -1 without any."""
    size, at, is_long, has_any = end - start, start, end - start >= LONG, False
    while at < end:
        begin, stop = next_userinfo(buf, at, end, is_long)
        at = stop
        if stop > begin:
            size += MASK_BYTES - (stop - begin)
            has_any = True
    return size if has_any else -1


@kernel
def put_masked(out, to, buf, start, end):
    """Write `buf[start:end]` at `out[to:]`, with **** for each userinfo."""
    at, copied, is_long = start, start, end - start >= LONG
    while at < end:
        begin, stop = next_userinfo(buf, at, end, is_long)
        at = stop
        for i in range(copied, begin):
            out[to] = buf[i]
            to += 1
        copied = stop
        if stop > begin:
            for _ in range(MASK_BYTES):
                out[to] = _ASTERISK
                to += 1
    for i in range(copied, end):
        out[to] = buf[i]
        to += 1


@kernel
def overwrite_userinfo(octets, start, end):
    """Write asterisks over each userinfo in the text `octets[start:end]`, which keeps its size."""
    at, is_long = start, end - start >= LONG
    while at < end:
        begin, stop = next_userinfo(octets, at, end, is_long)
        at = stop
        for i in range(begin, stop):
            octets[i] = _ASTERISK


def masked(text: str) -> str:
    """A text of this process with its userinfo masked."""
    octets = np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)
    size = int(masked_size(octets, 0, len(octets)))
    if size < 0:
        return text
    out = np.zeros(size, np.uint8)
    put_masked(out, 0, octets, 0, len(octets))
    return out.tobytes().decode("utf-8", "surrogatepass")
