"""Batches of rows: the buffer of the stream decoder, whose octets become VARIANT values when rows are returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.tables import classic_tables
from codec.amqp.connections.parts import heap_ends
from codec.amqp.stream import State, new_state
from codec.amqp.v1_0.azure_batches import Inside, end_of_messages, messages_inside
from codec.amqp.values import decode_values, definitions
from codec.amqp.versions import V1_0_FAMILY, headers
from codec.tcp.direction import enlarge_stream, enlarged
from codec.variant import FULL, METADATA, VALUE, Writer, enlarge, error_code, new_writer

BATCH_ROWS = 1 << 15
HEAP_BYTES = 1 << 22


class Batch(NamedTuple):
    """Complete rows. Arrays are views, valid until the decoder continues.

    `cells` int64 (rows, columns of codec.amqp.rows), whose columns are contiguous; `digest` uint8 (rows, 32); the heaps
    are uint8, and the cells have the ends of each row's bytes in them.
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
        rows = rows._replace(octets=enlarged(rows.octets), payload=enlarged(rows.payload))
        self.state = self.state._replace(rows=rows)

    def _compact(self, done: int, count: int) -> None:
        """Move the rows after the first `done` of `count` to the front."""
        rows = self.state.rows
        octets_end, payload_end = heap_ends(rows, done)
        rest = count - done
        rows.cells[:rest] = rows.cells[done:count].copy()
        rows.digest[:rest] = rows.digest[done:count].copy()
        rows.cells[:rest, R.OCTETS_END] -= octets_end
        rows.cells[:rest, R.PAYLOAD_END] -= payload_end
        octets = _move_to_front(rows.octets, octets_end, int(rows.used[1]))
        rows.used[:] = rest, octets, _move_to_front(rows.payload, payload_end, int(rows.used[2]))
        self.state.connection[0].row_from = 0

    def _decoded(self, rows: R.Rows, count: int) -> Iterator[Batch]:
        """Decode the values of the first `count` rows, in as many batches as the writers need."""
        cells, first = rows.cells, 0
        while first < count:
            for writer in (self.arguments, self.properties):
                writer.positions[VALUE] = writer.positions[METADATA] = 0
            wire, values, scratch = self.definitions[V1_0_FAMILY][1]
            end = end_of_messages(cells, rows.octets, first, count, wire)
            stop = decode_values(cells, rows.octets, first, end, self.definitions, self.arguments, self.properties)
            if stop == first:
                self.arguments, self.properties = _enlarged_if_full(self.arguments), _enlarged_if_full(self.properties)
                continue
            inside = messages_inside(cells, rows.octets, first, stop, wire, values, scratch)
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
