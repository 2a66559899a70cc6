"""Fields of a VARIANT column as Arrow columns: `fields(column, {"queue": "string", "delivery_tag": "bigint"})`.

A field of another type than asked for is null, as is one that is not there. Octets that are not UTF-8 are escaped in a
string (`codec.text`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.cursor import is_ascii
from codec.text import escape_all, escaped_ends
from codec.variant.reading import (
    BOOLEAN,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    Fields,
    count_elements,
    gather,
    new_dictionary_cache,
    new_fields,
    read_elements,
    read_fields,
    read_values,
)
from udfs.arrow.types import TIMESTAMP, VARIANT

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
BASIC_TYPE = 3  # mask of the first octet of a value
# Of the years 1 to 9999: times beyond them SQL and Python cannot say.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
_DIGITS = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint8).reshape(256, 2)


class Heap(NamedTuple):
    """Values of a binary column: octets, and where each begins and the last one ends, int64 (n + 1,)."""

    octets: NDArray[np.uint8]
    ends: NDArray[np.int64]


def heap_of(column: pa.Array) -> Heap:
    """Buffers of a binary or string column; null is nothing."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    octets.flags.writeable = False
    return Heap(octets, ends)


class Values(NamedTuple):
    """VARIANT values where they lie: row i has the octets from `starts[i]` to `stops[i]` (none: it has no value), and a
    dictionary of those of `words`. Rows may share octets."""

    octets: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    words: NDArray[np.uint8]
    words_starts: NDArray[np.int64]
    words_stops: NDArray[np.int64]

    def at(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Values:
        """A value inside each."""
        return self._replace(starts=starts, stops=stops)

    def taken(self, rows: NDArray[np.int64]) -> Values:
        """Those at these places."""
        return Values(self.octets, self[1][rows], self[2][rows], self.words, self[4][rows], self[5][rows])

    def slice(self, begin: int, end: int) -> Values:
        """The rows from `begin` to `end`."""
        return self.taken(np.arange(begin, end))


def values_of(column: pa.StructArray) -> Values:
    """The values of a VARIANT column."""
    value, metadata = heap_of(column.field("value")), heap_of(column.field("metadata"))
    starts, stops = value.ends[:-1], value.ends[1:]
    if column.null_count:
        stops = np.where(column.is_valid().to_numpy(zero_copy_only=False), stops, starts)
    return Values(value.octets, starts, stops, metadata.octets, metadata.ends[:-1], metadata.ends[1:])


def fields(column: pa.StructArray | Values, wanted: Mapping[str, str]) -> dict[str, pa.Array]:
    """The `wanted` fields, name -> 'string' 'binary' 'bigint' 'int' 'boolean' 'timestamp' 'variant',
    of a VARIANT column."""
    values = column if isinstance(column, Values) else values_of(column)
    found = _found(values, wanted)
    return {name: _column(kind, found, k, values) for k, (name, kind) in enumerate(wanted.items())}


def inside(values: Values, name: str) -> Values:
    """The values of field `name`."""
    return fields_and_insides(values, {}, (name,))[1][name]


def fields_and_insides(
    values: Values, wanted: Mapping[str, str], containers: Sequence[str]
) -> tuple[dict[str, pa.Array], dict[str, Values]]:
    """The `wanted` fields as `fields` gives them, and the values of `containers` as `inside` does, in one pass; a name
    may be in both."""
    kinds = {**wanted, **dict.fromkeys(containers, "variant")}
    found = _found(values, kinds)
    columns, insides = {}, {}
    for k, name in enumerate(kinds):
        if name in wanted:
            columns[name] = _column(wanted[name], found, k, values)
        if name in containers:
            at = found.whole_at[found.whole_of[k]]
            insides[name] = values.at(at, at + found.whole_size[found.whole_of[k]])
    return columns, insides


def are_objects(values: Values) -> NDArray[np.bool_]:
    """Which values are objects."""
    there = values.starts < values.stops
    heads = values.octets[np.where(there, values.starts, 0)]
    objects: NDArray[np.bool_] = there & (heads & BASIC_TYPE == OBJECT)
    return objects


def counted(values: Values) -> NDArray[np.int64]:
    """How many elements each array has; what is none has none."""
    counts = np.zeros(len(values.starts), np.int64)
    count_elements(values.octets, values.starts, values.stops, counts)
    return counts


def elements(values: Values, counts: NDArray[np.int64]) -> Values:
    """The elements of arrays, which have so many of them, row after row."""
    begins, ends = np.zeros((2, int(counts.sum())), np.int64)
    read_elements(values.octets, values.starts, values.stops, counts, begins, ends)
    return values.taken(np.repeat(np.arange(len(counts)), counts)).at(begins, ends)


def texts(values: Values) -> pa.Array:
    """The texts among values; null where one is none."""
    return read_as(values, ("string",))[1]["string"]


def read_as(values: Values, kinds: Sequence[str]) -> tuple[NDArray[np.uint8], dict[str, pa.Array]]:
    """What each value is (a kind of `codec.variant.reading`), and those of each of these types, else null."""
    found = new_fields([False], len(values.starts))
    read_values(values.octets, values.starts, values.stops, found)
    return found.kinds[0], {kind: _column(kind, found, 0, values) for kind in kinds}


def _found(values: Values, wanted: Mapping[str, str]) -> Fields:
    names = [name.encode() for name in wanted]
    keys = np.frombuffer(b"".join(names), np.uint8)
    key_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    found = new_fields([kind == "variant" for kind in wanted.values()], len(values.starts))
    if (values.stops > values.starts).any():
        read_fields(*values, keys, key_ends, new_dictionary_cache(), found)
    return found


def _column(kind: str, found: Fields, k: int, values: Values) -> pa.Array:
    kinds, numbers = found.kinds[k], found.numbers[k]
    if kind != "variant" and not kinds.any():
        return pa.nulls(len(kinds), TYPES[kind])
    if kind in ("string", "binary"):
        octets = taken(values.octets, numbers, found.sizes[k], kinds == TEXT)
        return texts_of(octets) if kind == "string" else octets
    if kind == "boolean":
        return pa.array(numbers == 1, mask=kinds != BOOLEAN)
    if kind == "timestamp":
        seconds = (kinds == NUMBER) & (numbers <= LAST_SECOND) & (numbers >= FIRST_SECOND)
        return pa.array(np.where(seconds, numbers * MICROS, numbers), mask=~seconds & (kinds != TIME)).cast(TIMESTAMP)
    if kind == "variant":
        at, size = (part[found.whole_of[k]] for part in (found.whole_at, found.whole_size))
        there = size > 0
        whole = taken(values.octets, at, size, there, nulls=False)
        words_sizes = values.words_stops - values.words_starts
        words = taken(values.words, values.words_starts, words_sizes, there, nulls=False)
        return pa.StructArray.from_arrays([whole, words], fields=list(VARIANT), mask=pa.array(~there))
    is_number = kinds == NUMBER
    if kind == "int":
        is_number = is_number & (numbers >= INT32.min) & (numbers <= INT32.max)
    return pa.array(numbers, mask=~is_number).cast(TYPES[kind], safe=False)


def taken(
    octets: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.signedinteger],
    valid: NDArray[np.bool_],
    nulls: bool = True,
) -> pa.Array:
    """Binary column of the octets at `places`; null, or without `nulls` empty, where they are not `valid`."""
    sizes = np.where(valid, sizes.astype(np.int64, copy=False), 0)
    offsets = offsets_of(sizes)
    data = np.empty(int(offsets[-1]), np.uint8)
    gather(octets, np.ascontiguousarray(places), sizes, data)
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(pa.binary(), len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def texts_of(column: pa.Array) -> pa.StringArray:
    """A binary column as text: what is not UTF-8 is escaped (`codec.text`)."""
    octets, ends = heap_of(column)
    if is_ascii(octets, ends[0], ends[-1]):
        return column.view(pa.string())
    octets, ends, shown = octets[ends[0] : ends[-1]], ends[1:] - ends[0], np.empty(len(ends) - 1, np.int64)
    if not escaped_ends(octets, ends, shown):
        return column.view(pa.string())
    data = np.empty(int(shown[-1]), np.uint8)
    escape_all(octets, ends, data)
    offsets = offsets_of(np.diff(shown, prepend=0))
    buffers = [_validity(column), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(column), buffers)


def _validity(column: pa.Array) -> pa.Buffer:
    """The validity bitmap of a column, from its first row on."""
    return pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where values of these sizes begin, and the last one ends. Raises OverflowError above 2 GB."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if ends[-1] > INT32.max:
        raise OverflowError(f"{ends[-1]} bytes are too many for one column of a batch")
    return ends.astype(np.int32)


def gathered(parts: pa.Array, sizes: NDArray[np.int64], valid: NDArray[np.bool_]) -> pa.Array:
    """Binary column whose values are `sizes` octets each of `parts` end to end; null where they are not `valid`."""
    heap = heap_of(parts)
    offsets = offsets_of(sizes)
    data = heap.octets[heap.ends[0] : heap.ends[-1]]
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def hexed(column: pa.Array) -> pa.Array:
    """Octets as lower-case hex; null stays null. Raises OverflowError above 1 GB."""
    octets, ends = heap_of(column)
    digits = _DIGITS[octets[ends[0] : ends[-1]]].reshape(-1)
    offsets = offsets_of(2 * np.diff(ends))
    buffers = [_validity(column), pa.py_buffer(offsets), pa.py_buffer(digits.tobytes())]
    return pa.Array.from_buffers(pa.string(), len(column), buffers)


def valid_utf8(column: pa.Array) -> pa.Array:
    """Texts or octets as text; null where they are no UTF-8. Costs what distinct values there are."""
    encoded = column.cast(pa.binary()).dictionary_encode()
    return pa.array([_text(octets) for octets in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def text_or_hex(column: pa.Array) -> pa.Array:
    """Octets as UTF-8 where they are, else as lower-case hex; null stays null."""
    text = column.view(pa.string())
    plain = pc.string_is_ascii(text).fill_null(True)
    if pc.all(plain).as_py() is not False:
        return text
    others = pc.invert(plain)
    encoded = column.filter(others).dictionary_encode()
    words = [_text(octets) or octets.hex() for octets in encoded.dictionary.to_pylist()]
    return pc.replace_with_mask(text, others, pa.array(words, pa.string()).take(encoded.indices))


def _text(octets: bytes) -> str | None:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None
