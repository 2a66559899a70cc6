"""Framing by family: what `codec.amqp.stream` asks of a stream's frames, whichever version they are of."""

from __future__ import annotations

import numpy as np

from codec.amqp import classic_frames, described_frames, segmented_frames
from codec.amqp import rows as R
from codec.amqp.classic_frames import TAKEN
from codec.amqp.contents import forget_contents
from codec.amqp.delivery_slots import forget_deliveries
from codec.amqp.detect import UNDECIDED, find_chain
from codec.amqp.detect_1_0 import find_described
from codec.amqp.segmented_detect import find_segmented_chain
from codec.amqp.versions import CLASSIC, DESCRIBED, NONE, SEGMENTED, V0_10, V1_0
from codec.kernel import kernel

# The only version of a family, by family; of the classic one `codec.amqp.agreement` finds out.
ONLY_VERSION = np.array([NONE, NONE, V0_10, V1_0], np.int64)


@kernel
def take_frames(state, c, d, direction, s):
    """Take frames from `pos` on as long as they follow each other: the code of the last one (those of
    `codec.amqp.classic_frames`). TAKEN: rows are full, or a protocol header may follow.

    All that happens to every frame is laid out in here, since a call would pass some hundred fields of arrays along.
    """
    rows = state.rows
    while True:
        if c.family == CLASSIC:
            taken = classic_frames.next_frame(c, d, direction, s, rows, state.contents, state.tables)
        elif c.family == SEGMENTED:
            taken = segmented_frames.next_frame(
                c, d, direction, s, rows, state.contents, state.assemblies, state.segmented
            )
        else:
            taken = described_frames.next_frame(c, d, direction, s, rows, state.deliveries, state.wire)
        perhaps_header = d.pos < d.end and s.bytes[d.pos] == 0x41
        if taken != TAKEN or perhaps_header or R.rows_full(rows):
            return taken


@kernel
def tear(state, c, d, direction, s):
    """A hole follows: if the bytes from `pos` are the beginning of a frame, go on INSIDE it. True when they are."""
    if c.family == CLASSIC:
        return classic_frames.tear(c, d, s, state.tables)
    if c.family == SEGMENTED:
        return segmented_frames.tear(d, direction, s, state.assemblies)
    return c.family == DESCRIBED and described_frames.tear(c, d, s, state.deliveries, state.wire)


@kernel
def torn_row(state, c, d, direction):
    """The row of a frame that lost bytes."""
    if c.family == CLASSIC:
        classic_frames.torn_row(c, d, direction, state.rows, state.contents, state.tables)
    elif c.family == SEGMENTED:
        segmented_frames.torn_row(c, d, direction, state.rows, state.contents, state.assemblies, state.segmented)
    else:
        described_frames.torn_row(c, d, direction, state.rows, state.deliveries, state.wire)


@kernel
def forget(state, direction):
    """A frame boundary was lost (or a connection begins): what was open in `direction` may not go on."""
    forget_contents(state.contents, direction)
    forget_deliveries(state.deliveries, direction)


@kernel
def find_frames(state, c, family, buf, p, end, ended):
    """First position from `p` where frames of `family` begin: (ACCEPT, position), or (UNDECIDED, first position not
    ruled out)."""
    if family == CLASSIC:
        return find_chain(buf, p, end, ended, state.tables, c)
    if family == SEGMENTED:
        return find_segmented_chain(buf, p, end, ended, state.segmented, c)
    if family == DESCRIBED:
        return find_described(buf, p, end, ended, state.wire, c)
    return UNDECIDED, end
