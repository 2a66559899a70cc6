"""Columns of controls and commands of AMQP 0-10 that the checks read, and their records.

A channel carries one session at a time; each side numbers its commands.
"""

from __future__ import annotations

from collections import namedtuple

from codec.conversation.states import blank

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
    "active window messages all_messages octets stop_id? stopped zeroed_id? frame accept_none flush_id? later all_later"
)


class Rows(
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
