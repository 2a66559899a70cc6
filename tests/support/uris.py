"""A password in a URI, in every field that is a text, bytes, or a table, of every frame of every version: made by the
tests' encoders and by qpid-proton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import encode_0_10
import encode_1_0
import proton
from classic_frames import body, header, method, protocol_header
from classic_support import fact_table
from wire import CLIENT, SERVER

SECRET = "w0nderland"
URI = f"amqp://alice:{SECRET}@broker.example/q"
ENCODED = f"amqp%3A%2F%2Falice%3A{SECRET}%40broker.example%2Fq"
HALF_ENCODED = f"/queues/amqp://alice:{SECRET}%40broker.example"
TEXTS = (URI, f"'{URI}', {URI}", ENCODED, f"/queues/{ENCODED}", HALF_ENCODED)
TABLE = {"uri": URI, URI: [URI, {"in": ENCODED, "n": 1}], "text": f"see {URI}."}
CLASSIC = ("0-8", "0-9", "0-9-1")
VERSIONS = (*CLASSIC, "0-10", "1.0")
HIDDEN = {"connection.update-secret"}  # no text but the secret
Frames = Iterator[tuple[int, bytes]]


def classic(version: str, text: str) -> Frames:
    """Every method with `text` for each string and a table of it, and each content with all its properties."""
    yield CLIENT, protocol_header(version)
    for of_class in fact_table(version)["classes"]:
        for described in of_class["methods"]:
            name = f"{of_class['name']}.{described['name']}"
            given: dict[str, Any] = {}
            for field in described["fields"]:
                if field["type"] in ("shortstr", "longstr", "table"):
                    given[field["name"].replace("-", "_")] = TABLE if field["type"] == "table" else text
            if name not in HIDDEN:
                side = SERVER if described.get("sent_by") == "server" else CLIENT
                yield side, method(version, name, 0 if of_class["name"] == "connection" else 1, **given)
    (basic,) = (of_class for of_class in fact_table(version)["classes"] if of_class["name"] == "basic")
    properties: dict[str, Any] = {}
    for entry in basic["properties"]:
        if entry["type"] in ("shortstr", "longstr", "table"):
            properties[entry["name"].replace("-", "_")] = TABLE if entry["type"] == "table" else text
    yield CLIENT, method(version, "basic.publish", 1, exchange=text, routing_key=text)
    yield CLIENT, header(version, "basic", 1, 1, 0, **properties)
    yield CLIENT, body(b"x")


def of_0_10(text: str, kind: str, group: str) -> Any:
    """A value of a type with `text` in it, or None."""
    kind = encode_0_10.plain_type(kind, group)
    if kind in ("str8", "str16", "vbin8", "vbin16", "vbin32", "str8-latin", "str16-utf16"):
        return text.encode() if kind.startswith("vbin") else text
    if kind == "map":
        nested = {"in": ("list", [("str16", text), ("str16-utf16", text)])}
        return {"uri": ("str16", text), text: ("vbin16", text.encode()), "nested": ("map", nested)}
    return ("str16", [text]) if kind == "array" else None


def fields_0_10(name: str, text: str) -> dict[str, Any]:
    entry = encode_0_10.entries()[name]
    given = {field["name"]: of_0_10(text, field["type"], entry["class"]) for field in entry["fields"]}
    return {name: value for name, value in given.items() if value is not None}


def v0_10(text: str) -> Frames:
    yield CLIENT, b"AMQP\x01\x01\x00\x0a"
    for name, entry in encode_0_10.entries().items():
        if entry["group"] != "structs":
            side = SERVER if "server" in str(entry.get("sent_by", "client")) else CLIENT
            yield side, encode_0_10.one_frame(name, fields_0_10(name, text), 0 if name.startswith("connection") else 1)
    parts = [(name, fields_0_10(name, text)) for name in ("message.delivery-properties", "message.message-properties")]
    transfer = encode_0_10.segment("message.transfer", {"destination": text})
    for data in encode_0_10.content(transfer, encode_0_10.header(*parts)):
        yield CLIENT, data


def v1_0(text: str) -> Frames:
    symbol, map_of = proton.symbol, {"uri": text, text: [text, text.encode()], "in": {text: proton.symbol(text)}}
    annotations = {symbol("x-opt-uri"): text, symbol(text): {"in": text.encode()}}
    yield (
        CLIENT,
        b"AMQP\x03\x01\x00\x00"
        + encode_1_0.frame(
            encode_1_0.performative(encode_1_0.INIT, symbol("PLAIN"), b"\0u\0p", text), kind=encode_1_0.SASL
        ),
    )
    yield CLIENT, b"AMQP\x00\x01\x00\x00"
    error = encode_1_0.described(encode_1_0.ERROR, symbol(text), text, {symbol("uri"): text})
    yield (
        CLIENT,
        encode_1_0.frame(
            encode_1_0.performative(
                encode_1_0.OPEN, text, text, None, None, None, None, None, [symbol(text)], None, map_of
            )
        ),
    )
    yield (
        CLIENT,
        encode_1_0.performative_frame(encode_1_0.BEGIN, 0, next_outgoing_id=0, incoming_window=9, outgoing_window=9),
    )
    source = encode_1_0.described(encode_1_0.SOURCE, text, None, None, None, True, map_of, symbol("move"), map_of)
    target = encode_1_0.described(encode_1_0.TARGET, text, None, None, None, True, map_of)
    yield (
        CLIENT,
        encode_1_0.performative_frame(
            encode_1_0.ATTACH,
            0,
            name=text,
            handle=0,
            role=False,
            source=source,
            target=target,
            initial_delivery_count=0,
        ),
    )
    properties = encode_1_0.described(
        0x73, text, text.encode(), text, text, text, text, symbol(text), symbol(text), None, None, text
    )
    payload = encode_1_0.section(0x71, annotations) + encode_1_0.section(0x72, annotations)
    payload += encode_1_0.encoded(properties) + encode_1_0.section(0x74, map_of) + encode_1_0.data_section(b"x")
    payload += encode_1_0.section(0x78, annotations)
    yield (
        CLIENT,
        encode_1_0.performative_frame(
            encode_1_0.TRANSFER, 0, payload, handle=0, delivery_id=0, delivery_tag=text.encode(), settled=False
        ),
    )
    rejected = encode_1_0.described(encode_1_0.REJECTED, error)
    modified = encode_1_0.described(encode_1_0.MODIFIED, True, True, annotations)
    for state in (rejected, modified):
        yield (
            CLIENT,
            encode_1_0.performative_frame(encode_1_0.DISPOSITION, 0, role=True, first=0, settled=True, state=state),
        )
    yield CLIENT, encode_1_0.performative_frame(encode_1_0.DETACH, 0, handle=0, closed=True, error=error)
    yield CLIENT, encode_1_0.frame(encode_1_0.performative(encode_1_0.END, error))
    yield CLIENT, encode_1_0.frame(encode_1_0.performative(encode_1_0.CLOSE, error))


def frames_of(version: str, text: str) -> Frames:
    if version in CLASSIC:
        return classic(version, text)
    return v0_10(text) if version == "0-10" else v1_0(text)
