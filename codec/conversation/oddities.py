"""Oddities: what a side does against the rules of sessions and links, and the answers that it owes, as rows.

The trackers note them as they follow the frames: a row names the frame, the side, and two numbers, the one that is odd
and the one in its place. Nothing is odd that bytes which were not captured may explain: NEEDS says what each oddity
takes for granted. Within a round trip a side cannot know what the other one has sent (`may_not_know`).

    now(o, rows, i, numbers)                                # of row i of the tracker
    note(o, NAME, observed, expected, about)
    late(o, NAME, side, frame_no, since_ns, about)          # unless the answer to `frame_no` came within a second
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel, outlined
from codec.memory import sparse_zeros
from codec.protocol.rows import MIDDLE

NONE = -1
SERIAL, HALF = 1 << 32, 1 << 31  # delivery ids, transfer ids, command ids and credit count modulo this (RFC 1982)
LEAST_NS = 10**9  # answers within this are not late

# What must have been captured: the frame alone, all bytes before it, all bytes of its connection before it.
FRAME, COMPLETE, BEGINNING = range(3)
NEEDS_OF = {
    # 1.0
    "sasl-order": BEGINNING, "frame-too-large": COMPLETE, "open-misplaced": BEGINNING, "open-channel": COMPLETE,
    "no-session": BEGINNING, "channel-above-max": BEGINNING, "begin-twice": BEGINNING, "remote-channel": BEGINNING,
    "begin-unanswered": COMPLETE, "window-exceeded": BEGINNING, "next-incoming-id": BEGINNING,
    "next-outgoing-id": BEGINNING, "after-end": BEGINNING, "end-unanswered": COMPLETE, "end-error": FRAME,
    "echo-unanswered": COMPLETE, "delivery-id-order": BEGINNING, "handle-in-use": BEGINNING,
    "handle-above-max": BEGINNING, "handle-unattached": BEGINNING, "attach-role": BEGINNING,
    "no-initial-count": FRAME, "refused-not-detached": COMPLETE, "transfer-by-receiver": BEGINNING,
    "no-credit": BEGINNING, "flow-without-handle": FRAME, "drain-unanswered": COMPLETE, "after-detach": BEGINNING,
    "detach-unanswered": COMPLETE, "detach-error": FRAME, "dynamic-address": FRAME, "settle-mode": BEGINNING,
    "receiver-mode": BEGINNING, "first-incomplete": BEGINNING, "tag-too-long": FRAME, "tag-in-use": BEGINNING,
    "continuation-differs": BEGINNING, "deliveries-mixed": BEGINNING, "delivery-unfinished": BEGINNING,
    "aborted": COMPLETE, "message-too-large": BEGINNING, "resume-unknown": BEGINNING,
    "disposition-unknown": BEGINNING, "disposition-reversed": FRAME, "settled-without-outcome": BEGINNING,
    "outcome-not-agreed": BEGINNING, "never-settled": COMPLETE, "detach-not-closed": COMPLETE,
    "transaction-unknown": BEGINNING, "not-coordinated": BEGINNING, "transaction-open": COMPLETE,
    "window-closed": COMPLETE, "sent-while-closed": COMPLETE, "taken-back": FRAME,
    # 0-10
    "control-channel": FRAME, "not-attached": BEGINNING, "no-command-point": BEGINNING, "channel-busy": BEGINNING,
    "channel-above": BEGINNING, "session-twice": BEGINNING, "ids-unknown": BEGINNING,
    "known-completed-repeated": BEGINNING, "completed-unanswered": COMPLETE, "sync-unanswered": COMPLETE,
    "result-unknown": BEGINNING, "result-missing": BEGINNING, "exception": FRAME, "after-exception": BEGINNING,
    "detach-waits": COMPLETE, "detached-code": FRAME, "without-credit": BEGINNING, "no-subscription": BEGINNING,
    "destination-in-use": BEGINNING, "destination-unknown": BEGINNING, "transfers-unknown": BEGINNING,
    "mode-with-credit": BEGINNING, "after-stop": BEGINNING, "transaction-order": BEGINNING,
    "implicit-accept": BEGINNING, "branch-order": BEGINNING, "message-rejected": FRAME, "set-malformed": FRAME,
    "wrong-side": FRAME, "required-missing": FRAME, "command-offset": COMPLETE,
}  # fmt: skip
NAMES = tuple(NEEDS_OF)
NEEDS = np.array([*NEEDS_OF.values()])
(
    SASL_ORDER, FRAME_TOO_LARGE, OPEN_MISPLACED, OPEN_CHANNEL, NO_SESSION, CHANNEL_ABOVE_MAX, BEGIN_TWICE,
    REMOTE_CHANNEL, BEGIN_UNANSWERED, WINDOW_EXCEEDED, NEXT_INCOMING_ID, NEXT_OUTGOING_ID, AFTER_END, END_UNANSWERED,
    END_ERROR, ECHO_UNANSWERED, DELIVERY_ID_ORDER, HANDLE_IN_USE, HANDLE_ABOVE_MAX, HANDLE_UNATTACHED, ATTACH_ROLE,
    NO_INITIAL_COUNT, REFUSED_NOT_DETACHED, TRANSFER_BY_RECEIVER, NO_CREDIT, FLOW_WITHOUT_HANDLE, DRAIN_UNANSWERED,
    AFTER_DETACH, DETACH_UNANSWERED, DETACH_ERROR, DYNAMIC_ADDRESS, SETTLE_MODE, RECEIVER_MODE, FIRST_INCOMPLETE,
    TAG_TOO_LONG, TAG_IN_USE, CONTINUATION_DIFFERS, DELIVERIES_MIXED, DELIVERY_UNFINISHED, ABORTED, MESSAGE_TOO_LARGE,
    RESUME_UNKNOWN, DISPOSITION_UNKNOWN, DISPOSITION_REVERSED, SETTLED_WITHOUT_OUTCOME, OUTCOME_NOT_AGREED,
    NEVER_SETTLED, DETACH_NOT_CLOSED, TRANSACTION_UNKNOWN, NOT_COORDINATED, TRANSACTION_OPEN, WINDOW_CLOSED,
    SENT_WHILE_CLOSED, TAKEN_BACK,
    CONTROL_CHANNEL, NOT_ATTACHED, NO_COMMAND_POINT, CHANNEL_BUSY, CHANNEL_ABOVE, SESSION_TWICE, IDS_UNKNOWN,
    KNOWN_COMPLETED_REPEATED, COMPLETED_UNANSWERED, SYNC_UNANSWERED, RESULT_UNKNOWN, RESULT_MISSING, EXCEPTION,
    AFTER_EXCEPTION, DETACH_WAITS, DETACHED_CODE, WITHOUT_CREDIT, NO_SUBSCRIPTION, DESTINATION_IN_USE,
    DESTINATION_UNKNOWN, TRANSFERS_UNKNOWN, MODE_WITH_CREDIT, AFTER_STOP, TRANSACTION_ORDER, IMPLICIT_ACCEPT,
    BRANCH_ORDER, MESSAGE_REJECTED, SET_MALFORMED, WRONG_SIDE, REQUIRED_MISSING, COMMAND_OFFSET,
) = range(len(NAMES))  # fmt: skip

# Cells of a row; NONE: null. SINCE: the wait lasts since then at the end of the connection, which has no time yet:
# WAITED and TS are NONE. MISSING: a text of the caller.
CELLS = (
    "connection_id", "frame_no", "ts_ns", "side", "channel", "channel_incarnation", "name", "observed", "expected",
    "about_frame_no", "waited_ns", "since_ns", "missing",
)  # fmt: skip
(
    CONNECTION, FRAME_NO, TS, SIDE, CHANNEL, INCARNATION, NAME, OBSERVED, EXPECTED, ABOUT, WAITED, SINCE, MISSING,
) = range(len(CELLS))  # fmt: skip
KNOWN, GRACE = NAME, OBSERVED  # cells of `Oddities.now` instead: what was captured, as in NEEDS; a round trip
UNKNOWN_TRIP_NS = 10**9
MOST_OF_A_FRAME = 12


class Oddities(NamedTuple):
    """`rows` int64 (n, CELLS), of which the first `used` (1,) are there; `now` int64 (CELLS,): the frame that is
    followed, with the channel of its session."""

    rows: np.ndarray
    used: np.ndarray
    now: np.ndarray


def new_oddities() -> Oddities:
    """No rows, and no room."""
    return Oddities(new_rows(0), np.zeros(1, np.int64), np.zeros(len(CELLS), np.int64))


def new_rows(count: int) -> np.ndarray:
    """Room for so many rows."""
    return np.asarray(sparse_zeros((count, len(CELLS)), np.int64))


def with_room(oddities: Oddities, frames: int) -> Oddities:
    """Room for what so many frames add to the rows."""
    count, more = int(oddities.used[0]), MOST_OF_A_FRAME * frames
    if count + more <= len(oddities.rows):
        return oddities
    rows = new_rows(count + more)
    rows[:count] = oddities.rows[:count]
    return oddities._replace(rows=rows)


def take(oddities: Oddities) -> np.ndarray:
    """Remove and return the rows."""
    found = oddities.rows[: oddities.used[0]].copy()
    oddities.used[0] = 0
    return found


@kernel
def now(o, rows, i, lost_ns):
    """Row `i` is followed. `lost_ns`: when bytes were lost first, 0 for never."""
    rtt_ns, now = rows.rtt_ns[i], o.now
    now[CONNECTION], now[FRAME_NO], now[TS] = rows.connection_id[i], rows.frame_no[i], rows.ts_ns[i]
    now[SIDE], now[CHANNEL], now[INCARNATION] = rows.sender[i], NONE, NONE
    now[GRACE] = rtt_ns if rtt_ns >= 0 else UNKNOWN_TRIP_NS
    now[KNOWN] = FRAME if 0 < lost_ns < rows.ts_ns[i] else COMPLETE if rtt_ns == MIDDLE else BEGINNING


@outlined
def note(o, name, observed, expected, about):
    """Note an oddity of the frame that is followed, unless too little was captured; returns its row, or NONE."""
    if NEEDS[name] > o.now[KNOWN]:
        return NONE
    at = o.used[0]
    o.used[0] += 1
    for cell in range(NAME):
        o.rows[at, cell] = o.now[cell]
    o.rows[at, NAME] = name
    o.rows[at, OBSERVED] = observed
    o.rows[at, EXPECTED] = expected
    o.rows[at, ABOUT] = about
    o.rows[at, WAITED] = NONE
    o.rows[at, SINCE] = NONE
    o.rows[at, MISSING] = 0
    return at


@outlined
def late(o, name, side, frame_no, since_ns, about):
    """Note that `side` let the other one wait since `since_ns`, when it sent `frame_no`, until now."""
    waited = o.now[TS] - since_ns
    if waited > LEAST_NS:
        at = note(o, name, NONE, NONE, about)
        if at != NONE:
            o.rows[at, FRAME_NO] = frame_no
            o.rows[at, SIDE] = side
            o.rows[at, WAITED] = waited


@kernel
def may_not_know(o, since_ns):
    """Whether the sender of the frame may not have read yet what the other side sent at `since_ns`: within a round trip
    and the time that programs take."""
    return o.now[TS] - since_ns <= max(o.now[GRACE], LEAST_NS)


@kernel
def after(number, other):
    """How far `number` is behind `other` (serial arithmetic): negative when it is before."""
    return (number - other + HALF) % SERIAL - HALF
