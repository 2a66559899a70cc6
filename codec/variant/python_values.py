"""VARIANT from and to Python objects. Cost: Python calls for each value; not for the hot path."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

from codec.compiler.limits import LIMITS
from codec.variant import scalars as S

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_VERSION = 1  # of the encoding of metadata
_INTEGERS = {size: range(-(1 << 8 * size - 1), 1 << 8 * size - 1) for size in (1, 2, 4, 8)}
_UNSIGNED = range(1 << 64)
_DIGITS = S.DECIMAL_SCALE  # of a DECIMAL, before and after its point
_MANY = 255  # above this, the number of elements has four bytes

Keys = dict[bytes, int]


def encode(thing: Any) -> tuple[bytes, bytes]:
    """(value, metadata) of None, bool, int (up to 64 bits), float, Decimal (up to 38 digits), str, bytes, datetime
    (aware), list, tuple, dict.

    Keys are str. Raises TypeError for other types (also for subclasses), OverflowError for larger integers, ValueError
    for a value above the limits.
    """
    keys: Keys = {}
    value = _encoded(thing, keys, LIMITS.nesting_depth + 8)
    ends = list(accumulate(map(len, keys), initial=0))
    width = _width(max(ends[-1], len(keys)))
    numbers = b"".join(number.to_bytes(width, "little") for number in (len(keys), *ends))
    metadata = bytes([_VERSION | (width - 1) << 6]) + numbers + b"".join(keys)
    if max(len(value), len(metadata)) > LIMITS.variant_bytes:
        raise ValueError("too large for a VARIANT value")
    return value, metadata


def _encoded(thing: Any, keys: Keys, depth: int) -> bytes:
    """A value with up to `depth` nested containers; new keys are added to `keys`."""
    encoder = _ENCODERS.get(type(thing))
    if encoder is not None:
        return encoder(thing)
    if not isinstance(thing, dict | list | tuple):
        raise TypeError(f"no VARIANT type for {type(thing).__name__}")
    if not depth:
        raise ValueError("too deeply nested for a VARIANT value")
    if not isinstance(thing, dict):
        return _container(_ARRAY, 2, b"", [_encoded(item, keys, depth - 1) for item in thing])
    items = {}
    for name, item in thing.items():
        text = name.encode("utf-8", "backslashreplace")
        keys.setdefault(text, len(keys))
        items[text] = _encoded(item, keys, depth - 1)
    return _object(items, keys)


def _object(items: dict[bytes, bytes], keys: Keys) -> bytes:
    order = sorted(items)
    numbers = [keys[text] for text in order]
    width = _width(max(numbers, default=0))
    starts = dict(zip(items, accumulate(map(len, items.values()), initial=0), strict=False))
    ids = b"".join(number.to_bytes(width, "little") for number in numbers)
    return _container(_OBJECT, 4, ids, list(items.values()), [starts[text] for text in order], width)


def _container(
    basic: int, size_bit: int, ids: bytes, items: list[bytes], starts: list[int] | None = None, id_width: int = 1
) -> bytes:
    """An object or array: the number of `items`, `ids` of their keys, their offsets, and the items. `size_bit` of the
    head is set for more than 255 items."""
    ends = list(accumulate(map(len, items), initial=0))
    starts = ends[:-1] if starts is None else starts
    width = _width(ends[-1])
    many = len(items) > _MANY
    widths = width - 1 | (id_width - 1) << 2
    head = bytes([(widths | many << size_bit) << 2 | basic]) + len(items).to_bytes(4 if many else 1, "little")
    offsets = b"".join(offset.to_bytes(width, "little") for offset in (*starts, ends[-1]))
    return head + ids + offsets + b"".join(items)


def _width(number: int) -> int:
    """Bytes that hold an unsigned number."""
    return max(1, (number.bit_length() + 7) // 8)


def _integer(number: int) -> bytes:
    for kind, (size, its) in enumerate(_INTEGERS.items(), start=S.INT8):
        if number in its:
            return bytes([kind << 2]) + number.to_bytes(size, "little", signed=True)
    if number not in _UNSIGNED:
        raise OverflowError(f"{number} does not fit 64 bits")
    return bytes([S.DECIMAL16 << 2, 0]) + number.to_bytes(16, "little")


def _decimal(number: Decimal) -> bytes:
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or not -_DIGITS <= exponent <= 0 or len(digits) > _DIGITS:
        raise OverflowError(f"{number} does not fit {_DIGITS} digits")
    unscaled = int("".join(map(str, digits)))
    unscaled = -unscaled if sign else unscaled
    kinds = ((S.DECIMAL4, 4, 9), (S.DECIMAL8, 8, 18), (S.DECIMAL16, 16, _DIGITS))
    kind, size = next((kind, size) for kind, size, most in kinds if max(-exponent, len(str(abs(unscaled)))) <= most)
    return bytes([kind << 2, -exponent]) + unscaled.to_bytes(size, "little", signed=True)


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= S.SHORT_STRING_BYTES:
        return bytes([len(data) << 2 | _SHORT_STRING]) + data
    return _sized(S.STRING, data)


def _sized(kind: int, data: bytes) -> bytes:
    return bytes([kind << 2]) + len(data).to_bytes(4, "little") + data


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: bytes([S.NULL << 2]),
    bool: lambda truth: bytes([(S.TRUE if truth else S.FALSE) << 2]),
    int: _integer,
    float: lambda number: bytes([S.DOUBLE << 2]) + struct.pack("<d", number),
    Decimal: _decimal,
    str: _text,
    bytes: lambda data: _sized(S.BINARY, data),
    datetime: lambda moment: (
        bytes([S.TIMESTAMP << 2]) + ((moment - _EPOCH) // _MICROSECOND).to_bytes(8, "little", signed=True)
    ),
}


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
    data = value[at + 4 : at + 4 + _le(value, at, 4)]
    return data.decode() if kind == 16 else data
