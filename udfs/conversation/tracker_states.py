"""States of connections, saved and restored (`codec.packing`): those of trackers, their records, and Arrow tables.

records.save(ids, writer)                    # by their field `connection`
records.restore(reader)
save_table(table, schema, ids, writer)       # by their column `connection_id`
table = restore_table(schema, reader)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.session_state import MAPS
from codec.conversation.settlement import Settled
from codec.conversation.states import ConnectionStates, Layout, blank, find_ids
from codec.memory import as_kernel_array
from codec.packing import Reader, Writer
from udfs.arrow.arrays import (
    combine_chunks,
    connections_of,
    is_valid,
    to_int64,
)
from udfs.arrow.fields import heap_of, offsets_of
from udfs.arrow.types import MOST_TEXTS, Numbers, binary_column

BYTE, TRUTH, LENGTHS = np.dtype("u1"), np.dtype("u1"), np.dtype("<u4")
Integers = NDArray[np.int64]
NO_NUMBERS = as_kernel_array(np.zeros(0, np.int64))


class ConnectionRecords:
    """Records of connections (type `kind`), which their field `key` names."""

    def __init__(self, kind: np.dtype[Any], key: str = "connection") -> None:
        self._parts, self._key = [np.zeros(0, kind)], key

    def all(self) -> NDArray[np.void]:
        """All of them, in the order in which they were added."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def add(self, records: NDArray[np.void]) -> None:
        self._parts.append(records)

    def replace(self, records: NDArray[np.void]) -> None:
        """Only these instead."""
        self._parts = [records]

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep only the chosen of `all()`."""
        self._parts = [self.all()[mask]]

    def of(self, ids: Integers) -> NDArray[np.void]:
        """Those of these connections."""
        records = self.all()
        return records[np.isin(records[self._key], ids)] if len(records) else records

    def only(self, ids: Integers) -> None:
        """Keep only those of these connections."""
        self._parts = [self.of(ids)]

    def drop(self, ids: Integers) -> None:
        """Keep all but those of these connections."""
        if len(self.all()):
            self.keep(~np.isin(self.all()[self._key], ids))

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write those of these connections, which stay."""
        records = self.all()
        order, counts = _by_connection(ids, records[self._key])
        writer.put_counted(records[order], counts)

    def restore(self, reader: Reader) -> None:
        """Add what `save` wrote."""
        self.add(reader.take_counted(self._parts[0].dtype)[0])


