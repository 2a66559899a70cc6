"""Deliveries of AMQP 1.0: transfers on one link make a message (part 2, section 2.6.14).

Most deliveries are one transfer; they are decoded where they stand. The others interleave across links and sessions: each
has a slot by direction, channel and handle, and is taken apart while it arrives: the sections around the body are kept in
blocks, the body goes into a digest and is not kept. Slots are valid in their direction's epoch: a new connection, or a
lost frame boundary, starts another, so that nothing is joined across a loss.

What is kept is bounded: when the blocks of a direction are used up, a delivery goes on without properties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp import tables_1_0 as T
from codec.amqp.composites_1_0 import BROKEN, LIMITED
from codec.amqp.constructors_1_0 import DESCRIBED, descriptor
from codec.amqp.message_1_0 import MORE, decode_message, digest_body, section_head
from codec.amqp.scalars_1_0 import Scratch, new_scratch
from codec.amqp.versions import E_PROPERTIES, E_VALUE_SIZE, MALFORMED
from codec.digest import Digests, begin, finish, new_digests, update
from codec.kernel import kernel
from codec.limits import LIMITS
from codec.variant import FULL, OK, rollback

SLOTS = LIMITS.open_contents // 2  # per direction
PROBES = 32  # places where a delivery may be; more that collide are not assembled
BLOCK = 512
BLOCKS = LIMITS.frame_bytes // 2 // BLOCK  # per direction
HEAD = 64  # octets before the contents of a section: descriptor, constructor, size; 20 are usual
KEEP, HASH, KEEP_AND_HASH = 1, 2, 3  # what to do with the octets of a section
LOST, NO_SECTION = 1, 2  # why the rest of a delivery cannot be read

DELIVERY = np.dtype(
    [
        ("key", "i8"),  # channel << 32 | handle
        ("epoch", "i8"),
        ("frame_no", "i8"),  # of its first transfer
        ("delivery_id", "i8"),  # -1 not known
        ("taken", "i8"),  # stream offset of the last frame that was taken in
        ("whole", "i8"),  # 1 while every octet of the body was seen
        ("torn", "i8"),  # 0, LOST or NO_SECTION
        ("limited", "i8"),  # 1: sections were not kept
        ("body", "i8"),  # section of the body, -1 not yet
        ("body_size", "i8"),
        ("what", "i8"),  # KEEP ... for the `left` octets that the section at hand still has
        ("left", "i8"),
        ("first_block", "i8"),  # -1 none
        ("last_block", "i8"),
        ("kept", "i8"),  # octets in its blocks
        ("head_size", "i8"),  # octets of the beginning of a section, as far as it came
    ],
    align=True,
)


class Deliveries(NamedTuple):
    """`slots` DELIVERY (2, SLOTS), `heads` uint8 (2, SLOTS, HEAD); `blocks` uint8 (2, BLOCKS, BLOCK) and `next_block` int64 (2, BLOCKS);
    `pool` int64 (2, 4): epoch, deliveries open, blocks ever used, first free block + 1; `gathered` uint8: sections of one
    delivery in a row; `digests`: one state per slot, and one more; `scratch` of the interpreter."""

    slots: np.ndarray
    heads: np.ndarray
    blocks: np.ndarray
    next_block: np.ndarray
    pool: np.ndarray
    gathered: np.ndarray
    digests: Digests
    scratch: Scratch


EPOCH, OPEN, USED, FREE = range(4)
IN_PLACE = 2 * SLOTS  # the digest of a delivery that is one transfer


def new_deliveries() -> Deliveries:
    """Room for the deliveries of a connection; memory is touched only where it is used."""
    pool = np.zeros((2, 4), np.int64)
    pool[:, EPOCH] = 1
    return Deliveries(
        np.zeros((2, SLOTS), DELIVERY).view(np.recarray),
        np.zeros((2, SLOTS, HEAD), np.uint8),
        np.zeros((2, BLOCKS, BLOCK), np.uint8),
        np.zeros((2, BLOCKS), np.int64),
        pool,
        np.zeros(BLOCKS * BLOCK, np.uint8),
        new_digests(2 * SLOTS + 1),
        new_scratch(),
    )


@kernel
def forget_deliveries(dl, direction):
    """A frame boundary was lost (or a connection begins): no open delivery of `direction` may go on."""
    pool = dl.pool[direction]
    pool[EPOCH] += 1
    pool[OPEN] = 0
    pool[USED] = 0
    pool[FREE] = 0


@kernel
def _home(key):
    return ((((key >> 32) * 31 + key) & 0xFFFFFFFF) * 0x61C88647 >> 16) % SLOTS


@kernel
def _find(dl, direction, key):
    """Slot of the open delivery with `key`, or -1."""
    if dl.pool[direction, OPEN] == 0:
        return -1
    home = _home(key)
    for i in range(PROBES):
        slot = (home + i) % SLOTS
        r = dl.slots[direction, slot]
        if r.key == key and r.epoch == dl.pool[direction, EPOCH]:
            return slot
    return -1


@kernel
def _claim(dl, direction, key, frame_no, delivery_id):
    """A slot for a new delivery, or -1 when there is no place."""
    home = _home(key)
    for i in range(PROBES):
        slot = (home + i) % SLOTS
        r = dl.slots[direction, slot]
        if r.epoch != dl.pool[direction, EPOCH]:
            r.key = key
            r.epoch = dl.pool[direction, EPOCH]
            r.frame_no = frame_no
            r.delivery_id = delivery_id
            r.taken = -1
            r.whole = 1
            r.torn = 0
            r.limited = 0
            r.body = -1
            r.body_size = 0
            r.left = 0
            r.first_block = -1
            r.kept = 0
            r.head_size = 0
            begin(dl.digests, direction * SLOTS + slot)
            dl.pool[direction, OPEN] += 1
            return slot
    return -1


@kernel
def _drop(dl, direction, slot):
    """The delivery is over: its blocks are free."""
    r = dl.slots[direction, slot]
    r.epoch = 0
    pool = dl.pool[direction]
    pool[OPEN] -= 1
    if r.first_block >= 0:
        dl.next_block[direction, r.last_block] = pool[FREE] - 1
        pool[FREE] = r.first_block + 1


@kernel
def _keep(dl, direction, r, buf, start, size):
    """Append octets to the blocks of a delivery; False when there are no more blocks."""
    pool = dl.pool[direction]
    at, end = start, start + size
    while at < end:
        within = int(r.kept) % BLOCK
        if within == 0:
            if pool[FREE] > 0:
                fresh = int(pool[FREE]) - 1
                pool[FREE] = dl.next_block[direction, fresh] + 1
            elif pool[USED] < BLOCKS:
                fresh = int(pool[USED])
                pool[USED] += 1
            else:
                return False
            dl.next_block[direction, fresh] = -1
            if r.first_block < 0:
                r.first_block = fresh
            else:
                dl.next_block[direction, r.last_block] = fresh
            r.last_block = fresh
        n = min(BLOCK - within, end - at)
        dl.blocks[direction, r.last_block, within : within + n] = buf[at : at + n]
        r.kept += n
        at += n
    return True


@kernel
def _gather(dl, direction, r):
    """Put what was kept of a delivery in a row: how many octets."""
    block, at, kept = int(r.first_block), 0, int(r.kept)
    while at < kept:
        n = min(BLOCK, kept - at)
        dl.gathered[at : at + n] = dl.blocks[direction, block, :n]
        block = int(dl.next_block[direction, block])
        at += n
    return kept


@kernel
def _take_octets(dl, direction, slot, r, buf, start, size):
    """Octets of the section at hand."""
    if r.what & HASH and r.whole:
        update(dl.digests, direction * SLOTS + slot, buf, start, size)
        r.body_size += size
    if r.what & KEEP and not r.limited and not _keep(dl, direction, r, buf, start, size):
        r.limited = 1


@kernel
def _take_head(dl, direction, slot, r, section, value, start, size, t):
    """The head of a section is complete in `r.head`: what to do with it and with the `size` octets that follow."""
    n = int(r.head_size)
    head = dl.heads[direction, slot]
    r.left = size - (n - start)
    r.head_size = 0
    r.what = KEEP
    if section == T.DATA:
        r.what = HASH
        value = start
    elif section == T.SEQUENCE or section == T.VALUE:
        r.what = HASH
        if section == T.VALUE and head[value] == DESCRIBED:
            of, _, _ = descriptor(head, value + 1, n, t)
            if of >= 0 and t.descriptor[of].transactional:
                r.what = KEEP_AND_HASH
    if r.what & HASH:
        r.body = section
        if r.whole:
            update(dl.digests, direction * SLOTS + slot, head, value, n - value)
            r.body_size += n - value
    if r.what & KEEP and not r.limited and not _keep(dl, direction, r, head, 0, n):
        r.limited = 1


@kernel
def _take(dl, direction, slot, buf, start, stop, t):
    """The payload of one more transfer of a delivery."""
    r = dl.slots[direction, slot]
    head = dl.heads[direction, slot]
    at = start
    while at < stop and not r.torn:
        if r.left > 0:
            n = min(int(r.left), stop - at)
            _take_octets(dl, direction, slot, r, buf, at, n)
            r.left -= n
            at += n
            continue
        head[r.head_size] = buf[at]
        r.head_size += 1
        at += 1
        section, value, inside, size = section_head(head, 0, int(r.head_size), t)
        if section >= 0:
            _take_head(dl, direction, slot, r, section, value, inside, size, t)
        elif section != MORE or r.head_size == HEAD:
            r.whole = 0
            r.torn = NO_SECTION


@kernel
def link_changed(dl, direction, channel, handle):
    """The link of a handle was attached or detached: what it was delivering is over."""
    slot = _find(dl, direction, (channel << 32) | handle)
    if slot >= 0:
        _drop(dl, direction, slot)


@kernel
def transfer_seen(dl, c, direction, certain, row, index, sink, t, buf, start, stop, handle, delivery_id, more, resume, aborted):
    """A transfer with payload `buf[start:stop]`, its `row` begun; False when the writer needs more room: again then.

    `certain`: nothing was lost in this direction, so a delivery without beginning is none.
    """
    key = (int(row[R.CHANNEL]) << 32) | handle
    slot = _find(dl, direction, key)
    if slot >= 0 and delivery_id >= 0 and dl.slots[direction, slot].delivery_id >= 0:
        if dl.slots[direction, slot].delivery_id != delivery_id:
            _drop(dl, direction, slot)
            slot = -1
    if slot < 0:
        if not certain and not _begins(buf, start, stop, delivery_id, t):
            return True
        row[R.CONTENT] = row[R.FRAME_NO]
        if aborted:
            return True
        if not more:
            return _complete_in_place(dl, c, row, index, sink, t, buf, start, stop, resume)
        slot = _claim(dl, direction, key, int(row[R.FRAME_NO]), delivery_id)
        if slot < 0:
            c.value_limit = 1
            return True
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    if aborted:
        _drop(dl, direction, slot)
        return True
    if r.taken != row[R.OFFSET]:
        r.taken = row[R.OFFSET]
        if resume:
            r.whole = 0
        _take(dl, direction, slot, buf, start, stop, t)
    if r.torn == NO_SECTION:
        _flaw(c, row, BROKEN)
    return more or _complete(dl, c, direction, slot, row, index, sink, t)


@kernel
def _begins(buf, start, stop, delivery_id, t):
    """Whether a transfer looks like the first of its delivery."""
    return delivery_id >= 0 and (start == stop or section_head(buf, start, stop, t)[0] >= 0)


@kernel
def _flaw(c, row, flaws):
    if flaws & LIMITED:
        c.value_limit = 1
    if flaws and row[R.ERROR] == 0:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_VALUE_SIZE if flaws == LIMITED else E_PROPERTIES


@kernel
def _properties(c, row, sink, t, s, buf, start, stop, body):
    """The sections of a message as the properties of a row: (False when the writer needs more room, flaws)."""
    if start == stop and body < 0:
        return True, 0
    code, flaws = decode_message(sink.properties, buf, start, stop, t, s, body)
    if code == FULL:
        rollback(sink.properties)
        return False, flaws
    if code != OK:
        rollback(sink.properties)
        flaws |= LIMITED
    return True, flaws


@kernel
def _complete_in_place(dl, c, row, index, sink, t, buf, start, stop, resume):
    """A delivery of one transfer."""
    fits, flaws = _properties(c, row, sink, t, dl.scratch, buf, start, stop, -1)
    if not fits:
        return False
    _flaw(c, row, flaws)
    if flaws & BROKEN or resume:
        return True
    begin(dl.digests, IN_PLACE)
    size, body = digest_body(buf, start, stop, t, dl.digests, IN_PLACE)
    if body >= 0:
        finish(dl.digests, IN_PLACE, sink.rows.digest[index])
        row[R.DIGEST] = 1
        row[R.BODY_SIZE] = size
    return True


@kernel
def _complete(dl, c, direction, slot, row, index, sink, t):
    """The last transfer of a delivery of several was taken in."""
    r = dl.slots[direction, slot]
    if r.limited:
        c.value_limit = 1
    else:
        kept = _gather(dl, direction, r)
        fits, flaws = _properties(c, row, sink, t, dl.scratch, dl.gathered, 0, kept, int(r.body))
        if not fits:
            return False
        if not r.torn:
            _flaw(c, row, flaws)
    whole = r.whole and r.left == 0 and r.head_size == 0
    if not whole and not r.torn:
        _flaw(c, row, BROKEN)
    if whole and r.body >= 0:
        finish(dl.digests, direction * SLOTS + slot, sink.rows.digest[index])
        row[R.DIGEST] = 1
        row[R.BODY_SIZE] = r.body_size
    _drop(dl, direction, slot)
    return True


@kernel
def transfer_torn(dl, direction, handle, more, row):
    """A transfer that lost bytes. `more`: 0, 1, or -1 not known."""
    slot = _find(dl, direction, (int(row[R.CHANNEL]) << 32) | handle)
    if slot < 0:
        row[R.CONTENT] = row[R.FRAME_NO]
        return
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    r.whole = 0
    r.torn = LOST
    if more == 0:
        _drop(dl, direction, slot)
