"""What is odd in AMQP 0-10: sessions and their attachment, numbers of commands and their completion, subscriptions and
their credit, settlement, transactions.

The session tracker calls these as it follows a frame, with the session and the link that it has found. Credit of
messages is followed as `codec.conversation.session_links` says it; of bytes only whether there is any. (0-10
specification, classes session, execution, message, tx, dtx.)
"""

from __future__ import annotations

from codec.compiler.kernel import kernel, outlined
from codec.conversation import oddities as O
from codec.conversation.oddities import after, late, note
from codec.conversation.session_state import (
    BEGUN,
    BRANCH,
    CHANNEL_LIMIT,
    CLIENT,
    DEFAULT_FLOW_MODE,
    DELIVERY,
    ENDED,
    FIRST,
    FLUSH,
    FLUSHES,
    KNOWN_COMPLETED,
    LINK_BITS,
    NAMED,
    NAMES,
    NO_LIMIT,
    NONE,
    OF_LINK,
    RESULT,
    SERIAL,
    SERVER,
    STEPS,
    WAS,
    key_of,
)
from codec.conversation.v1_0_oddities import MOST_UNSETTLED
from codec.hashes.maps import VALUE, get, has_entry, put, remove, remove_at, slot_of

(
    DETACH, KNOWN, EXPECTED, SYNC, FLOW, STOP, ACQUIRE, RELEASE, REJECT, TX_SELECT, DTX_SELECT,
    DTX_START, DTX_END, TUNE, TUNE_OK,
) = (
    NAMES.index(name) + 1
    for name in (
        "session.detach", "session.known-completed", "session.expected", "execution.sync",
        "message.flow", "message.stop", "message.acquire", "message.release", "message.reject", "tx.select",
        "dtx.select", "dtx.start", "dtx.end", "connection.tune", "connection.tune-ok",
    )
)  # fmt: skip
ASKED, READY, OVER = range(1, 4)  # `phase` of a session: attach, attached, detached
BEGINNING, REST = 1, 2  # `expects`: what command-point announces for the next frame
TX, DTX = 1, 2  # bits of `selected`
IN_MESSAGES = 0  # unit of credit
# How many commands of a side that ask for results are known; added to a RESULT, which is twice the id: the result came.
RESULTS, ANSWERED = 16, 1
UNSETTLED, GIVES_BACK = 1 << LINK_BITS, 2 << LINK_BITS  # of a DELIVERY; with the second it gives credit back


@outlined
def on_connection(s, rows, i):
    """A control of the connection itself."""
    if rows.channel[i] != 0:
        note(s.odd, O.CONTROL_CHANNEL, rows.channel[i], 0, NONE)
    if rows.name[i] in (TUNE, TUNE_OK):
        s.numbers[CHANNEL_LIMIT + rows.sender[i]] = max(rows.few[rows.at_few[i]].channel_max, 0)


@kernel
def on_frame(s, rows, i, role):
    """Any control or command: who may send it, and its sets of ids."""
    sender = rows.sender[i]
    s.odd.now[O.CHANNEL] = rows.channel[i]
    if role.sent_by and role.sent_by != 1 << sender:
        note(s.odd, O.WRONG_SIDE, NONE, NONE, NONE)
    begin, end = rows.range_at[i], rows.range_at[i + 1]
    for k in range(begin, end):
        # Ids rise within a range, and ranges are neither adjacent nor overlapping.
        first, last = rows.range_first[k], rows.range_last[k]
        if after(last, first) < 0 or (k > begin and after(first, rows.range_last[k - 1]) <= 1):
            note(s.odd, O.SET_MALFORMED, NONE, NONE, NONE)
            return


# Sessions.


@kernel
def _is_attached(session, sender):
    """Whether a session is attached when the next frame of `sender` arrives: not after its detach."""
    return session.phase == READY and not (session.detach_ns != NONE and session.detacher == sender)


@outlined
def before_attach(s, rows, i):
    """Before a session.attach: whether its channel has another session; where the name is attached elsewhere, its
    session and channel, else NONE."""
    sender, name, first = rows.sender[i], rows.session_name[i], s.sessions.cells[FIRST]
    before, named = get(s.found_by, key_of(BEGUN, 0, sender, rows.channel[i])), NONE
    busy, channel = False, NONE
    if before != NONE:
        session = s.sessions.rows[first + before]
        busy = _is_attached(session, sender) and session.name != name
        if not (session.phase == READY and session.detach_ns != NONE and session.detacher == sender):
            for side in range(2):
                session.sync_id[side] = session.timely_ns[side] = session.result_ns[side] = NONE
            session.detach_ns = NONE
    if name:
        named = get(s.found_by, key_of(NAMED, 0, 0, name))
    if named != NONE:
        session = s.sessions.rows[first + named]
        channel = session.attached_to if _is_attached(session, sender) and rows.few[rows.at_few[i]].force != 1 else NONE
    return busy, named, channel


