"""Deliveries of AMQP 1.0: transfers on one link make a message (part 2, section 2.6.14; part 3, section 3.2).

Most deliveries are one transfer; they are taken apart where they stand. The others interleave across links and
sessions: each has a slot by direction, channel and handle, and is taken apart while it arrives. Either way the
sections around the body are kept for the row that completes the delivery, and the contents of the body go into its
digest: the octets of all data sections, or the encoded values of all sequence sections, or the encoded value, without
the descriptor (the encoding of the sections may change from hop to hop where the contents do not).

Slots are valid in their direction's epoch: a new connection, or a lost frame boundary, starts another, so that nothing
is joined across a loss. What is kept is bounded: when the blocks of a direction are used up, a delivery goes on
without properties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp import tables_1_0 as T
from codec.amqp.sections_1_0 import MORE, is_operation, section_head
from codec.amqp.versions import E_SECTIONS, MALFORMED
from codec.digest import Digests, begin, finish, new_digests, update
from codec.kernel import kernel
from codec.limits import LIMITS
from codec.variant.writer import copy_bytes

SLOTS = LIMITS.open_contents // 2  # per direction
PROBES = 32  # places where a delivery may be; more that collide are not assembled
BLOCK = 512
BLOCKS = LIMITS.frame_bytes // 2 // BLOCK  # per direction
HEAD = 64  # octets before the contents of a section: descriptor, constructor, size; 20 are usual
KEEP, HASH, KEEP_AND_HASH = 1, 2, 3  # what to do with the octets of a section
LOST, NO_SECTION = 1, 2  # why the rest of a delivery cannot be read
# Flags of a transfer. UNCERTAIN: bytes may have been lost before, so that it need not be the first of its delivery.
MORE_FOLLOWS, RESUMED, ABORTED, UNCERTAIN = 1, 2, 4, 8

DELIVERY = np.dtype(
    [
        ("key", "i8"),  # channel << 32 | handle
        ("epoch", "i8"),
        ("frame_no", "i8"),  # of its first transfer
        ("delivery_id", "i8"),  # -1 not known
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
    """`slots` DELIVERY (2, SLOTS); `heads` uint8, HEAD for each of them; `blocks` uint8, BLOCK for each of 2 * BLOCKS;
    `next_block` int64 (2 * BLOCKS,); `pool` int64 (2, 4): epoch, deliveries open, blocks ever used, first free block +
    1; `digests`: one state per slot, and one more; `fields` int64 (16,) where the fields of the performative at hand
    stand."""

    slots: np.ndarray
    heads: np.ndarray
    blocks: np.ndarray
    next_block: np.ndarray
    pool: np.ndarray
    digests: Digests
    fields: np.ndarray


EPOCH, OPEN, USED, FREE = range(4)
IN_PLACE = np.int64(2 * SLOTS)  # the digest of a delivery that is one transfer


def new_deliveries() -> Deliveries:
    """Room for the deliveries of a connection; memory is touched only where it is used."""
    pool = np.zeros((2, 4), np.int64)
    pool[:, EPOCH] = 1
    return Deliveries(
        np.zeros((2, SLOTS), DELIVERY).view(np.recarray),
        np.zeros(2 * SLOTS * HEAD, np.uint8),
        np.zeros(2 * BLOCKS * BLOCK, np.uint8),
        np.zeros(2 * BLOCKS, np.int64),
        pool,
        new_digests(2 * SLOTS + 1),
        np.zeros(16, np.int64),
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
        dl.next_block[r.last_block] = pool[FREE] - 1
        pool[FREE] = r.first_block + 1


@kernel
def _keep(dl, direction, r, buf, start, end):
    """Append `buf[start:end]` to the blocks of a delivery; it is `limited` when there are no more blocks."""
    pool = dl.pool[direction]
    at = start
    while at < end and not r.limited:
        within = int(r.kept) % BLOCK
        if within == 0:
            if pool[FREE] > 0:
                fresh = int(pool[FREE]) - 1
                pool[FREE] = dl.next_block[fresh] + 1
            elif pool[USED] < BLOCKS:
                fresh = direction * BLOCKS + int(pool[USED])
                pool[USED] += 1
            else:
                r.limited = 1
                return
            dl.next_block[fresh] = -1
            if r.first_block < 0:
                r.first_block = fresh
            else:
                dl.next_block[r.last_block] = fresh
            r.last_block = fresh
        n = min(BLOCK - within, end - at)
        copy_bytes(dl.blocks, int(r.last_block) * BLOCK + within, buf, at, at + n)
        r.kept += n
        at += n


@kernel
def _take_octets(dl, direction, slot, r, buf, start, end):
    """Octets of the section at hand."""
    if r.what & HASH and r.whole:
        update(dl.digests, direction * SLOTS + slot, buf, start, end - start)
        r.body_size += end - start
    if r.what & KEEP:
        _keep(dl, direction, r, buf, start, end)


@kernel
def _take(dl, direction, slot, buf, start, end, t):
    """The payload `buf[start:end]` of one more transfer of a delivery."""
    r = dl.slots[direction, slot]
    at, base = start, (direction * SLOTS + slot) * HEAD
    while at < end and r.torn == 0:
        if r.left > 0:
            n = min(int(r.left), end - at)
            _take_octets(dl, direction, slot, r, buf, at, at + n)
            r.left -= n
            at += n
            continue
        stop = base + int(r.head_size) + 1
        dl.heads[stop - 1] = buf[at]
        r.head_size += 1
        at += 1
        section, value, inside, size = section_head(dl.heads, base, stop, t)
        if section >= 0:
            r.head_size = 0
            r.left = size
            r.what = HASH if T.DATA <= section <= T.VALUE else KEEP
            first = base if r.what == KEEP else (inside if section == T.DATA else value)
            if r.what == HASH:
                r.body = section
            if section == T.VALUE and is_operation(dl.heads, value, stop, t):
                _keep(dl, direction, r, dl.heads, base, value)
                r.what = KEEP_AND_HASH
            _take_octets(dl, direction, slot, r, dl.heads, first, stop)
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
def octets_to_keep(dl, direction, channel, handle):
    """How many octets were kept of the delivery that is open on a link."""
    slot = _find(dl, direction, (channel << 32) | handle)
    return int(dl.slots[direction, slot].kept) if slot >= 0 else 0


@kernel
def transfer_seen(dl, c, direction, row, rows, digest, t, buf, start, end, transfer):
    """A transfer whose payload is `buf[start:end]`: the sections to show are appended to the octets of its `row`
    (there is room); the section of the body, or -1 when the delivery is not complete or has none. `transfer`: handle,
    delivery id (-1: none), flags.
    """
    handle, delivery_id, flags = transfer
    key = (int(row[R.CHANNEL]) << 32) | handle
    slot = _find(dl, direction, key)
    if slot >= 0 and delivery_id >= 0 and 0 <= dl.slots[direction, slot].delivery_id != delivery_id:
        _drop(dl, direction, slot)
        slot = -1
    if slot < 0:
        if flags & UNCERTAIN and (delivery_id < 0 or (start < end and not begins(buf, start, end, t))):
            return -1
        row[R.CONTENT] = row[R.FRAME_NO]
        if flags & ABORTED:
            return -1
        if not flags & MORE_FOLLOWS:
            return _take_in_place(dl, row, rows, digest, t, buf, start, end, flags)
        slot = _claim(dl, direction, key, int(row[R.FRAME_NO]), delivery_id)
        if slot < 0:
            c.value_limit = 1
            return -1
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    if flags & ABORTED:
        _drop(dl, direction, slot)
        return -1
    if flags & RESUMED:
        r.whole = 0
    _take(dl, direction, slot, buf, start, end, t)
    if r.torn == NO_SECTION:
        _misfit(row)
    return -1 if flags & MORE_FOLLOWS else _complete(dl, c, direction, slot, row, rows, digest)


@kernel
def _misfit(row):
    """The sections of the message make no sense."""
    row[R.STATUS] = MALFORMED
    if row[R.ERROR] == 0:
        row[R.ERROR] = E_SECTIONS


@kernel
def begins(buf, start, end, t):
    """Whether the payload `buf[start:end]` of a transfer looks like that of the first one of its delivery."""
    return section_head(buf, start, end, t)[0] >= 0


@kernel
def _take_in_place(dl, row, rows, digest, t, buf, start, end, flags):
    """A delivery of one transfer: the section of its body, or -1."""
    at, body, size = start, -1, 0
    begin(dl.digests, IN_PLACE)
    while at < end:
        section, value, inside, left = section_head(buf, at, end, t)
        if section < 0 or left > end - inside:
            _misfit(row)
            return body
        stop = inside + left
        if T.DATA <= section <= T.VALUE:
            body = section
            first = inside if section == T.DATA else value
            update(dl.digests, IN_PLACE, buf, first, stop - first)
            size += stop - first
        if section < T.DATA or section > T.VALUE or (section == T.VALUE and is_operation(buf, value, stop, t)):
            R.keep_octets(rows, row, buf, at, stop)
        at = stop
    if body >= 0 and not flags & RESUMED:
        row[R.BODY_SIZE] = size
        row[R.DIGEST] = 1
        finish(dl.digests, IN_PLACE, digest)
    return body


@kernel
def _complete(dl, c, direction, slot, row, rows, digest):
    """The last transfer of a delivery of several was taken in: the section of its body, or -1."""
    r = dl.slots[direction, slot]
    body = int(r.body)
    if r.limited:
        c.value_limit = 1
    else:
        block, left = int(r.first_block), int(r.kept)
        while left > 0:
            n = min(BLOCK, left)
            R.keep_octets(rows, row, dl.blocks, block * BLOCK, block * BLOCK + n)
            block = int(dl.next_block[block])
            left -= n
    if r.left > 0 or r.head_size > 0:
        r.whole = 0
        if r.torn == 0:
            _misfit(row)
    if r.whole and body >= 0:
        finish(dl.digests, direction * SLOTS + slot, digest)
        row[R.DIGEST] = 1
        row[R.BODY_SIZE] = r.body_size
    _drop(dl, direction, slot)
    return body


@kernel
def transfer_torn(dl, direction, handle, flags, row):
    """A transfer that lost bytes. `flags`: MORE_FOLLOWS; UNCERTAIN, it may go on with a delivery that was lost."""
    slot = _find(dl, direction, (int(row[R.CHANNEL]) << 32) | handle)
    if slot < 0:
        if not flags & UNCERTAIN:
            row[R.CONTENT] = row[R.FRAME_NO]
        return
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    r.whole = 0
    r.torn = LOST
    if not flags & MORE_FOLLOWS:
        _drop(dl, direction, slot)
