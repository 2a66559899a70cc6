"""Links and messages of AMQP 0-10: what captures were made to show, and connections written by hand.

The captures are of scripts that say what they do (their manifest): which command was accepted, released, rejected, what
a transaction contained; `naive_0_10` reads the same off their bytes. Hand-written connections come from the tests' own
encoder; packet n of each is captured n microseconds after it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import naive_0_10
import pytest
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, content, frame, header, one_frame, segment
from naive_0_10 import Transfer, sessions
from pyspark.sql import SparkSession
from test_tables_captures import CAPTURES, Captured
from wire import CLIENT, SERVER, Wire, Written, give_up

NAMES = (
    "010_lowlevel_methods.pcap",
    "010_cpp_send_receive.pcap",
    "010_tx.pcap",
    "010_dtx.pcap",
    "010_exceptions.pcap",
    "010_sessions.pcap",
    "010_big_message.pcap",
)
UNLIMITED = 2**32 - 1  # credit
METHODS, CPP, TX, DTX, EXCEPTIONS, SESSIONS, BIG = (name.partition(".")[0] for name in NAMES)


@pytest.fixture(scope="module")
def found(written: Written) -> Captured:
    return Captured(written.tables)


def delivered(found: Captured, capture: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = found.rows("messages", capture, "operation", *columns)
    return [row[1:] for row in rows if row[0] == "deliver"]


def published(found: Captured, capture: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = found.rows("messages", capture, "operation", *columns)
    return [row[1:] for row in rows if row[0] == "publish"]


@pytest.mark.parametrize("capture", [METHODS, CPP, TX, DTX, SESSIONS, BIG])
def test_messages_are_those_of_the_naive_reading(found: Captured, capture: str) -> None:
    """Numbers of commands, ranges, completions, transactions: `naive_0_10` reads them off the captured bytes."""
    columns = ("operation", "delivery_id", "outcome", "transaction")
    plain = [
        (operation, transfer.id, transfer.outcome, transfer.transaction or "")
        for session in sessions(CAPTURES / f"{capture}.pcap")
        for operation, transfers in (("publish", session.published), ("deliver", session.delivered))
        for transfer in transfers.values()
    ]
    ours = [(*row[:3], row[3] or "") for row in found.rows("messages", capture, *columns)]
    assert sorted(ours) == sorted(plain) != []


@pytest.mark.parametrize("capture", [METHODS, CPP, TX, DTX, SESSIONS, BIG])
def test_sessions_count_what_became_of_their_messages(found: Captured, capture: str) -> None:
    def count(transfers: dict[int, Transfer], *outcomes: str) -> int:
        return sum(transfer.outcome in outcomes for transfer in transfers.values())

    plain = [
        (
            len(session.published), len(session.delivered), count(session.published, "confirmed"),
            count(session.delivered, "acked"), count(session.delivered, "rejected"),
            count(session.delivered, "released"), count(session.delivered, "unsettled"),
        )
        for session in sessions(CAPTURES / f"{capture}.pcap")
    ]  # fmt: skip
    columns = ("published", "delivered", "confirmed", "acked", "rejected", "requeued", "unsettled")
    assert sorted(found.rows("channels", capture, *columns)) == sorted(plain)


@pytest.mark.parametrize("capture", [METHODS, CPP, TX, SESSIONS, BIG])
def test_subscriptions_have_the_credit_and_transfers_of_the_naive_reading(found: Captured, capture: str) -> None:
    plain = [
        (name, queue, min(session.credit[name], UNLIMITED), session.transfers.get(name, 0))
        for session in sessions(CAPTURES / f"{capture}.pcap")
        for name, queue in session.queues.items()
    ]
    ours = found.rows("links", capture, "name", "queue", "credit", "transfers")
    assert sorted(ours, key=repr) == sorted(plain, key=repr) != []


@pytest.mark.parametrize("capture", [METHODS, CPP, TX, SESSIONS, BIG])
def test_time_without_credit_is_that_of_the_naive_reading(found: Captured, capture: str) -> None:
    ours = found.rows("links", capture, "name", "no_credit_ns")
    plain = naive_0_10.idle_times(CAPTURES / f"{capture}.pcap")
    assert sorted(ours) == sorted(plain)
    assert all(waited > 0 for _, waited in plain)  # at least from message.subscribe to message.flow


def test_the_script_of_a_capture_is_what_is_read(found: Captured) -> None:
    """It accepts one message, then two; releases one, rejects one; accepts three; acquires and accepts one."""
    outcomes = ["acked", "acked", "acked", "released", "rejected", "acked", "acked", "acked", "acked"]
    assert [outcome for (outcome,) in delivered(found, METHODS, "outcome")] == outcomes


def test_properties_of_0_10_are_in_the_plain_columns(found: Captured) -> None:
    columns = (
        "exchange", "routing_key", "durable", "priority", "ttl_ms", "correlation_id", "reply_to", "user_id", "app_id",
        "content_type",
    )  # fmt: skip
    row = ("ex.topic", "a.b", True, 5, 60000, "corr-7", "ex.fan/rk", "anonymous", "corpus", "text/plain")
    assert row in published(found, METHODS, *columns)


def test_released_messages_come_again(found: Captured) -> None:
    assert sum(again for (again,) in delivered(found, METHODS, "redelivered")) == 1


def test_subscriptions_are_links(found: Captured) -> None:
    columns = ("kind", "name", "queue", "no_ack", "flow_mode")
    assert found.rows("links", METHODS, *columns) == [
        ("subscription", "dest-1", "q1", False, "window"),
        ("subscription", "br", "q1", False, "window"),  # nothing is known of it
    ]
    assert set(delivered(found, METHODS, "queue", "link")) == {("q1", "dest-1"), ("q1", "br")}


def test_local_transactions_commit_and_roll_back(found: Captured) -> None:
    """Two messages are committed, one rolled back; the accept of both is rolled back, then done again."""
    assert [t for (t,) in published(found, TX, "transaction")] == ["committed", "committed", "rolled-back"]
    assert delivered(found, TX, "outcome", "transaction") == [("acked", "committed")] * 2
    assert found.rows("channels", TX, "mode", "session_name") == [("tx", "tx")]


def test_distributed_transactions_end_with_their_branch(found: Captured) -> None:
    """gid-1 is prepared and committed, gid-2 rolled back, gid-3 suspended, resumed and committed in one phase."""
    assert [t for (t,) in published(found, DTX, "transaction")] == ["committed", "rolled-back", "committed"]
    assert found.rows("channels", DTX, "mode") == [("dtx",)]


def test_exceptions_say_why_sessions_ended(found: Captured) -> None:
    rows = found.rows("channels", EXCEPTIONS, "close_initiator", "close_code", "close_text")
    assert [(by, code) for by, code, _ in rows] == [("server", code) for code in (404, 404, 530, 404, 404, 404)]
    assert rows[0][2].startswith("not-found: Queue not found: no-such-queue")
    assert published(found, EXCEPTIONS, "exchange", "outcome") == [("no-such-exchange", "nacked")]
    assert found.rows("links", EXCEPTIONS, "name") == []


def test_sessions_with_a_number_in_common_stay_apart(found: Captured) -> None:
    """72 transfers by tshark's count: 12 sessions publish and receive."""
    rows = found.rows("channels", SESSIONS, "published", "delivered", "acked", "unsettled")
    assert len(rows) == 13
    assert sum(row[0] + row[1] for row in rows) == 72
    assert len(found.rows("links", SESSIONS, "name")) == 12


