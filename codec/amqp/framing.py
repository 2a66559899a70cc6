"""Framing by family: what `codec.amqp.stream` asks of a stream's frames, whichever version they are of."""

from __future__ import annotations

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic import frames as classic_frames
from codec.amqp.classic.contents import forget_contents
from codec.amqp.classic.frames import TAKEN
from codec.amqp.detect import UNDECIDED, cut_chain, find_chain
from codec.amqp.v0_10 import frames as segmented_frames
from codec.amqp.v0_10.detect import cut_segmented_chain, find_segmented_chain
from codec.amqp.v1_0 import frames as described_frames
from codec.amqp.v1_0.delivery_slots import forget_deliveries
from codec.amqp.v1_0.detect import cut_described_chain, find_described
from codec.amqp.versions import CLASSIC, DESCRIBED, NONE, SEGMENTED, V0_10, V1_0
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.variant.writer import copy_bytes

TORN_BYTES = LIMITS.torn_bytes
# The only version of a family, by family; of the classic one `codec.amqp.classic.agreement` finds out.
ONLY_VERSION = np.array([NONE, NONE, V0_10, V1_0], np.int64)


@kernel
def take_frames(state, c, d, direction, s):
    """Take frames from `pos` on as long as they follow each other: the code of the last one (those of
    `codec.amqp.classic.frames`). TAKEN: rows are full, or a protocol header may follow.

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
    """A hole follows: if the bytes from `pos` are the beginning of a frame, go on INSIDE it, and keep them. True when
    they are."""
    if c.family == CLASSIC:
        is_frame = classic_frames.tear(c, d, s, state.tables)
    elif c.family == SEGMENTED:
        is_frame = segmented_frames.tear(d, direction, s, state.assemblies)
    else:
        is_frame = c.family == DESCRIBED and described_frames.tear(c, d, s, state.deliveries, state.wire)
    if is_frame:
        d.torn = min(int(d.frame_seen), TORN_BYTES)
        copy_bytes(state.torn[direction], 0, s.bytes, int(d.pos), int(d.pos) + int(d.torn))
    return is_frame


@kernel
def torn_row(state, c, d, direction):
    """The row of a frame that lost bytes (`rows_full` said that there is room for its octets)."""
    torn = state.torn[direction][: int(d.torn)]
    if c.family == CLASSIC:
        classic_frames.torn_row(c, d, direction, torn, state.rows, state.contents, state.tables)
    elif c.family == SEGMENTED:
        segmented_frames.torn_row(c, d, direction, torn, state.rows, state.contents, state.assemblies, state.segmented)
    else:
        described_frames.torn_row(c, d, direction, torn, state.rows, state.deliveries, state.wire)
    d.torn = 0


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


@kernel
def cut_frames(state, c, buf, p, end, cut):
    """Whether frames of `c` begin at `p`, where a packet does, the last of which goes on behind `end`: there the
    snaplen cut off `cut` octets of the packet."""
    if c.family == CLASSIC:
        return cut_chain(buf, p, end, cut, state.tables, c)
    if c.family == SEGMENTED:
        return cut_segmented_chain(buf, p, end, state.segmented, c)
    return c.family == DESCRIBED and cut_described_chain(buf, p, end, state.wire, c)
