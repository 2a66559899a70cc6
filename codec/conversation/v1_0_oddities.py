"""What is odd in AMQP 1.0: opens and SASL, sessions and their windows, links and credit, deliveries, transactions.

The session tracker calls these as it follows a frame, with the session and the link that it has found. Each side of a
session, and of a link, has a state of its own: what it has begun, announced, and sent. (1.0 core specification, part 2,
sections 2.4 to 2.7; part 3, section 3.4; part 4, sections 4.3 to 4.5; part 5, section 5.3.)
"""

from __future__ import annotations

from codec.compiler.kernel import kernel, outlined
from codec.conversation import oddities as O
from codec.conversation.oddities import after, late, may_not_know, note
from codec.conversation.session_state import (
    ATTACHED,
    BEGUN,
    CHANNEL_LIMIT,
    CLIENT,
    DELIVERY,
    FIRST,
    FLOW,
    FRAME_LIMIT,
    KIND_SHIFT,
    LINK_BITS,
    NAMES,
    NEW_TAGS,
    NONE,
    OF_LINK,
    OPENED_NS,
    OUTCOME_OF,
    SASL_ODD,
    SASL_STEP,
    SENDER,
    SERIAL,
    SERVER,
    STEPS,
    TAG,
    TRANSACTION,
    WAS,
    drop_old_tags,
    key_of,
)
from codec.hashes.maps import SLOTS, USED, get, put, remove

OPEN, CLOSE, SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = (
    NAMES.index(name) + 1
    for name in (
        "open", "close", "sasl-mechanisms", "sasl-init", "sasl-challenge", "sasl-response", "sasl-outcome",
    )
)  # fmt: skip
SASL_FRAME_BYTES = 512  # MIN-MAX-FRAME-SIZE, the most of a SASL frame
UNLIMITED, MOST_CHANNELS = SERIAL - 1, 65535
UNSETTLED_MODE, SETTLED_MODE, SECOND = 0, 1, 1  # snd-settle-mode, rcv-settle-mode
LONGEST_TAG = 32
RELEASED, DECLARED = (tuple(OUTCOME_OF).index(name) + 1 for name in ("released", "declared"))  # of `Rows.state`
STEPS_A_FRAME = 64  # ids of ranges that a connection may look up, for each frame so far
MOST_UNSETTLED = 1 << 18  # deliveries of a session that are found by their ids
# Of a DELIVERY: its receiver has stated an outcome; which the sender is to settle. Of a TRANSACTION: how many messages
# and outcomes are in it.
TERMINAL, AWAITED = 1 << LINK_BITS, 2 << LINK_BITS
WORK, MOST_WORK = LINK_BITS, 1 << 36
NOT_AGREED, WITHOUT_OUTCOME = 1, 2


@outlined
def on_connection(s, rows, i):
    """A frame of the connection itself."""
    if not rows.readable[i]:
        return
    name, numbers = rows.name[i], s.numbers
    if name == OPEN:
        _open(s, rows, i)
    elif name == CLOSE:
        _is_opened(s, rows, i)
        _is_small_enough(s, rows, i)
    else:
        _sasl(s.odd, numbers, name, rows.sender[i], rows.size[i])


@kernel
def _sasl(o, numbers, name, sender, size):
    """mechanisms, init, (challenge, response)*, outcome; each by its side (5.3.2). After a frame out of order it is not
    known what should follow: only the first is noted."""
    if size > SASL_FRAME_BYTES:
        note(o, O.FRAME_TOO_LARGE, size, SASL_FRAME_BYTES, NONE)
    step = numbers[SASL_STEP]
    waits = step in (SASL_INIT, SASL_RESPONSE)
    follows = (
        (name == SASL_MECHANISMS and step == 0)
        or (name == SASL_INIT and step == SASL_MECHANISMS)
        or (name == SASL_RESPONSE and step == SASL_CHALLENGE)
        or (name in (SASL_CHALLENGE, SASL_OUTCOME) and waits)
    )
    by_client = name in (SASL_INIT, SASL_RESPONSE)
    if (not follows or (sender == CLIENT) != by_client) and not numbers[SASL_ODD]:
        note(o, O.SASL_ORDER, NONE, step - SASL_MECHANISMS + 1 if step else 0, NONE)
        numbers[SASL_ODD] = 1
    numbers[SASL_STEP] = name


