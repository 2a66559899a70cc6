"""Transfers, and what settles them: messages, and events for `codec.conversation.settlement`.

A delivery of 1.0 is settled by dispositions over ranges of delivery-ids, of either side: the receiver says a state and
may settle with it, or leaves that to the sender; a sender may settle with the transfer itself, or give a delivery up
(aborted). (1.0 core specification, 2.6.12, 2.7.5, 2.7.6.) A transfer of 0-10 is a command, known by its number; the
receiver accepts, rejects or releases ranges of these; of a publish it is enough that the server completes the command,
and a transfer with accept-mode none asks for nothing. (0-10 specification, classes session, execution, message.)

What was settled before it was captured, in a capture that is out of order there, is `named`: what became of it is not
known. So is what was captured late, where the directions are too far apart, unless it needs no settlement, and all of
a session that may have taken over what is about the session before.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.sessions.pools import new_record
from codec.conversation.sessions.state import (
    ABORTED,
    CLIENT,
    COMPLETIONS,
    CONFIRMED,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    LEDGERS,
    NONE,
    PRESETTLED,
    SERIAL,
    SERVER,
    TRANSACTIONS,
)


@kernel
def _write_event(s, rows, i, ledger, opens, first, last, outcome, final, key, waits):
    event = s.events.rows[new_record(s.events)]
    event.connection = rows.connection_id[i]
    event.ledger = ledger
    event.frame_no = rows.frame_no[i]
    event.opens = opens
    event.first = first
    event.last = last
    event.outcome = outcome
    event.final = final
    event.effective_ns = rows.ts_ns[i]
    event.key = key
    event.waits = waits


@kernel
def open_delivery(s, rows, i, ledger):
    """What row `i` sends is outstanding in a ledger from now on."""
    _write_event(s, rows, i, ledger, 1, rows.number[i], rows.number[i], 0, 1, 0, 0)


@kernel
def _name(s, ledger, number):
    """A settlement names what was sent up to `number`, or part of it."""
    session, of_client = s.sessions.rows[ledger // LEDGERS], ledger % LEDGERS == CLIENT
    before = session.named_client if of_client else session.named_server
    if before != NONE and (number - before) % SERIAL >= SERIAL // 2:
        return
    if of_client:
        session.named_client = number
    else:
        session.named_server = number


@kernel
def _was_named(s, place, sender, number):
    """Whether a settlement has named a number that is sent now only, or a later one."""
    session = s.sessions.rows[place]
    named = session.named_client if sender == CLIENT else session.named_server
    return number != NONE and named != NONE and (named - number) % SERIAL < SERIAL // 2


@kernel
def transfer(s, rows, i, place, link, key):
    """Row `i` begins a message."""
    message = s.messages.rows[new_record(s.messages)]
    message.connection = rows.connection_id[i]
    message.frame_no = rows.frame_no[i]
    message.ts_ns = rows.ts_ns[i]
    message.session = place
    message.link = link
    message.sender = rows.sender[i]
    message.operation = rows.sender[i] + 1
    message.number = rows.number[i]
    message.key = key
    message.readable = rows.readable[i]
    message.needs_no_accept = rows.no_accept[i]
    # What is sent to a coordinator is not a message: its link says so; without one that is known, its body.
    message.command = rows.coordinates[i]
    if link != NONE and s.links.rows[link].known:
        message.command = s.links.rows[link].coordinator
    if message.command:
        s.numbers[TRANSACTIONS] = 1
    message.client_hidden = s.numbers[HIDDEN_CLIENT]
    message.server_hidden = s.numbers[HIDDEN_SERVER]
    doubted = rows.late[i] or s.sessions.rows[place].doubted
    message.named = doubted or _was_named(s, place, rows.sender[i], rows.number[i])
    message.row = i
    if doubted and rows.settled[i] != 1 and rows.aborted[i] != 1:
        return
    if rows.number[i] != NONE and not (rows.sender[i] == SERVER and rows.no_accept[i] == 1):
        open_delivery(s, rows, i, place * LEDGERS + rows.sender[i])


@kernel
def end_own(s, rows, i, place, binding, key):
    """Any transfer of a delivery may say that it is settled, or that it is given up."""
    number = binding.delivery_id
    if number == NONE or binding.delivery_frame != rows.content_frame_no[i]:
        return
    ledger = place * LEDGERS + rows.sender[i]
    if rows.aborted[i] == 1:
        _write_event(s, rows, i, ledger, 0, number, number, ABORTED, 1, key, 0)
    elif rows.settled[i] == 1:
        _write_event(s, rows, i, ledger, 0, number, number, PRESETTLED, 1, key, 0)


@kernel
def _settle_range(s, rows, i, ledger, first, last, outcome, final, key):
    """Numbers from `first` to `last`: they begin anew after the highest one, and lead nowhere where `last` is not
    after `first` (more than half of all numbers away)."""
    if first == NONE or last == NONE or (last - first) % SERIAL >= SERIAL // 2:
        return
    if ledger % LEDGERS < COMPLETIONS:
        _name(s, ledger, last)
    if first <= last:
        _write_event(s, rows, i, ledger, 0, first, last, outcome, final, key, 1)
    else:
        _write_event(s, rows, i, ledger, 0, first, SERIAL - 1, outcome, final, key, 1)
        _write_event(s, rows, i, ledger, 0, 0, last, outcome, final, key, 1)


@kernel
def settle_ranges(s, rows, i, role, place, key):
    """Row `i` settles, or notes an outcome of, what one side sent on the session."""
    about, outcome, final = rows.about[i], rows.outcome[i], rows.final[i]
    if about == NONE:
        return
    completes = role.completes and rows.sender[i] == CLIENT
    for k in range(rows.range_at[i], rows.range_at[i + 1]):
        first, last = rows.range_first[k], rows.range_last[k]
        if final or outcome:
            _settle_range(s, rows, i, place * LEDGERS + about, first, last, outcome, final, key)
        if completes:
            ledger = place * LEDGERS + COMPLETIONS + about
            _settle_range(s, rows, i, ledger, first, last, CONFIRMED, 1, 0)


@kernel
def ask_for_end(s, rows, i, place, key):
    """Row `i` asks for the end of transaction `key`; whoever gets it answers as to a message."""
    ask = s.asks.rows[new_record(s.asks)]
    ask.connection = rows.connection_id[i]
    ask.ledger = place * LEDGERS + rows.sender[i]
    ask.frame_no = rows.frame_no[i]
    ask.ts_ns = rows.ts_ns[i]
    ask.key = key
    ask.result = rows.ends[i]
