"""Follows the methods of a connection in order: its channel incarnations, consumers, messages, settlements and replies.

What a method does is data (`Roles`); the code names no method. `requests` pairs requests with replies, `links`
deliveries with consumers. Rules:

- A message that the peer must settle is added to an unsettled map (`codec.conversation.settlement`), and a settlement
  is an event of that map. In a transaction both take effect at its end: with the reply to a commit. What it has
  settled until then is not outstanding for a settlement of everything (RabbitMQ, rabbit_channel: acknowledged messages
  are outstanding again after tx.rollback).
- What the client settles after the server has closed the channel or the connection is discarded (0-9-1 specification,
  channel.close, connection.close).
- If frames of the settling side may be missing later in the incarnation, the outcome is noted as unknown; a settlement
  that was captured takes precedence.
- After a loss of frames of the client, the broker's numbers of publishes are unknown.
- If a settlement was captured before its message, the capture is out of order there, and the outcome is unknown.
- The outcome is also unknown where the two directions are far apart in the capture: of a delivery captured late, of all
  that is outstanding at a late settlement of everything, and of all messages of a doubted incarnation: one that may
  have got settlements of the incarnation before, or that has transactions, until the order is certain again.

Cost: constant per row; the end of an incarnation or a transaction costs what it ends.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.conversation import channel_state as S
from codec.conversation.channel_stalls import (
    change_flow,
    change_prefetch,
    count_delivery,
    count_settlement,
    end_channel_stalls,
    end_link_stall,
)
from codec.conversation.channel_state import (
    allocate,
    begin_incarnation,
    map_of,
    queue_name,
    release,
    write_event,
    write_incarnation,
    write_link,
    write_message,
    write_reply,
)
from codec.conversation.settlement import (
    COMMITTED,
    NO_RESULT,
    PRESETTLED,
    RESTORED,
    ROLLED_BACK,
    SPARES,
    UNKNOWN,
    UNSETTLED,
)
from codec.hashes.maps import clear, get, put, remove

# Consumers of a channel incarnation, and the queues that they name.
#
# A consumer tag may be used again once the consumer is cancelled: a delivery belongs to the latest consumer with its
# tag. A broker handles the methods of a channel in order, so nothing is delivered to a cancelled consumer after the
# answer to the cancel or to a later request: then its row is written. Until then it waits behind those cancelled before
# it. A queue has the type of its last declaration on the connection that was not refused, until it is deleted or
# `Limits.queue_types` others were declared after it.


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
    at = get(s.found_by, link_key(channel, tag))
    return at if at != S.NONE else _new_link(s, slot, channel, tag)


@kernel
def resolve_queue(slot, queue):
    """The queue by its name; '' stands for the one declared last on the channel."""
    return slot.declared if queue == S.EMPTY else queue


@kernel
def queue_type_of(s, queue):
    """The type of a queue; 0 if it is not known."""
    known = get(s.found_by, TYPE_KEY | queue) if queue > S.EMPTY else S.NONE
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
        number = get(s.found_by, TYPE_KEY | queue) >> TYPE_SHIFT
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
        if get(s.found_by, key) == at:
            remove(s.found_by, key)
        at = link.next
    release(s.links, head, s.numbers, S.FREE_LINK)


# Requests and their replies.
#
# Requests of one reply group (they share a reply) by one side on one incarnation of a channel are answered in order, so
# they wait in a queue. A reply that finds the queue empty is not paired: its request was not captured. Nothing is
# paired across a loss. The request for a commit takes along the settlements of the transaction; without an answer
# nothing tells whether they took effect. The request for a rollback, and the close of a channel or of its connection,
# roll back what is open (RabbitMQ, rabbit_channel: the transaction ends with the channel).


REPLY_GROUP_BITS = 16


@kernel
def _request_queue(s, channel, incarnation, reply_group, requester):
    """The queue of a reply group; requests before a loss or of an earlier incarnation are dropped from it."""
    numbers = s.numbers
    key = ((channel << 1 | requester) << REPLY_GROUP_BITS) | reply_group
    at = get(s.found_by, key)
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


LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
WRONG_INCARNATION, WRONG_TRANSACTION = 1, 2  # why a slot is doubted


@kernel
def _end_incarnation(s, out, channel, reopened):
    """Write out the incarnation: its channel is opened again, by frame `reopened`, or (NONE) the connection ended."""
    slot, numbers = s.slots[channel], s.numbers
    for kind in (S.SENT, S.RECEIVED):
        opened = slot.opened_sent if kind == S.SENT else slot.opened_received
        if slot.closed >> (S.SERVER if kind == S.SENT else S.CLIENT) & 1:
            lost = slot.lost_server if kind == S.SENT else slot.lost_client
        elif reopened != S.NONE:  # a channel is reopened after both sides have closed it
            lost = reopened
        else:
            lost = numbers[S.LOST_SERVER] if kind == S.SENT else numbers[S.LOST_CLIENT]
        if opened and lost != S.NONE:
            _note_unknown(s, out, channel, slot.incarnation, kind, lost, LOWEST, HIGHEST)
    if slot.used:
        write_incarnation(out, numbers[S.CONNECTION], channel, slot)
    end_links(s, out, slot, slot.links)
    end_links(s, out, slot, slot.closed_first)
    end_channel_stalls(s, out, slot, channel)
    release(s.pendings, slot.tx_head, numbers, S.FREE_PENDING)


@kernel
def _note_unknown(s, out, channel, incarnation, kind, frame_no, first, last):
    map_no = map_of(channel, incarnation, kind)
    write_event(out, s.numbers[S.CONNECTION], map_no, frame_no, 0, first, last, UNKNOWN, 0, 0, NO_RESULT)


@kernel
def end_connection(s, out):
    """End the current connection: it has no more rows."""
    numbers = s.numbers
    if numbers[S.STARTED]:
        for i in range(numbers[S.TOUCHED]):
            _end_incarnation(s, out, s.touched[i], S.NONE)


@kernel
def _begin_connection(s, connection):
    numbers = s.numbers
    numbers[S.CONNECTION] = connection
    numbers[S.STARTED] = 1
    numbers[S.EPOCH] += 1
    clear(s.found_by)
    for cell in (
        S.LOSSES,
        S.LOSSES_CLIENT,
        S.TOUCHED,
        S.REQUEST_QUEUES,
        S.REQUESTS,
        S.LINKS,
        S.PENDINGS,
        S.CLOSED,
        S.DECLARED,
        S.TYPED,
        S.UNACKED,
    ):
        numbers[cell] = 0
    for cell in (S.LOST_CLIENT, S.LOST_SERVER, S.FREE_REQUEST, S.FREE_LINK, S.FREE_PENDING, S.FREE_UNACKED):
        numbers[cell] = S.NONE


@kernel
def _prove_mode(slot, mode):
    """The request for the mode of the channel was not captured: numbers of its publishes are unknown."""
    if slot.mode == 0:
        slot.mode = mode
        slot.confirm_from = slot.published
        slot.confirm_losses = S.NONE


@kernel
def _has_mode(s, slot):
    """Whether a channel cannot get another mode: brokers refuse tx.select in confirm mode and the reverse. After a loss
    of the client it may be another incarnation."""
    losses = s.numbers[S.LOSSES_CLIENT]
    return (slot.mode == S.CONFIRM and slot.confirm_losses == losses) or (
        slot.mode == S.TX and slot.tx_losses == losses
    )


@kernel
def _state_changes(s, out, rows, i, role, slot):
    """Apply what row `i` changes of its channel."""
    numbers = s.numbers
    if role.mode and (role.mode == slot.mode or not _has_mode(s, slot)):
        slot.mode = role.mode
        if role.mode == S.TX:
            keep_since_loss(s, slot)
        if role.mode == S.CONFIRM and slot.confirm_from == S.NONE:
            slot.confirm_from = slot.published
            slot.confirm_losses = numbers[S.LOSSES_CLIENT]
    elif role.proves_mode:
        _prove_mode(slot, role.proves_mode)
    if role.prefetch:
        slot.prefetch_count = rows.prefetch_count[i]
        slot.prefetch_size = rows.prefetch_size[i]
        change_prefetch(s, rows, i, slot)
    if role.flows:
        change_flow(s, out, rows, i, slot)
    if role.closes_channel and slot.close_ns == S.NONE:
        if slot.mode == S.TX and not slot.doubted:
            roll_back(s, out, rows, i, rows.channel[i], slot)
        slot.close_ns = rows.ts_ns[i]
        slot.close_sender = rows.sender[i]
        slot.close_code = rows.reply_code[i]
        slot.close_text = rows.reply_text[i]
    if role.closes_connection:
        for j in range(numbers[S.TOUCHED] if numbers[S.CLOSED] == 0 else 0):
            other = s.slots[s.touched[j]]
            if other.mode == S.TX and not other.doubted:
                roll_back(s, out, rows, i, s.touched[j], other)
        numbers[S.CLOSED] |= 1 << rows.sender[i]
    if role.closes_channel or role.closed_channel:  # until then this side may settle
        slot.closed |= 1 << rows.sender[i]
        if rows.sender[i] == S.CLIENT:
            slot.lost_client = numbers[S.LOST_CLIENT]
        else:
            slot.lost_server = numbers[S.LOST_SERVER]


@kernel
def _doubtful(s, slot, kind):
    """The last message of `kind` before the latest loss of the side that settles it: its settlement may be lost."""
    lost_client, lost_server = s.numbers[S.LOST_CLIENT], s.numbers[S.LOST_SERVER]
    if kind == S.SENT:
        if slot.loss_of_server != lost_server:
            slot.loss_of_server = lost_server
            slot.doubtful_sent = slot.published - slot.confirm_from
        return slot.doubtful_sent
    if slot.loss_of_client != lost_client:
        slot.loss_of_client = lost_client
        slot.doubtful_received = slot.received_tag
    return slot.doubtful_received


@kernel
def _publish(s, out, rows, i, slot):
    """A publish, with the broker's number of it if that is known."""
    _doubtful(s, slot, S.SENT)
    channel, frame_no, connection = rows.channel[i], rows.frame_no[i], s.numbers[S.CONNECTION]
    slot.published += 1
    tag, outcome = S.NONE, UNKNOWN
    if slot.mode == S.CONFIRM and slot.confirm_losses == s.numbers[S.LOSSES_CLIENT]:
        tag = slot.published - slot.confirm_from
        if tag > slot.named_sent and not slot.doubted:
            outcome = UNSETTLED
            slot.opened_sent += 1
            write_event(
                out, connection, map_of(channel, slot.incarnation, S.SENT), frame_no, 1, tag, tag, 0, 0, 0, NO_RESULT
            )  # fmt: skip
            if rows.late[i]:
                _note_unknown(s, out, channel, slot.incarnation, S.SENT, frame_no, tag, tag)
    elif slot.mode == S.TX and not slot.doubted:
        keep_since_loss(s, slot)
        number = slot.published
        slot.tx_first = slot.tx_first if slot.tx_first else number
        slot.tx_last = number
        write_event(
            out, connection, map_of(channel, slot.incarnation, S.TRANSACTED), frame_no, 1, number, number, 0, 0, 0,
            NO_RESULT,
        )  # fmt: skip
    write_message(out, connection, frame_no, channel, slot.incarnation, S.PUBLISH, 0, 0, tag, outcome)


