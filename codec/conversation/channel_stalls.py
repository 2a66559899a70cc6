"""Stalls of channels (`codec.stalls`): as many deliveries unacknowledged as basic.qos allows, and channel.flow.

RabbitMQ applies a basic.qos to each consumer that is opened on the channel after it, and with `global` to all of the
channel. Deliveries are counted from then on, until they are acknowledged, rejected or recovered; where methods of the
client are lost, acknowledgements may be among them, and counting begins anew.

Cost: constant per row, but for an acknowledgement of one delivery, which is searched for from the oldest one on; after
MOST_STEPS counting begins anew.
"""

from __future__ import annotations

from codec import stalls
from codec.compiler.kernel import kernel
from codec.conversation import channel_state as S
from codec.conversation.channel_state import allocate, release

MOST_STEPS = 1 << 10
MOST_UNACKED = 1 << 17  # of a channel: above what basic.qos can say


@kernel
def _write(s, out, slot, channel, r, k, kind, side, link, until_ns):
    n = stalls.write(out.stalls, out.stall_count, r, k, kind, side, until_ns)
    if n != S.NONE:
        row = out.stalls[n]
        row[stalls.CONNECTION] = s.numbers[S.CONNECTION]
        row[stalls.CHANNEL] = channel
        row[stalls.INCARNATION] = slot.incarnation
        row[stalls.LINK] = link


@kernel
def end_link_stall(s, out, slot, link):
    """The link is over: write its stall."""
    if link.serial < slot.unacked_serial:
        return
    until_ns = link.closing_ns if link.closing_ns != S.NONE else slot.close_ns
    _write(s, out, slot, link.channel, link, 0, stalls.PREFETCH_FULL, S.SERVER, link.tag, until_ns)


@kernel
def end_channel_stalls(s, out, slot, channel):
    """The incarnation is over: write its stalls, and forget its deliveries."""
    _write(s, out, slot, channel, slot, S.OF_ALL, stalls.PREFETCH_FULL, S.SERVER, 0, slot.close_ns)
    for side in (S.CLIENT, S.SERVER):
        _write(s, out, slot, channel, slot, S.FLOW_OF_CLIENT + side, stalls.CHANNEL_FLOW, side, 0, slot.close_ns)
    release(s.unacked, slot.unacked_head, s.numbers, S.FREE_UNACKED)


@kernel
def _begin(s, out, rows, i, slot, r, k, kind, side, link):
    if stalls.apart(r, k, rows.ts_ns[i]):
        _write(s, out, slot, rows.channel[i], r, k, kind, side, link, S.NONE)
    stalls.begin(r, k, rows.ts_ns[i], rows.frame_no[i], rows.packet_no[i], rows.file[i])


@kernel
def change_flow(s, out, rows, i, slot):
    """A side tells the other one to stop sending, or to go on."""
    side = 1 - rows.sender[i]
    k = S.FLOW_OF_CLIENT + side
    if rows.active[i] == 0:
        _begin(s, out, rows, i, slot, slot, k, stalls.CHANNEL_FLOW, side, 0)
    elif rows.active[i] == 1:
        stalls.end(slot, k, rows.ts_ns[i])


@kernel
def change_prefetch(s, rows, i, slot):
    """A limit for consumers that follow, or for all of the channel."""
    if rows.is_global[i] == 1:
        slot.prefetch_all = rows.prefetch_count[i]
        if slot.prefetch_all <= 0 or slot.unacked < slot.prefetch_all:
            stalls.end(slot, S.OF_ALL, rows.ts_ns[i])
    else:
        slot.prefetch_new = rows.prefetch_count[i]


@kernel
def _count_anew(s, slot):
    """Forget the deliveries that are not acknowledged, and stalls by them: those of links that have serial numbers
    below `unacked_serial`, which count anew with their next delivery."""
    release(s.unacked, slot.unacked_head, s.numbers, S.FREE_UNACKED)
    slot.unacked_head = slot.unacked_tail = S.NONE
    slot.unacked = 0
    slot.unacked_losses = s.numbers[S.LOSSES_CLIENT]
    stalls.forget(slot, S.OF_ALL)
    s.numbers[S.SERIAL] += 1
    slot.unacked_serial = s.numbers[S.SERIAL]


@kernel
def count_delivery(s, out, rows, i, slot, link_at):
    """A delivery that has to be acknowledged, to the consumer at `link_at`."""
    link = s.links[link_at]
    if link.prefetch <= 0 and slot.prefetch_all <= 0:
        return
    if slot.unacked_losses != s.numbers[S.LOSSES_CLIENT] or slot.unacked >= MOST_UNACKED:
        _count_anew(s, slot)
    if link.serial < slot.unacked_serial:
        link.unacked = 0
        s.numbers[S.SERIAL] += 1
        link.serial = s.numbers[S.SERIAL]
        stalls.forget(link, 0)
    at = allocate(s.unacked, s.numbers, S.UNACKED, S.FREE_UNACKED)
    delivery = s.unacked[at]
    delivery.tag = rows.delivery_tag[i]
    delivery.link = link_at
    delivery.serial = link.serial
    delivery.next = S.NONE
    if slot.unacked_head == S.NONE:
        slot.unacked_head = at
    else:
        s.unacked[slot.unacked_tail].next = at
    slot.unacked_tail = at
    slot.unacked += 1
    link.unacked += 1
    if link.prefetch > 0 and link.unacked >= link.prefetch:
        _begin(s, out, rows, i, slot, link, 0, stalls.PREFETCH_FULL, S.SERVER, link.tag)
    if slot.prefetch_all > 0 and slot.unacked >= slot.prefetch_all:
        _begin(s, out, rows, i, slot, slot, S.OF_ALL, stalls.PREFETCH_FULL, S.SERVER, 0)


@kernel
def _remove(s, slot, at, previous, ts_ns):
    """The delivery at `at` is acknowledged."""
    delivery = s.unacked[at]
    if previous == S.NONE:
        slot.unacked_head = delivery.next
    else:
        s.unacked[previous].next = delivery.next
    if slot.unacked_tail == at:
        slot.unacked_tail = previous
    slot.unacked -= 1
    if slot.unacked < slot.prefetch_all:
        stalls.end(slot, S.OF_ALL, ts_ns)
    link = s.links[delivery.link]
    if link.serial == delivery.serial:
        link.unacked -= 1
        if link.unacked < link.prefetch:
            stalls.end(link, 0, ts_ns)
    delivery.next = S.NONE
    release(s.unacked, at, s.numbers, S.FREE_UNACKED)


@kernel
def count_settlement(s, slot, first, last, ts_ns):
    """The client settles its deliveries from `first` to `last`, which are one, or all up to it."""
    if slot.unacked_head == S.NONE:
        return
    if slot.unacked_losses != s.numbers[S.LOSSES_CLIENT]:
        _count_anew(s, slot)
        return
    if first != last:
        while slot.unacked_head != S.NONE and s.unacked[slot.unacked_head].tag <= last:
            _remove(s, slot, slot.unacked_head, S.NONE, ts_ns)
        return
    previous, at = S.NONE, slot.unacked_head
    for _ in range(MOST_STEPS):
        if at == S.NONE or s.unacked[at].tag >= last:
            if at != S.NONE and s.unacked[at].tag == last:
                _remove(s, slot, at, previous, ts_ns)
            return
        previous = at
        at = s.unacked[at].next
    _count_anew(s, slot)