class Tracker:
    """What the trackers of channels and of sessions share. With `keep`, `_states` has all connections; else it is None,
    and `_state`, which kernels read, has the only one. `records`: other records of the connections."""

    def __init__(self, layout: Layout, state: Any, keep: bool, records: Sequence[ConnectionRecords] = ()) -> None:
        self._layout, self._state, self._records = layout, state, records
        self._states = layout.empty() if keep else None
        self._texts = Numbers([""])

    def _load(self, connections: Integers, *sizes: int) -> tuple[Integers, Integers, ConnectionStates, Any]:
        """Before a kernel follows rows of these `connections`: their ids, where the rows of each end, their states, and
        records for the states afterwards (`sizes` as of `Layout.room_for`); nothing of all that without `keep`."""
        if self._states is None or not len(connections):
            nothing = self._layout.empty()
            return NO_NUMBERS, NO_NUMBERS, nothing, self._layout.records_of(nothing)
        ids, ends = connections_of(connections)
        states = self._states.of(ids)
        return ids, ends, states, self._layout.room_for(states, *sizes)

    def _store(self, ids: Integers, records: Any) -> ConnectionStates:
        """The states of these connections, which a kernel wrote; they replace those before."""
        states = self._layout.states_of(ids, records)
        if self._states is not None and len(ids):
            self._states = ConnectionStates.concatenated([self._states.without(ids), states])
        return states

    def save(self, ids: Integers, writer: Writer) -> None:
        """Write the states of these connections, which stay, and their texts."""
        assert self._states is not None
        states, numbers, counts = self._layout.split_texts(self._needed(self._states.of(ids)))
        states.save(writer)
        data = [self._texts.texts[number - 1].encode() for number in numbers.tolist()]
        lengths = np.array([len(text) for text in data], LENGTHS)
        writer.put_counted(lengths, counts)
        writer.put(np.frombuffer(b"".join(data), BYTE), sums(lengths, counts))
        for records in self._records:
            records.save(ids, writer)

    def restore(self, ids: Integers, reader: Reader) -> None:
        """Add connections that `save` wrote."""
        assert self._states is not None
        states = ConnectionStates.restored(ids, self._layout.kinds, reader)
        lengths, counts = reader.take_counted(LENGTHS)
        data = reader.take(BYTE, sums(lengths, counts)).tobytes()
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        texts = (data[end - n : end].decode() for end, n in zip(ends, lengths.tolist(), strict=True))
        numbers = np.array(self._texts.ids_for(texts), np.int64)
        states = self._layout.merge_texts(states, numbers, counts)
        self._states = ConnectionStates.concatenated([self._states, states])
        for records in self._records:
            records.restore(reader)

    def forget_texts(self, most: int | None = None) -> None:
        """Drop the texts of connections that have ended, if there are more than `most` texts (None: MOST_TEXTS)."""
        if len(self._texts.texts) <= (MOST_TEXTS if most is None else most):
            return
        states = self._needed(self._take_states())
        texts, self._texts = self._texts, Numbers([""])
        self._put_states(_with_new_texts(states, self._layout, texts, self._texts))

    def _take_states(self) -> ConnectionStates:
        """The states of all connections, to be put back at once."""
        if self._states is not None:
            return self._states
        id_ = self._state.numbers[:1].copy()
        records = self._layout.room_for(self._layout.empty().of(id_), self._record_count())
        self._layout.save(self._state, records, 0)
        return self._layout.states_of(id_, records)

    def _put_states(self, states: ConnectionStates) -> None:
        if self._states is None:
            self._layout.load(self._state, self._layout.records_of(states), 0)
        else:
            self._states = states

    def _needed(self, states: ConnectionStates) -> ConnectionStates:
        """The states without what nothing refers to any more."""
        return states

    def _record_count(self) -> int:
        """At least the number of records of each kind that the only connection has."""
        raise NotImplementedError


def _with_new_texts(states: ConnectionStates, layout: Layout, texts: Numbers, new_texts: Numbers) -> ConnectionStates:
    """The states with the numbers that their texts have in `new_texts`."""
    found = layout.texts_of(states)
    known = np.unique(np.concatenate([numbers[numbers > 0] for numbers in found]))
    new = np.array([0, *new_texts.ids_for(texts.texts[number - 1] for number in known.tolist())])
    at = [np.where(numbers > 0, np.searchsorted(known, numbers) + 1, 0) for numbers in found]
    return layout.replace_texts(
        states, [np.where(numbers > 0, new[index], numbers) for numbers, index in zip(found, at, strict=True)]
    )


def sums(lengths: NDArray[np.generic], counts: Integers) -> Integers:
    """The sum of the lengths of each connection's items, which has `counts` of them."""
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    at = np.cumsum(counts)
    found: Integers = ends[at] - ends[at - counts]
    return found


def _by_connection(ids: Integers, connections: Integers) -> tuple[Integers, Integers]:
    """The rows of these connections, one after the other, and how many each has."""
    index = find_ids(ids, connections)
    order = np.argsort(index, kind="stable")[np.count_nonzero(index < 0) :]
    return order, np.bincount(index[order], minlength=len(ids)).astype(np.int64)


def save_table(table: pa.Table | None, schema: pa.Schema, ids: Integers, writer: Writer) -> None:
    """Write the rows of these connections; `schema`: that of the table without dictionary encoding."""
    if table is None or not table.num_rows:
        writer.put(np.zeros(len(ids), LENGTHS), np.ones(len(ids), np.int64))
        return
    order, counts = _by_connection(ids, to_int64(table["connection_id"]))
    writer.put(counts.astype(LENGTHS), np.ones(len(ids), np.int64))
    if len(order):
        rows = table.select(schema.names).take(pa.array(order))
        for field in schema:
            column = combine_chunks(rows[field.name])
            _put(column if column.type == field.type else column.cast(field.type), counts, writer)


def restore_table(schema: pa.Schema, reader: Reader) -> pa.Table | None:
    """What `save_table` wrote; None for no rows."""
    counts = reader.take(LENGTHS, np.ones(reader.connections, np.int64)).astype(np.int64)
    if not counts.any():
        return None
    return pa.table([_take(field, counts, reader) for field in schema], schema=schema)


