"""Columns of performatives of AMQP 1.0 that the checks read, and their records.

An endpoint is one side of a session, from its begin to its end; the session has the channel number of the endpoint that
began it. An end is one side of a link, from its attach to its detach; two ends of one name and opposite roles are a
link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.conversation.states import blank

NEW_ENDPOINT = blank(
    "side channel incarnation mapped other? answered begun_ns begun_frame handle_max first_out sent allowed echo_ns? "
    "echo_frame ended_ns? ended_frame end_answered last_delivery? first_link?"
)
NEW_END = blank(
    "endpoint attached receiver snd_mode rcv_mode max_size outcomes unsettled peer? attach_frame refused_ns? "
    "detach_ns? detach_frame closed detach_answered initial open delivery_id tag message_format settled octets frame "
    "count credit_to before_cut cut_ns drain_ns? drain_frame next awaiting awaited_ns coordinator transactions"
)


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
