"""Sessions of AMQP 0-10: attached and detached, commands numbered, completed, answered.

(0-10 specification, classes session, execution, tx, dtx.)
"""

from __future__ import annotations

from codec.checks import records_0_10 as R
from codec.checks import state as S
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
    flushes_completed,
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
            S.begin_connection(s, rows.connection_id[i])
        s.numbers[S.STEPS] += S.STEPS_A_ROW
        s.numbers[S.LAST_NS] = rows.last_ns[i]
        if rows.of_connection[i]:
            if rows.channel[i] != 0:
                S.note_at(s, rows, i, S.NONE, S.NONE, S.CONTROL_CHANNEL, rows.channel[i], 0, S.NONE)
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
        if c.detach_ns != S.NONE:
            S.note_wait(s, c.detach_frame, c.detach_ns, until, 1 - c.detacher, c, S.DETACH_WAITS, S.NONE)
        for side in range(2):
            _unanswered(s, c, side, until)
    s.numbers[S.STARTED] = 0


@kernel
def _unanswered(s, c, side, until):
    """Note what `side` waits for when a session or its connection ends."""
    if c.sync_id[side] != S.NONE:
        S.note_wait(s, c.sync_frame[side], c.sync_ns[side], until, 1 - side, c, S.SYNC_UNANSWERED, S.NONE)
    if c.timely_ns[side] != S.NONE:
        S.note_wait(s, c.timely_frame[side], c.timely_ns[side], until, 1 - side, c, S.COMPLETED_UNANSWERED, S.NONE)
    if c.result_ns[side] != S.NONE:
        S.note_wait(s, c.result_frame[side], c.result_ns[side], until, 1 - side, c, S.RESULT_MISSING, S.NONE)
    c.sync_id[side] = c.timely_ns[side] = c.result_ns[side] = c.result_id[side] = S.NONE


@kernel
def _channel(s, rows, i):
    """The place of the channel of row `i`: what a side sends before it answers a detach is about the session before."""
    at = S.place_in(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]))
    if at == S.NONE:
        return _new_channel(s, rows, i)
    c, left = s.endpoints[at], s.endpoints[at].left
    if left == S.NONE or rows.sender[i] == c.asked_attach:
        return at
    if rows.name[i] in (DETACHED, ATTACHED_BACK):
        c.left = S.NONE
    return at if rows.name[i] == ATTACHED_BACK else left


@kernel
def _new_channel(s, rows, i):
    at = S.add_endpoint(s)
    s.endpoints[at].channel = s.endpoints[at].transport = rows.channel[i]
    S.lead(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]), at)
    return at


@kernel
def _renew(c):
    """Reset the commands of a session that is attached."""
    for side in range(2):
        c.next[side] = c.sync_id[side] = c.timely_ns[side] = c.known_to[side] = S.NONE
        c.done_to[side] = c.result_id[side] = c.result_ns[side] = S.NONE
    c.tx = c.dtx = c.implicit = c.timeout_s = 0
    c.failed = c.flush_from = S.NONE


