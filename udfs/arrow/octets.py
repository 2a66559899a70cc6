"""Columns of octets as text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.fields import heap_of

_DIGITS = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint8).reshape(256, 2)


def hexed(column: pa.Array) -> pa.Array:
    """Octets as lower-case hex; null stays null. Raises OverflowError above 1 GB."""
    heap = heap_of(column)
    digits = _DIGITS[heap.octets[heap.ends[0] : heap.ends[-1]]].reshape(-1)
    ends: NDArray[np.int64] = 2 * (heap.ends - heap.ends[0])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]} bytes are too many for one column of a batch")
    valid = None
    if column.null_count:
        valid = pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(digits.tobytes())]
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
