"""The type system of AMQP 1.0 to VARIANT: one interpreter for every value, composite and section.

A value is a constructor and its octets (OASIS AMQP 1.0, part 1). An explicit stack has a row for each open container;
the loop of `decode_value` takes the next item of the innermost container.

* list, array -> ARRAY; map -> OBJECT when all keys are text, else ARRAY of {key, value}
* composite -> OBJECT of its fields that are not null, with "type": its name (not for the body of a frame, nor a
  section); a field that may be multiple is always an ARRAY
* any other described value -> {descriptor, value}; an array of described values -> {descriptor, value: [...]}
* an array whose elements have no octets -> {type, count}, never expanded
* a container nested too deep or with too many entries -> BINARY, its octets

For any octets a well-formed value is written. A broken item ends its container, and the outer container continues after
it. Cost: linear in the octets.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.amqp.v1_0 import composites as C
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import DESCRIBED, compound, descriptor, is_text_map, skip, text_span
from codec.amqp.v1_0.scalars import DEPTH, fixed_key, put_scalar, put_type
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import u8
from codec.variant.writer import DEPTH as OPEN_CONTAINERS
from codec.variant.writer import ENTRIES as OPEN_ENTRIES

# An entry costs 6 or more octets of VARIANT, and far more of scratch memory while its container is open.
ENTRIES = LIMITS.variant_bytes // 16
EMPTY, PAIR, NONE = np.array([0, 2, -1])  # numpy integers, see `codec.amqp.v1_0.tables.FIXED_KEYS`
NOTHING, ELEMENTS = -2, -3  # instead of a constructor: no value; the rest of an array of described values


@kernel
def decode_value(w, buf, at, end, t, v, s, key_set, top, base):
    """Write the value whose constructor is at `at`: (offset after it or -1, flaws).

    `key_set`: the key set of the writer's value. `top` is the descriptor index when the value is the list of that
    composite, whose keys are in `key_set` from number `base` on. Otherwise `top` is -1.
    """
    depth, flaws, code, definition, wrapped = 0, 0, u8(buf, at, end), -1, False
    if top >= 0:
        at, depth, flaws = _begin_top(w, buf, at + 1, end, code, top, t, s)
        if at < 0:
            W.put_null(w)
            return -1, flaws
        code = NOTHING
    else:
        at += 1
    limit, depths = end, depth
    while True:
        # the next value, if any
        if code != NOTHING:
            if code == ELEMENTS:
                row = s.stack[depth - 1]
                at, depths, flaw = _array(w, buf, at, limit, int(row[C.CODE]), t, v, s, depth, key_set)
            elif code > 0 and t.constructor[code].type < T.LIST and t.constructor[code].type >= 0:
                at = put_scalar(w, buf, at, limit, code, t, v, s, key_set)
                flaw = 0 if at >= 0 else C.BROKEN
            else:
                at, depths, flaw = _value(w, buf, at, limit, code, definition, t, v, s, depth, key_set)
            flaws |= flaw
            depth = depths
            if at < 0:
                W.put_null(w)
            if wrapped:
                W.end_array(w)
                wrapped = False
        if at < 0:
            at, depth, flaw = _abandon(w, depth, t, v, s, key_set)
            flaws |= flaw
        # containers that are complete
        while depth > 0 and s.stack[depth - 1, C.LEFT] == 0:
            depth -= 1
            row = s.stack[depth]
            flaws |= _close(w, row, t, v, key_set)
            if row[C.KIND] != C.IN_DESCRIBED and at != row[C.END]:
                flaws |= C.BROKEN
                at = int(row[C.END])
        if depth == 0 or W.error_code(w) != W.OK:
            return at, flaws
        # the next item of the innermost container
        depths = depth
        row = s.stack[depth - 1]
        row[C.LEFT] -= 1
        limit = int(row[C.END])
        definition = -1
        if row[C.KIND] >= C.IN_COMPOSITE:
            at, flaw, follows = C.next_field(w, buf, at, row, t, v, s, key_set, base)
            flaws |= flaw
            if follows == C.ONE_ELEMENT:
                W.begin_array(w)
                W.element(w)
                wrapped = True
            code = NOTHING
            if at >= 0 and follows >= C.ONE_ELEMENT:
                code = u8(buf, at, limit)
                at += 1
        else:
            if row[C.KIND] == C.IN_ARRAY:
                definition = int(row[C.DEFINITION])
            at, code = _next_item(w, buf, at, row, t, v, key_set)
            if at < 0:
                flaws |= C.BROKEN


@kernel
def _abandon(w, depth, t, v, s, key_set):
    """End the innermost container with a size after a broken item: (offset after it, depth, flaws)."""
    at, flaws = -1, C.BROKEN
    while depth > 0 and at < 0:
        depth -= 1
        row = s.stack[depth]
        _end(w, row, v, key_set)  # which fields follow the broken item is not known
        if row[C.KIND] != C.IN_DESCRIBED:
            at = int(row[C.END])
    return at, depth, flaws


@kernel
def _push(s, depth, kind, end, left, code, definition):
    row = s.stack[depth]
    row[C.KIND] = kind
    row[C.END] = end
    row[C.LEFT] = left
    row[C.STEP] = 0
    row[C.CODE] = code
    row[C.DEFINITION] = definition
    return depth + 1


@kernel
def _begin_top(w, buf, at, end, code, top, t, s):
    start, stop, count = -1, -1, 0
    s.fields[:] = -1
    if code > 0 and t.constructor[code].type == T.LIST:
        start, stop, count = compound(buf, at, end, code, t)
    if start < 0 or count > stop - start:
        return -1, 0, C.BROKEN
    W.begin_object_of(w, min(count, 16), 2 * (stop - start))
    return start, _push(s, EMPTY, C.IN_FRAME, stop, count, NONE, top), 0


@inlined
def _value(w, buf, at, end, code, definition, t, v, s, depth, key_set):
    """Write a value that is not a scalar, with constructor `code` and octets from `at` on: (offset of the next octet,
    new depth, flaws). The offset is -1 when nothing was written. `definition`: descriptor index of a composite, else
    -1."""
    if code == DESCRIBED:
        index, _, after = descriptor(buf, at, end, t)
        inner = u8(buf, after, end) if after >= 0 else -1
        if inner < 0:
            return -1, depth, C.BROKEN
        if index < 0 or not t.descriptor[index].composite or t.constructor[inner].type != T.LIST:
            if w.positions[OPEN_CONTAINERS] >= DEPTH:
                return _raw(w, buf, at, skip(buf, at - 1, end, t), depth, C.DEEP)
            W.begin_object(w)
            return at, _push(s, depth, C.IN_DESCRIBED, end, PAIR, NONE, NONE), 0
        at, code, definition = after + 1, inner, index
    if code < 0 or t.constructor[code].type < 0:
        return -1, depth, C.BROKEN
    return _container(w, buf, at, end, code, definition, t, v, s, depth, key_set)


@inlined
def _container(w, buf, at, end, code, definition, t, v, s, depth, key_set):
    kind = int(t.constructor[code].type)
    start, stop, count = compound(buf, at, end, code, t)
    if start < 0:
        return -1, depth, C.BROKEN
    if w.positions[OPEN_CONTAINERS] >= DEPTH:
        return _raw(w, buf, at, stop, depth, C.DEEP)
    if kind == T.ARRAY:
        return _array(w, buf, start, stop, count, t, v, s, depth, key_set)
    if w.positions[OPEN_ENTRIES] + count > ENTRIES:
        return _raw(w, buf, at, stop, depth, C.LARGE)
    if count > stop - start or (kind == T.MAP and count & 1):  # every item has a constructor, every key a value
        return -1, depth, C.BROKEN
    if kind == T.LIST and definition >= 0:
        C.begin_composite(w, t, v, definition, count, key_set)
        if start == stop:  # no fields: usually the outcome 'accepted'
            W.end_object(w)
            return stop, depth, C.missing_fields(w, definition, 0, t)
        return start, _push(s, depth, C.IN_COMPOSITE, stop, count, NONE, definition), 0
    if kind == T.MAP and is_text_map(buf, start, stop, count, t):
        W.begin_object(w)
        return start, _push(s, depth, C.IN_MAP, stop, count, NONE, NONE), 0
    W.begin_array(w)
    return start, _push(s, depth, C.IN_LIST if kind == T.LIST else C.IN_PAIRS, stop, count, NONE, NONE), 0


@kernel
def _raw(w, buf, at, stop, depth, flaw):
    """Write a container that is too deep or too large as BINARY."""
    if stop < 0:
        return -1, depth, C.BROKEN
    W.put_binary(w, buf, at, stop)
    return stop, depth, flaw


@kernel
def _array(w, buf, start, stop, count, t, v, s, depth, key_set):
    """Write an array of `count` elements, which share the constructor at `start` (part 1, section 1.2)."""
    code = u8(buf, start, stop)
    at, definition = start + 1, -1
    if count == 0:
        W.begin_array(w)
        return stop, _push(s, depth, C.IN_ARRAY, stop, EMPTY, NONE, NONE), 0
    if code == DESCRIBED:
        definition, _, after = descriptor(buf, at, stop, t)
        code = u8(buf, after, stop) if after >= 0 else -1
        if code >= 0 and (
            definition < 0 or not t.descriptor[definition].composite or t.constructor[code].type != T.LIST
        ):
            if w.positions[OPEN_CONTAINERS] >= DEPTH:
                return _raw(w, buf, start, stop, depth, C.DEEP)
            W.begin_object(w)
            return at, _push(s, depth, C.IN_DESCRIBED_ARRAY, stop, PAIR, count, NONE), 0
        at = after + 1
    if code < 0 or t.constructor[code].type < 0:
        return -1, depth, C.BROKEN
    least = int(t.constructor[code].width)
    if t.constructor[code].category == T.FIXED and least == 0:
        _put_count(w, t, v, int(t.constructor[code].type), definition, count, key_set)
        return stop, depth, 0 if at == stop else C.BROKEN
    if count > (stop - at) // least:
        return -1, depth, C.BROKEN
    if w.positions[OPEN_ENTRIES] + count > ENTRIES:
        return _raw(w, buf, start, stop, depth, C.LARGE)
    W.begin_array(w)
    return at, _push(s, depth, C.IN_ARRAY, stop, count, code, definition), 0


@kernel
def _put_count(w, t, v, kind, definition, count, key_set):
    """Write an array of `count` elements without octets."""
    W.begin_object(w)
    fixed_key(w, v, T.TYPE_KEY, key_set)
    if definition >= 0:
        C.put_name(w, t, definition)
    else:
        put_type(w, t, v, kind)
    fixed_key(w, v, T.COUNT_KEY, key_set)
    W.put_int(w, count)
    W.end_object(w)


@kernel
def _next_item(w, buf, at, row, t, v, key_set):
    """Announce the next item of a container that is not a composite: (offset after its constructor, its constructor or
    NOTHING or ELEMENTS). The offset is -1 when the item is broken and was not announced."""
    kind, end, step = int(row[C.KIND]), int(row[C.END]), int(row[C.STEP])
    row[C.STEP] = step + 1
    if kind == C.IN_ARRAY:
        W.element(w)
        return at, int(row[C.CODE])
    if kind == C.IN_LIST:
        W.element(w)
    elif kind == C.IN_MAP:
        row[C.LEFT] -= 1
        start, stop = text_span(buf, at, end, t)
        if start < 0:
            return -1, NOTHING
        W.load_known(w, v.keys, key_set)
        W.text_key(w, buf, start, stop)
        at = stop
    elif kind == C.IN_PAIRS:
        if step & 1 == 0:
            if step > 0:
                W.end_object(w)
            W.element(w)
            W.begin_object(w)
        fixed_key(w, v, T.MAP_KEY if step & 1 == 0 else T.VALUE_KEY, key_set)
    else:
        fixed_key(w, v, T.DESCRIPTOR_KEY if step == 0 else T.VALUE_KEY, key_set)
        if kind == C.IN_DESCRIBED_ARRAY and step == 1:
            return at, ELEMENTS
    return at + 1, u8(buf, at, end)


@kernel
def _end(w, row, v, key_set):
    """End the container of a stack row."""
    kind = int(row[C.KIND])
    if kind == C.IN_FRAME:
        W.end_known_object(w, v.keys, key_set)
    elif kind in (C.IN_LIST, C.IN_ARRAY):
        W.end_array(w)
    elif kind == C.IN_PAIRS:
        if row[C.STEP] > 0:
            W.end_object(w)
        W.end_array(w)
    else:
        W.end_object(w)


@kernel
def _close(w, row, t, v, key_set):
    """End the container of a stack row, all of whose items were read: its flaws."""
    _end(w, row, v, key_set)
    if row[C.KIND] == C.IN_FRAME or row[C.KIND] == C.IN_COMPOSITE:
        return C.missing_fields(w, int(row[C.DEFINITION]), int(row[C.STEP]), t)
    return 0
