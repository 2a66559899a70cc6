"""States of many connections as plain arrays, part by part and, within a part, connection by connection.

Fields that hold the slot of a record count from the first record of their connection. Texts are numbers, above 0, that
the caller gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.hashes.maps import Pairs
from codec.memory import as_records, sparse_zeros
from codec.packing import Reader, Writer

Integers = NDArray[np.int64]
Parts = Mapping[str, NDArray[Any]]
NUMBERS = np.dtype("i8")


def blank(fields: str, of_sides: str = "", **cells: int) -> NDArray[Any]:
    """A record as it is when it is new: of int64 fields, of int64 (2,) fields, for client and server, and of as many
    `cells`. A field is 0, or -1 if a '?' follows its name."""
    kinds: list[tuple[str, tuple[int, ...]]] = [(name, ()) for name in fields.split()]
    kinds += [(name, (2,)) for name in of_sides.split()] + [(name, (size,)) for name, size in cells.items()]
    record = np.zeros(1, [(name.rstrip("?"), "i8", shape) for name, shape in kinds])
    record[0] = tuple(np.full(shape, -name.endswith("?")) for name, shape in kinds)
    return record


def with_capacity(records: NDArray[Any], used: int, more: int) -> NDArray[Any]:
    """`records`, of which the first are `used`, with room for so many more; about twice as long if there is none."""
    if used + more <= len(records):
        return records
    found: NDArray[Any] = sparse_zeros(2 * used + more, records.dtype)
    found[:used] = records[:used]
    return _viewed(found)


@dataclass(frozen=True)
class ConnectionStates:
    """`ids` int64 (n,): connections; of each part `counts` int64 (n,): how many of its items each connection has."""

    ids: Integers
    parts: Parts
    counts: Mapping[str, Integers]

    @classmethod
    def empty(cls, kinds: Mapping[str, np.dtype[Any]]) -> ConnectionStates:
        """No connection; `kinds`: the types of the parts."""
        none = np.zeros(0, np.int64)
        return cls(none, {name: np.zeros(0, kind) for name, kind in kinds.items()}, dict.fromkeys(kinds, none))

    @classmethod
    def concatenated(cls, states: Sequence[ConnectionStates]) -> ConnectionStates:
        """The connections of all."""
        names = states[0].parts
        return cls(
            np.concatenate([each.ids for each in states]),
            {name: np.concatenate([each.parts[name] for each in states]) for name in names},
            {name: np.concatenate([each.counts[name] for each in states]) for name in names},
        )

    def at(self, which: Integers) -> ConnectionStates:
        """The connections at these indices, in this order; an empty state where the index is negative."""
        there = np.maximum(which, 0)
        parts, counts = {}, {}
        for name, part in self.parts.items():
            own = self.counts[name]
            begins = np.cumsum(own) - own
            counts[name] = np.where(which >= 0, own[there], 0) if len(own) else np.zeros(len(which), np.int64)
            parts[name] = part[expand_ranges(begins[there] if len(own) else counts[name], counts[name])]
        ids = self.ids[there] if len(self.ids) else np.zeros(len(which), np.int64)
        return ConnectionStates(ids, parts, counts)

    def without(self, ids: Integers) -> ConnectionStates:
        """All connections but these."""
        stays = ~np.isin(self.ids, ids)
        return self if stays.all() else self.at(np.flatnonzero(stays))

    def of(self, ids: Integers) -> ConnectionStates:
        """These connections, in this order; an empty state for those that are not there."""
        found = self.at(find_ids(self.ids, ids))
        return ConnectionStates(ids, found.parts, found.counts)

    def filtered(self, name: str, mask: NDArray[np.bool_]) -> ConnectionStates:
        """The same with only the chosen items of one part."""
        owner = np.repeat(np.arange(len(self.ids)), self.counts[name])
        counts = np.bincount(owner[mask], minlength=len(self.ids)).astype(np.int64)
        parts = {**self.parts, name: self.parts[name][mask]}
        return ConnectionStates(self.ids, parts, {**self.counts, name: counts})

    def largest(self) -> int:
        """The most items of one part that a connection has."""
        return max((int(counts.max()) for counts in self.counts.values() if len(counts)), default=0)

    def save(self, writer: Writer) -> None:
        """Write all parts."""
        for name, part in self.parts.items():
            writer.put_counted(part, self.counts[name])

    @classmethod
    def restored(cls, ids: Integers, kinds: Mapping[str, np.dtype[Any]], reader: Reader) -> ConnectionStates:
        """What `save` wrote."""
        read = {name: reader.take_counted(kind) for name, kind in kinds.items()}
        parts = {name: part for name, (part, _) in read.items()}
        return cls(ids, parts, {name: counts for name, (_, counts) in read.items()})


@dataclass(frozen=True)
class Layout:
    """The parts of a tracker's states. `kinds`: their types, 'numbers' first, of which a connection has `cells`;
    `records`: a NamedTuple of the parts and of `ends`, for kernels; `growth`: how many items of a part so many rows,
    with so many ranges, may add; `load`, `save`: kernels that copy a connection, by number, from and to records.

    Texts are in `text_fields` (part, field) and in `text_parts`: `texts_in` has those of the latter, and `with_texts`
    parts with others instead."""

    kinds: Mapping[str, np.dtype[Any]]
    records: Callable[..., Any]
    cells: int
    growth: Callable[[str, int, int], int]
    load: Callable[[Any, Any, int], None]
    save: Callable[[Any, Any, int], None]
    text_fields: tuple[tuple[str, str], ...]
    text_parts: tuple[str, ...]
    texts_in: Callable[[Parts], list[Integers]]
    with_texts: Callable[[Parts, Sequence[Integers]], Parts]

    def empty(self) -> ConnectionStates:
        """No connection."""
        return ConnectionStates.empty(self.kinds)

    def records_of(self, states: ConnectionStates) -> Any:
        """States as kernels read them; `ends` int64 (connections + 1, parts): where each connection begins."""
        ends = np.zeros((len(states.ids) + 1, len(states.parts)), np.int64)
        for column, counts in enumerate(states.counts.values()):
            np.cumsum(counts, out=ends[1:, column])
        return self.records(**{name: _viewed(part) for name, part in states.parts.items()}, ends=ends)

    def room_for(self, states: ConnectionStates, rows: int, ranges: int = 0) -> Any:
        """Records that hold these connections after so many more rows, with so many ranges."""
        sizes = {name: len(part) + self.growth(name, rows, ranges) for name, part in states.parts.items()}
        sizes["numbers"] = self.cells * len(states.ids)
        parts = {name: _viewed(np.empty(size, self.kinds[name])) for name, size in sizes.items()}
        return self.records(**parts, ends=np.zeros((len(states.ids) + 1, len(self.kinds)), np.int64))

    def states_of(self, ids: Integers, records: Any) -> ConnectionStates:
        """The states of connections that a kernel wrote."""
        counts = np.diff(records.ends, axis=0)
        parts = {
            name: np.asarray(getattr(records, name)[: records.ends[-1, i]].view(kind))
            for i, (name, kind) in enumerate(self.kinds.items())
        }
        return ConnectionStates(ids, parts, {name: np.ascontiguousarray(counts[:, i]) for i, name in enumerate(parts)})

    def texts_of(self, states: ConnectionStates) -> list[Integers]:
        """The numbers of texts, by text field, then by text part; other numbers are 0 or below."""
        return [*(states.parts[part][field] for part, field in self.text_fields), *self.texts_in(states.parts)]

    def replace_texts(self, states: ConnectionStates, texts: Sequence[Integers]) -> ConnectionStates:
        """The states with other numbers of texts, as `texts_of` has them."""
        parts = {name: part.copy() for name, part in states.parts.items()}
        for (part, field), numbers in zip(self.text_fields, texts, strict=False):
            parts[part][field] = numbers
        return ConnectionStates(
            states.ids, {**parts, **self.with_texts(parts, texts[len(self.text_fields) :])}, states.counts
        )

    def split_texts(self, states: ConnectionStates) -> tuple[ConnectionStates, Integers, Integers]:
        """The states with texts numbered from 1 within each connection; the old numbers, connection after connection;
        how many each connection has."""
        texts, connections = self.texts_of(states), np.arange(len(states.ids))
        keys = [owner + own for owner, own in zip(self._owners(states, connections << 32), texts, strict=True)]
        known = np.unique(np.concatenate([key[own > 0] for key, own in zip(keys, texts, strict=True)]))
        counts = np.bincount(known >> 32, minlength=len(connections)).astype(np.int64)
        number = np.append(np.arange(len(known)) - np.repeat(np.cumsum(counts) - counts, counts) + 1, 0)
        own_numbers = [
            np.where(own > 0, number[np.searchsorted(known, key)], own) for key, own in zip(keys, texts, strict=True)
        ]
        return self.replace_texts(states, own_numbers), known & 0xFFFFFFFF, counts

    def merge_texts(self, states: ConnectionStates, numbers: Integers, counts: Integers) -> ConnectionStates:
        """The reverse: `numbers` of all texts, `counts` of each connection."""
        numbers = np.append(numbers, 0)
        texts, owners = self.texts_of(states), self._owners(states, np.cumsum(counts) - counts)
        return self.replace_texts(
            states,
            [
                np.where(own > 0, numbers[owner + np.maximum(own, 1) - 1], own)
                for own, owner in zip(texts, owners, strict=True)
            ],
        )

    def _owners(self, states: ConnectionStates, of_connections: Integers) -> list[Integers]:
        """A value of its connection for each item that has a text."""
        parts = (*(part for part, _ in self.text_fields), *self.text_parts)
        return [np.repeat(of_connections, states.counts[part]) for part in parts]


def _viewed(part: NDArray[Any]) -> NDArray[Any]:
    return as_records(part) if part.dtype.names else part


def find_ids(known: Integers, ids: Integers) -> Integers:
    """Where each of `ids` is first among `known`; -1 where it is not."""
    if len(known) == 1:
        return np.where(ids == known[0], 0, -1)
    return Pairs(known, np.zeros_like(known)).find(ids, np.zeros_like(ids))


def expand_ranges(begins: Integers, counts: Integers) -> Integers:
    """The indices of `counts[i]` items from `begins[i]` on, end to end."""
    ends = np.cumsum(counts)
    found: Integers = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    return found


def group_ids(*columns: NDArray[Any]) -> Integers:
    """A number for each distinct row of some columns, from 0 on in the order of their first occurrence."""
    number: Integers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if len(column) and (column != column[0]).any():
            number = Pairs(number, column).numbers
    return number


def owners(states: ConnectionStates, part: str) -> Integers:
    """The connection of each record, by its number."""
    return np.repeat(np.arange(len(states.ids)), states.counts[part])


def absolute(states: ConnectionStates, part: str, owners: Integers, slots: Integers) -> Integers:
    """Places that count within all records, from those within the records of a connection."""
    counts = states.counts[part]
    found: Integers = (np.cumsum(counts) - counts)[owners] + slots
    return found


def new_indices(states: ConnectionStates, part: str, dropped: NDArray[np.bool_]) -> Integers:
    """The index of each record within its connection without those that are dropped."""
    before = np.append(0, np.cumsum(~dropped))
    counts = states.counts[part]
    begins = np.repeat(before[np.cumsum(counts) - counts], counts)
    found: Integers = before[:-1] - begins
    return found
