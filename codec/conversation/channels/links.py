"""Consumers on a life of a channel, and what a queue without a name means to them.

A consumer tag is free again once the consumer is cancelled: deliveries belong to the consumer that had it last. A
queue has the type that was stated last in a declaration on the connection which was not refused.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.pools import record_of
from codec.conversation.channels.state import DECLARED, EMPTY, FREE_LINK, LINKS, NONE
from codec.hashes.keyed import found, put

LINK_KEY, LINK_CHANNEL_SHIFT = 1 << 62, 40
TYPE_KEY = LINK_KEY | 1 << 61  # above the keys of links


@kernel
def link_key(channel, tag):
    return LINK_KEY | (channel << LINK_CHANNEL_SHIFT) | tag


@kernel
def _new_link(s, slot, channel, tag):
    at = record_of(s.links, s.numbers, LINKS, FREE_LINK)
    link = s.links[at]
    link.channel = channel
    link.life = slot.life
    link.tag = tag
    link.kind = 0
    link.opened_ns = NONE
    link.queue = 0
    link.queue_type = 0
    link.no_ack = NONE
    link.exclusive = NONE
    link.accepted = 0
    link.closing_ns = NONE
    link.closing_sender = NONE
    link.closing_name = 0
    link.transfers = 0
    link.next = slot.links
    slot.links = at
    if tag:
        put(s.found_by, link_key(channel, tag), at)
    return at


@kernel
def link_of(s, slot, channel, tag):
    """The link of this life that bears `tag` now; a new one when its opening was not captured."""
    at = found(s.found_by, link_key(channel, tag))
    if at != NONE:
        link = s.links[at]
        if link.channel == channel and link.life == slot.life and link.tag == tag:
            return at
    return _new_link(s, slot, channel, tag)


@kernel
def meant_queue(slot, queue):
    """The queue that '' stands for is the one declared last on the channel."""
    return slot.declared if queue == EMPTY else queue


@kernel
def declared_type(s, queue):
    """The type of a queue by its name; 0 where it is not known."""
    at = found(s.found_by, TYPE_KEY | queue) if queue > EMPTY else NONE
    return at if at != NONE else 0


@kernel
def has_type(s, queue, queue_type):
    """The broker agreed to a queue of this type, or was not asked to."""
    if queue > EMPTY and queue_type:
        put(s.found_by, TYPE_KEY | queue, queue_type)


@kernel
def declare(s, rows, i, slot, request):
    """A declared queue is what '' means from now on; the broker's name for one declared as '' comes with the answer."""
    if rows.queue[i] > EMPTY:
        slot.declared = rows.queue[i]
        if request == NONE:
            has_type(s, rows.queue[i], rows.queue_type[i])
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
    link.queue = meant_queue(slot, rows.queue[i])
    link.queue_type = rows.queue_type[i] if rows.queue_type[i] else declared_type(s, link.queue)
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
