"""Links of AMQP 1.0: handles, names, attach and detach, credit. (1.0 core specification, part 2, section 2.6.)"""

from __future__ import annotations

from codec.checks import state as S
from codec.compiler.kernel import kernel


@kernel
def end_of(s, at, handle):
    """The place of the end that has a handle, or NONE."""
    return S.place_in(s, S.key_of(S.K_HANDLE, at, handle))


@kernel
def attached_end(s, rows, i, at):
    """The place of the end that has the handle of row `i`; NONE, with a note, if there is none that is attached."""
    place = end_of(s, at, rows.handle[i])
    if place == S.NONE:
        S.note(s, rows, i, s.endpoints[at], S.HANDLE_UNATTACHED, rows.handle[i], S.NONE, S.NONE)
    elif not s.links[place].attached:
        S.note(s, rows, i, s.endpoints[at], S.AFTER_DETACH, rows.handle[i], S.NONE, s.links[place].attach_frame)
        return S.NONE
    return place


@kernel
def attach(s, rows, i, at):
    """Row `i` attaches at endpoint `at` (2.6.3)."""
    e, handle, receives = s.endpoints[at], rows.handle[i], rows.is_receiver[i]
    if handle == S.NONE or receives == S.NONE:
        return
    frame_no, before = rows.frame_no[i], end_of(s, at, handle)
    if before != S.NONE and s.links[before].attached:
        S.note(s, rows, i, e, S.HANDLE_IN_USE, handle, S.NONE, frame_no)
    if e.other != S.NONE and handle > s.endpoints[e.other].handle_max:
        S.note(s, rows, i, e, S.HANDLE_ABOVE_MAX, handle, s.endpoints[e.other].handle_max, frame_no)
    if not receives and rows.initial_delivery_count[i] == S.NONE:
        S.note(s, rows, i, e, S.NO_INITIAL_COUNT, S.NONE, S.NONE, frame_no)
    place = S.add_link(s)
    k = s.links[place]
    k.endpoint, k.attached, k.receiver = at, 1, receives
    k.snd_mode, k.rcv_mode = rows.snd_settle_mode[i], rows.rcv_settle_mode[i]
    k.max_size = rows.max_message_size[i]
    k.outcomes = rows.outcomes[i]
    k.unsettled = rows.unsettled[i]
    k.coordinator = rows.coordinator[i]
    k.attach_frame = frame_no
    k.initial = rows.initial_delivery_count[i]
    k.next = e.first_link
    e.first_link = place
    S.lead(s, S.key_of(S.K_HANDLE, at, handle), place)
    S.lead(s, S.hashed_key(S.K_NAME, at * 2 + receives, rows.link_name[i]), place)
    _pair(s, rows, i, at, place)
    answers = k.peer != S.NONE
    if rows.dynamic[i] == 1 and rows.addressed[i] and not answers:
        S.note(s, rows, i, e, S.DYNAMIC_ADDRESS, S.NONE, S.NONE, frame_no)
    if answers and not (rows.has_source[i] if s.links[k.peer].receiver else rows.has_target[i]):
        k.refused_ns = rows.ts_ns[i]


@kernel
def _pair(s, rows, i, at, place):
    """Find the attach of the other side that this one answers."""
    e, k, name = s.endpoints[at], s.links[place], rows.link_name[i]
    if e.other == S.NONE:
        return
    other = S.place_in(s, S.hashed_key(S.K_NAME, e.other * 2 + 1 - k.receiver, name))
    if other != S.NONE and s.links[other].peer == S.NONE and s.links[other].endpoint == e.other:
        k.peer = other
        s.links[other].peer = place
        return
    same = S.place_in(s, S.hashed_key(S.K_NAME, e.other * 2 + k.receiver, name))
    if same != S.NONE and s.links[same].endpoint == e.other and s.links[same].peer == S.NONE and s.links[same].attached:
        S.note(s, rows, i, e, S.ATTACH_ROLE, k.receiver, 1 - k.receiver, k.attach_frame)


@kernel
def detach(s, rows, i, at):
    """Row `i` detaches (2.6.4 to 2.6.6)."""
    e = s.endpoints[at]
    if rows.error[i]:
        asked, named = S.NONE, end_of(s, at, rows.handle[i])
        if named != S.NONE:
            asked = s.links[named].attach_frame
            if s.links[named].peer != S.NONE:
                asked = min(asked, s.links[s.links[named].peer].attach_frame)
        S.note(s, rows, i, e, S.DETACH_ERROR, S.NONE, S.NONE, asked)
    place = attached_end(s, rows, i, at) if rows.handle[i] != S.NONE else S.NONE
    if place == S.NONE:
        return
    k = s.links[place]
    about = k.attach_frame
    k.attached = 0
    k.detach_ns, k.detach_frame, k.closed = rows.ts_ns[i], rows.frame_no[i], max(rows.closed[i], 0)
    k.drain_ns = S.NONE
    _left_open(s, rows, i, place)
    if k.refused_ns != S.NONE:
        if not k.closed:
            S.note(s, rows, i, e, S.REFUSED_NOT_DETACHED, S.NONE, S.NONE, about)
        S.note_wait(s, k.attach_frame, k.refused_ns, rows.ts_ns[i], e.side, e, S.REFUSED_NOT_DETACHED, about)
        k.refused_ns = S.NONE
    if k.peer != S.NONE:
        p = s.links[k.peer]
        p.drain_ns = S.NONE
        if p.detach_ns != S.NONE:
            k.detach_answered = p.detach_answered = 1
            S.note_wait(s, p.detach_frame, p.detach_ns, rows.ts_ns[i], e.side, e, S.DETACH_UNANSWERED, p.attach_frame)
            if p.closed and not k.closed:
                S.note(s, rows, i, e, S.DETACH_NOT_CLOSED, S.NONE, S.NONE, about)


