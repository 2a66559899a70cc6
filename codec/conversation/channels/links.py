"""Consumers of a channel incarnation, and the queues that they name.

A consumer tag may be used again once the consumer is cancelled: a delivery belongs to the latest consumer with its tag.
A queue has the type of its last declaration on the connection that was not refused.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.state import DECLARED, EMPTY, FREE_LINK, LINKS, NONE, allocate
from codec.hashes.keyed import found, put

LINK_KEY, LINK_CHANNEL_SHIFT = 1 << 62, 40
TYPE_KEY = LINK_KEY | 1 << 61  # above the keys of links


@kernel
def link_key(channel, tag):
    return LINK_KEY | (channel << LINK_CHANNEL_SHIFT) | tag


@kernel
def _new_link(s, slot, channel, tag):
    at = allocate(s.links, s.numbers, LINKS, FREE_LINK)
    s.links[at] = s.new_link[0]
    link = s.links[at]
    link.channel = channel
    link.incarnation = slot.incarnation
    link.tag = tag
    link.next = slot.links
    slot.links = at
    if tag:
        put(s.found_by, link_key(channel, tag), at)
    return at


@kernel
def link_of(s, slot, channel, tag):
    """The latest link of this incarnation with `tag`; a new one if its opening was not captured."""
    at = found(s.found_by, link_key(channel, tag))
    if at != NONE:
        link = s.links[at]
        if link.channel == channel and link.incarnation == slot.incarnation and link.tag == tag:
            return at
    return _new_link(s, slot, channel, tag)


@kernel
def resolve_queue(slot, queue):
    """The queue by its name; '' stands for the one declared last on the channel."""
    return slot.declared if queue == EMPTY else queue


@kernel
def queue_type_of(s, queue):
    """The type of a queue; 0 if it is not known."""
    at = found(s.found_by, TYPE_KEY | queue) if queue > EMPTY else NONE
    return at if at != NONE else 0


@kernel
def set_queue_type(s, queue, queue_type):
    """Remember the type of a queue that the broker accepted, or that was declared with no-wait."""
    if queue > EMPTY and queue_type:
        put(s.found_by, TYPE_KEY | queue, queue_type)


@kernel
def declare_queue(s, rows, i, slot, request):
    """Make a declared queue the one that '' stands for. If it was declared as '', the reply has its name."""
    if rows.queue[i] > EMPTY:
        slot.declared = rows.queue[i]
        if request == NONE:
            set_queue_type(s, rows.queue[i], rows.queue_type[i])
    elif request != NONE:
        at = s.numbers[DECLARED]
        s.numbers[DECLARED] += 1
        s.declared[at] = 0
        s.requests[request].declares = at
        slot.declared = -at - 1


@kernel
def open_link(s, rows, i, role, slot):
    tag = rows.consumer_tag[i]
    at = _new_link(s, slot, rows.channel[i], tag if tag > EMPTY else 0)
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
    if rows.consumer_tag[i] > EMPTY:
        link = s.links[link_of(s, slot, rows.channel[i], rows.consumer_tag[i])]
        if link.closing_ns == NONE:
            link.closing_ns = rows.ts_ns[i]
            link.closing_sender = rows.sender[i]
            link.closing_name = rows.name[i]
