"""Detection of frames of 0-8, 0-9 and 0-9-1, which end with 0xCE (`codec.protocol.frame_search`)."""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import PROTOCOL_HEADERS
from codec.cursor import byte_at, u16, u32
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.protocol.classic_values import check_header, check_method, classify_method
from codec.protocol.frame_search import (
    ACCEPT,
    EVERY_CLASSIC,
    POINTS_BODY,
    POINTS_PARSED,
    REJECT,
    UNDECIDED,
    UNKNOWN_FRAME_MAX,
    negotiated,
    search,
)
from codec.protocol.versions import UNKNOWN_FAMILY, V0_8, V0_9_1

# The version of a connection of the classic family (0-8, 0-9, 0-9-1). The rules, in order of precedence:
#
# 1. The server's `connection.start` has the version-major and version-minor that the server agrees to use. 8 0 is 0-8,
# with any protocol header and without one. 0 9 is 0-9 or 0-9-1: the protocol header of one of them decides; without a
# header 0-8 is excluded and rule 3 applies. Undefined numbers change nothing. Numbers that differ from the header are
#    stored as an offer.
# 2. The client's protocol header proposes a version. 3. Otherwise each whole frame counts against the versions whose
# definitions it does not fit. Rows are withheld meanwhile
#    (`R.UNRESOLVED_ROWS`), so that all rows have the same version. If no frame decides, the version is 0-9-1.


# In order of use: of versions that fit the frames equally well, the first is chosen.
PREFERRED = np.array([V.V0_9_1, V.V0_8, V.V0_8 + 1], np.int64)
# Points against a version: for a frame that another version defines and this one does not; for an access ticket, which
# 0-9-1 reserves (0-9-1 XML, domain of reserved-1) but some of its clients send.
MISFIT, TICKET, RULED_OUT = 3, 1, 1 << 30


@kernel
def payload_fits(buf, start, stop, kind, t, version):
    """Whether the payload `buf[start:stop]` of a frame of type `kind` fits the definitions of `version` exactly."""
    if kind in (V.METHOD, V.OOB_METHOD):
        method = classify_method(buf, start, stop, t, version)
        return method >= 0 and check_method(buf, start, stop, t, version, method)
    if kind in (V.HEADER, V.OOB_HEADER):
        return check_header(buf, start, stop, t, version)
    return kind >= 0


@kernel
def fitting_versions(buf, p, stop, t, versions):
    """Those of `versions` (bits by version code) that define the frame at `p`, whose payload ends at `stop`."""
    fits = 0
    for version in range(V.V0_8, V.V0_9_1 + 1):
        if versions >> version & 1 and payload_fits(
            buf, p + 7, stop, int(t.frame_kind[version, int(buf[p])]), t, version
        ):
            fits |= 1 << version
    return fits


@kernel
def assume_classic(c):
    """The family is classic, the version unknown: begin to score frames."""
    c.family = V.CLASSIC
    c.version = V.V0_9_1
    c.version_known = 0
    c.scoring = 1


@kernel
def score_frame(rows, c, buf, p, stop, t):
    """Count the whole frame at `p`, whose payload ends at `stop`, against versions that it does not fit."""
    if c.scored_frame == c.frame_no + 1:
        return  # the frame is decoded again, because its row did not fit
    c.scored_frame = c.frame_no + 1
    fits = fitting_versions(buf, p, stop, t, EVERY_CLASSIC)
    if fits == 0:
        return
    for version in range(V.V0_8, V.V0_9_1 + 1):
        if not fits >> version & 1:
            c.misfits[version] += MISFIT
    if fits >> V.V0_9_1 & 1 and t.frame_kind[V.V0_9_1, int(buf[p])] == V.METHOD:
        method = classify_method(buf, p + 7, stop, t, V.V0_9_1)
        if t.method_ticket[method] and (buf[p + 11] or buf[p + 12]):
            c.misfits[V.V0_9_1] += TICKET
    choose_likeliest(rows, c, t)


@kernel
def choose_likeliest(rows, c, t):
    """Set the version of `c` and of its pending rows to the one with the fewest points against it."""
    likeliest = V.V0_9_1
    for version in PREFERRED:
        if c.misfits[version] < c.misfits[likeliest]:
            likeliest = version
    if likeliest != c.version:
        set_version(rows, c, likeliest, t)


@kernel
def method_index(t, version, klass, method):
    """Index of a method by class and method id, -1 undefined."""
    if klass < 0 or method < 0 or klass >= t.lookup.shape[1] or method >= t.lookup.shape[2]:
        return -1
    return int(t.lookup[version, klass, method])


@kernel
def method_sender(c, buf, start, stop, method, t):
    """The only side that sends method `method`, whose payload is `buf[start:stop]`: R.CLIENT, R.SERVER, or -1. While
    the version is unknown, all versions that define these numbers must agree (10 61 is connection.close-ok in 0-8,
    which both sides send, and connection.unblocked of servers later)."""
    sender = int(t.method_sender[method])
    if c.scoring:
        for version in range(V.V0_8, V.V0_9_1 + 1):
            other = classify_method(buf, start, stop, t, version)
            if other >= 0 and t.method_sender[other] != sender:
                return -1
    return sender