def test_bodies_of_many_frames_are_complete(found: Captured) -> None:
    sizes = [0, 1, 65000, 65523, 65524, 65536, 300000]
    rows = published(found, BIG, "body_size", "body_captured", "complete")
    assert sorted(rows) == [(size, size, True) for size in sizes]


# ---- connections written by hand ------------------------------------------------------------------------------------


def transfer(
    destination: str, body: bytes = b"x", accept: int | None = 0, acquire: int | None = None, channel: int = 1,
    **properties: Any,
) -> bytes:  # fmt: skip
    fields: dict[str, Any] = {"destination": destination}
    modes = {"accept-mode": accept, "acquire-mode": acquire}
    fields |= {name: mode for name, mode in modes.items() if mode is not None}
    given = {name.replace("_", "-"): item for name, item in properties.items()}
    about = header(("message.delivery-properties", given))
    return b"".join(content(segment("message.transfer", fields), about, body, channel))


def control(name: str, /, **fields: Any) -> bytes:
    return one_frame(name, {key.replace("_", "-"): item for key, item in fields.items()}, 1)


def point(number: int) -> bytes:
    return control("session.command-point", command_id=number, command_offset=0)


def opened(client: int = 0, server: int = 0) -> Wire:
    """A session whose sides number their commands from `client` and `server` on."""
    wire = Wire()
    wire.add(CLIENT, b"AMQP\x01\x01\x00\x0a" + control("session.attach", name=b"s") + point(client))
    wire.add(SERVER, b"AMQP\x01\x01\x00\x0a" + control("session.attached", name=b"s") + point(server))
    return wire


def subscribed(wire: Wire, queue: str, accept: int = 0) -> Wire:
    wire.add(CLIENT, control("message.subscribe", queue=queue, destination="d", accept_mode=accept))
    return wire


def flow(value: int, unit: int = 0) -> bytes:
    return control("message.flow", destination="d", unit=unit, value=value)


def in_frames(kind: int, payload: bytes, cuts: tuple[int, ...], channel: int = 1, last: int = LAST_SEGMENT) -> bytes:
    """A control (0) or command (1) whose segment takes several frames, which begin at `cuts`."""
    ends = [0, *cuts, len(payload)]
    flags = [FIRST_SEGMENT | last] * (len(ends) - 1)
    flags[0] |= FIRST_FRAME
    flags[-1] |= LAST_FRAME
    return b"".join(
        frame(kind, payload[start:end], channel, flag) for start, end, flag in zip(ends, ends[1:], flags, strict=False)
    )


BYTES, NO_LIMIT = 1, 2**32 - 1  # unit and value of message.flow
# Header and body of `transfer`: all but the headers of its three frames, and the payload of the first.
BYTES_OF_TRANSFER = len(transfer("d")) - len(segment("message.transfer", {"destination": "d", "accept-mode": 0})) - 36


