"""Sessions of 0-10 and 1.0 for the cases of the rules, on channel 1.

consuming_0_10(3)   a subscription to queue 'q' and 3 messages that nobody accepts
consuming_1_0(3)    the same over a link
"""

from __future__ import annotations

from typing import Any

import proton
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, header, segment, whole
from encode_0_10 import frame as frame_0_10
from rule_support import SIDES, Talk
from rule_talks import opened_0_10, opened_1_0
from test_amqp_1_0_streams import frame, performative

CHANNEL = 1
NO_LIMIT = 2**32 - 1
BEGIN, ATTACH, FLOW, TRANSFER = range(0x11, 0x15)
SOURCE, TARGET, DATA = 0x28, 0x29, 0x75
CREDIT = 5000
uint = proton.uint


def said_0_10(talk: Talk, sender: str, method: str, /, **fields: Any) -> Talk:
    """A control or command on the session; '_' for '-' in names of fields."""
    given = {key.replace("_", "-"): value for key, value in fields.items()}
    return talk.octets(sender, whole(method, given, CHANNEL))


def session_0_10(**place: Any) -> Talk:
    """From the protocol header to a session without commands; `place`: as of a Talk."""
    talk = opened_0_10(Talk("0-10", **place))
    said_0_10(talk, "client", "session.attach", name=b"s")
    said_0_10(talk, "server", "session.attached", name=b"s")
    for side in SIDES:
        said_0_10(talk, side, "session.command-point", command_id=0, command_offset=0)
    return talk


def done_0_10(talk: Talk, last: int) -> Talk:
    """The server has done the client's commands up to this one."""
    return said_0_10(talk, "server", "session.completed", commands=[(0, last)])


def consuming_0_10(messages: int) -> Talk:
    talk = session_0_10()
    said_0_10(talk, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for unit in (0, 1):
        said_0_10(talk, "client", "message.flow", destination="d", unit=unit, value=NO_LIMIT)
    done_0_10(talk, 2)
    ends = FIRST_FRAME | LAST_FRAME
    transfer = segment("message.transfer", {"destination": "d", "accept-mode": 0, "acquire-mode": 0})
    about = ("message.delivery-properties", {"routing-key": "q"}), ("message.message-properties", {"content-length": 1})
    content = (
        frame_0_10(1, transfer, CHANNEL, FIRST_SEGMENT | ends)
        + frame_0_10(2, header(*about), CHANNEL, ends)
        + frame_0_10(3, b"x", CHANNEL, LAST_SEGMENT | ends)
    )
    for _ in range(messages):
        talk.server_octets(content)
    return talk


def consuming_1_0(messages: int) -> Talk:
    talk = opened_1_0(Talk("1.0"))
    window = (uint(0), uint(CREDIT), uint(CREDIT), uint(255))
    talk.client_octets(frame(performative(BEGIN, None, *window), CHANNEL))
    talk.server_octets(frame(performative(BEGIN, proton.ushort(CHANNEL), *window), CHANNEL))
    ends = [proton.Described(proton.ulong(code), [address]) for code, address in ((SOURCE, "q"), (TARGET, "here"))]
    link = (proton.ubyte(0), proton.ubyte(0), *ends)
    talk.client_octets(frame(performative(ATTACH, "l", uint(0), True, *link), CHANNEL))
    talk.server_octets(frame(performative(ATTACH, "l", uint(0), False, *link, None, False, uint(0)), CHANNEL))
    granted = (uint(0), uint(CREDIT), uint(0), uint(CREDIT), uint(0), uint(0), uint(CREDIT))
    talk.client_octets(frame(performative(FLOW, *granted), CHANNEL))
    for number in range(messages):
        fields = (uint(0), uint(number), number.to_bytes(4, "big"), uint(0), False)
        talk.server_octets(frame(performative(TRANSFER, *fields) + data_section(b"x"), CHANNEL))
    return talk


def data_section(body: bytes) -> bytes:
    section = proton.Data()
    section.put_object(proton.Described(proton.ulong(DATA), body))
    octets: bytes = section.encode()
    return octets
