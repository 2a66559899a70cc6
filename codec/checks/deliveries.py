"""Checks deliveries of AMQP 1.0: order of transfers, credit, terms of the link, settlement.

Unsettled deliveries are found by endpoint and delivery-id, their tags by the sending end. (1.0 core
specification, part 2, sections 2.6.7 to 2.6.14; part 3, section 3.4.)
"""

from __future__ import annotations

from codec.checks import state as S
from codec.checks.links import credit_used, end_of
from codec.checks.records_1_0 import (
    ATTACH_FRAME,
    ATTACHED,
    AWAITED_NS,
    AWAITING,
    BEFORE_CUT,
    CHANNEL,
    COORDINATOR,
    COUNT,
    CREDIT_TO,
    CUT_NS,
    FORMAT,
    FRAME,
    ID,
    INCARNATION,
    LAST_DELIVERY,
    MAX_SIZE,
    OPEN,
    OTHER,
    OUTCOMES,
    PEER,
    RCV_MODE,
    RECEIVER,
    SETTLED,
    SIZE,
    SND_MODE,
    TAG,
    TRANSACTIONS,
    UNSETTLED,
)  # fmt: skip
from codec.checks.state import GONE, NONE, SERIAL, after, hashed_key, key_of, may_not_know, note
from codec.compiler.kernel import kernel
from codec.hashes.keyed import found, put

UNSETTLED_MODE, SETTLED_MODE = 0, 1  # snd-settle-mode
SECOND = 1  # rcv-settle-mode
LONGEST_TAG = 32
DISCHARGES = 2  # a command to a coordinator
DECLARED = 1  # a transaction that is not discharged
STATE_DECLARED = 16  # bit of the outcome that gives a transaction its id
BITS, TERMINAL, AWAITED = 2, 1, 2  # of a delivery: its receiver stated an outcome; which the sender is to settle


@kernel
def transfer(s, rows, i, at):
    """Row `i` begins or continues a delivery (2.6.12, 2.6.14)."""
    e = s.endpoints[at]
    channel, incarnation = e[CHANNEL], e[INCARNATION]
    if rows.handle[i] == NONE:
        return
    place = end_of(s, at, rows.handle[i])
    if place == NONE or not s.links[place, ATTACHED]:
        oddity = S.HANDLE_UNATTACHED if place == NONE else S.AFTER_DETACH
        about = NONE if place == NONE else s.links[place, ATTACH_FRAME]
        note(s, rows, i, channel, incarnation, oddity, rows.handle[i], NONE, about)
        return
    k = s.links[place]
    if k[RECEIVER]:
        note(s, rows, i, channel, incarnation, S.TRANSFER_BY_RECEIVER, rows.handle[i], NONE, k[ATTACH_FRAME])
        return
    other_id = rows.delivery_id[i] != NONE and rows.delivery_id[i] != k[ID]
    other_tag = rows.tag_size[i] != NONE and rows.tag[i] != k[TAG]
    if k[OPEN] and other_id and other_tag:
        note(s, rows, i, channel, incarnation, S.DELIVERIES_MIXED, rows.delivery_id[i], k[ID], k[FRAME])
        k[OPEN] = 0
    if k[OPEN]:
        other_format = rows.message_format[i] != NONE and rows.message_format[i] != k[FORMAT]
        if other_id or other_tag or other_format or (rows.settled[i] == 0 and k[SETTLED] == 1):
            note(s, rows, i, channel, incarnation, S.CONTINUATION_DIFFERS, rows.delivery_id[i], k[ID], k[FRAME])
    else:
        _begin_delivery(s, rows, i, at, place)
    if rows.coordinates[i]:
        _coordinate(s, rows, i, at, place)
    if rows.transaction[i] and rows.sender[i] == S.CLIENT:
        _in_transaction(s, rows, i, e, k[FRAME])
    if rows.rcv_settle_mode[i] == SECOND and k[PEER] != NONE and s.links[k[PEER], RCV_MODE] != SECOND:
        note(s, rows, i, channel, incarnation, S.RECEIVER_MODE, rows.rcv_settle_mode[i], 0, k[ATTACH_FRAME])
    if rows.settled[i] == 1:
        k[SETTLED] = 1
    k[SIZE] += max(rows.payload_size[i], 0)
    k[OPEN] = 1 if rows.more[i] == 1 and rows.aborted[i] != 1 else 0
    if rows.aborted[i] == 1:
        note(s, rows, i, channel, incarnation, S.ABORTED, k[SIZE], NONE, k[FRAME])
    if not k[OPEN]:
        _complete(s, rows, i, at, place)


