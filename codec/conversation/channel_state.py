"""State of the current connection in the channel tracker: its channels, consumers, requests and transactions.

All fields are int64. Names and texts are numbers of the caller, 0 for none; -1 stands for unknown numbers, times and
truth values. Records that a channel incarnation no longer needs are reused (`next` chains the free ones).
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.conversation.states import blank, with_capacity
from codec.hashes.maps import HashMap, new_map
from codec.hashes.maps import with_room as keyed_with_room
from codec.memory import as_records, sparse_zeros
from codec.stalls import FIELDS, new_rows

CHANNELS = 1 << 16  # a channel number is an unsigned short
NONE = -1


# Stalls of a channel (`codec.stalls`): of its deliveries by a limit of all of them, and of what each side sends by a
# flow; of a link the first one, of its deliveries.
OF_ALL, FLOW_OF_CLIENT, OF_SLOT = 0, 1, 3
STALL_FIELDS = tuple(f"{name}?" for name in FIELDS)

# What a method does: one row a name, row 0 does nothing.
ROLE = blank(
    "operation reply_group is_request is_reply opens_channel opened_channel closes_channel closed_channel mode "
    "proves_mode ends_transaction declares deletes opens_link closes_link prefetch settles_all outside_transactions "
    "closes_connection flows"
).dtype
CLIENT, SERVER = range(2)
PUBLISH, DELIVER, GET, RETURN = range(1, 5)
CONFIRM, TX = 1, 2  # the modes that have rules here
EMPTY = 1  # the text ''

# Unsettled maps of an incarnation: publishes by confirm tag, deliveries by delivery tag, publishes in transactions.
SENT, RECEIVED, TRANSACTED = range(3)
MAP_CHANNEL_SHIFT, MAP_INCARNATION_SHIFT = 42, 2

NEW_SLOT = blank(
    "epoch incarnation used accepted opened_ns? closed close_ns? close_sender? close_code? close_text mode "
    "prefetch_count? prefetch_size? published delivered returned opened_sent opened_received confirm_from? "
    "confirm_losses declared lost_client lost_server tx_first tx_last tx_head? tx_losses links? closed_first? "
    "closed_last? named_sent? named_received? doubted received_tag? doubtful_sent? doubtful_received? loss_of_server? "
    "loss_of_client? prefetch_new prefetch_all unacked unacked_head? unacked_tail? unacked_losses? "
    "unacked_serial",
    "",
    **dict.fromkeys(STALL_FIELDS, OF_SLOT),
)
NEW_LINK = blank(
    "channel incarnation tag kind opened_ns? queue queue_type no_ack? exclusive? accepted closing_ns? closing_sender? "
    "closing_name closing_frame? transfers previous? next? serial prefetch unacked",
    "",
    **dict.fromkeys(STALL_FIELDS, 1),
)
SLOT, LINK = NEW_SLOT.dtype, NEW_LINK.dtype
REQUEST_QUEUE = blank("incarnation losses head tail").dtype
REQUEST = blank("frame_no ts_ns queue queue_type no_ack link declares result tx_first tx_last tx_head next").dtype
PENDING = blank("frame_no map_no first last outcome next").dtype
# A delivery that is not acknowledged, by the link with a serial number; of a channel in the order of their tags.
UNACKED_DELIVERY = blank("tag link serial next").dtype

# Results.
MESSAGE = blank("connection frame_no channel incarnation operation queue link tag outcome").dtype
EVENT = blank("connection map_no frame_no opens first last outcome final effective_ns transaction").dtype
INCARNATION = blank(
    "connection channel incarnation opened_ns close_ns close_sender close_code close_text mode prefetch_count "
    "prefetch_size published delivered returned opened"
).dtype
LINK_ROW = blank(
    "connection channel incarnation kind name queue queue_type no_ack exclusive opened_ns closed_ns closing_sender "
    "closing_name transfers"
).dtype
REPLY = blank("connection frame_no reply_frame_no reply_name latency_ns").dtype

# Cells of `State.numbers`; of a pool: the number of records, and the first free one. CLOSED: bits of the sides that
# have closed the connection; TYPED: the number of the last queue whose type became known.
(
    CONNECTION, STARTED, EPOCH, LOSSES, LOST_CLIENT, LOST_SERVER, LOSSES_CLIENT, TOUCHED, REQUEST_QUEUES, REQUESTS,
    FREE_REQUEST, LINKS, FREE_LINK, PENDINGS, FREE_PENDING, CLOSED, DECLARED, TYPED, UNACKED, FREE_UNACKED, SERIAL,
) = range(21)  # fmt: skip
CELLS = SERIAL + 1


class Roles(NamedTuple):
    """`roles`: ROLE by name; `settles` int64 (names, 2, 3): outcome by name, sender, `requeue` plus 1."""

    roles: np.ndarray
    settles: np.ndarray


class Rows(
    namedtuple(
        "Rows",
        "connection_id frame_no ts_ns channel sender name loss on_connection peer_late late consumer_tag queue "
        "queue_type delivery_tag multiple requeue no_wait no_ack exclusive prefetch_count prefetch_size reply_code "
        "reply_text packet_no file is_global active",
    )
):
    """Methods and losses by connection and frame_no: columns int64 (n,). Absent truth values and numbers are -1, names
    and texts 0; `loss`, `on_connection`, `peer_late`, `late` (codec.protocol.rows) are 0 or 1. `file`: a number of the
    caller, -1 for none."""


class Results(NamedTuple):
    """Records of MESSAGE, EVENT, INCARNATION, LINK_ROW, REPLY; `counts` int64 (5,): how many of each there are.
    `stalls` int64 (n, CELLS of `codec.stalls`), their links as texts; `stall_count` int64 (1,)."""

    messages: np.ndarray
    events: np.ndarray
    incarnations: np.ndarray
    links: np.ndarray
    replies: np.ndarray
    counts: np.ndarray
    stalls: np.ndarray
    stall_count: np.ndarray


class State(NamedTuple):
    """`slots`: SLOT by channel, valid if its epoch is that of the connection; `touched`: channels that are. `found_by`
    finds request queues, links, and types of queues. `declared`: names of queues declared without one."""

    slots: np.ndarray
    touched: np.ndarray
    found_by: HashMap
    request_queues: np.ndarray
    requests: np.ndarray
    links: np.ndarray
    pendings: np.ndarray
    declared: np.ndarray
    unacked: np.ndarray
    numbers: np.ndarray
    new_slot: np.ndarray
    new_link: np.ndarray


def _pool(kind: np.dtype, count: int) -> np.ndarray:
    return as_records(np.zeros(count, kind))


def new_state() -> State:
    """The state before the first row; only memory of channels in use is touched."""
    return State(
        as_records(sparse_zeros(CHANNELS, SLOT)), sparse_zeros(CHANNELS, np.int64), new_map(),
        _pool(REQUEST_QUEUE, 0), _pool(REQUEST, 0), _pool(LINK, 0), _pool(PENDING, 0), np.zeros(0, np.int64),
        _pool(UNACKED_DELIVERY, 0), np.zeros(CELLS, np.int64), as_records(NEW_SLOT), as_records(NEW_LINK),
    )  # fmt: skip


def with_room(state: State, rows: int) -> State:
    """`state` with room for so many more rows, each of which adds at most one record to a pool."""
    numbers = state.numbers
    return state._replace(
        found_by=keyed_with_room(state.found_by, 2 * rows),
        request_queues=with_capacity(state.request_queues, int(numbers[REQUEST_QUEUES]), rows),
        requests=with_capacity(state.requests, int(numbers[REQUESTS]), rows),
        links=with_capacity(state.links, int(numbers[LINKS]), rows),
        pendings=with_capacity(state.pendings, int(numbers[PENDINGS]), rows),
        declared=with_capacity(state.declared, int(numbers[DECLARED]), rows),
        unacked=with_capacity(state.unacked, int(numbers[UNACKED]), rows),
    )


def new_results(touched: int, waiting: int, links: int, rows: int) -> Results:
    """Room for the results of so many rows, the last of which may end `touched` channels, `waiting` settlements and
    `links`."""
    sizes = _sizes(touched, waiting, links, rows)
    kinds = (MESSAGE, EVENT, INCARNATION, LINK_ROW, REPLY)
    of_kind = [as_records(np.empty(size, kind)) for kind, size in zip(kinds, sizes, strict=False)]
    messages, events, incarnation_rows, link_rows, replies = of_kind
    counts, room = np.zeros(len(kinds), np.int64), new_rows(sizes[-1])
    return Results(messages, events, incarnation_rows, link_rows, replies, counts, room, np.zeros(1, np.int64))


def with_results(results: Results, touched: int, waiting: int, links: int, rows: int) -> Results:
    """`results` without records, or others with more room, as `new_results` has it."""
    needed = _sizes(touched, waiting, links, rows)
    results.counts[:] = 0
    results.stall_count[:] = 0
    if all(size <= len(room) for size, room in zip(needed, [*results[:5], results.stalls], strict=True)):
        return results
    return new_results(touched, waiting, links, rows)


def _sizes(touched: int, waiting: int, links: int, rows: int) -> tuple[int, ...]:
    """Room for records of each kind."""
    incarnations = touched + 2 * rows
    # An incarnation ends with two events for its transaction, and two for what is outstanding. A waiting settlement has
    # one at the request for a commit, and one at its reply.
    # A row may begin a stall of its link and one of its channel after others, and ends those of an incarnation.
    stalls = links + 3 * rows + OF_SLOT * incarnations
    return rows, 4 * rows + 2 * waiting + 4 * incarnations, incarnations, links + rows, rows, stalls


@kernel
def begin_incarnation(s, channel, incarnation):
    """Reset the slot of a channel for a new incarnation."""
    s.slots[channel] = s.new_slot[0]
    s.slots[channel].epoch = s.numbers[EPOCH]
    s.slots[channel].incarnation = incarnation


@kernel
def release(pool, head, numbers, free):
    """Free the chain of records from `head` on."""
    while head != NONE:
        following = pool[head].next
        pool[head].next = numbers[free]
        numbers[free] = head
        head = following


@kernel
def allocate(pool, numbers, used, free):
    """The index of a record of `pool`: a free one, or else a new one."""
    at = numbers[free]
    if at != NONE:
        numbers[free] = pool[at].next
    else:
        at = numbers[used]
        numbers[used] += 1
    return at


# Writes the output records of the channel tracker.


MESSAGES, EVENTS, INCARNATIONS, LINK_ROWS, REPLIES = range(5)  # cells of `Results.counts`


@kernel
def map_of(channel, incarnation, kind):
    """The number of an unsettled map within its connection; `kind`: SENT, RECEIVED or TRANSACTED."""
    return (channel << MAP_CHANNEL_SHIFT) | (incarnation << MAP_INCARNATION_SHIFT) | kind


@kernel
def queue_name(declared, queue):
    """The name of a queue; if it was declared without one, the name in the reply."""
    return declared[-queue - 1] if queue < 0 else queue


@kernel
def write_message(out, connection, frame_no, channel, incarnation, operation, queue, link, tag, outcome):
    """A message, with the outcome that it has if nothing settles it."""
    row = out.messages[out.counts[MESSAGES]]
    out.counts[MESSAGES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.channel = channel
    row.incarnation = incarnation
    row.operation = operation
    row.queue = queue
    row.link = link
    row.tag = tag
    row.outcome = outcome


@kernel
def write_event(
    out, connection, map_no, frame_no, opens, first, last, outcome, final, effective_ns, transaction
):  # fmt: skip
    """An event for `codec.conversation.settlement`."""
    row = out.events[out.counts[EVENTS]]
    out.counts[EVENTS] += 1
    row.connection = connection
    row.map_no = map_no
    row.frame_no = frame_no
    row.opens = opens
    row.first = first
    row.last = last
    row.outcome = outcome
    row.final = final
    row.effective_ns = effective_ns
    row.transaction = transaction


@kernel
def write_incarnation(out, connection, channel, slot):
    """A channel incarnation."""
    row = out.incarnations[out.counts[INCARNATIONS]]
    out.counts[INCARNATIONS] += 1
    row.connection = connection
    row.channel = channel
    row.incarnation = slot.incarnation
    row.opened_ns = slot.opened_ns
    row.close_ns = slot.close_ns
    row.close_sender = slot.close_sender
    row.close_code = slot.close_code
    row.close_text = slot.close_text
    row.mode = slot.mode
    row.prefetch_count = slot.prefetch_count
    row.prefetch_size = slot.prefetch_size
    row.published = slot.published
    row.delivered = slot.delivered
    row.returned = slot.returned
    row.opened = slot.opened_sent + slot.opened_received


@kernel
def write_link(out, connection, slot, link, declared):
    """A link of an incarnation if it was open: the server accepted it or had not to reply, or messages came."""
    if link.tag and (link.accepted or link.transfers):
        row = out.links[out.counts[LINK_ROWS]]
        out.counts[LINK_ROWS] += 1
        row.connection = connection
        row.channel = link.channel
        row.incarnation = link.incarnation
        row.kind = link.kind
        row.name = link.tag
        row.queue = queue_name(declared, link.queue)
        row.queue_type = link.queue_type
        row.no_ack = link.no_ack
        row.exclusive = link.exclusive
        row.opened_ns = link.opened_ns
        row.closed_ns = link.closing_ns if link.closing_ns != NONE else slot.close_ns
        row.closing_sender = link.closing_sender
        row.closing_name = link.closing_name
        row.transfers = link.transfers


@kernel
def write_reply(out, connection, frame_no, reply_frame_no, reply_name, latency_ns):
    """A request and its reply."""
    row = out.replies[out.counts[REPLIES]]
    out.counts[REPLIES] += 1
    row.connection = connection
    row.frame_no = frame_no
    row.reply_frame_no = reply_frame_no
    row.reply_name = reply_name
    row.latency_ns = latency_ns
