"""Scalars of AMQP 0-10 to VARIANT, and the two types of ranges.

Types with the octets of a classic type are written as that type. Text in ISO 8859-15, UTF-16 or UTF-32 becomes STRING
like text in UTF-8; text that is not valid in its encoding is BINARY, as are undefined and opaque types.
"""

from __future__ import annotations

from codec import variant as W
from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import put_scalar as put_classic
from codec.amqp.v0_10 import tables as T
from codec.compiler.kernel import inlined, kernel
from codec.cursor import i64, octet, signed, u8, u32
from codec.variant.texts import put_hex, put_scaled, put_transcoded

DOT = 0x2E
SCRATCH = 0  # where a text that is composed begins in `Writer.text`


@kernel
def word(w, t, keys, number, key_set):
    """The next value has the key WORDS[number]."""
    W.load_known(w, keys, key_set)
    at = int(keys.first[t.special[T.WORD_SET]]) + number
    W.key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@kernel
def put_name(w, keys, name_set, number):
    """The name of an entry or type (`name_set`: which) as STRING."""
    at = int(keys.first[name_set]) + number
    W.put_string(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@inlined
def put_scalar(w, buf, at, end, number, t, keys, key_set):
    """Write the scalar `buf[at:end]` of type `number`."""
    form = t.types[T.FORM, number]
    start = at + t.types[T.WIDTH, number] if t.types[T.CATEGORY, number] == T.VARIABLE else at
    if form == T.TEXT:
        W.put_text(w, buf, start, end)
    elif form == K.BINARY:
        W.put_binary(w, buf, start, end)
    elif form == K.BIT:
        W.put_bool(w, form)  # a bit that is present is set
    elif form == T.DECIMAL64 or form == K.DECIMAL:
        if u8(buf, at, end) > W.DECIMAL_SCALE:
            W.load_known(w, keys, key_set)
        unscaled = i64(buf, at + 1, end) if form == T.DECIMAL64 else signed(u32(buf, at + 1, end), 32)
        put_scaled(w, unscaled, octet(buf, at))
    elif form < T.UUID:
        put_classic(w, buf, at, end, form)
    elif form == T.UUID:
        put_hex(w, buf, at, end - at, True)
    else:
        put_transcoded(w, buf, start, end, form - T.LATIN)


@kernel
def put_ranges(w, buf, at, end, number, base, t, keys, key_set):
    """A sequence-set (pairs of 32 bits) or byte-ranges (pairs of 64): ARRAY of {lower, upper}, with known keys from
    `base` on (-1: none). False when the octets are not pairs; then nothing is written."""
    width = 8 if number == T.BYTE_RANGES else 4
    at += 2
    if (end - at) % (2 * width) != 0:
        return False
    W.begin_array(w)
    while at < end:
        W.element(w)
        W.begin_object(w)
        for bound in range(2):
            if base >= 0:
                W.known_key(w, base + bound)
            else:
                word(w, t, keys, T.LOWER_WORD + bound, key_set)
            if width == 4:
                W.put_int(w, u32(buf, at, end))
            else:
                W.put_u64(w, i64(buf, at, end))
            at += width
        if base >= 0:
            W.end_known_object(w, keys, key_set)
        else:
            W.end_object(w)
    W.end_array(w)
    return True


@kernel
def put_code(w, buf, at):
    """Write the class code and code at `at` as text, such as 4.1, to the writer's scratch: its size."""
    size = 0
    for i in range(2):
        number = octet(buf, at + i)
        digits = 3 if number > 99 else (2 if number > 9 else 1)
        for j in range(digits - 1, -1, -1):
            w.text[size + j] = 0x30 + number % 10
            number //= 10
        size += digits
        if i == 0:
            w.text[size] = DOT
            size += 1
    return size
