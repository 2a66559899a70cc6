"""Columns of performatives of AMQP 1.0 that the checks read, and the cells of their records.

An endpoint is one side of a session, from its begin to its end; the session has the channel number of the endpoint that
began it. An end is one side of a link, from its attach to its detach; two ends of one name and opposite roles are a
link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Cells of an endpoint.
(
    SIDE, CHANNEL, INCARNATION, MAPPED, OTHER, NUMBER, ANSWERED, BEGUN_NS, BEGUN_FRAME, HANDLE_MAX, FIRST_OUT, SENT,
    ALLOWED, ECHO_NS, ECHO_FRAME, ENDED_NS, ENDED_FRAME, END_ANSWERED, LAST_DELIVERY, FIRST_LINK,
) = range(20)  # fmt: skip


# Cells of an end of a link.
(
    ENDPOINT, HANDLE, ATTACHED, RECEIVER, SND_MODE, RCV_MODE, MAX_SIZE, OUTCOMES, UNSETTLED, PEER, ATTACH_NS,
    ATTACH_FRAME, REFUSED_NS, DETACH_NS, DETACH_FRAME, CLOSED, DETACH_ANSWERED, INITIAL, OPEN, ID, TAG, FORMAT, SETTLED,
    SIZE, FRAME, COUNT, CREDIT_TO, BEFORE_CUT, CUT_NS, DRAIN_NS, DRAIN_FRAME, NEXT, AWAITING, AWAITED_NS,
    COORDINATOR, TRANSACTIONS,
) = range(36)  # fmt: skip


class Rows(NamedTuple):
    """Performatives by connection and frame_no: columns int64 (n,). Truth values, numbers and texts as numbers -1 when
    not there. `name`: NAMES, from 1 on. `grace_ns`: how long a frame of the other side may be on its way; `last_ns`:
    end of the connection. `outcomes`: bits of the outcomes that a source allows, `state`: bit of an outcome, 0 of
    another state. `tag` and `transaction` are hashes (0: none); `coordinates`: of a transfer, 1 if it declares a
    transaction, 2 if it discharges one; `coordinator`: of an attach."""

    connection_id: np.ndarray
    frame_no: np.ndarray
    ts_ns: np.ndarray
    grace_ns: np.ndarray
    last_ns: np.ndarray
    sender: np.ndarray
    channel: np.ndarray
    name: np.ndarray
    size: np.ndarray
    payload_size: np.ndarray
    error: np.ndarray
    channel_max: np.ndarray
    max_frame_size: np.ndarray
    remote_channel: np.ndarray
    next_outgoing_id: np.ndarray
    next_incoming_id: np.ndarray
    incoming_window: np.ndarray
    handle_max: np.ndarray
    echo: np.ndarray
    handle: np.ndarray
    link_name: np.ndarray
    is_receiver: np.ndarray
    snd_settle_mode: np.ndarray
    rcv_settle_mode: np.ndarray
    initial_delivery_count: np.ndarray
    max_message_size: np.ndarray
    has_source: np.ndarray
    has_target: np.ndarray
    dynamic: np.ndarray
    addressed: np.ndarray
    outcomes: np.ndarray
    unsettled: np.ndarray
    delivery_count: np.ndarray
    link_credit: np.ndarray
    drain: np.ndarray
    link_fields: np.ndarray
    delivery_id: np.ndarray
    tag: np.ndarray
    tag_size: np.ndarray
    message_format: np.ndarray
    settled: np.ndarray
    more: np.ndarray
    resume: np.ndarray
    aborted: np.ndarray
    closed: np.ndarray
    first: np.ndarray
    last: np.ndarray
    state: np.ndarray
    transaction: np.ndarray
    coordinates: np.ndarray
    coordinator: np.ndarray
