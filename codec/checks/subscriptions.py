"""Subscriptions of AMQP 0-10: destinations, credit, transfers and their settlement.

Credit of messages is followed as `codec.conversation.sessions.credit` says it; of octets only whether any was given,
and whether without limit. (0-10 specification, class message.)"""

from __future__ import annotations

from codec.checks import state as S
from codec.compiler.kernel import kernel
from codec.hashes.keyed import found, put

SUBSCRIPTION_NAMES = (
    "message.subscribe", "message.cancel", "message.flow", "message.stop", "message.flush", "message.set-flow-mode",
    "message.transfer", "message.accept", "message.reject", "message.release", "message.acquire",
)  # fmt: skip
(
    SUBSCRIBE, CANCEL, FLOW, STOP, FLUSH, SET_FLOW_MODE, TRANSFER, ACCEPT, REJECT, RELEASE, ACQUIRE,
) = range(1, len(SUBSCRIPTION_NAMES) + 1)  # fmt: skip
NO_LIMIT = S.SERIAL - 1
IN_MESSAGES = 0  # credit unit
# Bits of a transfer that the client has not settled, or that still gives credit back.
BITS, UNSETTLED, GIVES_BACK = 2, 1, 2


@kernel
def _of_destination(s, rows, i, at):
    return S.place_in(s, S.hashed_key(S.K_DESTINATION, at, rows.destination[i]))


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
    S.lead(s, S.hashed_key(S.K_DESTINATION, at, rows.destination[i]), place)


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
        k.octets += value
        k.stopped = 0
    elif name in (SET_FLOW_MODE, STOP):
        if name == SET_FLOW_MODE:
            # Octets that are left over do no harm: clients leave them unlimited.
            # A flush comes first: it leaves no credit.
            if k.messages > 0 and k.flush_id == S.NONE:
                S.note(s, rows, i, c, S.MODE_WITH_CREDIT, k.messages, 0, k.frame)
            k.window = max(rows.flow_mode[i], 0)
        else:
            k.stopped = 1
            k.stop_id = rows.command_id[i]
        k.messages = k.all_messages = k.octets = 0
        k.flush_id = S.NONE
        k.zeroed_id = c.next[S.SERVER]
    elif name == FLUSH and rows.command_id[i] != S.NONE:
        k.flush_id = rows.command_id[i]
        k.later = k.all_later = 0
        S.lead(s, S.key_of(S.K_FLUSH, at, k.flush_id), place)
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
    elif not ((k.messages > 0 or k.all_messages) and k.octets > 0):
        S.note(s, rows, i, c, S.WITHOUT_CREDIT, k.messages, k.octets, k.frame)
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
        state = found(s.found_by, key)
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
        place = S.place_in(s, key)
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
            state = found(s.found_by, key)
            # What a transaction settles may be settled again after a rollback.
            if name == ACQUIRE or c.tx or c.dtx:
                continue
            if state <= 0 or not state & UNSETTLED:
                unknown = (first + step) % S.SERIAL if name != RELEASE else unknown
            else:
                put(s.found_by, key, state & ~UNSETTLED if state & GIVES_BACK else S.GONE)
    if unknown != S.NONE:
        S.note(s, rows, i, c, S.TRANSFERS_UNKNOWN, unknown, S.NONE, rows.frame_no[i])
