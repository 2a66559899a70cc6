"""The faults: what is done to connections of pika, py-amqp, Qpid Proton and plain sockets, and the cause of each.

A fault's `record(broker, variant)` does it; variants use other libraries, queues or times. `subject` is what is asked
about: a connection's cause if it is None, else a queue, or 'message' for the first published message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import amqp
import pika
from proton import Message
from proton.utils import BlockingConnection

HOST = "10.9.0.2"
GREETING = b"AMQP\x00\x00\x09\x01"


@dataclass
class Fault:
    name: str
    cause: str
    done: str
    record: Callable[[Any, int], None]
    subject: str | None = None
    undo: Callable[[Any], None] | None = None
    left: list[Any] = field(default_factory=list)

    def clean_up(self, broker: Any) -> None:
        subprocess.run(["ip", "netns", "exec", "fb", "iptables", "-F"], check=False)
        if self.undo:
            self.undo(broker)


FAULTS: list[Fault] = []


def fault(cause: str, subject: str | None = None, undo: Callable[[Any], None] | None = None) -> Any:
    def add(record: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        name = record.__name__.replace("_", "-")
        FAULTS.append(Fault(name, cause, (record.__doc__ or "").strip(), record, subject, undo))
        return record

    return add


def parameters(
    user: str = "guest", password: str = "guest", vhost: str = "/", **more: Any
) -> pika.ConnectionParameters:
    more.setdefault("heartbeat", 60)
    more.setdefault("connection_attempts", 1)
    login = pika.PlainCredentials(user, password)
    return pika.ConnectionParameters(HOST, 5672, vhost, login, socket_timeout=20, **more)


def connect(**more: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(parameters(**more))


def py_amqp(**more: Any) -> amqp.Connection:
    connection = amqp.Connection(
        host=f"{HOST}:5672", **{"userid": "guest", "password": "guest", "virtual_host": "/", "heartbeat": 60} | more
    )
    connection.connect()
    return connection


def quietly(action: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        action()


def refused(action: Callable[[], object]) -> None:
    """What raises an error, as it should."""
    try:
        action()
    except Exception:
        return
    raise AssertionError("was not refused")


def drop(*rule: str) -> None:
    subprocess.run(["ip", "netns", "exec", "fb", "iptables", "-A", *rule], check=True)


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 0) -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return frame(1, channel, payload)


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def read_frame(sock: socket.socket) -> tuple[int, int, bytes]:
    head = b""
    while len(head) < 7:
        more = sock.recv(7 - len(head))
        if not more:
            raise EOFError
        head += more
    kind, channel, size = struct.unpack(">BHI", head)
    body = b""
    while len(body) < size + 1:
        more = sock.recv(size + 1 - len(body))
        if not more:
            raise EOFError
        body += more
    return kind, channel, body[:-1]


def raw(heartbeat: int = 0, frame_max: int = 131072) -> socket.socket:
    """A connection opened by hand, as the specification says (0-9-1, section 2.2.4)."""
    sock = socket.create_connection((HOST, 5672), timeout=20)
    sock.sendall(GREETING)
    read_frame(sock)
    login = struct.pack(">I", 12) + b"\x00guest\x00guest"
    sock.sendall(method(10, 11, struct.pack(">I", 0) + short(b"PLAIN") + login + short(b"en_US")))
    read_frame(sock)
    sock.sendall(
        method(10, 31, struct.pack(">HIH", 2047, frame_max, heartbeat)) + method(10, 40, short(b"/") + b"\0\0")
    )
    read_frame(sock)
    return sock


def raw_channel(**more: int) -> socket.socket:
    sock = raw(**more)
    sock.sendall(method(20, 10, b"\x00", 1))
    read_frame(sock)
    return sock


def until_closed(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while True:
            read_frame(sock)


def child(code: str) -> subprocess.Popen[str]:
    """A client of its own process; prints a line when it is ready."""
    head = "import pika, time, sys, os\n"
    process = subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


IDLE = """
connection = pika.BlockingConnection(pika.ConnectionParameters('10.9.0.2', heartbeat={heartbeat}))
channel = connection.channel()
channel.queue_declare('idle', auto_delete=True)
print('ready', flush=True)
"""


# Connecting


@fault("port-closed")
def port_closed(broker: Any, variant: int) -> None:
    """A port on which nothing listens."""
    refused(lambda: socket.create_connection((HOST, (5673, 5674, 15672)[variant]), timeout=5))


@fault("no-answer-at-all")
def packets_dropped(broker: Any, variant: int) -> None:
    """A firewall drops what the client sends, before anything is answered."""
    drop("OUTPUT", "-p", "tcp", "--sport", "5672", "-j", "DROP")
    refused(lambda: socket.create_connection((HOST, 5672), timeout=2 + variant))


@fault("nothing-sent")
def health_check(broker: Any, variant: int) -> None:
    """A load balancer connects and leaves."""
    with socket.create_connection((HOST, 5672), timeout=5):
        time.sleep(0.1 * variant)


@fault("other-protocol")
def other_protocol(broker: Any, variant: int) -> None:
    """HTTP, TLS or SSH on the port of AMQP."""
    sock = socket.create_connection((HOST, 5672), timeout=5)
    if variant == 1:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        refused(lambda: context.wrap_socket(sock, server_hostname="broker"))
        return
    sock.sendall((b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", b"", b"SSH-2.0-OpenSSH_9.2\r\n")[variant])
    until_closed(sock)


@fault("header-unanswered")
def plain_on_tls_port(broker: Any, variant: int) -> None:
    """AMQP without TLS on the port of TLS."""
    sock = socket.create_connection((HOST, 5671), timeout=5)
    sock.sendall((GREETING, b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")[variant])
    with contextlib.suppress(OSError):
        while sock.recv(100):
            pass
    sock.close()


@fault("version-refused")
def version_refused(broker: Any, variant: int) -> None:
    """A protocol header that the broker does not know."""
    sock = socket.create_connection((HOST, 5672), timeout=5)
    sock.sendall((b"AMQP\x01\x01\x00\x0a", b"AMQP\x00\x00\x0a\x00", b"AMQP\x09\x09\x09\x09")[variant])
    with contextlib.suppress(OSError):
        while sock.recv(100):
            pass
    sock.close()


# Login


@fault("login-refused")
def wrong_password(broker: Any, variant: int) -> None:
    """A wrong password."""
    attempts: tuple[Callable[[], object], ...] = (
        lambda: connect(password="wrong"),
        lambda: py_amqp(password="wrong"),
        lambda: BlockingConnection(f"amqp://guest:wrong@{HOST}:5672", timeout=5, allowed_mechs="PLAIN"),
    )
    refused(attempts[variant])


@fault("no-mechanism")
def no_mechanism(broker: Any, variant: int) -> None:
    """The client wants a mechanism that the broker does not offer, and leaves."""
    sock = socket.create_connection((HOST, 5672), timeout=5)
    sock.sendall(GREETING)
    read_frame(sock)
    time.sleep(0.05 * variant)
    sock.close()


@fault("open-refused")
def missing_vhost(broker: Any, variant: int) -> None:
    """A virtual host that does not exist."""
    attempts: tuple[Callable[[], object], ...] = (
        lambda: connect(vhost="nowhere"),
        lambda: py_amqp(virtual_host="nowhere"),
        lambda: BlockingConnection(
            f"amqp://guest:guest@{HOST}:5672", timeout=5, virtual_host="vhost:nowhere", allowed_mechs="PLAIN"
        ),
    )
    refused(attempts[variant])


@fault("open-refused")
def forbidden_vhost(broker: Any, variant: int) -> None:
    """A virtual host for which the user has no permission."""
    attempts: tuple[Callable[[], object], ...] = (
        lambda: connect(user="nobody", password="nothing"),
        lambda: py_amqp(userid="alice", password="secret", virtual_host="orders"),
        lambda: connect(user="alice", password="secret", vhost="orders"),
    )
    refused(attempts[variant])


# Errors


def on_channel(action: Callable[[Any], object], **more: Any) -> None:
    """What `action` does on a channel of pika is refused; then the connection is closed."""
    connection = connect(**more)
    refused(lambda: action(connection.channel()))
    quietly(connection.close)


@fault("error")
def missing_queue(broker: Any, variant: int) -> None:
    """A queue that does not exist."""
    if variant == 2:
        connection = BlockingConnection(f"amqp://guest:guest@{HOST}:5672", timeout=5, allowed_mechs="PLAIN")
        refused(lambda: connection.create_receiver("/amq/queue/missing"))
        quietly(connection.close)
        return
    actions: tuple[Callable[[Any], object], ...] = (
        lambda channel: channel.queue_declare("missing", passive=True),
        lambda channel: channel.basic_consume("missing", lambda *_: None),
    )
    on_channel(actions[variant])


@fault("error")
def other_arguments(broker: Any, variant: int) -> None:
    """A queue or exchange is declared again with other arguments."""

    def declare(channel: Any) -> None:
        name = f"declared{variant}"
        if variant == 2:
            channel.exchange_declare(name, "direct")
            channel.exchange_declare(name, "fanout")
        channel.queue_declare(name, durable=False)
        channel.queue_declare(name, durable=variant == 0, arguments={"x-max-length": 5} if variant else None)

    on_channel(declare)


@fault("error")
def exclusive_queue(broker: Any, variant: int) -> None:
    """A queue that is exclusive to another connection, or has an exclusive consumer."""
    owner = connect()
    channel = owner.channel()
    name = f"exclusive{variant}"
    channel.queue_declare(name, exclusive=variant < 2, auto_delete=True)
    if variant == 2:
        channel.basic_consume(name, lambda *_: None, exclusive=True)
    actions: tuple[Callable[[Any], object], ...] = (
        lambda other: other.queue_declare(name, passive=True),
        lambda other: other.basic_consume(name, lambda *_: None),
        lambda other: other.basic_consume(name, lambda *_: None),
    )
    on_channel(actions[variant])
    owner.close()


@fault("error")
def acknowledged_twice(broker: Any, variant: int) -> None:
    """A delivery is acknowledged twice, on another channel, or was never made."""
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    channel.queue_declare("twice", auto_delete=True)
    channel.basic_publish("", "twice", b"x")
    delivery, _, _ = channel.basic_get("twice")
    if variant == 0:
        channel.basic_ack(delivery.delivery_tag)
        channel.basic_ack(delivery.delivery_tag)
    elif variant == 1:
        other.basic_ack(delivery.delivery_tag)
    else:
        channel.basic_nack(delivery.delivery_tag + 7)
    refused(lambda: [each.queue_declare("twice", passive=True) for each in (channel, other)])
    quietly(connection.close)


@fault("error")
def missing_exchange(broker: Any, variant: int) -> None:
    """A message is published to an exchange that does not exist."""
    if variant == 1:
        connection = py_amqp()
        channel = connection.channel()
        channel.basic_publish(amqp.Message("x"), exchange="missing", routing_key="a")
        refused(lambda: channel.queue_declare("x", passive=True))
        quietly(connection.close)
        return

    def publish(channel: Any) -> None:
        if variant:
            channel.confirm_delivery()
        channel.basic_publish("missing", "a", b"x")
        channel.queue_declare("x", passive=True)

    on_channel(publish)


@fault("error")
def forbidden(broker: Any, variant: int) -> None:
    """The user may not do that."""
    actions: tuple[Callable[[Any], object], ...] = (
        lambda channel: channel.queue_declare("bobs"),
        lambda channel: channel.exchange_declare("bobs"),
        lambda channel: channel.queue_delete("bobs"),
    )
    broker.ctl("set_permissions", "alice", "^alice.*", "^alice.*", "^alice.*")
    on_channel(actions[variant], user="alice", password="secret")


@fault("consumer-cancelled")
def queue_deleted(broker: Any, variant: int) -> None:
    """The queue of a consumer is deleted."""
    consumer, other = connect(), connect()
    channel = consumer.channel()
    channel.queue_declare(f"deleted{variant}")
    channel.basic_consume(f"deleted{variant}", lambda *_: None)
    consumer.process_data_events(0.2)
    if variant == 1:
        broker.ctl("delete_queue", f"deleted{variant}")
    else:
        other.channel().queue_delete(f"deleted{variant}")
    consumer.process_data_events(0.5)
    if variant != 2:
        consumer.close()
        other.close()
    else:
        quietly(other.close)
        quietly(consumer.close)


# Ends


@fault("closed-with-error")
def broken_frames(broker: Any, variant: int) -> None:
    """Frames that break the protocol: a wrong end, one that is too large, a type that there is not."""
    sock = raw_channel(frame_max=4096)
    broken = (
        frame(1, 1, struct.pack(">HH", 20, 20) + b"\x01", end=b"\x00"),
        frame(3, 1, bytes(9000)),
        frame(7, 1, b"abcd"),
    )
    sock.sendall(broken[variant])
    until_closed(sock)
    sock.close()


@fault("closed-with-error")
def unexpected_frames(broker: Any, variant: int) -> None:
    """A body without a method, a method in the middle of a content, a method on a channel that is not open."""
    sock = raw_channel()
    publish = method(60, 40, b"\0\0" + short(b"") + short(b"q") + b"\0", 1)
    wrong = (frame(3, 1, b"body"), publish + publish, method(50, 10, b"\0\0" + short(b"q") + b"\0" + bytes(4), 9))
    sock.sendall(wrong[variant])
    until_closed(sock)
    sock.close()


@fault("closed-with-error")
def not_implemented(broker: Any, variant: int) -> None:
    """A message is published with immediate, which RabbitMQ does not implement."""
    sock = raw_channel()
    exchange = (b"", b"amq.direct", b"amq.fanout")[variant]
    publish = method(60, 40, b"\0\0" + short(exchange) + short(b"q") + b"\x02", 1)
    sock.sendall(publish + frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0)))
    until_closed(sock)
    sock.close()


@fault("invalid-bytes")
def unknown_method(broker: Any, variant: int) -> None:
    """A method that there is not; RabbitMQ cuts the connection off without a word."""
    sock = raw_channel()
    sock.sendall((method(60, 199, b"", 1), method(99, 10, b"", 1), method(20, 77, b"", 1))[variant])
    until_closed(sock)
    sock.close()


@fault("heartbeats-of-client")
def client_stops(broker: Any, variant: int) -> None:
    """The client's process is stopped (SIGSTOP), or its thread is busy, so that it sends no heartbeats."""
    heartbeat = (1, 2, 2)[variant]
    code = IDLE.format(heartbeat=heartbeat) + (
        "time.sleep(60)" if variant == 2 else "connection.process_data_events(60)"
    )
    process = child(code)
    if variant < 2:
        process.send_signal(signal.SIGSTOP)
    time.sleep(heartbeat * 5)
    process.kill()


