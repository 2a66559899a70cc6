"""Sessions and links of AMQP 1.0, one performative a call, for the cases of L10; encoded by qpid-proton.

`given` are fields of the performative by their names, beside or for those that are set here.
"""

from __future__ import annotations

from typing import Any

import encode_1_0 as P
import proton
from encode_1_0 import data_section, described, frame, performative, performative_frame
from rule_support import Talk
from rule_talks import opened_1_0

V = "1.0"
CHANNEL, WINDOW, CREDIT = 1, 100, 10
uint, ubyte, ushort, symbol = proton.uint, proton.ubyte, proton.ushort, proton.symbol


def error(condition: str = "amqp:not-found", text: str = "no such node") -> Any:
    return described(P.ERROR, symbol(condition), text)


def say(talk: Talk, sender: str, code: int, *fields: Any, channel: int = CHANNEL, payload: bytes = b"") -> Talk:
    return talk.octets(sender, frame(performative(code, *fields) + payload, channel))


def perform(talk: Talk, sender: str, code: int, payload: bytes = b"", channel: int = CHANNEL, **fields: Any) -> Talk:
    return talk.octets(sender, performative_frame(code, channel, payload, **fields))


def begin(talk: Talk, sender: str, answers: int | None = None, channel: int = CHANNEL, **given: Any) -> Talk:
    fields = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW, "handle_max": 255, **given}
    return perform(talk, sender, P.BEGIN, channel=channel, remote_channel=answers, **fields)


def begun(talk: Talk | None = None, **given: Any) -> Talk:
    """A session on channel 1 of both sides; `given`: of the server's begin."""
    talk = opened_1_0(Talk(V)) if talk is None else talk
    return begin(begin(talk, "client"), "server", CHANNEL, **given)


def attach(talk: Talk, sender: str, name: str, handle: int, receives: bool, **given: Any) -> Talk:
    ends = {"source": described(P.SOURCE, "q"), "target": described(P.TARGET, "q")}
    fields = {"name": name, "handle": handle, "role": receives, "snd_settle_mode": 2, "rcv_settle_mode": 0}
    first = {"initial_delivery_count": None if receives else 0, "incomplete_unsettled": False}
    return perform(talk, sender, P.ATTACH, **{**fields, **ends, **first, **given})


def flow(talk: Talk, sender: str, handle: int | None, credit: int = CREDIT, **given: Any) -> Talk:
    fields = {"next_incoming_id": 0, "next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
    of_link = {} if handle is None else {"handle": handle, "delivery_count": 0, "link_credit": credit}
    return perform(talk, sender, P.FLOW, **{**fields, **of_link, "drain": False, "echo": False, **given})


def transfer(
    talk: Talk, sender: str, handle: int, number: int | None, tag: bytes | None = None, settled: bool | None = False,
    more: bool = False, payload: bytes = data_section(b"x"), **given: Any,
) -> Talk:  # fmt: skip
    """`tag`: by default the number."""
    begins = {} if number is None else {"delivery_id": number, "message_format": 0}
    name = number.to_bytes(4, "big") if tag is None and number is not None else tag
    fields = {"handle": handle, **begins, "delivery_tag": name, "settled": settled, "more": more, **given}
    return perform(talk, sender, P.TRANSFER, payload, **fields)


def dispose(
    talk: Talk, sender: str, receives: bool, first: int, last: int | None = None, settled: bool = True,
    state: Any = None,
) -> Talk:  # fmt: skip
    return perform(talk, sender, P.DISPOSITION, role=receives, first=first, last=last, settled=settled, state=state)


def detach(talk: Talk, sender: str, handle: int, closed: bool = True, why: Any = None) -> Talk:
    return perform(talk, sender, P.DETACH, handle=handle, closed=closed, error=why)


def end(talk: Talk, sender: str, why: Any = None) -> Talk:
    return say(talk, sender, P.END, why)


def sender_link(
    talk: Talk | None = None, server: dict[str, Any] | None = None, window: int = WINDOW, **client: Any
) -> Talk:
    """The client sends over link 's', handle 0, with credit."""
    talk = attach(begun() if talk is None else talk, "client", "s", 0, False, **client)
    talk = attach(talk, "server", "s", 0, True, **{**client, "initial_delivery_count": None, **(server or {})})
    return flow(talk, "server", 0, incoming_window=window)


def receiver_link(talk: Talk | None = None, credit: int = CREDIT, **given: Any) -> Talk:
    """The client receives over link 'r', handle 1, with credit."""
    talk = attach(begun() if talk is None else talk, "client", "r", 1, True, **given)
    talk = attach(talk, "server", "r", 1, False, **given)
    return flow(talk, "client", 1, credit)


def consuming_1_0(messages: int) -> Talk:
    """A link from queue 'q' and so many messages that nobody accepts."""
    talk = receiver_link(credit=messages)
    for number in range(messages):
        transfer(talk, "server", 1, number)
    return talk


def accepted(talk: Talk, sender: str, receives: bool, first: int, last: int | None = None) -> Talk:
    return dispose(talk, sender, receives, first, last, True, described(P.ACCEPTED))


def closed(talk: Talk) -> Talk:
    """Both closes, and the end of the TCP connection."""
    say(talk, "client", P.CLOSE, channel=0)
    return say(talk, "server", P.CLOSE, channel=0).fin()
