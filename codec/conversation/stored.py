"""States of many connections as plain arrays: what a tracker knows of each, part by part and connection by connection.

Records keep their places, which count from the first record of their connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.packing import Reader, Writer

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Stored:
    """`ids` int64 (n,): connections; of each part `counts` int64 (n,): how many of its items each connection has."""

    ids: Integers
    parts: Mapping[str, NDArray[Any]]
    counts: Mapping[str, Integers]

    @classmethod
    def empty(cls, kinds: Mapping[str, np.dtype[Any]]) -> Stored:
        """No connection; `kinds`: the types of the parts."""
        none = np.zeros(0, np.int64)
        return cls(none, {name: np.zeros(0, kind) for name, kind in kinds.items()}, dict.fromkeys(kinds, none))

    @classmethod
    def joined(cls, stored: Sequence[Stored]) -> Stored:
        """The connections of all."""
        names = stored[0].parts
        return cls(
            np.concatenate([each.ids for each in stored]),
            {name: np.concatenate([each.parts[name] for each in stored]) for name in names},
            {name: np.concatenate([each.counts[name] for each in stored]) for name in names},
        )

    def places(self, ids: Integers) -> Integers:
        """Where each of `ids` is; -1 where it is not."""
        return places(self.ids, ids)

    def at(self, which: Integers) -> Stored:
        """The connections at these places, in this order; without anything where that is negative."""
        there = np.maximum(which, 0)
        parts, counts = {}, {}
        for name, part in self.parts.items():
            own = self.counts[name]
            begins = np.cumsum(own) - own
            counts[name] = np.where(which >= 0, own[there], 0) if len(own) else np.zeros(len(which), np.int64)
            parts[name] = part[spread(begins[there] if len(own) else counts[name], counts[name])]
        ids = self.ids[there] if len(self.ids) else np.zeros(len(which), np.int64)
        return Stored(ids, parts, counts)

    def without(self, ids: Integers) -> Stored:
        """All connections but these."""
        stays = ~np.isin(self.ids, ids)
        return self if stays.all() else self.at(np.flatnonzero(stays))

    def of(self, ids: Integers) -> Stored:
        """These connections, in this order."""
        found = self.at(self.places(ids))
        return Stored(ids, found.parts, found.counts)

    def kept(self, name: str, chosen: NDArray[np.bool_]) -> Stored:
        """With the chosen items of one part."""
        owner = np.repeat(np.arange(len(self.ids)), self.counts[name])
        counts = np.bincount(owner[chosen], minlength=len(self.ids)).astype(np.int64)
        return Stored(self.ids, {**self.parts, name: self.parts[name][chosen]}, {**self.counts, name: counts})

    def ends(self) -> Integers:
        """Where each connection begins in each part, int64 (n + 1, parts)."""
        ends = np.zeros((len(self.ids) + 1, len(self.parts)), np.int64)
        for column, counts in enumerate(self.counts.values()):
            np.cumsum(counts, out=ends[1:, column])
        return ends

    def put(self, writer: Writer) -> None:
        """Write all parts."""
        for name, part in self.parts.items():
            writer.put_counted(part, self.counts[name])

    @classmethod
    def take(cls, ids: Integers, kinds: Mapping[str, np.dtype[Any]], reader: Reader) -> Stored:
        """What `put` wrote."""
        taken = {name: reader.take_counted(kind) for name, kind in kinds.items()}
        parts = {name: part for name, (part, _) in taken.items()}
        return cls(ids, parts, {name: counts for name, (_, counts) in taken.items()})


def places(known: Integers, ids: Integers) -> Integers:
    """Where each of `ids` is among `known`, each of which is there once; -1 where it is not."""
    if not len(known):
        return np.full(len(ids), -1)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
    found: Integers = np.where(known[order][at] == ids, order[at], -1)
    return found


def spread(begins: Integers, counts: Integers) -> Integers:
    """The places of `counts[i]` items from `begins[i]` on, end to end."""
    ends = np.cumsum(counts)
    found: Integers = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    return found


def numbered(*columns: NDArray[Any]) -> Integers:
    """A number for each distinct row of some columns, from 0 on."""
    number: Integers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if len(column) and (column != column[0]).any():
            distinct, own = np.unique(column, return_inverse=True)
            if number.any():
                own = np.unique(number * len(distinct) + own, return_inverse=True)[1]
            number = own.reshape(-1)
    return number


def own_numbers(
    stored: Stored, texts: Sequence[NDArray[Any]], owners: Sequence[str]
) -> tuple[list[Integers], Integers, Integers]:
    """`texts`: numbers of texts, above 0, of items of the parts `owners` -> the same, counted from 1 within each
    connection; those that occur, connection after connection; how many each connection has."""
    connections = np.arange(len(stored.ids))
    keys = [np.repeat(connections << 32, stored.counts[part]) + own for own, part in zip(texts, owners, strict=True)]
    known = np.unique(np.concatenate([key[own > 0] for key, own in zip(keys, texts, strict=True)]))
    counts = np.bincount(known >> 32, minlength=len(connections)).astype(np.int64)
    number = np.arange(len(known)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    number = np.append(number, 0)
    found = [np.where(own > 0, number[np.searchsorted(known, key)], own) for key, own in zip(keys, texts, strict=True)]
    return found, known & 0xFFFFFFFF, counts


def shared_numbers(
    stored: Stored, texts: Sequence[NDArray[Any]], owners: Sequence[str], numbers: Integers, counts: Integers
) -> list[Integers]:
    """The reverse: `numbers` of the texts of all connections, of which each has `counts`."""
    begins, numbers = np.cumsum(counts) - counts, np.append(numbers, 0)
    return [
        np.where(own > 0, numbers[np.repeat(begins, stored.counts[part]) + np.maximum(own, 1) - 1], own)
        for own, part in zip(texts, owners, strict=True)
    ]
