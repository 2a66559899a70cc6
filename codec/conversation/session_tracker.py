"""Follows the performatives, controls and commands of a connection in order: sessions, links, messages, settlements.

What each of them does is data (`semantics.ROLES`); the code names none. Cost: constant per row and per settled range.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.conversation import v0_10_oddities as v0_10
from codec.conversation import v1_0_oddities as v1_0
from codec.conversation.oddities import CHANNEL, INCARNATION, now
from codec.conversation.session_links import (
    attach,
    bound_link,
    change_subscription,
    credit_link,
    destination_of,
    detach,
    handle_of,
    subscribe,
)
from codec.conversation.session_lookup import pair_of_connection, session_of, transaction_of, update_session
from codec.conversation.session_state import (
    BOTH,
    CELLS,
    CLIENT,
    CLOSE_FRAME,
    COMPLETIONS,
    CONNECTION,
    COUNT,
    FIRST,
    FLUSHES,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    KEYS,
    LOSSES_CLIENT,
    LOSSES_SERVER,
    LOST_NS,
    MAPS,
    NONE,
    RECEIVER,
    SENDER,
    SERVER,
    STARTED,
    STEPS,
    SUBSCRIPTION,
    TX_COUNT,
    UNANSWERED,
    new_record,
)
from codec.conversation.session_transfers import (
    after_command,
    await_reply,
    before_command,
    begin_transaction,
    close_control_links,
    declare_transaction,
    open_delivery,
    pair,
    request_tx_end,
    request_unnumbered_tx_end,
    settle_own,
    settle_ranges,
    transfer,
)
from codec.hashes.maps import clear


@kernel
def end_connection(s):
    """End the current connection: it has no more rows."""
    numbers, sessions = s.numbers, s.sessions
    for at in range(sessions.cells[FIRST], sessions.cells[COUNT]):
        sessions.rows[at].client_hidden = numbers[HIDDEN_CLIENT]
        sessions.rows[at].server_hidden = numbers[HIDDEN_SERVER]
        sessions.rows[at].left_frame = max(sessions.rows[at].left_frame, numbers[CLOSE_FRAME])
        sessions.rows[at].lost_ns = numbers[LOST_NS]
    s.sessions.cells[FIRST] = s.sessions.cells[COUNT]
    s.links.cells[FIRST] = s.links.cells[COUNT]
    s.messages.cells[FIRST] = s.messages.cells[COUNT]
    s.events.cells[FIRST] = s.events.cells[COUNT]
    s.tx_ends.cells[FIRST] = s.tx_ends.cells[COUNT]
    s.changes.cells[FIRST] = s.changes.cells[COUNT]
    s.refusals.cells[FIRST] = s.refusals.cells[COUNT]
    numbers[STARTED] = 0


@kernel
def _begin_connection(s, connection):
    s.numbers[CONNECTION] = connection
    s.numbers[STARTED] = 1
    for cell in range(LOSSES_CLIENT, CELLS):
        s.numbers[cell] = 0
    s.bindings.cells[COUNT] = 0
    s.attachings.cells[COUNT] = 0
    clear(s.found_by)


@inlined
def _find_oddities(s, rows, i, role, slot, session, binding):
    """A row of 1.0 on a link, which the handle stands for, however much was lost since."""
    if binding.link == NONE:
        v1_0.without_link(s, rows, i, role, binding)
        return
    of_session, at = slot - s.sessions.cells[FIRST], binding.link - s.links.cells[FIRST]
    link = s.links.rows[binding.link]
    if role.transfers:
        v1_0.on_transfer(s, rows, i, session, of_session, link, at)
    elif role.states_credit:
        v1_0.on_link_flow(s, rows, i, link)
    elif role.detaches:
        v1_0.on_detach(s.odd, link, rows.sender[i], rows.closed[i], rows.error[i])


@inlined
def _on_handle(s, rows, i, role, slot, session, begins, has_begun):
    """A row with a handle: update the link of the handle; returns its slot. `has_begun`: the sender has begun the
    session."""
    own_losses = s.numbers[LOSSES_CLIENT] if rows.sender[i] == CLIENT else s.numbers[LOSSES_SERVER]
    binding = handle_of(s, rows, i, slot)
    if role.attaches:
        in_use = binding.link != NONE
        attach(s, rows, i, slot, session, binding, own_losses)
        if binding.link != NONE:
            binding.bound_frame = rows.frame_no[i]
            if has_begun:
                of_session, link = slot - s.sessions.cells[FIRST], s.links.rows[binding.link]
                v1_0.on_attach(s, rows, i, session, of_session, link, in_use)
    elif has_begun and (rows.handle[i] != NONE or role.detaches):
        _find_oddities(s, rows, i, role, slot, session, binding)
    if begins:
        binding.delivery_frame = rows.frame_no[i]
        binding.delivery_id = rows.number[i]
        binding.presettled = 0
    if role.transfers:
        settle_own(s, rows, i, slot, binding)
    if rows.handle[i] == NONE:
        return NONE
    kind = SENDER if rows.sender[i] == CLIENT else RECEIVER
    at = bound_link(s, binding, slot, kind, 0, own_losses)
    link = s.links.rows[at]
    if begins:
        link.transfers += 1
    if link.known:
        credit_link(s, rows, i, role, link)
        pair(s, rows, i, slot, link.waiting, role.replies, rows.asks[i])
    elif rows.sender[i] == CLIENT:
        link.client_handle = rows.handle[i]
    else:
        link.server_handle = rows.handle[i]
    if role.detaches:
        detach(s, rows, i, slot, binding, link)
        if link.coordinator and rows.closed[i] == 1:
            close_control_links(s, rows, i, slot, at)
    return at


@kernel
def _on_destination(s, rows, i, role, slot, begins):
    """A command about a subscription, or a transfer over one: update its link; returns its slot."""
    binding, session = destination_of(s, rows, i, slot), s.sessions.rows[slot]
    if role.subscribes:
        v0_10.before_subscribe(s, rows, i, session, binding)
        subscribe(s, rows, i, slot, binding)
    elif role.transfers:
        v0_10.on_transfer(s, rows, i, session, slot - s.sessions.cells[FIRST], binding)
    else:
        v0_10.on_change(s, rows, i, role, session, slot - s.sessions.cells[FIRST], binding)
    at = bound_link(s, binding, slot, SUBSCRIPTION, rows.destination[i], s.numbers[LOSSES_CLIENT])
    link = s.links.rows[at]
    if begins:
        link.transfers += 1
    change_subscription(s, rows, i, role, slot, at)
    flushes = role.zeroes_credit == FLUSHES
    if (role.transfers or flushes) and link.known and rows.number[i] != NONE:
        open_delivery(s, rows, i, slot * MAPS + COMPLETIONS + rows.sender[i])
        s.sessions.rows[slot].flushes |= flushes
    return at


@inlined
def _row(s, roles, rows, i):
    role, of_1_0 = roles[rows.name[i]], roles[rows.name[i]].own_numbers != 0
    now(s.odd, rows, i, s.numbers[LOST_NS])
    s.numbers[STEPS] += v1_0.STEPS_A_FRAME
    if not of_1_0:
        v0_10.on_frame(s, rows, i, role)
    if role.of_connection:
        if of_1_0:
            v1_0.on_connection(s, rows, i)
        else:
            v0_10.on_connection(s, rows, i)
        pair_of_connection(s, rows, i, role)
        if role.closes_connection:
            s.numbers[CLOSE_FRAME] = rows.frame_no[i]
            close_control_links(s, rows, i, NONE, NONE)
        return
    twice, busy, named, channel = False, False, NONE, NONE
    if role.opens_session and of_1_0:
        twice = v1_0.began_before(s, rows, i)
    elif role.opens_session:
        busy, named, channel = v0_10.before_attach(s, rows, i)
    slot, opener = session_of(s, rows, i, role)
    session, of_connection = s.sessions.rows[slot], slot - s.sessions.cells[FIRST]
    s.odd.now[CHANNEL], s.odd.now[INCARNATION] = session.channel, session.incarnation
    has_begun = of_1_0 and v1_0.on_session(s, rows, i, role, session, of_connection, twice)
    if not of_1_0:
        v0_10.on_channel(s, rows, i)
        if role.opens_session:
            v0_10.on_attach(s, rows, i, session, of_connection, busy, named, channel)
        elif role.answers_attach:
            session.phase = v0_10.READY if session.phase else 0
        elif role.closes_session:
            v0_10.on_detach(s, rows, i, session)
        else:
            v0_10.on_session(s, rows, i, role, session, of_connection)
    closes = update_session(s, rows, i, role, slot, opener)
    of_session = max(role.requests, rows.asks[i]) if rows.handle[i] == NONE else 0
    pair(s, rows, i, slot, session.waiting, role.replies, of_session)
    if role.own_numbers == 0 and rows.sender[i] == CLIENT:
        before_command(s, rows, i, role, slot)
    known = s.numbers[KEYS]
    key = transaction_of(s, rows, i, role, session)
    if s.numbers[KEYS] > known:
        begin_transaction(s, rows, i, slot * MAPS, key)
    if key:
        s.numbers[TX_COUNT] = 1
    begins = role.transfers and rows.content_frame_no[i] == rows.frame_no[i]
    link = NONE
    if role.on_handle:
        link = _on_handle(s, rows, i, role, slot, session, begins, has_begun)
    elif role.on_destination and rows.destination[i] and (rows.sender[i] == CLIENT) != (role.transfers == 1):
        link = _on_destination(s, rows, i, role, slot, begins)
    if begins:
        transfer(s, rows, i, slot, link, key)
    alone = session.incarnation == 0 and session.senders != BOTH
    if role.settles and role.own_numbers and session.remote_channel == NONE and (s.numbers[UNANSWERED] or alone):
        # a begin was not captured: nothing tells which session of the other side it is about
        s.numbers[HIDDEN_CLIENT if rows.sender[i] == CLIENT else HIDDEN_SERVER] += 1
    if role.settles and not session.doubted:
        settle_ranges(s, rows, i, role, slot, key)
    if rows.declared[i]:
        declare_transaction(s, rows, i, slot)
    if closes and (role.own_numbers or session.failed or session.timeout_s <= 0):
        close_control_links(s, rows, i, slot, NONE)
    if role.refuses and rows.number[i] != NONE:
        refusal = s.refusals.rows[new_record(s.refusals)]
        refusal.connection = rows.connection_id[i]
        refusal.session = slot
        refusal.command_id = rows.number[i]
    if role.awaits and rows.number[i] != NONE and not session.doubted:
        await_reply(s, rows, i, slot)
        if not rows.ends[i]:
            open_delivery(s, rows, i, slot * MAPS + rows.sender[i])
    continues = role.transfers and not begins
    if rows.ends[i] and (rows.content_frame_no[i] if continues else rows.number[i]) == NONE:
        request_unnumbered_tx_end(s, rows, i, role, slot, key)
    elif rows.ends[i]:
        map_no, frame_no = slot * MAPS + rows.sender[i], rows.frame_no[i]
        if role.transfers:
            frame_no = rows.content_frame_no[i]
        else:
            open_delivery(s, rows, i, map_no)
        request_tx_end(s, rows, i, role, map_no, frame_no, key)
    if role.own_numbers == 0:
        after_command(s, rows, i, role, slot)


@kernel
def follow(s, roles, rows, first, end):
    """Follow the next `rows`, from `first` to before `end`; `s` has room for what they add (`state.with_room`)."""
    numbers = s.numbers
    for i in range(first, end):
        if numbers[STARTED] == 0 or numbers[CONNECTION] != rows.connection_id[i]:
            end_connection(s)
            _begin_connection(s, rows.connection_id[i])
        by_client = rows.sender[i] != SERVER
        if rows.loss[i]:
            numbers[LOSSES_CLIENT if by_client else LOSSES_SERVER] += 1
            if numbers[LOST_NS] == 0 or rows.loss[i] < numbers[LOST_NS]:
                numbers[LOST_NS] = rows.loss[i]
        if rows.hides[i]:
            numbers[HIDDEN_CLIENT if by_client else HIDDEN_SERVER] += 1
        if rows.name[i]:
            _row(s, roles, rows, i)
        if rows.peer_late[i]:
            numbers[HIDDEN_SERVER if by_client else HIDDEN_CLIENT] += 1
