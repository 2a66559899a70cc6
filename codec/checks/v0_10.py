"""Sessions of AMQP 0-10: attached and detached, commands numbered, completed, answered.

(0-10 specification, classes session, execution, tx, dtx.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.compiler.kernel import kernel
from codec.conversation.session_lookup import resumes
from codec.conversation.session_state import NO_LIMIT
from codec.hashes.maps import get, put

# Subscriptions of AMQP 0-10: destinations, credit, transfers and their settlement.
#
# Credit of messages is followed as `codec.conversation.session_links` says it; of bytes only whether any was given,
# and whether without limit. (0-10 specification, class message.)


SUBSCRIPTION_NAMES = (
    "message.subscribe", "message.cancel", "message.flow", "message.stop", "message.flush", "message.set-flow-mode",
    "message.transfer", "message.accept", "message.reject", "message.release", "message.acquire",
)  # fmt: skip
(
    SUBSCRIBE, CANCEL, FLOW, STOP, FLUSH, SET_FLOW_MODE, TRANSFER, ACCEPT, REJECT, RELEASE, ACQUIRE,
) = range(1, len(SUBSCRIPTION_NAMES) + 1)  # fmt: skip
IN_MESSAGES = 0  # credit unit
# Bits of a transfer that the client has not settled, or that still gives credit back.
BITS, UNSETTLED, GIVES_BACK = 2, 1, 2


@kernel
def _of_destination(s, rows, i, at):
    return S.lookup(s, S.hashed_key(S.K_DESTINATION, at, rows.destination[i]))


@kernel
def subscribe(s, rows, i, at):
    """A subscription begins in window mode, with no credit."""
    c, before = s.endpoints[at], _of_destination(s, rows, i, at)
    if before != S.NONE and s.links[before].active == c.incarnation and c.incarnation:
        S.note(s, rows, i, c, S.DESTINATION_IN_USE, S.NONE, S.NONE, rows.frame_no[i])
    place = S.add_link(s)
    k = s.links[place]
    k.active = max(c.incarnation, 1)
    k.window = 1
    k.frame = rows.frame_no[i]
    k.accept_none = 1 if rows.accept_mode[i] == 1 else 0
    S.bind(s, S.hashed_key(S.K_DESTINATION, at, rows.destination[i]), place)


@kernel
def _active(s, rows, i, at):
    """The place of the subscription of row `i`, or NONE."""
    c, place = s.endpoints[at], _of_destination(s, rows, i, at)
    return place if place != S.NONE and s.links[place].active == max(c.incarnation, 1) else S.NONE


@kernel
def change(s, rows, i, at):
    """message.flow, stop, cancel, flush, set-flow-mode."""
    c, name, place = s.endpoints[at], rows.name[i], _active(s, rows, i, at)
    if place == S.NONE:
        S.note(s, rows, i, c, S.DESTINATION_UNKNOWN, S.NONE, S.NONE, S.NONE)
        return
    k, value = s.links[place], max(rows.value[i], 0)
    if name == CANCEL:
        k.active = S.GONE
    elif name == FLOW and rows.unit[i] == IN_MESSAGES:
        k.messages += value
        k.all_messages |= value == NO_LIMIT
        k.later += value
        k.all_later |= value == NO_LIMIT
        k.stopped = 0
    elif name == FLOW:
        k.byte_count += value
        k.stopped = 0
    elif name in (SET_FLOW_MODE, STOP):
        if name == SET_FLOW_MODE:
            # Bytes that are left over do no harm: clients leave them unlimited.
            # A flush comes first: it leaves no credit.
            if k.messages > 0 and k.flush_id == S.NONE:
                S.note(s, rows, i, c, S.MODE_WITH_CREDIT, k.messages, 0, k.frame)
            k.window = max(rows.flow_mode[i], 0)
        else:
            k.stopped = 1
            k.stop_id = rows.command_id[i]
        k.messages = k.all_messages = k.byte_count = 0
        k.flush_id = S.NONE
        k.zeroed_id = c.next[S.SERVER]
    elif name == FLUSH and rows.command_id[i] != S.NONE:
        k.flush_id = rows.command_id[i]
        k.later = k.all_later = 0
        S.bind(s, S.key_of(S.K_FLUSH, at, k.flush_id), place)
        c.flush_from = k.flush_id if c.flush_from == S.NONE else c.flush_from
        c.flush_to = k.flush_id


@kernel
def transfer(s, rows, i, at):
    """A message.transfer; those of the server go over a subscription and use up its credit."""
    if rows.sender[i] == S.CLIENT:
        return
    c, place = s.endpoints[at], _active(s, rows, i, at)
    if place == S.NONE:
        gone = _of_destination(s, rows, i, at)
        # what was sent before a cancel arrived is on its way
        if gone == S.NONE:
            S.note(s, rows, i, c, S.NO_SUBSCRIPTION, S.NONE, S.NONE, rows.frame_no[i])
        return
    k = s.links[place]
    if k.stopped:
        if c.done_to[S.SERVER] != S.NONE and k.stop_id != S.NONE and S.after(c.done_to[S.SERVER], k.stop_id) >= 0:
            S.note(s, rows, i, c, S.AFTER_STOP, S.NONE, S.NONE, k.frame)
    elif not ((k.messages > 0 or k.all_messages) and k.byte_count > 0):
        S.note(s, rows, i, c, S.WITHOUT_CREDIT, k.messages, k.byte_count, k.frame)
    if not k.all_messages:
        k.messages = max(k.messages - 1, 0)
    if rows.command_id[i] != S.NONE:
        bits = (0 if k.accept_none else UNSETTLED) | GIVES_BACK
        put(s.found_by, S.key_of(S.K_TRANSFER, at, rows.command_id[i]), ((place + 1) << BITS) | bits)


@kernel
def transfers_completed(s, at, first, last):
    """The client completed transfers: in window mode they return their credit."""
    for step in range(S.after(last, first) + 1):
        if s.numbers[S.STEPS] <= 0:
            return
        s.numbers[S.STEPS] -= 1
        number = (first + step) % S.SERIAL
        key = S.key_of(S.K_TRANSFER, at, number)
        state = get(s.found_by, key)
        if state <= 0 or not state & GIVES_BACK:
            continue
        k = s.links[(state >> BITS) - 1]
        if k.window and not k.all_messages and (k.zeroed_id == S.NONE or S.after(number, k.zeroed_id) >= 0):
            k.messages += 1
        put(s.found_by, key, state & ~GIVES_BACK if state & UNSETTLED else S.GONE)


@kernel
def flushes_completed(s, at, first, last):
    """The server completed commands `first` to `last`: of subscriptions that they flush only the credit is left that
    was given later. Each id is looked up once."""
    c = s.endpoints[at]
    number = first if S.after(first, c.flush_from) > 0 else c.flush_from
    until = last if S.after(last, c.flush_to) < 0 else c.flush_to
    follows = S.after(first, c.flush_from) <= 0
    while S.after(until, number) >= 0 and s.numbers[S.STEPS] > 0:
        s.numbers[S.STEPS] -= 1
        key = S.key_of(S.K_FLUSH, at, number)
        place = S.lookup(s, key)
        put(s.found_by, key, S.GONE)
        if place != S.NONE and s.links[place].flush_id == number:
            k = s.links[place]
            k.flush_id = S.NONE
            k.messages, k.all_messages = k.later, k.all_later
            k.zeroed_id = c.next[S.SERVER]
        number = (number + 1) % S.SERIAL
        if follows:
            c.flush_from = number
    if S.after(c.flush_from, c.flush_to) > 0:
        c.flush_from = S.NONE


@kernel
def settle_transfers(s, rows, i, at):
    """message.accept, reject, release, acquire of transfers that the other side sent."""
    c, name, sender = s.endpoints[at], rows.name[i], rows.sender[i]
    if name == REJECT:
        S.note(s, rows, i, c, S.MESSAGE_REJECTED, rows.code[i], S.NONE, rows.frame_no[i])
    unknown = S.NONE
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        following = c.next[1 - sender]
        if following != S.NONE and S.after(last, following) >= 0:
            unknown = last
            last = (following - 1) % S.SERIAL
        if sender != S.CLIENT:
            continue
        for step in range(S.after(last, first) + 1):
            if s.numbers[S.STEPS] <= 0:
                return
            s.numbers[S.STEPS] -= 1
            key = S.key_of(S.K_TRANSFER, at, (first + step) % S.SERIAL)
            state = get(s.found_by, key)
            # What a transaction settles may be settled again after a rollback.
            if name == ACQUIRE or c.tx or c.dtx:
                continue
            if state <= 0 or not state & UNSETTLED:
                unknown = (first + step) % S.SERIAL if name != RELEASE else unknown
            else:
                put(s.found_by, key, state & ~UNSETTLED if state & GIVES_BACK else S.GONE)
    if unknown != S.NONE:
        S.note(s, rows, i, c, S.TRANSFERS_UNKNOWN, unknown, S.NONE, rows.frame_no[i])


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
    at = S.lookup(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]))
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
    S.bind(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]), at)
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
        c.attached != S.READY
        and c.left == S.NONE
        and not (c.attached == S.OVER and other_ended)
        and not (c.attached == S.ASKED and c.asked_attach == sender)
    ):
        S.note(s, rows, i, c, S.NOT_ATTACHED, S.NONE, S.NONE, S.NONE)
    if rows.begins[i] != S.NONE:
        if c.expects[sender] and rows.begins[i] != (1 if c.expects[sender] == S.BEGINNING else 0):
            S.note(s, rows, i, c, S.COMMAND_OFFSET, rows.begins[i], S.NONE, S.NONE)
        c.expects[sender] = 0
    if rows.is_command[i]:
        _command(s, rows, i, c)
    if name == COMMAND_POINT:
        c.point[sender] = 1
        c.next[sender] = rows.command_id[i]
        c.expects[sender] = S.REST if rows.command_offset[i] > 0 else S.BEGINNING
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
    closed_ns = c.detached_ns if c.attached == S.OVER else c.detach_ns
    return c.failed == S.NONE and resumes(rows.key[i], c.name, c.timeout_s, closed_ns, rows.ts_ns[i])


@kernel
def _is_attached(c, sender):
    """Whether the session of channel `c` is attached when the next frame of `sender` arrives: not after its detach."""
    return c.attached == S.READY and not (c.detach_ns != S.NONE and c.detacher == sender)


@kernel
def _attach(s, rows, i, at):
    c, sender = s.endpoints[at], rows.sender[i]
    if rows.name[i] == ATTACHED_BACK:
        if c.attached == S.ASKED or c.attached == S.OVER:
            c.attached = S.READY
        return
    here = c.transport == rows.channel[i]
    busy = here and _is_attached(c, sender) and rows.key[i] != c.name
    elsewhere = S.lookup(s, S.hashed_key(S.K_SESSION, 0, rows.key[i]))
    left = at if here and c.attached == S.READY and not _is_attached(c, sender) else S.NONE
    continues = _goes_on(rows, i, c)
    if not continues and elsewhere != S.NONE and s.endpoints[elsewhere].attached == S.OVER:
        continues = _goes_on(rows, i, s.endpoints[elsewhere])
        at = elsewhere if continues else at
        S.bind(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]), at)
    if not continues:
        if c.incarnation:
            if here and left == S.NONE:
                _renew(c)
                c.detach_ns = S.NONE
            at = _new_channel(s, rows, i)
        life = S.key_of(S.K_LIFE, 0, rows.channel[i])
        put(s.found_by, life, max(get(s.found_by, life), 0) + 1)
        s.endpoints[at].incarnation = get(s.found_by, life)
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
    c.attached = S.ASKED
    c.asked_attach = sender
    c.detach_ns = S.NONE
    c.left = left
    if not continues:
        _renew(c)
    for side in range(2):  # command-point comes before the commands of a transport that is newly attached
        c.point[side] = c.expects[side] = 0
    if not named:
        S.bind(s, S.hashed_key(S.K_SESSION, 0, rows.key[i]), at)


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
    c.attached = S.OVER
    c.detached_ns, c.by_detached = rows.ts_ns[i], sender


@kernel
def _command(s, rows, i, c):
    """A command: its number (session.command-point), sync, and result."""
    sender, number = rows.sender[i], rows.command_id[i]
    if not c.point[sender] and c.attached != S.OVER:
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
        at = S.lookup(s, S.key_of(S.K_CHANNEL, 0, rows.channel[i]))
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
    state = get(s.found_by, key)
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
        active = get(s.found_by, key) == 1
        wrong = active if name in (DTX_COMMIT, DTX_PREPARE, DTX_ROLLBACK) else (name == DTX_END and not active)
        if wrong or (name == DTX_START and not c.dtx):
            S.note(s, rows, i, c, S.BRANCH_ORDER, S.NONE, S.NONE, S.NONE)
        put(s.found_by, key, 1 if name == DTX_START else 2)
