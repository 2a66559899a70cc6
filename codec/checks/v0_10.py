"""Sessions of AMQP 0-10: attached and detached, commands numbered, completed, answered.

(0-10 specification, classes session, execution, tx, dtx.)
"""

from __future__ import annotations

from codec.checks import records_0_10 as R
from codec.checks import state as S
from codec.checks.state import (
    CLIENT,
    NONE,
    SERIAL,
    after,
    begin_connection,
    hashed_key,
    key_of,
    lead,
    note,
    note_wait,
    place_in,
)
from codec.checks.subscriptions import (
    ACCEPT,
    ACQUIRE,
    CANCEL,
    FLOW,
    FLUSH,
    REJECT,
    RELEASE,
    SET_FLOW_MODE,
    STOP,
    SUBSCRIBE,
    SUBSCRIPTION_NAMES,
    TRANSFER,
    change,
    settle_transfers,
    subscribe,
    transfer,
    transfers_completed,
)  # fmt: skip
from codec.compiler.kernel import kernel
from codec.conversation.sessions.sessions import goes_on
from codec.conversation.sessions.state import NO_LIMIT
from codec.hashes.keyed import found, put

NAMES = (
    *SUBSCRIPTION_NAMES, "session.attach", "session.attached", "session.detach", "session.detached",
    "session.command-point", "session.completed", "session.known-completed", "session.confirmed", "session.expected",
    "session.flush", "session.gap", "session.request-timeout", "session.timeout", "execution.sync", "execution.result",
    "execution.exception", "tx.select", "tx.commit", "tx.rollback", "dtx.select", "dtx.start", "dtx.end", "dtx.commit",
    "dtx.prepare", "dtx.rollback",
)  # fmt: skip
(
    ATTACH, ATTACHED_BACK, DETACH, DETACHED, COMMAND_POINT, COMPLETED, KNOWN_COMPLETED, CONFIRMED, EXPECTED,
    SESSION_FLUSH, GAP, REQUEST_TIMEOUT, TIMEOUT, SYNC, RESULT, EXCEPTION, TX_SELECT, TX_COMMIT, TX_ROLLBACK,
    DTX_SELECT, DTX_START, DTX_END, DTX_COMMIT, DTX_PREPARE, DTX_ROLLBACK,
) = range(len(SUBSCRIPTION_NAMES) + 1, len(NAMES) + 1)  # fmt: skip
KEYS_A_ROW = 6
PENDING, ANSWERED = 1, 2  # of a command that gives a result


@kernel
def follow(s, rows):
    """Take the next rows."""
    for i in range(len(rows.name)):
        if not s.numbers[S.STARTED] or rows.connection_id[i] != s.numbers[S.CONNECTION]:
            finish(s)
            begin_connection(s, rows.connection_id[i])
        s.numbers[S.STEPS] += S.STEPS_A_ROW
        s.numbers[S.LAST_NS] = rows.last_ns[i]
        if rows.of_connection[i]:
            if rows.channel[i] != 0:
                note(s, rows, i, NONE, NONE, S.CONTROL_CHANNEL, rows.channel[i], 0, NONE)
        else:
            _on_channel(s, rows, i)


@kernel
def finish(s):
    """The current connection has ended: note what was never answered."""
    if not s.numbers[S.STARTED]:
        return
    until = s.numbers[S.LAST_NS]
    for at in range(s.numbers[S.ENDPOINTS]):
        c = s.endpoints[at]
        if c[R.DETACH_NS] != NONE:
            _waited(s, c, R.DETACH_FRAME, R.DETACH_NS, until, 1 - c[R.DETACHER], S.DETACH_WAITS)
        for side in range(2):
            _unanswered(s, c, side, until)
    s.numbers[S.STARTED] = 0


@kernel
def _waited(s, c, frame_at, ns_at, until, sender, oddity):
    """Note that `sender` let the other side wait from the time in cell `ns_at` until `until`."""
    note_wait(s, c[frame_at], c[ns_at], until, sender, c[R.NUMBER], c[R.INCARNATION], oddity, NONE)


@kernel
def _unanswered(s, c, side, until):
    """Note what `side` waits for when a session or its connection ends."""
    if c[R.SYNC_ID + side] != NONE:
        _waited(s, c, R.SYNC_FRAME + side, R.SYNC_NS + side, until, 1 - side, S.SYNC_UNANSWERED)
    if c[R.TIMELY_NS + side] != NONE:
        _waited(s, c, R.TIMELY_FRAME + side, R.TIMELY_NS + side, until, 1 - side, S.COMPLETED_UNANSWERED)
    if c[R.RESULT_NS + side] != NONE:
        _waited(s, c, R.RESULT_FRAME + side, R.RESULT_NS + side, until, 1 - side, S.RESULT_MISSING)
    c[R.SYNC_ID + side] = c[R.TIMELY_NS + side] = c[R.RESULT_NS + side] = c[R.RESULT_ID + side] = NONE


