"""Is this AMQP, and where does a frame begin? Questions asked of bytes without a known boundary.

A boundary is believed where a *chain* of frames stands: each with a defined type, a plausible channel and size, its
end octet in place, and, for methods and headers, arguments that parse exactly to the end of the frame. Evidence is
counted in points, so that a single lucky octet never decides. Ports are never asked.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.classic.agreement import fitting_versions, is_start, possible_versions
from codec.amqp.classic.methods import classify_method
from codec.amqp.versions import UNKNOWN_FAMILY, V0_8, V0_9_1
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import octet, u16, u32

REJECT, ACCEPT, UNDECIDED = range(3)

# Points for a frame of a chain. A method or header parses exactly (about 60 bits of agreement), a heartbeat is eight
# fixed octets; a body agrees in type, size and end octet only (about 28 bits).
POINTS_PARSED, POINTS_BODY = 3, 2
# Inside a connection known to be AMQP one parsed frame is proof enough; on a stream nobody vouches for, two are needed
# (another protocol may well carry the bytes of one AMQP frame).
NEED_KNOWN, NEED_UNKNOWN = 3, 6
FRAMES_KNOWN, FRAMES_UNKNOWN = 1, 2

UNKNOWN_FRAME_MAX = LIMITS.guessed_frame_bytes
FRAME_BYTES = LIMITS.frame_bytes
FRAME_END = 0xCE
METHOD_NAMED, HEADER_NAMED = 11, 11  # octets with which a frame names its method; its class, and a weight

TLS_RECORD_MAX = 16384 + 2048  # RFC 5246 section 6.2.3

# How connection.start begins: a method on channel 0, its size, class 10, method 10.
ANY_OCTET = -1
GREETING = np.array([1, 0, 0, *[ANY_OCTET] * 4, 0, 10, 0, 10], np.int64)


@kernel
def tls_record(buf, p, end, ended):
    """Does a TLS record begin at `p`? (RFC 8446 section 5.1: type 20..23, version 3.0..3.4, a bounded length.)"""
    if p >= end or buf[p] < 20 or buf[p] > 23:
        return REJECT
    if p + 1 < end and buf[p + 1] != 3:
        return REJECT
    if p + 2 < end and buf[p + 2] > 4:
        return REJECT
    if p + 5 > end:
        return REJECT if ended else UNDECIDED
    size = (int(buf[p + 3]) << 8) | int(buf[p + 4])
    return ACCEPT if 0 < size <= TLS_RECORD_MAX else REJECT


@kernel
def greeting(buf, p, end, ended, t):
    """Is the frame at `p`, where the stream of a server begins, a connection.start? `ended`: no byte will follow."""
    for i in range(min(end - p, len(GREETING))):
        if GREETING[i] != ANY_OCTET and octet(buf, p + i) != GREETING[i]:
            return REJECT
    size = u32(buf, p + 3, end)
    stop = p + 7 + size
    if size + 8 > UNKNOWN_FRAME_MAX:
        return REJECT
    if end - p < len(GREETING) or stop + 1 > end:
        return REJECT if ended else UNDECIDED
    return ACCEPT if octet(buf, stop) == FRAME_END and is_start(buf, p + 7, stop, t) else REJECT


@kernel
def defined_method(buf, start, stop, t, versions):
    """Whether one of `versions` (bits by version code) defines the method whose payload is `buf[start:stop]`."""
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and classify_method(buf, start, stop, t, version) >= 0:
            return True
    return False


@kernel
def classic_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one classic frame of `versions` (bits by version code): (verdict, its size with
    overhead, points, the versions that define it).

    UNDECIDED: nothing speaks against it, but it reaches beyond `end`.
    """
    if p >= end:
        return UNDECIDED, 0, 0, versions
    kind = int(buf[p])
    if kind != 1 and kind != 2 and kind != 3 and kind != 8:
        return REJECT, 0, 0, 0
    if p + 7 > end:
        return UNDECIDED, 0, 0, versions
    channel = (int(buf[p + 1]) << 8) | int(buf[p + 2])
    size = (int(buf[p + 3]) << 24) | (int(buf[p + 4]) << 16) | (int(buf[p + 5]) << 8) | int(buf[p + 6])
    if channel > channel_cap or size + 8 > frame_cap:
        return REJECT, 0, 0, 0
    if kind == 8 and (size != 0 or channel != 0):
        return REJECT, 0, 0, 0
    if kind != 8 and kind != 1 and channel == 0:
        return REJECT, 0, 0, 0
    if (kind == 1 and size < 4) or (kind == 2 and size < 14):
        return REJECT, 0, 0, 0
    start, stop = p + 7, p + 7 + size
    if kind == 1 and start + 4 <= end and not defined_method(buf, start, min(stop, end), t, versions):
        return REJECT, 0, 0, 0
    if stop + 1 > end:
        return UNDECIDED, size + 8, 0, versions
    if int(buf[stop]) != FRAME_END:
        return REJECT, 0, 0, 0
    if kind == 3:
        return ACCEPT, size + 8, POINTS_BODY, versions
    fits = fitting_versions(buf, p, stop, t, versions)
    return (ACCEPT if fits else REJECT), size + 8, POINTS_PARSED, fits


