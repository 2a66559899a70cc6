"""Connections of 0-10 and 1.0 for the cases of the rules: handshakes that break no rule but the AMBIENT ones."""

from __future__ import annotations

from typing import Any

import encode_0_10 as segmented
import proton
from rule_support import SIDES, Talk
from test_amqp_1_0_streams import frame, performative

HEADER_0_10 = b"AMQP\x01\x01\x00\x0a"
HEADERS_1_0 = {"amqp": b"AMQP\0\1\0\0", "tls": b"AMQP\2\1\0\0", "sasl": b"AMQP\3\1\0\0"}
OPEN, CLOSE = 0x10, 0x18
MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44
SASL = 1
IDLE_MS = 60_000
PROPERTIES = {
    "host": ("str16", "h"),
    "product": ("str16", "Test"),
    "version": ("str16", "1"),
    "platform": ("str16", "P"),
}


def control(talk: Talk, sender: str, name: str, **fields: Any) -> Talk:
    """A control of 0-10's connection class; '_' for '-' in names of fields."""
    given = {key.replace("_", "-"): value for key, value in fields.items()}
    return talk.octets(sender, segmented.whole(f"connection.{name}", given))


def opened_0_10(talk: Talk, **given: dict[str, Any]) -> Talk:
    """From the headers to open-ok; `given`: other fields by step: tune={"channel_max": 1}."""
    talk.client_octets(HEADER_0_10).server_octets(HEADER_0_10)
    said: dict[str, tuple[str, dict[str, Any]]] = {
        "start": ("server", {"server_properties": PROPERTIES, "mechanisms": ("str16", ["EXTERNAL"]),
                             "locales": ("str16", ["en_US"])}),
        "start_ok": ("client", {"client_properties": PROPERTIES, "mechanism": "EXTERNAL", "response": b"",
                                "locale": "en_US"}),
        "tune": ("server", {"channel_max": 100, "max_frame_size": 65535, "heartbeat_min": 0, "heartbeat_max": 60}),
        "tune_ok": ("client", {"channel_max": 100, "max_frame_size": 65535, "heartbeat": 60}),
        "open": ("client", {"virtual_host": "test"}),
        "open_ok": ("server", {}),
    }  # fmt: skip
    for name, (sender, fields) in said.items():
        own = {key: value for key, value in {**fields, **given.get(name, {})}.items() if value is not None}
        control(talk, sender, name.replace("_", "-"), **own)
    return talk


def closed_0_10(talk: Talk, code: int = 200, text: str = "bye") -> Talk:
    control(talk, "client", "close", reply_code=code, reply_text=text)
    return control(talk, "server", "close-ok").fin()


def symbols(*names: str) -> proton.Array:
    undescribed: Any = proton.UNDESCRIBED
    return proton.Array(undescribed, proton.Data.SYMBOL, *map(proton.symbol, names))


def sasl(
    talk: Talk,
    mechanism: str = "EXTERNAL",
    offered: tuple[str, ...] = ("EXTERNAL",),
    code: int = 0,
    response: bytes = b"",
) -> Talk:
    """The SASL layer of 1.0: both headers, mechanisms, init, outcome."""
    talk.client_octets(HEADERS_1_0["sasl"]).server_octets(HEADERS_1_0["sasl"])
    talk.server_octets(frame(performative(MECHANISMS, symbols(*offered)), kind=SASL))
    talk.client_octets(frame(performative(INIT, proton.symbol(mechanism), response), kind=SASL))
    return talk.server_octets(frame(performative(OUTCOME, proton.ubyte(code)), kind=SASL))


def opened_1_0(talk: Talk, with_sasl: bool = True, **given: Any) -> Talk:
    """Up to both opens; `given` as for `sasl`."""
    if with_sasl:
        sasl(talk, **given)
    for side in SIDES:
        talk.octets(side, HEADERS_1_0["amqp"])
    for side in SIDES:
        talk.octets(side, frame(performative(OPEN, f"{side}-container", "test", None, None, proton.uint(IDLE_MS))))
    return talk


def closed_1_0(talk: Talk, *error: Any) -> Talk:
    talk.client_octets(frame(performative(CLOSE, *error)))
    return talk.server_octets(frame(performative(CLOSE))).fin()