@kernel
def _open(s, rows, i):
    sender, numbers = rows.sender[i], s.numbers
    if rows.channel[i] != 0:
        note(s.odd, O.OPEN_CHANNEL, rows.channel[i], 0, NONE)
    if numbers[FRAME_LIMIT + sender]:
        note(s.odd, O.OPEN_MISPLACED, NONE, NONE, NONE)
    few = rows.few[rows.at_few[i]]
    largest, channels = few.max_frame_size, few.channel_max
    numbers[OPENED_NS + sender] = rows.ts_ns[i]
    numbers[FRAME_LIMIT + sender] = 1 + (largest if largest != NONE else UNLIMITED)
    numbers[CHANNEL_LIMIT + sender] = channels if channels != NONE else MOST_CHANNELS


@kernel
def _is_opened(s, rows, i):
    sender, numbers = rows.sender[i], s.numbers
    if not numbers[FRAME_LIMIT + sender]:
        note(s.odd, O.OPEN_MISPLACED, NONE, NONE, NONE)
        numbers[FRAME_LIMIT + sender] = 1 + UNLIMITED
        numbers[CHANNEL_LIMIT + sender] = MOST_CHANNELS


@kernel
def _knows_limits(s, rows, i):
    """Whether the sender has read the open of the other side."""
    other = 1 - rows.sender[i]
    opened_ns = s.numbers[OPENED_NS + other]
    return opened_ns > 0 and rows.ts_ns[i] - opened_ns > s.odd.now[O.GRACE]


@kernel
def _is_small_enough(s, rows, i):
    limit = s.numbers[FRAME_LIMIT + 1 - rows.sender[i]]
    if 0 < limit <= rows.size[i] and _knows_limits(s, rows, i):
        note(s.odd, O.FRAME_TOO_LARGE, rows.size[i], limit - 1, NONE)


# Sessions.


@kernel
def began_before(s, rows, i):
    """Whether the sender of a begin has a session with its number already."""
    at = get(s.found_by, key_of(BEGUN, 0, rows.sender[i], rows.channel[i]))
    return at != NONE and _has_begun(s.sessions.rows[s.sessions.cells[FIRST] + at], rows, i)


@kernel
def _has_begun(session, rows, i):
    sender = rows.sender[i]
    return session.lasts[sender] != 0 and session.own_channel[sender] == rows.channel[i]


@kernel
def on_session(s, rows, i, role, session, slot, twice):
    """A frame of a session; returns whether the sender has begun the session, and not ended it. `slot`: of the session
    among those of the connection; `twice`: the sender has begun its number before. Nothing is odd where the frame may
    belong to another session (`doubted`)."""
    if not rows.readable[i] or session.doubted:
        return False
    _is_opened(s, rows, i)
    _is_small_enough(s, rows, i)
    if role.opens_session:
        _begin(s, rows, i, session, twice)
        return True
    if not _has_begun(session, rows, i):
        _without_session(s, rows, i, role)
        return False
    if role.transfers:
        _count_transfer(s.odd, session, rows.sender[i])
    elif role.states_outcome:
        _dispose(s, rows, i, session, slot)
    elif role.states_credit:
        _flow(s, rows, i, session)
    elif role.closes_session:
        _end(s.odd, session, rows.sender[i], rows.error[i])
    return True