@fault("heartbeats-of-client")
def client_is_cut_off(broker: Any, variant: int) -> None:
    """The network loses all packets of the client."""
    process = child(IDLE.format(heartbeat=1 + variant) + "connection.process_data_events(60)")
    subprocess.run(["iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", "5672", "-j", "DROP"], check=True)
    try:
        time.sleep(5 * (1 + variant))
    finally:
        subprocess.run(["iptables", "-F"], check=True)
        process.kill()


@fault("heartbeats-of-server", undo=lambda broker: broker.signal(signal.SIGCONT))
def broker_stops(broker: Any, variant: int) -> None:
    """The broker's process is stopped, so that it sends no heartbeats."""
    process = child(IDLE.format(heartbeat=1 + variant) + "connection.process_data_events(60)")
    broker.signal(signal.SIGSTOP)
    process.wait(60)
    time.sleep(0.2)
    broker.signal(signal.SIGCONT)


@fault("client-left")
def client_killed(broker: Any, variant: int) -> None:
    """The client's process is killed, or ends without closing."""
    process = child(IDLE.format(heartbeat=60) + ("os._exit(1)" if variant == 2 else "time.sleep(60)"))
    if variant < 2:
        process.send_signal((signal.SIGKILL, signal.SIGTERM)[variant])
    process.wait(10)