@outlined
def on_attach(s, rows, i, session, slot, busy, named, channel):
    """The session at `slot` is attached, or asked to be; the rest is what `before_attach` returned."""
    o = s.odd
    if busy:
        note(o, O.CHANNEL_BUSY, NONE, NONE, NONE)
    if channel != NONE and named != slot:
        note(o, O.SESSION_TWICE, channel, NONE, NONE)
    session.phase, session.asker = ASKED, rows.sender[i]
    session.detach_ns = NONE
    for side in range(2):  # command-point comes before the commands of a transport that is newly attached
        session.pointed[side] = session.expects[side] = 0
    put(s.found_by, key_of(WAS, 0, 0, rows.channel[i]), session.channel << LINK_BITS | session.incarnation)


@outlined
def on_detach(s, rows, i, session):
    """session.detach, or session.detached, which ends the session as it is attached now."""
    o, sender, ts_ns = s.odd, rows.sender[i], rows.ts_ns[i]
    if rows.name[i] == DETACH:
        session.detach_ns, session.detach_frame, session.detacher = ts_ns, rows.frame_no[i], sender
        return
    if rows.code[i] > 0:
        note(o, O.DETACHED_CODE, rows.code[i], NONE, rows.frame_no[i])
    if session.detach_ns != NONE:
        late(o, O.DETACH_WAITS, sender, session.detach_frame, session.detach_ns, NONE)
    for side in range(2):
        if session.sync_id[side] != NONE:
            late(o, O.SYNC_UNANSWERED, 1 - side, session.sync_frame[side], session.sync_ns[side], NONE)
        if session.timely_ns[side] != NONE:
            late(o, O.COMPLETED_UNANSWERED, 1 - side, session.timely_frame[side], session.timely_ns[side], NONE)
        if session.result_ns[side] != NONE:
            late(o, O.RESULT_MISSING, 1 - side, session.result_frame[side], session.result_ns[side], NONE)
        session.sync_id[side] = session.timely_ns[side] = session.result_ns[side] = session.result_id[side] = NONE
    session.detach_ns, session.phase = NONE, OVER
    session.detached_ns, session.detached_by = ts_ns, sender
    put(s.found_by, key_of(ENDED, 0, 0, rows.channel[i]), 2 * ts_ns + sender)


@outlined
def not_attached(s, rows, i, session):
    """A frame of a session that is not attached; returns whether that is over."""
    o, sender = s.odd, rows.sender[i]
    detached_ns, by, over = session.detached_ns, session.detached_by, session.phase == OVER
    if session.phase == 0:  # no session has this number any longer
        ended = get(s.found_by, key_of(ENDED, 0, 0, rows.channel[i]))
        was = get(s.found_by, key_of(WAS, 0, 0, rows.channel[i]))
        over = ended != NONE and was != NONE
        if over:
            detached_ns, by = ended >> 1, ended & 1
            o.now[O.CHANNEL], o.now[O.INCARNATION] = was >> LINK_BITS, was & OF_LINK
    on_its_way = over and by == 1 - sender and rows.ts_ns[i] - detached_ns <= o.now[O.GRACE]
    if not on_its_way and not (session.phase == ASKED and session.asker == sender):
        note(o, O.NOT_ATTACHED, NONE, NONE, NONE)
    return over


@kernel
def on_channel(s, rows, i):
    """Any control or command of a session: the number of its channel."""
    of_client, of_server = s.numbers[CHANNEL_LIMIT + CLIENT], s.numbers[CHANNEL_LIMIT + SERVER]
    agreed = min(of_client, of_server) if of_client and of_server else max(of_client, of_server)
    if rows.channel[i] >= agreed > 0:
        note(s.odd, O.CHANNEL_ABOVE, rows.channel[i], agreed - 1, NONE)


