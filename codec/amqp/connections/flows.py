"""Flows, one after the other: their segments taken by connections, which begin and end here.

`run` takes segments one by one in capture order. A segment is first placed (`codec.amqp.connections.transport`), then
both directions are drained (`codec.amqp.stream`), in turns where bytes of one wait for the other
(`codec.tcp.reassembly`).

`run` can stop anywhere for more room (codes `NEED_*`), and is called again with the same segment; `State` carries
everything in between. It holds one connection: the caller brings segments flow by flow. What is known of a connection
when it ends, because another one begins or the flow has no more segments, is left in `State.ended`.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.classic.contents import reset_contents
from codec.amqp.connections.begun import NO_CONNECTION, begin_connection, begin_flow, same_flow
from codec.amqp.connections.ended import collect
from codec.amqp.connections.transport import begins_anew, take
from codec.amqp.stream import can_continue, drain, end_connection, has_more, has_waiting_bytes
from codec.amqp.v1_0.delivery_slots import reset_deliveries
from codec.compiler.kernel import kernel
from codec.tcp.direction import DONE, NEED_ROWS

PLACE, DRAIN, DRAIN_PEER, ENDING = range(4)  # phases of the current segment; NO_CONNECTION is between two connections


@kernel
def end_and_collect(state):
    """End the connection at hand and leave what is known of it; DONE or NEED_*."""
    code = end_connection(state)
    if code != DONE:
        return code
    if not collect(state.ended, state.begun.flow, state.connection, state.directions, state.hello):
        return NEED_ROWS
    state.connection[0].phase = NO_CONNECTION
    return DONE


@kernel
def run(state, flows, ends, segments, payload, flow, i):
    """Take `segments[i:]` (SEGMENT records, flow by flow, their bytes in `payload`): (code, index of the current flow,
    of the current segment, direction that needs room or -1 for both). Flow f has key `flows[f]` and the segments before
    `ends[f]`; the first of them may go on with the flow at hand. In phase ENDING the connection at hand ends before."""
    c = state.connection[0]
    known = -1  # flow that is the one at hand
    while i < len(segments) or c.phase == ENDING:
        if c.phase == ENDING:
            code = end_and_collect(state)
            if code != DONE:
                return code, flow, i, -1
            known = -1
            continue
        if i >= ends[flow]:
            flow += 1
            continue
        if flow != known and not same_flow(state.begun, flows[flow]):
            if c.phase == PLACE:
                c.phase = ENDING
                continue
            begin_flow(state.begun, flows[flow])
        known = flow
        g = segments[i]
        direction = int(np.int64(g.direction))
        d = state.directions[direction]
        peer = state.directions[1 - direction]
        if c.phase == NO_CONNECTION:
            begin_connection(state.begun, state.connection, state.directions, g, int(state.rows.used[0]))
            for side in range(2):
                reset_contents(state.contents, side)
                reset_deliveries(state.deliveries, side)
                state.spans.number[side] = 0
            c.phase = PLACE
        if c.phase == PLACE:
            if begins_anew(d, peer, g):
                c.phase = ENDING
                continue
            code = take(c, d, peer, direction, state.streams[direction], state.rows, g, payload)
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
