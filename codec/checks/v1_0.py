"""Connections and sessions of AMQP 1.0: opens, SASL, channels, windows, transfer numbers.

(1.0 core specification, part 2, sections 2.4 to 2.7; part 5, section 5.3.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.checks.deliveries import dispose, transfer
from codec.checks.links import attach, detach, end_links, flow_on_link, pending_links
from codec.compiler.kernel import kernel
from codec.hashes.keyed import found, put

NAMES = (
    "open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close", "sasl-mechanisms",
    "sasl-init", "sasl-challenge", "sasl-response", "sasl-outcome",
)  # fmt: skip
(
    OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE, MECHANISMS, INIT, CHALLENGE, RESPONSE,
    OUTCOME,
) = range(1, len(NAMES) + 1)  # fmt: skip
SASL_FRAME_BYTES = 512  # MIN-MAX-FRAME-SIZE, the most of a SASL frame
UNLIMITED = S.SERIAL - 1
KEYS_A_ROW = 5


@kernel
def follow(s, rows):
    """Take the next rows."""
    for i in range(len(rows.name)):
        if not s.numbers[S.STARTED] or rows.connection_id[i] != s.numbers[S.CONNECTION]:
            finish(s)
            S.begin_connection(s, rows.connection_id[i])
        s.numbers[S.STEPS] += S.STEPS_A_ROW
        s.numbers[S.LAST_NS] = rows.last_ns[i]
        if rows.name[i] >= MECHANISMS:
            _sasl(s, rows, i)
        elif rows.name[i]:
            _performative(s, rows, i)


@kernel
def finish(s):
    """The current connection has ended: note what was never answered."""
    if not s.numbers[S.STARTED]:
        return
    until = s.numbers[S.LAST_NS]
    for at in range(s.numbers[S.ENDPOINTS]):
        e = s.endpoints[at]
        other = 1 - e.side
        if e.mapped and not e.answered and e.other == S.NONE:
            S.note_wait(s, e.begun_frame, e.begun_ns, until, other, e, S.BEGIN_UNANSWERED, e.begun_frame)
        if e.echo_ns != S.NONE:
            S.note_wait(s, e.echo_frame, e.echo_ns, until, other, e, S.ECHO_UNANSWERED, S.NONE)
        _window(s, e, 1, until, S.NONE)
        if e.ended_ns != S.NONE and not e.end_answered and e.other != S.NONE:
            S.note_wait(s, e.ended_frame, e.ended_ns, until, other, e, S.END_UNANSWERED, S.NONE)
    pending_links(s, until)
    s.numbers[S.STARTED] = 0


@kernel
def _sasl(s, rows, i):
    """mechanisms, init, (challenge, response)*, outcome; each by its side (5.3.2). After a frame out of order it is not
    known what should follow: only the first is noted."""
    name, sender, step = rows.name[i], rows.sender[i], s.numbers[S.SASL_STEP]
    if rows.size[i] > SASL_FRAME_BYTES:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.FRAME_TOO_LARGE, rows.size[i], SASL_FRAME_BYTES, S.NONE)
    by_client = name in (INIT, RESPONSE)
    follows = (
        (name == MECHANISMS and step == 0)
        or (name == INIT and step == MECHANISMS)
        or (name == CHALLENGE and (step in (INIT, RESPONSE)))
        or (name == RESPONSE and step == CHALLENGE)
        or (name == OUTCOME and (step in (INIT, RESPONSE)))
    )
    if (not follows or (sender == S.CLIENT) != by_client) and not s.numbers[S.SASL_ODD]:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.SASL_ORDER, S.NONE, step, S.NONE)
        s.numbers[S.SASL_ODD] = 1
    s.numbers[S.SASL_STEP] = name


@kernel
def _open(s, rows, i):
    sender = rows.sender[i]
    if rows.channel[i] != 0:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.OPEN_CHANNEL, rows.channel[i], 0, S.NONE)
    if s.numbers[S.OPENED + sender]:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.OPEN_MISPLACED, S.NONE, S.NONE, S.NONE)
    s.numbers[S.OPENED + sender] = 1
    s.numbers[S.FRAME_MAX + sender] = rows.max_frame_size[i] if rows.max_frame_size[i] != S.NONE else UNLIMITED
    s.numbers[S.CHANNEL_MAX + sender] = rows.channel_max[i] if rows.channel_max[i] != S.NONE else 65535
    s.numbers[S.OPEN_NS + sender] = rows.ts_ns[i]


@kernel
def _performative(s, rows, i):
    name, sender = rows.name[i], rows.sender[i]
    other = 1 - sender
    if name == OPEN:
        _open(s, rows, i)
        return
    if not s.numbers[S.OPENED + sender]:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.OPEN_MISPLACED, S.NONE, S.NONE, S.NONE)
        s.numbers[S.OPENED + sender] = 1
        s.numbers[S.FRAME_MAX + sender] = UNLIMITED
        s.numbers[S.CHANNEL_MAX + sender] = 65535
    knows = s.numbers[S.OPENED + other] and rows.ts_ns[i] - s.numbers[S.OPEN_NS + other] > rows.grace_ns[i]
    if knows and rows.size[i] > s.numbers[S.FRAME_MAX + other]:
        S.note_at(s, rows, i, S.NONE, S.NONE, S.FRAME_TOO_LARGE, rows.size[i], s.numbers[S.FRAME_MAX + other], S.NONE)
    if name == CLOSE:
        s.numbers[S.CLOSED_NS] = rows.ts_ns[i]
        return
    if name == BEGIN:
        _begin(s, rows, i, knows)
        return
    at = S.place_in(s, S.key_of(S.K_ENDPOINT, sender, rows.channel[i]))
    if at == S.NONE or not s.endpoints[at].mapped:
        oddity, channel, incarnation = S.NO_SESSION, rows.channel[i], 0
        if at != S.NONE:
            oddity, channel, incarnation = S.AFTER_END, s.endpoints[at].channel, s.endpoints[at].incarnation
        S.note_at(s, rows, i, channel, incarnation, oddity, S.NONE, S.NONE, S.NONE)
        if rows.error[i] and (name in (END, DETACH)):
            oddity = S.END_ERROR if name == END else S.DETACH_ERROR
            S.note_at(s, rows, i, channel, incarnation, oddity, S.NONE, S.NONE, S.NONE)
        return
    if name == ATTACH:
        attach(s, rows, i, at)
    elif name == FLOW:
        _flow(s, rows, i, at)
    elif name == TRANSFER:
        _count_transfer(s, rows, i, at)
        transfer(s, rows, i, at)
    elif name == DISPOSITION:
        dispose(s, rows, i, at)
    elif name == DETACH:
        detach(s, rows, i, at)
    elif name == END:
        _end(s, rows, i, at)


@kernel
def _begin(s, rows, i, knows):
    """A begin opens a session, or answers the begin of the channel that it names (2.5.1)."""
    sender, number, remote = rows.sender[i], rows.channel[i], rows.remote_channel[i]
    key = S.key_of(S.K_ENDPOINT, sender, number)
    before = S.place_in(s, key)
    at = S.add_endpoint(s)
    e = s.endpoints[at]
    e.side, e.channel, e.mapped = sender, number, 1
    e.begun_ns, e.begun_frame = rows.ts_ns[i], rows.frame_no[i]
    e.handle_max = rows.handle_max[i] if rows.handle_max[i] != S.NONE else UNLIMITED
    e.first_out = rows.next_outgoing_id[i]
    e.allowed = rows.incoming_window[i]
    _window(s, e, rows.incoming_window[i], rows.ts_ns[i], rows.frame_no[i])
    peer = S.place_in(s, S.key_of(S.K_UNANSWERED, 1 - sender, remote)) if remote != S.NONE else S.NONE
    fits = peer != S.NONE and s.endpoints[peer].other == S.NONE
    if fits:
        p = s.endpoints[peer]
        e.channel, e.incarnation = p.channel, p.incarnation
        e.other, p.other = peer, at
        e.answered = p.answered = 1
        if p.next != S.NONE:
            S.lead(s, S.key_of(S.K_UNANSWERED, 1 - sender, remote), p.next)
        S.note_wait(s, p.begun_frame, p.begun_ns, rows.ts_ns[i], sender, p, S.BEGIN_UNANSWERED, p.begun_frame)
    else:
        incarnations = S.key_of(S.K_LIFE, 0, number)
        e.incarnation = max(found(s.found_by, incarnations), 0) + 1
        put(s.found_by, incarnations, e.incarnation)
        _await_answer(s, S.key_of(S.K_UNANSWERED, sender, number), before, at)
    if before != S.NONE and s.endpoints[before].mapped:
        S.note(s, rows, i, e, S.BEGIN_TWICE, number, S.NONE, S.NONE)
    if knows and number > s.numbers[S.CHANNEL_MAX + 1 - sender]:
        expected = s.numbers[S.CHANNEL_MAX + 1 - sender]
        S.note(s, rows, i, e, S.CHANNEL_ABOVE_MAX, number, expected, S.NONE)
    if remote != S.NONE and not fits:
        S.note(s, rows, i, e, S.REMOTE_CHANNEL, remote, S.NONE, S.NONE)
    S.lead(s, key, at)


@kernel
def _window(s, e, window, ts_ns, frame_no):
    """Endpoint `e` announces how many transfers it can receive (NONE: it does not): none for how long."""
    if window == 0 and e.shut_ns == S.NONE:
        e.shut_ns, e.shut_frame = ts_ns, frame_no
    elif window > 0 and e.shut_ns != S.NONE:
        S.note_wait(s, e.shut_frame, e.shut_ns, ts_ns, e.side, e, S.WINDOW_CLOSED, S.NONE)
        e.shut_ns = S.NONE


@kernel
def _await_answer(s, key, before, at):
    """Begins of one number are answered in order: `key` leads to the first that is not answered, each to the next."""
    first = S.place_in(s, key)
    if first == S.NONE or s.endpoints[first].other != S.NONE or s.endpoints[before].other != S.NONE:
        S.lead(s, key, at)
    else:
        s.endpoints[before].next = at


@kernel
def _end(s, rows, i, at):
    e = s.endpoints[at]
    e.mapped = 0
    e.ended_ns = rows.ts_ns[i]
    e.ended_frame = rows.frame_no[i]
    e.echo_ns = S.NONE
    _window(s, e, 1, rows.ts_ns[i], S.NONE)
    if rows.error[i]:
        S.note(s, rows, i, e, S.END_ERROR, S.NONE, S.NONE, S.NONE)
    if e.other != S.NONE:
        p = s.endpoints[e.other]
        p.echo_ns = S.NONE
        if p.ended_ns != S.NONE:
            e.end_answered = p.end_answered = 1
            S.note_wait(s, p.ended_frame, p.ended_ns, rows.ts_ns[i], e.side, e, S.END_UNANSWERED, S.NONE)
    end_links(s, rows, i, at)


@kernel
def _flow(s, rows, i, at):
    """A flow: windows and transfer numbers (2.5.6), then the state of a link."""
    e = s.endpoints[at]
    if rows.next_outgoing_id[i] != S.NONE and e.first_out != S.NONE:
        expected = (e.first_out + e.sent) % S.SERIAL
        if rows.next_outgoing_id[i] != expected:
            S.note(s, rows, i, e, S.NEXT_OUTGOING_ID, rows.next_outgoing_id[i], expected, S.NONE)
    nextin, window = rows.next_incoming_id[i], max(rows.incoming_window[i], 0)
    _window(s, e, rows.incoming_window[i], rows.ts_ns[i], rows.frame_no[i])
    if e.other == S.NONE:
        if nextin != S.NONE:
            S.note(s, rows, i, e, S.NEXT_INCOMING_ID, nextin, S.NONE, S.NONE)
    else:
        p = s.endpoints[e.other]
        expected = S.NONE if p.first_out == S.NONE else (p.first_out + p.sent) % S.SERIAL
        if nextin == S.NONE:
            e.allowed = max(e.allowed, window)
            if rows.ts_ns[i] - p.begun_ns > rows.grace_ns[i]:
                S.note(s, rows, i, e, S.NEXT_INCOMING_ID, S.NONE, expected, S.NONE)
        elif p.first_out != S.NONE:
            ahead = S.after(nextin, p.first_out)
            e.allowed = max(e.allowed, ahead + window)
            if S.after(nextin, expected) > 0:
                S.note(s, rows, i, e, S.NEXT_INCOMING_ID, nextin, expected, S.NONE)
        if p.echo_ns != S.NONE:
            S.note_wait(s, p.echo_frame, p.echo_ns, rows.ts_ns[i], e.side, e, S.ECHO_UNANSWERED, S.NONE)
            p.echo_ns = S.NONE
    if rows.echo[i] == 1 and e.echo_ns == S.NONE:
        e.echo_ns = rows.ts_ns[i]
        e.echo_frame = rows.frame_no[i]
    if rows.handle[i] != S.NONE:
        flow_on_link(s, rows, i, at)
    elif rows.link_fields[i]:
        S.note(s, rows, i, e, S.FLOW_WITHOUT_HANDLE, S.NONE, S.NONE, S.NONE)


@kernel
def _count_transfer(s, rows, i, at):
    e = s.endpoints[at]
    if e.other != S.NONE and s.endpoints[e.other].allowed != S.NONE and e.sent >= s.endpoints[e.other].allowed:
        S.note(s, rows, i, e, S.WINDOW_EXCEEDED, e.sent + 1, s.endpoints[e.other].allowed, S.NONE)
    if e.other != S.NONE:
        p = s.endpoints[e.other]
        if p.shut_ns != S.NONE and not S.may_not_know(rows, i, p.shut_ns):
            S.note(s, rows, i, e, S.SENT_WHILE_CLOSED, rows.ts_ns[i] - p.shut_ns, S.NONE, p.shut_frame)
    e.sent += 1