@kernel
def _on_channel(s, rows, i):
    name, sender, at = rows.name[i], rows.sender[i], _channel(s, rows, i)
    c = s.endpoints[at]
    if rows.channel_max[i] > 0 and rows.channel[i] >= rows.channel_max[i]:
        incarnation = c.incarnation + (1 if name == ATTACH else 0)
        S.note_at(s, rows, i, c.channel, incarnation, S.CHANNEL_ABOVE, rows.channel[i], rows.channel_max[i] - 1, S.NONE)
    if name in (ATTACH, ATTACHED_BACK):
        _attach(s, rows, i, at)
        return
    if name in (DETACH, DETACHED):
        _detach(s, rows, i, c)
        return
    other_ended = c.by_detached == 1 - sender and rows.ts_ns[i] - c.detached_ns <= rows.grace_ns[i]
    if (
        c.attached != R.READY
        and c.left == S.NONE
        and not (c.attached == R.OVER and other_ended)
        and not (c.attached == R.ASKED and c.asked_attach == sender)
    ):
        S.note(s, rows, i, c, S.NOT_ATTACHED, S.NONE, S.NONE, S.NONE)
    if rows.begins[i] != S.NONE:
        if c.expects[sender] and rows.begins[i] != (1 if c.expects[sender] == R.BEGINNING else 0):
            S.note(s, rows, i, c, S.COMMAND_OFFSET, rows.begins[i], S.NONE, S.NONE)
        c.expects[sender] = 0
    if rows.is_command[i]:
        _command(s, rows, i, c)
    if name == COMMAND_POINT:
        c.point[sender] = 1
        c.next[sender] = rows.command_id[i]
        c.expects[sender] = R.REST if rows.command_offset[i] > 0 else R.BEGINNING
    elif name in (COMPLETED, CONFIRMED, EXPECTED, KNOWN_COMPLETED):
        _ids(s, rows, i, at)
    elif 0 < name <= len(SUBSCRIPTION_NAMES):
        _of_subscriptions(s, rows, i, at)
    elif name == RESULT:
        _result(s, rows, i, at)
    elif name == TIMEOUT:
        c.timeout_s = rows.timeout[i] if rows.timeout[i] != S.NONE else NO_LIMIT
    elif name == EXCEPTION:
        S.note(s, rows, i, c, S.EXCEPTION, rows.error_code[i], S.NONE, rows.frame_no[i])
        c.failed = sender
    elif name >= TX_SELECT:
        _transactions(s, rows, i, at)


@kernel
def _goes_on(rows, i, c):
    """Whether the attach in row `i` continues the session of channel `c`."""
    closed_ns = c.detached_ns if c.attached == R.OVER else c.detach_ns
    return c.failed == S.NONE and goes_on(rows.key[i], c.name, c.timeout_s, closed_ns, rows.ts_ns[i])


@kernel
def _is_attached(c, sender):
    """Whether the session of channel `c` is attached when the next frame of `sender` arrives: not after its detach."""
    return c.attached == R.READY and not (c.detach_ns != S.NONE and c.detacher == sender)


@kernel
def _attach(s, rows, i, at):
    c, sender = s.endpoints[at], rows.sender[i]
    if rows.name[i] == ATTACHED_BACK:
        if c.attached == R.ASKED or c.attached == R.OVER:
            c.attached = R.READY
        return
    here = c.transport == rows.channel[i]
    busy = here and _is_attached(c, sender) and rows.key[i] != c.name
    elsewhere = S.place_in(s, S.hashed_key(S.K_SESSION, 0, rows.key[i]))
    left = at if here and c.attached == R.READY and not _is_attached(c, sender) else S.NONE
    continues = _goes_on(rows, i, c)
    if not continues and elsewhere != S.NONE and s.endpoints[elsewhere].attached == R.OVER:
        continues = _goes_on(rows, i, s.endpoints[elsewhere])
        at = elsewhere if continues else at
        S.lead(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]), at)
    if not continues:
        if c.incarnation:
            if here and left == S.NONE:
                _renew(c)
                c.detach_ns = S.NONE
            at = _new_channel(s, rows, i)
        life = S.key_of(S.K_LIFE, 0, rows.channel[i])
        put(s.found_by, life, max(found(s.found_by, life), 0) + 1)
        s.endpoints[at].incarnation = found(s.found_by, life)
    c = s.endpoints[at]
    if busy:
        S.note(s, rows, i, c, S.CHANNEL_BUSY, S.NONE, S.NONE, S.NONE)
    named = elsewhere != S.NONE and elsewhere != at
    if named:
        e = s.endpoints[elsewhere]
        named = _is_attached(e, sender) and e.name == rows.key[i]
        if named and rows.force[i] != 1:
            S.note(s, rows, i, c, S.SESSION_TWICE, e.transport, S.NONE, S.NONE)
    c.name = rows.key[i]
    c.transport = rows.channel[i]
    c.attached = R.ASKED
    c.asked_attach = sender
    c.detach_ns = S.NONE
    c.left = left
    if not continues:
        _renew(c)
    for side in range(2):  # command-point comes before the commands of a transport that is newly attached
        c.point[side] = c.expects[side] = 0
    if not named:
        S.lead(s, S.hashed_key(S.K_SESSION, 0, rows.key[i]), at)