@kernel
def _channel(s, rows, i):
    """The place of the channel of row `i`."""
    key = key_of(S.K_CHANNEL, 0, rows.channel[i])
    at = place_in(s, key)
    if at == NONE:
        at = s.numbers[S.ENDPOINTS]
        s.numbers[S.ENDPOINTS] += 1
        c = s.endpoints[at]
        c[:] = 0
        c[R.NUMBER] = rows.channel[i]
        c[R.DETACH_NS] = NONE
        _renew(c)
        lead(s, key, at)
    return at


@kernel
def _renew(c):
    """Reset the commands of a session that is attached."""
    for side in range(2):
        c[R.NEXT + side] = c[R.SYNC_ID + side] = c[R.TIMELY_NS + side] = c[R.KNOWN_TO + side] = NONE
        c[R.DONE_TO + side] = c[R.RESULT_ID + side] = c[R.RESULT_NS + side] = NONE
    c[R.TX] = c[R.DTX] = c[R.BRANCH] = c[R.IMPLICIT] = c[R.TIMEOUT_S] = 0
    c[R.FAILED] = NONE


@kernel
def _on_channel(s, rows, i):
    name, sender, at = rows.name[i], rows.sender[i], _channel(s, rows, i)
    c = s.endpoints[at]
    if rows.channel_max[i] > 0 and rows.channel[i] >= rows.channel_max[i]:
        incarnation = c[R.INCARNATION] + (1 if name == ATTACH else 0)
        note(s, rows, i, c[R.NUMBER], incarnation, S.CHANNEL_ABOVE, rows.channel[i], rows.channel_max[i] - 1, NONE)
    if name in (ATTACH, ATTACHED_BACK):
        _attach(s, rows, i, at)
        return
    if name in (DETACH, DETACHED):
        _detach(s, rows, i, c)
        return
    other_ended = c[R.BY_DETACHED] == 1 - sender and rows.ts_ns[i] - c[R.DETACHED_NS] <= rows.grace_ns[i]
    if (
        c[R.ATTACHED] != R.READY
        and not (c[R.ATTACHED] == R.OVER and other_ended)
        and not (c[R.ATTACHED] == R.ASKED and c[R.ASKED_ATTACH] == sender)
    ):
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.NOT_ATTACHED, name, NONE, NONE)
    if rows.begins[i] != NONE:
        if c[R.EXPECTS + sender] and rows.begins[i] != (1 if c[R.EXPECTS + sender] == R.BEGINNING else 0):
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.COMMAND_OFFSET, rows.begins[i], NONE, NONE)
        c[R.EXPECTS + sender] = 0
    if rows.is_command[i]:
        _command(s, rows, i, c)
    if name == COMMAND_POINT:
        c[R.POINT + sender] = 1
        c[R.NEXT + sender] = rows.command_id[i]
        c[R.EXPECTS + sender] = R.REST if rows.command_offset[i] > 0 else R.BEGINNING
    elif name in (COMPLETED, CONFIRMED, EXPECTED, KNOWN_COMPLETED):
        _ids(s, rows, i, at)
    elif 0 < name <= len(SUBSCRIPTION_NAMES):
        _of_subscriptions(s, rows, i, at)
    elif name == RESULT:
        _result(s, rows, i, at)
    elif name == TIMEOUT:
        c[R.TIMEOUT_S] = rows.timeout[i] if rows.timeout[i] != NONE else NO_LIMIT
    elif name == EXCEPTION:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.EXCEPTION, rows.error_code[i], NONE, rows.frame_no[i])
        c[R.FAILED] = sender
    elif name >= TX_SELECT:
        _transactions(s, rows, i, at)


