"""Text of the wire as STRING, in columns and in VARIANT.

Well-formed UTF-8 (RFC 3629, section 4) does not change. In any other text each byte outside of a well-formed character
is escaped as `\\xHH`, as with Python's error handler "backslashreplace", and each backslash as `\\x5c`. So different
bytes remain different, and can be restored. A row with such a text has the note 'not-utf8'.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.cursor import byte_at, is_utf8

ESCAPE_BYTES = 4  # of one escaped byte
_LONGEST_CHARACTER = 4
_BACKSLASH = 0x5C
_HEX = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)


@kernel
def _character_end(buf, at, end):
    """The offset after the well-formed character at `at`; `at` when there is none, or it is a backslash."""
    if byte_at(buf, at) == _BACKSLASH:
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
        size += after - at if after > at else ESCAPE_BYTES
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
        byte = byte_at(buf, at)
        out[to] = _BACKSLASH
        out[to + 1] = ord("x")
        out[to + 2] = _HEX[byte >> 4]
        out[to + 3] = _HEX[byte & 15]
        to += ESCAPE_BYTES
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


def escaped(data: bytes) -> str:
    """Bytes as text, by the same rule."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.replace(b"\\", rb"\x5c").decode("utf-8", "backslashreplace")


# Userinfo of URIs (RFC 3986, section 3.2.1) in text of the wire: it may have a password, so rows show **** instead.
#
#     amqp://alice:wonderland@host/q              -> amqp://****@host/q
#     jdbc:oracle:thin:scott/tiger@host           -> jdbc:oracle:thin:****@host
#     amqp%3A%2F%2Falice%3Awonderland%40host%2Fq  -> amqp%3A%2F%2F****%40host%2Fq
#
# A text may have several URIs, and anything around them. Percent-encoded URIs count, up to three times encoded, and
# those of JSON, which may escape a slash by a backslash. `//` without a scheme counts where a colon, and after it an
# `@`, follow: a name and a password; so does `queue://` or `topic://`, which a name of ActiveMQ follows.
#
# What people write is not always a URI. A password may have the signs / ? # " < > and spaces, which should have been
# encoded: where the text after the first colon of the authority is not a port, userinfo goes on to the next `@`. A text
# of LONG bytes may have been cut (reply texts have at most 255): without an `@` before its end, all of such an
# authority is userinfo. Where both readings are possible, as in `amqp://host:5672/me@home`, it is the one of RFC 3986.
#
# Equal texts remain equal. Texts that differ only in userinfo become equal. Cost: linear in the bytes.


LONG = 255  # bytes: the longest short string
PORT_DIGITS = 5
PASSWORD_BYTES = 128  # the longest password with signs that should have been encoded
LEVELS = 3  # of percent-encoding
MASK_BYTES = 4
_ASTERISK = ord("*")
_AT, _COLON, _SLASH, _QUESTION, _HASH, _PERCENT = (ord(sign) for sign in "@:/?#%")
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
    data = buf[start:end]
    seen, least, signs = 0, 0x7F, 0
    for i in range(len(data)):
        seen |= data[i]
        least = min(least, data[i])
        signs |= (data[i] == 0x40) | (data[i] == 0x25)
    return seen < 0x80 and least > 0 and signs == 0 and len(data) < LONG


@kernel
def may_have_userinfo(buf, start, end):
    """Whether `buf[start:end]` can have userinfo, by a quick look."""
    data = buf[start:end]
    signs = 0
    for i in range(len(data)):
        signs |= (data[i] == 0x40) | (data[i] == 0x25)
    return signs != 0 or len(data) >= LONG


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
    byte = byte_at(buf, at)
    if byte == _BACKSLASH and at + 1 < end and byte_at(buf, at + 1) == _SLASH:
        return _SLASH, 2, 0
    if byte != _PERCENT:
        return byte, 1, 0
    digits, level = at + 1, 1
    while end - digits >= 4 and byte_at(buf, digits) == ord("2") and byte_at(buf, digits + 1) == ord("5"):
        digits += 2
        level += 1
    if level > LEVELS:
        return _PERCENT, 1, 0
    if end - digits < 2:
        return _PERCENT, 1, 0
    high, low = _digit(byte_at(buf, digits)), _digit(byte_at(buf, digits + 1))
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
        following = byte_at(buf, after)
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
    is_address = start < end and byte_at(buf, start) == _BRACKET
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
            same = same and byte_at(buf, at - size + j) | 0x20 == byte_at(_ORACLE, int(_ORACLE_AT[i]) + j) | 0x20
        if same:
            return True
    return False


@kernel
def _oracle_end(buf, start, end):
    """`_userinfo_end` of name, slash and password: (offset of the @ or -1, True)."""
    for at in range(start, min(end, start + PASSWORD_BYTES)):
        byte = byte_at(buf, at)
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
        byte = byte_at(buf, first + i) | 0x20
        queue = queue and byte == byte_at(_DESTINATIONS, i) | 0x20
        topic = topic and byte == byte_at(_DESTINATIONS, DESTINATION_BYTES + i) | 0x20
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
        if not _is_sign(byte_at(buf, at)):
            first = second = 0
            while at < end and not _is_sign(byte_at(buf, at)):
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
def overwrite_userinfo(data, start, end):
    """Write asterisks over each userinfo in the text `bytes[start:end]`, which keeps its size."""
    at, is_long = start, end - start >= LONG
    while at < end:
        begin, stop = next_userinfo(data, at, end, is_long)
        at = stop
        for i in range(begin, stop):
            data[i] = _ASTERISK


def masked(text: str) -> str:
    """A text of this process with its userinfo masked."""
    data = np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)
    size = int(masked_size(data, 0, len(data)))
    if size < 0:
        return text
    out = np.zeros(size, np.uint8)
    put_masked(out, 0, data, 0, len(data))
    return out.tobytes().decode("utf-8", "surrogatepass")
