"""Columns in the form that the codec takes: octets and offsets of a BINARY column, version codes of a STRING column."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.amqp.versions import VERSIONS
from udfs.arrow.fields import Heap, heap_of

T = TypeVar("T")
CODES = {version: code for code, version in enumerate(VERSIONS) if version}


def octets_of(column: pa.Array) -> Heap:
    """The rows of a BINARY (or STRING) column, null ones empty; copied, since the codec's kernels are compiled for
    writable octets."""
    if column.null_count:
        column = pc.fill_null(column.cast(pa.binary()), b"")
    elif column.type != pa.binary():
        column = column.cast(pa.binary())
    if not len(column):
        return Heap(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    octets, ends = heap_of(column).trimmed()
    return Heap(octets.copy(), ends)


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
        parts, places = [], []
        for name, code in zip(distinct, codes, strict=True):
            rows = np.flatnonzero(pc.equal(versions, name).fill_null(False).to_numpy(zero_copy_only=False))
            parts.append(decode(code, *(column.take(pa.array(rows)) for column in columns)))
            places.append(rows)
        back = np.full(len(versions), -1)
        back[np.concatenate(places)] = np.arange(sum(map(len, places)))
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


def joined(parts: Iterator[pa.Array], kind: pa.DataType) -> pa.Array:
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
