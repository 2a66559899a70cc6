"""T10: frames, sessions, commands and subscriptions of AMQP 0-10."""

from __future__ import annotations

from typing import Any

import encode_0_10
from encode_0_10 import ALL_FLAGS, FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, header, one_frame, segment
from encode_0_10 import frame as frame_0_10
from rule_connections import CHANNEL, NO_LIMIT, closed_0_10, control, done_0_10, opened_0_10, send_0_10, session_0_10
from rule_support import Case, Connection

V = "0-10"
CONTROL, COMMAND, HEADER, BODY = range(4)
ONE_FRAME = FIRST_FRAME | LAST_FRAME
SYNC = segment("execution.sync", {})
TRANSFER = segment("message.transfer", {"destination": ""})
POINT = one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, CHANNEL)
SERVER_TRANSFER = {"destination": "d", "accept-mode": 0, "acquire-mode": 0}
XID = {"format": 1, "global-id": b"g", "branch-id": b"b"}


def opened(**given: dict[str, Any]) -> Connection:
    return opened_0_10(Connection(V), **given)


def closed(connection: Connection) -> Connection:
    return closed_0_10(connection)


def framed(*frames: bytes, done: int | None = 0, **options: Any) -> Connection:
    """A session whose client sends these frames."""
    connection = session_0_10(**options).client_bytes(b"".join(frames))
    return closed(connection if done is None else done_0_10(connection, done))


def command(payload: bytes, flags: int = ALL_FLAGS) -> bytes:
    return frame_0_10(COMMAND, payload, CHANNEL, flags)


def content(
    body: bytes = b"x", properties: dict[str, Any] | None = None, delivery: dict[str, Any] | None = None,
    transfer: bytes = TRANSFER,
) -> bytes:  # fmt: skip
    """A message.transfer with header and body."""
    routed = ("message.delivery-properties", delivery or {"routing-key": "q"})
    about = header(routed, ("message.message-properties", properties or {}))
    return b"".join(encode_0_10.content(transfer, about, body, CHANNEL))


def sends(
    connection: Connection, *steps: tuple[str, dict[str, Any]], last: int | None = None, sender: str = "client"
) -> Connection:
    """Commands, and the completion of those up to `last`."""
    for name, fields in steps:
        send_0_10(connection, sender, name, **fields)
    return connection if last is None else done_0_10(connection, last)


def commands(*steps: tuple[str, dict[str, Any]], done: int | None = None) -> Connection:
    return closed(sends(session_0_10(), *steps, last=len(steps) - 1 if done is None else done))


def subscribed(credit: int = NO_LIMIT, accept: int = 0) -> Connection:
    """Subscription 'd' to queue 'q' with so much credit of messages; commands 0 to 2."""
    return sends(
        session_0_10(),
        ("message.subscribe", {"queue": "q", "destination": "d", "accept_mode": accept, "acquire_mode": 0}),
        ("message.flow", {"destination": "d", "unit": 0, "value": credit}),
        ("message.flow", {"destination": "d", "unit": 1, "value": NO_LIMIT}),
        last=2,
    )


def flushed(credit: int, waits: bool) -> Connection:
    """Such a subscription whose credit is flushed, command 3; the client `waits` for its completion."""
    return sends(subscribed(credit), ("message.flush", {"destination": "d"}), last=3 if waits else None)


def delivered(connection: Connection, times: int = 1, destination: str = "d") -> Connection:
    """Transfers of the server, which the client completes."""
    payload = segment("message.transfer", {**SERVER_TRANSFER, "destination": destination})
    for _ in range(times):
        connection.server_bytes(content(transfer=payload))
    return send_0_10(connection, "client", "session.completed", commands=[(0, times - 1)])


def accepts(connection: Connection, *ranges: tuple[int, int], last: int = 3) -> Connection:
    for pair in ranges:
        send_0_10(connection, "client", "message.accept", transfers=[pair])
    return done_0_10(connection, last)


