"""State of the checks: records of the current connection, and the oddities that were found.

Records are those of `codec.conversation.states.blank`; NONE is "not known". Times are ns.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.conversation.states import blank, with_capacity
from codec.hashes.maps import (
    HashMap,
    clear,
    get,
    needs_room,
    new_map,
    put,
)
from codec.hashes.maps import with_room as keyed_with_room

NONE = -1
CLIENT, SERVER = 0, 1
GONE = 0  # value of a key that stands for nothing any more
SERIAL = 1 << 32  # delivery ids, transfer ids, command ids and credit count modulo this (RFC 1982)
HALF = 1 << 31
LEAST_NS = 10**9  # answers within this are not noted as late
STEPS_A_ROW = 64  # ids of ranges that a connection may look up, for each row so far

# Name -> what was noticed; rules in pipeline.audit.detectors name these.
ODDITIES = (
    # 1.0
    "sasl-order", "frame-too-large", "open-misplaced", "open-channel", "no-session", "channel-above-max",
    "begin-twice", "remote-channel", "begin-unanswered", "window-exceeded", "next-incoming-id", "next-outgoing-id",
    "after-end", "end-unanswered", "end-error", "echo-unanswered", "delivery-id-order", "handle-in-use",
    "handle-above-max", "handle-unattached", "attach-role", "no-initial-count", "refused-not-detached",
    "transfer-by-receiver", "no-credit", "flow-without-handle", "drain-unanswered", "after-detach",
    "detach-unanswered", "detach-error", "dynamic-address", "settle-mode", "receiver-mode", "first-incomplete",
    "tag-too-long", "tag-in-use", "continuation-differs", "deliveries-mixed", "delivery-unfinished", "aborted",
    "message-too-large", "resume-unknown", "disposition-unknown", "disposition-reversed", "settled-without-outcome",
    "outcome-not-agreed", "never-settled", "detach-not-closed",
    # 0-10
    "control-channel", "not-attached", "no-command-point", "channel-busy", "channel-above", "session-twice",
    "ids-unknown", "known-completed-repeated", "completed-unanswered", "sync-unanswered", "result-unknown",
    "result-missing", "exception", "after-exception", "detach-waits", "detached-code", "without-credit",
    "no-subscription", "destination-in-use", "destination-unknown", "transfers-unknown", "mode-with-credit",
    "after-stop", "transaction-order", "implicit-accept", "branch-order", "message-rejected", "set-malformed",
    "wrong-side", "required-missing", "command-offset", "transaction-unknown", "not-coordinated", "transaction-open",
    # 1.0
    "window-closed", "sent-while-closed", "taken-back",
)  # fmt: skip
(
    SASL_ORDER, FRAME_TOO_LARGE, OPEN_MISPLACED, OPEN_CHANNEL, NO_SESSION, CHANNEL_ABOVE_MAX,
    BEGIN_TWICE, REMOTE_CHANNEL, BEGIN_UNANSWERED, WINDOW_EXCEEDED, NEXT_INCOMING_ID, NEXT_OUTGOING_ID,
    AFTER_END, END_UNANSWERED, END_ERROR, ECHO_UNANSWERED, DELIVERY_ID_ORDER, HANDLE_IN_USE,
    HANDLE_ABOVE_MAX, HANDLE_UNATTACHED, ATTACH_ROLE, NO_INITIAL_COUNT, REFUSED_NOT_DETACHED,
    TRANSFER_BY_RECEIVER, NO_CREDIT, FLOW_WITHOUT_HANDLE, DRAIN_UNANSWERED, AFTER_DETACH,
    DETACH_UNANSWERED, DETACH_ERROR, DYNAMIC_ADDRESS, SETTLE_MODE, RECEIVER_MODE, FIRST_INCOMPLETE,
    TAG_TOO_LONG, TAG_IN_USE, CONTINUATION_DIFFERS, DELIVERIES_MIXED, DELIVERY_UNFINISHED, ABORTED,
    MESSAGE_TOO_LARGE, RESUME_UNKNOWN, DISPOSITION_UNKNOWN, DISPOSITION_REVERSED, SETTLED_WITHOUT_OUTCOME,
    OUTCOME_NOT_AGREED, NEVER_SETTLED, DETACH_NOT_CLOSED,
    CONTROL_CHANNEL, NOT_ATTACHED, NO_COMMAND_POINT, CHANNEL_BUSY, CHANNEL_ABOVE, SESSION_TWICE,
    IDS_UNKNOWN, KNOWN_COMPLETED_REPEATED, COMPLETED_UNANSWERED, SYNC_UNANSWERED, RESULT_UNKNOWN,
    RESULT_MISSING, EXCEPTION, AFTER_EXCEPTION, DETACH_WAITS, DETACHED_CODE, WITHOUT_CREDIT,
    NO_SUBSCRIPTION, DESTINATION_IN_USE, DESTINATION_UNKNOWN, TRANSFERS_UNKNOWN, MODE_WITH_CREDIT,
    AFTER_STOP, TRANSACTION_ORDER, IMPLICIT_ACCEPT, BRANCH_ORDER, MESSAGE_REJECTED, SET_MALFORMED,
    WRONG_SIDE, REQUIRED_MISSING, COMMAND_OFFSET, TRANSACTION_UNKNOWN, NOT_COORDINATED, TRANSACTION_OPEN,
    WINDOW_CLOSED, SENT_WHILE_CLOSED, TAKEN_BACK,
) = range(len(ODDITIES))  # fmt: skip

HITS_A_ROW, HITS_A_RECORD = 12, 4

# Cells of `State.numbers`.
(
    CONNECTION, STARTED, ENDPOINTS, LINKS, HITS, STEPS, LAST_NS, SASL_STEP, OPENED, FRAME_MAX, CHANNEL_MAX, OPEN_NS,
    CLOSED_NS, SASL_ODD,
) = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17)  # fmt: skip
NUMBERS = 20

# Keys: what they lead to, then numbers.
KIND_SHIFT, PLACE_SHIFT = 58, 33
(
    K_ENDPOINT, K_LIFE, K_HANDLE, K_NAME, K_DELIVERY, K_TAG, K_CHANNEL, K_DESTINATION, K_TRANSFER, K_RESULT, K_SESSION,
    K_BRANCH, K_TRANSACTION, K_UNANSWERED, K_FLUSH,
) = range(1, 16)  # fmt: skip
UNDER_KIND = (1 << KIND_SHIFT) - 1
NUMBER = (1 << PLACE_SHIFT) - 1


# An oddity. `waited_ns`: for how long an answer did not come; `about_frame_no`: of the link or message it is about.
NEW_HIT = blank(
    "connection_id frame_no ts_ns sender channel channel_incarnation oddity observed? expected? about_frame_no "
    "waited_ns?"
)


class State(NamedTuple):
    """`endpoints`, `links`: records of the current connection, which `found_by` finds; `new_endpoint`, `new_link`: such
    records when they are new. `hits`: as NEW_HIT. `numbers` int64 (NUMBERS,)."""

    endpoints: np.ndarray
    links: np.ndarray
    found_by: HashMap
    hits: np.ndarray
    numbers: np.ndarray
    new_endpoint: np.ndarray
    new_link: np.ndarray
    new_hit: np.ndarray


def new_state(endpoint: np.ndarray, link: np.ndarray) -> State:
    """The state before the first row; of a version's records when they are new."""
    numbers = np.zeros(NUMBERS, np.int64)
    return State(endpoint[:0], link[:0], new_map(), NEW_HIT[:0], numbers, endpoint, link, NEW_HIT)


