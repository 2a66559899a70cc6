"""One pass over the methods of a connection: lives of its channels, its consumers, messages, and who answers whom.

What a method does is data (`Roles`); no method is named here. The rules:

- Who answers whom: `codec.conversation.channels.requests`. Which consumer a delivery belongs to:
`codec.conversation.channels.links`.
- A message that somebody is to settle opens in a ledger (`codec.conversation.settlement`), and what settles it is an
event of that
  ledger. In a transaction both wait for its end: for the answer to the request that ends it.
- Where frames of the settling side may be missing later in the life of the channel, what became of a message is not
  known: the outcome is noted, and any settlement takes precedence.
- After a loss of the client's frames the broker's number of a publish is not known.
- A settlement that names a message which was captured later shows that the capture is out of order there: what became
  of that message is not known.
- Nor is it where the directions are too far apart in the capture: of a delivery that was captured late, of what is
  outstanding when a settlement of everything was, and of all messages of a channel incarnation that is doubted. That
  is one that may have taken over settlements of the incarnation before, or that has transactions, until an order is
  known again.

Constant work a row, but for ends of lives and transactions, which cost what they end.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.conversation.channels.links import close_link, declare, link_of, meant_queue, open_link
from codec.conversation.channels.pools import record_of, used_again
from codec.conversation.channels.requests import answered, ask
from codec.conversation.channels.results import (
    known_queue,
    ledger_of,
    write_event,
    write_life,
    write_links,
    write_message,
)
from codec.conversation.channels.state import (
    CLIENT,
    CONFIRM,
    CONNECTION,
    DECLARED,
    DELIVER,
    DIALOGUES,
    EMPTY,
    EPOCH,
    FREE_LINK,
    FREE_PENDING,
    FREE_REQUEST,
    LINKS,
    LOSSES,
    LOSSES_CLIENT,
    LOST_CLIENT,
    LOST_SERVER,
    NONE,
    PENDINGS,
    PRESETTLED,
    PUBLISH,
    RECEIVED,
    REQUESTS,
    RETURN,
    SENT,
    SERVER,
    STARTED,
    TOUCHED,
    TRANSACTED,
    TX,
    UNKNOWN,
    UNSETTLED,
    begin_life,
)
from codec.conversation.settlement import NO_RESULT
from codec.hashes.keyed import empty

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
WHOSE_LIFE, WHICH_TRANSACTION = 1, 2  # what is doubted of a slot


@kernel
def _end_life(s, out, channel):
    """The channel is opened anew, or the connection is over: what is known of this life goes out."""
    slot, numbers = s.slots[channel], s.numbers
    for ledger in (SENT, RECEIVED):
        opened = slot.opened_sent if ledger == SENT else slot.opened_received
        if slot.closed:
            lost = slot.lost_server if ledger == SENT else slot.lost_client
        else:
            lost = numbers[LOST_SERVER] if ledger == SENT else numbers[LOST_CLIENT]
        if opened and lost != NONE:
            _note_unknown(s, out, channel, slot.life, ledger, lost, LOWEST, HIGHEST)
    if slot.shown:
        write_life(out, numbers[CONNECTION], channel, slot)
        write_links(out, numbers[CONNECTION], channel, slot, s.links, s.declared)
    used_again(s.links, slot.links, numbers, FREE_LINK)
    used_again(s.pendings, slot.tx_head, numbers, FREE_PENDING)


@kernel
def _note_unknown(s, out, channel, life, ledger, frame_no, first, last):
    number = ledger_of(channel, life, ledger)
    write_event(out, s.numbers[CONNECTION], number, frame_no, 0, first, last, UNKNOWN, 0, 0, NO_RESULT)


@kernel
def end_connection(s, out):
    """The connection at hand has no more rows."""
    numbers = s.numbers
    if numbers[STARTED]:
        for i in range(numbers[TOUCHED]):
            _end_life(s, out, s.touched[i])


@kernel
def _begin_connection(s, connection):
    numbers = s.numbers
    numbers[CONNECTION] = connection
    numbers[STARTED] = 1
    numbers[EPOCH] += 1
    empty(s.found_by)
    for cell in (LOSSES, LOSSES_CLIENT, TOUCHED, DIALOGUES, REQUESTS, LINKS, PENDINGS, DECLARED):
        numbers[cell] = 0
    for cell in (LOST_CLIENT, LOST_SERVER, FREE_REQUEST, FREE_LINK, FREE_PENDING):
        numbers[cell] = NONE


@kernel
def _state_changes(s, rows, i, role, slot):
    """Row `i` sets something of the channel."""
    numbers = s.numbers
    if role.mode:
        slot.mode = role.mode
        if role.mode == CONFIRM and slot.confirm_from == NONE:
            slot.confirm_from = slot.published
            slot.confirm_losses = numbers[LOSSES_CLIENT]
    if role.prefetch:
        slot.prefetch_count = rows.prefetch_count[i]
        slot.prefetch_size = rows.prefetch_size[i]
    if role.closes_channel and not slot.closed:
        slot.closed = 1
        slot.close_ns = rows.ts_ns[i]
        slot.close_sender = rows.sender[i]
        slot.close_code = rows.reply_code[i]
        slot.close_text = rows.reply_text[i]
        slot.lost_client = numbers[LOST_CLIENT]
        slot.lost_server = numbers[LOST_SERVER]


@kernel
def _publish(s, out, rows, i, slot):
    """A publish: its tag as the broker counts, where that is known."""
    channel, frame_no, connection = rows.channel[i], rows.frame_no[i], s.numbers[CONNECTION]
    slot.published += 1
    tag, outcome = NONE, UNKNOWN
    if slot.mode == CONFIRM and slot.confirm_losses == s.numbers[LOSSES_CLIENT]:
        tag = slot.published - slot.confirm_from
        if tag > slot.named_sent and not slot.doubted:
            outcome = UNSETTLED
            slot.opened_sent += 1
            write_event(
                out, connection, ledger_of(channel, slot.life, SENT), frame_no, 1, tag, tag, 0, 0, 0, NO_RESULT
            )  # fmt: skip
            if rows.late[i]:
                _note_unknown(s, out, channel, slot.life, SENT, frame_no, tag, tag)
    elif slot.mode == TX and not slot.doubted:
        number = slot.published
        slot.tx_first = slot.tx_first if slot.tx_first else number
        slot.tx_last = number
        write_event(
            out, connection, ledger_of(channel, slot.life, TRANSACTED), frame_no, 1, number, number, 0, 0, 0, NO_RESULT
        )  # fmt: skip
    write_message(out, connection, frame_no, channel, slot.life, PUBLISH, 0, 0, tag, outcome)


@kernel
def _deliver(s, out, rows, i, role, slot, request):
    """A delivery: its queue and whether it is to be acknowledged, as its consumer or the request said."""
    channel, frame_no, connection = rows.channel[i], rows.frame_no[i], s.numbers[CONNECTION]
    tag, text = rows.delivery_tag[i], 0
    queue, no_ack = meant_queue(slot, rows.queue[i]), rows.no_ack[i]
    slot.delivered += 1
    if role.operation == DELIVER:
        queue, no_ack = 0, NONE
        if rows.consumer_tag[i] > EMPTY:
            text = rows.consumer_tag[i]
            link = s.links[link_of(s, slot, channel, text)]
            link.transfers += 1
            queue, no_ack = link.queue, link.no_ack
    elif request != NONE:
        asked = s.requests[request]
        queue = meant_queue(slot, asked.queue) if asked.queue else queue
        no_ack = asked.no_ack if asked.no_ack != NONE else no_ack
    outcome = UNSETTLED if no_ack == 0 else UNKNOWN
    if no_ack == 1:
        outcome = PRESETTLED
    elif tag <= slot.named_received or rows.late[i] or slot.doubted:
        outcome = UNKNOWN
    else:
        ledger = ledger_of(channel, slot.life, RECEIVED)
        slot.opened_received += 1
        write_event(out, connection, ledger, frame_no, 1, tag, tag, 0, 0, 0, NO_RESULT)
        if outcome == UNKNOWN:
            _note_unknown(s, out, channel, slot.life, RECEIVED, frame_no, tag, tag)
    queue = known_queue(s.declared, queue)
    write_message(out, connection, frame_no, channel, slot.life, role.operation, queue, text, tag, outcome)


@kernel
def _settle(s, out, rows, i, role, slot, outcome):
    """A settlement of what the other side has sent; in a transaction it waits."""
    tag, sender = rows.delivery_tag[i], rows.sender[i]
    many = role.settles_all != 0 or rows.multiple[i] == 1
    if tag == NONE and not role.settles_all:
        return
    first = LOWEST if many else tag
    last = HIGHEST if role.settles_all != 0 or (many and tag == 0) else tag
    of = SENT if sender == SERVER else RECEIVED
    ledger = ledger_of(rows.channel[i], slot.life, of)
    if rows.late[i] and last == HIGHEST:  # it was sent before some of what is outstanding here
        _note_unknown(s, out, rows.channel[i], slot.life, of, rows.frame_no[i], LOWEST, HIGHEST)
        return
    if not role.settles_all:
        if sender == SERVER:
            slot.named_sent = max(slot.named_sent, tag)
        else:
            slot.named_received = max(slot.named_received, tag)
    if slot.mode != TX or role.outside_transactions:
        write_event(
            out, s.numbers[CONNECTION], ledger, rows.frame_no[i], 0, first, last, outcome, 1, rows.ts_ns[i], NO_RESULT
        )  # fmt: skip
        return
    at = record_of(s.pendings, s.numbers, PENDINGS, FREE_PENDING)
    waiting = s.pendings[at]
    waiting.frame_no = rows.frame_no[i]
    waiting.ledger = ledger
    waiting.first = first
    waiting.last = last
    waiting.outcome = outcome
    waiting.next = slot.tx_head
    slot.tx_head = at


@kernel
def _channel_of(s, out, rows, i, role):
    """The slot of the row's channel, in the life that the row belongs to."""
    channel, numbers = rows.channel[i], s.numbers
    slot = s.slots[channel]
    if slot.epoch != numbers[EPOCH]:
        slot.epoch = numbers[EPOCH]
        s.touched[numbers[TOUCHED]] = channel
        numbers[TOUCHED] += 1
        begin_life(slot, 0)
    if role.opens_channel:
        _end_life(s, out, channel)
        begin_life(slot, slot.life + 1)
        slot.opened_ns = rows.ts_ns[i]
    if not rows.on_connection[i]:
        slot.shown = 1
    return slot


