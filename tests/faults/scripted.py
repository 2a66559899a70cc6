"""Faults written packet by packet, for what takes minutes, other brokers, or a network that real ones do not have here.

    FAULTS: name -> (connections, the cause of the first one)
    QUEUES: name -> (connections of queue q, why its messages wait)

The times are the fault: a NAT forgets a connection after minutes. 'nothing': the connection is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from link_connections import attach, begin, begun, flow, receiver_link, sender_link, transfer
from rule_connections import control, opened_0_10, opened_1_0, send_0_10
from rule_support import Connection

from codec.net.layers import ACK, FIN, RST, SYN

NO_HEARTBEAT = {"tune": {"heartbeat": 0}, "tune_ok": {"heartbeat": 0}}
CLIENT_HELLO = bytes.fromhex("16030100050100000100")
FAULTS: dict[str, tuple[list[Connection], str]] = {}


def fault(cause: str, *versions: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    def add(function: Callable[[str], Any]) -> Callable[[str], Any]:
        for version in versions or ("0-9-1", "0-10", "1.0"):
            result = function(version)
            result = result if isinstance(result, list) else [result]
            FAULTS[f"{function.__name__.replace('_', '-')}-{version}"] = result, cause
        return function

    return add


def opened(version: str, heartbeat: int = 0, **options: Any) -> Connection:
    """A connection with a channel, session or link on which the client can publish; heartbeats are off."""
    connection = Connection(version, **options)
    if version == "1.0":
        return sender_link(begun(opened_1_0(connection)))
    if version == "0-10":
        opened_0_10(connection, tune_ok={"heartbeat": heartbeat})
        send_0_10(connection, "client", "session.attach", name=b"s")
        send_0_10(connection, "server", "session.attached", name=b"s")
        return connection
    limit = {"heartbeat": heartbeat}
    return connection.handshake(tune=limit, tune_ok=limit).open()


def publish(connection: Connection, number: int = 0) -> Connection:
    if connection.version == "1.0":
        return transfer(connection, "client", 0, number)
    if connection.version == "0-10":
        return send_0_10(connection, "client", "exchange.query", name="q")
    return connection.publish()


def again(connection: Connection, times: int, seconds: float, sender: str = "client") -> Connection:
    """The last packet with data of `sender` is sent again, so often, so long after each other."""
    last = [packet for packet in connection.packets if packet.sender == sender and packet.data][-1]
    for _ in range(times):
        connection.wait(seconds)
        seq, connection.seq[sender] = connection.seq[sender], last.seq
        connection.packet(sender, last.data)
        connection.seq[sender] = seq
    return connection


@fault("path-forgotten")
def nat_resets(version: str) -> Connection:
    return publish(opened(version).wait(400)).packet("server", flags=RST)


@fault("path-forgotten", "0-9-1", "0-10")
def nat_drops(version: str) -> Connection:
    return again(publish(opened(version).wait(400)), 6, 2).packet("client", flags=RST | ACK)


@fault("path-forgotten")
def proxy_times_out(version: str) -> Connection:
    return publish(opened(version)).packet("server").wait(60).fin("server")


@fault("half-open")
def server_was_restarted(version: str) -> Connection:
    return publish(opened(version, heartbeat=60).wait(20)).packet("server", flags=RST)


@fault("no-credit", "1.0")
def sender_without_credit(version: str) -> Connection:
    connection = attach(begun(), "client", "s", 0, False)
    connection = attach(connection, "server", "s", 0, True, initial_delivery_count=None).wait(20)
    return flow(connection, "server", 0).wait(0.001)


@fault("no-credit", "1.0")
def receiver_stops_granting(version: str) -> Connection:
    connection = receiver_link(credit=2)
    for number in range(2):
        transfer(connection, "server", 1, number, settled=True)
    connection.wait(60)
    return flow(connection, "client", 1, 5, delivery_count=2)


@fault("session-window", "1.0")
def client_window_is_0(version: str) -> Connection:
    connection = flow(receiver_link(), "client", None, incoming_window=0).wait(8)
    transfer(flow(connection, "client", None), "server", 1, 0, settled=True)
    return connection


@fault("blocked", "1.0")
def server_window_is_0(version: str) -> Connection:
    connection = flow(sender_link(), "server", None, incoming_window=0).wait(8)
    return transfer(flow(connection, "server", None), "client", 0, 0, settled=True)


@fault("blocked", "0-9-1")
def disk_alarm(version: str) -> Connection:
    connection = opened(version).publish().server("connection.blocked", 0, reason="low on disk").wait(9)
    return connection.server("connection.unblocked", 0).publish().close()


@fault("channel-flow", "0-8", "0-9", "0-9-1")
def channel_is_stopped(version: str) -> Connection:
    connection = (
        opened(version).publish().server("channel.flow", 1, active=False).client("channel.flow-ok", 1, active=False)
    )
    return (
        connection.wait(9)
        .server("channel.flow", 1, active=True)
        .client("channel.flow-ok", 1, active=True)
        .publish()
        .close()
    )


@fault("request-unanswered", "0-8", "0-9", "0-9-1")
def declare_unanswered(version: str) -> Connection:
    return opened(version).client("queue.declare", 1, queue="q").wait(30).heartbeat().wait(5).heartbeat("server")


@fault("request-unanswered", "1.0")
def attach_unanswered(version: str) -> Connection:
    connection = attach(begun(opened_1_0(Connection(version))), "client", "s", 0, False).wait(30)
    return begin(connection, "client", channel=3)


@fault("delayed-acknowledgements", "0-9", "0-9-1", "0-10")
def nagle(version: str) -> Connection:
    connection = opened(version)
    for _ in range(20):
        if version == "0-10":
            send_0_10(connection, "client", "exchange.query", name="q").wait(0.04).packet("server")
            send_0_10(connection, "client", "exchange.query", name="q").packet("server").wait(0.01)
        else:
            connection.client("basic.publish", 1, exchange="e", routing_key="q").wait(0.04).packet("server")
            connection.content(b"x").packet("server").wait(0.01)
    return connection


@fault("packets-lost")
def network_loses(version: str) -> Connection:
    connection = opened(version)
    for number in range(10):
        again(publish(connection, number), 2, 0.3).packet("server").wait(0.1)
    return connection


@fault("cut-off")
def peer_vanishes(version: str) -> Connection:
    return again(publish(opened(version, heartbeat=60)), 6, 4)


@fault("server-does-not-read")
def server_reads_nothing(version: str) -> Connection:
    connection = publish(opened(version)).packet("server", window=0).wait(6)
    return publish(connection.packet("server", window=65535), 1).packet("server")


@fault("client-does-not-read", "0-9-1", "1.0")
def client_reads_nothing(version: str) -> Connection:
    connection = receiver_link() if version == "1.0" else opened(version).consume()
    connection.packet("client", window=0).wait(6).packet("client", window=65535)
    return transfer(connection, "server", 1, 0, settled=True) if version == "1.0" else connection.deliver(1)


@fault("handshake-hangs", "0-8", "0-9", "0-9-1")
def server_does_not_greet(version: str) -> Connection:
    return Connection(version).header()


@fault("heartbeats-of-client", "0-9-1", "0-10")
def client_is_silent(version: str) -> Connection:
    connection = opened(version, heartbeat=10)
    for _ in range(3):
        connection.wait(8).heartbeat("server") if version != "0-10" else control(
            connection.wait(8), "server", "heartbeat"
        )
    return connection.packet("server", flags=FIN | ACK)


@fault("heartbeats-of-server", "0-9-1", "0-10")
def server_is_silent(version: str) -> Connection:
    connection = opened(version, heartbeat=10)
    for _ in range(4):
        connection.wait(8).heartbeat() if version != "0-10" else control(connection.wait(8), "client", "heartbeat")
    return connection.packet("client", flags=FIN | ACK)


@fault("closed-with-error", "0-8", "0-9", "0-9-1")
def too_many_channels(version: str) -> Connection:
    connection = opened(version).client("channel.open", 9)
    return connection.close(
        "server", 530, "NOT_ALLOWED - number of channels opened (1) has reached the negotiated channel_max (1)", False
    )


@fault("tls-refused", "0-9-1")
def tls_without_a_common_version(version: str) -> Connection:
    connection = Connection(version, server_port=5671).client_bytes(CLIENT_HELLO)
    return connection.server_bytes(bytes.fromhex("15030100020246")).fin("server")


@fault("tls-broken-off", "0-9-1")
def certificate_is_not_accepted(version: str) -> Connection:
    """TLS 1.2: ServerHello (RFC 5246, 7.4.1.3), then alert unknown_ca of the client."""
    hello = b"\x03\x03" + bytes(32) + b"\x00\xc0\x30\x00"
    connection = Connection(version, server_port=5671).client_bytes(CLIENT_HELLO)
    connection.server_bytes(b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26" + hello)
    return connection.client_bytes(bytes.fromhex("15030300020230")).fin()


@fault("server-speaks-other", "0-8", "0-9-1", "0-10", "1.0")
def ssh_is_served(version: str) -> Connection:
    header = {"0-10": b"AMQP\x01\x01\x00\x0a", "1.0": b"AMQP\x03\x01\x00\x00"}.get(version)
    connection = Connection(version).client_bytes(header) if header else Connection(version).header()
    return connection.server_bytes(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n").wait(0.01).fin("server")


@fault("header-unanswered", "0-8", "0-9", "0-9-1")
def server_greets_too_late(version: str) -> Connection:
    """What it sends after the client's FIN."""
    connection = Connection(version).header().wait(3).packet("client", flags=FIN | ACK).wait(0.5).start()
    return connection.packet("client", flags=RST)


