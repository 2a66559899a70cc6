"""Arrays, Arrow tables and plain values as octets, by name; read again only by a release with the same layout.

octets = packed({"events": array, "rows": table, "count": 3}, layout)
parts = unpacked(octets, layout)
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from codec.amqp.connections.state import StateError

MAGIC = b"WHST"
_HEAD = struct.Struct(">4sH8sI")  # magic, layout version, digest of the layout, CRC-32 of what follows
Parts = dict[str, Any]


def digest(layout: Any) -> bytes:
    """Of what the meaning of the parts depends on."""
    return hashlib.sha256(json.dumps(layout, default=repr).encode()).digest()[:8]


def packed(parts: Mapping[str, Any], version: int, layout: bytes) -> bytes:
    """The parts as octets."""
    kinds, octets = {}, []
    for name, part in parts.items():
        if isinstance(part, np.ndarray):
            kinds[name] = part.dtype.descr if part.dtype.names else part.dtype.str
            data = part.tobytes()
        elif isinstance(part, pa.Table):
            kinds[name], data = "table", _stream(part)
        elif isinstance(part, bytes):
            kinds[name], data = "bytes", part
        else:
            kinds[name], data = "value", json.dumps(part).encode()
        octets.append(data)
    head = json.dumps([kinds, [len(data) for data in octets]], separators=(",", ":")).encode()
    body = zlib.compress(b"".join([len(head).to_bytes(4, "big"), head, *octets]), 1)
    return _HEAD.pack(MAGIC, version, layout, zlib.crc32(body)) + body


def unpacked(octets: bytes, version: int, layout: bytes) -> Parts:
    """What `packed` was given; `StateError` for octets of another layout, and damaged ones."""
    if len(octets) < _HEAD.size or octets[:4] != MAGIC:
        raise StateError("not the state of a connection")
    _, theirs, their_layout, checksum = _HEAD.unpack_from(octets)
    if (theirs, their_layout) != (version, layout):
        raise StateError(
            f"the state of a connection has layout {theirs}-{their_layout.hex()}, this release reads "
            f"{version}-{layout.hex()} only"
        )
    if zlib.crc32(octets[_HEAD.size :]) != checksum:
        raise StateError("the state of a connection is damaged: its checksum differs")
    body = zlib.decompress(octets[_HEAD.size :])
    at = 4 + int.from_bytes(body[:4], "big")
    kinds, sizes = json.loads(body[4:at])
    parts: Parts = {}
    for (name, kind), size in zip(kinds.items(), sizes, strict=True):
        parts[name] = _part(kind, body[at : at + size])
        at += size
    return parts


def _part(kind: Any, data: bytes) -> Any:
    if kind == "table":
        return pa.ipc.open_stream(data).read_all()
    if kind == "bytes":
        return data
    if kind == "value":
        return json.loads(data)
    return np.frombuffer(data, np.dtype([tuple(field) for field in kind] if isinstance(kind, list) else kind))


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets
