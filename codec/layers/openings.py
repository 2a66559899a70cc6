"""How connections with layers begin: with a ClientHello, with a request for WebSocket, or before the capture.

`next_candidate` looks at the first bytes of each direction, in all flows of a group at once. Much of what begins like a
layer cannot be read: clients whose secrets are not known, requests that no server agreed to, scanners that send one
packet. These need no Python each:

* The random of a ClientHello is looked up in `randoms`.
* A request on a short connection that is in the group from its first segment to its last is read to its end, by the
  kernels that `codec.layers.connection` calls. If it does not become WebSocket, the connection passes unchanged, and
  `reasons` has the reason.

Other short connections are collected (`codec.layers.short`) until there is no room for another one, so that Python
reads the layers of many at once. All others are candidates, which `codec.layers.stack` reads one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import ANY, begins, u32
from codec.framing.proxy_header import INCOMPLETE, NO_HEADER, SIGNATURE, TEXT, proxy_header
from codec.layers import websocket as W
from codec.layers.chunks import CHUNK_COST, EVENTS, HOLE_COST
from codec.layers.http import COMPLETE, MORE, asks_for_websocket
from codec.layers.short import (
    AFTER,
    AT,
    BYTES_FROM,
    BYTES_TO,
    CHUNKS_FROM,
    CHUNKS_TO,
    DECIDED,
    FLOW,
    HEADER,
    NO_ROOM,
    NOT_SHORT,
    WHAT,
    first_of,
    order_short,
)
from codec.layers.tls_handshake import RANDOM_BYTES, SHIFTS
from codec.layers.websocket import read_chunks
from codec.memory import as_records, copy_bytes
from codec.net.layers import (
    ACK,
    FIN,
    RST,
    SYN,
)
from codec.tcp.reassembly import HALF, WRAP

HELLO_HEAD = 43  # bytes of a record with a ClientHello up to the end of its random
RANDOM_AT = HELLO_HEAD - RANDOM_BYTES
HELLO = (0x16, 3, ANY, ANY, ANY, 1, ANY, ANY, ANY, 3)  # handshake record, version 3.x, ClientHello, version 3.x
RECORD = (0x17, 3, 3)  # application data of TLS 1.2 and 1.3
REQUEST = (0x47, 0x45, 0x54, 0x20)  # "GET "
MAGIC = (0x41, 0x4D, 0x51, 0x50)  # of a protocol header of AMQP
HEADER_BYTES, UPGRADE_BYTES, LAYER_BYTES = 8, LIMITS.upgrade_bytes, LIMITS.layer_bytes
# Trial of secrets on a connection that began before the capture: on records in so many segments.
TRIED_SEGMENTS = 64
HEAD_SEGMENTS = 4 * HELLO_HEAD  # a ClientHello in segments of a byte has its random in so many, of both directions

# What a direction of the current connection began with. Only NOTHING, headers and requests are followed by a layer.
NOTHING, PROXY, HEADERS, REQUESTS, OTHER = range(5)
PROXY_BYTES = 536  # of a header of the PROXY protocol that spans segments: receivers need not accept more
# Columns of `openings`: the above, bytes of a PROXY header, the first sequence number by a SYN, that after the payload
# so far plus 1 (0: none).
KIND, SEEN, BEGIN, NEXT = 0, 1, 2, 3
OPENINGS = (2, 4)
PROXY_BEGINS = (TEXT[0], SIGNATURE[0])
NO_CANDIDATE, IS_REQUEST, IS_HELLO, IS_MIDSTREAM, FULL = range(5)


@kernel
def _opening(openings, payload, g):
    """(whether the segment begins like a layer, size of a header of the PROXY protocol before that). `openings` is
    advanced; each direction of a connection has one ClientHello at most that is looked at. A segment that begins before
    the bytes so far end is no candidate: it has copies of them."""
    direction, size = int(g.direction), int(g.cap_len)
    kind, seq, following = int(openings[direction, KIND]), first_of(g), int(openings[direction, NEXT]) - 1
    is_copy = following >= 0 and (seq - following) % WRAP >= HALF
    if following < 0 or (seq + int(g.wire_len) - following) % WRAP < HALF:
        openings[direction, NEXT] = (seq + int(g.wire_len)) % WRAP + 1
    if is_copy:
        return NO_CANDIDATE, 0
    at = int(g.payload_at)
    end = at + size
    header = proxy_header(payload, at, end) if kind == NOTHING else NO_HEADER
    if header == INCOMPLETE:
        openings[direction, KIND], openings[direction, SEEN] = PROXY, size
        return NO_CANDIDATE, 0
    header = max(0, header)
    at += header
    if at == end and header > 0:
        return NO_CANDIDATE, 0
    if kind != HEADERS and begins(payload, at, end, REQUEST):
        verdict = asks_for_websocket(payload, at, min(end, at + UPGRADE_BYTES))
        if verdict == COMPLETE or (verdict == MORE and kind != REQUESTS):
            openings[direction, KIND] = OTHER
            return IS_REQUEST, header
        openings[direction, KIND] = REQUESTS
        return NO_CANDIDATE, 0
    if kind != REQUESTS and begins(payload, at, end, HELLO):
        openings[direction, KIND] = OTHER
        return IS_HELLO, header
    if kind == PROXY and openings[direction, SEEN] + size <= PROXY_BYTES:
        openings[direction, SEEN] += size
    elif kind <= HEADERS and end - at == HEADER_BYTES and begins(payload, at, end, MAGIC):
        openings[direction, KIND] = HEADERS
    elif kind != REQUESTS:
        openings[direction, KIND] = OTHER
    return NO_CANDIDATE, 0


class Requests(NamedTuple):
    """Arrays in which requests are read, one after the other. `sides` (SIDE (2,)), `buffered` uint8 (2, BUFFER_BYTES):
    of one connection; `blank`: records of a new one; `bytes`, `found`, `to`: the output of `read_chunks`, of which a
    connection that passes unchanged has none."""

    blank: np.ndarray
    sides: np.ndarray
    buffered: np.ndarray
    data: np.ndarray
    found: np.ndarray
    to: np.ndarray


# A connection of more segments or bytes is read on its own: then that costs little for each of them.
REQUEST_SEGMENTS, REQUEST_BYTES = 256, 2 * UPGRADE_BYTES
# Why a connection with a request did not become WebSocket; NOT_DECIDED: it may.
REASONS = (W.NO_REQUEST, W.REFUSED, W.NO_ANSWER, W.NO_UPGRADE, W.UNFINISHED, W.NO_FRAME)
NO_REQUEST, REFUSED, NO_ANSWER, NO_UPGRADE, UNFINISHED, NO_FRAME = range(len(REASONS))
NOT_DECIDED = NO_REASON = UNKNOWN = -1


def new_requests() -> Requests:
    """Arrays for `next_candidate`."""
    return Requests(
        as_records(np.zeros(1, W.SIDE)),
        as_records(np.zeros(2, W.SIDE)),
        np.empty((2, W.BUFFER_BYTES), np.uint8),
        np.empty(REQUEST_BYTES + 2 * W.BUFFER_BYTES, np.uint8),
        np.empty((REQUEST_BYTES + 2 * EVENTS, len(W.ROW)), np.int64),
        np.zeros(2, np.int64),
    )


@kernel
def key_at(buf, at):
    """The key of the client random at `at`; see `codec.layers.tls_handshake.folded`."""
    key = 0
    for k in range(len(SHIFTS)):
        key ^= u32(buf, at + 4 * k, at + RANDOM_BYTES) << SHIFTS[k]
    return key


@kernel
def is_in(keys, key):
    """Whether `key` is one of `keys`, which are sorted."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low < len(keys) and keys[low] == key


