"""Links: pairs the attaches of both sides, resolves handles and destinations, and counts credit.

A link of 1.0 is identified by name and direction; each side gives it a handle, which is free again after the detach
(1.0 core specification, 2.6.1 to 2.6.6). Attaches of one name are answered in order. A destination of 0-10 is the name
of its latest subscription; nothing is sent over a subscription once the server has completed the cancel. Nothing is
paired across a loss: after it, only a new attach or subscription defines what a handle or destination stands for.

Messages with an undefined handle or destination belong to a link that is not `known`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec import stalls
from codec.compiler.kernel import inlined, kernel
from codec.conversation.session_lookup import (
    ask,
    reply,
    request_cell,
)
from codec.conversation.session_state import (
    ALL_LISTED,
    ATTACHED,
    CLIENT,
    CLOSING,
    CONNECTION,
    DEFAULT_FLOW_MODE,
    DESTINATION,
    FIRST,
    FLUSHED,
    FLUSHES,
    HANDLE,
    LISTED,
    LOSSES_CLIENT,
    NO_LIMIT,
    NONE,
    OPENING,
    RECEIVER,
    SENDER,
    SERIAL,
    SERVER,
    STALL_FIELDS,
    SUBSCRIPTION,
    TX,
    ZEROES,
    key_of,
    losses,
    new_record,
)
from codec.conversation.states import blank
from codec.hashes.maps import get, put


@kernel
def _new_link(s, slot, known, kind, name):
    at = new_record(s.links)
    link = s.links.rows[at]
    link.connection = s.numbers[CONNECTION]
    link.session = slot
    link.known = known
    link.kind = kind
    link.name = name
    link.losses = losses(s.numbers)
    return at


@kernel
def _binding(s, key):
    """The binding of a handle or destination."""
    at = get(s.found_by, key)
    if at == NONE:
        at = new_record(s.bindings)
        put(s.found_by, key, at)
    return s.bindings.rows[at]


@kernel
def handle_of(s, rows, i, slot):
    """The binding of the handle of row `i`; rows without a handle share one."""
    return _binding(s, key_of(HANDLE, slot - s.sessions.cells[FIRST], rows.sender[i], rows.handle[i] + 1))


@kernel
def destination_of(s, rows, i, slot):
    """The binding of the destination of row `i`."""
    return _binding(s, key_of(DESTINATION, slot - s.sessions.cells[FIRST], 0, rows.destination[i]))


@kernel
def bound_link(s, binding, slot, kind, name, own_losses):
    """The link that a handle or destination stands for; a link that is not known if it stands for none."""
    if binding.link != NONE and binding.losses == own_losses:
        return binding.link
    if binding.unknown == NONE or binding.unknown_losses != own_losses:
        binding.unknown = _new_link(s, slot, 0, kind, name)
        binding.unknown_losses = own_losses
    return binding.unknown


@kernel
def _attaching(s, slot, session, sender, kind, name):
    """The queue of attaches of a name and direction that wait for those of the other side; one more end is attached. A
    loss empties the queue."""
    key = key_of(ATTACHED, slot - s.sessions.cells[FIRST], kind - SENDER, name)
    at = get(s.found_by, key)
    epoch = losses(s.numbers)
    if at == NONE:
        at = new_record(s.attachings)
        put(s.found_by, key, at)
    attaching = s.attachings.rows[at]
    if attaching.epoch != epoch:
        attaching.epoch = epoch
        # The side that attaches first is the opener. If the capture began or lost bytes inside the session, the first
        # attach that was captured may be an answer: the client is taken to be the opener.
        attaching.opener = sender if session.opened_losses == epoch else CLIENT
        attaching.head = NONE
        attaching.tail = NONE
        attaching.ends = 0
    elif attaching.ends == 0 and attaching.head == NONE:  # either side may attach the link anew
        attaching.opener = sender
    attaching.ends += 1
    return attaching


@kernel
def attach(s, rows, i, slot, session, binding, own_losses):
    """Row `i` attaches: bind its handle to a new link, or to that of the attach that it answers."""
    sender, name = rows.sender[i], rows.link_name[i]
    if rows.handle[i] == NONE or name == 0 or rows.is_receiver[i] == NONE:
        binding.link = NONE
        return
    kind = RECEIVER if (sender == CLIENT) == (rows.is_receiver[i] == 1) else SENDER
    attaching = _attaching(s, slot, session, sender, kind, name)
    at = NONE
    if sender != attaching.opener and attaching.head != NONE:
        at = attaching.head
        attaching.head = s.links.rows[at].next
        if attaching.head == NONE:
            attaching.tail = NONE
        reply(s, s.links.rows[at].waiting, request_cell(OPENING, attaching.opener), rows, i)
    else:
        at = _new_link(s, slot, 1, kind, name)
        if sender == attaching.opener:
            ask(s, s.links.rows[at].waiting, request_cell(OPENING, sender), rows, i)
            if attaching.head == NONE:
                attaching.head = at
            else:
                s.links.rows[attaching.tail].next = at
            attaching.tail = at
    binding.link = at
    binding.losses = own_losses
    _state_terms(s, rows, i, session, s.links.rows[at])
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        if rows.range_last[k] > 0 or rows.lists_all[i]:
            _list(s, rows, i, slot, at, LISTED, rows.range_first[k], rows.range_last[k])
    if rows.lists_all[i]:
        _list(s, rows, i, slot, at, ALL_LISTED, 0, 0)


@kernel
def _list(s, rows, i, slot, at, resumes, tag, outcome):
    """The attach in row `i` lists an unsettled delivery of the link at `at`, or that it has listed all."""
    message = s.messages.rows[new_record(s.messages)]
    message.connection = s.numbers[CONNECTION]
    message.frame_no = rows.frame_no[i]
    message.session = slot
    message.link = at
    message.sender = CLIENT if s.links.rows[at].kind == SENDER else SERVER
    message.number = NONE
    message.command = 1
    message.resumes = resumes
    message.tag = tag
    message.stated_outcome = outcome


@kernel
def _state_terms(s, rows, i, session, link):
    """Update a link with the fields of the attach in row `i`."""
    sender = rows.sender[i]
    # The address of the far end: where the messages go to, or come from.
    address = rows.target_address[i] if link.kind == SENDER else rows.source_address[i]
    if sender == CLIENT:
        link.client_attached = 1
        link.client_handle = rows.handle[i]
        link.client_address = address
        link.client_snd_mode = rows.snd_settle_mode[i]
        link.client_rcv_mode = rows.rcv_settle_mode[i]
        link.client_has_source = rows.source[i]
        link.client_default = rows.default_outcome[i]
        link.client_copies = rows.copies[i]
        link.client_filters = rows.filters[i]
        if rows.coordinator[i]:
            link.coordinator = 1
            session.mode = TX
    else:
        link.server_attached = 1
        link.server_handle = rows.handle[i]
        link.server_address = address
        link.server_snd_mode = rows.snd_settle_mode[i]
        link.server_rcv_mode = rows.rcv_settle_mode[i]
        link.server_has_source = rows.source[i]
        link.server_default = rows.default_outcome[i]
        link.server_copies = rows.copies[i]
        link.server_filters = rows.filters[i]
    if sender == (CLIENT if link.kind == SENDER else SERVER):
        link.initial_count = rows.initial_delivery_count[i]
        if link.initial_count != NONE and link.assumed_count != NONE:
            ahead = (link.assumed_count - link.initial_count) % SERIAL
            link.allowed += ahead
            link.credit += ahead
    if link.opened_ns == NONE:
        link.opened_ns = rows.ts_ns[i]


@kernel
def detach(s, rows, i, slot, binding, link):
    """Row `i` detaches: the first detach ends the link, the first one with an error has its reason."""
    binding.link = NONE
    at = get(s.found_by, key_of(ATTACHED, slot - s.sessions.cells[FIRST], link.kind - SENDER, link.name))
    if at != NONE and s.attachings.rows[at].epoch == link.losses:
        s.attachings.rows[at].ends -= 1
    if link.closing_ns == NONE:
        link.closing_ns = rows.ts_ns[i]
        link.closing_losses = losses(s.numbers)
        ask(s, link.waiting, request_cell(CLOSING, rows.sender[i]), rows, i)
    else:
        reply(s, link.waiting, request_cell(CLOSING, 1 - rows.sender[i]), rows, i)
    if rows.closed[i] == 1:
        link.closed = 1
    if rows.error[i] and not link.failed:
        link.failed = 1
        link.condition = rows.condition[i]
        link.description = rows.description[i]


@kernel
def _since_attach(rows, i, link, ahead):
    """The delivery-count of a flow and `ahead`, counted from the first message of the link (2.6.7)."""
    count = rows.delivery_count[i]
    if link.initial_count == NONE:
        # Where the sender begins to count: its attach, which states that, may come later.
        link.assumed_count = count
        return ahead
    if count == NONE:
        return ahead
    return (count + ahead - link.initial_count) % SERIAL


@kernel
def _change_stall(s, rows, i, link, ts_ns):
    """The sender of the link has no credit any longer, or has some again. After a loss its credit is not known."""
    if link.losses != losses(s.numbers):
        stalls.forget(link, 0)
    elif not link.starves:
        stalls.end(link, 0, ts_ns)
    else:
        if stalls.apart(link, 0, ts_ns):
            side = CLIENT if link.kind == SENDER else SERVER
            n = stalls.write(s.stalls, s.stall_count, link, 0, stalls.NO_CREDIT, side, NONE)
            if n != NONE:
                row, session = s.stalls[n], s.sessions.rows[link.session]
                row[stalls.CONNECTION], row[stalls.LINK] = link.connection, link.name
                row[stalls.CHANNEL], row[stalls.INCARNATION] = session.channel, session.incarnation
        stalls.begin(link, 0, ts_ns, rows.frame_no[i], rows.packet_no[i], rows.file[i])


@inlined
def credit_link(s, rows, i, role, link):
    """Update the credit of a link, and how long it had none until its first detach."""
    starved = link.starves
    ts_ns = rows.ts_ns[i] if link.closing_ns == NONE else link.closing_ns
    if link.starves:
        link.starved_ns += ts_ns - link.last_ns
    if role.states_credit:
        by_receiver = (rows.sender[i] == SERVER) == (link.kind == SENDER)
        if by_receiver and rows.link_credit[i] != NONE:
            allowed = _since_attach(rows, i, link, rows.link_credit[i])
            if allowed != NONE:
                link.allowed = allowed
                link.credit = max(link.credit, allowed)
        elif not by_receiver and rows.delivery_count[i] != NONE:
            # The sender counts the credit that it gave up without a message (drain) as used (2.6.7).
            counted = _since_attach(rows, i, link, 0)
            if counted != NONE:
                link.drained = counted - link.transfers
    link.starves = 1 if link.allowed - link.transfers - link.drained <= 0 else 0
    link.last_ns = ts_ns
    if link.starves != starved:
        _change_stall(s, rows, i, link, ts_ns)


@kernel
def subscribe(s, rows, i, slot, binding):
    """Row `i` subscribes: its destination is bound to the subscription."""
    at = _new_link(s, slot, 1, SUBSCRIPTION, rows.destination[i])
    link = s.links.rows[at]
    link.queue = rows.queue[i]
    link.command_id = rows.number[i]
    link.no_ack = rows.no_accept[i]
    link.exclusive = 1 if rows.exclusive[i] == 1 else 0
    link.acquire_mode = max(rows.acquire_mode[i], 0)
    link.opened_ns = rows.ts_ns[i]
    link.attach_frame[CLIENT] = binding.bound_frame = rows.frame_no[i]
    binding.link = at
    binding.losses = s.numbers[LOSSES_CLIENT]


@kernel
def change_subscription(s, rows, i, role, slot, at):
    """Update the subscription at `at` with a command about it, or a transfer over it."""
    link, value = s.links.rows[at], rows.value[i]
    if role.cancels and link.closing_ns == NONE:
        link.closing_ns = rows.ts_ns[i]
        link.closing_losses = losses(s.numbers)
        if link.known and rows.number[i] != NONE:
            _await_completion(s, slot, at, rows.number[i])
    if role.sets_flow_mode:
        link.flow_mode = rows.flow_mode[i]
    if role.grants_credit and rows.unit[i] == 0 and value != NONE:
        link.credit = max(link.credit, 0) + value
        if value == NO_LIMIT:
            link.unlimited = 1
    if not link.known:
        return
    change = s.changes.rows[new_record(s.changes)]
    change.connection = s.numbers[CONNECTION]
    change.session = slot
    change.link = at
    change.frame_no = rows.frame_no[i]
    change.packet_no = rows.packet_no[i]
    change.file = rows.file[i]
    change.ts_ns = rows.ts_ns[i]
    change.messages = -1 if role.transfers else 0
    change.byte_count = 0
    if role.grants_credit and value != NONE:
        if rows.unit[i] == 0:
            change.messages = value
        elif rows.unit[i] == 1:
            change.byte_count = value
    change.sent = role.transfers
    change.zeroes = role.zeroes_credit
    change.flow_mode = rows.flow_mode[i] if role.sets_flow_mode else NONE
    change.cancels = role.cancels
    change.losses = losses(s.numbers)


@kernel
def _await_completion(s, slot, at, command_id):
    """The subscription at `at` is cancelled: it waits behind those cancelled before it until that is completed."""
    session = s.sessions.rows[slot]
    s.links.rows[at].cancel_id = command_id
    if session.cancelled_first == NONE:
        session.cancelled_first = at
    else:
        s.links.rows[session.cancelled_last].next = at
    session.cancelled_last = at


@kernel
def end_subscriptions(s, slot, first, last):
    """The server has completed the commands from `first` to `last`: subscriptions that they cancelled are over."""
    session = s.sessions.rows[slot]
    while session.cancelled_first != NONE:
        at = session.cancelled_first
        link = s.links.rows[at]
        if (link.cancel_id - first) % SERIAL > (last - first) % SERIAL:
            return
        session.cancelled_first = link.next
        link.next = NONE
        link.over = 1
        key = key_of(DESTINATION, slot - s.sessions.cells[FIRST], 0, link.name)
        binding = s.bindings.rows[get(s.found_by, key)]
        if binding.link == at:
            binding.link = NONE


# Credit of subscriptions of AMQP 0-10: how long the server was not allowed to send.
#
# A subscription begins in window mode without credit. message.flow adds messages or bytes (payloads of header and body
# frames; 2^32-1: no limit), and each transfer uses both. In window mode a transfer returns its credit when the client
# completes it. message.stop and message.set-flow-mode set the credit to zero, after which earlier transfers return
# none. So does message.flush once the server completes it, but for what was given after it. Credit is never negative:
# transfers sent before a stop arrived are not owed. (0-10 specification, class message: subscribe, set-flow-mode, flow,
# flush, stop.)


WINDOW = DEFAULT_FLOW_MODE
# The credit of a subscription after its changes so far. `zeroed`: frame in which it was set to zero; `since_ns`: since
# when there is none; `idle_ns`: how long there was none before; `losses`: those before its first change. `flushing`: a
# flush waits for its completion; `later_*`: what was given since.
NEW_CREDIT = blank(
    "connection link messages byte_count all_messages all_bytes zeroed window over since_ns? idle_ns losses? "
    "flushing later_messages later_bytes later_all_messages later_all_bytes",
    "",
    **dict.fromkeys(STALL_FIELDS, 1),
)
NEW_CREDIT["window"] = WINDOW
CREDIT = NEW_CREDIT.dtype


class Changes(NamedTuple):
    """Changes of credit by subscription and frame_no: columns int64 (n,). `sent_frame_no`: of returned credit, the
    transfer that used it, else -1. `zeroes`: 0, or one of semantics.ZEROES, FLUSHES, FLUSHED. `losses`: those before
    it, -1 of returned credit."""

    link: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    messages: np.ndarray
    byte_count: np.ndarray
    sent_frame_no: np.ndarray
    zeroes: np.ndarray
    flow_mode: np.ndarray
    cancels: np.ndarray
    losses: np.ndarray
    packet_no: np.ndarray
    file: np.ndarray


@kernel
def _balance(limitless, left):
    return 1 if limitless else left


@kernel
def _change_credit_stall(changes, i, credit, link, nothing, ts_ns, rows, count):
    """The server has no credit for a subscription, or has some; `i`: what changed that. After a loss its credit is not
    known."""
    if changes.losses[i] > credit.losses:
        stalls.forget(credit, 0)
        return
    if nothing and not credit.over:
        if stalls.apart(credit, 0, ts_ns):
            write_stall(rows, count, credit, link, NONE)
        stalls.begin(credit, 0, ts_ns, changes.frame_no[i], changes.packet_no[i], changes.file[i])
    elif nothing:
        write_stall(rows, count, credit, link, ts_ns)
    else:
        stalls.end(credit, 0, ts_ns)


@kernel
def write_stall(rows, count, credit, link, until_ns):
    """Write the stall of a subscription."""
    n = stalls.write(rows, count, credit, 0, stalls.NO_CREDIT, SERVER, until_ns)
    if n != NONE:
        rows[n, stalls.LINK] = link


@kernel
def apply_changes(changes, credits, rows, count):
    """Apply changes to `credits`, CREDIT by link: later ones continue there. Stalls are written to `rows`
    (`codec.stalls`; one for each change at most), with the indices of links."""
    n, i = len(changes.link), 0
    while i < n:
        link, frame_no = changes.link[i], changes.frame_no[i]
        credit = credits[link]
        end = i
        while end < n and changes.link[end] == link and changes.frame_no[end] == frame_no:
            zeroes = changes.zeroes[end]
            if zeroes in (ZEROES, FLUSHES):
                credit.later_messages = credit.later_bytes = 0
                credit.later_all_messages = credit.later_all_bytes = 0
            if zeroes == ZEROES or (zeroes == FLUSHED and credit.flushing):
                credit.zeroed = frame_no
                credit.messages, credit.byte_count = credit.later_messages, credit.later_bytes
                credit.all_messages, credit.all_bytes = credit.later_all_messages, credit.later_all_bytes
            if zeroes:
                credit.flushing = zeroes == FLUSHES
            if changes.flow_mode[end] != NONE:
                credit.window = changes.flow_mode[end]
            credit.over |= changes.cancels[end]
            end += 1
        more_messages, more_bytes = 0, 0
        for k in range(i, end):
            sent = changes.sent_frame_no[k]
            if sent == NONE or (credit.window == WINDOW and sent > credit.zeroed):
                more_messages += changes.messages[k]
                more_bytes += changes.byte_count[k]
            all_messages, all_bytes = changes.messages[k] == NO_LIMIT, changes.byte_count[k] == NO_LIMIT
            credit.all_messages |= all_messages
            credit.all_bytes |= all_bytes
            if credit.flushing and sent == NONE:
                credit.later_messages += max(changes.messages[k], 0)
                credit.later_bytes += max(changes.byte_count[k], 0)
                credit.later_all_messages |= all_messages
                credit.later_all_bytes |= all_bytes
        credit.messages = max(0, credit.messages + more_messages)
        credit.byte_count = max(0, credit.byte_count + more_bytes)
        nothing = (
            _balance(credit.all_messages, credit.messages) <= 0 or _balance(credit.all_bytes, credit.byte_count) <= 0
        )
        ts_ns = changes.ts_ns[end - 1]
        if credit.since_ns != NONE:
            credit.idle_ns += ts_ns - credit.since_ns
        credit.since_ns = ts_ns if nothing and not credit.over else NONE
        _change_credit_stall(changes, i, credit, link, nothing, ts_ns, rows, count)
        i = end