def with_room(state: State, rows: int, keys_a_row: int) -> State:
    """`state` without its hits, with room for what so many rows add."""
    numbers = state.numbers
    endpoints, links = (
        with_capacity(records, int(numbers[cell]), rows)
        for records, cell in ((state.endpoints, ENDPOINTS), (state.links, LINKS))
    )
    hits = HITS_A_ROW * rows + HITS_A_RECORD * int(numbers[ENDPOINTS] + numbers[LINKS] + 2 * rows) + 1
    found_by = state.found_by
    if needs_room(found_by, keys_a_row * rows):
        smaller = new_map(len(found_by.keys))
        smaller.used[1] = found_by.used[1]
        _refill(smaller, found_by)
        found_by = keyed_with_room(smaller, keys_a_row * rows)
    numbers[HITS] = 0
    return state._replace(endpoints=endpoints, links=links, found_by=found_by, hits=with_capacity(state.hits, 0, hits))


@kernel
def _refill(fresh, table):
    """Put the entries of `table` that have a place into `fresh`; of tags those whose delivery has one."""
    for i in range(len(table.keys)):
        stands = table.epochs[i] == table.used[1] and table.values[i] != GONE
        if stands and (table.keys[i] >> KIND_SHIFT != K_TAG or get(table, table.values[i]) > 0):
            put(fresh, table.keys[i], table.values[i])