@outlined
def _without_session(s, rows, i, role):
    o, was = s.odd, get(s.found_by, key_of(WAS, 0, rows.sender[i], rows.channel[i]))
    o.now[O.CHANNEL], o.now[O.INCARNATION] = rows.channel[i], 0
    if was == NONE:
        note(o, O.NO_SESSION, NONE, NONE, NONE)
    else:
        o.now[O.CHANNEL], o.now[O.INCARNATION] = was >> LINK_BITS, was & OF_LINK
        note(o, O.AFTER_END, NONE, NONE, NONE)
    if rows.error[i] and (role.closes_session or role.detaches):
        note(o, O.END_ERROR if role.closes_session else O.DETACH_ERROR, NONE, NONE, NONE)


@outlined
def _begin(s, rows, i, session, twice):
    """A begin opens a session, or answers the begin of the channel that it names (2.5.1)."""
    o, sender, number, remote = s.odd, rows.sender[i], rows.channel[i], rows.remote_channel[i]
    other, few = 1 - sender, rows.few[rows.at_few[i]]
    answers = remote != NONE and session.incarnation > 0 and session.begun[other] and not session.begun[sender]
    session.begun[sender] = session.lasts[sender] = 1
    session.own_channel[sender] = number
    session.begun_ns[sender], session.begun_frame[sender] = rows.ts_ns[i], rows.frame_no[i]
    session.handle_max[sender] = few.handle_max if few.handle_max != NONE else UNLIMITED
    session.first_out[sender] = rows.next_outgoing_id[i]
    session.allowed[sender] = rows.incoming_window[i]
    session.sent[sender], session.last_delivery[sender], session.ended_ns[sender] = 0, NONE, NONE
    put(s.found_by, key_of(WAS, 0, sender, number), session.channel << LINK_BITS | session.incarnation)
    _window(o, session, sender, rows.incoming_window[i])
    if answers:
        begun_frame = session.begun_frame[other]
        late(o, O.BEGIN_UNANSWERED, sender, begun_frame, session.begun_ns[other], begun_frame)
    elif remote != NONE:
        note(o, O.REMOTE_CHANNEL, remote, NONE, NONE)
    if twice:
        note(o, O.BEGIN_TWICE, number, NONE, NONE)
    limit = s.numbers[CHANNEL_LIMIT + other]
    if number > limit and _knows_limits(s, rows, i):
        note(o, O.CHANNEL_ABOVE_MAX, number, limit, NONE)


@kernel
def _window(o, session, side, window):
    """A side announces how many transfers it can receive (NONE: it does not): none for how long."""
    if window == 0 and session.shut_ns[side] == NONE:
        session.shut_ns[side], session.shut_frame[side] = o.now[O.TS], o.now[O.FRAME_NO]
    elif window > 0 and session.shut_ns[side] != NONE:
        late(o, O.WINDOW_CLOSED, side, session.shut_frame[side], session.shut_ns[side], NONE)
        session.shut_ns[side] = NONE


@outlined
def _end(o, session, sender, error):
    other = 1 - sender
    session.lasts[sender] = 0
    session.ended_ns[sender], session.ended_frame[sender] = o.now[O.TS], o.now[O.FRAME_NO]
    session.echo_ns[sender] = session.echo_ns[other] = NONE
    _window(o, session, sender, 1)
    if error:
        note(o, O.END_ERROR, NONE, NONE, NONE)
    if session.ended_ns[other] != NONE:
        late(o, O.END_UNANSWERED, sender, session.ended_frame[other], session.ended_ns[other], NONE)


