"""Contents in the classic family: a method, its header, its bodies, one at a time per channel and direction.

(0-9-1 specification, section 4.2.6: frames of one content are consecutive on their channel; frames of other channels
may come in between.) `Contents` has one slot per direction and channel number. A slot is valid while its epoch equals
that of its direction. A new connection, or a lost frame boundary, starts a new epoch, so no content continues across a
loss. Cost: constant per frame, besides SHA-256 of the bodies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.tables import WITHOUT_CONTENT
from codec.amqp.versions import E_BODY_LONG, E_UNEXPECTED_BODY, E_UNEXPECTED_HEADER, MALFORMED
from codec.compiler.kernel import inlined, kernel
from codec.hashes.digest import Digests, begin, finish, new_digests, update
from codec.memory import as_records, sparse_zeros

CHANNELS = 65536
NOTHING, ANNOUNCED, OPEN, UNSIZED, COMPLETE = range(5)


CONTENT = np.dtype(
    [
        ("epoch", "i8"),
        ("state", "i8"),
        ("frame_no", "i8"),  # of the method
        ("class_id", "i8"),  # of the method
        ("expected", "i8"),  # body bytes declared
        ("position", "i8"),  # body bytes reached, missing ones included
        ("whole", "i8"),  # 1 while no byte of the body is missing
    ],
    align=True,
)


class Contents(NamedTuple):
    """`slots`: CONTENT records (2 * 65536,); `epochs` int64 (2,): the current epoch of each direction; `digests`: a
    running SHA-256 for each slot."""

    slots: np.ndarray
    epochs: np.ndarray
    digests: Digests


def new_contents() -> Contents:
    """Slots for every channel of both directions; pages of unused channels are never touched."""
    n = 2 * CHANNELS
    return Contents(as_records(sparse_zeros(n, CONTENT)), np.ones(2, np.int64), new_digests(n))


@kernel
def reset_contents(contents, direction):
    """A frame boundary was lost, or a connection begins: no open content of `direction` may continue."""
    contents.epochs[direction] += 1


@inlined
def _slot(contents, direction, channel):
    slot = direction * CHANNELS + channel
    content = contents.slots[slot]
    if content.epoch != contents.epochs[direction]:
        content.epoch = contents.epochs[direction]
        content.state = NOTHING
    return slot


@inlined
def on_method(contents, direction, channel, carries_content, row):
    """A method frame: it announces a content, or ends the open content of its channel. `carries_content`: 0, 1 or
    WITHOUT_CONTENT."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state == ANNOUNCED:
        row[R.NOTES] |= N.HEADER_MISSING
    elif state == OPEN:
        row[R.NOTES] |= N.BODY_SHORT
    if carries_content:
        contents.slots[slot].state = NOTHING if carries_content == WITHOUT_CONTENT else ANNOUNCED
        contents.slots[slot].frame_no = row[R.FRAME_NO]
        contents.slots[slot].class_id = row[R.CLASS]
        row[R.CONTENT] = row[R.FRAME_NO]
    else:
        contents.slots[slot].state = NOTHING


@inlined
def _complete(contents, slot, row, digest):
    contents.slots[slot].state = COMPLETE
    if contents.slots[slot].whole:
        finish(contents.digests, slot, digest)
        row[R.DIGEST] = 1


@inlined
def on_header(contents, direction, channel, body_size, row, digest):
    """A content header frame. `body_size` -1: unknown (the frame lost those bytes)."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state != ANNOUNCED:
        row[R.NOTES] |= N.BODY_SHORT if state == OPEN else (N.CONTENT_ALONE if state != UNSIZED else 0)
        contents.slots[slot].state = NOTHING
        if row[R.ERROR] == 0:
            row[R.ERROR] = E_UNEXPECTED_HEADER
        return
    row[R.CONTENT] = contents.slots[slot].frame_no
    if row[R.CLASS] >= 0 and row[R.CLASS] != contents.slots[slot].class_id:
        row[R.NOTES] |= N.CLASS_DIFFERS
    contents.slots[slot].position = 0
    if body_size < 0:
        contents.slots[slot].state = UNSIZED
        contents.slots[slot].whole = 0
        return
    contents.slots[slot].state = OPEN
    contents.slots[slot].expected = body_size
    contents.slots[slot].whole = 1
    begin(contents.digests, slot)
    if body_size == 0:
        _complete(contents, slot, row, digest)


@inlined
def on_body(contents, direction, channel, data, start, size, row, digest):
    """A whole body frame with payload `data[start:start+size]`."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state == UNSIZED:
        row[R.CONTENT] = contents.slots[slot].frame_no
        return
    if state != OPEN:
        row[R.ERROR] = E_UNEXPECTED_BODY
        if state == ANNOUNCED:
            row[R.NOTES] |= N.HEADER_MISSING
        elif state == COMPLETE:
            row[R.NOTES] |= N.BODY_LONG if contents.slots[slot].expected else N.BODY_OF_NOTHING
        else:
            row[R.NOTES] |= N.CONTENT_ALONE
        return
    row[R.CONTENT] = contents.slots[slot].frame_no
    contents.slots[slot].position += size
    if contents.slots[slot].whole:
        update(contents.digests, slot, data, start, size)
    if contents.slots[slot].position > contents.slots[slot].expected:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_BODY_LONG
        row[R.NOTES] |= N.BODY_LONG
        contents.slots[slot].state = COMPLETE
    elif contents.slots[slot].position == contents.slots[slot].expected:
        _complete(contents, slot, row, digest)


@kernel
def on_partial_body(contents, direction, channel, size, row):
    """A body frame of declared payload `size` that lost bytes: the content continues, but has no digest."""
    slot = _slot(contents, direction, channel)
    if contents.slots[slot].state == UNSIZED:
        row[R.CONTENT] = contents.slots[slot].frame_no
    elif contents.slots[slot].state == OPEN:
        row[R.CONTENT] = contents.slots[slot].frame_no
        contents.slots[slot].whole = 0
        contents.slots[slot].position += size
        if contents.slots[slot].position >= contents.slots[slot].expected:
            contents.slots[slot].state = NOTHING