def scripts() -> dict[str, Wire]:
    wires = {}

    wire = wires["one name, two subscriptions"] = subscribed(opened(), "first")
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, control("message.cancel", destination="d"))
    subscribed(wire, "second")
    wire.add(SERVER, transfer("d") + transfer("d"))

    wire = wires["ranges"] = subscribed(opened(server=2**32 - 2), "q")
    wire.add(SERVER, transfer("d") * 4)  # 2**32 - 2, 2**32 - 1, 0, 1
    wire.add(CLIENT, control("message.accept", transfers=[(2**32 - 1, 0)]))
    wire.add(CLIENT, control("message.release", transfers=[(1, 1)]))

    wire = wires["no accept"] = subscribed(opened(), "q", accept=1)
    wire.add(SERVER, transfer("d", accept=1))
    wire.add(CLIENT, transfer("amq.direct", accept=1) + transfer("amq.direct", accept=1))
    wire.add(SERVER, control("session.completed", commands=[(0, 1)]))

    wire = wires["explicit accept"] = opened()
    wire.add(CLIENT, transfer("amq.direct") * 2)
    wire.add(SERVER, control("session.completed", commands=[(0, 0)]))

    # Packets 1 to 9.
    wire = wires["requests"] = opened()
    wire.add(CLIENT, control("queue.declare", queue="q") + control("queue.query", queue="q"))
    wire.add(SERVER, control("execution.result", command_id=1))
    wire.add(SERVER, control("session.completed", commands=[(0, 1)]))
    wire.add(CLIENT, control("queue.declare", queue="p") + control("execution.sync"))
    wire.add(SERVER, control("execution.exception", error_code=404, command_id=2))
    wire.add(CLIENT, control("session.detach", name=b"s"))
    wire.add(SERVER, control("session.detached", name=b"s", code=0))

    # Packets from 5 on; the last flush may have lost its reply.
    wire = wires["requests of a session"] = opened()
    wire.add(CLIENT, control("session.request-timeout", timeout=300))
    wire.add(SERVER, control("session.timeout", timeout=300))
    wire.add(CLIENT, control("queue.declare", queue="q") + control("session.flush", completed=True))  # 7
    wire.add(SERVER, control("session.confirmed", commands=[(0, 0)]))
    wire.add(SERVER, control("session.completed", commands=[(0, 0)], timely_reply=True))  # 9
    wire.add(CLIENT, control("session.known-completed", commands=[(0, 0)]))
    wire.add(SERVER, control("session.flush", confirmed=True, expected=True))  # 11
    wire.add(CLIENT, control("session.completed", commands=[]) + control("session.expected", commands=[]))
    wire.add(CLIENT, control("session.confirmed", commands=[]))  # 13
    wire.add(SERVER, control("session.flush"))
    wire.add(CLIENT, control("session.flush", expected=True))
    wire.lose(SERVER, len(control("session.expected", commands=[])))
    wire.add(SERVER, control("session.expected", commands=[]))

    wire = wires["refused"] = opened()
    wire.add(CLIENT, transfer("amq.direct", accept=1) * 2)
    wire.add(SERVER, control("execution.exception", error_code=404, command_id=0))

    command, body = segment("message.transfer", {"destination": "amq.direct"}), frame(3, b"x", 1, LAST_SEGMENT | 3)
    wire = wires["without header"] = opened()
    wire.add(CLIENT, frame(1, command, 1, FIRST_SEGMENT | 3) + body)
    wire.add(CLIENT, frame(1, command, 1, FIRST_SEGMENT | LAST_SEGMENT | 3))
    wire.add(CLIENT, frame(1, command, 1, FIRST_SEGMENT | 3) + frame(2, header(), 1, 3) + body)

    wire = wires["lost header"] = opened()
    wire.add(CLIENT, frame(1, command, 1, FIRST_SEGMENT | 3))
    wire.lose(CLIENT, len(frame(2, header(("message.delivery-properties", {"delivery-mode": 2})), 1, 3)))
    wire.add(CLIENT, body)
    give_up(wire, CLIENT)

    # The end of a header, and that of a command, are lost; the rest is complete.
    about = ("message.message-properties", {"content-length": 1}), ("message.delivery-properties", {"delivery-mode": 2})
    for script, parts, size in (
        ("cut header", [frame(1, command, 1, FIRST_SEGMENT | 3) + frame(2, header(*about), 1, 3), body], 4),
        ("cut command", [frame(1, command, 1, FIRST_SEGMENT | 3), frame(2, header(*about), 1, 3) + body], 8),
    ):
        wire = wires[script] = opened()
        wire.add(CLIENT, parts[0][:-size])
        wire.lose(CLIENT, size)
        wire.add(CLIENT, parts[1])
        give_up(wire, CLIENT)

    wire = wires["browsing"] = subscribed(opened(), "q")
    wire.add(SERVER, transfer("d", acquire=0) + transfer("d", acquire=1) + transfer("d"))
    wire.add(CLIENT, transfer("amq.direct", acquire=1))

    wire = wires["unroutable"] = opened()
    wire.add(CLIENT, transfer("amq.direct", routing_key="nobody") * 2)
    wire.add(SERVER, control("message.reject", transfers=[(0, 0)], code=1, text="no route"))
    wire.add(SERVER, control("message.reject", transfers=[(1, 1)], code=0))
    wire.add(SERVER, control("session.completed", commands=[(0, 1)]))

    wire = wires["open transaction"] = subscribed(opened(), "q")
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, control("tx.select") + control("message.accept", transfers=[(0, 0)]))

    # A transaction is open when its session is detached, or with state that is preserved for some time, attached again
    # or not until the connection is closed. The first one is committed.
    detach = control("session.detach", name=b"s") + control("session.detached", name=b"s", code=0)
    again = control("session.attach", name=b"s") + point(6)
    closed = one_frame("connection.close", {"reply-code": 200, "reply-text": "bye"}, 0)
    for script, timeout, ends in (
        ("by detach", 0, detach), ("by close", 0, closed), ("by close, later", 300, detach + closed),
        ("by commit", 300, detach + again + control("tx.commit")), ("not yet", 300, detach), ("never", 0, b""),
    ):  # fmt: skip
        wire = wires[f"open transaction ends {script}"] = subscribed(opened(), "q")
        wire.add(SERVER, control("session.timeout", timeout=timeout) + transfer("d"))
        wire.add(CLIENT, control("tx.select") + transfer("amq.direct") + control("tx.commit"))
        wire.add(SERVER, control("session.completed", commands=[(0, 3)]))
        wire.add(CLIENT, control("message.accept", transfers=[(0, 0)]) + transfer("amq.direct"))
        wire.add(CLIENT, ends)
        wire.add(SERVER, control("session.completed", commands=[(4, 6 if script == "by commit" else 4)]))

    # Segments may be cut anywhere: after the code of the class, after that of the command, inside of arguments.
    wire = wires["in frames"] = Wire()
    attach = segment("session.attach", {"name": b"long name"})
    wire.add(CLIENT, b"AMQP\x01\x01\x00\x0a" + in_frames(0, attach, (2, 7)) + point(0))
    wire.add(SERVER, b"AMQP\x01\x01\x00\x0a" + control("session.attached", name=b"long name"))
    wire.add(CLIENT, control("tx.select"))
    for cuts in ((1, 3, 5), (2,), (6,)):
        moved = segment("message.transfer", {"destination": "amq.direct"})
        wire.add(CLIENT, in_frames(1, moved, cuts, last=0) + frame(3, b"x", 1, LAST_SEGMENT | 3))
    wire.add(CLIENT, in_frames(1, segment("tx.commit", {}), (2,)))
    wire.add(SERVER, control("session.completed", commands=[(0, 4)]))
    refused = segment("execution.exception", {"error-code": 404, "command-id": 5, "description": "no queue"})
    wire.add(SERVER, in_frames(1, refused, (2, 9)))
    closed = segment("connection.close", {"reply-code": 320, "reply-text": "stopped"})
    wire.add(SERVER, in_frames(0, closed, (2, 5), channel=0))

    # xa-status of the answers: 1 rbrollback, 4 heurcom, 5 heurrb, 6 heurmix (0-10 specification, dtx.commit and
    # dtx.rollback). The commands are completed after their results, or before.
    for end, early in (("commit", False), ("commit", True), ("rollback", False), ("rollback", True)):
        wire = wires[f"heuristics, {end}, completed {'early' if early else 'late'}"] = opened()
        wire.add(CLIENT, control("dtx.select"))
        for number, status in enumerate((1, 4, 5, 6)):
            branch = {"xid": {"format": 0, "global-id": bytes([status]), "branch-id": b""}}
            wire.add(CLIENT, control("dtx.start", **branch) + transfer("amq.direct") + control("dtx.end", **branch))
            wire.add(CLIENT, control(f"dtx.{end}", **branch))
            if early:
                wire.add(SERVER, control("session.completed", commands=[(0, 4 + 4 * number)]))
            result = ("dtx.xa-result", {"status": status})
            wire.add(SERVER, control("execution.result", command_id=4 + 4 * number, value=result))
        wire.add(SERVER, control("session.completed", commands=[(0, 16)]))

    wire = wires["commit refused after its completion"] = opened()
    branch = {"xid": {"format": 0, "global-id": b"b", "branch-id": b""}}
    wire.add(CLIENT, control("dtx.select") + control("dtx.start", **branch) + transfer("amq.direct"))
    wire.add(CLIENT, control("dtx.end", **branch) + control("dtx.commit", **branch))
    wire.add(SERVER, control("session.completed", commands=[(0, 4)]))
    wire.add(SERVER, control("execution.exception", error_code=542, command_id=4))  # illegal-state

    facts = header(("message.message-properties", {"content-length": 3}))
    wire = wires["no body"] = opened()
    wire.add(CLIENT, frame(1, command, 1, FIRST_SEGMENT | 3) + frame(2, facts, 1, LAST_SEGMENT | 3))

    # Of credit, commands one packet after the other: the client's subscribe is packet 5.
    wire = wires["window"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(2))  # no bytes yet
    wire.add(CLIENT, flow(NO_LIMIT, BYTES))
    wire.add(SERVER, transfer("d"))
    wire.add(SERVER, transfer("d"))  # packet 9: none left
    wire.add(CLIENT, control("message.accept", transfers=[(0, 1)]))
    wire.add(CLIENT, control("session.completed", commands=[(0, 0)]))  # packet 11: one
    wire.add(CLIENT, control("session.completed", commands=[(0, 1)]))  # two, not three
    wire.add(SERVER, transfer("d"))
    wire.add(SERVER, transfer("d"))  # packet 14: none left
    wire.add(CLIENT, control("session.completed", commands=[(3, 3)]))  # packet 15: one
    wire.add(CLIENT, control("message.stop", destination="d"))  # packet 16
    wire.add(CLIENT, control("session.completed", commands=[(0, 3)]))  # of before: nothing
    wire.add(CLIENT, flow(NO_LIMIT, BYTES))
    wire.add(CLIENT, flow(NO_LIMIT))  # packet 19
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, control("message.cancel", destination="d"))

    wire = wires["credit"] = subscribed(opened(), "q")
    wire.add(CLIENT, control("message.set-flow-mode", destination="d", flow_mode=0))
    wire.add(CLIENT, flow(1) + flow(NO_LIMIT, BYTES))  # packet 7
    wire.add(SERVER, transfer("d"))  # packet 8: none left
    wire.add(CLIENT, control("session.completed", commands=[(0, 0)]))  # nothing comes back
    wire.add(CLIENT, flow(2))  # packet 10
    wire.add(CLIENT, control("message.set-flow-mode", destination="d", flow_mode=1))  # packet 11: all is gone
    wire.add(CLIENT, flow(1))
    wire.add(CLIENT, flow(NO_LIMIT, BYTES))  # packet 13
    wire.add(SERVER, transfer("d"))  # packet 14: none left
    wire.add(CLIENT, control("session.completed", commands=[(0, 1)]))  # packet 15: one
    wire.add(CLIENT, control("session.detach", name=b"s"))

    wire = wires["bytes"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(10) + flow(BYTES_OF_TRANSFER, BYTES))  # packet 6
    wire.add(SERVER, transfer("d"))  # packet 7: none left
    wire.add(CLIENT, control("session.completed", commands=[(0, 0)]))  # packet 8
    wire.add(SERVER, transfer("d"))  # packet 9: none left, and nothing more comes
    wire.add(CLIENT, one_frame("connection.heartbeat", {}, 0))
    wire.add(SERVER, control("session.detached", name=b"s"))  # packet 11

    # What was sent before the stop had come to the server is not owed to it.
    wire = wires["crossing"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(5) + flow(NO_LIMIT, BYTES))  # packet 6
    wire.add(CLIENT, control("message.stop", destination="d"))  # packet 7
    wire.add(SERVER, transfer("d") + transfer("d"))
    wire.add(CLIENT, flow(1) + flow(NO_LIMIT, BYTES))  # packet 9
    wire.add(SERVER, transfer("d"))  # packet 10: none left
    wire.add(CLIENT, control("message.cancel", destination="d"))  # packet 11
    wire.add(SERVER, transfer("d"))

    # The client's commands are 0 (subscribe), 1 and 2 (flow), 3 (flush), and what follows.
    flush = control("message.flush", destination="d")
    wire = wires["flush"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(5) + flow(NO_LIMIT, BYTES))  # packet 6
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, flush)
    wire.add(SERVER, transfer("d"))  # as long as the flush is not completed
    wire.add(SERVER, control("session.completed", commands=[(0, 3)]))  # packet 10: nothing is left
    wire.add(CLIENT, control("session.completed", commands=[(0, 1)]))  # of before: nothing
    wire.add(CLIENT, flow(1) + flow(NO_LIMIT, BYTES))  # packet 12
    wire.add(SERVER, transfer("d"))  # packet 13: none left
    wire.add(CLIENT, control("message.cancel", destination="d"))  # packet 14

    wire = wires["flush, then flow"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(5) + flow(NO_LIMIT, BYTES))  # packet 6
    wire.add(CLIENT, flush + flow(2) + flow(NO_LIMIT, BYTES))
    wire.add(SERVER, control("session.completed", commands=[(0, 3)]))  # two are left, of five and two
    wire.add(SERVER, transfer("d"))
    wire.add(SERVER, transfer("d"))  # packet 10: none left
    wire.add(CLIENT, control("message.cancel", destination="d"))  # packet 11

    wire = wires["flush without completion"] = subscribed(opened(), "q")
    wire.add(CLIENT, flow(5) + flow(NO_LIMIT, BYTES))  # packet 6
    wire.add(CLIENT, flush)
    wire.add(SERVER, control("session.completed", commands=[(0, 2)]))
    wire.add(CLIENT, control("message.cancel", destination="d"))

    wire = wires["lost"] = subscribed(opened(), "q")
    wire.add(SERVER, transfer("d") * 2)
    wire.add(CLIENT, control("message.accept", transfers=[(0, 0)]))
    wire.lose(CLIENT, len(control("message.accept", transfers=[(1, 1)])))
    wire.add(CLIENT, one_frame("connection.heartbeat", {}, 0))
    give_up(wire, CLIENT)
    wire.add(SERVER, transfer("d"))

    # After the loss no command of the client has a known number, so nothing tells what completes the commit.
    wire = wires["lost command"] = opened()
    wire.add(CLIENT, control("tx.select"))
    wire.lose(CLIENT, len(control("message.flow", destination="d", unit=0, value=1)))
    wire.add(CLIENT, control("message.subscribe", queue="q", destination="d"))
    give_up(wire, CLIENT)
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, control("message.accept", transfers=[(0, 0)]) + control("tx.commit"))
    wire.add(SERVER, control("session.completed", commands=[(0, 4)]))

    # Detached and attached again: where its state is preserved, the next commands are 2 of the client (after subscribe
    # and accept), 2 of the server; else each side begins again.
    for script, granted, following in (
        ("attached again", {"timeout": 300}, 2), ("attached again, no limit", {}, 2),
        ("attached anew", {"timeout": 0}, 0),
    ):  # fmt: skip
        wire = wires[script] = subscribed(opened(), "q")
        wire.add(CLIENT, control("session.request-timeout", **granted))
        wire.add(SERVER, control("session.timeout", **granted) + transfer("d") * 2)
        wire.add(CLIENT, control("message.accept", transfers=[(0, 0)]) + control("session.detach", name=b"s"))
        wire.add(SERVER, control("session.detached", name=b"s", code=0))
        wire.add(CLIENT, control("session.attach", name=b"s") + point(following))
        wire.add(SERVER, control("session.attached", name=b"s") + point(following) + transfer("d"))
        wire.add(CLIENT, control("message.accept", transfers=[(1, 2) if following else (0, 0)]))

    # Attached although it is attached; then after a detach that is not answered yet.
    wire = wires["attached twice"] = subscribed(opened(), "q")
    wire.add(SERVER, transfer("d"))
    wire.add(CLIENT, control("session.attach", name=b"s"))
    wire.add(SERVER, control("session.attached", name=b"s") + point(1) + transfer("d"))
    wire.add(CLIENT, control("message.accept", transfers=[(0, 1)]))
    wire.add(CLIENT, control("session.detach", name=b"s") + control("session.attach", name=b"s") + point(0))
    wire.add(SERVER, control("session.detached", name=b"s", code=0) + control("session.attached", name=b"s"))
    wire.add(CLIENT, transfer("amq.direct"))

    # The channel of a session is attached again at once: to another one (packet 5), to the same one, whose state is
    # preserved. The server goes on with what was before until it answers the detach.
    wire = wires["attached before the detach is answered"] = opened()
    next_one = control("session.detach", name=b"s") + control("session.attach", name=b"t") + point(0)
    wire.add(CLIENT, transfer("amq.direct") + next_one + transfer("amq.direct"))
    wire.add(SERVER, control("message.reject", transfers=[(0, 0)], code=0))
    wire.add(SERVER, control("session.detached", name=b"s", code=0))
    wire.add(SERVER, control("session.attached", name=b"t") + point(0))
    wire.add(SERVER, control("session.completed", commands=[(0, 0)]))
    wire.add(CLIENT, control("session.detach", name=b"t"))  # packet 10
    wire.add(SERVER, control("session.detached", name=b"t", code=0))
    wire = wires["attached again before the detach is answered"] = opened()
    wire.add(SERVER, control("session.timeout", timeout=300))
    wire.add(CLIENT, control("session.detach", name=b"s") + control("session.attach", name=b"s") + point(0))
    wire.add(SERVER, control("session.detached", name=b"s", code=0))
    wire.add(SERVER, control("session.attached", name=b"s") + point(0))
    wire.add(CLIENT, transfer("amq.direct"))
    wire.add(SERVER, control("session.completed", commands=[(0, 0)]))

    # The same session on channel 1, on channel 2 while another one uses the first, and on channel 1 again; the last
    # time, too late. On channel 2 it is attached while it still is on channel 1: refused.
    wire = wires["attached to another channel"] = subscribed(opened(), "q")
    wire.add(SERVER, control("session.timeout", timeout=1) + transfer("d") * 3)
    busy = {"name": b"s", "code": 1}
    wire.add(CLIENT, one_frame("session.attach", {"name": b"s"}, 2))
    wire.add(SERVER, one_frame("session.detached", busy, 2))
    wire.add(CLIENT, control("message.accept", transfers=[(0, 0)]) + control("session.detach", name=b"s"))
    wire.add(SERVER, control("session.detached", name=b"s", code=0))
    wire.add(CLIENT, one_frame("session.attach", {"name": b"s"}, 2) + control("session.attach", name=b"t") + point(0))
    moved = one_frame("session.command-point", {"command-id": 2, "command-offset": 0}, 2)
    wire.add(CLIENT, moved + one_frame("message.accept", {"transfers": [(1, 1)]}, 2) + transfer("amq.direct"))
    wire.add(SERVER, one_frame("session.attached", {"name": b"s"}, 2) + control("session.attached", name=b"t"))
    moved = one_frame("session.command-point", {"command-id": 3, "command-offset": 0}, 2)
    wire.add(SERVER, moved + transfer("d", channel=2) + control("session.completed", commands=[(0, 0)]))
    wire.add(CLIENT, one_frame("message.accept", {"transfers": [(3, 3)]}, 2))
    wire.add(CLIENT, control("session.detach", name=b"t") + one_frame("session.detach", {"name": b"s"}, 2))
    wire.add(CLIENT, control("session.attach", name=b"s") + point(4))
    wire.add(CLIENT, control("message.accept", transfers=[(2, 2)]))
    return wires


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    path = tmp_path_factory.mktemp("wires") / "wires.pcap"
    read = Written(spark, path, scripts(), besides=[CAPTURES / name for name in NAMES])
    yield read
    read.tables.release()


