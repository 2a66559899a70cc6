"""Columns of performatives of AMQP 1.0 that the checks read, and their records.

An endpoint is one side of a session, from its begin to its end; the session has the channel number of the endpoint
that began it. Its incoming window is 0 since `shut_ns`. An end is one side of a link, from its attach to its detach;
two ends of one name and opposite roles are a link.
"""

from __future__ import annotations

from collections import namedtuple

from codec.conversation.states import blank

NEW_ENDPOINT = blank(
    "side channel incarnation mapped other? answered begun_ns begun_frame handle_max first_out sent allowed echo_ns? "
    "echo_frame ended_ns? ended_frame end_answered last_delivery? first_link? next? shut_ns? shut_frame"
)
NEW_END = blank(
    "endpoint attached receiver snd_mode rcv_mode max_size outcomes unsettled peer? attach_frame refused_ns? "
    "detach_ns? detach_frame closed detach_answered initial open delivery_id tag message_format settled octets frame "
    "count credit_to before_cut cut_ns drain_ns? drain_frame next awaiting awaited_ns coordinator transactions work"
)


class Rows(
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
