"""Connections and sessions of AMQP 1.0: opens, SASL, channels, windows, transfer numbers.

(1.0 core specification, part 2, sections 2.4 to 2.7; part 5, section 5.3.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.checks.deliveries import dispose, transfer
from codec.checks.links import attach, detach, end_links, flow_on_link, pending_links
from codec.checks.records_1_0 import (
    ALLOWED,
    ANSWERED,
    BEGUN_FRAME,
    BEGUN_NS,
    CHANNEL,
    ECHO_FRAME,
    ECHO_NS,
    END_ANSWERED,
    ENDED_FRAME,
    ENDED_NS,
    FIRST_LINK,
    FIRST_OUT,
    HANDLE_MAX,
    INCARNATION,
    LAST_DELIVERY,
    MAPPED,
    NUMBER,
    OTHER,
    SENT,
    SIDE,
)  # fmt: skip
from codec.checks.state import NONE, SERIAL, after, begin_connection, key_of, lead, note, note_wait, place_in
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
UNLIMITED = SERIAL - 1
KEYS_A_ROW = 5


@kernel
def follow(s, rows):
    """Take the next rows."""
    for i in range(len(rows.name)):
        if not s.numbers[S.STARTED] or rows.connection_id[i] != s.numbers[S.CONNECTION]:
            finish(s)
            begin_connection(s, rows.connection_id[i])
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
        other = 1 - e[SIDE]
        if e[MAPPED] and not e[ANSWERED] and e[OTHER] == NONE:
            note_wait(
                s,
                e[BEGUN_FRAME],
                e[BEGUN_NS],
                until,
                other,
                e[CHANNEL],
                e[INCARNATION],
                S.BEGIN_UNANSWERED,
                e[BEGUN_FRAME],
            )
        if e[ECHO_NS] != NONE:
            note_wait(s, e[ECHO_FRAME], e[ECHO_NS], until, other, e[CHANNEL], e[INCARNATION], S.ECHO_UNANSWERED, NONE)
        if e[ENDED_NS] != NONE and not e[END_ANSWERED] and e[OTHER] != NONE:
            note_wait(s, e[ENDED_FRAME], e[ENDED_NS], until, other, e[CHANNEL], e[INCARNATION], S.END_UNANSWERED, NONE)
    pending_links(s, until)
    s.numbers[S.STARTED] = 0


@kernel
def _sasl(s, rows, i):
    """mechanisms, init, (challenge, response)*, outcome; each by its side (5.3.2)."""
    name, sender, step = rows.name[i], rows.sender[i], s.numbers[S.SASL_STEP]
    if rows.size[i] > SASL_FRAME_BYTES:
        note(s, rows, i, NONE, NONE, S.FRAME_TOO_LARGE, rows.size[i], SASL_FRAME_BYTES, NONE)
    by_client = name in (INIT, RESPONSE)
    follows = (
        (name == MECHANISMS and step == 0)
        or (name == INIT and step == MECHANISMS)
        or (name == CHALLENGE and (step in (INIT, RESPONSE)))
        or (name == RESPONSE and step == CHALLENGE)
        or (name == OUTCOME and (step in (INIT, RESPONSE)))
    )
    if not follows or (sender == S.CLIENT) != by_client:
        note(s, rows, i, NONE, NONE, S.SASL_ORDER, name, step, NONE)
    s.numbers[S.SASL_STEP] = name


@kernel
def _open(s, rows, i):
    sender = rows.sender[i]
    if rows.channel[i] != 0:
        note(s, rows, i, NONE, NONE, S.OPEN_CHANNEL, rows.channel[i], 0, NONE)
    if s.numbers[S.OPENED + sender]:
        note(s, rows, i, NONE, NONE, S.OPEN_MISPLACED, OPEN, 1, NONE)
    s.numbers[S.OPENED + sender] = 1
    s.numbers[S.FRAME_MAX + sender] = rows.max_frame_size[i] if rows.max_frame_size[i] != NONE else UNLIMITED
    s.numbers[S.CHANNEL_MAX + sender] = rows.channel_max[i] if rows.channel_max[i] != NONE else 65535
    s.numbers[S.OPEN_NS + sender] = rows.ts_ns[i]


@kernel
def _performative(s, rows, i):
    name, sender = rows.name[i], rows.sender[i]
    other = 1 - sender
    if name == OPEN:
        _open(s, rows, i)
        return
    if not s.numbers[S.OPENED + sender]:
        note(s, rows, i, NONE, NONE, S.OPEN_MISPLACED, name, 0, NONE)
        s.numbers[S.OPENED + sender] = 1
        s.numbers[S.FRAME_MAX + sender] = UNLIMITED
        s.numbers[S.CHANNEL_MAX + sender] = 65535
    knows = s.numbers[S.OPENED + other] and rows.ts_ns[i] - s.numbers[S.OPEN_NS + other] > rows.grace_ns[i]
    if knows and rows.size[i] > s.numbers[S.FRAME_MAX + other]:
        note(s, rows, i, NONE, NONE, S.FRAME_TOO_LARGE, rows.size[i], s.numbers[S.FRAME_MAX + other], NONE)
    if name == CLOSE:
        s.numbers[S.CLOSED_NS] = rows.ts_ns[i]
        return
    if name == BEGIN:
        _begin(s, rows, i, knows)
        return
    at = place_in(s, key_of(S.K_ENDPOINT, sender, rows.channel[i]))
    if at == NONE or not s.endpoints[at, MAPPED]:
        oddity = S.NO_SESSION if at == NONE else S.AFTER_END
        channel, incarnation = (
            (rows.channel[i], 0) if at == NONE else (s.endpoints[at, CHANNEL], s.endpoints[at, INCARNATION])
        )
        note(s, rows, i, channel, incarnation, oddity, name, NONE, NONE)
        if rows.error[i] and (name in (END, DETACH)):
            note(s, rows, i, channel, incarnation, S.END_ERROR if name == END else S.DETACH_ERROR, NONE, NONE, NONE)
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
    key = key_of(S.K_ENDPOINT, sender, number)
    before = place_in(s, key)
    at = s.numbers[S.ENDPOINTS]
    s.numbers[S.ENDPOINTS] += 1
    e = s.endpoints[at]
    e[:] = 0
    e[SIDE] = sender
    e[NUMBER] = e[CHANNEL] = number
    e[MAPPED] = 1
    e[BEGUN_NS] = rows.ts_ns[i]
    e[BEGUN_FRAME] = rows.frame_no[i]
    e[HANDLE_MAX] = rows.handle_max[i] if rows.handle_max[i] != NONE else UNLIMITED
    e[FIRST_OUT] = rows.next_outgoing_id[i]
    e[ALLOWED] = rows.incoming_window[i]
    e[OTHER] = e[ECHO_NS] = e[ENDED_NS] = e[LAST_DELIVERY] = e[FIRST_LINK] = NONE
    peer = place_in(s, key_of(S.K_ENDPOINT, 1 - sender, remote)) if remote != NONE else NONE
    fits = peer != NONE and s.endpoints[peer, OTHER] == NONE
    if fits:
        p = s.endpoints[peer]
        e[CHANNEL], e[INCARNATION] = p[CHANNEL], p[INCARNATION]
        e[OTHER], p[OTHER] = peer, at
        e[ANSWERED] = p[ANSWERED] = 1
        note_wait(
            s, p[BEGUN_FRAME], p[BEGUN_NS], rows.ts_ns[i], sender, p[CHANNEL], p[INCARNATION], S.BEGIN_UNANSWERED,
            p[BEGUN_FRAME],
        )  # fmt: skip
    else:
        incarnations = key_of(S.K_LIFE, 0, number)
        e[INCARNATION] = max(found(s.found_by, incarnations), 0) + 1
        put(s.found_by, incarnations, e[INCARNATION])
    if before != NONE and s.endpoints[before, MAPPED]:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.BEGIN_TWICE, number, NONE, NONE)
    if knows and number > s.numbers[S.CHANNEL_MAX + 1 - sender]:
        expected = s.numbers[S.CHANNEL_MAX + 1 - sender]
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.CHANNEL_ABOVE_MAX, number, expected, NONE)
    if remote != NONE and not fits:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.REMOTE_CHANNEL, remote, NONE, NONE)
    lead(s, key, at)


@kernel
def _end(s, rows, i, at):
    e = s.endpoints[at]
    e[MAPPED] = 0
    e[ENDED_NS] = rows.ts_ns[i]
    e[ENDED_FRAME] = rows.frame_no[i]
    e[ECHO_NS] = NONE
    if rows.error[i]:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.END_ERROR, NONE, NONE, NONE)
    if e[OTHER] != NONE:
        p = s.endpoints[e[OTHER]]
        p[ECHO_NS] = NONE
        if p[ENDED_NS] != NONE:
            e[END_ANSWERED] = p[END_ANSWERED] = 1
            note_wait(
                s,
                p[ENDED_FRAME],
                p[ENDED_NS],
                rows.ts_ns[i],
                e[SIDE],
                e[CHANNEL],
                e[INCARNATION],
                S.END_UNANSWERED,
                NONE,
            )
    end_links(s, rows, i, at)


@kernel
def _flow(s, rows, i, at):
    """A flow: windows and transfer numbers (2.5.6), then the state of a link."""
    e = s.endpoints[at]
    if rows.next_outgoing_id[i] != NONE and e[FIRST_OUT] != NONE:
        expected = (e[FIRST_OUT] + e[SENT]) % SERIAL
        if rows.next_outgoing_id[i] != expected:
            note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NEXT_OUTGOING_ID, rows.next_outgoing_id[i], expected, NONE)
    nextin, window = rows.next_incoming_id[i], max(rows.incoming_window[i], 0)
    if e[OTHER] == NONE:
        if nextin != NONE:
            note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NEXT_INCOMING_ID, nextin, NONE, NONE)
    else:
        p = s.endpoints[e[OTHER]]
        if nextin == NONE:
            e[ALLOWED] = max(e[ALLOWED], window)
            if rows.ts_ns[i] - p[BEGUN_NS] > rows.grace_ns[i]:
                note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NEXT_INCOMING_ID, NONE, p[FIRST_OUT], NONE)
        elif p[FIRST_OUT] != NONE:
            ahead = after(nextin, p[FIRST_OUT])
            e[ALLOWED] = max(e[ALLOWED], ahead + window)
            if after(nextin, (p[FIRST_OUT] + p[SENT]) % SERIAL) > 0:
                expected = (p[FIRST_OUT] + p[SENT]) % SERIAL
                note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NEXT_INCOMING_ID, nextin, expected, NONE)
        if p[ECHO_NS] != NONE:
            note_wait(
                s,
                p[ECHO_FRAME],
                p[ECHO_NS],
                rows.ts_ns[i],
                e[SIDE],
                e[CHANNEL],
                e[INCARNATION],
                S.ECHO_UNANSWERED,
                NONE,
            )
            p[ECHO_NS] = NONE
    if rows.echo[i] == 1 and e[ECHO_NS] == NONE:
        e[ECHO_NS] = rows.ts_ns[i]
        e[ECHO_FRAME] = rows.frame_no[i]
    if rows.handle[i] != NONE:
        flow_on_link(s, rows, i, at)
    elif rows.link_fields[i]:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.FLOW_WITHOUT_HANDLE, NONE, NONE, NONE)


@kernel
def _count_transfer(s, rows, i, at):
    e = s.endpoints[at]
    if e[OTHER] != NONE and s.endpoints[e[OTHER], ALLOWED] != NONE and e[SENT] >= s.endpoints[e[OTHER], ALLOWED]:
        note(
            s, rows, i, e[CHANNEL], e[INCARNATION], S.WINDOW_EXCEEDED, e[SENT] + 1, s.endpoints[e[OTHER], ALLOWED], NONE
        )
    e[SENT] += 1
