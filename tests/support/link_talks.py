"""Sessions and links of AMQP 1.0, one performative a call, for the cases of L10; encoded by qpid-proton.

talk = linked()                        a session, the client's sender 's' (handle 0) and receiver 'r' (handle 1)
say(talk, "client", TRANSFER, uint(0), uint(0), b"t", uint(0), False, payload=data_section(b"x"))
"""

from __future__ import annotations

from typing import Any

import encode_1_0 as P
import proton
from encode_1_0 import data_section, described, frame, performative
from rule_support import Talk
from rule_talks import opened_1_0

V = "1.0"
CHANNEL, WINDOW, CREDIT = 1, 100, 10
uint, ubyte, ushort, symbol = proton.uint, proton.ubyte, proton.ushort, proton.symbol


def error(condition: str = "amqp:not-found", text: str = "no such node") -> Any:
    return described(P.ERROR, symbol(condition), text)


def say(talk: Talk, sender: str, code: int, *fields: Any, channel: int = CHANNEL, payload: bytes = b"") -> Talk:
    return talk.octets(sender, frame(performative(code, *fields) + payload, channel))


def begin(talk: Talk, sender: str, answers: int | None = None, channel: int = CHANNEL, **given: Any) -> Talk:
    remote = None if answers is None else ushort(answers)
    window, handles = uint(given.get("window", WINDOW)), uint(given.get("handle_max", 255))
    return say(talk, sender, P.BEGIN, remote, uint(0), window, uint(WINDOW), handles, channel=channel)


def begun(talk: Talk | None = None, **given: Any) -> Talk:
    """A session on channel 1 of both sides; `given`: of the server's begin."""
    talk = opened_1_0(Talk(V)) if talk is None else talk
    return begin(begin(talk, "client"), "server", CHANNEL, **given)


def attach(talk: Talk, sender: str, name: str, handle: int, receives: bool, **given: Any) -> Talk:
    """`given`: snd, rcv (modes), source, target, count (initial), largest (message), unsettled."""
    ends = {
        "source": described(P.SOURCE, "q"), "target": described(P.TARGET, "q"), "count": None if receives else uint(0),
        "snd": 2, "rcv": 0, "unsettled": None, "largest": None, **given,
    }  # fmt: skip
    modes = ubyte(ends["snd"]), ubyte(ends["rcv"])
    largest = None if ends["largest"] is None else proton.ulong(ends["largest"])
    return say(
        talk, sender, P.ATTACH, name, uint(handle), receives, *modes, ends["source"], ends["target"], ends["unsettled"],
        False, ends["count"], largest,
    )  # fmt: skip


def flow(talk: Talk, sender: str, handle: int | None, credit: int | None = CREDIT, **given: Any) -> Talk:
    """`given`: incoming, outgoing (next ids), count (delivery-count), drain, echo, window."""
    number = {"incoming": 0, "outgoing": 0, "count": 0, "window": WINDOW, **given}
    incoming = None if number["incoming"] is None else uint(number["incoming"])
    of_link = (None, None, None) if handle is None else (uint(handle), uint(number["count"]), uint(credit or 0))
    return say(
        talk, sender, P.FLOW, incoming, uint(number["window"]), uint(number["outgoing"]), uint(WINDOW), *of_link, None,
        given.get("drain", False), given.get("echo", False),
    )  # fmt: skip


def transfer(
    talk: Talk, sender: str, handle: int, number: int | None, tag: bytes | None = None, settled: bool | None = False,
    more: bool = False, body: bytes = b"x", **given: Any,
) -> Talk:  # fmt: skip
    """`tag`: by default the number. `given`: format, rcv, resume, aborted."""
    name = number.to_bytes(4, "big") if tag is None and number is not None else tag
    identity = None if number is None else uint(number)
    rcv = None if "rcv" not in given else ubyte(given["rcv"])
    form = uint(given.get("format", 0)) if number is not None or "format" in given else None
    return say(
        talk, sender, P.TRANSFER, uint(handle), identity, name, form, settled, more, rcv, None, given.get("resume"),
        given.get("aborted"), payload=data_section(body),
    )  # fmt: skip


def dispose(
    talk: Talk, sender: str, receives: bool, first: int, last: int | None = None, settled: bool = True,
    state: Any = None,
) -> Talk:  # fmt: skip
    end = None if last is None else uint(last)
    return say(talk, sender, P.DISPOSITION, receives, uint(first), end, settled, state)


def detach(talk: Talk, sender: str, handle: int, closed: bool = True, why: Any = None) -> Talk:
    return say(talk, sender, P.DETACH, uint(handle), closed, why)


def end(talk: Talk, sender: str, why: Any = None) -> Talk:
    return say(talk, sender, P.END, why)


def sender_link(
    talk: Talk | None = None, server: dict[str, Any] | None = None, window: int = WINDOW, **client: Any
) -> Talk:
    """The client sends over link 's', handle 0, with credit."""
    talk = attach(begun() if talk is None else talk, "client", "s", 0, False, **client)
    talk = attach(talk, "server", "s", 0, True, **{**client, "count": None, **(server or {})})
    return flow(talk, "server", 0, window=window)


def receiver_link(talk: Talk | None = None, credit: int = CREDIT, **given: Any) -> Talk:
    """The client receives over link 'r', handle 1, with credit."""
    talk = attach(begun() if talk is None else talk, "client", "r", 1, True, **given)
    talk = attach(talk, "server", "r", 1, False, **given)
    return flow(talk, "client", 1, credit)


def accepted(talk: Talk, sender: str, receives: bool, first: int, last: int | None = None) -> Talk:
    return dispose(talk, sender, receives, first, last, True, described(P.ACCEPTED))


def closed(talk: Talk) -> Talk:
    """Both closes, and the end of the TCP connection."""
    say(talk, "client", P.CLOSE, channel=0)
    return say(talk, "server", P.CLOSE, channel=0).fin()