def attached(*names: bytes, channels: tuple[int, ...] = (1, 2), detaches: bool = False) -> Connection:
    """Sessions attached one after the other."""
    connection = opened()
    for name, channel in zip(names, channels, strict=True):
        connection.client_bytes(one_frame("session.attach", {"name": name}, channel))
        connection.server_bytes(one_frame("session.attached", {"name": name}, channel))
        if detaches:
            connection.client_bytes(one_frame("session.detach", {"name": name}, channel))
            connection.server_bytes(one_frame("session.detached", {"name": name, "code": 0}, channel))
    return closed(connection)


def raised(connection: Connection | None = None, **more: Any) -> Connection:
    """The server raises an exception about a subscription, and detaches."""
    connection = session_0_10() if connection is None else connection
    send_0_10(connection, "client", "message.subscribe", queue="none", destination="d")
    return send_0_10(
        connection, "server", "execution.exception", error_code=404, command_id=0, class_code=4, command_code=7,
        description="not-found: none", **more,
    )  # fmt: skip


def ended(connection: Connection, code: int = 0) -> Connection:
    """The server detaches."""
    send_0_10(connection, "server", "session.detach", name=b"s")
    return closed(send_0_10(connection, "client", "session.detached", name=b"s", code=code))


def queried(*answers: tuple[str, dict[str, Any]], after: float = 0) -> Connection:
    connection = send_0_10(session_0_10(), "client", "queue.query", queue="q")
    for name, fields in answers:
        send_0_10(connection, "server", name, **fields)
    return closed(connection.wait(after))


RESULT = ("execution.result", {"command_id": 0, "value": ("queue.queue-query-result", {"queue": "q"})})
DONE = ("session.completed", {"commands": [(0, 0)]})


def synced(after: float) -> Connection:
    connection = session_0_10().client_bytes(command(segment("queue.declare", {"queue": "q"}, sync=True)))
    return closed(done_0_10(connection.wait(after), 0))


def pointed(offset: int) -> Connection:
    """The client begins a command behind a command-point with this offset."""
    connection = send_0_10(session_0_10(), "client", "session.command-point", command_id=0, command_offset=offset)
    return closed(connection.client_bytes(command(SYNC)))


def of_user(user_id: bytes) -> Connection:
    """User 'u' logs in and publishes a message with this user-id."""
    connection = opened(
        start={"mechanisms": ("str16", ["PLAIN"])}, start_ok={"mechanism": "PLAIN", "response": b"\0u\0p"}
    )
    send_0_10(connection, "client", "session.attach", name=b"s")
    send_0_10(connection, "server", "session.attached", name=b"s")
    connection.client_bytes(POINT + content(properties={"user-id": user_id}))
    return closed(done_0_10(connection, 0))


def login(**given: Any) -> Connection:
    return closed(opened(**given))


DECLARE: tuple[str, dict[str, Any]] = ("queue.declare", {"queue": "q"})
SELECT: tuple[str, dict[str, Any]] = ("tx.select", {})
BRANCH = {"xid": XID}
MODE: tuple[str, dict[str, Any]] = ("message.set-flow-mode", {"destination": "d", "flow_mode": 0})