def test_a_destination_may_name_one_subscription_after_the_other(written: Written) -> None:
    script = "one name, two subscriptions"
    assert written.rows("messages", script, "queue") == [("first",), ("second",), ("second",)]
    assert written.rows("links", script, "queue", "transfers") == [("first", 1), ("second", 2)]


def test_ranges_of_commands_pass_the_highest_number(written: Written) -> None:
    rows = written.rows("messages", "ranges", "delivery_id", "outcome")
    assert rows == [(2**32 - 2, "unsettled"), (2**32 - 1, "acked"), (0, "acked"), (1, "released")]


def test_transfers_without_accept_are_presettled_with_or_without_a_captured_completion(written: Written) -> None:
    rows = written.rows("messages", "no accept", "operation", "outcome", "delivery_id", "settle_latency_ns")
    # The subscribe is command 0 of the client. The transfers are in packet 7; packet 8 completes up to the first.
    assert rows == [
        ("deliver", "presettled", 0, None), ("publish", "presettled", 1, 1000), ("publish", "presettled", 2, None)
    ]  # fmt: skip
    rows = written.rows("messages", "explicit accept", "outcome", "settle_latency_ns")
    assert rows == [("confirmed", 1000), ("unsettled", None)]
    assert written.rows("messages", "refused", "outcome") == [("nacked",), ("presettled",)]
    counts = [written.rows("channels", name, "confirmed") for name in ("no accept", "explicit accept", "refused")]
    assert counts == [[(0,)], [(1,)], [(0,)]]