@kernel
def _attach(s, rows, i, at):
    c, sender = s.endpoints[at], rows.sender[i]
    if rows.name[i] == ATTACHED_BACK:
        if c[R.ATTACHED] == R.ASKED or c[R.ATTACHED] == R.OVER:
            c[R.ATTACHED] = R.READY
        return
    closed_ns = c[R.DETACHED_NS] if c[R.ATTACHED] == R.OVER else NONE
    timeout_s = c[R.TIMEOUT_S] if c[R.FAILED] == NONE else 0
    continues = goes_on(rows.key[i], c[R.NAME], timeout_s, closed_ns, rows.ts_ns[i])
    if not continues:
        c[R.INCARNATION] += 1
    if c[R.ATTACHED] == R.READY and rows.key[i] != c[R.NAME]:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.CHANNEL_BUSY, NONE, NONE, NONE)
    elsewhere = place_in(s, hashed_key(S.K_SESSION, 0, rows.key[i]))
    if elsewhere != NONE and elsewhere != at and rows.force[i] != 1:
        e = s.endpoints[elsewhere]
        if e[R.ATTACHED] == R.READY and e[R.NAME] == rows.key[i]:
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.SESSION_TWICE, e[R.NUMBER], NONE, NONE)
    c[R.NAME] = rows.key[i]
    c[R.ATTACHED] = R.ASKED
    c[R.ASKED_ATTACH] = sender
    c[R.DETACH_NS] = NONE
    if not continues:
        _renew(c)
    for side in range(2):  # command-point comes before the commands of a transport that is newly attached
        c[R.POINT + side] = c[R.EXPECTS + side] = 0
    lead(s, hashed_key(S.K_SESSION, 0, rows.key[i]), at)


@kernel
def _detach(s, rows, i, c):
    sender = rows.sender[i]
    if rows.name[i] == DETACH:
        c[R.DETACH_NS], c[R.DETACH_FRAME], c[R.DETACHER] = rows.ts_ns[i], rows.frame_no[i], sender
        return
    if rows.code[i] > 0:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.DETACHED_CODE, rows.code[i], NONE, rows.frame_no[i])
    if c[R.DETACH_NS] != NONE:
        _waited(s, c, R.DETACH_FRAME, R.DETACH_NS, rows.ts_ns[i], sender, S.DETACH_WAITS)
    for side in range(2):
        _unanswered(s, c, side, rows.ts_ns[i])
    c[R.DETACH_NS] = NONE
    c[R.ATTACHED] = R.OVER
    c[R.DETACHED_NS], c[R.BY_DETACHED] = rows.ts_ns[i], sender


@kernel
def _command(s, rows, i, c):
    """A command: its number (session.command-point), sync, and result."""
    sender, number = rows.sender[i], rows.command_id[i]
    if not c[R.POINT + sender] and c[R.ATTACHED] != R.OVER:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.NO_COMMAND_POINT, NONE, NONE, NONE)
        c[R.POINT + sender] = 1
    if c[R.FAILED] == sender:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.AFTER_EXCEPTION, rows.name[i], NONE, NONE)
    if number == NONE or rows.name[i] == RESULT or rows.name[i] == EXCEPTION:
        # the argument of these has the name of what every command has
        if c[R.NEXT + sender] != NONE:
            c[R.NEXT + sender] = (c[R.NEXT + sender] + 1) % SERIAL
        return
    c[R.NEXT + sender] = (number + 1) % SERIAL
    if rows.sync[i] == 1 or rows.name[i] == SYNC:
        if c[R.SYNC_ID + sender] == NONE:
            c[R.SYNC_NS + sender] = rows.ts_ns[i]
            c[R.SYNC_FRAME + sender] = rows.frame_no[i]
        c[R.SYNC_ID + sender] = number
    if rows.gives_result[i]:
        at = place_in(s, key_of(S.K_CHANNEL, 0, rows.channel[i]))
        put(s.found_by, key_of(S.K_RESULT, 2 * at + sender, number), PENDING)
        c[R.RESULT_ID + sender], c[R.RESULT_FRAME + sender] = number, rows.frame_no[i]
        c[R.RESULT_NS + sender] = NONE


