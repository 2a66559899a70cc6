"""Decoding bytes: frames, arguments, properties, tables and values, and the AMQP version.

Results are those of table `frames` for the same bytes, except values that depend on the frames around them
(`codec.amqp.standalone`). Functions that return a VARIANT return null for malformed bytes; `amqp_frame` says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.batches import Batch
from codec.amqp.standalone import (
    StandaloneDecoder,
    ValueDecoder,
    Wrapping,
    detect_versions,
    only_field,
    sasl_bodies,
    wrap,
)
from codec.protocol.rows import ARGUMENTS_END, ARGUMENTS_META_END, ERROR, PROPERTIES_END, STATUS
from codec.protocol.v0_10_tables import CONTROL_ENTRY, v0_10_tables
from codec.protocol.v1_0_tables import v1_0_tables
from codec.protocol.versions import CLASSIC, E_TEXT, FAMILY_OF_VERSION, NONE, OK, V0_10_FAMILY, VERSIONS
from udfs.arrow.fields import Heap, heap_of
from udfs.arrow.types import VARIANT
from udfs.decode.frame_rows import ARROW_FRAMES, frame_rows, variant_column

# Columns in the form that the codec takes: bytes and offsets of a BINARY column, version codes of a STRING column.


T = TypeVar("T")
CODES = {version: code for code, version in enumerate(VERSIONS) if version}


def bytes_of(column: pa.Array) -> Heap:
    """The rows of a BINARY (or STRING) column, null ones empty; copied, since the codec's kernels are compiled for
    writable bytes."""
    if column.null_count:
        column = pc.fill_null(column.cast(pa.binary()), b"")
    elif column.type != pa.binary():
        column = column.cast(pa.binary())
    if not len(column):
        return Heap(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    data, ends = heap_of(column).trimmed()
    return Heap(data.copy(), ends)


def version_code(name: str) -> int:
    """The VERSIONS code of a version. Raises ValueError for an unknown one."""
    if name not in CODES:
        raise ValueError(f"'{name}' is not a version of AMQP; expected one of {', '.join(map(repr, CODES))}")
    return CODES[name]


def each_version(
    versions: pa.Array, columns: list[pa.Array], decode: Callable[..., pa.Array], kind: pa.DataType
) -> pa.Array:
    """`decode(version code, *columns)` over the rows of each version, in the order of the rows; null where the version
    or one of the columns is null. Usually all rows have one version, and no row is moved."""
    distinct = [name for name in versions.unique().to_pylist() if name is not None]
    codes = [version_code(name) for name in distinct]
    if len(distinct) == 1:
        results = decode(codes[0], *columns)
    elif not distinct:
        results = pa.nulls(len(versions), kind)
    else:
        parts, rows_of_parts = [], []
        for name, code in zip(distinct, codes, strict=True):
            rows = np.flatnonzero(pc.equal(versions, name).fill_null(False).to_numpy(zero_copy_only=False))
            parts.append(decode(code, *(column.take(pa.array(rows)) for column in columns)))
            rows_of_parts.append(rows)
        back = np.full(len(versions), -1)
        back[np.concatenate(rows_of_parts)] = np.arange(sum(map(len, rows_of_parts)))
        results = pa.concat_arrays(parts).take(pa.array(back, mask=back < 0))
    known = versions.is_valid()
    for column in columns:
        known = pc.and_(known, column.is_valid())
    return only_where(known, results)


def only_where(known: pa.Array, results: pa.Array) -> pa.Array:
    """`results`, null where not `known`."""
    if known.true_count == len(known):
        return results
    return pc.if_else(known, results, pa.scalar(None, results.type))


def concat_arrays(parts: Iterator[pa.Array], kind: pa.DataType) -> pa.Array:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)


_own = threading.local()


def own(make: Callable[[], T]) -> T:
    """The result of `make`, called once per thread: a decoder buffers, and serves one thread."""
    cached: dict[Callable[[], Any], Any] = _own.__dict__.setdefault("cached", {})
    if make not in cached:
        cached[make] = make()
    result: T = cached[make]
    return result


FRAME_COLUMNS = (
    *("frame_type", "version", "channel", "class_id", "method_id", "code", "name", "arguments", "properties"),
    *("body_size", "payload_size", "status", "error", "notes"),
)
FRAME = pa.struct([ARROW_FRAMES.field(name) for name in FRAME_COLUMNS])

# Frames to wrap around bare payloads. If there are two, the payload determines which one.
CLASSIC_METHOD = [Wrapping(b"\x01\0\0" + bytes(4), b"\xce", size_at=3, size_width=4, counted=0)]
CLASSIC_HEADER = [Wrapping(b"\x02\0\x01" + bytes(4), b"\xce", size_at=3, size_width=4, counted=0)]


def _segment(flags: int, kind: int, track: int, begins: bytes = b"") -> Wrapping:
    head = bytes([flags, kind, 0, 0, 0, track]) + bytes(6) + begins
    return Wrapping(head, b"", size_at=2, size_width=2, counted=len(head))


SEGMENTS = [_segment(0x0F, kind=0, track=0), _segment(0x0F, kind=1, track=1)]  # of a control, of a command
HEADER_SEGMENT = [_segment(0x07, kind=2, track=1)]
# connection.start-ok with only its first field, client-properties, which is a map.
MAP_SEGMENT = [_segment(0x0F, kind=0, track=0, begins=b"\x01\x02\x01\x00")]


def _body(kind: int, begins: bytes = b"") -> Wrapping:
    head = bytes([0, 0, 0, 0, 2, kind, 0, 0]) + begins
    return Wrapping(head, b"", size_at=0, size_width=4, counted=len(head))


PERFORMATIVES = [_body(kind=0), _body(kind=1)]  # of AMQP, of SASL
# A transfer with handle 0 and delivery-id 0, both as uint0, which carries the whole message.
MESSAGE = [_body(kind=0, begins=bytes.fromhex("005314 c0 03 02 43 43"))]


def decode_frame(frame: pa.Array, version: pa.Array) -> pa.Array:
    """FRAME of each row, which holds the bytes of one frame or a protocol header."""
    return each_version(version, [frame], _frame, FRAME)


def _frame(version: int, frames: pa.Array) -> pa.Array:
    def decoded(batch: Batch) -> pa.Array:
        rows = frame_rows(batch, [""], False, FRAME_COLUMNS)
        return pa.StructArray.from_arrays(rows.columns, fields=list(FRAME))

    return concat_arrays(map(decoded, own(StandaloneDecoder).frames(*bytes_of(frames), version)), FRAME)


def decode_arguments(payload: pa.Array, version: pa.Array) -> pa.Array:
    """VARIANT of each row, which holds the payload of a method, control, command or performative from its numbers (or
    its descriptor) on."""
    return each_version(version, [payload], _arguments, VARIANT)


def _arguments(version: int, payloads: pa.Array) -> pa.Array:
    data, family = bytes_of(payloads), FAMILY_OF_VERSION[version]
    if family == CLASSIC:
        return _wrapped(data, CLASSIC_METHOD, _first_wrapping(data), version, ARGUMENTS_END)
    if family == V0_10_FAMILY:
        return _wrapped(data, SEGMENTS, _commands(data), version, ARGUMENTS_END)
    which = _first_wrapping(data)
    sasl_bodies(*data, v1_0_tables()[0], which)
    return _wrapped(data, PERFORMATIVES, which, version, ARGUMENTS_END)


def _first_wrapping(data: Heap) -> NDArray[np.int64]:
    """For each row the index of its frame among the wrappings: the first."""
    return np.zeros(len(data.ends) - 1, np.int64)


def _commands(data: Heap) -> NDArray[np.int64]:
    """0 for payloads of 0-10 that are controls by their class code and code, else 1."""
    with_padding = np.append(data.data, np.zeros(2, np.uint8))
    controls = v0_10_tables().lookup[CONTROL_ENTRY] >= 0
    starts = data.ends[:-1]
    numbers = [np.minimum(with_padding[starts + i], len(controls) - 1) for i in (0, 1)]
    return np.where(controls[numbers[0], numbers[1]], 0, 1)


def decode_properties(payload: pa.Array, version: pa.Array) -> pa.Array:
    """VARIANT of each row, which holds the payload of a content header frame (0-8 to 0-9-1), of a header segment
    (0-10), or a whole message of 1.0: the properties as in table `frames`."""
    return each_version(version, [payload], _properties, VARIANT)


def _properties(version: int, payloads: pa.Array) -> pa.Array:
    data, family = bytes_of(payloads), FAMILY_OF_VERSION[version]
    around = {CLASSIC: CLASSIC_HEADER, V0_10_FAMILY: HEADER_SEGMENT}.get(int(family), MESSAGE)
    return _wrapped(data, around, _first_wrapping(data), version, PROPERTIES_END)


def _wrapped(data: Heap, around: list[Wrapping], which: NDArray[np.int64], version: int, column: int) -> pa.Array:
    """The VARIANTs of `column` (ARGUMENTS_END, PROPERTIES_END) of payloads with frames around them; null where one is
    malformed."""

    def decoded(batch: Batch) -> pa.Array:
        heaps = (batch.arguments, batch.arguments_metadata)
        if column == PROPERTIES_END:
            heaps = (batch.properties, batch.properties_metadata)
        return only_where(_fits(batch.cells), variant_column(*heaps, batch.cells, column))

    return concat_arrays(map(decoded, own(StandaloneDecoder).frames(*wrap(*data, around, which), version)), VARIANT)


def _fits(cells: NDArray[np.int64]) -> pa.Array:
    """Whether values fit their definitions; text that is not UTF-8 fits, and is escaped."""
    return pa.array((cells[:, STATUS] == OK) | (cells[:, ERROR] == E_TEXT))


def decode_table(data: pa.Array, version: pa.Array) -> pa.Array:
    """VARIANT of each row, which holds a field table with its length (0-8 to 0-9-1), a map with its size (0-10), or any
    value (1.0)."""
    return each_version(version, [data], _table, VARIANT)


def _table(version: int, tables: pa.Array) -> pa.Array:
    family = FAMILY_OF_VERSION[version]
    if family == V0_10_FAMILY:
        data = bytes_of(tables)
        framed = wrap(*data, MAP_SEGMENT, _first_wrapping(data))
        return concat_arrays(map(_only_argument, own(StandaloneDecoder).frames(*framed, version)), VARIANT)
    if family == CLASSIC:
        return _values(own(ValueDecoder).tables(*bytes_of(tables), version))
    return decode_value(tables)


def _only_argument(batch: Batch) -> pa.Array:
    cells = batch.cells
    ends = np.empty((len(cells), 2), np.int64)
    ends[:, 1] = cells[:, ARGUMENTS_META_END]
    inside = np.empty_like(batch.arguments)
    only_field(batch.arguments, np.ascontiguousarray(cells[:, ARGUMENTS_END]), inside, ends)
    return only_where(_fits(cells), variant_column(inside, batch.arguments_metadata, ends, 0))


def decode_value(data: pa.Array) -> pa.Array:
    """VARIANT of each row, which holds one value of AMQP 1.0 with its constructor."""
    return only_where(data.is_valid(), _values(own(ValueDecoder).values(*bytes_of(data))))


def _values(batches: Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]]) -> pa.Array:
    return concat_arrays((variant_column(heap, metadata, ends, 0) for heap, metadata, ends in batches), VARIANT)


def version_of(data: pa.Array) -> pa.Array:
    """The version of each row that begins like a stream or a frame of AMQP (`codec.amqp.standalone`), else
    null."""
    spoken = detect_versions(*bytes_of(data))
    return pa.array(VERSIONS, pa.string()).take(pa.array(spoken, mask=spoken == NONE))
