"""Links of AMQP 1.0: handles, names, attach and detach, credit. (1.0 core specification, part 2, section 2.6.)"""

from __future__ import annotations

from codec.checks import state as S
from codec.checks.records_1_0 import (
    ATTACH_FRAME,
    ATTACH_NS,
    ATTACHED,
    AWAITED_NS,
    AWAITING,
    BEFORE_CUT,
    CHANNEL,
    CLOSED,
    COORDINATOR,
    COUNT,
    CREDIT_TO,
    CUT_NS,
    DETACH_ANSWERED,
    DETACH_FRAME,
    DETACH_NS,
    DRAIN_FRAME,
    DRAIN_NS,
    ENDPOINT,
    FIRST_LINK,
    FRAME,
    HANDLE,
    HANDLE_MAX,
    INCARNATION,
    INITIAL,
    MAX_SIZE,
    NEXT,
    OPEN,
    OTHER,
    OUTCOMES,
    PEER,
    RCV_MODE,
    RECEIVER,
    REFUSED_NS,
    SIDE,
    SIZE,
    SND_MODE,
    TRANSACTIONS,
    UNSETTLED,
)  # fmt: skip
from codec.checks.state import (
    NONE,
    SERIAL,
    after,
    hashed_key,
    key_of,
    lead,
    may_not_know,
    note,
    note_end,
    note_wait,
    place_in,
)
from codec.compiler.kernel import kernel


@kernel
def end_of(s, at, handle):
    """The place of the end that has a handle, or NONE."""
    return place_in(s, key_of(S.K_HANDLE, at, handle))


@kernel
def attach(s, rows, i, at):
    """Row `i` attaches at endpoint `at` (2.6.3)."""
    e, handle, receives = s.endpoints[at], rows.handle[i], rows.is_receiver[i]
    if handle == NONE or receives == NONE:
        return
    channel, incarnation, frame_no = e[CHANNEL], e[INCARNATION], rows.frame_no[i]
    before = end_of(s, at, handle)
    if before != NONE and s.links[before, ATTACHED]:
        note(s, rows, i, channel, incarnation, S.HANDLE_IN_USE, handle, NONE, frame_no)
    if e[OTHER] != NONE and handle > s.endpoints[e[OTHER], HANDLE_MAX]:
        note(s, rows, i, channel, incarnation, S.HANDLE_ABOVE_MAX, handle, s.endpoints[e[OTHER], HANDLE_MAX], frame_no)
    if not receives and rows.initial_delivery_count[i] == NONE:
        note(s, rows, i, channel, incarnation, S.NO_INITIAL_COUNT, NONE, NONE, frame_no)
    place = s.numbers[S.LINKS]
    s.numbers[S.LINKS] += 1
    k = s.links[place]
    k[:] = 0
    k[ENDPOINT], k[HANDLE], k[ATTACHED], k[RECEIVER] = at, handle, 1, receives
    k[SND_MODE], k[RCV_MODE] = rows.snd_settle_mode[i], rows.rcv_settle_mode[i]
    k[MAX_SIZE] = rows.max_message_size[i]
    k[OUTCOMES] = rows.outcomes[i]
    k[UNSETTLED] = rows.unsettled[i]
    k[COORDINATOR] = rows.coordinator[i]
    k[ATTACH_NS], k[ATTACH_FRAME] = rows.ts_ns[i], frame_no
    k[INITIAL] = rows.initial_delivery_count[i]
    k[REFUSED_NS] = k[DETACH_NS] = k[DRAIN_NS] = k[PEER] = NONE
    k[NEXT] = e[FIRST_LINK]
    e[FIRST_LINK] = place
    lead(s, key_of(S.K_HANDLE, at, handle), place)
    lead(s, hashed_key(S.K_NAME, at * 2 + receives, rows.link_name[i]), place)
    _pair(s, rows, i, at, place)
    answers = k[PEER] != NONE
    if rows.dynamic[i] == 1 and rows.addressed[i] and not answers:
        note(s, rows, i, channel, incarnation, S.DYNAMIC_ADDRESS, NONE, NONE, frame_no)
    if answers and not (rows.has_source[i] if s.links[k[PEER], RECEIVER] else rows.has_target[i]):
        k[REFUSED_NS] = rows.ts_ns[i]


