"""Connections and sessions of AMQP 1.0: opens, SASL, channels, windows, transfer numbers.

(1.0 core specification, part 2, sections 2.4 to 2.7; part 5, section 5.3.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.compiler.kernel import kernel
from codec.hashes.maps import get, put

# Links of AMQP 1.0: handles, names, attach and detach, credit. (1.0 core specification, part 2, section 2.6.)


@kernel
def end_of(s, at, handle):
    """The place of the end that has a handle, or NONE."""
    return S.lookup(s, S.key_of(S.K_HANDLE, at, handle))


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
    S.bind(s, S.key_of(S.K_HANDLE, at, handle), place)
    S.bind(s, S.hashed_key(S.K_NAME, at * 2 + receives, rows.link_name[i]), place)
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
    other = S.lookup(s, S.hashed_key(S.K_NAME, e.other * 2 + 1 - k.receiver, name))
    if other != S.NONE and s.links[other].peer == S.NONE and s.links[other].endpoint == e.other:
        k.peer = other
        s.links[other].peer = place
        return
    same = S.lookup(s, S.hashed_key(S.K_NAME, e.other * 2 + k.receiver, name))
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
        S.note(s, rows, i, e, S.DELIVERY_UNFINISHED, k.byte_count, S.NONE, k.frame)
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


# Checks deliveries of AMQP 1.0: order of transfers, credit, terms of the link, settlement.
#
# Unsettled deliveries are found by endpoint and delivery-id, their tags by the sending end. (1.0 core
# specification, part 2, sections 2.6.7 to 2.6.14; part 3, section 3.4.)


UNSETTLED_MODE, SETTLED_MODE = 0, 1  # snd-settle-mode
SECOND = 1  # rcv-settle-mode
LONGEST_TAG = 32
DISCHARGES = 2  # a command to a coordinator
# A transaction that is not discharged: DECLARED, the link to its coordinator (its place from 1 on, 0 not known), and
# how many messages and outcomes are in it.
DECLARED, OF_LINK, WORK, MOST_WORK = 1, 1, 26, 1 << 36
LINKS_MASK = (1 << WORK - OF_LINK) - 1
STATE_RELEASED, STATE_DECLARED = 4, 16  # bits of outcomes: the second gives a transaction its id
BITS, TERMINAL, AWAITED = 2, 1, 2  # of a delivery: its receiver stated an outcome; which the sender is to settle


@kernel
def transfer(s, rows, i, at):
    """Row `i` begins or continues a delivery (2.6.12, 2.6.14)."""
    place = attached_end(s, rows, i, at) if rows.handle[i] != S.NONE else S.NONE
    if place == S.NONE:
        return
    e, k = s.endpoints[at], s.links[place]
    if k.receiver:
        S.note(s, rows, i, e, S.TRANSFER_BY_RECEIVER, rows.handle[i], S.NONE, k.attach_frame)
        return
    other_id = rows.delivery_id[i] != S.NONE and rows.delivery_id[i] != k.delivery_id
    other_tag = rows.tag_size[i] != S.NONE and rows.tag[i] != k.tag
    if k.open and other_id and other_tag:
        S.note(s, rows, i, e, S.DELIVERIES_MIXED, rows.delivery_id[i], k.delivery_id, k.frame)
        k.open = 0
    if k.open:
        other_format = rows.message_format[i] != S.NONE and rows.message_format[i] != k.message_format
        if other_id or other_tag or other_format or (rows.settled[i] == 0 and k.settled == 1):
            S.note(s, rows, i, e, S.CONTINUATION_DIFFERS, rows.delivery_id[i], k.delivery_id, k.frame)
    else:
        _begin_delivery(s, rows, i, at, place)
    if rows.coordinates[i]:
        _coordinate(s, rows, i, at, place)
    if rows.transaction[i] and rows.sender[i] == S.CLIENT:
        begins = k.frame == rows.frame_no[i] and rows.coordinates[i] != DISCHARGES
        _in_transaction(s, rows, i, e, k.frame, int(begins))
    if rows.rcv_settle_mode[i] == SECOND and k.peer != S.NONE and s.links[k.peer].rcv_mode != SECOND:
        S.note(s, rows, i, e, S.RECEIVER_MODE, rows.rcv_settle_mode[i], 0, k.attach_frame)
    if rows.settled[i] == 1:
        k.settled = 1
    if rows.aborted[i] != 1:  # whose payload is to be ignored (2.7.5)
        k.byte_count += max(rows.payload_size[i], 0)
    k.open = 1 if rows.more[i] == 1 and rows.aborted[i] != 1 else 0
    if rows.aborted[i] == 1:
        S.note(s, rows, i, e, S.ABORTED, k.byte_count, S.NONE, k.frame)
    if not k.open:
        _complete(s, rows, i, at, place)


@kernel
def _coordinate(s, rows, i, at, place):
    """A declare or discharge must be sent unsettled, to a coordinator (4.5)."""
    e, k = s.endpoints[at], s.links[place]
    coordinates = k.coordinator or (k.peer != S.NONE and s.links[k.peer].coordinator)
    if rows.settled[i] == 1 or not coordinates:
        S.note(s, rows, i, e, S.NOT_COORDINATED, rows.settled[i], S.NONE, k.frame)
    if rows.coordinates[i] == DISCHARGES and k.transactions > 0:
        k.transactions -= 1


@kernel
def _declared(s, rows, i, of, number):
    """Row `i` gives the transaction that the delivery of this number asks for its id."""
    delivery = get(s.found_by, S.key_of(S.K_DELIVERY, of, number))
    place = delivery >> BITS if delivery > 0 else 0
    put(s.found_by, S.hashed_key(S.K_TRANSACTION, 0, rows.transaction[i]), (place << OF_LINK) | DECLARED)


@kernel
def _in_transaction(s, rows, i, e, about, work):
    """A transaction that row `i` names must be declared and not discharged; the row adds so much `work` to it."""
    key = S.hashed_key(S.K_TRANSACTION, 0, rows.transaction[i])
    state = get(s.found_by, key)
    if state <= 0:
        S.note(s, rows, i, e, S.TRANSACTION_UNKNOWN, S.NONE, S.NONE, about)
        return
    place = ((state >> OF_LINK) & LINKS_MASK) - 1
    done = state >> WORK
    if rows.coordinates[i] == DISCHARGES:
        work = -done
        put(s.found_by, key, S.GONE)
    else:
        work = min(work, MOST_WORK - done)
        put(s.found_by, key, state + (work << WORK))
    if place != S.NONE:
        s.links[place].work += work


@kernel
def _begin_delivery(s, rows, i, at, place):
    e, k, number = s.endpoints[at], s.links[place], rows.delivery_id[i]
    k.delivery_id, k.tag, k.message_format = number, rows.tag[i], rows.message_format[i]
    k.settled, k.byte_count, k.frame = max(rows.settled[i], 0), 0, rows.frame_no[i]
    if number == S.NONE or rows.tag_size[i] == S.NONE:
        S.note(s, rows, i, e, S.FIRST_INCOMPLETE, number, S.NONE, k.frame)
    if rows.tag_size[i] > LONGEST_TAG:
        S.note(s, rows, i, e, S.TAG_TOO_LONG, rows.tag_size[i], LONGEST_TAG, k.frame)
    if number != S.NONE:
        expected = (e.last_delivery + 1) % S.SERIAL
        if e.last_delivery != S.NONE and number != expected:
            S.note(s, rows, i, e, S.DELIVERY_ID_ORDER, number, expected, k.frame)
        e.last_delivery = number
    settled = rows.settled[i] == 1
    unsettled = k.snd_mode == SETTLED_MODE and not settled and rows.more[i] != 1
    if unsettled or (k.snd_mode == UNSETTLED_MODE and settled):
        S.note(s, rows, i, e, S.SETTLE_MODE, rows.settled[i], k.snd_mode, k.attach_frame)
    if rows.resume[i] == 1 and not k.unsettled and not (k.peer != S.NONE and s.links[k.peer].unsettled):
        S.note(s, rows, i, e, S.RESUME_UNKNOWN, S.NONE, S.NONE, k.frame)
    _use_credit(s, rows, i, at, place)
    if rows.tag_size[i] == S.NONE or number == S.NONE:
        return
    key, delivery = S.hashed_key(S.K_TAG, place, rows.tag[i]), S.key_of(S.K_DELIVERY, at, number)
    earlier = get(s.found_by, key)  # the key of the delivery
    if earlier > 0 and rows.resume[i] != 1 and get(s.found_by, earlier) > 0:
        S.note(s, rows, i, e, S.TAG_IN_USE, earlier & S.NUMBER, S.NONE, k.frame)
    if not settled:
        put(s.found_by, key, delivery)
        put(s.found_by, delivery, (place + 1) << BITS)


@kernel
def _use_credit(s, rows, i, at, place):
    e, k = s.endpoints[at], s.links[place]
    allowed = 0
    if k.peer != S.NONE:
        r = s.links[k.peer]
        allowed = r.credit_to
        if r.cut_ns and S.may_not_know(rows, i, r.cut_ns):
            allowed = max(allowed, r.before_cut)
    if k.count >= allowed:
        S.note(s, rows, i, e, S.NO_CREDIT, k.count + 1, allowed, k.attach_frame)
    k.count += 1
    if k.peer != S.NONE:
        credit_used(s, rows, i, k.peer, place)


@kernel
def _complete(s, rows, i, at, place):
    """The last transfer of a delivery."""
    e, k = s.endpoints[at], s.links[place]
    if k.peer != S.NONE and 0 < s.links[k.peer].max_size < k.byte_count:
        S.note(s, rows, i, e, S.MESSAGE_TOO_LARGE, k.byte_count, s.links[k.peer].max_size, k.frame)
    if (k.settled or rows.aborted[i] == 1) and k.delivery_id != S.NONE:
        _settled(s, at, k.delivery_id)


@kernel
def _settled(s, at, number):
    key = S.key_of(S.K_DELIVERY, at, number)
    if get(s.found_by, key) > 0:
        put(s.found_by, key, S.GONE)


@kernel
def dispose(s, rows, i, at):
    """Row `i` states outcomes of deliveries: the receiver of those of the other side, the sender of its own."""
    e, by_receiver = s.endpoints[at], rows.is_receiver[i] == 1
    first = rows.first[i]
    last = rows.last[i] if rows.last[i] != S.NONE else first
    of = e.other if by_receiver else at
    if first == S.NONE or of == S.NONE:
        return
    if rows.transaction[i]:
        if rows.state[i] == STATE_DECLARED:
            _declared(s, rows, i, of, first)
        elif rows.sender[i] == S.CLIENT:
            _in_transaction(s, rows, i, e, rows.frame_no[i], max(S.after(last, first) + 1, 0))
    if S.after(last, first) < 0:
        S.note(s, rows, i, e, S.DISPOSITION_REVERSED, last, first, rows.frame_no[i])
        return
    latest = s.endpoints[of].last_delivery
    if latest == S.NONE or S.after(last, latest) > 0:
        S.note(s, rows, i, e, S.DISPOSITION_UNKNOWN, last, latest, rows.frame_no[i])
        if latest == S.NONE:
            return
        last = latest
    noted, taken_back, about = 0, 0, S.NONE
    for step in range(S.after(last, first) + 1):
        if s.numbers[S.STEPS] <= 0:
            return
        s.numbers[S.STEPS] -= 1
        key = S.key_of(S.K_DELIVERY, of, (first + step) % S.SERIAL)
        delivery = get(s.found_by, key)
        if delivery > 0:
            if not by_receiver and rows.state[i] == STATE_RELEASED and not delivery & TERMINAL:
                taken_back += 1
                about = s.links[(delivery >> BITS) - 1].attach_frame
            noted |= _dispose_one(s, rows, i, key, delivery, by_receiver)
    if taken_back:
        S.note(s, rows, i, e, S.TAKEN_BACK, taken_back, S.NONE, about)
    if noted & 1:
        S.note(s, rows, i, e, S.OUTCOME_NOT_AGREED, rows.state[i], S.NONE, rows.frame_no[i])
    if noted & 2:
        S.note(s, rows, i, e, S.SETTLED_WITHOUT_OUTCOME, S.NONE, S.NONE, rows.frame_no[i])


@kernel
def _dispose_one(s, rows, i, key, delivery, by_receiver):
    """1: the outcome is not one that the link allows; 2: the sender settles before there is an outcome; else 0."""
    k = s.links[(delivery >> BITS) - 1]
    settled, state, noted = rows.settled[i] == 1, rows.state[i], 0
    if by_receiver:
        if state > 0 and k.outcomes > 0 and not k.outcomes & state:
            noted = 1
        awaits = state > 0 and not settled and k.peer != S.NONE and s.links[k.peer].rcv_mode == SECOND
        if awaits and not delivery & AWAITED:
            delivery |= AWAITED
            k.awaiting += 1
            k.awaited_ns = rows.ts_ns[i]
        if state > 0:
            delivery |= TERMINAL
        if state == STATE_DECLARED:
            k.transactions += 1
    elif settled and not delivery & TERMINAL and state <= 0:
        noted = 2
    if settled and delivery & AWAITED:
        k.awaiting -= 1
    put(s.found_by, key, S.GONE if settled else delivery)
    return noted


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
    at = S.lookup(s, S.key_of(S.K_ENDPOINT, sender, rows.channel[i]))
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
    before = S.lookup(s, key)
    at = S.add_endpoint(s)
    e = s.endpoints[at]
    e.side, e.channel, e.mapped = sender, number, 1
    e.begun_ns, e.begun_frame = rows.ts_ns[i], rows.frame_no[i]
    e.handle_max = rows.handle_max[i] if rows.handle_max[i] != S.NONE else UNLIMITED
    e.first_out = rows.next_outgoing_id[i]
    e.allowed = rows.incoming_window[i]
    _window(s, e, rows.incoming_window[i], rows.ts_ns[i], rows.frame_no[i])
    peer = S.lookup(s, S.key_of(S.K_UNANSWERED, 1 - sender, remote)) if remote != S.NONE else S.NONE
    fits = peer != S.NONE and s.endpoints[peer].other == S.NONE
    if fits:
        p = s.endpoints[peer]
        e.channel, e.incarnation = p.channel, p.incarnation
        e.other, p.other = peer, at
        e.answered = p.answered = 1
        if p.next != S.NONE:
            S.bind(s, S.key_of(S.K_UNANSWERED, 1 - sender, remote), p.next)
        S.note_wait(s, p.begun_frame, p.begun_ns, rows.ts_ns[i], sender, p, S.BEGIN_UNANSWERED, p.begun_frame)
    else:
        incarnations = S.key_of(S.K_LIFE, 0, number)
        e.incarnation = max(get(s.found_by, incarnations), 0) + 1
        put(s.found_by, incarnations, e.incarnation)
        _await_answer(s, S.key_of(S.K_UNANSWERED, sender, number), before, at)
    if before != S.NONE and s.endpoints[before].mapped:
        S.note(s, rows, i, e, S.BEGIN_TWICE, number, S.NONE, S.NONE)
    if knows and number > s.numbers[S.CHANNEL_MAX + 1 - sender]:
        expected = s.numbers[S.CHANNEL_MAX + 1 - sender]
        S.note(s, rows, i, e, S.CHANNEL_ABOVE_MAX, number, expected, S.NONE)
    if remote != S.NONE and not fits:
        S.note(s, rows, i, e, S.REMOTE_CHANNEL, remote, S.NONE, S.NONE)
    S.bind(s, key, at)


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
    first = S.lookup(s, key)
    if first == S.NONE or s.endpoints[first].other != S.NONE or s.endpoints[before].other != S.NONE:
        S.bind(s, key, at)
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
