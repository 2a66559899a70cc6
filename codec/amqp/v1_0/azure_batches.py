"""Messages in the batches of Azure Service Bus and Event Hubs: a delivery of format `BATCH_FORMAT`, each of whose data
sections is an encoded message (sections of part 3, section 3.2, without a transfer).

A batch whose data sections are not all messages is one message. The octets of its row (`codec.amqp.v1_0.message`) have
all of its sections. Cost: linear in the octets; there are no counts on the wire.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec import variant as W
from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.composites import LARGE, MISFIT
from codec.amqp.v1_0.constructors import descriptor, may_follow, section_head, skip
from codec.amqp.v1_0.message import MISFIT_OF_SECTIONS, decode_message, note_flaws
from codec.amqp.v1_0.scalars import Scratch
from codec.amqp.v1_0.tables import ValueTables, WireTables
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.digest import begin, finish, new_digests, update
from codec.variant import METADATA, VALUE, enlarge, new_writer
from codec.variant.writer import copy_bytes

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
def _payload_at(octets, start, end, t):
    """Where the payload begins in the octets of a transfer: after its performative, whose list is whole."""
    _, _, at = descriptor(octets, start + 2, end, t)
    return skip(octets, at, end, t)


@kernel
def list_messages(cells, octets, first, stop, t, listed):
    """Write the messages in the batches among rows `first` to `stop` to `listed`, as far as it has room: (their number,
    the size of the largest, the row before which there are at most MOST_MESSAGES)."""
    count, largest = 0, 0
    for index in range(first, stop):
        if cells[index, R.DIGEST] != R.BATCH:
            continue
        before, end = count, int(cells[index, R.OCTETS_END])
        payload_at = _payload_at(octets, int(cells[index - 1, R.OCTETS_END]) if index > 0 else 0, end, t)
        at = payload_at
        while at < end:
            section, _, inside, size = section_head(octets, at, end, t)
            if section < 0 or (section == T.DATA and section_head(octets, inside, inside + size, t)[0] < 0):
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
def _split(octets, at, end, t, digests, sections):
    """Copy the sections of a message without those of its body to `sections`, and digest its body: (octets copied,
    section of the body or -1, size of the body, whether its sections parse, whether they are in order)."""
    used, body, size, last, in_order = 0, -1, 0, -1, True
    begin(digests, ONLY)
    while at < end:
        section, value, inside, left = section_head(octets, at, end, t)
        if section < 0 or left > end - inside:
            return used, body, size, False, in_order
        in_order = in_order and may_follow(section, last)
        last, stop = section, inside + left
        if T.DATA <= section <= T.VALUE:
            body = section
            start = inside if section == T.DATA else value
            update(digests, ONLY, octets, start, stop - start)
            size += stop - start
        else:
            copy_bytes(sections, used, octets, at, stop)
            used += stop - at
        at = stop
    return used, body, size, True, in_order


@kernel
def decode_messages(cells, octets, first, listed, k, t, v, s, w, digests, digest, sections):
    """Decode the messages from `listed[k]` on: the one at which the writer is full, or their number. Rows of batches
    say what is wrong with their messages."""
    for i in range(k, len(listed)):
        index = first + int(listed[i, ROW])
        row = cells[index]
        start = _payload_at(octets, int(cells[index - 1, R.OCTETS_END]) if index > 0 else 0, int(row[R.OCTETS_END]), t)
        at = start + int(listed[i, AT])
        used, body, size, whole, in_order = _split(octets, at, at + int(listed[i, SIZE]), t, digests, sections)
        code, flaws = decode_message(w, sections, 0, used, t, v, s, body, False)
        if code == W.FULL:
            W.rollback(w)
            return i
        if code != W.OK:
            W.rollback(w)
            flaws |= LARGE
        note_flaws(row, flaws if whole and in_order else flaws | MISFIT, MISFIT_OF_SECTIONS)
        row[R.NOTES] |= w.positions[W.NOTES] | (N.USERINFO if w.positions[W.MASKED] > 0 else 0)
        row[R.NOTES] |= N.NOT_UTF8 if w.positions[W.ESCAPED] > 0 else 0
        row[R.NOTES] |= N.BODY_MISSING if whole and body < 0 else 0
        listed[i, WHOLE] = 1 if whole else 0
        listed[i, BODY_SIZE] = size if whole else -1
        listed[i, VALUE_END] = w.positions[VALUE]
        listed[i, METADATA_END] = w.positions[METADATA]
        if whole:
            finish(digests, ONLY, digest[i])
    return len(listed)


def end_of_messages(
    cells: NDArray[np.int64], octets: NDArray[np.uint8], first: int, stop: int, wire: WireTables
) -> int:
    """The row of `first` to `stop` before which there are at most MOST_MESSAGES in batches."""
    if not (cells[first:stop, R.DIGEST] == R.BATCH).any():
        return stop
    _, _, end = list_messages(cells, octets, first, stop, wire, np.zeros((0, COLUMNS), np.int64))
    return int(end)


def messages_inside(
    cells: NDArray[np.int64],
    octets: NDArray[np.uint8],
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
    count, largest, _ = list_messages(cells, octets, first, stop, wire, np.zeros((0, COLUMNS), np.int64))
    if not count:
        return None
    listed, digest = np.zeros((count, COLUMNS), np.int64), np.zeros((count, 32), np.uint8)
    list_messages(cells, octets, first, stop, wire, listed)
    writer, digests, sections = new_writer(FIRST_BYTES, FIRST_BYTES), new_digests(1), np.zeros(largest, np.uint8)
    done = 0
    while done < count:
        done = decode_messages(
            cells, octets, first, listed, done, wire, values, scratch, writer, digests, digest, sections
        )
        if done < count:
            writer = enlarge(writer)
    ends = listed[-1]
    return Inside(listed, digest, writer.value[: ends[VALUE_END]], writer.metadata[: ends[METADATA_END]])
