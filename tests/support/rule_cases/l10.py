"""L10: frames, sessions, links, deliveries and transactions of AMQP 1.0."""

from __future__ import annotations

from typing import Any

import encode_1_0 as P
import proton
from encode_1_0 import data_section, described, frame, performative, section
from link_connections import (
    CHANNEL,
    V,
    accepted,
    attach,
    begin,
    begun,
    closed,
    detach,
    dispose,
    end,
    error,
    flow,
    perform,
    receiver_link,
    say,
    sender_link,
    symbol,
    transfer,
    uint,
    ushort,
)
from rule_connections import HEADERS_1_0, IDLE_MS, opened_1_0, sasl, symbols
from rule_support import NOBODY, Case, Connection

VALUE = 0x77
OPEN = b"\x00\x53\x10"  # the descriptor of an open
LONG_TAG = b"t" * 33
LARGER = data_section(b"x" * 20)
FILTERS = {symbol("jms-selector"): proton.Described(symbol("apache.org:selector-filter:string"), "a = 1")}
X, EMPTY = data_section(b"x"), data_section(b"")


def fresh() -> Connection:
    return Connection(V)


def managed(status: str, text: str) -> Connection:
    """A request of HTTP over AMQP over a link to /management, and its reply over one from there."""
    node = {"source": described(P.SOURCE, "/management"), "target": described(P.TARGET, "/management")}
    connection = receiver_link(sender_link(**node), **node)
    request = section(0x73, ["id-1", None, "/queues/q", "GET", "$me"]) + section(VALUE, None)
    transfer(connection, "client", 0, 0, settled=True, payload=request)
    properties = section(0x73, [None, None, None, status, None, "id-1"])
    reply = properties + section(0x74, {"http:response": "1.1"}) + section(VALUE, text)
    return closed(transfer(connection, "server", 1, 0, settled=True, payload=reply))


def opened(**given: Any) -> Connection:
    return opened_1_0(fresh(), **given)


def with_opens(client: tuple[Any, ...], server: tuple[Any, ...] = (), channel: int = 0) -> Connection:
    """SASL, then opens with these fields behind container and host."""
    connection = sasl(fresh())
    for side in ("client", "server"):
        connection.data(side, HEADERS_1_0["amqp"])
    say(connection, "client", P.OPEN, "c", "test", *(client or (None, None, uint(IDLE_MS))), channel=channel)
    return say(connection, "server", P.OPEN, "s", "test", *(server or (None, None, uint(IDLE_MS))), channel=0)


def sent(*settlement: Any, **given: Any) -> Connection:
    """A delivery of the client, which the server accepts."""
    return accepted(transfer(sender_link(), "client", 0, 0, **given), "server", True, 0)


def login(*frames: tuple[str, int, tuple[Any, ...]]) -> Connection:
    connection = fresh().client_bytes(HEADERS_1_0["sasl"]).server_bytes(HEADERS_1_0["sasl"])
    for sender, code, fields in frames:
        connection.data(sender, frame(performative(code, *fields), kind=P.SASL))
    return connection


OFFER = ("server", P.MECHANISMS, (symbols("EXTERNAL"),))
CHOICE = ("client", P.INIT, (symbol("EXTERNAL"), b""))
DONE, FAILED = (("server", P.OUTCOME, (proton.ubyte(code),)) for code in (0, 1))


def hosts(of_sasl: str) -> Connection:
    connection = login(OFFER, ("client", P.INIT, (symbol("EXTERNAL"), b"", of_sasl)), DONE)
    for side in ("client", "server"):
        connection.data(side, HEADERS_1_0["amqp"])
    for side in ("client", "server"):
        say(connection, side, P.OPEN, side, "test", None, None, uint(IDLE_MS), channel=0)
    return closed(connection)


def refusing(*detaches: Any) -> Connection:
    """The server answers an attach without a target, which refuses it."""
    connection = attach(begun(), "client", "s", 0, False)
    return attach(connection, "server", "s", 0, True, target=None)


def refused(closes: bool = True, after: float = 0) -> Connection:
    connection = detach(refusing().wait(after), "server", 0, closes)
    return closed(detach(connection, "client", 0, closes))


def detached(back: bool = True, after: float = 0) -> Connection:
    connection = detach(sender_link(), "client", 0).wait(after)
    return closed(detach(connection, "server", 0, back))