@fault("client-left")
def client_resets(broker: Any, variant: int) -> None:
    """The client resets TCP."""
    sock = raw_channel()
    time.sleep(0.1 * variant)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@fault("forced")
def operator_closes(broker: Any, variant: int) -> None:
    """An operator closes the connection."""
    connection = connect() if variant < 2 else py_amqp()
    time.sleep(6.5 if variant == 1 else 0.5)
    broker.ctl("close_all_connections", f"maintenance {variant}")
    if isinstance(connection, pika.BlockingConnection):
        quietly(lambda: connection.process_data_events(1))
    else:
        quietly(lambda: connection.drain_events(timeout=1))


def started(broker: Any) -> None:
    broker.ctl("start_app")
    broker.ctl("await_startup")


@fault("broker-stopped", undo=started)
def broker_is_stopped(broker: Any, variant: int) -> None:
    """The broker is stopped while clients are connected."""
    connections = [connect() for _ in range(variant + 1)]
    broker.ctl("stop_app")
    for each in connections:
        quietly(lambda: each.process_data_events(0.5))  # noqa: B023


@fault("broker-stopped", undo=lambda broker: broker.start())
def broker_is_killed(broker: Any, variant: int) -> None:
    """The broker's process is killed while several clients are connected."""
    connections = [connect() for _ in range(3 + variant)]
    broker.kill()
    for each in connections:
        quietly(lambda: each.process_data_events(0.3))  # noqa: B023


