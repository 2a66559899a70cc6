"""State of the session tracker: the records of connections, and the columns that are read of frames.

All fields are int64. Texts and keys of transactions are numbers of the caller, 0 for none; -1 stands for unknown
numbers, times, truth values and places. Records of connections that have ended stay at the front of their pools until
`take_ended`; those of the current connection follow. Places count from the first record of a pool.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.conversation.settlement import ABORTED
from codec.conversation.states import blank, longer
from codec.hashes.keyed import Keyed, new_keyed
from codec.hashes.keyed import with_room as keyed_with_room
from codec.memory import as_records
from codec.stalls import FIELDS, new_rows

NONE = -1
CLIENT, SERVER, NEITHER = range(3)
BOTH = 1 << CLIENT | 1 << SERVER  # of `senders`
CONFIRMED, NACKED, REJECTED, RETURNED, ACKED, RELEASED, MODIFIED = range(ABORTED + 1, ABORTED + 8)  # of OUTCOMES
TAKES_BACK = (REJECTED, RELEASED, MODIFIED)  # what a sender may say of its own delivery
SENDER, RECEIVER, SUBSCRIPTION = range(1, 4)  # of semantics.LINK_KINDS
TX, DTX = 2, 3  # of semantics.MODES
SERIAL = 1 << 32  # delivery numbers, command ids and credit count modulo this (RFC 1982)
NO_LIMIT = SERIAL - 1  # credit; seconds of a timeout

# Unsettled maps of a session, by the side that sends: its messages and commands; from COMPLETIONS on its transfers over
# subscriptions, and its flushes of them, until the other side has completed them.
MAPS, COMPLETIONS = 4, 2

ROLE_FIELDS = (
    "own_numbers", "listed", "opens_session", "closes_session", "announces_windows", "states_reason", "mode",
    "proves_mode", "on_handle", "attaches", "detaches", "states_credit", "transfers", "settles", "completes", "refuses",
    "on_destination",
    "subscribes", "cancels", "grants_credit", "sets_flow_mode", "zeroes_credit", "transactional", "ends_transaction",
    "of_session", "starts_branch", "ends_branch", "names_branch", "states_outcome", "names_transfers",
    "may_return", "reports_status", "closes_connection", "grants_timeout", "answers_attach", "answers_detach",
    "of_connection", "requests", "replies", "awaits",
)  # fmt: skip


ROLE = blank(" ".join(ROLE_FIELDS)).dtype

STALL_FIELDS = tuple(f"{name}?" for name in FIELDS)  # of a link (`codec.stalls`): the first one, by its credit

# Exchanges of requests and replies, from 1 on: those of a connection, of a session, of a link (the first of them).
OPENING, CLOSING = 1, 2
MECHANISMS, RESPONSE, TUNING = range(3, 6)
FLOW, TIMEOUT, EXPECTED, CONFIRMING, COMPLETED, KNOWN_COMPLETED = range(3, 9)
OF_CONNECTION, OF_SESSION, OF_LINK = TUNING, KNOWN_COMPLETED, FLOW
# Cells of a request that waits, by exchange and side; REQUEST_FRAME: 1 + its frame, 0 for none.
REQUEST_FRAME, REQUEST_NS, REQUEST_LOSSES = range(3)
REQUEST_CELLS = REQUEST_LOSSES + 1
REQUEST_IDS = 1 << 33  # ids of waiting requests in unsettled maps, from SERIAL on

# Ids in unsettled maps above those of deliveries and commands: of requests to end a transaction whose own is unknown.
# When the next completion answers one (`waits_unnumbered`): NOW, or after the client has asked for it.
UNNUMBERED, NOW, ONCE_ASKED = 3 * SERIAL, 1, 2
# A session is opened by `opener` and answered (OPENING no longer waits), then each side ends it (`close_client_hidden`,
# `close_server_hidden`, which are NONE before that). `attached_to`: the channel number of the opener, which 0-10 may
# change; `behind`: how many sessions before it with the same number had no answer when it was opened; `flushes`: 1 if a
# subscription was flushed. `asked`: how often the client has asked for a completion that has not come, since
# `asked_losses` losses of the client; `completed_to`: the latest command that the server has completed; `left_frame`:
# the last frame after which the session was in no branch, as dtx.end, or the close of its connection.
NEW_SESSION = blank(
    "connection channel incarnation listed opened_losses? opened_ns? name remote_channel? closed_ns? close_sender? "
    "detach_code? reason_code? condition description incoming_window? outgoing_window? mode failed close_frame? "
    "close_client_hidden? close_server_hidden? client_hidden server_hidden losses listed_losses last_ns? "
    "last_listed_ns? tx_key branch named_client? named_server? doubted senders timeout_s "
    "cancelled_first? cancelled_last? attached_to opener begun_losses? behind flushes asked asked_losses? "
    "completed_to? waits_unnumbered left_frame?",
    waiting=2 * OF_SESSION * REQUEST_CELLS,
)
NEW_LINK = blank(
    "connection session known kind name client_handle? server_handle? client_address server_address client_attached "
    "server_attached client_snd_mode? server_snd_mode? client_rcv_mode? server_rcv_mode? client_has_source "
    "server_has_source client_default server_default client_copies? server_copies? client_filters server_filters "
    "acquire_mode? initial_count? coordinator queue no_ack? exclusive? command_id? flow_mode? opened_ns? closing_ns? "
    "closing_losses? failed condition description losses transfers credit? unlimited allowed assumed_count? drained "
    "last_ns? starves starved_ns cancel_id? over closed next?",
    "",
    waiting=2 * OF_LINK * REQUEST_CELLS,
    **dict.fromkeys(STALL_FIELDS, 1),
)
# The link that a handle or destination stands for, and the latest delivery on a handle.
NEW_BINDING = blank("link? losses? unknown? unknown_losses? delivery_frame? delivery_id? presettled")
# The links of a name and direction whose attach waits for that of the other side: a queue from `head` to `tail`, begun
# after `epoch` losses. `ends`: how many of their ends are attached.
NEW_ATTACHING = blank("epoch? opener head? tail? ends")
# `tag`: a hash; `resumes`: 1 for a transfer that resumes a delivery. Two kinds are no messages: LISTED, an entry in the
# map of unsettled deliveries of an attach; ALL_LISTED, an attach with a complete map. `stated`: the outcome that the
# transfer, or the entry, has.
LISTED, ALL_LISTED = 2, 3
NEW_MESSAGE = blank(
    "connection frame_no ts_ns session link sender operation number key readable needs_no_accept command client_hidden "
    "server_hidden named row tag resumes stated"
)
# `waits`: 1 for a settlement, which waits for the end of its transaction `key`; REPORTS for the result of a command;
# BY_SENDER for an outcome that the server of 1.0 states of what it has sent itself. `error`, `info`: its texts.
REPORTS, BY_SENDER = 2, 3
NEW_EVENT = blank(
    "connection map_no frame_no name opens first last outcome final effective_ns key waits client_hidden error info"
)
# Three kinds: a request to end transaction `key` with `result` (`on_branch`: it names a branch); without a result, the
# begin of transaction `key`, by the answer to command `number`, or in a session; without a key, what closes a control
# link, or all of a session, or (without a map) of the connection.
NEW_TX_END = blank("connection map_no? frame_no ts_ns key result client_hidden link? number? on_branch")
NEW_CHANGE = blank(
    "connection session link frame_no packet_no file ts_ns messages octets sent zeroes flow_mode cancels losses"
)
NEW_REFUSAL = blank("connection session command_id")
EVENT = NEW_EVENT.dtype
NEW_REPLY = blank("connection frame_no ts_ns reply_frame_no reply_ts_ns name")

# Cells of `State.numbers`. UNANSWERED: sessions of 1.0 that one side has begun, without a begin of the other side;
# CLOSE_FRAME: the frame that has closed the connection.
(
    CONNECTION, STARTED, LOSSES_CLIENT, LOSSES_SERVER, HIDDEN_CLIENT, HIDDEN_SERVER, KEYS, TRANSACTIONS, UNANSWERED,
    CLOSE_FRAME,
) = range(10)  # fmt: skip
REQUESTS = CLOSE_FRAME + 1  # the first of the cells of requests that wait
CELLS = REQUESTS + 2 * OF_CONNECTION * REQUEST_CELLS


class Rows(
    namedtuple(
        "Rows",
        "connection_id frame_no ts_ns channel sender name loss hides peer_late late content_frame_no readable "
        "remote_channel session_name timeout code incoming_window outgoing_window error condition description handle "
        "link_name is_receiver snd_settle_mode rcv_settle_mode initial_delivery_count source source_address "
        "default_outcome copies filters target_address coordinator number settled more aborted tag resume "
        "delivery_count link_credit destination queue no_accept exclusive acquire_mode flow_mode unit value sync "
        "coordinates closed lists_all declared about outcome final by_sender error_text info key ends asks "
        "range_at range_first range_last packet_no file",
    )
):
    """Performatives, controls, commands and losses by connection and frame_no: columns int64 (n,). Absent truth values
    and numbers are -1; names, texts and keys 0. `name` 0: only a loss.

    `number`: delivery-id or command id. `about`: the side whose messages a settlement settles, in the ranges from
    `range_at[i]` to `range_at[i + 1]` (n + 1,) of `range_first`, `range_last`. `coordinates`: whether it is a command
    to a transaction coordinator; `lists_all`: whether an attach has all unsettled deliveries of its side; `ends`: of a
    request to end a transaction, the result on success; `asks`: the exchange of a request that an argument makes one;
    `key`: the transaction that is named; `declared`: one that the
    coordinator has begun. `peer_late`, `late` (codec.amqp.notes): 0 or 1."""


class State(NamedTuple):
    """Pools of records; `found_by` finds those of the current connection. `replies` are those since they were taken, of
    any connection; so are `stalls` int64 (n, CELLS of `codec.stalls`), their links as texts, and `stall_count` (1,)."""

    sessions: Pool
    links: Pool
    bindings: Pool
    attachings: Pool
    messages: Pool
    events: Pool
    tx_ends: Pool
    changes: Pool
    refusals: Pool
    replies: Pool
    stalls: np.ndarray
    stall_count: np.ndarray
    found_by: Keyed
    numbers: np.ndarray


NEW_RECORDS = {
    "sessions": NEW_SESSION, "links": NEW_LINK, "bindings": NEW_BINDING, "attachings": NEW_ATTACHING,
    "messages": NEW_MESSAGE, "events": NEW_EVENT, "tx_ends": NEW_TX_END, "changes": NEW_CHANGE,
    "refusals": NEW_REFUSAL,
}  # fmt: skip
KINDS = {name: record.dtype for name, record in NEW_RECORDS.items()}
# Fields that hold the place of a record: (part, field, part of the record, how many places each one takes).
PLACES = (
    ("messages", "session", "sessions", 1), ("messages", "link", "links", 1), ("links", "session", "sessions", 1),
    ("links", "next", "links", 1), ("sessions", "cancelled_first", "links", 1),
    ("sessions", "cancelled_last", "links", 1), ("events", "map_no", "sessions", MAPS),
    ("tx_ends", "map_no", "sessions", MAPS), ("tx_ends", "link", "links", 1),
    ("changes", "session", "sessions", 1), ("changes", "link", "links", 1), ("refusals", "session", "sessions", 1),
    ("bindings", "link", "links", 1), ("bindings", "unknown", "links", 1), ("attachings", "head", "links", 1),
    ("attachings", "tail", "links", 1),
)  # fmt: skip
KEYS_A_ROW = 6


def new_state() -> State:
    """The state before the first row."""
    pools = {name: new_pool(record) for name, record in NEW_RECORDS.items()}
    return State(
        found_by=new_keyed(), numbers=np.zeros(CELLS, np.int64), replies=new_pool(NEW_REPLY), stalls=new_rows(0),
        stall_count=np.zeros(1, np.int64), **pools,
    )  # fmt: skip


def with_room(state: State, rows: int, ranges: int) -> State:
    """`state` with room for what so many rows, with so many ranges, add."""
    pools: dict[str, Any] = {name: grown(getattr(state, name), growth(name, rows, ranges)) for name in KINDS}
    replies = grown(state.replies, 2 * rows)  # a flow may be the reply to one of its session, and to one of its link
    keys, stalls = keyed_with_room(state.found_by, KEYS_A_ROW * rows), state.stalls
    if int(state.stall_count[0]) + rows > len(stalls):  # a row may begin one after another one
        stalls = np.concatenate([stalls[: state.stall_count[0]], new_rows(int(state.stall_count[0]) + rows)])
    return state._replace(found_by=keys, replies=replies, stalls=stalls, **pools)


def growth(name: str, rows: int, ranges: int) -> int:
    """How many records of a kind, or keys, so many rows with so many ranges add at most."""
    # A settlement of a range may be written twice, each in two events where numbers wrap.
    more = {
        "events": 3 * rows + 4 * ranges, "messages": rows + ranges, "links": 2 * rows, "tx_ends": 2 * rows,
        "keys": KEYS_A_ROW * rows, "values": KEYS_A_ROW * rows,
    }  # fmt: skip
    return more.get(name, rows)


class SessionRecords(NamedTuple):
    """Records of connections; places of sessions and links count within them."""

    sessions: np.ndarray
    links: np.ndarray
    messages: np.ndarray
    events: np.ndarray
    tx_ends: np.ndarray
    changes: np.ndarray
    refusals: np.ndarray


def current_records(state: State) -> SessionRecords:
    """The records of the current connection; there are none of others."""
    pools = (getattr(state, name) for name in SessionRecords._fields)
    return SessionRecords(*(pool.rows[: pool.cells[COUNT]].view(np.ndarray) for pool in pools))


def take_ended(state: State) -> SessionRecords:
    """Remove and return the records of connections that have ended."""
    sessions, links = int(state.sessions.cells[FIRST]), int(state.links.cells[FIRST])
    records = SessionRecords(*(drop_ended(getattr(state, name)) for name in SessionRecords._fields))
    removed = {"sessions": sessions, "links": links}
    for name, field, of, factor in PLACES:
        pool = getattr(state, name)
        places = pool.rows[field][: pool.cells[COUNT]]
        places[places != NONE] -= removed[of] * factor
    return records


def take_replies(state: State) -> np.ndarray:
    """Remove and return the replies."""
    replies = np.array(state.replies.rows[: state.replies.cells[COUNT]])
    state.replies.cells[COUNT] = 0
    return replies


def take_stalls(state: State) -> np.ndarray:
    """Remove and return the stalls."""
    found = state.stalls[: state.stall_count[0]].copy()
    state.stall_count[0] = 0
    return found


@kernel
def losses(numbers):
    """How often bytes of either side were missing so far."""
    return numbers[LOSSES_CLIENT] + numbers[LOSSES_SERVER]


@kernel
def own_losses(numbers, sender):
    """How often bytes of one side were missing so far."""
    return numbers[LOSSES_CLIENT] if sender == CLIENT else numbers[LOSSES_SERVER]


COUNT, FIRST = range(2)  # cells: number of records; the first one of the current connection


class Pool(NamedTuple):
    """`rows`: a record array with room for more than there are; `cells` int64 (2,); `new`: a new record."""

    rows: np.ndarray
    cells: np.ndarray
    new: np.ndarray


def new_pool(record: np.ndarray) -> Pool:
    """A pool without records; `record`: a new one."""
    return Pool(as_records(record[:0]), np.zeros(2, np.int64), as_records(record))


def grown(pool: Pool, more: int) -> Pool:
    """`pool` with room for so many more records."""
    return pool._replace(rows=longer(pool.rows, int(pool.cells[COUNT]), more))


def drop_ended(pool: Pool) -> np.ndarray:
    """Remove and return the records of connections that have ended."""
    first, count = int(pool.cells[FIRST]), int(pool.cells[COUNT])
    records = np.array(pool.rows[:first])
    if first:
        pool.rows[: count - first] = pool.rows[first:count].copy()
    pool.cells[:] = count - first, 0
    return records


def retain(pool: Pool, chosen: np.ndarray) -> None:
    """Keep only the `chosen` records of the current connection; there are none of others."""
    count = int(pool.cells[COUNT])
    rows = pool.rows[:count][chosen]
    pool.rows[: len(rows)] = rows
    pool.cells[COUNT] = len(rows)


@kernel
def new_record(pool):
    """Add a new record; returns its place."""
    at = pool.cells[COUNT]
    pool.rows[at] = pool.new[0]
    pool.cells[COUNT] += 1
    return at