@kernel
def _detach(s, rows, i, c):
    sender = rows.sender[i]
    if rows.name[i] == DETACH:
        c.detach_ns, c.detach_frame, c.detacher = rows.ts_ns[i], rows.frame_no[i], sender
        return
    if rows.code[i] > 0:
        S.note(s, rows, i, c, S.DETACHED_CODE, rows.code[i], S.NONE, rows.frame_no[i])
    if c.detach_ns != S.NONE:
        S.note_wait(s, c.detach_frame, c.detach_ns, rows.ts_ns[i], sender, c, S.DETACH_WAITS, S.NONE)
    for side in range(2):
        _unanswered(s, c, side, rows.ts_ns[i])
    c.detach_ns = S.NONE
    c.attached = R.OVER
    c.detached_ns, c.by_detached = rows.ts_ns[i], sender


@kernel
def _command(s, rows, i, c):
    """A command: its number (session.command-point), sync, and result."""
    sender, number = rows.sender[i], rows.command_id[i]
    if not c.point[sender] and c.attached != R.OVER:
        S.note(s, rows, i, c, S.NO_COMMAND_POINT, S.NONE, S.NONE, S.NONE)
        c.point[sender] = 1
    if c.failed == sender:
        S.note(s, rows, i, c, S.AFTER_EXCEPTION, S.NONE, S.NONE, S.NONE)
    if number == S.NONE or rows.name[i] == RESULT or rows.name[i] == EXCEPTION:
        # the argument of these has the name of what every command has
        if c.next[sender] != S.NONE:
            c.next[sender] = (c.next[sender] + 1) % S.SERIAL
        return
    c.next[sender] = (number + 1) % S.SERIAL
    if rows.sync[i] == 1 or rows.name[i] == SYNC:
        if c.sync_id[sender] == S.NONE:
            c.sync_ns[sender] = rows.ts_ns[i]
            c.sync_frame[sender] = rows.frame_no[i]
        c.sync_id[sender] = number
    if rows.gives_result[i]:
        at = S.place_in(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]))
        put(s.found_by, S.key_of(S.K_RESULT, 2 * at + sender, number), PENDING)
        c.result_id[sender], c.result_frame[sender] = number, rows.frame_no[i]
        c.result_ns[sender] = S.NONE


@kernel
def _ids(s, rows, i, at):
    """Sets of command ids: of the other side (session.completed, confirmed, expected), or completed by it."""
    c, name, sender = s.endpoints[at], rows.name[i], rows.sender[i]
    other = 1 - sender
    unknown = repeated = 0
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        if name == KNOWN_COMPLETED:
            if c.known_to[other] == S.NONE or S.after(first, c.known_to[other]) <= 1:
                c.known_to[other] = last
                c.known_ns[other] = rows.ts_ns[i]
            continue
        if c.next[other] != S.NONE and S.after(last, c.next[other]) >= 0:
            unknown = 1
        if name == EXPECTED:
            continue
        known = c.known_to[sender]
        if known != S.NONE and S.after(first, known) <= 0 and rows.ts_ns[i] - c.known_ns[sender] > rows.grace_ns[i]:
            repeated = 1
        if name == COMPLETED:
            _completed(s, rows, i, at, first, last)
    if unknown:
        last = rows.range_last[rows.range_at[i + 1] - 1]
        S.note(s, rows, i, c, S.IDS_UNKNOWN, last, (c.next[other] - 1) % S.SERIAL, S.NONE)
    if repeated:
        first = rows.range_first[rows.range_at[i]]
        S.note(s, rows, i, c, S.KNOWN_COMPLETED_REPEATED, first, c.known_to[sender], S.NONE)
    if name == KNOWN_COMPLETED and c.timely_ns[other] != S.NONE:
        S.note_wait(
            s, c.timely_frame[other], c.timely_ns[other], rows.ts_ns[i], sender, c, S.COMPLETED_UNANSWERED, S.NONE
        )
        c.timely_ns[other] = S.NONE
    if name == COMPLETED and rows.timely_reply[i] == 1 and c.timely_ns[sender] == S.NONE:
        c.timely_ns[sender] = rows.ts_ns[i]
        c.timely_frame[sender] = rows.frame_no[i]


