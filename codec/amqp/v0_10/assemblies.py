"""Assemblies of AMQP 0-10: joins frames to segments, numbers commands, tracks contents.

A command is an assembly of assembly segments (command, header, body); a segment is one or more frames. Assemblies of
different channels interleave, and controls have a track of their own (0-10 specification, sections 9.1 and 9.2). A slot
is valid while its epoch equals that of its direction in `Contents`. A new connection, or a lost frame boundary, starts
a new epoch, so nothing is joined across a loss.

The frames of a segment of several frames wait in blocks of one pool, which bounds their total size. Segments of one
frame need no pool. Cost: linear in the octets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.contents import CHANNELS
from codec.amqp.versions import E_NO_COMMAND
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.digest import begin, finish, update
from codec.memory import as_records, sparse_zeros
from codec.variant.writer import copy_bytes

BLOCK = 4096
BLOCKS = max(1, LIMITS.segment_bytes // BLOCK)
NOTHING, GROWING, BROKEN, TOO_LARGE = range(4)  # BROKEN: bytes were lost; TOO_LARGE: the pool has no room

SEGMENT = np.dtype(
    [
        *((name, "i8") for name in ("epoch", "state", "kind", "class_code", "code", "entry", "command_id")),
        ("length", "i8"),  # bytes so far, in a chain of blocks
        ("head", "i8"),
        ("tail", "i8"),
    ],
    align=True,
)
SESSION = np.dtype(
    [
        ("epoch", "i8"),
        ("next_id", "i8"),  # of the next command; -1 unknown
        ("open", "i8"),  # an assembly is incomplete
        ("frame_no", "i8"),  # of its first row
        ("whole", "i8"),  # no byte of its body is missing so far
    ],
    align=True,
)
USED, FREE, PARTIAL_FLAGS = 0, 1, 2  # cells of `Assemblies.numbers`


class Assemblies(NamedTuple):
    """`segments`: SEGMENT records by direction, channel, track; `sessions`: SESSION records by direction, channel.
    `pool` uint8 in blocks; `blocks` int64 (BLOCKS, 2): next block of the chain, slot of the segment. `numbers` int64
    (4,): blocks used so far, first free one of these, and per direction the flags of the frame that lost bytes."""

    segments: np.ndarray
    sessions: np.ndarray
    pool: np.ndarray
    blocks: np.ndarray
    numbers: np.ndarray


def new_assemblies() -> Assemblies:
    """Slots for every channel of both directions; unused pages are never touched."""
    return Assemblies(
        as_records(sparse_zeros(4 * CHANNELS, SEGMENT)),
        as_records(sparse_zeros(2 * CHANNELS, SESSION)),
        sparse_zeros(BLOCKS * BLOCK, np.uint8),
        sparse_zeros((BLOCKS, 2), np.int64),
        np.array([0, -1, 0, 0], np.int64),
    )


@kernel
def release(a, slot):
    """End the segment and free its blocks."""
    segment = a.segments[slot]
    if segment.state == GROWING and segment.length > 0:
        a.blocks[segment.tail, 0] = a.numbers[FREE]
        a.numbers[FREE] = segment.head
        block = int(segment.head)
        while True:
            a.blocks[block, 1] = -1
            if block == segment.tail:
                break
            block = int(a.blocks[block, 0])
    segment.state = NOTHING
    segment.length = 0


@kernel
def segment_slot(a, epochs, direction, channel, track):
    """The slot of the open segment on a track of a channel."""
    slot = (direction * CHANNELS + channel) * 2 + track
    segment = a.segments[slot]
    if segment.epoch != epochs[direction]:
        release(a, slot)
        segment.epoch = epochs[direction]
    return slot


@kernel
def session_slot(a, epochs, direction, channel):
    """The slot of a channel."""
    slot = direction * CHANNELS + channel
    session = a.sessions[slot]
    if session.epoch != epochs[direction]:
        session.epoch = epochs[direction]
        session.next_id = -1
        session.open = 0
    return slot


@kernel
def _sweep(a, epochs):
    """Free the blocks of segments of past epochs."""
    for block in range(int(a.numbers[USED])):
        slot = int(a.blocks[block, 1])
        if slot >= 0 and a.segments[slot].epoch != epochs[slot // (2 * CHANNELS)]:
            a.segments[slot].state = NOTHING
            a.blocks[block, 1] = -1
            a.blocks[block, 0] = a.numbers[FREE]
            a.numbers[FREE] = block


@kernel
def _new_block(a, epochs):
    """A free block, or -1."""
    if a.numbers[USED] < BLOCKS:
        a.numbers[USED] += 1
        return int(a.numbers[USED]) - 1
    if a.numbers[FREE] < 0:
        _sweep(a, epochs)
    block = int(a.numbers[FREE])
    if block >= 0:
        a.numbers[FREE] = a.blocks[block, 0]
    return block


@kernel
def append(a, epochs, slot, buf, start, end):
    """Append `buf[start:end]` to the segment, which becomes TOO_LARGE when the pool has no room."""
    segment = a.segments[slot]
    while start < end and segment.state == GROWING:
        used = int(segment.length) % BLOCK
        if used == 0:
            block = _new_block(a, epochs)
            if block < 0:
                release(a, slot)
                segment.state = TOO_LARGE
                return
            a.blocks[block, 1] = slot
            if segment.length == 0:
                segment.head = block
            else:
                a.blocks[segment.tail, 0] = block
            segment.tail = block
        size = min(BLOCK - used, end - start)
        copy_bytes(a.pool, int(segment.tail) * BLOCK + used, buf, start, start + size)
        segment.length += size
        start += size


@kernel
def gather(a, slot, heap, at):
    """Copy the octets of the segment so far to `heap[at:]`: the offset after them."""
    segment = a.segments[slot]
    block, left = int(segment.head), int(segment.length)
    while left > 0:
        size = min(BLOCK, left)
        copy_bytes(heap, at, a.pool, block * BLOCK, block * BLOCK + size)
        at += size
        left -= size
        block = int(a.blocks[block, 0])
    return at


@kernel
def begin_command(a, digests, slot, row, opens):
    """Number a command, and open its assembly when segments may follow. Returns its implicit id, -1 unknown."""
    session = a.sessions[slot]
    command_id = int(session.next_id)
    if command_id >= 0:
        session.next_id = (command_id + 1) & 0xFFFFFFFF
    session.open = opens
    if opens:
        session.frame_no = row[R.FRAME_NO]
        session.whole = 1
        begin(digests, slot)
    return command_id


@kernel
def on_assembly_frame(a, digests, slot, row, digest, ends):
    """Set content and digest in the row of a frame of an assembly. `ends`: its last frame."""
    session = a.sessions[slot]
    if not session.open:
        return
    row[R.CONTENT] = session.frame_no
    if ends:
        session.open = 0
        if session.whole:
            finish(digests, slot, digest)
            row[R.DIGEST] = 1


@kernel
def body_bytes(a, digests, slot, buf, start, end, row):
    """Add bytes to the body of an assembly."""
    session = a.sessions[slot]
    if not session.open:
        if row[R.ERROR] == 0:
            row[R.ERROR] = E_NO_COMMAND
    elif session.whole:
        update(digests, slot, buf, start, end - start)