@fault("mechanism-not-offered", "0-8", "0-9", "0-9-1")
def mechanism_that_is_not_offered(version: str) -> Connection:
    connection = Connection(version).header().start(mechanisms="PLAIN AMQPLAIN").start_ok(mechanism="EXTERNAL")
    return connection.wait(3).rst("server")


@fault("tune-refused", "0-8", "0-9", "0-9-1")
def too_many_channels_asked_for(version: str) -> Connection:
    return Connection(version).header().start().start_ok().tune().tune_ok(channel_max=65535).rst("server")


@fault("tune-refused", "0-9-1")
def frames_too_large_asked_for(version: str) -> Connection:
    connection = Connection(version).header().start().start_ok().tune().tune_ok(frame_max=10_000_000)
    connection.client("connection.open", 0, virtual_host="/")
    text = "NOT_ALLOWED - negotiated frame_max = 10000000 is higher than the maximum allowed value (131072)"
    return connection.server("connection.close", 0, reply_code=530, reply_text=text, class_id=10, method_id=31).fin()


@fault("blocked-to-the-end", "0-9-1")
def publisher_gives_up(version: str) -> Connection:
    return opened(version).publish().server("connection.blocked", 0, reason="low on memory").wait(30).fin()


@fault("channel-churn", "0-8", "0-9", "0-9-1")
def channel_for_each_message(version: str) -> Connection:
    connection = opened(version).publish()
    for _ in range(60):
        connection.client("channel.close", 1, reply_code=200, reply_text="").server("channel.close-ok", 1)
        connection.open().publish()
    return connection.close()