@kernel
def _completed(s, rows, i, at, first, last):
    """The sender completed commands `first` to `last` of the other side."""
    c, sender = s.endpoints[at], rows.sender[i]
    other = 1 - sender
    waits = c.sync_id[other]
    if waits != S.NONE and S.after(waits, first) >= 0 and S.after(last, waits) >= 0:
        S.note_wait(s, c.sync_frame[other], c.sync_ns[other], rows.ts_ns[i], sender, c, S.SYNC_UNANSWERED, S.NONE)
        c.sync_id[other] = S.NONE
    asked = c.result_id[other]
    if asked != S.NONE and S.after(asked, first) >= 0 and S.after(last, asked) >= 0:
        c.result_ns[other] = rows.ts_ns[i]
    if c.done_to[sender] == S.NONE or S.after(last, c.done_to[sender]) > 0:
        c.done_to[sender] = last
    if sender == S.CLIENT:
        transfers_completed(s, at, first, last)
    elif c.flush_from != S.NONE:
        flushes_completed(s, at, first, last)


@kernel
def _result(s, rows, i, at):
    c, sender = s.endpoints[at], rows.sender[i]
    number = rows.command_id[i]
    if number == S.NONE:
        return
    key = S.key_of(S.K_RESULT, 2 * at + 1 - sender, number)
    state = found(s.found_by, key)
    if state != PENDING:
        S.note(s, rows, i, c, S.RESULT_UNKNOWN, number, S.NONE, S.NONE)
    put(s.found_by, key, ANSWERED)
    if number == c.result_id[1 - sender]:
        c.result_id[1 - sender] = c.result_ns[1 - sender] = S.NONE


@kernel
def _of_subscriptions(s, rows, i, at):
    name = rows.name[i]
    c = s.endpoints[at]
    if name == SUBSCRIBE:
        subscribe(s, rows, i, at)
        if rows.accept_mode[i] == 1:
            c.implicit = 1
            if c.tx:
                S.note(s, rows, i, c, S.IMPLICIT_ACCEPT, S.NONE, S.NONE, S.NONE)
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
        if c.tx:
            S.note(s, rows, i, c, S.TRANSACTION_ORDER, S.NONE, S.NONE, S.NONE)
        c.tx = 1
        if c.implicit:
            S.note(s, rows, i, c, S.IMPLICIT_ACCEPT, S.NONE, S.NONE, S.NONE)
    elif name in (TX_COMMIT, TX_ROLLBACK):
        if not c.tx:
            S.note(s, rows, i, c, S.TRANSACTION_ORDER, S.NONE, S.NONE, S.NONE)
    elif name == DTX_SELECT:
        c.dtx = 1
    else:
        key = S.hashed_key(S.K_BRANCH, at, rows.key[i])
        active = found(s.found_by, key) == 1
        wrong = active if name in (DTX_COMMIT, DTX_PREPARE, DTX_ROLLBACK) else (name == DTX_END and not active)
        if wrong or (name == DTX_START and not c.dtx):
            S.note(s, rows, i, c, S.BRANCH_ORDER, S.NONE, S.NONE, S.NONE)
        put(s.found_by, key, 1 if name == DTX_START else 2)