@kernel
def _deliver(s, out, rows, i, role, slot, request):
    """A delivery, with the queue and no-ack of its consumer or of the request."""
    _doubtful(s, slot, S.RECEIVED)
    slot.received_tag = max(slot.received_tag, rows.delivery_tag[i])
    channel, frame_no, connection = rows.channel[i], rows.frame_no[i], s.numbers[S.CONNECTION]
    tag, text = rows.delivery_tag[i], 0
    queue, no_ack = resolve_queue(slot, rows.queue[i]), rows.no_ack[i]
    slot.delivered += 1
    if role.operation == S.DELIVER:
        queue, no_ack = 0, S.NONE
        if rows.consumer_tag[i] > S.EMPTY:
            text = rows.consumer_tag[i]
            link_at = link_of(s, slot, channel, text)
            link = s.links[link_at]
            link.transfers += 1
            queue, no_ack = link.queue, link.no_ack
            if no_ack == 0 and not rows.late[i]:
                count_delivery(s, out, rows, i, slot, link_at)
    elif request != S.NONE:
        asked = s.requests[request]
        queue = resolve_queue(slot, asked.queue) if asked.queue else queue
        no_ack = asked.no_ack if asked.no_ack != S.NONE else no_ack
    outcome = UNSETTLED if no_ack == 0 else UNKNOWN
    if no_ack == 1:
        outcome = PRESETTLED
    elif tag <= slot.named_received or rows.late[i] or slot.doubted:
        outcome = UNKNOWN
    else:
        map_no = map_of(channel, slot.incarnation, S.RECEIVED)
        slot.opened_received += 1
        write_event(out, connection, map_no, frame_no, 1, tag, tag, 0, 0, 0, NO_RESULT)
        if outcome == UNKNOWN:
            _note_unknown(s, out, channel, slot.incarnation, S.RECEIVED, frame_no, tag, tag)
    queue = queue_name(s.declared, queue)
    write_message(out, connection, frame_no, channel, slot.incarnation, role.operation, queue, text, tag, outcome)