def test_commands_are_answered_by_their_result_exception_or_completion(written: Written) -> None:
    rows = written.rows("methods", "requests", "frame_no", "sender", "name", "reply_name", "reply_latency_ns")
    assert [row[2:] for row in sorted(rows) if row[1] == "client"] == [
        ("session.attach", "session.attached", 1000),
        ("session.command-point", None, None),
        ("queue.declare", "session.completed", 2000),
        ("queue.query", "execution.result", 1000),
        ("queue.declare", "execution.exception", 1000),
        ("execution.sync", None, None),
        ("session.detach", "session.detached", 1000),
    ]
    assert {row[3] for row in rows if row[1] == "server"} == {None}


def test_what_is_asked_of_a_session_has_its_answer(written: Written) -> None:
    """0-10 specification, class session: request-timeout, completed with timely-reply, flush. The reply to a flush for
    several sets is the first of completed, confirmed and expected that it asks for."""
    script = "requests of a session"
    rows = written.rows("methods", script, "frame_no", "sender", "name", "reply_name", "reply_latency_ns")
    assert [row[1:] for row in sorted(rows) if row[3]] == [
        ("client", "session.attach", "session.attached", 1000),
        ("client", "session.request-timeout", "session.timeout", 1000),
        ("client", "queue.declare", "session.completed", (9 - 7) * 1000),
        ("client", "session.flush", "session.completed", (9 - 7) * 1000),
        ("server", "session.completed", "session.known-completed", 1000),
        ("server", "session.flush", "session.confirmed", (13 - 11) * 1000),
    ]