@kernel
def _coordinate(s, rows, i, at, place):
    """A declare or discharge must be sent unsettled, to a coordinator (4.5)."""
    e, k = s.endpoints[at], s.links[place]
    coordinates = k[COORDINATOR] or (k[PEER] != NONE and s.links[k[PEER], COORDINATOR])
    if rows.settled[i] == 1 or not coordinates:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NOT_COORDINATED, rows.settled[i], NONE, k[FRAME])
    if rows.coordinates[i] == DISCHARGES and k[TRANSACTIONS] > 0:
        k[TRANSACTIONS] -= 1


@kernel
def _in_transaction(s, rows, i, e, about):
    """A transaction that row `i` names must be declared and not discharged."""
    key = hashed_key(S.K_TRANSACTION, 0, rows.transaction[i])
    if found(s.found_by, key) != DECLARED:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.TRANSACTION_UNKNOWN, NONE, NONE, about)
    if rows.coordinates[i] == DISCHARGES:
        put(s.found_by, key, GONE)


@kernel
def _begin_delivery(s, rows, i, at, place):
    e, k = s.endpoints[at], s.links[place]
    channel, incarnation, number = e[CHANNEL], e[INCARNATION], rows.delivery_id[i]
    k[ID], k[TAG], k[FORMAT] = number, rows.tag[i], rows.message_format[i]
    k[SETTLED], k[SIZE], k[FRAME] = max(rows.settled[i], 0), 0, rows.frame_no[i]
    if number == NONE or rows.tag_size[i] == NONE:
        note(s, rows, i, channel, incarnation, S.FIRST_INCOMPLETE, number, NONE, k[FRAME])
    if rows.tag_size[i] > LONGEST_TAG:
        note(s, rows, i, channel, incarnation, S.TAG_TOO_LONG, rows.tag_size[i], LONGEST_TAG, k[FRAME])
    if number != NONE:
        expected = (e[LAST_DELIVERY] + 1) % SERIAL
        if e[LAST_DELIVERY] != NONE and number != expected:
            note(s, rows, i, channel, incarnation, S.DELIVERY_ID_ORDER, number, expected, k[FRAME])
        e[LAST_DELIVERY] = number
    settled = rows.settled[i] == 1
    unsettled = k[SND_MODE] == SETTLED_MODE and not settled and rows.more[i] != 1
    if unsettled or (k[SND_MODE] == UNSETTLED_MODE and settled):
        note(s, rows, i, channel, incarnation, S.SETTLE_MODE, rows.settled[i], k[SND_MODE], k[ATTACH_FRAME])
    if rows.resume[i] == 1 and not k[UNSETTLED] and not (k[PEER] != NONE and s.links[k[PEER], UNSETTLED]):
        note(s, rows, i, channel, incarnation, S.RESUME_UNKNOWN, NONE, NONE, k[FRAME])
    _use_credit(s, rows, i, at, place)
    if rows.tag_size[i] == NONE or number == NONE:
        return
    key, delivery = hashed_key(S.K_TAG, place, rows.tag[i]), key_of(S.K_DELIVERY, at, number)
    earlier = found(s.found_by, key)  # the key of the delivery
    if earlier > 0 and rows.resume[i] != 1 and found(s.found_by, earlier) > 0:
        note(s, rows, i, channel, incarnation, S.TAG_IN_USE, earlier & S.NUMBER, NONE, k[FRAME])
    if not settled:
        put(s.found_by, key, delivery)
        put(s.found_by, delivery, (place + 1) << BITS)


@kernel
def _use_credit(s, rows, i, at, place):
    e, k = s.endpoints[at], s.links[place]
    allowed = 0
    if k[PEER] != NONE:
        r = s.links[k[PEER]]
        allowed = r[CREDIT_TO]
        if r[CUT_NS] and may_not_know(rows, i, r[CUT_NS]):
            allowed = max(allowed, r[BEFORE_CUT])
    if k[COUNT] >= allowed:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.NO_CREDIT, k[COUNT] + 1, allowed, k[ATTACH_FRAME])
    k[COUNT] += 1
    if k[PEER] != NONE:
        credit_used(s, rows, i, k[PEER], place)


