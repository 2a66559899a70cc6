"""VARIANT values of Python objects, written by the kernels one call after the other."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from codec import variant as v
from codec.variant.writer import FULL, METADATA, VALUE, Writer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def written(thing: Any) -> tuple[bytes, bytes]:
    """(value, metadata). ValueError when it is above the limits of a value."""
    w = v.new_writer()
    while True:
        v.begin(w)
        put(w, thing)
        code = v.finish(w)
        if code != FULL:
            break
        w = v.enlarge(w)
    if code:
        raise ValueError(f"code {code}, no VARIANT value")
    return bytes(w.value[: int(w.positions[VALUE])]), bytes(w.metadata[: int(w.positions[METADATA])])


def raw_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def put(w: Writer, thing: Any) -> None:
    if isinstance(thing, dict):
        v.begin_object(w)
        for name, item in thing.items():
            text = name.encode("utf-8", "backslashreplace")
            v.key(w, raw_bytes(text), 0, len(text))
            put(w, item)
        v.end_object(w)
    elif isinstance(thing, list | tuple):
        v.begin_array(w)
        for item in thing:
            v.element(w)
            put(w, item)
        v.end_array(w)
    else:
        put_scalar(w, thing)


def put_scalar(w: Writer, thing: Any) -> None:
    match thing:
        case None:
            v.put_null(w)
        case bool():
            v.put_bool(w, thing)
        case int():
            v.put_u64(w, thing - (1 << 64)) if thing >= 1 << 63 else v.put_int(w, thing)
        case float():
            v.put_f64(w, struct.unpack("<q", struct.pack("<d", thing))[0])
        case str():
            text = thing.encode("utf-8", "backslashreplace")
            v.put_string(w, raw_bytes(text), 0, len(text))
        case bytes():
            v.put_binary(w, raw_bytes(thing), 0, len(thing))
        case datetime():
            v.put_timestamp_us(w, (thing - EPOCH) // timedelta(microseconds=1))