def in_two(connection: Connection, **second: Any) -> Connection:
    """A delivery of two transfers; `second`: what the second one says."""
    transfer(connection, "client", 0, 0, more=True)
    given = {"number": None, **second}
    transfer(connection, "client", 0, given.pop("number"), **given)
    return closed(accepted(connection, "server", True, 0))


def of_mode(snd: int, settled: bool) -> Connection:
    connection = transfer(sender_link(snd_settle_mode=snd), "client", 0, 0, settled=settled)
    return closed(connection if settled else accepted(connection, "server", True, 0))


def two_tags(second: bytes) -> Connection:
    connection = transfer(transfer(sender_link(), "client", 0, 0, b"a"), "client", 0, 1, second)
    return closed(accepted(connection, "server", True, 0, 1))


def disposed(receives: bool, **given: Any) -> Connection:
    """The sender of a delivery settles it, or the receiver states an outcome first."""
    connection = transfer(sender_link(), "client", 0, 0)
    if receives:
        dispose(connection, "server", True, 0, settled=False, state=described(P.ACCEPTED))
    return closed(dispose(connection, "client", False, 0))


def second_mode(settles: bool) -> Connection:
    connection = transfer(sender_link(rcv_settle_mode=1), "client", 0, 0)
    dispose(connection, "server", True, 0, settled=False, state=described(P.ACCEPTED))
    connection.wait(11)
    return closed(dispose(connection, "client", False, 0) if settles else connection)


def second_at_once() -> Connection:
    connection = transfer(sender_link(rcv_settle_mode=1), "client", 0, 0)
    dispose(connection, "server", True, 0, settled=False, state=described(P.ACCEPTED))
    return closed(dispose(connection, "client", False, 0).wait(11))


def outcomes(state: int) -> Connection:
    allowed = symbols("amqp:accepted:list")
    source = described(P.SOURCE, "q", None, None, None, None, None, None, None, None, allowed)
    connection = transfer(receiver_link(source=source), "server", 1, 0)
    return closed(dispose(connection, "client", True, 0, state=described(state)))


def with_header(*fields: Any) -> Connection:
    """A delivery of the server with a header section (durable, priority, ttl, first-acquirer, delivery-count)."""
    payload = performative(0x70, *fields) + data_section(b"x")
    connection = transfer(receiver_link(), "server", 1, 0, payload=payload)
    return closed(accepted(connection, "client", True, 0))


def to_small_frames(size: int) -> Connection:
    """A body of `size` bytes in one transfer to a server with a max-frame-size of 512."""
    connection = sender_link(begun(with_opens((), (uint(512), None, uint(IDLE_MS))))).wait(2)
    return closed(transfer(connection, "client", 0, 0, settled=True, payload=data_section(b"x" * size)))


def to_window_of_one(transfers: int) -> Connection:
    connection = sender_link(begun(incoming_window=1), window=1)
    for number in range(transfers):
        transfer(connection, "client", 0, number, settled=True)
    return closed(connection)


def sections(payload: bytes) -> Connection:
    connection = transfer(sender_link(), "client", 0, 0, payload=payload)
    return closed(accepted(connection, "server", True, 0))


def sent_in(payload: bytes, cut_at: int | None = None, **first: Any) -> Connection:
    """A message with this payload, in one transfer, or in two of which the first has so many bytes."""
    connection = sender_link()
    if cut_at is None:
        transfer(connection, "client", 0, 0, payload=payload, **first)
    else:
        transfer(connection, "client", 0, 0, payload=payload[:cut_at], more=True, **first)
        transfer(connection, "client", 0, None, payload=payload[cut_at:])
    return closed(accepted(connection, "server", True, 0))


def filtered(granted: dict[Any, Any] | None) -> Connection:
    """A receiver asks for FILTERS; the server grants these, or (None) refuses the link."""
    sources = (
        None if filters is None else described(P.SOURCE, "q", *[None] * 6, filters) for filters in (FILTERS, granted)
    )
    asked, answer = sources
    connection = attach(begun(), "client", "r", 1, True, source=asked)
    attach(connection, "server", "r", 1, False, source=answer)
    if answer is None:
        detach(detach(connection, "server", 1), "client", 1)
    return closed(connection)


def drained(answers: bool) -> Connection:
    connection = flow(receiver_link(), "client", 1, 5, drain=True)
    if answers:
        flow(connection, "server", 1, 0, delivery_count=10)
    connection.wait(11)
    return closed(connection)


