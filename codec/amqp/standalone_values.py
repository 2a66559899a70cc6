"""Standalone values: a column of field tables, or of values of AMQP 1.0, to VARIANT.

Kernels write one value after the other into the heaps of a writer, and where each ended into `ends`. Octets that are
not exactly one value write nothing. They stop at the value for which the writer has no room, to be called again from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import put_nested
from codec.amqp.classic.tables import classic_tables
from codec.amqp.decoder import HEAP_BYTES
from codec.amqp.v1_0.scalars import new_scratch
from codec.amqp.v1_0.tables import described_tables
from codec.amqp.v1_0.values import decode_value
from codec.compiler.kernel import inlined, kernel
from codec.cursor import u32
from codec.variant import FULL, METADATA, OK, VALUE, Writer, begin, enlarge, finish, new_writer, rollback
from codec.variant.writer import copy_bytes

LENGTH = 4  # octets of the size before a field table
TABLE = np.int64(K.TABLE)  # numpy integers: see `codec.amqp.v1_0.tables.WORDS`
NO_COMPOSITE = np.int64(-1)
FIRST_KEY = np.int64(0)


@inlined
def _end(w, whole, ends):
    """End a value that is to be kept if it is `whole`: False when it must be written again with more room."""
    code = finish(w)
    if code == FULL:
        rollback(w)
        return False
    if code != OK or not whole:
        rollback(w)
    ends[0] = w.positions[VALUE]
    ends[1] = w.positions[METADATA]
    return True


@kernel
def put_tables(octets, offsets, first, t, version, w, ends):
    """Field tables (0-8 to 0-9-1), each with its length before it: the index of the first without room, or their
    number."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        begin(w)
        whole = u32(octets, start, end) == end - start - LENGTH
        if whole:
            code, _ = put_nested(w, octets, start + LENGTH, end, TABLE, t.tag_kind[version])
            whole = code == OK
        if not _end(w, whole, ends[i]):
            return i
    return len(offsets) - 1


@kernel
def put_values(octets, offsets, first, t, v, s, w, ends):
    """`put_tables` for values of AMQP 1.0, whatever they are."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        begin(w)
        at, flaws = decode_value(w, octets, start, end, t, v, s, v.word_set, NO_COMPOSITE, FIRST_KEY)
        if not _end(w, at == end and flaws == 0, ends[i]):
            return i
    return len(offsets) - 1


@kernel
def only_field(value, ends, out, out_ends):
    """From objects of one field, the field: they end at `ends` in the heap `value`, the fields at `out_ends[:, 0]` in
    `out`. Of others nothing.

    (Variant Binary Encoding, object: header octet, number of fields, their keys, offsets of them and of the end.)
    """
    start, at = 0, 0
    for i in range(len(ends)):
        end = int(ends[i])
        if end - start > 1 and value[start + 1] == 1:
            header = int(value[start]) >> 2
            inside = start + 2 + ((header >> 2) & 3) + 1 + 2 * ((header & 3) + 1)
            copy_bytes(out, at, value, inside, end)
            at += end - inside
        out_ends[i, 0] = at
        start = end


class ValueDecoder:
    """Decodes standalone values. Not for two threads at a time."""

    def __init__(self) -> None:
        self.writer: Writer = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.scratch = new_scratch()

    def tables(
        self, octets: NDArray[np.uint8], offsets: NDArray[np.int64], version: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]]:
        """Field tables `octets[offsets[i]:offsets[i + 1]]` of a VERSIONS code of the classic family, in batches of
        (values, metadata, ends of both int64 (n, 2)): views, valid until the next."""
        return self._batches(put_tables, octets, offsets, classic_tables(), version)

    def values(
        self, octets: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]]:
        """`tables` for values of AMQP 1.0."""
        return self._batches(put_values, octets, offsets, *described_tables(), self.scratch)

    def _batches(
        self, put: Callable[..., int], octets: NDArray[np.uint8], offsets: NDArray[np.int64], *tables: Any
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]]:
        first, ends = 0, np.zeros((len(offsets) - 1, 2), np.int64)
        while first < len(offsets) - 1:
            w = self.writer
            w.positions[VALUE] = w.positions[METADATA] = 0
            stop = int(put(octets, offsets, first, *tables, w, ends))
            if stop == first:
                self.writer = enlarge(w)
                continue
            yield w.value[: w.positions[VALUE]], w.metadata[: w.positions[METADATA]], ends[first:stop]
            first = stop
