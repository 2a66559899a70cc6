"""Deliveries of AMQP 1.0: the transfers on one link that make a message (part 2, section 2.6.14; part 3, section 3.2).

Most deliveries are one transfer, whose sections are parsed in place. The others interleave across links and sessions:
each has a slot (`codec.amqp.v1_0.delivery_slots`), and its sections are parsed as transfers arrive. The row that
completes the delivery has the sections around the body, and the digest of the contents of the body: the octets of all
data sections, or the encoded values of all sequence sections, or the encoded value, without the descriptor (the
encoding of the sections may change from hop to hop, the contents may not). A message without a body has the digest of
no octets. A message of another format that does not begin with a section is all body. Of a batch of Azure the data
sections are stored, too, as each contains a message (`codec.amqp.v1_0.azure_batches`). Cost: linear in the octets.
"""

from __future__ import annotations

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import MORE, is_operation, may_follow, section_head
from codec.amqp.v1_0.delivery_slots import BLOCK, HEAD, IN_PLACE, SLOTS, claim, find, release, store
from codec.amqp.v1_0.management import is_management
from codec.amqp.v1_0.tokens import has_mark, on_token_link
from codec.amqp.versions import E_SECTIONS, MALFORMED
from codec.compiler.kernel import kernel
from codec.compiler.limits import DELIVERY_SIZE, LIMITS, OPEN_DELIVERIES
from codec.hashes.digest import begin, finish, update
from codec.variant.writer import copy_bytes

STORE, HASH, STORE_AND_HASH = 1, 2, 3  # what to do with the octets of a section
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
def _add_octets(dl, direction, slot, r, buf, start, end):
    """Add octets of the current section."""
    if r.what & HASH and r.whole:
        update(dl.digests, direction * SLOTS + slot, buf, start, end - start)
        r.body_size += end - start
    if r.what & STORE:
        store(dl, direction, r, buf, start, end)


@kernel
def _is_of_management(dl, r, rows, t):
    """Whether the sections stored so far are those of a management request or its reply. The heap of octets, which has
    room for them, serves to join them."""
    at, size = int(rows.used[1]), int(r.stored)
    end = at + size
    if r.limited or end > len(rows.octets):
        return False
    _join_blocks(dl, r, rows.octets, at)
    properties = application = -1
    while at < end:
        section, value, inside, left = section_head(rows.octets, at, end, t)
        if section < 0:
            return False
        if section == T.PROPERTIES:
            properties = value
        elif section == T.APPLICATION_PROPERTIES:
            application = value
        at = inside + left
    return is_management(rows.octets, properties, application, end, t)


@kernel
def _join_blocks(dl, r, octets, at):
    """Copy the octets stored of a delivery to `octets[at:]`."""
    block, left = int(r.first_block), int(r.stored)
    while left > 0:
        n = min(BLOCK, left)
        copy_bytes(octets, at, dl.blocks, block * BLOCK, block * BLOCK + n)
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
            _add_octets(dl, direction, slot, r, buf, at, at + n)
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
            _add_octets(dl, direction, slot, r, dl.heads, first, stop)
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
    _add_octets(dl, direction, slot, r, dl.heads, base, base + int(r.head_size))
    r.head_size = 0


@kernel
def on_link_change(dl, direction, channel, handle):
    """The link of a handle was attached or detached: its open delivery ends."""
    slot = find(dl, direction, (channel << 32) | handle)
    if slot >= 0:
        release(dl, direction, slot)


@kernel
def stored_octets(dl, direction, channel, handle):
    """The number of octets stored of the open delivery on a link."""
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
    are appended to the octets of its `row` (there is room). Returns the section of the body, -1 when the delivery is
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
            R.append_octets(rows, row, buf, at, stop)
        at = stop
    if judged and body < 0:
        row[R.NOTES] |= N.BODY_MISSING
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
        _join_blocks(dl, r, rows.octets, int(rows.used[1]))
        rows.used[1] += r.stored
        row[R.OCTETS_END] = rows.used[1]
    if 0 < r.left < ENDLESS >> 1 or r.head_size > 0:
        r.whole = 0
        if r.broken == 0 and not r.resumed:
            _misfit(row)
    if r.whole and r.broken == 0 and body < 0 and not r.foreign:
        row[R.NOTES] |= N.BODY_MISSING
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