@kernel
def classic_chain(buf, p, end, ended, t, versions, frame_cap, channel_cap, known):
    """Does a chain of classic frames begin at `p`, all of one of `versions`? `ended`: no byte will follow `end` (the
    stream or its part is over)."""
    need = NEED_KNOWN if known else NEED_UNKNOWN
    least = FRAMES_KNOWN if known else FRAMES_UNKNOWN
    points, frames = 0, 0
    while True:
        verdict, size, more, versions = classic_frame(buf, p, end, t, versions, frame_cap, channel_cap)
        if verdict == REJECT:
            return REJECT
        if verdict == UNDECIDED:
            if not ended:
                return UNDECIDED
            # the last frame before a hole or the end: accept a lone body that ends exactly there
            return ACCEPT if known and frames > 0 and p >= end else REJECT
        points += more
        frames += 1
        if points >= need and frames >= least:
            return ACCEPT
        p += size


@kernel
def find_chain(buf, p, end, ended, t, c):
    """First position from `p` where a chain begins: (ACCEPT, position), or (UNDECIDED, first position not ruled out).

    `c` (CONNECTION record) says whether the stream is known to be AMQP, and which limits its peers agreed on.
    """
    frame_cap = int(c.frame_max) if c.frame_max > 0 else UNKNOWN_FRAME_MAX
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    known = c.family != UNKNOWN_FAMILY
    versions = possible_versions(c)
    while p < end:
        verdict = classic_chain(buf, p, end, ended, t, versions, frame_cap, channel_cap, known)
        if verdict == ACCEPT:
            return ACCEPT, p
        if verdict == UNDECIDED:
            return UNDECIDED, p
        p += 1
    return UNDECIDED, p


@kernel
def cut_chain(buf, p, end, cut, t, c):
    """Whether whole frames from `p` on lead to one whose beginning ends at `end`, where the snaplen cut off `cut`
    octets of the packet that begins at `p`. It speaks for a frame that it names a method or a class; a body ends with
    its packet."""
    frame_cap = int(c.frame_max) if c.frame_max > 0 else UNKNOWN_FRAME_MAX
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    versions = possible_versions(c)
    while True:
        verdict, size, _, fits = classic_frame(buf, p, end, t, versions, frame_cap, channel_cap)
        if verdict != ACCEPT:
            break
        p += size
        versions = fits
    if verdict == REJECT or size == 0:
        return False
    if octet(buf, p) == 1:
        return p + METHOD_NAMED <= end
    if octet(buf, p) == 2:
        return p + HEADER_NAMED <= end and classified(buf, p + 7, end, t, versions)
    return octet(buf, p) == 3 and p + size == end + cut


@kernel
def classified(buf, start, end, t, versions):
    """Whether one of `versions` has contents of the class at `start`, where a content header begins; its weight is
    0."""
    klass, weight = u16(buf, start, end), u16(buf, start + 2, end)
    if weight != 0 or klass < 0 or klass >= t.class_name.shape[1]:
        return False
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and t.class_name[version, klass] >= 0:
            return True
    return False
