"""Which messages are requests of HTTP over AMQP, and their replies: RabbitMQ's management (its documentation, AMQP 1.0,
and HTTP Semantics and Content over AMQP 1.0).

A request has its method as the subject, a path as `to`, and "$me" as reply-to; a reply has the version of HTTP as the
application property "http:response". Their bodies are declarations of queues and the like: small maps, which are
decoded. Bodies of requests for "/auth/..." are credentials, and are not. Cost: constant.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec import variant as W
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at, u8
from codec.hashes.sha256 import (
    begin,
    finish,
    new_digests,
    update,
)
from codec.memory import copy_bytes
from codec.protocol import rows as R
from codec.protocol import v1_0_tables as T
from codec.protocol.v1_0_detection import (
    DESCRIBED,
    compound,
    descriptor,
    is_true,
    length_at,
    may_follow,
    section_head,
    skip,
    text_span,
)
from codec.protocol.v1_0_tables import ValueTables, WireTables
from codec.protocol.v1_0_values import LARGE, MISFIT, MISFIT_OF_SECTIONS, Scratch, decode_message, note_flaws
from codec.variant import METADATA, VALUE, enlarge, new_writer

KEYS = 8  # of application properties, among which the one of a reply is
TO, SUBJECT, REPLY_TO = 2, 3, 4  # fields of the properties (part 3, section 3.2.4)
WORDS = (b"GET", b"PUT", b"POST", b"DELETE", b"$me", b"http:response", b"/auth/")
METHODS, ME, RESPONSE, CREDENTIALS = 4, 4, 5, 6  # the number of methods, and other words
TEXT = np.frombuffer(b"".join(WORDS), np.uint8)
ENDS = np.cumsum([0, *map(len, WORDS)])
SLASH = ord("/")


@kernel
def is_management(buf, properties, application, end, t):
    """Whether a message with these sections is a request or a reply: offsets of the constructors of their values, -1
    for a missing section. False for requests whose body is a credential."""
    if application >= 0 and _is_reply(buf, application, end, t):
        return True
    return properties >= 0 and _is_request(buf, properties, end, t)


@kernel
def _items(buf, value, end, t, kind):
    """A list or map: (offset of its first item, number of items, its end); (-1, 0, -1) for another value."""
    code = u8(buf, value, end)
    if code < 0 or t.constructor[code].type != kind or t.constructor[code].category != T.COMPOUND:
        return -1, 0, -1
    width = int(t.constructor[code].width)
    size = length_at(buf, value + 1, end, width)
    start = value + 1 + width
    count = length_at(buf, start, end, width)
    if size < 0 or count < 0 or size > end - start:
        return -1, 0, -1
    return start + width, count, start + size


@kernel
def _is_word(buf, start, stop, word, prefix):
    """Whether a text is one of WORDS, or begins with it."""
    first, size = ENDS[word], ENDS[word + 1] - ENDS[word]
    if start < 0 or stop - start < size or (stop - start > size and not prefix):
        return False
    for i in range(size):
        if byte_at(buf, start + i) != TEXT[first + i]:
            return False
    return True


@kernel
def _is_request(buf, value, end, t):
    at, count, stop = _items(buf, value, end, t, T.LIST)
    if count <= REPLY_TO:
        return False
    has_method = False
    for field in range(REPLY_TO + 1):
        start, text_end = text_span(buf, at, stop, t)
        if field == TO and (
            start < 0
            or start == text_end
            or byte_at(buf, start) != SLASH
            or _is_word(buf, start, text_end, CREDENTIALS, True)
        ):
            return False
        if field == SUBJECT:
            for method in range(METHODS):
                has_method |= _is_word(buf, start, text_end, method, False)
        if field == REPLY_TO:
            return has_method and _is_word(buf, start, text_end, ME, False)
        at = skip(buf, at, stop, t)
        if at < 0:
            return False
    return False


@kernel
def _is_reply(buf, value, end, t):
    at, count, stop = _items(buf, value, end, t, T.MAP)
    for _ in range(min(count // 2, KEYS)):
        start, text_end = text_span(buf, at, stop, t)
        if _is_word(buf, start, text_end, RESPONSE, False):
            return True
        at = skip(buf, at, stop, t)
        if at >= 0:
            at = skip(buf, at, stop, t)
        if at < 0:
            return False
    return False


# Messages that hand a token over: their payload is kept nowhere, also where payloads are.
#
# A client puts a token to the node `$cbs` (AMQP Claims-based Security, section 3), or replaces its own on the link pair
# of RabbitMQ by `PUT /auth/tokens` (management over AMQP, RabbitMQ 4). A direction remembers the handle of its sending
# link to `$cbs`; with a second such link the payload of all its transfers is dropped. Where the attach is not known,
# and on other links, a message is recognised by one of MARKS among its properties and application properties. Cost:
# linear in the bytes.


NO_LINK, EVERY_LINK = 0, -1  # instead of a key plus 1
_NODE = np.frombuffer(bytearray(b"$cbs"), np.uint8)
_MARKS = (b"put-token", b"set-token", b"/auth/tokens")
_MARK = np.frombuffer(bytearray(b"".join(_MARKS)), np.uint8)
_MARK_AT = np.cumsum([0, *map(len, _MARKS)], dtype=np.int64)
_SLASH = ord("/")


@kernel
def _is_mark(buf, at, end):
    """Whether a string of one of MARKS, with its size before it, begins at `at`."""
    for i in range(len(_MARK_AT) - 1):
        first, size = int(_MARK_AT[i]), int(_MARK_AT[i + 1] - _MARK_AT[i])
        same = size <= end - at and byte_at(buf, at - 1) == size
        for j in range(size):
            same = same and buf[at + j] == _MARK[first + j]
        if same:
            return True
    return False


@kernel
def has_mark(buf, start, end):
    """Whether the payload `buf[start:end]` of a transfer has one of MARKS."""
    for at in range(start + 1, end):
        byte = byte_at(buf, at)
        if (byte == ord("p") or byte == ord("s") or byte == _SLASH) and _is_mark(buf, at, end):
            return True
    return False


@kernel
def is_token_node(buf, at, end, t):
    """Whether the source or target at `at` (-1: none) has the address `$cbs`, also after a path."""
    if at < 0 or u8(buf, at, end) != DESCRIBED:
        return False
    _, _, value = descriptor(buf, at + 1, end, t)
    code = u8(buf, value, end) if value >= 0 else 0
    if code <= 0:
        return False
    first, stop, count = compound(buf, value + 1, end, code, t)
    if first < 0 or count < 1:
        return False
    start, text_end = text_span(buf, first, stop, t)
    size = len(_NODE)
    if start < 0 or text_end - start < size:
        return False
    for i in range(size):
        if buf[text_end - size + i] != _NODE[i]:
            return False
    return text_end - start == size or byte_at(buf, text_end - size - 1) == _SLASH


@kernel
def on_attach(d, buf, end, role, target, key, t):
    """A link with `key` is attached; `role`, `target`: offsets of these fields, or -1."""
    on_detach(d, key)
    if not is_true(buf, role, end, t) and is_token_node(buf, target, end, t):
        d.token_link = key + 1 if d.token_link == NO_LINK else EVERY_LINK


@kernel
def on_detach(d, key):
    """The link with `key` is detached."""
    if d.token_link == key + 1:
        d.token_link = NO_LINK


@kernel
def on_token_link(d, key):
    """Whether transfers on the link with `key` hand tokens over."""
    return d.token_link == EVERY_LINK or d.token_link == key + 1


# Messages in the batches of Azure Service Bus and Event Hubs: a delivery of format `BATCH_FORMAT`, each of whose data
# sections is an encoded message (sections of part 3, section 3.2, without a transfer).
#
# A batch whose data sections are not all messages is one message. The bytes of its row (`codec.protocol.v1_0_values`)
# have all of its sections. Cost: linear in the bytes; there are no counts on the wire.


COLUMNS = 7
# ROW: of the batch; AT: offset in its payload; the ends of values in both heaps; WHOLE: 1 with a digest of the body.
ROW, AT, SIZE, BODY_SIZE, WHOLE, VALUE_END, METADATA_END = range(COLUMNS)
FIRST_BYTES = 1 << 14  # of the heaps of values
ONLY = np.int64(0)  # the index of the digest in use
MOST_MESSAGES = LIMITS.batch_messages


class Inside(NamedTuple):
    """Messages in batches, those of a batch together and in order: `cells` int64 (n, COLUMNS), `digest` uint8 (n, 32);
    `value`, `metadata` uint8: heaps of their properties, as VARIANT."""

    cells: NDArray[np.int64]
    digest: NDArray[np.uint8]
    value: NDArray[np.uint8]
    metadata: NDArray[np.uint8]


@kernel
def _payload_at(data, start, end, t):
    """Where the payload begins in the bytes of a transfer: after its performative, whose list is whole."""
    _, _, at = descriptor(data, start + 2, end, t)
    return skip(data, at, end, t)


@kernel
def list_messages(cells, data, first, stop, t, listed):
    """Write the messages in the batches among rows `first` to `stop` to `listed`, as far as it has room: (their number,
    the size of the largest, the row before which there are at most MOST_MESSAGES)."""
    count, largest = 0, 0
    for index in range(first, stop):
        if cells[index, R.DIGEST] != R.BATCH:
            continue
        before, end = count, int(cells[index, R.BYTES_END])
        payload_at = _payload_at(data, int(cells[index - 1, R.BYTES_END]) if index > 0 else 0, end, t)
        at = payload_at
        while at < end:
            section, _, inside, size = section_head(data, at, end, t)
            if section < 0 or (section == T.DATA and section_head(data, inside, inside + size, t)[0] < 0):
                count = before
                break
            if section == T.DATA:
                if count - before == MOST_MESSAGES:
                    cells[index, R.DIGEST] = R.LARGE_BATCH
                    count = before
                    break
                if count < len(listed):
                    listed[count, ROW] = index - first
                    listed[count, AT] = inside - payload_at
                    listed[count, SIZE] = size
                count += 1
                largest = max(largest, size)
            at = inside + size
        if count > MOST_MESSAGES:
            return before, largest, index
    return count, largest, stop


@kernel
def _split(data, at, end, t, digests, sections):
    """Copy the sections of a message without those of its body to `sections`, and digest its body: (bytes copied,
    section of the body or -1, size of the body, whether its sections parse, whether they are in order)."""
    used, body, size, last, in_order = 0, -1, 0, -1, True
    begin(digests, ONLY)
    while at < end:
        section, value, inside, left = section_head(data, at, end, t)
        if section < 0 or left > end - inside:
            return used, body, size, False, in_order
        in_order = in_order and may_follow(section, last)
        last, stop = section, inside + left
        if T.DATA <= section <= T.VALUE:
            body = section
            start = inside if section == T.DATA else value
            update(digests, ONLY, data, start, stop - start)
            size += stop - start
        else:
            copy_bytes(sections, used, data, at, stop)
            used += stop - at
        at = stop
    return used, body, size, True, in_order


@kernel
def decode_messages(cells, data, first, listed, k, t, v, s, w, digests, digest, sections):
    """Decode the messages from `listed[k]` on: the one at which the writer is full, or their number. Rows of batches
    say what is wrong with their messages."""
    for i in range(k, len(listed)):
        index = first + int(listed[i, ROW])
        row = cells[index]
        start = _payload_at(data, int(cells[index - 1, R.BYTES_END]) if index > 0 else 0, int(row[R.BYTES_END]), t)
        at = start + int(listed[i, AT])
        used, body, size, whole, in_order = _split(data, at, at + int(listed[i, SIZE]), t, digests, sections)
        code, flaws = decode_message(w, sections, 0, used, t, v, s, body, False)
        if code == W.FULL:
            W.rollback(w)
            return i
        if code != W.OK:
            W.rollback(w)
            flaws |= LARGE
        note_flaws(row, flaws if whole and in_order else flaws | MISFIT, MISFIT_OF_SECTIONS)
        row[R.NOTES] |= w.positions[W.NOTES] | (R.USERINFO if w.positions[W.MASKED] > 0 else 0)
        row[R.NOTES] |= R.NOT_UTF8 if w.positions[W.ESCAPED] > 0 else 0
        row[R.NOTES] |= R.BODY_MISSING if whole and body < 0 else 0
        listed[i, WHOLE] = 1 if whole else 0
        listed[i, BODY_SIZE] = size if whole else -1
        listed[i, VALUE_END] = w.positions[VALUE]
        listed[i, METADATA_END] = w.positions[METADATA]
        if whole:
            finish(digests, ONLY, digest[i])
    return len(listed)


def end_of_messages(cells: NDArray[np.int64], data: NDArray[np.uint8], first: int, stop: int, wire: WireTables) -> int:
    """The row of `first` to `stop` before which there are at most MOST_MESSAGES in batches."""
    if not (cells[first:stop, R.DIGEST] == R.BATCH).any():
        return stop
    _, _, end = list_messages(cells, data, first, stop, wire, np.zeros((0, COLUMNS), np.int64))
    return int(end)


def messages_inside(
    cells: NDArray[np.int64],
    data: NDArray[np.uint8],
    first: int,
    stop: int,
    wire: WireTables,
    values: ValueTables,
    scratch: Scratch,
) -> Inside | None:
    """The messages in batches among rows `first` to `stop`; None without any. `Inside.cells` count rows from
    `first`."""
    if not (cells[first:stop, R.DIGEST] == R.BATCH).any():
        return None
    count, largest, _ = list_messages(cells, data, first, stop, wire, np.zeros((0, COLUMNS), np.int64))
    if not count:
        return None
    listed, digest = np.zeros((count, COLUMNS), np.int64), np.zeros((count, 32), np.uint8)
    list_messages(cells, data, first, stop, wire, listed)
    writer, digests, sections = new_writer(FIRST_BYTES, FIRST_BYTES), new_digests(1), np.zeros(largest, np.uint8)
    done = 0
    while done < count:
        done = decode_messages(
            cells, data, first, listed, done, wire, values, scratch, writer, digests, digest, sections
        )
        if done < count:
            writer = enlarge(writer)
    ends = listed[-1]
    return Inside(listed, digest, writer.value[: ends[VALUE_END]], writer.metadata[: ends[METADATA_END]])