@kernel
def _flow(s, rows, i, session):
    """Windows and transfer numbers (2.5.6)."""
    o, sender = s.odd, rows.sender[i]
    other, outgoing, incoming = 1 - sender, rows.next_outgoing_id[i], rows.next_incoming_id[i]
    if outgoing != NONE and session.first_out[sender] != NONE:
        expected = (session.first_out[sender] + session.sent[sender]) % SERIAL
        if outgoing != expected:
            note(o, O.NEXT_OUTGOING_ID, outgoing, expected, NONE)
    window = max(rows.incoming_window[i], 0)
    _window(o, session, sender, rows.incoming_window[i])
    if not session.begun[other]:
        if incoming != NONE:
            note(o, O.NEXT_INCOMING_ID, incoming, NONE, NONE)
    else:
        first, expected = session.first_out[other], NONE
        if first != NONE:
            expected = (first + session.sent[other]) % SERIAL
        if incoming == NONE:
            session.allowed[sender] = max(session.allowed[sender], window)
            if rows.ts_ns[i] - session.begun_ns[other] > o.now[O.GRACE]:
                note(o, O.NEXT_INCOMING_ID, NONE, expected, NONE)
        elif first != NONE:
            session.allowed[sender] = max(session.allowed[sender], after(incoming, first) + window)
            if after(incoming, expected) > 0:
                note(o, O.NEXT_INCOMING_ID, incoming, expected, NONE)
        if session.echo_ns[other] != NONE:
            late(o, O.ECHO_UNANSWERED, sender, session.echo_frame[other], session.echo_ns[other], NONE)
            session.echo_ns[other] = NONE
    if rows.asks[i] == FLOW and session.echo_ns[sender] == NONE:
        session.echo_ns[sender], session.echo_frame[sender] = rows.ts_ns[i], rows.frame_no[i]
    if rows.handle[i] == NONE and rows.few[rows.at_few[i]].link_fields:
        note(o, O.FLOW_WITHOUT_HANDLE, NONE, NONE, NONE)


@kernel
def _count_transfer(o, session, sender):
    other, sent = 1 - sender, session.sent[sender]
    if session.begun[other]:
        if sent >= session.allowed[other] and session.allowed[other] != NONE:
            note(o, O.WINDOW_EXCEEDED, sent + 1, session.allowed[other], NONE)
        shut_ns = session.shut_ns[other]
        if shut_ns != NONE and not may_not_know(o, shut_ns):
            note(o, O.SENT_WHILE_CLOSED, o.now[O.TS] - shut_ns, NONE, session.shut_frame[other])
    session.sent[sender] = sent + 1


# Links.


@kernel
def _sending_side(link):
    return CLIENT if link.kind == SENDER else SERVER


@outlined
def on_attach(s, rows, i, session, slot, link, in_use):
    """The sender attaches its end of a link (2.6.3); `in_use`: it had another one with that handle."""
    o, sender, handle, frame_no = s.odd, rows.sender[i], rows.handle[i], rows.frame_no[i]
    other, receives, sends = 1 - sender, rows.is_receiver[i], sender == _sending_side(link)
    answers, few = link.attach_frame[other] != NONE, rows.few[rows.at_few[i]]
    link.attached[sender] = 1
    link.attach_frame[sender], link.name_hash = frame_no, few.name_hash
    if sends:
        link.outcomes = few.outcomes
    else:
        link.max_size = few.max_message_size
    link.lists |= few.lists
    if in_use:
        note(o, O.HANDLE_IN_USE, handle, NONE, frame_no)
    if session.begun[other] and handle > session.handle_max[other]:
        note(o, O.HANDLE_ABOVE_MAX, handle, session.handle_max[other], frame_no)
    if not receives and rows.initial_delivery_count[i] == NONE:
        note(o, O.NO_INITIAL_COUNT, NONE, NONE, frame_no)
    if not answers:
        if few.dynamic:
            note(o, O.DYNAMIC_ADDRESS, NONE, NONE, frame_no)
        # The other side waits for this name with the same role.
        at = get(s.found_by, key_of(ATTACHED, slot, 1 - (link.kind - SENDER), rows.link_name[i]))
        head = s.attachings.rows[at].head if at != NONE else NONE
        if head != NONE and s.links.rows[head].attached[other]:
            note(o, O.ATTACH_ROLE, receives, 1 - receives, frame_no)
    elif not (rows.source[i] if sends else few.target):
        link.refused_ns[sender] = rows.ts_ns[i]


