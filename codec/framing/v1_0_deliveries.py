"""Deliveries of AMQP 1.0: the transfers on one link that make a message (part 2, section 2.6.14; part 3, section 3.2).

Most deliveries are one transfer, whose sections are parsed in place. The others interleave across links and sessions:
each has a slot (`codec.framing.v1_0_deliveries`), and its sections are parsed as transfers arrive. The row that
completes the delivery has the sections around the body, and the digest of the contents of the body: the bytes of all
data sections, or the encoded values of all sequence sections, or the encoded value, without the descriptor (the
encoding of the sections may change from hop to hop, the contents may not). A message without a body has the digest of
no bytes. A message of another format that does not begin with a section is all body. Of a batch of Azure the data
sections are stored, too, as each contains a message (`codec.protocol.v1_0_contents`). Cost: linear in the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import DELIVERY_SIZE, LIMITS, OPEN_DELIVERIES
from codec.hashes.sha256 import Digests, begin, finish, new_digests, update
from codec.memory import as_records, copy_bytes, sparse_zeros
from codec.protocol import rows as R
from codec.protocol import v1_0_tables as T
from codec.protocol.v1_0_contents import has_mark, is_management, on_token_link
from codec.protocol.v1_0_detection import (
    MORE,
    is_operation,
    may_follow,
    section_head,
)
from codec.protocol.versions import E_SECTIONS, MALFORMED

# Deliveries of AMQP 1.0 in several transfers: a slot for each, by direction, channel and handle.
#
# A slot is valid while its epoch equals that of its direction. A new connection, or a lost frame boundary, starts a new
# epoch, so nothing is joined across a loss. Memory is bounded: a delivery without a slot is not joined; a delivery
# without a free block continues without properties. Cost: constant per transfer, plus the bytes copied.


SLOTS = LIMITS.open_deliveries  # per direction
PROBES = LIMITS.delivery_probes
BLOCK = 512
BLOCKS = max(1, LIMITS.delivery_bytes // BLOCK)  # per direction
HEAD = LIMITS.section_head_bytes

DELIVERY = np.dtype(
    [
        ("key", "i8"),  # channel << 32 | handle
        ("epoch", "i8"),
        ("frame_no", "i8"),  # of its first transfer
        ("delivery_id", "i8"),  # -1 not known
        ("whole", "i8"),  # 1 while no byte of the body is missing
        ("broken", "i8"),  # 0, LOST or NO_SECTION
        ("limited", "i8"),  # 1: sections were not stored
        ("withheld", "i8"),  # 1: it hands a token over (codec.protocol.v1_0_contents)
        ("section", "i8"),  # the last section, -1 none yet
        ("foreign", "i8"),  # 1: its format is none of the specification's; 2: a batch of Azure
        ("resumed", "i8"),  # 1: it may begin anywhere in the message (part 2, section 2.6.13)
        ("body", "i8"),  # section of the body, -1 not yet
        ("body_size", "i8"),
        ("what", "i8"),  # STORE ... for the `left` bytes that remain of the current section
        ("left", "i8"),
        ("first_block", "i8"),  # -1 none
        ("last_block", "i8"),
        ("stored", "i8"),  # bytes in its blocks
        ("head_size", "i8"),  # bytes of the head of a section so far
    ],
    align=True,
)


class Deliveries(NamedTuple):
    """`slots` DELIVERY (2, SLOTS); `heads` uint8, HEAD for each of them; `blocks` uint8, BLOCK for each of 2 * BLOCKS;
    `next_block` int64 (2 * BLOCKS,); `pool` int64 (2, 4): epoch, open deliveries, blocks ever used, first free block +
    1; `digests`: one state per slot, and one more; `fields` int64 (16,): offsets of the fields of the current
    performative."""

    slots: np.ndarray
    heads: np.ndarray
    blocks: np.ndarray
    next_block: np.ndarray
    pool: np.ndarray
    digests: Digests
    fields: np.ndarray


EPOCH, OPEN, USED, FREE = range(4)
IN_PLACE = np.int64(2 * SLOTS)  # the digest of a delivery in one transfer


def new_deliveries() -> Deliveries:
    """Room for the deliveries of a connection; unused pages are never touched."""
    pool = np.zeros((2, 4), np.int64)
    pool[:, EPOCH] = 1
    return Deliveries(
        as_records(sparse_zeros((2, SLOTS), DELIVERY)),
        sparse_zeros(2 * SLOTS * HEAD, np.uint8),
        sparse_zeros(2 * BLOCKS * BLOCK, np.uint8),
        sparse_zeros(2 * BLOCKS, np.int64),
        pool,
        new_digests(2 * SLOTS + 1),
        np.zeros(16, np.int64),
    )


@kernel
def reset_deliveries(dl, direction):
    """A frame boundary was lost, or a connection begins: no open delivery of `direction` may continue."""
    pool = dl.pool[direction]
    pool[EPOCH] += 1
    pool[OPEN] = 0
    pool[USED] = 0
    pool[FREE] = 0


@kernel
def _home(key):
    return ((((key >> 32) * 31 + key) & 0xFFFFFFFF) * 0x61C88647 >> 16) % SLOTS


@kernel
def find(dl, direction, key):
    """The slot of the open delivery with `key`, or -1."""
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
def claim(dl, direction, key, frame_no, delivery_id):
    """A slot for a new delivery, or -1 when none is free."""
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
            r.broken = 0
            r.limited = 0
            r.withheld = 0
            r.section = -1
            r.foreign = r.resumed = 0
            r.body = -1
            r.body_size = 0
            r.left = 0
            r.first_block = -1
            r.stored = 0
            r.head_size = 0
            begin(dl.digests, direction * SLOTS + slot)
            dl.pool[direction, OPEN] += 1
            return slot
    return -1


@kernel
def release(dl, direction, slot):
    """End the delivery and free its blocks."""
    r = dl.slots[direction, slot]
    r.epoch = 0
    pool = dl.pool[direction]
    pool[OPEN] -= 1
    if r.first_block >= 0:
        dl.next_block[r.last_block] = pool[FREE] - 1
        pool[FREE] = r.first_block + 1


@kernel
def store(dl, direction, r, buf, start, end):
    """Append `buf[start:end]` to the blocks of a delivery, which becomes `limited` when no block is free."""
    pool = dl.pool[direction]
    at = start
    while at < end and not r.limited:
        within = int(r.stored) % BLOCK
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
        r.stored += n
        at += n


STORE, HASH, STORE_AND_HASH = 1, 2, 3  # what to do with the bytes of a section
MANAGEMENT_BYTES = LIMITS.management_bytes
UNDECIDED = 4  # before the first section of a message of another format, which may have none
LOST, NO_SECTION = 1, 2  # why the rest of a delivery cannot be parsed
# Flags of a transfer. UNCERTAIN: bytes may have been lost before it, so it may not be the first of its delivery.
# FOREIGN: its message-format is none of the specification's; the message may have no sections. WITHHELD: it hands a
# token over, and no payload of its delivery is kept. BATCHED: FOREIGN, a batch of Azure.
MORE_FOLLOWS, RESUMED, ABORTED, UNCERTAIN, FOREIGN, WITHHELD, BATCHED = 1, 2, 4, 8, 16, 32, 64
ONE_MESSAGE, SEVERAL = 1, 2  # what a delivery of another format has
BATCH_FORMAT = 0x80013700  # of Azure Service Bus and Event Hubs
ENDLESS = 1 << 62  # the size of the body, where it is all of a message


@kernel
def _add_bytes(dl, direction, slot, r, buf, start, end):
    """Add bytes of the current section."""
    if r.what & HASH and r.whole:
        update(dl.digests, direction * SLOTS + slot, buf, start, end - start)
        r.body_size += end - start
    if r.what & STORE:
        store(dl, direction, r, buf, start, end)


@kernel
def _is_of_management(dl, r, rows, t):
    """Whether the sections stored so far are those of a management request or its reply. The heap of bytes, which has
    room for them, serves to join them."""
    at, size = int(rows.used[1]), int(r.stored)
    end = at + size
    if r.limited or end > len(rows.data):
        return False
    _join_blocks(dl, r, rows.data, at)
    properties = application = -1
    while at < end:
        section, value, inside, left = section_head(rows.data, at, end, t)
        if section < 0:
            return False
        if section == T.PROPERTIES:
            properties = value
        elif section == T.APPLICATION_PROPERTIES:
            application = value
        at = inside + left
    return is_management(rows.data, properties, application, end, t)


@kernel
def _join_blocks(dl, r, data, at):
    """Copy the bytes stored of a delivery to `bytes[at:]`."""
    block, left = int(r.first_block), int(r.stored)
    while left > 0:
        n = min(BLOCK, left)
        copy_bytes(data, at, dl.blocks, block * BLOCK, block * BLOCK + n)
        block = int(dl.next_block[block])
        at += n
        left -= n


@kernel
def _add(dl, direction, slot, buf, start, end, t, rows):
    """Add the payload `buf[start:end]` of one more transfer of a delivery: whether its sections are in order."""
    r = dl.slots[direction, slot]
    at, base, in_order = start, (direction * SLOTS + slot) * HEAD, True
    while at < end and r.broken == 0:
        if r.left > 0:
            n = min(int(r.left), end - at)
            _add_bytes(dl, direction, slot, r, buf, at, at + n)
            r.left -= n
            at += n
            continue
        stop = base + int(r.head_size) + 1
        dl.heads[stop - 1] = buf[at]
        r.head_size += 1
        at += 1
        section, value, inside, size = section_head(dl.heads, base, stop, t)
        if section >= 0:
            in_order = in_order and may_follow(section, int(r.section))
            r.section = section
            r.head_size = 0
            r.left = size
            is_first_body = r.body < 0
            r.what = HASH if T.DATA <= section <= T.VALUE else STORE
            first = base if r.what == STORE else (inside if section == T.DATA else value)
            if r.what == HASH:
                r.body = section
            small = is_first_body and inside + size - value <= MANAGEMENT_BYTES
            if section == T.VALUE and (
                is_operation(dl.heads, value, stop, t) or (small and _is_of_management(dl, r, rows, t))
            ):
                store(dl, direction, r, dl.heads, base, value)
                r.what = STORE_AND_HASH
            if section == T.DATA and r.foreign == SEVERAL:
                store(dl, direction, r, dl.heads, base, inside)
                r.what = STORE_AND_HASH
            _add_bytes(dl, direction, slot, r, dl.heads, first, stop)
        elif section != MORE or r.head_size == HEAD:
            if r.what == UNDECIDED:
                _make_all_body(dl, direction, slot, r)
                continue
            r.whole = 0
            r.broken = NO_SECTION
    return in_order


@kernel
def _make_all_body(dl, direction, slot, r):
    """A message of another format does not begin with a section: it is all body."""
    base = (direction * SLOTS + slot) * HEAD
    r.what = HASH
    r.left = ENDLESS
    _add_bytes(dl, direction, slot, r, dl.heads, base, base + int(r.head_size))
    r.head_size = 0


@kernel
def on_link_change(dl, direction, channel, handle):
    """The link of a handle was attached or detached: its open delivery ends."""
    slot = find(dl, direction, (channel << 32) | handle)
    if slot >= 0:
        release(dl, direction, slot)


@kernel
def stored_bytes(dl, direction, channel, handle):
    """The number of bytes stored of the open delivery on a link."""
    slot = find(dl, direction, (channel << 32) | handle)
    return int(dl.slots[direction, slot].stored) if slot >= 0 else 0


@kernel
def hands_over_token(dl, d, direction, key, buf, start, end):
    """Whether the transfer with the payload `buf[start:end]` is of a delivery that hands a token over."""
    if on_token_link(d, key):
        return True
    slot = find(dl, direction, key)
    if slot < 0:
        return has_mark(buf, start, end)
    r = dl.slots[direction, slot]
    if r.withheld == 0 and r.body < 0 and has_mark(buf, start, end):
        r.withheld = 1
    return r.withheld != 0


@kernel
def on_transfer(dl, c, direction, row, rows, digest, t, buf, start, end, transfer):
    """Add a transfer with the payload `buf[start:end]`. When it completes its delivery, the sections around the body
    are appended to the bytes of its `row` (there is room). Returns the section of the body, -1 when the delivery is
    incomplete or has none. `transfer`: handle, delivery id (-1: none), flags.
    """
    handle, delivery_id, flags = transfer
    key = (int(row[R.CHANNEL]) << 32) | handle
    slot = find(dl, direction, key)
    if slot >= 0 and delivery_id >= 0 and 0 <= dl.slots[direction, slot].delivery_id != delivery_id:
        release(dl, direction, slot)
        slot = -1
    if slot < 0:
        if flags & UNCERTAIN and (delivery_id < 0 or (start < end and not begins(buf, start, end, t))):
            return -1
        row[R.CONTENT] = row[R.FRAME_NO]
        if flags & ABORTED:
            return -1
        if not flags & MORE_FOLLOWS:
            all_body = flags & FOREIGN != 0 and not begins(buf, start, end, t)
            return _add_in_place(dl, row, rows, digest, t, buf, start, end, all_body, flags)
        slot = claim(dl, direction, key, int(row[R.FRAME_NO]), delivery_id)
        if slot < 0:
            c.limits |= OPEN_DELIVERIES
            return -1
        dl.slots[direction, slot].what = UNDECIDED if flags & FOREIGN else STORE
        dl.slots[direction, slot].withheld = 1 if flags & WITHHELD else 0
        dl.slots[direction, slot].foreign = SEVERAL if flags & BATCHED else (ONE_MESSAGE if flags & FOREIGN else 0)
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    if flags & ABORTED:
        release(dl, direction, slot)
        return -1
    if flags & RESUMED:
        r.whole = 0
        r.resumed = 1
    in_order = _add(dl, direction, slot, buf, start, end, t, rows)
    if not r.resumed and (r.broken == NO_SECTION or not (in_order or r.foreign)):
        _misfit(row)
    return -1 if flags & MORE_FOLLOWS else _complete(dl, c, direction, slot, row, rows, digest)


@kernel
def _misfit(row):
    """The sections of the message do not parse."""
    row[R.STATUS] = MALFORMED
    if row[R.ERROR] == 0:
        row[R.ERROR] = E_SECTIONS


@kernel
def begins(buf, start, end, t):
    """Whether the payload `buf[start:end]` of a transfer has the form of the first of its delivery."""
    return section_head(buf, start, end, t)[0] >= 0


@kernel
def _add_in_place(dl, row, rows, digest, t, buf, start, end, all_body, flags):
    """Parse a delivery of one transfer: the section of its body, or -1."""
    at, body, size, before, judged = start, -1, 0, -1, flags & (FOREIGN | RESUMED) == 0
    properties = application = -1
    begin(dl.digests, IN_PLACE)
    if all_body:
        update(dl.digests, IN_PLACE, buf, start, end - start)
        at, size = end, end - start
    while at < end:
        section, value, inside, left = section_head(buf, at, end, t)
        if section < 0 or left > end - inside:
            if not flags & RESUMED:  # it may go on anywhere in the message (2.6.13)
                _misfit(row)
            return body
        if judged and not may_follow(section, before):
            _misfit(row)
        before, stop = section, inside + left
        if T.DATA <= section <= T.VALUE:
            body = section
            first = inside if section == T.DATA else value
            update(dl.digests, IN_PLACE, buf, first, stop - first)
            size += stop - first
        if section == T.PROPERTIES:
            properties = value
        elif section == T.APPLICATION_PROPERTIES:
            application = value
        stored = section < T.DATA or section > T.VALUE or (section == T.DATA and flags & BATCHED != 0)
        if section == T.VALUE:
            small = stop - value <= MANAGEMENT_BYTES
            stored = is_operation(buf, value, stop, t) or (small and is_management(buf, properties, application, at, t))
        if stored:
            R.append_bytes(rows, row, buf, at, stop)
        at = stop
    if judged and body < 0:
        row[R.NOTES] |= R.BODY_MISSING
    if not flags & RESUMED:
        row[R.BODY_SIZE] = size
        row[R.DIGEST] = R.BATCH if flags & BATCHED and body == T.DATA else 1
        finish(dl.digests, IN_PLACE, digest)
    return body


@kernel
def _complete(dl, c, direction, slot, row, rows, digest):
    """Complete a delivery of several transfers: the section of its body, or -1."""
    r = dl.slots[direction, slot]
    body = int(r.body)
    if r.what == UNDECIDED:
        _make_all_body(dl, direction, slot, r)
    if r.limited:
        c.limits |= DELIVERY_SIZE
    else:
        _join_blocks(dl, r, rows.data, int(rows.used[1]))
        rows.used[1] += r.stored
        row[R.BYTES_END] = rows.used[1]
    if 0 < r.left < ENDLESS >> 1 or r.head_size > 0:
        r.whole = 0
        if r.broken == 0 and not r.resumed:
            _misfit(row)
    if r.whole and r.broken == 0 and body < 0 and not r.foreign:
        row[R.NOTES] |= R.BODY_MISSING
    if r.whole and r.broken == 0:
        finish(dl.digests, direction * SLOTS + slot, digest)
        row[R.DIGEST] = R.BATCH if r.foreign == SEVERAL and body == T.DATA and not r.limited else 1
        row[R.BODY_SIZE] = r.body_size
    release(dl, direction, slot)
    return body


@kernel
def on_partial_transfer(dl, direction, handle, flags, row):
    """Add a transfer that lost bytes. `flags`: MORE_FOLLOWS; UNCERTAIN, it may continue a delivery that was lost."""
    slot = find(dl, direction, (int(row[R.CHANNEL]) << 32) | handle)
    if slot < 0:
        if not flags & UNCERTAIN:
            row[R.CONTENT] = row[R.FRAME_NO]
        return
    r = dl.slots[direction, slot]
    row[R.CONTENT] = r.frame_no
    r.whole = 0
    r.broken = LOST
    if not flags & MORE_FOLLOWS:
        release(dl, direction, slot)