@inlined
def _was_used(s, channel):
    """Whether rows of a channel came before on this connection."""
    slot = s.slots[channel]
    return slot.epoch == s.numbers[EPOCH] and slot.shown


@kernel
def _doubt(s, rows, i, role, slot, out, reopened):
    """Row `i` was captured long before or after what the peer had sent before it. It may belong to another incarnation
    of its channel, where there are several; what is said in a transaction may belong to another one."""
    if slot.doubted or rows.on_connection[i]:
        return
    reopened = reopened or (role.opened_channel and rows.peer_late[i])
    if reopened or role.mode == TX or slot.mode == TX:
        slot.doubted = WHOSE_LIFE if reopened else WHICH_TRANSACTION
        s.numbers[LOSSES] += 1  # answers are not followed meanwhile: no request waits for one any more
        for ledger in (SENT, RECEIVED):
            _note_unknown(s, out, rows.channel[i], slot.life, ledger, rows.frame_no[i], LOWEST, HIGHEST)


@kernel
def _no_doubt(s, role, slot):
    """A row in order: nothing is left to come of an incarnation whose successor is open, nor of a transaction behind
    the request that ends it."""
    if slot.doubted == WHOSE_LIFE and role.opened_channel:
        slot.doubted = 0
    elif slot.doubted == WHICH_TRANSACTION and role.ends_transaction:
        slot.doubted = 0
        slot.tx_first = 0
        used_again(s.pendings, slot.tx_head, s.numbers, FREE_PENDING)
        slot.tx_head = NONE


