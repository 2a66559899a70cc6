"""Rows that the history of a connection gives, written one by one."""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.state import LEDGER_CHANNEL_SHIFT, LEDGER_LIFE_SHIFT, NONE

MESSAGES, EVENTS, LIVES, LINK_LIVES, REPLIES = range(5)  # cells of `Results.counts`


@kernel
def ledger_of(channel, life, ledger):
    """The number of a ledger within its connection."""
    return (channel << LEDGER_CHANNEL_SHIFT) | (life << LEDGER_LIFE_SHIFT) | ledger


@kernel
def known_queue(declared, queue):
    """A queue by its name; one declared without a name has that which the answer gave it."""
    return declared[-queue - 1] if queue < 0 else queue


@kernel
def write_message(out, connection, frame_no, channel, life, operation, queue, link, tag, outcome):
    """A message, with the outcome that it has when nothing more is said."""
    row = out.messages[out.counts[MESSAGES]]
    out.counts[MESSAGES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.channel = channel
    row.life = life
    row.operation = operation
    row.queue = queue
    row.link = link
    row.tag = tag
    row.outcome = outcome


@kernel
def write_event(
    out, connection, ledger, frame_no, opens, first, last, outcome, final, effective_ns, transaction
):  # fmt: skip
    """An event for `codec.conversation.settlement`."""
    row = out.events[out.counts[EVENTS]]
    out.counts[EVENTS] += 1
    row.connection = connection
    row.ledger = ledger
    row.frame_no = frame_no
    row.opens = opens
    row.first = first
    row.last = last
    row.outcome = outcome
    row.final = final
    row.effective_ns = effective_ns
    row.transaction = transaction


@kernel
def write_life(out, connection, channel, slot):
    """A life of a channel."""
    row = out.lives[out.counts[LIVES]]
    out.counts[LIVES] += 1
    row.connection = connection
    row.channel = channel
    row.life = slot.life
    row.opened_ns = slot.opened_ns
    row.close_ns = slot.close_ns
    row.close_sender = slot.close_sender
    row.close_code = slot.close_code
    row.close_text = slot.close_text
    row.mode = slot.mode
    row.prefetch_count = slot.prefetch_count
    row.prefetch_size = slot.prefetch_size
    row.published = slot.published
    row.delivered = slot.delivered
    row.returned = slot.returned
    row.opened = slot.opened_sent + slot.opened_received


@kernel
def write_links(out, connection, channel, slot, links, declared):
    """The links of a life of a channel that stood: the server agreed, was not asked to, or messages came."""
    at = slot.links
    while at != NONE:
        link = links[at]
        if link.tag and (link.accepted or link.transfers):
            row = out.links[out.counts[LINK_LIVES]]
            out.counts[LINK_LIVES] += 1
            row.connection = connection
            row.channel = channel
            row.life = slot.life
            row.kind = link.kind
            row.name = link.tag
            row.queue = known_queue(declared, link.queue)
            row.queue_type = link.queue_type
            row.no_ack = link.no_ack
            row.exclusive = link.exclusive
            row.opened_ns = link.opened_ns
            row.closed_ns = link.closing_ns if link.closing_ns != NONE else slot.close_ns
            row.closing_sender = link.closing_sender
            row.closing_name = link.closing_name
            row.transfers = link.transfers
        at = link.next


@kernel
def write_reply(out, connection, frame_no, reply_frame_no, reply_name, latency_ns):
    """A request and its answer."""
    row = out.replies[out.counts[REPLIES]]
    out.counts[REPLIES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.reply_frame_no = reply_frame_no
    row.reply_name = reply_name
    row.latency_ns = latency_ns