def test_messages_that_are_not_acquired_are_browsed(written: Written) -> None:
    rows = written.rows("messages", "browsing", "operation", "browsed")
    assert rows == [("deliver", False), ("deliver", True), ("deliver", None), ("publish", None)]


def test_missing_fields_of_a_transfer_have_their_defaults(written: Written) -> None:
    """Optional segments are optional (2.3, assemblies); an absent bit is false: not durable, not immediate, and what
    has no route is not to be discarded."""
    columns = ("durable", "mandatory", "immediate", "complete", "body_size")
    plain = (False, True, False, True)
    assert written.rows("messages", "without header", *columns) == [(*plain, 1), (*plain, 0), (*plain, 1)]
    # Of a header that was not captured nothing is known.
    assert written.rows("messages", "lost header", *columns[:4]) == [(None, None, None, False)]
    assert written.rows("links", "no accept", "no_ack") == [(True,)]


def test_no_field_has_a_default_where_values_were_not_captured(written: Written) -> None:
    columns = ("exchange", "durable", "mandatory", "immediate", "complete")
    assert written.rows("messages", "cut header", *columns) == [("amq.direct", None, None, None, True)]
    assert written.rows("messages", "cut command", *columns) == [(None, True, True, False, True)]


def test_a_rejected_publish_that_had_no_route_was_returned(written: Written) -> None:
    assert written.rows("messages", "unroutable", "outcome", "mandatory") == [("returned", True), ("rejected", True)]
    assert written.rows("channels", "unroutable", "returned", "nacked") == [(1, 1)]


