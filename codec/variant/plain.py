"""VARIANT to and from Python objects, for small facts and for people; not for the hot path."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np

from codec.variant.containers import begin_array, begin_object, element, end_array, end_object, key
from codec.variant.dictionary import finish
from codec.variant.scalars import (
    put_binary,
    put_bool,
    put_f64,
    put_int,
    put_null,
    put_string,
    put_timestamp_us,
    put_u64,
)
from codec.variant.writer import FULL, METADATA, VALUE, Writer, begin, enlarge, new_writer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)


def encode(thing: Any) -> tuple[bytes, bytes]:
    """(value, metadata) of None, bool, int (up to 64 bits), float, str, bytes, datetime (aware), list, tuple, dict.

    TypeError for anything else, OverflowError for larger integers, ValueError when it is above the limits of a value.
    """
    w = new_writer()
    while True:
        begin(w)
        _put(w, thing)
        code = finish(w)
        if code != FULL:
            break
        w = enlarge(w)
    if code:
        raise ValueError("too large or too deeply nested for a VARIANT value")
    return bytes(w.value[: int(w.positions[VALUE])]), bytes(w.metadata[: int(w.positions[METADATA])])


def _octets(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def _put(w: Writer, thing: Any) -> None:
    if thing is None:
        put_null(w)
    elif isinstance(thing, bool):
        put_bool(w, thing)
    elif isinstance(thing, int):
        _put_integer(w, thing)
    elif isinstance(thing, float):
        put_f64(w, struct.unpack("<q", struct.pack("<d", thing))[0])
    elif isinstance(thing, str):
        text = thing.encode("utf-8", "backslashreplace")
        put_string(w, _octets(text), 0, len(text))
    elif isinstance(thing, bytes):
        put_binary(w, _octets(thing), 0, len(thing))
    elif isinstance(thing, datetime):
        put_timestamp_us(w, (thing - _EPOCH) // timedelta(microseconds=1))
    elif isinstance(thing, list | tuple):
        begin_array(w)
        for item in thing:
            element(w)
            _put(w, item)
        end_array(w)
    elif isinstance(thing, dict):
        begin_object(w)
        for name, item in thing.items():
            text = name.encode("utf-8", "backslashreplace")
            key(w, _octets(text), 0, len(text))
            _put(w, item)
        end_object(w)
    else:
        raise TypeError(f"no VARIANT type for {type(thing).__name__}")


def _put_integer(w: Writer, number: int) -> None:
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"{number} does not fit 64 bits")
    put_u64(w, number - (1 << 64)) if number >= 1 << 63 else put_int(w, number)


def decode(value: bytes, metadata: bytes) -> Any:
    """The Python object of a VARIANT value: dict, list, str, int, float, bool, None, bytes, Decimal, datetime."""
    width = (metadata[0] >> 6) + 1
    count = _le(metadata, 1, width)
    offsets = [_le(metadata, 1 + (i + 1) * width, width) for i in range(count + 1)]
    text = metadata[1 + (count + 2) * width :]
    return _decode(value, 0, [text[a:b].decode() for a, b in pairwise(offsets)])


def _le(data: bytes, at: int, size: int, signed: bool = False) -> int:
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def _decode(value: bytes, at: int, keys: list[str]) -> Any:
    basic, info = value[at] & 3, value[at] >> 2
    if basic == _SHORT_STRING:
        return value[at + 1 : at + 1 + info].decode()
    if basic == _PRIMITIVE:
        return _decode_primitive(value, at + 1, info)
    id_width = ((info >> 2) & 3) + 1 if basic == _OBJECT else 0
    offset_width = (info & 3) + 1
    count_width = 4 if info >> (4 if basic == _OBJECT else 2) & 1 else 1
    count = _le(value, at + 1, count_width)
    ids = at + 1 + count_width
    offsets = ids + count * id_width
    origin = offsets + (count + 1) * offset_width
    items = [_decode(value, origin + _le(value, offsets + i * offset_width, offset_width), keys) for i in range(count)]
    if basic == _ARRAY:
        return items
    return {keys[_le(value, ids + i * id_width, id_width)]: item for i, item in enumerate(items)}


def _decode_primitive(value: bytes, at: int, kind: int) -> Any:
    if kind < 3:
        return (None, True, False)[kind]
    if kind < 7:
        return _le(value, at, 1 << (kind - 3), signed=True)
    if kind in (7, 14):
        return struct.unpack_from("<d" if kind == 7 else "<f", value, at)[0]
    if kind in (8, 9, 10):
        unscaled = _le(value, at + 1, 4 << (kind - 8), signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -value[at]))
    if kind == 12:
        return _EPOCH + timedelta(microseconds=_le(value, at, 8, signed=True))
    octets = value[at + 4 : at + 4 + _le(value, at, 4)]
    return octets.decode() if kind == 16 else octets