@fault("polling", "0-8", "0-9", "0-9-1")
def empty_queue_is_polled(version: str) -> Connection:
    connection = opened(version)
    for _ in range(120):
        connection.client("basic.get", 1, queue="q").server("basic.get-empty", 1).wait(0.01)
    return connection.close()


def server_alone(connection: Connection) -> Connection:
    connection.packets = [packet for packet in connection.packets if packet.sender == "server"]
    return connection


@fault("closed-with-error", "0-8", "0-9", "0-9-1")
def server_states_an_error_alone(version: str) -> Connection:
    return server_alone(opened(version).close("server", 501, "FRAME_ERROR", channels=False))


@fault("login-refused", "0-8", "0-9", "0-9-1")
def server_refuses_a_login_alone(version: str) -> Connection:
    connection = Connection(version).header().start().start_ok()
    return server_alone(connection.close("server", 403, "ACCESS_REFUSED - Login was refused"))


@fault("open-refused", "0-9-1")
def server_refuses_a_virtual_host_alone(version: str) -> Connection:
    connection = Connection(version).header().start().start_ok().tune().tune_ok()
    connection.client("connection.open", 0, virtual_host="nowhere")
    return server_alone(connection.close("server", 530, "NOT_ALLOWED - vhost nowhere not found"))


