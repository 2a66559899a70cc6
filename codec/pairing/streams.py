"""Which publish each message of a stream is: by its offset, its index in the stream.

A stream (of RabbitMQ) retains its messages, and readers begin anywhere, again and again. The messages that exchanges
route to it get offsets in the order of their publishes, so the publishes in a capture, numbered, differ from their
offsets by a constant, until a publish is missing in the capture.

Rows come group by group, a group being the publishes to an exchange (on the default exchange: to a queue) and the
deliveries of the streams that got them. A message whose content only one publish and one offset have is a certain pair,
and fixes the difference; the publishes of others follow from the differences before and after. If no content is unique,
the difference follows from what a queue.declare-ok said: the stream had so many messages, so the next publish has that
offset. Else several differences are tried, and the one with which most messages have their contents is chosen; then
pairs of messages with equal contents are ambiguous, as they are where certain pairs have different differences. Where
the difference leads to another content, messages were reordered or are missing; then one that fits is searched for
among the publishes between the certain pairs.

Each row costs O(log n), and up to `Limits.pairing_probes` looks at publishes of the same content. A stream looks at all
publishes of its group; where there are so many streams that this costs more than `Limits.pairing_probes` looks a row,
the remaining ones are left undecided. Memory: 200 bytes a row.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.maps import (
    ABSENT,
    HashMap,
    clear,
    get,
    new_map,
    put,
    with_room,
)
from codec.pairing.engine import NONE, PUBLISH

PROBES = LIMITS.pairing_probes
MOST_FACTS = 8  # that are tried
UNDECIDED = -2
UNKNOWN = np.iinfo(np.int64).min  # a difference


class StreamRows(
    namedtuple("StreamRows", "group side stream route content label first_ns last_ns offset since_ns until_ns")
):
    """Columns int64 (n,), sorted by `group` and `side`, publishes then by time, deliveries by `stream`, `since_ns`,
    `offset`, `content`, time. `content`, `label`: hashes of a message, without and with its headers (the two never
    collide); `since_ns`, `until_ns`: of a delivery, when its stream was created and deleted."""


class Facts(NamedTuple):
    """Columns int64 (m,), sorted by `stream`, `at_ns`: at that time it `had` so many messages (-1: it was deleted);
    `most`: the largest number so far since it was created."""

    stream: np.ndarray
    at_ns: np.ndarray
    had: np.ndarray
    most: np.ndarray


class Work(NamedTuple):
    """Scratch. `routes` of a stream; `heads`: first publish of a content; `sizes`, `asked`: its publishes and its
    messages. int64 (n,): `own`, rows of the publishes that may be in the stream; `following`, by their index, int64
    (2, n): the next one of the same content, of the same label; `paired`: 1 if it is paired; of messages, by index:
    `rows` (its earliest delivery), `publish` (the index of its publish, if that is certain), `after` (the next certain
    message)."""

    routes: HashMap
    heads: HashMap
    sizes: HashMap
    asked: HashMap
    own: np.ndarray
    following: np.ndarray
    paired: np.ndarray
    rows: np.ndarray
    publish: np.ndarray
    after: np.ndarray


def stream_positions(rows: StreamRows, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Of each delivery the row of its publish, NONE for none, or UNDECIDED; and 1 if that is ambiguous. int64 (n,)."""
    n = len(rows.group)
    routes, heads, sizes, asked = (with_room(new_map(), 2 * n) for _ in range(4))
    own, paired, messages, of_messages, after = (np.zeros(n, np.int64) for _ in range(5))
    following = np.zeros((2, n), np.int64)
    work = Work(routes, heads, sizes, asked, own, following, paired, messages, of_messages, after)
    publish, ambiguous = np.full(n, UNDECIDED), np.zeros(n, np.int64)
    pair_streams(rows, facts, work, publish, ambiguous)
    return publish, ambiguous


@kernel
def pair_streams(rows, facts, work, publish, ambiguous):
    """Fill `publish` and `ambiguous` for all groups."""
    start, n = 0, len(rows.group)
    while start < n:
        middle = start
        while middle < n and rows.group[middle] == rows.group[start] and rows.side[middle] == PUBLISH:
            middle += 1
        end = middle
        while end < n and rows.group[end] == rows.group[start]:
            end += 1
        looks, at = PROBES * (end - start), middle
        while at < end:
            stop = at + 1
            while stop < end and rows.stream[stop] == rows.stream[at] and rows.since_ns[stop] == rows.since_ns[at]:
                stop += 1
            looks -= middle - start
            if looks >= 0:
                _pair_stream(rows, facts, work, publish, ambiguous, start, middle, at, stop)
            at = stop
        start = end