@outlined
def without_link(s, rows, i, role, binding):
    """The handle of a frame is not attached."""
    if rows.handle[i] != NONE:
        was = binding.bound_frame
        if role.detaches and rows.error[i]:
            note(s.odd, O.DETACH_ERROR, NONE, NONE, was)
        if was == NONE:
            note(s.odd, O.HANDLE_UNATTACHED, rows.handle[i], NONE, NONE)
        else:
            note(s.odd, O.AFTER_DETACH, rows.handle[i], NONE, was)
    elif role.detaches and rows.error[i]:
        note(s.odd, O.DETACH_ERROR, NONE, NONE, NONE)


@outlined
def on_detach(o, link, sender, closed, error):
    """The sender detaches its end of a link (2.6.4 to 2.6.6)."""
    other, about = 1 - sender, link.attach_frame[sender]
    if error:
        first = about
        if link.attach_frame[other] != NONE:
            first = min(first, link.attach_frame[other])
        note(o, O.DETACH_ERROR, NONE, NONE, first)
    link.attached[sender] = 0
    link.detach_ns[sender], link.detach_frame[sender] = o.now[O.TS], o.now[O.FRAME_NO]
    link.detach_closed[sender] = max(closed, 0)
    link.drain_ns = NONE
    if sender == _sending_side(link):
        # Its incomplete delivery is lost, and open transactions are rolled back.
        if link.open:
            note(o, O.DELIVERY_UNFINISHED, link.byte_count, NONE, link.delivery_frame)
            link.open = 0
        if link.transactions > 0 and link.work > 0:
            note(o, O.TRANSACTION_OPEN, link.work, link.transactions, about)
        link.transactions = link.work = 0
    if link.refused_ns[sender] != NONE:
        if closed != 1:
            note(o, O.REFUSED_NOT_DETACHED, NONE, NONE, about)
        late(o, O.REFUSED_NOT_DETACHED, sender, about, link.refused_ns[sender], about)
        link.refused_ns[sender] = NONE
    if link.detach_ns[other] != NONE:
        late(o, O.DETACH_UNANSWERED, sender, link.detach_frame[other], link.detach_ns[other], link.attach_frame[other])
        if link.detach_closed[other] and closed != 1:
            note(o, O.DETACH_NOT_CLOSED, NONE, NONE, about)


@kernel
def on_link_flow(s, rows, i, link):
    """Credit (2.6.7): the receiver allows deliveries up to a count, the sender states its count."""
    o, sender, count, credit = s.odd, rows.sender[i], rows.delivery_count[i], rows.link_credit[i]
    if sender == _sending_side(link):
        if count != NONE and link.initial_count != NONE:
            counted = after(count, link.initial_count)
            link.count = max(link.count, counted)
            if credit != NONE and counted + credit <= link.credit_to:
                link.cut_ns = 0  # it knows of the reduction
            _credit_used(o, link)
        return
    if credit == NONE:
        return
    allowed, sends = credit, link.attach_frame[1 - sender] != NONE
    if count != NONE:
        if link.initial_count == NONE:
            allowed = SERIAL  # from where the sender counts is not known
        else:
            allowed += after(count, link.initial_count)
    if allowed < link.credit_to:
        another = link.cut_ns and may_not_know(o, link.cut_ns)
        link.before_cut = max(link.credit_to, link.before_cut if another else 0)
        link.cut_ns = rows.ts_ns[i]
    link.credit_to = allowed
    if rows.drain[i] == 1 and allowed > (link.count if sends else 0):
        if link.drain_ns == NONE:
            link.drain_ns, link.drain_frame = rows.ts_ns[i], rows.frame_no[i]
    else:
        link.drain_ns = NONE


@kernel
def _credit_used(o, link):
    """The sender has used or given up credit: that may be what a drain asks for."""
    if link.drain_ns != NONE and link.count >= link.credit_to:
        sender = _sending_side(link)
        late(o, O.DRAIN_UNANSWERED, sender, link.drain_frame, link.drain_ns, link.attach_frame[1 - sender])
        link.drain_ns = NONE