@kernel
def on_session(s, rows, i, role, session, slot):
    """A control or command of a session, but those that attach and detach it. `slot`: of the session among those of
    the connection."""
    o, sender = s.odd, rows.sender[i]
    over = session.phase != READY and not_attached(s, rows, i, session)
    if role.is_command:
        if session.expects[sender]:
            if session.expects[sender] != (REST if rows.continues[i] else BEGINNING):
                note(o, O.COMMAND_OFFSET, 1 - rows.continues[i], NONE, NONE)
            session.expects[sender] = 0
        if rows.readable[i]:
            _command(s, rows, i, role, session, slot, over)
    if not rows.readable[i]:
        return
    if role.names_commands:
        _ids(s, rows, i, role, session, slot)
    elif role.names_transfers:
        _settle(s, rows, i, session, slot)
    elif role.points:
        session.pointed[sender] = 1
        session.next[sender] = rows.number[i]
        session.expects[sender] = REST if rows.few[rows.at_few[i]].command_offset > 0 else BEGINNING
    elif role.reports_status:
        _result(s, rows, i, session, slot)
    elif role.refuses:
        note(o, O.EXCEPTION, rows.code[i], NONE, rows.frame_no[i])
        session.failed_by = sender
    elif role.in_transactions:
        _transactions(s, rows, i, role, session, slot)


@kernel
def _command(s, rows, i, role, session, slot, over):
    """A command: its number (session.command-point), sync, and result."""
    o, sender, number = s.odd, rows.sender[i], rows.number[i]
    if not session.pointed[sender] and not over:
        note(o, O.NO_COMMAND_POINT, NONE, NONE, NONE)
        session.pointed[sender] = 1
    if session.failed_by == sender:
        note(o, O.AFTER_EXCEPTION, NONE, NONE, NONE)
    if number == NONE or role.reports_status or role.refuses:
        # the argument of these has the name of what every command has
        if session.next[sender] != NONE:
            session.next[sender] = (session.next[sender] + 1) % SERIAL
        return
    session.next[sender] = (number + 1) % SERIAL
    if rows.sync[i] == 1 or rows.name[i] == SYNC:
        if session.sync_id[sender] == NONE:
            session.sync_ns[sender], session.sync_frame[sender] = rows.ts_ns[i], rows.frame_no[i]
        session.sync_id[sender] = number
    if role.gives_result:
        put(s.found_by, key_of(RESULT, slot, sender, number % RESULTS), 2 * number)
        session.result_id[sender], session.result_frame[sender] = number, rows.frame_no[i]
        session.result_ns[sender] = NONE


@kernel
def _ids(s, rows, i, role, session, slot):
    """Sets of command ids: of the other side (session.completed, confirmed, expected), or completed by it."""
    o, name, sender, ts_ns = s.odd, rows.name[i], rows.sender[i], rows.ts_ns[i]
    other, unknown, repeated = 1 - sender, False, False
    begin, end = rows.range_at[i], rows.range_at[i + 1]
    for k in range(begin, end):
        first, last = rows.range_first[k], rows.range_last[k]
        if name == KNOWN:
            if session.known_to[other] == NONE or after(first, session.known_to[other]) <= 1:
                session.known_to[other], session.known_ns[other] = last, ts_ns
            continue
        unknown |= session.next[other] != NONE and after(last, session.next[other]) >= 0
        if name == EXPECTED:
            continue
        known = session.known_to[sender]
        repeated |= known != NONE and after(first, known) <= 0 and ts_ns - session.known_ns[sender] > o.now[O.GRACE]
        if role.completes:
            _complete(s, rows, i, session, slot, first, last)
    if unknown:
        note(o, O.IDS_UNKNOWN, rows.range_last[end - 1], (session.next[other] - 1) % SERIAL, NONE)
    if repeated:
        note(o, O.KNOWN_COMPLETED_REPEATED, rows.range_first[begin], session.known_to[sender], NONE)
    if name == KNOWN and session.timely_ns[other] != NONE:
        late(o, O.COMPLETED_UNANSWERED, sender, session.timely_frame[other], session.timely_ns[other], NONE)
        session.timely_ns[other] = NONE
    if role.completes and rows.asks[i] == KNOWN_COMPLETED and session.timely_ns[sender] == NONE:
        session.timely_ns[sender], session.timely_frame[sender] = ts_ns, rows.frame_no[i]


@kernel
def _complete(s, rows, i, session, slot, first, last):
    """The sender has completed commands `first` to `last` of the other side."""
    sender = rows.sender[i]
    other = 1 - sender
    waits, asked = session.sync_id[other], session.result_id[other]
    if waits != NONE and after(waits, first) >= 0 and after(last, waits) >= 0:
        late(s.odd, O.SYNC_UNANSWERED, sender, session.sync_frame[other], session.sync_ns[other], NONE)
        session.sync_id[other] = NONE
    if asked != NONE and after(asked, first) >= 0 and after(last, asked) >= 0:
        session.result_ns[other] = rows.ts_ns[i]
    if session.done_to[sender] == NONE or after(last, session.done_to[sender]) > 0:
        session.done_to[sender] = last
    if sender == CLIENT:
        _return_credit(s, session, slot, first, last)
    elif session.flush_from != NONE:
        _flush(s, session, slot, first, last)