@kernel
def key_of(kind, place, number):
    """`place` is below 2**25, `number` below 2**33."""
    return (kind << KIND_SHIFT) | (place << PLACE_SHIFT) | number


@kernel
def hashed_key(kind, place, number):
    """The same for numbers of any size, such as hashes."""
    mixed = (number ^ (place * 0x9E3779B97F4A7C1)) & UNDER_KIND
    return (kind << KIND_SHIFT) | mixed


@kernel
def lookup(s, key):
    """The place of a key, or NONE. Places are stored from 1 on."""
    return max(get(s.found_by, key), 0) - 1


@kernel
def bind(s, key, place):
    """Set the place of a key."""
    put(s.found_by, key, place + 1)


@kernel
def begin_connection(s, connection):
    """Reset all but the hits for the next connection."""
    hits = s.numbers[HITS]
    s.numbers[:] = 0
    s.numbers[HITS] = hits
    s.numbers[STARTED] = 1
    s.numbers[CONNECTION] = connection
    clear(s.found_by)


@kernel
def add_endpoint(s):
    """The place of a new endpoint of the current connection."""
    at = s.numbers[ENDPOINTS]
    s.numbers[ENDPOINTS] += 1
    s.endpoints[at] = s.new_endpoint[0]
    return at


@kernel
def add_link(s):
    """The place of a new link of the current connection."""
    at = s.numbers[LINKS]
    s.numbers[LINKS] += 1
    s.links[at] = s.new_link[0]
    return at


@kernel
def _add_oddity(s, frame_no, ts_ns, sender, channel, incarnation, oddity, about):
    """Add an oddity of the current connection; returns its place."""
    at = s.numbers[HITS]
    s.numbers[HITS] += 1
    s.hits[at] = s.new_hit[0]
    hit = s.hits[at]
    hit.connection_id = s.numbers[CONNECTION]
    hit.frame_no = frame_no
    hit.ts_ns = ts_ns
    hit.sender = sender
    hit.channel = channel
    hit.channel_incarnation = incarnation
    hit.oddity = oddity
    hit.about_frame_no = about
    return at


@kernel
def note_at(s, rows, i, channel, incarnation, oddity, observed, expected, about):
    """Note an oddity of row `i`; NONE for no channel."""
    at = _add_oddity(s, rows.frame_no[i], rows.ts_ns[i], rows.sender[i], channel, incarnation, oddity, about)
    s.hits[at].observed = observed
    s.hits[at].expected = expected


@kernel
def note(s, rows, i, e, oddity, observed, expected, about):
    """Note an oddity of row `i` on the channel of endpoint `e`."""
    note_at(s, rows, i, e.channel, e.incarnation, oddity, observed, expected, about)


@kernel
def note_wait(s, frame_no, since_ns, until_ns, sender, e, oddity, about):
    """Note that `sender` let the other side wait for an answer to `frame_no`, on the channel of endpoint `e`."""
    if until_ns - since_ns > LEAST_NS:
        note_end(s, frame_no, until_ns, sender, e, oddity, about, until_ns - since_ns)


@kernel
def note_end(s, frame_no, until_ns, sender, e, oddity, about, waited):
    """Note that `frame_no` had no answer until `until_ns`; returns the place of the oddity."""
    at = _add_oddity(s, frame_no, until_ns, sender, e.channel, e.incarnation, oddity, about)
    s.hits[at].waited_ns = waited
    return at


@kernel
def may_not_know(rows, i, since_ns):
    """Whether the sender of row `i` may not have read yet what the other side sent at `since_ns`: within a round trip
    and the time that programs take."""
    return rows.ts_ns[i] - since_ns <= max(rows.grace_ns[i], LEAST_NS)


@kernel
def after(number, other):
    """How far `number` is behind `other` (serial arithmetic): negative when it is before."""
    return (number - other + HALF) % SERIAL - HALF


