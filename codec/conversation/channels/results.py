"""Writes the output records of the channel tracker."""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels.state import MAP_CHANNEL_SHIFT, MAP_INCARNATION_SHIFT, NONE

MESSAGES, EVENTS, INCARNATIONS, LINK_ROWS, REPLIES = range(5)  # cells of `Results.counts`


@kernel
def map_of(channel, incarnation, kind):
    """The number of an unsettled map within its connection; `kind`: SENT, RECEIVED or TRANSACTED."""
    return (channel << MAP_CHANNEL_SHIFT) | (incarnation << MAP_INCARNATION_SHIFT) | kind


@kernel
def queue_name(declared, queue):
    """The name of a queue; if it was declared without one, the name in the reply."""
    return declared[-queue - 1] if queue < 0 else queue


@kernel
def write_message(out, connection, frame_no, channel, incarnation, operation, queue, link, tag, outcome):
    """A message, with the outcome that it has if nothing settles it."""
    row = out.messages[out.counts[MESSAGES]]
    out.counts[MESSAGES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.channel = channel
    row.incarnation = incarnation
    row.operation = operation
    row.queue = queue
    row.link = link
    row.tag = tag
    row.outcome = outcome


@kernel
def write_event(
    out, connection, map_no, frame_no, opens, first, last, outcome, final, effective_ns, transaction
):  # fmt: skip
    """An event for `codec.conversation.settlement`."""
    row = out.events[out.counts[EVENTS]]
    out.counts[EVENTS] += 1
    row.connection = connection
    row.map_no = map_no
    row.frame_no = frame_no
    row.opens = opens
    row.first = first
    row.last = last
    row.outcome = outcome
    row.final = final
    row.effective_ns = effective_ns
    row.transaction = transaction


@kernel
def write_incarnation(out, connection, channel, slot):
    """A channel incarnation."""
    row = out.incarnations[out.counts[INCARNATIONS]]
    out.counts[INCARNATIONS] += 1
    row.connection = connection
    row.channel = channel
    row.incarnation = slot.incarnation
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
def write_link(out, connection, slot, link, declared):
    """A link of an incarnation if it was open: the server accepted it or had not to reply, or messages came."""
    if link.tag and (link.accepted or link.transfers):
        row = out.links[out.counts[LINK_ROWS]]
        out.counts[LINK_ROWS] += 1
        row.connection = connection
        row.channel = link.channel
        row.incarnation = link.incarnation
        row.kind = link.kind
        row.name = link.tag
        row.queue = queue_name(declared, link.queue)
        row.queue_type = link.queue_type
        row.no_ack = link.no_ack
        row.exclusive = link.exclusive
        row.opened_ns = link.opened_ns
        row.closed_ns = link.closing_ns if link.closing_ns != NONE else slot.close_ns
        row.closing_sender = link.closing_sender
        row.closing_name = link.closing_name
        row.transfers = link.transfers


@kernel
def write_reply(out, connection, frame_no, reply_frame_no, reply_name, latency_ns):
    """A request and its reply."""
    row = out.replies[out.counts[REPLIES]]
    out.counts[REPLIES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.reply_frame_no = reply_frame_no
    row.reply_name = reply_name
    row.latency_ns = latency_ns
