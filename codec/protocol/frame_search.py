"""The search for frames in bytes without a known frame boundary, for every family: is this AMQP, where does a frame
begin?

A boundary is accepted where a *chain* of frames begins. Each frame has a defined type and a plausible channel and size;
arguments parse exactly to its end. Evidence is counted in points, so that one frame that matches by chance never
decides. Ports are not considered. Cost: linear in the bytes, times the length of a chain.

Each family judges one frame: `judge(buf, p, end, t, versions, frame_cap, channel_cap)` returns (verdict, size of the
frame, points, those of `versions` that define it). UNDECIDED: nothing contradicts a frame, but it reaches beyond `end`;
its size is 0 as long as its header is incomplete, and its points as long as the header alone speaks for a frame.
`search` makes the kernels that walk over frames with such a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.protocol.versions import CLASSIC, UNKNOWN_FAMILY

REJECT, ACCEPT, UNDECIDED = range(3)

# Points of a frame. A method, header or performative parses exactly (about 60 bits of agreement); a body agrees only in
# type, size and end byte (about 28 bits).
POINTS_PARSED, POINTS_BODY, POINTS_BEGUN = 3, 2, 1
# In a connection that is known to be AMQP one parsed frame is proof enough. Any other stream needs two, since another
# protocol may carry the bytes of one AMQP frame. One suffices if all that is captured between two holes is this frame
# and perhaps the beginning of another.
NEED_KNOWN, NEED_UNKNOWN = 3, 6
FRAMES_KNOWN, FRAMES_UNKNOWN = 1, 2

UNKNOWN_FRAME_MAX = LIMITS.guessed_frame_bytes
UNKNOWN_CHANNEL_MAX = 65535
FRAME_BYTES = LIMITS.frame_bytes
EVERY_CLASSIC = 0b1110  # bits by version code: 0-8, 0-9, 0-9-1

TLS_RECORD_MAX = 16384 + 2048  # RFC 5246 section 6.2.3


@kernel
def tls_record(buf, p, end, ended):
    """Whether a TLS record begins at `p` (RFC 8446, section 5.1: type 20..23, version 3.0..3.4, a bounded length)."""
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
def negotiated(c):
    """The possible frames of connection `c`: (classic versions as bits by version code, largest size, largest
    channel)."""
    versions = 1 << int(c.version) if c.version_known and c.family == CLASSIC else EVERY_CLASSIC
    frame_cap = int(c.frame_max) if c.frame_max > 0 else UNKNOWN_FRAME_MAX
    return versions, frame_cap, int(c.channel_max) if c.channel_max > 0 else UNKNOWN_CHANNEL_MAX


def search(
    judge: Callable[..., tuple[int, int, int, int]], may_begin: Callable[..., bool], ends_with_body: bool
) -> tuple[Callable[..., Any], ...]:
    """The kernels `chain`, `find` and `is_cut` of a family. `may_begin(buf, p, end, frame_cap, channel_cap)`: false
    where `judge` rejects a frame at `p` (< `end`) by bytes that need no table, as almost everywhere: passing the tables
    to a kernel takes a hundred times as long. `ends_with_body`: a chain in a known connection may end with a frame that
    has nothing but a body."""

    @kernel
    def chain(buf, p, end, ended, t, versions, frame_cap, channel_cap, known, whole):  # type: ignore[no-untyped-def]
        """Whether a chain of frames begins at `p`, all of one of `versions`. `ended`: no byte will follow `end`;
        `whole`: none was captured just before `p`."""
        need = NEED_KNOWN if known else NEED_UNKNOWN
        least = FRAMES_KNOWN if known else FRAMES_UNKNOWN
        points, frames = 0, 0
        while True:
            verdict, size, more, versions = judge(buf, p, end, t, versions, frame_cap, channel_cap)
            if verdict == REJECT:
                return REJECT
            if verdict == UNDECIDED:
                if not ended:
                    return UNDECIDED
                # the last frame before a hole or the end: accept a single body that ends exactly there
                enough = ends_with_body and p >= end if known else whole and points >= NEED_KNOWN
                return ACCEPT if enough and frames > 0 else REJECT
            points += more
            frames += 1
            if points >= need and frames >= least:
                return ACCEPT
            p += size

    @kernel
    def find(buf, p, end, ended, whole, t, c):  # type: ignore[no-untyped-def]
        """First position from `p` where a chain begins: (ACCEPT, position), or (UNDECIDED, first position that is not
        ruled out). `whole`: no byte was captured just before `p`. `c` (CONNECTION record): whether the stream is known
        to be AMQP, and the negotiated limits."""
        versions, frame_cap, channel_cap = negotiated(c)
        known = c.family != UNKNOWN_FAMILY
        while p < end:
            if may_begin(buf, p, end, frame_cap, channel_cap):
                verdict = chain(buf, p, end, ended, t, versions, frame_cap, channel_cap, known, whole)
                if verdict != REJECT:
                    return verdict, p
            p += 1
            whole = False
        return UNDECIDED, p

    @kernel
    def is_cut(buf, p, end, cut, t, c):  # type: ignore[no-untyped-def]
        """Whether whole frames from `p` on lead to one that continues beyond `end`, where the snaplen cut off `cut`
        bytes of a packet. A header alone is a frame only in a connection that is known to be AMQP, and only if the
        frame ends in its packet."""
        versions, frame_cap, channel_cap = negotiated(c)
        while True:
            verdict, size, points, versions = judge(buf, p, end, t, versions, frame_cap, channel_cap)
            if verdict != ACCEPT:
                fits = c.family != UNKNOWN_FAMILY and p + size <= end + cut
                return verdict == UNDECIDED and size > 0 and (points > 0 or fits)
            p += size

    return chain, find, is_cut