@fault("server-left")
def reset_on_the_way(broker: Any, variant: int) -> None:
    """A device on the way resets an open connection that is in use, in the name of the broker."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("reset", auto_delete=True)
    drop("INPUT", "-p", "tcp", "--dport", "5672", "-j", "REJECT", "--reject-with", "tcp-reset")
    for _ in range(2 + variant):
        quietly(lambda: channel.basic_publish("", "reset", b"x"))
        time.sleep(0.1)
    quietly(lambda: connection.process_data_events(0.5))


@fault("closed")
def closed_as_it_should(broker: Any, variant: int) -> None:
    """Nothing is wrong."""
    if variant == 1:
        connection = py_amqp()
        connection.channel().queue_declare("fine", auto_delete=True)
        connection.close()
        return
    if variant == 2:
        other = BlockingConnection(f"amqp://guest:guest@{HOST}:5672", timeout=5, allowed_mechs="PLAIN")
        other.create_sender("/queue/fine").send(Message(body="x"))
        other.close()
        return
    with connect() as connection:
        connection.channel().queue_declare("fine", auto_delete=True)


@fault("still-open")
def still_open(broker: Any, variant: int) -> None:
    """Nothing is wrong, and the capture ends first."""
    still_open.left = connect() if variant else raw_channel()  # type: ignore[attr-defined]


# Stops


def no_alarm(broker: Any) -> None:
    broker.ctl("set_vm_memory_high_watermark", "0.4")


@fault("blocked", undo=no_alarm)
def memory_alarm(broker: Any, variant: int) -> None:
    """The broker has a memory alarm while a client publishes."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("alarm", auto_delete=True)
    broker.ctl("set_vm_memory_high_watermark", "0.00001")
    for _ in range(3):
        channel.basic_publish("", "alarm", b"x")
        connection.process_data_events(0.3)
    time.sleep(1 + variant)
    broker.ctl("set_vm_memory_high_watermark", "0.4")
    connection.process_data_events(2)
    quietly(connection.close)


