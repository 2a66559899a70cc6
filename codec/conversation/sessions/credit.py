"""Credit of subscriptions of AMQP 0-10: how long the server was not allowed to send.

A subscription begins in window mode without credit. message.flow adds messages or octets (payloads of header and body
frames; 2^32-1: no limit), and each transfer uses both. In window mode a transfer returns its credit when the client
completes it. message.stop and message.set-flow-mode set the credit to zero, after which earlier transfers return none.
So does message.flush once the server completes it, but for what was given after it.
Credit is never negative: transfers sent before a stop arrived are not owed. (0-10 specification, class message:
subscribe, set-flow-mode, flow, flush, stop.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec import stalls
from codec.compiler.kernel import kernel
from codec.conversation.sessions.semantics import DEFAULT_FLOW_MODE, FLUSHED, FLUSHES, ZEROES
from codec.conversation.sessions.state import NO_LIMIT, NONE, SERVER, STALL_FIELDS
from codec.conversation.states import blank

WINDOW = DEFAULT_FLOW_MODE
# The credit of a subscription after its changes so far. `zeroed`: frame in which it was set to zero; `since_ns`: since
# when there is none; `idle_ns`: how long there was none before; `losses`: those before its first change. `flushing`: a
# flush waits for its completion; `later_*`: what was given since.
NEW_CREDIT = blank(
    "connection link messages octets all_messages all_octets zeroed window over since_ns? idle_ns losses? "
    "flushing later_messages later_octets later_all_messages later_all_octets",
    "",
    **dict.fromkeys(STALL_FIELDS, 1),
)
NEW_CREDIT["window"] = WINDOW
CREDIT = NEW_CREDIT.dtype


class Changes(NamedTuple):
    """Changes of credit by subscription and frame_no: columns int64 (n,). `sent_frame_no`: of returned credit, the
    transfer that used it, else -1. `zeroes`: 0, or one of semantics.ZEROES, FLUSHES, FLUSHED. `losses`: those before
    it, -1 of returned credit."""

    link: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    messages: np.ndarray
    octets: np.ndarray
    sent_frame_no: np.ndarray
    zeroes: np.ndarray
    flow_mode: np.ndarray
    cancels: np.ndarray
    losses: np.ndarray
    packet_no: np.ndarray
    file: np.ndarray


@kernel
def _balance(limitless, left):
    return 1 if limitless else left


@kernel
def _change_stall(changes, i, credit, link, nothing, ts_ns, rows, count):
    """The server has no credit for a subscription, or has some; `i`: what changed that. After a loss its credit is not
    known."""
    if changes.losses[i] > credit.losses:
        stalls.forget(credit, 0)
        return
    if nothing and not credit.over:
        if stalls.apart(credit, 0, ts_ns):
            write_stall(rows, count, credit, link, NONE)
        stalls.begin(credit, 0, ts_ns, changes.frame_no[i], changes.packet_no[i], changes.file[i])
    elif nothing:
        write_stall(rows, count, credit, link, ts_ns)
    else:
        stalls.end(credit, 0, ts_ns)


@kernel
def write_stall(rows, count, credit, link, until_ns):
    """Write the stall of a subscription."""
    n = stalls.write(rows, count, credit, 0, stalls.NO_CREDIT, SERVER, until_ns)
    if n != NONE:
        rows[n, stalls.LINK] = link


@kernel
def apply_changes(changes, credits, rows, count):
    """Apply changes to `credits`, CREDIT by link: later ones continue there. Stalls are written to `rows`
    (`codec.stalls`; one for each change at most), with the indices of links."""
    n, i = len(changes.link), 0
    while i < n:
        link, frame_no = changes.link[i], changes.frame_no[i]
        credit = credits[link]
        end = i
        while end < n and changes.link[end] == link and changes.frame_no[end] == frame_no:
            zeroes = changes.zeroes[end]
            if zeroes in (ZEROES, FLUSHES):
                credit.later_messages = credit.later_octets = 0
                credit.later_all_messages = credit.later_all_octets = 0
            if zeroes == ZEROES or (zeroes == FLUSHED and credit.flushing):
                credit.zeroed = frame_no
                credit.messages, credit.octets = credit.later_messages, credit.later_octets
                credit.all_messages, credit.all_octets = credit.later_all_messages, credit.later_all_octets
            if zeroes:
                credit.flushing = zeroes == FLUSHES
            if changes.flow_mode[end] != NONE:
                credit.window = changes.flow_mode[end]
            credit.over |= changes.cancels[end]
            end += 1
        more_messages, more_octets = 0, 0
        for k in range(i, end):
            sent = changes.sent_frame_no[k]
            if sent == NONE or (credit.window == WINDOW and sent > credit.zeroed):
                more_messages += changes.messages[k]
                more_octets += changes.octets[k]
            all_messages, all_octets = changes.messages[k] == NO_LIMIT, changes.octets[k] == NO_LIMIT
            credit.all_messages |= all_messages
            credit.all_octets |= all_octets
            if credit.flushing and sent == NONE:
                credit.later_messages += max(changes.messages[k], 0)
                credit.later_octets += max(changes.octets[k], 0)
                credit.later_all_messages |= all_messages
                credit.later_all_octets |= all_octets
        credit.messages = max(0, credit.messages + more_messages)
        credit.octets = max(0, credit.octets + more_octets)
        nothing = _balance(credit.all_messages, credit.messages) <= 0 or _balance(credit.all_octets, credit.octets) <= 0
        ts_ns = changes.ts_ns[end - 1]
        if credit.since_ns != NONE:
            credit.idle_ns += ts_ns - credit.since_ns
        credit.since_ns = ts_ns if nothing and not credit.over else NONE
        _change_stall(changes, i, credit, link, nothing, ts_ns, rows, count)
        i = end