def taken_back(seconds: float, *, shows: bool = False) -> Connection:
    """The receiver takes its credit back; so much later there is a delivery. `shows`: the sender knew."""
    connection = flow(receiver_link(), "client", 1, 0)
    if shows:
        flow(connection, "server", 1, 0)
    return closed(accepted(transfer(connection.wait(seconds), "server", 1, 0), "client", True, 0, 0))


def raw(data: bytes, *, on: Connection | None = None) -> Connection:
    return closed((begun() if on is None else on).client_bytes(data))


def idle(seconds: float, **given: Any) -> Connection:
    """Both sides are silent for so long; each announces 60 s."""
    return closed(begun().wait(seconds))


def containers(*names: str) -> list[Connection]:
    """Connections of containers with these names, each with a receiver 'r', all open at a time."""
    connections = []
    for number, name in enumerate(names):
        connection = sasl(Connection(V, at=number))
        for side in ("client", "server"):
            connection.data(side, HEADERS_1_0["amqp"])
        say(connection, "client", P.OPEN, name, "test", None, None, uint(IDLE_MS), channel=0)
        say(connection, "server", P.OPEN, "broker", "test", None, None, uint(IDLE_MS), channel=0)
        connections.append(closed(receiver_link(begun(connection)).wait(5)))
    return connections


def transaction(*steps: str, settled: bool = False, to: int = P.COORDINATOR) -> Connection:
    """Over a link to a coordinator: 'declare', 'discharge'; 'publish': a message in the transaction, over another."""
    target = described(to, *(["q"] if to == P.TARGET else []))
    connection = sender_link(source=described(P.SOURCE), target=target)
    ends: dict[str, Any] = {"declare": described(P.DECLARE), "discharge": described(P.DISCHARGE, b"txn", False)}
    if "publish" in steps:
        flow(attach(attach(connection, "client", "p", 1, False), "server", "p", 1, True), "server", 1, 9)
    for number, step in enumerate(steps):
        if step == "publish":
            within = described(0x34, b"txn")
            perform(
                connection,
                "client",
                P.TRANSFER,
                data_section(b"x"),
                handle=1,
                delivery_id=number,
                delivery_tag=b"p%d" % number,
                message_format=0,
                state=within,
            )
            dispose(connection, "server", True, number, state=described(0x34, b"txn", described(P.ACCEPTED)))
            continue
        transfer(connection, "client", 0, number, settled=settled, payload=section(VALUE, ends[step]))
        if not settled:
            state = described(P.DECLARED, b"txn") if step == "declare" else described(P.ACCEPTED)
            dispose(connection, "server", True, number, state=state)
    return closed(detach(detach(connection, "client", 0), "server", 0))


