"""Detection of the protocol of a direction, and of the next frame boundary: modes START and LOST of
`codec.amqp.stream`.

Cost: linear in the bytes, at most `LIMITS.detect_bytes` of a stream that is not AMQP.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.classic.detect import start_frame
from codec.amqp.classic.version import assume_classic
from codec.amqp.connections import connection as C
from codec.amqp.connections.lifecycle import TLS_PREFIX_BYTES
from codec.amqp.frame_search import ACCEPT, UNDECIDED, tls_record
from codec.amqp.framing import ONLY_VERSION, cut_frames, find_frames
from codec.amqp.proxy_header import INCOMPLETE, proxy_header
from codec.amqp.versions import CLASSIC, SKIPPED, UNKNOWN_FAMILY, V1_0, V1_0_FAMILY
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS, SEARCH
from codec.cursor import u32
from codec.tcp.direction import FOREIGN, FRAMES, LOST, TLS
from codec.tcp.reassembly import offset_of_pos, unread

DETECT_BYTES = LIMITS.detect_bytes
HEADER_OCTETS = 8
HEAD = 4  # octets that identify a protocol
# First octets of foreign streams that a row shows: of requests and responses of HTTP, of SSH; of TLS the first two
# (handshake, major version 3). A row shows no octets of other streams, since they may be a login.
KNOWN_HEADS = np.array([int.from_bytes(head, "big") for head in (b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"SSH-")])
TLS_HEAD = 0x1603


@kernel
def stop_decoding(d, s, spans, direction, mode):
    """Stop decoding this direction (`mode` TLS or FOREIGN): buffered bytes and pending spans are only counted."""
    for i in range(int(spans.used[direction])):
        span = spans.pending[direction][i]
        if not span.gap:
            if mode == TLS:
                d.tls_bytes += span.length
            else:
                d.foreign_bytes += span.length
    if spans.used[direction] > 0 and d.span_from < 0:
        first = spans.pending[direction][0]
        d.span_from = first.from_
        d.span_first_packet = first.first_packet
        d.span_first_ns = first.first_ns
        d.span_packet = first.packet
        d.span_ns = first.ns
        d.span_file = first.file
    spans.used[direction] = 0
    size = int(d.end) - int(d.pos)
    if mode == FOREIGN and size >= HEAD and d.proxy_bytes + size == d.payload_bytes and d.holes == 0:
        head = u32(s.bytes, int(d.pos), int(d.end))
        is_known = head >> 16 == TLS_HEAD
        for known in KNOWN_HEADS:
            is_known = is_known or head == known
        d.foreign_head = head + 1 if is_known else 0
    C.extend_span(d, s, int(d.next))
    if mode == TLS:
        d.tls_bytes += size
    else:
        d.foreign_bytes += size
    d.mode = mode
    d.pos = d.end
    d.retained_from = d.end


@kernel
def save_tls_prefix(state, direction):
    """Save the first bytes of a TLS stream: its ClientHello has the server name and the TLS version."""
    d = state.directions[direction]
    s = state.streams[direction]
    size = min(int(d.end) - int(d.pos), TLS_PREFIX_BYTES)
    for i in range(size):
        state.tls_prefix[direction, i] = s.bytes[d.pos + i]
    d.tls_prefix = size


@kernel
def search(state, direction):
    """LOST: find the next frame boundary. True when there is one (FRAMES from `pos`), or no byte can be one."""
    c = state.connection[0]
    d = state.directions[direction]
    ended = d.final != 0
    s = state.streams[direction]
    here = offset_of_pos(d)
    family = int(c.family)
    start = int(d.pos) + max(0, int(d.scanned[family]) - here)
    verdict, at = find_frames(state, c, family, s.bytes, start, int(d.end), ended, False)
    if family == V1_0_FAMILY:
        verdict, at = header_before(s.bytes, start, at, int(d.end), ended, verdict, state.headers)
    if ended and d.cut_end > d.next:
        cut = cut_frame(state, c, d, s, family, int(d.pos), at if verdict == ACCEPT else int(d.end))
        if cut >= 0:
            verdict, at = ACCEPT, cut
    found = here + at - int(d.pos)
    d.scanned[family] = found
    C.extend_span(d, s, found)
    if verdict != ACCEPT:
        return ended
    C.close_span(state.rows, c, direction, d, state.spans, SKIPPED, found)
    d.mode = FRAMES
    return True


@kernel
def cut_frame(state, c, d, s, family, start, stop):
    """Offset of the first packet in `bytes[start:stop]` that begins with a frame of `family` and ends with the bytes
    that the snaplen cut off; -1 none. Packets rarely begin inside a frame."""
    end, cut = int(d.end), int(d.cut_end) - int(d.next)
    if d.retained_from == d.pos and start < stop and cut_frames(state, c, family, s.bytes, start, end, cut):
        return start  # a hole ends here
    for i in range(int(d.mark_from), int(d.mark_end) - 1):
        p = end - (int(d.next) - int(s.marks[i].end))
        if start < p < stop and cut_frames(state, c, family, s.bytes, p, end, cut):
            return p
    return -1


@kernel
def header_before(buf, start, at, end, ended, verdict, headers):
    """(`verdict`, `at`), or the position of a protocol header of AMQP 1.0 in `buf[start:at]`: a stream has several,
    since security layers come first (part 2, section 2.2)."""
    for p in range(start, at):
        if C.matches_magic(buf, p, end) <= 0:
            continue
        if p + HEADER_OCTETS > end:
            if not ended:
                return UNDECIDED, p
        elif C.header_version(buf, p, headers) == V1_0:
            return ACCEPT, p
    return verdict, at


@kernel
def detect_direction(state, direction):
    """START: detect the protocol of this direction. False: more bytes are needed."""
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    spans = state.spans
    ended = d.final != 0
    p, end = int(d.pos), int(d.end)
    from_start = d.syn != 0 and d.holes == 0 and d.payload_bytes == d.proxy_bytes + end - p
    if from_start and d.proxy_bytes == 0:
        size = proxy_header(s.bytes, p, end)
        if size == INCOMPLETE and not ended:
            return False
        if size > 0:
            C.proxy_header_row(state.rows, c, direction, d, s, spans, size)
            return True
    if C.matches_magic(s.bytes, p, end) > 0:
        if end - p < 8:
            if not ended:
                return False
        elif C.plausible_header(s.bytes, p):
            if c.family == UNKNOWN_FAMILY:
                C.take_version(c, direction, C.header_version(s.bytes, p, state.headers))
                if c.family != UNKNOWN_FAMILY:
                    take_turns(state, direction)
            enter(state, direction, FRAMES)
            return True
    tls = tls_record(s.bytes, p, end, ended)
    if tls == UNDECIDED:
        return False
    opens_tls = from_start and (s.bytes[p] == 22 or s.bytes[p] == 21)  # a handshake or an alert
    if tls == ACCEPT and c.family == UNKNOWN_FAMILY and (opens_tls or tls_chain(s.bytes, p, end, ended)):
        save_tls_prefix(state, direction)
        stop_decoding(d, s, spans, direction, TLS)
        return True
    if from_start and direction != c.client and c.family != CLASSIC:
        # the header is missing, or the server does not support its version: its first frame has the version
        verdict = start_frame(s.bytes, p, end, ended, state.classic)
        if verdict == UNDECIDED:
            return False
        if verdict == ACCEPT:
            assume_classic(c)
    if c.family != UNKNOWN_FAMILY:
        enter(state, direction, FRAMES if from_start else LOST)
        return True
    peer = state.directions[1 - direction]
    if from_start and (direction == c.client or peer.mode == FOREIGN or peer.mode == TLS):
        stop_decoding(d, s, spans, direction, FOREIGN)
        return True
    here = int(d.next) - (end - p)
    for family in range(CLASSIC, V1_0_FAMILY + 1):
        skip = max(0, int(d.scanned[family]) - here)
        verdict, at = find_frames(state, c, family, s.bytes, p + skip, end, ended, skip == 0)
        d.scanned[family] = here + at - p
        is_cut = ended and d.cut_end > d.next and cut_frame(state, c, d, s, family, p, end) >= 0
        if verdict == ACCEPT or is_cut:
            if family == CLASSIC:
                assume_classic(c)
            else:
                c.family = family
                c.version = ONLY_VERSION[family]
                c.version_known = 0
            take_turns(state, direction)
            enter(state, direction, LOST)
            return True
    if end - p > DETECT_BYTES:
        c.limits |= SEARCH
        stop_decoding(d, s, spans, direction, FOREIGN)
        return True
    return False


@kernel
def take_turns(state, direction):
    """This direction has just been detected: if its peer sent bytes before that, both are read in the order of the
    capture."""
    if state.directions[1 - direction].end > state.directions[1 - direction].pos:
        state.connection[0].in_turn = 1
        for side in range(2):
            unread(state.directions[side], state.streams[side])


@kernel
def tls_chain(buf, p, end, ended):
    """Whether another TLS record follows the one at `p`. In the middle of a stream one record header is weak
    evidence."""
    size = 5 + ((int(buf[p + 3]) << 8) | int(buf[p + 4]))
    return p + size == end or tls_record(buf, p + size, end, ended) == ACCEPT


@kernel
def enter(state, direction, mode):
    """The stream is AMQP: append rows for its pending spans, and decode in `mode` from now on."""
    c = state.connection[0]
    d = state.directions[direction]
    C.release_spans(state.rows, c, direction, d, state.spans)
    d.mode = mode
    scan_from(d, 0)


@kernel
def scan_from(d, offset):
    """Begin the next search at stream offset `offset`, for every family."""
    for family in range(len(d.scanned)):
        d.scanned[family] = offset
