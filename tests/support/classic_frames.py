"""Frames of 0-8, 0-9 and 0-9-1 by an encoder of the tests' own, which knows layouts only from the fact tables.

    method("0-9-1", "basic.ack", channel=1, delivery_tag=7)

Arguments by name, '_' for '-'; those not given are 0, empty, or false. Tables: {key: str, int, bool, dict, list, None}.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from classic_support import fact_table, long_prefixed, pack_bits, shortstr

FRAME_END = b"\xce"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
WIDTHS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q", "timestamp": ">Q"}


@cache
def of_name(version: str, name: str) -> tuple[int, dict[str, Any]]:
    """Class number and description of the method 'class.method'."""
    class_name, method_name = name.split(".")
    for of_class in fact_table(version)["classes"]:
        for described in of_class["methods"]:
            if (of_class["name"], described["name"]) == (class_name, method_name):
                return of_class["index"], described
    raise KeyError(f"{version} has no {name}")


def has_field(version: str, name: str, field: str) -> bool:
    return any(described["name"] == field for described in of_name(version, name)[1]["fields"])


def raw_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def table(entries: Mapping[Any, Any]) -> bytes:
    return long_prefixed(b"".join(shortstr(raw_bytes(key)) + tagged(value) for key, value in entries.items()))


def tagged(value: Any) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"I" + struct.pack(">i", value)
    if isinstance(value, dict):
        return b"F" + table(value)
    if isinstance(value, list):
        return b"A" + long_prefixed(b"".join(map(tagged, value)))
    return b"S" + long_prefixed(raw_bytes(value))


def field_bytes(kind: str, value: Any) -> bytes:
    if kind in WIDTHS:
        return struct.pack(WIDTHS[kind], value or 0)
    if kind == "table":
        return value if isinstance(value, bytes) else table(value or {})
    if kind == "content":
        return b"\0" + long_prefixed(raw_bytes(value or b""))
    return (shortstr if kind == "shortstr" else long_prefixed)(raw_bytes(value or b""))


def arguments(version: str, name: str, given: dict[str, Any]) -> bytes:
    """The argument bytes of a method."""
    _, described = of_name(version, name)
    remaining, found, bits = dict(given), b"", []
    for field in described["fields"]:
        names = {field["name"].replace("-", "_"), field.get("practice_name", field["name"]).replace("-", "_")}
        names |= {"no_wait"} if "nowait" in names else set()
        value = next((remaining.pop(name) for name in names if name in remaining), None)
        if field["type"] == "bit":
            bits.append(int(bool(value)))
            continue
        found += pack_bits(bits) + field_bytes(field["type"], value)
        bits = []
    assert not remaining, f"{name} has no {sorted(remaining)}"
    return found + pack_bits(bits)


def frame(kind: int, channel: int, payload: bytes, end: bytes = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(version: str, name: str, channel: int = 1, **given: Any) -> bytes:
    """A method frame."""
    class_id, described = of_name(version, name)
    return frame(METHOD, channel, struct.pack(">HH", class_id, described["index"]) + arguments(version, name, given))


def header(
    version: str, class_name: str, body_size: int, channel: int = 1, weight: int = 0, **properties: Any
) -> bytes:
    """A content header frame."""
    (of_class,) = (c for c in fact_table(version)["classes"] if c["name"] == class_name)
    flags, found = 0, b""
    known = {entry["name"].replace("-", "_"): entry for entry in of_class["properties"]}
    assert properties.keys() <= known.keys()
    for name, entry in known.items():
        if name in properties:
            flags |= 1 << entry["flag_bit"]
            found += field_bytes(entry["type"], properties[name])
    head = struct.pack(">HHQH", of_class["index"], weight, body_size, flags)
    return frame(HEADER, channel, head + found)


def body(payload: bytes, channel: int = 1) -> bytes:
    return frame(BODY, channel, payload)


def heartbeat(channel: int = 0, payload: bytes = b"") -> bytes:
    return frame(HEARTBEAT, channel, payload)


def protocol_header(version: str) -> bytes:
    return bytes.fromhex(fact_table(version)["protocol_header"]["hex"])
