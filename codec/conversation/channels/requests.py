"""Requests and their replies.

Requests of one reply group (they share a reply) by one side on one incarnation of a channel are answered in order, so
they wait in a queue. A reply that finds the queue empty is not paired: its request was not captured. Nothing is paired
across a loss. The request for a commit takes along the settlements of the transaction; without an answer nothing tells
whether they took effect. The request for a rollback, and the close of a channel or of its connection, roll back what is
open (RabbitMQ, rabbit_channel: the transaction ends with the channel).
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.channels import state as S
from codec.conversation.channels.links import accept_link, set_queue_type, write_closed_links
from codec.conversation.channels.results import map_of, write_event, write_reply
from codec.conversation.channels.state import allocate, release
from codec.conversation.settlement import COMMITTED, NO_RESULT, RESTORED, ROLLED_BACK, UNKNOWN
from codec.hashes.keyed import found, put

REPLY_GROUP_BITS = 16


@kernel
def _request_queue(s, channel, incarnation, reply_group, requester):
    """The queue of a reply group; requests before a loss or of an earlier incarnation are dropped from it."""
    numbers = s.numbers
    key = ((channel << 1 | requester) << REPLY_GROUP_BITS) | reply_group
    at = found(s.found_by, key)
    if at == S.NONE:
        at = numbers[S.REQUEST_QUEUES]
        numbers[S.REQUEST_QUEUES] += 1
        put(s.found_by, key, at)
        s.request_queues[at].head = S.NONE
    record = s.request_queues[at]
    if record.head != S.NONE and (record.incarnation != incarnation or record.losses != numbers[S.LOSSES]):
        request = record.head
        while request != S.NONE:
            release(s.pendings, s.requests[request].tx_head, numbers, S.FREE_PENDING)
            request = s.requests[request].next
        release(s.requests, record.head, numbers, S.FREE_REQUEST)
        record.head = S.NONE
    if record.head == S.NONE:
        record.incarnation = incarnation
        record.losses = numbers[S.LOSSES]
        record.tail = S.NONE
    return at


@kernel
def drop_transaction(s, slot):
    """Forget what the open transaction of a channel holds: nothing tells how it ends."""
    slot.tx_first = 0
    release(s.pendings, slot.tx_head, s.numbers, S.FREE_PENDING)
    slot.tx_head = S.NONE


@kernel
def keep_since_loss(s, slot):
    """A loss of the client may hide the end of a transaction: what came before it is not part of the open one."""
    if slot.tx_losses != s.numbers[S.LOSSES_CLIENT]:
        slot.tx_losses = s.numbers[S.LOSSES_CLIENT]
        drop_transaction(s, slot)


@kernel
def add_request(s, out, rows, i, role, slot, link):
    """Queue a request, with the transaction that it commits."""
    if role.ends_transaction == ROLLED_BACK:
        roll_back(s, out, rows, i, rows.channel[i], slot)
    elif role.ends_transaction:
        keep_since_loss(s, slot)
        p = slot.tx_head
        while p != S.NONE:  # until it is answered
            waiting = s.pendings[p]
            write_event(
                out, s.numbers[S.CONNECTION], waiting.map_no, waiting.frame_no, 0, waiting.first, waiting.last, UNKNOWN,
                0, 0, NO_RESULT,
            )  # fmt: skip
            p = waiting.next
    at = allocate(s.requests, s.numbers, S.REQUESTS, S.FREE_REQUEST)
    request = s.requests[at]
    request.frame_no = rows.frame_no[i]
    request.ts_ns = rows.ts_ns[i]
    request.queue = rows.queue[i]
    request.queue_type = rows.queue_type[i] if role.declares else -role.deletes
    request.no_ack = rows.no_ack[i]
    request.link = link
    request.declares = S.NONE
    request.result = COMMITTED if role.ends_transaction == COMMITTED else NO_RESULT
    request.tx_first = slot.tx_first if role.ends_transaction else 0
    request.tx_last = slot.tx_last
    request.tx_head = slot.tx_head if role.ends_transaction else S.NONE
    request.next = S.NONE
    if role.ends_transaction:
        slot.tx_first = 0
        slot.tx_head = S.NONE
    record = s.request_queues[_request_queue(s, rows.channel[i], slot.incarnation, role.reply_group, rows.sender[i])]
    if record.head == S.NONE:
        record.head = at
    else:
        s.requests[record.tail].next = at
    record.tail = at
    return at


@kernel
def take_request(s, out, rows, i, role, slot):
    """The request that row `i` replies to, which the caller releases; NONE if there is none."""
    record = s.request_queues[
        _request_queue(s, rows.channel[i], slot.incarnation, role.reply_group, 1 - rows.sender[i])
    ]
    at = record.head
    if at == S.NONE:
        return S.NONE
    request = s.requests[at]
    record.head = request.next
    request.next = S.NONE
    latency_ns = rows.ts_ns[i] - request.ts_ns
    write_reply(out, s.numbers[S.CONNECTION], request.frame_no, rows.frame_no[i], rows.name[i], latency_ns)
    if request.link != S.NONE:
        accept_link(s, slot, request.link, rows.consumer_tag[i])
    if rows.sender[i] == S.SERVER:
        write_closed_links(s, out, slot, request.frame_no)
    set_queue_type(s, request.queue, request.queue_type)
    if request.declares != S.NONE:
        s.declared[request.declares] = rows.queue[i]
    if request.result != NO_RESULT:
        _end_transaction(
            s, out, rows.channel[i], slot.incarnation, request.frame_no, request.ts_ns, request.tx_first,
            request.tx_last, request.tx_head, request.result,
        )  # fmt: skip
        request.tx_head = S.NONE
    return at


@kernel
def roll_back(s, out, rows, i, channel, slot):
    """Row `i` closes the channel or the connection: the open transaction of the channel is rolled back."""
    keep_since_loss(s, slot)
    _end_transaction(
        s, out, channel, slot.incarnation, rows.frame_no[i], rows.ts_ns[i], slot.tx_first, slot.tx_last, slot.tx_head,
        ROLLED_BACK,
    )  # fmt: skip
    slot.tx_first = 0
    slot.tx_head = S.NONE


@kernel
def _end_transaction(s, out, channel, incarnation, frame_no, ts_ns, tx_first, tx_last, tx_head, result):
    """Write the settlements of a transaction with its result, and where a rollback ends them."""
    connection, at = s.numbers[S.CONNECTION], tx_head
    if result == ROLLED_BACK and at != S.NONE:
        first, last = s.pendings[at].first, s.pendings[at].last
        map_no, p = s.pendings[at].map_no, s.pendings[at].next
        while p != S.NONE:
            first, last, p = min(first, s.pendings[p].first), max(last, s.pendings[p].last), s.pendings[p].next
        write_event(out, connection, map_no, frame_no, 0, first, last, 0, 0, 0, RESTORED)
    while at != S.NONE:
        p = s.pendings[at]
        write_event(out, connection, p.map_no, p.frame_no, 0, p.first, p.last, p.outcome, 1, ts_ns, result)
        at = p.next
    release(s.pendings, tx_head, s.numbers, S.FREE_PENDING)
    if tx_first:
        map_no = map_of(channel, incarnation, S.TRANSACTED)
        write_event(out, connection, map_no, frame_no, 0, tx_first, tx_last, UNKNOWN, 0, 0, result)