# Deliveries.


@kernel
def on_transfer(s, rows, i, session, slot, link, at):
    """A transfer begins or continues a delivery (2.6.12, 2.6.14). `at`: of the link among those of the connection."""
    o, sender = s.odd, rows.sender[i]
    if sender != _sending_side(link):
        note(o, O.TRANSFER_BY_RECEIVER, rows.handle[i], NONE, link.attach_frame[sender])
        return
    if link.open:
        _continue(o, rows, i, link)
    if not link.open:
        _begin_delivery(s, rows, i, session, slot, link, at)
    if rows.coordinates[i]:
        _coordinate(o, rows, i, link)
    if rows.key[i] and sender == CLIENT:
        begins = link.delivery_frame == rows.frame_no[i] and not rows.ends[i]
        _in_transaction(s, rows, i, link.delivery_frame, int(begins))
    by_receiver = link.client_rcv_mode if sender == SERVER else link.server_rcv_mode
    if rows.rcv_settle_mode[i] == SECOND and link.attach_frame[1 - sender] != NONE and by_receiver != SECOND:
        note(o, O.RECEIVER_MODE, SECOND, 0, link.attach_frame[sender])
    if rows.settled[i] == 1:
        link.settled = 1
    aborted = rows.aborted[i] == 1
    if not aborted:  # whose payload is to be ignored (2.7.5)
        link.byte_count += max(rows.payload_size[i], 0)
    link.open = 1 if rows.more[i] == 1 and not aborted else 0
    if aborted:
        note(o, O.ABORTED, link.byte_count, NONE, link.delivery_frame)
    if link.open:
        return
    if 0 < link.max_size < link.byte_count:
        note(o, O.MESSAGE_TOO_LARGE, link.byte_count, link.max_size, link.delivery_frame)
    settled = (link.settled or aborted) and link.delivery_id != NONE and link.outstanding
    if settled and remove(s.found_by, key_of(DELIVERY, slot, sender, link.delivery_id)) != NONE:
        _settle(session, link)


@outlined
def _continue(o, rows, i, link):
    number = rows.number[i]
    other_id = number != NONE and number != link.delivery_id
    other_tag = rows.tag_size[i] != NONE and rows.tag[i] != link.tag
    other_format = rows.message_format[i] != NONE and rows.message_format[i] != link.message_format
    if other_id and other_tag:
        note(o, O.DELIVERIES_MIXED, number, link.delivery_id, link.delivery_frame)
        link.open = 0
    elif other_id or other_tag or other_format or (rows.settled[i] == 0 and link.settled == 1):
        note(o, O.CONTINUATION_DIFFERS, number, link.delivery_id, link.delivery_frame)