@kernel
def head_at(segments, payload, i, end, header, head):
    """Copy the payload of segment `i` from offset `header` on, continued by later segments before `end`, to `head`,
    uint8 (HELLO_HEAD,); how many bytes."""
    g = segments[i]
    direction, expected = int(g.direction), first_of(g)
    known, skipped = 0, header
    for k in range(i, min(end, i + HEAD_SEGMENTS)):
        other = segments[k]
        if int(other.direction) != direction or first_of(other) != expected:
            continue
        size = int(other.cap_len)
        expected = (expected + size) % WRAP
        begin = int(other.payload_at) + min(skipped, size)
        amount = min(int(other.payload_at) + size - begin, HELLO_HEAD - known)
        skipped -= min(skipped, size)
        copy_bytes(head, known, payload, begin, begin + amount)
        known += amount
        if known == HELLO_HEAD:
            break
    return known


@kernel
def may_be_known(segments, payload, i, end, header, head, randoms):
    """Whether the random of the ClientHello in segment `i` may be one of `randoms` (keys, sorted)."""
    if head_at(segments, payload, i, end, header, head) < HELLO_HEAD or not begins(head, 0, HELLO_HEAD, HELLO):
        return False
    return is_in(randoms, key_at(head, RANDOM_AT))


@kernel
def has_records(segments, payload, i, end):
    """Whether one of the first segments from `i` on begins with a record of TLS."""
    for k in range(i, min(end, i + TRIED_SEGMENTS)):
        at, size = int(segments[k].payload_at), int(segments[k].cap_len)
        if size >= len(RECORD) and begins(payload, at, at + size, RECORD):
            return True
    return False