def _put(column: pa.Array, counts: Integers, writer: Writer) -> None:
    kind = column.type
    writer.put(is_valid(column).astype(TRUTH), counts)
    if pa.types.is_struct(kind):
        for part in column.flatten():
            _put(part, counts, writer)
    elif pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(LENGTHS)
        writer.put(lengths, counts)
        _put(column.flatten(), sums(lengths, counts), writer)
    elif _is_bytes(kind):
        data, ends = heap_of(column).trimmed()
        lengths = np.diff(ends).astype(LENGTHS)
        writer.put(lengths, counts)
        writer.put(data, sums(lengths, counts))
    else:
        values = column.view(pa.int64()) if pa.types.is_timestamp(kind) else column
        values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
        writer.put(values.to_numpy(zero_copy_only=False).astype(_fixed(kind), copy=False), counts)


def _take(field: pa.Field, counts: Integers, reader: Reader) -> pa.Array:
    kind, there = field.type, reader.take(TRUTH, counts).astype(bool)
    mask = None if there.all() else pa.array(~there)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_take(part, counts, reader) for part in kind], fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        lengths = reader.take(LENGTHS, counts).astype(np.int64)
        items = _take(kind.value_field, sums(lengths, counts), reader)
        return pa.ListArray.from_arrays(pa.array(offsets_of(lengths)), items, type=kind, mask=mask)
    if _is_bytes(kind):
        lengths = reader.take(LENGTHS, counts).astype(np.int64)
        data = reader.take(BYTE, sums(lengths, counts))
        return binary_column(data, offsets_of(lengths), there if mask is not None and field.nullable else None, kind)
    values = reader.take(_fixed(kind), counts)
    return pa.array(values.astype(bool) if pa.types.is_boolean(kind) else values, mask=~there).cast(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _fixed(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype in which values of an Arrow type of fixed size are written."""
    if pa.types.is_boolean(kind):
        return TRUTH
    return np.dtype(np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype())


# Places of sessions and links: in saved data they count from the first of their connection, in records from the first
# of all.


COUNT = blank("connection session sender outcome count").dtype
COMPLETED = blank(" ".join(Settled._fields)).dtype


class Begins:
    """Where the records of each connection begin: indices in saved records count from there."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self.ids, self._first = np.unique(records["connection"], return_index=True)

    def of(self, connections: Integers) -> Integers:
        """The index of the first record of each connection."""
        found: Integers = self._first[np.searchsorted(self.ids, connections)]
        return found


class SessionOffsets(Begins):
    """Converts numbers of sessions: in saved data they count from the first session of their connection, in records
    from the first of all."""

    def __init__(self, sessions: NDArray[np.void]) -> None:
        super().__init__(sessions)
        self._sessions = sessions

    def settled(self, completed: ConnectionRecords) -> Settled:
        """COMPLETED of these connections, numbered within all records."""
        own = completed.of(self.ids)
        columns = {name: np.ascontiguousarray(own[name]) for name in Settled._fields}
        columns["map_no"] = columns["map_no"] + self.of(own["connection"]) * MAPS
        return Settled(**columns)

    def completed(self, settled: Settled) -> NDArray[np.void]:
        """COMPLETED, numbered within each connection."""
        completed = np.zeros(len(settled.connection), COMPLETED)
        for name, column in settled._asdict().items():
            completed[name] = column
        completed["map_no"] -= self.of(settled.connection) * MAPS
        return completed

    def add(self, more: ConnectionRecords, counts: Integers) -> None:
        """Add COUNT of these connections to `counts`, by session, sender and outcome."""
        own = more.of(self.ids)
        at = self.of(own["connection"]) + own["session"], own["sender"], own["outcome"]
        np.add.at(counts, at, own["count"])

    def counts(self, counts: Integers) -> NDArray[np.void]:
        """COUNT of `counts`, numbered within each connection."""
        session, sender, outcome = np.nonzero(counts)
        found = np.zeros(len(session), COUNT)
        found["connection"] = self._sessions["connection"][session]
        found["session"] = session - self.of(found["connection"])
        found["sender"], found["outcome"], found["count"] = sender, outcome, counts[session, sender, outcome]
        return found


def joined_settled(first: Settled, then: Settled) -> Settled:
    """The messages of both."""
    return Settled(*(np.concatenate(columns) for columns in zip(first, then, strict=True)))
