"""Stalls: times in which a side could not send, or did not get on, as one row each.

A stall is in fields of the record that it is about (a direction of TCP, a channel, a link), arrays with an element for
each kind of stall that the record may have:

    stall_from, stall_since, stall_until, stall_ns, stall_bytes, stall_frame, stall_packet, stall_file

`stall_from`: when it began, -1: there is none. `stall_since`: since when it lasts, -1: it is over, at `stall_until`,
but goes on if the next one begins soon (`continues`): a consumer that is busy all the time has one stall, not one for
each message. `stall_ns`: how long it lasted before `stall_since`. What has begun it: a frame, a packet, its file.

    if apart(record, k, ts_ns):                 # the next one does not continue it
        write(rows, count, record, k, ...)      # a row of CELLS; forgets it
    begin(record, k, ts_ns, frame_no, packet_no, file)
    end(record, k, ts_ns)

Shorter ones than `Limits.stall_ns` have no row.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS

KINDS = (
    "zero-window", "retransmission", "nagle", "silence", "no-credit", "prefetch-full", "session-window",
    "connection-blocked", "channel-flow", "unanswered-request",
)  # fmt: skip
(
    ZERO_WINDOW, RETRANSMISSION, NAGLE, SILENCE, NO_CREDIT, PREFETCH_FULL, SESSION_WINDOW, CONNECTION_BLOCKED,
    CHANNEL_FLOW, UNANSWERED_REQUEST,
) = range(len(KINDS))  # fmt: skip
TCP_KINDS = SILENCE + 1  # the first ones are about a direction of TCP

FIELDS = (
    "stall_from", "stall_since", "stall_until", "stall_ns", "stall_bytes", "stall_frame", "stall_packet", "stall_file",
)  # fmt: skip
# Cells of a row; -1: null. UNTIL -1: not known yet, it lasts since SINCE at the end of the connection. SIDE: 0 client,
# 1 server; UNKNOWN_SIDE and above, a direction whose side is not known yet. STILL_OPEN: 1 for a row that changes if the
# connection continues.
CELLS = (
    "connection", "channel", "incarnation", "link", "kind", "side", "from_ns", "until_ns", "stall_ns", "since_ns",
    "resumed", "bytes", "frame_no", "packet_no", "file", "still_open",
)  # fmt: skip
(
    CONNECTION, CHANNEL, INCARNATION, LINK, KIND, SIDE, FROM, UNTIL, LASTED, SINCE, RESUMED, BYTES, FRAME,
    PACKET, FILE, STILL_OPEN,
) = range(len(CELLS))  # fmt: skip
NONE = -1
UNKNOWN_SIDE = 2

SHORTEST_NS, BREAK_NS, LONGEST_BREAK_NS = LIMITS.stall_ns, LIMITS.stall_break_ns, LIMITS.stall_longest_break_ns
BREAK_SHARE = 4  # a break is bridged that is shorter than this part of the stall before it


def new_rows(count: int) -> np.ndarray:
    """Room for so many rows."""
    return np.zeros((count, len(CELLS)), np.int64)


@kernel
def apart(r, k, ts_ns):
    """Whether stall `k` of the record is over, and one that begins at `ts_ns` does not continue it."""
    if r.stall_from[k] == NONE or r.stall_since[k] != NONE:
        return False
    bridged = min(r.stall_ns[k] // BREAK_SHARE, LONGEST_BREAK_NS)
    return ts_ns - r.stall_until[k] > max(bridged, BREAK_NS)


@kernel
def begin(r, k, ts_ns, frame_no, packet_no, file):
    """Stall `k` of the record begins or goes on."""
    if r.stall_since[k] != NONE:
        return
    r.stall_since[k] = ts_ns
    if r.stall_from[k] == NONE:
        r.stall_from[k] = ts_ns
        r.stall_ns[k] = 0
        r.stall_bytes[k] = 0
        r.stall_frame[k] = frame_no
        r.stall_packet[k] = packet_no
        r.stall_file[k] = file


@kernel
def end(r, k, ts_ns):
    """Stall `k` of the record is over for now."""
    since = r.stall_since[k]
    if since != NONE:
        r.stall_ns[k] += max(0, ts_ns - since)
        r.stall_until[k] = max(ts_ns, since)
        r.stall_since[k] = NONE


@kernel
def forget(r, k):
    """The record has no stall `k`."""
    r.stall_from[k] = NONE
    r.stall_since[k] = NONE


@kernel
def write(rows, count, r, k, kind, side, until_ns):
    """Write stall `k` of the record, if it was long enough, and forget it: index of the row, NONE for none. `until_ns`:
    when what it is about ended, NONE: with the connection."""
    if r.stall_from[k] == NONE:
        return NONE
    since, lasted = r.stall_since[k], r.stall_ns[k]
    lasts = since != NONE
    if lasts and until_ns != NONE:
        lasted += max(0, until_ns - since)
    n = NONE
    if lasted >= SHORTEST_NS or (lasts and until_ns == NONE):
        n = count[0]
        count[0] += 1
        row = rows[n]
        row[CHANNEL], row[INCARNATION], row[LINK], row[STILL_OPEN] = NONE, NONE, NONE, 0
        row[KIND], row[SIDE] = kind, side
        row[FROM], row[LASTED] = r.stall_from[k], lasted
        row[UNTIL] = (NONE if until_ns == NONE else max(until_ns, since)) if lasts else r.stall_until[k]
        row[SINCE] = since if lasts and until_ns == NONE else NONE
        row[RESUMED] = 0 if lasts else 1
        row[BYTES] = r.stall_bytes[k] if r.stall_bytes[k] > 0 else NONE
        row[FRAME], row[PACKET], row[FILE] = r.stall_frame[k], r.stall_packet[k], r.stall_file[k]
    forget(r, k)
    return n


def last_rows(records: np.ndarray, kind: int, sides: np.ndarray, until_ns: np.ndarray) -> np.ndarray:
    """`write` for the first stall of each of some records that are over, which stays; LINK is the index of its record.
    `sides`, `until_ns` int64 (n,): as for `write`."""
    at = np.flatnonzero(records["stall_from"][:, 0] != NONE)
    own, until = records[at], until_ns[at]
    since, lasted = own["stall_since"][:, 0], own["stall_ns"][:, 0].copy()
    lasts, known = since != NONE, until != NONE
    lasted += np.where(lasts & known, np.maximum(until - since, 0), 0)
    rows = np.full((len(at), len(CELLS)), NONE)
    rows[:, KIND], rows[:, SIDE], rows[:, LINK] = kind, sides[at], at
    rows[:, FROM], rows[:, LASTED] = own["stall_from"][:, 0], lasted
    rows[:, UNTIL] = np.where(lasts, np.where(known, np.maximum(until, since), NONE), own["stall_until"][:, 0])
    rows[:, SINCE] = np.where(lasts & ~known, since, NONE)
    rows[:, RESUMED], rows[:, STILL_OPEN] = ~lasts, 0
    for cell, field in ((FRAME, "stall_frame"), (PACKET, "stall_packet"), (FILE, "stall_file")):
        rows[:, cell] = own[field][:, 0]
    long_enough: np.ndarray = (lasted >= SHORTEST_NS) | (lasts & ~known)
    return np.asarray(rows[long_enough])