@kernel
def is_one_connection(segments, begin, i, end, following):
    """Whether the flow `segments[begin:end]` is one short connection whose first payload is in segment `i`, and of
    which nothing is lost, late, cut or sent again: TCP passes it unchanged. `following` int64 (2,) is scratch: the next
    sequence number of each direction."""
    if end - begin > REQUEST_SEGMENTS:
        return False
    following[:] = UNKNOWN
    closed, size = 0, 0  # directions after a FIN or a RST, as bits
    for k in range(begin, end):
        g = segments[k]
        direction, seq, is_end = int(g.direction), int(g.seq), g["flags"] & (FIN | RST) != 0
        if following[direction] == UNKNOWN:
            following[direction] = seq
        if seq != following[direction] or g.cap_len != g.wire_len or (closed >> direction) & 1:
            return False
        if g.wire_len > 0 and (k < i or g["flags"] & RST):
            return False
        if g["flags"] & SYN and (k > i or g["flags"] & (FIN | RST)):
            return False
        closed |= int(is_end) << direction
        size += int(g.wire_len)
        length = int(g.wire_len) + (1 if g["flags"] & SYN else 0) + (1 if g["flags"] & FIN else 0)
        following[direction] = (seq + length) % WRAP
        if g["flags"] & ACK:
            if following[1 - direction] == UNKNOWN:
                following[1 - direction] = g.ack
            if following[1 - direction] != g.ack:
                return False
    return size <= REQUEST_BYTES


@kernel
def accepts(head, size):
    """Whether this head of a response switches protocols."""
    if size <= len(SWITCHING):
        return False
    for k in range(len(SWITCHING)):
        if head[k] != SWITCHING[k]:
            return False
    return True


SWITCHING = tuple(W.STATUS_LINE)


@kernel
def _asks(r, client):
    """Whether the head of the client asks for WebSocket, as far as it is known."""
    return asks_for_websocket(r.buffered[client], 0, int(r.sides[client].buffered)) == COMPLETE


@kernel
def request_reason(r, s, client):
    """Why the connection in row `s.used[0]` of `s`, which begins with a request, does not become WebSocket, as an index
    of REASONS; NOT_DECIDED: it does, or this layer cannot tell. The decisions of `codec.layers.websocket`."""
    row = s.rows[s.used[0]]
    first, end = int(row[CHUNKS_FROM]), int(row[CHUNKS_TO])
    direction, begin, size = s.chunks[1][first:end], s.chunks[2][first:end], s.chunks[3][first:end]
    data, count, cost = s.tcp.data[row[BYTES_FROM] : row[BYTES_TO]], end - first, 0
    for k in range(count):
        cost += int(size[k]) + CHUNK_COST if size[k] >= 0 else HOLE_COST
    if cost > LAYER_BYTES:
        return NOT_DECIDED
    for side in range(2):
        r.sides[side] = r.blank[0]
    r.to[0] = 0
    r.to[1] = 0
    asked, reason, k, at = False, NO_REASON, 0, 0
    while k < count:
        code, k, at = read_chunks(
            direction, begin, size, data, k, at, client, r.sides, r.buffered, r.data, r.found, r.to
        )
        if r.to[0] > 0 or code == W.MESSAGE_HOLE:
            return NOT_DECIDED
        if code == W.DONE:
            break
        side = int(direction[k])
        if code == W.WRONG_FRAME:
            reason = NO_FRAME if reason == NO_REASON else reason
            r.sides[side].buffered = 0
        elif code == W.HEAD_READ and side == client and _asks(r, client):
            asked = True
            r.sides[client].stage = W.FRAMES
            r.sides[client].buffered = 0
        elif code == W.HEAD_READ and side != client and accepts(r.buffered[side], int(r.sides[side].buffered)):
            return NOT_DECIDED
        elif reason != NO_REASON:
            return reason
        elif code == W.HEAD_HOLE:
            return NO_UPGRADE
        elif not asked and not _asks(r, client):
            return NO_REQUEST
        elif side != client and code != W.HEAD_TOO_LONG:
            return REFUSED
        else:
            return UNFINISHED
    if reason != NO_REASON:
        return reason
    if not asked:
        return UNFINISHED if _asks(r, client) else NO_REQUEST
    if r.sides[1 - client].buffered > 0:
        return UNFINISHED
    return NO_ANSWER if s.wire[s.used[0], 1 - client, 0] > 0 else NO_UPGRADE


