"""Rules about all versions, in 0-10 and 1.0; and in older versions of the classic family what these say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import classic_frames as classic
import proton
from encode_0_10 import content, header, segment
from encode_1_0 import OPEN, RELEASED, data_section, described, frame, performative, section
from link_connections import CHANNEL, accepted, begun, consuming_1_0, dispose, receiver_link, sender_link, transfer
from rule_connections import (
    HEADER_0_10,
    HEADERS_1_0,
    PROPERTIES,
    closed_0_10,
    closed_1_0,
    consuming_0_10,
    control,
    done_0_10,
    opened_0_10,
    opened_1_0,
    sasl,
    send_0_10,
    session_0_10,
)
from rule_support import Case, Connection

from rule_cases.ct import header as content_header
from rule_cases.ct import publish, sent, staged
from rule_cases.fr import granted
from rule_cases.hs import redirected as redirected_classic
from rule_cases.sec import TOKEN

HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"
HEADERS = {"0-10": HEADER_0_10, "1.0": HEADERS_1_0["amqp"]}
PUBLIC = "93.184.216.34"
INSIDE: dict[str, Any] = {"client": "10.1.2.3", "server": "10.1.2.4"}
BOTH = ("0-10", "1.0")
LARGE = 1_000_000
FRAME_BODY = 60_000  # bytes of a body frame of 0-10, below max-frame-size
EMPTY_FRAME = frame(b"")
HEADER, PROPERTIES_SECTION = 0x70, 0x73
ID = "0af76519-16cd-43dd-8448-eb211c80319c"


def opened(version: str, **options: Any) -> Connection:
    return (
        opened_0_10(Connection(version, **options)) if version == "0-10" else opened_1_0(Connection(version, **options))
    )


def done(connection: Connection) -> Connection:
    return closed_0_10(connection) if connection.version == "0-10" else closed_1_0(connection)


def beat(connection: Connection, sender: str = "client") -> Connection:
    """A frame that only says that its sender is alive."""
    if connection.version == "0-10":
        return control(connection, sender, "heartbeat")
    return connection.data(sender, EMPTY_FRAME)


def idle(version: str, **options: Any) -> Connection:
    return done(opened(version, **options))


def consuming(version: str) -> Connection:
    """Messages are delivered."""
    return consuming_0_10(3) if version == "0-10" else consuming_1_0(3)


def published_0_10(connection: Connection, body: bytes = b"x", last: int = 0) -> Connection:
    """A message.transfer of the client, with body frames that are not too large; command `last` is done."""
    about = header(("message.delivery-properties", {"routing-key": "q"}), ("message.message-properties", {}))
    for data in content(segment("message.transfer", {"destination": ""}), about, body, CHANNEL, FRAME_BODY):
        connection.client_bytes(data)
    return done_0_10(connection, last)


def published(version: str, body: bytes = b"x", **options: Any) -> Connection:
    """The client publishes a message, which is settled."""
    if version == "0-10":
        return done(published_0_10(session_0_10(**options), body))
    connection = transfer(sender_link(opened_link(**options)), "client", 0, 0, payload=data_section(body))
    return done(accepted(connection, "server", True, 0))


def opened_link(**options: Any) -> Connection:
    return begun(opened("1.0", **options))


def without(connection: Connection, packets: int) -> Connection:
    """The capture begins behind so many packets."""
    connection.packets = connection.packets[packets:]
    return connection


def one_way(connection: Connection, sender: str = "client") -> Connection:
    """Only what one side sends."""
    connection.packets = [packet for packet in connection.packets if packet.sender == sender]
    return connection


def cut(version: str) -> Connection:
    """The capture keeps the first bytes of a large frame."""
    connection = published(version, bytes(2000))
    at, packet = max(enumerate(connection.packets), key=lambda each: len(each[1].data))
    connection.packets[at].wire_len = len(packet.data)
    connection.packets[at].data = packet.data[:200]
    return connection


def misframed(version: str) -> Connection:
    """Frames of 0-9-1 behind the header of another version."""
    connection = Connection(version).client_bytes(HEADERS[version]).server_bytes(HEADERS[version])
    return connection.client_bytes(classic.method("0-9-1", "basic.qos") * 40).fin()


def refusing(version: str, says_why: bool) -> Connection:
    """A broker of 0-9-1 refuses another version."""
    connection = Connection(version).client_bytes(HEADERS[version]).server_bytes(bytes.fromhex("414d515000000901"))
    why = {"reply_code": 540, "reply_text": "NOT_IMPLEMENTED", "class_id": 0, "method_id": 0}
    return connection.server_bytes(classic.method("0-9-1", "connection.close", 0, **why)) if says_why else connection


def strayed(version: str) -> Connection:
    """A segment whose number is a gigabyte away from all others."""
    connection = opened(version)
    connection.seq["client"] += 1 << 30
    connection.packet("client", b"stray")
    connection.seq["client"] -= (1 << 30) + len(b"stray")
    return done(beat(connection))


def plain(
    version: str, user: bytes = b"u", password: bytes = b"p", offered: tuple[str, ...] = ("PLAIN",), **options: Any
) -> Connection:
    return done(logged_in(version, "PLAIN", b"\0" + user + b"\0" + password, offered, **options))


def logged_in(version: str, mechanism: str, response: bytes, offered: tuple[str, ...], **options: Any) -> Connection:
    connection = Connection(version, **options)
    if version == "0-10":
        started = {"mechanisms": ("str16", list(offered))}
        return opened_0_10(connection, start=started, start_ok={"mechanism": mechanism, "response": response})
    return opened_1_0(connection, mechanism=mechanism, offered=offered, response=response)


def failed(version: str, at: float) -> Connection:
    """A login that the server refuses."""
    connection = Connection(version, at=at)
    if version == "1.0":
        return sasl(connection, code=1).fin("server")
    control(opened_0_10(connection, "start_ok"), "server", "close", reply_code=320, reply_text="Authentication failed")
    return control(connection, "client", "close-ok").fin("server")


def unfinished(version: str, ends: bool) -> Connection:
    """A handshake that stops in its middle: the connection ends, or the capture does."""
    connection = sasl(Connection(version)) if version == "1.0" else opened_0_10(Connection(version), "start")
    return connection.fin("client") if ends else connection.wait(5)


def asked(first: str, then: str, at: float) -> list[Connection]:
    """The server answers the header of `first` with that of `then`, in which the client comes back."""
    refused = Connection(first).client_bytes(HEADERS[first]).server_bytes(HEADERS[then]).fin("server")
    return [refused, idle(then, at=at)]


def login(version: str, product: str | None, user: bytes, client: int) -> Connection:
    """A login of a product."""
    options: dict[str, Any] = {"client": client, "at": client}
    response = b"\0" + user + b"\0secret"
    if version == "0-10":
        own = {**PROPERTIES, "product": ("str16", product)}
        start_ok = {"client_properties": own, "mechanism": "PLAIN", "response": response}
        start = {"mechanisms": ("str16", ["PLAIN"])}
        return done(opened_0_10(Connection(version, **options), start=start, start_ok=start_ok))
    connection = sasl(Connection(version, **options), mechanism="PLAIN", offered=("PLAIN",), response=response)
    own_1_0 = {proton.symbol("product"): product}
    return done(both_open(connection, client=own_1_0))


def both_open(connection: Connection, **properties: Any) -> Connection:
    """Headers and opens of both sides, with these properties."""
    for side in ("client", "server"):
        connection.data(side, HEADERS_1_0["amqp"])
    for side in ("client", "server"):
        idle_ms = proton.uint(60_000)
        fields = (f"{side}-container", "test", None, None, idle_ms, None, None, None, None)
        connection.data(side, frame(performative(OPEN, *fields, properties.get(side))))
    return connection


def named(version: str, *names: str) -> Connection:
    """The server names these of its properties."""
    if version == "0-10":
        properties = {name: value for name, value in PROPERTIES.items() if name in names}
        return done(opened_0_10(Connection(version), start={"server_properties": properties}))
    return done(both_open(sasl(Connection(version)), server={proton.symbol(name): "x" for name in names}))


def odd_text(version: str, data: bytes) -> Connection:
    """A name of a queue with these bytes."""
    if version == "0-10":
        connection = send_0_10(session_0_10(), "client", "queue.declare", queue=data)
        return done(done_0_10(connection, 0))
    connection = sender_link(target=described(0x29, "zz"))
    for packet in connection.packets:
        packet.data = packet.data.replace(b"zz", data)
    return done(connection)


def redelivered_0_10(times: int, pause: float, worked: float) -> Connection:
    """A message that is released so often, `worked` seconds after its delivery, and comes again after `pause`."""
    connection = consuming_0_10(0)
    for number in range(times + 1):
        transfer = segment("message.transfer", {"destination": "d", "accept-mode": 0, "acquire-mode": 0})
        again = ("message.delivery-properties", {"routing-key": "q", "redelivered": number > 0})
        about = header(again, ("message.message-properties", {"message-id": ID}))
        connection.server_bytes(b"".join(content(transfer, about, b"job", CHANNEL)))
        send_0_10(connection, "client", "session.completed", commands=[(0, number)])
        connection.wait(worked)
        if number < times:
            send_0_10(connection, "client", "message.release", transfers=[(number, number)], set_redelivered=True)
        else:
            send_0_10(connection, "client", "message.accept", transfers=[(number, number)])
        done_0_10(connection, 3 + number).wait(pause)
    return done(connection)


def redelivered_1_0(times: int, pause: float, worked: float) -> Connection:
    """The same over a link: the message says how often it was delivered before."""
    connection = receiver_link(credit=times + 1)
    for number in range(times + 1):
        about = section(HEADER, [False, None, None, None, proton.uint(number)])
        about += section(PROPERTIES_SECTION, [ID])
        transfer(connection, "server", 1, number, payload=about + data_section(b"job")).wait(worked)
        if number < times:
            dispose(connection, "client", True, number, state=described(RELEASED))
        else:
            accepted(connection, "client", True, number)
        connection.wait(pause)
    return done(connection)


REDELIVERED: dict[str, Callable[[int, float, float], Connection]] = {"0-10": redelivered_0_10, "1.0": redelivered_1_0}


def slow(version: str, seconds: float) -> Connection:
    """A consumer whose TCP window is closed for so long."""
    connection = consuming(version)
    return done(connection.packet("client", window=0).wait(seconds).packet("client"))


def redirected(insist: bool) -> Connection:
    """0-10: the server sends the client to another host."""
    return control(opened_0_10(Connection("0-10"), "open", open={"insist": insist}), "server", "redirect", host="other")


def refused(times: int) -> Connection:
    """0-10: so many commands that the account may not give, each in a session of its own."""
    connection = opened_0_10(Connection("0-10"))
    for number in range(times):
        name = {"name": bytes([97 + number])}
        send_0_10(connection, "client", "session.attach", **name)
        send_0_10(connection, "server", "session.attached", **name)
        for side in ("client", "server"):
            send_0_10(connection, side, "session.command-point", command_id=0, command_offset=0)
        send_0_10(connection, "client", "queue.declare", queue="q")
        send_0_10(connection, "server", "execution.exception", error_code=403, command_id=0, class_code=8,
        command_code=1,
                  description="ACL denied")  # fmt: skip
        send_0_10(connection, "server", "session.detached", **name, code=0)
    return done(connection)


def of_version(version: str, at: float = 0, **given: Any) -> Connection:
    return Connection(version, at=at).handshake(**given).close()


def refused_in(first: str, then: str) -> Connection:
    """The server answers the header of `first` with that of `then`."""
    return Connection(first).header().header(then, "server").fin("server")


def again(version: str, times: int, pause: float, worked: float = 0) -> Connection:
    """0-8, 0-9: a message that is rejected so often, to be delivered again."""
    connection = Connection(version).handshake().open(1).consume()
    for tag in range(1, times + 2):
        connection.deliver(tag, b"job", redelivered=tag > 1, message_id="m").wait(worked)
        if tag <= times:
            connection.client("basic.reject", delivery_tag=tag, requeue=True)
        else:
            connection.client("basic.ack", delivery_tag=tag)
        connection.wait(pause)
    return connection.close()


def unflagged(version: str, redelivered: bool) -> Connection:
    """0-8, 0-9: a message that is rejected, and delivered again."""
    connection = Connection(version).handshake().open(1).consume().deliver(1, message_id="m")
    connection.client("basic.reject", delivery_tag=1, requeue=True).deliver(2, redelivered=redelivered, message_id="m")
    return connection.client("basic.ack", delivery_tag=2)


def numbers(version: str, which: int) -> tuple[int, int]:
    """Sequence numbers that no other connections of the cases have."""
    return sum(version.encode()) << 20, which << 28


OLDER = ("0-8", "0-9")
STRONG = ("PLAIN", "SCRAM-SHA-256")
UNSETTLED = ("T10-73", "L10-69")
REPEATED = ("DL-15", "PR-10", "L10-87")
CASES = [
    *(
        case
        for v in BOTH
        for case in (
            Case("CAP-01", v, done(beat(beat(opened(v).lose("client", 50)))), idle(v), evidence={"missing_bytes": 50}),
            Case("CAP-02", v, without(consuming(v), 14), consuming(v), evidence={"header_seen": False}),
            Case("CAP-03", v, one_way(published(v)), published(v), evidence={"observed": "client"}),
            *(
                Case("CAP-03", v, one_way(done(consuming(v)), sender), done(consuming(v)),
                     evidence={"observed": sender}, besides=UNSETTLED)
                for sender in ("client", "server")
            ),
            Case("CAP-04", v, cut(v), published(v, bytes(2000)), also=("CAP-01",)),
            Case("CAP-05", v, opened(v).client_bytes(HEADERS[v][:3]), opened(v), evidence={"bytes": 3}),
            Case("CAP-06", v, strayed(v), idle(v), evidence={"observed": ["segment out of window"]}),
            Case("CAP-07", v, [idle(v, numbers=numbers(v, 5)), idle(v, client=9, at=0.00002, numbers=numbers(v, 5))],
                 [idle(v, numbers=numbers(v, 6)), idle(v, client=9, at=2, numbers=numbers(v, 6))]),
            Case("FR-11", v, odd_text(v, b"\xff\xfe"), odd_text(v, "ü".encode()), offender="client"),
            Case("HS-17", v, unfinished(v, True), unfinished(v, False), evidence={"tcp_end": "fin"}),
            Case("NEG-01", v, Connection(v).client_bytes(HTTP).server_bytes(HEADERS[v]).fin("server"), idle(v),
                 also=("SEC-12",)),
            Case("NEG-02", v,
                 Connection(v).client_bytes(b"AMQP\x09\x09\x09\x09").server_bytes(HEADERS[v]).fin("server"),
                 idle(v), evidence={"observed": "9.9.9.9", "answered": v}, offender="client"),
            Case("NEG-04", v, refusing(v, True).fin("server"), refusing(v, False).fin("server"),
                 also=("CL-08", "T10-30") if v == "0-10" else ("CL-08",), besides=("NEG-11",),
                 evidence={"asked": v, "answered": "0-9-1"}),
            Case("NEG-11", v, refusing(v, False).fin("server"), idle(v), evidence={"asked": v}),
            Case("NEG-11", v, refusing(v, False).rst("server"),
                 [refusing(v, False).rst("server"), Connection("0-9-1", at=90).handshake().close()]),
            Case("NEG-08", v, misframed(v), idle(v), evidence={"negotiated": v}, offender="client",
                 besides=("CAP-06",)),
            Case("NEG-09", v, done(opened(v).wait(1).client_bytes(HEADERS[v])), idle(v), offender="client",
                 besides=("NEG-07",)),
            Case("PR-04", v, [login(v, name, b"shop", client) for client, name in enumerate("abc", 2)],
                 [login(v, name, b"shop", client) for client, name in enumerate("aba", 2)],
                 evidence={"user": "shop", "observed": "a, b, c"}, besides=("SEC-01",)),
            Case("PR-09", v, published(v, bytes(LARGE + 100)), published(v, bytes(LARGE - 100))),
            Case("PR-10", v, REDELIVERED[v](5, 1, 0), REDELIVERED[v](4, 1, 0), evidence={"observed": 5},
                 besides=("L10-87",)),
            Case("PR-11", v, REDELIVERED[v](5, 0, 0), REDELIVERED[v](5, 0, 1), evidence={"observed": 5},
                 besides=REPEATED),
            Case("PR-15", v, slow(v, 2), slow(v, 0.9), evidence={"delivered": 3}),
            Case("SEC-01", v, plain(v), idle(v), evidence={"mechanism": "PLAIN", "user": "u"}),
            Case("SEC-02", v, plain(v, b"guest", b"secret"), idle(v), also=("SEC-01",), evidence={"user": "guest"}),
            Case("SEC-05", v, plain(v, offered=STRONG), plain(v), also=(), besides=("SEC-01",),
                 evidence={"observed": "PLAIN", "offered": ["SCRAM-SHA-256"]}),
            Case("SEC-06", v, [failed(v, n) for n in range(6)], [failed(v, n) for n in range(5)],
                 besides=("HS-17", "HS-18", "CL-08", "L10-23"), evidence={"failures": 6}),
            Case("SEC-07", v, named(v, "host", "product", "version", "platform"), named(v, "host", "platform"),
                 besides=("HS-07",), evidence={}),
            Case("SEC-08", v, published(v, **INSIDE), published(v), evidence={"published": 1}),
            Case("SEC-11", v, plain(v, password=b""), plain(v), besides=("SEC-01",), evidence={"empty": "password"}),
            Case("SEC-12", v, Connection(v).client_bytes(HTTP).server_bytes(HEADERS[v]).fin("server"),
                 Connection(v, server_port=8080).client_bytes(HTTP).server_bytes(HEADERS[v]).fin("server"),
                 besides=("NEG-01",)),
            Case("SEC-13", v, [idle(v, at=n / 4) for n in range(61)], [idle(v, at=n / 4) for n in range(60)],
                 evidence={"limit_per_minute": 60}),
            Case("SEC-14", v, plain(v, password=TOKEN), plain(v), besides=("SEC-01",),
                 evidence={"method": "sasl-init" if v == "1.0" else "connection.start-ok"}),
            Case("SEC-15", v, [plain(v, client=n) for n in range(2, 13)], [plain(v, client=n) for n in range(2, 12)],
                 besides=("SEC-01",), evidence={"user": "u", "hosts": 11}),
            Case("SEC-16", v, idle(v, client=PUBLIC), idle(v, client="192.168.7.7"), evidence={"client_ip": PUBLIC}),
        )
    ),
    *(
        Case("NEG-10", then, asked(first, then, 5), asked(first, then, 70), evidence={"first": first, "then": then})
        for first, then in (BOTH, BOTH[::-1])
    ),
    Case("HB-05", "0-10", done(opened_0_10(Connection("0-10"), tune_ok={"heartbeat": 4})),
         done(opened_0_10(Connection("0-10"), tune_ok={"heartbeat": 5})), evidence={"negotiated": 4}),
    Case("HS-07", "0-10", named("0-10", "host", "product", "version"), idle("0-10"), offender="server",
         evidence={"server_lacks": ["platform"]}),
    Case("HS-16", "0-10", redirected(True).fin("client"), redirected(False).fin("client"), besides=("HS-17",)),
    Case("HS-19", "0-10", send_0_10(redirected(False), "client", "session.attach", name=b"s").fin("client"),
         redirected(False).fin("client"), besides=("HS-17",), evidence={"observed": "session.attach"}),
    Case("SEC-18", "0-10", refused(4), refused(3), besides=("T10-52",), evidence={"refusals": 4}),
    Case("HS-18", "0-10", failed("0-10", 0), idle("0-10"), also=("CL-08",), evidence={"reply_code": 320}),
    # 0-9-1, and the older versions.
    *(
        Case("CT-02", v, sent(publish(v), content_header(0, class_id=70), version=v),
             sent(publish(v), content_header(0), version=v), evidence={"observed": 70}, offender="client")
        for v in ("0-9", "0-9-1")
    ),
    *(
        Case("NEG-10", then, [refused_in(first, then), of_version(then, at=5)],
             [refused_in(first, then), of_version(then, at=70)], evidence={"first": first, "then": then})
        for first, then in (OLDER, OLDER[::-1])
    ),
    Case("NEG-05", "0-9", Connection("0-9").header().start(version_major=0, version_minor=10),
         Connection("0-9").header().start()),
    Case("NEG-05", "0-9-1", Connection().header().start(version_major=0, version_minor=10),
         Connection().header().start()),
    Case("SEC-03", "0-9", of_version("0-9"), of_version("0-9-1"), evidence={"observed": "0-9"}),
    *(
        case
        for v in (*OLDER, "0-9-1")
        for case in (
            Case("SEC-04", v, of_version(v, start={"mechanisms": "ANONYMOUS"}, start_ok={"mechanism": "ANONYMOUS"}),
                 of_version(v), evidence={"mechanism": "ANONYMOUS"}),
            # without a certificate of the client EXTERNAL is of no use
            Case("SEC-05", v,
                 of_version(v, start={"mechanisms": "PLAIN EXTERNAL SCRAM-SHA-256"},
                            start_ok={"mechanism": "PLAIN", "response": "\0u\0p"}),
                 of_version(v, start={"mechanisms": "PLAIN EXTERNAL"},
                            start_ok={"mechanism": "PLAIN", "response": "\0u\0p"}), besides=("SEC-01",),
                 evidence={"observed": "PLAIN", "offered": ["SCRAM-SHA-256"]}),
        )
    ),
    *(
        case
        for v in OLDER
        for case in (
            Case("DL-10", v, unflagged(v, False), unflagged(v, True), evidence={"message_id": "m"}, offender="server"),
            Case("HS-02", v,
                 Connection(v).handshake().open(1).client("connection.open", 1, virtual_host="/test").close(),
                 Connection(v).handshake().open(1).close(), evidence={"observed": 1}, offender="client"),
            Case("PR-10", v, again(v, 5, 1), again(v, 4, 1), evidence={"observed": 5}, besides=("DL-15",)),
            Case("PR-11", v, again(v, 5, 0), again(v, 5, 0, 1), evidence={"observed": 5}, besides=REPEATED),
        )
    ),
    Case("HS-16", "0-8", redirected_classic(True, "0-8").close(), redirected_classic(False, "0-8").close()),
    Case("HS-19", "0-8", redirected_classic(False, "0-8").client("channel.open").close(),
         redirected_classic(False, "0-8").close(), also=("CH-07",), evidence={"observed": "channel.open"}),
    Case("FR-14", "0-9", granted(0, "0-9"), granted(7, "0-9"), evidence={"observed": 0}, offender="client"),
    Case("CT-18", "0-8", staged("file.publish", version="0-8"), Connection("0-8").handshake().open(1).close(),
         also=("CT-19",), evidence={"observed": "file.publish"}, offender="client"),
    Case("CT-19", "0-8", staged("file.open-ok", "file.stage", "file.publish", version="0-8"),
         Connection("0-8").handshake().open(1).close(), evidence={"observed": "file.open"}),
    Case("TX-05", "0-8", Connection("0-8").handshake().open(1).client("dtx.start", dtx_identifier="1"),
         Connection("0-8").handshake().open(1).asks("dtx.select").asks("dtx.start", dtx_identifier="1")),
]  # fmt: skip