@kernel
def _pair_stream(rows, facts, work, publish, ambiguous, start, middle, at, stop):
    """Find the publishes, among those from `start` to `middle`, of the deliveries `at`..`stop`, all of one stream."""
    first_fact = _first(facts.stream, 0, len(facts.stream), rows.stream[at])
    last_fact = _first(facts.stream, first_fact, len(facts.stream), rows.stream[at] + 1)
    count = _collect_publishes(rows, work, start, middle, at, stop)
    messages = _collect_messages(rows, work, at, stop)
    anchors = 0
    for message in range(messages):
        work.publish[message] = NONE
        content = _content(rows, work, message)
        if get(work.sizes, content) == 1 and get(work.asked, content) == 1:
            index = get(work.heads, content)
            if _fits(rows, facts, work, first_fact, last_fact, index, message):
                work.publish[message], work.paired[index] = index, 1
                anchors += 1
    likely, sure = UNKNOWN, True
    if anchors == 0:
        likely, sure = _likely_difference(rows, facts, work, first_fact, last_fact, count, messages)
    else:
        sure = _are_consistent(rows, work, messages)
    _note_next(work, messages)
    before = NONE  # the last certain message
    for message in range(messages):
        index, doubt = work.publish[message], 0
        if index == NONE:
            index, doubt = _publish_of(
                rows, facts, work, first_fact, last_fact, message, before, likely, count
            )  # fmt: skip
            if index != NONE:
                work.paired[index] = 1
                doubt |= not sure and get(work.sizes, _content(rows, work, message)) > 1
        else:
            before = message
        row = work.rows[message]
        while row < stop and _same_message(rows, row, work.rows[message]):
            publish[row] = NONE if index == NONE else work.own[index]
            ambiguous[row] = doubt
            row += 1


@kernel
def _first(numbers, start, end, number):
    """Where the first of the sorted `numbers[start:end]` is that is not below `number`."""
    while start < end:
        middle = (start + end) >> 1
        if numbers[middle] < number:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _collect_publishes(rows, work, start, middle, at, stop):
    """List the publishes with a route of the deliveries while the stream existed; returns how many there are."""
    clear(work.routes)
    clear(work.heads)
    clear(work.sizes)
    for row in range(at, stop):
        put(work.routes, rows.route[row], 1)
    count = 0
    for row in range(start, middle):
        existed = rows.last_ns[row] > rows.since_ns[at] and rows.first_ns[row] < rows.until_ns[at]
        if existed and get(work.routes, rows.route[row]) != ABSENT:
            work.own[count], work.paired[count] = row, 0
            count += 1
    for index in range(count - 1, -1, -1):
        row = work.own[index]
        _prepend(work, 0, rows.content[row], index)
        _prepend(work, 1, rows.label[row], index)
    return count


@kernel
def _prepend(work, chain, content, index):
    """Put a publish at the front of the list of its content or label."""
    work.following[chain, index] = get(work.heads, content)
    put(work.heads, content, index)
    put(work.sizes, content, max(0, get(work.sizes, content)) + 1)


@kernel
def _same_message(rows, row, other):
    return rows.offset[row] == rows.offset[other] and rows.content[row] == rows.content[other]


@kernel
def _collect_messages(rows, work, at, stop):
    """List the messages of the deliveries, which several readers may have got; returns how many there are."""
    clear(work.asked)
    messages = 0
    for row in range(at, stop):
        if messages == 0 or not _same_message(rows, row, work.rows[messages - 1]):
            work.rows[messages] = row
            content = _content(rows, work, messages)
            put(work.asked, content, max(0, get(work.asked, content)) + 1)
            messages += 1
    return messages


@kernel
def _content(rows, work, message):
    """The label of a message if a publish has it, else its content."""
    row = work.rows[message]
    return rows.label[row] if get(work.heads, rows.label[row]) != ABSENT else rows.content[row]


@kernel
def _fits(rows, facts, work, first_fact, last_fact, index, message):
    """Whether a publish of the content of `message` can be it."""
    row, delivery = work.own[index], work.rows[message]
    if work.paired[index] or rows.first_ns[row] > rows.last_ns[delivery]:
        return False
    fact = _first(facts.at_ns, first_fact, last_fact, rows.first_ns[row]) - 1
    known = fact >= first_fact and facts.at_ns[fact] > rows.since_ns[delivery]
    return not known or rows.offset[delivery] >= facts.most[fact]


@kernel
def _at(rows, facts, work, first_fact, last_fact, index, message, count):
    """Whether the publish with this index, if there is one, has the content of `message` and can be it."""
    if not 0 <= index < count:
        return False
    row, content = work.own[index], _content(rows, work, message)
    if rows.content[row] != content and rows.label[row] != content:
        return False
    return _fits(rows, facts, work, first_fact, last_fact, index, message)