@kernel
def set_version(rows, c, version, t):
    """Set the version of `c` and of its pending rows, with the names of their frames in that version."""
    c.version = version
    for i in range(int(c.row_from), int(rows.used[0])):
        row = rows.cells[i]
        kind = int(row[R.TYPE])
        if row[R.CONNECTION] != c.connection_id or kind == V.PROTOCOL_HEADER:
            continue
        row[R.VERSION] = version
        row[R.KNOWN] = c.version_known
        if row[R.NAME] < 0:
            continue
        if kind in (V.METHOD, V.OOB_METHOD):
            method = method_index(t, version, int(row[R.CLASS]), int(row[R.METHOD_ID]))
            if method >= 0:
                row[R.NAME] = t.method_name[method]
            else:
                row[R.NAME] = -1
                row[R.STATUS] = V.UNKNOWN
                row[R.ERROR] = V.E_METHOD
            if row[R.DEFINITION] >= 0:
                row[R.DEFINITION] = method
        elif t.class_name[version, int(row[R.CLASS])] >= 0:
            row[R.NAME] = t.class_name[version, int(row[R.CLASS])]


@kernel
def is_start(buf, start, stop, t):
    """Whether `buf[start:stop]` is the payload of a whole connection.start (the same in all classic versions)."""
    method = classify_method(buf, start, stop, t, V.V0_9_1)
    return method == t.start[V.V0_9_1] and check_method(buf, start, stop, t, V.V0_9_1, method)


@kernel
def apply_start(rows, c, direction, major, minor, t):
    """Apply rule 1: the server's connection.start, sent in `direction`, has version `major` `minor`."""
    c.started = 1
    agreed, settled = 0, V.NONE
    for version in range(V.V0_8, V.V0_9_1 + 1):
        if t.start_version[version, 0] == major and t.start_version[version, 1] == minor:
            settled = version if agreed == 0 else V.NONE
            agreed |= 1 << version
    if c.version_known and agreed >> int(c.version) & 1:
        return
    if c.offers < V.OFFERS:
        c.offer[c.offers] = (direction << 32) | (V.START_VERSION << 24) | (major << 8) | minor
        c.offers += 1
    else:
        c.limits |= PROTOCOL_HEADERS
    if agreed == 0:
        return
    c.version_known = 1 if settled != V.NONE else 0
    c.scoring = 1 if settled == V.NONE and c.frame_no < R.UNRESOLVED_ROWS else 0
    for version in range(V.V0_8, V.V0_9_1 + 1):
        if not agreed >> version & 1:
            c.misfits[version] = RULED_OUT
    if settled != V.NONE:
        set_version(rows, c, settled, t)
    else:
        choose_likeliest(rows, c, t)


FRAME_END = 0xCE
METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME = 1, 2, 3, 8
IDENTIFYING_BYTES = 11  # of a frame, up to its class and method, or its class and weight

# How connection.start begins: a method on channel 0, its size, class 10, method 10.
ANY_BYTE = -1
START_FRAME = np.array([1, 0, 0, *[ANY_BYTE] * 4, 0, 10, 0, 10], np.int64)


@kernel
def start_frame(buf, p, end, ended, t):
    """Whether the frame at `p`, the first of a server, is a connection.start. `ended`: no byte will follow."""
    for i in range(min(end - p, len(START_FRAME))):
        if START_FRAME[i] != ANY_BYTE and byte_at(buf, p + i) != START_FRAME[i]:
            return REJECT
    size = u32(buf, p + 3, end)
    stop = p + 7 + size
    if size + 8 > UNKNOWN_FRAME_MAX:
        return REJECT
    if end - p < len(START_FRAME) or stop + 1 > end:
        return REJECT if ended else UNDECIDED
    return ACCEPT if byte_at(buf, stop) == FRAME_END and is_start(buf, p + 7, stop, t) else REJECT


@kernel
def _defines_method(buf, start, stop, t, versions):
    """Whether one of `versions` (bits by version code) defines the method whose payload is `buf[start:stop]`."""
    for version in range(V0_8, V0_9_1 + 1):
        if versions >> version & 1 and classify_method(buf, start, stop, t, version) >= 0:
            return True
    return False


@kernel
def may_begin(buf, p, end, frame_cap, channel_cap):
    """Whether a frame may begin at `p`, by its header and its end byte, as far as they lie before `end`."""
    kind = byte_at(buf, p)
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
    return p + 7 + size >= end or byte_at(buf, p + 7 + size) == FRAME_END


@kernel
def classic_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.protocol.frame_search`."""
    if p >= end:
        return UNDECIDED, 0, 0, versions
    if not may_begin(buf, p, end, frame_cap, channel_cap):
        return REJECT, 0, 0, 0
    if p + 7 > end:
        return UNDECIDED, 0, 0, versions
    kind, size = byte_at(buf, p), u32(buf, p + 3, end)
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
    """Whether whole frames from `p` on lead to one that begins before `end`, where the snaplen cut off `cut` bytes of
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
    if byte_at(buf, p) == BODY_FRAME:
        return known and p + size == end + cut
    if byte_at(buf, p) == HEARTBEAT_FRAME or p + IDENTIFYING_BYTES > end:
        return known and p + size <= end + cut
    return byte_at(buf, p) == METHOD_FRAME or _defines_content(buf, p + 7, end, t, versions)


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
