"""Detection of the protocol of a direction, and of the next frame boundary: modes START and LOST of
`codec.framing.stream`.

Cost: linear in the bytes, at most `LIMITS.detect_bytes` of a stream that is not AMQP.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS, SEARCH
from codec.cursor import u32
from codec.framing import classic_frames, v0_10_frames, v1_0_frames
from codec.framing import connection as C
from codec.framing.classic_frames import DECODED, reset_contents
from codec.framing.connection import TLS_PREFIX_BYTES
from codec.framing.proxy_header import INCOMPLETE, proxy_header
from codec.framing.v1_0_deliveries import reset_deliveries
from codec.memory import copy_bytes
from codec.protocol import rows as R
from codec.protocol.classic_detection import assume_classic, find_classic, is_cut_classic, start_frame
from codec.protocol.frame_search import ACCEPT, REJECT, UNDECIDED, tls_record
from codec.protocol.v0_10_detection import find_v0_10, is_cut_v0_10
from codec.protocol.v1_0_detection import find_v1_0, is_cut_v1_0
from codec.protocol.versions import (
    BODY,
    CLASSIC,
    FOREIGN_SPAN,
    NONE,
    SKIPPED,
    UNKNOWN_FAMILY,
    V0_10,
    V0_10_FAMILY,
    V1_0,
    V1_0_FAMILY,
)
from codec.tcp.reassembly import (
    FOREIGN,
    FRAMES,
    LOST,
    START,
    TLS,
    offset_of_pos,
    unread,
)

# Framing by family: the operations of `codec.framing.stream` on frames, for every version.


PARTIAL_BYTES = LIMITS.partial_bytes
# The only version of each family; `codec.protocol.classic_detection` determines that of the classic family.
ONLY_VERSION = np.array([NONE, NONE, V0_10, V1_0], np.int64)


@kernel
def decode_frames(state, c, d, direction, s):
    """Decode consecutive frames from `pos` on: the code of the last one (see `codec.framing.classic_frames`). DECODED:
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
    """Append the row of a frame that lost bytes (`rows_full` ensures room for its bytes)."""
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
    where the snaplen cut off `cut` bytes of the packet."""
    if family == CLASSIC:
        return is_cut_classic(buf, p, end, cut, state.classic, c)
    if family == V0_10_FAMILY:
        return is_cut_v0_10(buf, p, end, cut, state.v0_10, c)
    return family == V1_0_FAMILY and is_cut_v1_0(buf, p, end, cut, state.wire, c)


DETECT_BYTES = LIMITS.detect_bytes
HEADER_BYTES = 8
HEAD = 4  # bytes that identify a protocol
# First bytes of foreign streams in text that a row shows: of HTTP and SSH, which no AMQP follows, and of STOMP, SMTP,
# Redis, IRC, FTP, SIP and RTSP, among others. Other text may be a login.
FINAL = b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"SSH-"
OTHERS = (
    b"CONN", b"STOM", b"OPTI", b"DELE", b"PATC", b"TRAC", b"PRI ", b"EHLO", b"HELO", b"INFO", b"PING", b"QUIT", b"NICK",
    b"USER", b"SIP/", b"RTSP", b"INVI", b"REGI", b"*1\r\n", b"*2\r\n", b"*3\r\n", b"AMQP",
)  # fmt: skip
KNOWN_HEADS = np.array([int.from_bytes(head, "big") for head in (*FINAL, *OTHERS)])
FIRST_TEXT, LAST_TEXT = 0x20, 0x7E


@kernel
def foreign_head(buf, p, end):
    """The first four bytes of another protocol if a row may show them, else -1: those of binary protocols, such as TLS
    and MQTT, and of KNOWN_HEADS."""
    head = u32(buf, p, end)
    if head < 0 or not FIRST_TEXT <= head >> 24 <= LAST_TEXT:
        return head
    for known in KNOWN_HEADS:
        if head == known:
            return head
    return -1


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
    if mode == FOREIGN and d.proxy_bytes + size == d.payload_bytes and d.holes == 0:
        d.foreign_head = foreign_head(s.bytes, int(d.pos), int(d.end)) + 1
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
    if family == V1_0_FAMILY or d.in_preamble:
        version = NONE if d.in_preamble else V1_0
        verdict, at = header_before(s.bytes, start, at, int(d.end), ended, verdict, state.headers, version)
    if ended and d.cut_end > d.next:
        cut = cut_frame(state, c, d, s, family, int(d.pos), at if verdict == ACCEPT else int(d.end))
        if cut >= 0:
            verdict, at = ACCEPT, cut
    found = here + at - int(d.pos)
    d.scanned[family] = found
    C.extend_span(d, s, found)
    if verdict != ACCEPT:
        return ended
    if direction == c.client and C.matches_magic(s.bytes, at, int(d.end)) <= 0:
        d.in_preamble = 0  # a proxy's protocol would end where the header of AMQP begins
    C.close_span(state.rows, c, direction, d, state.spans, FOREIGN_SPAN if d.in_preamble else SKIPPED, found)
    d.in_preamble = 0
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
def header_before(buf, start, at, end, ended, verdict, headers, version):
    """(`verdict`, `at`), or the position of a protocol header of `version` (NONE: of any) in `buf[start:at]`. A stream
    of AMQP 1.0 has several, since security layers come first (part 2, section 2.2)."""
    for p in range(start, at):
        if C.matches_magic(buf, p, end) <= 0:
            continue
        if p + HEADER_BYTES > end:
            if not ended:
                return UNDECIDED, p
        else:
            found = C.header_version(buf, p, headers)
            wanted = found if version == NONE else version
            if found != NONE and found == wanted:
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
    from_start = d.syn != 0 and d.holes == 0 and d.payload_bytes == d.proxy_bytes + d.preamble_bytes + end - p
    if from_start and d.proxy_bytes == 0 and d.preamble_bytes == 0:
        size = proxy_header(s.bytes, p, end)
        if size == INCOMPLETE and not ended:
            return False
        if size > 0:
            C.proxy_header_row(state.rows, c, direction, d, s, spans, size)
            return True
    magic = C.matches_magic(s.bytes, p, end)
    if magic > 0:
        if end - p < 8:
            if not ended:
                return False
            if magic == HEAD and d.cut_end > d.next and from_start:  # the snaplen cut the version off
                enter(state, direction, LOST)
                return True
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
    verdict, peer = REJECT, state.directions[1 - direction]
    if from_start and direction != c.client and (c.family != CLASSIC or peer.preamble_bytes > 0):
        # the header is missing, or the server does not support its version: its first frame has the version
        verdict = start_frame(s.bytes, p, end, ended, state.classic)
        if verdict == UNDECIDED:
            return False
        if verdict == ACCEPT and c.family != CLASSIC:
            assume_classic(c)
    known = c.family != UNKNOWN_FAMILY
    if from_start and direction == c.client and not (known and c.in_layers):
        return not_amqp(state, direction, ended or known)
    if known or peer.mode == LOST:
        # A client whose early data of TLS the server refused begins anywhere in its frames. Both sides of a tunnel
        # through a proxy begin in its protocol.
        if from_start and direction == c.client:
            d.in_preamble, d.foreign_head = 1, foreign_head(s.bytes, p, end) + 1
        elif from_start and peer.preamble_bytes > 0 and verdict != ACCEPT:
            d.in_preamble = 1
        enter(state, direction, FRAMES if known and from_start and not d.in_preamble else LOST)
        return True
    if from_start and (peer.mode == FOREIGN or peer.mode == TLS):
        stop_decoding(d, s, spans, direction, FOREIGN)
        return True
    undecided = c.client >= 0 and peer.mode == START and peer.end > peer.pos
    if from_start and undecided and not ended and end - p <= DETECT_BYTES:
        return False  # the client decides
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
def not_amqp(state, direction, last):
    """START: the client began with another protocol. It may be that of a proxy through which it reaches the broker:
    then a protocol header follows, and what comes before it is the preamble. False: more bytes are needed. `last`: the
    next ones cannot change that."""
    c, d, s = state.connection[0], state.directions[direction], state.streams[direction]
    p, end = int(d.pos), int(d.end)
    here = int(d.next) - (end - p)
    head = u32(s.bytes, p, end)
    endless = False
    for i in range(len(FINAL)):
        endless = endless or head == KNOWN_HEADS[i]
    start = p + max(0, int(d.scanned[UNKNOWN_FAMILY]) - here)
    verdict, at = header_before(s.bytes, start, end, end, last, UNDECIDED, state.headers, NONE)
    if not endless and verdict == ACCEPT:
        C.extend_span(d, s, here + at - p)
        d.foreign_head = foreign_head(s.bytes, p, end) + 1
        C.close_span(state.rows, c, direction, d, state.spans, FOREIGN_SPAN, here + at - p)
        return True
    if not endless and not last and end - p <= DETECT_BYTES:
        d.scanned[UNKNOWN_FAMILY] = here + at - p
        return False
    if not endless and end - p > DETECT_BYTES:
        c.limits |= SEARCH
    stop_decoding(d, s, state.spans, direction, FOREIGN)
    return True


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
