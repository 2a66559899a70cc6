"""Connections of 0-10 and 1.0 for the cases of rules: a session on channel 1, by encoders that are not the product's.

consuming_0_10(3)   a subscription to queue 'q' and 3 messages that nobody accepts
consuming_1_0(3)    the same over a link
"""

from __future__ import annotations

from typing import Any

import proton
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, frame, header, segment, whole
from rule_support import Talk

uint = proton.uint
UNDESCRIBED: Any = proton.UNDESCRIBED  # a constant, which the types of proton do not allow here
OPEN, BEGIN, ATTACH, FLOW, TRANSFER = range(0x10, 0x15)
SOURCE, TARGET, DATA = 0x28, 0x29, 0x75
MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44


def said_0_10(talk: Talk, sender: str, name: str, channel: int = 1, /, **fields: Any) -> Talk:
    """A control or command."""
    return talk.octets(sender, whole(name, {key.replace("_", "-"): value for key, value in fields.items()}, channel))


def session_0_10(**place: Any) -> Talk:
    """From the protocol header to a session without commands."""
    talk = Talk("0-10", **place)
    octets = b"AMQP\x01\x01\x00\x0a"
    talk.client_octets(octets).server_octets(octets)
    about = {"product": ("str16", "Test"), "version": ("str16", "1"), "platform": ("str16", "P")}
    for sender, name, fields in (
        ("server", "start", {"server_properties": about, "mechanisms": ("str16", ["EXTERNAL"]),
                             "locales": ("str16", ["en_US"])}),
        ("client", "start-ok", {"client_properties": about, "mechanism": "EXTERNAL", "response": b"",
                                "locale": "en_US"}),
        ("server", "tune", {"channel_max": 2047, "max_frame_size": 65535, "heartbeat_min": 0, "heartbeat_max": 120}),
        ("client", "tune-ok", {"channel_max": 2047, "max_frame_size": 65535, "heartbeat": 60}),
        ("client", "open", {"virtual_host": "/test"}),
        ("server", "open-ok", {}),
    ):  # fmt: skip
        said_0_10(talk, sender, f"connection.{name}", 0, **fields)
    said_0_10(talk, "client", "session.attach", name=b"s")
    said_0_10(talk, "server", "session.attached", name=b"s")
    for sender in ("client", "server"):
        said_0_10(talk, sender, "session.command-point", command_id=0, command_offset=0)
    return talk


def done_0_10(talk: Talk, last: int) -> Talk:
    """The server has done the client's commands up to this one."""
    return said_0_10(talk, "server", "session.completed", commands=[(0, last)])


def consuming_0_10(messages: int) -> Talk:
    talk = session_0_10()
    said_0_10(talk, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for unit in (0, 1):
        said_0_10(talk, "client", "message.flow", destination="d", unit=unit, value=2**32 - 1)
    done_0_10(talk, 2)
    ends = FIRST_FRAME | LAST_FRAME
    transfer = segment("message.transfer", {"destination": "d", "accept-mode": 0, "acquire-mode": 0})
    head = header(
        ("message.delivery-properties", {"routing-key": "q"}), ("message.message-properties", {"content-length": 1})
    )
    content = (
        frame(1, transfer, 1, FIRST_SEGMENT | ends) + frame(2, head, 1, ends) + frame(3, b"x", 1, LAST_SEGMENT | ends)
    )
    for _ in range(messages):
        talk.server_octets(content)
    return talk


def performative(code: int, *fields: Any, channel: int = 0, payload: bytes = b"", kind: int = 0) -> bytes:
    """A frame of 1.0 by qpid-proton's codec."""
    octets: bytes = described(code, list(fields)) + payload
    return (8 + len(octets)).to_bytes(4, "big") + bytes([2, kind]) + channel.to_bytes(2, "big") + octets


def described(code: int, value: Any) -> bytes:
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(code), value))
    octets: bytes = data.encode()
    return octets


def opening(container: str, host: str | None) -> bytes:
    limits = (uint(65536), proton.ushort(255), uint(60000))
    about = {proton.symbol(name): "1" for name in ("product", "version", "platform")}
    return performative(OPEN, container, host, *limits, None, None, None, None, about)


def session_1_0(**place: Any) -> Talk:
    """From the SASL header to a session on channel 1."""
    talk = Talk("1.0", **place)
    sasl, plain = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
    mechanisms = proton.Array(UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("EXTERNAL"))
    for sender, octets in (
        ("client", sasl),
        ("server", sasl),
        ("server", performative(MECHANISMS, mechanisms, kind=1)),
        ("client", performative(INIT, proton.symbol("EXTERNAL"), b"", kind=1)),
        ("server", performative(OUTCOME, proton.ubyte(0), kind=1)),
        ("client", plain),
        ("server", plain),
        ("client", opening("c", "host")),
        ("server", opening("s", None)),
        ("client", performative(BEGIN, None, uint(0), uint(5000), uint(5000), uint(255), channel=1)),
        ("server", performative(BEGIN, proton.ushort(1), uint(0), uint(5000), uint(5000), uint(255), channel=1)),
    ):  # fmt: skip
        talk.octets(sender, octets)
    return talk


def consuming_1_0(messages: int) -> Talk:
    talk = session_1_0()
    source = proton.Described(proton.ulong(SOURCE), ["q"])
    target = proton.Described(proton.ulong(TARGET), ["here"])
    modes = (proton.ubyte(0), proton.ubyte(0))
    talk.client_octets(performative(ATTACH, "l", uint(0), True, *modes, source, target, channel=1))
    talk.server_octets(
        performative(ATTACH, "l", uint(0), False, *modes, source, target, None, False, uint(0), channel=1)
    )
    window = (uint(0), uint(5000), uint(0), uint(5000))
    talk.client_octets(performative(FLOW, *window, uint(0), uint(0), uint(5000), channel=1))
    body = described(DATA, b"x")
    for number in range(messages):
        tag = number.to_bytes(4, "big")
        talk.server_octets(performative(TRANSFER, uint(0), uint(number), tag, uint(0), False, channel=1, payload=body))
    return talk