@kernel
def _begin_delivery(s, rows, i, session, slot, link, at):
    o, sender, number, frame_no = s.odd, rows.sender[i], rows.number[i], rows.frame_no[i]
    link.delivery_id, link.tag, link.message_format = number, rows.tag[i], rows.message_format[i]
    settled = rows.settled[i] == 1
    link.settled, link.byte_count, link.delivery_frame = int(settled), 0, frame_no
    if number == NONE or rows.tag_size[i] == NONE:
        note(o, O.FIRST_INCOMPLETE, number, NONE, frame_no)
    if rows.tag_size[i] > LONGEST_TAG:
        note(o, O.TAG_TOO_LONG, rows.tag_size[i], LONGEST_TAG, frame_no)
    if number != NONE:
        before = session.last_delivery[sender]
        if before != NONE and number != (before + 1) % SERIAL:
            note(o, O.DELIVERY_ID_ORDER, number, (before + 1) % SERIAL, frame_no)
        session.last_delivery[sender] = number
    mode = link.client_snd_mode if sender == CLIENT else link.server_snd_mode
    if (mode == SETTLED_MODE and not settled and rows.more[i] != 1) or (mode == UNSETTLED_MODE and settled):
        note(o, O.SETTLE_MODE, rows.settled[i], mode, link.attach_frame[sender])
    if rows.resume[i] == 1 and not link.lists:
        note(o, O.RESUME_UNKNOWN, NONE, NONE, frame_no)
    allowed = link.credit_to
    if link.cut_ns and may_not_know(o, link.cut_ns):
        allowed = max(allowed, link.before_cut)
    if link.count >= allowed:
        note(o, O.NO_CREDIT, link.count + 1, allowed, link.attach_frame[sender])
    link.count += 1
    _credit_used(o, link)
    if rows.tag_size[i] == NONE or number == NONE:
        return
    by_id, earlier, is_listed = key_of(DELIVERY, slot, sender, number), NONE, False
    by_tag = _tag_key(session, link, sender, rows.tag[i])
    if not settled and session.unsettled < MOST_UNSETTLED:
        used, is_listed, s.numbers[NEW_TAGS] = s.found_by.used, True, s.numbers[NEW_TAGS] + 1
        if 2 * used[USED] + 4 > used[SLOTS] and 4 * s.numbers[NEW_TAGS] > used[SLOTS]:
            drop_old_tags(s.found_by)
            s.numbers[NEW_TAGS] = 0
        earlier = put(s.found_by, by_tag, by_id)
    elif link.outstanding or link.lists:
        earlier = get(s.found_by, by_tag)
    if earlier != NONE:
        _had_tag(s, rows, i, session, link, at, earlier)
    if is_listed and put(s.found_by, by_id, at + 1) == NONE:
        session.unsettled += 1
        link.outstanding += 1


@kernel
def _tag_key(session, link, sender, tag):
    """The key of a tag, which is the same when a link of this name is attached again in this session."""
    mixed = tag ^ link.name_hash ^ (2 * session.begun_frame[sender] + sender)
    return (TAG << KIND_SHIFT) | (mixed & ((1 << KIND_SHIFT) - 1))


@outlined
def _had_tag(s, rows, i, session, link, at, earlier):
    """An earlier delivery, of this key, had the tag: on this link it may not be unsettled; one of an earlier attach is
    resumed, or over."""
    delivery = get(s.found_by, earlier)
    if delivery == NONE:
        return
    if (delivery & OF_LINK) - 1 == at:
        if rows.resume[i] != 1:
            note(s.odd, O.TAG_IN_USE, earlier & (SERIAL - 1), NONE, rows.frame_no[i])
        return
    before = s.links.rows[s.links.cells[FIRST] + (delivery & OF_LINK) - 1]
    remove(s.found_by, earlier)
    if delivery & AWAITED:
        before.awaiting -= 1
    _settle(session, before)


@kernel
def _settle(session, link):
    """A delivery is no longer looked for."""
    session.unsettled -= 1
    link.outstanding -= 1


