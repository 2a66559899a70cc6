"""Arguments and properties of 1.0 frames, from the octets that `codec.amqp.v1_0.frames` stored.

The octets are: one octet with the section of the message's body (NO_BODY: unknown or none); the performative; and in
the frame that completes a delivery, the sections of its message without those of the body, unless the body is for a
transaction coordinator, or a small one of a management request or its reply (`codec.amqp.v1_0.management`). The
properties are one object: the sections by name, "body_kind", "body" for a transaction coordinator, and "body_value" of
management. In a batch of Azure the octets have its data sections, too (`codec.amqp.v1_0.azure_batches`); its properties
are those of the batch.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.amqp.notes import VALUES_BROKEN
from codec.amqp.rows import BATCH, DIGEST, ERROR, HANDSHAKE, NOTES, STATUS
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.composites import BROKEN, DEEP, LARGE, MISFIT
from codec.amqp.v1_0.constructors import descriptor, entries_fit, is_operation, section_head
from codec.amqp.v1_0.detect import fields_in_place
from codec.amqp.v1_0.scalars import EVERY_FIELD
from codec.amqp.v1_0.values import decode_value
from codec.amqp.versions import E_DEPTH, E_FIELDS, E_SECTIONS, E_VALUE_SIZE, MALFORMED, PARTIAL
from codec.compiler.kernel import kernel
from codec.cursor import octet

NO_BODY = 0xFF
MISFIT_OF_FIELDS, MISFIT_OF_SECTIONS = np.array([E_FIELDS, E_SECTIONS])  # see `codec.amqp.v1_0.tables.FIXED_KEYS`
START, SECTIONS = np.array([0, 4])  # first key of a performative; the usual number of sections


@kernel
def decode_frame(octets, start, end, row, definition, t, v, s, arguments, properties):
    """Write the values of a frame from `octets[start:end]`: OK, or FULL with nothing written.

    `definition`: descriptor index of the performative. Status and error of `row` tell whether the values fit it. If
    they do not, a performative that may hold a secret, and any performative before the client is authenticated, has
    only fields that cannot be part of a secret.
    """
    if start >= end:
        return W.OK
    _, _, at = descriptor(octets, start + 2, end, t)
    s.field_count[0] = EVERY_FIELD
    if row[HANDSHAKE] or t.descriptor[definition].secret >= 0:
        visible, fields_stop = fields_in_place(octets, at, end, definition, t)
        if fields_stop < 0:
            s.field_count[0] = visible
    W.begin(arguments)
    at, flaws = decode_value(arguments, octets, at, end, t, v, s, definition, definition, START)
    code = W.finish_known(arguments, v.keys, definition)
    if code == W.FULL:
        W.rollback(arguments)
        return W.FULL
    if code != W.OK:
        W.rollback(arguments)
        flaws |= LARGE
    note_flaws(row, flaws, MISFIT_OF_FIELDS)
    if flaws & BROKEN and row[STATUS] != PARTIAL:
        row[NOTES] |= VALUES_BROKEN
    body = octet(octets, start)
    if at < 0 or (at >= end and body == NO_BODY):
        return W.OK
    code, flaws = decode_message(
        properties, octets, at, end, t, v, s, -1 if body == NO_BODY else body, row[DIGEST] >= BATCH
    )
    if code == W.FULL:
        W.rollback(properties)
        W.rollback(arguments)
        return W.FULL
    if code != W.OK:
        W.rollback(properties)
        flaws |= LARGE
    note_flaws(row, flaws, MISFIT_OF_SECTIONS)
    return W.OK


@kernel
def note_flaws(row, flaws, misfit):
    """Set status and error of a row whose values have flaws."""
    if flaws and row[STATUS] != PARTIAL:
        row[STATUS] = MALFORMED
        if row[ERROR] == 0:
            row[ERROR] = misfit if flaws & (BROKEN | MISFIT) else (E_DEPTH if flaws & DEEP else E_VALUE_SIZE)


@kernel
def decode_message(w, buf, at, end, t, v, s, body, batched):
    """Write the sections in `buf[at:end]`: (code of the writer, flaws). `body`: section of the body, -1 none;
    `batched`: data sections are left out."""
    flaws, seen, key_set = 0, 0, int(v.message_set)
    W.begin(w)
    W.begin_object_of(w, SECTIONS, 2 * (end - at))
    while at < end:
        section, value, start, size = section_head(buf, at, end, t)
        if batched and section == T.DATA and size <= end - start:
            at = start + size
            continue
        if section < 0 or size > end - start or seen >> section & 1 or section == T.DATA or section == T.SEQUENCE:
            flaws |= BROKEN
            break
        at = start + size
        if seen >> section:
            flaws |= MISFIT  # a later section came before it
        seen |= 1 << section
        definition, first = int(v.section[section, 2]), int(v.section[section, 1])
        if section == T.VALUE:
            W.known_key(w, int(v.body_key if is_operation(buf, value, at, t) else v.body_value_key))
        else:
            W.known_key(w, int(v.section[section, 0]))
            is_map = definition >= 0 or t.constructor[octet(buf, value)].type == T.MAP
            if not is_map or (definition < 0 and not entries_fit(buf, value, at, section, t)):
                flaws |= MISFIT
        after, flaw = decode_value(w, buf, value, at, t, v, s, key_set, definition, first)
        flaws |= flaw
        if after != at:
            flaws |= BROKEN
    if body >= 0:
        W.known_key(w, int(v.body_kind_key))
        kind = len(T.TYPES) + body - T.DATA
        W.put_string(w, t.text, int(v.span[kind, 0]), int(v.span[kind, 1]))
    W.end_known_object(w, v.keys, key_set)
    return W.finish_known(w, v.keys, key_set), flaws