@kernel
def _ids(s, rows, i, at):
    """Sets of command ids: of the other side (session.completed, confirmed, expected), or completed by it."""
    c, name, sender = s.endpoints[at], rows.name[i], rows.sender[i]
    other = 1 - sender
    unknown = repeated = 0
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        if name == KNOWN_COMPLETED:
            if c[R.KNOWN_TO + other] == NONE or after(first, c[R.KNOWN_TO + other]) <= 1:
                c[R.KNOWN_TO + other] = last
                c[R.KNOWN_NS + other] = rows.ts_ns[i]
            continue
        if c[R.NEXT + other] != NONE and after(last, c[R.NEXT + other]) >= 0:
            unknown = 1
        if name == EXPECTED:
            continue
        known = c[R.KNOWN_TO + sender]
        if known != NONE and after(first, known) <= 0 and rows.ts_ns[i] - c[R.KNOWN_NS + sender] > rows.grace_ns[i]:
            repeated = 1
        if name == COMPLETED:
            _completed(s, rows, i, at, first, last)
    if unknown:
        last = rows.range_last[rows.range_at[i + 1] - 1]
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.IDS_UNKNOWN, last, (c[R.NEXT + other] - 1) % SERIAL, NONE)
    if repeated:
        first = rows.range_first[rows.range_at[i]]
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.KNOWN_COMPLETED_REPEATED, first, c[R.KNOWN_TO + sender], NONE)
    if name == KNOWN_COMPLETED and c[R.TIMELY_NS + other] != NONE:
        _waited(s, c, R.TIMELY_FRAME + other, R.TIMELY_NS + other, rows.ts_ns[i], sender, S.COMPLETED_UNANSWERED)
        c[R.TIMELY_NS + other] = NONE
    if name == COMPLETED and rows.timely_reply[i] == 1 and c[R.TIMELY_NS + sender] == NONE:
        c[R.TIMELY_NS + sender] = rows.ts_ns[i]
        c[R.TIMELY_FRAME + sender] = rows.frame_no[i]


@kernel
def _completed(s, rows, i, at, first, last):
    """The sender completed commands `first` to `last` of the other side."""
    c, sender = s.endpoints[at], rows.sender[i]
    other = 1 - sender
    waits = c[R.SYNC_ID + other]
    if waits != NONE and after(waits, first) >= 0 and after(last, waits) >= 0:
        _waited(s, c, R.SYNC_FRAME + other, R.SYNC_NS + other, rows.ts_ns[i], sender, S.SYNC_UNANSWERED)
        c[R.SYNC_ID + other] = NONE
    asked = c[R.RESULT_ID + other]
    if asked != NONE and after(asked, first) >= 0 and after(last, asked) >= 0:
        c[R.RESULT_NS + other] = rows.ts_ns[i]
    if c[R.DONE_TO + sender] == NONE or after(last, c[R.DONE_TO + sender]) > 0:
        c[R.DONE_TO + sender] = last
    if sender == CLIENT:
        transfers_completed(s, at, first, last)


@kernel
def _result(s, rows, i, at):
    c, sender = s.endpoints[at], rows.sender[i]
    number = rows.command_id[i]
    if number == NONE:
        return
    key = key_of(S.K_RESULT, 2 * at + 1 - sender, number)
    state = found(s.found_by, key)
    if state != PENDING:
        note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.RESULT_UNKNOWN, number, NONE, NONE)
    put(s.found_by, key, ANSWERED)
    if number == c[R.RESULT_ID + 1 - sender]:
        c[R.RESULT_ID + 1 - sender] = c[R.RESULT_NS + 1 - sender] = NONE


@kernel
def _of_subscriptions(s, rows, i, at):
    name = rows.name[i]
    c = s.endpoints[at]
    if name == SUBSCRIBE:
        subscribe(s, rows, i, at)
        if rows.accept_mode[i] == 1:
            c[R.IMPLICIT] = 1
            if c[R.TX]:
                note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.IMPLICIT_ACCEPT, NONE, NONE, NONE)
    elif name == TRANSFER:
        transfer(s, rows, i, at)
    elif name in (FLOW, STOP, CANCEL, SET_FLOW_MODE, FLUSH):
        change(s, rows, i, at)
    elif name in (ACCEPT, REJECT, RELEASE, ACQUIRE):
        settle_transfers(s, rows, i, at)


@kernel
def _transactions(s, rows, i, at):
    """Classes tx and dtx: order of their commands."""
    c, name = s.endpoints[at], rows.name[i]
    if name == TX_SELECT:
        if c[R.TX]:
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.TRANSACTION_ORDER, name, NONE, NONE)
        c[R.TX] = 1
        if c[R.IMPLICIT]:
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.IMPLICIT_ACCEPT, NONE, NONE, NONE)
    elif name in (TX_COMMIT, TX_ROLLBACK):
        if not c[R.TX]:
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.TRANSACTION_ORDER, name, NONE, NONE)
    elif name == DTX_SELECT:
        c[R.DTX] = 1
    else:
        key = hashed_key(S.K_BRANCH, at, rows.key[i])
        active = found(s.found_by, key) == 1
        wrong = active if name in (DTX_COMMIT, DTX_PREPARE, DTX_ROLLBACK) else (name == DTX_END and not active)
        if wrong or (name == DTX_START and not c[R.DTX]):
            note(s, rows, i, c[R.NUMBER], c[R.INCARNATION], S.BRANCH_ORDER, name, NONE, NONE)
        put(s.found_by, key, 1 if name == DTX_START else 2)