@kernel
def _pair(s, rows, i, at, place):
    """Find the attach of the other side that this one answers."""
    e, k, name = s.endpoints[at], s.links[place], rows.link_name[i]
    if e[OTHER] == NONE:
        return
    other = place_in(s, hashed_key(S.K_NAME, e[OTHER] * 2 + 1 - k[RECEIVER], name))
    if other != NONE and s.links[other, PEER] == NONE and s.links[other, ENDPOINT] == e[OTHER]:
        k[PEER] = other
        s.links[other, PEER] = place
        return
    same = place_in(s, hashed_key(S.K_NAME, e[OTHER] * 2 + k[RECEIVER], name))
    if same != NONE and s.links[same, ENDPOINT] == e[OTHER] and s.links[same, PEER] == NONE and s.links[same, ATTACHED]:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.ATTACH_ROLE, k[RECEIVER], 1 - k[RECEIVER], k[ATTACH_FRAME])


@kernel
def detach(s, rows, i, at):
    """Row `i` detaches (2.6.4 to 2.6.6)."""
    e = s.endpoints[at]
    place = end_of(s, at, rows.handle[i])
    about = s.links[place, ATTACH_FRAME] if place != NONE else NONE
    if rows.error[i]:
        asked = about
        if place != NONE and s.links[place, PEER] != NONE:
            asked = min(about, s.links[s.links[place, PEER], ATTACH_FRAME])
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.DETACH_ERROR, NONE, NONE, asked)
    if rows.handle[i] == NONE:
        return
    if place == NONE or not s.links[place, ATTACHED]:
        oddity = S.HANDLE_UNATTACHED if place == NONE else S.AFTER_DETACH
        note(s, rows, i, e[CHANNEL], e[INCARNATION], oddity, rows.handle[i], NONE, about)
        return
    k = s.links[place]
    k[ATTACHED] = 0
    k[DETACH_NS], k[DETACH_FRAME], k[CLOSED] = rows.ts_ns[i], rows.frame_no[i], max(rows.closed[i], 0)
    k[DRAIN_NS] = NONE
    _left_open(s, rows, i, place)
    if k[REFUSED_NS] != NONE:
        if not k[CLOSED]:
            note(s, rows, i, e[CHANNEL], e[INCARNATION], S.REFUSED_NOT_DETACHED, NONE, NONE, about)
        note_wait(
            s, k[ATTACH_FRAME], k[REFUSED_NS], rows.ts_ns[i], e[SIDE], e[CHANNEL], e[INCARNATION],
            S.REFUSED_NOT_DETACHED, about,
        )  # fmt: skip
        k[REFUSED_NS] = NONE
    if k[PEER] != NONE:
        p = s.links[k[PEER]]
        p[DRAIN_NS] = NONE
        if p[DETACH_NS] != NONE:
            k[DETACH_ANSWERED] = p[DETACH_ANSWERED] = 1
            note_wait(
                s, p[DETACH_FRAME], p[DETACH_NS], rows.ts_ns[i], e[SIDE], e[CHANNEL], e[INCARNATION],
                S.DETACH_UNANSWERED, p[ATTACH_FRAME],
            )  # fmt: skip
            if p[CLOSED] and not k[CLOSED]:
                note(s, rows, i, e[CHANNEL], e[INCARNATION], S.DETACH_NOT_CLOSED, NONE, NONE, about)


@kernel
def _left_open(s, rows, i, place):
    """Remove an end: its incomplete delivery is lost, and open transactions are rolled back."""
    k = s.links[place]
    if k[OPEN]:
        e = s.endpoints[k[ENDPOINT]]
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.DELIVERY_UNFINISHED, k[SIZE], NONE, k[FRAME])
        k[OPEN] = 0
    if k[TRANSACTIONS] > 0:
        e = s.endpoints[k[ENDPOINT]]
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.TRANSACTION_OPEN, k[TRANSACTIONS], NONE, k[ATTACH_FRAME])
        k[TRANSACTIONS] = 0


@kernel
def end_links(s, rows, i, at):
    """End an endpoint and its links."""
    place = s.endpoints[at, FIRST_LINK]
    while place != NONE:
        k = s.links[place]
        if k[ATTACHED]:
            _left_open(s, rows, i, place)
        k[ATTACHED] = 0
        k[DRAIN_NS] = k[REFUSED_NS] = NONE
        k[DETACH_ANSWERED] = 1
        if k[PEER] != NONE:
            s.links[k[PEER], DETACH_ANSWERED] = 1
            s.links[k[PEER], DRAIN_NS] = NONE
        place = k[NEXT]


