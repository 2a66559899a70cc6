"""Sessions and links of AMQP 1.0, one performative a call, for the cases of L10; encoded by qpid-proton.

`given` are fields of the performative by their names, beside or for those that are set here.
"""

from __future__ import annotations

from typing import Any

import encode_1_0 as P
import proton
from encode_1_0 import data_section, described, frame, performative, performative_frame
from rule_connections import opened_1_0
from rule_support import Connection

V = "1.0"
CHANNEL, WINDOW, CREDIT = 1, 100, 10
uint, ubyte, ushort, symbol = proton.uint, proton.ubyte, proton.ushort, proton.symbol


def error(condition: str = "amqp:not-found", text: str = "no such node") -> Any:
    return described(P.ERROR, symbol(condition), text)


def say(
    connection: Connection, sender: str, code: int, *fields: Any, channel: int = CHANNEL, payload: bytes = b""
) -> Connection:
    return connection.data(sender, frame(performative(code, *fields) + payload, channel))


def perform(
    connection: Connection, sender: str, code: int, payload: bytes = b"", channel: int = CHANNEL, **fields: Any
) -> Connection:
    return connection.data(sender, performative_frame(code, channel, payload, **fields))


def begin(
    connection: Connection, sender: str, answers: int | None = None, channel: int = CHANNEL, **given: Any
) -> Connection:
    fields = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW, "handle_max": 255, **given}
    return perform(connection, sender, P.BEGIN, channel=channel, remote_channel=answers, **fields)


def begun(connection: Connection | None = None, **given: Any) -> Connection:
    """A session on channel 1 of both sides; `given`: of the server's begin."""
    connection = opened_1_0(Connection(V)) if connection is None else connection
    return begin(begin(connection, "client"), "server", CHANNEL, **given)


def attach(connection: Connection, sender: str, name: str, handle: int, receives: bool, **given: Any) -> Connection:
    ends = {"source": described(P.SOURCE, "q"), "target": described(P.TARGET, "q")}
    fields = {"name": name, "handle": handle, "role": receives, "snd_settle_mode": 2, "rcv_settle_mode": 0}
    first = {"initial_delivery_count": None if receives else 0, "incomplete_unsettled": False}
    return perform(connection, sender, P.ATTACH, **{**fields, **ends, **first, **given})


def flow(connection: Connection, sender: str, handle: int | None, credit: int = CREDIT, **given: Any) -> Connection:
    fields = {"next_incoming_id": 0, "next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
    of_link = {} if handle is None else {"handle": handle, "delivery_count": 0, "link_credit": credit}
    return perform(connection, sender, P.FLOW, **{**fields, **of_link, "drain": False, "echo": False, **given})


def transfer(
    connection: Connection, sender: str, handle: int, number: int | None, tag: bytes | None = None,
    settled: bool | None = False,
    more: bool = False, payload: bytes = data_section(b"x"), **given: Any,
) -> Connection:  # fmt: skip
    """`tag`: by default the number."""
    begins = {} if number is None else {"delivery_id": number, "message_format": 0}
    name = number.to_bytes(4, "big") if tag is None and number is not None else tag
    fields = {"handle": handle, **begins, "delivery_tag": name, "settled": settled, "more": more, **given}
    return perform(connection, sender, P.TRANSFER, payload, **fields)


def dispose(
    connection: Connection, sender: str, receives: bool, first: int, last: int | None = None, settled: bool = True,
    state: Any = None,
) -> Connection:  # fmt: skip
    return perform(
        connection, sender, P.DISPOSITION, role=receives, first=first, last=last, settled=settled, state=state
    )


def detach(connection: Connection, sender: str, handle: int, closed: bool = True, why: Any = None) -> Connection:
    return perform(connection, sender, P.DETACH, handle=handle, closed=closed, error=why)


def end(connection: Connection, sender: str, why: Any = None) -> Connection:
    return say(connection, sender, P.END, why)


def sender_link(
    connection: Connection | None = None, server: dict[str, Any] | None = None, window: int = WINDOW, **client: Any
) -> Connection:
    """The client sends over link 's', handle 0, with credit."""
    connection = attach(begun() if connection is None else connection, "client", "s", 0, False, **client)
    connection = attach(
        connection, "server", "s", 0, True, **{**client, "initial_delivery_count": None, **(server or {})}
    )
    return flow(connection, "server", 0, incoming_window=window)


def receiver_link(connection: Connection | None = None, credit: int = CREDIT, **given: Any) -> Connection:
    """The client receives over link 'r', handle 1, with credit."""
    connection = attach(begun() if connection is None else connection, "client", "r", 1, True, **given)
    connection = attach(connection, "server", "r", 1, False, **given)
    return flow(connection, "client", 1, credit)


def consuming_1_0(messages: int) -> Connection:
    """A link from queue 'q' and so many messages that nobody accepts."""
    connection = receiver_link(credit=messages)
    for number in range(messages):
        transfer(connection, "server", 1, number)
    return connection


def accepted(connection: Connection, sender: str, receives: bool, first: int, last: int | None = None) -> Connection:
    return dispose(connection, sender, receives, first, last, True, described(P.ACCEPTED))


def closed(connection: Connection) -> Connection:
    """Both closes, and the end of the TCP connection."""
    say(connection, "client", P.CLOSE, channel=0)
    return say(connection, "server", P.CLOSE, channel=0).fin()
