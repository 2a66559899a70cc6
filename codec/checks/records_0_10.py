"""Columns of controls and commands of AMQP 0-10 that the checks read, and the cells of their records.

A channel carries one session at a time; each side numbers its commands. Of cells that both sides have, that of the
server follows that of the client.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Cells of a channel.
(
    NUMBER, INCARNATION, ATTACHED, NAME, DETACH_NS, DETACH_FRAME, DETACHER, DETACHED_NS, BY_DETACHED, TX, DTX, BRANCH,
    IMPLICIT, FAILED, POINT, NEXT, SYNC_ID, SYNC_NS, SYNC_FRAME, TIMELY_NS, TIMELY_FRAME, KNOWN_TO, KNOWN_NS,
    ASKED_ATTACH, DONE_TO, RESULT_ID, RESULT_NS, RESULT_FRAME, EXPECTS, TIMEOUT_S,
) = (*range(14), *range(14, 32, 2), 32, 33, 35, 37, 39, 41, 43)  # fmt: skip
NOT_YET, ASKED, READY, OVER = range(4)  # ATTACHED
BEGINNING, REST = 1, 2  # EXPECTS: what command-point announces for the next frame
# Cells of a subscription.
(
    ACTIVE, WINDOW, MESSAGES, ALL_MESSAGES, OCTETS, STOP_ID, STOPPED, ZEROED_ID, FRAME, ACCEPT_NONE,
) = range(10)  # fmt: skip


class Rows(NamedTuple):
    """Controls and commands by connection and frame_no: columns int64 (n,). Truth values and numbers -1 when not there.
    `name`: `codec.checks.v0_10.NAMES`, from 1 on, 0 another one; `is_command`, `gives_result`: of its definition.
    `key` (name of a session, xid) and `destination` are hashes. Ranges of ids of row i: from `range_at[i]` to
    `range_at[i + 1]` (n + 1,) of `range_first`, `range_last`. `grace_ns`, `last_ns` as in 1.0; `channel_max`: agreed
    on, -1 not known. `begins`: 1 if a frame begins a command, 0 if it continues one; -1 for other frames."""

    connection_id: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    grace_ns: np.ndarray
    last_ns: np.ndarray
    sender: np.ndarray
    channel: np.ndarray
    name: np.ndarray
    channel_max: np.ndarray
    is_command: np.ndarray
    gives_result: np.ndarray
    of_connection: np.ndarray
    command_id: np.ndarray
    sync: np.ndarray
    key: np.ndarray
    force: np.ndarray
    code: np.ndarray
    error_code: np.ndarray
    timely_reply: np.ndarray
    destination: np.ndarray
    accept_mode: np.ndarray
    flow_mode: np.ndarray
    unit: np.ndarray
    value: np.ndarray
    command_offset: np.ndarray
    timeout: np.ndarray
    begins: np.ndarray
    range_at: np.ndarray
    range_first: np.ndarray
    range_last: np.ndarray