@kernel
def _result(s, rows, i, session, slot):
    other, number = 1 - rows.sender[i], rows.number[i]
    if number == NONE:
        return
    key = key_of(RESULT, slot, other, number % RESULTS)
    asked = get(s.found_by, key)
    if asked == 2 * number:
        put(s.found_by, key, asked + ANSWERED)
    elif asked == NONE or after(number, asked >> 1) >= 0:  # else: a later command has taken the key
        note(s.odd, O.RESULT_UNKNOWN, number, NONE, NONE)
    if number == session.result_id[other]:
        session.result_id[other] = session.result_ns[other] = NONE


@outlined
def _transactions(s, rows, i, role, session, slot):
    """Classes tx and dtx: the order of their commands."""
    o, name = s.odd, rows.name[i]
    if name == TX_SELECT:
        if session.selected & TX:
            note(o, O.TRANSACTION_ORDER, NONE, NONE, NONE)
        session.selected |= TX
        if session.implicit:
            note(o, O.IMPLICIT_ACCEPT, NONE, NONE, NONE)
    elif role.of_session:
        if not session.selected & TX:
            note(o, O.TRANSACTION_ORDER, NONE, NONE, NONE)
    elif name == DTX_SELECT:
        session.selected |= DTX
    else:
        key = key_of(BRANCH, slot, 0, rows.key[i])
        active = get(s.found_by, key) != NONE
        wrong = name == DTX_END and not active if name in (DTX_START, DTX_END) else active
        if wrong or (name == DTX_START and not session.selected & DTX):
            note(o, O.BRANCH_ORDER, NONE, NONE, NONE)
        if name == DTX_START:
            put(s.found_by, key, 0)
        else:
            remove(s.found_by, key)


# Subscriptions.


@kernel
def _is_active(s, binding):
    """Whether a destination is that of a subscription that is not cancelled."""
    return binding.link != NONE and s.links.rows[binding.link].closing_ns == NONE


@outlined
def before_subscribe(s, rows, i, session, binding):
    """A subscription begins in window mode, with no credit. `binding`: of its destination, before it."""
    if _is_active(s, binding):
        note(s.odd, O.DESTINATION_IN_USE, NONE, NONE, rows.frame_no[i])
    if rows.no_accept[i]:
        session.implicit = 1
        if session.selected & TX:
            note(s.odd, O.IMPLICIT_ACCEPT, NONE, NONE, NONE)


@outlined
def on_change(s, rows, i, role, session, slot, binding):
    """message.flow, stop, cancel, flush, set-flow-mode."""
    o, name, number = s.odd, rows.name[i], rows.number[i]
    if not _is_active(s, binding):
        note(o, O.DESTINATION_UNKNOWN, NONE, NONE, NONE)
        return
    link, value = s.links.rows[binding.link], max(rows.value[i], 0)
    if name == FLOW and rows.unit[i] == IN_MESSAGES:
        link.message_credit += value
        link.all_messages |= value == NO_LIMIT
        link.later += value
        link.all_later |= value == NO_LIMIT
        link.stopped = 0
    elif name == FLOW:
        link.byte_credit += value
        link.stopped = 0
    elif role.zeroes_credit == FLUSHES:
        if number != NONE:
            link.flush_id = number
            link.later = link.all_later = 0
            put(s.found_by, key_of(FLUSH, slot, 0, number), binding.link - s.links.cells[FIRST] + 1)
            session.flush_from = number if session.flush_from == NONE else session.flush_from
            session.flush_to = number
    elif role.zeroes_credit:
        if name == STOP:
            link.stopped, link.stop_id = 1, number
        elif link.message_credit > 0 and link.flush_id == NONE:
            # Bytes that are left over do no harm: clients leave them unlimited. A flush comes first: it leaves no
            # credit.
            note(o, O.MODE_WITH_CREDIT, link.message_credit, 0, link.attach_frame[CLIENT])
        link.message_credit = link.all_messages = link.byte_credit = 0
        link.flush_id = NONE
        link.zeroed_id = session.next[SERVER]


