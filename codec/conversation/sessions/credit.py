"""Credit of subscriptions of AMQP 0-10: how long the server was not allowed to send.

A subscription begins in window mode without credit. message.flow adds messages or octets (payloads of header and body
frames; 2^32-1: no limit), and each transfer uses both. In window mode a transfer returns its credit when the client
completes it. message.stop and message.set-flow-mode set the credit to zero, after which earlier transfers return none.
Credit is never negative: transfers sent before a stop arrived are not owed. (0-10 specification, class message:
subscribe, set-flow-mode, flow, stop.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.conversation.sessions.semantics import DEFAULT_FLOW_MODE
from codec.conversation.sessions.state import NO_LIMIT, NONE

WINDOW = DEFAULT_FLOW_MODE


class Changes(NamedTuple):
    """Changes of credit by subscription and frame_no: columns int64 (n,). `sent_frame_no`: of returned credit, the
    transfer that used it, else -1. `until_ns`: the end of the session."""

    link: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    messages: np.ndarray
    octets: np.ndarray
    sent_frame_no: np.ndarray
    zeroes: np.ndarray
    flow_mode: np.ndarray
    cancels: np.ndarray
    until_ns: np.ndarray


@kernel
def _balance(limitless, left):
    return 1 if limitless else left


@kernel
def idle_times(changes, found):
    """Add to `found`, int64 by link, the time without credit."""
    n, i = len(changes.link), 0
    messages, octets, all_messages, all_octets, zeroed, window, over = 0, 0, 0, 0, 0, WINDOW, 0
    while i < n:
        link, frame_no = changes.link[i], changes.frame_no[i]
        if i == 0 or changes.link[i - 1] != link:
            messages, octets, all_messages, all_octets, zeroed, window, over = 0, 0, 0, 0, 0, WINDOW, 0
        end = i
        while end < n and changes.link[end] == link and changes.frame_no[end] == frame_no:
            if changes.zeroes[end]:
                zeroed, messages, octets, all_messages, all_octets = frame_no, 0, 0, 0, 0
            if changes.flow_mode[end] != NONE:
                window = changes.flow_mode[end]
            over |= changes.cancels[end]
            end += 1
        more_messages, more_octets = 0, 0
        for k in range(i, end):
            sent = changes.sent_frame_no[k]
            if sent == NONE or (window == WINDOW and sent > zeroed):
                more_messages += changes.messages[k]
                more_octets += changes.octets[k]
            all_messages |= changes.messages[k] == NO_LIMIT
            all_octets |= changes.octets[k] == NO_LIMIT
        messages = max(0, messages + more_messages)
        octets = max(0, octets + more_octets)
        nothing = _balance(all_messages, messages) <= 0 or _balance(all_octets, octets) <= 0
        ts_ns = changes.ts_ns[end - 1]
        goes_on = end < n and changes.link[end] == link
        until = changes.ts_ns[end] if goes_on else max(changes.until_ns[end - 1], ts_ns)
        if nothing and not over:
            found[link] += until - ts_ns
        i = end