@kernel
def _complete(s, rows, i, at, place):
    """The last transfer of a delivery."""
    e, k = s.endpoints[at], s.links[place]
    if k[PEER] != NONE and 0 < s.links[k[PEER], MAX_SIZE] < k[SIZE]:
        note(s, rows, i, e[CHANNEL], e[INCARNATION], S.MESSAGE_TOO_LARGE, k[SIZE], s.links[k[PEER], MAX_SIZE], k[FRAME])
    if (k[SETTLED] or rows.aborted[i] == 1) and k[ID] != NONE:
        _settled(s, at, k[ID])


@kernel
def _settled(s, at, number):
    key = key_of(S.K_DELIVERY, at, number)
    if found(s.found_by, key) > 0:
        put(s.found_by, key, GONE)


@kernel
def dispose(s, rows, i, at):
    """Row `i` states outcomes of deliveries: the receiver of those of the other side, the sender of its own."""
    e, by_receiver = s.endpoints[at], rows.is_receiver[i] == 1
    first = rows.first[i]
    last = rows.last[i] if rows.last[i] != NONE else first
    of = e[OTHER] if by_receiver else at
    if first == NONE or of == NONE:
        return
    channel, incarnation = e[CHANNEL], e[INCARNATION]
    if rows.transaction[i]:
        if rows.state[i] == STATE_DECLARED:
            put(s.found_by, hashed_key(S.K_TRANSACTION, 0, rows.transaction[i]), DECLARED)
        elif rows.sender[i] == S.CLIENT:
            _in_transaction(s, rows, i, e, rows.frame_no[i])
    if after(last, first) < 0:
        note(s, rows, i, channel, incarnation, S.DISPOSITION_REVERSED, last, first, rows.frame_no[i])
        return
    latest = s.endpoints[of, LAST_DELIVERY]
    if latest == NONE or after(last, latest) > 0:
        note(s, rows, i, channel, incarnation, S.DISPOSITION_UNKNOWN, last, latest, rows.frame_no[i])
        if latest == NONE:
            return
        last = latest
    noted = 0
    for step in range(after(last, first) + 1):
        if s.numbers[S.STEPS] <= 0:
            return
        s.numbers[S.STEPS] -= 1
        key = key_of(S.K_DELIVERY, of, (first + step) % SERIAL)
        delivery = found(s.found_by, key)
        if delivery > 0:
            noted |= _dispose_one(s, rows, i, key, delivery, by_receiver)
    if noted & 1:
        note(s, rows, i, channel, incarnation, S.OUTCOME_NOT_AGREED, rows.state[i], NONE, rows.frame_no[i])
    if noted & 2:
        note(s, rows, i, channel, incarnation, S.SETTLED_WITHOUT_OUTCOME, NONE, NONE, rows.frame_no[i])


@kernel
def _dispose_one(s, rows, i, key, delivery, by_receiver):
    """1: the outcome is not one that the link allows; 2: the sender settles before there is an outcome; else 0."""
    k = s.links[(delivery >> BITS) - 1]
    settled, state, noted = rows.settled[i] == 1, rows.state[i], 0
    if by_receiver:
        if state > 0 and k[OUTCOMES] > 0 and not k[OUTCOMES] & state:
            noted = 1
        awaits = state > 0 and not settled and k[PEER] != NONE and s.links[k[PEER], RCV_MODE] == SECOND
        if awaits and not delivery & AWAITED:
            delivery |= AWAITED
            k[AWAITING] += 1
            k[AWAITED_NS] = rows.ts_ns[i]
        if state > 0:
            delivery |= TERMINAL
        if state == STATE_DECLARED:
            k[TRANSACTIONS] += 1
    elif settled and not delivery & TERMINAL and state <= 0:
        noted = 2
    if settled and delivery & AWAITED:
        k[AWAITING] -= 1
    put(s.found_by, key, GONE if settled else delivery)
    return noted