CASES = [
    Case("T10-01", V, framed(bytes([ALL_FLAGS | 16]) + command(SYNC)[1:], command(SYNC)), framed(command(SYNC))),
    Case("T10-02", V, closed(session_0_10().client_bytes(frame_0_10(COMMAND, SYNC, CHANNEL)[:2] + b"\0\x0b"
         + frame_0_10(COMMAND, SYNC, CHANNEL)[4:11] + 4 * POINT)), closed(session_0_10().client_bytes(POINT))),
    Case("T10-03", V, framed(command(SYNC)[:4] + b"\1" + command(SYNC)[5:], command(SYNC)), framed(command(SYNC))),
    Case("T10-04", V, framed(command(SYNC)[:1] + b"\7" + command(SYNC)[2:], command(SYNC)), framed(command(SYNC))),
    Case("T10-05", V, framed(POINT[:5] + b"\1" + POINT[6:], command(SYNC)), framed(POINT, command(SYNC))),
    Case("T10-06", V, framed(command(SYNC, ALL_FLAGS & ~LAST_FRAME), command(SYNC)), framed(command(SYNC))),
    Case("T10-07", V, framed(frame_0_10(HEADER, header(), CHANNEL, LAST_SEGMENT | ONE_FRAME), command(SYNC)),
         framed(content())),
    Case("T10-08", V, framed(command(SYNC, FIRST_SEGMENT | ONE_FRAME), frame_0_10(BODY, b"x", CHANNEL, LAST_SEGMENT |
         ONE_FRAME)), framed(command(SYNC))),
    Case("T10-09", V, framed(command(segment("file.stage", {}))), framed(content(transfer=segment("file.stage", {})))),
    Case("T10-10", V, framed(bytes([ALL_FLAGS & ~LAST_SEGMENT]) + POINT[1:], command(SYNC)),
         framed(POINT, command(SYNC))),
    Case("T10-11", V, framed(one_frame("session.attach", {}, 2), done=None), framed(command(SYNC)),
         evidence={"name": "session.attach", "missing": "name"}, severity="violation"),
    # qpidd completes these.
    Case("T10-11", V, commands(("exchange.bind", {"queue": "q", "exchange": "e"})),
         commands(("exchange.bind", {"queue": "q", "exchange": "e", "binding_key": ""})),
         evidence={"missing": "binding_key"}, severity="info"),
    Case("T10-11", V, login(tune_ok={"channel_max": None}), login(), evidence={"missing": "channel_max"},
         severity="info"),
    Case("T10-12", V, framed(command(SYNC[:-2] + b"\0\x80"), command(SYNC)), framed(command(SYNC))),
    Case("T10-13", V, framed(command(SYNC + b"xx"), command(SYNC)), framed(command(SYNC))),
    Case("T10-14", V, framed(command(TRANSFER, FIRST_SEGMENT | ONE_FRAME) + frame_0_10(HEADER, header(
         *2 * [("message.delivery-properties", {"routing-key": "q"})]), CHANNEL, LAST_SEGMENT | ONE_FRAME)),
         framed(content())),
    Case("T10-15", V, framed(command(b"\x04\x63\1\0\0\0"), command(SYNC)), framed(command(SYNC))),
    Case("T10-16", V, closed(control(opened(), "client", "tune", channel_max=1)), closed(opened()),
         also=["T10-20"], evidence={"name": "connection.tune"}),
    Case("T10-20", V, closed(control(opened(), "client", "open", virtual_host="test")), closed(opened())),
    Case("T10-21", V, login(start_ok={"mechanism": "PLAIN"}), login(), evidence={"observed": "PLAIN"},
         also=["SEC-01"]),
    Case("T10-22", V, login(tune_ok={"channel_max": 101}), login(), evidence={"observed": 101, "expected": 100}),
    Case("T10-23", V, login(tune={"max_frame_size": 4095}, tune_ok={"max_frame_size": 4095}),
         login(tune={"max_frame_size": 4096}, tune_ok={"max_frame_size": 4096})),
    Case("T10-24", V, login(tune_ok={"heartbeat": 61}), login(), evidence={"observed": 61, "heartbeat_max": 60}),
    Case("T10-25", V, login(tune={"heartbeat_min": 60, "heartbeat_max": 30}, tune_ok={"heartbeat": None}),
         login(tune={"heartbeat_min": 30, "heartbeat_max": 60}, tune_ok={"heartbeat": 60}), also=["HB-04"]),
    Case("T10-26", V, attached(b"a", channels=(100,)), attached(b"a", channels=(99,)),
         evidence={"observed": 100, "expected": 99}),
    Case("T10-27", V, closed(opened().client_bytes(one_frame("connection.heartbeat", {}, 1))),
         closed(opened().client_bytes(one_frame("connection.heartbeat", {}, 0)))),
    Case("T10-28", V, closed(session_0_10().wait(121)), closed(session_0_10().wait(119)), evidence={}),
    Case("T10-29", V, control(control(opened(), "client", "close", reply_code=200, reply_text="bye"), "client",
         "heartbeat"), control(opened(), "client", "heartbeat"), offender="client", also=[]),
    Case("T10-30", V, control(opened(), "client", "close", reply_code=200, reply_text="bye").fin("server"),
         closed(opened()), offender="server"),
    Case("T10-40", V, closed(send_0_10(opened(), "client", "session.flush", completed=True)),
         closed(send_0_10(session_0_10(), "client", "session.flush", completed=True))),
    Case("T10-41", V, closed(opened().client_bytes(one_frame("session.attach", {"name": b"s"}, 1)).server_bytes(
         one_frame("session.attached", {"name": b"s"}, 1)).client_bytes(command(SYNC)).server_bytes(
         one_frame("session.completed", {"commands": [(0, 0)]}, 1))), framed(command(SYNC))),
    Case("T10-42", V, attached(b"a", b"b", channels=(1, 1)), attached(b"a", b"b", channels=(1, 1), detaches=True)),
    Case("T10-43", V, attached(b"a", b"a"), attached(b"a", b"b"), evidence={"attached_on_channel": 1}),
    Case("T10-44", V, pointed(9), pointed(0)),
    Case("T10-45", V, closed(done_0_10(session_0_10(), 5)), commands(DECLARE)),
    Case("T10-46", V, closed(send_0_10(sends(session_0_10(), *4 * [DECLARE]), "server", "session.completed",
         commands=[(0, 1), (2, 3)])), closed(send_0_10(sends(session_0_10(), *4 * [DECLARE]), "server",
         "session.completed", commands=[(0, 1), (3, 3)]))),
    Case("T10-47", V, closed(send_0_10(sends(session_0_10(), DECLARE), "server", "session.completed",
         commands=[(0, 0)], timely_reply=True).wait(11)), closed(send_0_10(send_0_10(sends(session_0_10(), DECLARE),
         "server", "session.completed", commands=[(0, 0)], timely_reply=True), "client", "session.known-completed",
         commands=[(0, 0)]).wait(11)), offender="client"),
    Case("T10-48", V, closed(done_0_10(send_0_10(done_0_10(sends(session_0_10(),
         DECLARE), 0), "client", "session.known-completed", commands=[(0, 0)]).wait(2), 0)),
         closed(send_0_10(done_0_10(sends(session_0_10(), DECLARE), 0), "client", "session.known-completed",
         commands=[(0, 0)]).wait(2))),
    Case("T10-49", V, synced(11), synced(9), offender="server"),
    Case("T10-50", V, queried(RESULT, RESULT, DONE), queried(RESULT, DONE), evidence={"observed": 0}),
    Case("T10-51", V, queried(DONE, after=2), queried(RESULT, DONE, after=2), evidence={"command": "queue.query"}),
    Case("T10-52", V, ended(raised()), commands(("message.subscribe", {"queue": "q", "destination": "d"})),
         evidence={"observed": 404, "by": "server", "command": "message.subscribe", "text": "not-found: none"}),
    Case("T10-53", V, ended(send_0_10(raised(), "server", "execution.sync")), ended(raised()), besides=["T10-52"]),
    Case("T10-54", V, closed(send_0_10(session_0_10(), "client", "session.detach", name=b"s").wait(11)),
         closed(send_0_10(send_0_10(session_0_10(), "client", "session.detach", name=b"s"), "server",
         "session.detached", name=b"s", code=0).wait(11)), offender="server"),
    Case("T10-56", V, ended(session_0_10(), 1), ended(session_0_10(), 0),
         evidence={"observed": 1, "meaning": "session-busy", "by": "client"}),
    Case("T10-60", V, closed(accepts(delivered(subscribed(1), 2), (0, 1))), closed(accepts(delivered(subscribed(2), 2),
         (0, 1))), evidence={"destination": "d", "queue": "q"}),
    Case("T10-61", V, closed(delivered(subscribed(), 1, "other")), closed(accepts(delivered(subscribed()), (0, 0)))),
    Case("T10-62", V, commands(*2 * [("message.subscribe", {"queue": "q", "destination": "d"})]),
         commands(*[("message.subscribe", {"queue": "q", "destination": name}) for name in "de"])),
    Case("T10-63", V, commands(("message.cancel", {"destination": "d"})), commands(("message.subscribe", {"queue": "q",
         "destination": "d"}), ("message.cancel", {"destination": "d"})), occurrences=1,
         evidence={"name": "message.cancel", "destination": "d", "observed": None}),
    Case("T10-64", V, closed(accepts(delivered(subscribed()), (0, 0), (0, 0), last=4)),
         closed(accepts(delivered(subscribed()), (0, 0))), evidence={"observed": 0}),
    Case("T10-65", V, closed(sends(subscribed(5), ("message.set-flow-mode", {"destination": "d", "flow_mode": 0}),
         last=3)), closed(sends(subscribed(0), ("message.set-flow-mode", {"destination": "d", "flow_mode": 0}),
         last=3)), evidence={"observed": 5}),
    # A flush leaves no credit, whether or not the client waits for its completion.
    Case("T10-65", V,
         closed(sends(flushed(5, True), ("message.flow", {"destination": "d", "unit": 0, "value": 2}), MODE, last=5)),
         closed(sends(flushed(5, True), MODE, last=4)), evidence={"observed": 2}),
    Case("T10-65", V, closed(sends(subscribed(5), MODE, last=3)), closed(sends(flushed(5, False), MODE, last=4))),
    # It is no limit on what is given later, nor on what is sent before its completion.
    Case("T10-60", V, closed(accepts(delivered(flushed(5, True)), (0, 0), last=4)),
         closed(accepts(done_0_10(delivered(flushed(5, False)), 3), (0, 0), last=4)),
         evidence={"destination": "d", "queue": "q"}),
    Case("T10-66", V, closed(accepts(delivered(sends(subscribed(), ("message.stop", {"destination": "d"}), last=3)),
         (0, 0), last=4)), closed(sends(accepts(delivered(subscribed()), (0, 0)), ("message.stop", {"destination":
         "d"}), last=4))),
    Case("T10-67", V, framed(content(properties={"content-length": 5})), framed(content(properties={"content-length":
         1})), evidence={"observed": 1, "expected": 5}),
    Case("T10-68", V, of_user(b"somebody"), of_user(b"u"),
         evidence={"observed": "somebody", "expected": "u"}, besides=["SEC-01"]),
    Case("T10-68", V, of_user(b"U"), of_user(b""), besides=["SEC-01"]),
    Case("T10-69", V, commands(SELECT, SELECT), commands(SELECT, ("tx.commit", {}))),
    Case("T10-70", V, commands(SELECT, ("message.subscribe", {"queue": "q", "destination": "d", "accept_mode": 1})),
         commands(SELECT, ("message.subscribe", {"queue": "q", "destination": "d", "accept_mode": 0}))),
    Case("T10-71", V, commands(("dtx.select", {}), ("dtx.end", BRANCH)), commands(("dtx.select", {}), ("dtx.start",
         BRANCH), ("dtx.end", BRANCH)),
         evidence={"name": "dtx.end", "observed": None, "expected": "dtx.start of the branch before it"}),
    Case("T10-72", V, framed(content(delivery={"routing-key": "q", "ttl": 0})), framed(content(delivery={"routing-key":
         "q", "ttl": 1})), evidence={"ttl_ms": 0}),
    Case("T10-73", V, closed(sends(delivered(subscribed()), ("message.reject", {"transfers": [(0, 0)], "code": 1,
         "text": "no"}), last=3)), closed(accepts(delivered(subscribed()), (0, 0))),
         evidence={"observed": 1, "meaning": "unroutable", "text": "no", "by": "client"}),
]  # fmt: skip
