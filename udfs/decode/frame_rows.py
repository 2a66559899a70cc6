"""Batches of the stream decoder as columns: rows of table `frames`, and INSIDE.

    rows = frame_rows(batch, files, keep_payload=False)

Each column is made from a column of the decoder's cells, or from a heap, without a Python object per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from codec.amqp.batches import Batch
from codec.names import SIDES
from codec.protocol import rows as R
from codec.protocol import v1_0_contents as A
from codec.protocol.rows import NAMES, note_names
from codec.protocol.versions import BODY, ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from codec.tables import FRAMES, INSIDE
from udfs.arrow.fields import HEX_DIGITS
from udfs.arrow.types import (
    TIMESTAMP,
    VARIANT,
    TextTable,
    arrow_schema,
    arrow_type,
    binary_column,
    map_distinct,
    nullable,
)

# Messages in the batch of Azure that a frame completes; null: no batch.
INSIDE_FRAMES = pa.field("inside", pa.list_(arrow_type(INSIDE)))
ARROW_FRAMES = arrow_schema(FRAMES).append(INSIDE_FRAMES)

_TEXTS = pa.list_(pa.string())
_SENDERS, _VERSIONS, _FRAME_TYPES = TextTable.of(SIDES), TextTable.of(VERSIONS), TextTable.of(FRAME_TYPES)
_NAMES, _STATUSES, _ERRORS = TextTable.of(NAMES), TextTable.of(STATUSES), TextTable.of(ERRORS)


def _binary(heap: np.ndarray, ends: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """A column of values end to end in a heap, which is copied: the decoder writes to it again."""
    return binary_column(heap.tobytes(), np.append(0, ends), valid)


def variant_column(value: np.ndarray, metadata: np.ndarray, cells: np.ndarray, at: int) -> pa.Array:
    """VARIANT column from the heaps of a writer: null where a row wrote nothing."""
    ends = np.ascontiguousarray(cells[:, at])
    valid = np.diff(ends, prepend=0) > 0
    children = [_binary(value, ends, None), _binary(metadata, np.ascontiguousarray(cells[:, at + 1]), None)]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.array(~valid))


def _digests(digest: np.ndarray, valid: np.ndarray) -> pa.Array:
    """SHA-256 in hex for the rows that have one."""
    text = HEX_DIGITS[digest[valid]].view(np.uint8)
    ends = np.cumsum(np.where(valid, 64, 0), dtype=np.int64)
    return _binary(text.reshape(-1), ends, valid).view(pa.string())


def _inside(batch: Batch) -> pa.Array:
    """The messages in batches of Azure: a list for each row with such a batch."""
    type_ = INSIDE_FRAMES.type
    if batch.inside is None:
        return pa.nulls(len(batch.cells), type_)
    cells = batch.inside.cells
    columns = {
        "properties": variant_column(batch.inside.value, batch.inside.metadata, cells, A.VALUE_END),
        "body_size": nullable(cells[:, A.BODY_SIZE]),
        "body_sha256": _digests(batch.inside.digest, cells[:, A.WHOLE] == 1),
        "offset": pa.array(np.ascontiguousarray(cells[:, A.AT])),
        "size": pa.array(np.ascontiguousarray(cells[:, A.SIZE])),
    }
    messages = pa.StructArray.from_arrays(list(columns.values()), fields=list(type_.value_type))
    counts = np.bincount(cells[:, A.ROW], minlength=len(batch.cells))
    offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, messages, type=type_, mask=pa.array(counts == 0))


class Rows(NamedTuple):
    """A batch of the stream decoder, and how its rows become columns."""

    batch: Batch
    files: list[str]
    keep_payload: bool

    @property
    def cells(self) -> np.ndarray:
        return self.batch.cells

    def numbers(self, column: int) -> np.ndarray:
        """A copy of a column: the decoder writes to its cells again."""
        found: np.ndarray = self.batch.cells[:, column].copy()
        return found


def _payload(rows: Rows) -> pa.Array:
    if not rows.keep_payload:
        return pa.nulls(len(rows.cells), pa.binary())
    ends = rows.cells[:, R.PAYLOAD_END] - rows.batch.payload_from
    has_payload = (rows.cells[:, R.TYPE] == BODY) | (np.diff(ends, prepend=0) > 0)
    return _binary(rows.batch.payload, ends, has_payload)


_OF_FRAMES: dict[str, Callable[[Rows], pa.Array]] = {
    "connection_id": lambda rows: pa.array(rows.numbers(R.CONNECTION)),
    "frame_no": lambda rows: pa.array(rows.numbers(R.FRAME_NO)),
    "sender": lambda rows: _SENDERS.column(rows.cells[:, R.SENDER]),
    "ts": lambda rows: pa.array(rows.cells[:, R.TS] // 1000).cast(TIMESTAMP),
    "ts_ns": lambda rows: pa.array(rows.numbers(R.TS)),
    "first_ts_ns": lambda rows: pa.array(rows.numbers(R.FIRST_TS)),
    "capture_file": lambda rows: TextTable.of(rows.files).column(rows.cells[:, R.FILE]),
    "first_packet_no": lambda rows: nullable(rows.numbers(R.FIRST_PACKET)),
    "packet_no": lambda rows: nullable(rows.numbers(R.PACKET)),
    "stream_offset": lambda rows: nullable(rows.numbers(R.OFFSET)),
    "size": lambda rows: nullable(rows.numbers(R.SIZE)),
    "version": lambda rows: _VERSIONS.column(rows.cells[:, R.VERSION]),
    "version_known": lambda rows: pa.array(rows.cells[:, R.KNOWN] == 1),
    "channel": lambda rows: nullable(rows.cells[:, R.CHANNEL].astype(np.int32)),
    "frame_type": lambda rows: _FRAME_TYPES.column(rows.cells[:, R.TYPE]),
    "class_id": lambda rows: nullable(rows.cells[:, R.CLASS].astype(np.int32)),
    "method_id": lambda rows: nullable(rows.cells[:, R.METHOD_ID].astype(np.int32)),
    "code": lambda rows: nullable(rows.numbers(R.CODE)),
    "name": lambda rows: _NAMES.column(rows.cells[:, R.NAME]),
    "arguments": lambda rows: variant_column(
        rows.batch.arguments, rows.batch.arguments_metadata, rows.cells, R.ARGUMENTS_END
    ),
    "properties": lambda rows: variant_column(
        rows.batch.properties, rows.batch.properties_metadata, rows.cells, R.PROPERTIES_END
    ),
    "body_size": lambda rows: nullable(rows.numbers(R.BODY_SIZE)),
    "payload_size": lambda rows: nullable(rows.numbers(R.PAYLOAD_SIZE)),
    "payload": _payload,
    "status": lambda rows: _STATUSES.column(rows.cells[:, R.STATUS]),
    "error": lambda rows: _ERRORS.column(rows.cells[:, R.ERROR]),
    "notes": lambda rows: map_distinct(note_names, rows.cells[:, R.NOTES], _TEXTS, rows.cells[:, R.NOTES] != 0),
    "content_frame_no": lambda rows: nullable(rows.numbers(R.CONTENT)),
    "body_sha256": lambda rows: _digests(rows.batch.digest, rows.cells[:, R.DIGEST] > 0),
    "inside": lambda rows: _inside(rows.batch),
}


def frame_rows(
    batch: Batch,
    files: list[str],
    keep_payload: bool,
    names: Sequence[str] = ARROW_FRAMES.names,
    encoded: bool = False,
) -> pa.RecordBatch:
    """A batch of the stream decoder as rows with the columns `names`. `encoded`: texts that
    the decoder has as numbers stay dictionary-encoded (`udfs.arrow.types`), which Spark does not read."""
    rows = Rows(batch, files, keep_payload)
    columns = [_OF_FRAMES[name](rows) for name in names]
    if not encoded:
        columns = [column.cast(ARROW_FRAMES.field(name).type) for name, column in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