@kernel
def on_transfer(s, rows, i, session, slot, binding):
    """A transfer of the server goes over a subscription and uses up its credit."""
    o, number = s.odd, rows.number[i]
    if not _is_active(s, binding):
        if binding.bound_frame == NONE:  # what was sent before a cancel arrived is on its way
            note(o, O.NO_SUBSCRIPTION, NONE, NONE, rows.frame_no[i])
        return
    link = s.links.rows[binding.link]
    if link.stopped:
        done = session.done_to[SERVER]
        if done != NONE and link.stop_id != NONE and after(done, link.stop_id) >= 0:
            note(o, O.AFTER_STOP, NONE, NONE, link.attach_frame[CLIENT])
    elif not ((link.message_credit > 0 or link.all_messages) and link.byte_credit > 0):
        note(o, O.WITHOUT_CREDIT, link.message_credit, link.byte_credit, link.attach_frame[CLIENT])
    if not link.all_messages:
        link.message_credit = max(link.message_credit - 1, 0)
    if number == NONE:
        return
    if session.unsettled >= MOST_UNSETTLED:
        session.crowded = 1
        return
    session.unsettled += 1
    flags = GIVES_BACK if link.no_ack == 1 else GIVES_BACK | UNSETTLED
    at = binding.link - s.links.cells[FIRST] + 1
    put(s.found_by, key_of(DELIVERY, slot, SERVER, number), flags | at)


@kernel
def _drop_flag(s, session, key, flag):
    """The link of a delivery that has the flag, or 0. It loses the flag; without any it is no longer looked for."""
    table = s.found_by
    at = slot_of(table, key)
    if not has_entry(table, at) or not table.entries[at, VALUE] & flag:
        return 0
    delivery = table.entries[at, VALUE] & ~flag
    table.entries[at, VALUE] = delivery
    if delivery <= OF_LINK:
        remove_at(table, at)
        session.unsettled -= 1
    return delivery & OF_LINK


@kernel
def _return_credit(s, session, slot, first, last):
    """The client has completed transfers: in window mode they return their credit."""
    for step in range(after(last, first) + 1):
        if s.numbers[STEPS] <= 0:
            return
        s.numbers[STEPS] -= 1
        number = (first + step) % SERIAL
        at = _drop_flag(s, session, key_of(DELIVERY, slot, SERVER, number), GIVES_BACK)
        if not at:
            continue
        link = s.links.rows[s.links.cells[FIRST] + at - 1]
        in_window = link.flow_mode == DEFAULT_FLOW_MODE or link.flow_mode == NONE
        if in_window and not link.all_messages and (link.zeroed_id == NONE or after(number, link.zeroed_id) >= 0):
            link.message_credit += 1


@kernel
def _flush(s, session, slot, first, last):
    """The server has completed commands `first` to `last`: of subscriptions that they flush only the credit is left
    that was given later. Each id is looked up once."""
    number = first if after(first, session.flush_from) > 0 else session.flush_from
    until = last if after(last, session.flush_to) < 0 else session.flush_to
    follows = after(first, session.flush_from) <= 0
    while after(until, number) >= 0 and s.numbers[STEPS] > 0:
        s.numbers[STEPS] -= 1
        key = key_of(FLUSH, slot, 0, number)
        at = remove(s.found_by, key)
        if at != NONE:
            link = s.links.rows[s.links.cells[FIRST] + at - 1]
            if link.flush_id == number:
                link.flush_id = NONE
                link.message_credit, link.all_messages = link.later, link.all_later
                link.zeroed_id = session.next[SERVER]
        number = (number + 1) % SERIAL
        if follows:
            session.flush_from = number
    if after(session.flush_from, session.flush_to) > 0:
        session.flush_from = NONE


@kernel
def _settle(s, rows, i, session, slot):
    """message.accept, reject, release, acquire of transfers that the other side sent."""
    o, name, sender = s.odd, rows.name[i], rows.sender[i]
    if name == REJECT:
        note(o, O.MESSAGE_REJECTED, rows.code[i], NONE, rows.frame_no[i])
    unknown, following = NONE, session.next[1 - sender]
    # What a transaction settles may be settled again after a rollback.
    known = name != RELEASE and not session.selected and not session.crowded
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        if following != NONE and after(last, following) >= 0:
            unknown = last
            last = (following - 1) % SERIAL
        if sender != CLIENT or name == ACQUIRE:
            continue
        for step in range(after(last, first) + 1):
            if s.numbers[STEPS] <= 0:
                return
            s.numbers[STEPS] -= 1
            number = (first + step) % SERIAL
            if not _drop_flag(s, session, key_of(DELIVERY, slot, SERVER, number), UNSETTLED) and known:
                unknown = number
    if unknown != NONE:
        note(o, O.TRANSFERS_UNKNOWN, unknown, NONE, rows.frame_no[i])
