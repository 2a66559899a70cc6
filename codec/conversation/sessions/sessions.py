"""Finds the session of each row, and updates it.

In 1.0 each side numbers its own channels: a begin without remote-channel opens a session, and the begin that answers it
has the opener's number as its remote-channel. Rows belong to the session for which their side has begun their channel:
once a side has ended a session, it may use the number for the next one, while the other side goes on with the first
until its own end (2.5.5). In 0-10 both sides share channel numbers. Rows of a session that was opened before the
capture belong to incarnation 0 of their own number. Ending a session changes nothing else: its number has a new meaning
once it is opened again. A session of 0-10 goes on if it is attached again, to any channel, while its state is
preserved, for as long as session.timeout grants (0-10 specification, class session, request-timeout); without a grant
it does not outlive its detachment.
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
    REQUESTS,
    TX,
    UNANSWERED,
    WAITING_CELLS,
    WAITING_FRAME,
    WAITING_LOSSES,
    WAITING_NS,
    WAITING_SENDER,
    losses,
    new_record,
    own_losses,
)
from codec.hashes.keyed import found, put

# Keys of `State.found_by`: what they find, then numbers.
KIND_SHIFT, SIDE_SHIFT, SESSION_SHIFT = 59, 34, 35
SECOND_NS = 10**9
BEGUN, LATEST, INCARNATIONS, UNOPENED, HANDLE, DESTINATION, ATTACHED, NAMED, WAITING = range(1, 10)


@kernel
def key_of(kind, session, side, number):
    """`session` and `number` are not negative; `number` is below 2**34."""
    return (kind << KIND_SHIFT) | (session << SESSION_SHIFT) | (side << SIDE_SHIFT) | number


@kernel
def goes_on(name, of_session, timeout_s, closed_ns, ts_ns):
    """Whether an attach of `name` continues the session whose name is `of_session`: it is attached, which changes
    nothing (`closed_ns` NONE; 0-10 specification, session.attach, idempotence), or its timeout has not expired."""
    if name == 0 or name != of_session:
        return False
    return closed_ns == NONE or (timeout_s > 0 and ts_ns - closed_ns <= timeout_s * SECOND_NS)


@kernel
def _continues(s, rows, i, session):
    """Whether the attach in row `i` continues a session. One without a timeout may have been detached in lost bytes, or
    in what is captured later."""
    in_order = session.begin_losses == losses(s.numbers) and not rows.peer_late[i]
    if session.failed or (session.closed_ns == NONE and session.timeout_s <= 0 and not in_order):
        return False
    return goes_on(rows.session_name[i], session.name, session.timeout_s, session.closed_ns, rows.ts_ns[i])


@kernel
def add_reply(s, rows, i, frame_no, ts_ns):
    """Row `i` answers the request in frame `frame_no`."""
    reply = s.replies.rows[new_record(s.replies)]
    reply.connection = s.numbers[CONNECTION]
    reply.frame_no = frame_no
    reply.ts_ns = ts_ns
    reply.reply_frame_no = rows.frame_no[i]
    reply.reply_ts_ns = rows.ts_ns[i]
    reply.name = rows.name[i]


@kernel
def pair_of_connection(s, rows, i, role):
    """Row `i` answers the request of the other side in its exchange, or makes one that waits."""
    numbers, sender = s.numbers, rows.sender[i]
    if role.replies:
        cell = REQUESTS + (role.replies - 1) * WAITING_CELLS
        asked = numbers[cell + WAITING_FRAME] != 0 and numbers[cell + WAITING_SENDER] != sender
        if asked and numbers[cell + WAITING_LOSSES] == losses(numbers):
            add_reply(s, rows, i, numbers[cell + WAITING_FRAME] - 1, numbers[cell + WAITING_NS])
            numbers[cell + WAITING_FRAME] = 0
            if role.requests == role.replies:
                return
    if role.requests:
        cell = REQUESTS + (role.requests - 1) * WAITING_CELLS
        numbers[cell + WAITING_FRAME] = rows.frame_no[i] + 1
        numbers[cell + WAITING_NS] = rows.ts_ns[i]
        numbers[cell + WAITING_SENDER] = sender
        numbers[cell + WAITING_LOSSES] = losses(numbers)


@kernel
def _await_reply(s, rows, i, session):
    """Row `i` opens a session or attaches it again, and waits for an answer."""
    session.begin_frame = rows.frame_no[i]
    session.begin_ns = rows.ts_ns[i]
    session.begin_losses = losses(s.numbers)
    session.end_answered = 0


@kernel
def _pair_of_session(s, rows, i, role, session, opener):
    """Row `i` answers what opened or ended its session; an end that answers none waits for an answer. An attach may be
    answered by session.detached, with an error."""
    lost = losses(s.numbers)
    answers = role.answers_attach != 0 or (role.opens_session != 0 and rows.remote_channel[i] != NONE)
    refuses = role.answers_detach != 0 and rows.code[i] > 0 and session.end_frame == NONE
    if session.begin_frame != NONE and (answers or refuses):
        if session.begin_losses == lost:
            add_reply(s, rows, i, session.begin_frame, session.begin_ns)
        session.begin_frame = NONE
    if role.closes_session == 0:
        return
    waits = session.end_frame != NONE and session.end_losses == lost
    # A side cannot end what it has not begun: that is the end of what the number stood for before.
    has_begun = role.own_numbers == 0 or rows.sender[i] == opener or session.begin_frame == NONE
    if waits and session.end_sender != rows.sender[i] and (role.own_numbers != 0 or role.answers_detach != 0):
        add_reply(s, rows, i, session.end_frame, session.end_ns)
        session.end_frame = NONE
        # Else it is the end of what the same number, or name, stood for before.
        session.end_answered = 1 if session.begin_frame == NONE else 0
    elif not waits and has_begun and role.answers_detach == 0 and session.end_answered == 0:
        session.end_frame = rows.frame_no[i]
        session.end_ns = rows.ts_ns[i]
        session.end_losses = lost
        session.end_sender = rows.sender[i]


@kernel
def _new_session(s, channel, incarnation):
    at = new_record(s.sessions)
    session = s.sessions.rows[at]
    session.connection = s.numbers[CONNECTION]
    session.channel = channel
    session.incarnation = incarnation
    session.attached_to = channel
    return at


@kernel
def _is_begun(s, session, sender):
    """Whether a channel that `sender` began for a session has the same meaning: its end was not captured, and is not
    among lost bytes, and the begin that it answers was captured before it. The number of the opener has a new meaning
    with its next begin alone."""
    if sender == session.opener:
        return True
    ended = session.close_client_hidden if sender == CLIENT else session.close_server_hidden
    return ended == NONE and session.begun_losses == own_losses(s.numbers, sender)


@kernel
def _await_answer(s, session, waiting, before):
    """A session is begun with the number of the one at `before`: what is not answered yet is so in order."""
    if before == NONE:
        return
    earlier = s.sessions.rows[s.sessions.cells[FIRST] + before]
    if earlier.remote_channel == NONE and earlier.opened_losses == losses(s.numbers):
        session.behind = earlier.behind + 1
        put(s.found_by, waiting, before)


@kernel
def _answered(s, latest, waiting):
    """The session that a begin of the other side answers: the one at `latest` or, while that waits, the one before."""
    session = s.sessions.rows[s.sessions.cells[FIRST] + latest]
    if session.behind == 0 or session.opened_losses != losses(s.numbers):
        return latest
    if session.behind > 1:  # settlements may be of any of them
        session.doubted = 1
        return latest
    session.behind = 0
    return found(s.found_by, waiting)


@kernel
def _await_detached(s, rows, i, session, waiting, before):
    """Row `i` attaches a session to the channel of the one at `before`, whose detach may not be answered yet."""
    session.detached_before = 0 if before == NONE else s.sessions.rows[s.sessions.cells[FIRST] + before].detaching
    session.detaching = 0
    session.begun_losses = own_losses(s.numbers, 1 - rows.sender[i])
    if session.detached_before:
        put(s.found_by, waiting, before)


@kernel
def _not_detached(s, rows, i, role, latest, waiting):
    """The session of a row of 0-10: what a side sends on a channel before it answers a detach is about the session that
    is detached, even if the channel has been attached again, which is to the one at `latest`."""
    session = s.sessions.rows[s.sessions.cells[FIRST] + latest]
    if session.detached_before != 2 - rows.sender[i]:
        return latest
    before = found(s.found_by, waiting)
    if role.answers_attach or session.begun_losses != own_losses(s.numbers, rows.sender[i]):
        session.detached_before = 0
        return latest
    if role.answers_detach and before != latest:
        session.detached_before = 0
    return before


@inlined
def session_of(s, rows, i, role):
    """The place of the session of row `i`, and the side that opened it."""
    sender, number, first = rows.sender[i], rows.channel[i], s.sessions.cells[FIRST]
    opener = NEITHER
    answers = rows.remote_channel[i] != NONE
    begun_by = key_of(BEGUN, 0, sender, number)
    if role.own_numbers:
        opener = sender
        if role.opens_session and answers:
            opener = 1 - sender
            number = rows.remote_channel[i]
        elif not role.opens_session:
            begun = found(s.found_by, begun_by)
            if begun != NONE:
                session = s.sessions.rows[first + begun]
                opener, number = session.opener, session.channel
                if _is_begun(s, session, sender):
                    return first + begun, opener
    latest = key_of(LATEST, opener, 0, number)
    if role.opens_session and not answers:
        named = key_of(NAMED, 0, 0, rows.session_name[i])
        renames = rows.session_name[i] != 0
        for key in (latest, named):
            place = found(s.found_by, key)
            if place == NONE:
                continue
            session = s.sessions.rows[first + place]
            if key == named and session.closed_ns == NONE:
                renames = found(s.found_by, key_of(LATEST, opener, 0, session.attached_to)) != place
            elif _continues(s, rows, i, session):
                _await_detached(s, rows, i, session, key_of(WAITING, opener, 0, number), found(s.found_by, latest))
                session.attached_to = number
                _await_reply(s, rows, i, session)
                session.closed_ns = session.close_sender = session.detach_code = session.close_frame = NONE
                session.close_client_hidden = session.close_server_hidden = NONE
                put(s.found_by, latest, place)
                return first + place, opener
        incarnations = key_of(INCARNATIONS, 0, 0, number)
        incarnation = max(found(s.found_by, incarnations), 0) + 1
        put(s.found_by, incarnations, incarnation)
        at = _new_session(s, number, incarnation)
        session = s.sessions.rows[at]
        before = found(s.found_by, latest)
        waiting = key_of(WAITING, opener, 0, number)
        if role.own_numbers:
            session.opener = sender
            session.begun_losses = own_losses(s.numbers, sender)
            put(s.found_by, begun_by, at - first)
            _await_answer(s, session, waiting, before)
        else:
            _await_detached(s, rows, i, session, waiting, before)
        put(s.found_by, latest, at - first)
        if renames:
            put(s.found_by, named, at - first)
        session.opened_losses = losses(s.numbers)
        session.opened_ns = rows.ts_ns[i]
        _await_reply(s, rows, i, session)
        session.name = rows.session_name[i]
        session.doubted = int(incarnation > 1 and (rows.peer_late[i] or rows.late[i]))
        s.numbers[UNANSWERED] += role.own_numbers
        return at, opener
    place = found(s.found_by, latest)
    waiting = key_of(WAITING, opener, 0, number)
    if place != NONE and role.opens_session:
        place = _answered(s, place, waiting)
    elif place != NONE and not role.own_numbers:
        place = _not_detached(s, rows, i, role, place, waiting)
    if place == NONE:
        unopened = key_of(UNOPENED, 0, 0, number)
        place = found(s.found_by, unopened)
        if place == NONE:
            place = _new_session(s, number, 0) - first
            put(s.found_by, unopened, place)
    if role.opens_session:
        session = s.sessions.rows[first + place]
        session.opener = opener
        session.begun_losses = own_losses(s.numbers, sender)
        put(s.found_by, begun_by, place)
        if rows.peer_late[i]:  # the session that it answers is captured later: the number alone leads to it
            session.begun_losses = NONE
            session.doubted = 1
    return first + place, opener


@inlined
def update_session(s, rows, i, role, session, opener):
    """Update the session of row `i`; returns whether that ends it."""
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
    _pair_of_session(s, rows, i, role, session, opener)
    closes = role.closes_session == 1 and _is_current(rows, i, role, session)
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


@kernel
def _is_current(rows, i, role, session):
    """Whether row `i` ends the session as it is attached now: of 0-10, the answer to a detach may follow the next
    attach to the same channel."""
    if role.own_numbers:
        return True
    if rows.channel[i] != session.attached_to:
        return False
    if role.answers_detach and session.detached_before == 2 - rows.sender[i]:
        session.detached_before = 0
        return False
    session.detaching = 0 if role.answers_detach else 1 + rows.sender[i]
    return True


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