@kernel
def pending_links(s, until):
    """The connection has ended: note what was never answered on its links."""
    for place in range(s.numbers[S.LINKS]):
        k = s.links[place]
        e = s.endpoints[k[ENDPOINT]]
        channel, incarnation, about, other = e[CHANNEL], e[INCARNATION], k[ATTACH_FRAME], 1 - e[SIDE]
        if k[REFUSED_NS] != NONE:
            note_wait(s, about, k[REFUSED_NS], until, e[SIDE], channel, incarnation, S.REFUSED_NOT_DETACHED, about)
        if k[DETACH_NS] != NONE and not k[DETACH_ANSWERED] and k[PEER] != NONE:
            note_wait(s, k[DETACH_FRAME], k[DETACH_NS], until, other, channel, incarnation, S.DETACH_UNANSWERED, about)
        if k[TRANSACTIONS] > 0 and s.numbers[S.CLOSED_NS]:
            note_end(s, about, until, e[SIDE], channel, incarnation, S.TRANSACTION_OPEN, about, NONE)
        if k[AWAITING] > 0:
            note_wait(s, about, k[AWAITED_NS], until, e[SIDE], channel, incarnation, S.NEVER_SETTLED, about)
        if k[DRAIN_NS] != NONE:
            note_wait(s, k[DRAIN_FRAME], k[DRAIN_NS], until, other, channel, incarnation, S.DRAIN_UNANSWERED, about)


@kernel
def flow_on_link(s, rows, i, at):
    """Credit (2.6.7): the receiver allows deliveries up to a count, the sender states its count."""
    e = s.endpoints[at]
    place = end_of(s, at, rows.handle[i])
    if place == NONE or not s.links[place, ATTACHED]:
        oddity = S.HANDLE_UNATTACHED if place == NONE else S.AFTER_DETACH
        about = NONE if place == NONE else s.links[place, ATTACH_FRAME]
        note(s, rows, i, e[CHANNEL], e[INCARNATION], oddity, rows.handle[i], NONE, about)
        return
    k = s.links[place]
    count = rows.delivery_count[i]
    if not k[RECEIVER]:
        if count != NONE and k[INITIAL] != NONE:
            k[COUNT] = max(k[COUNT], after(count, k[INITIAL]))
            if k[PEER] != NONE:
                _cut_is_known(s.links[k[PEER]], after(count, k[INITIAL]), rows.link_credit[i])
                credit_used(s, rows, i, k[PEER], place)
        return
    if rows.link_credit[i] == NONE:
        return
    begins = s.links[k[PEER], INITIAL] if k[PEER] != NONE else NONE
    allowed = rows.link_credit[i]
    if count != NONE:
        if begins == NONE:
            allowed = SERIAL  # from where the sender counts is not known
        else:
            allowed += after(count, begins)
    if allowed < k[CREDIT_TO]:
        another = k[CUT_NS] and may_not_know(rows, i, k[CUT_NS])
        k[BEFORE_CUT] = max(k[CREDIT_TO], k[BEFORE_CUT] if another else 0)
        k[CUT_NS] = rows.ts_ns[i]
    k[CREDIT_TO] = allowed
    sent = s.links[k[PEER], COUNT] if k[PEER] != NONE else 0
    if rows.drain[i] == 1 and allowed > sent:
        if k[DRAIN_NS] == NONE:
            k[DRAIN_NS] = rows.ts_ns[i]
            k[DRAIN_FRAME] = rows.frame_no[i]
    else:
        k[DRAIN_NS] = NONE


@kernel
def _cut_is_known(r, count, credit):
    """The sender states its credit: if it is no more than receiver `r` allows, it knows of a reduction."""
    if credit != NONE and count + credit <= r[CREDIT_TO]:
        r[CUT_NS] = 0


@kernel
def credit_used(s, rows, i, receiver, sender):
    """The sender used or gave up credit: check whether that answers a drain."""
    r, k = s.links[receiver], s.links[sender]
    if r[DRAIN_NS] != NONE and k[COUNT] >= r[CREDIT_TO]:
        e = s.endpoints[k[ENDPOINT]]
        note_wait(
            s, r[DRAIN_FRAME], r[DRAIN_NS], rows.ts_ns[i], e[SIDE], e[CHANNEL], e[INCARNATION], S.DRAIN_UNANSWERED,
            r[ATTACH_FRAME],
        )  # fmt: skip
        r[DRAIN_NS] = NONE