# Columns of controls and commands of AMQP 0-10 that the checks read, and their records.
#
# A channel carries one session at a time; each side numbers its commands.


NEW_CHANNEL = blank(
    "channel incarnation transport attached name asked_attach detach_ns? detach_frame detacher detached_ns by_detached "
    "tx dtx implicit failed? timeout_s left? flush_from? flush_to?",
    of_sides="point expects next? sync_id? sync_ns sync_frame timely_ns? timely_frame known_to? known_ns done_to? "
    "result_id? result_ns? result_frame",
)
# `left`: the channel of the session before, whose detach is not answered yet. `flush_from`, `flush_to`: ids of the
# first and the last message.flush that is not completed.
ASKED, READY, OVER = range(1, 4)  # `attached`, to channel `transport`
BEGINNING, REST = 1, 2  # `expects`: what command-point announces for the next frame
# `flush_id`: a message.flush that is not completed; `later`, `all_later`: messages that were allowed after it.
NEW_SUBSCRIPTION = blank(
    "active window messages all_messages byte_count stop_id? stopped zeroed_id? frame accept_none "
    "flush_id? later all_later"
)


class Controls(
    namedtuple(
        "Rows",
        "connection_id frame_no ts_ns grace_ns last_ns sender channel name channel_max is_command gives_result "
        "of_connection command_id sync key force code error_code timely_reply destination accept_mode flow_mode unit "
        "value command_offset timeout begins range_at range_first range_last",
    )
):
    """Controls and commands by connection and frame_no: columns int64 (n,). Truth values and numbers -1 when not there.
    `name`: `codec.checks.v0_10.NAMES`, from 1 on, 0 another one; `is_command`, `gives_result`: of its definition.
    `key` (name of a session, xid) and `destination` are hashes. Ranges of ids of row i: from `range_at[i]` to
    `range_at[i + 1]` (n + 1,) of `range_first`, `range_last`. `grace_ns`, `last_ns` as in 1.0; `channel_max`: agreed
    on, -1 not known. `begins`: 1 if a frame begins a command, 0 if it continues one; -1 for other frames."""


# Columns of performatives of AMQP 1.0 that the checks read, and their records.
#
# An endpoint is one side of a session, from its begin to its end; the session has the channel number of the endpoint
# that began it. Its incoming window is 0 since `shut_ns`. An end is one side of a link, from its attach to its detach;
# two ends of one name and opposite roles are a link.


NEW_ENDPOINT = blank(
    "side channel incarnation mapped other? answered begun_ns begun_frame handle_max first_out sent allowed echo_ns? "
    "echo_frame ended_ns? ended_frame end_answered last_delivery? first_link? next? shut_ns? shut_frame"
)
NEW_END = blank(
    "endpoint attached receiver snd_mode rcv_mode max_size outcomes unsettled peer? attach_frame refused_ns? "
    "detach_ns? detach_frame closed detach_answered initial open delivery_id tag message_format settled "
    "byte_count frame count credit_to before_cut cut_ns drain_ns? drain_frame next awaiting "
    "awaited_ns coordinator transactions work"
)


class Performatives(
    namedtuple(
        "Rows",
        "connection_id frame_no ts_ns grace_ns last_ns sender channel name size payload_size error channel_max "
        "max_frame_size remote_channel next_outgoing_id next_incoming_id incoming_window handle_max echo handle "
        "link_name is_receiver snd_settle_mode rcv_settle_mode initial_delivery_count max_message_size has_source "
        "has_target dynamic addressed outcomes unsettled delivery_count link_credit drain link_fields delivery_id tag "
        "tag_size message_format settled more resume aborted closed first last state transaction coordinates "
        "coordinator",
    )
):
    """Performatives by connection and frame_no: columns int64 (n,). Truth values, numbers and texts as numbers -1 when
    not there. `name`: NAMES, from 1 on. `grace_ns`: how long a frame of the other side may be on its way; `last_ns`:
    end of the connection. `outcomes`: bits of the outcomes that a source allows, `state`: bit of an outcome, 0 of
    another state. `tag` and `transaction` are hashes (0: none); `coordinates`: of a transfer, 1 if it declares a
    transaction, 2 if it discharges one; `coordinator`: of an attach."""
