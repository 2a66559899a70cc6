"""Fields of a VARIANT column as Arrow columns: `fields(column, {"queue": "string", "delivery_tag": "bigint"})`.

A missing field, or one of another type, is null. Bytes that are not UTF-8 are escaped in a string (`codec.text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.cursor import is_ascii
from codec.hashes.rows import mix_numbers, mix_texts, new_lanes
from codec.memory import as_kernel_array
from codec.text import escape_all, escaped_ends
from codec.variant import decode, reading
from codec.variant.reading import (
    ABSENT,
    BOOLEAN,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    count_elements,
    gather,
    new_dictionary_cache,
    new_fields,
    read_elements,
    read_fields,
    read_values,
)
from udfs.arrow.arrays import take_or_null, to_int64
from udfs.arrow.types import TIMESTAMP, VARIANT, binary_column, map_distinct_bytes

INT32 = np.iinfo(np.int32)
MICROS = 1_000_000
TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
    "binary": pa.binary(),
}
FEW = 4  # only the rows with an object are read where they are less than a fourth
BASIC_TYPE = 3  # mask of the first byte of a value
# Of the years 1 to 9999: SQL and Python cannot represent other times.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
HEX_DIGITS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)  # two digits of each byte


class Heap(NamedTuple):
    """Values of a binary column: bytes, and their n + 1 offsets (int64)."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def trimmed(self) -> Heap:
        """Without bytes before the first value and after the last."""
        return Heap(self.data[self.ends[0] : self.ends[-1]], self.ends - self.ends[0])