@kernel
def _left_open(s, rows, i, place):
    """Remove an end: its incomplete delivery is lost, and open transactions are rolled back."""
    k = s.links[place]
    e = s.endpoints[k.endpoint]
    if k.open:
        S.note(s, rows, i, e, S.DELIVERY_UNFINISHED, k.octets, S.NONE, k.frame)
        k.open = 0
    if k.transactions > 0 and k.work > 0:
        S.note(s, rows, i, e, S.TRANSACTION_OPEN, k.work, k.transactions, k.attach_frame)
    k.transactions = k.work = 0


@kernel
def end_links(s, rows, i, at):
    """End an endpoint and its links."""
    place = s.endpoints[at].first_link
    while place != S.NONE:
        k = s.links[place]
        if k.attached:
            _left_open(s, rows, i, place)
        k.attached = 0
        k.drain_ns = k.refused_ns = S.NONE
        k.detach_answered = 1
        if k.peer != S.NONE:
            s.links[k.peer].detach_answered = 1
            s.links[k.peer].drain_ns = S.NONE
        place = k.next


@kernel
def pending_links(s, until):
    """The connection has ended: note what was never answered on its links."""
    for place in range(s.numbers[S.LINKS]):
        k = s.links[place]
        e = s.endpoints[k.endpoint]
        about, other = k.attach_frame, 1 - e.side
        if k.refused_ns != S.NONE:
            S.note_wait(s, about, k.refused_ns, until, e.side, e, S.REFUSED_NOT_DETACHED, about)
        if k.detach_ns != S.NONE and not k.detach_answered and k.peer != S.NONE:
            S.note_wait(s, k.detach_frame, k.detach_ns, until, other, e, S.DETACH_UNANSWERED, about)
        if k.transactions > 0 and k.work > 0 and s.numbers[S.CLOSED_NS]:
            hit = S.note_end(s, about, until, e.side, e, S.TRANSACTION_OPEN, about, S.NONE)
            s.hits[hit].observed = k.work
            s.hits[hit].expected = k.transactions
        if k.awaiting > 0:
            S.note_wait(s, about, k.awaited_ns, until, e.side, e, S.NEVER_SETTLED, about)
        if k.drain_ns != S.NONE:
            S.note_wait(s, k.drain_frame, k.drain_ns, until, other, e, S.DRAIN_UNANSWERED, about)


@kernel
def flow_on_link(s, rows, i, at):
    """Credit (2.6.7): the receiver allows deliveries up to a count, the sender states its count."""
    place = attached_end(s, rows, i, at)
    if place == S.NONE:
        return
    k = s.links[place]
    count = rows.delivery_count[i]
    if not k.receiver:
        if count != S.NONE and k.initial != S.NONE:
            k.count = max(k.count, S.after(count, k.initial))
            if k.peer != S.NONE:
                _cut_is_known(s.links[k.peer], S.after(count, k.initial), rows.link_credit[i])
                credit_used(s, rows, i, k.peer, place)
        return
    if rows.link_credit[i] == S.NONE:
        return
    begins = s.links[k.peer].initial if k.peer != S.NONE else S.NONE
    allowed = rows.link_credit[i]
    if count != S.NONE:
        if begins == S.NONE:
            allowed = S.SERIAL  # from where the sender counts is not known
        else:
            allowed += S.after(count, begins)
    if allowed < k.credit_to:
        another = k.cut_ns and S.may_not_know(rows, i, k.cut_ns)
        k.before_cut = max(k.credit_to, k.before_cut if another else 0)
        k.cut_ns = rows.ts_ns[i]
    k.credit_to = allowed
    sent = s.links[k.peer].count if k.peer != S.NONE else 0
    if rows.drain[i] == 1 and allowed > sent:
        if k.drain_ns == S.NONE:
            k.drain_ns = rows.ts_ns[i]
            k.drain_frame = rows.frame_no[i]
    else:
        k.drain_ns = S.NONE


@kernel
def _cut_is_known(r, count, credit):
    """The sender states its credit: if it is no more than receiver `r` allows, it knows of a reduction."""
    if credit != S.NONE and count + credit <= r.credit_to:
        r.cut_ns = 0


@kernel
def credit_used(s, rows, i, receiver, sender):
    """The sender used or gave up credit: check whether that answers a drain."""
    r, k = s.links[receiver], s.links[sender]
    if r.drain_ns != S.NONE and k.count >= r.credit_to:
        e = s.endpoints[k.endpoint]
        S.note_wait(s, r.drain_frame, r.drain_ns, rows.ts_ns[i], e.side, e, S.DRAIN_UNANSWERED, r.attach_frame)
        r.drain_ns = S.NONE
