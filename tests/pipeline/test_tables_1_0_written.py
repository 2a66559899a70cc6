"""Links and messages of AMQP 1.0 in connections written by hand.

Performatives are as qpid-proton encodes them; packet n of a connection is captured n microseconds after it began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import encode_1_0 as P
import proton
import pytest
from encode_1_0 import described, encoded, frame, performative, performative_frame
from pyspark.sql import SparkSession
from test_amqp_1_0_streams import HEADER, OPEN, SASL_HEADER, sections_of
from wire import CLIENT, SERVER, Wire, Written, give_up

uint, ubyte = proton.uint, proton.ubyte
SENDS, RECEIVES = False, True
DECLARE = b"\x00\x53\x77\x00\x53\x31\x45"  # the message that asks for a transaction: an amqp-value of it (4.5.3)


def begin(remote: int | None = None, channel: int = 0) -> bytes:
    windows = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
    return performative_frame(P.BEGIN, channel, remote_channel=remote, **windows)


def attach(
    name: str, handle: int, role: bool, source: str = "", target: str = "", coordinator: bool = False,
    distribution: str = "", channel: int = 0, unsettled: dict[bytes, Any] | None = None, incomplete: bool | None = None,
) -> bytes:  # fmt: skip
    mode = [None] * 5 + [proton.symbol(distribution)] if distribution else []
    return performative_frame(
        P.ATTACH, channel, name=name, handle=handle, role=role, source=described(P.SOURCE, source or None, *mode),
        target=described(P.COORDINATOR) if coordinator else described(P.TARGET, target or None), unsettled=unsettled,
        incomplete_unsettled=incomplete, initial_delivery_count=None if role else 0,
    )  # fmt: skip


def moved(
    number: int, handle: int = 0, body: bytes = b"x", more: bool = False, settled: bool | None = None,
    aborted: bool = False, first: bool = True, payload: bytes | None = None, within: bytes | None = None,
    tag: bytes = b"\x01\xff", resume: bool | None = None, outcome: Any = None, channel: int = 0,
) -> bytes:  # fmt: skip
    """A transfer; `first` False: one more of the delivery on the handle; `within` a transaction."""
    begins = {"delivery_id": number, "delivery_tag": tag} if first else {}
    return performative_frame(
        P.TRANSFER, channel, sections_of(body) if payload is None else payload, handle=handle, **begins,
        settled=settled, more=more, state=outcome if within is None else described(P.TRANSACTIONAL, within),
        resume=resume, aborted=aborted,
    )  # fmt: skip


def disposed(
    role: bool, first: int, last: int | None = None, settled: bool = True, outcome: Any = None, channel: int = 0
) -> bytes:
    return performative_frame(P.DISPOSITION, channel, role=role, first=first, last=last, settled=settled, state=outcome)


def flow(
    delivery_count: int | None = 0, credit: int | None = None, drain: bool = False, handle: int = 0,
    echo: bool | None = None, window: int = 9,
) -> bytes:  # fmt: skip
    """Without credit, of the session only."""
    link = {"handle": handle, "delivery_count": delivery_count, "link_credit": credit, "drain": drain}
    windows = {"incoming_window": window, "next_outgoing_id": 0, "outgoing_window": 9}
    return performative_frame(P.FLOW, **windows, **({} if credit is None else link), echo=echo)


def detach(handle: int, error: Any = None, closed: bool = True) -> bytes:
    return performative_frame(P.DETACH, handle=handle, closed=closed, error=error)


def opened() -> Wire:
    wire = Wire()
    wire.add(CLIENT, HEADER + OPEN + begin())
    wire.add(SERVER, HEADER + OPEN + begin(0))
    return wire


def sending(name: str = "l", handle: int = 0, address: str = "q") -> Wire:
    """A connection with a sender of the client."""
    wire = opened()
    wire.add(CLIENT, attach(name, handle, SENDS, target=address))
    wire.add(SERVER, attach(name, handle, RECEIVES, target=address))
    return wire


def receiving(address: str = "q") -> Wire:
    wire = opened()
    wire.add(CLIENT, attach("l", 0, RECEIVES, source=address))
    wire.add(SERVER, attach("l", 0, SENDS, source=address))
    return wire


def scripts() -> dict[str, Wire]:
    wires = {}

    wire = wires["recycled handle"] = sending("a", address="first")
    wire.add(CLIENT, moved(0) + detach(0))
    wire.add(SERVER, detach(0) + disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, attach("b", 0, SENDS, target="second"))
    wire.add(SERVER, attach("b", 7, RECEIVES, target="second"))
    wire.add(SERVER, flow(None, 30, handle=7))
    wire.add(CLIENT, moved(1) + moved(2) + detach(0))
    wire.add(SERVER, detach(7, described(P.ERROR, proton.symbol("amqp:not-found"), "gone")))

    # The second time, the other side attaches first; the third time, before the first attach is answered.
    wire = wires["attached by both sides"] = sending()
    wire.add(CLIENT, moved(0) + detach(0))
    wire.add(SERVER, detach(0) + attach("l", 1, RECEIVES, target="q"))
    wire.add(CLIENT, attach("l", 1, SENDS, target="q") + moved(1, 1) + detach(1))
    wire.add(SERVER, detach(1))
    wire.add(CLIENT, attach("l", 2, SENDS, target="q") + detach(2) + attach("l", 3, SENDS, target="q") + moved(2, 3))
    wire.add(SERVER, attach("l", 2, RECEIVES, target="q") + detach(2) + attach("l", 3, RECEIVES, target="q"))

    # Names in a directory; only SCRAM has escapes.
    for mechanism, login in (("SCRAM-SHA-256", b"n,,n=cn=3Dann=2Co=3Da=3D2C,r=abc"), ("PLAIN", b"\0a=2Cb\0secret")):
        wire = wires[f"login with {mechanism}"] = Wire()
        wire.add(CLIENT, SASL_HEADER)
        wire.add(SERVER, SASL_HEADER + frame(performative(P.MECHANISMS, proton.symbol(mechanism)), kind=P.SASL))
        wire.add(CLIENT, frame(performative(P.INIT, proton.symbol(mechanism), login), kind=P.SASL))

    wire = wires["ranges"] = receiving()
    numbers = [2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2, 3]
    wire.add(SERVER, b"".join(moved(number) for number in numbers))
    wire.add(CLIENT, disposed(RECEIVES, 2**32 - 2, 0, outcome=described(P.ACCEPTED)))  # over the highest number
    wire.add(CLIENT, disposed(RECEIVES, 2**32 - 3, outcome=described(P.MODIFIED)))
    wire.add(
        CLIENT,
        disposed(RECEIVES, 1, outcome=described(P.REJECTED)) + disposed(RECEIVES, 2, outcome=described(P.RELEASED)),
    )

    wire = wires["second"] = receiving()
    wire.add(SERVER, moved(0) + moved(1) + moved(2))
    wire.add(CLIENT, disposed(RECEIVES, 0, 1, settled=False, outcome=described(P.ACCEPTED)))
    wire.add(SERVER, disposed(SENDS, 0))  # settles with the receiver's outcome
    wire.add(SERVER, disposed(SENDS, 2))  # without an outcome of the receiver

    wire = wires["credit"] = receiving()
    for begun, granted in ((None, 2), (2, 1)):
        wire.add(CLIENT, flow(begun, granted))
        for number in range(granted):
            wire.add(SERVER, moved(number + (begun or 0)))
    wire.add(CLIENT, detach(0))

    wire = wires["no credit"] = receiving()  # attached in packets 5 and 6
    wire.add(CLIENT, detach(0))
    wire.add(SERVER, detach(0))

    # Four allowed, one comes, the sender gives up the rest; one more is allowed, it comes, and nothing after it.
    wire = wires["drain"] = receiving()
    wire.add(CLIENT, flow(0, 4, drain=True))  # packet 7, after the attaches
    wire.add(SERVER, moved(0))
    wire.add(SERVER, flow(4, 0, drain=True))  # packet 9
    wire.add(CLIENT, flow(4, 1))  # packet 10
    wire.add(SERVER, moved(1))  # packet 11
    wire.add(CLIENT, flow())
    wire.add(CLIENT, frame(performative(P.END)))  # packet 13

    wire = wires["refused login"] = Wire()
    wire.add(CLIENT, SASL_HEADER + frame(performative(P.INIT, proton.symbol("PLAIN"), b"\0u\0p"), kind=P.SASL))
    wire.add(SERVER, SASL_HEADER + frame(performative(P.OUTCOME, ubyte(1)), kind=P.SASL))

    wire = wires["window of 0"] = receiving()
    wire.add(SERVER, flow(window=0))  # packet 7
    wire.add(SERVER, flow(window=0))
    wire.add(CLIENT, flow(window=0))  # blocks the server
    wire.add(SERVER, flow(window=3))  # packet 10
    wire.add(SERVER, flow(window=0))  # packet 11
    wire.add(SERVER, frame(performative(P.END)))  # packet 12
    wire.add(CLIENT, frame(performative(P.END)))

    wire = wires["parts"] = sending()
    sections = sections_of(b"abcdef")
    wire.add(
        CLIENT, moved(0, payload=sections[:9], more=True) + moved(0, payload=sections[9:], first=False, settled=True)
    )
    wire.add(CLIENT, moved(1, payload=sections[:9], more=True) + moved(1, payload=b"", first=False, aborted=True))
    wire.add(CLIENT, moved(2))

    # Settled with the first transfer; a delivery may still be given up until the last one (2.7.5).
    wire = wires["settled early"] = sending()
    wire.add(
        CLIENT, moved(0, payload=sections[:9], more=True, settled=True) + moved(0, payload=sections[9:], first=False)
    )
    wire.add(CLIENT, moved(1, payload=sections[:9], more=True, settled=True))
    wire.add(CLIENT, moved(1, payload=b"", first=False, aborted=True))
    wire.add(CLIENT, moved(2, payload=sections[:9], more=True, settled=True))

    # The receiver has nothing to settle then, whatever it sends meanwhile.
    wire = wires["settled early and accepted"] = sending()
    for number in (0, 1):
        wire.add(CLIENT, moved(number, payload=sections[:9], more=True, settled=True))
        wire.add(SERVER, disposed(RECEIVES, number, outcome=described(P.REJECTED)))
        last = {"payload": b"", "aborted": True} if number else {"payload": sections[9:]}
        wire.add(CLIENT, moved(number, first=False, **last))
    wire.add(CLIENT, moved(2, payload=sections[:9], more=True, settled=True))
    wire.add(SERVER, disposed(RECEIVES, 0, 2, outcome=described(P.REJECTED)))

    # Either side may say how the source hands out messages; the server, whose it is, decides.
    wire = wires["browsing"] = opened()
    for handle, (asked, answered) in enumerate([("copy", ""), ("copy", "move"), ("move", "copy"), ("", "")]):
        wire.add(CLIENT, attach(f"{handle}", handle, RECEIVES, source="q", distribution=asked))
        wire.add(SERVER, attach(f"{handle}", handle, SENDS, source="q", distribution=answered) + moved(handle, handle))

    wire = wires["transaction"] = receiving()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES) + moved(0) + moved(1))
    within = described(P.TRANSACTIONAL, b"T", described(P.ACCEPTED))
    wire.add(CLIENT, disposed(RECEIVES, 0, 1, outcome=within) + moved(0, 1, payload=discharge(fail=True)))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, disposed(RECEIVES, 1, outcome=within) + moved(1, 1, payload=discharge()))
    wire.add(SERVER, disposed(RECEIVES, 1, outcome=described(P.ACCEPTED)))

    # Its sender settles the first message with the transfer, and aborts the second.
    wire = wires["settled by its sender in a transaction"] = sending()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES, coordinator=True))
    wire.add(CLIENT, moved(0, within=b"T", settled=True) + moved(1, within=b"T", more=True))
    wire.add(CLIENT, moved(1, within=b"T", first=False, aborted=True) + moved(2, 1, payload=discharge(fail=True)))
    wire.add(SERVER, disposed(RECEIVES, 2, outcome=described(P.ACCEPTED)))

    # Accepted in the transaction and settled after it, once without and once with the outcome again (4.4.2).
    wire = wires["settled after the commit"] = receiving()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES) + moved(0) + moved(1))
    wire.add(CLIENT, disposed(RECEIVES, 0, 1, settled=False, outcome=within) + moved(0, 1, payload=discharge()))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, disposed(RECEIVES, 0) + disposed(RECEIVES, 1, outcome=described(P.ACCEPTED)))

    wire = wires["coordinator"] = sending()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES, coordinator=True))
    wire.add(CLIENT, moved(0, 1, payload=DECLARE))  # packet 9
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.DECLARED, b"T")))  # packet 10
    wire.add(CLIENT, moved(1, within=b"T"))
    wire.add(SERVER, disposed(RECEIVES, 1, outcome=described(P.TRANSACTIONAL, b"T", described(P.ACCEPTED))))
    wire.add(CLIENT, moved(2, 1, payload=discharge()))  # packet 13
    wire.add(SERVER, b"")
    wire.add(SERVER, disposed(RECEIVES, 2, outcome=described(P.REJECTED)))  # packet 15
    wire.add(CLIENT, moved(3, 1, payload=DECLARE))  # nobody answers

    # Both commands take two transfers; so does the message.
    wire = wires["commands in parts"] = sending()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES, coordinator=True))
    wire.add(CLIENT, moved(0, 1, payload=DECLARE[:4], more=True) + moved(0, 1, payload=DECLARE[4:], first=False))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.DECLARED, b"T")))  # packet 10
    sections = sections_of(b"abcdef")
    wire.add(CLIENT, moved(1, payload=sections[:9], more=True, within=b"T"))
    wire.add(CLIENT, moved(1, payload=sections[9:], first=False, within=b"T"))
    wire.add(SERVER, disposed(RECEIVES, 1, outcome=described(P.TRANSACTIONAL, b"T", described(P.ACCEPTED))))
    wire.add(CLIENT, moved(2, 1, payload=discharge()[:9], more=True))  # packet 14
    wire.add(CLIENT, moved(2, 1, payload=discharge()[9:], first=False))
    wire.add(SERVER, disposed(RECEIVES, 2, outcome=described(P.ACCEPTED)))  # packet 16

    # Two control links, each with one transaction; then the link of S ends in some way, or none does.
    for way, ends in {
        "is closed": detach(1), "is closed after a discharge": moved(6, 1, payload=discharge(name=b"S")) + detach(1),
        "is detached": detach(1, closed=False), "ends with its session": frame(performative(P.END)),
        "ends with its connection": frame(performative(P.CLOSE)), "stays": b"",
    }.items():  # fmt: skip
        wire = wires[f"control link {way}"] = sending()
        for handle, name in ((1, b"S"), (2, b"T")):
            wire.add(CLIENT, attach(name.decode(), handle, SENDS, coordinator=True))
            wire.add(SERVER, attach(name.decode(), handle, RECEIVES, coordinator=True))
            wire.add(CLIENT, moved(handle - 1, handle, payload=DECLARE))
            wire.add(SERVER, disposed(RECEIVES, handle - 1, outcome=described(P.DECLARED, name)))
        wire.add(CLIENT, moved(2, within=b"S") + moved(3, within=b"T") + ends)

    # Messages b to f of link l, another b of link m. Packets 7 and 9 have the first transfers.
    wire = wires["resumed"] = sending()
    wire.add(CLIENT, attach("m", 1, SENDS, target="q") + moved(0, 0, tag=b"b") + moved(1, 1, tag=b"b"))
    wire.add(SERVER, attach("m", 1, RECEIVES, target="q"))
    wire.add(CLIENT, moved(2, tag=b"c") + moved(3, tag=b"d") + moved(4, tag=b"e") + moved(5, tag=b"f"))
    wire.add(SERVER, disposed(RECEIVES, 2, settled=False, outcome=described(P.REJECTED)))
    wire.add(CLIENT, detach(0, closed=False))
    wire.add(SERVER, detach(0, closed=False))
    wire.add(CLIENT, attach("l", 0, SENDS, target="q"))
    wire.add(SERVER, attach("l", 0, RECEIVES, target="q"))
    again: dict[str, Any] = {"payload": b"", "resume": True}
    wire.add(CLIENT, moved(6, settled=True, tag=b"b", outcome=described(P.ACCEPTED), **again))  # packet 15
    wire.add(CLIENT, moved(7, settled=True, tag=b"c", **again) + moved(8, tag=b"d", resume=True))
    wire.add(CLIENT, moved(9, settled=True, tag=b"e", **again) + moved(10, settled=True, tag=b"f"))
    wire.add(SERVER, disposed(RECEIVES, 8, outcome=described(P.MODIFIED)))  # packet 18

    # Listed with an outcome by the receiver, or as what was received so far; the first two are resumed as settled.
    wire = wires["listed"] = sending()
    wire.add(CLIENT, moved(0, tag=b"a") + moved(1, tag=b"b") + moved(2, tag=b"c") + moved(3, tag=b"d"))
    wire.add(CLIENT, detach(0, closed=False))
    wire.add(SERVER, detach(0, closed=False))
    wire.add(CLIENT, attach("l", 0, SENDS, target="q", unsettled=dict.fromkeys((b"a", b"b", b"c", b"d"))))
    listed = {
        b"a": described(P.ACCEPTED), b"b": described(0x23, uint(0), proton.ulong(1)), b"c": described(P.REJECTED),
        b"d": None,
    }  # fmt: skip
    wire.add(SERVER, attach("l", 0, RECEIVES, target="q", unsettled=listed))
    wire.add(CLIENT, moved(4, settled=True, tag=b"a", **again) + moved(5, settled=True, tag=b"b", **again))  # packet 12

    # Deliveries a to d; what the sender lists on the next attach, and the receiver.
    every: dict[bytes, Any] = dict.fromkeys((b"a", b"b", b"c", b"d"))
    for script, sends, receives in (
        ("listed by the receiver alone", {b"c": None, b"d": None}, every | {b"a": described(P.ACCEPTED)}),
        ("listed by the sender alone", every, {b"a": None, b"b": None}),
        ("listed by nobody", {}, {}), ("without lists", None, None),
    ):  # fmt: skip
        wire = wires[script] = sending()
        wire.add(CLIENT, b"".join(moved(number, tag=tag) for number, tag in enumerate(every)))
        wire.add(CLIENT, detach(0, closed=False))
        wire.add(SERVER, detach(0, closed=False))
        wire.add(CLIENT, attach("l", 0, SENDS, target="q", unsettled=sends))
        wire.add(SERVER, attach("l", 0, RECEIVES, target="q", unsettled=receives))
        wire.add(CLIENT, moved(4, tag=b"c"))

    # Nothing is missing in a map that is not complete; a link that is closed is not resumed.
    for script, closes in (("not in an incomplete list", False), ("not in the list of a new link", True)):
        wire = wires[script] = sending()
        wire.add(CLIENT, moved(0, tag=b"a") + detach(0, closed=closes))
        wire.add(SERVER, detach(0, closed=closes))
        wire.add(CLIENT, attach("l", 0, SENDS, target="q", unsettled={}, incomplete=not closes))

    # Listed and resumed, before the other side has sent its list, then left out.
    wire = wires["left out the second time"] = sending()
    wire.add(CLIENT, moved(0, tag=b"a") + moved(1, tag=b"b") + detach(0, closed=False))
    wire.add(SERVER, detach(0, closed=False))
    wire.add(CLIENT, attach("l", 0, SENDS, target="q", unsettled={b"a": None, b"b": None}))
    wire.add(CLIENT, moved(2, tag=b"a", resume=True) + moved(3, tag=b"b", resume=True))
    wire.add(SERVER, attach("l", 0, RECEIVES, target="q", unsettled={b"a": None, b"b": None}) + detach(0, closed=False))
    wire.add(CLIENT, detach(0, closed=False) + attach("l", 0, SENDS, target="q", unsettled={b"b": None}))

    # The link comes again with another session; then the delivery is resumed twice.
    wire = wires["resumed in another session"] = receiving()
    wire.add(SERVER, moved(7))  # packet 7
    wire.add(CLIENT, frame(performative(P.END)))
    wire.add(SERVER, frame(performative(P.END)))
    wire.add(CLIENT, begin(channel=3) + attach("l", 4, RECEIVES, source="q", channel=3))
    wire.add(SERVER, begin(3, channel=5) + attach("l", 2, SENDS, source="q", channel=5))
    wire.add(SERVER, moved(0, 2, resume=True, channel=5) + moved(1, 2, resume=True, channel=5))
    wire.add(CLIENT, disposed(RECEIVES, 1, outcome=described(P.RELEASED), channel=3))  # packet 13

    wire = wires["lost first part"] = sending()
    sections = sections_of(b"a" * 90)
    wire.lose(CLIENT, len(moved(0, payload=sections[:30], more=True)))
    wire.add(CLIENT, moved(0, payload=sections[30:60], first=False, more=True))
    wire.add(CLIENT, moved(0, payload=sections[60:], first=False))
    give_up(wire, CLIENT)
    wire.add(CLIENT, moved(1))

    # The attach of the coordinator's link came before the capture.
    wire = wires["known by the body"] = sending()
    wire.add(CLIENT, moved(0, 5, payload=DECLARE) + moved(1, 6) + moved(2))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.DECLARED, b"T")))

    wire = wires["empty frames"] = opened()
    wire.add(CLIENT, frame(b"") * 3)
    wire.add(SERVER, frame(b""))

    # The number of an ended session is begun again at once; the server goes on with the first one until its own end.
    ended, accepted, rejected = frame(performative(P.END)), described(P.ACCEPTED), described(P.REJECTED)
    second = begin() + attach("b", 0, SENDS, target="second") + moved(0)
    wire = wires["begun before the end is answered"] = sending("a", address="first")
    wire.add(CLIENT, moved(0) + ended + second)  # packet 7
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=rejected) + ended)
    wire.add(SERVER, begin(0) + attach("b", 0, RECEIVES, target="second") + disposed(RECEIVES, 0, outcome=accepted))
    wire.add(CLIENT, ended)  # packet 10
    wire.add(SERVER, ended)

    # Two sessions of one number, both before the server has answered; it gives them numbers of its own.
    wire = wires["begun twice before an answer"] = Wire()
    wire.add(CLIENT, HEADER + OPEN + begin() + attach("a", 0, SENDS, target="first") + moved(0) + ended + second)
    wire.add(SERVER, HEADER + OPEN)
    for channel, link, outcome in ((4, "a", rejected), (5, "b", accepted)):
        wire.add(SERVER, begin(0, channel) + attach(link, 0, RECEIVES, channel=channel))
        wire.add(SERVER, disposed(RECEIVES, 0, outcome=outcome, channel=channel))

    # Of more than two the outcome belongs to none of the others.
    wire = wires["begun three times before an answer"] = Wire()
    wire.add(CLIENT, HEADER + OPEN + (begin() + moved(0) + ended) * 2 + begin() + moved(0))
    wire.add(SERVER, HEADER + OPEN + begin(0, 4) + disposed(RECEIVES, 0, outcome=rejected, channel=4))

    # Properties, and no body; no section at all; no body, over two transfers.
    subject = b"\x00\x53\x73" + encoded([None, None, None, "s"])
    wire = wires["no body"] = sending()
    wire.add(CLIENT, moved(0, payload=subject) + moved(1, payload=b""))
    wire.add(CLIENT, moved(2, payload=subject[:5], more=True) + moved(2, payload=subject[5:], first=False))
    wire.add(CLIENT, moved(3, payload=subject[:5]))  # it ends inside of a section

    wire = wires["lost answer"] = sending()
    wire.add(CLIENT, moved(0) + moved(1))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)))
    wire.lose(SERVER, len(disposed(RECEIVES, 1, outcome=described(P.ACCEPTED))))
    wire.add(SERVER, flow() * 2)
    give_up(wire, SERVER)
    wire.add(CLIENT, moved(2))

    wire = wires["lost detach"] = sending("a", address="first")
    wire.add(CLIENT, moved(0))
    wire.lose(CLIENT, len(detach(0) + attach("b", 0, SENDS, target="second")))
    wire.add(CLIENT, moved(1) + moved(2))

    # Both transactions have the name T; the request that rolls back the first one is lost, not its answer.
    wire = wires["lost discharge"] = sending()
    wire.add(CLIENT, attach("t", 1, SENDS, coordinator=True))
    wire.add(SERVER, attach("t", 1, RECEIVES, coordinator=True))
    wire.add(CLIENT, moved(0, within=b"T"))
    wire.lose(CLIENT, len(moved(1, 1, payload=discharge(fail=True))))
    wire.add(SERVER, disposed(RECEIVES, 0, 1, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, moved(2, 1, payload=DECLARE))
    give_up(wire, CLIENT)
    wire.add(SERVER, disposed(RECEIVES, 2, outcome=described(P.DECLARED, b"T")))
    wire.add(CLIENT, moved(3, within=b"T") + moved(4, 1, payload=discharge()))
    wire.add(SERVER, disposed(RECEIVES, 3, 4, outcome=described(P.ACCEPTED)))

    # What the server sent before it answered the end is lost.
    wire = wires["lost end"] = sending()
    wire.add(CLIENT, moved(0) + frame(performative(P.END)))
    wire.lose(SERVER, len(disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)) + frame(performative(P.END))))
    give_up(wire, SERVER)
    wire.add(SERVER, frame(b""))

    # Neither begin was captured, and the sides have given the session different numbers.
    wire = wires["other numbers"] = Wire()
    for side, channel in ((CLIENT, 0), (SERVER, 5)):
        wire.add(side, HEADER + OPEN)
        wire.lose(side, len(begin(None if side == CLIENT else 0, channel)))
    for side in (CLIENT, SERVER):
        give_up(wire, side)
        wire.add(side, frame(b"") * 2)
    wire.add(CLIENT, moved(0))
    wire.add(SERVER, frame(performative(P.DISPOSITION, RECEIVES, uint(0), None, True, described(P.REJECTED)), 5))

    # Without the begin of the server nothing tells which of its channels answers that of the client.
    wire = wires["lost begin"] = Wire()
    wire.add(CLIENT, HEADER + OPEN + begin())
    wire.add(SERVER, HEADER + OPEN)
    wire.lose(SERVER, len(begin(0)))
    wire.add(CLIENT, attach("s", 0, SENDS, target="q") + attach("r", 1, RECEIVES, source="q") + moved(0))
    give_up(wire, SERVER)
    wire.add(SERVER, attach("s", 0, RECEIVES, target="q") + attach("r", 1, SENDS, source="q") + moved(0, 1))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, disposed(RECEIVES, 0, outcome=described(P.RELEASED)))

    # Packets 7 to 9: the second attach was sent before the end arrived.
    wire = wires["attached after the end"] = sending()
    wire.add(SERVER, frame(performative(P.END, described(P.ERROR, proton.symbol("amqp:not-found"), "gone"))))
    wire.add(CLIENT, attach("late", 1, SENDS, target="other"))
    wire.add(CLIENT, frame(performative(P.END)))

    # Packets 1 to 12; the server opens the second link, whose detach is not answered, and closes the connection.
    wire = wires["requests"] = sending()
    wire.add(SERVER, attach("r", 1, SENDS, source="q"))
    wire.add(CLIENT, attach("r", 5, RECEIVES, source="q"))
    wire.add(CLIENT, detach(0))
    wire.add(SERVER, detach(1))
    wire.add(SERVER, detach(0))
    wire.add(CLIENT, frame(performative(P.END)))
    wire.add(SERVER, frame(performative(P.END)) + frame(performative(P.CLOSE)))
    wire.add(CLIENT, frame(performative(P.CLOSE)))

    # Packets from 7 on. The handle of link 'l' is 0 on both sides, that of link 'r' is 1 and 5.
    wire = wires["echo"] = sending()
    wire.add(SERVER, attach("r", 1, SENDS, source="q"))
    wire.add(CLIENT, attach("r", 5, RECEIVES, source="q"))
    wire.add(CLIENT, flow(0, 2, handle=5, echo=True))  # 9
    wire.add(SERVER, flow(0, 4, handle=0) + flow())  # of another link, of the session
    wire.add(CLIENT, flow(0, 3, handle=5, echo=True))  # once more
    wire.add(SERVER, flow(0, 3, handle=1))  # 12
    wire.add(CLIENT, flow(echo=True))
    wire.add(CLIENT, flow(0, 3, handle=5))  # of the same side
    wire.add(SERVER, flow(0, 3, handle=1, echo=True))  # 15, of any link
    wire.add(CLIENT, flow(0, 3, handle=5))
    wire.add(SERVER, flow(0, 3, handle=1, echo=True))  # 17, whose reply may be lost
    wire.lose(CLIENT, len(flow(0, 3, handle=5)))
    wire.add(CLIENT, flow(0, 3, handle=5))

    # Of the first two transfers only content is missing; of the fourth, its handle.
    wire = wires["lost bodies"] = sending()
    wire.add(SERVER, flow(0, 3))
    for number in range(2):
        message = moved(number, body=bytes(100))
        wire.add(CLIENT, message[:-90])
        wire.lose(CLIENT, 90)
    wire.add(CLIENT, moved(2) + flow(3, 0))
    wire.add(SERVER, disposed(RECEIVES, 0, 2, outcome=described(P.ACCEPTED)))
    wire.add(CLIENT, moved(3)[:14])
    wire.lose(CLIENT, len(moved(3)) - 14)
    wire.add(CLIENT, moved(4))
    return wires


def discharge(fail: bool = False, name: bytes = b"T") -> bytes:
    """The message that asks for the end of a transaction (4.5.4)."""
    return b"\x00\x53\x77" + encoded(described(P.DISCHARGE, name, fail))


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    found = Written(spark, tmp_path_factory.mktemp("wires") / "wires.pcap", scripts())
    yield found
    found.tables.release()


def test_a_recycled_handle_stands_for_one_link_after_the_other(written: Written) -> None:
    links = written.rows("links", "recycled handle", "name", "handle", "address", "transfers", "credit", "error")
    assert links == [("a", 0, "first", 1, None, None), ("b", 0, "second", 2, 30, "amqp:not-found: gone")]
    messages = written.rows("messages", "recycled handle", "link", "address", "outcome", "delivery_tag_hex")
    assert messages == [("a", "first", "confirmed", "01ff"), *[("b", "second", "unsettled", "01ff")] * 2]


def test_a_link_that_both_sides_have_detached_is_attached_by_either(written: Written) -> None:
    links = written.rows("links", "attached by both sides", "handle", "transfers")
    assert links == [(0, 1), (1, 1), (2, 0), (3, 1)]


def test_user_names_are_those_that_scram_escapes(written: Written) -> None:
    assert written.rows("connections", "login with SCRAM-SHA-256", "user") == [("cn=ann,o=a=2C",)]
    assert written.rows("connections", "login with PLAIN", "user") == [("a=2Cb",)]


def test_ranges_of_a_disposition_pass_the_highest_number(written: Written) -> None:
    rows = written.rows("messages", "ranges", "delivery_id", "outcome")
    assert [outcome for _, outcome in rows] == ["modified", *["acked"] * 3, "rejected", "released", "unsettled"]
    assert rows[0][0] == 4294967293
    counts = written.rows("channels", "ranges", "delivered", "acked", "rejected", "requeued", "unsettled")
    assert counts == [(7, 3, 1, 2, 1)]


def test_the_sender_settles_with_the_outcome_of_the_receiver(written: Written) -> None:
    rows = written.rows("messages", "second", "outcome", "settle_latency_ns")
    # Sent in packet 7, accepted in packet 8, settled in 9; 1 us from packet to packet. Nobody settles the second.
    assert rows == [("acked", 2000), ("acked", None), ("unknown", 3000)]


def test_time_without_credit_is_added_up(written: Written) -> None:
    # Packets of the link, 1 us apart: attach, attach, flow (2), delivery, delivery, flow (1), delivery, detach. No
    # credit remains before the first flow, from the second delivery to the second flow, and after the third delivery.
    assert written.rows("links", "credit", "credit", "transfers", "no_credit_ns") == [(3, 3, 2000 + 1000 + 1000)]


def test_a_refused_login_has_its_outcome_for_a_text(written: Written) -> None:
    """sasl-code 1 is auth (1.0 core specification, 5.3.3.6)."""
    columns = ("state", "user", "close_initiator", "close_code", "close_text")
    assert written.rows("connections", "refused login", *columns) == [("secure", "u", None, None, "sasl-outcome: auth")]


def test_a_window_of_0_of_the_server_blocks_the_connection(written: Written) -> None:
    assert written.rows("connections", "window of 0", "blocked_ns") == [((10 - 7 + 12 - 11) * 1000,)]
    assert written.rows("connections", "no credit", "blocked_ns") == [(0,)]


def test_time_without_credit_ends_with_the_first_detach(written: Written) -> None:
    assert written.rows("links", "no credit", "no_credit_ns") == [((7 - 5) * 1000,)]


def test_credit_that_the_sender_gave_up_is_gone(written: Written) -> None:
    # From the first attach (packet 5) to the flow, from giving up to the next flow, from the last delivery to the end.
    assert written.rows("links", "drain", "no_credit_ns") == [(((7 - 5) + (10 - 9) + (13 - 11)) * 1000,)]


def test_time_without_credit_is_not_known_where_bytes_are_missing(written: Written) -> None:
    assert written.rows("links", "lost answer", "no_credit_ns") == [(None,)]


def test_a_delivery_may_settle_itself_late_or_be_given_up(written: Written) -> None:
    columns = ("outcome", "complete", "body_size", "first_frame_no", "last_frame_no")
    rows = written.rows("messages", "parts", *columns)
    first = rows[0][3]
    assert rows == [
        ("presettled", True, 6, first, first + 1),
        ("aborted", False, None, first + 2, first + 3),
        ("unsettled", True, 1, first + 4, first + 4),
    ]


def test_a_delivery_that_was_settled_early_may_be_given_up(written: Written) -> None:
    rows = written.rows("messages", "settled early", "outcome", "complete")
    assert rows == [("presettled", True), ("aborted", False), ("presettled", False)]


def test_a_delivery_that_its_sender_settled_is_not_settled_by_its_receiver(written: Written) -> None:
    """Transport 2.7.5: once settled is true on any transfer of a delivery, the delivery is settled."""
    rows = written.rows("messages", "settled early and accepted", "outcome")
    assert rows == [("presettled",), ("aborted",), ("presettled",)]


def test_what_may_have_been_settled_before_a_lost_end_is_unknown(written: Written) -> None:
    assert written.rows("messages", "lost end", "outcome") == [("unknown",)]


def test_sessions_of_two_channel_numbers_without_a_begin_are_not_joined(written: Written) -> None:
    assert written.rows("messages", "other numbers", "channel", "outcome") == [(0, "unknown")]


def test_a_number_that_is_begun_again_before_the_end_is_answered_names_two_sessions(written: Written) -> None:
    """2.5.5: a side that has sent an end has no outgoing channel for the session, and still receives its frames."""
    script = "begun before the end is answered"
    rows = written.rows("messages", script, "channel_incarnation", "link", "outcome")
    assert rows == [(1, "a", "rejected"), (2, "b", "confirmed")]
    columns = ("channel_incarnation", "remote_channel", "close_initiator", "confirmed", "nacked")
    assert written.rows("channels", script, *columns) == [(1, 0, "client", 0, 1), (2, 0, "client", 1, 0)]
    rows = written.rows("links", script, "name", "opened_ts", "closed_ts")
    assert [closed.microsecond for _, _, closed in rows] == [7, 10]


def test_begins_of_one_number_are_answered_in_order(written: Written) -> None:
    script = "begun twice before an answer"
    rows = written.rows("messages", script, "channel_incarnation", "link", "outcome")
    assert rows == [(1, "a", "rejected"), (2, "b", "confirmed")]
    assert sorted(written.rows("channels", script, "channel_incarnation", "remote_channel")) == [(1, 4), (2, 5)]
    assert {link for (link,) in written.rows("links", script, "name")} == {"a", "b"}
    rows = written.rows("messages", "begun three times before an answer", "channel_incarnation", "outcome")
    assert "rejected" not in [outcome for life, outcome in rows if life > 1]


def test_a_transaction_that_is_rolled_back_settles_nothing(written: Written) -> None:
    rows = written.rows("messages", "transaction", "operation", "outcome", "transaction")
    assert rows[:2] == [("deliver", "unsettled", "rolled-back"), ("deliver", "acked", "committed")]
    assert written.rows("channels", "transaction", "mode") == [("tx",)]


def test_a_rollback_does_not_undo_what_the_sender_itself_has_settled(written: Written) -> None:
    """2.6.12: the sender forgets a delivery that it settles. Nothing is to come for it."""
    script = "settled by its sender in a transaction"
    rows = written.rows("messages", script, "outcome", "transaction")
    assert rows == [("presettled", "rolled-back"), ("aborted", "rolled-back")]
    assert written.rows("channels", script, "published", "unsettled") == [(2, 0)]


@pytest.mark.parametrize(
    ("way", "rolled_back"),
    [
        ("is closed", "S"), ("is closed after a discharge", ""), ("is detached", ""), ("ends with its session", "ST"),
        ("ends with its connection", "ST"), ("stays", ""),
    ],
)  # fmt: skip
def test_a_control_link_that_is_closed_rolls_back_its_transactions(
    written: Written, way: str, rolled_back: str
) -> None:
    """Part 4, 4.1; how a discharge ended that nobody answered is not known."""
    rows = written.rows("messages", f"control link {way}", "transaction")
    assert rows == [("rolled-back",) if name in rolled_back else (None,) for name in "ST"]


def test_what_was_accepted_in_a_transaction_may_be_settled_after_it(written: Written) -> None:
    rows = written.rows("messages", "settled after the commit", "outcome", "transaction")
    assert rows[:2] == [("acked", "committed")] * 2


def test_a_delivery_that_is_resumed_ends_as_its_last_transfer_says(written: Written) -> None:
    """2.6.13: tags name deliveries of one link; its next attach resumes those that were not settled."""
    rows = written.rows("messages", "resumed", "delivery_tag_hex", "resumed", "outcome", "settle_latency_ns")
    assert rows == [
        ("62", False, "confirmed", (15 - 7) * 1000), ("62", False, "unsettled", None),  # the other one is of link m
        ("63", False, "rejected", (16 - 9) * 1000), ("64", False, "modified", (18 - 9) * 1000),
        ("65", False, "unknown", (17 - 9) * 1000),  # settled without any outcome
        ("66", False, "unsettled", None),  # a new message has its tag
        ("62", True, "presettled", None), ("63", True, "presettled", None),
        ("64", True, "modified", (18 - 16) * 1000), ("65", True, "presettled", None),
        ("66", False, "presettled", None),
    ]  # fmt: skip
    assert written.rows("channels", "resumed", "published", "confirmed", "nacked", "unsettled") == [(11, 1, 3, 2)]
    rows = written.rows("messages", "resumed in another session", "channel", "resumed", "outcome", "settle_latency_ns")
    assert rows == [
        (0, False, "released", (13 - 7) * 1000), (3, True, "released", (13 - 12) * 1000),
        (3, True, "released", (13 - 12) * 1000),
    ]  # fmt: skip


def test_an_attach_states_outcomes_of_deliveries_that_it_lists(written: Written) -> None:
    """2.7.3: unsettled has delivery states by delivery-tag; not all of them are outcomes."""
    rows = written.rows("messages", "listed", "delivery_tag_hex", "outcome", "settle_latency_ns")
    assert rows == [
        ("61", "confirmed", (12 - 7) * 1000), ("62", "unknown", (12 - 7) * 1000), ("63", "rejected", None),
        ("64", "unsettled", None), ("61", "presettled", None), ("62", "presettled", None),
    ]  # fmt: skip
    assert written.rows("links", "listed", "name", "transfers") == [("l", 4), ("l", 2)]
    assert written.rows("channels", "listed", "published", "unsettled") == [(6, 1)]
    assert written.rows("connections", "listed", "messages_published") == [(6,)]


def test_what_a_complete_list_of_unsettled_deliveries_leaves_out_is_not_unsettled(written: Written) -> None:
    """2.6.13: what the sender leaves out is settled; what the receiver leaves out it has settled, or never had."""
    outcomes = {
        "listed by the receiver alone": ["confirmed", "unknown", "unsettled", "unsettled"],
        "listed by the sender alone": ["unsettled", "unsettled", "unknown", "unknown"],
        "listed by nobody": ["unknown"] * 4,
        "without lists": ["unsettled"] * 4,
    }
    for script, expected in outcomes.items():
        rows = [outcome for (outcome,) in written.rows("messages", script, "outcome")]
        assert rows == [*expected, "unsettled"], script  # the fifth is a new delivery
    assert written.rows("channels", "listed by nobody", "published", "unsettled") == [(5, 1)]


def test_an_incomplete_list_and_the_list_of_another_link_leave_nothing_out(written: Written) -> None:
    for script in ("not in an incomplete list", "not in the list of a new link"):
        assert written.rows("messages", script, "outcome") == [("unsettled",)]


def test_what_was_resumed_may_be_left_out_the_next_time(written: Written) -> None:
    rows = written.rows("messages", "left out the second time", "delivery_tag_hex", "resumed", "outcome")
    assert rows == [
        ("61", False, "unknown"), ("62", False, "unsettled"), ("61", True, "unknown"), ("62", True, "unsettled")
    ]  # fmt: skip


def test_commands_to_a_coordinator_are_methods_with_replies_and_no_messages(written: Written) -> None:
    columns = ("operation", "link", "delivery_id", "outcome", "transaction")
    assert written.rows("messages", "coordinator", *columns) == [("publish", "l", 1, "confirmed", "rolled-back")]
    asked = methods(written, "coordinator", "transaction_command", "reply_name", "reply_latency_ns")
    # Packets are 1 us apart.
    assert [row for row in asked if row[0]] == [
        ("declare", "disposition", 1000), ("discharge", "disposition", 2000), ("declare", None, None)
    ]  # fmt: skip
    others = methods(written, "coordinator", "name", "transaction_command", "reply_name")
    assert {reply for name, command, reply in others if name == "transfer" and not command} == {None}
    named = dict(methods(written, "coordinator", "frame_no", "name"))
    replies = methods(written, "coordinator", "transaction_command", "frame_no", "reply_frame_no")
    assert [named[reply] for command, _, reply in replies if command and reply] == ["disposition"] * 2
    assert written.rows("connections", "coordinator", "messages_published", "messages_delivered") == [(1, 0)]
    counts = ("mode", "published", "confirmed", "nacked", "unsettled")
    assert written.rows("channels", "coordinator", *counts) == [("tx", 1, 1, 0, 0)]
    assert written.rows("links", "coordinator", "name", "transfers") == [("l", 1), ("t", 3)]


def test_what_one_side_opens_or_ends_is_answered_by_the_other(written: Written) -> None:
    assert methods(written, "requests", "sender", "name", "reply_name", "reply_latency_ns") == [
        ("client", "open", "open", 1000),
        ("client", "begin", "begin", 1000),
        ("server", "open", None, None),
        ("server", "begin", None, None),
        ("client", "attach", "attach", 1000),
        ("server", "attach", None, None),
        ("server", "attach", "attach", 1000),
        ("client", "attach", None, None),
        ("client", "detach", "detach", 2000),
        ("server", "detach", None, None),
        ("server", "detach", None, None),
        ("client", "end", "end", 1000),
        ("server", "end", None, None),
        ("server", "close", "close", 1000),
        ("client", "close", None, None),
    ]


def test_a_flow_that_asks_for_an_echo_is_answered_by_the_next_flow(written: Written) -> None:
    """2.7.4: of the same link, or of any link of the session if only its state is asked for; one flow may answer many
    requests."""
    columns = ("sender", "name", "reply_name", "reply_latency_ns", "handle")
    rows = [row for row in methods(written, "echo", *columns) if row[1] == "flow"]
    assert [(sender, handle, name, latency) for sender, _, name, latency, handle in rows] == [
        ("client", 5, "flow", (12 - 9) * 1000),
        ("server", 0, None, None),
        ("server", None, None, None),
        ("client", 5, "flow", (12 - 11) * 1000),
        ("server", 1, None, None),
        ("client", None, "flow", (15 - 13) * 1000),
        ("client", 5, None, None),
        ("server", 1, "flow", (16 - 15) * 1000),
        ("client", 5, None, None),
        ("server", 1, None, None),
        ("client", 5, None, None),
    ]


def test_commands_to_a_coordinator_may_take_several_transfers(written: Written) -> None:
    rows = written.rows("messages", "commands in parts", "delivery_id", "outcome", "transaction")
    assert rows == [(1, "confirmed", "committed")]
    asked = methods(written, "commands in parts", "transaction_command", "reply_name", "reply_latency_ns")
    # From their first transfers, packets 9 and 14, to packets 10 and 16.
    assert [row for row in asked if row[0]] == [("declare", "disposition", 1000), ("discharge", "disposition", 2000)]
    assert written.rows("connections", "commands in parts", "messages_published") == [(1,)]
    assert written.rows("channels", "commands in parts", "published", "unsettled") == [(1, 0)]


def test_the_rest_of_a_delivery_whose_first_transfer_is_lost_is_no_message(written: Written) -> None:
    assert written.rows("messages", "lost first part", "delivery_id") == [(1,)]
    assert written.rows("connections", "lost first part", "messages_published") == [(1,)]


def test_copies_are_browsed(written: Written) -> None:
    rows = written.rows("messages", "browsing", "link", "browsed")
    assert rows == [("0", True), ("1", False), ("2", True), ("3", None)]


def test_without_a_link_the_body_tells_a_command(written: Written) -> None:
    rows = written.rows("messages", "known by the body", "delivery_id", "link")
    assert rows == [(1, None), (2, "l")]
    rows = methods(written, "known by the body", "transaction_command", "reply_name")
    assert [row for row in rows if row[0]] == [("declare", "disposition")]
    assert written.rows("connections", "known by the body", "messages_published") == [(2,)]


def test_a_transaction_that_is_rolled_back_publishes_nothing_and_commands_are_none(written: Written) -> None:
    """The two messages are deliveries; what asks for the end of their transactions is none."""
    assert len(written.rows("messages", "transaction", "operation")) == 2
    assert written.rows("connections", "transaction", "messages_published", "messages_delivered") == [(0, 2)]


def test_empty_frames_are_heartbeats_and_protocol_headers_no_frames(written: Written) -> None:
    """Each side: a protocol header, open, begin, and empty frames."""
    columns = ("client_frames", "client_heartbeats", "client_methods", "server_frames", "server_heartbeats")
    assert written.rows("connections", "empty frames", *columns) == [(2 + 3, 3, 2, 2 + 1, 1)]


def test_a_message_without_a_body_may_be_complete(written: Written) -> None:
    nothing = hashlib.sha256(b"").hexdigest()
    rows = written.rows("messages", "no body", "complete", "body_size", "body_sha256", "durable")
    assert rows == [(True, 0, nothing, None)] * 3 + [(False, None, None, None)]


def methods(written: Written, script: str, *columns: str) -> list[tuple[Any, ...]]:
    """In the order of their frames."""
    rows = written.rows("methods", script, "frame_no", *columns)
    return [row[1:] for row in sorted(rows)]


def test_an_answer_that_may_be_lost_is_unknown(written: Written) -> None:
    assert written.rows("messages", "lost answer", "outcome") == [("confirmed",), ("unknown",), ("unsettled",)]


def test_after_a_loss_a_handle_stands_for_no_link(written: Written) -> None:
    assert written.rows("messages", "lost detach", "link") == [("a",), (None,), (None,)]
    links = written.rows("links", "lost detach", "kind", "name", "handle", "transfers")
    assert links == [("sender", None, 0, 2), ("sender", "a", 0, 1)]


def test_a_link_that_is_attached_after_the_end_of_its_session_ends_with_its_attach(written: Written) -> None:
    rows = written.rows("links", "attached after the end", "name", "error", "opened_ts", "closed_ts")
    assert [row[:2] for row in rows] == [("l", "amqp:not-found: gone"), ("late", "amqp:not-found: gone")]
    # Packets 5, 7 and 8.
    assert [(closed - opened).microseconds for _, _, opened, closed in rows] == [7 - 5, 0]


def test_messages_whose_bodies_are_missing_are_of_their_link(written: Written) -> None:
    # After the fourth, of which nothing was captured, the handle may stand for another link.
    rows = written.rows("messages", "lost bodies", "delivery_id", "link", "outcome")
    assert rows == [*((number, "l", "confirmed") for number in range(3)), (4, None, "unsettled")]
    assert written.rows("links", "lost bodies", "name", "address", "transfers", "credit") == [
        (None, None, 1, None),
        ("l", "q", 3, 3),
    ]


def test_a_transaction_whose_end_may_be_lost_does_not_end_with_the_next_of_its_name(written: Written) -> None:
    rows = written.rows("messages", "lost discharge", "delivery_id", "outcome", "transaction")
    assert rows == [(0, "unknown", None), (3, "confirmed", "committed")]


def test_without_a_begin_settlements_may_be_of_any_session(written: Written) -> None:
    assert written.rows("messages", "lost begin", "operation", "outcome") == [
        ("publish", "unknown"),
        ("deliver", "unknown"),
    ]
