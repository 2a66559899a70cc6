"""A batch of frames, with what several tables need of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.session_state import ASKS, COORDINATES, IN_SEGMENTS
from codec.memory import as_kernel_array
from codec.names import SIDES
from codec.protocol import rows as R
from codec.protocol.rows import CAPTURED_LATE, NAMES, NOTE_NAMES, PEER_LATE
from codec.protocol.versions import E_MISSING_VALUES, ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from udfs.arrow.arrays import (
    index_in,
    is_one_of,
    is_valid,
    take_or_null,
    to_int64,
)
from udfs.arrow.fields import Fields, Values, fields, inside, values_of
from udfs.conversation import roles
from udfs.decode.stall_rows import numbers_of_files

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
# Columns of frames that the decoder has as cells. Texts are the index in their table.
CELLS = {
    "connection_id": R.CONNECTION, "frame_no": R.FRAME_NO, "content_frame_no": R.CONTENT, "ts_ns": R.TS,
    "channel": R.CHANNEL, "class_id": R.CLASS, "method_id": R.METHOD_ID, "body_size": R.BODY_SIZE,
    "payload_size": R.PAYLOAD_SIZE, "sender": R.SENDER, "version": R.VERSION, "frame_type": R.TYPE, "name": R.NAME,
    "status": R.STATUS, "error": R.ERROR, "notes": R.NOTES, "packet_no": R.PACKET, "size": R.SIZE, "rtt_ns": R.RTT,
}  # fmt: skip
TEXTS: Mapping[str, tuple[str | None, ...]] = {
    "sender": SIDES, "version": VERSIONS, "frame_type": FRAME_TYPES, "name": NAMES, "status": STATUSES,
    "error": ERRORS,
}  # fmt: skip


@lru_cache(1 << 10)
def marks_of(column: str, values: tuple[str, ...] | None) -> Flags:
    """Of each index in TEXTS[column], and at last of -1: whether the text is among `values`; None: whether it is a
    text."""
    texts = TEXTS[column]
    marks = [text is not None if values is None else text in values for text in texts]
    return np.array([*marks, False])


class FrameBatch:
    """Rows of frames, those of a connection together and in order, and what several tables need of them: each is
    computed once, when it is first asked for. `batch[name]`: a column.

    `cells`: int64 (n, columns of `codec.protocol.rows`) of the same rows, where the decoder still has them."""

    def __init__(self, rows: pa.RecordBatch, cells: Integers | None = None) -> None:
        self.rows, self._matrix = rows, cells
        self._cells = dict[str, Integers]()

    def __getitem__(self, name: str) -> pa.Array:
        return self.rows[name]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def cells(self, name: str) -> Integers:
        """A column of CELLS as numbers, `fixed`: -1 is null, a text is its index in TEXTS, notes are bits. It is a view
        of what the decoder writes to again."""
        if name not in self._cells:
            if self._matrix is not None:
                column = self._matrix[:, CELLS[name]]
            elif name in TEXTS:
                texts = TEXTS[name]
                known = np.array([-1, *(at for at, text in enumerate(texts) if text is not None)])
                column = known[index_in(self[name], [text for text in texts if text is not None])]
            elif name == "notes":
                column = _bits(self[name])
            elif name == "rtt_ns":  # no column
                column = np.full(len(self), R.UNKNOWN_RTT)
            else:
                column = to_int64(self[name], null=-1)
            self._cells[name] = as_kernel_array(column)
        return self._cells[name]

    def are(self, name: str, *values: str) -> Flags:
        """True where the text in column `name` is one of `values`."""
        return marks_of(name, values).take(self.cells(name), mode="wrap")

    def have(self, name: str) -> Flags:
        """True where column `name` is not null."""
        if name in TEXTS:
            return marks_of(name, None).take(self.cells(name), mode="wrap")
        found: Flags = self.cells(name) >= 0 if name in CELLS else is_valid(self[name])
        return found

    def where(self, marks: Flags) -> FrameBatch:
        """The marked frames, with copies of their cells."""
        cells = None if self._matrix is None else np.asfortranarray(self._matrix[marks])
        return FrameBatch(self.rows.filter(pa.array(marks)), cells)

    @cached_property
    def argument_rows(self) -> Integers:
        """The rows of frames with a method, or with arguments: those of `arguments`."""
        return np.flatnonzero(self.are_methods | is_valid(self["arguments"]))

    @cached_property
    def argument_at(self) -> Integers:
        """By row, where it is in `argument_rows`; -1: it is not there."""
        found = np.full(len(self), -1)
        found[self.argument_rows] = np.arange(len(self.argument_rows))
        return found

    @cached_property
    def arguments(self) -> Arguments:
        """The fields READ_ARGUMENTS of `arguments` in `argument_rows`."""
        values = values_of(self["arguments"])
        every = len(self.argument_rows) == len(self)
        return Arguments(values if every else values.rows_at(self.argument_rows))

    @cached_property
    def are_methods(self) -> Flags:
        """True for frames with a method, control, command or performative."""
        return self.are("frame_type", *roles.METHOD_FRAMES)

    @cached_property
    def files(self) -> Integers:
        """The capture file of each frame, as a number (`udfs.decode.stall_rows`)."""
        return numbers_of_files(self["capture_file"])

    @cached_property
    def unfinished(self) -> Flags:
        """True for frames of controls and commands of 0-10 that continue in the next frame, which has the arguments."""
        begun = self.are_methods & self.are("version", *IN_SEGMENTS)
        return begun & self.are("status", "ok") & ~is_valid(self["arguments"]) if begun.any() else begun

    @cached_property
    def cut(self) -> Flags:
        """True for frames that lost bytes of their arguments: for example, the range of an acknowledgement may be
        missing."""
        return self.are("status", "partial") & self.are("error", str(ERRORS[E_MISSING_VALUES]))

    @cached_property
    def lost(self) -> Flags:
        """True where frames may be missing, so that nothing may be paired across."""
        found = np.zeros(len(self), bool)
        for kind, column, value in roles.LOSSES:
            is_kind, there = self.are("frame_type", kind), self.have(column)
            found |= is_kind & (~there if value is None else there & ~self.are(column, value))
        return found

    @cached_property
    def late(self) -> dict[str, Flags]:
        """`peer_late`, `late`: True for frames with these notes."""
        notes = self.cells("notes")
        return {name: notes & note > 0 for name, note in (("peer_late", PEER_LATE), ("late", CAPTURED_LATE))}

    @cached_property
    def transaction_commands(self) -> pa.StringArray:
        """The command to a transaction coordinator of 1.0 in each frame, or null: it is the body of a transfer (4.2,
        4.5)."""
        carries = self.are("name", *roles.COMMANDS_TO)
        if not carries.any():
            return pa.nulls(len(self), pa.string())
        bodies = inside(values_of(self["properties"]).rows_at(np.flatnonzero(carries)), "body")
        kinds = fields(bodies, {"type": "string"})["type"]
        kinds = pc.if_else(is_one_of(kinds, COORDINATES), kinds, pa.scalar(None, pa.string()))
        return take_or_null(kinds, np.where(carries, np.cumsum(carries) - 1, -1))

    @cached_property
    def requested_exchange(self) -> Integers:
        """The exchange in which each frame asks for a reply by one of its arguments (ASKS), else 0."""
        found = np.zeros(len(self), np.int64)
        for name, exchanges in ASKS.items():
            at = np.flatnonzero(self.are("name", name))
            if len(at):
                own = Fields(values_of(self["arguments"]).rows_at(at), dict.fromkeys(exchanges, "boolean"))
                for argument, exchange in reversed(exchanges.items()):  # of several that are true, the first one counts
                    found[at[own.numbers(argument, 0) == 1]] = exchange
        return found


class Arguments(Mapping[str, pa.Array]):
    """Columns READ_ARGUMENTS of some values, each made when it is first asked for."""

    def __init__(self, values: Values) -> None:
        self._fields, self._columns = Fields(values, roles.READ_ARGUMENTS), dict[str, pa.Array]()

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._columns:
            self._columns[name] = self._fields.column(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(roles.READ_ARGUMENTS)

    def __len__(self) -> int:
        return len(roles.READ_ARGUMENTS)

    def numbers(self, name: str, null: int = -1) -> Integers:
        """Numbers, or 0 and 1 for truth values; `null` where there is none."""
        return self._fields.numbers(name, null)


def _bits(notes: pa.ListArray) -> Integers:
    """The bits of lists of notes."""
    found = np.zeros(len(notes), np.int64)
    if notes.null_count < len(notes):
        bits = np.left_shift(1, index_in(pc.list_flatten(notes), NOTE_NAMES) - 1)
        np.bitwise_or.at(found, to_int64(pc.list_parent_indices(notes)), bits)
    return found
