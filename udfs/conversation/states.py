"""States of connections that a tracker of `codec.conversation` follows, which it saves and restores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.conversation.states import ConnectionStates, Layout, places
from codec.packing import Reader, Writer
from udfs.arrow.dictionaries import MOST_TEXTS, Numbers

OCTETS, LENGTHS = np.dtype("u1"), np.dtype("<u4")
Integers = NDArray[np.int64]


class Tracker:
    """What the trackers of channels and of sessions share. With `keep`, `_states` has all connections; else it is None,
    and `_state`, that of the kernels, has the only one."""

    def __init__(self, layout: Layout, state: Any, keep: bool) -> None:
        self._layout, self._state = layout, state
        self._states = layout.empty() if keep else None
        self._texts = Numbers([""])

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write the states of these connections, which stay, and their texts."""
        assert self._states is not None
        states, numbers, counts = self._layout.texts_apart(self._states.of(ids))
        states.save(writer)
        octets = [self._texts.texts[number - 1].encode() for number in numbers.tolist()]
        lengths = np.array([len(text) for text in octets], LENGTHS)
        writer.put_counted(lengths, counts)
        writer.put(np.frombuffer(b"".join(octets), OCTETS), sums(lengths, counts))

    def restore(self, ids: Integers, reader: Reader) -> None:
        """Add connections that `save` wrote."""
        assert self._states is not None
        states = ConnectionStates.restored(ids, self._layout.kinds, reader)
        lengths, counts = reader.take_counted(LENGTHS)
        octets = reader.take(OCTETS, sums(lengths, counts)).tobytes()
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        texts = (octets[end - n : end].decode() for end, n in zip(ends, lengths.tolist(), strict=True))
        numbers = np.array(self._texts.numbered(texts), np.int64)
        states = self._layout.texts_together(states, numbers, counts)
        self._states = ConnectionStates.concatenated([self._states, states])

    def forget_texts(self, most: int | None = None) -> None:
        """Drop the texts of connections that have ended, if there are more than `most` texts (None: MOST_TEXTS)."""
        if len(self._texts.texts) <= (MOST_TEXTS if most is None else most):
            return
        layout, states = self._layout, self._states
        if states is None:
            id_ = self._state.numbers[:1].copy()
            records = layout.room_for(layout.empty().of(id_), self._record_count())
            layout.save(self._state, records, 0)
            states = layout.states_of(id_, records)
        texts, self._texts = self._texts, Numbers([""])
        states = _with_new_texts(states, layout, texts, self._texts)
        if self._states is None:
            layout.load(self._state, layout.records_of(states), 0)
        else:
            self._states = states

    def _record_count(self) -> int:
        """At least the number of records of each kind that the only connection has."""
        raise NotImplementedError


def _with_new_texts(states: ConnectionStates, layout: Layout, texts: Numbers, new_texts: Numbers) -> ConnectionStates:
    """The states with the numbers that their texts have in `new_texts`."""
    found = layout.texts_of(states)
    known = np.unique(np.concatenate([numbers[numbers > 0] for numbers in found]))
    new = np.array([0, *new_texts.numbered(texts.texts[number - 1] for number in known.tolist())])
    at = [np.where(numbers > 0, np.searchsorted(known, numbers) + 1, 0) for numbers in found]
    return layout.replace_texts(
        states, [np.where(numbers > 0, new[place], numbers) for numbers, place in zip(found, at, strict=True)]
    )


def sums(lengths: NDArray[np.generic], counts: Integers) -> Integers:
    """The sum of the lengths of each connection's items, which has `counts` of them."""
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    at = np.cumsum(counts)
    found: Integers = ends[at] - ends[at - counts]
    return found


def save_records(records: NDArray[Any], ids: Integers, writer: Writer, key: str = "connection") -> None:
    """Write the records of these connections, which field `key` names."""
    place = places(ids, records[key])
    order = np.argsort(place, kind="stable")
    order = order[np.count_nonzero(place < 0) :]
    writer.put_counted(records[order], np.bincount(place[order], minlength=len(ids)).astype(np.int64))
