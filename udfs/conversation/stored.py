"""States of the trackers of `codec.conversation` as octets: their texts are written beside the records, by their own
numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.conversation.stored import Stored, own_numbers, places, shared_numbers
from codec.packing import Reader, Writer
from udfs.arrow.numbers import Numbers

OCTETS, LENGTHS = np.dtype("u1"), np.dtype("<u4")
Integers = NDArray[np.int64]


def put_stored(stored: Stored, tracker: ModuleType, texts: Numbers, writer: Writer) -> None:
    """Write states, whose texts have the numbers of `texts`. `tracker`: `codec.conversation.channels.carried`, or
    `codec.conversation.carried`."""
    own, numbers, counts = own_numbers(stored, tracker.texts_of(stored), tracker.TEXT_PARTS)
    tracker.with_texts(stored, own).put(writer)
    octets = [texts.texts[number - 1].encode() for number in numbers.tolist()]
    lengths = np.array([len(text) for text in octets], LENGTHS)
    writer.put_counted(lengths, counts)
    writer.put(np.frombuffer(b"".join(octets), OCTETS), sums(lengths, counts))


def take_stored(ids: Integers, tracker: ModuleType, texts: Numbers, reader: Reader) -> Stored:
    """What `put_stored` wrote of these connections."""
    stored = Stored.take(ids, tracker.PARTS, reader)
    lengths, counts = reader.take_counted(LENGTHS)
    octets = reader.take(OCTETS, sums(lengths, counts)).tobytes()
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    numbers = texts.numbered(octets[end - n : end].decode() for end, n in zip(ends, lengths.tolist(), strict=True))
    shared = shared_numbers(stored, tracker.texts_of(stored), tracker.TEXT_PARTS, np.array(numbers, np.int64), counts)
    return tracker.with_texts(stored, shared)  # type: ignore[no-any-return]


def with_other_numbers(stored: Stored, tracker: ModuleType, texts: Numbers, others: Numbers) -> Stored:
    """The states with the numbers that their texts have among `others`."""
    found = tracker.texts_of(stored)
    known = np.unique(np.concatenate([numbers[numbers > 0] for numbers in found]))
    new = np.array([0, *others.numbered(texts.texts[number - 1] for number in known.tolist())])
    place = [np.where(numbers > 0, np.searchsorted(known, numbers) + 1, 0) for numbers in found]
    return tracker.with_texts(  # type: ignore[no-any-return]
        stored, [np.where(numbers > 0, new[at], numbers) for numbers, at in zip(found, place, strict=True)]
    )


def sums(lengths: NDArray[np.generic], counts: Integers) -> Integers:
    """Of items that connections have `counts` of, the sum of the lengths."""
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    at = np.cumsum(counts)
    found: Integers = ends[at] - ends[at - counts]
    return found


def put_records(records: NDArray[Any], ids: Integers, writer: Writer) -> None:
    """Write the records, with a field `connection`, of these connections."""
    place = places(ids, records["connection"])
    order = np.argsort(place, kind="stable")
    order = order[np.count_nonzero(place < 0) :]
    writer.put_counted(records[order], np.bincount(place[order], minlength=len(ids)).astype(np.int64))
