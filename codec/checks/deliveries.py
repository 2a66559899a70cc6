"""Checks deliveries of AMQP 1.0: order of transfers, credit, terms of the link, settlement.

Unsettled deliveries are found by endpoint and delivery-id, their tags by the sending end. (1.0 core
specification, part 2, sections 2.6.7 to 2.6.14; part 3, section 3.4.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.checks.links import attached_end, credit_used
from codec.compiler.kernel import kernel
from codec.hashes.keyed import found, put

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
        k.octets += max(rows.payload_size[i], 0)
    k.open = 1 if rows.more[i] == 1 and rows.aborted[i] != 1 else 0
    if rows.aborted[i] == 1:
        S.note(s, rows, i, e, S.ABORTED, k.octets, S.NONE, k.frame)
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
    delivery = found(s.found_by, S.key_of(S.K_DELIVERY, of, number))
    place = delivery >> BITS if delivery > 0 else 0
    put(s.found_by, S.hashed_key(S.K_TRANSACTION, 0, rows.transaction[i]), (place << OF_LINK) | DECLARED)


@kernel
def _in_transaction(s, rows, i, e, about, work):
    """A transaction that row `i` names must be declared and not discharged; the row adds so much `work` to it."""
    key = S.hashed_key(S.K_TRANSACTION, 0, rows.transaction[i])
    state = found(s.found_by, key)
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
    k.settled, k.octets, k.frame = max(rows.settled[i], 0), 0, rows.frame_no[i]
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
    earlier = found(s.found_by, key)  # the key of the delivery
    if earlier > 0 and rows.resume[i] != 1 and found(s.found_by, earlier) > 0:
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
    if k.peer != S.NONE and 0 < s.links[k.peer].max_size < k.octets:
        S.note(s, rows, i, e, S.MESSAGE_TOO_LARGE, k.octets, s.links[k.peer].max_size, k.frame)
    if (k.settled or rows.aborted[i] == 1) and k.delivery_id != S.NONE:
        _settled(s, at, k.delivery_id)


@kernel
def _settled(s, at, number):
    key = S.key_of(S.K_DELIVERY, at, number)
    if found(s.found_by, key) > 0:
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
        delivery = found(s.found_by, key)
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