@kernel
def copy_openings(target, source):
    """Copy an array of the shape OPENINGS."""
    for k in range(OPENINGS[0]):
        for j in range(OPENINGS[1]):
            target[k, j] = source[k, j]


@kernel
def collect(s, r, ends, segments, payload, flow, i, header, kind, begun, openings, is_first, reasons, decided):
    """Read the TCP of the connection that begins like a layer at segment `i`: the index after it, NOT_SHORT or NO_ROOM.
    It is a row of `s`, or has its reason in `reasons`. `is_first`: no payload came before it."""
    complete = begun >= 0 and flow < len(ends) - 1
    direction = int(segments[i].direction)
    begins_at = int(openings[direction, BEGIN]) if begun >= 0 and is_first and header == 0 else 0
    events, data, chunks = int(s.tcp.used[0]), int(s.tcp.used[1]), int(s.used[1])
    after = order_short(s, segments, payload, i, int(ends[flow]), complete, header, begins_at)
    if after < 0:
        return after
    begin, end = int(ends[flow - 1]) if flow > 0 else 0, int(ends[flow])
    is_whole = kind == IS_REQUEST and flow >= begun and after == end
    if is_whole and is_one_connection(segments, begin, i, end, r.to):
        reason = request_reason(r, s, direction)
        if reason != NOT_DECIDED:
            reasons[decided[0], 0], reasons[decided[0], 1], reasons[decided[0], 2] = flow, reason, after - 1
            decided[0] += 1
            s.tcp.used[0] = events
            s.tcp.used[1] = data
            s.used[1] = chunks
            return after
    row = s.rows[s.used[0]]
    row[FLOW], row[AT], row[AFTER], row[WHAT], row[HEADER] = flow, i, after, kind, header
    row[DECIDED] = decided[0]
    copy_openings(s.openings[s.used[0]], openings)
    s.used[0] += 1
    return after


@kernel
def next_candidate(
    ends, segments, payload, flow, i, openings, begun, midstream, randoms, all_randoms, short, requests, head, before,
    reasons, decided,
):  # fmt: skip
    """(what it is, index of its flow, of the segment, size of a header of the PROXY protocol before it) of the first
    segment from `i` on, which is in this flow, that begins a layer, or may do so, of a connection that is read on its
    own; FULL: `short` has no room for the next short one.

    `openings` int64 OPENINGS: see KIND, SEEN, BEGIN, NEXT; `begun`: the first flow that begins in these
    segments, negative: all connections are read on their own; `midstream`: a flow that begins without SYN and has
    records of TLS is a candidate as well; `randoms` int64: sorted keys of the client randoms whose secrets are known,
    of all if `all_randoms`; `requests`, `head` uint8 (HELLO_HEAD,), `before` like `openings`: scratch; `reasons` int64
    (n, 3): flows of requests that were read to their end, why they are no WebSocket, their last segments; `decided`
    int64 (1,): how many."""
    while i < len(segments):
        if i >= ends[flow]:
            flow += 1
            openings[:] = 0
            begins_late = midstream and flow < len(ends) and i < ends[flow] and segments[i]["flags"] & SYN == 0
            if begins_late and has_records(segments, payload, i, ends[flow]):
                return IS_MIDSTREAM, flow, i, 0
            continue
        g = segments[i]
        direction = int(g.direction)
        begins_at = (int(g.seq) + 1) % WRAP
        if g["flags"] & SYN and openings[direction, BEGIN] != begins_at:
            openings[direction, KIND], openings[direction, BEGIN], openings[direction, NEXT] = NOTHING, begins_at, 0
            if g["flags"] & ACK == 0:
                openings[1 - direction, KIND] = NOTHING
                openings[1 - direction, NEXT] = 0
        if g.cap_len > 0 and openings[direction, KIND] != OTHER and g["flags"] & RST == 0:
            copy_openings(before, openings)
            found, header = _opening(openings, payload, g)
            is_hello = found == IS_HELLO and all_randoms
            if is_hello and not may_be_known(segments, payload, i, ends[flow], header, head, randoms):
                found = NO_CANDIDATE
            if found != NO_CANDIDATE:
                is_first = before[0, NEXT] == 0 and before[1, NEXT] == 0
                after = NOT_SHORT
                if begun >= 0 and decided[0] < len(reasons):
                    after = collect(
                        short, requests, ends, segments, payload, flow, i, header, found, begun, openings, is_first,
                        reasons, decided,
                    )  # fmt: skip
                if after == NO_ROOM:
                    copy_openings(openings, before)
                    return FULL, flow, i, 0
                if after == NOT_SHORT:
                    return found, flow, i, header
                i = after
                continue
        i += 1
    return NO_CANDIDATE, flow, i, 0