@fault("one-direction")
def server_ends_alone(version: str) -> Connection:
    return server_alone(publish(opened(version)).packet("server", flags=FIN | ACK))


@fault("login-refused", "0-9-1")
def refusal_without_its_reason(version: str) -> Connection:
    """The snaplen cut the server's close, of which the capture has class and method."""
    connection = Connection(version).header().start().start_ok()
    connection.close("server", 403, "ACCESS_REFUSED - Login was refused")
    return connection.cut("server", b"Login was refused", 12)


@fault("gaps", "0-9-1")
def capture_lost_some_methods(version: str) -> Connection:
    return opened(version).lose("server", 100).publish().close()


@fault("last-packets", "0-9-1")
def only_the_end_was_captured(version: str) -> Connection:
    return Connection(version, syn=False).fin()


@fault("nothing")
def idle_and_closed(version: str) -> Connection:
    return publish(opened(version)).packet("server").wait(300)


@fault("nothing", "1.0")
def link_waits_for_messages(version: str) -> Connection:
    return receiver_link(credit=10).wait(100).packet("client")


@fault("nothing", "0-9-1")
def one_packet_was_lost(version: str) -> Connection:
    return again(publish(opened(version)), 1, 0.3).packet("server").wait(20).close()


def queue_of(connection: Connection, count: int, seconds: float, rtt: float) -> list[Connection]:
    """A publisher of `count` messages, and a consumer with prefetch 1 that takes one every `seconds`; captured at the
    broker."""
    publisher = Connection("0-9-1", client=3).handshake().open()
    for number in range(count):
        publisher.publish(str(number).encode(), message_id=str(number))
    connection.consume(prefetch=1)
    connection.now = max(connection.now, publisher.packets[-1].ns - int(0.001e9))
    for number in range(count):
        connection.deliver(number + 1, str(number).encode(), message_id=str(number)).wait(rtt + seconds)
        connection.client("basic.ack", 1, delivery_tag=number + 1, multiple=False)
    return [connection, publisher]


def far(rtt: float) -> Connection:
    connection = Connection("0-9-1", syn=False)
    connection.seq = {"client": 1000, "server": 2000}
    connection.packet("client", flags=SYN).packet("server", flags=SYN | ACK).wait(rtt).packet("client")
    return connection.handshake().open()


def dead_letters(count: int) -> Connection:
    connection = Connection("0-9-1").handshake().open().consume()
    for number in range(count):
        death = {"x-death": [{"count": number, "queue": "q", "reason": "rejected"}]} if number else {}
        connection.deliver(number + 1, headers=death)
        connection.client("basic.reject", 1, delivery_tag=number + 1, requeue=False).wait(0.01)
    return connection


def never_acknowledged() -> list[Connection]:
    connection = Connection("0-9-1").handshake().open().consume(prefetch=100)
    for tag in range(1, 11):
        connection.deliver(tag)
    return [connection.wait(5).heartbeat()]


def too_late(ttl: int) -> list[Connection]:
    """A consumer comes two seconds after messages that live for `ttl` ms."""
    publisher = Connection("0-9-1", client=3).handshake().open()
    for _ in range(10):
        publisher.publish(exchange="", expiration=str(ttl))
    return [publisher.close(), Connection("0-9-1", at=2).handshake().open().consume().close()]


QUEUES: dict[str, tuple[list[Connection], str]] = {
    "far-away": (queue_of(far(0.08), 20, 0.001, 0.08), "prefetch-far"),
    "busy": (queue_of(far(0.001), 20, 0.08, 0.001), "slow-consumers"),
    "dead-letters": ([dead_letters(12)], "dead-letter-loop"),
    "no-acknowledgement": (never_acknowledged(), "not-acknowledged"),
    "expired": (too_late(500), "expired"),
    "nobody": ([Connection("0-9-1").handshake().open().publish(exchange="").close()], "no-consumer"),
}
