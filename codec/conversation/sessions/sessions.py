"""Sessions: which one a row belongs to, and what becomes of it.

Where sides number their own channels (1.0), a begin without remote-channel opens a session; the begin that answers it
names the opener's number as its remote-channel, and the row belongs to the session of the opener's number. Where they
share numbers (0-10), so do they a session. A row whose session was opened before the capture is of life 0 of its own
number. Nothing is undone by the end of a session: a number means another one when that is opened.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.sessions.pools import FIRST, new_record
from codec.conversation.sessions.state import (
    CLIENT,
    CONNECTION,
    DTX,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    KEYS,
    NOBODY,
    NONE,
    TX,
    losses,
)
from codec.hashes.keyed import found, put

# Keys of `State.found_by`: what they lead to, then numbers.
KIND_SHIFT, SIDE_SHIFT, SESSION_SHIFT = 59, 34, 35
BEGUN, LATEST, LIVES, UNOPENED, HANDLE, DESTINATION, ATTACHED = range(1, 8)


@kernel
def key_of(kind, session, side, number):
    """`session` and `number` are not negative; `number` is below 2**34."""
    return (kind << KIND_SHIFT) | (session << SESSION_SHIFT) | (side << SIDE_SHIFT) | number


@kernel
def _new_session(s, channel, life):
    at = new_record(s.sessions)
    session = s.sessions.rows[at]
    session.connection = s.numbers[CONNECTION]
    session.channel = channel
    session.life = life
    session.listed = 0
    session.opened_losses = NONE
    session.opened_ns = NONE
    session.name = 0
    session.remote_channel = NONE
    session.closed_ns = NONE
    session.close_sender = NONE
    session.detach_code = NONE
    session.reason_code = NONE
    session.condition = 0
    session.description = 0
    session.incoming_window = NONE
    session.outgoing_window = NONE
    session.mode = 0
    session.failed = 0
    session.close_frame = NONE
    session.close_client_hidden = 0
    session.close_server_hidden = 0
    session.client_hidden = 0
    session.server_hidden = 0
    session.losses = 0
    session.listed_losses = 0
    session.last_ns = NONE
    session.last_listed_ns = NONE
    session.tx_key = 0
    session.branch = 0
    session.named_client = NONE
    session.named_server = NONE
    session.doubted = 0
    return at


@kernel
def session_of(s, rows, i, role):
    """The place of the session of row `i`, and who opened it."""
    sender, number, first = rows.sender[i], rows.channel[i], s.sessions.cells[FIRST]
    opener = NOBODY
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
        lives = key_of(LIVES, 0, 0, number)
        life = max(found(s.found_by, lives), 0) + 1
        put(s.found_by, lives, life)
        at = _new_session(s, number, life)
        put(s.found_by, latest, at - first)
        session = s.sessions.rows[at]
        session.opened_losses = losses(s.numbers)
        session.opened_ns = rows.ts_ns[i]
        session.name = rows.session_name[i]
        session.doubted = int(life > 1 and (rows.peer_late[i] or rows.late[i]))
        return at, opener
    place = found(s.found_by, latest)
    if place == NONE:
        unopened = key_of(UNOPENED, 0, 0, number)
        place = found(s.found_by, unopened)
        if place == NONE:
            place = _new_session(s, number, 0) - first
            put(s.found_by, unopened, place)
    if role.opens_session and rows.peer_late[i]:  # the session that it answers comes later
        s.sessions.rows[first + place].doubted = 1
    return first + place, opener


@kernel
def take_part(s, rows, i, role, session, opener):
    """What row `i` says of its session."""
    numbers, ts_ns = s.numbers, rows.ts_ns[i]
    session.losses = losses(numbers)
    session.last_ns = max(session.last_ns, ts_ns)
    if role.listed:
        session.listed = 1
        session.listed_losses = session.losses
        session.last_listed_ns = max(session.last_listed_ns, ts_ns)
    if role.opens_session and rows.remote_channel[i] != NONE and session.remote_channel == NONE:
        session.remote_channel = rows.channel[i]
    if role.closes_session:
        if session.closed_ns == NONE:
            session.closed_ns = ts_ns
            session.close_sender = rows.sender[i]
        if session.detach_code == NONE:
            session.detach_code = rows.code[i]
        # The end is the last of the closing frames: the other side may answer until it has sent its own.
        session.close_frame = rows.frame_no[i]
        session.close_client_hidden = numbers[HIDDEN_CLIENT]
        session.close_server_hidden = numbers[HIDDEN_SERVER]
    if role.says_why and rows.error[i] and not session.failed:
        session.failed = 1
        session.reason_code = rows.code[i]
        session.condition = rows.condition[i]
        session.description = rows.description[i]
    if role.announces_windows and rows.sender[i] == opener:
        session.incoming_window = rows.incoming_window[i]
        session.outgoing_window = rows.outgoing_window[i]
    if role.mode:
        session.mode = role.mode


@kernel
def transaction_of(s, rows, i, role, session):
    """The transaction that row `i` is said in, or that it ends: one that is named, or that which the session is in.

    After tx.select one transaction follows the other on the session; dtx.start and dtx.end say which one the session
    works on.
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
