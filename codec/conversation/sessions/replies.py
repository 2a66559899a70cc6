"""Requests of connections, sessions and links, and their replies.

Each connection, session and link has cells in which its requests wait, by exchange and side. The next frame of the
other side that replies in the same exchange is the reply. Sessions and links may have several requests before it: it
serves them all (1.0 core specification, 2.7.4, echo; 0-10 specification, session.completed, merged-reply). These wait
in an unsettled map (`transfers.pair`), and the cell has the first one. Nothing is paired across a loss.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.conversation.sessions.state import (
    CONNECTION,
    REQUEST_CELLS,
    REQUEST_FRAME,
    REQUEST_LOSSES,
    REQUEST_NS,
    REQUESTS,
    losses,
    new_record,
)


@kernel
def request_cell(exchange, side):
    """The first of the cells in which a request of `side` waits."""
    return ((exchange - 1) * 2 + side) * REQUEST_CELLS


@kernel
def waits(s, cells, at):
    """Whether a request waits, and its reply cannot be among lost bytes."""
    return cells[at + REQUEST_FRAME] != 0 and cells[at + REQUEST_LOSSES] == losses(s.numbers)


@kernel
def ask(s, cells, at, rows, i):
    """Row `i` is a request."""
    cells[at + REQUEST_FRAME] = rows.frame_no[i] + 1
    cells[at + REQUEST_NS] = rows.ts_ns[i]
    cells[at + REQUEST_LOSSES] = losses(s.numbers)


@kernel
def reply(s, cells, at, rows, i):
    """Row `i` is the reply to a request, if it waits; returns whether it is."""
    asked = waits(s, cells, at)
    if asked:
        found = s.replies.rows[new_record(s.replies)]
        found.connection = s.numbers[CONNECTION]
        found.frame_no = cells[at + REQUEST_FRAME] - 1
        found.ts_ns = cells[at + REQUEST_NS]
        found.reply_frame_no = rows.frame_no[i]
        found.reply_ts_ns = rows.ts_ns[i]
        found.name = rows.name[i]
    cells[at + REQUEST_FRAME] = 0
    return asked


@kernel
def pair_of_connection(s, rows, i, role):
    """Row `i` replies to the other side, or asks. What does both, as open, asks only if it is no reply."""
    sender, replied = rows.sender[i], False
    if role.replies:
        replied = reply(s, s.numbers, REQUESTS + request_cell(role.replies, 1 - sender), rows, i)
    if role.requests and not (replied and role.requests == role.replies):
        ask(s, s.numbers, REQUESTS + request_cell(role.requests, sender), rows, i)