@fault("client-does-not-read")
def client_does_not_read(broker: Any, variant: int) -> None:
    """A consumer without a prefetch limit stops reading."""
    with connect() as publisher:
        channel = publisher.channel()
        channel.queue_declare("flood", auto_delete=False)
        for _ in range(40):
            channel.basic_publish("", "flood", bytes(20_000))
    sock = raw_channel()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.sendall(method(60, 20, b"\0\0" + short(b"flood") + short(b"") + b"\x02" + bytes(4), 1))
    time.sleep(4 + variant)
    sock.settimeout(0.5)
    with contextlib.suppress(OSError):
        for _ in range(2000):
            if not sock.recv(65536):
                break
    sock.sendall(method(10, 50, struct.pack(">H", 200) + short(b"bye") + bytes(4)))
    until_closed(sock)
    sock.close()
    with connect() as cleaner:
        cleaner.channel().queue_delete("flood")


@fault("prefetch-used-up")
def prefetch_used_up(broker: Any, variant: int) -> None:
    """A consumer takes as many messages as its prefetch limit allows, and settles none."""
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("held", auto_delete=True)
    for _ in range(20):
        channel.basic_publish("", "held", b"x")
    channel.basic_qos(prefetch_count=(1, 5, 10)[variant])
    channel.basic_consume("held", lambda *_: None)
    connection.process_data_events(1)
    prefetch_used_up.left = connection  # type: ignore[attr-defined]


