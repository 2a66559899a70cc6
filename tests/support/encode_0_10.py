"""AMQP 0-10 bytes from Python values: an encoder of the tests' own, which knows layouts only from the fact table.

Values: int, float, bool, str, bytes, Decimal (dec32, dec64), uuid.UUID, datetime (aware), None (void); lists of pairs
for sequence-set and byte-ranges; for map {key: (type, value)}, for list [(type, value), ...], for array (type,
[values]), for structs {field: value}, for struct32 (name, {field: value}). A field that is not there has no packing
flag.
"""

from __future__ import annotations

import json
import struct
import uuid
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

NUMBERS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
    "float": "f", "double": "d", "boolean": "?", "sequence-no": "I",
}  # fmt: skip
ENCODINGS = {"latin": "iso-8859-15", "utf16": "utf-16-be", "utf32": "utf-32-be"}
SEGMENT_TYPES = {"controls": 0, "commands": 1}
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
ALL_FLAGS = 15


@cache
def facts() -> dict[str, Any]:
    text = resources.files("codec.protocol.spec").joinpath("amqp-0-10.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def entries() -> dict[str, dict[str, Any]]:
    """Every control, command and struct by 'class.name', with `group` ('controls' ...), `class` and `class_code`."""
    found = {}
    for of_class in facts()["classes"]:
        for group in ("controls", "commands", "structs"):
            for entry in of_class.get(group, []):
                own = {"group": group, "class": of_class["name"], "class_code": of_class["code"]}
                found[f"{of_class['name']}.{entry['name']}"] = {**entry, **own}
    return found


@cache
def types() -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in facts()["types"]}


def plain_type(name: str, of_class: str) -> str:
    """The type behind a domain; 'class.struct' for a struct."""
    if name in types():
        return name
    owner, local = name.split(".") if "." in name else (of_class, name)
    if f"{owner}.{local}" in entries():
        return f"{owner}.{local}"
    for described in facts()["classes"]:
        if described["name"] == owner:
            for domain in described["domains"]:
                if domain["name"] == local:
                    return plain_type(domain["type"], owner)
    (domain,) = (domain for domain in facts()["domains"] if domain["name"] == name)
    return plain_type(domain["type"], owner)


def sized(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def value(kind: str, thing: Any) -> bytes:
    """The bytes of a value of a type, without its type code."""
    if kind in entries():
        return structure(kind, thing)
    if kind in NUMBERS:
        return struct.pack(">" + NUMBERS[kind], thing)
    if kind in ("dec32", "dec64"):
        return decimal(thing, 4 if kind == "dec32" else 8)
    if kind == "datetime":
        return struct.pack(">Q", int(thing.timestamp()))
    if kind == "uuid":
        return uuid.UUID(str(thing)).bytes
    if kind in ("void", "bit"):
        return b""
    if kind in ("sequence-set", "byte-ranges"):
        form = ">II" if kind == "sequence-set" else ">QQ"
        return sized(2, b"".join(struct.pack(form, *pair) for pair in thing))
    if kind == "struct32":
        return structure32(*thing)
    if kind in ("map", "list", "array"):
        return sized(4, items(kind, thing))
    data: bytes = thing.encode(ENCODINGS.get(kind.rpartition("-")[2], "utf-8")) if isinstance(thing, str) else thing
    if kind in ("char", "char-utf32"):
        return str(thing).encode("iso-8859-15" if kind == "char" else "utf-32-be")
    return sized(types()[kind]["width"], data) if types()[kind]["kind"] == "variable" else data


def decimal(number: Decimal, width: int) -> bytes:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    mantissa = int("".join(map(str, digits))) * (-1 if sign else 1)
    return bytes([-exponent]) + mantissa.to_bytes(width, "big", signed=True)


def tagged(kind: str, thing: Any) -> bytes:
    return bytes([types()[kind]["code"]]) + value(kind, thing)


def items(kind: str, thing: Any) -> bytes:
    if kind == "map":
        entries_of = b"".join(sized(1, key.encode()) + tagged(*item) for key, item in thing.items())
        return struct.pack(">I", len(thing)) + entries_of
    if kind == "list":
        return struct.pack(">I", len(thing)) + b"".join(tagged(*item) for item in thing)
    of, values = thing
    return bytes([types()[of]["code"]]) + struct.pack(">I", len(values)) + b"".join(value(of, item) for item in values)


def packed(name: str, fields: dict[str, Any]) -> bytes:
    """Packing flags and fields of an entry."""
    entry = entries()[name]
    flags, data = 0, b""
    assert fields.keys() <= {field["name"] for field in entry["fields"]}
    for bit, field in enumerate(entry["fields"]):
        if field["name"] in fields and fields[field["name"]] is not False:
            flags |= 1 << bit
            data += value(plain_type(field["type"], entry["class"]), fields[field["name"]])
    return flags.to_bytes(entry["pack_width"], "little") + data


def structure(name: str, fields: dict[str, Any]) -> bytes:
    """A struct with the size and code that its definition gives it."""
    entry = entries()[name]
    code = bytes([entry["class_code"], entry["code"]]) if entry["code"] is not None else b""
    data = code + packed(name, fields)
    return sized(entry["size_width"], data) if entry["size_width"] else data


def structure32(name: str, fields: dict[str, Any]) -> bytes:
    entry = entries()[name]
    return sized(4, bytes([entry["class_code"], entry["code"]]) + packed(name, fields))


def segment(name: str, fields: dict[str, Any], sync: bool = False) -> bytes:
    """The payload of a control or command."""
    entry = entries()[name]
    session_header = bytes([1, sync]) if entry["group"] == "commands" else b""
    return bytes([entry["class_code"], entry["code"]]) + session_header + packed(name, fields)


def header(*structs: tuple[str, dict[str, Any]]) -> bytes:
    """The payload of a header segment."""
    return b"".join(structure32(name, fields) for name, fields in structs)


def frame(kind: int, payload: bytes, channel: int = 0, flags: int = ALL_FLAGS) -> bytes:
    """A frame of a segment type (0 control, 1 command, 2 header, 3 body)."""
    return struct.pack(">BBHBBHI", flags, kind, 12 + len(payload), 0, min(kind, 1), channel, 0) + payload


def one_frame(name: str, fields: dict[str, Any], channel: int = 0, sync: bool = False) -> bytes:
    """A control, or a command without segments after it, as one frame."""
    kind = SEGMENT_TYPES[entries()[name]["group"]]
    return frame(kind, segment(name, fields, sync), channel)


def content(command: bytes, about: bytes, body: bytes = b"x", channel: int = 1, split: int = 65523) -> list[bytes]:
    """The frames of a command (its payload) that carries a header (likewise) and a body, cut after `split` bytes."""
    ends = FIRST_FRAME | LAST_FRAME
    frames = [frame(1, command, channel, FIRST_SEGMENT | ends), frame(2, about, channel, ends)]
    starts = range(0, len(body) or 1, split)
    for at in starts:
        flags = LAST_SEGMENT | (FIRST_FRAME if at == 0 else 0) | (LAST_FRAME if at == starts[-1] else 0)
        frames.append(frame(3, body[at : at + split], channel, flags))
    return frames


def message(body: bytes, properties: dict[str, Any] | None = None, channel: int = 1, split: int = 65523) -> list[bytes]:
    """The frames of a message.transfer with these message properties."""
    command = segment("message.transfer", {"destination": "q"})
    return content(command, header(("message.message-properties", properties or {})), body, channel, split)
