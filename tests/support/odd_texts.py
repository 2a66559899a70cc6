"""Conversations in which every text is not UTF-8: every field that holds text of every method, control, struct and
performative of the five versions, as the fact tables list them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import classic_frames
import encode_0_10
from classic_frames import table
from classic_support import described_methods, fact_table
from wire import CLIENT, SERVER, Wire

Texts = Callable[[], bytes]
Frame = tuple[int, bytes]
LOGIN = ("connection.start", "connection.start-ok", "connection.tune", "connection.tune-ok", "connection.open")
LAST = ("connection.close", "connection.close-ok")
BODY = b"body"


# ---- 0-8 to 0-9-1 ---------------------------------------------------------------------------------------------------


def classic(version: str, text: Texts) -> list[Frame]:
    """All methods, those of the login first and of the close last, each followed by its content, if any."""
    frames: list[Frame] = [(CLIENT, classic_frames.protocol_header(version))]
    known = dict(described_methods(version))
    middle = ["channel.open", *(name for name in known if name not in (*LOGIN, *LAST, "channel.open", "channel.close"))]
    for name in (*LOGIN, *middle, "channel.close", *LAST):
        described = known[name]
        sent_by = described.get("sent_by_extension", described)["sent_by"]
        direction = SERVER if sent_by == "server" else CLIENT
        channel = 0 if name.startswith("connection.") else 1
        frames.append(
            (direction, classic_frames.method(version, name, channel, **_given(version, name, described, text)))
        )
        if described["content"]:
            frames += [(direction, data) for data in _content(version, name.split(".")[0], text)]
    return frames


def _given(version: str, name: str, described: dict[str, Any], text: Texts) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for field in described["fields"]:
        key = field["name"].replace("-", "_")
        if field["type"] == "shortstr":
            given[key] = text()
        elif field["type"] in ("longstr", "content"):
            given[key] = b"\0" + text().replace(b"\0", b"") + b"\0secret" if key == "response" else text()
        elif field["type"] == "table":
            given[key] = table({text(): text(), "product": text(), "list": [text()], "table": {text(): 1}})
    if name in ("connection.start", "connection.start-ok"):
        numbers = fact_table(version)["protocol_header"]["start_version"]
        given |= {"version_major": numbers["major"], "version_minor": numbers["minor"]} if name[-1] == "t" else {}
        given |= {"mechanism": "PLAIN", "locale": text()[:31]} if name[-1] == "k" else {}
    return given


def _content(version: str, class_name: str, text: Texts) -> Iterator[bytes]:
    (of_class,) = (c for c in fact_table(version)["classes"] if c["name"] == class_name)
    given: dict[str, Any] = {}
    for entry in of_class["properties"]:
        if entry["type"] in ("shortstr", "longstr"):
            given[entry["name"].replace("-", "_")] = text()
        elif entry["type"] == "table":
            given[entry["name"].replace("-", "_")] = table({text(): text(), "x-death": [{"queue": text()}]})
    yield classic_frames.header(version, class_name, len(BODY), **given)
    yield classic_frames.body(BODY)


# ---- 0-10 -----------------------------------------------------------------------------------------------------------


def v0_10(text: Texts) -> list[Frame]:
    """All controls and commands; message.transfer with its header."""
    frames: list[Frame] = [(CLIENT, b"AMQP\x01\x01\x00\x0a")]
    names = [name for name, entry in encode_0_10.entries().items() if entry["group"] in ("controls", "commands")]
    first = [*LOGIN, "session.attach", "session.attached", "session.command-point"]
    last = ["session.detach", "session.detached", *LAST]
    for name in (*first, *(name for name in names if name not in (*first, *last)), *last):
        entry = encode_0_10.entries()[name]
        direction = SERVER if entry.get("sent_by") == "server" else CLIENT
        fields = _fields_0_10(entry, text)
        if name == "connection.start-ok":
            fields |= {"mechanism": "PLAIN", "response": b"\0" + text().replace(b"\0", b"") + b"\0secret"}
        channel = 0 if name.startswith("connection.") else 1
        if not entry.get("segments"):
            frames.append((direction, encode_0_10.one_frame(name, fields, channel)))
            continue
        structs = [("message.delivery-properties", text), ("message.message-properties", text)]
        header = encode_0_10.header(*((each, _fields_0_10(encode_0_10.entries()[each], text)) for each, _ in structs))
        frames.append((direction, encode_0_10.frame(1, encode_0_10.segment(name, fields), channel, 0x0B)))
        frames.append((direction, encode_0_10.frame(2, header, channel, 0x03)))
        frames.append((direction, encode_0_10.frame(3, BODY, channel, 0x07)))
    return frames


def _fields_0_10(entry: dict[str, Any], text: Texts) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in entry["fields"]:
        kind = encode_0_10.plain_type(field["type"], entry["class"])
        if kind in ("str8", "str16", "vbin8", "vbin16", "vbin32"):
            fields[field["name"]] = text()
        elif kind == "map":
            fields[field["name"]] = {"product": ("str16", text()), "k": ("str8", text()), "b": ("vbin8", text())}
        elif kind in encode_0_10.entries():
            fields[field["name"]] = _fields_0_10(encode_0_10.entries()[kind], text)
        elif kind in ("uint8", "uint16", "uint32", "uint64"):
            fields[field["name"]] = 1
    return fields


# ---- 1.0 ------------------------------------------------------------------------------------------------------------


@cache
def facts() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        resources.files("codec.protocol.spec").joinpath("amqp-1-0.json").read_text("utf-8")
    )
    return loaded


PERFORMATIVES = ("open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close")
SIZED = {"string": 0xA1, "symbol": 0xA3, "binary": 0xA0}
NUMBERS = {"uint": b"\x52\x01", "ushort": b"\x60\0\x01", "ubyte": b"\x50\x01", "ulong": b"\x53\x01", "boolean": b"\x42"}


def sized(kind: str, data: bytes) -> bytes:
    return bytes([SIZED[kind], len(data)]) + data


def listed(items: list[bytes]) -> bytes:
    data = b"".join(items)
    return b"\xd0" + struct.pack(">II", len(data) + 4, len(items)) + data


def mapped(kind: str, text: Texts) -> bytes:
    """A map with an odd key; and one with plain keys, whose values are odd."""
    items = [sized(kind, b"product"), sized("string", text()), sized(kind, b"b"), sized("binary", text())]
    if text()[:1] > b"\x80":
        items += [sized(kind, text()), sized("string", text())]
    data = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(data) + 4, len(items)) + data


def described(name: str, text: Texts) -> bytes:
    """A composite, every field there."""
    code = next(entry["code"] for entry in facts()["descriptor_index"] if entry["name"] == name)
    (composite,) = (entry for entry in facts()["composite_types"] if entry["name"] == name)
    return b"\0\x53" + bytes([code]) + listed([_field_1_0(name, field, text) for field in composite["fields"]])


def _field_1_0(of: str, field: dict[str, Any], text: Texts) -> bytes:
    name, kind = field["name"], field["type"]
    restricted = {entry["name"]: entry for entry in facts()["restricted_types"]}
    while kind in restricted and "descriptor" not in restricted[kind]:
        kind = restricted[kind]["source_type"]
    composites = {entry["name"] for entry in facts()["composite_types"]}
    nested = {"source": "source", "target": "target", "state": "rejected", "default-outcome": "rejected"}
    if name in nested:
        return described(nested[name], text)
    if name in ("role",):
        return b"\x42"
    if (of, name) == ("sasl-init", "mechanism"):
        return sized("symbol", b"PLAIN")
    if (of, name) == ("sasl-init", "initial-response"):
        return sized("binary", b"\0" + text().replace(b"\0", b"") + b"\0secret")
    if kind in composites:
        return described(kind, text)
    if kind in SIZED:
        return sized(kind, text())
    if kind == "map":
        return mapped("symbol", text)
    if kind == "*":
        return sized("string", text()) if "address" in str(field.get("requires")) else b"\x40"
    return NUMBERS.get(kind, b"\x40")


def message(text: Texts) -> bytes:
    """Sections of a message with a body of one text."""
    annotations = b"\0\x53\x72" + mapped("symbol", text)
    application = b"\0\x53\x74" + mapped("string", text)
    return annotations + described("properties", text) + application + b"\0\x53\x77" + sized("string", BODY)


def frame(data: bytes, kind: int, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(data), 2, kind, channel) + data


def v1_0(text: Texts) -> list[Frame]:
    """A login, then all performatives from either side."""
    frames: list[Frame] = [(side, b"AMQP\x03\x01\x00\x00") for side in (CLIENT, SERVER)]
    for name, side in (("sasl-mechanisms", SERVER), ("sasl-init", CLIENT), ("sasl-outcome", SERVER)):
        frames.append((side, frame(described(name, text), 1)))
    frames += [(side, b"AMQP\x00\x01\x00\x00") for side in (CLIENT, SERVER)]
    for name in PERFORMATIVES:
        for side in (CLIENT, SERVER):
            data = described(name, text) + (message(text) if name == "transfer" else b"")
            frames.append((side, frame(data, 0)))
    return frames


VERSIONS: dict[str, Callable[[Texts], list[Frame]]] = {
    "0-8": lambda text: classic("0-8", text),
    "0-9": lambda text: classic("0-9", text),
    "0-9-1": lambda text: classic("0-9-1", text),
    "0-10": v0_10,
    "1.0": v1_0,
}


def wire_of(version: str, text: Texts) -> Wire:
    wire = Wire()
    for direction, data in VERSIONS[version](text):
        wire.add(direction, data)
    return wire
