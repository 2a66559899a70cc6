"""Finds the session of each row, and updates it.

In 1.0 each side numbers its own channels: a begin without remote-channel opens a session, and the begin that answers it
has the opener's number as its remote-channel; rows belong to the session of the opener's number. In 0-10 both sides
share channel numbers. Rows of a session that was opened before the capture belong to incarnation 0 of their own number.
Ending a session changes nothing else: its number has a new meaning once it is opened again. A session of 0-10 goes on
if it is attached again, to any channel, while its state is preserved, for as long as session.timeout grants (0-10
specification, class session, request-timeout); without a grant it does not outlive its detachment.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.conversation.sessions.state import (
    CLIENT,
    CONNECTION,
    DTX,
    FIRST,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    KEYS,
    NEITHER,
    NONE,
    TX,
    UNANSWERED,
    losses,
    new_record,
)
from codec.hashes.keyed import found, put

# Keys of `State.found_by`: what they find, then numbers.
KIND_SHIFT, SIDE_SHIFT, SESSION_SHIFT = 59, 34, 35
SECOND_NS = 10**9
BEGUN, LATEST, INCARNATIONS, UNOPENED, HANDLE, DESTINATION, ATTACHED, NAMED = range(1, 9)


@kernel
def key_of(kind, session, side, number):
    """`session` and `number` are not negative; `number` is below 2**34."""
    return (kind << KIND_SHIFT) | (session << SESSION_SHIFT) | (side << SIDE_SHIFT) | number


@kernel
def goes_on(name, of_session, timeout_s, closed_ns, ts_ns):
    """Whether an attach of `name` continues an earlier session, whose name is `of_session`. `closed_ns`: NONE if that
    is attached."""
    if name == 0 or name != of_session or timeout_s <= 0:
        return False
    return closed_ns == NONE or ts_ns - closed_ns <= timeout_s * SECOND_NS


@kernel
def _new_session(s, channel, incarnation):
    at = new_record(s.sessions)
    session = s.sessions.rows[at]
    session.connection = s.numbers[CONNECTION]
    session.channel = channel
    session.incarnation = incarnation
    session.attached_to = channel
    return at


@inlined
def session_of(s, rows, i, role):
    """The place of the session of row `i`, and the side that opened it."""
    sender, number, first = rows.sender[i], rows.channel[i], s.sessions.cells[FIRST]
    opener = NEITHER
    answers = rows.remote_channel[i] != NONE
    if role.own_numbers:
        begun_by = key_of(BEGUN, 0, sender, number)
        opener = sender
        if role.opens_session:
            if answers:
                opener = 1 - sender
                number = rows.remote_channel[i]
            put(s.found_by, begun_by, (number << 1) | opener)
        else:
            begun = found(s.found_by, begun_by)
            if begun != NONE:
                number = begun >> 1
                opener = begun & 1
    latest = key_of(LATEST, opener, 0, number)
    if role.opens_session and not answers:
        named = key_of(NAMED, 0, 0, rows.session_name[i])
        renames = rows.session_name[i] != 0
        for key in (latest, named):
            place = found(s.found_by, key)
            if place == NONE:
                continue
            session = s.sessions.rows[first + place]
            own_name, timeout_s = session.name, 0 if session.failed else session.timeout_s
            if key == named and session.closed_ns == NONE:
                renames = found(s.found_by, key_of(LATEST, opener, 0, session.attached_to)) != place
            elif goes_on(rows.session_name[i], own_name, timeout_s, session.closed_ns, rows.ts_ns[i]):
                session.attached_to = number
                session.closed_ns = session.close_sender = session.detach_code = session.close_frame = NONE
                session.close_client_hidden = session.close_server_hidden = NONE
                put(s.found_by, latest, place)
                return first + place, opener
        incarnations = key_of(INCARNATIONS, 0, 0, number)
        incarnation = max(found(s.found_by, incarnations), 0) + 1
        put(s.found_by, incarnations, incarnation)
        at = _new_session(s, number, incarnation)
        put(s.found_by, latest, at - first)
        if renames:
            put(s.found_by, named, at - first)
        session = s.sessions.rows[at]
        session.opened_losses = losses(s.numbers)
        session.opened_ns = rows.ts_ns[i]
        session.name = rows.session_name[i]
        session.doubted = int(incarnation > 1 and (rows.peer_late[i] or rows.late[i]))
        s.numbers[UNANSWERED] += role.own_numbers
        return at, opener
    place = found(s.found_by, latest)
    if place == NONE:
        unopened = key_of(UNOPENED, 0, 0, number)
        place = found(s.found_by, unopened)
        if place == NONE:
            place = _new_session(s, number, 0) - first
            put(s.found_by, unopened, place)
    if role.opens_session and rows.peer_late[i]:  # the session that it answers is captured later
        s.sessions.rows[first + place].doubted = 1
    return first + place, opener


@inlined
def update_session(s, rows, i, role, session, opener):
    """Update the session of row `i`."""
    numbers, ts_ns = s.numbers, rows.ts_ns[i]
    session.losses = losses(numbers)
    session.senders |= 1 << rows.sender[i]
    session.last_ns = max(session.last_ns, ts_ns)
    if role.listed:
        session.listed = 1
        session.listed_losses = session.losses
        session.last_listed_ns = max(session.last_listed_ns, ts_ns)
    if role.opens_session and rows.remote_channel[i] != NONE and session.remote_channel == NONE:
        session.remote_channel = rows.channel[i]
        if session.incarnation:
            numbers[UNANSWERED] -= 1
    if role.closes_session and (role.own_numbers or rows.channel[i] == session.attached_to):
        if session.closed_ns == NONE:
            session.closed_ns = ts_ns
            session.close_sender = rows.sender[i]
        if session.detach_code == NONE:
            session.detach_code = rows.code[i]
        # Each side may settle until it has sent its own closing frame.
        session.close_frame = rows.frame_no[i]
        if rows.sender[i] == CLIENT:
            session.close_client_hidden = numbers[HIDDEN_CLIENT]
        else:
            session.close_server_hidden = numbers[HIDDEN_SERVER]
    if role.states_reason and rows.error[i] and not session.failed:
        session.failed = 1
        session.reason_code = rows.code[i]
        session.condition = rows.condition[i]
        session.description = rows.description[i]
    if role.grants_timeout:
        session.timeout_s = rows.timeout[i] if rows.readable[i] else 0
    if role.announces_windows and rows.sender[i] == opener:
        session.incoming_window = rows.incoming_window[i]
        session.outgoing_window = rows.outgoing_window[i]
    if role.mode:
        session.mode = role.mode
    elif role.proves_mode and session.mode == 0:
        session.mode = role.proves_mode


@inlined
def transaction_of(s, rows, i, role, session):
    """The transaction that row `i` is part of, or that it ends: one that it names, or the one of its session.

    After tx.select the session has one transaction after the other; dtx.start and dtx.end select one.
    """
    key = rows.key[i]
    if role.starts_branch:
        session.branch = key
        return 0
    if role.ends_branch:
        session.branch = 0
        return 0
    if key == 0 and (role.of_session or (role.transactional and rows.sender[i] == CLIENT)):
        if session.mode == TX:
            if session.tx_key == 0:
                s.numbers[KEYS] += 1
                session.tx_key = -s.numbers[KEYS]
            key = session.tx_key
        elif session.mode == DTX:
            key = session.branch
    if role.of_session:
        session.tx_key = 0
    return key
