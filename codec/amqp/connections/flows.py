"""Flows, one after the other: begins and ends their connections, and adds segments to them.

`run` adds segments one by one in capture order (`codec.amqp.connections.transport`). After each it drains both
directions (`codec.amqp.stream`), in turns where bytes of one wait for the other (`codec.tcp.reassembly`). It can stop
anywhere for more room (codes `NEED_*`) and is called again with the same segment; `State` has everything in between.
`State` has one connection at a time: the caller passes segments flow by flow. A connection ends when another one begins
or the flow has no more segments; then `State.ended` has its records.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.classic.contents import reset_contents
from codec.amqp.connections.layered import begin_layers, end_layers, is_summary
from codec.amqp.connections.lifecycle import NO_CONNECTION, begin_connection, begin_flow, record_end, same_flow
from codec.amqp.connections.transport import opens_connection, take_segment
from codec.amqp.stream import can_continue, drain, end_connection, has_more, has_waiting_bytes
from codec.amqp.v1_0.delivery_slots import reset_deliveries
from codec.compiler.kernel import kernel
from codec.net.segments import IN_LAYERS
from codec.tcp.direction import DONE, NEED_ROWS

PLACE, DRAIN, DRAIN_PEER, ENDING = range(4)  # phases of the current segment; NO_CONNECTION is between two connections


@kernel
def end_current(state):
    """End the current connection and store its records; DONE or NEED_*."""
    code = end_connection(state)
    if code != DONE:
        return code
    if not record_end(state.ended, state.openings.flow, state.connection, state.directions, state.tls_prefix):
        return NEED_ROWS
    state.connection[0].phase = NO_CONNECTION
    return DONE


@kernel
def run(state, flows, ends, segments, payload, flow, i):
    """Add `segments[i:]` (SEGMENT records, flow by flow, their bytes in `payload`): (code, index of the current flow,
    of the current segment, direction that needs room or -1 for both). Flow f has key `flows[f]` and the segments before
    `ends[f]`; the first flow may continue the current one. In phase ENDING the current connection ends first."""
    c = state.connection[0]
    known = -1  # index of the flow that is known to be the current one
    while i < len(segments) or c.phase == ENDING:
        if c.phase == ENDING:
            code = end_current(state)
            if code != DONE:
                return code, flow, i, -1
            known = -1
            continue
        if i >= ends[flow]:
            flow += 1
            continue
        if flow != known and not same_flow(state.openings, flows[flow]):
            if c.phase == PLACE:
                c.phase = ENDING
                continue
            begin_flow(state.openings, flows[flow])
        known = flow
        g = segments[i]
        direction = int(np.int64(g.direction))
        d = state.directions[direction]
        peer = state.directions[1 - direction]
        if is_summary(g):
            end_layers(c, state.directions, g, payload)
            i += 1
            continue
        if c.phase == NO_CONNECTION:
            begin_connection(state.openings, state.connection, state.directions, g, int(state.rows.used[0]))
            for side in range(2):
                reset_contents(state.contents, side)
                reset_deliveries(state.deliveries, side)
                state.spans.used[side] = 0
            c.phase = PLACE
        if c.phase == PLACE:
            in_layers = g["flags"] & IN_LAYERS != 0
            if not (in_layers and c.in_layers) and opens_connection(d, peer, g):
                c.phase = ENDING
                continue
            if in_layers:
                begin_layers(c)
            code = take_segment(c, d, peer, direction, state.streams[direction], state.rows, g, payload)
            if code != DONE:
                return code, flow, i, direction
            c.phase = DRAIN
        while c.phase != PLACE:
            side = direction if c.phase == DRAIN else 1 - direction
            if has_more(state.directions[side]):
                code = drain(state, side)
                if code != DONE:
                    return code, flow, i, side
            if c.phase == DRAIN:
                c.phase = DRAIN_PEER
            elif has_waiting_bytes(state.directions) and can_continue(state):
                c.phase = DRAIN
            else:
                c.phase = PLACE
        i += 1
    return DONE, flow, i, -1