def heap_of(column: pa.Array) -> Heap:
    """Bytes and offsets of a binary or string column; null is empty."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    wire_bytes = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    wire_bytes.flags.writeable = False
    return Heap(wire_bytes, ends)


class Values(NamedTuple):
    """VARIANT values: row i has the bytes from `starts[i]` to `stops[i]` (empty: no value), and its metadata in
    `metadata`. Bytes may be shared."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    metadata: NDArray[np.uint8]
    metadata_starts: NDArray[np.int64]
    metadata_stops: NDArray[np.int64]

    def at(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Values:
        """Values inside these, row by row."""
        return self._replace(starts=starts, stops=stops)

    def rows_at(self, rows: NDArray[np.int64]) -> Values:
        return Values(self.data, self[1][rows], self[2][rows], self.metadata, self[4][rows], self[5][rows])

    def python(self, row: int) -> Any:
        """The value of a row as a Python object."""
        value = self.data[self.starts[row] : self.stops[row]].tobytes()
        return decode(value, self.metadata[self.metadata_starts[row] : self.metadata_stops[row]].tobytes())


def values_of(column: pa.StructArray) -> Values:
    value, metadata = heap_of(column.field("value")), heap_of(column.field("metadata"))
    starts, stops = value.ends[:-1], value.ends[1:]
    if column.null_count:
        stops = np.where(column.is_valid().to_numpy(zero_copy_only=False), stops, starts)
    return Values(value.data, starts, stops, metadata.data, metadata.ends[:-1], metadata.ends[1:])


class Fields:
    """Fields of VARIANT objects, which may be absent, read in one pass. `types`: name -> 'string' 'binary' 'bigint'
    'int' 'boolean' 'timestamp' 'variant'; `containers`: names for `inside`."""

    def __init__(self, values: Values, types: Mapping[str, str], containers: Iterable[str] = ()) -> None:
        kinds = {**types, **dict.fromkeys(containers, "variant")}
        self.are_there = values.stops > values.starts
        self._types, self._index_of = types, {name: index for index, name in enumerate(kinds)}
        self._rows = np.flatnonzero(self.are_there)
        self._sparse, any_there = FEW * len(self._rows) < len(values.starts), len(self._rows) > 0
        self._values, self._own = values, values.rows_at(self._rows) if self._sparse else values
        self._found = new_fields([kind == "variant" for kind in kinds.values()], len(self._own.starts))
        if any_there:
            names = [name.encode() for name in kinds]
            keys, ends = np.frombuffer(b"".join(names), np.uint8), np.cumsum([len(name) for name in names])
            read_fields(*self._own, keys, ends, new_dictionary_cache(), self._found)

    def column(self, name: str) -> pa.Array:
        """A field of all rows."""
        column = _column(self._types[name], self._found, self._index_of[name], self._own)
        return take_or_null(column, self._in_all(np.arange(len(column)), -1)) if self._sparse else column

    def columns(self) -> dict[str, pa.Array]:
        return {name: self.column(name) for name in self._types}

    def numbers(self, name: str, null: int) -> NDArray[np.int64]:
        """Numbers, or 0 and 1 for truth values; `null` where there is none."""
        index, type_ = self._index_of[name], self._types[name]
        numbers = self._found.numbers[index]
        valid = self._found.kinds[index] == (BOOLEAN if type_ == "boolean" else NUMBER)
        if type_ == "int":
            valid &= (numbers >= INT32.min) & (numbers <= INT32.max)
        return self._in_all(np.where(valid, numbers, null), null)

    def there(self, name: str) -> NDArray[np.bool_]:
        """Which rows have the field."""
        found: NDArray[np.bool_] = self._in_all(self._found.kinds[self._index_of[name]], ABSENT) != ABSENT
        return found

    def sizes(self, name: str, null: int) -> NDArray[np.int64]:
        """Bytes of texts and of binary values; `null` where there is none."""
        index = self._index_of[name]
        sizes = np.where(self._found.kinds[index] == TEXT, self._found.sizes[index], null)
        return self._in_all(sizes.astype(np.int64), null)

    def inside(self, name: str) -> Values:
        index = self._found.whole_of[self._index_of[name]]
        starts = self._in_all(self._found.whole_at[index], 0)
        return self._values.at(starts, starts + self._in_all(self._found.whole_size[index], 0))

    def of(self, rows: NDArray[np.int64], names: Iterable[str]) -> dict[str, pa.Array]:
        return fields(self._values.rows_at(rows), {name: self._types[name] for name in names})

    def _in_all(self, values: NDArray[np.int64], null: int) -> NDArray[np.int64]:
        """The values of the rows that were read, among all rows."""
        if not self._sparse:
            return values
        every = np.full(len(self.are_there), null, values.dtype)
        every[self._rows] = values
        return every


def fields(column: pa.StructArray | Values, types: Mapping[str, str]) -> dict[str, pa.Array]:
    """The fields of a VARIANT column with these types (see `Fields`)."""
    return Fields(column if isinstance(column, Values) else values_of(column), types).columns()


def inside(values: Values, name: str) -> Values:
    """The values of field `name`."""
    return Fields(values, {}, (name,)).inside(name)


def are_objects(values: Values) -> NDArray[np.bool_]:
    there = values.starts < values.stops
    heads = values.data[np.where(there, values.starts, 0)]
    objects: NDArray[np.bool_] = there & (heads & BASIC_TYPE == OBJECT)
    return objects


def counted(values: Values) -> NDArray[np.int64]:
    """The number of elements of each array; 0 for other values."""
    counts = np.zeros(len(values.starts), np.int64)
    count_elements(values.data, values.starts, values.stops, counts)
    return counts


def elements(values: Values, counts: NDArray[np.int64]) -> Values:
    """The elements of arrays with these `counts`, row by row."""
    begins, ends = np.zeros((2, int(counts.sum())), np.int64)
    read_elements(values.data, values.starts, values.stops, counts, begins, ends)
    return values.rows_at(np.repeat(np.arange(len(counts)), counts)).at(begins, ends)


def texts(values: Values) -> pa.Array:
    """The texts among values; others are null."""
    return read_as(values, ("string",))[1]["string"]


def read_as(values: Values, kinds: Sequence[str]) -> tuple[NDArray[np.uint8], dict[str, pa.Array]]:
    """The kind of each value (of `codec.variant.reading`), and a column per type: its values, else null."""
    found = new_fields([False], len(values.starts))
    read_values(values.data, values.starts, values.stops, found)
    return found.kinds[0], {kind: _column(kind, found, 0, values) for kind in kinds}


def _column(kind: str, found: reading.Fields, k: int, values: Values) -> pa.Array:
    kinds, numbers = found.kinds[k], found.numbers[k]
    if kind != "variant" and not kinds.any():
        return pa.nulls(len(kinds), TYPES[kind])
    if kind in ("string", "binary"):
        data = take_bytes(values.data, numbers, found.sizes[k], kinds == TEXT)
        return to_utf8_escaped(data) if kind == "string" else data
    if kind == "boolean":
        return pa.array(numbers == 1, mask=kinds != BOOLEAN)
    if kind == "timestamp":
        seconds = (kinds == NUMBER) & (numbers <= LAST_SECOND) & (numbers >= FIRST_SECOND)
        return pa.array(np.where(seconds, numbers * MICROS, numbers), mask=~seconds & (kinds != TIME)).cast(TIMESTAMP)
    if kind == "variant":
        at, size = (part[found.whole_of[k]] for part in (found.whole_at, found.whole_size))
        there = size > 0
        whole = take_bytes(values.data, at, size, there, nulls=False)
        metadata_sizes = values.metadata_stops - values.metadata_starts
        metadata = take_bytes(values.metadata, values.metadata_starts, metadata_sizes, there, nulls=False)
        return pa.StructArray.from_arrays([whole, metadata], fields=list(VARIANT), mask=pa.array(~there))
    is_number = kinds == NUMBER
    if kind == "int":
        is_number = is_number & (numbers >= INT32.min) & (numbers <= INT32.max)
    return pa.array(numbers, mask=~is_number).cast(TYPES[kind], safe=False)


def take_bytes(
    wire_bytes: NDArray[np.uint8],
    begins: NDArray[np.int64],
    sizes: NDArray[np.signedinteger],
    valid: NDArray[np.bool_],
    nulls: bool = True,
) -> pa.Array:
    """Binary column of the bytes from `begins` on; null, or without `nulls` empty, where they are not `valid`."""
    sizes = np.where(valid, sizes.astype(np.int64, copy=False), 0)
    offsets = offsets_of(sizes)
    data = np.empty(int(offsets[-1]), np.uint8)
    gather(wire_bytes, np.ascontiguousarray(begins), sizes, data)
    return binary_column(data, offsets, valid if nulls else None)


def to_utf8_escaped(column: pa.Array) -> pa.StringArray:
    """A binary column as text: what is not UTF-8 is escaped (`codec.text`)."""
    wire_bytes, ends = heap_of(column)
    if is_ascii(wire_bytes, ends[0], ends[-1]):
        return column.view(pa.string())
    wire_bytes, ends = Heap(wire_bytes, ends).trimmed()
    ends, escaped = ends[1:], np.empty(len(ends) - 1, np.int64)
    if not escaped_ends(wire_bytes, ends, escaped):
        return column.view(pa.string())
    data = np.empty(int(escaped[-1]), np.uint8)
    escape_all(wire_bytes, ends, data)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return binary_column(data, offsets_of(np.diff(escaped, prepend=0)), valid, pa.string())


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where values of these sizes begin, and the last one ends. Raises OverflowError above 2 GB."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if ends[-1] > INT32.max:
        raise OverflowError(f"{ends[-1]} bytes are too many for one column of a batch")
    return ends.astype(np.int32)


def gathered(parts: pa.Array, sizes: NDArray[np.int64], valid: NDArray[np.bool_]) -> pa.Array:
    """Binary column whose values are `sizes` bytes each of `parts` end to end; null where they are not `valid`."""
    return binary_column(heap_of(parts).trimmed().data, offsets_of(sizes), valid)


def to_hex(column: pa.Array) -> pa.Array:
    """Bytes as lower-case hex; null stays null. Raises OverflowError above 1 GB."""
    data, ends = heap_of(column).trimmed()
    digits = HEX_DIGITS[data].view(np.uint8)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return binary_column(digits, offsets_of(2 * np.diff(ends)), valid, pa.string())


def valid_utf8(column: pa.Array) -> pa.Array:
    """Texts or bytes as text; null if they are not UTF-8. Each distinct value is decoded once."""
    return map_distinct_bytes(_text, pa.string(), column.cast(pa.binary()))


def text_or_hex(column: pa.Array) -> pa.Array:
    """Bytes as text if they are UTF-8, else as lower-case hex; null stays null."""
    text = column.view(pa.string())
    ascii_only = pc.string_is_ascii(text).fill_null(True)
    if pc.all(ascii_only).as_py() is not False:
        return text
    others = pc.invert(ascii_only)
    texts = map_distinct_bytes(lambda data: _text(data) or data.hex(), pa.string(), column.filter(others))
    return pc.replace_with_mask(text, others, texts)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# Hashes of rows over Arrow columns.


def hashed(*columns: pa.Array, seed: int = 0) -> NDArray[np.int64]:
    """A hash of each row over all columns (texts, integers; null is a value)."""
    lanes = new_lanes(len(columns[0]), seed)
    for column in columns:
        present = np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
        if pa.types.is_integer(column.type):
            mix_numbers(as_kernel_array(to_int64(column)), present, lanes)
        else:
            heap = heap_of(column)
            mix_texts(heap.data, heap.ends, present, lanes)
    columns_mixed = np.full(len(lanes), len(columns))
    mix_numbers(as_kernel_array(columns_mixed), np.ones(len(lanes), np.uint8), lanes)  # mixes in the last column
    return in_one_number(lanes)


def in_one_number(lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The two 32-bit halves of each hash (n, 2) as one number."""
    low, high = lanes.T.astype(np.uint64)
    whole: NDArray[np.int64] = (high << np.uint64(32) | low).view(np.int64)
    return whole