@fault("connection-churn")
def connection_churn(broker: Any, variant: int) -> None:
    """A client opens a connection for each message."""
    for _ in range(25):
        with connect() if variant < 2 else py_amqp() as connection:
            if variant:
                connection.channel().basic_publish(*(("", "churn", b"x") if variant == 1 else (amqp.Message("x"),)))


@fault("channels-left-open")
def channels_left_open(broker: Any, variant: int) -> None:
    """A client opens channels and does not close them."""
    connection = connect()
    for _ in range(60 + 20 * variant):
        connection.channel().basic_publish("", "leak", b"x")
    channels_left_open.left = connection  # type: ignore[attr-defined]


@fault("messages-returned")
def messages_returned(broker: Any, variant: int) -> None:
    """Mandatory messages for which no queue is bound."""
    with connect() as connection:
        channel = connection.channel()
        for _ in range(1 + 5 * variant):
            channel.basic_publish("amq.topic", "nowhere", b"x", mandatory=True)
        connection.process_data_events(0.3)


@fault("messages-nacked")
def messages_nacked(broker: Any, variant: int) -> None:
    """A queue that is full refuses messages."""
    with connect() as connection:
        channel = connection.channel()
        arguments = {"x-max-length": 1 + variant, "x-overflow": "reject-publish"}
        channel.queue_declare(f"narrow{variant}", auto_delete=True, arguments=arguments)
        channel.confirm_delivery()
        for _ in range(6):
            quietly(lambda: channel.basic_publish("", f"narrow{variant}", b"x"))
        channel.queue_delete(f"narrow{variant}")


# Queues and messages


@fault("no-consumer", subject="lonely")
def nobody_consumes(broker: Any, variant: int) -> None:
    """Messages are published to a queue that nobody consumes from."""
    with connect() as connection:
        channel = connection.channel()
        channel.queue_declare("lonely")
        for _ in range(3 + 10 * variant):
            channel.basic_publish("", "lonely", b"x")
        channel.queue_delete("lonely") if variant == 2 else channel.queue_purge("lonely")


@fault("delivered-again", subject="poison")
def poison_message(broker: Any, variant: int) -> None:
    """A consumer gives the same message back again and again."""
    with connect() as connection:
        channel = connection.channel()
        channel.queue_declare("poison", auto_delete=True)
        channel.basic_publish("", "poison", b"x")
        count = 0

        def give_back(_: Any, delivery: Any, *__: Any) -> None:
            nonlocal count
            count += 1
            (channel.basic_reject if variant else channel.basic_nack)(delivery.delivery_tag, requeue=count < 40)

        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("poison", give_back)
        until = time.monotonic() + 10
        while count < 40 and time.monotonic() < until:
            connection.process_data_events(0.2)