@kernel
def _settle(s, out, rows, i, role, slot, outcome):
    """A settlement of messages of the other side, or of all deliveries; in a transaction it waits for its end. One of
    many messages does not tell the outcome of those whose own settlement may be lost."""
    tag, sender = rows.delivery_tag[i], rows.sender[i]
    many = role.settles_all != 0 or rows.multiple[i] == 1
    if tag == S.NONE and not role.settles_all:
        return
    over = (slot.closed | s.numbers[S.CLOSED]) >> S.SERVER & 1
    if over and sender == S.CLIENT and not rows.late[i] and not rows.peer_late[i]:
        return
    first = LOWEST if many else tag
    last = HIGHEST if role.settles_all != 0 or (many and tag == 0) else tag
    of = S.SENT if sender == S.SERVER and not role.settles_all else S.RECEIVED
    if of == S.SENT:
        _prove_mode(slot, S.CONFIRM)
    map_no = map_of(rows.channel[i], slot.incarnation, of)
    if of == S.RECEIVED and sender == S.CLIENT:
        count_settlement(s, slot, first, last, rows.ts_ns[i])
    if rows.late[i] and last == HIGHEST:  # some of what is outstanding here was sent after it
        _note_unknown(s, out, rows.channel[i], slot.incarnation, of, rows.frame_no[i], LOWEST, HIGHEST)
        return
    if not role.settles_all:
        if sender == S.SERVER:
            slot.named_sent = max(slot.named_sent, tag)
        else:
            slot.named_received = max(slot.named_received, tag)
    doubtful = _doubtful(s, slot, of) if many else S.NONE
    if doubtful != S.NONE:
        write_event(
            out, s.numbers[S.CONNECTION], map_no, rows.frame_no[i], 0, first, min(last, doubtful), UNKNOWN, 1,
            rows.ts_ns[i], NO_RESULT,
        )  # fmt: skip
        first = doubtful + 1
        if last < first:
            return
    if slot.mode != S.TX or role.outside_transactions:
        final = SPARES if slot.mode == S.TX else 1
        write_event(
            out, s.numbers[S.CONNECTION], map_no, rows.frame_no[i], 0, first, last, outcome, final, rows.ts_ns[i],
            NO_RESULT,
        )  # fmt: skip
        return
    keep_since_loss(s, slot)
    at = allocate(s.pendings, s.numbers, S.PENDINGS, S.FREE_PENDING)
    waiting = s.pendings[at]
    waiting.frame_no = rows.frame_no[i]
    waiting.map_no = map_no
    waiting.first = first
    waiting.last = last
    waiting.outcome = outcome
    waiting.next = slot.tx_head
    slot.tx_head = at