def test_commands_may_take_several_frames(written: Written) -> None:
    script = "in frames"
    columns = ("exchange", "delivery_id", "complete", "outcome", "transaction")
    expected = [("amq.direct", number, True, "confirmed", "committed") for number in (1, 2, 3)]
    assert written.rows("messages", script, *columns) == expected
    of_session = ("channel_incarnation", "session_name", "mode", "close_code", "close_text")
    assert written.rows("channels", script, *of_session) == [(1, "long name", "tx", 404, "no queue")]
    of_connection = ("messages_published", "close_initiator", "close_code", "close_text")
    assert written.rows("connections", script, *of_connection) == [(3, "server", 320, "stopped")]


@pytest.mark.parametrize("script", ["attached again", "attached again, no limit"])
def test_a_session_goes_on_while_its_state_is_preserved(written: Written, script: str) -> None:
    """0-10 specification, class session, request-timeout, timeout, command-point."""
    rows = written.rows("messages", script, "delivery_id", "outcome", "channel_incarnation", "queue")
    assert rows == [(number, "acked", 1, "q") for number in (0, 1, 2)]
    assert written.rows("links", script, "name", "transfers", "closed_ts") == [("d", 3, None)]
    assert written.rows("channels", script, "channel_incarnation", "acked", "unsettled", "closed_ts") == [
        (1, 3, 0, None)
    ]


def test_a_session_that_is_attached_twice_is_one_session(written: Written) -> None:
    """0-10 specification, class session, rule idempotence: an attach to the current transport succeeds."""
    rows = written.rows("messages", "attached twice", "delivery_id", "outcome", "channel_incarnation", "queue")
    assert rows == [(0, "acked", 1, "q"), (1, "acked", 1, "q"), (0, "unsettled", 2, None)]
    assert written.rows("channels", "attached twice", "channel_incarnation", "acked", "published") == [
        (1, 2, 0),
        (2, 0, 1),
    ]
    assert written.rows("links", "attached twice", "name", "transfers") == [("d", 2)]


