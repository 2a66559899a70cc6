"""Transfers and their settlement: writes messages, and events for `codec.conversation.settlement`.

1.0: dispositions settle ranges of delivery-ids. The receiver states an outcome and settles, or leaves settling to the
sender; a sender may settle with the transfer, or abort the delivery (1.0 core specification, 2.6.12, 2.7.5, 2.7.6).
0-10: a transfer is a command with a number; the receiver accepts, rejects or releases ranges of numbers. A publish is
settled when the server completes the command, a transfer with accept-mode none needs no settlement (0-10
specification, classes session, execution, message).

The outcome of a message is unknown (`named`) if a settlement of its number, or of a later one, was captured before it;
if it was captured late and needs a settlement; and if its session is `doubted`: settlements of another session may
count for it.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.conversation.session_links import end_subscriptions
from codec.conversation.session_lookup import ask, request_cell, waits
from codec.conversation.session_state import (
    BY_SENDER,
    CLIENT,
    COMPLETED,
    COMPLETIONS,
    CONFIRMED,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    LOSSES_CLIENT,
    MAPS,
    NONE,
    NOW,
    ONCE_ASKED,
    REPORTS,
    REQUEST_FRAME,
    REQUEST_IDS,
    SERIAL,
    SERVER,
    TX_COUNT,
    UNNUMBERED,
    new_record,
)
from codec.conversation.settlement import ABORTED, PRESETTLED, UNKNOWN


@kernel
def _write_event(s, rows, i, map_no, opens, first, last, outcome, final, key, waits):
    event = s.events.rows[new_record(s.events)]
    event.connection = rows.connection_id[i]
    event.map_no = map_no
    event.frame_no = rows.frame_no[i]
    event.name = rows.name[i]
    event.opens = opens
    event.first = first
    event.last = last
    event.outcome = outcome
    event.final = final
    event.effective_ns = rows.ts_ns[i]
    event.key = key
    event.waits = waits
    event.client_hidden = s.numbers[HIDDEN_CLIENT]
    if not opens:
        event.error = rows.error_text[i]
        event.info = rows.info[i]


@kernel
def open_delivery(s, rows, i, map_no):
    """Add what row `i` sends to an unsettled map."""
    _write_event(s, rows, i, map_no, 1, rows.number[i], rows.number[i], 0, 1, 0, 0)


@kernel
def _update_named(s, map_no, number):
    """Update the highest number that a settlement has named."""
    session, of_client = s.sessions.rows[map_no // MAPS], map_no % MAPS == CLIENT
    before = session.named_client if of_client else session.named_server
    if before != NONE and (number - before) % SERIAL >= SERIAL // 2:
        return
    if of_client:
        session.named_client = number
    else:
        session.named_server = number


@kernel
def _was_named(s, slot, sender, number):
    """Whether a settlement has already named this number or a later one."""
    session = s.sessions.rows[slot]
    named = session.named_client if sender == CLIENT else session.named_server
    return number != NONE and named != NONE and (named - number) % SERIAL < SERIAL // 2


@kernel
def _new_message(s, rows, i, slot, link):
    message = s.messages.rows[new_record(s.messages)]
    message.connection = rows.connection_id[i]
    message.frame_no = rows.frame_no[i]
    message.ts_ns = rows.ts_ns[i]
    message.session = slot
    message.link = link
    message.sender = rows.sender[i]
    message.number = rows.number[i]
    message.client_hidden = s.numbers[HIDDEN_CLIENT]
    message.server_hidden = s.numbers[HIDDEN_SERVER]
    message.named = _was_named(s, slot, rows.sender[i], rows.number[i])
    return message


@inlined
def transfer(s, rows, i, slot, link, key):
    """Row `i` begins a message."""
    message = _new_message(s, rows, i, slot, link)
    message.operation = rows.sender[i] + 1
    message.key = key
    message.readable = rows.readable[i]
    message.needs_no_accept = rows.no_accept[i]
    # What is sent to a coordinator is a command, not a message: the link tells, or else the body.
    message.command = rows.coordinates[i]
    if link != NONE and s.links.rows[link].known:
        message.command = s.links.rows[link].coordinator
    if message.command:
        s.numbers[TX_COUNT] = 1
    doubted = rows.late[i] or s.sessions.rows[slot].doubted
    message.named |= doubted
    message.row = i
    message.tag = rows.tag[i]
    message.resumes = int(rows.resume[i] == 1)
    message.stated_outcome = rows.outcome[i]
    if doubted and rows.settled[i] != 1 and rows.aborted[i] != 1:
        return
    if rows.number[i] != NONE and not (rows.sender[i] == SERVER and rows.no_accept[i] == 1):
        open_delivery(s, rows, i, slot * MAPS + rows.sender[i])


@kernel
def await_reply(s, rows, i, slot):
    """Row `i` is a command that its result or completion answers."""
    message = _new_message(s, rows, i, slot, NONE)
    message.command = 1


@kernel
def pair(s, rows, i, slot, cells, replies, requests):
    """Row `i` of a session or link replies to what the other side has asked, and asks: the exchanges, or 0. Requests
    have the id of the first one that waits, above those of deliveries and commands."""
    sender = rows.sender[i]
    if replies:
        at = request_cell(replies, 1 - sender)
        if waits(s, cells, at):
            first = SERIAL + cells[at + REQUEST_FRAME] % REQUEST_IDS
            _write_event(s, rows, i, slot * MAPS + 1 - sender, 0, first, first, CONFIRMED, 1, 0, 1)
        cells[at + REQUEST_FRAME] = 0
    if requests:
        at = request_cell(requests, sender)
        if not waits(s, cells, at):
            ask(s, cells, at, rows, i)
        first = SERIAL + cells[at + REQUEST_FRAME] % REQUEST_IDS
        await_reply(s, rows, i, slot)
        _write_event(s, rows, i, slot * MAPS + sender, 1, first, first, 0, 1, 0, 0)


@inlined
def settle_own(s, rows, i, slot, binding):
    """Any transfer of a delivery may settle it, until the last one also abort it: for good, whatever becomes of the
    transaction that it is in."""
    number = binding.delivery_id
    if number == NONE or binding.delivery_frame != rows.content_frame_no[i]:
        return
    map_no = slot * MAPS + rows.sender[i]
    if rows.aborted[i] == 1:
        _write_event(s, rows, i, map_no, 0, number, number, ABORTED, 1, 0, 0)
        return
    is_last = rows.more[i] != 1
    if rows.settled[i] == 1 or (binding.presettled and is_last):
        binding.presettled = 1
        _write_event(s, rows, i, map_no, 0, number, number, PRESETTLED, is_last, 0, 0)


@kernel
def _settle_range(s, rows, i, map_no, first, last, outcome, final, key, waits):
    """Settle the numbers from `first` to `last`, modulo SERIAL; nothing if `last` is before `first`, which is half of
    all numbers or more away."""
    if first == NONE or last == NONE or (last - first) % SERIAL >= SERIAL // 2:
        return
    if map_no % MAPS < COMPLETIONS:
        _update_named(s, map_no, last)
    if first <= last:
        _write_event(s, rows, i, map_no, 0, first, last, outcome, final, key, waits)
    else:
        _write_event(s, rows, i, map_no, 0, first, SERIAL - 1, outcome, final, key, waits)
        _write_event(s, rows, i, map_no, 0, 0, last, outcome, final, key, waits)


@inlined
def settle_ranges(s, rows, i, role, slot, key):
    """Row `i` settles, or states an outcome of, messages of one side of the session."""
    about, outcome, final = rows.about[i], rows.outcome[i], rows.final[i]
    if about == NONE:
        return
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        if final or outcome:
            waits = BY_SENDER if rows.by_sender[i] else REPORTS if role.reports_status else 1
            _settle_range(s, rows, i, slot * MAPS + about, first, last, outcome, final, key, waits)
        if role.completes and rows.sender[i] == SERVER:
            end_subscriptions(s, slot, first, last)
        if role.completes and (rows.sender[i] != SERVER or s.sessions.rows[slot].flushes):
            map_no = slot * MAPS + COMPLETIONS + about
            _settle_range(s, rows, i, map_no, first, last, CONFIRMED, 1, 0, 1)


@kernel
def _new_tx_end(s, rows, i, frame_no, key):
    tx_end = s.tx_ends.rows[new_record(s.tx_ends)]
    tx_end.connection = rows.connection_id[i]
    tx_end.frame_no = frame_no
    tx_end.ts_ns = rows.ts_ns[i]
    tx_end.key = key
    tx_end.client_hidden = s.numbers[HIDDEN_CLIENT]
    return tx_end


@kernel
def request_tx_end(s, rows, i, role, map_no, frame_no, key):
    """Row `i` requests the end of transaction `key`; the other side answers as to the message of `frame_no`."""
    tx_end = _new_tx_end(s, rows, i, frame_no, key)
    tx_end.map_no = map_no
    tx_end.result = rows.ends[i]
    tx_end.on_branch = role.names_branch


@kernel
def request_unnumbered_tx_end(s, rows, i, role, slot, key):
    """Row `i` requests the end of transaction `key`, and its id is unknown: that of a command after lost bytes, or in a
    session whose begin was not captured. Whoever ends the transaction of a session waits for the completion. So if it
    asks for one, and no other is outstanding, the next completion is that of this command; else nothing tells."""
    session, map_no = s.sessions.rows[slot], slot * MAPS + rows.sender[i]
    request_tx_end(s, rows, i, role, map_no, rows.frame_no[i], key)
    answered = role.of_session and rows.sender[i] == CLIENT and session.asked == 0
    if answered and session.asked_losses == s.numbers[LOSSES_CLIENT]:
        session.waits_unnumbered = NOW if rows.sync[i] == 1 else ONCE_ASKED
        _write_event(s, rows, i, map_no, 1, UNNUMBERED + NOW, UNNUMBERED + NOW, 0, 1, 0, 0)
        return
    _write_event(s, rows, i, map_no, 1, UNNUMBERED, UNNUMBERED, 0, 1, 0, 0)
    _write_event(s, rows, i, map_no, 0, UNNUMBERED, UNNUMBERED, UNKNOWN, 1, 0, REPORTS if role.names_branch else 1)


@kernel
def _answer_unnumbered(s, rows, i, slot, outcome):
    if s.sessions.rows[slot].waits_unnumbered:
        s.sessions.rows[slot].waits_unnumbered = 0
        _write_event(s, rows, i, slot * MAPS + CLIENT, 0, UNNUMBERED + NOW, UNNUMBERED + NOW, outcome, 1, 0, 1)


@kernel
def before_command(s, rows, i, role, slot):
    """Row `i` of the client may be a command: a client that does not wait makes the answer to a request without an id
    ambiguous. It may still ask for its completion, by execution.sync for example."""
    session = s.sessions.rows[slot]
    if session.waits_unnumbered and (role.awaits or role.transfers or role.settles) and not role.completes:
        asks_once = rows.sync[i] == 1 and session.asked == 0 and session.asked_losses == s.numbers[LOSSES_CLIENT]
        if session.waits_unnumbered == ONCE_ASKED and asks_once:
            session.waits_unnumbered = NOW
        else:
            _answer_unnumbered(s, rows, i, slot, UNKNOWN)


@kernel
def after_command(s, rows, i, role, slot):
    """Row `i` of either side asks for a completion, or is one: each one answers a request, as far as is known."""
    session, losses_now = s.sessions.rows[slot], s.numbers[LOSSES_CLIENT]
    if rows.sender[i] == CLIENT:
        if rows.sync[i] == 1 or (role.completes == 0 and rows.asks[i] == COMPLETED):
            session.asked += 1
        return
    if role.refuses:
        _answer_unnumbered(s, rows, i, slot, UNKNOWN)
    if role.completes == 0:
        return
    session.asked = max(0, session.asked - 1) if session.asked_losses == losses_now else 0
    session.asked_losses = losses_now
    end = rows.range_at[i + 1]
    if end > rows.range_at[i]:
        last, before = rows.range_last[end - 1], session.completed_to
        if before == NONE or 0 < (last - before) % SERIAL < SERIAL // 2:
            session.completed_to = last
            if session.waits_unnumbered == NOW:
                _answer_unnumbered(s, rows, i, slot, CONFIRMED)


@kernel
def declare_transaction(s, rows, i, slot):
    """Row `i` tells the name of the transaction that a command on a control link has begun."""
    if rows.about[i] != NONE and rows.range_at[i] < rows.range_at[i + 1]:
        tx_end = begin_transaction(s, rows, i, slot * MAPS + rows.about[i], rows.declared[i])
        tx_end.number = rows.range_first[rows.range_at[i]]


@kernel
def begin_transaction(s, rows, i, map_no, key):
    """Row `i` begins transaction `key`, which ends with its session at the latest; returns its record."""
    tx_end = _new_tx_end(s, rows, i, rows.frame_no[i], key)
    tx_end.map_no = map_no
    return tx_end


@kernel
def close_control_links(s, rows, i, slot, link):
    """Row `i` closes a link, or all of a session or (NONE) of the connection; transactions that were declared on them
    and not discharged are rolled back (1.0 core specification, 4.1), and so is the open one of an 0-10 session."""
    if s.numbers[TX_COUNT]:
        tx_end = _new_tx_end(s, rows, i, rows.frame_no[i], 0)
        tx_end.link = link
        tx_end.map_no = slot * MAPS if slot != NONE else NONE