CASES = [
    Case("L10-01", V, raw(bytes.fromhex("00000010 01000000 0000000000000000")),
         raw(bytes.fromhex("00000008 02000000"))),
    Case("L10-02", V, raw(bytes.fromhex("00000008 02050000")), raw(bytes.fromhex("00000008 02000000"))),
    Case("L10-03", V, to_small_frames(600), to_small_frames(400), evidence={"expected": 512}, offender="client"),
    Case("L10-04", V, closed(with_opens((uint(511), None, uint(IDLE_MS)))),
         closed(with_opens((uint(512), None, uint(IDLE_MS)))), evidence={"observed": 511}, offender="client"),
    Case("L10-05", V, closed(say(opened(), "client", P.OPEN, "c", "test", None, None, uint(IDLE_MS), channel=0)),
         closed(opened()), offender="client"),
    Case("L10-06", V, closed(with_opens((), channel=1)), closed(with_opens(())), evidence={"observed": 1}),
    Case("L10-07", V, raw(frame(b"\x00\x53\x12\x40", CHANNEL)), raw(frame(b"", 0)), also=[]),
    # A list whose first string does not fit: which fields are missing is not known.
    Case("L10-07", V, raw(frame(bytes.fromhex("005312 c00603 a190616263"), CHANNEL)), raw(frame(b"", 0)),
         evidence={"name": "attach"}),
    Case("L10-07", V, raw(frame(bytes.fromhex("005312 c00503 a190616263"), CHANNEL)), raw(frame(b"", 0)),
         evidence={"name": "attach"}, also=("L10-11",)),
    Case("L10-08", V, raw(frame(performative(P.DETACH, None, True), CHANNEL)), closed(detach(detach(
        sender_link(), "client", 0), "server", 0))),
    Case("L10-09", V, closed(say(opened(), "client", P.CLOSE, channel=0).client_bytes(frame(b""))),
         closed(opened().client_bytes(frame(b""))), also=["L10-96"]),
    Case("L10-10", V, closed(say(detach(sender_link(), "server", 0), "client", P.DETACH, uint(0), True, None, "more")),
         closed(detach(detach(sender_link(), "server", 0), "client", 0))),
    Case("L10-11", V,
         closed(say(detach(sender_link(), "server", 0), "client", P.DETACH, uint(0), True, payload=b"\x40")),
         closed(detach(detach(sender_link(), "server", 0), "client", 0))),
    Case("L10-20", V, login(OFFER, CHOICE, CHOICE, DONE), login(OFFER, CHOICE, DONE), offender="client",
         evidence={"observed": "sasl-init", "expected": "sasl-challenge or sasl-outcome of the server"}),
    # What comes after a choice that was sent ahead is in no order either: it is one oddity.
    Case("L10-20", V, login(CHOICE, OFFER, DONE), login(OFFER, CHOICE, DONE), offender="client", occurrences=1,
         evidence={"observed": "sasl-init", "expected": "sasl-mechanisms of the server"}),
    Case("L10-21", V, closed(opened(mechanism="GSSAPI")), closed(opened()), evidence={"observed": "GSSAPI"}),
    Case("L10-22", V, login(OFFER, CHOICE, FAILED).client_bytes(HEADERS_1_0["amqp"]), login(OFFER, CHOICE, FAILED),
         besides=["L10-23"]),
    Case("L10-23", V, login(OFFER, CHOICE, FAILED).fin("server"), login(OFFER, CHOICE, DONE),
         evidence={"observed": 1, "meaning": "auth", "by": "server"}),
    Case("L10-24", V, fresh().client_bytes(HEADERS_1_0["amqp"]).server_bytes(HEADERS_1_0["sasl"]).fin("server"),
         fresh().client_bytes(HEADERS_1_0["sasl"]).server_bytes(HEADERS_1_0["sasl"]),
         evidence={"expected": "SASL"}, also=[]),
    Case("L10-25", V, hosts("other"), hosts("test"), evidence={"sasl_init": "other", "open": "test"}),
    Case("L10-30", V, closed(attach(opened(), "client", "s", 0, False)), closed(begun()), evidence={"name": "attach"}),
    Case("L10-31", V, closed(begun(with_opens((), (None, ushort(0), uint(IDLE_MS))).wait(2))),
         closed(begun(with_opens((), (None, ushort(1), uint(IDLE_MS))).wait(2))), evidence={"expected": 0}),
    Case("L10-32", V, closed(begin(begun(), "client")), closed(begun()), offender="client"),
    Case("L10-33", V, closed(begin(begin(opened(), "client"), "server", 7)), closed(begun()), evidence={"observed": 7}),
    Case("L10-34", V, closed(begin(opened(), "client").wait(11)), closed(begun().wait(11)), offender="server"),
    Case("L10-35", V, to_window_of_one(2), to_window_of_one(1), evidence={"observed": 2, "expected": 1}),
    Case("L10-36", V, closed(flow(begun(), "client", None, next_incoming_id=5)), closed(flow(begun(), "client", None)),
         evidence={"observed": 5, "expected": 0}),
    Case("L10-37", V, closed(flow(begun(), "client", None, next_outgoing_id=5)), closed(flow(begun(), "client", None)),
         evidence={"observed": 5, "expected": 0}),
    Case("L10-38", V, closed(flow(end(end(begun(), "client"), "server"), "client", None)),
         closed(end(end(flow(begun(), "client", None), "client"), "server")), evidence={"name": "flow"}),
    Case("L10-39", V, closed(end(begun(), "client").wait(11)), closed(end(end(begun(), "client"), "server").wait(11)),
         offender="server"),
    Case("L10-40", V, closed(end(end(begun(), "server", error("amqp:invalid-field", "no")), "client")),
         closed(end(end(begun(), "server"), "client")),
         evidence={"observed": "amqp:invalid-field", "text": "no", "by": "server"}),
    Case("L10-41", V, closed(flow(begun(), "client", None, echo=True).wait(11)),
         closed(flow(flow(begun(), "client", None, echo=True), "server", None).wait(11)), offender="server"),
    Case("L10-42", V, closed(transfer(transfer(sender_link(), "client", 0, 0, settled=True), "client", 0, 2,
         settled=True)),
         closed(transfer(transfer(sender_link(), "client", 0, 0, settled=True), "client", 0, 1, settled=True)),
         evidence={"observed": 2, "expected": 1, "link": "s", "address": "q"}),
    Case("L10-50", V, closed(attach(attach(begun(), "client", "a", 0, False), "client", "b", 0, False)),
         closed(attach(attach(begun(), "client", "a", 0, False), "client", "b", 1, False)),
         evidence={"observed": 0, "link": "b", "address": "q"}),
    Case("L10-51", V, closed(attach(begun(handle_max=0), "client", "s", 1, False)),
         closed(attach(begun(handle_max=1), "client", "s", 1, False)), evidence={"observed": 1, "expected": 0}),
    Case("L10-52", V, closed(detach(begun(), "client", 3)), closed(detach(detach(sender_link(), "client", 0), "server",
         0)), evidence={"observed": 3, "name": "detach"}),
    Case("L10-53", V, closed(attach(attach(begun(), "client", "s", 0, False), "server", "s", 0, False)),
         closed(attach(attach(begun(), "client", "s", 0, False), "server", "s", 0, True)), offender="server"),
    Case("L10-54", V, closed(attach(begun(), "client", "s", 0, False, initial_delivery_count=None)),
         closed(attach(begun(), "client", "s", 0, False)), evidence={"link": "s"}),
    Case("L10-55", V, refused(after=6), refused(), offender="server"),
    Case("L10-55", V, refused(closes=False), refused(), evidence={"observed": "closed = false"}),
    Case("L10-56", V, closed(transfer(receiver_link(), "client", 1, 0, settled=True)),
         closed(transfer(sender_link(), "client", 0, 0, settled=True)), evidence={"link": "r"}),
    Case("L10-57", V, closed(accepted(transfer(transfer(receiver_link(credit=1), "server", 1, 0), "server", 1, 1),
         "client", True, 0, 1)), closed(accepted(transfer(transfer(receiver_link(credit=2), "server", 1, 0), "server",
         1, 1), "client", True, 0, 1)), evidence={"observed": 2, "expected": 1, "link": "r"}, offender="server"),
    # Sent soon after the receiver took credit back, which the sender may not have read yet; but not once it shows that.
    Case("L10-57", V, taken_back(2), taken_back(0.5), evidence={"observed": 1, "expected": 0}, offender="server"),
    Case("L10-57", V, taken_back(0.5, shows=True), taken_back(0.5), evidence={"observed": 1, "expected": 0},
         offender="server"),
    Case("L10-58", V, closed(say(begun(), "client", P.FLOW, uint(0), uint(9), uint(0), uint(9), None, None, uint(5))),
         closed(flow(begun(), "client", None)), offender="client"),
    Case("L10-59", V, drained(False), drained(True), offender="server"),
    Case("L10-60", V, closed(transfer(detach(detach(sender_link(), "client", 0), "server", 0), "client", 0, 0,
         settled=True)), closed(detach(detach(transfer(sender_link(), "client", 0, 0, settled=True), "client", 0),
         "server", 0)), evidence={"name": "transfer", "link": "s"}),
    Case("L10-61", V, closed(detach(sender_link(), "client", 0).wait(11)), closed(detach(detach(sender_link(), "client",
         0), "server", 0).wait(11)), offender="server"),
    Case("L10-61", V, detached(False), detached(), evidence={"expected": "closed = true"}),
    Case("L10-62", V, closed(detach(detach(sender_link(), "server", 0, why=error()), "client", 0)),
         closed(detach(detach(sender_link(), "server", 0), "client", 0)),
         evidence={"observed": "amqp:not-found", "text": "no such node", "by": "server", "link": "s", "address": "q"}),
    Case("L10-63", V, containers("c", "c"), containers("c", "d"), evidence={"link": "r", "container": "c"}),
    Case("L10-64", V, closed(attach(begun(), "client", "r", 1, True, source=described(P.SOURCE, "q", None, None, None,
         True))), closed(attach(begun(), "client", "r", 1, True, source=described(P.SOURCE, None, None, None, None,
         True)))),
    Case("L10-65", V, of_mode(0, True), of_mode(0, False), evidence={"link": "s"}),
    Case("L10-66", V, closed(accepted(transfer(sender_link(), "client", 0, 0, rcv_settle_mode=1), "server", True, 0)),
         closed(accepted(transfer(sender_link(), "client", 0, 0, rcv_settle_mode=0), "server", True, 0))),
    Case("L10-67", V, filtered({}), filtered(FILTERS), evidence={"granted": "{}", "link": "r", "address": "q",
         "observed": "not granted: jms-selector"}),
    Case("L10-67", V, filtered({symbol("other"): 1}), filtered(None), evidence={"link": "r"}),
    Case("L10-70", V, closed(perform(sender_link(), "client", P.TRANSFER, data_section(b"x"), handle=0, delivery_id=0,
         message_format=0, settled=True)),
         closed(transfer(sender_link(), "client", 0, 0, settled=True)), occurrences=1, evidence={"link": "s"}),
    Case("L10-71", V, closed(transfer(sender_link(), "client", 0, 0, LONG_TAG, settled=True)),
         closed(transfer(sender_link(), "client", 0, 0, LONG_TAG[1:], settled=True)), evidence={"observed": 33}),
    Case("L10-72", V, two_tags(b"a"), two_tags(b"b"), evidence={"observed": 0}),
    Case("L10-73", V, in_two(sender_link(), number=0, tag=b"other"), in_two(sender_link())),
    Case("L10-74", V, closed(accepted(transfer(transfer(sender_link(), "client", 0, 0, more=True), "client", 0, 1),
         "server", True, 0, 1)), in_two(sender_link()), evidence={"observed": 1, "expected": 0}),
    Case("L10-75", V, closed(detach(detach(transfer(sender_link(), "client", 0, 0, more=True), "client", 0), "server",
         0)), closed(detach(detach(transfer(sender_link(), "client", 0, 0, settled=True), "client", 0), "server", 0))),
    Case("L10-76", V, closed(transfer(transfer(sender_link(), "client", 0, 0, more=True), "client", 0, None,
         aborted=True)), in_two(sender_link())),
    Case("L10-77", V, closed(transfer(sender_link(server={"max_message_size": 10}), "client", 0, 0, settled=True,
         payload=LARGER)), closed(transfer(sender_link(server={"max_message_size": 100}), "client", 0, 0, settled=True,
         payload=LARGER)), evidence={"expected": 10}),
    # Each transfer has 6 bytes; those of the one that gives the delivery up are to be ignored.
    Case("L10-77", V, in_two(sender_link(server={"max_message_size": 5}), aborted=True),
         in_two(sender_link(server={"max_message_size": 6}), aborted=True), besides=["L10-76"]),
    Case("L10-78", V, sections(section(0x74, {"a": 1}) + section(0x73, ["id"]) + data_section(b"x")),
         sections(section(0x73, ["id"]) + section(0x74, {"a": 1}) + data_section(b"x"))),
    *(
        Case("L10-78", V, sent_in(sections_, cut_at), sent_in(fitting, cut_at), offender="client", severity="violation")
        for cut_at in (None, 1, 9)
        for sections_, fitting in (
            # behind the body; two kinds of body; a value twice; a section twice
            (X + section(0x73, ["id"]), section(0x73, ["id"]) + X),
            (X + section(VALUE, "x"), X + X),
            (section(VALUE, "x") + section(VALUE, "x"), section(0x76, [1]) + section(0x76, [2])),
            (section(0x70, []) + section(0x70, []) + X, section(0x70, []) + X + section(0x78, {symbol("a"): 1})),
            # keys that are strings; values that are lists
            (section(0x72, {"x-opt": 1}) + X, section(0x72, {symbol("x-opt"): 1, proton.ulong(1): [1]}) + X),
            (X + section(0x78, {"hash": b"1"}), X + section(0x78, {symbol("hash"): b"1"})),
            (section(0x74, {"a": [1, 2]}) + X, section(0x74, {"a": 1, "b": None, "c": "x"}) + X),
            (section(0x74, {symbol("a"): 1}) + X, section(0x74, {"a": 1}) + X),
        )
    ),
    *(
        Case("L10-78", V, sent_in(section(0x74, {"a": 1}), cut_at), sent_in(section(0x74, {"a": 1}) + EMPTY, cut_at),
             evidence={"observed": "no section with a body"}, severity="warning")
        for cut_at in (None, 3)
    ),
    # A delivery that is resumed goes on in the middle of a message.
    Case("L10-78", V, sent_in(b"in the middle"), sent_in(b"in the middle", resume=True), besides=("L10-79",)),
    Case("L10-78", V, sent_in(b"in the middle", 3), sent_in(b"in the middle", 3, resume=True), besides=("L10-79",)),
    Case("L10-79", V, closed(accepted(transfer(sender_link(), "client", 0, 0, resume=True), "server", True, 0)),
         closed(accepted(transfer(sender_link(unsettled={b"\0\0\0\0": described(P.ACCEPTED)}), "client", 0, 0,
         resume=True), "server", True, 0))),
    Case("L10-80", V, closed(accepted(sent(), "server", True, 5)), closed(sent()), evidence={"observed": 5,
         "expected": 0}),
    Case("L10-81", V, closed(accepted(sent(), "server", True, 3, 1)), closed(sent()), evidence={"observed": 1}),
    Case("L10-82", V, disposed(False), disposed(True), offender="client"),
    Case("L10-83", V, outcomes(P.RELEASED), outcomes(P.ACCEPTED), evidence={"observed": "released"}, also=["L10-87"]),
    Case("L10-84", V, second_mode(False), second_at_once(), offender="client"),
    Case("L10-85", V, with_header(False, proton.ubyte(10)), with_header(False, proton.ubyte(9)),
         evidence={"priority": 10}),
    Case("L10-86", V, with_header(False, None, None, None, uint(6)), with_header(False, None, None, None, uint(5)),
         evidence={"observed": 6}),
    Case("L10-87", V, closed(dispose(transfer(sender_link(), "client", 0, 0), "server", True, 0,
         state=described(P.REJECTED, error("amqp:resource-limit-exceeded", "full")))), closed(sent()),
         evidence={"observed": "rejected", "by": "server", "condition": "amqp:resource-limit-exceeded", "text": "full",
                   "messages": 1, "link": "s"}, also=["PR-12"]),
    Case("L10-90", V, transaction("declare", "discharge", "discharge"), transaction("declare", "discharge"),
         evidence={"name": "transfer"}),
    Case("L10-91", V, transaction("declare", "discharge", to=P.TARGET), transaction("declare", "discharge")),
    Case("L10-92", V, transaction("declare", "publish", "publish"), transaction("declare", "publish", "discharge"),
         evidence={"observed": "2 messages and outcomes in 1 transactions", "link": "s"}),
    # Nothing was done in it: clients open the next one ahead.
    Case("L10-92", V, transaction("declare", "publish", "discharge", "declare", "publish"),
         transaction("declare", "publish", "discharge", "declare"),
         evidence={"observed": "1 messages and outcomes in 1 transactions"}),
    Case("L10-93", V, managed("404", "queue 'q' not found"), managed("200", "ok"), occurrences=1,
         evidence={"status": 404, "method": "GET", "path": "/queues/q", "text": "queue 'q' not found"}),
    Case("L10-95", V, idle(67), idle(65), evidence={"negotiated_ms": 60000}),
    # Only the server announces a time-out; 0 is none.
    Case("L10-95", V, closed(begun(with_opens((None, None, uint(0)))).wait(67)),
         closed(begun(with_opens((None, None, uint(0)))).wait(65)), offender="client"),
    Case("L10-96", V, closed(say(begun(), "client", P.CLOSE, channel=0)), closed(begun())),
    Case("L10-97", V, say(begun(), "client", P.CLOSE, channel=0).fin("server"), closed(begun()), offender="server"),
    # Who ends TCP right after its close leaves the other no time to answer.
    Case("L10-97", V, say(begun(), "client", P.CLOSE, channel=0).fin("client"), closed(begun()), offender=NOBODY),
    Case("L10-98", V, closed(with_opens((None,), (None,))), closed(with_opens((None,)))),
    # The open was not captured whole.
    Case("L10-98", V, closed(with_opens((None,), (None,))),
         closed(with_opens((None,), (None,)).cut("client", OPEN, 20)), besides=("CAP-01", "CAP-04")),
    Case("L10-99", V, closed(with_opens((None, None, uint(4000)))), closed(with_opens((None, None, uint(5000)))),
         evidence={"observed": 4000}),
]  # fmt: skip
