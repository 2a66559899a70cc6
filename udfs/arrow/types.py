"""Arrow types of columns, batches with the columns of a schema, binary columns, and VARIANT columns.

Spark returns a null VARIANT as a null struct with null children, although it declares them as never null; pyarrow will
not cast that, not even to its own type (`DataFrame.toArrow` does). So `as_structs` makes Spark return ordinary structs
of the same bytes, and `as_variants` makes VARIANT of them again, with empty bytes where a struct is null.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec import tables
from codec.errors import WirehareError
from codec.tables import ListOf, MapOf, Table, Type
from codec.text import escaped

METADATA = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False), METADATA])
TIMESTAMP = pa.timestamp("us", tz="UTC")

ARROW_TYPES: dict[str, pa.DataType] = {
    tables.LONG: pa.int64(),
    tables.INT: pa.int32(),
    tables.STRING: pa.string(),
    tables.BOOLEAN: pa.bool_(),
    tables.BINARY: pa.binary(),
    tables.TIMESTAMP: TIMESTAMP,
    tables.DATE: pa.date32(),
    tables.VARIANT: VARIANT,
}
PARTS = ("value", "metadata")  # of a VARIANT


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a type of columns."""
    if isinstance(kind, MapOf):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, ListOf):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, Table):
        return pa.struct([(column.name, arrow_type(column.type)) for column in kind])
    return ARROW_TYPES[kind]


def arrow_schema(table: Table) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in table])


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark writes one, of columns with simple types."""
    names = {arrow: kind for kind, arrow in ARROW_TYPES.items()}
    return ", ".join(f"{field.name} {names[field.type]}" for field in schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """`count` nulls; the children of a VARIANT are never null."""
    if kind != VARIANT:
        return pa.nulls(count, kind)
    children = [pa.repeat(pa.scalar(b"", pa.binary()), count)] * 2
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.repeat(True, count))


class ColumnError(WirehareError, ValueError):
    """Columns that are not those of their table."""


def to_schema(columns: Mapping[str, pa.Array], schema: pa.Schema, absent: Collection[str] = ()) -> pa.RecordBatch:
    """`columns` in the order and of the types of `schema`; those `absent` are null. Dictionary-encoded texts stay so.

    Raises ColumnError for a missing or unknown column.
    """
    known, twice = set(columns) | set(absent), set(columns) & set(absent)
    if known != set(schema.names) or twice:
        missing, unknown = sorted(set(schema.names) - known), sorted(known - set(schema.names))
        raise ColumnError(f"columns missing: {missing}, not in the table: {unknown}, not absent: {sorted(twice)}")
    arrays = {field.name: cast_column(columns[field.name], field.type) for field in schema if field.name in columns}
    return with_null_columns(arrays, schema)


def binary_column(
    data: Any,
    offsets: NDArray[np.signedinteger],
    valid: NDArray[np.bool_] | None = None,
    kind: pa.DataType | None = None,
) -> pa.Array:
    """A BINARY column (or one of `kind`) over the buffer `bytes`, which is not copied: row i has the bytes from
    `offsets[i]` to `offsets[i + 1]`; null where not `valid`."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(offsets) - 1, buffers)


