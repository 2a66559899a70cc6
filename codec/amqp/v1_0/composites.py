"""Fields of composites: checked against their definition, and hidden where they have a secret (part 1, section 1.4).

A composite is a row on the stack of `codec.amqp.v1_0.values`; `next_field` announces its next field to the writer.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.amqp import notes as N
from codec.amqp.disclosure import SHOW_ALL, SHOW_SASL_NAMES, SHOW_SIZE, SHOW_USER, is_sasl_name, user_span
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import DESCRIBED, NULL, compound, length_at, skip, symbol_span
from codec.amqp.v1_0.scalars import fixed_key
from codec.compiler.kernel import inlined, kernel
from codec.cursor import u8

# Flaws of a value, as bits: it does not parse; its definition does not allow it; it is nested too deep; it has too many
# entries.
BROKEN, MISFIT, DEEP, LARGE = 1 << np.arange(4)

# Columns of the stack: kind of container, its end, remaining items, items read, constructor of the elements, descriptor
# index of the composite (or of the elements).
KIND, END, LEFT, STEP, CODE, DEFINITION = range(6)
IN_LIST, IN_ARRAY, IN_MAP, IN_PAIRS, IN_DESCRIBED, IN_DESCRIBED_ARRAY, IN_COMPOSITE, IN_FRAME = np.arange(8)
# What to write of a field: nothing; its value as the only element of an array; its value.
NO_VALUE, ONE_ELEMENT, VALUE = range(3)


@kernel
def put_name(w, t, definition):
    """The name of the composite with descriptor index `definition` as STRING."""
    W.put_string(w, t.text, int(t.descriptor[definition].text_from), int(t.descriptor[definition].text_end))


@inlined
def begin_composite(w, t, v, definition, count, key_set):
    """Begin the object of a composite of `count` fields, inside a value of `key_set`, with its type."""
    W.begin_object(w)
    if count == 0 and key_set < v.message_set:
        # usually the outcome 'accepted': an object with one known key needs no dictionary
        W.known_key(w, int(t.descriptor[key_set].field_end - t.descriptor[key_set].field_from))
    else:
        fixed_key(w, v, T.TYPE_KEY, key_set)
    put_name(w, t, definition)


@kernel
def missing_fields(w, definition, count, t):
    """MISFIT, and a note, when a composite with `count` fields lacks a mandatory field."""
    for field in range(int(t.descriptor[definition].field_from) + count, int(t.descriptor[definition].field_end)):
        if t.field[field].mandatory:
            W.note(w, N.FIELDS_MISSING)
            return MISFIT
    return 0


@kernel
def allowed(buf, at, end, field, t):
    """Whether the definition of `field` allows the type at `at`, of an array the type of its elements. A boolean in an
    octet is 0 or 1 (1.6.2); others are read as true, as by tshark."""
    code = u8(buf, at, end)
    kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
    if kind == T.ARRAY and t.field[field].multiple:
        start, stop, count = compound(buf, at + 1, end, code, t)
        code = u8(buf, start, stop) if start >= 0 else -1
        if count == 0 or code < 0:
            return True
        kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
    if kind == T.BOOLEAN and t.constructor[code].width == 1 and u8(buf, at + 1, end) > 1:
        return False
    return kind >= 0 and (int(t.field[field].types) >> kind) & 1 == 1


@inlined
def next_field(w, buf, at, row, t, v, s, key_set, base):
    """Announce the next field of the composite in `row`: (offset of its constructor, flaws, NO_VALUE, ONE_ELEMENT or
    VALUE).

    A null, a secret, and a field beyond the definition are skipped: NO_VALUE. A single value of a multiple field is
    written as ONE_ELEMENT of an array. Offset -1: broken. Known keys begin at `base` of `key_set`.
    """
    definition, place, end = int(row[DEFINITION]), int(row[STEP]), int(row[END])
    row[STEP] = place + 1
    field = int(t.descriptor[definition].field_from) + place
    if field >= t.descriptor[definition].field_end:
        W.note(w, N.FIELDS_EXTRA)
        return skip(buf, at, end, t), MISFIT, NO_VALUE
    if row[KIND] == IN_FRAME:
        s.fields[place] = at
    code = u8(buf, at, end)
    if code == NULL:
        if not t.field[field].mandatory:
            return at + 1, 0, NO_VALUE
        W.note(w, N.FIELDS_MISSING)
        return at + 1, MISFIT, NO_VALUE
    if code < 0:
        return -1, BROKEN, NO_VALUE
    flaws = 0 if allowed(buf, at, end, field, t) else MISFIT
    if row[KIND] == IN_FRAME:
        if place >= s.field_count[0]:
            return skip(buf, at, end, t), MISFIT, NO_VALUE
        W.octets_are_text(w, t.field[field].describes_peer != 0)
    if t.field[field].disclosure == SHOW_SASL_NAMES:
        if not sasl_names(buf, at, end, t):
            return skip(buf, at, end, t), flaws, NO_VALUE
    elif t.field[field].disclosure != SHOW_ALL:
        return _secret(w, buf, at, end, field, row, t, v, s, key_set, base), flaws, NO_VALUE
    if row[KIND] == IN_FRAME:
        W.known_key(w, base + place)
    else:
        _put_key(w, v, definition, place, key_set)
    if t.field[field].multiple and code != DESCRIBED and 0 <= t.constructor[code].type < T.LIST:
        return at, flaws, ONE_ELEMENT
    return at, flaws, VALUE


@kernel
def sasl_names(buf, at, end, t):
    """Whether the value at `at` is a symbol with the form of a SASL mechanism name, or an array of such symbols."""
    code = u8(buf, at, end)
    if code <= 0 or t.constructor[code].type != T.ARRAY:
        start, stop = symbol_span(buf, at, end, t)
        return start >= 0 and is_sasl_name(buf, start, stop)
    start, stop, count = compound(buf, at + 1, end, code, t)
    if count > stop - start:
        return False
    code = u8(buf, start, stop)
    at = start + 1
    for _ in range(count):
        if code <= 0 or t.constructor[code].type != T.SYMBOL:
            return False
        size, at = length_at(buf, at, stop, int(t.constructor[code].width)), at + int(t.constructor[code].width)
        if size < 0 or size > stop - at or not is_sasl_name(buf, at, at + size):
            return False
        at += size
    return count == 0 or at == stop


@kernel
def _put_key(w, v, definition, place, key_set):
    """Write a key of the set of `definition` in a value that began with another set."""
    W.load_known(w, v.keys, key_set)
    text = int(v.keys.first[definition]) + place
    W.key(w, v.keys.text, int(v.keys.text_at[text]), int(v.keys.text_at[text + 1]))


@kernel
def _secret(w, buf, at, end, field, row, t, v, s, key_set, base):
    """Skip a field with a secret: the offset after it, or -1. At most the user or the size is written."""
    after = skip(buf, at, end, t)
    code = u8(buf, at, end)
    if after < 0 or row[KIND] != IN_FRAME or code == DESCRIBED or t.constructor[code].type != T.BINARY:
        return after
    place = int(row[STEP]) - 1
    start = at + 1 + int(t.constructor[code].width)
    policy = int(t.field[field].disclosure)
    if policy == SHOW_SIZE:
        W.known_key(w, base + place)
        W.put_int(w, after - start)
    elif policy == SHOW_USER:
        mechanism, mechanism_end = start + 1, start
        if place > 0:
            mechanism, mechanism_end = symbol_span(buf, int(s.fields[place - 1]), at, t)
        if mechanism >= 0:
            user, user_end = user_span(w, buf, mechanism, mechanism_end, start, after, v.tags)
            if user >= 0:
                W.known_key(w, base + place)
                W.put_text(w, buf, user, user_end)
    return after
