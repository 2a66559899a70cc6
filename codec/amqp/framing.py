"""Framing by family: the operations of `codec.amqp.stream` on frames, for every version."""

from __future__ import annotations

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic import frames as classic_frames
from codec.amqp.classic.contents import reset_contents
from codec.amqp.classic.detect import find_classic, is_cut_classic
from codec.amqp.classic.frames import DECODED
from codec.amqp.frame_search import UNDECIDED
from codec.amqp.v0_10 import frames as v0_10_frames
from codec.amqp.v0_10.detect import find_v0_10, is_cut_v0_10
from codec.amqp.v1_0 import frames as v1_0_frames
from codec.amqp.v1_0.delivery_slots import reset_deliveries
from codec.amqp.v1_0.detect import find_v1_0, is_cut_v1_0
from codec.amqp.versions import BODY, CLASSIC, NONE, V0_10, V0_10_FAMILY, V1_0, V1_0_FAMILY
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.variant.writer import copy_bytes

PARTIAL_BYTES = LIMITS.partial_bytes
# The only version of each family; `codec.amqp.classic.version` determines that of the classic family.
ONLY_VERSION = np.array([NONE, NONE, V0_10, V1_0], np.int64)


@kernel
def decode_frames(state, c, d, direction, s):
    """Decode consecutive frames from `pos` on: the code of the last one (see `codec.amqp.classic.frames`). DECODED:
    rows are full, or a protocol header may follow.

    The work on every frame is inlined here, since a call would pass some hundred fields of arrays.
    """
    rows = state.rows
    while True:
        if c.family == CLASSIC:
            outcome = classic_frames.next_frame(c, d, direction, s, rows, state.contents, state.classic)
        elif c.family == V0_10_FAMILY:
            outcome = v0_10_frames.next_frame(c, d, direction, s, rows, state.contents, state.assemblies, state.v0_10)
        else:
            outcome = v1_0_frames.next_frame(c, d, direction, s, rows, state.deliveries, state.wire)
        maybe_header = d.pos < d.end and s.bytes[d.pos] == 0x41
        if outcome != DECODED or maybe_header or R.rows_full(rows):
            return outcome


@kernel
def begin_partial(state, c, d, direction, s):
    """A hole follows: if the bytes from `pos` begin a frame, save them, and continue INSIDE it. True when they do."""
    if c.family == CLASSIC:
        is_frame = classic_frames.begin_partial(c, d, s, state.classic)
    elif c.family == V0_10_FAMILY:
        is_frame = v0_10_frames.begin_partial(d, direction, s, state.assemblies)
    else:
        is_frame = c.family == V1_0_FAMILY and v1_0_frames.begin_partial(c, d, s, state.deliveries, state.wire)
    if is_frame:
        d.frame_stored = min(int(d.frame_seen), PARTIAL_BYTES)
        copy_bytes(state.partial[direction], 0, s.bytes, int(d.pos), int(d.pos) + int(d.frame_stored))
    return is_frame


@kernel
def only_content_missing(state, c, d):
    """Whether the bytes that the frame INSIDE which the stream is has lost are content, and no arguments."""
    if c.family == V1_0_FAMILY:
        return v1_0_frames.only_content_follows(d, state.wire)
    return d.frame_type == BODY


@kernel
def partial_row(state, c, d, direction):
    """Append the row of a frame that lost bytes (`rows_full` ensures room for its octets)."""
    partial = state.partial[direction][: int(d.frame_stored)]
    if c.family == CLASSIC:
        classic_frames.partial_row(c, d, direction, partial, state.rows, state.contents, state.classic)
    elif c.family == V0_10_FAMILY:
        v0_10_frames.partial_row(c, d, direction, partial, state.rows, state.contents, state.assemblies, state.v0_10)
    else:
        v1_0_frames.partial_row(c, d, direction, partial, state.rows, state.deliveries, state.wire)
    d.frame_stored = 0


@kernel
def discard_incomplete(state, direction):
    """A frame boundary was lost, or a connection begins: no incomplete content of `direction` may continue."""
    reset_contents(state.contents, direction)
    reset_deliveries(state.deliveries, direction)


@kernel
def find_frames(state, c, family, buf, p, end, ended, whole):
    """First position from `p` where frames of `family` begin: (ACCEPT, position), or (UNDECIDED, first position that is
    not ruled out). `ended`: no byte will follow `end`; `whole`: none was captured just before `p`."""
    if family == CLASSIC:
        return find_classic(buf, p, end, ended, whole, state.classic, c)
    if family == V0_10_FAMILY:
        return find_v0_10(buf, p, end, ended, whole, state.v0_10, c)
    if family == V1_0_FAMILY:
        return find_v1_0(buf, p, end, ended, whole, state.wire, c)
    return UNDECIDED, end


@kernel
def cut_frames(state, c, family, buf, p, end, cut):
    """Whether frames of `family` begin at `p`, where a packet begins, and the last of them continues beyond `end`,
    where the snaplen cut off `cut` octets of the packet."""
    if family == CLASSIC:
        return is_cut_classic(buf, p, end, cut, state.classic, c)
    if family == V0_10_FAMILY:
        return is_cut_v0_10(buf, p, end, cut, state.v0_10, c)
    return family == V1_0_FAMILY and is_cut_v1_0(buf, p, end, cut, state.wire, c)