@fault("slow-consumers", subject="slow")
def slow_consumer(broker: Any, variant: int) -> None:
    """A consumer takes longer for a message than the publisher does."""
    with connect() as publisher, connect() as consumer:
        out, channel = publisher.channel(), consumer.channel()
        channel.queue_declare("slow", auto_delete=True)
        channel.basic_qos(prefetch_count=1 + variant)
        count = 0

        def work(_: Any, delivery: Any, *__: Any) -> None:
            nonlocal count
            time.sleep(0.08)
            channel.basic_ack(delivery.delivery_tag)
            count += 1

        channel.basic_consume("slow", work)
        consumer.process_data_events(0.1)
        for _ in range(30):
            out.basic_publish("", "slow", b"x")
        until = time.monotonic() + 20
        while count < 30 and time.monotonic() < until:
            consumer.process_data_events(0.2)


@fault("late-consumers", subject="backlog")
def late_consumer(broker: Any, variant: int) -> None:
    """Messages wait for a consumer that comes later."""
    with connect() as publisher, connect() as consumer:
        out, channel = publisher.channel(), consumer.channel()
        out.queue_declare("backlog")
        for _ in range(20):
            out.basic_publish("", "backlog", b"x")
        time.sleep(1.5 + variant)
        count = 0

        def work(_: Any, delivery: Any, *__: Any) -> None:
            nonlocal count
            channel.basic_ack(delivery.delivery_tag)
            count += 1

        channel.basic_consume("backlog", work)
        until = time.monotonic() + 10
        while count < 20 and time.monotonic() < until:
            consumer.process_data_events(0.2)
        out.queue_delete("backlog")


@fault("consumers-refuse", subject="refusing")
def consumers_refuse(broker: Any, variant: int) -> None:
    """A consumer rejects what it gets."""
    with connect() as connection:
        channel = connection.channel()
        channel.queue_declare("refusing", auto_delete=True)
        for _ in range(10):
            channel.basic_publish("", "refusing", b"x")
        count = 0

        def refuse(_: Any, delivery: Any, *__: Any) -> None:
            nonlocal count
            (channel.basic_nack if variant else channel.basic_reject)(delivery.delivery_tag, requeue=False)
            count += 1

        channel.basic_consume("refusing", refuse)
        until = time.monotonic() + 10
        while count < 10 and time.monotonic() < until:
            connection.process_data_events(0.2)


@fault("returned", subject="message")
def unroutable(broker: Any, variant: int) -> None:
    """A mandatory message for which no queue is bound."""
    with connect() as connection:
        channel = connection.channel()
        if variant:
            channel.confirm_delivery()
        quietly(
            lambda: channel.basic_publish(("amq.direct", "amq.topic", "")[variant], "nowhere", b"x", mandatory=True)
        )
        connection.process_data_events(0.3)


@fault("nacked", subject="message")
def queue_is_full(broker: Any, variant: int) -> None:
    """A queue that is full refuses a message."""
    with connect() as connection:
        channel = connection.channel()
        arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
        channel.queue_declare(f"full{variant}", auto_delete=True, arguments=arguments)
        channel.confirm_delivery()
        quietly(lambda: channel.basic_publish("", f"full{variant}", b"x"))
        channel.queue_delete(f"full{variant}")


@fault("rejected", subject="message")
def rejected_message(broker: Any, variant: int) -> None:
    """A consumer rejects a message for good."""
    with connect() as connection:
        channel = connection.channel()
        channel.queue_declare("rejected", auto_delete=True)
        channel.basic_publish("", "rejected", b"x")
        delivery = None
        while delivery is None:
            delivery, _, _ = channel.basic_get("rejected")
        (channel.basic_nack if variant else channel.basic_reject)(delivery.delivery_tag, requeue=False)
        channel.queue_delete("rejected")


@fault("rolled-back", subject="message")
def rolled_back(broker: Any, variant: int) -> None:
    """A message is published in a transaction that is rolled back."""
    with connect() as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", "tx", b"x")
        channel.tx_rollback()


os.environ.setdefault("PYTHONWARNINGS", "ignore")
threading.excepthook = lambda _: None
