"""State of the session tracker: the records of connections, and the columns that are read of frames.

All fields are int64. Texts and keys of transactions are numbers of the caller, 0 for none; -1 stands for unknown
numbers, times, truth values and indices. Records of connections that have ended stay at the front of their pools until
`take_ended`; those of the current connection follow. Places count from the first record of a pool.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel, outlined
from codec.conversation import oddities
from codec.conversation.oddities import Oddities, new_oddities
from codec.conversation.settlement import ABORTED
from codec.conversation.states import blank, with_capacity
from codec.hashes.maps import ABSENT, KEY, SLOTS, USED, VALUE, HashMap, get, has_entry, needs_room, new_map, use_slots
from codec.hashes.maps import with_room as keyed_with_room
from codec.memory import as_records
from codec.names import SIDES
from codec.protocol.versions import fact_table
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
    "of_connection", "requests", "replies", "awaits", "sent_by", "is_command", "gives_result", "names_commands",
    "in_transactions", "points",
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
# the last frame after which the session was in no branch, as dtx.end, or the close of its connection. `lost_ns`: as
# LOST_NS of its connection, once that has ended. `unsettled`: how
# many deliveries `found_by` finds; `crowded`: 1 if others found no room there. The rest is for oddities: by side in 1.0
# from `begun` on, in 0-10 from `pointed` on; of 0-10 alone from `phase` on.
NEW_SESSION = blank(
    "connection channel incarnation listed opened_losses? opened_ns? name remote_channel? closed_ns? close_sender? "
    "detach_code? reason_code? condition description incoming_window? outgoing_window? mode failed close_frame? "
    "close_client_hidden? close_server_hidden? client_hidden server_hidden losses listed_losses last_ns? "
    "last_listed_ns? tx_key branch named_client? named_server? doubted senders timeout_s "
    "cancelled_first? cancelled_last? attached_to opener begun_losses? behind flushes asked asked_losses? "
    "completed_to? waits_unnumbered left_frame? lost_ns unsettled crowded "
    "phase asker? detach_frame? detach_ns? detacher detached_ns? detached_by? failed_by? selected implicit "
    "flush_from? flush_to?",
    "begun lasts own_channel? begun_ns? begun_frame? handle_max? first_out? sent allowed? echo_ns? echo_frame? "
    "ended_ns? ended_frame? last_delivery? shut_ns? shut_frame? "
    "pointed expects next? sync_id? sync_ns? sync_frame? timely_ns? timely_frame? known_to? known_ns? done_to? "
    "result_id? result_ns? result_frame?",
    waiting=2 * OF_SESSION * REQUEST_CELLS,
)
NEW_LINK = blank(
    "connection session known kind name client_handle? server_handle? client_address server_address client_attached "
    "server_attached client_snd_mode? server_snd_mode? client_rcv_mode? server_rcv_mode? client_has_source "
    "server_has_source client_default server_default client_copies? server_copies? client_filters server_filters "
    "acquire_mode? initial_count? coordinator queue no_ack? exclusive? command_id? flow_mode? opened_ns? closing_ns? "
    "closing_losses? failed condition description losses transfers credit? unlimited allowed assumed_count? drained "
    "last_ns? starves starved_ns cancel_id? over closed next? name_hash "
    "max_size? outcomes lists outstanding open delivery_id? tag message_format? settled byte_count delivery_frame? "
    "count credit_to before_cut cut_ns drain_ns? drain_frame? awaiting awaited_ns transactions work "
    "message_credit all_messages byte_credit stopped stop_id? zeroed_id? flush_id? later all_later",
    "attached attach_frame? refused_ns? detach_ns? detach_frame? detach_closed",
    waiting=2 * OF_LINK * REQUEST_CELLS,
    **dict.fromkeys(STALL_FIELDS, 1),
)
# The link that a handle or destination stands for, and the latest delivery on a handle. `bound_frame`: the frame that
# has bound it last.
NEW_BINDING = blank("link? losses? unknown? unknown_losses? delivery_frame? delivery_id? presettled bound_frame?")
# The links of a name and direction whose attach waits for that of the other side: a queue from `head` to `tail`, begun
# after `epoch` losses. `ends`: how many of their ends are attached.
NEW_ATTACHING = blank("epoch? opener head? tail? ends")
# `tag`: a hash; `resumes`: 1 for a transfer that resumes a delivery. Two kinds are no messages: LISTED, an entry in the
# map of unsettled deliveries of an attach; ALL_LISTED, an attach with a complete map. `stated_outcome`: the outcome
# that the transfer, or the entry, has.
LISTED, ALL_LISTED = 2, 3
NEW_MESSAGE = blank(
    "connection frame_no ts_ns session link sender operation number key readable needs_no_accept command client_hidden "
    "server_hidden named row tag resumes stated_outcome"
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
    "connection session link frame_no packet_no file ts_ns messages byte_count sent zeroes flow_mode cancels losses"
)
NEW_REFUSAL = blank("connection session command_id")
EVENT = NEW_EVENT.dtype
NEW_REPLY = blank("connection frame_no ts_ns reply_frame_no reply_ts_ns name")

# Cells of `State.numbers`. UNANSWERED: sessions of 1.0 that one side has begun, without a begin of the other side;
# CLOSE_FRAME: the frame that has closed the connection. LOST_NS: time of the first loss, 0 for none. STEPS: how many
# deliveries ranges may still name. Of each side: OPENED_NS, of its open; FRAME_LIMIT, 1 + the largest frame that it
# takes, 0: not known; CHANNEL_LIMIT, its channel-max. SASL_STEP: name of the last frame of SASL; SASL_ODD: one was odd.
# NEW_TAGS: how many were added since old ones were dropped.
(
    CONNECTION, STARTED, LOSSES_CLIENT, LOSSES_SERVER, HIDDEN_CLIENT, HIDDEN_SERVER, KEYS, TX_COUNT, UNANSWERED,
    CLOSE_FRAME, LOST_NS, STEPS, OPENED_NS, _, FRAME_LIMIT, _, CHANNEL_LIMIT, _, SASL_STEP, SASL_ODD, NEW_TAGS,
) = range(21)  # fmt: skip
REQUESTS = NEW_TAGS + 1  # the first of the cells of requests that wait
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
        "range_at range_first range_last packet_no file rtt_ns size payload_size state tag_size message_format drain "
        "next_incoming_id next_outgoing_id continues few at_few",
    )
):
    """Performatives, controls, commands and losses by connection and frame_no: columns int64 (n,). Absent truth values
    and numbers are -1; names, texts and keys 0. `name` 0: only a loss.

    `loss`: 0, or when the last bytes before a loss were captured. `number`: delivery-id or command id. `about`: the
    side whose messages a settlement settles, in the ranges from `range_at[i]` to `range_at[i + 1]` (n + 1,) of
    `range_first`, `range_last`. `coordinates`: whether it is a command to a transaction coordinator; `lists_all`:
    whether an attach has all unsettled deliveries of its side; `ends`: of a request to end a transaction, the result on
    success; `asks`: the exchange of a request that an argument makes one; `key`: the transaction that is named;
    `declared`: one that the coordinator has begun. `peer_late`, `late` (codec.protocol.rows): 0 or 1.

    For oddities: `rtt_ns` as in codec.protocol.rows; `state`: STATES from 1 on, 0 for another one, -1 for none;
    `continues`: the frame continues a command whose beginning was not captured; `few` (m,): arguments that few frames
    have, as OF_FEW, `at_few`: which of these are those of the row."""


# Arguments of frames that are few: of a connection or session, of attaches, of flows without a handle. `link_fields`:
# the flow has some; `dynamic`: the attach asks for a node, although it names one; `target`: it has one; `outcomes`:
# bits of those that its source allows; `lists`: it has a map of unsettled deliveries; `name_hash`: of its name.
OF_FEW = blank(
    "handle_max? channel_max? max_frame_size? max_message_size? command_offset? force? link_fields dynamic target "
    "outcomes lists name_hash"
)


class State(NamedTuple):
    """Pools of records; `found_by` finds those of the current connection. `replies` are those since they were taken, of
    any connection; so are `odd`, and `stalls` int64 (n, CELLS of `codec.stalls`), their links as texts, and
    `stall_count` (1,)."""

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
    found_by: HashMap
    numbers: np.ndarray
    odd: Oddities


NEW_RECORDS = {
    "sessions": NEW_SESSION, "links": NEW_LINK, "bindings": NEW_BINDING, "attachings": NEW_ATTACHING,
    "messages": NEW_MESSAGE, "events": NEW_EVENT, "tx_ends": NEW_TX_END, "changes": NEW_CHANGE,
    "refusals": NEW_REFUSAL,
}  # fmt: skip
KINDS = {name: record.dtype for name, record in NEW_RECORDS.items()}
# Fields that hold the slot of a record: (part, field, part of the record, how many indices each one takes).
SLOT_FIELDS = (
    ("messages", "session", "sessions", 1), ("messages", "link", "links", 1), ("links", "session", "sessions", 1),
    ("links", "next", "links", 1), ("sessions", "cancelled_first", "links", 1),
    ("sessions", "cancelled_last", "links", 1), ("events", "map_no", "sessions", MAPS),
    ("tx_ends", "map_no", "sessions", MAPS), ("tx_ends", "link", "links", 1),
    ("changes", "session", "sessions", 1), ("changes", "link", "links", 1), ("refusals", "session", "sessions", 1),
    ("bindings", "link", "links", 1), ("bindings", "unknown", "links", 1), ("attachings", "head", "links", 1),
    ("attachings", "tail", "links", 1),
)  # fmt: skip
KEYS_PER_ROW = 6

# Keys of `State.found_by`: their kind, then numbers. By side and channel number: BEGUN, the session that the side has
# begun or answered; WAITING, the session before that, if the other side has to answer it first; ANSWERS, the number of
# the other side that it answered last; WAS, the channel and incarnation of the session that it has begun last. By
# channel number: UNOPENED, the session without a captured begin; INCARNATIONS, how many sessions there were; ENDED,
# when session.detached was sent last, and by whom. NAMED: the session of 0-10 by name. By session: HANDLE, DESTINATION,
# ATTACHED; DELIVERY, one that is not settled, by its id and the side that sends it; FLUSH, BRANCH: commands by their
# ids, and branches, that have not ended; RESULT, the last command that asked for a result, by its id modulo RESULTS.
# TAG: the key of the last delivery with a tag, by a hash of tag and link. TRANSACTION: one that was declared, by name.
(
    BEGUN, WAITING, UNOPENED, NAMED, HANDLE, DESTINATION, ATTACHED, INCARNATIONS, ANSWERS, WAS, ENDED, DELIVERY, FLUSH,
    BRANCH, RESULT, TAG, TRANSACTION,
) = range(1, 18)  # fmt: skip
KIND_SHIFT, SIDE_SHIFT, SESSION_SHIFT = 58, 34, 35
# Values of DELIVERY, FLUSH and TRANSACTION: 1 + the index of a link of the connection, then other numbers.
LINK_BITS = 25
OF_LINK = (1 << LINK_BITS) - 1


@kernel
def key_of(kind, session, side, number):
    """`session` and `number` are not negative; `number` is below 2**34."""
    return (kind << KIND_SHIFT) | (session << SESSION_SHIFT) | (side << SIDE_SHIFT) | number


@kernel
def is_old_tag(table, at):
    """Whether an entry is that of a tag whose delivery is settled."""
    return table.entries[at, KEY] >> KIND_SHIFT == TAG and get(table, table.entries[at, VALUE]) == NONE


@outlined
def drop_old_tags(table):
    """Remove tags whose deliveries are settled, if there is room to move the others."""
    slots = table.used[SLOTS]
    if 4 * slots > len(table.entries):
        return
    for i in range(slots, 2 * slots):
        if has_entry(table, i) and is_old_tag(table, i):
            table.entries[i, VALUE] = ABSENT
    use_slots(table, 2 * slots)
    use_slots(table, slots)


def new_state() -> State:
    """The state before the first row."""
    pools = {name: new_pool(record) for name, record in NEW_RECORDS.items()}
    return State(
        found_by=new_map(), numbers=np.zeros(CELLS, np.int64), replies=new_pool(NEW_REPLY), stalls=new_rows(0),
        stall_count=np.zeros(1, np.int64), odd=new_oddities(), **pools,
    )  # fmt: skip


def with_room(state: State, rows: int, ranges: int) -> State:
    """`state` with room for what so many rows, with so many ranges, add."""
    pools: dict[str, Any] = {name: grown(getattr(state, name), growth(name, rows, ranges)) for name in KINDS}
    replies = grown(state.replies, 2 * rows)  # a flow may be the reply to one of its session, and to one of its link
    found_by, stalls = state.found_by, state.stalls
    if needs_room(found_by, KEYS_PER_ROW * rows):
        found_by = keyed_with_room(found_by, int(found_by.used[USED]) + KEYS_PER_ROW * rows)
        drop_old_tags(found_by)
    if int(state.stall_count[0]) + rows > len(stalls):  # a row may begin one after another one
        stalls = np.concatenate([stalls[: state.stall_count[0]], new_rows(int(state.stall_count[0]) + rows)])
    odd = oddities.with_room(state.odd, rows)
    return state._replace(found_by=found_by, replies=replies, stalls=stalls, odd=odd, **pools)


def growth(name: str, rows: int, ranges: int) -> int:
    """How many records of a kind, or keys, so many rows with so many ranges add at most."""
    # A settlement of a range may be written twice, each in two events where numbers wrap.
    more = {
        "events": 3 * rows + 4 * ranges, "messages": rows + ranges, "links": 2 * rows, "tx_ends": 2 * rows,
        "keys": KEYS_PER_ROW * rows, "values": KEYS_PER_ROW * rows,
    }  # fmt: skip
    return more.get(name, rows)


class SessionRecords(NamedTuple):
    """Records of connections; indices of sessions and links count within them."""

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
    for name, field, of, factor in SLOT_FIELDS:
        pool = getattr(state, name)
        slots = pool.rows[field][: pool.cells[COUNT]]
        slots[slots != NONE] -= removed[of] * factor
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
    return pool._replace(rows=with_capacity(pool.rows, int(pool.cells[COUNT]), more))


def drop_ended(pool: Pool) -> np.ndarray:
    """Remove and return the records of connections that have ended."""
    first, count = int(pool.cells[FIRST]), int(pool.cells[COUNT])
    records = np.array(pool.rows[:first])
    if first:
        pool.rows[: count - first] = pool.rows[first:count].copy()
    pool.cells[:] = count - first, 0
    return records


def retain(pool: Pool, mask: np.ndarray) -> None:
    """Keep only the `mask` records of the current connection; there are none of others."""
    count = int(pool.cells[COUNT])
    rows = pool.rows[:count][mask]
    pool.rows[: len(rows)] = rows
    pool.cells[COUNT] = len(rows)


@kernel
def new_record(pool):
    """Add a new record; returns its slot."""
    at = pool.cells[COUNT]
    pool.rows[at] = pool.new[0]
    pool.cells[COUNT] += 1
    return at


# What the performatives of 1.0 and the controls and commands of 0-10 do, as data.
#
# Names are unique across the versions ('message.transfer', 'transfer'), so one table serves both.
#
# Sources: 1.0 core specification, parts 2 (transport), 3 (messaging), 4 (transactions); 0-10 specification, classes
# session, execution, message, tx, dtx.


VERSIONS = ("0-10", "1.0")
OPERATIONS = ("publish", "deliver")  # by sender: a transfer of the client is a publish
MODES = ("confirm", "tx", "dtx")  # of channels, from 1 on
TRANSACTIONS = ("committed", "rolled-back")  # from 1 on, as in codec.conversation.settlement
LINK_KINDS = ("sender", "receiver", "subscription")  # from 1 on; the client's side of it
# From 1 on, in the order in which `codec.conversation.session_state` names those that it knows.
OUTCOMES = (
    "unsettled", "unknown", "presettled", "aborted", "confirmed", "nacked", "rejected", "returned", "acked", "released",
    "modified",
)  # fmt: skip

# Who gives which outcome to a message that the other side sent, by command or by delivery state.
OUTCOME_OF = {
    "accepted": {"server": "confirmed", "client": "acked"},
    "declared": {"server": "confirmed", "client": "acked"},  # the outcome of a declare is its transaction id (4.5.5)
    "rejected": {"server": "rejected", "client": "rejected"},
    "released": {"server": "released", "client": "released"},
    "modified": {"server": "modified", "client": "modified"},
    "message.accept": {"server": "confirmed", "client": "acked"},
    "message.reject": {"server": "rejected", "client": "rejected"},
    "message.release": {"server": "released", "client": "released"},
    # A publish of 0-10 needs no accept: it is done with its command.
    "session.completed": {"server": "confirmed"},
    "execution.result": {"server": "confirmed"},
    "execution.exception": {"server": "nacked"},
}
# What counts in table channels: (who sent the message, its outcomes).
COUNTED = {
    "returned": ("client", ("returned",)),
    "confirmed": ("client", ("confirmed",)),
    "nacked": ("client", ("nacked", "rejected", "released", "modified")),
    "acked": ("server", ("acked",)),
    "rejected": ("server", ("rejected",)),
    "requeued": ("server", ("released", "modified")),
}

# ---- 1.0 ------------------------------------------------------------------------------------------------------------
SND_SETTLE_MODES = ("unsettled", "settled", "mixed")
RCV_SETTLE_MODES = ("first", "second")
DEFAULT_SND_SETTLE_MODE, DEFAULT_RCV_SETTLE_MODE = 2, 0  # 2.7.3
DISTRIBUTION_MODES = ("move", "copy")
COPY = "copy"  # distribution-mode: messages stay at the node (3.5.7)
# Capabilities of a source or target that is a topic, where its address does not say so (AMQP JMS Mapping).
TOPICS = ("topic", "temporary-topic")
# `copies` of links: an index in DISTRIBUTION_MODES, or -1, and this if the node of the broker is a topic.
OF_TOPIC = len(DISTRIBUTION_MODES) + 1
COORDINATOR, TRANSACTIONAL, DECLARED, DISCHARGE = "coordinator", "transactional-state", "declared", "discharge"
COORDINATES = ("declare", "discharge")  # what is asked of a transaction coordinator (4.5.3, 4.5.4)
HAVE_TEXTS = ("rejected", "modified")  # outcomes with an error, or annotations
# Errors with which Azure Service Bus refuses a settlement: the lock of the message, or of its session, has expired, and
# the message is in its queue again.
TOO_LATE = ("com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost")

# ---- 0-10 -----------------------------------------------------------------------------------------------------------
IN_SEGMENTS = ("0-10",)  # versions in which a control or command may take several frames
NO_ACCEPT = 1  # accept-mode none
ACQUIRE_MODES = ("pre-acquired", "not-acquired")
NOT_ACQUIRED = 1  # acquire-mode: the message stays in its queue
FLOW_MODES = ("credit", "window")
DEFAULT_FLOW_MODE = FLOW_MODES.index("window")  # message.subscribe, rule default-flow-mode
UNROUTABLE = (1, 2)  # reject codes unroutable, immediate: what a return says in the classic family
SUCCESS = 0
# dtx.xa-status of an execution.result -> outcome of its command: rolled back; it may have been, partly; committed
# ("acked"), whatever was asked; else done.
OUTCOME_OF_STATUS = {1: "nacked", 2: "nacked", 3: "unknown", 4: "acked", 5: "nacked", 6: "unknown"}
COUNTS_BYTES, BYTES_OF = ("0-10",), ("header", "body")  # where credit has bytes: payloads of these frames
COMMITS, ROLLS_BACK = 1, 2
# What a change does to the credit before it: nothing left; nothing left once it is completed; that completion.
ZEROES, FLUSHES, FLUSHED = 1, 2, 3

# Name -> fields of ROLE. `own_numbers`: each side numbers its own channels; else they share them.
_OF_1_0 = {"own_numbers": 1, "listed": 1}
_OF_0_10 = {"listed": 1}
_ON_HANDLE = {**_OF_1_0, "on_handle": 1}
_OF_SUBSCRIPTION = {**_OF_0_10, "on_destination": 1}
_IN_TRANSACTIONS = {**_OF_0_10, "in_transactions": 1}
# What `requests` waits for the next frame of the other side that `replies` in the same exchange. In 1.0 the sides open
# and close connections alike: the first one asks (2.4.1, 2.4.3; SASL: 5.3.2).
OUTCOME = TUNING  # of SASL in 1.0, which has no tuning
_OF_CONNECTION = {
    "sasl-mechanisms": {"requests": MECHANISMS},
    "sasl-init": {"replies": MECHANISMS, "requests": OUTCOME},
    "sasl-challenge": {"replies": OUTCOME, "requests": RESPONSE},
    "sasl-response": {"replies": RESPONSE, "requests": OUTCOME},
    "sasl-outcome": {"replies": OUTCOME},
    "open": {"requests": OPENING, "replies": OPENING},
    "close": {"requests": CLOSING, "replies": CLOSING, "closes_connection": 1},
    "connection.start": {"requests": MECHANISMS},
    "connection.start-ok": {"replies": MECHANISMS},
    "connection.secure": {"requests": RESPONSE},
    "connection.secure-ok": {"replies": RESPONSE},
    "connection.tune": {"requests": TUNING},
    "connection.tune-ok": {"replies": TUNING},
    "connection.open": {"requests": OPENING},
    "connection.open-ok": {"replies": OPENING},
    "connection.redirect": {"replies": OPENING},
    "connection.close": {"requests": CLOSING, "closes_connection": 1},
    "connection.close-ok": {"replies": CLOSING},
}
ROLES: dict[str, dict[str, int]] = {
    "begin": {**_OF_1_0, "opens_session": 1, "announces_windows": 1},
    "end": {**_OF_1_0, "closes_session": 1, "states_reason": 1},
    "attach": {**_ON_HANDLE, "attaches": 1},
    "flow": {**_ON_HANDLE, "announces_windows": 1, "states_credit": 1, "replies": FLOW},
    "transfer": {**_ON_HANDLE, "transfers": 1},
    "detach": {**_ON_HANDLE, "detaches": 1},
    "disposition": {"own_numbers": 1, "settles": 1, "states_outcome": 1},
    **{
        name: {"of_connection": 1, "own_numbers": int("." not in name), **role} for name, role in _OF_CONNECTION.items()
    },
    "session.attach": {**_OF_0_10, "opens_session": 1},
    "session.attached": {**_OF_0_10, "answers_attach": 1},
    "session.request-timeout": {"requests": TIMEOUT},
    "session.timeout": {**_OF_0_10, "grants_timeout": 1, "replies": TIMEOUT},
    "session.flush": {},  # asks by its arguments
    "session.expected": {"replies": EXPECTED, "names_commands": 1},
    "session.confirmed": {"replies": CONFIRMING, "names_commands": 1},
    "session.known-completed": {"replies": KNOWN_COMPLETED, "names_commands": 1},
    "session.detach": {**_OF_0_10, "closes_session": 1},
    "session.detached": {**_OF_0_10, "closes_session": 1, "answers_detach": 1},
    "message.subscribe": {**_OF_SUBSCRIPTION, "subscribes": 1},
    "message.cancel": {**_OF_SUBSCRIPTION, "cancels": 1},
    "message.flow": {**_OF_SUBSCRIPTION, "grants_credit": 1},
    "message.set-flow-mode": {**_OF_SUBSCRIPTION, "sets_flow_mode": 1, "zeroes_credit": ZEROES},
    "message.stop": {**_OF_SUBSCRIPTION, "zeroes_credit": ZEROES},
    "message.flush": {**_OF_SUBSCRIPTION, "zeroes_credit": FLUSHES},
    "message.transfer": {**_OF_SUBSCRIPTION, "transfers": 1, "transactional": 1},
    "message.accept": {"settles": 1, "names_transfers": 1, "transactional": 1},
    "message.reject": {"settles": 1, "names_transfers": 1, "may_return": 1},
    "message.release": {"settles": 1, "names_transfers": 1},
    "message.acquire": {"names_transfers": 1},
    "session.completed": {"settles": 1, "completes": 1, "replies": COMPLETED, "names_commands": 1},
    "execution.result": {"settles": 1, "reports_status": 1},
    "execution.exception": {**_OF_0_10, "settles": 1, "states_reason": 1, "refuses": 1},
    "tx.select": {**_IN_TRANSACTIONS, "mode": 2},
    "dtx.select": {**_IN_TRANSACTIONS, "mode": 3},
    "tx.commit": {**_IN_TRANSACTIONS, "ends_transaction": COMMITS, "of_session": 1, "proves_mode": 2},
    "tx.rollback": {**_IN_TRANSACTIONS, "ends_transaction": ROLLS_BACK, "of_session": 1, "proves_mode": 2},
    "dtx.commit": {**_IN_TRANSACTIONS, "ends_transaction": COMMITS, "names_branch": 1},
    "dtx.rollback": {**_IN_TRANSACTIONS, "ends_transaction": ROLLS_BACK, "names_branch": 1},
    "dtx.prepare": {"names_branch": 1, "in_transactions": 1},
    "dtx.start": {**_IN_TRANSACTIONS, "starts_branch": 1, "names_branch": 1, "proves_mode": 3},
    "dtx.end": {**_IN_TRANSACTIONS, "ends_branch": 1, "names_branch": 1, "proves_mode": 3},
}
# What a command does to the session is answered by its result, its exception, or its completion. Transfers and what
# settles them are no requests: table messages has their outcomes.
for _class in fact_table("0-10")["classes"]:
    for _kind in ("controls", "commands"):
        for _entry in _class.get(_kind, ()):
            _role = ROLES.setdefault(f"{_class['name']}.{_entry['name']}", {})
            if _class["name"] == "connection":
                _role["of_connection"] = 1
            if _entry.get("sent_by") in SIDES:
                _role["sent_by"] = 1 << SIDES.index(_entry["sent_by"])
            if _kind == "commands":
                _role["is_command"] = 1
                _role["gives_result"] = int(bool(_entry.get("result")))
                if not _role.keys() & {"transfers", "settles"}:
                    _role["awaits"] = 1
ROLES["session.command-point"]["points"] = 1
NAMES = tuple(ROLES)
# Frames that settle: a partial one hides a settlement.
SETTLES = tuple(name for name, role in ROLES.items() if role.get("settles"))
# Frames that are requests if one of these arguments is true: name -> arguments, the first one that is true counts, and
# the exchange of the reply (0-10: class session; 1.0: 2.7.4, echo).
ASKS = {
    "session.flush": {"completed": COMPLETED, "confirmed": CONFIRMING, "expected": EXPECTED},
    "session.completed": {"timely_reply": KNOWN_COMPLETED},
    "flow": {"echo": FLOW},
}
# Frames that the other side answers.
_ASK = {"requests", "awaits", "attaches", "detaches", "opens_session", "closes_session"}
REQUEST_NAMES = tuple(name for name, role in ROLES.items() if role.keys() & _ASK and not role.get("answers_detach"))


def names_with(role: str) -> tuple[str, ...]:
    """The names that do this."""
    return tuple(name for name, fields in ROLES.items() if fields.get(role))


# Required fields that clients and brokers leave out; they mean the first mode, or no error.
LEFT_OUT = ("accept-mode", "acquire-mode", "code")
# Not all arguments of these are in rows.
LOGIN = ("connection.start-ok", "connection.secure", "connection.secure-ok")


def _required(name: str) -> tuple[str, ...]:
    """The fields that a control or command of 0-10 must have."""
    of_class, _, own = name.partition(".")
    classes: list[dict[str, Any]] = fact_table("0-10")["classes"]
    entries = next((each for each in classes if each["name"] == of_class), {})
    return tuple(
        field["name"].replace("-", "_")
        for entry in (*entries.get("controls", ()), *entries.get("commands", ()))
        for field in entry["fields"]
        if entry["name"] == own and name not in LOGIN and field["required"] and field["name"] not in LEFT_OUT
    )


REQUIRED = ((), *map(_required, NAMES))  # by the number of the name


def compiled_roles() -> np.ndarray:
    """ROLES as the kernels read them: ROLE by the number of the name, from 1 on."""
    rows = np.zeros(len(NAMES) + 1, ROLE)
    for number, role in enumerate(ROLES.values(), start=1):
        assert set(role) <= set(ROLE_FIELDS)
        for field, value in role.items():
            rows[field][number] = value
    return as_records(rows)


def outcome_numbers(names: tuple[str, ...]) -> np.ndarray:
    """OUTCOME_OF as numbers of OUTCOMES: int64 (names + 1, 2), by name, from 1 on, and sender; 0 for none."""
    numbers = np.zeros((len(names) + 1, len(SIDES)), np.int64)
    for at, name in enumerate(names, start=1):
        for side, outcome in OUTCOME_OF.get(name, {}).items():
            numbers[at, SIDES.index(side)] = OUTCOMES.index(outcome) + 1
    return numbers
