"""Batches of rows: the buffer of the stream decoder, whose bytes become VARIANT values when rows are returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from codec import variant as W
from codec.compiler.kernel import kernel
from codec.framing.connection_state import heap_ends
from codec.framing.stream import State, new_state
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.protocol.classic_tables import classic_tables
from codec.protocol.classic_values import decode_arguments, decode_properties
from codec.protocol.v0_10_detection import content_length
from codec.protocol.v0_10_tables import V0_10Tables, v0_10_keys, v0_10_tables
from codec.protocol.v0_10_values import HEADER_SEGMENT, decode_segment, new_stack
from codec.protocol.v1_0_contents import Inside, end_of_messages, messages_inside
from codec.protocol.v1_0_tables import ValueTables, WireTables, v1_0_tables
from codec.protocol.v1_0_values import Scratch, decode_frame, new_scratch
from codec.protocol.versions import V1_0_FAMILY, headers
from codec.tcp.reassembly import enlarge_stream, enlarged
from codec.variant import FULL, METADATA, VALUE, Writer, enlarge, error_code, new_writer

# Second pass over rows: the bytes that the stream decoder stored become VARIANT arguments and properties.
#
# Framing and values have separate kernels, so that they are compiled and profiled separately. A kernel stops at the row
# for which a writer has no room, and continues from that row when it is called again. Cost: linear in the bytes.


HEADER_KEYS = np.frombuffer(b"protocol_idmajorminorrevision", np.uint8).copy()
HEADER_KEY_AT = np.array([0, 11, 16, 21, 29], np.int64)


class V0_10Values(NamedTuple):
    """Tables and scratch (`stack`) of 0-10."""

    tables: V0_10Tables
    keys: W.KnownKeys
    stack: np.ndarray


class V1_0Values(NamedTuple):
    """Tables and scratch of 1.0."""

    wire: WireTables
    values: ValueTables
    scratch: Scratch


def definitions() -> dict[int, tuple[Callable[..., int], tuple[Any, ...]]]:
    """By family: the kernel that decodes its values, and the tables that the kernel reads."""
    return {
        V.CLASSIC: (classic_values, classic_tables()),
        V.V0_10_FAMILY: (v0_10_values, V0_10Values(v0_10_tables(), v0_10_keys(), new_stack())),
        V.V1_0_FAMILY: (v1_0_values, V1_0Values(*v1_0_tables(), new_scratch())),
    }


@kernel
def put_protocol_header(data, start, w):
    """Write the four bytes after "AMQP" under their names in the 0-9-1 and 1.0 specifications."""
    W.begin(w)
    W.begin_object(w)
    for i in range(4):
        W.key(w, HEADER_KEYS, int(HEADER_KEY_AT[i]), int(HEADER_KEY_AT[i + 1]))
        W.put_int(w, int(data[start + i]))
    W.end_object(w)
    return W.finish(w)


@kernel
def note_code(row, code, misfit):
    """Set status and error of a row whose values did not decode with OK. `misfit`: the error of values that do not fit
    their definition; those of a frame that lost bytes cannot fit."""
    if row[R.STATUS] == V.PARTIAL:
        row[R.ERROR] = V.E_MISSING_VALUES
    else:
        row[R.STATUS] = V.MALFORMED
    if code == W.TOO_LARGE:
        row[R.ERROR] = V.E_VALUE_SIZE
    elif code == W.TOO_DEEP:
        row[R.ERROR] = V.E_DEPTH
    elif row[R.ERROR] == 0:
        row[R.ERROR] = misfit


@kernel
def finish_row(row, code, misfit, arguments, properties):
    """Set status, error, notes and the ends of values of a row after decoding; False when a writer is full and the row
    must be decoded again."""
    if code == W.FULL:
        return False
    if code != W.OK:
        note_code(row, code, misfit)
    if row[R.STATUS] != V.PARTIAL:
        row[R.NOTES] |= arguments.positions[W.NOTES] | properties.positions[W.NOTES]
    if arguments.positions[W.ESCAPED] > 0 or properties.positions[W.ESCAPED] > 0:
        row[R.NOTES] |= R.NOT_UTF8
        if row[R.STATUS] == V.OK:
            row[R.STATUS] = V.MALFORMED
            row[R.ERROR] = V.E_TEXT
    if arguments.positions[W.MASKED] > 0 or properties.positions[W.MASKED] > 0:
        row[R.NOTES] |= R.USERINFO
    arguments.positions[W.MASKED] = properties.positions[W.MASKED] = 0
    arguments.positions[W.NOTES] = properties.positions[W.NOTES] = 0
    arguments.positions[W.ESCAPED] = properties.positions[W.ESCAPED] = 0
    row[R.ARGUMENTS_END] = arguments.positions[VALUE]
    row[R.ARGUMENTS_META_END] = arguments.positions[METADATA]
    row[R.PROPERTIES_END] = properties.positions[VALUE]
    row[R.PROPERTIES_META_END] = properties.positions[METADATA]
    return True


@kernel
def _bytes_from(cells, index):
    return int(cells[index - 1, R.BYTES_END]) if index > 0 else 0


@kernel
def classic_values(cells, data, first, stop, t, arguments, properties):
    """Decode rows `first` to `stop` of the classic or of an unknown family: the row at which a writer is full, or
    `stop`."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _bytes_from(cells, index), int(row[R.BYTES_END])
        definition, kind, version = int(row[R.DEFINITION]), int(row[R.TYPE]), int(row[R.VERSION])
        code, misfit, cut = W.OK, V.E_ARGUMENTS, row[R.STATUS] == V.PARTIAL
        if kind == V.PROTOCOL_HEADER:
            code = put_protocol_header(data, start, arguments)
        elif definition >= 0 and kind in (V.METHOD, V.OOB_METHOD):
            guarded = row[R.HANDSHAKE] != 0
            code, _ = decode_arguments(data, start, end, t, version, definition, arguments, guarded, cut)
        elif definition >= 0 and kind in (V.HEADER, V.OOB_HEADER):
            misfit = V.E_PROPERTIES
            code, _ = decode_properties(data, start, end, t, version, definition, properties, cut)
        if not finish_row(row, code, misfit, arguments, properties):
            return index
    return stop


