"""Consumers of a channel incarnation, and the queues that they name.

A consumer tag may be used again once the consumer is cancelled: a delivery belongs to the latest consumer with its tag.
A broker handles the methods of a channel in order, so nothing is delivered to a cancelled consumer after the answer to
the cancel or to a later request: then its row is written. Until then it waits behind those cancelled before it.
A queue has the type of its last declaration on the connection that was not refused, until it is deleted or
`Limits.queue_types` others were declared after it.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.conversation.channels import state as S
from codec.conversation.channels.results import write_link
from codec.conversation.channels.stalls import end_link_stall
from codec.conversation.channels.state import allocate, release
from codec.hashes.keyed import found, put, remove

LINK_KEY, LINK_CHANNEL_SHIFT = 1 << 62, 40
TYPE_KEY = LINK_KEY | 1 << 61  # above the keys of links
# Values of these keys: the type, a text, and above it the number of the queue (TYPED).
TYPE_SHIFT = 32
TYPE_TEXT = (1 << TYPE_SHIFT) - 1
QUEUE_TYPES = LIMITS.queue_types


@kernel
def link_key(channel, tag):
    return LINK_KEY | (channel << LINK_CHANNEL_SHIFT) | tag


@kernel
def _new_link(s, slot, channel, tag):
    at = allocate(s.links, s.numbers, S.LINKS, S.FREE_LINK)
    s.links[at] = s.new_link[0]
    link = s.links[at]
    link.channel = channel
    link.incarnation = slot.incarnation
    link.tag = tag
    s.numbers[S.SERIAL] += 1
    link.serial = s.numbers[S.SERIAL]
    link.prefetch = slot.prefetch_new
    link.next = slot.links
    if slot.links != S.NONE:
        s.links[slot.links].previous = at
    slot.links = at
    if tag:
        put(s.found_by, link_key(channel, tag), at)
    return at


@kernel
def link_of(s, slot, channel, tag):
    """The latest link of this incarnation with `tag`; a new one if its opening was not captured."""
    at = found(s.found_by, link_key(channel, tag))
    return at if at != S.NONE else _new_link(s, slot, channel, tag)


@kernel
def resolve_queue(slot, queue):
    """The queue by its name; '' stands for the one declared last on the channel."""
    return slot.declared if queue == S.EMPTY else queue


@kernel
def queue_type_of(s, queue):
    """The type of a queue; 0 if it is not known."""
    known = found(s.found_by, TYPE_KEY | queue) if queue > S.EMPTY else S.NONE
    return known & TYPE_TEXT if known != S.NONE and s.numbers[S.TYPED] - (known >> TYPE_SHIFT) < QUEUE_TYPES else 0


@kernel
def set_queue_type(s, queue, queue_type):
    """Remember the type of a queue that the broker accepted, or that was declared with no-wait; NONE forgets it."""
    if queue <= S.EMPTY or queue_type == 0:
        return
    if queue_type == S.NONE:
        remove(s.found_by, TYPE_KEY | queue)
        return
    number = s.numbers[S.TYPED]
    if queue_type_of(s, queue):
        number = found(s.found_by, TYPE_KEY | queue) >> TYPE_SHIFT
    else:
        number += 1
        s.numbers[S.TYPED] = number
    put(s.found_by, TYPE_KEY | queue, number << TYPE_SHIFT | queue_type)


@kernel
def declare_queue(s, rows, i, slot, request):
    """Make a declared queue the one that '' stands for. If it was declared as '', the reply has its name."""
    if rows.queue[i] > S.EMPTY:
        slot.declared = rows.queue[i]
        if request == S.NONE:
            set_queue_type(s, rows.queue[i], rows.queue_type[i])
    elif request != S.NONE:
        at = s.numbers[S.DECLARED]
        s.numbers[S.DECLARED] += 1
        s.declared[at] = 0
        s.requests[request].declares = at
        slot.declared = -at - 1


@kernel
def open_link(s, rows, i, role, slot):
    tag = rows.consumer_tag[i]
    at = _new_link(s, slot, rows.channel[i], tag if tag > S.EMPTY else 0)
    link = s.links[at]
    link.kind = role.opens_link
    link.opened_ns = rows.ts_ns[i]
    link.queue = resolve_queue(slot, rows.queue[i])
    link.queue_type = rows.queue_type[i] if rows.queue_type[i] else queue_type_of(s, link.queue)
    link.no_ack = rows.no_ack[i]
    link.exclusive = rows.exclusive[i]
    link.accepted = 1 if rows.no_wait[i] == 1 else 0
    return at


@kernel
def close_link(s, rows, i, slot):
    if rows.consumer_tag[i] > S.EMPTY:
        at = link_of(s, slot, rows.channel[i], rows.consumer_tag[i])
        link = s.links[at]
        if link.closing_ns == S.NONE:
            link.closing_ns = rows.ts_ns[i]
            link.closing_sender = rows.sender[i]
            link.closing_name = rows.name[i]
            link.closing_frame = rows.frame_no[i]
            if link.accepted or link.kind == 0:
                _wait(s, slot, at)


@kernel
def accept_link(s, slot, at, tag):
    """The link at `at` was accepted, with `tag` if it was opened without one."""
    link = s.links[at]
    link.accepted = 1
    if link.tag == 0 and tag != 0:
        link.tag = tag
        put(s.found_by, link_key(link.channel, tag), at)
    if link.closing_ns != S.NONE:
        _wait(s, slot, at)


@kernel
def _wait(s, slot, at):
    """The link at `at` is closed, and its opening is no longer awaited: it waits for the last delivery."""
    link = s.links[at]
    if link.previous != S.NONE:
        s.links[link.previous].next = link.next
    else:
        slot.links = link.next
    if link.next != S.NONE:
        s.links[link.next].previous = link.previous
    link.next = S.NONE
    if slot.closed_first == S.NONE:
        slot.closed_first = at
    else:
        s.links[slot.closed_last].next = at
    slot.closed_last = at


@kernel
def write_closed_links(s, out, slot, frame_no):
    """The server has answered the request in `frame_no`: links that were closed by then are over."""
    while slot.closed_first != S.NONE and s.links[slot.closed_first].closing_frame <= frame_no:
        at = slot.closed_first
        slot.closed_first = s.links[at].next
        s.links[at].next = S.NONE
        end_links(s, out, slot, at)


@kernel
def end_links(s, out, slot, head):
    """Write and forget the chain of links from `head` on."""
    at = head
    while at != S.NONE:
        link = s.links[at]
        end_link_stall(s, out, slot, link)
        if slot.used:
            write_link(out, s.numbers[S.CONNECTION], slot, link, s.declared)
        key = link_key(link.channel, link.tag)
        if found(s.found_by, key) == at:
            remove(s.found_by, key)
        at = link.next
    release(s.links, head, s.numbers, S.FREE_LINK)