def with_null_columns(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """`columns` in the order of `schema`; the others are null."""
    count = len(next(iter(columns.values())))
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def cast_to(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """`columns` in the order and exactly of the types of `schema`; the others are null."""
    kinds = {field.name: field.type for field in schema}
    own = {name: cast_column(columns[name], kind, False) for name, kind in kinds.items() if name in columns}
    return pa.RecordBatch.from_arrays(with_null_columns(own, schema).columns, schema=schema)


def cast_column(column: pa.Array, kind: pa.DataType, or_encoded: bool = True) -> pa.Array:
    """The column as of type `kind`; `or_encoded`: dictionary-encoded texts may stay so."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == kind or (or_encoded and pa.types.is_dictionary(column.type) and column.type.value_type == kind):
        return column
    return without_null_children(column) if kind == VARIANT else column.cast(kind)


def without_null_children(column: pa.StructArray) -> pa.StructArray:
    """A VARIANT column without null children, which Spark makes where a VARIANT is null."""
    parts = [column.field(part.name).fill_null(b"") for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=column.is_null())


def variants(data: Sequence[tuple[bytes, bytes]]) -> pa.StructArray:
    """A VARIANT column of values and metadata, as `codec.variant.encode` gives them; null where the value is empty."""
    parts = [pa.array([each[at] for each in data], pa.binary()) for at in (0, 1)]
    mask = pa.array([not value for value, _ in data], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=mask)


def variant_columns(table: Table) -> list[int]:
    return [at for at, column in enumerate(table) if column.type == tables.VARIANT]


def as_structs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: VARIANT columns as structs whose fields may be null."""
    for batch in batches:
        columns = [_as_struct(array) if _is_variant(array.type) else array for array in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def as_variants(table: pa.Table, columns: list[int]) -> pa.Table:
    """Structs of value and metadata in these columns -> VARIANT."""
    for at in columns:
        chunks = [without_null_children(chunk) for chunk in table.column(at).chunks]
        field = pa.field(table.schema.names[at], VARIANT)
        table = table.set_column(at, field, pa.chunked_array(chunks, VARIANT))
    return table


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or kind.num_fields != len(PARTS):
        return False
    return any((kind.field(at).metadata or {}).get(b"variant") == b"true" for at in range(kind.num_fields))


def _as_struct(array: pa.StructArray) -> pa.StructArray:
    children = [array.field(name) for name in PARTS]
    return pa.StructArray.from_arrays(children, names=PARTS, mask=array.is_null())


# Dictionary-encoded texts: numbers that kernels have for texts become dictionary indices, without a copy per row.


FEW_TEXTS = 64
MOST_TEXTS = 1 << 16  # remembered for later connections


class TextTable(NamedTuple):
    """Texts by number. `texts`: each distinct one once; `indices` int32: index in `texts` by number, the last entry for
    number -1; -1: null."""

    texts: pa.StringArray
    indices: NDArray[np.int32]

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> TextTable:
        """Number n stands for `texts[n]`."""
        encoded = pa.array([*texts, None], pa.string()).dictionary_encode()
        return cls(encoded.dictionary, encoded.indices.fill_null(-1).to_numpy())

    def column(self, numbers: NDArray[np.int64]) -> pa.DictionaryArray:
        """The texts of `numbers`, dictionary-encoded; -1 is null."""
        return pa.DictionaryArray.from_arrays(nullable(self.indices[numbers]), self.texts)


def missing(values: NDArray[np.signedinteger]) -> NDArray[np.bool_] | None:
    """Where values are negative, which means null; None: nowhere."""
    negative = values < 0
    return negative if negative.any() else None


def nullable(values: NDArray[np.signedinteger]) -> pa.Array:
    """A column of integers; negative ones are null."""
    return pa.array(values, mask=missing(values))


def map_distinct(
    function: Callable[[Any], Any], keys: NDArray[Any], kind: pa.DataType, where: NDArray[np.bool_] | None = None
) -> pa.Array:
    """`function(key)` for each of `keys` (int64, or rows of them), called once for each distinct key; null elsewhere
    than `where`."""
    mask = np.ones(len(keys), np.bool_) if where is None else where
    if not mask.any():
        return pa.nulls(len(keys), kind)
    distinct, index = np.unique(keys[mask], axis=0 if keys.ndim > 1 else None, return_inverse=True)
    indices = np.full(len(keys), -1)
    indices[mask] = index.reshape(-1)
    return pa.array([function(key) for key in distinct.tolist()], kind).take(nullable(indices))


def map_distinct_bytes(function: Callable[..., Any], kind: pa.DataType, *columns: pa.Array) -> pa.Array:
    """`function` of the values of each row, called once for each distinct row; null where one of `columns` is null."""
    codes = columns[0].dictionary_encode().indices
    for column in columns[1:]:
        encoded = column.dictionary_encode()
        # Numbers stay below rows², however many columns follow.
        number = pc.add(pc.multiply(codes.cast(pa.int64()), len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        codes = number.dictionary_encode().indices
    distinct, first = np.unique(codes.fill_null(-1), return_index=True)
    indices = pa.array(first[distinct >= 0])
    rows = zip(*(column.take(indices).to_pylist() for column in columns), strict=True)
    return pa.array([function(*row) for row in rows], kind).take(codes)


class Numbers:
    """Texts seen so far, numbered from 1; 0 is null."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = list(texts)
        self.numbers = {text: number for number, text in enumerate(self.texts, start=1)}

    def of(self, column: pa.Array) -> NDArray[np.int64]:
        """The number of each text; not writeable, as `integers`."""
        if column.null_count == len(column):
            nothing = np.zeros(len(column), np.int64)
            nothing.flags.writeable = False
            return nothing
        encoded = column.dictionary_encode()
        # Spark passes bytes from the wire on that are not UTF-8.
        data = encoded.dictionary.cast(pa.binary()).to_pylist()
        numbers = self.ids_for(escaped(text) for text in data)
        found: NDArray[np.int64] = np.array([0, *numbers])[encoded.indices.fill_null(-1).to_numpy() + 1]
        found.flags.writeable = False
        return found

    def ids_for(self, texts: Iterable[str]) -> list[int]:
        return [self._number(text) for text in texts]

    def _number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.texts) + 1)
        if number > len(self.texts):
            self.texts.append(text)
        return number

    def column(self, numbers: NDArray[np.int64]) -> pa.Array:
        if len(self.texts) <= FEW_TEXTS:
            return pa.array([None, *self.texts], pa.string()).take(pa.array(numbers))
        # Only the texts of this batch: all texts seen so far would be too many.
        used = np.zeros(len(self.texts) + 1, np.bool_)
        used[numbers] = True
        own = [None, *(self.texts[number - 1] for number in np.flatnonzero(used[1:]) + 1)]
        used[0] = True
        return pa.array(own, pa.string()).take(pa.array((np.cumsum(used) - 1)[numbers]))