@kernel
def _likely_difference(rows, facts, work, first_fact, last_fact, count, messages):
    """The difference between offsets and indexes of publishes with which most messages have their contents, UNKNOWN if
    there is none; and whether it is sure: a fact, which no message contradicts."""
    best, most, sure = UNKNOWN, 0, True
    last = work.rows[messages - 1]
    for trial in range(MOST_FACTS + 3):
        fact = first_fact + trial
        if trial < MOST_FACTS:
            known = fact < last_fact and facts.had[fact] >= 0 and facts.at_ns[fact] > rows.since_ns[last]
            if not known or facts.at_ns[fact] >= rows.until_ns[last]:
                continue
            earlier = 0
            while earlier < count and rows.first_ns[work.own[earlier]] <= facts.at_ns[fact]:
                earlier += 1
            difference = facts.had[fact] - earlier
        elif trial == MOST_FACTS:
            difference = 0
        else:  # the first message is the first publish with its content, or the last one the last
            message = 0 if trial == MOST_FACTS + 1 else messages - 1
            index = _last_fit(rows, facts, work, first_fact, last_fact, message, trial == MOST_FACTS + 1)
            if index == NONE:
                continue
            difference = rows.offset[work.rows[message]] - index
        if difference == best:
            continue
        matches = others = 0
        for message in range(messages):
            index = rows.offset[work.rows[message]] - difference
            if _at(rows, facts, work, first_fact, last_fact, index, message, count):
                matches += 1
            elif 0 <= index < count:
                others += 1
        if matches > most:
            best, most, sure = difference, matches, trial < MOST_FACTS and others == 0
    return best, sure


@kernel
def _last_fit(rows, facts, work, first_fact, last_fact, message, first):
    """The last publish (or the first one) of the content of `message` that can be it, or NONE."""
    content = _content(rows, work, message)
    chain = int(content == rows.label[work.rows[message]])
    index, result = get(work.heads, content), NONE
    for _ in range(PROBES):
        if index == ABSENT or (first and result != NONE):
            break
        if _fits(rows, facts, work, first_fact, last_fact, index, message):
            result = index
        index = work.following[chain, index]
    return result


@kernel
def _are_consistent(rows, work, messages):
    """Whether the differences of certain messages only grow, as they do where publishes are missing."""
    before = UNKNOWN
    for message in range(messages):
        if work.publish[message] != NONE:
            difference = rows.offset[work.rows[message]] - work.publish[message]
            if difference < before:
                return False
            before = difference
    return True


@kernel
def _note_next(work, messages):
    """Fill `after`: the next certain message after each, or NONE."""
    following = NONE
    for message in range(messages - 1, -1, -1):
        work.after[message] = following
        if work.publish[message] != NONE:
            following = message


@kernel
def _expected_index(rows, work, message, certain, likely):
    """The index of the publish of `message` by the difference at another one that is `certain`; UNKNOWN without."""
    offset = rows.offset[work.rows[message]]
    if certain == NONE:
        return UNKNOWN if likely == UNKNOWN else offset - likely
    return offset - rows.offset[work.rows[certain]] + work.publish[certain]


@kernel
def _publish_of(rows, facts, work, first_fact, last_fact, message, before, likely, count):
    """(The publish of a message that is not certain, or NONE, and 1 if others fit as well). `before`: the last certain
    message; `likely`: the difference if there is none."""
    after = work.after[message]
    one = _expected_index(rows, work, message, before, likely)
    other = _expected_index(rows, work, message, after, likely)
    if before == NONE and after != NONE:
        one = other
    elif after == NONE:
        other = one
    several = get(work.sizes, _content(rows, work, message)) > 1
    if _at(rows, facts, work, first_fact, last_fact, one, message, count):
        return one, int(one != other and several)
    if _at(rows, facts, work, first_fact, last_fact, other, message, count):
        return other, int(several)
    if one != UNKNOWN and not (0 <= one < count or 0 <= other < count):
        return NONE, 0  # published before or after the capture
    low = NONE if before == NONE else work.publish[before]
    high = count if after == NONE else work.publish[after]
    content = _content(rows, work, message)
    chain = int(content == rows.label[work.rows[message]])
    index, first, fitting = get(work.heads, content), NONE, 0
    for _ in range(PROBES):
        if index == ABSENT or index >= high:
            break
        if index > low and _fits(rows, facts, work, first_fact, last_fact, index, message):
            fitting += 1
            if first == NONE:
                first = index
        index = work.following[chain, index]
    return first, int(fitting > 1)
