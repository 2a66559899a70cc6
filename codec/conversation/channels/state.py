"""What is kept of the connection at hand while its methods go by: its channels, consumers, requests, transactions.

Every field is int64. Codes of names and texts are the caller's; 0 is none. -1 is "not known" for numbers, times and
truth values. Records that a life of a channel no longer needs are used again (`next` leads through the free ones).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.hashes.keyed import Keyed, new_keyed
from codec.hashes.keyed import with_room as keyed_with_room

CHANNELS = 1 << 16  # a channel number is an unsigned short
NONE = -1


def _record(fields: str) -> np.dtype:
    return np.dtype([(name, "i8") for name in fields.split()])


# What a method does, as the caller's roles say: one row a name, row 0 nothing.
ROLE = _record(
    "operation dialogue asks answers opens_channel opened_channel closes_channel mode ends_transaction declares "
    "opens_link closes_link prefetch settles_all outside_transactions"
)
CLIENT, SERVER = range(2)
PUBLISH, DELIVER, GET, RETURN = range(1, 5)
CONFIRM, TX = 1, 2  # of the modes, these two have rules here
UNSETTLED, UNKNOWN, PRESETTLED = range(1, 4)  # outcomes that no method gives
EMPTY = 1  # the text ''

# Ledgers of a life of a channel: publishes by confirm tag, deliveries by delivery tag, publishes in transactions.
SENT, RECEIVED, TRANSACTED = range(3)
LEDGER_CHANNEL_SHIFT, LEDGER_LIFE_SHIFT = 42, 2

SLOT = _record(
    "epoch life shown opened_ns closed close_ns close_sender close_code close_text mode prefetch_count prefetch_size "
    "published delivered returned opened_sent opened_received confirm_from confirm_losses declared lost_client "
    "lost_server tx_first tx_last tx_head links named_sent named_received doubted"
)
LINK = _record(
    "channel life tag kind opened_ns queue queue_type no_ack exclusive accepted closing_ns closing_sender closing_name "
    "transfers next"
)
DIALOGUE = _record("life losses head tail")
REQUEST = _record("frame_no ts_ns queue queue_type no_ack link declares result tx_first tx_last tx_head next")
PENDING = _record("frame_no ledger first last outcome next")

# Results.
MESSAGE = _record("connection frame_no channel life operation queue link tag outcome")
EVENT = _record("connection ledger frame_no opens first last outcome final effective_ns transaction")
LIFE = _record(
    "connection channel life opened_ns close_ns close_sender close_code close_text mode prefetch_count prefetch_size "
    "published delivered returned opened"
)
LINK_LIFE = _record(
    "connection channel life kind name queue queue_type no_ack exclusive opened_ns closed_ns closing_sender "
    "closing_name transfers"
)
REPLY = _record("connection frame_no reply_frame_no reply_name latency_ns")

# Cells of `State.numbers`; of a pool, how many records were ever used, then the first free one.
(
    CONNECTION, STARTED, EPOCH, LOSSES, LOST_CLIENT, LOST_SERVER, LOSSES_CLIENT, TOUCHED, DIALOGUES, REQUESTS,
    FREE_REQUEST, LINKS, FREE_LINK, PENDINGS, FREE_PENDING, DECLARED,
) = range(16)  # fmt: skip


class Roles(NamedTuple):
    """`roles`: ROLE by name; `settles` int64 (names, 2, 3): outcome by name, sender, `requeue` plus 1."""

    roles: np.ndarray
    settles: np.ndarray


class Rows(NamedTuple):
    """Methods and losses in the order of connection and frame_no: columns int64 (n,). Truth values and numbers -1 when
    not there, names and texts 0; `loss`, `on_connection`, `peer_late`, `late` (codec.amqp.notes) 0 or 1."""

    connection_id: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    channel: np.ndarray
    sender: np.ndarray
    name: np.ndarray
    loss: np.ndarray
    on_connection: np.ndarray
    peer_late: np.ndarray
    late: np.ndarray
    consumer_tag: np.ndarray
    queue: np.ndarray
    queue_type: np.ndarray
    delivery_tag: np.ndarray
    multiple: np.ndarray
    requeue: np.ndarray
    no_wait: np.ndarray
    no_ack: np.ndarray
    exclusive: np.ndarray
    prefetch_count: np.ndarray
    prefetch_size: np.ndarray
    reply_code: np.ndarray
    reply_text: np.ndarray


class Results(NamedTuple):
    """Records of MESSAGE, EVENT, LIFE, LINK_LIFE, REPLY; `counts` int64 (5,): how many of each there are."""

    messages: np.ndarray
    events: np.ndarray
    lives: np.ndarray
    links: np.ndarray
    replies: np.ndarray
    counts: np.ndarray


class State(NamedTuple):
    """`slots`: SLOT by channel, of this connection when its epoch is; `touched`: channels that are. `found_by` leads to
    records of dialogues and links, and from queues to their types. `declared`:
    names of queues by number of the declaration that asked for one."""

    slots: np.ndarray
    touched: np.ndarray
    found_by: Keyed
    dialogues: np.ndarray
    requests: np.ndarray
    links: np.ndarray
    pendings: np.ndarray
    declared: np.ndarray
    numbers: np.ndarray


def _pool(kind: np.dtype, count: int) -> np.ndarray:
    return np.zeros(count, kind).view(np.recarray)


def new_state() -> State:
    """The state before the first row; memory of channels is touched only where they are used."""
    return State(
        _pool(SLOT, CHANNELS), np.zeros(CHANNELS, np.int64), new_keyed(), _pool(DIALOGUE, 0), _pool(REQUEST, 0),
        _pool(LINK, 0), _pool(PENDING, 0), np.zeros(0, np.int64), np.zeros(16, np.int64),
    )  # fmt: skip


def _longer(pool: np.ndarray, used: int, more: int) -> np.ndarray:
    if used + more <= len(pool):
        return pool
    longer = np.zeros(2 * (used + more), pool.dtype)
    longer[:used] = pool[:used]
    return longer.view(np.recarray) if isinstance(pool, np.recarray) else longer


def with_room(state: State, rows: int) -> State:
    """`state` with room for what so many more rows may add: at most one record of each pool a row."""
    numbers = state.numbers
    return state._replace(
        found_by=keyed_with_room(state.found_by, 2 * rows),
        dialogues=_longer(state.dialogues, int(numbers[DIALOGUES]), rows),
        requests=_longer(state.requests, int(numbers[REQUESTS]), rows),
        links=_longer(state.links, int(numbers[LINKS]), rows),
        pendings=_longer(state.pendings, int(numbers[PENDINGS]), rows),
        declared=_longer(state.declared, int(numbers[DECLARED]), rows),
    )


def new_results(touched: int, waiting: int, links: int, rows: int) -> Results:
    """Room for the results of so many rows, the last of which may end all that is open: `touched` channels, `waiting`
    settlements and `links`; touched only where used."""
    lives = touched + 2 * rows
    sizes = (rows, 4 * rows + waiting + 2 * lives, lives, links + rows, rows)
    kinds = (MESSAGE, EVENT, LIFE, LINK_LIFE, REPLY)
    of_kind = [np.empty(size, kind).view(np.recarray) for kind, size in zip(kinds, sizes, strict=True)]
    messages, events, life_rows, link_rows, replies = of_kind
    return Results(messages, events, life_rows, link_rows, replies, np.zeros(len(kinds), np.int64))


@kernel
def begin_life(slot, life):
    """A new life of a channel: nothing is known of it yet."""
    slot.life = life
    slot.shown = 0
    slot.opened_ns = NONE
    slot.closed = 0
    slot.close_ns = NONE
    slot.close_sender = NONE
    slot.close_code = NONE
    slot.close_text = 0
    slot.mode = 0
    slot.prefetch_count = NONE
    slot.prefetch_size = NONE
    slot.published = 0
    slot.delivered = 0
    slot.returned = 0
    slot.opened_sent = 0
    slot.opened_received = 0
    slot.confirm_from = NONE
    slot.confirm_losses = 0
    slot.declared = 0
    slot.tx_first = 0
    slot.tx_last = 0
    slot.tx_head = NONE
    slot.links = NONE
    slot.named_sent = NONE
    slot.named_received = NONE
    slot.doubted = 0
