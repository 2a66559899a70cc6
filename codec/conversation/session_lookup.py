"""Finds the session of each row, and updates it.

Both versions have the same steps. One side begins a session (begin without remote-channel, session.attach), the other
side answers (begin with remote-channel, session.attached), and each side ends it (end, session.detach and
session.detached). A frame belongs to the session that its sender has begun, or answered, with the channel number of the
frame. The sides may be at different steps: the one that has ended a session may begin the next one with its number,
while the other side goes on with the first until its own end (1.0 core specification, 2.5.5). Begins with one number
are answered in order.

In 1.0 each side numbers its own channels, in 0-10 both use the number of the attach. A frame whose number leads to no
session, since its begin was not captured, belongs to incarnation 0 of the number. Once both sides have ended a session,
no number leads to it.

A session of 0-10 goes on when it is attached again, to any channel, before its timeout expires (0-10 specification,
class session, request-timeout). Without a timeout it ends when it is detached.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.conversation.session_state import (
    ANSWERS,
    BEGUN,
    CLIENT,
    CLOSING,
    CONNECTION,
    DTX,
    FIRST,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    INCARNATIONS,
    KEYS,
    LOSSES_CLIENT,
    NAMED,
    NONE,
    OF_SESSION,
    OPENING,
    REQUEST_CELLS,
    REQUEST_FRAME,
    REQUEST_LOSSES,
    REQUEST_NS,
    REQUESTS,
    SERVER,
    TX,
    UNANSWERED,
    UNOPENED,
    WAITING,
    key_of,
    losses,
    new_record,
    own_losses,
)
from codec.hashes.maps import get, put, remove

# Requests of connections, sessions and links, and their replies.
#
# Each connection, session and link has cells in which its requests wait, by exchange and side. The next frame of the
# other side that replies in the same exchange is the reply. Sessions and links may have several requests before it: it
# serves them all (1.0 core specification, 2.7.4, echo; 0-10 specification, session.completed, merged-reply). These wait
# in an unsettled map (`transfers.pair`), and the cell has the first one. Nothing is paired across a loss.


@kernel
def request_cell(exchange, side):
    """The first of the cells in which a request of `side` waits."""
    return ((exchange - 1) * 2 + side) * REQUEST_CELLS


@kernel
def waits(s, cells, at):
    """Whether a request waits, and its reply cannot be among lost bytes."""
    return cells[at + REQUEST_FRAME] != 0 and cells[at + REQUEST_LOSSES] == losses(s.numbers)


@kernel
def ask(s, cells, at, rows, i):
    """Row `i` is a request."""
    cells[at + REQUEST_FRAME] = rows.frame_no[i] + 1
    cells[at + REQUEST_NS] = rows.ts_ns[i]
    cells[at + REQUEST_LOSSES] = losses(s.numbers)


@kernel
def reply(s, cells, at, rows, i):
    """Row `i` is the reply to a request, if it waits; returns whether it is."""
    asked = waits(s, cells, at)
    if asked:
        found = s.replies.rows[new_record(s.replies)]
        found.connection = s.numbers[CONNECTION]
        found.frame_no = cells[at + REQUEST_FRAME] - 1
        found.ts_ns = cells[at + REQUEST_NS]
        found.reply_frame_no = rows.frame_no[i]
        found.reply_ts_ns = rows.ts_ns[i]
        found.name = rows.name[i]
    cells[at + REQUEST_FRAME] = 0
    return asked


@kernel
def pair_of_connection(s, rows, i, role):
    """Row `i` replies to the other side, or asks. What does both, as open, asks only if it is no reply."""
    sender, replied = rows.sender[i], False
    if role.replies:
        replied = reply(s, s.numbers, REQUESTS + request_cell(role.replies, 1 - sender), rows, i)
    if role.requests and not (replied and role.requests == role.replies):
        ask(s, s.numbers, REQUESTS + request_cell(role.requests, sender), rows, i)


SECOND_NS = 10**9


@kernel
def resumes(name, of_session, timeout_s, closed_ns, ts_ns):
    """Whether an attach of `name` continues the session whose name is `of_session`: it is attached, which changes
    nothing (`closed_ns` NONE; 0-10 specification, session.attach, idempotence), or its timeout has not expired."""
    if name == 0 or name != of_session:
        return False
    return closed_ns == NONE or (timeout_s > 0 and ts_ns - closed_ns <= timeout_s * SECOND_NS)


@kernel
def _continues(s, rows, i, session):
    """Whether the attach in row `i` continues a session. One without a timeout may have been detached in lost bytes, or
    in what is captured later."""
    in_order = session.opened_losses == losses(s.numbers) and not rows.peer_late[i]
    if session.failed or (session.closed_ns == NONE and session.timeout_s <= 0 and not in_order):
        return False
    return resumes(rows.session_name[i], session.name, session.timeout_s, session.closed_ns, rows.ts_ns[i])


@kernel
def _new_session(s, channel, incarnation):
    at = new_record(s.sessions)
    session = s.sessions.rows[at]
    session.connection = s.numbers[CONNECTION]
    session.channel = channel
    session.incarnation = incarnation
    session.attached_to = channel
    return at - s.sessions.cells[FIRST]


@kernel
def _session_at(s, slot):
    return s.sessions.rows[s.sessions.cells[FIRST] + slot]


@kernel
def _is_over(s, session):
    """Whether both sides have ended a session, and no answer to that is still to come."""
    if session.close_client_hidden == NONE or session.close_server_hidden == NONE:
        return False
    cells, by_client, by_server = session.waiting, request_cell(CLOSING, CLIENT), request_cell(CLOSING, SERVER)
    return not (waits(s, cells, by_client) or waits(s, cells, by_server))


@kernel
def _unbind(s, side, number, slot):
    """The number of a side leads to the session at `slot` no more."""
    key = key_of(BEGUN, 0, side, number)
    if get(s.found_by, key) == slot:
        remove(s.found_by, key)


@kernel
def _attached_elsewhere(s, slot, sender, number):
    """Whether `sender` has attached the session at `slot` to another channel."""
    session = _session_at(s, slot)
    if session.closed_ns != NONE or session.attached_to == number:
        return False
    return get(s.found_by, key_of(BEGUN, 0, sender, session.attached_to)) == slot


@kernel
def _begun_anew(s, rows, i, role):
    """The index of a new session, which row `i` begins."""
    incarnations = key_of(INCARNATIONS, 0, 0, rows.channel[i])
    incarnation = max(get(s.found_by, incarnations), 0) + 1
    put(s.found_by, incarnations, incarnation)
    slot = _new_session(s, rows.channel[i], incarnation)
    session = _session_at(s, slot)
    session.opened_ns = rows.ts_ns[i]
    session.name = rows.session_name[i]
    session.doubted = int(incarnation > 1 and (rows.peer_late[i] or rows.late[i]))
    s.numbers[UNANSWERED] += role.own_numbers
    return slot


@kernel
def _begin(s, rows, i, role):
    """Row `i` begins a session, or attaches one again; returns its slot."""
    sender, number, opening = rows.sender[i], rows.channel[i], request_cell(OPENING, rows.sender[i])
    begun_by, named = key_of(BEGUN, 0, sender, number), key_of(NAMED, 0, 0, rows.session_name[i])
    before, of_name = get(s.found_by, begun_by), get(s.found_by, named)
    if of_name != NONE and _attached_elsewhere(s, of_name, sender, number):
        of_name, named = NONE, NONE  # the name stays that of the other one
    if before != NONE and _continues(s, rows, i, _session_at(s, before)):
        slot = before
    elif of_name != NONE and _continues(s, rows, i, _session_at(s, of_name)):
        slot = of_name
    else:
        slot = _begun_anew(s, rows, i, role)
        if named != NONE and rows.session_name[i]:
            put(s.found_by, named, slot)
    session = _session_at(s, slot)
    if session.attached_to != number:
        _unbind(s, sender, session.attached_to, slot)
    put(s.found_by, begun_by, slot)
    session.attached_to = number
    session.opener = sender
    session.opened_losses = losses(s.numbers)
    session.closed_ns = session.close_sender = session.detach_code = session.close_frame = NONE
    session.close_client_hidden = session.close_server_hidden = NONE
    session.asked, session.asked_losses = 0, s.numbers[LOSSES_CLIENT]
    session.behind = 0
    if before != NONE and before != slot and waits(s, _session_at(s, before).waiting, opening):
        session.behind = _session_at(s, before).behind + 1
        put(s.found_by, key_of(WAITING, 0, sender, number), before)
    for exchange in range(OPENING, OF_SESSION + 1):
        if exchange != CLOSING:  # the answer to a detach may be still to come
            session.waiting[request_cell(exchange, CLIENT) + REQUEST_FRAME] = 0
            session.waiting[request_cell(exchange, SERVER) + REQUEST_FRAME] = 0
    ask(s, session.waiting, opening, rows, i)
    return slot


@kernel
def _answered(s, opener, number):
    """The index of the session that the other side answers: the latest one that `opener` has begun with its number or,
    while that waits behind one other, the one before; NONE if none was captured."""
    latest = get(s.found_by, key_of(BEGUN, 0, opener, number))
    if latest == NONE:
        return NONE
    session = _session_at(s, latest)
    if session.behind == 0 or session.opened_losses != losses(s.numbers):
        return latest
    if session.behind > 1:  # settlements may be of any of them
        session.doubted = 1
        return latest
    session.behind = 0
    waiting = key_of(WAITING, 0, opener, number)
    before = get(s.found_by, waiting)
    remove(s.found_by, waiting)
    return before


@inlined
def session_of(s, rows, i, role):
    """The index of the session of row `i`, and the side that began it."""
    sender, number, first = rows.sender[i], rows.channel[i], s.sessions.cells[FIRST]
    answers = role.answers_attach != 0 or rows.remote_channel[i] != NONE
    if role.opens_session and not answers:
        return first + _begin(s, rows, i, role), sender
    slot, begun_by = NONE, key_of(BEGUN, 0, sender, number)
    begun = NONE if answers else get(s.found_by, begun_by)
    if begun != NONE:
        session = _session_at(s, begun)
        if sender == session.opener or session.begun_losses == own_losses(s.numbers, sender):
            return first + begun, session.opener
        # Its end, and the answer to the next begin, may be among lost bytes.
    opener, pair_of = 1 - sender, key_of(ANSWERS, 0, sender, number)
    if answers and role.own_numbers:
        number = rows.remote_channel[i]
        put(s.found_by, pair_of, number)
    elif role.own_numbers:
        answered = get(s.found_by, pair_of)
        opener = sender if answered == NONE else opener
        number = number if answered == NONE else answered
    if answers:
        slot = _answered(s, opener, number)
    elif opener != sender:
        slot = get(s.found_by, key_of(BEGUN, 0, opener, number))
    if slot == NONE:
        unopened = key_of(UNOPENED, 0, 0, number)
        slot = get(s.found_by, unopened)
        if slot == NONE:
            slot = _new_session(s, number, 0)
            put(s.found_by, unopened, slot)
    session = _session_at(s, slot)
    if answers:
        session.opener = opener
        session.doubted |= rows.peer_late[i]  # the session that it answers may be captured later
    if answers or (role.own_numbers == 0 and sender != session.opener):
        # Until that is captured, the number of the other side alone leads to it.
        session.begun_losses = NONE if rows.peer_late[i] else own_losses(s.numbers, sender)
        put(s.found_by, begun_by, slot)
    return first + slot, opener


@kernel
def _pair_of_session(s, rows, i, role, session, opener):
    """Row `i` replies to what began or ended its session, or asks for such a reply; returns whether it ends the session
    as it is attached now."""
    sender, cells = rows.sender[i], session.waiting
    begun, ended = request_cell(OPENING, 1 - sender), request_cell(CLOSING, 1 - sender)
    begins, ends = waits(s, cells, begun), waits(s, cells, ended)
    # An attach may be answered by session.detached, with an error.
    refuses = role.answers_detach != 0 and rows.code[i] > 0 and not ends
    if refuses or role.answers_attach or (role.opens_session and rows.remote_channel[i] != NONE):
        reply(s, cells, begun, rows, i)
    if role.closes_session == 0:
        return False
    # A side cannot end what it has not begun: that is the end of what the number stood for before.
    has_begun = role.own_numbers == 0 or sender == opener or cells[begun] == 0
    asks = has_begun and role.answers_detach == 0 and not _is_over(s, session)
    # session.detached after another attach: the reply to the detach before that.
    earlier = role.answers_detach != 0 and ends and begins and cells[ended] < cells[begun]
    if ends and (role.own_numbers or role.answers_detach):
        reply(s, cells, ended, rows, i)
    elif asks and not waits(s, cells, request_cell(CLOSING, sender)):
        ask(s, cells, request_cell(CLOSING, sender), rows, i)
    return role.own_numbers != 0 or (rows.channel[i] == session.attached_to and not earlier)


@inlined
def update_session(s, rows, i, role, at, opener):
    """Update the session of row `i`, which is at `at`; returns whether that ends it."""
    numbers, ts_ns, session, slot = s.numbers, rows.ts_ns[i], s.sessions.rows[at], at - s.sessions.cells[FIRST]
    session.losses = losses(numbers)
    session.senders |= 1 << rows.sender[i]
    session.last_ns = max(session.last_ns, ts_ns)
    # What ends a session that is over is no session of its own.
    again = role.closes_session != 0 and session.listed == 0 and session.incarnation == 0
    again = again and get(s.found_by, key_of(INCARNATIONS, 0, 0, session.channel)) != NONE
    if role.listed and not again:
        session.listed = 1
        session.listed_losses = session.losses
        session.last_listed_ns = max(session.last_listed_ns, ts_ns)
    if role.opens_session and rows.remote_channel[i] != NONE and session.remote_channel == NONE:
        session.remote_channel = rows.channel[i]
        if session.incarnation:
            numbers[UNANSWERED] -= 1
    closes = _pair_of_session(s, rows, i, role, session, opener)
    if closes:
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
    if role.closes_session and rows.sender[i] != session.opener:
        _unbind(s, rows.sender[i], rows.channel[i], slot)
    if closes and _is_over(s, session):
        _unbind(s, session.opener, session.attached_to, slot)
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
    return closes


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
        session.left_frame = rows.frame_no[i]
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