@kernel
def _slot_of(s, out, rows, i, role):
    """The slot of the row's channel, in the incarnation of the row."""
    channel, numbers = rows.channel[i], s.numbers
    slot = s.slots[channel]
    if slot.epoch != numbers[S.EPOCH]:
        s.touched[numbers[S.TOUCHED]] = channel
        numbers[S.TOUCHED] += 1
        begin_incarnation(s, channel, 0)
    # An answer to an open that was not captured: the incarnation had one already, or other rows.
    answered = role.opened_channel and (slot.accepted or (slot.incarnation == 0 and slot.used))
    if role.opens_channel or (answered and not rows.peer_late[i] and not rows.late[i]):
        _end_incarnation(s, out, channel, rows.frame_no[i])
        begin_incarnation(s, channel, slot.incarnation + 1)
        slot.opened_ns = rows.ts_ns[i] if role.opens_channel else S.NONE
    slot.accepted |= role.opened_channel
    if not rows.on_connection[i]:
        slot.used = 1
    return slot


@inlined
def _was_used(s, channel):
    """Whether the channel has earlier rows on this connection."""
    slot = s.slots[channel]
    return slot.epoch == s.numbers[S.EPOCH] and slot.used


@kernel
def _doubt(s, rows, i, role, slot, out, reopened):
    """Row `i` was captured long before or after the frames that the peer sent before it. It may belong to another
    incarnation of its channel, or to another transaction."""
    if slot.doubted or rows.on_connection[i]:
        return
    reopened = reopened or (role.opened_channel and rows.peer_late[i])
    if reopened or role.mode == S.TX or slot.mode == S.TX:
        slot.doubted = WRONG_INCARNATION if reopened else WRONG_TRANSACTION
        s.numbers[S.LOSSES] += 1  # drops waiting requests: replies are not paired meanwhile
        for kind in (S.SENT, S.RECEIVED):
            _note_unknown(s, out, rows.channel[i], slot.incarnation, kind, rows.frame_no[i], LOWEST, HIGHEST)


