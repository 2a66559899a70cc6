"""Detection of frames of 0-8, 0-9 and 0-9-1, which end with 0xCE (`codec.amqp.frame_search`)."""

from __future__ import annotations

import numpy as np

from codec.amqp.classic.methods import classify_method
from codec.amqp.classic.version import fitting_versions, is_start
from codec.amqp.frame_search import (
    ACCEPT,
    POINTS_BODY,
    POINTS_PARSED,
    REJECT,
    UNDECIDED,
    UNKNOWN_FRAME_MAX,
    negotiated,
    search,
)
from codec.amqp.versions import UNKNOWN_FAMILY, V0_8, V0_9_1
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16, u32

FRAME_END = 0xCE
METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME = 1, 2, 3, 8
IDENTIFYING_OCTETS = 11  # of a frame, up to its class and method, or its class and weight

# How connection.start begins: a method on channel 0, its size, class 10, method 10.
ANY_OCTET = -1
START_FRAME = np.array([1, 0, 0, *[ANY_OCTET] * 4, 0, 10, 0, 10], np.int64)


@kernel
def start_frame(buf, p, end, ended, t):
    """Whether the frame at `p`, the first of a server, is a connection.start. `ended`: no byte will follow."""
    for i in range(min(end - p, len(START_FRAME))):
        if START_FRAME[i] != ANY_OCTET and octet(buf, p + i) != START_FRAME[i]:
            return REJECT
    size = u32(buf, p + 3, end)
    stop = p + 7 + size
    if size + 8 > UNKNOWN_FRAME_MAX:
        return REJECT
    if end - p < len(START_FRAME) or stop + 1 > end:
        return REJECT if ended else UNDECIDED
    return ACCEPT if octet(buf, stop) == FRAME_END and is_start(buf, p + 7, stop, t) else REJECT


@kernel
def _defines_method(buf, start, stop, t, versions):
    """Whether one of `versions` (bits by version code) defines the method whose payload is `buf[start:stop]`."""
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and classify_method(buf, start, stop, t, version) >= 0:
            return True
    return False


@kernel
def may_begin(buf, p, end, frame_cap, channel_cap):
    """Whether a frame may begin at `p`, by its header and its end octet, as far as they lie before `end`."""
    kind = octet(buf, p)
    if kind not in (METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME):
        return False
    if p + 7 > end:
        return True
    channel, size = u16(buf, p + 1, end), u32(buf, p + 3, end)
    if channel > channel_cap or size + 8 > frame_cap:
        return False
    if kind == HEARTBEAT_FRAME and (size != 0 or channel != 0):
        return False
    if kind in (HEADER_FRAME, BODY_FRAME) and channel == 0:
        return False
    if (kind == METHOD_FRAME and size < 4) or (kind == HEADER_FRAME and size < 14):
        return False
    return p + 7 + size >= end or octet(buf, p + 7 + size) == FRAME_END


@kernel
def classic_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.amqp.frame_search`."""
    if p >= end:
        return UNDECIDED, 0, 0, versions
    if not may_begin(buf, p, end, frame_cap, channel_cap):
        return REJECT, 0, 0, 0
    if p + 7 > end:
        return UNDECIDED, 0, 0, versions
    kind, size = octet(buf, p), u32(buf, p + 3, end)
    start, stop = p + 7, p + 7 + size
    if kind == METHOD_FRAME and start + 4 <= end and not _defines_method(buf, start, min(stop, end), t, versions):
        return REJECT, 0, 0, 0
    if stop + 1 > end:
        return UNDECIDED, size + 8, 0, versions
    if kind == BODY_FRAME:
        return ACCEPT, size + 8, POINTS_BODY, versions
    fits = fitting_versions(buf, p, stop, t, versions)
    return (ACCEPT if fits else REJECT), size + 8, POINTS_PARSED, fits


classic_chain, find_classic, _ = search(classic_frame, may_begin, True)


@kernel
def is_cut_classic(buf, p, end, cut, t, c):
    """Whether whole frames from `p` on lead to one that begins before `end`, where the snaplen cut off `cut` octets of
    the packet that begins at `p`. Its method or its class must be defined. In a connection that is known to be AMQP a
    header without them is a frame if it ends in its packet, and a body if it ends with its packet."""
    versions, frame_cap, channel_cap = negotiated(c)
    while True:
        verdict, size, _, fits = classic_frame(buf, p, end, t, versions, frame_cap, channel_cap)
        if verdict != ACCEPT:
            break
        p += size
        versions = fits
    if verdict == REJECT or size == 0:
        return False
    known = c.family != UNKNOWN_FAMILY
    if octet(buf, p) == BODY_FRAME:
        return known and p + size == end + cut
    if octet(buf, p) == HEARTBEAT_FRAME or p + IDENTIFYING_OCTETS > end:
        return known and p + size <= end + cut
    return octet(buf, p) == METHOD_FRAME or _defines_content(buf, p + 7, end, t, versions)


@kernel
def _defines_content(buf, start, end, t, versions):
    """Whether one of `versions` has contents of the class at `start`, where a content header begins; its weight is
    0."""
    klass, weight = u16(buf, start, end), u16(buf, start + 2, end)
    if weight != 0 or klass < 0 or klass >= t.class_name.shape[1]:
        return False
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and t.class_name[version, klass] >= 0:
            return True
    return False