def test_a_session_goes_on_with_another_channel(written: Written) -> None:
    script = "attached to another channel"
    rows = written.rows(
        "messages", script, "operation", "delivery_id", "outcome", "channel", "channel_incarnation", "queue"
    )
    assert sorted(rows) == [
        *(("deliver", number, "acked", 1, 1, "q") for number in range(4)),
        ("publish", 0, "confirmed", 1, 2, None),
    ]
    assert written.rows("links", script, "name", "transfers") == [("d", 4)]
    columns = ("channel", "channel_incarnation", "session_name", "acked", "confirmed", "unsettled")
    assert sorted(written.rows("channels", script, *columns)) == [
        (1, 1, "s", 4, 0, 0), (1, 2, "t", 0, 1, 0), (2, 1, "s", 0, 0, 0)
    ]  # fmt: skip


def test_a_channel_may_be_attached_again_before_its_detach_is_answered(written: Written) -> None:
    """0-10 specification, class session: each detach has a detached as its response."""
    script = "attached before the detach is answered"
    rows = written.rows("messages", script, "delivery_id", "channel_incarnation", "outcome")
    assert rows == [(0, 1, "rejected"), (0, 2, "confirmed")]
    rows = written.rows("channels", script, "session_name", "close_initiator", "closed_ts")
    assert [(name, side, closed.microsecond) for name, side, closed in rows] == [
        ("s", "client", 5), ("t", "client", 10)
    ]  # fmt: skip
    script = "attached again before the detach is answered"
    assert written.rows("channels", script, "channel_incarnation", "closed_ts", "confirmed") == [(1, None, 1)]


def test_a_session_without_preserved_state_begins_anew(written: Written) -> None:
    script = "attached anew"
    rows = written.rows("messages", script, "delivery_id", "outcome", "channel_incarnation")
    assert rows == [(0, "acked", 1), (1, "unsettled", 1), (0, "acked", 2)]
    assert written.rows("channels", script, "channel_incarnation", "acked", "unsettled") == [(1, 1, 1), (2, 1, 0)]


@pytest.mark.parametrize("completed", ["late", "early"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_branch_may_end_by_a_decision_of_the_broker(written: Written, end: str, completed: str) -> None:
    rows = written.rows("messages", f"heuristics, {end}, completed {completed}", "transaction")
    assert rows == [("rolled-back",), ("committed",), ("rolled-back",), (None,)]


def test_a_commit_that_fails_after_its_completion_is_none(written: Written) -> None:
    """The exception ends the session. The branch stays as it was: another session may end it."""
    assert written.rows("messages", "commit refused after its completion", "transaction") == [(None,)]


def test_a_missing_body_was_not_seen_whatever_its_declared_size(written: Written) -> None:
    assert written.rows("messages", "no body", "body_size", "body_captured", "complete") == [(3, 0, True)]


def test_an_accept_in_a_transaction_without_end_settles_nothing(written: Written) -> None:
    assert written.rows("messages", "open transaction", "outcome", "transaction") == [("unsettled", None)]


@pytest.mark.parametrize(
    ("script", "accepted", "published"),
    [
        ("by detach", ("unsettled", "rolled-back"), "rolled-back"),
        ("by close", ("unsettled", "rolled-back"), "rolled-back"),
        ("by close, later", ("unsettled", "rolled-back"), "rolled-back"),
        ("by commit", ("acked", "committed"), "committed"),
        ("not yet", ("unsettled", None), None),
        ("never", ("unsettled", None), None),
    ],
)
def test_a_transaction_that_is_open_when_its_session_ends_is_rolled_back(
    written: Written, script: str, accepted: tuple[str, str | None], published: str | None
) -> None:
    rows = written.rows("messages", f"open transaction ends {script}", "operation", "outcome", "transaction")
    assert rows[0] == ("deliver", *accepted)
    assert rows[1] == ("publish", "confirmed", "committed")
    assert rows[2][2] == published


def test_an_accept_in_a_transaction_whose_commit_has_no_known_number_is_unknown(written: Written) -> None:
    assert written.rows("messages", "lost command", "outcome", "transaction") == [("unknown", None)]


def test_an_accept_that_may_be_lost_is_unknown_and_the_destination_names_nothing(written: Written) -> None:
    rows = written.rows("messages", "lost", "outcome", "queue")
    assert rows == [("acked", "q"), ("unknown", "q"), ("unsettled", None)]
    assert written.rows("links", "lost", "queue", "transfers") == [(None, 1), ("q", 2)]


# Packets are 1 us apart.
@pytest.mark.parametrize(
    ("script", "us"),
    [
        ("window", (7 - 5) + (11 - 9) + (15 - 14) + (19 - 16)),
        ("credit", (7 - 5) + (10 - 8) + (13 - 11) + (15 - 14)),
        ("bytes", (6 - 5) + (8 - 7) + (11 - 9)),
        ("crossing", (6 - 5) + (9 - 7) + (11 - 10)),
        ("flush", (6 - 5) + (12 - 10) + (14 - 13)),
        ("flush, then flow", (6 - 5) + (11 - 10)),
        ("flush without completion", 6 - 5),
    ],
)
def test_time_without_credit_is_added_up(written: Written, script: str, us: int) -> None:
    assert written.rows("links", script, "no_credit_ns") == [(us * 1000,)]


def test_time_without_credit_is_not_known_where_bytes_are_missing(written: Written) -> None:
    assert written.rows("links", "lost", "no_credit_ns") == [(None,), (None,)]
