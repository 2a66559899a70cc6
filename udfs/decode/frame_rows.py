"""What the stream decoder hands out as columns: DECODED rows of kind 'frame'.

    rows = frame_rows(batch, files, keep_payload=False)

Each column is made of a column of the decoder's cells, or of a heap; no Python object a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from codec.amqp import rows as R
from codec.amqp.decoder import Batch
from codec.amqp.notes import note_names
from codec.amqp.rows import NAMES
from codec.amqp.versions import BODY, ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from codec.sides import SIDES
from udfs.arrow.dictionaries import Words, missing
from udfs.arrow.types import TIMESTAMP, VARIANT, arrow_schema
from udfs.schemas import DECODED

ARROW_DECODED = arrow_schema(DECODED)

# Two hexadecimal digits for each octet.
_DIGITS = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint16)
_SENDERS, _VERSIONS, _FRAME_TYPES = Words.of(SIDES), Words.of(VERSIONS), Words.of(FRAME_TYPES)
_NAMES, _STATUSES, _ERRORS = Words.of(NAMES), Words.of(STATUSES), Words.of(ERRORS)


def _integers(cells: np.ndarray, column: int, kind: type[np.signedinteger], nullable: bool = True) -> pa.Array:
    values = cells[:, column].astype(kind)
    return pa.array(values, mask=missing(values) if nullable else None)


def _named(cells: np.ndarray, column: int, words: Words) -> pa.Array:
    return words.column(cells[:, column])


def _binary(heap: np.ndarray, ends: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Binary array over a heap of values end to end; `valid` False: null."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(heap.tobytes())]
    if valid is not None:
        buffers[0] = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def variant_column(value: np.ndarray, metadata: np.ndarray, cells: np.ndarray, at: int) -> pa.Array:
    """VARIANT column from the heaps of a writer: null where a row wrote nothing."""
    ends = np.ascontiguousarray(cells[:, at])
    valid = np.diff(ends, prepend=0) > 0
    children = [_binary(value, ends, None), _binary(metadata, np.ascontiguousarray(cells[:, at + 1]), None)]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.array(~valid))


def _notes(cells: np.ndarray) -> pa.Array:
    """Names of what is noted; null where nothing is. Each distinct set is put into words once."""
    kind = pa.list_(pa.string())
    if not cells[:, R.NOTES].any():
        return pa.nulls(len(cells), kind)
    masks, index = np.unique(cells[:, R.NOTES], return_inverse=True)
    names = pa.array([note_names(int(mask)) for mask in masks], kind)
    return names.take(pa.array(index.reshape(-1)))


def _digests(batch: Batch) -> pa.Array:
    """SHA-256 in hex for the rows that have one."""
    valid = batch.cells[:, R.DIGEST] == 1
    text = _DIGITS[batch.digest[valid]].view(np.uint8)
    ends = np.cumsum(np.where(valid, 64, 0), dtype=np.int64)
    return _binary(text.reshape(-1), ends, valid).view(pa.string())


class Rows(NamedTuple):
    """A batch of the stream decoder, and what its rows are shown with."""

    batch: Batch
    files: list[str]
    keep_payload: bool


def _payload(rows: Rows) -> pa.Array:
    cells = rows.batch.cells
    if not rows.keep_payload:
        return pa.nulls(len(cells), pa.binary())
    ends = cells[:, R.PAYLOAD_END] - rows.batch.payload_from
    has_payload = (cells[:, R.TYPE] == BODY) | (np.diff(ends, prepend=0) > 0)
    return _binary(rows.batch.payload, ends, has_payload)


# The columns of rows of kind 'frame'.
_OF_FRAMES: dict[str, Callable[[Rows], pa.Array]] = {
    "kind": lambda rows: pa.repeat(pa.scalar("frame"), len(rows.batch.cells)),
    "connection_id": lambda rows: _integers(rows.batch.cells, R.CONNECTION, np.int64, False),
    "frame_no": lambda rows: _integers(rows.batch.cells, R.FRAME_NO, np.int64, False),
    "sender": lambda rows: _named(rows.batch.cells, R.SENDER, _SENDERS),
    "ts": lambda rows: pa.array(rows.batch.cells[:, R.TS] // 1000).cast(TIMESTAMP),
    "ts_ns": lambda rows: _integers(rows.batch.cells, R.TS, np.int64, False),
    "first_ts_ns": lambda rows: _integers(rows.batch.cells, R.FIRST_TS, np.int64, False),
    "capture_file": lambda rows: _named(rows.batch.cells, R.FILE, Words.of(rows.files)),
    "first_packet_no": lambda rows: _integers(rows.batch.cells, R.FIRST_PACKET, np.int64),
    "packet_no": lambda rows: _integers(rows.batch.cells, R.PACKET, np.int64),
    "stream_offset": lambda rows: _integers(rows.batch.cells, R.OFFSET, np.int64),
    "size": lambda rows: _integers(rows.batch.cells, R.SIZE, np.int64),
    "version": lambda rows: _named(rows.batch.cells, R.VERSION, _VERSIONS),
    "version_known": lambda rows: pa.array(rows.batch.cells[:, R.KNOWN] == 1),
    "channel": lambda rows: _integers(rows.batch.cells, R.CHANNEL, np.int32),
    "frame_type": lambda rows: _named(rows.batch.cells, R.TYPE, _FRAME_TYPES),
    "class_id": lambda rows: _integers(rows.batch.cells, R.CLASS, np.int32),
    "method_id": lambda rows: _integers(rows.batch.cells, R.METHOD_ID, np.int32),
    "code": lambda rows: _integers(rows.batch.cells, R.CODE, np.int64),
    "name": lambda rows: _named(rows.batch.cells, R.NAME, _NAMES),
    "arguments": lambda rows: variant_column(
        rows.batch.arguments, rows.batch.arguments_metadata, rows.batch.cells, R.ARGUMENTS_END
    ),
    "properties": lambda rows: variant_column(
        rows.batch.properties, rows.batch.properties_metadata, rows.batch.cells, R.PROPERTIES_END
    ),
    "body_size": lambda rows: _integers(rows.batch.cells, R.BODY_SIZE, np.int64),
    "payload_size": lambda rows: _integers(rows.batch.cells, R.PAYLOAD_SIZE, np.int64),
    "payload": _payload,
    "status": lambda rows: _named(rows.batch.cells, R.STATUS, _STATUSES),
    "error": lambda rows: _named(rows.batch.cells, R.ERROR, _ERRORS),
    "notes": lambda rows: _notes(rows.batch.cells),
    "content_frame_no": lambda rows: _integers(rows.batch.cells, R.CONTENT, np.int64),
    "body_sha256": lambda rows: _digests(rows.batch),
    "facts": lambda rows: pa.nulls(len(rows.batch.cells), ARROW_DECODED.field("facts").type),
}


def frame_rows(
    batch: Batch,
    files: list[str],
    keep_payload: bool,
    names: Sequence[str] = ARROW_DECODED.names,
    coded: bool = False,
) -> pa.RecordBatch:
    """A batch of the stream decoder as DECODED rows of kind 'frame', with the columns `names`; `coded`: texts that the
    decoder has as numbers are columns with a dictionary (`udfs.arrow.dictionaries`), which Spark does not read."""
    rows = Rows(batch, files, keep_payload)
    columns = [_OF_FRAMES[name](rows) for name in names]
    if not coded:
        columns = [column.cast(ARROW_DECODED.field(name).type) for name, column in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
