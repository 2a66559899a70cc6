"""Table stalls: when a side could not send, or did not get on, in connections written by hand.

Each step of a connection takes a millisecond; `wait` adds to that. Expected times are sums of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import encode_1_0
import link_connections as L
import pcap_files
import pytest
import rule_connections as R
from encode_0_10 import content, header, segment
from local_rows import check_pieces, tables_of_captures
from pcap_files import RAW_IP
from rule_support import FIRST_PORT, STEP_NS, Connection, ip_packet

from codec.compiler.limits import LIMITS

S = 1000 * STEP_NS
COLUMNS = ("kind", "side", "channel", "link", "stall_ns", "resumed")
CLASSIC = ("0-8", "0-9", "0-9-1")


class Read:
    """The tables of connections by name."""

    def __init__(self, path: Path, connections: dict[str, Connection]) -> None:
        self.path, self.connections = path, connections
        ports = {name: FIRST_PORT + at for at, name in enumerate(connections)}
        records = [
            (packet.ns, *ip_packet(connection, packet, 1, ports[name]))
            for name, connection in connections.items()
            for packet in connection.packets
        ]
        path.write_bytes(pcap_files.pcap(sorted(records, key=lambda record: record[0]), RAW_IP))
        self.tables = tables_of_captures([path])
        names = {port: name for name, port in ports.items()}
        self.names = {row["connection_id"]: names[row["client_port"]] for row in self.tables["connections"]}

    def rows(self, name: str, table: str = "stalls") -> list[dict[str, Any]]:
        return [row for row in self.tables.get(table, ()) if self.names[row["connection_id"]] == name]

    def stalls(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """In the order in which they began."""
        rows = sorted(self.rows(name), key=lambda row: (row["from_ns"], row["kind"]))
        return [tuple(row[column] for column in columns or COLUMNS) for row in rows]


def zero_window(resumed: bool) -> Connection:
    """The server closes its window for 5 steps and 3 s, in which the client tries once."""
    connection = Connection().handshake().packet("server", window=0).wait(3).packet("client").packet("server", window=0)
    connection.packet("client").packet("client")
    return connection.packet("server").heartbeat() if resumed else connection


def full(version: str, prefetch: int, **arguments: Any) -> Connection:
    """A consumer with so many deliveries as it may have."""
    connection = Connection(version).handshake().open().consume(prefetch=prefetch, no_ack=False, **arguments)
    for tag in range(1, prefetch + 1):
        connection.deliver(tag)
    return connection


def acknowledged(connection: Connection, tag: int, multiple: bool = False) -> Connection:
    return connection.client("basic.ack", delivery_tag=tag, multiple=multiple)


def flow_0_10(connection: Connection, messages: int) -> Connection:
    for unit, value in ((0, messages), (1, R.NO_LIMIT)):
        R.send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=value)
    return connection


def subscribed() -> Connection:
    """A subscription to which credit is given 2 s after its second message.

    After message.subscribe there is none for a step and the 1st message.flow (messages), then there are no bytes."""
    connection = R.session_0_10()
    R.send_0_10(connection, "client", "message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    return flow_0_10(connection, 1)


def connections() -> Iterator[tuple[str, Connection]]:
    yield "zero window", zero_window(True).close().fin()
    yield "zero window to the end", zero_window(False)
    for version in CLASSIC:
        one = acknowledged(full(version, 1).wait(2), 1).wait(1).deliver(2).wait(3)
        yield f"prefetch {version}", acknowledged(one, 2).wait(5).close()
        yield f"flow {version}", (
            Connection(version).handshake().open().server("channel.flow", active=False)
            .client("channel.flow-ok", active=False).wait(2).server("channel.flow", active=True)
            .client("channel.flow-ok", active=True).close()
        )  # fmt: skip
        yield f"late {version}", (
            Connection(version).handshake().open().client("queue.declare", queue="q").wait(4)
            .server("queue.declare-ok", queue="q", message_count=0, consumer_count=0).close()
        )  # fmt: skip
    busy = full("0-9-1", 1).wait(0.010)
    for tag in range(1, 40):  # 11 ms of work, then the next one within a step
        acknowledged(busy, tag).deliver(tag + 1).wait(0.010)
    yield "busy", acknowledged(busy, 40).close()
    several = full("0-9-1", 3).wait(1)
    acknowledged(several, 2).deliver(4).wait(1)
    acknowledged(several, 4, multiple=True).wait(1)
    yield "several", several.close()
    whole = Connection().handshake().open().asks("basic.qos", 1, None, prefetch_count=2, **{"global": True})
    whole.asks("basic.consume", reply={"consumer_tag": "c"}, queue="q", consumer_tag="c", no_ack=False)
    whole.asks("basic.consume", reply={"consumer_tag": "d"}, queue="r", consumer_tag="d", no_ack=False)
    whole.deliver(1).deliver(2, consumer_tag="d").wait(2)
    yield "of the channel", acknowledged(whole, 1).close()
    yield (
        "cancelled",
        full("0-9-1", 1).wait(2).asks("basic.cancel", consumer_tag="c", reply={"consumer_tag": "c"}).close(),
    )
    yield "lost", acknowledged(full("0-9-1", 1).lose("client", 30).wait(2), 1).close()
    yield "blocked", (
        Connection().handshake().open().server("connection.blocked", 0, reason="memory").wait(7)
        .server("connection.unblocked", 0).publish()
        .server("connection.blocked", 0, reason="memory").wait(1).heartbeat()
    )  # fmt: skip
    yield "never", Connection().handshake().open().client("queue.declare", queue="q").wait(9).heartbeat()
    yield "refused", (
        Connection().handshake().open().client("queue.declare", queue="q").wait(2)
        .server("channel.close", reply_code=404, reply_text="no").client("channel.close-ok").wait(5).close()
    )  # fmt: skip
    yield "nowait", Connection().handshake().open().client("queue.declare", queue="q", no_wait=True).wait(9).heartbeat()
    yield "silent", Connection().handshake().open().wait(119).heartbeat("server").wait(2).heartbeat().close()
    yield "1.0", L.closed(late_credit())
    yield "1.0 window", L.closed(closed_window())
    never = L.attach(L.begun(), "client", "s", 0, False).wait(6)
    yield "1.0 never", never.data("server", encode_1_0.frame(b""))
    yield "0-10", late_credit_0_10()


def late_credit() -> Connection:
    """Link 'r' has credit for one message; the next credit comes 2 s later, and is used 3 s after that, to the end."""
    connection = L.receiver_link(credit=1).wait(1)
    L.transfer(connection, "server", 1, 0).wait(2)
    L.flow(connection, "client", 1, 1, delivery_count=1).wait(3)
    return L.transfer(connection, "server", 1, 1).wait(1)


def closed_window() -> Connection:
    """The server announces a window of 0 for 4 s."""
    connection = L.sender_link()
    L.flow(connection, "server", None, incoming_window=0).wait(4)
    return L.flow(connection, "server", None, incoming_window=9)


def late_credit_0_10() -> Connection:
    connection = subscribed()
    R.done_0_10(connection, 2)
    transfer = segment("message.transfer", {"destination": "d", "accept-mode": 0, "acquire-mode": 0})
    about = ("message.delivery-properties", {"routing-key": "q"}), ("message.message-properties", {"content-length": 1})
    connection.server_bytes(b"".join(content(transfer, header(*about), channel=R.CHANNEL))).wait(2)
    R.send_0_10(connection, "client", "message.flow", destination="d", unit=0, value=5)
    return R.closed_0_10(connection.wait(1))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    return Read(tmp_path_factory.mktemp("stalls") / "stalls.pcap", dict(connections()))


def kinds(rows: Iterable[tuple[Any, ...]], *wanted: str) -> list[tuple[Any, ...]]:
    return [row for row in rows if row[0] in wanted]


def test_a_closed_window_stops_the_other_side(read: Read) -> None:
    lasted = 3 * S + 5 * STEP_NS
    assert read.stalls("zero window") == [("zero-window", "client", None, None, lasted, True)]
    assert read.stalls("zero window to the end") == [
        ("zero-window", "client", None, None, lasted - STEP_NS, False)
    ]  # fmt: skip
    for name in ("zero window", "zero window to the end"):
        (total,) = (row["server_zero_window_ns"] for row in read.rows(name, "connections"))
        assert [row[0] for row in read.stalls(name, "stall_ns")] == [total]


@pytest.mark.parametrize("version", CLASSIC)
def test_a_consumer_with_a_full_prefetch_stops_the_server(read: Read, version: str) -> None:
    # A delivery takes two steps, the acknowledgement follows after the wait.
    rows = read.stalls(f"prefetch {version}")
    assert rows == [
        ("prefetch-full", "server", 1, "c", 2 * S + 2 * STEP_NS, True),
        ("prefetch-full", "server", 1, "c", 3 * S + 2 * STEP_NS, True),
    ]


def test_a_busy_consumer_has_one_stall(read: Read) -> None:
    ((kind, _, _, _, stalled, _),) = read.stalls("busy")
    ((begins, until),) = read.stalls("busy", "from_ns", "until_ns")
    # 40 deliveries, each 10 ms and two steps before its acknowledgement; a step between that and the next delivery.
    assert (kind, stalled, until - begins) == ("prefetch-full", 40 * 12 * STEP_NS, 40 * 12 * STEP_NS + 39 * STEP_NS)


def test_deliveries_are_counted_whatever_acknowledges_them(read: Read) -> None:
    rows = read.stalls("several", "stall_ns")
    # Full for a second and two steps, a step later again, until the acknowledgement of all.
    assert rows == [(2 * (S + 2 * STEP_NS),)]


def test_a_global_prefetch_is_of_the_channel(read: Read) -> None:
    assert read.stalls("of the channel") == [("prefetch-full", "server", 1, None, 2 * S + 2 * STEP_NS, True)]


def test_a_cancelled_consumer_does_not_go_on(read: Read) -> None:
    assert read.stalls("cancelled") == [("prefetch-full", "server", 1, "c", 2 * S + 2 * STEP_NS, False)]


def test_what_lost_frames_may_have_acknowledged_is_no_stall(read: Read) -> None:
    assert kinds(read.stalls("lost"), "prefetch-full") == []


@pytest.mark.parametrize("version", CLASSIC)
def test_a_channel_flow_stops_the_other_side(read: Read, version: str) -> None:
    expected = ("channel-flow", "client", 1, None, 2 * S + 2 * STEP_NS, True)
    assert kinds(read.stalls(f"flow {version}"), "channel-flow") == [expected]


def test_a_blocked_connection_stops_the_client(read: Read) -> None:
    assert read.stalls("blocked") == [
        ("connection-blocked", "client", None, None, 7 * S + STEP_NS, True),
        ("connection-blocked", "client", None, None, S + STEP_NS, False),
    ]
    (total,) = (row["blocked_ns"] for row in read.rows("blocked", "connections"))
    assert total == 8 * S + 2 * STEP_NS


@pytest.mark.parametrize("version", CLASSIC)
def test_a_late_answer_is_a_stall_of_who_asked(read: Read, version: str) -> None:
    assert read.stalls(f"late {version}") == [("unanswered-request", "client", 1, None, 4 * S + STEP_NS, True)]


def test_a_request_without_an_answer_waits_for_the_end(read: Read) -> None:
    assert read.stalls("never") == [("unanswered-request", "client", 1, None, 9 * S + STEP_NS, False)]
    assert read.stalls("refused") == [("unanswered-request", "client", 1, None, 2 * S + STEP_NS, False)]
    assert read.stalls("nowait") == []


def test_a_side_is_silent_after_two_heartbeats(read: Read) -> None:
    """Both promised one a minute; the client is silent for a step less than 121 s more, the server for 119 s."""
    rows = kinds(read.stalls("silent"), "silence")
    assert [(side, resumed) for _, side, _, _, _, resumed in rows] == [("client", True)]
    (longest,) = (row["client_max_silence_ns"] for row in read.rows("silent", "connections"))
    assert [row[4] for row in rows] == [longest]


def test_a_link_without_credit_stops_its_sender(read: Read) -> None:
    rows = kinds(read.stalls("1.0"), "no-credit")
    # The attach, its answer, the first flow; the first message to the second flow; the last message to the end.
    assert [row[:4] for row in rows] == [("no-credit", "server", 1, "r")] * 3
    assert [row[4:] for row in rows[:2]] == [(2 * STEP_NS, True), (2 * S + STEP_NS, True)]
    assert rows[2][4:] == (S + 5 * STEP_NS, False)  # the transfer, two closes, two FIN
    # The total of the link ends with the last performative of its session.
    (link,) = read.rows("1.0", "links")
    assert link["no_credit_ns"] == sum(row[4] for row in rows[:2])


def test_an_attach_without_an_answer_waits_for_the_end(read: Read) -> None:
    expected = ("unanswered-request", "client", 1, "s", 6 * S + STEP_NS, False)
    assert kinds(read.stalls("1.0 never"), "unanswered-request") == [expected]


def test_a_session_window_of_0_stops_the_other_side(read: Read) -> None:
    assert kinds(read.stalls("1.0 window"), "session-window") == [
        ("session-window", "client", 1, None, 4 * S + STEP_NS, True)
    ]
    (total,) = (row["blocked_ns"] for row in read.rows("1.0 window", "connections"))
    assert total == 4 * S + STEP_NS


def test_a_subscription_without_credit_stops_the_server(read: Read) -> None:
    rows = kinds(read.stalls("0-10"), "no-credit")
    assert [row[:4] for row in rows] == [("no-credit", "server", 1, "d")] * 2
    # From message.subscribe to the flow of bytes, which is the second; from the message to the next flow.
    assert [row[4:] for row in rows] == [(2 * STEP_NS, True), (2 * S + STEP_NS, True)]
    (link,) = read.rows("0-10", "links")
    assert link["no_credit_ns"] == sum(row[4] for row in rows)


def test_what_began_a_stall_is_named(read: Read) -> None:
    frames = {row["frame_no"]: row for row in read.rows("prefetch 0-9-1", "frames")}
    (first, _) = read.stalls("prefetch 0-9-1", "frame_no", "packet_no", "from_ns", "capture_file")
    frame = frames[first[0]]
    assert frame["name"] == "basic.deliver"
    assert first[1:] == (frame["packet_no"], frame["ts_ns"], frame["capture_file"])


def test_short_stalls_have_no_row(read: Read) -> None:
    assert all(row["stall_ns"] >= LIMITS.stall_ns for row in read.tables["stalls"])


def test_stalls_are_the_same_in_pieces(read: Read, tmp_path: Path) -> None:
    """A few connections of each kind, cut at each packet."""
    names = ("zero window", "prefetch 0-9-1", "of the channel", "blocked", "never", "silent", "1.0", "0-10")
    path = tmp_path / "pieces.pcap"
    for name in names:
        records = [
            (packet.ns, *ip_packet(read.connections[name], packet, 1, 1)) for packet in read.connections[name].packets
        ]
        path.write_bytes(pcap_files.pcap(records, RAW_IP))
        check_pieces(path)