@kernel
def v0_10_values(cells, data, first, stop, t, arguments, properties):
    """`classic_values` for 0-10; `t`: V0_10Values."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _bytes_from(cells, index), int(row[R.BYTES_END])
        definition, kind = int(row[R.DEFINITION]), int(row[R.TYPE])
        code, misfit = W.OK, V.E_ARGUMENTS
        if kind == V.PROTOCOL_HEADER:
            code = put_protocol_header(data, start, arguments)
        elif definition >= 0:
            segment, writer = kind - V.CONTROL, arguments
            if kind == V.HEADER:
                segment, writer, misfit = HEADER_SEGMENT, properties, V.E_PROPERTIES
                row[R.BODY_SIZE] = content_length(data, start, end, t.tables)
            guarded = row[R.HANDSHAKE] != 0
            code = decode_segment(data, start, end, segment, definition, t.tables, t.keys, t.stack, writer, guarded)
        if not finish_row(row, code, misfit, arguments, properties):
            return index
    return stop


@kernel
def v1_0_values(cells, data, first, stop, t, arguments, properties):
    """`classic_values` for 1.0; `t`: V1_0Values."""
    for index in range(first, stop):
        row = cells[index]
        start, end = _bytes_from(cells, index), int(row[R.BYTES_END])
        definition = int(row[R.DEFINITION])
        code = W.OK
        if row[R.TYPE] == V.PROTOCOL_HEADER:
            code = put_protocol_header(data, start, arguments)
        elif definition >= 0:
            code = decode_frame(data, start, end, row, definition, t.wire, t.values, t.scratch, arguments, properties)
        if not finish_row(row, code, V.E_ARGUMENTS, arguments, properties):
            return index
    return stop


def decode_values(cells, data, first, stop, definitions, arguments, properties):  # type: ignore[no-untyped-def]
    """Decode rows `first` to `stop`: the row at which a writer is full (to be decoded again), or `stop`.

    Consecutive rows of one family go to the kernel of that family, so that only kernels in use are compiled.
    """
    family = V.FAMILY_OF_VERSION[cells[:stop, R.VERSION]]
    family[family == V.UNKNOWN_FAMILY] = V.CLASSIC
    changes = np.flatnonzero(np.diff(family)) + 1
    for end in [*changes[changes > first].tolist(), stop]:
        decode, tables = definitions[int(family[first])]
        stopped = int(decode(cells, data, first, end, tables, arguments, properties))
        if stopped < end:
            return stopped
        first = end
    return first


BATCH_ROWS = 1 << 15
HEAP_BYTES = 1 << 22


class Batch(NamedTuple):
    """Complete rows. Arrays are views, valid until the decoder continues.

    `cells` int64 (rows, columns of codec.protocol.rows), whose columns are contiguous; `digest` uint8 (rows, 32); the
    heaps are uint8, and the cells have the ends of each row's bytes in them.
    """

    cells: np.ndarray
    digest: np.ndarray
    arguments: np.ndarray
    arguments_metadata: np.ndarray
    properties: np.ndarray
    properties_metadata: np.ndarray
    payload: np.ndarray
    payload_from: int  # PAYLOAD_END of the row before the first
    still_open: np.ndarray | None = None  # rows that change if their connection continues; None: no row
    inside: Inside | None = None  # messages in batches of Azure


class RowBuffer:
    """The arrays that kernels work on, and the writers of values. `keep_payload`: batches have body bytes."""

    def __init__(self, keep_payload: bool = False) -> None:
        rows = R.new_rows(BATCH_ROWS + R.SPARE_ROWS, HEAP_BYTES, HEAP_BYTES if keep_payload else 1)
        self.keep_payload = keep_payload
        self.state: State = new_state(rows, headers(), classic_tables(), keep_payload)
        self.arguments = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.properties = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.definitions = definitions()

    def _enlarge_stream(self, code: int, direction: int) -> None:
        """Double the array of the direction (of both when -1) that `code` (NEED_*) names."""
        self.state = self.state._replace(streams=enlarge_stream(self.state.streams, code, direction))

    def _enlarge_heaps(self) -> None:
        """Double the heaps of rows."""
        rows = self.state.rows
        rows = rows._replace(data=enlarged(rows.data), payload=enlarged(rows.payload))
        self.state = self.state._replace(rows=rows)

    def _compact(self, done: int, count: int) -> None:
        """Move the rows after the first `done` of `count` to the front."""
        rows = self.state.rows
        bytes_end, payload_end = heap_ends(rows, done)
        rest = count - done
        rows.cells[:rest] = rows.cells[done:count].copy()
        rows.digest[:rest] = rows.digest[done:count].copy()
        rows.cells[:rest, R.BYTES_END] -= bytes_end
        rows.cells[:rest, R.PAYLOAD_END] -= payload_end
        data = _move_to_front(rows.data, bytes_end, int(rows.used[1]))
        rows.used[:] = rest, data, _move_to_front(rows.payload, payload_end, int(rows.used[2]))
        self.state.connection[0].row_from = 0

    def _decoded(self, rows: R.Rows, count: int) -> Iterator[Batch]:
        """Decode the values of the first `count` rows, in as many batches as the writers need."""
        cells, first = rows.cells, 0
        while first < count:
            for writer in (self.arguments, self.properties):
                writer.positions[VALUE] = writer.positions[METADATA] = 0
            wire, values, scratch = self.definitions[V1_0_FAMILY][1]
            end = end_of_messages(cells, rows.data, first, count, wire)
            stop = decode_values(cells, rows.data, first, end, self.definitions, self.arguments, self.properties)
            if stop == first:
                self.arguments, self.properties = _enlarged_if_full(self.arguments), _enlarged_if_full(self.properties)
                continue
            inside = messages_inside(cells, rows.data, first, stop, wire, values, scratch)
            part, payload_from = cells[first:stop], int(cells[first - 1, R.PAYLOAD_END]) if first else 0
            yield Batch(
                part,
                rows.digest[first:stop],
                self.arguments.value[: part[-1, R.ARGUMENTS_END]],
                self.arguments.metadata[: part[-1, R.ARGUMENTS_META_END]],
                self.properties.value[: part[-1, R.PROPERTIES_END]],
                self.properties.metadata[: part[-1, R.PROPERTIES_META_END]],
                rows.payload[payload_from : part[-1, R.PAYLOAD_END]],
                payload_from,
                self._still_open(part, first),
                inside,
            )
            first = stop

    def _still_open(self, part: np.ndarray, first: int) -> np.ndarray | None:
        """`Batch.still_open` of the rows `part`, which begin at row `first` of the buffer."""
        return None


def _enlarged_if_full(writer: Writer) -> Writer:
    return enlarge(writer) if error_code(writer) == FULL else writer


def _move_to_front(heap: np.ndarray, start: int, end: int) -> int:
    """Move `heap[start:end]` to the front; returns its new end."""
    heap[: end - start] = heap[start:end].copy()
    return end - start