@kernel
def _row(s, roles, rows, i, out):
    name = rows.name[i]
    role = roles.roles[name]
    apart = rows.peer_late[i] or rows.late[i]
    if apart and rows.peer_late[i]:
        s.numbers[LOST_SERVER if rows.sender[i] == CLIENT else LOST_CLIENT] = rows.frame_no[i]
    reopened = apart and role.opens_channel and _was_used(s, rows.channel[i])
    slot = _channel_of(s, out, rows, i, role)
    if apart:
        _doubt(s, rows, i, role, slot, out, reopened)
    _state_changes(s, rows, i, role, slot)
    link = open_link(s, rows, i, role, slot) if role.opens_link else NONE
    request = NONE
    if role.asks and rows.no_wait[i] != 1 and not rows.late[i] and not slot.doubted:
        request = ask(s, rows, i, role, slot, link)
    elif role.answers and not slot.doubted:
        request = answered(s, out, rows, i, role, slot)
    if role.declares:
        declare(s, rows, i, slot, request)
    if role.closes_link:
        close_link(s, rows, i, slot)
    if role.operation == PUBLISH:
        _publish(s, out, rows, i, slot)
    elif role.operation == RETURN:
        slot.returned += 1
        write_message(
            out, s.numbers[CONNECTION], rows.frame_no[i], rows.channel[i], slot.life, RETURN, 0, 0, NONE, PRESETTLED
        )  # fmt: skip
    elif role.operation:
        _deliver(s, out, rows, i, role, slot, request)
    outcome = roles.settles[name, rows.sender[i], rows.requeue[i] + 1]
    if outcome and not slot.doubted:
        _settle(s, out, rows, i, role, slot, outcome)
    if role.answers and request != NONE:
        used_again(s.requests, request, s.numbers, FREE_REQUEST)
    if slot.doubted and not apart:
        _no_doubt(s, role, slot)


@kernel
def follow(s, roles, rows, first, end, out):
    """Take `rows` from `first` on and before `end`, which follow those before; `s` and `out` have room for what they
    may bring (`with_room`, `new_results`)."""
    numbers = s.numbers
    for i in range(first, end):
        if numbers[STARTED] == 0 or numbers[CONNECTION] != rows.connection_id[i]:
            end_connection(s, out)
            _begin_connection(s, rows.connection_id[i])
        if rows.loss[i]:
            numbers[LOSSES] += 1
            if rows.sender[i] == CLIENT:
                numbers[LOSSES_CLIENT] += 1
                numbers[LOST_CLIENT] = rows.frame_no[i]
            else:
                numbers[LOST_SERVER] = rows.frame_no[i]
        else:
            _row(s, roles, rows, i, out)
