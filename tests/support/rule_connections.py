"""Connections of 0-10 and 1.0 for the cases of the rules: handshakes that break no rule but the AMBIENT ones, and
sessions of 0-10 with a consumer (of 1.0: link_connections.py)."""

from __future__ import annotations

from typing import Any

import encode_0_10
import encode_1_0 as P
import proton
from encode_0_10 import content, header, one_frame, segment
from encode_1_0 import frame, performative
from rule_support import SIDES, Connection

HEADER_0_10 = b"AMQP\x01\x01\x00\x0a"
HEADERS_1_0 = {"amqp": b"AMQP\0\1\0\0", "tls": b"AMQP\2\1\0\0", "sasl": b"AMQP\3\1\0\0"}
IDLE_MS = 60_000
PROPERTIES = {
    "host": ("str16", "h"),
    "product": ("str16", "Test"),
    "version": ("str16", "1"),
    "platform": ("str16", "P"),
}


def control(connection: Connection, sender: str, name: str, **fields: Any) -> Connection:
    """A control of 0-10's connection class; '_' for '-' in names of fields."""
    given = {key.replace("_", "-"): value for key, value in fields.items()}
    return connection.data(sender, encode_0_10.one_frame(f"connection.{name}", given))


def opened_0_10(connection: Connection, last: str = "open_ok", /, **given: dict[str, Any]) -> Connection:
    """From the headers to step `last`; `given`: other fields by step: tune={"channel_max": 1}."""
    connection.client_bytes(HEADER_0_10).server_bytes(HEADER_0_10)
    controls: dict[str, tuple[str, dict[str, Any]]] = {
        "start": ("server", {"server_properties": PROPERTIES, "mechanisms": ("str16", ["EXTERNAL"]),
                             "locales": ("str16", ["en_US"])}),
        "start_ok": ("client", {"client_properties": PROPERTIES, "mechanism": "EXTERNAL", "response": b"",
                                "locale": "en_US"}),
        "tune": ("server", {"channel_max": 100, "max_frame_size": 65535, "heartbeat_min": 0, "heartbeat_max": 60}),
        "tune_ok": ("client", {"channel_max": 100, "max_frame_size": 65535, "heartbeat": 60}),
        "open": ("client", {"virtual_host": "test"}),
        "open_ok": ("server", {}),
    }  # fmt: skip
    for name, (sender, fields) in controls.items():
        own = {key: value for key, value in {**fields, **given.get(name, {})}.items() if value is not None}
        control(connection, sender, name.replace("_", "-"), **own)
        if name == last:
            break
    return connection


def closed_0_10(connection: Connection, code: int = 200, text: str = "bye") -> Connection:
    control(connection, "client", "close", reply_code=code, reply_text=text)
    return control(connection, "server", "close-ok").fin()


def symbols(*names: str) -> proton.Array:
    undescribed: Any = proton.UNDESCRIBED
    return proton.Array(undescribed, proton.Data.SYMBOL, *map(proton.symbol, names))


def sasl(
    connection: Connection,
    mechanism: str = "EXTERNAL",
    offered: tuple[str, ...] = ("EXTERNAL",),
    code: int = 0,
    response: bytes = b"",
) -> Connection:
    """The SASL layer of 1.0: both headers, mechanisms, init, outcome."""
    connection.client_bytes(HEADERS_1_0["sasl"]).server_bytes(HEADERS_1_0["sasl"])
    connection.server_bytes(frame(performative(P.MECHANISMS, symbols(*offered)), kind=P.SASL))
    connection.client_bytes(frame(performative(P.INIT, proton.symbol(mechanism), response), kind=P.SASL))
    return connection.server_bytes(frame(performative(P.OUTCOME, proton.ubyte(code)), kind=P.SASL))


def opened_1_0(connection: Connection, with_sasl: bool = True, **given: Any) -> Connection:
    """Up to both opens; `given` as for `sasl`."""
    if with_sasl:
        sasl(connection, **given)
    for side in SIDES:
        connection.data(side, HEADERS_1_0["amqp"])
    for side in SIDES:
        connection.data(
            side, frame(performative(P.OPEN, f"{side}-container", "test", None, None, proton.uint(IDLE_MS)))
        )
    return connection


def closed_1_0(connection: Connection, *error: Any) -> Connection:
    connection.client_bytes(frame(performative(P.CLOSE, *error)))
    return connection.server_bytes(frame(performative(P.CLOSE))).fin()


CHANNEL = 1
NO_LIMIT = 2**32 - 1


def send_0_10(connection: Connection, sender: str, method: str, /, **fields: Any) -> Connection:
    """A control or command on the session; '_' for '-' in names of fields."""
    given = {key.replace("_", "-"): value for key, value in fields.items()}
    return connection.data(sender, one_frame(method, given, CHANNEL))


def session_0_10(**options: Any) -> Connection:
    """From the protocol header to a session without commands; `options`: as of a Connection."""
    connection = opened_0_10(Connection("0-10", **options))
    send_0_10(connection, "client", "session.attach", name=b"s")
    send_0_10(connection, "server", "session.attached", name=b"s")
    for side in SIDES:
        send_0_10(connection, side, "session.command-point", command_id=0, command_offset=0)
    return connection


def done_0_10(connection: Connection, last: int) -> Connection:
    """The server has done the client's commands up to this one."""
    return send_0_10(connection, "server", "session.completed", commands=[(0, last)])


def consuming_0_10(messages: int) -> Connection:
    """A subscription to queue 'q' and so many messages that nobody accepts."""
    connection = session_0_10()
    send_0_10(connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for unit in (0, 1):
        send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=NO_LIMIT)
    done_0_10(connection, 2)
    transfer = segment("message.transfer", {"destination": "d", "accept-mode": 0, "acquire-mode": 0})
    about = ("message.delivery-properties", {"routing-key": "q"}), ("message.message-properties", {"content-length": 1})
    data = b"".join(content(transfer, header(*about), channel=CHANNEL))
    for _ in range(messages):
        connection.server_bytes(data)
    return connection