@kernel
def _resolve_doubt(s, role, slot):
    """A row in order ends doubt: the opening of the next incarnation, or the request that ends the transaction."""
    if slot.doubted == WRONG_INCARNATION and role.opened_channel:
        slot.doubted = 0
    elif slot.doubted == WRONG_TRANSACTION and role.ends_transaction:
        slot.doubted = 0
        drop_transaction(s, slot)


@kernel
def _row(s, roles, rows, i, out):
    name = rows.name[i]
    role = roles.roles[name]
    out_of_order = rows.peer_late[i] or rows.late[i]
    if out_of_order and rows.peer_late[i]:
        s.numbers[S.LOST_SERVER if rows.sender[i] == S.CLIENT else S.LOST_CLIENT] = rows.frame_no[i]
    reopened = out_of_order and role.opens_channel and _was_used(s, rows.channel[i])
    slot = _slot_of(s, out, rows, i, role)
    if out_of_order:
        _doubt(s, rows, i, role, slot, out, reopened)
    _state_changes(s, out, rows, i, role, slot)
    link = open_link(s, rows, i, role, slot) if role.opens_link else S.NONE
    request = S.NONE
    if role.is_request and rows.no_wait[i] != 1 and not rows.late[i] and not slot.doubted:
        request = add_request(s, out, rows, i, role, slot, link)
    elif role.is_reply and not slot.doubted:
        request = take_request(s, out, rows, i, role, slot)
    if role.declares:
        declare_queue(s, rows, i, slot, request)
    if role.deletes and request == S.NONE:
        set_queue_type(s, rows.queue[i], S.NONE)
    if role.closes_link:
        close_link(s, rows, i, slot)
    if role.operation == S.PUBLISH:
        _publish(s, out, rows, i, slot)
    elif role.operation == S.RETURN:
        slot.returned += 1
        write_message(
            out, s.numbers[S.CONNECTION], rows.frame_no[i], rows.channel[i], slot.incarnation, S.RETURN, 0, 0, S.NONE,
            PRESETTLED,
        )  # fmt: skip
    elif role.operation:
        _deliver(s, out, rows, i, role, slot, request)
    outcome = roles.settles[name, rows.sender[i], rows.requeue[i] + 1]
    if outcome and not slot.doubted and (request != S.NONE or not role.is_reply):
        _settle(s, out, rows, i, role, slot, outcome)
    if role.is_reply and request != S.NONE:
        release(s.requests, request, s.numbers, S.FREE_REQUEST)
    if slot.doubted and not out_of_order:
        _resolve_doubt(s, role, slot)


@kernel
def follow(s, roles, rows, first, end, out):
    """Follow the next `rows`, from `first` to before `end`; `s` and `out` have room for what they add (`with_room`,
    `new_results`)."""
    numbers = s.numbers
    for i in range(first, end):
        if numbers[S.STARTED] == 0 or numbers[S.CONNECTION] != rows.connection_id[i]:
            end_connection(s, out)
            _begin_connection(s, rows.connection_id[i])
        if rows.loss[i]:
            numbers[S.LOSSES] += 1
            if rows.sender[i] == S.CLIENT:
                numbers[S.LOSSES_CLIENT] += 1
                numbers[S.LOST_CLIENT] = rows.frame_no[i]
            else:
                numbers[S.LOST_SERVER] = rows.frame_no[i]
        else:
            _row(s, roles, rows, i, out)