@kernel
def _dispose(s, rows, i, session, slot):
    """Outcomes of deliveries: the receiver states those of the other side's, the sender those of its own."""
    o, sender, by_receiver = s.odd, rows.sender[i], rows.is_receiver[i] == 1
    at = rows.range_at[i]
    of = 1 - sender if by_receiver else sender
    if at == rows.range_at[i + 1] or not session.begun[of]:
        return
    first, last, state = rows.range_first[at], rows.range_last[at], rows.state[i]
    if rows.declared[i]:
        delivery = max(get(s.found_by, key_of(DELIVERY, slot, of, first)), 0)
        put(s.found_by, key_of(TRANSACTION, 0, 0, rows.declared[i]), delivery & OF_LINK)
    elif rows.key[i] and sender == CLIENT:
        _in_transaction(s, rows, i, rows.frame_no[i], max(after(last, first) + 1, 0))
    if after(last, first) < 0:
        note(o, O.DISPOSITION_REVERSED, last, first, rows.frame_no[i])
        return
    latest = session.last_delivery[of]
    if latest == NONE or after(last, latest) > 0:
        note(o, O.DISPOSITION_UNKNOWN, last, latest, rows.frame_no[i])
        if latest == NONE:
            return
        last = latest
    noted, taken_back, about, settled = 0, 0, NONE, rows.settled[i] == 1
    for step in range(after(last, first) + 1):
        if s.numbers[STEPS] <= 0:
            return
        s.numbers[STEPS] -= 1
        key = key_of(DELIVERY, slot, of, (first + step) % SERIAL)
        delivery = remove(s.found_by, key) if settled else get(s.found_by, key)
        if delivery != NONE:
            link = s.links.rows[s.links.cells[FIRST] + (delivery & OF_LINK) - 1]
            if not by_receiver and state == RELEASED and not delivery & TERMINAL:
                taken_back += 1
                about = link.attach_frame[of]
            noted |= _dispose_one(s, rows, i, session, link, key, delivery, by_receiver, settled)
    if taken_back:
        note(o, O.TAKEN_BACK, taken_back, NONE, about)
    if noted & NOT_AGREED:
        note(o, O.OUTCOME_NOT_AGREED, state, NONE, rows.frame_no[i])
    if noted & WITHOUT_OUTCOME:
        note(o, O.SETTLED_WITHOUT_OUTCOME, NONE, NONE, rows.frame_no[i])


@kernel
def _dispose_one(s, rows, i, session, link, key, delivery, by_receiver, settled):
    """NOT_AGREED: the link does not allow the outcome; WITHOUT_OUTCOME: the sender settles before there is one; else
    0."""
    state, noted = rows.state[i], 0
    if by_receiver:
        if state > 0:
            if link.outcomes > 0 and not link.outcomes >> (state - 1) & 1:
                noted = NOT_AGREED
            mode = link.client_rcv_mode if rows.sender[i] == CLIENT else link.server_rcv_mode
            if not settled and mode == SECOND and not delivery & AWAITED:
                delivery |= AWAITED
                link.awaiting += 1
                link.awaited_ns = rows.ts_ns[i]
            delivery |= TERMINAL
            if state == DECLARED:
                link.transactions += 1
    elif settled and not delivery & TERMINAL and state <= 0:
        noted = WITHOUT_OUTCOME
    if settled:
        if delivery & AWAITED:
            link.awaiting -= 1
        _settle(session, link)
    elif by_receiver:
        put(s.found_by, key, delivery)
    return noted


# Transactions.


@outlined
def _coordinate(o, rows, i, link):
    """A declare or discharge must be sent unsettled, to a coordinator (4.5)."""
    if rows.settled[i] == 1 or not link.coordinator:
        note(o, O.NOT_COORDINATED, rows.settled[i], NONE, link.delivery_frame)
    if rows.ends[i] and link.transactions > 0:
        link.transactions -= 1


@outlined
def _in_transaction(s, rows, i, about, work):
    """A transaction that a frame names must be declared and not discharged; the frame adds so much `work` to it."""
    key = key_of(TRANSACTION, 0, 0, rows.key[i])
    state = get(s.found_by, key)
    if state == NONE:
        note(s.odd, O.TRANSACTION_UNKNOWN, NONE, NONE, about)
        return
    at, done = (state & OF_LINK) - 1, state >> WORK
    if at != NONE:
        link = s.links.rows[s.links.cells[FIRST] + at]
        if not s.sessions.rows[link.session].lasts[CLIENT]:  # it was rolled back
            note(s.odd, O.TRANSACTION_UNKNOWN, NONE, NONE, about)
            return
    if rows.ends[i]:
        work = -done
        remove(s.found_by, key)
    else:
        work = min(work, MOST_WORK - done)
        put(s.found_by, key, state + (work << WORK))
    if at != NONE:
        s.links.rows[s.links.cells[FIRST] + at].work += work
